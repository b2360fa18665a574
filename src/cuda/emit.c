/* emit.c - writes epilogue.cuh; see emit.h. Only calls are written here: what an operator computes stands in
 * ops.cuh. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "emit.h"

/* How a pointwise operator is called: the name, and how many of its numbers follow the operands. */
static int numbers_of(op_id op)
{
    switch (op) {
    case OP_leaky_relu:
    case OP_elu:
        return 1;
    case OP_hardtanh:
    case OP_softplus:
    case OP_clamp:
        return 2;
    default:
        return 0;
    }
}

/* Operators that fast.cuh has a cheaper form of. */
static bool has_fast(const emit_line *l)
{
    static const op_id known[] = {OP_tanh, OP_sigmoid, OP_silu, OP_tanh_hardswish, OP_hardsigmoid, OP_hardswish,
                                  OP_mish, OP_elu,     OP_selu, OP_softplus,       OP_gelu};
    for (int i = 0; i < COUNT_OF(known); i++)
        if (known[i] == l->op) return true;
    return false;
}

/* Nine digits read back as the same float; a point makes it one. */
static void add_number(text *t, double number)
{
    char digits[40];

    if (isnan(number)) {
        cvyi_text_add(t, "CVY_NAN");
    } else if (isinf((float)number)) {
        cvyi_text_add(t, number < 0 ? "-CVY_INF" : "CVY_INF");
    } else {
        snprintf(digits, sizeof digits, "%.9g", (double)(float)number);
        cvyi_text_add(t, "%s%sf", digits, strpbrk(digits, ".e") ? "" : ".0");
    }
}

static void add_variable(text *t, int line)
{
    if (line == EMIT_ARGUMENT)
        cvyi_text_add(t, "t0");
    else if (line == EMIT_BEFORE)
        cvyi_text_add(t, "y");
    else
        cvyi_text_add(t, "t%d", line + 1);
}

/* One term of a sum; the sum's first has no sign in front. */
static void add_term(text *t, bool *any, int dim, int64_t stride)
{
    cvyi_text_add(t, "%sat.i%d", *any ? " + " : "", dim);
    if (stride != 1) cvyi_text_add(t, " * %lld", (long long)stride);
    *any = true;
}

/* "a.t[2].p[at.i1 * 4]" */
static void add_element(const emit_spec *spec, text *t, int number)
{
    const emit_view *v = &spec->views[number];
    bool any = false;

    cvyi_text_add(t, "a.t[%d].p[", number);
    if (v->whole && !spec->strided) {
        cvyi_text_add(t, "at.lin");
        any = true;
    }
    for (int d = 0; d < EMIT_DIMS && !(v->whole && !spec->strided); d++) {
        if (!v->varies[d]) continue;
        if (spec->strided) {
            cvyi_text_add(t, "%sat.i%d * cvy_stride(a.t[%d], %d)", any ? " + " : "", d, number, d);
            any = true;
        } else {
            /* the first factor makes the whole sum as wide as an offset may be */
            if (!any && v->stride[d] != 1) cvyi_text_add(t, "(cvy_index)");
            add_term(t, &any, d, v->stride[d]);
        }
    }
    cvyi_text_add(t, "%s]", any ? "" : "0");
}

/* Beside stores that the compiler takes for others to the same memory, only a read-only load may go ahead. */
static void add_load(const emit_spec *spec, text *t, int number)
{
    if (spec->fast) cvyi_text_add(t, "__ldg(&");
    add_element(spec, t, number);
    if (spec->fast) cvyi_text_add(t, ")");
}

/* The number of the slice that an element's statistics belong to. Where the channels are one dimension of the space
 * the coordinates tell it; else the element's own number does. */
static void add_slice(const emit_program *p, const norm_geom *n, text *t)
{
    const bool by_channel = p->extent[1] == n->groups * n->chan &&
                            p->extent[2] * p->extent[3] * p->extent[4] * p->extent[5] == n->inner;
    const int64_t size = n->chan * n->inner;

    if (by_channel && n->over_outer)
        cvyi_text_add(t, "at.i1 / %lld", (long long)n->chan);
    else if (by_channel)
        cvyi_text_add(t, "at.i0 * %lld + at.i1 / %lld", (long long)n->groups, (long long)n->chan);
    else if (n->over_outer)
        cvyi_text_add(t, "at.lin / %lld %% %lld", (long long)size, (long long)n->groups);
    else
        cvyi_text_add(t, "at.lin / %lld", (long long)size);
}

static void open_affine(const emit_line *l, const char *head, text *t)
{
    const bool affine = l->weight != CVY_NONE || l->bias != CVY_NONE;

    cvyi_text_add(t, "%s%s(", affine ? "cvy_affine(" : "", head);
    add_variable(t, l->a);
}

static void close_affine(const emit_spec *spec, const emit_line *l, text *t)
{
    const int views[] = {l->weight, l->bias};
    const char *const neutral[] = {"1.0f", "0.0f"};

    if (l->weight == CVY_NONE && l->bias == CVY_NONE) return;
    for (int i = 0; i < 2; i++) {
        cvyi_text_add(t, ", ");
        if (views[i] == CVY_NONE)
            cvyi_text_add(t, "%s", neutral[i]);
        else
            add_element(spec, t, views[i]);
    }
    cvyi_text_add(t, ")");
}

static void add_apply(const emit_spec *spec, const emit_program *p, const emit_line *l, text *t)
{
    open_affine(l, "cvy_norm_apply", t);
    cvyi_text_add(t, ", a.t[%d].p, ", l->view);
    add_slice(p, &l->norm, t);
    cvyi_text_add(t, ")");
    close_affine(spec, l, t);
}

static void add_norm(const emit_spec *spec, const emit_line *l, text *t)
{
    open_affine(l, "cvy_norm_running", t);
    cvyi_text_add(t, ", ");
    add_element(spec, t, l->view);
    cvyi_text_add(t, ", ");
    add_element(spec, t, l->var);
    cvyi_text_add(t, ", ");
    add_number(t, l->p[0]);
    cvyi_text_add(t, ")");
    close_affine(spec, l, t);
}

static void add_call(const emit_spec *spec, const emit_line *l, text *t)
{
    const op_info *op = &cvyi_ops[l->op];
    const bool binary = op->kind == KIND_BINARY;
    const bool scaled = binary && l->p[1] != 1 && (l->op == OP_add || l->op == OP_sub);
    const char *form = scaled ? "_scaled" : l->op == OP_gelu && l->p[0] != 0 ? "_tanh" : "";

    cvyi_text_add(t, "cvy_%s%s%s(", spec->fast && has_fast(l) ? "fast_" : "", op->name, form);
    add_variable(t, l->a);
    if (binary) {
        cvyi_text_add(t, ", ");
        if (l->b == CVY_NONE)
            add_number(t, l->p[0]);
        else
            add_variable(t, l->b);
    }
    if (scaled) {
        cvyi_text_add(t, ", ");
        add_number(t, l->p[1]);
    }
    for (int i = 0; i < numbers_of(l->op); i++) {
        cvyi_text_add(t, ", ");
        add_number(t, l->p[i]);
    }
    if (l->unit != 0) {
        cvyi_text_add(t, ", ");
        add_number(t, l->unit);
    }
    cvyi_text_add(t, ")");
}

static void add_line(const emit_spec *spec, const emit_program *p, int number, text *t)
{
    const emit_line *l = &p->lines[number];

    cvyi_text_add(t, "    ");
    if (l->kind == EMIT_STORE) {
        add_element(spec, t, l->view);
        cvyi_text_add(t, " = ");
        add_variable(t, l->a);
    } else {
        cvyi_text_add(t, "const float t%d = ", number + 1);
        if (l->kind == EMIT_LOAD) add_load(spec, t, l->view);
        if (l->kind == EMIT_OP) add_call(spec, l, t);
        if (l->kind == EMIT_APPLY) add_apply(spec, p, l, t);
        if (l->kind == EMIT_NORM) add_norm(spec, l, t);
    }
    cvyi_text_add(t, "; // %s\n", l->note ? l->note : "");
}

void cvyi_emit_body(const emit_spec *spec, const emit_program *p, text *out)
{
    for (int i = 0; i < p->n_lines; i++) add_line(spec, p, i, out);
    cvyi_text_add(out, "    return ");
    add_variable(out, p->result);
    cvyi_text_add(out, ";\n");
}

void cvyi_emit_head(const char *title, const emit_view *views, int n_views, text *out)
{
    cvyi_text_add(out, "// epilogue.cuh - %s\n//\n", title);
    for (int i = 0; i < n_views; i++) cvyi_text_add(out, "//   t[%d]  %s\n", i, views[i].name);
}

void cvyi_emit(const emit_spec *spec, text *out)
{
    cvyi_emit_head(spec->title, spec->views, spec->n_views, out);
    cvyi_text_add(out, "#include \"common.cuh\"\n#include \"ops.cuh\"\n");
    if (spec->prologue) {
        cvyi_text_add(out, "\nCVY_INLINE float cvy_prologue(const cvy_args &a, const cvy_at at)\n{\n");
        cvyi_emit_body(spec, spec->prologue, out);
        cvyi_text_add(out, "}\n");
    }
    if (spec->epilogue) {
        cvyi_text_add(out,
                      "\nCVY_INLINE void cvy_epilogue(const cvy_args &a, const cvy_at at, const float t0)\n{\n");
        for (int i = 0; i < spec->epilogue->n_lines; i++) add_line(spec, spec->epilogue, i, out);
        cvyi_text_add(out, "}\n");
    }
}
