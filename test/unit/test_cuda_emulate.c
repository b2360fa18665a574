/* test_cuda_emulate.c - the CUDA engine's kernels, run on the host by test/emulate, against the reference.
 *
 *   test_cuda_emulate [GRAPHS [SEED]]      random graphs of each flavour, the first one's seed
 *
 * First the emulator itself: kernels that break the rules are found out. Then the chains of test/gpu and random
 * graphs, as a GPU would be checked (test/gpu/check.h): bounds, strides, guards, the same bits again and in any
 * order of blocks and threads; a sample's bits wherever in the batch it stands. Work is shared out among processes.
 */
#include "../gpu/bits.h"
#include "../gpu/check_random.h"
#include "../gpu/chain_list.h"
#include "../standin/fixture.h"
#include <sys/mman.h>
#include <sys/wait.h>

enum { LISTED = COUNT_OF(chains) - HOPPER_CHAINS };
static int graphs = 70;
static uint64_t first_seed = 1;

/* ---- the emulator: each of these kernels does something that no kernel may ---- */

typedef struct offence {
    const char *what, *body; /* of an epilogue: t0 is the element of 2000 that is read, at.lin its number */
    const char *message;     /* the launch fails with it; NULL: results depend on the order; "": they are NaN */
} offence;

static const offence offences[] = {
    {"a barrier that half of the threads miss", "if (threadIdx.x % 2) __syncthreads();", "stands still"},
    {"a barrier here, a shuffle there",
     "if (threadIdx.x % 64 < 32) __syncthreads(); else __shfl_sync(0xffffffffu, t0, 3);", "stands still"},
    {"a shuffle without all of its lanes", "if (threadIdx.x % 32 < 9) __shfl_down_sync(0xffffffffu, t0, 1);",
     "stands still"},
    {"a lane outside its mask", "__shfl_sync(0xffu, t0, 0);", "mask"},
    {"a write far away", "a.t[0].p[at.lin + 4096] = t0;", "touches"},
    {"a write next door", "a.t[0].p[at.lin + 3] = t0;", "behind an allocation"},
    {"a write in front", "a.t[0].p[at.lin - 3] = t0;", "before an allocation"},
#if defined(__x86_64__) /* others go on with a zero, as GPUs do with some number */
    {"a division by a runtime zero", "a.t[0].p[at.lin] = (float)(7 / (a.extent - 2000));", "divides by zero"},
#endif
    {"a copy to an odd address", "__shared__ __align__(16) float s[264]; cvy_copy16(s + threadIdx.x, a.t[1].p);",
     "not aligned"},
    {"shared memory that nobody wrote", "__shared__ float s[256]; a.t[0].p[at.lin] = s[threadIdx.x];", ""},
    {"a copy that nobody waited for",
     "__shared__ float s[256]; cvy_copy4(s + threadIdx.x, a.t[1].p, true); cvy_copies_commit();"
     "cvy_copies_wait<1>(); a.t[0].p[at.lin] = s[threadIdx.x];",
     ""},
    {"a missing barrier",
     "__shared__ float s[256]; if (at.lin < 256) s[threadIdx.x] = t0; a.t[0].p[at.lin] = s[255 - threadIdx.x];",
     NULL},
    {"a race between blocks", "a.t[0].p[at.lin % 7] = t0;", NULL},
};

enum { OFFENCE_SIZE = 2000 };

typedef struct offender {
    const gpu *u;
    cuda_kernel kernel;
    CUdeviceptr tensors[2];
} offender;

static cvy_status open_offender(offender *o, const gpu *u, const char *body)
{
    static const char *const options[] = {"-DX1=1", "-DX2=1",      "-DX3=1",  "-DX4=1",
                                          "-DX5=1", "-DTENSORS=2", "-DEACH=4"};
    char words[1200];
    jit_request request = {.entry = "offender",
                           .source = "pointwise.cu",
                           .epilogue = words,
                           .options = options,
                           .n_options = COUNT_OF(options),
                           .major = 8};
    float numbers[OFFENCE_SIZE];
    jit_code code = {0};
    cvy_status st;

    *o = (offender){.u = u};
    snprintf(words, sizeof words,
             "#include \"common.cuh\"\n#include \"copy.cuh\"\n#include \"ops.cuh\"\n"
             "CVY_INLINE void offend(const cvy_args &a, const cvy_at at, const float t0)\n{\n    %s\n}\n"
             "template <int N> CVY_INLINE void cvy_read(const cvy_args &a, const cvy_at (&all)[N], float (&x)[N])\n"
             "{\n    for (int i = 0; i < N; i++) x[i] = a.t[1].p[all[i].lin];\n}\n"
             "template <int N> CVY_INLINE void cvy_write(const cvy_args &a, const cvy_at (&all)[N], const float "
             "(&x)[N])\n{\n    for (int i = 0; i < N; i++) offend(a, all[i], x[i]);\n}\n",
             body);
    TRY(cvyi_jit_compile(&request, &code));
    TRY(cvyi_cuda_load(u->device, &code, "offender", 0, &o->kernel));
    for (int i = 0; i < OFFENCE_SIZE; i++) numbers[i] = (float)i;
    for (int i = 0; i < 2; i++) TRY(cvyi_cuda_alloc(u->device, sizeof numbers, &o->tensors[i]));
    TRY(cvyi_cuda_upload(u->device, o->tensors[1], numbers, sizeof numbers, u->stream));
fail:
    cvyi_jit_free(&code);
    return st;
}

static void close_offender(offender *o)
{
    cvyi_cuda_unload(o->u->device, &o->kernel);
    for (int i = 0; i < 2; i++) cvyi_cuda_free(o->u->device, o->tensors[i]);
}

static cvy_status run_offender(const offender *o, const char *order, float out[OFFENCE_SIZE])
{
    const cuda_launch launch = {.grid = {(OFFENCE_SIZE + 1023) / 1024, 1, 1}, .block = {256, 1, 1}};
    step_arguments arguments = {.extent = OFFENCE_SIZE, .view = {{.p = o->tensors[0]}, {.p = o->tensors[1]}}};
    void *list[] = {&arguments};
    cvy_status st;

    setenv("CVY_EMULATE_ORDER", order, 1);
    st = cvyi_cuda_launch(o->u->device, &o->kernel, &launch, o->u->stream, list);
    unsetenv("CVY_EMULATE_ORDER");
    return st ? st : cvyi_cuda_download(o->u->device, out, o->tensors[0], OFFENCE_SIZE * sizeof *out, o->u->stream);
}

static void check_offence(const gpu *u, const offence *f)
{
    float forward[OFFENCE_SIZE], backward[OFFENCE_SIZE];
    offender o;
    cvy_status st = open_offender(&o, u, f->body);

    CHECK(st == CVY_OK, "%s: %s", f->what, cvy_last_error());
    if (st) return;
    st = run_offender(&o, "forward", forward);
    if (f->message && *f->message) {
        CHECK(st != CVY_OK && strstr(cvy_last_error(), f->message), "%s: %s", f->what,
              st ? cvy_last_error() : "runs");
    } else {
        CHECK(st == CVY_OK && run_offender(&o, "reversed", backward) == CVY_OK, "%s: %s", f->what,
              cvy_last_error());
        CHECK(f->message ? isnan(forward[0]) : !rig_same_bits(forward, backward, OFFENCE_SIZE), "%s: not noticed",
              f->what);
    }
    close_offender(&o);
}

/* ---- chains ---- */

static void check_listed(const gpu *u, const char *words)
{
    checked_graph c;
    cvy_graph *g = NULL;

    assert_ok(cvy_graph_parse(words, &g));
    check_open(&c, u, g, RIG_REAL, 12345);
    c.title = words;
    CHECK(check_plans(&c, CVY_FP32, PLAN_LIKED | PLAN_ONE_BY_ONE | PLAN_RANDOM, 1), "%s", words);
    check_close(&c);
    cvy_graph_free(g);
}

/* ---- a sample's bits do not depend on where in the batch it stands ---- */

static int rotated; /* chains that were checked so */

static void check_positions(const gpu *u, const char *words)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CUDA};
    uint64_t seed = 99;
    cvy_graph *g = NULL;
    cvy_plan *plan = NULL;
    places found;
    rig r;

    assert_ok(cvy_graph_parse(words, &g));
    assert_ok(cvy_plan_create(g, &options, &plan));
    rig_open(&r, g, &seed, RIG_REAL, 0);
    found = same_places(u, &r, plan);
    CHECK(found != PLACES_DIFFER, "other bits elsewhere in the batch: %s", words);
    rotated += found == PLACES_SAME;
    rig_close(&r);
    cvy_plan_free(plan);
    cvy_graph_free(g);
}

/* A norm of constants is its bias, however large they are. */
static void check_constants(const gpu *u)
{
    static const char *const constant[] = {"x[2,4,33,33] | clamp(1000.3,1000.3) | instance_norm(affine=False)",
                                           "x[2,4,33,33] | clamp(1000.3,1000.3) | group_norm(2,affine=False)",
                                           "x[2,4,5,3] | clamp(0.1,0.1) | batch_norm(training=True,affine=False)",
                                           "x[2,8,300,301] | clamp(-777.7,-777.7) | group_norm(2,affine=False)",
                                           "x[9,1023] | clamp(0.1,0.1) | layer_norm(1023,affine=False)",
                                           "x[9,24] | clamp(3e7,3e7) | layer_norm(24,affine=False)",
                                           "x[2,40001] | clamp(1000.3,1000.3) | layer_norm(40001,affine=False)"};
    for (int i = 0; i < COUNT_OF(constant); i++) {
        const cvy_options options = {.size = sizeof options, .device = CVY_CUDA};
        uint64_t seed = 5;
        cvy_graph *g = NULL;
        cvy_plan *plan = NULL;
        int64_t count = 0, zeros = 0;
        float *got;
        rig r;
        assert_ok(cvy_graph_parse(constant[i], &g));
        assert_ok(cvy_plan_create(g, &options, &plan));
        rig_open(&r, g, &seed, RIG_REAL, 0);
        got = run_rig(u, &r, plan, &count);
        for (int64_t k = 0; got && k < count; k++) zeros += got[k] == 0;
        CHECK(got && zeros == count, "%lld of %lld are 0: %s", (long long)zeros, (long long)count, constant[i]);
        free(got);
        rig_close(&r);
        cvy_plan_free(plan);
        cvy_graph_free(g);
    }
}

/* gelu's own form of erfc: floats of all magnitudes, in ULP of the result; float32's last digits on this host are
 * not the device's. */
static void check_gelu(const gpu *u)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CUDA};
    const uint32_t least = 0x30000000 /* 4.7e-10 */, most = 0x414c0000 /* 12.75 */;
    uint64_t seed = 5;
    cvy_graph *g = NULL;
    cvy_plan *plan = NULL;
    int64_t count = 0;
    double worst = 0;
    float *got, *x;
    rig r;

    assert_ok(cvy_graph_parse("x[200001] | gelu", &g));
    assert_ok(cvy_plan_create(g, &options, &plan));
    rig_open(&r, g, &seed, RIG_REAL, 0);
    x = r.t[0].origin;
    for (uint32_t i = 0; i < 200001; i++) {
        const uint32_t bits = (least + (uint32_t)((uint64_t)(most - least) * i / 200001)) | (i % 2 << 31);
        memcpy(&x[i], &bits, sizeof bits);
    }
    rig_reference(&r);
    got = run_rig(u, &r, plan, &count);
    for (int64_t i = 0; got && i < count; i++) {
        const double want = r.t[1].want[i], ulp = ldexp(1, ilogb(want) - 23);
        worst = fmax(worst, fabs(got[i] - want) / ulp);
    }
    CHECK(got && worst < 4.5, "gelu is %g ULP off", worst);
    free(got);
    rig_close(&r);
    cvy_plan_free(plan);
    cvy_graph_free(g);
}

/* Runs a plan of x and y with both `off` floats behind the begin of their memory. */
static void run_off(const gpu *u, const cvy_plan *plan, const float *x, int64_t count, int off, float *y)
{
    const size_t bytes = (size_t)count * sizeof *x;
    cvy_buffer buffers[2] = {0};
    CUdeviceptr memory[3];

    for (int i = 0; i < 2; i++) {
        assert_ok(cvyi_cuda_alloc(u->device, bytes + 16, &memory[i]));
        buffers[i].data = (void *)(uintptr_t)(memory[i] + (CUdeviceptr)off * 4);
    }
    assert_ok(cvyi_cuda_alloc(u->device, cvy_plan_workspace(plan), &memory[2]));
    assert_ok(cvyi_cuda_upload(u->device, (CUdeviceptr)(uintptr_t)buffers[0].data, x, bytes, u->stream));
    assert_ok(cvy_plan_run(plan, buffers, 2, (void *)(uintptr_t)memory[2], 0, u->stream));
    assert_ok(cvyi_cuda_download(u->device, y, (CUdeviceptr)(uintptr_t)buffers[1].data, bytes, u->stream));
    for (int i = 0; i < 3; i++) cvyi_cuda_free(u->device, memory[i]);
}

/* Tensors that begin at no multiple of 16 bytes are not touched four elements at a time, and give the same bits. */
static void check_addresses(const gpu *u)
{
    static const char *const chains_of_two[] = {"x[9,64] | relu | layer_norm(64,affine=False) | gelu",
                                                "x[5,4,24] | softmax(2) | neg", "x[1003] | gelu | tanh",
                                                "x[3,8,6] | add(1) | reshape(12,12) | square"};
    for (int i = 0; i < COUNT_OF(chains_of_two); i++) {
        const cvy_options options = {.size = sizeof options, .device = CVY_CUDA};
        uint64_t seed = 11;
        cvy_graph *g = NULL;
        cvy_plan *plan = NULL;
        float y[2][1003];
        rig r;
        assert_ok(cvy_graph_parse(chains_of_two[i], &g));
        assert_ok(cvy_plan_create(g, &options, &plan));
        rig_open(&r, g, &seed, RIG_REAL, 0);
        for (int off = 0; off < 2; off++) run_off(u, plan, r.t[0].origin, r.t[0].count, off, y[off]);
        CHECK(rig_same_bits(y[0], y[1], r.t[0].count), "other bits at another address: %s", chains_of_two[i]);
        rig_close(&r);
        cvy_plan_free(plan);
        cvy_graph_free(g);
    }
}

/* ---- work, shared out ---- */

typedef struct board {
    atomic_int next, checks, failures, rotated;
} board;

static void take_item(const gpu *u, int item)
{
    const int n_listed = LISTED, quick = getenv("CONVOY_TEST_QUICK") ? 6 : 1;

    if (item == 0) {
        /* the emulator is never built in other ways: nothing new to be seen of it there */
        for (int i = 0; i < COUNT_OF(offences) && quick == 1; i++) check_offence(u, &offences[i]);
        check_constants(u);
        check_gelu(u);
        check_addresses(u);
    } else if (item <= n_listed) {
        if (item % quick) return;
        check_listed(u, chains[item - 1]);
        check_positions(u, chains[item - 1]);
    } else {
        const int number = (item - n_listed - 1) / 3, kind = (item - n_listed - 1) % 3;
        const bool liked = number % 3 == 0; /* one plan each: of three graphs two at random */
        if (number % quick) return;
        CHECK(check_random(u, (flavour)kind, first_seed + (uint64_t)number, liked ? PLAN_LIKED : PLAN_RANDOM),
              "graph %d, flavour %d", number, kind);
    }
}

static int worker(board *b)
{
    const int total = 1 + LISTED + 3 * graphs;
    gpu u;
    int item;

    if (!gpu_open(&u)) fail_msg("%s", cvy_last_error());
    while ((item = atomic_fetch_add(&b->next, 1)) < total) take_item(&u, item);
    gpu_close(&u);
    CHECK(cvyi_alloc_live() == 0, "%lld allocations", (long long)cvyi_alloc_live());
    atomic_fetch_add(&b->rotated, rotated);
    atomic_fetch_add(&b->checks, checks);
    atomic_fetch_add(&b->failures, failures);
    return 0;
}

int main(int argc, char **argv)
{
    enum { MOST = 16 };
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char path[1024];
    pid_t children[MOST];
    int n = 0;

    if (b == MAP_FAILED) return 1;
    if (argc > 1) graphs = atoi(argv[1]);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    use_library(argv[0], "emulate/libcuda.so.1", "CVY_CUDA_LIB", path);
    use_library(argv[0], "emulate/libnvrtc.so.13", "CVY_NVRTC_LIB", path);
    use_cache();
    while (n < MOST && (n < cores || n < 1)) {
        children[n] = fork();
        if (children[n] == 0) exit(worker(b));
        n++;
    }
    while (n) {
        int status = 0;
        waitpid(children[--n], &status, 0);
        CHECK(status == 0, "a worker ended with %d", status);
    }
    CHECK(b->rotated >= (getenv("CONVOY_TEST_QUICK") ? 3 : 30), "only %d chains of samples apart", b->rotated);
    checks += b->checks;
    failures += b->failures;
    return finish("cuda_emulate");
}
