/* shape_spatial.c - shapes of convolutions and pools: operators with a window along each spatial axis. */
#include "shape.h"

/* Attribute values per spatial axis: one number applies to all. */
static int64_t spatial_at(const attr_value *a, int axis)
{
    return a->i[a->count > 1 ? axis : 0];
}

/* Where the channels are, and that there is one spatial extent per axis; unbatched input has none before them. */
static cvy_status check_spatial_input(const op_info *op, const shape *x, int *first)
{
    if (x->rank != op->spatial + 1 && x->rank != op->spatial + 2)
        return cvyi_fail(CVY_INVALID, "%s: x has rank %d, expected %d (or %d without a batch)", op->name, x->rank,
                         op->spatial + 2, op->spatial + 1);
    *first = x->rank - op->spatial;
    for (int i = *first - 1; i < x->rank; i++)
        if (x->dim[i] < 1)
            return cvyi_fail(CVY_INVALID, "%s: extent %d of x is 0, only the batch may be empty", op->name, i);
    return CVY_OK;
}

/* dil * (k - 1) + 1 */
static bool kernel_span(int64_t k, int64_t dil, int64_t *out)
{
    return cvyi_mul(dil, k - 1, out) && cvyi_add(*out, 1, out);
}

/* ---- convolutions ---- */

static cvy_status channels_check(const op_info *op, int64_t C, int64_t K, int64_t groups)
{
    if (C % groups)
        return cvyi_fail(CVY_INVALID, "%s: x has %lld channels, not divisible by groups %lld", op->name, L(C),
                         L(groups));
    if (K % groups)
        return cvyi_fail(CVY_INVALID, "%s: out_channels %lld is not divisible by groups %lld", op->name, L(K),
                         L(groups));
    return CVY_OK;
}

static cvy_status conv_extent(const op_info *op, const node *n, int axis, int64_t in, int64_t *out)
{
    const attr_value *padding = cvyi_attr(n, "padding");
    const int64_t stride = spatial_at(cvyi_attr(n, "stride"), axis), pad = spatial_at(padding, axis);
    int64_t span, padded;

    if (!kernel_span(spatial_at(cvyi_attr(n, "kernel_size"), axis), spatial_at(cvyi_attr(n, "dilation"), axis),
                     &span))
        return cvyi_fail(CVY_INVALID, "%s: kernel_size times dilation overflows", op->name);
    if (padding->i[0] == PAD_SAME) {
        if (stride != 1)
            return cvyi_fail(CVY_INVALID, "%s: padding='same' needs stride 1, got %lld", op->name, L(stride));
        *out = in;
        return CVY_OK;
    }
    if (!cvyi_mul(padding->i[0] == PAD_VALID ? 0 : pad, 2, &padded) || !cvyi_add(in, padded, &padded))
        return cvyi_fail(CVY_INVALID, "%s: padding overflows", op->name);
    if (span > padded)
        return cvyi_fail(CVY_INVALID, "%s: the kernel spans %lld, the padded input only %lld (axis %d)", op->name,
                         L(span), L(padded), axis);
    *out = (padded - span) / stride + 1;
    return CVY_OK;
}

static cvy_status convt_extent(const op_info *op, const node *n, int axis, int64_t in, int64_t *out)
{
    const int64_t stride = spatial_at(cvyi_attr(n, "stride"), axis),
                  pad = spatial_at(cvyi_attr(n, "padding"), axis);
    const int64_t extra = spatial_at(cvyi_attr(n, "output_padding"), axis);
    const int64_t dil = spatial_at(cvyi_attr(n, "dilation"), axis);
    int64_t span, whole, cut;

    if (extra >= stride && extra >= dil)
        return cvyi_fail(CVY_INVALID, "%s: output_padding %lld must be smaller than stride %lld or dilation %lld",
                         op->name, L(extra), L(stride), L(dil));
    if (!kernel_span(spatial_at(cvyi_attr(n, "kernel_size"), axis), dil, &span) ||
        !cvyi_mul(in - 1, stride, &whole) || !cvyi_add(whole, span, &whole) || !cvyi_add(whole, extra, &whole) ||
        !cvyi_mul(pad, 2, &cut))
        return cvyi_fail(CVY_INVALID, "%s: the output's extent overflows", op->name);
    if (whole <= cut)
        return cvyi_fail(CVY_INVALID, "%s: padding %lld leaves nothing of %lld (axis %d)", op->name, L(pad),
                         L(whole), axis);
    *out = whole - cut;
    return CVY_OK;
}

cvy_status cvyi_infer_conv(const cvy_graph *g, const node *n, shape *out)
{
    const op_info *op = cvyi_info(n);
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const int64_t K = cvyi_attr(n, "out_channels")->i[0], groups = cvyi_attr(n, "groups")->i[0];
    cvy_status st = CVY_OK;
    int first = 0;

    TRY(check_spatial_input(op, x, &first));
    TRY(cvyi_check_positive(op, n, "out_channels", 1));
    TRY(cvyi_check_positive(op, n, "kernel_size", 1));
    TRY(cvyi_check_positive(op, n, "stride", 1));
    TRY(cvyi_check_positive(op, n, "dilation", 1));
    TRY(cvyi_check_positive(op, n, "groups", 1));
    if (op->kind == KIND_CONVT) TRY(cvyi_check_positive(op, n, "padding", 0));
    if (op->kind == KIND_CONVT) TRY(cvyi_check_positive(op, n, "output_padding", 0));
    TRY(channels_check(op, x->dim[first - 1], K, groups));
    *out = *x;
    out->dim[first - 1] = K;
    for (int i = 0; i < op->spatial; i++) {
        if (op->kind == KIND_CONV)
            TRY(conv_extent(op, n, i, x->dim[first + i], &out->dim[first + i]));
        else
            TRY(convt_extent(op, n, i, x->dim[first + i], &out->dim[first + i]));
    }
fail:
    return st;
}

void cvyi_natural_conv(const cvy_graph *g, const node *n, int i, shape *out)
{
    const op_info *op = cvyi_info(n);
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const attr_value *kernel = cvyi_attr(n, "kernel_size");
    const int64_t K = cvyi_attr(n, "out_channels")->i[0], groups = cvyi_attr(n, "groups")->i[0];
    const int64_t C = x->rank > op->spatial ? x->dim[x->rank - op->spatial - 1] : 0;
    const bool transposed = op->kind == KIND_CONVT;

    if (i == 2) {
        *out = (shape){1, {K}};
        if (!cvyi_attr_true(n, "bias")) out->rank = SHAPE_ABSENT;
        return;
    }
    out->rank = op->spatial + 2;
    out->dim[0] = transposed ? C : K;
    out->dim[1] = groups < 1 ? 0 : (transposed ? K : C) / groups;
    for (int a = 0; a < op->spatial; a++) out->dim[2 + a] = spatial_at(kernel, a);
}

/* ---- pooling ---- */

static cvy_status pool_extent(const op_info *op, const node *n, int axis, int64_t in, int64_t *out)
{
    const attr_value *strides = cvyi_attr(n, "stride"), *dilation = cvyi_attr(n, "dilation");
    const int64_t k = spatial_at(cvyi_attr(n, "kernel_size"), axis),
                  pad = spatial_at(cvyi_attr(n, "padding"), axis);
    const int64_t stride = strides->count ? spatial_at(strides, axis) : k;
    const bool ceil = cvyi_attr_true(n, "ceil_mode");
    int64_t span, room, slack;

    if (!kernel_span(k, dilation ? spatial_at(dilation, axis) : 1, &span) || !cvyi_mul(pad, 2, &room) ||
        !cvyi_add(room, in, &room))
        return cvyi_fail(CVY_INVALID, "%s: kernel_size or padding overflows", op->name);
    if (pad > k / 2)
        return cvyi_fail(CVY_INVALID, "%s: padding %lld is more than half of kernel_size %lld", op->name, L(pad),
                         L(k));
    /* In ceil mode a window may extend beyond the padded end, or be wider than the whole padded input. */
    slack = room - span + (ceil ? stride - 1 : 0);
    if (slack < 0)
        return cvyi_fail(CVY_INVALID, "%s: the window spans %lld, the padded input only %lld (axis %d)", op->name,
                         L(span), L(room), axis);
    *out = slack / stride + 1;
    /* But it must begin inside the input or its left padding. */
    if (ceil && (*out - 1) * stride >= in + pad) (*out)--;
    return CVY_OK;
}

cvy_status cvyi_infer_pool(const cvy_graph *g, const node *n, shape *out)
{
    const op_info *op = cvyi_info(n);
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    cvy_status st = CVY_OK;
    int64_t window = 1;
    int first = 0;

    TRY(check_spatial_input(op, x, &first));
    TRY(cvyi_check_positive(op, n, "kernel_size", 1));
    TRY(cvyi_check_positive(op, n, "stride", 1));
    TRY(cvyi_check_positive(op, n, "padding", 0));
    if (op->kind == KIND_MAXPOOL)
        TRY(cvyi_check_positive(op, n, "dilation", 1));
    else
        TRY(cvyi_check_positive(op, n, "divisor_override", 1));
    if (n->op == OP_avg_pool1d && cvyi_attr(n, "divisor_override")->count)
        return cvyi_fail(CVY_INVALID, "avg_pool1d: has no divisor_override");
    *out = *x;
    for (int i = 0; i < op->spatial; i++) {
        TRY(pool_extent(op, n, i, x->dim[first + i], &out->dim[first + i]));
        if (!cvyi_mul(window, spatial_at(cvyi_attr(n, "kernel_size"), i), &window))
            return cvyi_fail(CVY_INVALID, "%s: the window has too many elements", op->name);
    }
fail:
    return st;
}

cvy_status cvyi_infer_adaptive(const cvy_graph *g, const node *n, shape *out)
{
    const op_info *op = cvyi_info(n);
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    cvy_status st = CVY_OK;
    int first = 0;

    TRY(check_spatial_input(op, x, &first));
    TRY(cvyi_check_positive(op, n, "output_size", 1));
    *out = *x;
    for (int i = 0; i < op->spatial; i++) {
        int64_t both; /* what its windows multiply */
        out->dim[first + i] = spatial_at(cvyi_attr(n, "output_size"), i);
        if (!cvyi_mul(x->dim[first + i], out->dim[first + i] + 1, &both))
            return cvyi_fail(CVY_INVALID, "%s: output_size %lld is too large", op->name, L(out->dim[first + i]));
    }
fail:
    return st;
}
