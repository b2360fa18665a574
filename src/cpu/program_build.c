/* program_build.c - pointwise nodes into instructions. See program.h. */
#include <string.h>
#include "program.h"

/* ---- the space a program runs over ---- */

/* The result's shape as dimensions with the sample dimension in front: [m][rest] taken by sample, [1][all] whole.
 * split_last() cuts it finer; what names a dimension by its number is here, so that it moves along. */
typedef struct space {
    int n;
    int64_t dim[PROG_DIMS];
    int channel;      /* the dimension of the channels; -1: there is none, or it was split */
    unsigned reduced; /* the dimensions that the sink reduces, neighbours; a bit each */
    bool by_sample, flat;
    shape shape;
} space;

/* A copy in row-major order needs no dimensions but the samples. */
static space flat_space(const builder *b, int v)
{
    space out = {.n = 2, .channel = -1, .by_sample = b->out->samples > 1, .flat = true};
    const int64_t all = cvyi_elements(cvyi_shape_of(b->g, v));
    out.dim[0] = out.by_sample ? b->out->chunk : 1;
    out.dim[1] = out.by_sample ? all / b->out->samples : all;
    out.shape = (shape){2, {out.by_sample ? b->out->samples : 1, out.dim[1]}};
    return out;
}

static space space_of(const builder *b, const shape *s)
{
    space out = {.by_sample = b->out->samples > 1, .shape = *s};
    out.dim[out.n++] = out.by_sample ? b->out->chunk : 1;
    for (int i = out.by_sample; i < s->rank; i++) out.dim[out.n++] = s->dim[i];
    out.channel = out.by_sample ? 1 : 2;
    if (out.channel >= out.n) out.channel = -1;
    return out;
}

/* Strides of a value read in the space, 0 where it repeats. */
static void strides_in(const builder *b, const space *sp, int v, int64_t *out)
{
    const shape *from = sp->flat ? &sp->shape : cvyi_shape_of(b->g, v);
    int64_t own[CVY_MAX_RANK], wide[CVY_MAX_RANK];
    cvyi_contiguous_strides(from, own);
    cvyi_broadcast_strides(from, own, &sp->shape, wide);
    memset(out, 0, PROG_DIMS * sizeof *out);
    for (int i = 0; i < sp->shape.rank; i++) out[i + (!sp->by_sample && !sp->flat)] = wide[i];
}

/* ---- building ---- */

/* What stands for a value while building: an argument, or an affine chain on one that no instruction holds yet. */
typedef struct holder {
    int v;
    prog_arg arg;
    int coef; /* -1: none pending */
} holder;

typedef struct assembler {
    const builder *b;
    program *p;
    space sp;
    int64_t strides[PROG_OPERANDS][PROG_DIMS]; /* in the space, before it is collapsed */
    holder held[PROG_NODES + PROG_OPERANDS];
    int n_held;
    int first, count; /* nodes */
    int sink;
    int64_t run_limit; /* a run may not be longer: rows of a norm; 0: no limit */
    bool full;         /* a table overflowed */
} assembler;

static int new_operand(assembler *s, int v, bool written)
{
    program *p = s->p;
    operand *o;
    if (p->n_operands == PROG_OPERANDS) {
        s->full = true;
        return 0;
    }
    o = &p->operands[p->n_operands];
    *o = (operand){.v = v, .written = written, .reg = -1};
    strides_in(s->b, &s->sp, v, s->strides[p->n_operands]);
    return p->n_operands++;
}

static int new_reg(assembler *s)
{
    return s->p->n_regs++;
}

static instr *emit(assembler *s, instr_kind kind)
{
    static instr overflow;
    instr *i = &overflow;
    if (s->p->n_instrs == PROG_INSTRS)
        s->full = true;
    else
        i = &s->p->instrs[s->p->n_instrs++];
    *i = (instr){.kind = kind, .coef = -1, .stats = CVY_NONE};
    return i;
}

static bool read_outside(const assembler *s, int v)
{
    const pass *at = s->b->out->pass;
    for (int i = s->b->g->values[v].node + 1; i <= s->b->plan->last_reader[v] && i < at->first + at->count; i++) {
        const node *n = &s->b->g->nodes[i];
        if ((i >= s->first && i < s->first + s->count) || i == s->sink) continue;
        for (int a = 0; a < n->n_args; a++)
            if (n->arg[a] == v) return true;
    }
    return false;
}

/* Must the value be in memory: somebody beside this program's nodes and its sink reads it, or it is needed behind
 * the pass. */
static bool leaves(const assembler *s, int v)
{
    if (!s->b->trial) return cvyi_spot(s->b, v)->kind != SPOT_NONE;
    return cvyi_needed_behind(s->b->plan, s->b->out->pass, v) || read_outside(s, v);
}

static prog_arg destination(assembler *s, int v)
{
    if (v != CVY_NONE && leaves(s, v)) {
        const int o = new_operand(s, v, true);
        const spot *at = cvyi_spot(s->b, v);
        s->p->operands[o].reg = new_reg(s);
        s->p->operands[o].stream =
            at->kind == SPOT_TENSOR && cvyi_past_caches(s->b->state, 4 * cvyi_elements(cvyi_shape_of(s->b->g, v)));
        return (prog_arg){ARG_MEM, o, 0};
    }
    return (prog_arg){ARG_REG, new_reg(s), 0};
}

static holder *hold(assembler *s, int v, prog_arg arg, int pending)
{
    static holder overflow;
    holder *h = &overflow;
    if (s->n_held == COUNT_OF(s->held))
        s->full = true;
    else
        h = &s->held[s->n_held++];
    *h = (holder){v, arg, pending};
    return h;
}

static int new_coef(assembler *s)
{
    if (s->p->n_coefs == PROG_COEFS) {
        s->full = true;
        return 0;
    }
    s->p->coefs[s->p->n_coefs] = (coef){0};
    return s->p->n_coefs++;
}

static void chain(assembler *s, int which, coef_op op)
{
    coef *c = &s->p->coefs[which];
    if (c->n == PROG_CHAIN)
        s->full = true;
    else
        c->ops[c->n++] = op;
}

static int copy_coef(assembler *s, int which)
{
    const int made = new_coef(s);
    s->p->coefs[made] = s->p->coefs[which];
    return made;
}

/* What stands for a value that an instruction is about to read; the first reading of an outside value makes it an
 * operand, with its shift as a pending chain where a convolution left it centred. */
static holder *find(assembler *s, int v)
{
    const spot *at;
    int which = -1, o;
    const int root = s->b->plan->root[v];
    for (int i = 0; i < s->n_held; i++)
        if (s->held[i].v == v) return &s->held[i];
    /* A reshape inside the program never happens; one in front shares its root's memory. */
    at = cvyi_find_spot(s->b->out, root);
    o = new_operand(s, v, false);
    if (at->shift >= 0) {
        which = new_coef(s);
        chain(s, which, (coef_op){.kind = COEF_SHIFT, .v = root});
    }
    return hold(s, v, (prog_arg){ARG_MEM, o, 0}, which);
}

/* The argument an instruction can read: pending chains become an instruction first. */
static prog_arg settle(assembler *s, int v)
{
    holder *h = find(s, v);
    if (h->coef >= 0) {
        instr *i = emit(s, INSTR_AFFINE);
        i->a = h->arg;
        i->coef = h->coef;
        i->dst = (prog_arg){ARG_REG, new_reg(s), 0};
        h->arg = i->dst;
        h->coef = -1;
    }
    return h->arg;
}

/* ---- affine chains ---- */

/* One number per channel, the same for all samples, known before the pass. */
static bool per_channel(const assembler *s, int v)
{
    int64_t stride[PROG_DIMS];
    const int c = s->sp.channel;
    if (!s->b->plan->prepared[v] || c < 0) return false;
    strides_in(s->b, &s->sp, v, stride);
    for (int d = 0; d < s->sp.n; d++)
        if (d != c && s->sp.dim[d] > 1 && stride[d]) return false;
    return cvyi_elements(cvyi_shape_of(s->b->g, v)) == s->sp.dim[c] ||
           cvyi_elements(cvyi_shape_of(s->b->g, v)) == 1;
}

/* Normalisation with statistics per run of channels, not per row. */
static bool applies_by_channel(const assembler *s, const node *n)
{
    norm_geom e;
    const int c = s->sp.channel;
    cvyi_norm_geom(s->b->g, n, &e);
    return c >= 0 && e.groups * e.chan == s->sp.dim[c] && (e.inner > 1 || e.over_outer);
}

/* A careful plan's factors stay apart: their product may be beyond the floats where what they scale is 0. */
static bool extends_chain(const assembler *s, const node *n, const holder *h)
{
    if (h->coef < 0 || s->b->plan->mode == REWRITE_CAREFUL) return false;
    if (n->op != OP_add && n->op != OP_sub && n->op != OP_mul) return false;
    return n->arg[1] == CVY_NONE || per_channel(s, n->arg[1]);
}

static void extend_chain(assembler *s, const node *n, int which)
{
    double p[2];
    const coef_kind kind = n->op == OP_mul ? COEF_MUL : n->op == OP_add ? COEF_ADD : COEF_SUB;
    cvyi_pointwise_params(n, p);
    if (n->arg[1] != CVY_NONE)
        chain(s, which, (coef_op){.kind = kind, .v = n->arg[1], .number = p[1]});
    else
        chain(s, which, (coef_op){.kind = kind, .v = CVY_NONE, .number = kind == COEF_MUL ? p[0] : p[0] * p[1]});
}

/* A value that only lives as a pending chain must be made real where memory wants it. */
static void finish_chain(assembler *s, int v, prog_arg base, int which)
{
    if (leaves(s, v)) {
        instr *i = emit(s, INSTR_AFFINE);
        i->a = base;
        i->coef = which;
        i->dst = destination(s, v);
        hold(s, v, i->dst, -1);
    } else {
        hold(s, v, base, which);
    }
}

/* ---- nodes ---- */

/* Weight or bias of a norm by rows: element number i of the normalised ones, wherever their dimensions stand. */
static prog_arg row_affine(assembler *s, const node *n, int v)
{
    const prog_arg a = settle(s, v);
    norm_geom e;
    int64_t own = 1;

    cvyi_norm_geom(s->b->g, n, &e);
    for (int d = s->sp.n - 1; d >= 0; d--) {
        s->strides[a.index][d] = own < e.groups * e.chan ? own : 0;
        own *= s->sp.dim[d];
    }
    return a;
}

static bool only_read(const assembler *s, const prog_arg *a)
{
    return a->kind == ARG_MEM && !s->p->operands[a->index].written;
}

static void build_apply_row(assembler *s, const node *n)
{
    instr *i;
    prog_arg x = settle(s, n->arg[0]);
    const bool weight = n->arg[2] != CVY_NONE, bias = n->arg[3] != CVY_NONE;
    const prog_arg dst = destination(s, n->out);
    const prog_arg w = weight ? row_affine(s, n, n->arg[2]) : x, shift = bias ? row_affine(s, n, n->arg[3]) : x;
    norm_geom e;

    cvyi_norm_geom(s->b->g, n, &e);
    i = emit(s, weight && !cvyi_norm_rows(&e) ? INSTR_ROW_WEIGHTED : INSTR_ROW);
    i->a = x;
    i->stats = n->arg[1];
    i->dst = dst;
    if (i->kind == INSTR_ROW_WEIGHTED) {
        i->b = w;
    } else if (weight && bias && only_read(s, &w) && only_read(s, &shift)) {
        i->b = w, i->c = shift;
        hold(s, n->out, dst, -1);
        return;
    } else if (weight) {
        i = emit(s, INSTR_BINARY);
        *i = (instr){.kind = INSTR_BINARY, .op = OP_mul, .a = dst, .b = w, .dst = dst, .coef = -1, .p = {0, 1}};
    }
    if (bias) {
        i = emit(s, INSTR_BINARY);
        *i = (instr){.kind = INSTR_BINARY, .op = OP_add, .a = dst, .b = shift, .dst = dst, .coef = -1, .p = {0, 1}};
    }
    hold(s, n->out, dst, -1);
}

static void build_apply(assembler *s, int index)
{
    const node *n = &s->b->g->nodes[index];
    coef_op apply = {.kind = COEF_APPLY, .v = CVY_NONE, .index = index};
    holder *h;
    int which;
    if (!applies_by_channel(s, n)) {
        build_apply_row(s, n);
        return;
    }
    cvyi_norm_geom(s->b->g, n, &apply.norm);
    h = find(s, n->arg[0]);
    which = h->coef >= 0 ? copy_coef(s, h->coef) : new_coef(s);
    chain(s, which, apply);
    finish_chain(s, n->out, h->arg, which);
}

static void build_pointwise(assembler *s, const node *n)
{
    const bool binary = cvyi_info(n)->kind == KIND_BINARY;
    double p[2];
    instr i = {.kind = binary ? INSTR_BINARY : INSTR_UNARY, .op = n->op, .coef = -1, .stats = CVY_NONE};

    cvyi_pointwise_params(n, p);
    i.a = settle(s, n->arg[0]);
    if (binary) i.b = n->arg[1] == CVY_NONE ? (prog_arg){ARG_NUM, 0, (float)p[0]} : settle(s, n->arg[1]);
    i.p[0] = (float)p[0];
    i.p[1] = (float)p[1];
    if (i.b.kind == ARG_NUM && (n->op == OP_add || n->op == OP_sub)) { /* 1e300 times 0 is 0, in float it is not */
        i.b.number = (float)(p[0] * p[1]);
        i.p[1] = 1;
    }
    i.dst = destination(s, n->out);
    *emit(s, i.kind) = i;
    hold(s, n->out, i.dst, -1);
}

static void build_copy(assembler *s, const node *n)
{
    const prog_arg a = settle(s, n->arg[0]);
    instr *i = emit(s, INSTR_COPY);
    i->a = a;
    i->dst = destination(s, n->out);
    hold(s, n->out, i->dst, -1);
}

static void build_node(assembler *s, int index)
{
    const node *n = &s->b->g->nodes[index];
    const op_kind kind = cvyi_info(n)->kind;
    if (kind == KIND_APPLY) {
        build_apply(s, index);
    } else if (kind == KIND_SHAPE) {
        if (s->b->plan->root[n->out] == n->out) build_copy(s, n);
    } else {
        holder *h = kind == KIND_BINARY ? find(s, n->arg[0]) : NULL;
        if (h && extends_chain(s, n, h)) {
            const prog_arg base = h->arg;
            const int which = copy_coef(s, h->coef);
            extend_chain(s, n, which);
            finish_chain(s, n->out, base, which);
        } else {
            build_pointwise(s, n);
        }
    }
}

/* ---- sinks ---- */

/* The reduced dimensions [first, end) of the space. */
static void sink_dims(const space *sp, int *first, int *end)
{
    for (*first = 0; *first < sp->n && !(sp->reduced >> *first & 1); (*first)++) continue;
    for (*end = *first; sp->reduced >> *end & 1; (*end)++) continue;
}

/* Marks what the sink reduces; false where the space does not tell those dimensions apart, where they are not
 * neighbours, or where the samples are among them. */
static bool mark_reduced(const builder *b, const node *n, space *sp)
{
    const unsigned mask =
        cvyi_info(n)->kind == KIND_SOFTMAX ? 1u << cvyi_softmax_dim(b->g, n) : cvyi_reduced_dims(b->g, n);
    int first, end;

    sp->reduced = mask << !sp->by_sample;
    sink_dims(sp, &first, &end);
    return mask && !sp->flat && !(sp->reduced >> end) && first > 0;
}

bool cvyi_sink_fits(const builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    const op_kind kind = cvyi_info(n)->kind;
    space sp;
    if (kind != KIND_REDUCE && kind != KIND_SOFTMAX) return false;
    sp = space_of(b, cvyi_shape_of(b->g, n->arg[0]));
    return sp.shape.rank > 0 && cvyi_elements(&sp.shape) > 0 && mark_reduced(b, n, &sp);
}

/* ---- collapsing the space ---- */

/* May dimension d join the run that is `inner` long so far? */
static bool joins(const assembler *s, int d, int64_t inner, const bool *scalar, bool started)
{
    for (int o = 0; o < s->p->n_operands; o++) {
        const int64_t stride = s->strides[o][d];
        if (!started ? stride > 1 : scalar[o] ? stride != 0 : stride != inner) return false;
    }
    return true;
}

/* Splits the last dimension in two where a run may not be that long: [C] -> [C / limit][limit]. */
static void split_last(assembler *s)
{
    space *sp = &s->sp;
    int last;
    int64_t outer;
    if (!s->run_limit) return;
    while (sp->n > 2 && sp->dim[sp->n - 1] == 1) sp->n--; /* these make no difference */
    sp->reduced &= (1u << sp->n) - 1;
    if (sp->channel >= sp->n) sp->channel = -1;
    last = sp->n - 1;
    outer = sp->dim[last] / s->run_limit;
    if (outer <= 1 || sp->dim[last] % s->run_limit || sp->n == PROG_DIMS) return;
    if (sp->channel == last) sp->channel = -1;
    sp->reduced |= (sp->reduced >> last & 1) << sp->n;
    sp->dim[last] = outer;
    sp->dim[sp->n++] = s->run_limit;
    for (int o = 0; o < s->p->n_operands; o++) {
        s->strides[o][last + 1] = s->strides[o][last];
        s->strides[o][last] *= s->run_limit;
    }
}

/* Joins dimensions from the last one down to `lowest` into the run; what is left in front are outer ones. */
static void collapse(assembler *s, int lowest)
{
    program *p = s->p;
    bool scalar[PROG_OPERANDS] = {false}, started = false;
    int d = s->sp.n - 1;

    p->inner = 1;
    for (; d >= lowest; d--) {
        const int64_t extent = s->sp.dim[d];
        if (extent == 1) continue;
        if (s->run_limit && (p->inner == s->run_limit || p->inner * extent > s->run_limit)) break;
        if (!joins(s, d, p->inner, scalar, started)) break;
        if (!started)
            for (int o = 0; o < p->n_operands; o++) scalar[o] = s->strides[o][d] == 0;
        started = true;
        p->inner *= extent;
    }
    p->n_outer = d + 1;
    for (int i = 0; i <= d; i++) p->outer[i] = s->sp.dim[i];
    for (int o = 0; o < p->n_operands; o++) {
        p->operands[o].scalar = started && scalar[o];
        memcpy(p->operands[o].stride, s->strides[o], sizeof s->strides[o]);
    }
}

/* ---- registers ---- */

static bool same_arg(const prog_arg *a, const prog_arg *b)
{
    return a->kind == b->kind && a->index == b->index;
}

static void mark_last(program *p)
{
    for (int k = 0; k < p->n_instrs; k++) {
        const prog_arg *dst = &p->instrs[k].dst;
        bool later = same_arg(&p->sink_arg, dst);
        for (int j = k + 1; j < p->n_instrs; j++) {
            const instr *i = &p->instrs[j];
            later |= same_arg(&i->a, dst) || same_arg(&i->b, dst) || same_arg(&i->dst, dst);
        }
        p->instrs[k].last = dst->kind == ARG_MEM && !later;
    }
}

/* Registers are numbered once each while building; here they are shared by those whose lives do not meet. */
static void share_registers(program *p)
{
    int end[PROG_INSTRS + PROG_OPERANDS], at[PROG_INSTRS + PROG_OPERANDS], used = 0;
    int busy[PROG_INSTRS + PROG_OPERANDS];

    for (int r = 0; r < p->n_regs; r++) end[r] = -1, at[r] = -1;
    for (int k = 0; k < p->n_instrs; k++) {
        const prog_arg *args[] = {&p->instrs[k].a, &p->instrs[k].b, &p->instrs[k].dst};
        for (int a = 0; a < 3; a++) {
            if (args[a]->kind == ARG_REG) end[args[a]->index] = k;
            /* The stand-in of a written operand lives to the end: it is copied out behind the last instruction. */
            if (args[a]->kind == ARG_MEM && p->operands[args[a]->index].reg >= 0)
                end[p->operands[args[a]->index].reg] = p->n_instrs;
        }
    }
    if (p->sink_arg.kind == ARG_REG) end[p->sink_arg.index] = p->n_instrs;
    for (int k = 0; k < p->n_instrs; k++) {
        const prog_arg *dst = &p->instrs[k].dst;
        const int r = dst->kind == ARG_REG ? dst->index : p->operands[dst->index].reg;
        int slot = 0;
        if (at[r] >= 0) continue;
        while (slot < used && busy[slot] > k) slot++;
        if (slot == used) used++;
        busy[slot] = end[r] > k ? end[r] : k + 1;
        at[r] = slot;
    }
    for (int k = 0; k < p->n_instrs; k++) {
        prog_arg *args[] = {&p->instrs[k].a, &p->instrs[k].b, &p->instrs[k].dst};
        for (int a = 0; a < 3; a++)
            if (args[a]->kind == ARG_REG) args[a]->index = at[args[a]->index];
    }
    for (int o = 0; o < p->n_operands; o++)
        if (p->operands[o].reg >= 0) p->operands[o].reg = at[p->operands[o].reg];
    if (p->sink_arg.kind == ARG_REG) p->sink_arg.index = at[p->sink_arg.index];
    p->n_regs = used;
}

/* ---- putting it together ---- */

/* Columns of a vertical sink at a time. Wide rows keep the prefetchers at work: B takes 95 ms with rows of 1024,
 * 123 ms with rows of 96 that would fit the first-level cache. Narrower where few columns would leave threads idle.
 */
static int64_t sink_width(const program *p, int64_t units)
{
    int64_t width = cvyi_min64(TILE, cvyi_round_up(p->inner, 16)), others = units;
    for (int d = 0; d < p->reduce_first; d++) others *= p->outer[d];
    while (width > 128 && others * cvyi_ceil_div(p->inner, width) < 8) width = cvyi_round_up(width / 2, 16);
    return width;
}

static void place_sink(assembler *s)
{
    program *p = s->p;
    const node *n = &s->b->g->nodes[s->sink];
    int first, end;

    sink_dims(&s->sp, &first, &end);
    p->sink = cvyi_info(n)->kind == KIND_SOFTMAX ? SINK_SOFTMAX : SINK_REDUCE;
    p->sink_op = n->op;
    p->sink_v = n->out;
    p->reduce_first = first;
    p->horizontal = end == s->sp.n;
    /* Trailing extents of 1 behind the reduced ones make no difference to the order of elements. */
    for (int d = end; d < s->sp.n && !p->horizontal; d++)
        if (s->sp.dim[d] > 1)
            break;
        else if (d == s->sp.n - 1)
            p->horizontal = true;
    if (p->n_coefs && p->horizontal)
        collapse(s, first > s->sp.channel ? first : s->sp.channel + 1);
    else
        collapse(s, p->horizontal ? first : end);
    p->reduce_end = p->horizontal ? p->n_outer : end;
    p->reduced = p->horizontal ? p->inner : 1;
    for (int d = first; d < p->reduce_end; d++) p->reduced *= p->outer[d];
    p->width = sink_width(p, s->b->out->units);
}

static void place_coefs(assembler *s)
{
    program *p = s->p;
    int64_t count = 1;
    if (!p->n_coefs) return;
    p->channel = s->sp.channel;
    p->channels = s->sp.dim[p->channel];
    for (int d = 0; d <= p->channel; d++) count *= s->sp.dim[d];
    for (int i = 0; i < p->n_coefs; i++)
        p->coefs[i].at = cvyi_slice((builder *)(uintptr_t)s->b, (int64_t)sizeof(affine32) * count);
}

static int64_t row_limit(const assembler *s)
{
    int64_t limit = 0;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &s->b->g->nodes[i];
        norm_geom e;
        if (cvyi_info(n)->kind != KIND_APPLY || applies_by_channel(s, n)) continue;
        cvyi_norm_geom(s->b->g, n, &e);
        limit = e.chan;
    }
    return limit;
}

bool cvyi_program_build(const builder *b, int index, int n, int sink, int band, program *out)
{
    assembler s = {.b = b, .p = out, .first = index, .count = n, .sink = sink};
    const int shaped_by = n ? b->g->nodes[index].out : b->g->nodes[sink].arg[0];

    *out = (program){.instrs = out->instrs,
                     .operands = out->operands,
                     .coefs = out->coefs,
                     .channel = -1,
                     .band = -1,
                     .sink_v = CVY_NONE};
    if (n && cvyi_info(&b->g->nodes[index])->kind == KIND_SHAPE)
        s.sp = flat_space(b, shaped_by);
    else
        s.sp = space_of(b, cvyi_shape_of(b->g, shaped_by));
    if (sink >= 0 && !mark_reduced(b, &b->g->nodes[sink], &s.sp)) return false;
    s.run_limit = row_limit(&s);
    for (int i = index; i < index + n; i++) build_node(&s, i);
    if (sink >= 0) out->sink_arg = settle(&s, b->g->nodes[sink].arg[0]);
    if (s.full) return false;
    for (int o = 0; o < out->n_operands; o++)
        if (band != CVY_NONE && out->operands[o].v == band && !out->operands[o].written) out->band = o;
    mark_last(out);
    share_registers(out);
    split_last(&s);
    if (sink >= 0 && !s.sp.reduced) return false;
    if ((out->n_coefs || out->band >= 0) && s.sp.channel < 0) return false;
    if (sink >= 0)
        place_sink(&s);
    else
        collapse(&s, out->n_coefs || out->band >= 0 ? s.sp.channel + 1 : 1);
    place_coefs(&s);
    /* Columns of a sink must be one run; rows of a norm whole runs; channels must not have been joined. */
    if (out->sink != SINK_NONE && !out->horizontal && out->n_outer != out->reduce_end) return false;
    if (s.run_limit && out->inner != s.run_limit) return false;
    return !out->n_coefs || out->n_outer > out->channel;
}

static void *keep(cvy_plan *p, const void *table, int n, size_t size)
{
    void *kept = cvyi_arena_alloc(&p->memory, (size_t)n, size);
    if (kept) memcpy(kept, table, (size_t)n * size);
    return kept;
}

cvy_status cvyi_program_keep(cvy_plan *p, program *made)
{
    made->instrs = keep(p, made->instrs, made->n_instrs, sizeof *made->instrs);
    made->operands = keep(p, made->operands, made->n_operands, sizeof *made->operands);
    made->coefs = keep(p, made->coefs, made->n_coefs, sizeof *made->coefs);
    return made->instrs && made->operands && made->coefs ? CVY_OK : CVY_NO_MEMORY;
}

/* ---- which nodes ---- */

static bool has_row_apply(const builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    norm_geom e;
    if (cvyi_info(n)->kind != KIND_APPLY) return false;
    cvyi_norm_geom(b->g, n, &e);
    return e.inner == 1 && !e.over_outer;
}

int cvyi_program_span(const builder *b, int index, int end)
{
    const shape *s = cvyi_shape_of(b->g, b->g->nodes[index].out);
    int n = 0, rows = 0;
    for (int i = index; i < end && n < PROG_NODES; i++, n++) {
        const node *at = &b->g->nodes[i];
        const op_kind kind = cvyi_info(at)->kind;
        const bool reshape = kind == KIND_SHAPE && b->plan->root[at->out] == at->out && n == 0;
        if (!reshape && !cvyi_is_pointwise(kind)) break;
        if (!cvyi_same_shape(s, cvyi_shape_of(b->g, at->out))) break;
        if (reshape) return 1;
        rows += has_row_apply(b, i);
        if (rows > 1) break; /* two norms by rows may differ in their rows */
    }
    return n;
}
