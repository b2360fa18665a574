/* test_cuda_plan.c - whole plans for the GPU, without one: each call fails in turn, runs allocate nothing, a new
 * batch size and new names compile nothing, and every operator has a kernel. */
#include <sys/wait.h>
#include "../support/fixture.h"
#include "../support/kernel_list.h"
#include "../../src/cuda/exec.h"

static standin *gpu, *rtc;

enum { MAX_TENSORS = 100 };

/* Memory for a plan's tensors and workspace; the stand-in's device memory is the host's. */
typedef struct memory {
    cvy_buffer buffers[MAX_TENSORS];
    void *blocks[MAX_TENSORS + 1];
    int n;
} memory;

static cvy_status take_memory(const cvy_graph *g, const cvy_plan *p, memory *m)
{
    cvy_status st = CVY_OK;

    memset(m, 0, sizeof *m);
    m->n = cvy_graph_tensors(g);
    for (int i = 0; i <= m->n; i++) {
        size_t bytes = 4;
        cvy_tensor t;
        if (i < m->n) TRY(cvy_graph_tensor(g, i, &t));
        for (int d = 0; i < m->n && d < t.rank; d++) bytes *= (size_t)t.dims[d];
        m->blocks[i] = cvyi_alloc_aligned(i < m->n ? bytes : cvy_plan_workspace(p));
        if (!m->blocks[i]) return CVY_NO_MEMORY;
        m->buffers[i < m->n ? i : 0].data = m->blocks[i < m->n ? i : 0];
    }
fail:
    return st;
}

static void free_memory(memory *m)
{
    for (int i = 0; i <= m->n; i++) cvyi_free(m->blocks[i]);
}

static const cvy_options on_gpu = {.size = sizeof on_gpu, .device = CVY_CUDA};
static const char block_a[] =
    "x[2,8,12,13] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)";

/* Plans and runs; what goes wrong while freeing is nobody's to report, so nothing fails there. */
static cvy_status scenario(const char *chain)
{
    cvy_graph *g = NULL;
    cvy_plan *p = NULL;
    memory m = {.n = -1};
    cvy_status st;

    TRY(cvy_graph_parse(chain, &g));
    TRY(cvy_plan_create(g, &on_gpu, &p));
    TRY(take_memory(g, p, &m));
    TRY(cvy_plan_run(p, m.buffers, m.n, m.blocks[m.n], cvy_plan_workspace(p), 0, NULL));
fail:
    gpu->fail_at = rtc->fail_at = -1;
    free_memory(&m);
    cvy_plan_free(p);
    cvy_graph_free(g);
    return st;
}

static void check_nothing_left(const char *when, int n, int64_t live)
{
    CHECK(gpu->live == 0 && rtc->live == 0, "%s %d: %d and %d objects", when, n, gpu->live, rtc->live);
    CHECK(gpu->depth == 0, "%s %d: %d contexts pushed", when, n, gpu->depth);
    CHECK(cvyi_alloc_live() == live, "%s %d: %lld allocations", when, n, (long long)(cvyi_alloc_live() - live));
}

static void fail_each(standin *library)
{
    const int64_t live = cvyi_alloc_live();

    for (int n = 0; n < 10000; n++) {
        cvy_status st;
        clear_cache();
        library->calls = 0;
        library->fail_at = n;
        library->failed = NULL;
        st = scenario(block_a);
        check_nothing_left(library->failed ? library->failed : "run", n, live);
        if (!library->failed) {
            CHECK(st == CVY_OK, "%s", cvy_last_error());
            return;
        }
        if (library->freed) continue;
        CHECK(st != CVY_OK, "call %d (%s) failed, and nobody said so", n, library->failed);
        CHECK(strstr(cvy_last_error(), library->failed), "call %d (%s): \"%s\"", n, library->failed,
              cvy_last_error());
    }
    CHECK(false, "no end");
}

static void fail_each_allocation(void)
{
    const int64_t live = cvyi_alloc_live();
    int failed = 0;

    for (int n = 0; n < 600; n++) {
        cvy_status st;
        cvyi_alloc_fail_after(n);
        st = scenario(block_a);
        cvyi_alloc_fail_after(-1);
        check_nothing_left("allocation", n, live);
        CHECK(st == CVY_OK || st == CVY_NO_MEMORY, "allocation %d: %d %s", n, st, cvy_last_error());
        failed += st != CVY_OK;
    }
    CHECK(failed > 20, "%d", failed);
}

static void runs_without_allocating(void)
{
    cvy_graph *g = NULL;
    cvy_plan *p = NULL;
    memory m = {.n = -1};
    int objects, first, second;

    CHECK(!cvy_graph_parse(block_a, &g) && !cvy_plan_create(g, &on_gpu, &p) && !take_memory(g, p, &m), "%s",
          cvy_last_error());
    objects = gpu->live;
    first = gpu->launches;
    cvyi_alloc_fail_after(0);
    CHECK(cvy_plan_run(p, m.buffers, m.n, m.blocks[m.n], cvy_plan_workspace(p), 0, NULL) == CVY_OK, "%s",
          cvy_last_error());
    second = gpu->launches;
    CHECK(cvy_plan_run(p, m.buffers, m.n, m.blocks[m.n], cvy_plan_workspace(p), CVY_KEEP_PREPARED, NULL) == CVY_OK,
          "%s", cvy_last_error());
    cvyi_alloc_fail_after(-1);
    CHECK(gpu->live == objects, "%d objects made by a run", gpu->live - objects);
    CHECK(gpu->launches - second < second - first && gpu->launches > second, "%d launches, then %d", second - first,
          gpu->launches - second);
    CHECK(cvy_plan_run(p, m.buffers, m.n, m.blocks[m.n], cvy_plan_workspace(p), 0, gpu) == CVY_INVALID,
          "a stream of another context");
    const pid_t child = fork();
    if (child == 0) _exit(cvy_plan_run(p, m.buffers, m.n, m.blocks[m.n], cvy_plan_workspace(p), 0, NULL) == CVY_OK);
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0, "a forked child was let through");
    free_memory(&m);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

static void new_names_and_batches_compile_nothing(void)
{
    static const char *const pairs[][2] = {
        {"x[3,8,12,13] | conv2d(64,3) @c | group_norm(16) | mul(s[64,1,1]) | add(@c)",
         "in[3,8,12,13] | conv2d(64,3) @first | group_norm(16) @norm | mul(scale[64,1,1]) @out | add(@first) @y"},
        {"x[3,8,12,13] | batch_norm() | tanh @t | max_pool2d(2) | softmax(1)",
         "q[3,8,12,13] | batch_norm() @r | tanh | max_pool2d(2) @u | softmax(1) @v"},
        {"x[3,8,12,13] | conv2d(64,3) | group_norm(16) | tanh | logsumexp(1)",
         "x[9,8,12,13] | conv2d(64,3) | group_norm(16) | tanh | logsumexp(1)"},
        {"x[3,40] | linear(7) | softmax(1)", "x[30,40] | linear(7) | softmax(1)"},
        {"x[3,4,9] | conv_transpose1d(6,3) | mean(2)", "x[7,4,9] | conv_transpose1d(6,3) | mean(2)"},
        {"x[3,4,9,9] | avg_pool2d(2) | layer_norm(4)", "x[8,4,9,9] | avg_pool2d(2) | layer_norm(4)"},
    };
    for (int i = 0; i < COUNT_OF(pairs); i++) {
        int compiles;
        CHECK(scenario(pairs[i][0]) == CVY_OK, "%s", cvy_last_error());
        compiles = rtc->compiles;
        CHECK(scenario(pairs[i][1]) == CVY_OK, "%s", cvy_last_error());
        CHECK(rtc->compiles == compiles, "%s compiled %d kernels", pairs[i][1], rtc->compiles - compiles);
    }
}

static void takes_everything(void)
{
    static const char *const chains[] = {
        "x[3,8,20,22] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
        "x[2,4,6,7,8] | conv3d(18,3,padding=1) | batch_norm(training=True)",
        "x[1,4,3,4,5] | conv_transpose3d(5,2,stride=2) | rms_norm(10)",
        "x[2,3,17,19] | matmul(w[3,19,23]) | softmax(0)",
        "x[7] | matmul(w[7])",
        "x[1,64,2] | conv_transpose1d(64,2,stride=268435456,padding=134217728)",
        "x[1,64,2,2] | conv_transpose2d(64,2,stride=4000000000,padding=2000000000)",
        "x[0,3,8,8] | conv2d(4,3) | relu | sum(1)",
        "x[3,0] | sum(1)",
        "x[3,0] | softmax(1)",
        "x[2,4,0] | group_norm(2)",
        "x[2,3,4] | flatten(1) | linear(9) | reshape(2,3,3) | relu",
        "x[5] | sum() | exp",
        "x[2,3,4,5,6,7] | add(y[6,1]) | max((0,2,5))",
    };
    char longest[4000] = "x[8]";

    for (int i = 0; i < COUNT_OF(chains); i++)
        CHECK(scenario(chains[i]) == CVY_OK, "%s: %s", chains[i], cvy_last_error());
    for (int i = 0; i < 200; i++) strcat(longest, i % 2 ? " | tanh" : " | add(1)");
    CHECK(scenario(longest) == CVY_OK, "a long chain: %s", cvy_last_error());
    for (int i = 0; i < 60; i++) sprintf(longest + strlen(longest), " | mul(p%d[8])", i);
    CHECK(scenario(longest) == CVY_INVALID || cvy_last_error()[0], "status");
}

/* Launches past a limit of the device: planned so that there are none, or refused when planning. */
static void keeps_limits(void)
{
    static const char *const fits[] = {
        "x[2,16,13,29,29] | group_norm(4)", /* 48 KB of dynamic shared memory, beside a static part */
        "x[66000,2,3] | matmul(w[66000,3,5])", "x[1,66000,4] | conv1d(66000,3,groups=66000)",
        "x[66000,2,4] | conv1d(2,3,groups=2)", "x[70000,3] | linear(2)",
    };
    static const struct {
        cuda_launch launch;
        const char *refusal;
    } launches[] = {
        {{.grid = {2147483647, 65535, 65535}, .block = {1024, 1, 1}, .dynamic_shared = 227 << 10}, NULL},
        {{.grid = {2147483648, 1, 1}, .block = {32, 1, 1}}, "a grid of more than 2^31 - 1 blocks in x"},
        {{.grid = {1, 65536, 1}, .block = {32, 1, 1}}, "a grid of more than 65535 blocks in y or z"},
        {{.grid = {1, 1, 65536}, .block = {32, 1, 1}}, "a grid of more than 65535 blocks in y or z"},
        {{.grid = {1, 1, 1}, .block = {32, 32, 2}}, "more than 1024 threads in a block"},
        {{.grid = {1, 1, 1}, .block = {32, 1, 1}, .dynamic_shared = 228 << 10},
         "more shared memory than a block may have"},
    };
    cuda_device *d = NULL;
    cvy_graph *g = NULL;
    cvy_plan *p = NULL;

    for (int i = 0; i < COUNT_OF(fits); i++)
        CHECK(scenario(fits[i]) == CVY_OK, "%s: %s", fits[i], cvy_last_error());
    CHECK(cvyi_cuda_open(0, &d) == CVY_OK, "%s", cvy_last_error());
    for (int i = 0; i < COUNT_OF(launches); i++) {
        const char *got = cvyi_cuda_launch_refusal(d, &launches[i].launch), *expected = launches[i].refusal;
        CHECK(got == expected || (got && expected && !strcmp(got, expected)), "launch %d: %s", i,
              got ? got : "taken");
    }
    cvyi_cuda_close(d);
    /* 2^43 elements are more blocks than a grid has. */
    CHECK(!cvy_graph_parse("x[8796093022208] | relu", &g), "%s", cvy_last_error());
    CHECK(cvy_plan_create(g, &on_gpu, &p) == CVY_UNSUPPORTED, "a grid of 2^32 blocks was planned");
    CHECK(strstr(cvy_last_error(), "blocks in x"), "%s", cvy_last_error());
    cvy_plan_free(p);
    cvy_graph_free(g);
    CHECK(!cvy_graph_parse("x[3000000000] | slice(0,1)", &g), "%s", cvy_last_error());
    CHECK(cvy_plan_create(g, &on_gpu, &p) == CVY_UNSUPPORTED, "coordinates past 2^31 were planned");
    CHECK(strstr(cvy_last_error(), "slice: extent 3000000000"), "%s", cvy_last_error());
    cvy_plan_free(p);
    cvy_graph_free(g);
}

/* More than 2^31 results are counted in 64 bits, whatever the tile: also by a step that leaves parts of sums and
 * has no view of the result. */
static void counts_far(const char *chain)
{
    int found = 0, added = 0;

    for (int tuning = 0; tuning < 4; tuning++) {
        cvy_graph *g = NULL;
        cvy_plan *p = NULL;
        const cvy_status st = cvy_graph_parse(chain, &g) || cvyi_plan_tuned(g, &on_gpu, tuning, &p);
        const cuda_step *sums = st ? NULL : step_of(p, "matmul_wide.cu");
        CHECK(!st, "%s: %s", chain, cvy_last_error());
        CHECK(!sums || has_option(sums, "-DFAR=1"), "%s: tuning %d counts in 32 bits", chain, tuning);
        found += sums != NULL;
        added += !st && step_of(p, "conv_wide_add.cu");
        cvy_plan_free(p);
        cvy_graph_free(g);
    }
    CHECK(found == 4 && added, "%s: %d plans with words, %d that add parts", chain, found, added);
}

int main(int argc, char **argv)
{
    (void)argc;
    use_cache();
    gpu = use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    rtc = use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    fail_each(gpu);
    fail_each(rtc);
    fail_each(gpu);
    fail_each_allocation();
    runs_without_allocating();
    new_names_and_batches_compile_nothing();
    takes_everything();
    keeps_limits();
    counts_far("x[47104,16384]:fp16 | linear(47104)");
    counts_far("x[47104,4096] | linear(47104)");
    return finish("cuda_plan");
}
