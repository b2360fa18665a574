/* emulated.c - see emulated.h. */
#include <sys/mman.h>
#include <sys/wait.h>
#include "emulated.h"

enum { OFFENCE_SIZE = 2000 };

typedef struct offender {
    const gpu *u;
    cuda_kernel kernel;
    CUdeviceptr tensors[2];
} offender;

typedef struct board {
    atomic_int next, checks, failures, rotated;
    _Atomic uint64_t met;
} board;

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
             "#include \"common.cuh\"\n#include \"copy.cuh\"\n#include \"ops.cuh\"\n#include \"descriptor.cuh\"\n"
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
    const cuda_launch launch = {
        .grid = {(OFFENCE_SIZE + 1023) / 1024, 1, 1}, .block = {256, 1, 1}, .dynamic_shared = 32 << 10};
    step_arguments arguments = {.extent = OFFENCE_SIZE, .view = {{.p = o->tensors[0]}, {.p = o->tensors[1]}}};
    void *list[] = {&arguments};
    cvy_status st;

    setenv("CVY_EMULATE_ORDER", order, 1);
    st = cvyi_cuda_launch(o->u->device, &o->kernel, &launch, o->u->stream, list);
    unsetenv("CVY_EMULATE_ORDER");
    return st ? st : cvyi_cuda_download(o->u->device, out, o->tensors[0], OFFENCE_SIZE * sizeof *out, o->u->stream);
}

void check_offence(const gpu *u, const offence *f)
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

void check_listed(const gpu *u, const char *words, cvy_precision precision, int plans)
{
    checked_graph c;
    cvy_graph *g = NULL;

    assert_ok(cvy_graph_parse(words, &g));
    check_open(&c, u, g, RIG_REAL, 12345);
    c.title = words;
    CHECK(check_plans(&c, precision, plans, 1), "%s", words);
    check_close(&c);
    cvy_graph_free(g);
}

bool test_long(void)
{
    return getenv("CONVOY_TEST_LONG") != NULL;
}

uint64_t met;

void note_needs(const char *words, cvy_precision precision, int plans, const need *needs, int n)
{
    cvy_graph *g = NULL;

    assert_ok(cvy_graph_parse(words, &g));
    for (int i = 0; i < PLAN_KINDS; i++) {
        cvy_plan *plan = NULL;
        if (!(plans >> i & 1)) continue;
        assert_ok(check_plan_create(g, &plan_kinds[i], precision, 1, &plan));
        met |= needs_met(plan, needs, n);
        cvy_plan_free(plan);
    }
    cvy_graph_free(g);
}

void check_needs(const need *needs, int n)
{
    for (int i = 0; i < n; i++)
        CHECK(met >> i & 1, "no plan has %s %d, %s %d", needs[i].name, needs[i].value,
              needs[i].also ? needs[i].also : "", needs[i].also_value);
    met = 0;
}

void planned_open(planned *t, const char *words, cvy_dtype dtype, const plan_kind *kind, cvy_precision precision)
{
    uint64_t seed = 5;

    *t = (planned){.words = NULL};
    assert_ok(cvy_graph_parse(words, &t->words));
    t->graph = graph_as(t->words, dtype, true);
    assert_ok(check_plan_create(t->graph, kind, precision, 1, &t->plan));
    rig_open(&t->r, t->words, &seed, RIG_REAL, 0);
}

void planned_close(planned *t)
{
    rig_close(&t->r);
    cvy_plan_free(t->plan);
    cvy_graph_free(t->graph);
    cvy_graph_free(t->words);
}

static void fill_ranges(rig_tensor *x, const value_range *ranges, int n, uint64_t *seed)
{
    const int64_t each = x->count / n;

    for (int64_t i = 0; i < x->count; i++) {
        const value_range *in = &ranges[i / each];
        *rig_at(x, i) = (float)(in->mean + in->spread * (random_below(seed, 2001) - 1000) / 1000);
    }
}

/* A plane is one channel of a sample's results. */
static void check_rounding(const rig *r, const float *got, const value_range *ranges, int n, const rounding *by)
{
    const rig_tensor *w = &r->t[1], *y = &r->t[r->n - 1];
    const int64_t terms = w->count / w->info.dims[0], each = y->count / n, plane = each / w->info.dims[0];

    for (int64_t i = 0; i < y->count; i += plane) {
        const value_range *in = &ranges[i / each];
        const double most = fabs(in->mean) + in->spread, far = fabs(in->mean - in->off) + in->spread;
        double sum = 0, bound;
        int64_t k = 0;
        for (; k < terms; k++) sum += fabs(*rig_at(w, i / plane % w->info.dims[0] * terms + k));
        bound = sum * (most * by->of_value + far * by->of_distance) + 0x1p-149;
        for (k = i; k < i + plane && fabs(got[k] - y->want[k]) <= bound; k++) continue; /* no NaN is within it */
        CHECK(k == i + plane, "mean %g, spread %g, plane %lld: %g instead of %g, at most %g off", in->mean,
              in->spread, (long long)(i / plane), (double)got[k], y->want[k], bound);
    }
}

void check_ranges(const gpu *u, planned *t, const value_range *ranges, int n, const rounding *by)
{
    uint64_t seed = 5;
    int64_t count = 0;
    float *got;

    fill_ranges(&t->r.t[0], ranges, n, &seed);
    CHECK(same_places(u, &t->r, t->plan) == PLACES_SAME, "other bits beside other samples");
    fill_ranges(&t->r.t[0], ranges, n, &seed);
    rig_reference(&t->r);
    got = run_rig(u, &t->r, t->plan, &count);
    CHECK(got, "%s", cvy_last_error());
    if (got) check_rounding(&t->r, got, ranges, n, by);
    free(got);
}

int rotated;

void check_positions(const gpu *u, const char *words, cvy_precision precision)
{
    places found;
    planned t;

    planned_open(&t, words, CVY_FLOAT32, &plan_kinds[0], precision);
    found = same_places(u, &t.r, t.plan);
    CHECK(found != PLACES_DIFFER, "other bits elsewhere in the batch: %s", words);
    rotated += found == PLACES_SAME;
    planned_close(&t);
}

void run_shifted(const gpu *u, const cvy_plan *plan, const void *x, size_t bytes, size_t off, void *y)
{
    cvy_buffer buffers[2] = {0};
    CUdeviceptr memory[3];

    for (int i = 0; i < 2; i++) {
        assert_ok(cvyi_cuda_alloc(u->device, bytes + 16, &memory[i]));
        buffers[i].data = (void *)(uintptr_t)(memory[i] + off);
    }
    assert_ok(cvyi_cuda_alloc(u->device, cvy_plan_workspace(plan), &memory[2]));
    assert_ok(cvyi_cuda_upload(u->device, (CUdeviceptr)(uintptr_t)buffers[0].data, x, bytes, u->stream));
    assert_ok(cvy_plan_run(plan, buffers, 2, (void *)(uintptr_t)memory[2], cvy_plan_workspace(plan), 0, u->stream));
    assert_ok(cvyi_cuda_download(u->device, y, (CUdeviceptr)(uintptr_t)buffers[1].data, bytes, u->stream));
    for (int i = 0; i < 3; i++) cvyi_cuda_free(u->device, memory[i]);
}

/* opens: the items are for a device, which each process opens for itself. */
static int worker(board *b, int items, bool opens, void (*take)(const gpu *u, int item))
{
    gpu u = {0};
    int item;

    checks = failures = rotated = 0; /* its own */
    met = 0;
    if (opens && !test_gpu_open(&u)) fail_msg("%s", cvy_last_error());
    while ((item = atomic_fetch_add(&b->next, 1)) < items) take(&u, item);
    if (opens) test_gpu_close(&u);
    CHECK(cvyi_alloc_live() == 0, "%lld allocations", (long long)cvyi_alloc_live());
    atomic_fetch_add(&b->rotated, rotated);
    atomic_fetch_or(&b->met, met);
    atomic_fetch_add(&b->checks, checks);
    atomic_fetch_add(&b->failures, failures);
    return 0;
}

void use_emulator(const char *program)
{
    char path[1024];

    use_library(program, "emulate/libcuda.so.1", "CVY_CUDA_LIB", path);
    use_library(program, "emulate/libnvrtc.so.13", "CVY_NVRTC_LIB", path);
    use_cache();
}

static void share(int items, bool opens, void (*take)(const gpu *u, int item))
{
    enum { MOST = 16 };
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[MOST];
    int n = 0;

    if (b == MAP_FAILED) exit(1);
    while (n < MOST && (n < cores || n < 1)) {
        children[n] = fork();
        if (children[n] < 0) break;
        if (children[n] == 0) exit(worker(b, items, opens, take));
        n++;
    }
    while (n) {
        int status = 0;
        waitpid(children[--n], &status, 0);
        CHECK(status == 0, "a worker ended with %d", status);
    }
    CHECK(b->next >= items, "%d of %d items were taken", (int)b->next, items);
    checks += b->checks;
    failures += b->failures;
    rotated += b->rotated;
    met |= b->met;
    munmap(b, sizeof *b);
}

void share_out(int items, void (*take)(const gpu *u, int item))
{
    share(items, true, take);
}

void share_host_work(int items, void (*take)(const gpu *u, int item))
{
    share(items, false, take);
}
