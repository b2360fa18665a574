/* title.c - what a printed plan calls a value.
 *
 * Tensors of the caller's graph are called by their names, and so are values that replaced one in a rewrite. Values
 * that depend only on parameters, such as folded weights, are called by the formula that computes them:
 * conv2d.weight*scale. It omits reshapes, because the extents are printed. */
#include <math.h>
#include "plan.h"

enum { DEEPEST = 7 }; /* operators within one another; what is below is "..." */

static void add_formula(const cvy_graph *g, int v, int depth, text *t);

static const char *sign_of(op_id op)
{
    return op == OP_add ? "+" : op == OP_sub ? "-" : op == OP_mul ? "*" : op == OP_div ? "/" : NULL;
}

/* The node whose formula is printed for v; NULL: v has a name. */
static const node *formula_of(const cvy_graph *g, int v)
{
    const value *of = &g->values[v];
    return of->node >= 0 && of->fixed && !of->title && !g->nodes[of->node].named ? &g->nodes[of->node] : NULL;
}

/* v without the reshapes that follow it. */
static int shaped(const cvy_graph *g, int v)
{
    const node *n = formula_of(g, v);
    while (n && cvyi_info(n)->kind == KIND_SHAPE) {
        v = n->arg[0];
        n = formula_of(g, v);
    }
    return v;
}

/* An operand of a product; sums, and the second operand of a difference or a quotient, need brackets. */
static void add_operand(const cvy_graph *g, int v, bool second, op_id of, int depth, text *t)
{
    const node *n = formula_of(g, v = shaped(g, v));
    const char *sign = n ? sign_of(n->op) : NULL;
    const bool sum = sign && (n->op == OP_add || n->op == OP_sub), product = sign && !sum;
    const bool brackets = depth > 0 && ((sum && (of == OP_mul || of == OP_div)) ||
                                        (sum && second && of == OP_sub) || (product && second && of == OP_div));

    cvyi_text_add(t, brackets ? "(" : "");
    add_formula(g, v, depth, t);
    cvyi_text_add(t, brackets ? ")" : "");
}

static void add_binary(const cvy_graph *g, const node *n, int depth, text *t)
{
    double p[2];

    cvyi_pointwise_params(n, p);
    add_operand(g, n->arg[0], false, n->op, depth, t);
    cvyi_text_add(t, "%s", sign_of(n->op));
    if (n->arg[1] == CVY_NONE)
        cvyi_text_add(t, "%.6g", p[0]);
    else
        add_operand(g, n->arg[1], true, n->op, depth, t);
}

static void add_formula(const cvy_graph *g, int v, int depth, text *t)
{
    const node *n = formula_of(g, v = shaped(g, v));
    double p[2];

    if (!n) {
        cvyi_text_add(t, "%s", g->values[v].title ? g->values[v].title : g->values[v].name);
        return;
    }
    if (!depth) {
        cvyi_text_add(t, "...");
        return;
    }
    cvyi_pointwise_params(n, p);
    if (sign_of(n->op) && p[1] == 1) { /* alpha, if there is one */
        add_binary(g, n, depth - 1, t);
        return;
    }
    cvyi_text_add(t, "%s(", cvyi_info(n)->name);
    for (int a = 0; a < n->n_args; a++) {
        if (n->arg[a] == CVY_NONE) continue;
        cvyi_text_add(t, a ? "," : "");
        add_formula(g, n->arg[a], depth - 1, t);
    }
    cvyi_text_add(t, ")");
}

void cvyi_print_title(const cvy_graph *g, int v, text *t)
{
    add_formula(g, v, DEEPEST, t);
}
