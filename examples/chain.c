/* chain.c - block A from chain text: describe, plan, run, print. The shortest way to use the library.
 *
 *     cc chain.c $(pkg-config --cflags --libs convoy) */
#include <convoy.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const char chain[] = "x[2,8,32,32] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) "
                            "| clamp(0,1)";

/* Memory for one tensor, filled with a pattern; a program would put its own data here. */
static float *make_tensor(const cvy_tensor *t)
{
    size_t count = 1;
    float *data;
    for (int d = 0; d < t->rank; d++) count *= (size_t)t->dims[d];
    data = malloc(count * sizeof *data);
    for (size_t i = 0; data && i < count; i++) data[i] = (float)(i * 2654435761u % 1000) / 1000 - 0.25f;
    return data;
}

/* One buffer per tensor, in the order run() wants them. */
static cvy_status make_buffers(const cvy_graph *graph, cvy_buffer *buffers, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        cvy_tensor t;
        const cvy_status st = cvy_graph_tensor(graph, i, &t);
        if (st) return st;
        buffers[i] = (cvy_buffer){make_tensor(&t), NULL};
        if (!buffers[i].data) return CVY_NO_MEMORY;
        printf("%-20s rank %d\n", t.name, t.rank);
    }
    return CVY_OK;
}

int main(void)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CPU};
    cvy_graph *graph = NULL;
    cvy_plan *plan = NULL;
    cvy_buffer *buffers = NULL;
    void *workspace = NULL;
    size_t size = 0;
    int32_t n = 0;
    cvy_status st = cvy_graph_parse(chain, &graph);

    if (!st) {
        n = cvy_graph_tensors(graph);
        buffers = calloc((size_t)n, sizeof *buffers);
        st = buffers ? make_buffers(graph, buffers, n) : CVY_NO_MEMORY;
    }
    if (!st) st = cvy_plan_create(graph, &options, &plan);
    if (!st) size = cvy_plan_workspace(plan);
    if (!st) workspace = aligned_alloc(CVY_ALIGN, size);
    if (!st) st = workspace ? cvy_plan_run(plan, buffers, n, workspace, size, 0, NULL) : CVY_NO_MEMORY;
    if (!st) printf("first element of the result: %g\n", (double)((float *)buffers[n - 1].data)[0]);
    if (st) fprintf(stderr, "%s: %s\n", cvy_status_name(st), cvy_last_error());

    for (int32_t i = 0; buffers && i < n; i++) free(buffers[i].data);
    free(buffers);
    free(workspace);
    cvy_plan_free(plan);
    cvy_graph_free(graph);
    return st != CVY_OK;
}
