/* tc_emit.c - epilogue.cuh of the tensor-core convolution: cvy_pre, cvy_post and cvy_last from pointwise nodes.
 *
 * emit.c writes the statements; coordinates in the tensors are computed from the kernel's own if a function reads
 * any. struct epi is the list of views, as in other kernels. Before a logsumexp in powers of two, log2(e) is
 * multiplied in where it costs nothing: in constants, and in values that the kernel passes. */
#include <string.h>
#include "tc.h"

typedef struct function {
    const char *head;
    const char *at;     /* the place, from the head's arguments */
    int argument, more; /* values that t0 and y are; CVY_NONE */
    int *exponent;      /* TC_EXPONENT; NULL: results as they are */
    bool halved;        /* tanh in sigmoid's place */
} function;

static const double LOG2E = 1.4426950408889634;

static void open_program(maker *m, const space *over)
{
    cvyi_make_forget(m, &m->post);
    m->post.over = *over;
}

/* How often a statement (or an argument) is read, as an operand or as the result. Of the first statement it may be
 * more than that: statements without operands have zeros in their place. */
static int uses_of(const emit_program *p, int statement)
{
    int n = p->result == statement;

    for (int i = 0; i < p->n_statements; i++)
        n += (p->statements[i].a == statement) + (p->statements[i].b == statement);
    return n;
}

/* Multiplies a value by log2(e) for nothing; false: it cannot be. Counts how often y and t0 were reached. */
static bool multiply_in(const emit_program *p, int of, int *reached_y, int *reached_z)
{
    emit_statement *l = of >= 0 ? &p->statements[of] : NULL;
    const op_id op = l && l->kind == EMIT_OP && uses_of(p, of) == 1 ? l->op : OP_COUNT;
    const bool sum = op == OP_add || op == OP_sub, carries = op == OP_sigmoid || op == OP_tanh_hardswish;
    bool done = of == EMIT_BEFORE || of == EMIT_ARGUMENT || carries;

    if (of == EMIT_BEFORE) ++*reached_y;
    if (of == EMIT_ARGUMENT) ++*reached_z;
    if (carries) l->gain = LOG2E;
    if (sum || op == OP_relu || op == OP_neg) done = multiply_in(p, l->a, reached_y, reached_z);
    if (sum && l->b == CVY_NONE) l->p[0] *= LOG2E;
    if (sum && l->b != CVY_NONE) done = multiply_in(p, l->b, reached_y, reached_z) && done;
    return done;
}

/* The program's result times log2(e), if it can be for nothing. Returns TC_EXPONENT (conv_tc.cuh). */
static int make_exponent(emit_program *p)
{
    emit_statement before[MAX_STATEMENTS];
    int y = 0, z = 0;
    bool done;

    memcpy(before, p->statements, p->n_statements * sizeof *before);
    done = multiply_in(p, p->result, &y, &z) && (y == 0 || y == uses_of(p, EMIT_BEFORE)) &&
           (z == 0 || z == uses_of(p, EMIT_ARGUMENT));
    if (!done) memcpy(p->statements, before, p->n_statements * sizeof *before);
    return done ? 1 + 2 * (y > 0) + 4 * (z > 0) : 0;
}

static cvy_status add_function(maker *m, const tc_range *r, const space *over, const function *f, text *out)
{
    const int views = m->step.n_views;
    program *p = &m->post;
    emit_spec spec = {.fast = true};
    emit_program made = {.statements = p->statements, .result = EMIT_ARGUMENT};
    cvy_status st;

    open_program(m, over);
    if (f->more != CVY_NONE) p->statement_of[f->more] = EMIT_BEFORE;
    if (f->argument != CVY_NONE) p->statement_of[f->argument] = EMIT_ARGUMENT;
    TRY(cvyi_make_chain(m, p, r->first, r->end, false));
    spec.views = m->seen;
    spec.n_views = m->step.n_views;
    made.n_statements = p->n;
    if (r->end > r->first) made.result = p->statement_of[m->g->nodes[r->end - 1].out];
    memcpy(made.extent, over->extent, sizeof made.extent);
    if (f->halved) p->statements[made.result].op = OP_tanh;
    if (f->exponent) *f->exponent = make_exponent(&made);
    cvyi_text_add(out, "\nCVY_INLINE float %s\n{\n", f->head);
    if (m->step.n_views > views) cvyi_text_add(out, "    const cvy_at at = {%s};\n", f->at);
    cvyi_emit_body(&spec, &made, out);
    cvyi_text_add(out, "}\n");
fail:
    return st;
}

/* The shape after a reduction over the channels, with or without their dimension. */
static space reduced_space(const space *in, const shape *y)
{
    space s = *in;

    s.extent[1] = 1;
    s.logical = *y;
    if (y->rank < in->logical.rank)
        for (int d = 1; d < y->rank; d++) s.place[d] = in->place[d + 1];
    return s;
}

cvy_status cvyi_tc_emit(maker *m, const tc_form *f, text *out)
{
    const int conv = m->g->nodes[f->conv].out;
    const int reduced = f->reduce == CVY_NONE ? CVY_NONE : m->g->nodes[f->reduce].out;
    const int spatial = cvyi_info(&m->g->nodes[f->conv])->spatial;
    const space inside = cvyi_space_planes(cvyi_shape_of(m->g, conv), spatial);
    const space after = cvyi_space_planes(cvyi_shape_of(m->g, f->z), spatial);
    const space last = reduced == CVY_NONE ? after : reduced_space(&after, cvyi_shape_of(m->g, reduced));
    const bool powers = f->problem.sink == SINK_REDUCE && f->problem.reduce == 0 && f->tuning.pass != PASS_KEEP &&
                        !f->problem.external; /* PARTIAL */
    tc_text about = {.pre = f->pre.end > f->pre.first,
                     .halved = f->halved,
                     .external = f->problem.external,
                     .before = f->problem.before};
    const function pre = {.head = "cvy_pre(const float t0, const int k, const epi &a)",
                          .at = "0, k, 0, 0, 0, 0, 0",
                          .argument = conv,
                          .more = CVY_NONE,
                          .halved = f->halved};
    const function post = {
        .head = "cvy_post(const float t0, const float y, const int n, const int k, const int pixel, const epi &a)",
        .at = "n, k, 0, pixel / OW, pixel % OW, 0, ((cvy_index)n * K + k) * (OH * OW) + pixel",
        .argument = f->z,
        .more = f->other,
        .exponent = powers ? &about.exponent : NULL};
    const function end = {.head = "cvy_last(const float t0, const int n, const int pixel, const epi &a)",
                          .at = "n, 0, 0, pixel / OW, pixel % OW, 0, (cvy_index)n * (OH * OW) + pixel",
                          .argument = reduced,
                          .more = CVY_NONE};
    text body = {0};
    cvy_status st;

    TRY(add_function(m, &f->pre, &inside, &pre, &body));
    TRY(add_function(m, &f->post, &after, &post, &body));
    TRY(add_function(m, &f->last, &last, &end, &body));
    cvyi_emit_head("conv_tc.cu", m->seen, m->step.n_views, out);
    cvyi_text_add(out, "#include \"common.cuh\"\n#include \"fast.cuh\"\n");
#define DEFINE(NAME, field, meaning) cvyi_text_add(out, "#define TC_" #NAME " %d\n", about.field);
    TC_TEXT(DEFINE)
#undef DEFINE
    cvyi_text_add(out, "typedef cvy_args epi;\n%s", body.data ? body.data : "");
    if (body.failed || out->failed) st = CVY_NO_MEMORY;
fail:
    cvyi_text_free(&body);
    return st;
}
