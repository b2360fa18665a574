/* cores.c - producers on a real GPU, by multiply-adds and on tensor cores: the same chain under several tunings,
 * how long each takes and how far it is from the truth.
 *
 *   cores [-p fp32|tf32] [-n RUNS] [CHAIN...]      CHAIN begins with x[BATCH,...]; without one: those below
 *
 * One line per chain, precision and kernel: median ms (CUDA events, L2 thrown out before each run), TFLOP/s, the
 * time predicted, the speed against multiply-adds, two errors over the largest result, and the pass's note. The
 * first error is against the reference in double, on as many first samples as it computes in a second or two; the
 * second is the distance to multiply-adds over all results. Exit status 1 if an error is larger than the
 * precision has room for.
 */
#define TEST_WITHOUT_CMOCKA
#include "../../src/cuda/tc.h"
#include "../support/rig.h"

static const char *const chains[] = {
    "x[4096,4096] | linear(4096)",
    "x[512,1024] | linear(4096) | gelu",
    "x[8192,1024] | linear(1024)",
    "x[300,1000] | linear(1000)",
    "x[32,512,512] | matmul(w[512,512])",
    "x[4,12,512,64] | matmul(w[12,64,512])",
    "x[32,32,8,28,28] | conv3d(64,3,padding=1) | relu",
    "x[64,64,56,56] | conv2d(64,3,padding=2,dilation=2) | relu",
    "x[64,256,28,28] | conv2d(256,3,padding=1,groups=8) | relu",
    "x[64,64,28,28] | conv_transpose2d(64,4,stride=2,padding=1)",
    "x[64,128,56,56] | conv2d(128,3,padding=1,groups=128) | relu",
    "x[64,256,28,28] | conv2d(256,3,padding=1)",
    "x[64,256,1,28,28] | conv3d(256,(1,3,3),padding=(0,1,1))", /* the same, which wgmma does not take */
    "x[64,64,56,56] | conv2d(64,3,padding=1)",
    "x[64,64,1,56,56] | conv3d(64,(1,3,3),padding=(0,1,1))",
    "x[64,512,7,7] | conv2d(512,3,padding=1)",
    "x[64,256,56,56] | conv2d(64,1)",
};

/* How kernels are asked for. The first is what others are compared with. A random plan of seed 1 has no mma.sync:
 * of one node it is wgmma's where that is legal, and believed to be faster than multiply-adds. */
static const struct {
    const char *name;
    int tuning;
    uint32_t seed;
} tunings[] = {{"multiply-adds", TUNE_GENERIC, 0}, {"by cost", TUNE_COST, 0},
               {"second tile", TUNE_COST + 1, 0},  {"third tile", TUNE_COST + 2, 0},
               {"fourth tile", TUNE_COST + 3, 0},  {"no mma.sync", TUNE_COST, 1}};

enum { MOST_RUNS = 101, NAMES = 400 };
static const double room[] = {[CVY_FP32] = 1e-5, [CVY_TF32] = 3e-3};

typedef struct machine {
    cuda_device *device;
    CUstream stream;
    cuda_timer timer;
    int runs;
} machine;

typedef struct problem {
    const char *words;
    cvy_graph *whole, *first;
    rig all, some; /* all samples; the first ones, with the reference's results */
    cvy_buffer buffers[RIG_TENSORS];
    float *base, *got; /* results of the first tuning, and of the one at hand */
    double base_seconds;
    char seen[COUNT_OF(tunings)][NAMES]; /* kernels that ran already */
} problem;

/* ---- a chain's tensors ---- */

/* The chain with another number in the place of its batch. */
static cvy_status parse_batch(const char *words, int64_t batch, cvy_graph **out)
{
    char changed[400];

    if (strncmp(words, "x[", 2) || !strchr(words, ',')) return cvyi_fail(CVY_INVALID, "no x[BATCH,...]: %s", words);
    snprintf(changed, sizeof changed, "x[%lld%s", (long long)batch, strchr(words, ','));
    return cvy_graph_parse(changed, out);
}

/* Samples that the reference computes in a second or two. */
static cvy_status first_samples(const cvy_graph *g, int64_t batch, int64_t *out)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CPU};
    cvy_plan *plan = NULL;
    cvy_cost cost;
    cvy_status st;

    TRY(cvy_plan_create(g, &options, &plan));
    TRY(cvy_plan_cost(plan, &cost));
    *out = cvyi_max64(1, cvyi_min64(batch, (int64_t)(8e8 / (cost.flops / (double)batch))));
fail:
    cvy_plan_free(plan);
    return st;
}

static cvy_status open_problem(const machine *m, const char *words, problem *p)
{
    const int64_t batch = strtoll(words + 2, NULL, 10);
    uint64_t seed = 12345;
    int64_t samples;
    cvy_status st;

    *p = (problem){.words = words};
    TRY(parse_batch(words, batch, &p->whole));
    TRY(first_samples(p->whole, batch, &samples));
    TRY(parse_batch(words, samples, &p->first));
    rig_open(&p->all, p->whole, &seed, RIG_REAL, 0);
    rig_open(&p->some, p->first, &seed, RIG_REAL, 0);
    for (int i = 0; i < p->all.n_sources; i++)
        memcpy(p->some.t[i].origin, p->all.t[i].origin, 4 * (size_t)p->some.t[i].count);
    rig_reference(&p->some);
    for (int i = 0; i < p->all.n; i++) {
        const size_t bytes = 4 * (size_t)p->all.t[i].count;
        CUdeviceptr at = 0;
        TRY(cvyi_cuda_alloc(m->device, bytes, &at));
        p->buffers[i].data = (void *)(uintptr_t)at;
        TRY(cvyi_cuda_upload(m->device, at, p->all.t[i].origin, bytes, m->stream));
    }
    p->base = malloc(4 * (size_t)p->all.t[p->all.n - 1].count + 4);
    p->got = malloc(4 * (size_t)p->all.t[p->all.n - 1].count + 4);
    if (!p->base || !p->got) st = CVY_NO_MEMORY;
fail:
    return st;
}

static void close_problem(const machine *m, problem *p)
{
    for (int i = 0; i < p->all.n; i++) cvyi_cuda_free(m->device, (CUdeviceptr)(uintptr_t)p->buffers[i].data);
    free(p->base);
    free(p->got);
    rig_close(&p->all);
    rig_close(&p->some);
    cvy_graph_free(p->whole);
    cvy_graph_free(p->first);
}

/* ---- one plan ---- */

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

static cvy_status run_plan(machine *m, problem *p, const cvy_plan *plan, double *median)
{
    const int n = p->all.n;
    double seconds[MOST_RUNS];
    CUdeviceptr work = 0;
    cvy_status st;

    TRY(cvyi_cuda_alloc(m->device, cvy_plan_workspace(plan), &work));
    for (int i = -1; i < m->runs; i++) { /* the first one prepares */
        TRY(cvyi_cuda_timer_start(m->device, &m->timer, m->stream));
        TRY(cvy_plan_run(plan, p->buffers, n, (void *)(uintptr_t)work, cvy_plan_workspace(plan),
                         i < 0 ? 0 : CVY_KEEP_PREPARED, m->stream));
        TRY(cvyi_cuda_timer_stop(m->device, &m->timer, m->stream, &seconds[i < 0 ? 0 : i]));
    }
    qsort(seconds, (size_t)m->runs, sizeof *seconds, by_value);
    *median = seconds[m->runs / 2];
    TRY(cvyi_cuda_download(m->device, p->got, (CUdeviceptr)(uintptr_t)p->buffers[n - 1].data,
                           4 * (size_t)p->all.t[n - 1].count, m->stream));
fail:
    cvyi_cuda_free(m->device, work);
    return st;
}

/* The largest distance over the largest expected value; what is not a number is infinitely far. */
static double distance(const float *got, const double *exact, const float *base, int64_t n)
{
    double most = 0, scale = 1e-30;

    for (int64_t i = 0; i < n; i++) {
        const double want = exact ? exact[i] : (double)base[i], off = fabs((double)got[i] - want);
        scale = fmax(scale, fabs(want));
        most = isfinite(off) ? fmax(most, off) : INFINITY;
    }
    return most / scale;
}

/* Have these kernels run already? */
static bool repeats(problem *p, const cvy_plan *plan, int which)
{
    const cuda_state *state = plan->state;
    char *names = p->seen[which];

    for (int i = 0; i < state->n_steps; i++)
        if (!state->steps[i].prepared && state->steps[i].only_strided == CVY_NONE)
            strncat(names, state->steps[i].entry, NAMES - strlen(names) - 1);
    for (int i = 0; i < which; i++)
        if (strcmp(names, p->seen[i]) == 0) return true;
    return false;
}

static cvy_status try_tuning(machine *m, problem *p, cvy_precision precision, int which, int *bad)
{
    const cvy_options options = {.size = sizeof options,
                                 .device = CVY_CUDA,
                                 .precision = (int32_t)precision,
                                 .seed = tunings[which].seed,
                                 .strided = CVY_OFF};
    cvy_plan *plan = NULL;
    double seconds, error, apart;
    cvy_cost cost;
    cvy_status st;

    p->seen[which][0] = '\0';
    TRY(cvyi_plan_tuned(p->whole, &options, tunings[which].tuning, &plan));
    TRY(cvy_plan_cost(plan, &cost));
    if (repeats(p, plan, which) || (tunings[which].seed && cost.passes > 1)) goto fail;
    TRY(run_plan(m, p, plan, &seconds));
    if (which == 0) {
        memcpy(p->base, p->got, 4 * (size_t)p->all.t[p->all.n - 1].count);
        p->base_seconds = seconds;
    }
    error = distance(p->got, p->some.t[p->some.n - 1].want, NULL, p->some.t[p->some.n - 1].count);
    apart = distance(p->got, NULL, p->base, p->all.t[p->all.n - 1].count);
    *bad += !(error < room[precision] && apart < 2 * room[precision]);
    printf("  %-13s %8.4f ms %7.1f TFLOP/s  predicted %8.4f  x%5.2f  error %.1e %.1e  %s\n", tunings[which].name,
           seconds * 1e3, cost.flops / seconds * 1e-12, cost.seconds * 1e3, p->base_seconds / seconds, error, apart,
           plan->passes[plan->n_passes - 1].note);
    fflush(stdout);
fail:
    cvy_plan_free(plan);
    return st;
}

static int check_chain(machine *m, const char *words, const char *only)
{
    static const char *const names[] = {[CVY_FP32] = "fp32", [CVY_TF32] = "tf32"};
    problem p;
    int bad = 0;
    cvy_status st = open_problem(m, words, &p);

    for (int precision = 0; !st && precision < COUNT_OF(names); precision++) {
        if (only && strcmp(only, names[precision])) continue;
        printf("%s  %s\n", names[precision], words);
        for (int which = 0; !st && which < COUNT_OF(tunings); which++)
            st = try_tuning(m, &p, (cvy_precision)precision, which, &bad);
    }
    if (st) printf("%s: %s\n", words, cvy_last_error());
    if (bad) printf("  WRONG: %d of these\n", bad);
    close_problem(m, &p);
    return bad + (st != CVY_OK);
}

int main(int argc, char **argv)
{
    machine m = {.runs = 21};
    const char *only = NULL;
    int at = 1, bad = 0;
    cvy_status st;

    for (; at + 1 < argc && argv[at][0] == '-'; at += 2)
        if (argv[at][1] == 'p')
            only = argv[at + 1];
        else
            m.runs = (int)cvyi_max64(1, cvyi_min64(atoi(argv[at + 1]), MOST_RUNS));
    TRY(cvyi_cuda_open(0, &m.device));
    TRY(cvyi_cuda_enter(m.device, NULL));
    TRY(cvyi_cuda_stream_create(m.device, &m.stream));
    TRY(cvyi_cuda_timer_create(m.device, &m.timer));
    for (int i = 0; i < (at < argc ? argc - at : COUNT_OF(chains)); i++)
        bad += check_chain(&m, at < argc ? argv[at + i] : chains[i], only);
    printf("%d wrong\n", bad);
    cvyi_cuda_timer_free(m.device, &m.timer);
    cvyi_cuda_stream_free(m.device, m.stream);
    cvyi_cuda_leave(m.device);
    cvyi_cuda_close(m.device);
    return bad != 0;
fail:
    fprintf(stderr, "%s\n", cvy_last_error());
    return 2;
}
