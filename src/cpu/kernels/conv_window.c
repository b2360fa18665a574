/* conv_window.c - means of a convolution's output from sums of its input; the table of the convolution kernels of
 * one instruction set.
 *
 * Tap (d, r, s) of the filter sees the window of x that lies d*dil, r*dil, s*dil past the first one; its sum over
 * a row is the sum of the row's columns of its class modulo the stride, less the few outside the window. Padding
 * adds nothing. One read of x, at memory speed. Numerics: rows are float runs of at most 64 values per lane, all
 * else double. */
#include <math.h>
#include "../source.h"
#include "../conv_tiles.h"

/* Sums of the n floats of a row, by their column modulo `classes`, a divisor of VL; *most becomes at least the
 * largest size among them. What is added in float is the distance from `pivot`, a value of the channel: a mean of
 * 1000 leaves the sums as exact as one of 0. */
static void row_sums(const float *x, int64_t n, int64_t classes, float pivot, double *sums, vf *most)
{
    const vf from = v_set1(pivot);
    vf m = *most;
    for (int64_t k = 0; k < classes; k++) sums[k] = (double)pivot * (double)cvyi_ceil_div(n - k, classes);
    for (int64_t i = 0; i < n;) {
        const int64_t stop = cvyi_min64(n, i + 64 * 2 * VL);
        float lanes[VL];
        vf a = v_zero(), b = v_zero();
        for (; i + 2 * VL <= stop; i += 2 * VL) {
            const vf p = v_load(x + i), q = v_load(x + i + VL);
            a = v_add(a, v_sub(p, from)), b = v_add(b, v_sub(q, from));
            m = v_max(v_max(v_abs(p), v_abs(q)), m);
        }
        for (; i < stop; i += VL) {
            const vf p = v_load_n(x + i, stop - i);
            a = v_add(a, v_sel(v_first(stop - i), v_sub(p, from), v_zero()));
            m = v_max(v_abs(p), m);
        }
        i = stop;
        a = v_add(a, b);
        if (classes == 1) {
            sums[0] += (double)v_hsum(a);
        } else {
            v_store(lanes, a);
            for (int k = 0; k < VL; k++) sums[k % classes] += (double)lanes[k];
        }
    }
    *most = m;
}

/* Every stride-th of the floats from lo to hi. */
static double strided_sum(const float *x, int64_t lo, int64_t hi, int64_t stride)
{
    double part[4] = {0};
    int64_t i = lo;
    for (; i + 3 * stride < hi; i += 4 * stride)
        for (int j = 0; j < 4; j++) part[j] += (double)x[i + j * stride];
    for (; i < hi; i += stride) part[0] += (double)x[i];
    return part[0] + part[1] + part[2] + part[3];
}

/* Is there an output whose tap r reads index i of an axis? */
INLINE bool sees(const conv_geom *g, int axis, int64_t r, int64_t i)
{
    const int64_t at = i + g->pad[axis] - r * g->dil[axis], stride = g->stride[axis];
    if (stride == 1) return at >= 0 && at < g->out[axis];
    return at >= 0 && at % stride == 0 && at / stride < g->out[axis];
}

/* Strides that classes of columns are summed for; with others every tap sums its own. */
INLINE int64_t classes_of(const conv_geom *g)
{
    return VL % g->stride[2] == 0 ? g->stride[2] : 1;
}

/* Columns lo, lo + stride, ... below hi of a row are those that a tap along W sees; `class` is theirs modulo the
 * stride. */
typedef struct columns {
    int64_t lo, hi, class;
} columns;

INLINE columns columns_of(const conv_geom *g, int64_t s)
{
    const int64_t W = g->in[2], step = g->stride[2], at = s * g->dil[2] - g->pad[2];
    const int64_t class = (at % step + step) % step;
    const int64_t lo = cvyi_min64(W, at < 0 ? class : at);
    return (columns){lo, cvyi_max64(lo, at + g->out[2] * step), class};
}

/* Sum of a row over these columns: their whole class less both ends; one by one where there is no such class, or
 * where it holds a NaN or an inf that the tap may not see. */
INLINE double columns_sum(const conv_geom *g, const float *x, const double *classes, int64_t n_classes, columns c)
{
    const int64_t W = g->in[2], step = g->stride[2];
    double whole = n_classes == step ? classes[c.class] : NAN;
    if (!isfinite(whole)) return strided_sum(x, c.lo, cvyi_min64(c.hi, W), step);
    for (int64_t i = c.class; i < c.lo; i += step) whole -= (double)x[i];
    for (int64_t i = c.hi; i < W; i += step) whole -= (double)x[i];
    return c.lo < cvyi_min64(c.hi, W) ? whole : 0;
}

/* Taps s0 ... s0 + n - 1 along W of all rows of channel c; returns the sum of the channel. */
enum { MOST = 32 };
static double sum_taps(const conv_geom *g, const conv_input *in, int64_t c, int64_t s0, int64_t n, double *sums,
                       vf *most)
{
    const int64_t R = g->kernel[1], S = g->kernel[2], rows = g->in[0] * g->in[1], W = g->in[2];
    const int64_t n_classes = classes_of(g), first = c * rows * W;
    const float pivot = rows > 0 && W > 0 ? source_one(in->data, first, in->dtype) : 0;
    double total = 0, one[MOST], classes[VL];
    columns seen[MOST];
    for (int64_t s = 0; s < n; s++) seen[s] = columns_of(g, s0 + s);
    for (int64_t i = 0; i < rows; i++) {
        const float *x = source_floats(in->data, first + i * W, W, in->dtype, in->row);
        row_sums(x, W, n_classes, pivot, classes, most);
        for (int64_t k = 0; k < n_classes; k++) total += classes[k];
        for (int64_t s = 0; s < n; s++) one[s] = columns_sum(g, x, classes, n_classes, seen[s]);
        for (int64_t t = 0; t < g->kernel[0] * R; t++)
            if (sees(g, 1, t % R, i % g->in[1]) && sees(g, 0, t / R, i / g->in[1]))
                for (int64_t s = 0; s < n; s++) sums[t * S + s0 + s] += one[s];
    }
    return total;
}

static bool ENTRY(conv_window_sums, VL)(const conv_geom *g, const conv_input *x, int64_t c, const conv_window *out)
{
    const int64_t S = g->kernel[2], pixels = g->in[0] * g->in[1] * g->in[2];
    double *sums = out->sums + c * cvyi_conv_taps(g), total = 0;
    vf most = v_zero();

    memset(sums, 0, sizeof *sums * (size_t)cvyi_conv_taps(g));
    for (int64_t s0 = 0; s0 < S; s0 += MOST) total = sum_taps(g, x, c, s0, cvyi_min64(MOST, S - s0), sums, &most);
    out->xmean[c] = total / (double)cvyi_max64(pixels, 1);
    return isfinite(total) && (double)v_hmax(most) <= 1e15; /* a NaN never enters `most`, but the total */
}

/* Of one output channel's weights f: the sum of their products with the window sums, and what conv(x - xmean)
 * lacks, their products with their channels' means. Eight of them side by side. */
typedef struct products {
    double sums, means;
} products;

INLINE double total(const double part[8])
{
    return (part[0] + part[4]) + (part[1] + part[5]) + ((part[2] + part[6]) + (part[3] + part[7]));
}

/* One tap: both in one read of the weights, which may be more than there are pixels. */
static products products_1x1(const float *f, int64_t channels, const double *sums, const double *xmean)
{
    double a[4][8] = {{0}}, b[4][8] = {{0}};
    int64_t c = 0;
    for (; c + 32 <= channels; c += 32)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 8; j++) {
                a[i][j] += (double)f[c + 8 * i + j] * sums[c + 8 * i + j];
                b[i][j] += (double)f[c + 8 * i + j] * (double)(float)xmean[c + 8 * i + j];
            }
    for (; c < channels; c++) {
        a[0][0] += (double)f[c] * sums[c];
        b[0][0] += (double)f[c] * (double)(float)xmean[c];
    }
    return (products){total(a[0]) + total(a[1]) + (total(a[2]) + total(a[3])),
                      total(b[0]) + total(b[1]) + (total(b[2]) + total(b[3]))};
}

static products products_of(const float *f, int64_t channels, int64_t taps, const double *sums, const double *xmean)
{
    double a[8] = {0}, b[8] = {0}, rest = 0;
    int64_t i = 0;
    if (taps == 1) return products_1x1(f, channels, sums, xmean);
    for (; i + 8 <= channels * taps; i += 8)
        for (int j = 0; j < 8; j++) a[j] += (double)f[i + j] * sums[i + j];
    for (; i < channels * taps; i++) a[0] += (double)f[i] * sums[i];
    for (int64_t c = 0; c < channels; c++) {
        const double mean = (double)(float)xmean[c];
        for (i = 0; i + 8 <= taps; i += 8)
            for (int j = 0; j < 8; j++) b[j] += (double)f[c * taps + i + j] * mean;
        for (; i < taps; i++) rest += (double)f[c * taps + i] * mean;
    }
    return (products){total(a), total(b) + rest};
}

static void ENTRY(conv_window_means, VL)(const conv_geom *g, const conv_means *m, int64_t k)
{
    const int64_t taps = cvyi_conv_taps(g), channels = g->C / g->groups, c0 = k / (g->K / g->groups) * channels;
    const double n = (double)(g->out[0] * g->out[1] * g->out[2]);
    const products p = products_of(m->weight + k * channels * taps, channels, taps, m->window.sums + c0 * taps,
                                   m->window.xmean + c0);

    m->mean[k] = (m->bias ? (double)m->bias[k] : 0) + p.sums / n;
    if (m->shift) m->shift[k] = p.means;
}

#define ENTRY_RUN(kernel, tile)  CONV_ENTRY(kernel, tile),
#define ENTRY_NAME(kernel, tile) &TEXT_OF(CONV_ENTRY(kernel, tile))[5], /* without cvyi_ */

const cpu_conv_kernels ISA(cvyi_conv) = {
    .isa = CONV_ISA,
    .direct_kt = DIRECT_KT,
    .direct_vt = DIRECT_VT,
    .wino_kt = WINO_KT,
    .wino_nt = WINO_NT,
    .channels_px = CHANNELS_PX,
    .channels_kv = CHANNELS_KV,
    .vl = VL,
    .run = {CONV_ENTRIES(ENTRY_RUN)},
    .name = {CONV_ENTRIES(ENTRY_NAME)},
    .window_sums = ENTRY(conv_window_sums, VL),
    .window_means = ENTRY(conv_window_means, VL),
};
