/* norm.c - norms split into statistics and scale/shift, and affines after them folded in.
 *
 *   norm(x)  =  norm_apply(x, norm_stats(x), weight, bias)            statistics of the data
 *   norm(x)  =  x * a + b,  a = weight / sqrt(var + eps), b = bias - mean * a     statistics given */
#include "simplify.h"

static int set_int(node_spec *s, int at, int64_t number)
{
    s->attr[at] = (attr_value){.set = true, .count = 1, .i = {number}};
    return at + 1;
}

static bool is_data(const editor *e, int v)
{
    return v != CVY_NONE && !e->g->values[v].fixed;
}

/* The data in float32. Values that depend only on parameters are float32 already. */
static int widened(editor *e, int v)
{
    node_spec s;
    if (!is_data(e, v) || e->g->values[v].dtype == CVY_FLOAT32) return v;
    cvyi_spec_init(&s, OP_cast);
    s.n_args = 1;
    s.arg[0] = v;
    set_int(&s, 0, CVY_FLOAT32);
    return cvyi_edit_add(e, &s);
}

/* In fp16 x * scale may be infinite although the result is not, and var + eps may be 0. So everything but the
 * result is float32, in case a pass ends in between. */
static int split_running(editor *e, const node *n, const norm_geom *geom)
{
    const int after = cvyi_shape_of(e->g, n->arg[0])->rank - 2;
    norm_args args;
    int scale, shift, y;

    cvyi_norm_args(n, &args);
    if (is_data(e, args.mean) || is_data(e, args.var) || is_data(e, args.weight) || is_data(e, args.bias)) {
        args.x = widened(e, args.x);
        args.mean = widened(e, args.mean);
        args.var = widened(e, args.var);
        args.weight = widened(e, args.weight);
        args.bias = widened(e, args.bias);
    }
    scale = cvyi_edit_unary(e, OP_rsqrt, cvyi_edit_number(e, OP_add, args.var, geom->eps));
    if (args.weight != CVY_NONE) scale = cvyi_edit_binary(e, OP_mul, scale, args.weight);
    shift = cvyi_edit_unary(e, OP_neg, cvyi_edit_binary(e, OP_mul, args.mean, scale));
    if (args.bias != CVY_NONE) shift = cvyi_edit_binary(e, OP_add, shift, args.bias);
    y = cvyi_edit_binary(e, OP_mul, args.x, cvyi_edit_per_channel(e, scale, 0, after));
    if (is_data(e, y)) cvyi_edit_dtype(e, y, CVY_FLOAT32);
    return cvyi_edit_binary(e, OP_add, y, cvyi_edit_per_channel(e, shift, 0, after));
}

static int split_measured(editor *e, const node *n, const norm_geom *geom)
{
    norm_args args;
    node_spec stats, apply;
    int at = 0;

    cvyi_norm_args(n, &args);
    cvyi_spec_init(&stats, OP_norm_stats);
    stats.n_args = 1;
    stats.arg[0] = args.x;
    at = set_int(&stats, at, geom->groups);
    at = set_int(&stats, at, geom->chan);
    at = set_int(&stats, at, geom->inner);
    stats.attr[at] = (attr_value){.set = true, .count = 1, .f = geom->eps};
    at = set_int(&stats, at + 1, geom->over_outer);
    set_int(&stats, at, geom->centred);

    cvyi_spec_init(&apply, OP_norm_apply);
    apply.n_args = 4;
    apply.arg[0] = args.x;
    apply.arg[1] = cvyi_edit_add(e, &stats);
    apply.arg[2] = args.weight;
    apply.arg[3] = args.bias;
    at = set_int(&apply, 0, geom->groups);
    at = set_int(&apply, at, geom->chan);
    at = set_int(&apply, at, geom->inner);
    set_int(&apply, at, geom->over_outer);
    return cvyi_edit_add(e, &apply);
}

/* Without channels there are no statistics: the result is the empty tensor, as a new value. */
static int empty_norm(editor *e, const node *n)
{
    const shape x = *cvyi_shape_of(e->g, n->arg[0]);
    return cvyi_edit_reshape(e, n->arg[0], x.rank, x.dim);
}

bool cvyi_split_norm(editor *e, int index)
{
    const node n = e->g->nodes[index]; /* a copy: edits move the array */
    norm_geom geom;
    int y;

    if (cvyi_info(&n)->kind != KIND_NORM) return false;
    cvyi_norm_geom(e->g, &n, &geom);
    if (!geom.groups)
        y = empty_norm(e, &n);
    else
        y = geom.running ? split_running(e, &n, &geom) : split_measured(e, &n, &geom);
    cvyi_edit_replace(e, n.out, y);
    return true;
}

/* ---- an affine per channel after the norm goes into its weight and bias ---- */

/* One number per channel as [C]; `like` is the shape the norm has. */
static int as_vector(editor *e, int v, int64_t channels)
{
    const int64_t n = cvyi_elements(cvyi_shape_of(e->g, v));
    return n == channels ? cvyi_edit_reshape(e, v, 1, &channels) : cvyi_edit_reshape(e, v, 0, &channels);
}

typedef struct affine_parts {
    int weight, bias; /* values; CVY_NONE: 1 and 0 */
} affine_parts;

static int times(editor *e, int a, int vector, double number)
{
    if (vector != CVY_NONE) return a == CVY_NONE ? vector : cvyi_edit_binary(e, OP_mul, a, vector);
    return cvyi_edit_number(e, OP_mul, a, number);
}

/* (w, b) after y * v, y + v or y - v. An infinite v multiplies the sum y, not its two parts. */
static bool absorb(editor *e, const node *n, int vector, affine_parts *p)
{
    double number[2];
    const bool is_vector = vector != CVY_NONE;
    cvyi_pointwise_params(n, number);
    if (n->op == OP_mul) {
        if (p->weight == CVY_NONE && !is_vector) return false; /* nothing to multiply the number with */
        p->weight = times(e, p->weight, vector, number[0]);
        if (p->bias != CVY_NONE) p->bias = times(e, p->bias, vector, number[0]);
        return true;
    }
    if (is_vector && number[1] != 1) vector = cvyi_edit_number(e, OP_mul, vector, number[1]);
    if (p->bias == CVY_NONE) {
        if (!is_vector) return false;
        p->bias = n->op == OP_add ? vector : cvyi_edit_unary(e, OP_neg, vector);
    } else if (is_vector) {
        p->bias = cvyi_edit_binary(e, n->op, p->bias, vector);
    } else {
        p->bias = cvyi_edit_number(e, n->op, p->bias, number[0] * number[1]);
    }
    return true;
}

/* Is the affine's element number the channel's: dimension 1, with all after it in `inner`? */
static bool numbered_by_channel(const shape *s, const norm_geom *geom)
{
    int64_t inner = 1;
    for (int i = 2; i < s->rank; i++) inner *= s->dim[i];
    return s->dim[1] == geom->groups * geom->chan && inner == geom->inner;
}

bool cvyi_fold_norm_affine(editor *e, int index)
{
    const node n = e->g->nodes[index];
    const node *maker = cvyi_maker(e->g, n.arg[0]);
    node apply;
    norm_geom geom;
    affine_parts parts;
    int vector = CVY_NONE;

    if (n.op != OP_mul && n.op != OP_add && n.op != OP_sub) return false;
    if (!maker || maker->op != OP_norm_apply || cvyi_readers(e, n.arg[0]) != 1) return false;
    apply = *maker;
    cvyi_norm_geom(e->g, &apply, &geom);
    if (n.op == OP_mul && !cvyi_foldable_factor(e, &n)) return false;
    if (n.arg[1] != CVY_NONE) {
        const shape *s = cvyi_shape_of(e->g, n.out);
        if (!e->g->values[n.arg[1]].fixed || !cvyi_per_channel(e->g, n.arg[1], s)) return false;
        /* The affine of a layer norm is per element, not per channel. */
        if (!numbered_by_channel(s, &geom) || cvyi_elements(cvyi_shape_of(e->g, n.arg[1])) != s->dim[1])
            return false;
        if (!cvyi_same_shape(s, cvyi_shape_of(e->g, apply.out))) return false;
        for (int i = 2; i < 4; i++) /* a layer norm's over several dimensions is not a vector */
            if (apply.arg[i] != CVY_NONE && cvyi_shape_of(e->g, apply.arg[i])->rank != 1) return false;
        vector = as_vector(e, n.arg[1], s->dim[1]);
    }
    parts = (affine_parts){apply.arg[2], apply.arg[3]};
    if (!absorb(e, &n, vector, &parts)) return false;
    apply.arg[2] = parts.weight;
    apply.arg[3] = parts.bias;
    for (int i = 2; i < 4 && n.op == OP_mul; i++) cvyi_edit_watch(e, apply.arg[i]);
    cvyi_edit_replace(e, n.out, cvyi_edit_like(e, &apply, apply.arg));
    return true;
}
