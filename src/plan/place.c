/* place.c - which values share memory, which depend only on parameters, and where each is stored.
 *
 * Prepared:   [ prepared values | the engine's own: packed weights | a mark (watch.c) ]
 * Workspace:  [ values that cross passes | the engine's own ]
 * The first is kept by CVY_KEEP_PREPARED. Values that cross passes share memory if their lifetimes do not overlap.
 */
#include <string.h>
#include "plan.h"

/* Sorts prepared nodes to the front; stable, so the order stays one in which nodes can run. */
static cvy_status sort_prepared(cvy_plan *p)
{
    cvy_graph *g = p->graph;
    int *order = cvyi_alloc((size_t)g->n_nodes + 1, sizeof *order), n = 0;

    if (!order) return CVY_NO_MEMORY;
    for (int wanted = 1; wanted >= 0; wanted--)
        for (int i = 0; i < g->n_nodes; i++)
            if (p->prepared[g->nodes[i].out] == wanted) order[n++] = i;
    cvyi_graph_reorder(g, order, n);
    cvyi_free(order);
    return CVY_OK;
}

/* Producers are not: their packed weights are made after all prepared values. */
static bool node_prepared(const cvy_plan *p, const node *n)
{
    if (cvyi_is_producer(cvyi_info(n)->kind)) return false;
    for (int a = 0; a < n->n_args; a++)
        if (n->arg[a] != CVY_NONE && !p->prepared[n->arg[a]]) return false;
    return true;
}

/* A reshape shares the memory of what it reads, unless it is an output and that memory is not free to be one:
 * a tensor of run() other than itself, or another output's. */
static int root_of_reshape(const cvy_plan *p, const node *n, const bool *claimed)
{
    const int from = p->root[n->arg[0]];
    const value *v = &p->graph->values[from];
    if (!cvyi_is_output(p->graph, n->out)) return from;
    if (v->kind != VALUE_NODE || cvyi_is_output(p->graph, from) || claimed[from] || p->prepared[from])
        return n->out;
    return from;
}

static void find_last_readers(cvy_plan *p)
{
    const cvy_graph *g = p->graph;
    for (int v = 0; v < g->n_values; v++) p->last_reader[v] = -1;
    for (int i = 0; i < g->n_nodes; i++)
        for (int a = 0; a < g->nodes[i].n_args; a++)
            if (g->nodes[i].arg[a] != CVY_NONE) p->last_reader[g->nodes[i].arg[a]] = i;
    for (int i = 0; i < g->n_outputs; i++) p->last_reader[g->outputs[i]] = g->n_nodes;
    for (int v = 0; v < g->n_values; v++)
        if (cvyi_is_watched(g, v)) p->last_reader[v] = g->n_nodes; /* looked at after the last pass */
    for (int v = 0; v < g->n_values; v++) p->last_sharer[v] = -1;
    for (int v = 0; v < g->n_values; v++)
        if (p->last_reader[v] > p->last_sharer[p->root[v]]) p->last_sharer[p->root[v]] = p->last_reader[v];
}

cvy_status cvyi_find_roots(cvy_plan *p)
{
    cvy_graph *g = p->graph;
    const size_t n = (size_t)g->n_values + 1;
    bool *claimed = cvyi_arena_alloc(&p->memory, n, sizeof *claimed);

    p->root = cvyi_arena_alloc(&p->memory, n, sizeof *p->root);
    p->prepared = cvyi_arena_alloc(&p->memory, n, sizeof *p->prepared);
    p->last_reader = cvyi_arena_alloc(&p->memory, n, sizeof *p->last_reader);
    p->last_sharer = cvyi_arena_alloc(&p->memory, n, sizeof *p->last_sharer);
    if (!claimed || !p->root || !p->prepared || !p->last_reader || !p->last_sharer) return CVY_NO_MEMORY;
    for (int v = 0; v < g->n_values; v++) {
        p->root[v] = v;
        p->prepared[v] = g->values[v].kind == VALUE_PARAM;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const node *at = &g->nodes[i];
        p->prepared[at->out] = node_prepared(p, at) && !cvyi_is_output(g, at->out);
        if (cvyi_info(at)->kind != KIND_SHAPE) continue;
        p->root[at->out] = root_of_reshape(p, at, claimed);
        if (!cvyi_is_output(g, at->out)) continue;
        claimed[p->root[at->out]] = true;
        g->values[p->root[at->out]].dtype = g->values[at->out].dtype;
    }
    if (sort_prepared(p)) return CVY_NO_MEMORY;
    find_last_readers(p);
    return CVY_OK;
}

static void find_last_uses(cvy_plan *p)
{
    const cvy_graph *g = p->graph;
    for (int v = 0; v < g->n_values; v++) p->last_use[v] = -1;
    for (int i = 0; i < p->n_passes; i++)
        for (int k = p->passes[i].first; k < p->passes[i].first + p->passes[i].count; k++)
            for (int a = 0; a < g->nodes[k].n_args; a++)
                if (g->nodes[k].arg[a] != CVY_NONE) p->last_use[p->root[g->nodes[k].arg[a]]] = i;
    for (int v = 0; v < g->n_values; v++)
        if (cvyi_is_output(g, v) || cvyi_is_watched(g, v)) p->last_use[p->root[v]] = p->n_passes;
}

/* A value that lives in the workspace up to pass `to`. */
typedef struct lodger {
    int to;
    int64_t at, bytes;
} lodger;

/* Removes values that are not read from pass `now` on; returns how many are left. */
static int move_out(lodger *all, int n, int now)
{
    int stay = 0;
    for (int i = 0; i < n; i++)
        if (all[i].to >= now) all[stay++] = all[i];
    return stay;
}

/* The lowest offset that no value alive at the same time uses. Quadratic in the few values that are. */
static int64_t first_fit(const lodger *all, int n, int64_t start, const lodger *who)
{
    int64_t at = start;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < n; i++) {
            const lodger *o = &all[i];
            if (at + who->bytes <= o->at || o->at + o->bytes <= at) continue;
            at = o->at + o->bytes;
            moved = true;
        }
    }
    return at;
}

static int64_t room_of(const cvy_graph *g, int v)
{
    return cvyi_round_up(cvyi_value_bytes(g, v) + 1, CVY_ALIGN);
}

static void place_tensors(cvy_plan *p)
{
    for (int i = 0; i < p->n_tensors; i++) {
        const int v = p->tensor_value[i];
        p->places[p->root[v]] = p->places[v] = (place){PLACE_TENSOR, i};
    }
}

static cvy_status place_values(cvy_plan *p)
{
    const cvy_graph *g = p->graph;
    lodger *lodgers = cvyi_arena_alloc(&p->memory, (size_t)g->n_nodes + 1, sizeof *lodgers);
    int n = 0, by = 0;

    if (!lodgers) return CVY_NO_MEMORY;
    for (int i = 0; i < g->n_nodes; i++) { /* prepared nodes come first */
        const int v = g->nodes[i].out;
        lodger who = {.to = p->last_use[v], .bytes = room_of(g, v)};
        if (i == p->passes[by].first + p->passes[by].count) n = move_out(lodgers, n, ++by);
        if (p->root[v] != v || p->places[v].kind != PLACE_NONE || (!p->prepared[v] && who.to <= by)) continue;
        if (p->prepared[v]) {
            who.at = p->prepared_bytes;
            p->prepared_bytes += who.bytes;
        } else {
            who.at = first_fit(lodgers, n, WORKSPACE_BASE, &who);
            lodgers[n++] = who;
            p->value_bytes = cvyi_max64(p->value_bytes, who.at + who.bytes - WORKSPACE_BASE);
        }
        p->places[v] = (place){PLACE_WORKSPACE, who.at};
    }
    return CVY_OK;
}

cvy_status cvyi_place(cvy_plan *p)
{
    const cvy_graph *g = p->graph;
    cvy_status st = CVY_OK;

    p->places = cvyi_arena_alloc(&p->memory, (size_t)g->n_values + 1, sizeof *p->places);
    p->last_use = cvyi_arena_alloc(&p->memory, (size_t)g->n_values + 1, sizeof *p->last_use);
    if (!p->places || !p->last_use) return CVY_NO_MEMORY;
    find_last_uses(p);
    place_tensors(p);
    TRY(place_values(p));
    for (int v = 0; v < g->n_values; v++)
        if (p->root[v] != v && p->places[v].kind == PLACE_NONE) p->places[v] = p->places[p->root[v]];
fail:
    return st;
}
