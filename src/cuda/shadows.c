/* shadows.c - tensors of run() that may be strided or unaligned: which have a shadow, a contiguous copy that a plan
 * uses instead, and which a pass takes channels last or transposed. */
#include "choice.h"
#include "cores.h"

/* ---- tensors of run() that the graph reads or writes in another shape than theirs ---- */

static void mark_reshaped(const cvy_plan *p, bool *wanted)
{
    const cvy_graph *g = p->graph;
    for (int v = 0; v < g->n_values; v++) {
        const place *at = &p->places[v];
        if (at->kind == PLACE_TENSOR &&
            !cvyi_same_shape(cvyi_shape_of(g, v), cvyi_shape_of(g, p->tensor_value[at->at])))
            wanted[at->at] = true;
    }
}

static void mark_tensor(const cvy_plan *p, int v, bool *wanted)
{
    if (v != CVY_NONE && p->places[v].kind == PLACE_TENSOR) wanted[p->places[v].at] = true;
}

/* Does the pass take argument `a` of its node number `k`, a tensor, however that lies? */
static bool any_strides(const pass *s, int k, int a)
{
    const cuda_choice *c = cvyi_cuda_choice(s);
    return c->kernel->any_strides && s->first + k == c->form.core && a >= 0 && c->kernel->any_strides(c, a);
}

/* Images are mostly strided because their channels come last. */
static bool is_image(const shape *s)
{
    const int64_t channels = s->rank > 2 ? s->dim[1] : 0, sample = cvyi_elements(s) / cvyi_max64(s->dim[0], 1);
    return channels >= 8 && sample >= 8 * channels && sample <= INT32_MAX;
}

/* Statistics of channels last are slow where a slice has pixels, not where it is a row of channels. */
static void mark_images(const cvy_plan *p, const pass *s, bool *wanted)
{
    const cvy_graph *g = p->graph;
    const int x = g->nodes[s->first].arg[0], core = cvyi_cuda_choice(s)->form.core;
    norm_geom e;

    cvyi_norm_geom(g, &g->nodes[core], &e);
    if (e.inner > 1 && is_image(cvyi_shape_of(g, x)) && !cvyi_takes_last(p, s, x)) mark_tensor(p, x, wanted);
}

/* Tensor-core passes need whole tensors, contiguous and aligned. */
static void mark_dense(const cvy_plan *p, bool *wanted)
{
    for (int i = p->n_prepare; i < p->n_passes; i++) {
        const pass *s = &p->passes[i];
        const kernel_row *row = cvyi_cuda_choice(s)->kernel;
        int packed[2] = {CVY_NONE, CVY_NONE};
        if (row->images) mark_images(p, s, wanted);
        for (int k = 0; row->dense && k < s->count; k++) {
            const node *n = &p->graph->nodes[s->first + k];
            for (int a = -1; a < n->n_args; a++)
                if (!any_strides(s, k, a)) mark_tensor(p, a < 0 ? n->out : n->arg[a], wanted);
        }
        if (row->packs) row->packs(cvyi_cuda_choice(s), packed);
        for (int k = 0; k < 2; k++) mark_tensor(p, packed[k], wanted);
    }
}

/* ---- tensors that a pass takes in place, channels last or transposed ---- */

/* How many passes and operands need the whole tensor: with another one, a copy is needed anyway. */
static int count_readers(const cvy_plan *p, int64_t tensor)
{
    int readers = 0;

    for (int i = p->n_prepare; i < p->n_passes; i++) {
        const pass *s = &p->passes[i];
        for (int k = 0; cvyi_cuda_choice(s)->kernel->dense && k < s->count; k++) {
            const node *n = &p->graph->nodes[s->first + k];
            for (int a = -1; a < n->n_args; a++) {
                const int v = a < 0 ? n->out : n->arg[a];
                readers += v != CVY_NONE && p->places[v].kind == PLACE_TENSOR && p->places[v].at == tensor;
            }
        }
    }
    return readers;
}

static bool is_alone(const cvy_plan *p, int v)
{
    return v != CVY_NONE && count_readers(p, p->places[v].at) == 1;
}

/* Which passes take tensors in place, and how. */
static cvy_status find_last(cvy_plan *p, cuda_state *state)
{
    for (int i = p->n_prepare; i < p->n_passes; i++) {
        const cuda_choice *c = cvyi_cuda_choice(&p->passes[i]);
        const kernel_row *row = c->kernel;
        tc_last found, *kept;
        int x, y;
        if (!row->lying) continue;
        row->lying(p, c, &x, &y);
        if (!is_alone(p, x)) x = CVY_NONE;
        if (!is_alone(p, y)) y = CVY_NONE;
        if (row->lay_last) {
            if (!row->lay_last(p, c, x, y, &found)) continue;
            state->layouts[i] = kept = cvyi_arena_alloc(&p->memory, 1, sizeof *kept);
            if (!kept) return CVY_NO_MEMORY;
            *kept = found;
        }
        if (x != CVY_NONE) state->last[p->places[x].at] = i;
        if (y != CVY_NONE) state->last[p->places[y].at] = i;
    }
    return CVY_OK;
}

/* A channels-last filter is copied once, until it changes. A contiguous one needs no copy, and the room for the
 * copy of a large matrix is better spent in the memory of a run. */
static bool shadow_stays(const cvy_plan *p, int v)
{
    return p->prepared[v] && cvyi_shape_of(p->graph, v)->rank > 2;
}

static int64_t shadow_memory(maker *m, int v)
{
    const int64_t bytes = cvyi_value_bytes(m->g, v);
    return shadow_stays(m->plan, v) ? cvyi_make_packed_memory(m, v, bytes) : cvyi_make_memory(m, bytes);
}

cvy_status cvyi_make_shadows(maker *m)
{
    cvy_plan *p = m->plan;
    cuda_state *state = m->state;
    const size_t n = (size_t)p->n_tensors + 1, passes = (size_t)p->n_passes + 1;
    int64_t *shadow = cvyi_arena_alloc(&p->memory, n, sizeof *shadow);
    bool *wanted = cvyi_arena_alloc(&p->memory, n, sizeof *wanted);
    cvy_status st = CVY_OK;

    state->shadow = shadow;
    state->last = cvyi_arena_alloc(&p->memory, n, sizeof *state->last);
    state->layouts = cvyi_arena_alloc(&p->memory, passes, sizeof *state->layouts);
    TRY(shadow && wanted && state->last && state->layouts ? CVY_OK : CVY_NO_MEMORY);
    for (int i = 0; i < p->n_tensors; i++) state->last[i] = CVY_NONE;
    if (p->options.strided != CVY_OFF) {
        mark_reshaped(p, wanted);
        mark_dense(p, wanted);
        TRY(find_last(p, state));
    }
    for (int i = 0; i < p->n_tensors; i++) shadow[i] = wanted[i] ? shadow_memory(m, p->tensor_value[i]) : -1;
fail:
    return st;
}

/* Both views are there: of any strides. */
static cvy_status end_turn(maker *m, const space *over, cvy_dtype dtype)
{
    const int64_t side = TURN_SIDE, pixels = over->extent[2] * over->extent[3] * over->extent[4] * over->extent[5];

    m->sized = true;
    cvyi_make_define_extents(m, 'X', over);
    if (dtype != CVY_FLOAT32) cvyi_make_define_text(m, "-DELEMENT=unsigned short");
    m->step.extent = over->extent[0];
    cvyi_core_grid(m, over->extent[0] * cvyi_ceil_div(over->extent[1], side) * cvyi_ceil_div(pixels, side), 1, 1,
                   BLOCK_THREADS);
    return cvyi_make_end(m, "");
}

cvy_status cvyi_copy_shadows(maker *m, bool outputs)
{
    const cvy_plan *p = m->plan;
    cvy_status st = CVY_OK;

    m->choice = NULL;
    m->pass = NULL;
    for (int i = 0; i < p->n_tensors; i++) {
        const int v = p->tensor_value[i];
        const space over = cvyi_space_plain(cvyi_shape_of(m->g, v));
        const bool image = is_image(&over.logical);
        if (m->state->shadow[i] < 0 || cvyi_is_output(m->g, v) != outputs) continue;
        m->prepared = shadow_stays(p, v);
        cvyi_make_start(m, image ? "turn.cu" : "pointwise.cu");
        m->step.only_strided = i;
        m->pre.over = m->post.over = over;
        m->views[cvyi_make_view(m, v, &over)].kind = outputs ? VIEW_TENSOR : VIEW_SHADOW;
        if (image) {
            m->views[cvyi_make_view(m, v, &over)].kind = outputs ? VIEW_SHADOW : VIEW_TENSOR;
            TRY(end_turn(m, &over, m->g->values[v].dtype));
            continue;
        }
        m->pre.statement_of[v] = NO_STATEMENT;
        cvyi_make_operand(m, &m->pre, v);
        m->views[1].kind = outputs ? VIEW_SHADOW : VIEW_TENSOR;
        m->post.statement_of[v] = EMIT_ARGUMENT;
        cvyi_make_store(m, &m->post, v);
        TRY(cvyi_core_end_pointwise(m, &over, &over, "shadow"));
    }
fail:
    m->prepared = false;
    return st;
}
