/* producer.c - linear operators after a producer are folded into its weights.
 *
 *   (conv(x, W, b) + v) * s     =  conv(x, W s, (b + v) s)                     v, s per output channel or numbers
 *   sum or mean over the outputs of linear or over the channels of a convolution: the same of weights and bias
 *   the mean over all pixels of a convolution: the windows each tap sees are averaged first, then one small product
 */
#include "simplify.h"

/* ---- affine per channel ---- */

/* A per-channel value as one number per output of the producer, or a scalar. */
static int as_outputs(editor *e, int v, int64_t K)
{
    const int64_t n = cvyi_elements(cvyi_shape_of(e->g, v));
    return cvyi_edit_reshape(e, v, n == K && K > 1 ? 1 : 0, &K);
}

/* [K] (or a number) against the weight's dimensions: outputs first; transposed convolutions have them second. */
static int against_weight(editor *e, const node *producer, int v)
{
    const int rank = cvyi_shape_of(e->g, producer->arg[1])->rank;
    if (v == CVY_NONE || cvyi_shape_of(e->g, v)->rank == 0) return v;
    return cvyi_edit_per_channel(e, v, 0, rank - 1);
}

/* Is `of` the dimension of outputs of the result, where per-channel values are? */
static bool channels_are_outputs(const cvy_graph *g, const node *producer)
{
    const shape *y = cvyi_shape_of(g, producer->out);
    if (cvyi_info(producer)->kind == KIND_CONV) return y->rank == cvyi_info(producer)->spatial + 2;
    return cvyi_info(producer)->kind == KIND_LINEAR && y->rank == 2;
}

static void set_bias(node *n)
{
    for (int i = 0; i < cvyi_info(n)->n_attrs; i++)
        if (cvyi_info(n)->attrs[i].kind == ATTR_BOOL) n->attr[i] = (attr_value){.set = true, .count = 1, .i = {1}};
}

static bool scale_producer(editor *e, node *c, int vector, double number)
{
    if (vector != CVY_NONE) {
        c->arg[1] = cvyi_edit_binary(e, OP_mul, c->arg[1], against_weight(e, c, vector));
        if (c->arg[2] != CVY_NONE) c->arg[2] = cvyi_edit_binary(e, OP_mul, c->arg[2], vector);
    } else {
        c->arg[1] = cvyi_edit_number(e, OP_mul, c->arg[1], number);
        if (c->arg[2] != CVY_NONE) c->arg[2] = cvyi_edit_number(e, OP_mul, c->arg[2], number);
    }
    return true;
}

/* By a number for each of K outputs, or for all: p[0]; times p[1]. */
static bool shift_producer(editor *e, node *c, op_id op, int vector, const double p[2], int64_t K)
{
    const double alpha = p[1];

    if (vector != CVY_NONE && alpha != 1) vector = cvyi_edit_number(e, OP_mul, vector, alpha);
    if (c->arg[2] != CVY_NONE) {
        c->arg[2] = vector != CVY_NONE ? cvyi_edit_binary(e, op, c->arg[2], vector)
                                       : cvyi_edit_number(e, op, c->arg[2], p[0] * alpha);
        return true;
    }
    /* Without a bias there must be one number per output to become it. */
    if (vector == CVY_NONE || cvyi_elements(cvyi_shape_of(e->g, vector)) != K) return false;
    if (cvyi_shape_of(e->g, vector)->rank == 0) vector = cvyi_edit_reshape(e, vector, 1, &K);
    c->arg[2] = op == OP_add ? vector : cvyi_edit_unary(e, OP_neg, vector);
    set_bias(c);
    return true;
}

bool cvyi_fold_conv_affine(editor *e, int index)
{
    const node n = e->g->nodes[index];
    const node *maker = cvyi_maker(e->g, n.arg[0]);
    const shape *y;
    node c;
    double p[2];
    int vector = CVY_NONE;
    int64_t K;

    if ((n.op != OP_mul && n.op != OP_add && n.op != OP_sub) || !maker || !channels_are_outputs(e->g, maker))
        return false;
    if (cvyi_readers(e, n.arg[0]) != 1 || !e->g->values[maker->arg[1]].fixed) return false;
    if (n.op == OP_mul && !cvyi_foldable_factor(e, &n)) return false;
    if (maker->arg[2] != CVY_NONE && !e->g->values[maker->arg[2]].fixed) return false;
    y = cvyi_shape_of(e->g, n.out);
    if (!cvyi_same_shape(y, cvyi_shape_of(e->g, maker->out))) return false;
    if (n.arg[1] != CVY_NONE && (!e->g->values[n.arg[1]].fixed || !cvyi_per_channel(e->g, n.arg[1], y)))
        return false;
    K = y->dim[1];
    c = *maker;
    cvyi_pointwise_params(&n, p);
    if (n.op != OP_mul && c.arg[2] == CVY_NONE &&
        (n.arg[1] == CVY_NONE || cvyi_elements(cvyi_shape_of(e->g, n.arg[1])) != K))
        return false;
    if (n.arg[1] != CVY_NONE) vector = as_outputs(e, n.arg[1], K);
    if (n.op == OP_mul ? !scale_producer(e, &c, vector, p[0]) : !shift_producer(e, &c, n.op, vector, p, K))
        return false;
    for (int i = 1; i < 3 && n.op == OP_mul; i++) cvyi_edit_watch(e, c.arg[i]);
    cvyi_edit_replace(e, n.out, cvyi_edit_like(e, &c, c.arg));
    return true;
}

/* ---- linear reductions ----
 *
 * An infinite x times weights of both signs is NaN if the products are added, not if the weights are: the sum over
 * outputs is watched itself. A mean over pixels keeps each product's tap, so x is not watched; but an infinite
 * weight multiplies the mean of the pixels instead of each of them. */

static int reduce_first_dim(editor *e, op_id op, int v)
{
    node_spec s;
    if (v == CVY_NONE) return CVY_NONE;
    cvyi_spec_init(&s, op);
    s.n_args = 1;
    s.arg[0] = v;
    s.attr[0] = (attr_value){.set = true, .count = 1, .i = {0}};
    s.attr[1] = (attr_value){.set = true, .count = 1, .i = {1}};
    return cvyi_edit_add(e, &s);
}

/* The producer with one output, the sum or mean of all; the reduced dimension then has extent 1. */
static bool reduce_outputs(editor *e, const node *n, const node *maker)
{
    node c = *maker;
    int y;
    int64_t dims[CVY_MAX_RANK];
    const shape out = *cvyi_shape_of(e->g, n->out);

    const op_id op = n->op == OP_sum ? OP_sum : OP_mean; /* adaptive pooling to 1 is a mean */

    c.arg[1] = reduce_first_dim(e, op, maker->arg[1]);
    if (maker->arg[2] != CVY_NONE) c.arg[2] = reduce_first_dim(e, op, maker->arg[2]);
    c.attr[0] = (attr_value){.set = true, .count = 1, .i = {1}};
    y = cvyi_edit_like(e, &c, c.arg);
    cvyi_edit_watch(e, y);
    for (int i = 0; i < out.rank; i++) dims[i] = out.dim[i];
    cvyi_edit_replace(e, n->out, cvyi_edit_reshape(e, y, out.rank, dims));
    return true;
}

/* Every tap of the convolution sees one window of the padded input, as large as the result. */
static bool mean_of_pixels(editor *e, const node *n, const node *maker)
{
    const node c = *maker;
    conv_geom g;
    node_spec pool, linear;
    const int spatial = cvyi_info(&c)->spatial;
    const shape out = *cvyi_shape_of(e->g, n->out);
    int64_t flat[2], weight[2];
    int x, y;

    cvyi_conv_geom(e->g, &c, &g);
    for (int a = 3 - spatial; a < 3; a++)
        if (g.stride[a] != 1 || g.dil[a] != 1 || g.pad[a] > g.out[a] / 2 ||
            g.in[a] + 2 * g.pad[a] != g.out[a] + g.kernel[a] - 1)
            return false;
    cvyi_spec_init(&pool, spatial == 1 ? OP_avg_pool1d : spatial == 2 ? OP_avg_pool2d : OP_avg_pool3d);
    pool.n_args = 1;
    pool.arg[0] = c.arg[0];
    for (int i = 0; i < 3; i++) pool.attr[i] = (attr_value){.set = true, .count = spatial};
    for (int i = 0; i < spatial; i++) {
        pool.attr[0].i[i] = g.out[3 - spatial + i];
        pool.attr[1].i[i] = 1;
        pool.attr[2].i[i] = g.pad[3 - spatial + i];
    }
    flat[0] = g.N, flat[1] = g.C * g.kernel[0] * g.kernel[1] * g.kernel[2];
    weight[0] = g.K, weight[1] = flat[1];
    x = cvyi_edit_reshape(e, cvyi_edit_add(e, &pool), 2, flat);
    cvyi_spec_init(&linear, OP_linear);
    linear.n_args = 3;
    linear.arg[0] = x;
    linear.arg[1] = cvyi_edit_reshape(e, c.arg[1], 2, weight);
    linear.arg[2] = c.arg[2];
    linear.attr[0] = (attr_value){.set = true, .count = 1, .i = {g.K}};
    linear.attr[1] = (attr_value){.set = true, .count = 1, .i = {c.arg[2] != CVY_NONE}};
    cvyi_edit_watch(e, c.arg[1]);
    y = cvyi_edit_add(e, &linear);
    if (e->g->values[c.out].watched) cvyi_edit_watch(e, y);
    cvyi_edit_replace(e, n->out, cvyi_edit_reshape(e, y, out.rank, out.dim));
    return true;
}

/* Is an adaptive pooling's window the whole plane? */
static bool one_window(const cvy_graph *g, const node *n)
{
    pool_geom p;
    cvyi_pool_geom(g, n, &p);
    return p.out[0] * p.out[1] * p.out[2] == 1;
}

bool cvyi_reduce_producer(editor *e, int index)
{
    const node n = e->g->nodes[index];
    const op_kind kind = cvyi_info(&n)->kind;
    const node *maker = cvyi_maker(e->g, n.arg[0]);
    const bool average = kind == KIND_ADAPTIVE || n.op == OP_mean;
    unsigned dims, pixels;
    int rank;

    if ((n.op != OP_sum && !average) || e->mode == REWRITE_CAREFUL) return false;
    if (!maker || (maker->op != OP_linear && cvyi_info(maker)->kind != KIND_CONV)) return false;
    if (cvyi_readers(e, n.arg[0]) != 1 || !e->g->values[maker->arg[1]].fixed) return false;
    rank = cvyi_shape_of(e->g, maker->out)->rank;
    if (kind == KIND_ADAPTIVE && !one_window(e->g, &n)) return false;
    pixels = ((1u << rank) - 1) & ~3u;
    /* a pooling's own dimensions: without a batch, more of them than the maker has */
    dims = kind == KIND_ADAPTIVE ? ((1u << cvyi_info(&n)->spatial) - 1) << (rank - cvyi_info(&n)->spatial)
                                 : cvyi_reduced_dims(e->g, &n);
    if (maker->op == OP_linear) return dims == 1u << (rank - 1) && rank > 1 && reduce_outputs(e, &n, maker);
    if (rank != cvyi_info(maker)->spatial + 2 || cvyi_attr(maker, "groups")->i[0] != 1) return false;
    if (cvyi_shape_of(e->g, maker->out)->dim[0] == 0) return false;
    if (dims == 2u) return reduce_outputs(e, &n, maker);
    return average && dims == pixels && mean_of_pixels(e, &n, maker);
}
