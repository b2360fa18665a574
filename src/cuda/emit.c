/* emit.c - writes epilogue.cuh; see emit.h. Only calls are written here: what an operator computes is in
 * ops.cuh. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "emit.h"

/* How many numbers follow the operand of a unary operator: its attributes, if those are numbers. */
static int numbers_of(const op_info *op)
{
    int n = 0;

    for (int i = 0; op->kind == KIND_UNARY && i < op->n_attrs; i++) n += op->attrs[i].kind == ATTR_NUMBER;
    return n;
}

/* Operators that fast.cuh has a cheaper version of. */
static bool has_fast(const emit_statement *l)
{
    static const op_id known[] = {OP_tanh, OP_sigmoid, OP_silu, OP_tanh_hardswish, OP_hardsigmoid, OP_hardswish,
                                  OP_mish, OP_elu,     OP_selu, OP_softplus,       OP_gelu};
    for (int i = 0; i < COUNT_OF(known); i++)
        if (known[i] == l->op) return true;
    return false;
}

/* Nine digits read back as the same float; the decimal point makes it a float literal. */
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

static void add_variable(text *t, int statement)
{
    if (statement == EMIT_ARGUMENT)
        cvyi_text_add(t, "t0");
    else if (statement == EMIT_BEFORE)
        cvyi_text_add(t, "y");
    else
        cvyi_text_add(t, "t%d", statement + 1);
}

/* One term of a sum; the sum's first has no sign before it. */
static void add_term(text *t, bool *any, int dim, int64_t stride)
{
    cvyi_text_add(t, "%sat.i%d", *any ? " + " : "", dim);
    if (stride != 1) cvyi_text_add(t, " * %lld", (long long)stride);
    *any = true;
}

const char *cvyi_emit_type(cvy_dtype dtype)
{
    static const char *const types[DTYPE_COUNT] = {
        [CVY_FLOAT32] = "float", [CVY_FLOAT16] = "cvy_f16", [CVY_BFLOAT16] = "cvy_bf16"};
    return types[dtype];
}

/* "a.t[2].p[at.i1 * 4]", of bf16 "cvy_as<cvy_bf16>(a.t[2])[at.i1 * 4]" */
static void add_element(const emit_spec *spec, text *t, int number)
{
    const emit_view *v = &spec->views[number];
    bool any = false;

    if (v->dtype == CVY_FLOAT32)
        cvyi_text_add(t, "a.t[%d].p[", number);
    else
        cvyi_text_add(t, "cvy_as<%s>(a.t[%d])[", cvyi_emit_type(v->dtype), number);
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
            /* the first factor gives the whole sum as many bits as an offset has */
            if (!any && v->stride[d] != 1) cvyi_text_add(t, "(cvy_index)");
            add_term(t, &any, d, v->stride[d]);
        }
    }
    cvyi_text_add(t, "%s]", any ? "" : "0");
}

/* ---- neighbours: the places of N elements of the space in a view ---- */

typedef enum many_access { MANY_SINGLE, MANY_RUN, MANY_SAME } many_access;

/* How many elements of the space, beginning at a multiple of that number, are contiguous in a view; 0: all. */
static int64_t dense_run(const emit_view *v, const emit_program *p)
{
    int64_t run = 1;

    for (int d = EMIT_DIMS - 1; d >= 0; d--) {
        if (d && p->extent[d] == 1) continue;
        if (!v->varies[d] || v->stride[d] != run) return run;
        run *= p->extent[d];
    }
    return 0;
}

/* Of neighbours that are channels of a pixel. */
static many_access access_of_pixel(const emit_spec *spec, const emit_view *v)
{
    bool run = v->stride[1] == 1;

    for (int d = 0; d < EMIT_DIMS; d++) run = run && (d == 1 || !v->varies[d] || v->stride[d] % spec->many == 0);
    return !v->varies[1] ? MANY_SAME : run ? MANY_RUN : MANY_SINGLE;
}

static many_access access_of(const emit_spec *spec, const emit_program *p, int number)
{
    const emit_view *v = &spec->views[number];
    const int64_t run = v->whole ? 0 : dense_run(v, p);
    int64_t after = 1; /* extent of everything after what the view varies along */
    bool aligned = spec->many && run % spec->many == 0;
    int last = EMIT_DIMS - 1;

    if (!spec->many || spec->strided) return MANY_SINGLE;
    if (spec->of_pixel) return access_of_pixel(spec, v);
    while (last >= 0 && !v->varies[last]) after *= p->extent[last--];
    if (!v->whole && (last < 0 || after % spec->many == 0)) return MANY_SAME;
    for (int d = 0; d < EMIT_DIMS && run; d++)
        aligned = aligned && (!v->varies[d] || v->stride[d] < run || v->stride[d] % spec->many == 0);
    return aligned ? MANY_RUN : MANY_SINGLE;
}

/* An element's value; in float32 the element itself. */
static void add_widened(const emit_spec *spec, text *t, int number)
{
    const bool single = spec->views[number].dtype == CVY_FLOAT32;

    if (!single) cvyi_text_add(t, "cvy_widen(");
    add_element(spec, t, number);
    if (!single) cvyi_text_add(t, ")");
}

/* An element's value, or the variable that it was read into before the loop over neighbours. */
static void add_read(const emit_spec *spec, const emit_program *p, text *t, int number)
{
    switch (access_of(spec, p, number)) {
    case MANY_RUN:
        cvyi_text_add(t, "r%d[i]", number);
        break;
    case MANY_SAME:
        cvyi_text_add(t, "r%d", number);
        break;
    case MANY_SINGLE:
        add_widened(spec, t, number);
    }
}

/* Only a read-only load may move ahead of stores that the compiler assumes to be to the same memory. */
static void add_load(const emit_spec *spec, const emit_program *p, text *t, int number)
{
    const bool single = spec->views[number].dtype == CVY_FLOAT32;

    if (!spec->fast || access_of(spec, p, number) != MANY_SINGLE) {
        add_read(spec, p, t, number);
        return;
    }
    cvyi_text_add(t, single ? "__ldg(&" : "cvy_get(&");
    add_element(spec, t, number);
    cvyi_text_add(t, ")");
}

/* The number of the slice that an element's statistics belong to. If the channels are one dimension of the space
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

/* Have neighbours the same statistics? */
static bool shares_slice(const emit_spec *spec, const emit_statement *l)
{
    return spec->many && l->norm.chan * (spec->of_pixel ? 1 : l->norm.inner) % spec->many == 0;
}

static void open_affine(const emit_statement *l, const char *head, text *t)
{
    const bool affine = l->weight != CVY_NONE || l->bias != CVY_NONE;

    cvyi_text_add(t, "%s%s(", affine ? "cvy_affine(" : "", head);
    add_variable(t, l->a);
}

static void close_affine(const emit_spec *spec, const emit_program *p, const emit_statement *l, text *t)
{
    const int views[] = {l->weight, l->bias};
    const char *const neutral[] = {"1.0f", "0.0f"};

    if (l->weight == CVY_NONE && l->bias == CVY_NONE) return;
    for (int i = 0; i < 2; i++) {
        cvyi_text_add(t, ", ");
        if (views[i] == CVY_NONE)
            cvyi_text_add(t, "%s", neutral[i]);
        else
            add_read(spec, p, t, views[i]);
    }
    cvyi_text_add(t, ")");
}

static void add_apply(const emit_spec *spec, const emit_program *p, const emit_statement *l, text *t)
{
    open_affine(l, "cvy_norm_apply", t);
    cvyi_text_add(t, ", a.t[%d].p, ", l->view);
    if (shares_slice(spec, l))
        cvyi_text_add(t, "s%d", l->view);
    else
        add_slice(p, &l->norm, t);
    cvyi_text_add(t, ")");
    close_affine(spec, p, l, t);
}

static void add_norm(const emit_spec *spec, const emit_program *p, const emit_statement *l, text *t)
{
    open_affine(l, "cvy_norm_running", t);
    cvyi_text_add(t, ", ");
    add_read(spec, p, t, l->view);
    cvyi_text_add(t, ", ");
    add_read(spec, p, t, l->var);
    cvyi_text_add(t, ", ");
    add_number(t, l->p[0]);
    cvyi_text_add(t, ")");
    close_affine(spec, p, l, t);
}

static void add_scale(const emit_spec *spec, const emit_program *p, const emit_statement *l, text *t)
{
    cvyi_text_add(t, "cvy_affine(");
    add_variable(t, l->a);
    close_affine(spec, p, l, t);
}

/* gelu of the error function, or of tanh; if its result is of 16 bits, of fewer digits. */
static const char *gelu_form(const emit_spec *spec, const emit_statement *l)
{
    return l->p[0] != 0 ? "_tanh" : l->rough && !spec->fast ? "_half" : "";
}

static void add_call(const emit_spec *spec, const emit_statement *l, text *t)
{
    const op_info *op = &cvyi_ops[l->op];
    const bool binary = op->kind == KIND_BINARY;
    const bool scaled = binary && l->p[1] != 1 && (l->op == OP_add || l->op == OP_sub);
    const char *suffix = scaled ? "_scaled" : l->op == OP_gelu ? gelu_form(spec, l) : "";

    cvyi_text_add(t, "cvy_%s%s%s(", spec->fast && has_fast(l) ? "fast_" : "", op->name, suffix);
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
    for (int i = 0; i < numbers_of(op); i++) {
        cvyi_text_add(t, ", ");
        add_number(t, l->p[i]);
    }
    if (l->gain != 0) {
        cvyi_text_add(t, ", ");
        add_number(t, l->gain);
    }
    cvyi_text_add(t, ")");
}

/* Stores to memory; among neighbours, to the array that is stored after their loop. */
static void add_store(const emit_spec *spec, const emit_program *p, const emit_statement *l, text *t)
{
    const bool later = access_of(spec, p, l->view) == MANY_RUN;
    const bool rounds = !later && spec->views[l->view].dtype != CVY_FLOAT32;

    if (rounds) cvyi_text_add(t, "cvy_put(");
    if (later)
        cvyi_text_add(t, "w%d[i]", l->view);
    else
        add_element(spec, t, l->view);
    cvyi_text_add(t, rounds ? ", " : " = ");
    add_variable(t, l->a);
    if (rounds) cvyi_text_add(t, ")");
}

static void add_statement(const emit_spec *spec, const emit_program *p, int number, text *t)
{
    const emit_statement *l = &p->statements[number];

    cvyi_text_add(t, "    ");
    if (l->kind == EMIT_STORE) {
        add_store(spec, p, l, t);
    } else {
        cvyi_text_add(t, "const float t%d = ", number + 1);
        if (l->kind == EMIT_LOAD) add_load(spec, p, t, l->view);
        if (l->kind == EMIT_OP) add_call(spec, l, t);
        if (l->kind == EMIT_APPLY) add_apply(spec, p, l, t);
        if (l->kind == EMIT_NORM) add_norm(spec, p, l, t);
        if (l->kind == EMIT_SCALE) add_scale(spec, p, l, t);
    }
    cvyi_text_add(t, "; // %s\n", l->note ? l->note : "");
}

void cvyi_emit_body(const emit_spec *spec, const emit_program *p, text *out)
{
    for (int i = 0; i < p->n_statements; i++) add_statement(spec, p, i, out);
    cvyi_text_add(out, "    return ");
    add_variable(out, p->result);
    cvyi_text_add(out, ";\n");
}

/* ---- functions of N neighbours ---- */

/* Views that a statement reads; CVY_NONE if there is none. */
static void views_read(const emit_statement *l, int out[4])
{
    const bool affine = l->kind == EMIT_APPLY || l->kind == EMIT_NORM || l->kind == EMIT_SCALE;

    out[0] = l->kind == EMIT_LOAD || l->kind == EMIT_NORM ? l->view : CVY_NONE;
    out[1] = l->kind == EMIT_NORM ? l->var : CVY_NONE;
    out[2] = affine ? l->weight : CVY_NONE;
    out[3] = affine ? l->bias : CVY_NONE;
}

/* Reads before the loop, at the first neighbour's place. */
static void add_reads(const emit_spec *spec, const emit_program *p, text *t)
{
    uint64_t seen = 0;

    for (int i = 0; i < p->n_statements; i++) {
        const emit_statement *l = &p->statements[i];
        int views[4];
        views_read(l, views);
        for (int k = 0; k < COUNT_OF(views); k++) {
            const many_access access = views[k] == CVY_NONE ? MANY_SINGLE : access_of(spec, p, views[k]);
            if (access == MANY_SINGLE || seen >> views[k] & 1) continue;
            seen |= (uint64_t)1 << views[k];
            if (access == MANY_SAME) {
                cvyi_text_add(t, "    const float r%d = ", views[k]);
                add_widened(spec, t, views[k]);
                cvyi_text_add(t, ";\n");
                continue;
            }
            /* Only a read-only load may move ahead of stores, as in add_load(). */
            cvyi_text_add(t, "    float r%d[N];\n    cvy_%s(&", views[k], spec->fast ? "get" : "load");
            add_element(spec, t, views[k]);
            cvyi_text_add(t, ", r%d);\n", views[k]);
        }
        if (l->kind != EMIT_APPLY || !shares_slice(spec, l)) continue;
        cvyi_text_add(t, "    const cvy_index s%d = ", l->view);
        add_slice(p, &l->norm, t);
        cvyi_text_add(t, ";\n");
    }
}

/* Values stored by one access: declared before the loop (`done` false), stored after it. */
static void add_stores(const emit_spec *spec, const emit_program *p, bool done, text *t)
{
    for (int i = 0; i < p->n_statements; i++) {
        const emit_statement *l = &p->statements[i];
        if (l->kind != EMIT_STORE || access_of(spec, p, l->view) != MANY_RUN) continue;
        cvyi_text_add(t, done ? "    cvy_store(&" : "    float w%d[N];\n", l->view);
        if (!done) continue;
        add_element(spec, t, l->view);
        cvyi_text_add(t, ", w%d);\n", l->view);
    }
}

/* `at` is the first neighbour outside the loop, each one inside. */
static void add_many(const emit_spec *spec, const emit_program *p, bool returns, text *t)
{
    cvyi_text_add(t,
                  "\ntemplate <int N> CVY_INLINE void %s(const cvy_args &a, const cvy_at (&all)[N], %sfloat "
                  "(&x)[N])\n{\n    const cvy_at &at = all[0];\n",
                  returns ? "cvy_read" : "cvy_write", returns ? "" : "const ");
    add_reads(spec, p, t);
    add_stores(spec, p, false, t);
    cvyi_text_add(t, "#pragma unroll\n    for (int i = 0; i < N; i++) {\n        const cvy_at &at = all[i];\n");
    if (!returns) cvyi_text_add(t, "        const float t0 = x[i];\n");
    for (int i = 0; i < p->n_statements; i++) {
        cvyi_text_add(t, "    ");
        add_statement(spec, p, i, t);
    }
    if (returns) {
        cvyi_text_add(t, "        x[i] = ");
        add_variable(t, p->result);
        cvyi_text_add(t, ";\n");
    }
    cvyi_text_add(t, "    }\n");
    add_stores(spec, p, true, t);
    cvyi_text_add(t, "}\n");
}

void cvyi_emit_head(const char *title, const emit_view *views, int n_views, text *out)
{
    cvyi_text_add(out, "// epilogue.cuh - %s\n//\n", title);
    for (int i = 0; i < n_views; i++) cvyi_text_add(out, "//   t[%d]  %s\n", i, views[i].name);
}

static void add_one(const emit_spec *spec, const emit_program *p, bool returns, text *out)
{
    emit_spec one = *spec;

    one.many = 0;
    if (returns) {
        cvyi_text_add(out, "\nCVY_INLINE float cvy_prologue(const cvy_args &a, const cvy_at at)\n{\n");
        cvyi_emit_body(&one, p, out);
    } else {
        cvyi_text_add(out,
                      "\nCVY_INLINE void cvy_epilogue(const cvy_args &a, const cvy_at at, const float t0)\n{\n");
        for (int i = 0; i < p->n_statements; i++) add_statement(&one, p, i, out);
    }
    cvyi_text_add(out, "}\n");
}

void cvyi_emit(const emit_spec *spec, text *out)
{
    cvyi_emit_head(spec->title, spec->views, spec->n_views, out);
    cvyi_text_add(out, "#include \"common.cuh\"\n#include \"ops.cuh\"\n");
    if (spec->prologue) (spec->many && !spec->lone ? add_many : add_one)(spec, spec->prologue, true, out);
    if (spec->epilogue) (spec->many ? add_many : add_one)(spec, spec->epilogue, false, out);
}
