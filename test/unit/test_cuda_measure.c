/* test_cuda_measure.c - effort "measure" on the GPU, without one: tiles by rank, what is timed, what is remembered,
 * and that a call which fails midway leaves nothing allocated. */
#include "../support/fixture.h"
#include "../../src/cuda/tc.h"

static standin *gpu, *rtc;

static const char block_b[] =
    "x[2,8,40,40] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)";

static cvy_status measured(cvy_plan **plan)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CUDA, .effort = CVY_MEASURE};
    cvy_graph *graph = NULL;
    cvy_status st;

    *plan = NULL;
    TRY(cvy_graph_parse(block_b, &graph));
    st = cvy_plan_create(graph, &options, plan);
fail:
    cvy_graph_free(graph);
    return st;
}

static void ranks_differ(void)
{
    const tc_problem b = {.c = 8, .k = 64, .h = 128, .w = 128, .r = 3, .s = 3, .stride = 1, .products = 3};
    tc_tuning t[TUNE_TILES];

    for (int i = 0; i < TUNE_TILES; i++) {
        CHECK(cvyi_tc_tune(&b, 227 * 1024, 132, i, &t[i]), "rank %d", i);
        CHECK(t[i].packed_bytes > 0 && t[i].threads > 0, "rank %d is not complete", i);
        for (int k = 0; k < i; k++)
            CHECK(t[i].tile != t[k].tile || t[i].rowsm != t[k].rowsm || t[i].flat != t[k].flat ||
                      t[i].strip != t[k].strip || t[i].span != t[k].span || t[i].slices != t[k].slices,
                  "ranks %d and %d are the same", k, i);
    }
    CHECK(cvyi_tc_tune(&b, 227 * 1024, 132, 99, &t[1]), "beyond the last the last stands in");
    const tc_problem narrow = {.c = 1, .k = 1, .h = 1, .w = 1, .r = 1, .s = 1, .stride = 1, .products = 1};
    CHECK(cvyi_tc_tune(&narrow, 227 * 1024, 132, TUNE_TILES - 1, &t[0]), "one output");
}

enum { ENTRY_HEADER = 80, ENTRY_PAYLOAD = 9 };
static cache_key entry;
static int n_entries;

/* The entry of a measurement among those of code, by its size. */
static void find_entry(const char *path, const char *name)
{
    struct stat info;
    if (stat(path, &info) || info.st_size != ENTRY_HEADER + ENTRY_PAYLOAD) return;
    n_entries++;
    for (int i = 0; i < SHA256_BYTES; i++) {
        unsigned int byte = 0;
        sscanf(name + 2 * i, "%2x", &byte);
        entry.digest[i] = (unsigned char)byte;
    }
}

/* What this engine cannot have written is not believed: the plans are timed again, and the entry is replaced. */
static void entries_are_checked(void)
{
    static const unsigned char bad[][ENTRY_PAYLOAD] = {
        {CUDA_TUNINGS, 0, 0, 0, 0, 0, 0, 0x50, 0x3f}, /* a tuning that there is not */
        {255, 0, 0, 0, 0, 0, 0, 0x50, 0x3f},
        {0, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f}, /* NaN, infinity, negative and no seconds */
        {0, 0, 0, 0, 0, 0, 0, 0xf0, 0x7f},
        {0, 0, 0, 0, 0, 0, 0, 0x50, 0xbf},
        {0},
    };
    cvy_plan *plan = NULL;

    clear_cache();
    CHECK(measured(&plan) == CVY_OK, "%s", cvy_last_error());
    cvy_plan_free(plan);
    n_entries = 0;
    each_entry(cache_dir, find_entry);
    CHECK(n_entries == 1, "%d entries of %d bytes", n_entries, ENTRY_PAYLOAD);
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        const int launches = gpu->launches;
        cvyi_cache_store(&entry, bad[i], ENTRY_PAYLOAD);
        CHECK(measured(&plan) == CVY_OK && plan->tuning < CUDA_TUNINGS && plan->measured == 1e-3, "entry %d", i);
        CHECK(gpu->launches > launches, "entry %d was believed", i);
        cvy_plan_free(plan);
    }
}

/* The first time plans are run, the second time the file answers. */
static void winners_are_remembered(void)
{
    cvy_plan *plan = NULL;
    char printed[16384] = "";
    int launches = gpu->launches;

    clear_cache();
    CHECK(measured(&plan) == CVY_OK, "%s", cvy_last_error());
    CHECK(gpu->launches - launches >= 4 * 6, "%d launches", gpu->launches - launches);
    CHECK(plan && plan->measured == 1e-3, "%g s", plan ? plan->measured : 0);
    CHECK(cvy_plan_print(plan, printed, sizeof printed, NULL) == CVY_OK && strstr(printed, "measured  tuning '") &&
              strstr(printed, "' was the fastest: 1 ms"),
          "%s", printed);
    cvy_plan_free(plan);
    launches = gpu->launches;
    CHECK(measured(&plan) == CVY_OK, "%s", cvy_last_error());
    CHECK(gpu->launches == launches, "%d launches", gpu->launches - launches);
    cvy_plan_free(plan);
}

/* Every pass has a time of its own beside the predicted one; a call that fails says so, and leaves nothing. */
static void passes_are_measured(void)
{
    cvy_plan *plan =
        chain_plan("x[8,64] | linear(64) | softmax(1) | flatten(0) | reshape(8,64) | sum(0)", CVY_FP32, 0);
    char printed[16384] = "";
    const int objects = gpu->live;

    if (!plan) return;
    CHECK(cvy_plan_measure(plan) == CVY_OK, "%s", cvy_last_error());
    for (int i = plan->n_prepare; i < plan->n_passes; i++)
        CHECK(plan->passes[i].measured == 1e-3, "pass %d: %g s", i, plan->passes[i].measured);
    CHECK(cvy_plan_print(plan, printed, sizeof printed, NULL) == CVY_OK && strstr(printed, ", measured 1 ms"), "%s",
          printed);
    gpu->calls = 0;
    gpu->fail_at = 20;
    CHECK(cvy_plan_measure(plan) != CVY_OK, "call 20 failed, and nobody said so");
    gpu->fail_at = -1;
    CHECK(gpu->live == objects && gpu->depth == 0, "%d objects, %d deep", gpu->live - objects, gpu->depth);
    cvy_plan_free(plan);
}

/* A measurement that fails is no reason to refuse the plan, unless the plan itself cannot be made. Without its
 * context nothing can be unloaded: what stays when pushing it fails is the driver's. */
static void failures_leave_nothing(void)
{
    const int64_t live = cvyi_alloc_live();
    int n, refused = 0;

    for (n = 0; n < 4000; n += 37) {
        cvy_plan *plan = NULL;
        cvy_status st;
        const int objects = gpu->live;
        clear_cache();
        gpu->calls = 0;
        gpu->fail_at = n;
        gpu->failed = NULL;
        st = measured(&plan);
        gpu->fail_at = -1;
        CHECK((st == CVY_OK) == (plan != NULL), "call %d: status %d", n, st);
        refused += st != CVY_OK;
        cvy_plan_free(plan);
        const bool stranded = gpu->failed && !strcmp(gpu->failed, "cuCtxPushCurrent");
        CHECK((stranded || gpu->live == objects) && gpu->depth == 0 && cvyi_alloc_live() == live,
              "call %d (%s): %d objects, %d deep", n, gpu->failed ? gpu->failed : "none", gpu->live, gpu->depth);
        if (!gpu->failed) break;
    }
    CHECK(refused > 0 && n > 100, "%d refused of %d", refused, n);
}

int main(int argc, char **argv)
{
    (void)argc;
    use_cache();
    gpu = use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    rtc = use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    gpu->fail_at = rtc->fail_at = -1;
    ranks_differ();
    winners_are_remembered();
    passes_are_measured();
    entries_are_checked();
    failures_leave_nothing();
    CHECK(cvyi_alloc_live() == 0, "%lld allocations", (long long)cvyi_alloc_live());
    return finish("cuda_measure");
}
