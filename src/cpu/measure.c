/* measure.c - how long a plan takes on this CPU: random data in memory of its own, the least of a few runs. */
#include <math.h>
#include <time.h>
#include "exec.h"

enum { RUNS = 3 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Values in 0 ... 1, no two alike nearby: what they are matters to no kernel's speed, that they are ordinary does.
 */
static void fill(float *data, int64_t n)
{
    uint32_t x = 1;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        data[i] = (float)(x >> 8) * 0x1p-24f;
    }
}

cvy_status cvyi_cpu_measure(const cvy_plan *p, double *seconds)
{
    cvy_buffer *buffers = cvyi_alloc((size_t)p->n_tensors + 1, sizeof *buffers);
    void *workspace = cvyi_alloc_aligned(cvy_plan_workspace(p));
    cvy_status st = buffers && workspace ? CVY_OK : CVY_NO_MEMORY;

    *seconds = INFINITY;
    for (int i = 0; !st && i < p->n_tensors; i++) {
        const int64_t n = cvyi_elements(cvyi_shape_of(p->graph, p->tensor_value[i]));
        buffers[i].data = cvyi_alloc_aligned((size_t)n * sizeof(float));
        if (!buffers[i].data)
            st = CVY_NO_MEMORY;
        else
            fill(buffers[i].data, n);
    }
    for (int i = 0; !st && i < RUNS; i++) {
        const double start = now();
        st = cvy_plan_run(p, buffers, p->n_tensors, workspace, cvy_plan_workspace(p), i ? CVY_KEEP_PREPARED : 0,
                          NULL);
        if (now() - start < *seconds) *seconds = now() - start;
    }
    for (int i = 0; buffers && i < p->n_tensors; i++) cvyi_free(buffers[i].data);
    cvyi_free(buffers);
    cvyi_free(workspace);
    return st;
}
