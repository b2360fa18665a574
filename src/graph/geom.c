/* geom.c - a node's numbers in the form that all engines read. Nodes are legal: shape.c has checked them. */
#include <math.h>
#include <string.h>
#include "graph.h"

static int64_t spatial_at(const attr_value *a, int axis)
{
    return a->i[a->count > 1 ? axis : 0];
}

/* Runs over the spatial axes that exist: canonical axis `a` (0..2), attribute axis `i`, dimension `d` of the
 * tensor. */
#define FOR_AXES(spatial, rank)                                                                                    \
    for (int a = 3 - (spatial), i = 0, d = (rank) - (spatial); i < (spatial); a++, i++, d++)

void cvyi_conv_geom(const cvy_graph *g, const node *n, conv_geom *out)
{
    const op_info *op = cvyi_info(n);
    const shape *x = cvyi_shape_of(g, n->arg[0]), *y = cvyi_shape_of(g, n->out);
    const attr_value *padding = cvyi_attr(n, "padding");
    const int channels = x->rank - op->spatial - 1;

    *out = (conv_geom){.N = channels ? x->dim[0] : 1, .C = x->dim[channels], .K = y->dim[channels]};
    out->groups = cvyi_attr(n, "groups")->i[0];
    out->spatial = op->spatial;
    out->bias = n->arg[2] != CVY_NONE;
    for (int a = 0; a < 3; a++) out->in[a] = out->out[a] = out->kernel[a] = out->stride[a] = out->dil[a] = 1;
    FOR_AXES(op->spatial, x->rank)
    {
        out->in[a] = x->dim[d];
        out->out[a] = y->dim[d];
        out->kernel[a] = spatial_at(cvyi_attr(n, "kernel_size"), i);
        out->stride[a] = spatial_at(cvyi_attr(n, "stride"), i);
        out->dil[a] = spatial_at(cvyi_attr(n, "dilation"), i);
        out->pad[a] = spatial_at(padding, i);
        if (padding->i[0] == PAD_SAME) out->pad[a] = out->dil[a] * (out->kernel[a] - 1) / 2;
        if (padding->i[0] == PAD_VALID) out->pad[a] = 0;
    }
}

void cvyi_pool_geom(const cvy_graph *g, const node *n, pool_geom *out)
{
    const op_info *op = cvyi_info(n);
    const shape *x = cvyi_shape_of(g, n->arg[0]), *y = cvyi_shape_of(g, n->out);
    const attr_value *stride = cvyi_attr(n, "stride"), *dilation = cvyi_attr(n, "dilation");

    *out = (pool_geom){.planes = 1, .spatial = op->spatial};
    for (int i = 0; i < x->rank - op->spatial; i++) out->planes *= x->dim[i];
    for (int a = 0; a < 3; a++) out->in[a] = out->out[a] = out->kernel[a] = out->stride[a] = out->dil[a] = 1;
    FOR_AXES(op->spatial, x->rank)
    {
        out->in[a] = x->dim[d];
        out->out[a] = y->dim[d];
        out->kernel[a] = out->stride[a] = x->dim[d];
        if (op->kind == KIND_ADAPTIVE) continue;
        out->kernel[a] = spatial_at(cvyi_attr(n, "kernel_size"), i);
        out->stride[a] = stride->count ? spatial_at(stride, i) : out->kernel[a];
        out->pad[a] = spatial_at(cvyi_attr(n, "padding"), i);
        if (dilation) out->dil[a] = spatial_at(dilation, i);
    }
    if (op->kind == KIND_AVGPOOL) {
        out->count_include_pad = cvyi_attr_true(n, "count_include_pad");
        out->divisor = cvyi_attr(n, "divisor_override")->i[0];
    }
}

int64_t cvyi_pool_divisor(const pool_geom *p, const int64_t start[3])
{
    int64_t with_pad = 1, without = 1;
    for (int a = 0; a < 3; a++) {
        /* A window may hang over the right padding in ceil mode: that part never counts. */
        const int64_t end = cvyi_min64(start[a] + p->kernel[a], p->in[a] + p->pad[a]);
        with_pad *= end - start[a];
        without *= cvyi_max64(cvyi_min64(end, p->in[a]) - cvyi_max64(start[a], 0), 0);
    }
    return p->divisor ? p->divisor : p->count_include_pad ? with_pad : without;
}

/* ---- matmul ---- */

/* Broadcast batch dimensions of x and other, their strides counted in matrices. */
static void batch_strides(const shape *s, int batch, int64_t *out)
{
    int64_t step = 1;
    for (int i = batch - 1; i >= 0; i--) {
        const int d = i - (batch - (s->rank - 2));
        out[i] = d < 0 || s->dim[d] == 1 ? 0 : step;
        if (d >= 0) step *= s->dim[d];
    }
}

void cvyi_matmul_geom(const cvy_graph *g, const node *n, matmul_geom *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]), *w = cvyi_shape_of(g, n->arg[1]), *y = cvyi_shape_of(g, n->out);
    const bool linear = cvyi_info(n)->kind == KIND_LINEAR;

    *out = (matmul_geom){.batch = 1, .M = 1, .other_is_nk = linear, .bias = linear && n->arg[2] != CVY_NONE};
    out->K = x->dim[x->rank - 1];
    out->N = linear ? w->dim[0] : w->rank > 1 ? w->dim[w->rank - 1] : 1;
    if (w->rank <= 2) {
        for (int i = 0; i < x->rank - 1; i++) out->M *= x->dim[i];
        return;
    }
    if (x->rank > 1) out->M = x->dim[x->rank - 2];
    out->batch_rank = y->rank - (x->rank > 1) - 1;
    for (int i = 0; i < out->batch_rank; i++) out->batch *= out->batch_dim[i] = y->dim[i];
    if (x->rank > 2) batch_strides(x, out->batch_rank, out->x_stride);
    batch_strides(w, out->batch_rank, out->other_stride);
}

void cvyi_matmul_operands(const matmul_geom *m, int64_t b, int64_t *x, int64_t *other)
{
    *x = *other = 0;
    for (int i = m->batch_rank - 1; i >= 0; i--) {
        const int64_t at = b % m->batch_dim[i];
        *x += at * m->x_stride[i];
        *other += at * m->other_stride[i];
        b /= m->batch_dim[i];
    }
}

/* ---- norms ---- */

void cvyi_norm_args(const node *n, norm_args *out)
{
    *out = (norm_args){n->arg[0], CVY_NONE, CVY_NONE, CVY_NONE, CVY_NONE};
    if (n->op == OP_batch_norm) {
        out->mean = n->arg[1];
        out->var = n->arg[2];
        out->weight = n->arg[3];
        out->bias = n->arg[4];
    } else {
        out->weight = n->arg[1];
        if (n->op != OP_rms_norm) out->bias = n->arg[2];
    }
}

/* outer and inner of x, whose dimensions before the channels multiply to outer. */
static void split_at_channels(const shape *x, norm_geom *out)
{
    out->outer = x->rank ? x->dim[0] : 1;
    out->inner = 1;
    for (int i = 2; i < x->rank; i++) out->inner *= x->dim[i];
}

static void trailing_geom(const shape *x, int trailing, norm_geom *out)
{
    out->outer = out->chan = out->groups = out->inner = 1;
    for (int i = 0; i < x->rank - trailing; i++) out->outer *= x->dim[i];
    for (int i = x->rank - trailing; i < x->rank; i++) out->chan *= x->dim[i];
}

/* The parts of a norm carry their geometry themselves; outer follows from x. */
static void part_geom(const node *n, const shape *x, norm_geom *out)
{
    int64_t per;

    out->groups = cvyi_attr(n, "groups")->i[0];
    out->chan = cvyi_attr(n, "chan")->i[0];
    out->inner = cvyi_attr(n, "inner")->i[0];
    per = out->groups * out->chan * out->inner;
    out->outer = per ? cvyi_elements(x) / per : 0;
    out->over_outer = cvyi_attr_true(n, "over_outer");
    out->centred = true;
    if (n->op == OP_norm_stats) {
        out->centred = cvyi_attr_true(n, "centred");
        out->eps = cvyi_attr(n, "eps")->f;
    }
}

void cvyi_norm_geom(const cvy_graph *g, const node *n, norm_geom *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const attr_value *eps = cvyi_attr(n, "eps");

    *out = (norm_geom){.centred = n->op != OP_rms_norm, .groups = 1, .chan = 1};
    if (cvyi_info(n)->kind != KIND_NORM) {
        part_geom(n, x, out);
        return;
    }
    /* rms_norm without eps takes float32's epsilon, as PyTorch does. */
    out->eps = eps->count ? eps->f : ldexp(1, -23);
    if (n->op == OP_layer_norm || n->op == OP_rms_norm) {
        trailing_geom(x, cvyi_attr(n, "normalized_shape")->count, out);
        return;
    }
    split_at_channels(x, out);
    out->groups = n->op == OP_group_norm ? cvyi_attr(n, "num_groups")->i[0] : x->dim[1];
    out->chan = out->groups ? x->dim[1] / out->groups : 0;
    out->over_outer = n->op == OP_batch_norm;
    out->running = n->op == OP_batch_norm && !cvyi_attr_true(n, "training");
}

/* ---- reductions, pointwise ---- */

unsigned cvyi_reduced_dims(const cvy_graph *g, const node *n)
{
    const int rank = cvyi_shape_of(g, n->arg[0])->rank;
    const attr_value *dims = cvyi_attr(n, "dim");
    unsigned mask = 0;
    if (!dims->count) return (1u << rank) - 1;
    for (int i = 0; i < dims->count; i++)
        mask |= 1u << (dims->i[i] < 0 ? dims->i[i] + (rank ? rank : 1) : dims->i[i]);
    return mask;
}

int cvyi_softmax_dim(const cvy_graph *g, const node *n)
{
    const int rank = cvyi_shape_of(g, n->arg[0])->rank;
    const int64_t dim = cvyi_attr(n, "dim")->i[0];
    return (int)(dim < 0 ? dim + (rank ? rank : 1) : dim);
}

void cvyi_pointwise_params(const node *n, double p[2])
{
    const op_info *op = cvyi_info(n);
    p[0] = p[1] = 0;
    for (int i = 0; i < op->n_attrs && i < 2; i++) {
        const attr_value *a = &n->attr[i];
        p[i] = op->attrs[i].kind == ATTR_NUMBER ? a->f : (double)a->i[0];
    }
    if (n->op == OP_clamp && !n->attr[0].count) p[0] = -INFINITY;
    if (n->op == OP_clamp && !n->attr[1].count) p[1] = INFINITY;
    if (op->kind == KIND_BINARY && op->n_attrs < 2) p[1] = 1;
}

void cvyi_contiguous_strides(const shape *s, int64_t out[CVY_MAX_RANK])
{
    int64_t step = 1;
    for (int i = s->rank - 1; i >= 0; i--) {
        out[i] = step;
        step *= s->dim[i] ? s->dim[i] : 1;
    }
}

bool cvyi_is_contiguous(const shape *s, const int64_t *strides)
{
    int64_t usual[CVY_MAX_RANK];
    if (!strides) return true;
    cvyi_contiguous_strides(s, usual);
    for (int i = 0; i < s->rank; i++)
        if (s->dim[i] > 1 && strides[i] != usual[i]) return false;
    return true;
}

void cvyi_broadcast_strides(const shape *from, const int64_t *strides, const shape *to, int64_t out[CVY_MAX_RANK])
{
    for (int i = 0; i < to->rank; i++) {
        const int d = i - (to->rank - from->rank);
        out[i] = d < 0 || (from->dim[d] == 1 && to->dim[i] != 1) ? 0 : strides[d];
    }
}

/* ---- work ---- */

double cvyi_node_flops(const cvy_graph *g, const node *n)
{
    const double y = (double)cvyi_elements(cvyi_shape_of(g, n->out)),
                 x = (double)cvyi_elements(cvyi_shape_of(g, n->arg[0]));
    conv_geom c;
    matmul_geom m;
    pool_geom p;

    switch (cvyi_info(n)->kind) {
    case KIND_CONV:
    case KIND_CONVT:
        cvyi_conv_geom(g, n, &c);
        /* One multiplication and one addition per weight an element meets: forward per output, transposed per
         * input. */
        return 2.0 * (cvyi_info(n)->kind == KIND_CONV ? y * (double)c.C : x * (double)c.K) / (double)c.groups *
               (double)c.kernel[0] * (double)c.kernel[1] * (double)c.kernel[2];
    case KIND_LINEAR:
    case KIND_MATMUL:
        cvyi_matmul_geom(g, n, &m);
        return 2.0 * y * (double)m.K;
    case KIND_MAXPOOL:
    case KIND_AVGPOOL:
        cvyi_pool_geom(g, n, &p);
        return y * (double)p.kernel[0] * (double)p.kernel[1] * (double)p.kernel[2];
    case KIND_NORM:
        return 5.0 * x;
    case KIND_STATS:
        return 3.0 * x;
    case KIND_SOFTMAX:
        return 4.0 * x;
    case KIND_APPLY:
        return 2.0 * x;
    case KIND_SHAPE:
    case KIND_MOVE:
        return 0;
    default:
        return x > y ? x : y;
    }
}
