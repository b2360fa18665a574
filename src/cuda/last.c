/* last.c - what lies channels last: values between passes that only kernels with code for it touch, and tensors of
 * run() if they happen to. */
#include "choice.h"
#include "cores.h"

/* Such kernels move LAST_CHANNELS channels of a pixel at a time. */
static bool is_image(const cvy_graph *g, int v)
{
    const shape *s = cvyi_shape_of(g, v);
    return s->rank >= 3 && s->rank <= 5 && s->dim[1] && s->dim[1] % LAST_CHANNELS == 0 &&
           cvyi_elements(s) > s->dim[0] * s->dim[1];
}

static bool takes(const cvy_plan *p, const pass *s)
{
    const kernel_row *row = cvyi_cuda_choice(s)->kernel;
    return row->channels_last && row->channels_last(p, cvyi_cuda_choice(s));
}

/* A value that a node of a pass reads from memory (argument a) or stores (-1); CVY_NONE: it does not. */
static int value_in_memory(const cvy_plan *p, const pass *s, const node *n, int a)
{
    const int v = a < 0 ? n->out : n->arg[a];

    if (v == CVY_NONE || (a < 0 ? !cvyi_needed_after(p, s, v) : cvyi_made_inside(p, s, v))) return CVY_NONE;
    return v;
}

/* Weights and statistics are addressed by the kernels themselves, pixels through views. */
static bool has_view(const cuda_choice *c, int number, const node *n, int a)
{
    const op_kind kind = cvyi_info(n)->kind;
    if (a <= 0) return a == 0 || kind != KIND_STATS;
    return number != c->form.core && (kind == KIND_UNARY || kind == KIND_BINARY);
}

/* ---- values between passes ---- */

static void strike_out(const cvy_plan *p, const pass *s, bool *last)
{
    const bool able = takes(p, s);

    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &p->graph->nodes[i];
        for (int a = -1; a < n->n_args; a++) {
            const int v = value_in_memory(p, s, n, a);
            if (v != CVY_NONE && !(able && has_view(cvyi_cuda_choice(s), i, n, a))) last[p->root[v]] = false;
        }
    }
}

static void find_values(const cvy_plan *p, bool *last)
{
    const cvy_graph *g = p->graph;

    for (int v = 0; v < g->n_values; v++)
        last[v] = p->places[v].kind == PLACE_WORKSPACE && !p->prepared[v] && p->root[v] == v && is_image(g, v) &&
                  !cvyi_is_watched(g, v);
    for (int v = 0; v < g->n_values; v++)
        if (p->root[v] != v) last[p->root[v]] = false; /* it has another shape, too */
    for (int i = p->n_prepare; i < p->n_passes; i++) strike_out(p, &p->passes[i], last);
}

/* ---- tensors of run() ---- */

/* The tensor in which a value lies as it is; CVY_NONE: none, or the tensor's shadow may stand for it. */
static int tensor_of(const cvy_plan *p, const cuda_state *state, int v)
{
    const place *at = &p->places[v];
    const int of = at->kind == PLACE_TENSOR ? p->tensor_value[at->at] : CVY_NONE;

    if (of == CVY_NONE || p->prepared[v] || !is_image(p->graph, v)) return CVY_NONE;
    if (!cvyi_same_shape(cvyi_shape_of(p->graph, v), cvyi_shape_of(p->graph, of))) return CVY_NONE;
    return cvyi_is_output(p->graph, of) && state->shadow[at->at] >= 0 ? CVY_NONE : (int)at->at;
}

static cvy_status find_tensors(cvy_plan *p, const cuda_state *state, const pass *s, const int **out)
{
    int *list = NULL, n = 0;

    for (int i = s->first; i < s->first + s->count; i++) {
        const node *at = &p->graph->nodes[i];
        for (int a = -1; a < at->n_args; a++) {
            const int v = value_in_memory(p, s, at, a);
            const int tensor =
                v == CVY_NONE || !has_view(cvyi_cuda_choice(s), i, at, a) ? CVY_NONE : tensor_of(p, state, v);
            if (tensor == CVY_NONE) continue;
            if (!list) list = cvyi_arena_alloc(&p->memory, (size_t)p->n_tensors + 1, sizeof *list);
            if (!list) return CVY_NO_MEMORY;
            for (int k = 0; k <= n; k++) {
                if (k == n) list[n++] = tensor;
                if (list[k] == tensor) break;
            }
        }
    }
    if (list) list[n] = CVY_NONE;
    *out = list;
    return CVY_OK;
}

/* ---- what the others ask ---- */

bool cvyi_takes_last(const cvy_plan *p, const pass *s, int v)
{
    return is_image(p->graph, v) && takes(p, s);
}

cvy_status cvyi_find_last(maker *m)
{
    cvy_plan *p = m->plan;
    cuda_state *state = m->state;
    bool *values = cvyi_arena_alloc(&p->memory, (size_t)p->graph->n_values + 1, sizeof *values);
    const int **tensors = cvyi_arena_alloc(&p->memory, (size_t)p->n_passes + 1, sizeof *tensors);
    cvy_status st = CVY_OK;

    if (!values || !tensors) return CVY_NO_MEMORY;
    find_values(p, values);
    for (int i = p->n_prepare; i < p->n_passes && p->options.strided != CVY_OFF; i++)
        if (takes(p, &p->passes[i])) TRY(find_tensors(p, state, &p->passes[i], &tensors[i]));
    state->values_last = values;
    state->tensors_last = tensors;
fail:
    return st;
}

bool cvyi_lies_last(const maker *m, int v)
{
    const int *list = m->layout == LAYOUT_LAST ? m->state->tensors_last[m->pass_index] : NULL;
    const place *at = &m->plan->places[v];

    if (m->state->values_last[v]) return true;
    if (!list || at->kind != PLACE_TENSOR || !is_image(m->g, v)) return false;
    while (*list != CVY_NONE && *list != at->at) list++;
    return *list != CVY_NONE;
}

void cvyi_last_strides(const shape *s, int64_t out[CVY_MAX_RANK])
{
    int64_t step = s->dim[1];

    for (int d = s->rank - 1; d >= 0; d--) {
        out[d] = d == 1 ? 1 : step;
        if (d != 1) step *= s->dim[d];
    }
}

/* The steps of a pass; once more if it takes tensors of run() channels last. */
cvy_status cvyi_make_both(maker *m, cvy_status (*make)(maker *m, const void *more), const void *more)
{
    const bool twice = !m->prepared && m->state->tensors_last[m->pass_index];
    cvy_status st;

    m->layout = twice ? LAYOUT_PLAIN : LAYOUT_ANY;
    TRY(make(m, more));
    m->layout = LAYOUT_LAST;
    if (twice) TRY(make(m, more));
fail:
    m->layout = LAYOUT_ANY;
    return st;
}
