/* measure.c - how long a plan takes on this GPU: random data in its own memory, the least of a few runs, each after
 * a flush of the L2. */
#include <math.h>
#include "tc.h"

enum { RUNS = 6, BLOCK = 1 << 18 };

const char *const cvyi_cuda_tunings[CUDA_TUNINGS + 1] = {
    "by cost", "second best tile", "third best tile", "fourth best tile", "no tensor cores", "operators apart",
    NULL};

typedef struct bench {
    const cvy_plan *p;
    const cuda_device *d;
    CUstream stream;
    cuda_timer timer;
    cvy_buffer *buffers;
    CUdeviceptr workspace;
} bench;

/* The address of device memory, as run() takes it. */
static void *pointer(CUdeviceptr at)
{
    return (void *)(uintptr_t)at;
}

/* A value from random bits: in 0 ... 1, for 16 bits in 0.5 ... 1, where values differ in the mantissa. */
static void put_value(cvy_dtype dtype, void *values, int i, uint32_t x)
{
    if (dtype == CVY_FLOAT32)
        ((float *)values)[i] = (float)(x >> 8) * 0x1p-24f;
    else
        ((uint16_t *)values)[i] = (uint16_t)(dtype == CVY_FLOAT16 ? 0x3800 | x >> 22 : 0x3f00 | x >> 25);
}

/* The same BLOCK of values repeated: their exact values do not affect any kernel's speed, as long as they are
 * finite.
 */
static cvy_status fill(const bench *b, CUdeviceptr dst, int64_t n, cvy_dtype dtype)
{
    const size_t bytes = (size_t)cvyi_dtype_bytes(dtype);
    void *values = cvyi_alloc(BLOCK, bytes);
    uint32_t x = 1;
    cvy_status st = values ? CVY_OK : CVY_NO_MEMORY;

    for (int i = 0; !st && i < BLOCK; i++) put_value(dtype, values, i, x = x * 1664525u + 1013904223u);
    for (int64_t at = 0; !st && at < n; at += BLOCK)
        st = cvyi_cuda_upload(b->d, dst + bytes * (CUdeviceptr)at, values,
                              bytes * (size_t)cvyi_min64(BLOCK, n - at), b->stream);
    cvyi_free(values);
    return st;
}

static cvy_status make_tensors(bench *b)
{
    cvy_status st;

    b->buffers = cvyi_alloc((size_t)b->p->n_tensors + 1, sizeof *b->buffers);
    if (!b->buffers) return CVY_NO_MEMORY;
    TRY(cvyi_cuda_stream_create(b->d, &b->stream));
    TRY(cvyi_cuda_timer_create(b->d, &b->timer));
    TRY(cvyi_cuda_alloc(b->d, cvy_plan_workspace(b->p), &b->workspace));
    for (int i = 0; i < b->p->n_tensors; i++) {
        const int v = b->p->tensor_value[i];
        CUdeviceptr at = 0;
        TRY(cvyi_cuda_alloc(b->d, (size_t)cvyi_value_bytes(b->p->graph, v), &at));
        b->buffers[i].data = pointer(at);
        TRY(fill(b, at, cvyi_elements(cvyi_shape_of(b->p->graph, v)), b->p->graph->values[v].dtype));
    }
fail:
    return st;
}

static cvy_status time_runs(bench *b, double *seconds)
{
    cvy_status st = CVY_OK;

    for (int i = 0; !st && i < RUNS; i++) {
        double s = INFINITY;
        TRY(cvyi_cuda_timer_start(b->d, &b->timer, b->stream));
        TRY(cvy_plan_run(b->p, b->buffers, b->p->n_tensors, pointer(b->workspace), cvy_plan_workspace(b->p),
                         i ? CVY_KEEP_PREPARED : 0, b->stream));
        TRY(cvyi_cuda_timer_stop(b->d, &b->timer, b->stream, &s));
        if (i && s < *seconds) *seconds = s; /* the first one prepares */
    }
fail:
    return st;
}

/* In order, because each pass reads the results of those before it; each after a flush of the L2. */
static cvy_status time_passes(bench *b, double *seconds)
{
    char *workspace = pointer(b->workspace);
    const run_memory memory = {workspace, workspace + b->p->prepared_bytes, true};
    const cuda_run run = {b->p, b->buffers, &memory, b->stream};
    cvy_status st =
        cvy_plan_run(b->p, b->buffers, b->p->n_tensors, workspace, cvy_plan_workspace(b->p), 0, b->stream);

    for (int i = 0; !st && i < RUNS; i++)
        for (int k = b->p->n_prepare; k < b->p->n_passes; k++) {
            double s = INFINITY;
            TRY(cvyi_cuda_timer_start(b->d, &b->timer, b->stream));
            TRY(cvyi_cuda_run_pass(&run, k));
            TRY(cvyi_cuda_timer_stop(b->d, &b->timer, b->stream, &s));
            if (!i || s < seconds[k]) seconds[k] = s;
        }
fail:
    return st;
}

static void clear(bench *b)
{
    for (int i = 0; b->buffers && i < b->p->n_tensors; i++)
        cvyi_cuda_free(b->d, (CUdeviceptr)(uintptr_t)b->buffers[i].data);
    cvyi_free(b->buffers);
    cvyi_cuda_free(b->d, b->workspace);
    cvyi_cuda_timer_free(b->d, &b->timer);
    cvyi_cuda_stream_free(b->d, b->stream);
}

/* Calls `clock` with tensors and a stream in place. */
static cvy_status measure(const cvy_plan *p, cvy_status (*clock)(bench *b, double *seconds), double *seconds)
{
    bench b = {.p = p, .d = ((const cuda_state *)p->state)->device};
    cvy_status st;

    TRY(cvyi_cuda_enter(b.d, NULL));
    st = make_tensors(&b);
    if (!st) st = clock(&b, seconds);
    clear(&b);
    cvyi_cuda_leave(b.d);
fail:
    return st;
}

cvy_status cvyi_cuda_measure(const cvy_plan *p, double *seconds)
{
    *seconds = INFINITY;
    return measure(p, time_runs, seconds);
}

cvy_status cvyi_cuda_measure_passes(const cvy_plan *p, double *seconds)
{
    return measure(p, time_passes, seconds);
}
