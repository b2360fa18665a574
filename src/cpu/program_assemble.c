/* program_assemble.c - pointwise nodes into instructions. See program_build.h. */
#include "choice.h"
#include "program_build.h"

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
    cvyi_strides_in(s->g, &s->sp, v, s->strides[p->n_operands]);
    return p->n_operands++;
}

static int new_reg(assembler *s)
{
    return s->p->n_regs++;
}

static instr *emit(assembler *s, instr_kind kind)
{
    instr *i = &s->lost_instr;
    if (s->p->n_instrs == PROG_INSTRS)
        s->full = true;
    else
        i = &s->p->instrs[s->p->n_instrs++];
    *i = (instr){.kind = kind, .coef = -1, .stats = CVY_NONE};
    return i;
}

/* Is the root stored minus its channels' means? */
static bool lies_centred(const site *at, int root)
{
    return at->choice && cvyi_made_inside(at->plan, at->pass, root) &&
           cvyi_node_choice(at->pass, at->choice, at->plan->graph->values[root].node)->centred;
}

static bool read_outside(const assembler *s, int v)
{
    const pass *at = s->at->pass;
    for (int i = s->g->values[v].node + 1; i <= s->at->plan->last_reader[v] && i < at->first + at->count; i++) {
        const node *n = &s->g->nodes[i];
        if ((i >= s->first && i < s->first + s->count) || i == s->sink) continue;
        for (int a = 0; a < n->n_args; a++)
            if (n->arg[a] == v) return true;
    }
    return false;
}

/* Must the value be in memory, because a step other than this program reads it, or because it is needed after
 * the pass. */
static bool leaves(const assembler *s, int v)
{
    if (s->at->room) return cvyi_spot(s->at->room, v)->kind != SPOT_NONE;
    return cvyi_needed_after(s->at->plan, s->at->pass, v) || read_outside(s, v);
}

static prog_arg destination(assembler *s, int v)
{
    if (v != CVY_NONE && leaves(s, v)) {
        const int o = new_operand(s, v, true);
        s->p->operands[o].reg = new_reg(s);
        s->p->operands[o].stream = s->at->room && cvyi_spot(s->at->room, v)->kind == SPOT_TENSOR &&
                                   cvyi_past_caches(s->at->plan->state, cvyi_value_bytes(s->g, v));
        return (prog_arg){ARG_MEM, o, 0};
    }
    return (prog_arg){ARG_REG, new_reg(s), 0};
}

static holder *hold(assembler *s, int v, prog_arg arg, int pending)
{
    holder *h = &s->lost_holder;
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

/* The argument for a value that an instruction is about to read; the first read of an outside value makes it an
 * operand, with its shift as a pending chain if a convolution left it centred. */
static holder *find(assembler *s, int v)
{
    int which = -1, o;
    const int root = s->at->plan->root[v];
    for (int i = 0; i < s->n_held; i++)
        if (s->held[i].v == v) return &s->held[i];
    /* There are no reshapes inside a program; one before it shares its root's memory. */
    o = new_operand(s, v, false);
    if (s->g->values[root].dtype != CVY_FLOAT32 && s->g->values[root].kind != VALUE_PARAM)
        s->p->operands[o].reg = new_reg(s);
    if (lies_centred(s->at, root)) {
        which = new_coef(s);
        chain(s, which, (coef_op){.kind = COEF_SHIFT, .v = root});
    }
    return hold(s, v, (prog_arg){ARG_MEM, o, 0}, which);
}

prog_arg cvyi_settle(assembler *s, int v)
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
    if (!s->at->plan->prepared[v] || c < 0) return false;
    cvyi_strides_in(s->g, &s->sp, v, stride);
    for (int d = 0; d < s->sp.n; d++)
        if (d != c && s->sp.dim[d] > 1 && stride[d]) return false;
    return cvyi_elements(cvyi_shape_of(s->g, v)) == s->sp.dim[c] || cvyi_elements(cvyi_shape_of(s->g, v)) == 1;
}

bool cvyi_applies_by_channel(const assembler *s, const node *n)
{
    norm_geom e;
    const int c = s->sp.channel;
    cvyi_norm_geom(s->g, n, &e);
    return c >= 0 && e.groups * e.chan == s->sp.dim[c] &&
           (e.inner > 1 || e.over_outer || lies_centred(s->at, s->at->plan->root[n->arg[0]]));
}

/* A careful plan's factors are not joined: their product may be beyond the floats if what they scale is 0. */
static bool extends_chain(const assembler *s, const node *n, const holder *h)
{
    if (h->coef < 0 || s->at->plan->mode == REWRITE_CAREFUL) return false;
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

/* A value that exists only as a pending chain must be computed if it has to be stored. */
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

/* Weight or bias of a norm by rows: element number i of the normalised ones, wherever their dimensions are. */
static prog_arg row_affine(assembler *s, const node *n, int v)
{
    const prog_arg a = cvyi_settle(s, v);
    norm_geom e;
    int64_t own = 1;

    cvyi_norm_geom(s->g, n, &e);
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
    prog_arg x = cvyi_settle(s, n->arg[0]);
    const bool weight = n->arg[2] != CVY_NONE, bias = n->arg[3] != CVY_NONE;
    const prog_arg dst = destination(s, n->out);
    const prog_arg w = weight ? row_affine(s, n, n->arg[2]) : x, shift = bias ? row_affine(s, n, n->arg[3]) : x;
    norm_geom e;

    cvyi_norm_geom(s->g, n, &e);
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
    const node *n = &s->g->nodes[index];
    coef_op apply = {.kind = COEF_APPLY, .v = CVY_NONE, .index = index};
    holder *h;
    int which;
    if (!cvyi_applies_by_channel(s, n)) {
        build_apply_row(s, n);
        return;
    }
    cvyi_norm_geom(s->g, n, &apply.norm);
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
    i.a = cvyi_settle(s, n->arg[0]);
    if (binary) i.b = n->arg[1] == CVY_NONE ? (prog_arg){ARG_NUM, 0, (float)p[0]} : cvyi_settle(s, n->arg[1]);
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
    const prog_arg a = cvyi_settle(s, n->arg[0]);
    instr *i = emit(s, INSTR_COPY);
    i->a = a;
    i->dst = destination(s, n->out);
    hold(s, n->out, i->dst, -1);
}

void cvyi_assemble_node(assembler *s, int index)
{
    const node *n = &s->g->nodes[index];
    const op_kind kind = cvyi_info(n)->kind;
    if (kind == KIND_APPLY) {
        build_apply(s, index);
    } else if (kind == KIND_SHAPE) {
        if (s->at->plan->root[n->out] == n->out) build_copy(s, n);
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
