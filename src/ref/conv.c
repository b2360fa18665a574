/* conv.c - convolution, transposed convolution, linear and matmul, straight from their definitions.
 *
 * Layouts: src [N][C][D][H][W], dst [N][K][O][P][Q], weight [K][C/groups][kernel] (transposed:
 * [C][K/groups][kernel]). Padding is zeros that are multiplied, as in PyTorch in float64: an infinite weight over
 * it is NaN. A transposed convolution has no such zeros: what no input reaches is the bias. */
#include "ref.h"

/* Row-major position inside a box of three extents. */
static int64_t at(const int64_t extent[3], int64_t d, int64_t h, int64_t w)
{
    return (d * extent[1] + h) * extent[2] + w;
}

static int64_t volume(const int64_t extent[3])
{
    return extent[0] * extent[1] * extent[2];
}

static bool inside(const int64_t extent[3], int64_t d, int64_t h, int64_t w)
{
    return d >= 0 && d < extent[0] && h >= 0 && h < extent[1] && w >= 0 && w < extent[2];
}

/* The sum over all taps of one input channel for the window of output (o, p, q). */
static double correlate(const conv_geom *e, const double *src, const double *weight, int64_t o, int64_t p,
                        int64_t q)
{
    double sum = 0;
    for (int64_t a = 0; a < e->kernel[0]; a++) {
        for (int64_t r = 0; r < e->kernel[1]; r++) {
            const int64_t d = o * e->stride[0] - e->pad[0] + a * e->dil[0];
            const int64_t h = p * e->stride[1] - e->pad[1] + r * e->dil[1];
            const double *row = inside(e->in, d, h, 0) ? src + at(e->in, d, h, 0) : NULL;
            for (int64_t s = 0; s < e->kernel[2]; s++) {
                const int64_t w = q * e->stride[2] - e->pad[2] + s * e->dil[2];
                const double x = row && w >= 0 && w < e->in[2] ? row[w] : 0;
                sum += x * weight[at(e->kernel, a, r, s)];
            }
        }
    }
    return sum;
}

/* One output channel of one sample. */
static void conv_plane(const conv_geom *e, const double *src, const double *weight, double bias, double *dst)
{
    for (int64_t o = 0; o < e->out[0]; o++) {
        for (int64_t p = 0; p < e->out[1]; p++) {
            for (int64_t q = 0; q < e->out[2]; q++) {
                double sum = bias;
                for (int64_t c = 0; c < e->C / e->groups; c++) {
                    sum += correlate(e, src + c * volume(e->in), weight + c * volume(e->kernel), o, p, q);
                }
                dst[at(e->out, o, p, q)] = sum;
            }
        }
    }
}

void cvyi_ref_conv(const ref_call *call)
{
    conv_geom e;
    cvyi_conv_geom(call->g, call->n, &e);
    const int64_t group_C = e.C / e.groups, group_K = e.K / e.groups;

    for (int64_t n = 0; n < e.N; n++) {
        for (int64_t k = 0; k < e.K; k++) {
            const double *src = call->arg[0] + (n * e.C + k / group_K * group_C) * volume(e.in);
            const double *weight = call->arg[1] + k * group_C * volume(e.kernel);
            double *dst = call->dst + (n * e.K + k) * volume(e.out);
            conv_plane(&e, src, weight, e.bias ? call->arg[2][k] : 0, dst);
        }
    }
}

/* Adds one input element times all taps of its weights to the output channel. */
static void spread(const conv_geom *e, double x, const double *weight, const int64_t i[3], double *dst)
{
    for (int64_t a = 0; a < e->kernel[0]; a++) {
        for (int64_t r = 0; r < e->kernel[1]; r++) {
            for (int64_t s = 0; s < e->kernel[2]; s++) {
                const int64_t o = i[0] * e->stride[0] - e->pad[0] + a * e->dil[0];
                const int64_t p = i[1] * e->stride[1] - e->pad[1] + r * e->dil[1];
                const int64_t q = i[2] * e->stride[2] - e->pad[2] + s * e->dil[2];
                if (inside(e->out, o, p, q)) dst[at(e->out, o, p, q)] += x * weight[at(e->kernel, a, r, s)];
            }
        }
    }
}

static void spread_plane(const conv_geom *e, const double *src, const double *weight, double *dst)
{
    int64_t i[3];
    for (i[0] = 0; i[0] < e->in[0]; i[0]++) {
        for (i[1] = 0; i[1] < e->in[1]; i[1]++) {
            for (i[2] = 0; i[2] < e->in[2]; i[2]++) {
                spread(e, src[at(e->in, i[0], i[1], i[2])], weight, i, dst);
            }
        }
    }
}

void cvyi_ref_convt(const ref_call *call)
{
    conv_geom e;
    cvyi_conv_geom(call->g, call->n, &e);
    const int64_t group_C = e.C / e.groups, group_K = e.K / e.groups;

    for (int64_t n = 0; n < e.N; n++) {
        for (int64_t k = 0; k < e.K; k++) {
            double *dst = call->dst + (n * e.K + k) * volume(e.out);
            for (int64_t i = 0; i < volume(e.out); i++) dst[i] = e.bias ? call->arg[2][k] : 0;
            for (int64_t c = k / group_K * group_C; c < (k / group_K + 1) * group_C; c++) {
                const double *weight = call->arg[1] + (c * group_K + k % group_K) * volume(e.kernel);
                spread_plane(&e, call->arg[0] + (n * e.C + c) * volume(e.in), weight, dst);
            }
        }
    }
}

/* dst[..., n] = bias[n] + sum over k of x[..., k] * weight[n][k]; a weight of rank 1 has no n. */
void cvyi_ref_linear(const ref_call *c)
{
    const shape *x = ref_shape(c, 0), *weight = ref_shape(c, 1);
    const int64_t K = x->dim[x->rank - 1], N = weight->rank == 2 ? weight->dim[0] : 1;
    const int64_t elements = cvyi_elements(ref_dst_shape(c));

    for (int64_t i = 0; i < elements; i++) {
        const int64_t m = i / N, n = i % N;
        double sum = c->arg[2] ? c->arg[2][n] : 0;
        for (int64_t k = 0; k < K; k++) sum += c->arg[0][m * K + k] * c->arg[1][n * K + k];
        c->dst[i] = sum;
    }
}

/* One side of a matmul: its matrix strides, and its batch dimensions with their strides. */
typedef struct matmul_side {
    shape batch;
    int64_t strides[CVY_MAX_RANK]; /* of the batch dimensions, as broadcast to the result's */
    int64_t row, col, extent[2];
} matmul_side;

/* torch.matmul: a vector on the left is one row, a vector on the right is one column. */
static matmul_side side_of(const shape *s, bool left)
{
    matmul_side side = {.batch.rank = s->rank > 2 ? s->rank - 2 : 0};
    int64_t own[CVY_MAX_RANK];

    cvyi_contiguous_strides(s, own);
    for (int d = 0; d < side.batch.rank; d++) {
        side.batch.dim[d] = s->dim[d];
        side.strides[d] = own[d];
    }
    if (s->rank == 1) {
        side.extent[left ? 1 : 0] = s->dim[0];
        side.extent[left ? 0 : 1] = 1;
        side.row = left ? 0 : 1;
        side.col = left ? 1 : 0;
    } else {
        side.extent[0] = s->dim[s->rank - 2];
        side.extent[1] = s->dim[s->rank - 1];
        side.row = own[s->rank - 2];
        side.col = own[s->rank - 1];
    }
    return side;
}

void cvyi_ref_matmul(const ref_call *c)
{
    const matmul_side x = side_of(ref_shape(c, 0), true), other = side_of(ref_shape(c, 1), false);
    const int64_t M = x.extent[0], K = x.extent[1], N = other.extent[1];
    const int64_t batches = cvyi_elements(ref_dst_shape(c)) / (M * N);
    shape batch = *ref_dst_shape(c);
    int64_t x_strides[CVY_MAX_RANK], other_strides[CVY_MAX_RANK];

    batch.rank = x.batch.rank > other.batch.rank ? x.batch.rank : other.batch.rank;
    cvyi_broadcast_strides(&x.batch, x.strides, &batch, x_strides);
    cvyi_broadcast_strides(&other.batch, other.strides, &batch, other_strides);
    for (int64_t b = 0; b < batches; b++) {
        const double *p = c->arg[0] + cvyi_ref_offset(&batch, x_strides, b);
        const double *q = c->arg[1] + cvyi_ref_offset(&batch, other_strides, b);
        for (int64_t i = 0; i < M * N; i++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++)
                sum += p[i / N * x.row + k * x.col] * q[k * other.row + i % N * other.col];
            c->dst[b * M * N + i] = sum;
        }
    }
}
