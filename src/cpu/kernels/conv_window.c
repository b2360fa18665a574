/* conv_window.c - means of a convolution's output from sums of its input; the measured FMA peak; the table of the
 * convolution kernels of one instruction set.
 *
 * Tap (d, r, s) of the filter sees the window of x that lies d*dil, r*dil, s*dil behind the first one; its sum over
 * a row is the row's whole sum less the few columns outside. Padding adds nothing. One read of x, at memory speed.
 * Numerics: rows are float runs of at most 64 values per lane, all else double. */
#include <math.h>
#include "../conv.h"
#include "../conv_tiles.h"

/* Sum of n floats; *most becomes at least the largest size among them. */
static double row_sum(const float *x, int64_t n, vf *most)
{
    double total = 0;
    vf m = *most;
    for (int64_t i = 0; i < n;) {
        const int64_t stop = cvyi_min64(n, i + 64 * 2 * VL);
        vf a = v_zero(), b = v_zero();
        for (; i + 2 * VL <= stop; i += 2 * VL) {
            const vf p = v_load(x + i), q = v_load(x + i + VL);
            a = v_add(a, p), b = v_add(b, q);
            m = v_max(v_max(v_abs(p), v_abs(q)), m);
        }
        for (; i < stop; i += VL) {
            const vf p = v_load_n(x + i, stop - i);
            a = v_add(a, p);
            m = v_max(v_abs(p), m);
        }
        i = stop;
        total += (double)v_hsum(v_add(a, b));
    }
    *most = m;
    return total;
}

/* Is there an output whose tap r reads index i of an axis? */
INLINE bool sees(const conv_geom *g, int axis, int64_t r, int64_t i)
{
    const int64_t at = i + g->pad[axis] - r * g->dil[axis], stride = g->stride[axis];
    if (stride == 1) return at >= 0 && at < g->out[axis];
    return at >= 0 && at % stride == 0 && at / stride < g->out[axis];
}

/* Columns lo ... hi - 1 of a row are those that a tap along W sees (stride 1). */
typedef struct columns {
    int64_t lo, hi;
} columns;

INLINE columns columns_of(const conv_geom *g, int64_t s)
{
    const int64_t W = g->in[2], at = s * g->dil[2] - g->pad[2];
    const int64_t lo = cvyi_min64(W, cvyi_max64(0, at));
    return (columns){lo, cvyi_max64(lo, cvyi_min64(W, at + g->out[2]))};
}

/* Sum of a row over these columns: the whole less both ends. */
INLINE double columns_sum(const float *x, int64_t W, double whole, columns c)
{
    for (int64_t i = 0; i < c.lo; i++) whole -= (double)x[i];
    for (int64_t i = c.hi; i < W; i++) whole -= (double)x[i];
    return c.lo < c.hi ? whole : 0;
}

/* Taps s0 ... s0 + n - 1 along W of all rows of a channel; returns the sum of the channel. */
enum { MOST = 32 };
static double sum_taps(const conv_geom *g, const float *x, int64_t s0, int64_t n, double *sums, vf *most)
{
    const int64_t R = g->kernel[1], S = g->kernel[2], rows = g->in[0] * g->in[1], W = g->in[2];
    double total = 0, one[MOST];
    columns seen[MOST];
    for (int64_t s = 0; s < n; s++) seen[s] = columns_of(g, s0 + s);
    for (int64_t i = 0; i < rows; i++, x += W) {
        const double whole = row_sum(x, W, most);
        total += whole;
        for (int64_t s = 0; s < n; s++) one[s] = columns_sum(x, W, whole, seen[s]);
        for (int64_t t = 0; t < g->kernel[0] * R; t++)
            if (sees(g, 1, t % R, i % g->in[1]) && sees(g, 0, t / R, i / g->in[1]))
                for (int64_t s = 0; s < n; s++) sums[t * S + s0 + s] += one[s];
    }
    return total;
}

static bool window_sums(const conv_geom *g, const float *src, int64_t c, const conv_window *out)
{
    const int64_t S = g->kernel[2], pixels = g->in[0] * g->in[1] * g->in[2];
    double *sums = out->sums + c * cvyi_conv_taps(g), total = 0;
    vf most = v_zero();

    memset(sums, 0, sizeof *sums * (size_t)cvyi_conv_taps(g));
    for (int64_t s0 = 0; s0 < S; s0 += MOST)
        total = sum_taps(g, src + c * pixels, s0, cvyi_min64(MOST, S - s0), sums, &most);
    out->xmean[c] = total / (double)cvyi_max64(pixels, 1);
    return isfinite(total) && (double)v_hmax(most) <= 1e15; /* a NaN never enters `most`, but the total */
}

static void window_means(const conv_geom *g, const float *weight, const float *bias, const conv_window *w,
                         int64_t k, double *mean, double *shift)
{
    const int64_t taps = cvyi_conv_taps(g), channels = g->C / g->groups, c0 = k / (g->K / g->groups) * channels;
    const float *f = weight + k * channels * taps;
    const double *sums = w->sums + c0 * taps, n = (double)(g->out[0] * g->out[1] * g->out[2]);
    double part[8] = {0}, lacks[8] = {0}, all = 0, lack = 0;
    int64_t i = 0;

    for (; i + 8 <= channels * taps; i += 8)
        for (int j = 0; j < 8; j++) part[j] += (double)f[i + j] * sums[i + j];
    for (; i < channels * taps; i++) all += (double)f[i] * sums[i];
    for (int j = 0; j < 8; j++) all += part[j];
    mean[k] = (bias ? (double)bias[k] : 0) + all / n;
    if (!shift) return;
    for (int64_t c = 0; c < channels; c++) {
        const double xmean = (double)(float)w->xmean[c0 + c];
        for (i = 0; i + 8 <= taps; i += 8)
            for (int j = 0; j < 8; j++) lacks[j] += (double)f[c * taps + i + j] * xmean;
        for (; i < taps; i++) lack += (double)f[c * taps + i] * xmean;
    }
    for (int j = 0; j < 8; j++) lack += lacks[j];
    shift[k] = lack;
}

/* Independent FMAs on registers, as many as hide the latency (AVX2 has 16 registers in all). */
static double fma_peak(int64_t rounds)
{
    enum { CHAINS = 12 };
    const vf a = v_set1(0.999f), b = v_set1(0.001f);
    vf x[CHAINS];
    float sink[VL];
    volatile float keep;
    UNROLL for (int i = 0; i < CHAINS; i++) x[i] = v_set1((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        UNROLL for (int i = 0; i < CHAINS; i++) x[i] = v_fma(x[i], a, b);
        __asm__ volatile("" ::: "memory");
    }
    UNROLL for (int i = 1; i < CHAINS; i++) x[0] = v_add(x[0], x[i]);
    v_store(sink, x[0]);
    keep = sink[0];
    (void)keep;
    return 2.0 * VL * CHAINS * (double)rounds;
}

void ISA(cvyi_conv_direct)(const conv_job *job, int64_t unit, void *scratch);
void ISA(cvyi_conv_depthwise)(const conv_job *job, int64_t unit, void *scratch);
void ISA(cvyi_conv_winograd_4x4)(const conv_job *job, int64_t unit, void *scratch);
void ISA(cvyi_conv_winograd_2x4)(const conv_job *job, int64_t unit, void *scratch);
void ISA(cvyi_conv_winograd_2x2)(const conv_job *job, int64_t unit, void *scratch);

const cpu_conv_kernels ISA(cvyi_conv) = {
    .isa = CONV_ISA,
    .direct_kt = DIRECT_KT,
    .direct_vt = DIRECT_VT,
    .wino_kt = WINO_KT,
    .wino_nt = WINO_NT,
    .vl = VL,
    .run = {ISA(cvyi_conv_direct), ISA(cvyi_conv_depthwise), ISA(cvyi_conv_winograd_4x4),
            ISA(cvyi_conv_winograd_2x4), ISA(cvyi_conv_winograd_2x2)},
    .window_sums = window_sums,
    .window_means = window_means,
    .fma_peak = fma_peak,
};
