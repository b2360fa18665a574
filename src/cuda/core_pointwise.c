/* core_pointwise.c - passes without a core: pointwise operators, reshapes that are copies, norms that are taken
 * whole. */
#include "choice.h"
#include "cores.h"

/* A thread has two accesses of 16 bytes under way. */
cvy_status cvyi_core_end_pointwise(maker *m, const space *in, const space *out, const char *variant)
{
    const int64_t total = cvyi_elements(&in->logical);
    const int each = 2 * cvyi_make_widest(m);

    m->many = cvyi_make_widest(m);
    if (m->sized) {
        cvyi_make_sizes_view(m, in);
        cvyi_make_sizes_view(m, out);
        cvyi_make_define(m, "SIZED", 1);
    } else {
        cvyi_make_define_extents(m, 'X', in);
        cvyi_make_define_extents(m, 'Y', out);
    }
    cvyi_make_define(m, "EACH", each);
    if (m->many != ACCESS_FLOATS) cvyi_make_define(m, "NEIGHBOURS", m->many);
    m->step.extent = in->extent[0];
    cvyi_core_grid(m, cvyi_ceil_div(total, BLOCK_THREADS * each), 1, 1, BLOCK_THREADS);
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
    m->post.statement_of[head->arg[0]] = EMIT_ARGUMENT;
    TRY(cvyi_make_chain(m, &m->post, first, end, true));
    TRY(cvyi_core_end_pointwise(m, &over, &over, m->pass->count == 1 ? cvyi_info(last)->name : "chain"));
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
    m->post.statement_of[n->out] = EMIT_ARGUMENT;
    cvyi_make_store(m, &m->post, n->out);
    return cvyi_core_end_pointwise(m, &in, &out, "copy");
}

/* A norm that no rewrite split: statistics into memory of our own, then the affine. */
static cvy_status make_norm_whole(maker *m)
{
    const int index = m->pass->first;
    const node *n = &m->g->nodes[index];
    const space over = cvyi_space_plain(cvyi_shape_of(m->g, n->out));
    emit_statement l = {.kind = EMIT_APPLY, .op = n->op, .note = cvyi_info(n)->name};
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
    m->post.statement_of[n->out] = cvyi_make_statement(m, &m->post, &l);
    cvyi_make_store(m, &m->post, n->out);
    TRY(cvyi_core_end_pointwise(m, &over, &over, cvyi_info(n)->name));
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
    c->stats = cvyi_stats_choice(&e);
    return NULL;
}

const kernel_row cvyi_kernel_pointwise = {
    .name = "pointwise", .refuse = refuse_pointwise, .tune = cvyi_core_tune, .make = make_pointwise};
const kernel_row cvyi_kernel_copy = {
    .name = "copy", .refuse = refuse_copy, .tune = cvyi_core_tune, .make = make_copy};
const kernel_row cvyi_kernel_norm_whole = {
    .name = "norm_whole", .refuse = refuse_norm_whole, .tune = cvyi_core_tune, .make = make_norm_whole};
