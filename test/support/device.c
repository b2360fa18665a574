/* device.c - see device.h. */
#include <dlfcn.h>
#include "../../src/util/half.h"
#include "device.h"

enum { BAND = 1024, BAND_BYTE = 0xa5 };

/* A tensor's memory as it travels: all of it, or on a bare device without the rig's own guards at both ends. */
typedef struct gpu_span {
    float *from;
    int64_t cells;
    size_t bytes; /* on the device */
} gpu_span;

/* ---- elements of 16 bits: a rig's numbers are such already ---- */

uint16_t half_bits(cvy_dtype dtype, float x)
{
    return cvyi_narrow(dtype, x);
}

float half_value(cvy_dtype dtype, uint16_t bits)
{
    return cvyi_widen(dtype, bits);
}

static void narrow_cells(cvy_dtype dtype, const float *from, void *to, int64_t n)
{
    if (dtype == CVY_FLOAT32) memcpy(to, from, 4 * (size_t)n);
    for (int64_t i = 0; i < n && dtype != CVY_FLOAT32; i++) ((uint16_t *)to)[i] = half_bits(dtype, from[i]);
}

/* The rig's guard stays itself. */
static void widen_cells(cvy_dtype dtype, const void *from, float *to, int64_t n)
{
    const uint16_t guard = half_bits(dtype, RIG_GUARD);

    if (dtype == CVY_FLOAT32) memcpy(to, from, 4 * (size_t)n);
    for (int64_t i = 0; i < n && dtype != CVY_FLOAT32; i++) {
        const uint16_t bits = ((const uint16_t *)from)[i];
        to[i] = bits == guard ? RIG_GUARD : half_value(dtype, bits);
    }
}

typedef struct graph_calls {
    CUresult (*begin)(CUstream, int);
    CUresult (*end)(CUstream, void **);
    CUresult (*instantiate)(void **, void *, unsigned long long);
    CUresult (*launch)(void *, CUstream);
    CUresult (*destroy)(void *);
    CUresult (*destroy_exec)(void *);
} graph_calls;

bool test_gpu_open(gpu *u)
{
    *u = (gpu){0};
    if (cvyi_cuda_open(0, &u->device) || cvyi_cuda_enter(u->device, NULL)) return false;
    u->emulated = u->bare = strcmp(u->device->name, "emulator") == 0;
    return cvyi_cuda_stream_create(u->device, &u->stream) == CVY_OK;
}
void test_gpu_close(gpu *u)
{
    cvyi_cuda_stream_free(u->device, u->stream);
    cvyi_cuda_leave(u->device);
    cvyi_cuda_close(u->device);
}

cvy_status guarded_alloc(const gpu *u, size_t bytes, guarded *out)
{
    cvy_status st;

    *out = (guarded){.bytes = bytes, .band = u->bare ? 0 : BAND};
    TRY(cvyi_cuda_alloc(u->device, bytes + 2 * out->band, &out->base));
    out->at = out->base + out->band;
    if (out->band) TRY(cvyi_cuda_fill(u->device, out->base, BAND_BYTE, out->band, u->stream));
    if (out->band) TRY(cvyi_cuda_fill(u->device, out->at + bytes, BAND_BYTE, out->band, u->stream));
fail:
    return st;
}

void guarded_free(const gpu *u, guarded *g)
{
    cvyi_cuda_free(u->device, g->base);
}

bool guarded_intact(const gpu *u, const guarded *g)
{
    unsigned char bands[2 * BAND];
    size_t kept = 0;

    if (!g->band) return true;
    assert_ok(cvyi_cuda_download(u->device, bands, g->base, BAND, u->stream));
    assert_ok(cvyi_cuda_download(u->device, bands + BAND, g->at + g->bytes, BAND, u->stream));
    while (kept < sizeof bands && bands[kept] == BAND_BYTE) kept++;
    return kept == sizeof bands;
}

static gpu_span span_of(const gpu_rig *t, int i)
{
    const rig_tensor *of = &t->r->t[i];
    const int64_t skip = t->u->bare ? RIG_EDGE : 0;
    const int64_t cells = of->cells - 2 * skip;
    return (gpu_span){of->memory + skip, cells, (size_t)(cvyi_dtype_bytes(t->dtype[i]) * cells)};
}

static void gpu_rig_upload(gpu_rig *t, int i)
{
    const gpu_span s = span_of(t, i);
    void *cells = malloc(s.bytes + 1);

    assert_non_null(cells);
    narrow_cells(t->dtype[i], s.from, cells, s.cells);
    assert_ok(cvyi_cuda_upload(t->u->device, t->memory[i].at, cells, s.bytes, t->u->stream));
    free(cells);
}

void gpu_rig_open_as(gpu_rig *t, const gpu *u, rig *r, const cvy_graph *g)
{
    *t = (gpu_rig){.u = u, .r = r};
    for (int i = 0; i < r->n; i++) {
        cvy_tensor of;
        gpu_span s;
        assert_ok(cvy_graph_tensor(g, i, &of));
        t->dtype[i] = (cvy_dtype)of.dtype;
        s = span_of(t, i);
        assert_ok(guarded_alloc(u, s.bytes, &t->memory[i]));
        gpu_rig_upload(t, i);
        t->buffers[i].data = (void *)(uintptr_t)(t->memory[i].at + (size_t)(cvyi_dtype_bytes(t->dtype[i]) *
                                                                            (r->t[i].origin - s.from)));
        t->buffers[i].strides = r->buffers[i].strides;
    }
}

void gpu_rig_open(gpu_rig *t, const gpu *u, rig *r)
{
    gpu_rig_open_as(t, u, r, r->g);
}
void gpu_rig_close(gpu_rig *t)
{
    for (int i = 0; i < t->r->n; i++) guarded_free(t->u, &t->memory[i]);
}

void gpu_rig_wipe(gpu_rig *t)
{
    rig_wipe(t->r);
    for (int i = t->r->n_sources; i < t->r->n; i++) gpu_rig_upload(t, i);
}

float *gpu_rig_outputs(gpu_rig *t, int64_t *count)
{
    for (int i = t->r->n_sources; i < t->r->n; i++) {
        const gpu_span s = span_of(t, i);
        void *cells = malloc(s.bytes + 1);
        assert_non_null(cells);
        assert_ok(cvyi_cuda_download(t->u->device, cells, t->memory[i].at, s.bytes, t->u->stream));
        widen_cells(t->dtype[i], cells, s.from, s.cells);
        free(cells);
    }
    return rig_outputs(t->r, count);
}

bool gpu_rig_intact(const gpu_rig *t)
{
    bool kept = true;

    for (int i = 0; i < t->r->n; i++) {
        const gpu_span s = span_of(t, i);
        void *now = i < t->r->n_sources ? malloc(s.bytes + 1) : NULL, *before = now ? malloc(s.bytes + 1) : NULL;
        kept = kept && guarded_intact(t->u, &t->memory[i]);
        if (now) assert_ok(cvyi_cuda_download(t->u->device, now, t->memory[i].at, s.bytes, t->u->stream));
        if (now) narrow_cells(t->dtype[i], s.from, before, s.cells);
        kept = kept && (!now || !memcmp(now, before, s.bytes));
        free(now);
        free(before);
    }
    return kept;
}

static bool find_graph_calls(graph_calls *c)
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

cvy_status run_captured(gpu_rig *t, const cvy_plan *plan, void *work)
{
    graph_calls calls;
    void *graph = NULL, *exec = NULL;
    cvy_status st;

    if (!find_graph_calls(&calls)) return cvyi_fail(CVY_FAILED, "no calls for CUDA graphs");
    if (calls.begin(t->u->stream, 1)) return cvyi_fail(CVY_FAILED, "capture does not begin");
    st = cvy_plan_run(plan, t->buffers, t->r->n, work, cvy_plan_workspace(plan), 0, t->u->stream);
    if (calls.end(t->u->stream, &graph) && !st) st = cvyi_fail(CVY_FAILED, "capture does not end");
    if (!st && (calls.instantiate(&exec, graph, 0) || calls.launch(exec, t->u->stream) ||
                calls.launch(exec, t->u->stream)))
        st = cvyi_fail(CVY_FAILED, "the captured graph does not run");
    cvyi_cuda_wait(t->u->device, t->u->stream);
    if (exec) calls.destroy_exec(exec);
    if (graph) calls.destroy(graph);
    return st;
}
