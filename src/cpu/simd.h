/* simd.h - one vocabulary of vector operations for every instruction set.
 *
 * A kernel file is compiled once per instruction set, with CVY_ISA_AVX512, CVY_ISA_AVX2 or CVY_ISA_PORTABLE defined,
 * and writes ISA(name) for each symbol that other files see: name_avx512, name_avx2, name_portable.
 *
 *   vf, vi        VL floats; VL 32-bit integers
 *   vm            a mask of VL lanes
 *   v_load(p)     unaligned, as all loads and stores here
 *   v_load_n(p,n) the first n lanes (0 <= n <= VL), zero behind; touches no byte behind them
 *   v_store_n     likewise
 *   v_first(n)    mask of the first n lanes, any n
 *   v_max, v_min  second operand if either is NaN (as x86); v_max_nan, v_min_nan give NaN if either is NaN
 *   v_sel(m,a,b)  a where m, else b
 */
#ifndef CVYI_SIMD_H
#define CVYI_SIMD_H

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define CVYI_PASTE_(a, b) a##b
#define CVYI_PASTE(a, b) CVYI_PASTE_(a, b)

#if defined(CVY_ISA_AVX512)
#include "simd_avx512.h"
#define ISA(name) CVYI_PASTE(name, _avx512)
#elif defined(CVY_ISA_AVX2)
#include "simd_avx2.h"
#define ISA(name) CVYI_PASTE(name, _avx2)
#else
#include "simd_portable.h"
#define ISA(name) CVYI_PASTE(name, _portable)
#endif

/* NaN if either is: the comparison finds the NaN in a (v_max already returns b where b is NaN). */
INLINE vf v_max_nan(vf a, vf b)
{
    return v_sel(v_isnan(a), a, v_max(a, b));
}
INLINE vf v_min_nan(vf a, vf b)
{
    return v_sel(v_isnan(a), a, v_min(a, b));
}

#endif
