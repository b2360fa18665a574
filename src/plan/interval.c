/* interval.c - what the planner and the engines ask about an interval of nodes that may become a pass. */
#include "plan.h"

bool cvyi_is_output(const cvy_graph *g, int v)
{
    return g->n_outputs ? g->values[v].output : v == g->nodes[g->n_nodes - 1].out;
}

/* Does node n compute each index of dimension 0 independently? Its result then has dimension 0 of extent N. */
static bool by_sample(const cvy_graph *g, const node *n, int64_t N)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]), *y = cvyi_shape_of(g, n->out);
    const op_info *op = cvyi_info(n);
    norm_geom norm;

    if (y->rank < 1 || (op->kind != KIND_STATS && y->dim[0] != N)) return false;
    switch (op->kind) {
    case KIND_CONV:
    case KIND_CONVT:
    case KIND_MAXPOOL:
    case KIND_AVGPOOL:
    case KIND_ADAPTIVE:
        return x->rank == op->spatial + 2;
    case KIND_LINEAR:
        return x->rank > 1;
    case KIND_MATMUL:
        return x->rank > 1 && cvyi_shape_of(g, n->arg[1])->rank == 2;
    case KIND_STATS:
    case KIND_APPLY:
        cvyi_norm_geom(g, n, &norm);
        return !norm.over_outer && norm.outer % N == 0 && x->rank > 0 && x->dim[0] == N;
    case KIND_REDUCE:
        return x->rank > 0 && !(cvyi_reduced_dims(g, n) & 1) && x->dim[0] == N;
    case KIND_SOFTMAX:
        return x->rank > 0 && cvyi_softmax_dim(g, n) != 0;
    case KIND_SHAPE:
        return x->rank > 0 && x->dim[0] == N;
    case KIND_MOVE:
        return cvyi_move_by_sample(g, n);
    case KIND_UNARY:
    case KIND_BINARY:
        return true;
    case KIND_NORM:
        return false;
    }
    return false;
}

/* Any tensor after the first is shared by all samples, or has one slice per sample. If its shape could be
 * read either way (a parameter with N first, a value of lower rank that begins with N, weights that are
 * computed) the answer is no. */
static bool args_by_sample(const cvy_plan *p, const node *n, int64_t N)
{
    const op_kind kind = cvyi_info(n)->kind;
    const int rank = cvyi_shape_of(p->graph, n->out)->rank;
    for (int i = 0; i < n->n_args; i++) {
        const shape *s = n->arg[i] == CVY_NONE ? NULL : cvyi_shape_of(p->graph, n->arg[i]);
        if (!s || s->rank == 0 || (kind == KIND_APPLY && i == 1)) continue;
        if (kind == KIND_MOVE) { /* has them all: cvyi_move_by_sample() */
            if (p->prepared[n->arg[i]] && N > 1) return false;
            continue;
        }
        if (kind != KIND_BINARY) {
            if (s->dim[0] == N && N > 1 && p->prepared[n->arg[i]] == (i == 0)) return false;
            continue;
        }
        if (s->rank == rank && s->dim[0] != N && s->dim[0] != 1) return false;
        if (s->dim[0] == N && N > 1 && (s->rank < rank) != p->prepared[n->arg[i]]) return false;
    }
    return true;
}

bool cvyi_has_samples(const cvy_plan *p, int v, int64_t N)
{
    const shape *s = cvyi_shape_of(p->graph, v);
    const int by = p->graph->values[v].node;
    if (s->rank == 0) return false;
    if (by >= 0 && p->graph->nodes[by].op == OP_norm_stats) return s->dim[0] >= N && s->dim[0] % N == 0;
    return s->dim[0] == N;
}

/* Does one node of the interval read the memory of v with samples, and another one without? */
static bool seen_both_ways(const cvy_plan *p, int first, int count, int v, int64_t N)
{
    for (int i = first; i < first + count; i++) {
        const node *n = &p->graph->nodes[i];
        for (int a = 0; a < n->n_args; a++)
            if (n->arg[a] != CVY_NONE && p->root[n->arg[a]] == p->root[v] &&
                cvyi_has_samples(p, n->arg[a], N) != cvyi_has_samples(p, v, N))
                return true;
    }
    return false;
}

static bool views_agree(const cvy_plan *p, int first, int count, int64_t N)
{
    for (int i = first; i < first + count && N > 1; i++) {
        const node *n = &p->graph->nodes[i];
        for (int a = 0; a < n->n_args; a++) {
            const int v = n->arg[a];
            if (v != CVY_NONE && p->root[v] != v && seen_both_ways(p, first, count, v, N)) return false;
        }
    }
    return true;
}

bool cvyi_made_inside(const cvy_plan *p, const pass *s, int v)
{
    const int by = p->graph->values[v].node;
    return by >= s->first && by < s->first + s->count;
}

bool cvyi_needed_after(const cvy_plan *p, const pass *s, int v)
{
    return p->last_reader[v] >= s->first + s->count;
}

bool cvyi_memory_needed_after(const cvy_plan *p, const pass *s, int root)
{
    return p->last_sharer[root] >= s->first + s->count;
}

/* ---- growing ---- */

static double value_bytes(const cvy_plan *p, int v)
{
    return (double)cvyi_value_bytes(p->graph, v);
}

static void add_bytes(cvy_plan *p, interval *in, const node *n)
{
    if (p->read_by[n->out] == in->stamp) { /* later ones take it from here now */
        p->read_by[n->out] = 0;
        in->bytes -= value_bytes(p, n->out);
    }
    if (p->root[n->out] == n->out && p->last_sharer[n->out] >= in->end) in->bytes += value_bytes(p, n->out);
    for (int a = 0; a < n->n_args; a++) {
        const int v = n->arg[a];
        if (v == CVY_NONE || p->read_by[v] == in->stamp) continue;
        p->read_by[v] = in->stamp;
        in->bytes += value_bytes(p, v);
    }
}

/* The extent that the interval's first node requires; 0: none. */
static int64_t extent_asked(const cvy_graph *g, const node *n)
{
    const bool stats = cvyi_info(n)->kind == KIND_STATS; /* its result may have several rows a sample */
    const shape *y = cvyi_shape_of(g, stats ? n->arg[0] : n->out);
    return y->rank ? y->dim[0] : 1;
}

static bool node_by_sample(const cvy_plan *p, int index, int64_t N)
{
    const node *n = &p->graph->nodes[index];
    return N >= 1 && by_sample(p->graph, n, N) && args_by_sample(p, n, N);
}

static void find_samples(const cvy_plan *p, interval *in)
{
    const int64_t N = extent_asked(p->graph, &p->graph->nodes[in->first]);
    const int last = N == in->N ? in->first + 1 : in->end; /* the same question has been put to the later ones */

    if (N != in->N) in->by_sample = true;
    in->N = N;
    for (int i = in->first; i < last && in->by_sample; i++) in->by_sample = node_by_sample(p, i, N);
    in->samples = in->by_sample ? N : 0;
    if (in->aliases && in->by_sample && !views_agree(p, in->first, in->end - in->first, N)) in->samples = 0;
}

void cvyi_interval_begin(cvy_plan *p, int end, interval *in)
{
    *in = (interval){.first = end, .end = end, .N = -1, .stamp = ++p->last_stamp};
}

void cvyi_interval_grow(cvy_plan *p, interval *in)
{
    const node *n = &p->graph->nodes[--in->first];
    in->flops += cvyi_node_flops(p->graph, n);
    add_bytes(p, in, n);
    for (int a = 0; a < n->n_args; a++) in->aliases |= n->arg[a] != CVY_NONE && p->root[n->arg[a]] != n->arg[a];
    find_samples(p, in);
}
