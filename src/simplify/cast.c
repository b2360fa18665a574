/* cast.c - conversions of dtype that another operator can do.
 *
 * A value is rounded when it is stored, and a cast only says to which dtype; between two operators of a pass
 * nothing is rounded. So a cast can be removed if the operator before it stores its result in the cast's dtype, or
 * if a convolution follows, which rounds its operands anyway. The remaining casts are pointwise operators that only
 * load and store. No rewrite adds a rounding; infinities that a narrow intermediate dtype would have produced may
 * be missing, as everywhere in a pass. */
#include "simplify.h"

static cvy_dtype dtype_of(const node *cast)
{
    return (cvy_dtype)cast->attr[0].i[0];
}

/* cast(cast(x, a), b) = cast(x, b), except for the rounding to a. */
bool cvyi_merge_cast(editor *e, int index)
{
    const node n = e->g->nodes[index];
    const node *maker = cvyi_maker(e->g, n.arg[0]);
    int args[MAX_ARGS] = {0};

    if (n.op != OP_cast || !maker || maker->op != OP_cast || e->g->values[n.out].fixed) return false;
    args[0] = maker->arg[0];
    cvyi_edit_replace(e, n.out, cvyi_edit_like(e, &n, args));
    return true;
}

/* Do only nodes of this kind read v? */
static bool all_readers(const editor *e, int v, bool (*is_wanted)(const node *n, int arg, cvy_dtype dtype),
                        cvy_dtype dtype)
{
    int uses = 0;

    for (int use = e->first_use[v]; use >= 0; use = e->next_use[use]) {
        const int by = use / MAX_ARGS;
        if (e->dead[by]) continue;
        if (!is_wanted(&e->g->nodes[by], use % MAX_ARGS, dtype)) return false;
        uses++;
    }
    return uses == cvyi_readers(e, v); /* else it is an output, too */
}

static bool is_cast_to(const node *n, int arg, cvy_dtype dtype)
{
    (void)arg;
    return n->op == OP_cast && dtype_of(n) == dtype;
}

/* The operator before the cast stores its result in the cast's dtype, if all readers take that. A reshape gives
 * the same memory another shape, statistics are float32. */
bool cvyi_cast_result(editor *e, int index)
{
    cvy_graph *g = e->g;
    const node n = g->nodes[index];
    const node *maker = cvyi_maker(g, n.arg[0]);

    if (n.op != OP_cast || !maker || g->values[n.arg[0]].fixed) return false;
    if (cvyi_info(maker)->kind == KIND_SHAPE || cvyi_info(maker)->kind == KIND_STATS) return false;
    if (!all_readers(e, n.arg[0], is_cast_to, dtype_of(&n))) return false;
    cvyi_edit_dtype(e, n.arg[0], dtype_of(&n));
    cvyi_edit_replace(e, n.out, n.arg[0]);
    return true;
}

static bool is_convolved(const node *n, int arg, cvy_dtype dtype)
{
    (void)dtype;
    return arg == 0 && (cvyi_info(n)->kind == KIND_CONV || cvyi_info(n)->kind == KIND_CONVT);
}

/* A convolution takes float32 and rounds it itself, if no other reader needs it rounded. */
bool cvyi_cast_operand(editor *e, int index)
{
    cvy_graph *g = e->g;
    const node n = g->nodes[index];
    const node *cast = cvyi_maker(g, n.arg[0]);
    int args[MAX_ARGS], x, made;

    if (!is_convolved(&n, 0, CVY_FLOAT32) || !cast || cast->op != OP_cast || g->values[n.out].fixed) return false;
    x = cast->arg[0];
    if (g->values[x].dtype != CVY_FLOAT32 || !all_readers(e, n.arg[0], is_convolved, CVY_FLOAT32)) return false;
    for (int i = 0; i < MAX_ARGS; i++) args[i] = n.arg[i];
    args[0] = x;
    made = cvyi_edit_like(e, &n, args);
    if (made == CVY_NONE) return false;
    g = e->g;
    g->nodes[g->values[made].node].halved = true;
    cvyi_edit_replace(e, n.out, made);
    return true;
}
