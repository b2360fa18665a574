/* simplify.c - the list of rewrites and the loop that applies them; removal of dead nodes; the order of the rest.
 */
#include <string.h>
#include "simplify.h"

const rewrite cvyi_rewrites[] = {
    {"split_norm", "split into statistics and scale/shift", cvyi_split_norm, true},
    {"merge_cast", "of a cast: the last one counts", cvyi_merge_cast, false},
    {"cast_result", "done by the operator before it, when it stores its result", cvyi_cast_result, false},
    {"cast_operand", "rounds its own operand", cvyi_cast_operand, false},
    {"drop_identity", "does nothing: dropped", cvyi_drop_identity, false},
    {"reduce_one", "over one element: a reshape", cvyi_reduce_one, false},
    {"merge_tanh_hardswish", "after tanh never clips: t(t+3)/6", cvyi_merge_tanh_hardswish, false},
    {"merge_clamp", "merged with the clamp before it", cvyi_merge_clamp, false},
    {"merge_number", "merged with the number before it", cvyi_merge_number, false},
    {"fold_conv_affine", "per channel: folded into the weights before it", cvyi_fold_conv_affine, false},
    {"fold_norm_affine", "per channel: folded into the norm before it", cvyi_fold_norm_affine, false},
    {"reduce_producer", "of a linear producer: taken of its weights", cvyi_reduce_producer, false},
    {"pool_before_monotone", "moved before a monotone operator", cvyi_pool_before_monotone, false},
    {"pool_before_norm", "moved before the norm, its sign folded into the convolution", cvyi_pool_before_norm,
     false},
    {"transposed_pixel", "of one pixel: a matrix product", cvyi_transposed_pixel, false},
    {"flip_transposed", "of stride 1: a convolution with flipped weights", cvyi_flip_transposed, false},
    {"upsample_conv", "after an upsampling by 2: a transposed convolution of the small image", cvyi_upsample_conv,
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

/* Is every name in CVY_SIMPLIFY that of a rewrite? */
static cvy_status check_names(void)
{
    const char *list = cvyi_env(ENV_SIMPLIFY), *at = list;
    while (at && strcmp(list, "0") != 0) {
        nearest near = {.word = at + 1, .length = strcspn(at, ",") - (*at == '-')};
        for (int r = 0; r < cvyi_rewrite_count; r++) cvyi_near_try(&near, cvyi_rewrites[r].name);
        if (*at != '-' || !near.best || near.distance) {
            cvyi_fail(CVY_INVALID, "CVY_SIMPLIFY is '%.200s', expected 0, or -name,-name of rewrites", list);
            return near.best ? cvyi_fail_more(CVY_INVALID, "; did you mean '-%s'?", near.best) : CVY_INVALID;
        }
        at = strchr(at, ',');
        if (at) at++;
    }
    return CVY_OK;
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

/* The round in which a node is placed, of rounds through the nodes in their old order that each place what is
 * ready: a node waits for the next round for an argument that comes after it. */
static int round_of(const cvy_graph *g, const int *round, int index)
{
    const node *n = &g->nodes[index];
    int most = 0;
    for (int a = 0; a < n->n_args; a++) {
        const int by = n->arg[a] == CVY_NONE ? -1 : g->values[n->arg[a]].node;
        if (by >= 0 && round[by] + (by > index) > most) most = round[by] + (by > index);
    }
    return most;
}

/* The first argument of a node whose own round is not known yet, as a node; -1: none. */
static int waits_for(const cvy_graph *g, const int *round, int index)
{
    const node *n = &g->nodes[index];
    for (int a = 0; a < n->n_args; a++) {
        const int by = n->arg[a] == CVY_NONE ? -1 : g->values[n->arg[a]].node;
        if (by >= 0 && round[by] < 0) return by;
    }
    return -1;
}

/* Fills round[] of living nodes, arguments first; returns how many rounds there are. */
static int find_rounds(const cvy_graph *g, const bool *alive, int *round, int *stack)
{
    int rounds = 0;
    for (int i = 0; i < g->n_nodes; i++) round[i] = -1;
    for (int i = 0; i < g->n_nodes; i++) {
        int depth = 0;
        if (!alive[i] || round[i] >= 0) continue;
        stack[depth++] = i;
        while (depth) {
            const int top = stack[depth - 1], by = waits_for(g, round, top);
            if (by >= 0) {
                stack[depth++] = by;
                continue;
            }
            round[top] = round_of(g, round, top);
            if (round[top] >= rounds) rounds = round[top] + 1;
            depth--;
        }
    }
    return rounds;
}

/* Sorts living nodes by rounds, otherwise in their old order, so they can run. Values of dead nodes stay
 * in the list; nothing computes or reads them. `round`, `stack`: room for every node. */
static cvy_status sort_nodes(cvy_graph *g, const bool *alive, int *round, int *stack)
{
    const int rounds = find_rounds(g, alive, round, stack);
    int *start = cvyi_alloc((size_t)rounds + 2, sizeof *start); /* where the nodes of a round begin */
    int *order = stack;                                         /* no longer needed */

    if (!start) return CVY_NO_MEMORY;
    for (int i = 0; i < g->n_nodes; i++) {
        if (!alive[i]) round[i] = rounds; /* after all others */
        start[round[i] + 1]++;
    }
    for (int r = 0; r < rounds; r++) start[r + 1] += start[r];
    for (int i = 0; i < g->n_nodes; i++) order[start[round[i]]++] = i;
    cvyi_graph_reorder(g, order, rounds ? start[rounds - 1] : 0);
    cvyi_free(start);
    return CVY_OK;
}

/* Removes dead nodes, sorts the others, and finds the readers of every value again. */
static cvy_status clean(editor *e)
{
    const size_t n = (size_t)e->g->n_nodes + 1;
    bool *alive = cvyi_alloc(n, sizeof *alive);
    int *stack = cvyi_alloc(n, sizeof *stack), *round = cvyi_alloc(n, sizeof *round);
    cvy_status st = CVY_OK;

    TRY(alive && stack && round ? CVY_OK : CVY_NO_MEMORY);
    mark(e->g, alive, stack);
    TRY(sort_nodes(e->g, alive, round, stack));
    TRY(cvyi_editor_open(e));
fail:
    cvyi_free(round);
    cvyi_free(stack);
    cvyi_free(alive);
    return st;
}

/* ---- the loop ---- */

/* Tries a rewrite on every node, including those that it adds; returns how often it applied. */
static int sweep(editor *e, const rewrite *r)
{
    int done = 0;
    for (int i = 0; i < e->g->n_nodes && !e->st; i++) {
        const char *op = cvyi_info(&e->g->nodes[i])->name;
        if (e->dead[i] || !r->apply(e, i)) continue;
        if (e->log) cvyi_text_add(e->log, "rewrite   %s %s (%s)\n", op, r->what, r->name);
        done++;
    }
    return done;
}

cvy_status cvyi_simplify(cvy_graph *g, rewrite_mode mode, text *log)
{
    editor e = {.g = g, .log = log, .mode = mode, .n_given = g->n_values};
    cvy_status st = CVY_OK;

    TRY(check_names());
    TRY(clean(&e));
    for (int r = 0; r < cvyi_rewrite_count;) {
        const bool changed = !switched_off(&cvyi_rewrites[r]) && sweep(&e, &cvyi_rewrites[r]);
        TRY(e.st);
        if (changed) TRY(clean(&e));
        r = changed ? 0 : r + 1; /* what changed may be another rewrite's chance */
    }
fail:
    cvyi_editor_close(&e);
    return st;
}
