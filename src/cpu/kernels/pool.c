/* pool.c - pooling, in two steps per row of dst.
 *
 *     down    the rows of src that the window covers (in D and H) become one row: op over rows, vectors along W
 *     across  that row becomes a row of dst: op over the window's columns, vectors along Q
 *
 * The row between lies in scratch (L1) with the operator's neutral element where padding is, so neither step asks
 * where it is. Strides 1 and 2 read vectors (2: even and odd lanes of two); other strides go one by one, which is
 * cheap since `down` has done most of the work. Windows of 2 or 4 columns side by side need no row between: the
 * vectors of their columns are folded in pairs. Averages are sums of at most kernel-many floats in such an order,
 * then one division as PyTorch has it. */
#include <math.h>
#include "../simd.h"
#include "../pool.h"

typedef vf (*vector_op)(vf, vf);
typedef float (*scalar_op)(float, float);

/* An operator: inlined where it is used, since all callers are. */
typedef struct pool_op {
    vector_op v;
    scalar_op s;
    float neutral;
} pool_op;

INLINE vf max_v(vf a, vf b)
{
    return v_max_nan(a, b);
}
INLINE float max_s(float a, float b)
{
    return a > b || a != a ? a : b;
}
INLINE vf sum_v(vf a, vf b)
{
    return v_add(a, b);
}
INLINE float sum_s(float a, float b)
{
    return a + b;
}

static const pool_op max_op = {max_v, max_s, -INFINITY}, sum_op = {sum_v, sum_s, 0};

/* ---- down ---- */

enum { AT_ONCE = 4 }; /* rows of src in flight */

/* row = op over `n` rows of src, and over itself if `more`. */
INLINE void down_n(pool_op op, const int n, const bool more, const float *const src[], int64_t W, float *row)
{
    for (int64_t x = 0; x < W; x += VL) {
        const int64_t lanes = W - x;
        const bool whole = lanes >= VL;
        vf acc = whole ? v_load(src[0] + x) : v_load_n(src[0] + x, lanes);
        for (int i = 1; i < n; i++) acc = op.v(acc, whole ? v_load(src[i] + x) : v_load_n(src[i] + x, lanes));
        if (more) acc = op.v(v_load(row + x), acc);
        if (whole)
            v_store(row + x, acc);
        else
            v_store_n(row + x, lanes, acc);
    }
}

INLINE void down_rows(pool_op op, int n, bool more, const float *const src[], int64_t W, float *row)
{
    switch (n * 2 + more) {
    case 2:
        down_n(op, 1, false, src, W, row);
        break;
    case 3:
        down_n(op, 1, true, src, W, row);
        break;
    case 4:
        down_n(op, 2, false, src, W, row);
        break;
    case 5:
        down_n(op, 2, true, src, W, row);
        break;
    case 6:
        down_n(op, 3, false, src, W, row);
        break;
    case 7:
        down_n(op, 3, true, src, W, row);
        break;
    case 8:
        down_n(op, 4, false, src, W, row);
        break;
    case 9:
        down_n(op, 4, true, src, W, row);
        break;
    default:
        for (int64_t x = 0; x < W; x++) row[x] = op.neutral; /* the window lies in the padding */
    }
}

/* Which rows of a plane the window of output row (o, p) covers: row t * kernel[1] + r of it, or NULL in the
 * padding. */
INLINE const float *window_row(const pool_geom *g, const float *plane, int64_t o, int64_t p, int64_t t, int64_t r)
{
    const int64_t d = o * g->stride[0] - g->pad[0] + t * g->dil[0];
    const int64_t h = p * g->stride[1] - g->pad[1] + r * g->dil[1];
    return d < 0 || d >= g->in[0] || h < 0 || h >= g->in[1] ? NULL : plane + (d * g->in[1] + h) * g->in[2];
}

INLINE void down(pool_op op, const pool_geom *g, const float *plane, int64_t o, int64_t p, float *row)
{
    const float *src[AT_ONCE];
    int n = 0;
    bool more = false;
    for (int64_t t = 0; t < g->kernel[0]; t++) {
        for (int64_t r = 0; r < g->kernel[1]; r++) {
            const float *at = window_row(g, plane, o, p, t, r);
            if (!at) continue;
            if (n == AT_ONCE) {
                down_rows(op, n, more, src, g->in[2], row);
                n = 0;
                more = true;
            }
            src[n++] = at;
        }
    }
    down_rows(op, n, more, src, g->in[2], row);
}

/* ---- across: VL outputs from a row; reads may run into the slack after it ---- */

INLINE vf across_stride1(pool_op op, const float *row, int64_t kernel, int64_t dil)
{
    vf acc = v_load(row);
    for (int64_t s = 1; s < kernel; s++) acc = op.v(acc, v_load(row + s * dil));
    return acc;
}

INLINE vf across_stride2(pool_op op, const float *row, int64_t kernel, int64_t dil)
{
    vf acc = v_even(v_load(row), v_load(row + VL));
    if (dil == 1 && kernel > 1) {
        acc = op.v(acc, v_odd(v_load(row), v_load(row + VL)));
        for (int64_t s = 2; s < kernel; s += 2) {
            const vf a = v_load(row + s), b = v_load(row + s + VL);
            acc = op.v(acc, v_even(a, b));
            if (s + 1 < kernel) acc = op.v(acc, v_odd(a, b));
        }
        return acc;
    }
    for (int64_t s = 1; s < kernel; s++) acc = op.v(acc, v_even(v_load(row + s * dil), v_load(row + s * dil + VL)));
    return acc;
}

INLINE vf across_any(pool_op op, const float *row, int64_t stride, int64_t kernel, int64_t dil, int64_t lanes)
{
    float out[VL] = {0};
    for (int64_t q = 0; q < VL && q < lanes; q++, row += stride) {
        float acc = row[0];
        for (int64_t s = 1; s < kernel; s++) acc = op.s(acc, row[s * dil]);
        out[q] = acc;
    }
    return v_load(out);
}

/* The ways across a row: how is the same for all of a call, so the loop over q is inside each. */
#define ACROSS(name, vector)                                                                                       \
    INLINE void name(pool_op op, const pool_geom *g, const float *row, float *dst)                                 \
    {                                                                                                              \
        const int64_t Q = g->out[2], stride = g->stride[2], kernel = g->kernel[2], dil = g->dil[2];                \
        (void)stride, (void)kernel, (void)dil;                                                                     \
        for (int64_t q = 0; q < Q; q += VL) {                                                                      \
            const vf v = (vector);                                                                                 \
            if (Q - q >= VL)                                                                                       \
                v_store(dst + q, v);                                                                               \
            else                                                                                                   \
                v_store_n(dst + q, Q - q, v);                                                                      \
        }                                                                                                          \
    }
ACROSS(across_1_any, across_stride1(op, row + q, kernel, dil))
ACROSS(across_1_3, across_stride1(op, row + q, 3, 1))
ACROSS(across_2_3, across_stride2(op, row + 2 * q, 3, 1))
ACROSS(across_2_any, across_stride2(op, row + 2 * q, kernel, dil))
ACROSS(across_any_any, across_any(op, row + q * stride, stride, kernel, dil, Q - q))

INLINE void across(pool_op op, const pool_geom *g, const float *row, float *dst)
{
    const int64_t stride = g->stride[2], kernel = g->kernel[2], dil = g->dil[2];
    if (stride == 2 && kernel == 3 && dil == 1)
        across_2_3(op, g, row, dst);
    else if (stride == 1 && kernel == 3 && dil == 1)
        across_1_3(op, g, row, dst);
    else if (stride == 1)
        across_1_any(op, g, row, dst);
    else if (stride == 2)
        across_2_any(op, g, row, dst);
    else
        across_any_any(op, g, row, dst);
}

/* ---- both at once: windows of 2 or 4 columns side by side, of up to AT_ONCE rows, need no row between ---- */

INLINE bool side_by_side(const pool_geom *g)
{
    const int64_t k = g->kernel[2];
    return (k == 2 || k == 4) && g->stride[2] == k && g->dil[2] == 1 && g->pad[2] == 0 &&
           g->out[2] * k <= g->in[2] && g->kernel[0] * g->kernel[1] <= AT_ONCE;
}

/* Neighbours folded: VL values from 2 VL. */
INLINE vf fold_pairs(pool_op op, vf a, vf b)
{
    return op.v(v_even(a, b), v_odd(a, b));
}

/* A row of dst from n rows of src, k columns each. Columns that a short vector lacks belong to no output. */
INLINE void fold_n(pool_op op, const int k, const int n, const pool_geom *g, const float *const src[], float *dst)
{
    for (int64_t q = 0; q < g->out[2]; q += VL) {
        const int64_t lanes = g->out[2] - q;
        const bool whole = lanes >= VL;
        vf v[4];
        for (int j = 0; j < k; j++) {
            const int64_t x = k * q + j * VL;
            v[j] = whole ? v_load(src[0] + x) : v_load_n(src[0] + x, g->in[2] - x);
            for (int i = 1; i < n; i++) {
                v[j] = op.v(v[j], whole ? v_load(src[i] + x) : v_load_n(src[i] + x, g->in[2] - x));
            }
        }
        v[0] = fold_pairs(op, v[0], v[1]);
        if (k == 4) v[0] = fold_pairs(op, v[0], fold_pairs(op, v[2], v[3]));
        if (whole)
            v_store(dst + q, v[0]);
        else
            v_store_n(dst + q, lanes, v[0]);
    }
}

INLINE void fold_rows(pool_op op, const int k, int n, const pool_geom *g, const float *const src[], float *dst)
{
    switch (n) {
    case 1:
        fold_n(op, k, 1, g, src, dst);
        break;
    case 2:
        fold_n(op, k, 2, g, src, dst);
        break;
    case 3:
        fold_n(op, k, 3, g, src, dst);
        break;
    case 4:
        fold_n(op, k, 4, g, src, dst);
        break;
    default:
        for (int64_t q = 0; q < g->out[2]; q++) dst[q] = op.neutral; /* the window lies in the padding */
    }
}

/* One row of dst. */
INLINE void fold(pool_op op, const pool_geom *g, const float *plane, int64_t o, int64_t p, float *dst)
{
    const float *src[AT_ONCE];
    int n = 0;
    for (int64_t t = 0; t < g->kernel[0]; t++) {
        for (int64_t r = 0; r < g->kernel[1]; r++) {
            const float *at = window_row(g, plane, o, p, t, r);
            if (at) src[n++] = at;
        }
    }
    if (g->kernel[2] == 2)
        fold_rows(op, 2, n, g, src, dst);
    else
        fold_rows(op, 4, n, g, src, dst);
}

/* ---- planes ---- */

/* More than lies in caches, in rows that are too short for the processor to see where they lead. */
INLINE bool fetches(const pool_geom *g)
{
    return g->in[0] == 1 && g->stride[1] > 1 && g->planes * g->in[1] * g->in[2] >= 2 << 20;
}

/* Prefetches the rows with which the window of a later row of dst begins, into L2: a core can have many more such
 * fetches in flight than into L1. */
INLINE void fetch_rows(const pool_geom *g, const float *plane, int64_t p)
{
    const int64_t later = 4, bytes = cvyi_floats(g->stride[1] * g->in[2]);
    const uintptr_t at = (uintptr_t)plane + (uintptr_t)((p + later) * bytes);
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch((const char *)at + b, 0, 2);
}

/* All rows of a call one after the other. Two rows lie between: one is filled while the other, whose stores have
 * reached the cache by then, is read; a load that overlaps several stores still under way would wait for all of
 * them. */
INLINE void pool_rows(pool_op op, const pool_geom *g, int64_t planes, const float *src, float *dst, float *scratch)
{
    const int64_t in = g->in[0] * g->in[1] * g->in[2], rows = g->out[0] * g->out[1], all = planes * rows;
    const int64_t floats = cvyi_pool_row_floats(g);
    const bool folded = side_by_side(g), far = fetches(g);
    int64_t o = 0, p = 0;
    for (int64_t i = 0; i < 2 * floats && !folded; i++) scratch[i] = op.neutral;
    for (int64_t i = 0; i < all + !folded; i++) {
        if (far && i < all) fetch_rows(g, src, p);
        if (folded)
            fold(op, g, src, o, p, dst + i * g->out[2]);
        else if (i < all)
            down(op, g, src, o, p, scratch + i % 2 * floats + g->pad[2]);
        if (!folded && i > 0) across(op, g, scratch + (i - 1) % 2 * floats, dst + (i - 1) * g->out[2]);
        if (++p < g->out[1]) continue;
        p = 0;
        if (++o < g->out[0]) continue;
        o = 0;
        src += in;
    }
}

static void ENTRY(pool_max, VL)(const pool_geom *g, int64_t planes, const float *src, float *dst, float *scratch)
{
    pool_rows(max_op, g, planes, src, dst, scratch);
}

/* row /= rest * along_w: divided, not multiplied by a reciprocal, so that it rounds as PyTorch does. */
INLINE void divide(float *row, int64_t n, float rest, const float *along_w)
{
    int64_t q = 0;
    for (; q + VL <= n; q += VL) v_store(row + q, v_div(v_load(row + q), v_mul(v_set1(rest), v_load(along_w + q))));
    for (; q < n; q++) row[q] /= rest * along_w[q];
}

static void ENTRY(pool_avg, VL)(const pool_geom *g, int64_t planes, const float *src, float *dst, float *scratch)
{
    const float *along[3];
    cvyi_pool_divisors(g, scratch + 2 * cvyi_pool_row_floats(g), along);
    for (int64_t i = 0; i < planes; i++, src += g->in[0] * g->in[1] * g->in[2]) {
        pool_rows(sum_op, g, 1, src, dst, scratch);
        for (int64_t row = 0; row < g->out[0] * g->out[1]; row++, dst += g->out[2]) {
            divide(dst, g->out[2], along[0][row / g->out[1]] * along[1][row % g->out[1]], along[2]);
        }
    }
}

/* The sum of a plane: runs of RUN floats in four vectors, merged in double, so that the error does not grow with
 * the plane. */
enum { RUN = 1024 };

static double sum_plane(const float *src, int64_t n)
{
    double sum = 0;
    for (int64_t start = 0; start < n; start += RUN) {
        const int64_t end = cvyi_min64(start + RUN, n);
        vf acc[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
        int64_t i = start;
        for (; i + 4 * VL <= end; i += 4 * VL) {
            for (int j = 0; j < 4; j++) acc[j] = v_add(acc[j], v_load(src + i + j * VL));
        }
        for (; i < end; i += VL) acc[0] = v_add(acc[0], v_load_n(src + i, end - i));
        sum += (double)v_hsum(v_add(v_add(acc[0], acc[1]), v_add(acc[2], acc[3])));
    }
    return sum;
}

/* A window of some rows; one of the whole plane is one run. */
static float mean_window(const pool_geom *g, const float *plane, int64_t o, int64_t p, int64_t q)
{
    const int64_t at[3] = {o, p, q};
    int64_t first[3], end[3], n = 1;
    double sum = 0;

    for (int a = 0; a < 3; a++) {
        cvyi_adaptive_window(g->in[a], g->out[a], at[a], &first[a], &end[a]);
        n *= end[a] - first[a];
    }
    if (n == g->in[0] * g->in[1] * g->in[2]) return (float)(sum_plane(plane, n) / (double)n);
    for (int64_t d = first[0]; d < end[0]; d++)
        for (int64_t h = first[1]; h < end[1]; h++)
            sum += sum_plane(plane + (d * g->in[1] + h) * g->in[2] + first[2], end[2] - first[2]);
    return (float)(sum / (double)n);
}

static void ENTRY(pool_mean, VL)(const pool_geom *g, int64_t planes, const float *src, float *dst, float *scratch)
{
    const int64_t plane = g->in[0] * g->in[1] * g->in[2];
    (void)scratch;
    for (int64_t i = 0; i < planes; i++)
        for (int64_t o = 0; o < g->out[0]; o++)
            for (int64_t p = 0; p < g->out[1]; p++)
                for (int64_t q = 0; q < g->out[2]; q++) *dst++ = mean_window(g, src + i * plane, o, p, q);
}

const cpu_pool_kernels ISA(cvyi_pool) = {ENTRY(pool_max, VL), ENTRY(pool_avg, VL), ENTRY(pool_mean, VL)};
