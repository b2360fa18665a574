/* pointwise.c - pointwise operators merged, and operators that do nothing dropped. */
#include <math.h>
#include "simplify.h"

/* hardswish(t) = t * clamp(t + 3, 0, 6) / 6, and |tanh| <= 1 never reaches a bound. */
bool cvyi_merge_tanh_hardswish(editor *e, int index)
{
    const node n = e->g->nodes[index];
    const node *maker = cvyi_maker(e->g, n.arg[0]);
    if (n.op != OP_hardswish || !maker || maker->op != OP_tanh || cvyi_readers(e, n.arg[0]) != 1) return false;
    cvyi_edit_replace(e, n.out, cvyi_edit_unary(e, OP_tanh_hardswish, maker->arg[0]));
    return true;
}

/* The bounds of an operator that is a clamp, NaN kept. */
static bool bounds_of(const node *n, double *low, double *high)
{
    double p[2];
    cvyi_pointwise_params(n, p);
    *low = n->op == OP_relu || n->op == OP_relu6 ? 0 : p[0];
    *high = n->op == OP_relu ? INFINITY : n->op == OP_relu6 ? 6 : p[1];
    return n->op == OP_relu || n->op == OP_relu6 || n->op == OP_clamp || n->op == OP_hardtanh;
}

/* clamp(clamp(x, a, b), c, d), the inner interval moved into the outer one. PyTorch's clamp gives the upper bound
 * where bounds cross, so crossing ones are left alone. */
bool cvyi_merge_clamp(editor *e, int index)
{
    const node n = e->g->nodes[index];
    const node *maker = cvyi_maker(e->g, n.arg[0]);
    double a, b, c, d;
    node_spec s;

    if (!maker || !bounds_of(&n, &c, &d) || !bounds_of(maker, &a, &b)) return false;
    if (cvyi_readers(e, n.arg[0]) != 1 || !(a <= b) || !(c <= d)) return false;
    cvyi_spec_init(&s, OP_clamp);
    s.n_args = 1;
    s.arg[0] = maker->arg[0];
    s.attr[0] = (attr_value){.set = true, .count = 1, .f = fmin(fmax(a, c), d)};
    s.attr[1] = (attr_value){.set = true, .count = 1, .f = fmin(fmax(b, c), d)};
    cvyi_edit_replace(e, n.out, cvyi_edit_add(e, &s));
    return true;
}

static bool number_of(const node *n, double *number)
{
    double p[2];
    cvyi_pointwise_params(n, p);
    *number = n->op == OP_sub ? -p[0] * p[1] : n->op == OP_add ? p[0] * p[1] : p[0];
    return n->n_args > 1 && n->arg[1] == CVY_NONE && isfinite(*number);
}

/* (x * a) * b = x * (a b) and (x + a) + b = x + (a + b), if the new number is an ordinary one. */
bool cvyi_merge_number(editor *e, int index)
{
    const node n = e->g->nodes[index];
    const node *maker = cvyi_maker(e->g, n.arg[0]);
    const bool sum = n.op == OP_add || n.op == OP_sub;
    double a, b, merged;

    if (!maker || cvyi_readers(e, n.arg[0]) != 1) return false;
    if (sum ? maker->op != OP_add && maker->op != OP_sub : n.op != OP_mul || maker->op != OP_mul) return false;
    if (!number_of(&n, &b) || !number_of(maker, &a)) return false;
    merged = sum ? a + b : a * b;
    if (!sum && (fabs(merged) > 1e30 || fabs(merged) < 1e-30)) return false;
    cvyi_edit_replace(e, n.out, cvyi_edit_number(e, sum ? OP_add : OP_mul, maker->arg[0], merged));
    return true;
}

bool cvyi_drop_identity(editor *e, int index)
{
    const node n = e->g->nodes[index];
    double number;
    bool nothing = n.op == OP_dropout || n.op == OP_cast;
    if (cvyi_info(&n)->kind == KIND_BINARY && number_of(&n, &number))
        nothing = (n.op == OP_mul || n.op == OP_div) && number == 1; /* x + 0 turns -0 into 0 */
    if (e->g->values[n.out].dtype != e->g->values[n.arg[0]].dtype) return false;
    if (!nothing || !cvyi_maker(e->g, n.arg[0])) return false; /* an output cannot be an input */
    if (e->g->values[n.arg[0]].output) return false;           /* nor the same output twice */
    cvyi_edit_replace(e, n.out, n.arg[0]);
    return true;
}

/* A sum, mean, maximum, minimum or logsumexp of one element is the element. Sums and means begin with 0, and
 * 0 + -0 is 0: a division by the result would show the sign. */
bool cvyi_reduce_one(editor *e, int index)
{
    const node n = e->g->nodes[index];
    const shape *x = cvyi_shape_of(e->g, n.arg[0]);
    const shape out = *cvyi_shape_of(e->g, n.out);
    unsigned dims;
    int one;
    if (cvyi_info(&n)->kind != KIND_REDUCE) return false;
    if (e->g->values[n.out].dtype != e->g->values[n.arg[0]].dtype) return false; /* no reshape */
    dims = cvyi_reduced_dims(e->g, &n);
    for (int d = 0; d < x->rank; d++)
        if (dims >> d & 1 && x->dim[d] != 1) return false;
    one = cvyi_edit_reshape(e, n.arg[0], out.rank, out.dim);
    if (n.op != OP_max && n.op != OP_min) one = cvyi_edit_number(e, OP_add, one, 0);
    cvyi_edit_replace(e, n.out, one);
    return true;
}
