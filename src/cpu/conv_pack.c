/* conv_pack.c - weights of a convolution in the order in which its kernels read them.
 *
 * For a block of kt output channels (the register tile's):
 *   direct, depthwise  [block][C/groups][tap][kt]
 *   patches            [group][chunk][block][tap][input channel of the chunk][kt], then 1 if all are finite;
 *                      what is multiplied with a panel is contiguous
 *   Winograd           [block][chunk][point][input channel x kernel plane of the chunk][kt]   (G w Gt, in double)
 */
#include <math.h>
#include "conv.h"

static void pack_direct(const conv_tiling *t, const float *weight, float *packed)
{
    const int64_t channels = t->geom.C / t->geom.groups, taps = cvyi_conv_taps(&t->geom), each = channels * taps;
    for (int64_t b = 0; b < t->blocks * t->geom.groups; b++) {
        const conv_block k = cvyi_conv_block(t, b);
        float *dst = packed + k.slot * each;
        for (int64_t i = 0; i < each; i++)
            for (int j = 0; j < k.kt; j++) *dst++ = j < k.kn ? weight[(k.k0 + j) * each + i] : 0;
    }
}

static void pack_patches(const conv_tiling *t, const float *weight, float *packed)
{
    const int64_t channels = t->geom.C / t->geom.groups, taps = cvyi_conv_taps(&t->geom), each = channels * taps;
    float *dst = packed;
    bool finite = true;
    for (int64_t g = 0; g < t->geom.groups; g++)
        for (int64_t c0 = 0; c0 < channels; c0 += t->chunk)
            for (int64_t b = g * t->blocks; b < (g + 1) * t->blocks; b++) {
                const conv_block k = cvyi_conv_block(t, b);
                for (int64_t i = 0; i < taps; i++)
                    for (int64_t c = c0; c < cvyi_min64(c0 + t->chunk, channels); c++)
                        for (int j = 0; j < k.kt; j++)
                            *dst++ = j < k.kn ? weight[(k.k0 + j) * each + c * taps + i] : 0;
            }
    for (int64_t i = 0; i < t->geom.K * each; i++) finite &= isfinite(weight[i]) != 0;
    packed[t->packed - 1] = finite;
}

/* Filter transform along one axis: v = G w. F(2,3) has the points 0, 1, -1, infinity; F(4,3) 0, +-5/8, +-3/2,
 * infinity, which keeps the error of the direct form where 0, +-1, +-2 or +-1/2 lose a factor of 4 and more. Row i
 * of G holds the powers of point i over the product of its differences to the other points; for F(2,3) signs are
 * such that the input transform needs no multiplication (see conv_winograd.c). */
static void transform_filter(int m, const double w[3], double *v)
{
    const double a = 0.625, b = 1.5, d = a * a - b * b;
    if (m == 2) {
        v[0] = -w[0];
        v[1] = (w[0] + w[1] + w[2]) / 2;
        v[2] = (w[0] - w[1] + w[2]) / 2;
        v[3] = w[2];
        return;
    }
    v[0] = w[0] / (a * a * b * b);
    for (int i = 0; i < 2; i++) {
        const double p = i ? b : a, f = 1 / (2 * p * p * (i ? -d : d));
        v[1 + 2 * i] = f * (w[0] + p * w[1] + p * p * w[2]);
        v[2 + 2 * i] = f * (w[0] - p * w[1] + p * p * w[2]);
    }
    v[5] = w[2];
}

static void transform_weight(int mh, int mw, const float *w, double *u)
{
    double rows[3][6];
    for (int r = 0; r < 3; r++) {
        const double x[3] = {(double)w[3 * r], (double)w[3 * r + 1], (double)w[3 * r + 2]};
        transform_filter(mw, x, rows[r]);
    }
    for (int j = 0; j < mw + 2; j++) {
        const double x[3] = {rows[0][j], rows[1][j], rows[2][j]};
        double column[6];
        transform_filter(mh, x, column);
        for (int i = 0; i < mh + 2; i++) u[i * (mw + 2) + j] = column[i];
    }
}

static void pack_winograd(const conv_tiling *t, const float *weight, float *packed)
{
    const conv_algo *a = &cvyi_conv_algos[t->algo];
    const int64_t channels = t->geom.C * t->geom.kernel[0], kt = t->kt, points = (a->mh + 2) * (a->mw + 2);
    double u[36];
    for (int64_t k = 0; k < t->blocks * kt; k++)
        for (int64_t c = 0; c < channels; c++) {
            const int64_t chunk = c / t->chunk, n = cvyi_min64(t->chunk, channels - chunk * t->chunk);
            float *dst = packed + (k / kt * channels + chunk * t->chunk) * points * kt + c % t->chunk * kt + k % kt;
            if (k < t->geom.K) transform_weight(a->mh, a->mw, weight + (k * channels + c) * 9, u);
            for (int64_t p = 0; p < points; p++) dst[p * n * kt] = k < t->geom.K ? (float)u[p] : 0;
        }
}

void cvyi_conv_pack(const conv_tiling *t, const float *weight, float *packed)
{
    if (cvyi_conv_algos[t->algo].mh > 1)
        pack_winograd(t, weight, packed);
    else if (t->algo == CONV_PATCHES)
        pack_patches(t, weight, packed);
    else
        pack_direct(t, weight, packed);
}
