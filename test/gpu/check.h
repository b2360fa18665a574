/* check.h - one graph under many plans on whatever device the driver shows (a GPU, or test/emulate), against the
 * reference in double.
 *
 * Every tensor of a rig, with its strides, gaps and guards, is copied to the device as it lies. A plan runs in a
 * workspace of NaNs on contiguous tensors and on strided ones, and again with what it had prepared, through a
 * captured graph where the driver has those, and in other orders of blocks and threads where it is the emulator:
 * results are within what doubt.h derives, guards survive, and the bits are the same each time. */
#ifndef TEST_GPU_CHECK_H
#define TEST_GPU_CHECK_H

#define TEST_WITHOUT_CMOCKA
#include <dlfcn.h>
#include "../../src/cuda/exec.h"
#include "../unit/doubt.h"

typedef struct gpu {
    cuda_device *device;
    CUstream stream;
    bool emulated; /* the order of blocks can be chosen */
} gpu;

static inline bool gpu_open(gpu *u)
{
    *u = (gpu){0};
    if (cvyi_cuda_open(0, &u->device) || cvyi_cuda_enter(u->device, NULL)) return false;
    u->emulated = strcmp(u->device->name, "emulator") == 0;
    return cvyi_cuda_stream_create(u->device, &u->stream) == CVY_OK;
}
static inline void gpu_close(gpu *u)
{
    cvyi_cuda_stream_free(u->device, u->stream);
    cvyi_cuda_leave(u->device);
    cvyi_cuda_close(u->device);
}

/* ---- tensors on the device ---- */

typedef struct gpu_rig {
    const gpu *u;
    rig *r;
    CUdeviceptr memory[RIG_TENSORS];
    cvy_buffer buffers[RIG_TENSORS];
} gpu_rig;

static inline void gpu_rig_open(gpu_rig *t, const gpu *u, rig *r)
{
    *t = (gpu_rig){.u = u, .r = r};
    for (int i = 0; i < r->n; i++) {
        const rig_tensor *of = &r->t[i];
        assert_ok(cvyi_cuda_alloc(u->device, 4 * (size_t)of->cells, &t->memory[i]));
        assert_ok(cvyi_cuda_upload(u->device, t->memory[i], of->memory, 4 * (size_t)of->cells, u->stream));
        t->buffers[i].data = (void *)(uintptr_t)(t->memory[i] + 4 * (size_t)(of->origin - of->memory));
        t->buffers[i].strides = r->buffers[i].strides;
    }
}
static inline void gpu_rig_close(gpu_rig *t)
{
    for (int i = 0; i < t->r->n; i++) cvyi_cuda_free(t->u->device, t->memory[i]);
}

/* Guards in the place of the outputs. */
static inline void gpu_rig_wipe(gpu_rig *t)
{
    rig_wipe(t->r);
    for (int i = t->r->n_sources; i < t->r->n; i++)
        assert_ok(cvyi_cuda_upload(t->u->device, t->memory[i], t->r->t[i].memory, 4 * (size_t)t->r->t[i].cells,
                                   t->u->stream));
}

/* As rig_outputs(). */
static inline float *gpu_rig_outputs(gpu_rig *t, int64_t *count)
{
    for (int i = t->r->n_sources; i < t->r->n; i++)
        assert_ok(cvyi_cuda_download(t->u->device, t->r->t[i].memory, t->memory[i], 4 * (size_t)t->r->t[i].cells,
                                     t->u->stream));
    return rig_outputs(t->r, count);
}

/* ---- CUDA graphs: the few calls that the engine itself never makes ---- */

typedef struct graph_calls {
    CUresult (*begin)(CUstream, int);
    CUresult (*end)(CUstream, void **);
    CUresult (*instantiate)(void **, void *, unsigned long long);
    CUresult (*launch)(void *, CUstream);
    CUresult (*destroy)(void *);
    CUresult (*destroy_exec)(void *);
} graph_calls;

static inline bool find_graph_calls(graph_calls *c)
{
    static const char *const names[] = {
        "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",           "cuGraphDestroy",     "cuGraphExecDestroy"};
    void *slots[] = {&c->begin, &c->end, &c->instantiate, &c->launch, &c->destroy, &c->destroy_exec};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    for (int i = 0; i < COUNT_OF(names); i++) {
        void *address = library ? dlsym(library, names[i]) : NULL;
        if (!address) return false;
        memcpy(slots[i], &address, sizeof address);
    }
    return true;
}

/* Captures a run and launches it twice. */
static inline cvy_status run_captured(gpu_rig *t, const cvy_plan *plan, void *work)
{
    graph_calls calls;
    void *graph = NULL, *exec = NULL;
    cvy_status st;

    if (!find_graph_calls(&calls)) return cvyi_fail(CVY_FAILED, "no calls for CUDA graphs");
    if (calls.begin(t->u->stream, 1)) return cvyi_fail(CVY_FAILED, "capture does not begin");
    st = cvy_plan_run(plan, t->buffers, t->r->n, work, 0, t->u->stream);
    if (calls.end(t->u->stream, &graph) && !st) st = cvyi_fail(CVY_FAILED, "capture does not end");
    if (!st && (calls.instantiate(&exec, graph, 0) || calls.launch(exec, t->u->stream) ||
                calls.launch(exec, t->u->stream)))
        st = cvyi_fail(CVY_FAILED, "the captured graph does not run");
    cvyi_cuda_wait(t->u->device, t->u->stream);
    if (exec) calls.destroy_exec(exec);
    if (graph) calls.destroy(graph);
    return st;
}

/* ---- ways to run one plan ---- */

typedef enum run_way { RUN_FRESH, RUN_KEPT, RUN_CAPTURED, RUN_REVERSED, RUN_SHUFFLED, RUN_WAYS } run_way;
static const char *const run_names[] = {"", "with kept parameters", "captured", "in reversed order",
                                        "in shuffled order"};

/* The emulator has no captures, and takes its time: of large tensors one order will do. */
static inline bool way_exists(const gpu_rig *t, run_way how)
{
    int64_t cells = 0;

    if (how == RUN_FRESH || how == RUN_KEPT) return true;
    if (how == RUN_CAPTURED) return !t->u->emulated;
    for (int i = 0; i < t->r->n; i++) cells += t->r->t[i].cells;
    return t->u->emulated && cells < 1 << 18;
}

/* The outputs, NULL where it went wrong: cvy_last_error() says how. */
static inline float *run_one_way(gpu_rig *t, const cvy_plan *plan, CUdeviceptr at, run_way how, int64_t *count)
{
    void *work = (void *)(uintptr_t)at;
    float *got = NULL;
    cvy_status st = CVY_OK;

    gpu_rig_wipe(t);
    if (how != RUN_KEPT) TRY(cvyi_cuda_fill(t->u->device, at, 0xff, cvy_plan_workspace(plan), t->u->stream));
    if (how == RUN_REVERSED) setenv("CVY_EMULATE_ORDER", "reversed", 1);
    if (how == RUN_SHUFFLED) setenv("CVY_EMULATE_ORDER", "20261", 1);
    st = how == RUN_CAPTURED
             ? run_captured(t, plan, work)
             : cvy_plan_run(plan, t->buffers, t->r->n, work, how == RUN_KEPT ? CVY_KEEP_PREPARED : 0, t->u->stream);
    unsetenv("CVY_EMULATE_ORDER");
    if (!st && !(got = gpu_rig_outputs(t, count))) st = cvyi_fail(CVY_FAILED, "a guard was overwritten");
fail:
    return st ? NULL : got;
}

/* The largest error over the scale of its output; for the report. */
static inline double error_of(const rig *r, const float *got)
{
    double worst = 0;
    int64_t at = 0;

    for (int i = r->n_sources; i < r->n; i++) {
        double scale = 1e-30, most = 0;
        for (int64_t k = 0; k < r->t[i].count; k++, at++) {
            const double want = r->t[i].want[k];
            if (!isfinite(want) || !isfinite(got[at])) continue;
            scale = fmax(scale, fabs(want));
            most = fmax(most, fabs(want - got[at]));
        }
        worst = fmax(worst, most / scale);
    }
    return worst;
}

/* Empty where all is well, else what is wrong. */
static inline void check_rig(gpu_rig *t, const doubt *d, const cvy_plan *plan, CUdeviceptr work, double *worst,
                             char what[300])
{
    float *first = NULL;
    int64_t count = 0;

    for (run_way how = 0; how < RUN_WAYS && !*what; how++) {
        float *got;
        double want = 0;
        if (!way_exists(t, how)) continue;
        got = run_one_way(t, plan, work, how, &count);
        if (!got) {
            snprintf(what, 300, "%s: %s", run_names[how], cvy_last_error());
        } else if (!first) {
            const int64_t bad = doubt_find(d, t->r, got, true, &want);
            if (bad >= 0)
                snprintf(what, 300, "element %lld is %.9g, expected %.9g, slack %.2g%s", (long long)bad,
                         (double)got[bad], want, d->slack[bad], d->exact ? ", exact" : "");
            *worst = fmax(*worst, d->beyond ? 0 : error_of(t->r, got));
        } else if (!rig_same_bits(first, got, count)) {
            snprintf(what, 300, "other bits %s", run_names[how]);
        }
        if (first)
            free(got);
        else
            first = got;
    }
    free(first);
}

/* ---- a graph: two rigs, contiguous and strided, under some plans ---- */

enum { CHECK_RIGS = 2 };

typedef struct checked_graph {
    const gpu *u;
    cvy_graph *g;
    const char *title; /* how to name it in a report */
    rig rigs[CHECK_RIGS];
    gpu_rig on_device[CHECK_RIGS];
    doubt doubts[CHECK_RIGS];
    double worst;
} checked_graph;

static inline void check_open(checked_graph *c, const gpu *u, cvy_graph *g, rig_data kind, uint64_t seed)
{
    *c = (checked_graph){.u = u, .g = g};
    for (int i = 0; i < 4; i++) random_next(&seed);
    for (int i = 0; i < CHECK_RIGS; i++) {
        rig_open(&c->rigs[i], g, &seed, kind, i ? 6 : 0);
        rig_reference(&c->rigs[i]);
        doubt_open(&c->doubts[i], &c->rigs[i], seed);
        gpu_rig_open(&c->on_device[i], u, &c->rigs[i]);
    }
}
static inline void check_close(checked_graph *c)
{
    for (int i = 0; i < CHECK_RIGS; i++) {
        gpu_rig_close(&c->on_device[i]);
        doubt_close(&c->doubts[i]);
        rig_close(&c->rigs[i]);
    }
}

static inline bool check_plan(checked_graph *c, const cvy_options *o)
{
    static const char *const kinds[] = {"", "strided: "};
    cvy_plan *plan = NULL;
    CUdeviceptr work = 0;
    char what[300] = "";
    bool good = true;

    if (cvy_plan_create(c->g, o, &plan) || cvyi_cuda_alloc(c->u->device, cvy_plan_workspace(plan), &work)) {
        snprintf(what, sizeof what, "%s", cvy_last_error());
        good = false;
    }
    for (int i = 0; i < CHECK_RIGS && good; i++) {
        check_rig(&c->on_device[i], &c->doubts[i], plan, work, &c->worst, what);
        if (*what) fprintf(stderr, "%s", kinds[i]);
        good = !*what;
    }
    if (!good) fprintf(stderr, "%s\n", what);
    cvyi_cuda_free(c->u->device, work);
    cvy_plan_free(plan);
    return good;
}

enum { PLAN_LIKED = 1, PLAN_ONE_BY_ONE = 2 }; /* the plan that the engine likes; every operator by itself */

/* Plans of the kinds asked for, and `random` ones at random. */
static inline bool check_plans(checked_graph *c, int kinds, int random, uint32_t seed)
{
    static const char *const names[] = {"planned", "one by one", "random"};
    bool good = true;

    for (int i = 0; i < 2 + random; i++) {
        const cvy_options o = {.size = sizeof o,
                               .device = CVY_CUDA,
                               .fuse = i == 1 ? CVY_OFF : CVY_DEFAULT,
                               .seed = i < 2 ? 0 : seed * 16 + (uint32_t)i - 1};
        if ((i < 2 && !(kinds >> i & 1)) || check_plan(c, &o)) continue;
        fprintf(stderr, "    %s (CVY_PLAN_SEED=%u%s): %s\n", names[i < 2 ? i : 2], (unsigned)o.seed,
                i == 1 ? " CVY_FUSE=0" : "", c->title);
        good = false;
    }
    return good;
}

#endif
