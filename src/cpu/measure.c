/* measure.c - how long a plan takes on this CPU: random data in its own memory, the least of some runs. */
#include <math.h>
#include "../util/half.h"
#include "exec.h"

/* Short plans run more often: one run in which another process took the core must not decide. */
enum { FEWEST_RUNS = 3, MOST_RUNS = 50 };
#define ENOUGH 5e-3 /* seconds of all runs */

static bool goes_on(int runs, double since)
{
    return runs < FEWEST_RUNS || (runs < MOST_RUNS && cvyi_now() - since < ENOUGH);
}

/* Values in 0 ... 1, no two equal ones near each other. Their exact values do not affect any kernel's speed, if
 * they are normal numbers.
 */
static void fill(cvy_dtype dtype, void *data, int64_t n)
{
    uint32_t x = 1;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        cvyi_element_set(dtype, data, i, (x >> 8) * 0x1p-24);
    }
}

/* A plan's tensors and its workspace. */
typedef struct bench {
    cvy_buffer *buffers;
    char *workspace;
} bench;

static cvy_status open_bench(const cvy_plan *p, bench *b)
{
    b->buffers = cvyi_alloc((size_t)p->n_tensors + 1, sizeof *b->buffers);
    b->workspace = cvyi_alloc_aligned(cvy_plan_workspace(p));
    if (!b->buffers || !b->workspace) return CVY_NO_MEMORY;
    for (int i = 0; i < p->n_tensors; i++) {
        const int64_t n = cvyi_elements(cvyi_shape_of(p->graph, p->tensor_value[i]));
        b->buffers[i].data = cvyi_alloc_aligned((size_t)cvyi_value_bytes(p->graph, p->tensor_value[i]));
        if (!b->buffers[i].data) return CVY_NO_MEMORY;
        fill(p->graph->values[p->tensor_value[i]].dtype, b->buffers[i].data, n);
    }
    return CVY_OK;
}

static void close_bench(const cvy_plan *p, bench *b)
{
    for (int i = 0; b->buffers && i < p->n_tensors; i++) cvyi_free(b->buffers[i].data);
    cvyi_free(b->buffers);
    cvyi_free(b->workspace);
}

static cvy_status run_once(const cvy_plan *p, const bench *b, uint32_t flags)
{
    return cvy_plan_run(p, b->buffers, p->n_tensors, b->workspace, cvy_plan_workspace(p), flags, NULL);
}

cvy_status cvyi_cpu_measure(const cvy_plan *p, double *seconds)
{
    bench b = {NULL, NULL};
    cvy_status st = open_bench(p, &b);
    const double begin = cvyi_now();

    *seconds = INFINITY;
    for (int i = 0; !st && goes_on(i, begin); i++) {
        const double start = cvyi_now();
        st = run_once(p, &b, i ? CVY_KEEP_PREPARED : 0);
        if (cvyi_now() - start < *seconds) *seconds = cvyi_now() - start;
    }
    close_bench(p, &b);
    return st;
}

/* In order, because each pass reads the results of those before it. */
cvy_status cvyi_cpu_measure_passes(const cvy_plan *p, double *seconds)
{
    bench b = {NULL, NULL};
    cvy_status st = open_bench(p, &b);
    run_memory memory = {b.workspace, b.workspace, true};
    double begin;

    if (!st) st = run_once(p, &b, 0);
    if (!st) memory.workspace += p->prepared_bytes;
    begin = cvyi_now();
    for (int run = 0; !st && goes_on(run, begin); run++)
        for (int i = p->n_prepare; i < p->n_passes; i++) {
            const double start = cvyi_now();
            cvyi_cpu_run_pass(p, i, b.buffers, &memory);
            if (!run || cvyi_now() - start < seconds[i]) seconds[i] = cvyi_now() - start;
        }
    close_bench(p, &b);
    return st;
}
