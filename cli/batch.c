/* batch.c - splits a graph into samples, if its samples are independent.
 *
 * The reference is slow. If samples are independent, some of them can be checked, in parallel, on the same data.
 * The test is conservative: all inputs and all results have the batch as first dimension, also when the graph is
 * made for one sample instead of all, and no operator takes sums, maxima or statistics along it, or moves samples.
 */
#include "cli.h"
#include "../src/graph/graph.h"

static bool is_param(const cvy_graph *g, int v)
{
    return g->values[v].kind == VALUE_PARAM;
}

/* Two values of different rank are aligned at the last dimension: a batch could meet a channel. */
static bool aligned(const cvy_graph *g, const node *n)
{
    if (n->n_args < 2 || n->arg[1] == CVY_NONE || is_param(g, n->arg[1]) || is_param(g, n->arg[0])) return true;
    return cvyi_shape_of(g, n->arg[0])->rank == cvyi_shape_of(g, n->arg[1])->rank;
}

/* Does the operator work on every sample independently? `batch` is the extent of the first dimension. */
static bool keeps_apart(const cvy_graph *g, const node *n, int64_t batch)
{
    const op_kind kind = cvyi_info(n)->kind;
    if (kind == KIND_NORM) {
        norm_geom geom;
        cvyi_norm_geom(g, n, &geom);
        return geom.running || (!geom.over_outer && geom.outer % batch == 0);
    }
    if (kind == KIND_REDUCE) return !(cvyi_reduced_dims(g, n) & 1);
    if (kind == KIND_SOFTMAX) return cvyi_softmax_dim(g, n) != 0;
    if (kind == KIND_MOVE) return cvyi_move_by_sample(g, n);
    return aligned(g, n);
}

static bool has_batch(const cvy_graph *g, int v, int64_t batch)
{
    const shape *s = cvyi_shape_of(g, v);
    return s->rank > 0 && s->dim[0] == batch;
}

/* Sets the batch of all inputs to one, and every shape that follows. */
static bool shrink(cvy_graph *g, int64_t batch)
{
    for (int v = 0; v < g->n_values; v++) {
        if (g->values[v].kind != VALUE_INPUT) continue;
        if (!has_batch(g, v, batch)) return false;
        g->values[v].shape.dim[0] = 1;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const node *n = &g->nodes[i];
        if (!has_batch(g, n->out, batch)) return false;
        if (cvyi_infer(g, n, &g->values[n->out].shape) != CVY_OK || !has_batch(g, n->out, 1)) return false;
    }
    return true;
}

cvy_graph *batch_split(const cvy_graph *graph, int64_t *batch)
{
    cvy_graph *one = NULL;
    bool ok = true;

    *batch = 0;
    for (int v = 0; v < graph->n_values && !*batch; v++)
        if (graph->values[v].kind == VALUE_INPUT && graph->values[v].shape.rank)
            *batch = graph->values[v].shape.dim[0];
    if (*batch < 2) return NULL;
    for (int i = 0; ok && i < graph->n_nodes; i++) ok = keeps_apart(graph, &graph->nodes[i], *batch);
    if (!ok || cvyi_graph_copy(graph, &one)) return NULL;
    if (shrink(one, *batch)) return one;
    cvy_graph_free(one);
    return NULL;
}
