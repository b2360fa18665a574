/* conv_along.c - what a convolution takes along: a maximum, statistics or pointwise operators, computed while its
 * result is in registers or in a band of rows. Part of the choice of its pass (choice.h). */
#include "choice.h"
#include "program.h"

/* Whole windows side by side: what a convolution can maximise over as it goes. */
static bool plain_windows(const pool_geom *p)
{
    for (int a = 0; a < 3; a++)
        if (p->kernel[a] != p->stride[a] || p->pad[a] || p->dil[a] != 1 || p->out[a] != p->in[a] / p->kernel[a])
            return false;
    return p->kernel[0] == 1;
}

/* The maximum pooling that the convolution can take along; -1: none. */
static int pool_of(const cvy_plan *p, int index, int end, conv_algo_id algo, const conv_geom *g)
{
    const int v = p->graph->nodes[index].out;
    int found = -1;
    if (cvyi_is_output(p->graph, v)) return -1;
    for (int i = index + 1; i <= p->last_reader[v] && i < p->graph->n_nodes; i++) {
        const node *n = &p->graph->nodes[i];
        const op_kind kind = cvyi_info(n)->kind;
        pool_geom pool;
        for (int a = 1; a < n->n_args; a++)
            if (n->arg[a] == v) return -1;
        if (n->arg[0] != v) continue;
        if (i >= end || found >= 0 || (kind != KIND_MAXPOOL && kind != KIND_STATS)) {
            if (kind != KIND_STATS || i >= end) return -1;
        }
        if (kind != KIND_MAXPOOL) continue;
        cvyi_pool_geom(p->graph, n, &pool);
        if (!plain_windows(&pool) || cvyi_conv_pool_legal(algo, g, pool.kernel[1], pool.kernel[2])) return -1;
        found = i;
    }
    return found;
}

/* Statistics over whole channels of a batched result of K channels. */
static bool by_channels(const cvy_graph *graph, const node *n, const conv_geom *g)
{
    norm_geom e;
    cvyi_norm_geom(graph, n, &e);
    if (e.inner == 1) return false; /* one pixel: the norm runs by rows, which are not channels */
    return e.groups * e.chan == g->K && e.inner == g->out[0] * g->out[1] * g->out[2] && e.outer == g->N &&
           e.centred && !e.over_outer;
}

static int stats_of(const cvy_graph *graph, int v, int from, int end, const conv_geom *g)
{
    for (int i = from; i < end; i++) {
        const node *n = &graph->nodes[i];
        if (cvyi_info(n)->kind == KIND_STATS && n->arg[0] == v && by_channels(graph, n, g)) return i;
    }
    return -1;
}

/* Can all readers of v undo a shift per channel? A maximum passes it on to its own readers. */
static bool may_be_centred(const cvy_plan *p, const pass *s, int v, int stats)
{
    if (cvyi_needed_after(p, s, v)) return false;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &p->graph->nodes[i];
        const op_kind kind = cvyi_info(n)->kind;
        for (int a = 0; a < n->n_args; a++) {
            if (n->arg[a] != v || i == stats || cvyi_is_pointwise(kind)) continue;
            if (kind != KIND_MAXPOOL || !may_be_centred(p, s, n->out, -1)) return false;
        }
    }
    return true;
}

static bool read_only_by(const cvy_plan *p, const pass *s, int v, int from, int n)
{
    if (cvyi_needed_after(p, s, v)) return false;
    for (int i = s->first; i < s->first + s->count; i++)
        for (int a = 0; a < p->graph->nodes[i].n_args; a++)
            if (p->graph->nodes[i].arg[a] == v && (i < from || i >= from + n)) return false;
    return true;
}

bool cvyi_band_program(const site *at, int v, int first, int n, const conv_geom *g, program *out)
{
    return cvyi_program_build(at, first, n, -1, v, out) && out->band >= 0 && !out->operands[out->band].scalar &&
           out->n_outer >= 2 && out->outer[out->n_outer - 1] == g->K &&
           out->inner == g->out[0] * g->out[1] * g->out[2];
}

/* Is v read only by these two nodes? Statistics that are not fused need it in memory. */
static bool only_stats(const cvy_plan *p, const pass *s, int v, int stats, int pool)
{
    for (int i = s->first; i <= p->last_reader[v] && i < p->graph->n_nodes; i++)
        for (int a = 0; a < p->graph->nodes[i].n_args; a++)
            if (p->graph->nodes[i].arg[a] == v && i != stats && i != pool) return false;
    return true;
}

/* Pointwise operators right after the convolution that run on each of its bands, and statistics of the last. */
static void take_program(const question *q, int end, conv_along *out)
{
    const cvy_plan *p = q->plan;
    const node *nodes = p->graph->nodes;
    const int first = q->index + 1, v = nodes[q->index].out;
    const site at = {.plan = p, .pass = q->pass, .chunk = 1};
    program_room room;
    program trial = cvyi_program_in(&room);
    int span;

    if (first >= end || !cvyi_same_shape(cvyi_shape_of(p->graph, v), cvyi_shape_of(p->graph, nodes[first].out)))
        return;
    span = cvyi_program_span(p, first, end);
    if (!span || !read_only_by(p, q->pass, v, first, span)) return;
    if (!cvyi_band_program(&at, v, first, span, &q->conv, &trial)) return;
    out->prog = first;
    out->n_prog = span;
    out->prog_stats = stats_of(p->graph, nodes[first + span - 1].out, first + span, end, &q->conv);
}

bool cvyi_conv_by_sample(const question *q)
{
    const node *n = &q->plan->graph->nodes[q->index];
    const bool batched = cvyi_shape_of(q->plan->graph, n->out)->rank == cvyi_info(n)->spatial + 2;
    return batched && q->conv.N == q->pass->samples;
}

conv_along cvyi_conv_take(const question *q, const cpu_choice *c, bool product)
{
    const cvy_plan *p = q->plan;
    const pass *s = q->pass;
    const int v = p->graph->nodes[q->index].out, end = s->first + s->count;
    conv_along out = {.pool = -1, .stats = -1, .prog_stats = -1};

    if (!cvyi_conv_by_sample(q) || !cvyi_conv_can_centre(&q->conv)) return out;
    out.stats = stats_of(p->graph, v, q->index + 1, end, &q->conv);
    if (out.stats >= 0 && !may_be_centred(p, s, v, out.stats)) out.stats = -1;
    out.centred = out.stats >= 0;
    if (product) return out;
    if (out.stats >= 0 && c->twice) {
        out.twice = true;
        out.prog = q->index + 2;
        out.n_prog = end - q->index - 2;
        return out;
    }
    out.pool = pool_of(p, q->index, end, c->row->algo, &q->conv);
    if (out.pool >= 0 && !only_stats(p, s, v, out.stats, out.pool)) out.pool = -1;
    if (out.pool < 0 && out.stats < 0) take_program(q, end, &out);
    return out;
}

/* Convolution, its statistics, and only pointwise operators after them: the convolution may run twice. */
bool cvyi_conv_twice_fits(const cvy_plan *p, const pass *s)
{
    const cvy_graph *g = p->graph;
    const node *n = &g->nodes[s->first];
    conv_geom geom;
    norm_geom e;

    if (s->count < 3 || s->count > PROG_NODES || cvyi_info(n)->kind != KIND_CONV || !s->by_sample) return false;
    if (g->nodes[s->first + 1].op != OP_norm_stats || g->nodes[s->first + 1].arg[0] != n->out) return false;
    if (cvyi_needed_after(p, s, n->out) || cvyi_needed_after(p, s, g->nodes[s->first + 1].out)) return false;
    cvyi_conv_geom(g, n, &geom);
    cvyi_norm_geom(g, &g->nodes[s->first + 1], &e);
    if (e.groups * e.chan != geom.K || e.outer != geom.N || !e.centred || e.over_outer) return false;
    if (e.inner != geom.out[0] * geom.out[1] * geom.out[2]) return false;
    if (e.inner == 1) return false; /* one pixel: the norm runs by rows, which are not channels */
    for (int i = s->first + 2; i < s->first + s->count; i++) {
        const node *at = &g->nodes[i];
        if (!cvyi_is_pointwise(cvyi_info(at)->kind)) return false;
        if (!cvyi_same_shape(cvyi_shape_of(g, at->out), cvyi_shape_of(g, n->out))) return false;
        /* What else is read must be of the same shape or one number per channel, so that runs are whole channels.
         */
        for (int a = 1; a < at->n_args; a++) {
            const shape *o = at->arg[a] == CVY_NONE ? NULL : cvyi_shape_of(g, at->arg[a]);
            if (!o || cvyi_info(at)->kind == KIND_APPLY || cvyi_same_shape(o, cvyi_shape_of(g, n->out))) continue;
            if (cvyi_elements(o) != 1 &&
                (o->rank != geom.spatial + 1 || cvyi_elements(o) != geom.K || o->dim[0] != geom.K))
                return false;
        }
    }
    return geom.N == s->samples;
}
