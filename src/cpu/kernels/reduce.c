/* reduce.c - reductions over contiguous floats, and the loops that reduce several vectors into one.
 *
 * Sums: LANES accumulators of VL lanes take RUN vectors in all, i.e. each lane adds RUN / LANES = 16 values in
 * float, then everything goes into one double. The float part's error is that of 18 additions however long the
 * input is, and the order depends on n alone. A sum that overflowed on the way is taken again in double, plainly.
 * See ../pointwise.h for what the functions promise. */
#include "../pointwise.h"
#include "map.h"
#include "math.h"

enum { LANES = 4, RUN = 64, BLOCK = 4096 /* floats that stay in the first-level cache between two passes */ };

/* ---- sums: of f(x, shift), in float runs merged in double ---- */

typedef vf term_fn(vf x, vf shift);

INLINE vf term_plain(vf x, vf shift)
{
    (void)shift;
    return x;
}
INLINE vf term_square(vf x, vf shift)
{
    const vf d = v_sub(x, shift);
    return v_mul(d, d);
}
INLINE vf term_exp(vf x, vf shift)
{
    return v_exp_below(v_sub(x, shift));
}

INLINE double lane_sums(const vf s[LANES])
{
    return v_hsum_double(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

INLINE vf term_at(const bool keep, float *dst, const float *src, int64_t at, vf shift, term_fn *term)
{
    const vf y = term(v_load(src + at), shift);
    if (keep) v_store(dst + at, y);
    return y;
}

/* Up to RUN whole vectors; `keep`: the terms are left in dst. `ahead`: floats to where the next row begins. */
INLINE double sum_run(const bool keep, float *dst, const float *src, int64_t vectors, vf shift, term_fn *term,
                      int64_t ahead)
{
    vf s[LANES];
    int64_t i = 0;
    for (int k = 0; k < LANES; k++) s[k] = v_zero();
    for (; i + LANES <= vectors; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            /* The last pass over a row: what lies after it, usually the next one, is fetched meanwhile, so that
             * memory does not wait for arithmetic. */
            if (keep) __builtin_prefetch(src + (i + k) * VL + ahead, 0, 3);
            s[k] = v_add(s[k], term_at(keep, dst, src, (i + k) * VL, shift, term));
        }
    }
    for (; i < vectors; i++) s[0] = v_add(s[0], term_at(keep, dst, src, i * VL, shift, term));
    return lane_sums(s);
}

INLINE double sum_terms(const bool keep, float *dst, const float *src, int64_t n, float by, term_fn *term)
{
    const vf shift = v_set1(by);
    const int64_t all = n;
    double sum = 0;
    while (n >= VL) {
        const int64_t vectors = cvyi_min64(n / VL, RUN);
        sum += sum_run(keep, dst, src, vectors, shift, term, all);
        src += vectors * VL, n -= vectors * VL;
        if (keep) dst += vectors * VL;
    }
    if (n > 0) {
        const vf y = term(v_load_n(src, n), shift);
        if (keep) v_store_n(dst, n, y);
        sum += v_hsum_double(v_sel(v_first(n), y, v_zero()));
    }
    return sum;
}

/* A sum of finite values beyond the floats' range, or one of values that are not finite. */
static double plain_sum(const float *src, int64_t n, double shift, int power)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += power == 2 ? (src[i] - shift) * (src[i] - shift) : src[i] - shift;
    return s;
}

static double ENTRY(reduce_sum_squares, VL)(const float *src, int64_t n, float shift)
{
    const double s = sum_terms(false, NULL, src, n, shift, term_square);
    return isfinite(s) ? s : plain_sum(src, n, shift, 2);
}
static double ENTRY(reduce_sum, VL)(const float *src, int64_t n)
{
    const double s = sum_terms(false, NULL, src, n, 0.0f, term_plain);
    return isfinite(s) ? s : plain_sum(src, n, 0, 1);
}

static double ENTRY(reduce_sum_exp, VL)(const float *src, int64_t n, float m)
{
    return sum_terms(false, NULL, src, n, m, term_exp);
}
static double ENTRY(reduce_exp_sum, VL)(float *dst, const float *src, int64_t n, float m)
{
    return sum_terms(true, dst, src, n, m, term_exp);
}

/* ---- moments: per block first the mean, then offsets and squares from it; blocks merged by Chan's formula ---- */

/* Sums of offsets and of their squares in one pass, both as sum_terms() computes them. */
typedef struct offset_sums {
    double first, second;
} offset_sums;

INLINE void add_offset(vf x, vf shift, vf *first, vf *second)
{
    const vf d = v_sub(x, shift);
    *first = v_add(*first, d);
    *second = v_fma(d, d, *second);
}

/* Up to RUN whole vectors. What lies `ahead`, usually the next row, is fetched meanwhile, as in sum_run(): the
 * hardware does not predict it if rows are as long as pages. */
INLINE offset_sums offset_run(const float *src, int64_t vectors, vf shift, int64_t ahead)
{
    vf s[LANES], q[LANES];
    int64_t i = 0;
    for (int k = 0; k < LANES; k++) s[k] = q[k] = v_zero();
    for (; i + LANES <= vectors; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            __builtin_prefetch(src + (i + k) * VL + ahead, 0, 3);
            add_offset(v_load(src + (i + k) * VL), shift, &s[k], &q[k]);
        }
    }
    for (; i < vectors; i++) add_offset(v_load(src + i * VL), shift, &s[0], &q[0]);
    return (offset_sums){lane_sums(s), lane_sums(q)};
}

static offset_sums sum_offsets(const float *src, int64_t n, float by)
{
    const vf shift = v_set1(by);
    offset_sums all = {0, 0};
    int64_t i = 0;
    while (i + VL <= n) {
        const int64_t vectors = cvyi_min64((n - i) / VL, RUN);
        const offset_sums run = offset_run(src + i, vectors, shift, n);
        all.first += run.first, all.second += run.second;
        i += vectors * VL;
    }
    if (i < n) {
        const vf d = v_sel(v_first(n - i), v_sub(v_load_n(src + i, n - i), shift), v_zero());
        all.first += v_hsum_double(d), all.second += v_hsum_double(v_mul(d, d));
    }
    if (!isfinite(all.first)) all.first = plain_sum(src, n, by, 1);
    if (!isfinite(all.second)) all.second = plain_sum(src, n, by, 2);
    return all;
}

/* The mean need only be near: what is left of it, the mean of the offsets, is taken out again at the end. */
static cpu_moments block_moments(const float *src, int64_t n)
{
    const float near = (float)(ENTRY(reduce_sum, VL)(src, n) / (double)n);
    const offset_sums sums = sum_offsets(src, n, near);
    const double off = sums.first / (double)n;
    return (cpu_moments){(double)n, near + off, sums.second - (double)n * off * off};
}

/* Short runs, up to SHORT vectors: the near mean in float, no runs to merge. AHEAD floats are a page: rows that
 * follow. */
enum { SHORT = 16, AHEAD = 1024 };
static cpu_moments short_moments(const float *src, int64_t n)
{
    vf s[2] = {v_zero(), v_zero()}, q[2] = {v_zero(), v_zero()}, shift;
    const int64_t pairs = n / (2 * VL) * (2 * VL);
    float near;
    double off, squares;
    for (int64_t i = 0; i < pairs; i += 2 * VL) {
        for (int k = 0; k < 2; k++) {
            __builtin_prefetch(src + i + k * VL + AHEAD, 0, 3);
            s[k] = v_add(s[k], v_load(src + i + k * VL));
        }
    }
    for (int64_t i = pairs; i < n; i += VL) s[0] = v_add(s[0], v_load_n(src + i, cvyi_min64(n - i, VL)));
    near = v_hsum(v_add(s[0], s[1])) / (float)n;
    shift = v_set1(near);
    s[0] = s[1] = v_zero();
    for (int64_t i = 0; i < pairs; i += 2 * VL) {
        add_offset(v_load(src + i), shift, &s[0], &q[0]);
        add_offset(v_load(src + i + VL), shift, &s[1], &q[1]);
    }
    for (int64_t i = pairs; i < n; i += VL) {
        const vf x = v_load_n(src + i, cvyi_min64(n - i, VL));
        add_offset(v_sel(v_first(n - i), x, shift), shift, &s[0], &q[0]);
    }
    off = v_hsum_double(v_add(s[0], s[1])) / (double)n;
    squares = v_hsum_double(v_add(q[0], q[1]));
    return (cpu_moments){(double)n, near + off, squares - (double)n * off * off};
}

static cpu_moments ENTRY(reduce_moments, VL)(const float *src, int64_t n)
{
    cpu_moments all = {0, 0, 0};
    if (n > 0 && n <= SHORT * VL) {
        all = short_moments(src, n);
        if (isfinite(all.mean) && isfinite(all.m2)) return all;
    }
    all = n > 0 ? block_moments(src, cvyi_min64(BLOCK, n)) : (cpu_moments){0, 0, 0};
    for (int64_t i = BLOCK; i < n; i += BLOCK)
        all = cvyi_moments_merge(all, block_moments(src + i, cvyi_min64(BLOCK, n - i)));
    return all;
}

/* ---- extremes: NaN if there is one ---- */

typedef vf pick_fn(vf a, vf b);

/* NaNs are searched for along with the extremes, two vectors per comparison. */
INLINE float extreme(const float *src, int64_t n, float empty, pick_fn *pick)
{
    const vf start = v_set1(empty);
    vf s[LANES];
    vm nans = v_unordered(start, start);
    int64_t i = 0;
    for (int k = 0; k < LANES; k++) s[k] = start;
    for (; i + LANES * VL <= n; i += LANES * VL) {
        for (int k = 0; k < LANES; k += 2) {
            const vf a = v_load(src + i + k * VL), b = v_load(src + i + (k + 1) * VL);
            s[k] = pick(s[k], a), s[k + 1] = pick(s[k + 1], b);
            nans = m_or(nans, v_unordered(a, b));
        }
    }
    for (; i < n; i += VL) {
        const vf a = i + VL <= n ? v_load(src + i) : v_sel(v_first(n - i), v_load_n(src + i, n - i), start);
        s[0] = pick(s[0], a);
        nans = m_or(nans, v_unordered(a, a));
    }
    if (m_any(nans)) return NAN;
    s[0] = pick(pick(s[0], s[1]), pick(s[2], s[3]));
    return empty < 0 ? v_hmax(s[0]) : -v_hmax(v_neg(s[0]));
}

static float ENTRY(reduce_max, VL)(const float *src, int64_t n)
{
    return extreme(src, n, -INFINITY, v_max);
}
static float ENTRY(reduce_min, VL)(const float *src, int64_t n)
{
    return extreme(src, n, INFINITY, v_min);
}

/* ---- rows of softmax and logsumexp ---- */

static cpu_max_sum_exp ENTRY(reduce_max_sum_exp, VL)(const float *src, int64_t n)
{
    const float m = ENTRY(reduce_max, VL)(src, n);
    return (cpu_max_sum_exp){m, ENTRY(reduce_sum_exp, VL)(src, n, m)};
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
    return v_add(s, v_exp_below(v_sub(x, m)));
}
/* Sums of exp(x - m) as sums of exp(x - n), n the larger maximum; 0 if all were -inf so far. */
INLINE vf rescale_one(vf s, vf m, vf n)
{
    return v_sel(v_eq(m, v_set1(-INFINITY)), v_zero(), v_mul(s, v_exp_below(v_sub(m, n))));
}
/* An infinite maximum is the result itself; its s, made of inf - inf, is NaN. */
INLINE vf finish_one(vf m, vf s, vf z)
{
    (void)z;
    return v_sel(v_eq(v_abs(m), v_set1(INFINITY)), m, v_add(m, v_log(s)));
}

static void ENTRY(reduce_add_to, VL)(float *dst, const float *src, int64_t n)
{
    map(dst, run_of(dst), run_of(src), all_of(0), n, add_one);
}
static void ENTRY(reduce_max_to, VL)(float *dst, const float *src, int64_t n)
{
    map(dst, run_of(dst), run_of(src), all_of(0), n, max_one);
}
static void ENTRY(reduce_min_to, VL)(float *dst, const float *src, int64_t n)
{
    map(dst, run_of(dst), run_of(src), all_of(0), n, min_one);
}
static void ENTRY(reduce_add_exp_to, VL)(float *dst, const float *src, const float *m, int64_t n)
{
    map(dst, run_of(dst), run_of(src), run_of(m), n, add_exp_one);
}
/* Two vectors in flight, as in map(). */
static void ENTRY(reduce_exp_sum_to, VL)(float *dst, const float *src, const float *m, float *s, int64_t n)
{
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        const vf a = v_exp_below(v_sub(v_load(src + i), v_load(m + i)));
        const vf b = v_exp_below(v_sub(v_load(src + i + VL), v_load(m + i + VL)));
        v_store(s + i, v_add(v_load(s + i), a)), v_store(s + i + VL, v_add(v_load(s + i + VL), b));
        v_store(dst + i, a), v_store(dst + i + VL, b);
    }
    for (; i < n; i += VL) {
        const vf a = v_exp_below(v_sub(v_load_n(src + i, n - i), v_load_n(m + i, n - i)));
        v_store_n(s + i, n - i, v_add(v_load_n(s + i, n - i), a));
        v_store_n(dst + i, n - i, a);
    }
}
static void ENTRY(reduce_rescale, VL)(float *s, const float *m, const float *n, int64_t count)
{
    map(s, run_of(s), run_of(m), run_of(n), count, rescale_one);
}
static void ENTRY(reduce_finish_logsumexp, VL)(float *dst, const float *m, const float *s, int64_t n)
{
    map(dst, run_of(m), run_of(s), all_of(0), n, finish_one);
}

extern const cpu_reduce_kernels ISA(cvyi_reduce);
const cpu_reduce_kernels ISA(cvyi_reduce) = {
    .sum = ENTRY(reduce_sum, VL),
    .sum_squares = ENTRY(reduce_sum_squares, VL),
    .moments = ENTRY(reduce_moments, VL),
    .max = ENTRY(reduce_max, VL),
    .min = ENTRY(reduce_min, VL),
    .sum_exp = ENTRY(reduce_sum_exp, VL),
    .max_sum_exp = ENTRY(reduce_max_sum_exp, VL),
    .exp_sum = ENTRY(reduce_exp_sum, VL),
    .add_to = ENTRY(reduce_add_to, VL),
    .max_to = ENTRY(reduce_max_to, VL),
    .min_to = ENTRY(reduce_min_to, VL),
    .add_exp_to = ENTRY(reduce_add_exp_to, VL),
    .finish_logsumexp = ENTRY(reduce_finish_logsumexp, VL),
    .exp_sum_to = ENTRY(reduce_exp_sum_to, VL),
    .rescale = ENTRY(reduce_rescale, VL),
};
