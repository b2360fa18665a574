/* fuzz_plan.c - libFuzzer target: plans and runs whatever chain parses and is small.
 *
 * The reference and the CPU engine run it with every tensor in memory of exactly its size, under the sanitizers;
 * the CPU's plan is a random legal one. No tolerances here (the values are whatever the chain makes of them), but
 * properties that hold to the bit: a second run on a prepared workspace, and another number of threads, give the
 * same results. Nothing may be left allocated. */
#include <stdlib.h>
#include <string.h>
#include "../unit/same.h"

enum { MAX_BYTES = 4096, MAX_ELEMENTS = 2000, MAX_FLOPS = 20000 };

static void demand(bool holds, const char *what, const char *source)
{
    if (holds) return;
    fprintf(stderr, "%s: %s\n%s\n", what, cvy_last_error(), source);
    abort();
}

static bool is_small(const cvy_graph *g)
{
    int64_t elements = 0;
    double flops = 0;
    for (int i = 0; i < g->n_values; i++) {
        const int64_t n = cvyi_elements(&g->values[i].shape);
        if (n > MAX_ELEMENTS) return false;
        elements += n;
    }
    for (int i = 0; i < g->n_nodes; i++) flops += cvyi_node_flops(g, &g->nodes[i]);
    return elements <= MAX_ELEMENTS && flops <= MAX_FLOPS && g->n_nodes > 0;
}

static int64_t elements_of(const cvy_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->dims[i];
    return n;
}

/* The tensors of run(), outputs included, filled with small whole numbers. */
static cvy_buffer *make_buffers(const cvy_graph *g, int n)
{
    cvy_buffer *buffers = calloc((size_t)n, sizeof *buffers);
    for (int i = 0; i < n; i++) {
        cvy_tensor t;
        float *data;
        demand(cvy_graph_tensor(g, i, &t) == CVY_OK, "tensor", "");
        buffers[i].data = data = malloc((size_t)elements_of(&t) * sizeof *data);
        for (int64_t k = 0; k < elements_of(&t); k++) data[k] = (float)((k + i) % 7) - 3;
    }
    return buffers;
}

static void free_buffers(cvy_buffer *buffers, int n)
{
    for (int i = 0; i < n; i++) free(buffers[i].data);
    free(buffers);
}

/* The outputs of two runs, bit by bit, but that any NaN is like any other. */
static bool same_outputs(const cvy_graph *g, const cvy_buffer *a, const cvy_buffer *b, int n)
{
    for (int i = 0; i < n; i++) {
        const float *x = a[i].data, *y = b[i].data;
        cvy_tensor t;
        demand(cvy_graph_tensor(g, i, &t) == CVY_OK, "tensor", "");
        if (t.role != CVY_OUTPUT) continue;
        for (int64_t k = 0; k < elements_of(&t); k++)
            if (memcmp(&x[k], &y[k], sizeof *x) && !(isnan(x[k]) && isnan(y[k]))) return false;
    }
    return true;
}

/* Plans and runs twice. NULL if the device is not there or does not take the graph. */
static cvy_buffer *run(const cvy_graph *g, const cvy_options *options, const char *source)
{
    const int n = cvy_graph_tensors(g);
    cvy_plan *plan = NULL;
    const cvy_status st = cvy_plan_create(g, options, &plan);
    cvy_buffer *first, *second;
    void *work;

    if (st == CVY_NO_DEVICE || st == CVY_UNSUPPORTED) return NULL;
    demand(st == CVY_OK, "plan", source);
    demand(cvy_plan_print(plan, NULL, 0, NULL) == CVY_OK, "plan print", source);
    work = aligned_alloc(CVY_ALIGN, cvy_plan_workspace(plan));
    memset(work, 0xff, cvy_plan_workspace(plan)); /* all NaN: nothing is read before it is written */
    first = make_buffers(g, n);
    second = make_buffers(g, n);
    demand(cvy_plan_run(plan, first, n, work, cvy_plan_workspace(plan), 0, NULL) == CVY_OK, "run", source);
    demand(cvy_plan_run(plan, second, n, work, cvy_plan_workspace(plan), CVY_KEEP_PREPARED, NULL) == CVY_OK,
           "second run", source);
    demand(same_outputs(g, first, second, n), "the second run differs", source);
    free_buffers(second, n);
    free(work);
    cvy_plan_free(plan);
    return first;
}

static void check(const cvy_graph *g, const char *source)
{
    const int n = cvy_graph_tensors(g);
    const uint64_t hash = cvyi_hash(CVYI_HASH_START, source, strlen(source));
    cvy_options options = {.size = sizeof options, .device = CVY_REF, .threads = 1};
    cvy_buffer *one, *two;

    one = run(g, &options, source);
    demand(one != NULL, "the reference takes every graph", source);
    free_buffers(one, n);
    options.device = CVY_CPU;
    options.seed = (uint32_t)hash & 3 ? (uint32_t)(hash >> 32) : 0;
    one = run(g, &options, source);
    options.threads = 3;
    two = one && hash >> 8 & 1 ? run(g, &options, source) : NULL;
    if (two) demand(same_outputs(g, one, two, n), "three threads differ from one", source);
    if (one) free_buffers(one, n);
    if (two) free_buffers(two, n);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int64_t kept; /* allocations that the first plan of a process leaves for the others */

/* What is made once is made here. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    cvy_graph *g = NULL;
    (void)argc;
    (void)argv;
    demand(cvy_graph_parse("x[1,2,5,5] | conv2d(2,3) | relu", &g) == CVY_OK, "parse", "");
    check(g, "");
    cvy_graph_free(g);
    kept = cvyi_alloc_live();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char source[MAX_BYTES + 1];
    cvy_graph *g = NULL;

    if (size > MAX_BYTES) return 0;
    memcpy(source, data, size);
    source[size] = 0;
    if (cvy_graph_parse(source, &g) == CVY_OK && is_small(g)) check(g, source);
    cvy_graph_free(g);
    demand(cvyi_alloc_live() == kept, "left allocated", source);
    return 0;
}
