/* simd.h - one vocabulary of vector operations for every instruction set.
 *
 * A kernel file is compiled once per instruction set, with CVY_ISA_AVX512, CVY_ISA_AVX2, CVY_ISA_NEON or CVY_ISA_PORTABLE
 * defined, and writes ISA(name) for each symbol that other files see: name_avx512, name_avx2, name_neon,
 * name_portable.
 *
 *   vf, vi        VL floats; VL 32-bit integers
 *   vm            a mask of VL lanes
 *   v_load(p)     unaligned, as all loads and stores here
 *   v_load_n(p,n) the first n lanes (0 <= n <= VL), zero after; touches no byte past them
 *   v_store_n     likewise
 *   v_first(n)    mask of the first n lanes, any n
 *   v_max, v_min  second operand if either is NaN (as x86); v_max_nan, v_min_nan give NaN if either is NaN
 *   v_unordered   lanes in which either is NaN
 *   v_sel(m,a,b)  a where m, else b
 *   v_quot(a,b)   a / b for 2^-60 < |b| < 2^60, finite, within 0.6 ULP; v_div is exact and for all
 *   v_quot_near   (a,b,&r): about a / b, and r about 1 / b; the remainder times r makes up for what the first lacks
 *   v_quot_parts  (a,a_lo,b,b_lo,&lo): q with q + lo = (a + a_lo) / (b + b_lo) within 2^-27, b as in v_quot
 *   v_mul_err     (a,b,ab) with ab = v_mul(a,b): what rounding took away, a b - ab, exactly; |a|, |b| < 2^60
 *   v_stream      aligned store past the caches; v_stream_end() makes all of them visible before what follows
 *   v_stream4     the same of four floats, aligned to them; v_stream_n: of the first n lanes, all in fours
 *   v_load_range  lanes lo <= lane < hi of p, zero elsewhere; touches no byte of the others, p may lie before an array
 *   v_unzip4      4 vectors of 4 interleaved streams separated (for 2: v_even, v_odd); v_zip2, v_zip4 the inverse
 *   v_turn(a)     VL vectors as the rows of a matrix, replaced by its columns
 *   v_next(a,b)   lanes 1... of a, then lane 0 of b
 *   v_and(a,b)    bits of a where b has them: b is a mask of all ones or all zeros per lane, kept in memory
 *   v_load_fp16, v_load_bf16, v_store_..., v_stream_...  VL words of 16 bits, as util/half.h converts them; the last
 *                 aligned to VL words, past the caches
 *   v_even, v_odd(a,b)  every second lane of the 2 VL lanes of a and b
 */
#ifndef CVYI_SIMD_H
#define CVYI_SIMD_H

#include <stdint.h>
#include <string.h>
#include "../util/asan.h"

#define INLINE static inline __attribute__((always_inline))
#define CVYI_PASTE_(a, b) a##b
#define CVYI_PASTE(a, b) CVYI_PASTE_(a, b)

/* The address sanitizer does not see masked and streaming accesses. They show it the first and the last of the lanes
 * lo ... hi - 1 that they touch. */
#if CVYI_ASAN
INLINE void v_show_lanes(const volatile float *p, int64_t lo, int64_t hi)
{
    if (lo < hi) (void)p[lo], (void)p[hi - 1];
}
#define V_SHOW(p, lo, hi) v_show_lanes(p, (lo) < 0 ? 0 : (lo), (hi) > VL ? VL : (hi))
#else
#define V_SHOW(p, lo, hi) ((void)0)
#endif

#if defined(CVY_ISA_AVX512)
#include "simd_avx512.h"
#define ISA(name) CVYI_PASTE(name, _avx512)
#elif defined(CVY_ISA_AVX2)
#include "simd_avx2.h"
#define ISA(name) CVYI_PASTE(name, _avx2)
#elif defined(CVY_ISA_NEON)
#include "simd_neon.h"
#define ISA(name) CVYI_PASTE(name, _neon)
#else
#include "simd_portable.h"
#define ISA(name) CVYI_PASTE(name, _portable)
#endif

/* The entry of a kernel, as profilers show it: <kernel>_<types>_<tile>_<isa>. The tile of a loop over vectors is their
 * lanes: relu_f32_16_avx512. */
#define ENTRY(kernel, tile) ISA(CVYI_PASTE(kernel##_f32_, tile))
#define TEXT_OF_(name) #name
#define TEXT_OF(name) TEXT_OF_(name)

/* Loops over registers: the trip count is a constant, and arrays of vectors must end up in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

INLINE vf v_and(vf a, vf b)
{
    return v_from_bits(i_and(v_bits(a), v_bits(b)));
}
INLINE void v_zip4(const vf a[4], vf out[4])
{
    vf even[2], odd[2];
    v_zip2(a[0], a[2], &even[0], &even[1]);
    v_zip2(a[1], a[3], &odd[0], &odd[1]);
    v_zip2(even[0], odd[0], &out[0], &out[1]);
    v_zip2(even[1], odd[1], &out[2], &out[3]);
}
/* Rows i and i + VL / 2 interleaved, for all i, is one of log2(VL) steps that sort all elements by their column. */
INLINE void v_turn(vf a[VL])
{
    vf b[VL];
    UNROLL for (int step = 1; step < VL; step *= 2)
    {
        UNROLL for (int i = 0; i < VL / 2; i++) v_zip2(a[i], a[i + VL / 2], &b[2 * i], &b[2 * i + 1]);
        UNROLL for (int i = 0; i < VL; i++) a[i] = b[i];
    }
}
/* Stores the first n lanes past the caches, n < VL, both p and n in fours: what the run before them or after them
 * stores to their line fills it up before it leaves. */
INLINE void v_stream_n(float *p, int64_t n, vf a)
{
    float lanes[VL];
    v_store(lanes, a);
    for (int64_t i = 0; i < n; i += 4) v_stream4(p + i, lanes + i);
}
/* NaN if either is: the comparison finds the NaN in a (v_max already returns b if b is NaN). */
INLINE vf v_max_nan(vf a, vf b)
{
    return v_sel(v_isnan(a), a, v_max(a, b));
}
INLINE vf v_min_nan(vf a, vf b)
{
    return v_sel(v_isnan(a), a, v_min(a, b));
}

#endif
