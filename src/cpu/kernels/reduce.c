/* reduce.c - reductions over contiguous floats, and the loops that reduce several vectors into one.
 *
 * Sums: LANES accumulators of VL lanes take RUN vectors in all, i.e. each lane adds RUN / LANES = 16 values in
 * float, then everything goes into one double. The float part's error is that of 18 additions however long the
 * input is, and the order depends on n alone. A sum that overflowed on the way is taken again in double, plainly.
 * See ../pointwise.h for what the functions promise. */
#include "../pointwise.h"
#include "map.h"
#include "math.h"

enum { LANES = 4, RUN = 64, BLOCK = 4096 /* floats that stay in the first-level cache between two looks */ };

/* ---- sums: of f(x, shift), in float runs merged in double ---- */

typedef vf term_fn(vf x, vf shift);

INLINE vf term_plain(vf x, vf shift)
{
    (void)shift;
    return x;
}
INLINE vf term_offset(vf x, vf shift)
{
    return v_sub(x, shift);
}
INLINE vf term_square(vf x, vf shift)
{
    const vf d = v_sub(x, shift);
    return v_mul(d, d);
}
INLINE vf term_exp(vf x, vf shift)
{
    return v_exp(v_sub(x, shift));
}

/* Up to RUN whole vectors. */
INLINE double sum_run(const float *src, int64_t vectors, vf shift, term_fn *term)
{
    vf s[LANES];
    int64_t i = 0;
    for (int k = 0; k < LANES; k++) s[k] = v_zero();
    for (; i + LANES <= vectors; i += LANES) {
        for (int k = 0; k < LANES; k++) s[k] = v_add(s[k], term(v_load(src + (i + k) * VL), shift));
    }
    for (; i < vectors; i++) s[0] = v_add(s[0], term(v_load(src + i * VL), shift));
    return v_hsum_double(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

INLINE double sum_terms(const float *src, int64_t n, float by, term_fn *term)
{
    const vf shift = v_set1(by);
    double sum = 0;
    while (n >= VL) {
        const int64_t vectors = n / VL < RUN ? n / VL : RUN;
        sum += sum_run(src, vectors, shift, term);
        src += vectors * VL, n -= vectors * VL;
    }
    if (n > 0) sum += v_hsum_double(v_sel(v_first(n), term(v_load_n(src, n), shift), v_zero()));
    return sum;
}

/* A sum of finite values beyond the floats' range, or one of values that are not finite. */
static double plain_sum(const float *src, int64_t n, double shift, int power)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += power == 2 ? (src[i] - shift) * (src[i] - shift) : src[i] - shift;
    return s;
}

static double sum_offsets(const float *src, int64_t n, float shift)
{
    const double s = sum_terms(src, n, shift, term_offset);
    return isfinite(s) ? s : plain_sum(src, n, shift, 1);
}
static double sum_squares(const float *src, int64_t n, float shift)
{
    const double s = sum_terms(src, n, shift, term_square);
    return isfinite(s) ? s : plain_sum(src, n, shift, 2);
}
static double sum(const float *src, int64_t n)
{
    const double s = sum_terms(src, n, 0.0f, term_plain);
    return isfinite(s) ? s : plain_sum(src, n, 0, 1);
}

static double sum_exp(const float *src, int64_t n, float m)
{
    return sum_terms(src, n, m, term_exp);
}

/* ---- moments: per block first the mean, then offsets and squares from it; blocks merged by Chan's formula ---- */

/* The mean need only be near: what is left of it, the mean of the offsets, is taken out again at the end. */
static cpu_moments block_moments(const float *src, int64_t n)
{
    const float near = (float)(sum(src, n) / (double)n);
    const double off = sum_offsets(src, n, near) / (double)n, squares = sum_squares(src, n, near);
    return (cpu_moments){(double)n, near + off, squares - (double)n * off * off};
}

static cpu_moments moments(const float *src, int64_t n)
{
    cpu_moments all = {0, 0, 0};
    for (int64_t i = 0; i < n; i += BLOCK)
        all = cvyi_moments_merge(all, block_moments(src + i, cvyi_min64(BLOCK, n - i)));
    return all;
}

/* ---- extremes: NaN if there is one ---- */

typedef vf pick_fn(vf a, vf b);

INLINE float extreme(const float *src, int64_t n, float empty, pick_fn *pick)
{
    vf s[LANES];
    float lanes[VL], last;
    int64_t i = 0;
    for (int k = 0; k < LANES; k++) s[k] = v_set1(empty);
    for (; i + LANES * VL <= n; i += LANES * VL) {
        for (int k = 0; k < LANES; k++) s[k] = pick(s[k], v_load(src + i + k * VL));
    }
    for (; i + VL <= n; i += VL) s[0] = pick(s[0], v_load(src + i));
    if (i < n) s[1] = pick(s[1], v_sel(v_first(n - i), v_load_n(src + i, n - i), v_set1(empty)));
    v_store(lanes, pick(pick(s[0], s[1]), pick(s[2], s[3])));
    last = lanes[0];
    for (int k = 1; k < VL && !isnan(last); k++) {
        const int better = empty < 0 ? lanes[k] > last : lanes[k] < last;
        if (better || isnan(lanes[k])) last = lanes[k];
    }
    return last;
}

static float max(const float *src, int64_t n)
{
    return extreme(src, n, -INFINITY, v_max_nan);
}
static float min(const float *src, int64_t n)
{
    return extreme(src, n, INFINITY, v_min_nan);
}

/* ---- rows of softmax and logsumexp ---- */

static cpu_max_sum_exp max_sum_exp(const float *src, int64_t n)
{
    const float m = max(src, n);
    return (cpu_max_sum_exp){m, sum_exp(src, n, m)};
}

static float logsumexp(const float *src, int64_t n)
{
    const float top = max(src, n), m = isinf(top) ? 0.0f : top; /* infinities go through exp and log */
    return (float)(m + log(sum_exp(src, n, m)));
}

INLINE vf softmax_one(vf x, vf m, vf r)
{
    return v_mul(v_exp(v_sub(x, m)), r);
}
static void softmax_row(float *dst, const float *src, int64_t n, float m, float r)
{
    map(dst, run_of(src), all_of(m), all_of(r), n, softmax_one);
}
static void softmax_vec(float *dst, const float *src, const float *m, const float *r, int64_t n)
{
    map(dst, run_of(src), run_of(m), run_of(r), n, softmax_one);
}

/* ---- vertical ---- */

INLINE vf add_one(vf x, vf y, vf z)
{
    (void)z;
    return v_add(x, y);
}
INLINE vf max_one(vf x, vf y, vf z)
{
    (void)z;
    return v_max_nan(x, y);
}
INLINE vf min_one(vf x, vf y, vf z)
{
    (void)z;
    return v_min_nan(x, y);
}
INLINE vf add_exp_one(vf s, vf x, vf m)
{
    return v_add(s, v_exp(v_sub(x, m)));
}
INLINE vf shift_one(vf m, vf y, vf z)
{
    (void)y, (void)z;
    return v_sel(v_eq(v_abs(m), v_set1(INFINITY)), v_zero(), m);
}
INLINE vf finish_one(vf m, vf s, vf z)
{
    (void)z;
    return v_add(m, v_log(s));
}

static void add_to(float *dst, const float *src, int64_t n)
{
    map(dst, run_of(dst), run_of(src), all_of(0), n, add_one);
}
static void max_to(float *dst, const float *src, int64_t n)
{
    map(dst, run_of(dst), run_of(src), all_of(0), n, max_one);
}
static void min_to(float *dst, const float *src, int64_t n)
{
    map(dst, run_of(dst), run_of(src), all_of(0), n, min_one);
}
static void add_exp_to(float *dst, const float *src, const float *m, int64_t n)
{
    map(dst, run_of(dst), run_of(src), run_of(m), n, add_exp_one);
}
static void logsumexp_shift(float *m, int64_t n)
{
    map(m, run_of(m), all_of(0), all_of(0), n, shift_one);
}
static void finish_logsumexp(float *dst, const float *m, const float *s, int64_t n)
{
    map(dst, run_of(m), run_of(s), all_of(0), n, finish_one);
}

extern const cpu_reduce_kernels ISA(cvyi_reduce);
const cpu_reduce_kernels ISA(cvyi_reduce) = {
    .sum = sum,
    .sum_squares = sum_squares,
    .moments = moments,
    .max = max,
    .min = min,
    .sum_exp = sum_exp,
    .max_sum_exp = max_sum_exp,
    .logsumexp = logsumexp,
    .softmax_row = softmax_row,
    .add_to = add_to,
    .max_to = max_to,
    .min_to = min_to,
    .add_exp_to = add_exp_to,
    .logsumexp_shift = logsumexp_shift,
    .finish_logsumexp = finish_logsumexp,
    .softmax_vec = softmax_vec,
};
