/* simplify.c - the list of rewrites and the loop that applies them; then dead nodes go and the order is restored.
 */
#include <string.h>
#include "simplify.h"
#include "../plan/plan.h"

const rewrite cvyi_rewrites[] = {
    {"split_norm", "taken apart into statistics and an affine", cvyi_split_norm, true},
    {"drop_identity", "does nothing: dropped", cvyi_drop_identity, false},
    {"reduce_one", "over one element: a reshape", cvyi_reduce_one, false},
    {"merge_tanh_hardswish", "behind tanh never clips: t(t+3)/6", cvyi_merge_tanh_hardswish, false},
    {"merge_clamp", "merged with the clamp in front", cvyi_merge_clamp, false},
    {"merge_number", "merged with the number in front", cvyi_merge_number, false},
    {"fold_conv_affine", "per channel: folded into the weights in front", cvyi_fold_conv_affine, false},
    {"fold_norm_affine", "per channel: folded into the norm in front", cvyi_fold_norm_affine, false},
    {"reduce_producer", "of a linear producer: taken of its weights", cvyi_reduce_producer, false},
    {"pool_before_monotone", "moved in front of a monotone operator", cvyi_pool_before_monotone, false},
    {"pool_before_norm", "moved in front of the norm, its sign folded into the convolution", cvyi_pool_before_norm,
     false},
};
const int cvyi_rewrite_count = COUNT_OF(cvyi_rewrites);

/* CVY_SIMPLIFY: "0", or "-name,-name". */
static bool switched_off(const rewrite *r)
{
    const char *list = cvyi_env(ENV_SIMPLIFY);
    const size_t len = strlen(r->name);
    if (!list || r->always) return false;
    if (!strcmp(list, "0")) return true;
    for (const char *at = strchr(list, '-'); at; at = strchr(at + 1, '-'))
        if (!strncmp(at + 1, r->name, len) && (at[1 + len] == ',' || !at[1 + len])) return true;
    return false;
}

/* ---- cleaning ---- */

/* Nodes that outputs depend on, found backwards; `stack` has room for every node. */
static void mark(const cvy_graph *g, bool *alive, int *stack)
{
    int depth = 0;
    for (int i = 0; i < g->n_outputs; i++) {
        const int by = g->values[g->outputs[i]].node;
        if (by >= 0 && !alive[by]) alive[stack[depth++] = by] = true;
    }
    while (depth) {
        const node *n = &g->nodes[stack[--depth]];
        for (int a = 0; a < n->n_args; a++) {
            const int by = n->arg[a] == CVY_NONE ? -1 : g->values[n->arg[a]].node;
            if (by >= 0 && !alive[by]) alive[stack[depth++] = by] = true;
        }
    }
}

/* Nodes that are ready, in their old order, until all alive ones are placed. Values of dead nodes stay behind:
 * nobody makes or reads them. */
static cvy_status sort_nodes(cvy_graph *g, const bool *alive)
{
    node *sorted = cvyi_alloc((size_t)g->n_nodes + 1, sizeof *sorted);
    bool *made = cvyi_alloc((size_t)g->n_values + 1, sizeof *made);
    bool *done = cvyi_alloc((size_t)g->n_nodes + 1, sizeof *done);
    int n = 0;

    if (sorted && made && done) {
        for (int v = 0; v < g->n_values; v++) made[v] = g->values[v].kind != VALUE_NODE;
        for (bool moved = true; moved;) {
            moved = false;
            for (int i = 0; i < g->n_nodes; i++) {
                bool ready = alive[i] && !done[i];
                for (int a = 0; ready && a < g->nodes[i].n_args; a++)
                    ready = g->nodes[i].arg[a] == CVY_NONE || made[g->nodes[i].arg[a]];
                if (!ready) continue;
                sorted[n++] = g->nodes[i];
                made[g->nodes[i].out] = done[i] = moved = true;
            }
        }
        memcpy(g->nodes, sorted, (size_t)n * sizeof *sorted);
        g->n_nodes = n;
        for (int v = 0; v < g->n_values; v++) g->values[v].node = -1;
        for (int i = 0; i < n; i++) g->values[g->nodes[i].out].node = i;
    }
    cvyi_free(sorted);
    cvyi_free(made);
    cvyi_free(done);
    return sorted && made && done ? CVY_OK : CVY_NO_MEMORY;
}

static cvy_status clean(cvy_graph *g)
{
    bool *alive = cvyi_alloc((size_t)g->n_nodes + 1, sizeof *alive);
    int *stack = cvyi_alloc((size_t)g->n_nodes + 1, sizeof *stack);
    cvy_status st = CVY_NO_MEMORY;
    if (alive && stack) {
        mark(g, alive, stack);
        st = sort_nodes(g, alive);
    }
    cvyi_free(stack);
    cvyi_free(alive);
    return st;
}

/* ---- the loop ---- */

static bool apply_one(editor *e, const rewrite *r)
{
    for (int i = 0; i < e->g->n_nodes; i++) {
        const char *op = cvyi_info(&e->g->nodes[i])->name;
        if (!r->apply(e, i)) continue;
        if (e->log) cvyi_text_add(e->log, "rewrite   %s %s (%s)\n", op, r->what, r->name);
        return true;
    }
    return false;
}

cvy_status cvyi_simplify(cvy_graph *g, rewrite_mode mode, text *log)
{
    editor e = {.g = g, .log = log, .mode = mode};
    cvy_status st = CVY_OK;

    TRY(clean(g));
    for (int r = 0; r < cvyi_rewrite_count;) {
        if (switched_off(&cvyi_rewrites[r]) || !apply_one(&e, &cvyi_rewrites[r])) {
            r++;
            continue;
        }
        TRY(e.st);
        TRY(clean(g));
        r = 0; /* what changed may be another rewrite's chance */
    }
fail:
    return st;
}
