/* lower.c - from passes to steps: the kernel that was chosen for a pass makes them (choice.h); pointwise passes
 * and reshapes are here. */
#include "choice.h"
#include "cores.h"

enum { POINTWISE_THREADS = 256, STEPS_PER_NODE = 6 };

/* Accesses are of 16 bytes: eight elements where some have two bytes. A thread has two of them under way. */
static cvy_status end_pointwise(maker *m, const space *in, const space *out, const char *variant)
{
    const int64_t total = cvyi_elements(&in->logical);
    int each;

    m->many = 4;
    for (int i = 0; i < m->step.n_views; i++)
        if (m->seen[i].dtype != CVY_FLOAT32) m->many = 8;
    each = 2 * m->many;
    if (m->sized) {
        cvyi_make_sizes_view(m, in);
        cvyi_make_sizes_view(m, out);
        cvyi_make_define(m, "SIZED", 1);
    } else {
        cvyi_make_define_extents(m, 'X', in);
        cvyi_make_define_extents(m, 'Y', out);
    }
    cvyi_make_define(m, "EACH", each);
    if (m->many != 4) cvyi_make_define(m, "NEIGHBOURS", m->many);
    m->step.extent = in->extent[0];
    cvyi_core_grid(m, cvyi_ceil_div(total, POINTWISE_THREADS * each), 1, 1, POINTWISE_THREADS);
    return cvyi_make_end(m, variant);
}

/* What is prepared runs once, and a network has it in as many sizes as it has layers: one code for all of them.
 * Where a slice of statistics lies is written into the text. */
static bool takes_sizes(const maker *m)
{
    const node *n = &m->g->nodes[m->pass->first];
    return m->prepared && cvyi_info(n)->kind != KIND_APPLY;
}

/* All of the chain is the epilogue; the kernel's own part is to read the first operand. */
static cvy_status make_pointwise(maker *m)
{
    const int first = m->pass->first, end = first + m->pass->count;
    const node *head = &m->g->nodes[first], *last = &m->g->nodes[end - 1];
    const space over = cvyi_space_plain(cvyi_shape_of(m->g, last->out));
    cvy_status st;

    cvyi_make_start(m, "pointwise.cu");
    m->sized = takes_sizes(m);
    m->pre.over = m->post.over = over;
    cvyi_make_view(m, last->out, &over);
    cvyi_make_operand(m, &m->pre, head->arg[0]);
    m->post.line_of[head->arg[0]] = EMIT_ARGUMENT;
    TRY(cvyi_make_chain(m, &m->post, first, end, true));
    TRY(end_pointwise(m, &over, &over, m->pass->count == 1 ? cvyi_info(last)->name : "chain"));
fail:
    return st;
}

/* A reshape that shares no memory with what it reads is a copy. */
static cvy_status make_copy(maker *m)
{
    const node *n = &m->g->nodes[m->pass->first];
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, n->arg[0]));
    const space out = cvyi_space_plain(cvyi_shape_of(m->g, n->out));

    if (m->plan->root[n->out] != n->out) return CVY_OK;
    cvyi_make_start(m, "pointwise.cu");
    m->sized = takes_sizes(m);
    m->pre.over = in;
    m->post.over = out;
    cvyi_make_view(m, n->out, &out);
    cvyi_make_operand(m, &m->pre, n->arg[0]);
    m->post.line_of[n->out] = EMIT_ARGUMENT;
    cvyi_make_store(m, &m->post, n->out);
    return end_pointwise(m, &in, &out, "copy");
}

/* A norm that no rewrite split: statistics into memory of our own, then the affine. */
static cvy_status make_norm_whole(maker *m)
{
    const int index = m->pass->first;
    const node *n = &m->g->nodes[index];
    const space over = cvyi_space_plain(cvyi_shape_of(m->g, n->out));
    emit_line l = {.kind = EMIT_APPLY, .op = n->op, .note = cvyi_info(n)->name};
    norm_args args;
    int64_t at;
    cvy_status st;

    if (!cvyi_elements(&over.logical)) return CVY_OK;
    cvyi_norm_geom(m->g, n, &l.norm);
    cvyi_norm_args(n, &args);
    at = cvyi_make_memory(m, cvyi_floats(STATS_FIELDS * l.norm.groups * (l.norm.over_outer ? 1 : l.norm.outer)));
    TRY(cvyi_make_stats(m, index, &l.norm, CVY_NONE, CVY_NONE, at));
    cvyi_make_start(m, "pointwise.cu");
    m->pre.over = m->post.over = over;
    cvyi_make_view(m, n->out, &over);
    cvyi_make_operand(m, &m->pre, n->arg[0]);
    l.a = EMIT_ARGUMENT;
    l.view = cvyi_make_own_view(m, at, "statistics");
    l.weight = cvyi_make_affine_view(m, &m->post, &l.norm, args.weight);
    l.bias = cvyi_make_affine_view(m, &m->post, &l.norm, args.bias);
    m->post.line_of[n->out] = cvyi_make_line(m, &m->post, &l);
    cvyi_make_store(m, &m->post, n->out);
    TRY(end_pointwise(m, &over, &over, cvyi_info(n)->name));
fail:
    return st;
}

/* ---- their rows ---- */

/* What has no core: a norm that is taken whole, a reshape, else pointwise operators. */
typedef enum coreless { POINTWISE, RESHAPE, WHOLE_NORM } coreless;

static const char *coreless_refusal(const cvy_plan *p, const pass *s, const cuda_choice *c, coreless wanted)
{
    static const char *const otherwise[] = {"more than pointwise operators", "not a reshape", "not a whole norm"};
    const node *n = &p->graph->nodes[s->first];
    const op_kind kind = cvyi_info(n)->kind;
    norm_geom e = {.running = false};
    coreless is;

    if (c->form.why) return c->form.why;
    if (kind == KIND_NORM) cvyi_norm_geom(p->graph, n, &e);
    is = kind == KIND_SHAPE ? RESHAPE : kind == KIND_NORM && !e.running ? WHOLE_NORM : POINTWISE;
    return c->form.core == CVY_NONE && is == wanted ? NULL : otherwise[wanted];
}

static const char *refuse_pointwise(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    return coreless_refusal(p, s, c, POINTWISE);
}

static const char *refuse_copy(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    return coreless_refusal(p, s, c, RESHAPE);
}

static const char *refuse_norm_whole(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = coreless_refusal(p, s, c, WHOLE_NORM);
    norm_geom e;

    if (why) return why;
    cvyi_norm_geom(p->graph, &p->graph->nodes[s->first], &e);
    c->parts = cvyi_stats_parts(&e);
    return NULL;
}

const kernel_row cvyi_kernel_pointwise = {
    .name = "pointwise", .refuse = refuse_pointwise, .tune = cvyi_core_tune, .make = make_pointwise};
const kernel_row cvyi_kernel_copy = {
    .name = "copy", .refuse = refuse_copy, .tune = cvyi_core_tune, .make = make_copy};
const kernel_row cvyi_kernel_norm_whole = {
    .name = "norm_whole", .refuse = refuse_norm_whole, .tune = cvyi_core_tune, .make = make_norm_whole};

/* ---- passes ---- */

static cvy_status make_pass(maker *m, const pass *s)
{
    m->pass = s;
    m->choice = cvyi_cuda_choice(s);
    return m->choice->kernel->make(m);
}

/* What depends only on parameters comes first, node by node: it is small, and does not count in the time of a run.
 */
static cvy_status make_prepared(maker *m)
{
    const pass *all = &m->plan->passes[0];
    cvy_status st = CVY_OK;

    m->prepared = true;
    for (int i = 0; i < all->count; i++) {
        cuda_choice choice;
        pass one = {.first = all->first + i, .count = 1, .choice = &choice};
        const char *why = cvyi_cuda_judge_prepared(m->plan, &one);
        if (why) return cvyi_fail(CVY_FAILED, "cuda: a pass that is not legal: %s", why);
        TRY(make_pass(m, &one));
    }
    m->prepared = false;
fail:
    return st;
}

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
    if (e.inner > 1 && is_image(cvyi_shape_of(g, x))) mark_tensor(p, x, wanted);
}

/* Tensor-core passes want whole tensors, contiguous and aligned. */
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

/* ---- tensors that a pass takes channels last, or transposed, as they lie ---- */

/* How many passes and operands want the tensor whole: another one wants its copy in any case. */
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

/* Which passes take tensors as they lie, and how. */
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

/* A filter that lies channels last is copied once for as long as it stays. What lies contiguous wants no copy, and
 * the room for one of a large matrix is better spent in every run's memory. */
static bool shadow_stays(const cvy_plan *p, int v)
{
    return p->prepared[v] && cvyi_shape_of(p->graph, v)->rank > 2;
}

static int64_t shadow_memory(maker *m, int v)
{
    const int64_t bytes = cvyi_value_bytes(m->g, v);
    return shadow_stays(m->plan, v) ? cvyi_make_packed_memory(m, v, bytes) : cvyi_make_memory(m, bytes);
}

static cvy_status make_shadows(maker *m)
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
    const int64_t side = 64, pixels = over->extent[2] * over->extent[3] * over->extent[4] * over->extent[5];

    m->sized = true;
    cvyi_make_define_extents(m, 'X', over);
    if (dtype != CVY_FLOAT32) cvyi_make_define_text(m, "-DELEMENT=unsigned short");
    m->step.extent = over->extent[0];
    cvyi_core_grid(m, over->extent[0] * cvyi_ceil_div(over->extent[1], side) * cvyi_ceil_div(pixels, side), 1, 1,
                   256);
    return cvyi_make_end(m, "");
}

/* Copies between strided tensors and their shadows: inputs and parameters before everything, outputs after it. */
static cvy_status copy_shadows(maker *m, bool outputs)
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
        m->pre.line_of[v] = LINE_NONE;
        cvyi_make_operand(m, &m->pre, v);
        m->views[1].kind = outputs ? VIEW_SHADOW : VIEW_TENSOR;
        m->post.line_of[v] = EMIT_ARGUMENT;
        cvyi_make_store(m, &m->post, v);
        TRY(end_pointwise(m, &over, &over, "shadow"));
    }
fail:
    m->prepared = false;
    return st;
}

/* Steps run in order, so passes may use the same scratch. */
static void take_scratch(maker *m)
{
    const cvy_plan *p = m->plan;
    int64_t most = 0;

    for (int i = p->n_prepare; i < p->n_passes; i++) {
        const cuda_choice *c = cvyi_cuda_choice(&p->passes[i]);
        if (c->kernel->scratch) most = cvyi_max64(most, c->kernel->scratch(c));
    }
    m->state->scratch = cvyi_make_memory(m, most);
}

static int *new_lines(cvy_plan *p)
{
    return cvyi_arena_alloc(&p->memory, (size_t)p->graph->n_values + 1, sizeof(int));
}

cvy_status cvyi_cuda_lower(cvy_plan *p)
{
    cuda_state *state = p->state;
    maker *m = cvyi_arena_alloc(&p->memory, 1, sizeof *m);
    cvy_status st = CVY_OK;

    state->cap_steps = STEPS_PER_NODE * p->graph->n_nodes + p->n_tensors;
    state->steps = cvyi_arena_alloc(&p->memory, (size_t)state->cap_steps + 1, sizeof *state->steps);
    if (!m || !state->steps) return CVY_NO_MEMORY;
    m->plan = p;
    m->state = state;
    m->g = p->graph;
    m->pre.line_of = new_lines(p);
    m->post.line_of = new_lines(p);
    if (!m->pre.line_of || !m->post.line_of) return CVY_NO_MEMORY;
    state->kept_end = WORKSPACE_BASE + cvyi_round_up(p->value_bytes, CVY_ALIGN);
    take_scratch(m);
    TRY(make_shadows(m));
    TRY(copy_shadows(m, false));
    if (p->n_prepare) TRY(make_prepared(m));
    for (int i = p->n_prepare; i < p->n_passes; i++) {
        m->pass_index = i;
        TRY(make_pass(m, &p->passes[i]));
    }
    TRY(copy_shadows(m, true));
    p->workspace = (size_t)(state->kept_end - WORKSPACE_BASE);
fail:
    return st;
}
