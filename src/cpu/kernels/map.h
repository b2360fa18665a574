/* map.h - dst[i] = f(x[i], y[i], z[i]) over contiguous floats, each operand a run or one number for all.
 *
 * map() is inlined with f and the kinds of the operands known, so that each use becomes a loop of its own:
 * IN_FLIGHT vectors are loaded and computed before any is stored (dst may be an operand, and several long chains of
 * dependent instructions are in flight), then single vectors, the last one by mask. */
#ifndef CVYI_CPU_MAP_H
#define CVYI_CPU_MAP_H

#include "../simd.h"

enum { IN_FLIGHT = 2 };

typedef vf map_fn(vf x, vf y, vf z);

typedef enum operand_kind { ONE_NUMBER, A_RUN, A_RUN_LESS } operand_kind;
typedef struct operand {
    operand_kind kind; /* a constant where it is used */
    const float *run;
    vf all; /* the number, or what each element of the run is taken less by */
} operand;

INLINE operand run_of(const float *run)
{
    return (operand){A_RUN, run, v_zero()};
}
INLINE operand all_of(float number)
{
    return (operand){ONE_NUMBER, NULL, v_set1(number)};
}
INLINE operand run_less(const float *run, float number)
{
    return (operand){A_RUN_LESS, run, v_set1(number)};
}
INLINE vf take(operand o, int64_t at)
{
    if (o.kind == A_RUN_LESS) return v_sub(v_load(o.run + at), o.all);
    return o.kind == A_RUN ? v_load(o.run + at) : o.all;
}
INLINE vf take_n(operand o, int64_t at, int64_t n)
{
    if (o.kind == A_RUN_LESS) return v_sub(v_load_n(o.run + at, n), o.all);
    return o.kind == A_RUN ? v_load_n(o.run + at, n) : o.all;
}

/* Elements from...to - 1, by single vectors and a partial one. */
INLINE void map_some(float *dst, operand x, operand y, operand z, int64_t from, int64_t to, map_fn *f)
{
    int64_t i = from;
    for (; i + VL <= to; i += VL) v_store(dst + i, f(take(x, i), take(y, i), take(z, i)));
    if (i < to) v_store_n(dst + i, to - i, f(take_n(x, i, to - i), take_n(y, i, to - i), take_n(z, i, to - i)));
}

INLINE void map(float *dst, operand x, operand y, operand z, int64_t n, map_fn *f)
{
    int64_t i = 0;
    for (; i + IN_FLIGHT * VL <= n; i += IN_FLIGHT * VL) {
        vf r[IN_FLIGHT];
        for (int u = 0; u < IN_FLIGHT; u++) r[u] = f(take(x, i + u * VL), take(y, i + u * VL), take(z, i + u * VL));
        for (int u = 0; u < IN_FLIGHT; u++) v_store(dst + i + u * VL, r[u]);
    }
    map_some(dst, x, y, z, i, n, f);
}

/* Floats before the first whole vector that v_stream() takes. */
INLINE int64_t to_boundary(const float *dst)
{
    return (int64_t)(-((uintptr_t)dst / sizeof(float)) % VL);
}

/* A run that begins and ends at 16 bytes is streamed to its ends. Of others the line in which they end, and the
 * next begins, is stored to as usual: never in both ways. */
INLINE bool in_fours(const float *dst, int64_t n)
{
    return ((uintptr_t)dst / sizeof *dst | (uintptr_t)n) % 4 == 0;
}

/* Fetched in time that line does not hold up the streamed stores after it: stores leave in order. Rows of 4 KB
 * that end inside a line take a third longer without this. */
INLINE void fetch_end(float *dst, int64_t n)
{
    if (!in_fours(dst, n) && to_boundary(dst + n)) __builtin_prefetch(dst + n, 1, 3);
}

/* The same with stores past the caches, which must be aligned: what lies before the first boundary and after
 * the last is v_stream_n's. Whoever hands the result on calls v_stream_end() first: once per part, since a fence
 * after every few kilobytes costs a third of the bandwidth. */
INLINE void map_stream(float *dst, operand x, operand y, operand z, int64_t n, map_fn *f)
{
    const bool fours = in_fours(dst, n);
    int64_t i = to_boundary(dst) < n ? to_boundary(dst) : n;
    fetch_end(dst, n);
    if (i) (fours ? v_stream_n : v_store_n)(dst, i, f(take_n(x, 0, i), take_n(y, 0, i), take_n(z, 0, i)));
    for (; i + IN_FLIGHT * VL <= n; i += IN_FLIGHT * VL) {
        vf r[IN_FLIGHT];
        for (int u = 0; u < IN_FLIGHT; u++) r[u] = f(take(x, i + u * VL), take(y, i + u * VL), take(z, i + u * VL));
        for (int u = 0; u < IN_FLIGHT; u++) v_stream(dst + i + u * VL, r[u]);
    }
    for (; i + VL <= n; i += VL) (fours ? v_stream : v_store)(dst + i, f(take(x, i), take(y, i), take(z, i)));
    if (i < n)
        (fours ? v_stream_n : v_store_n)(dst + i, n - i,
                                         f(take_n(x, i, n - i), take_n(y, i, n - i), take_n(z, i, n - i)));
}

#endif
