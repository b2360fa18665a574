/* pattern.c - which intervals of nodes one kernel can run: [pointwise] core [pointwise]; see exec.h. */
#include "exec.h"

static bool is_core(op_kind k)
{
    return cvyi_is_producer(k) || k == KIND_MAXPOOL || k == KIND_AVGPOOL || k == KIND_ADAPTIVE ||
           k == KIND_REDUCE || k == KIND_SOFTMAX || k == KIND_STATS || k == KIND_MOVE;
}

/* A norm with given statistics is an affine per channel. */
static bool is_pointwise(const cvy_graph *g, const node *n)
{
    norm_geom e;
    if (cvyi_info(n)->kind != KIND_NORM) return cvyi_is_pointwise(cvyi_info(n)->kind);
    cvyi_norm_geom(g, n, &e);
    return e.running;
}

static bool broadcasts_to(const shape *from, const shape *to)
{
    if (from->rank > to->rank) return false;
    for (int i = 1; i <= from->rank; i++)
        if (from->dim[from->rank - i] != 1 && from->dim[from->rank - i] != to->dim[to->rank - i]) return false;
    return true;
}

/* Nodes first ... end - 1 as operators over one space. */
typedef struct chain {
    int first, end;
    const shape *over;
    int inside;  /* the node whose result they may also read; -1: none */
    bool stores; /* their values */
} chain;

static const char *chain_refusal(const cvy_plan *p, const pass *s, const chain *c)
{
    const cvy_graph *g = p->graph;
    const shape *over = c->over;
    for (int i = c->first; i < c->end; i++) {
        const node *n = &g->nodes[i];
        const shape *y = cvyi_shape_of(g, n->out);
        const bool needed = cvyi_needed_after(p, s, n->out);
        if (!is_pointwise(g, n)) return "two barriers or producers need a kernel each";
        if (needed && !c->stores) return "a value before the reduction is needed after the pass";
        if (!broadcasts_to(y, over)) return "the chain changes its shape";
        if ((needed || cvyi_info(n)->kind != KIND_UNARY) && !cvyi_same_shape(y, over) &&
            (needed || cvyi_info(n)->kind != KIND_BINARY))
            return "a value smaller than the space it is used in";
        for (int a = 0; a < n->n_args; a++) {
            const int by = n->arg[a] == CVY_NONE ? -1 : g->values[n->arg[a]].node;
            if (by >= s->first && by < c->first && by != c->inside)
                return "the epilogue reads a value of the prologue";
        }
    }
    return NULL;
}

/* Does the core read anything made inside the pass but its first argument? */
static const char *core_refusal(const cvy_plan *p, const pass *s, int core)
{
    const node *n = &p->graph->nodes[core];
    const int x = n->arg[0];

    for (int a = 1; a < n->n_args; a++)
        if (n->arg[a] != CVY_NONE && cvyi_made_inside(p, s, n->arg[a]))
            return "the core reads two values of its pass";
    if (core == s->first) return NULL;
    return cvyi_made_inside(p, s, x) ? NULL : "the core does not read what comes before it";
}

/* Statistics and the norm that they are for, in one pass over slices that stay on chip: why not? */
static const char *resident_refusal(const cvy_plan *p, const pass *s, int core, held_rows *held)
{
    const cuda_state *state = p->state;
    const node *stats = &p->graph->nodes[core], *apply = stats + 1; /* not the pass's last */
    norm_geom e;

    if (cvyi_info(apply)->kind != KIND_APPLY || apply->arg[0] != stats->arg[0] || apply->arg[1] != stats->out)
        return "statistics end their pass, or their norm is next";
    if (stats->n_args > 1 && stats->arg[1] != CVY_NONE) return "statistics of signed values end their pass";
    if (cvyi_needed_after(p, s, stats->out)) return "statistics are needed after the pass";
    for (int a = 2; a < apply->n_args; a++)
        if (apply->arg[a] != CVY_NONE && cvyi_made_inside(p, s, apply->arg[a]))
            return "the norm's affine is made inside the pass";
    cvyi_norm_geom(p->graph, stats, &e);
    if (e.over_outer) return "statistics over all samples end their pass";
    *held = cvyi_held_rows(state->device, e.chan * e.inner);
    return held->fits ? NULL : "a slice does not stay on chip";
}

/* What the epilogue follows, and whether rows stay on chip until then. */
static void find_result(const cvy_plan *p, const pass *s, pattern *out)
{
    const cuda_state *state = p->state;
    const node *n = &p->graph->nodes[out->core];
    const op_kind kind = cvyi_info(n)->kind;

    out->result = out->core;
    if (kind == KIND_SOFTMAX) out->held = cvyi_held_softmax(state->device, p->graph, n);
    if (kind == KIND_SOFTMAX) out->resident = out->held.fits;
    if (kind != KIND_STATS || out->core == s->first + s->count - 1) return;
    out->why = resident_refusal(p, s, out->core, &out->held);
    out->resident = !out->why;
    out->result++;
}

pattern cvyi_cuda_pattern(const cvy_plan *p, const pass *s)
{
    const cvy_graph *g = p->graph;
    const int end = s->first + s->count;
    const node *last = &g->nodes[end - 1];
    pattern out = {.core = CVY_NONE};
    int views = 0;

    for (int i = s->first; i < end; i++) {
        const op_kind kind = cvyi_info(&g->nodes[i])->kind;
        if (s->count > 1 && (kind == KIND_SHAPE || (kind == KIND_NORM && !is_pointwise(g, &g->nodes[i]))))
            out.why = "reshapes and whole norms have a pass of their own";
        if (is_core(kind) && out.core == CVY_NONE) out.core = i;
        views += g->nodes[i].n_args + 1;
    }
    if (views > MAX_VIEWS - 4) out.why = "more tensors than a launch takes";
    if (!out.why && out.core != CVY_NONE) find_result(p, s, &out);
    if (out.why || (s->count == 1 && !is_pointwise(g, last))) return out;
    if (out.core == CVY_NONE) {
        out.why = chain_refusal(p, s, &(chain){s->first, end, cvyi_shape_of(g, last->out), -1, true});
        return out;
    }
    out.fed = out.core > s->first;
    out.why = core_refusal(p, s, out.core);
    const chain before = {s->first, out.core, cvyi_shape_of(g, g->nodes[out.core].arg[0]), -1, false};
    const chain after = {out.result + 1, end, cvyi_shape_of(g, g->nodes[out.result].out), out.result, true};
    if (!out.why) out.why = chain_refusal(p, s, &before);
    if (!out.why) out.why = chain_refusal(p, s, &after);
    return out;
}
