/* simd_portable.h - the vector extension of gcc and clang: 4 lanes, whatever the processor. See simd.h. */
#include <math.h>
#include "../util/half.h"

#define VL 4
#define V_FUSED 0 /* v_fma rounds twice */
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef int32_t vm __attribute__((vector_size(16))); /* -1 in the lanes that are on */

INLINE vm v_first(int64_t n) { return (vm){0 < n ? -1 : 0, 1 < n ? -1 : 0, 2 < n ? -1 : 0, 3 < n ? -1 : 0}; }
INLINE vf v_load(const float *p) { vf a; memcpy(&a, p, sizeof a); return a; }
INLINE void v_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
INLINE void v_stream(float *p, vf a) { memcpy(p, &a, sizeof a); }
INLINE void v_stream4(float *p, const float *from) { memcpy(p, from, 4 * sizeof *from); }
INLINE void v_stream_end(void) {}
INLINE vf v_load_n(const float *p, int64_t n)
{
    vf a = {0, 0, 0, 0};
    for (int i = 0; i < 4 && i < n; i++) a[i] = p[i];
    return a;
}
INLINE void v_store_n(float *p, int64_t n, vf a) { for (int i = 0; i < 4 && i < n; i++) p[i] = a[i]; }
INLINE vf v_load_range(const float *p, int64_t lo, int64_t hi)
{
    vf a = {0, 0, 0, 0};
    for (int i = 0; i < 4; i++)
        if (i >= lo && i < hi) a[i] = p[i];
    return a;
}
INLINE vf v_load_words(cvy_dtype dtype, const uint16_t *p)
{
    vf a;
    for (int i = 0; i < 4; i++) a[i] = cvyi_widen(dtype, p[i]);
    return a;
}
INLINE void v_store_words(cvy_dtype dtype, uint16_t *p, vf a) { for (int i = 0; i < 4; i++) p[i] = cvyi_narrow(dtype, a[i]); }
INLINE vf v_load_fp16(const uint16_t *p) { return v_load_words(CVY_FLOAT16, p); }
INLINE vf v_load_bf16(const uint16_t *p) { return v_load_words(CVY_BFLOAT16, p); }
INLINE void v_store_fp16(uint16_t *p, vf a) { v_store_words(CVY_FLOAT16, p, a); }
INLINE void v_store_bf16(uint16_t *p, vf a) { v_store_words(CVY_BFLOAT16, p, a); }
INLINE void v_stream_fp16(uint16_t *p, vf a) { v_store_fp16(p, a); }
INLINE void v_stream_bf16(uint16_t *p, vf a) { v_store_bf16(p, a); }
INLINE vf v_set1(float a) { return (vf){a, a, a, a}; }
INLINE vf v_zero(void) { return (vf){0, 0, 0, 0}; }
INLINE vf v_add(vf a, vf b) { return a + b; }
INLINE vf v_sub(vf a, vf b) { return a - b; }
INLINE vf v_mul(vf a, vf b) { return a * b; }
INLINE vf v_div(vf a, vf b) { return a / b; }
INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; } /* rounds twice if there is no FMA */
INLINE vf v_fnma(vf a, vf b, vf c) { return c - a * b; }
/* Dekker's product: both factors cut into halves of 12 bits, whose products are exact */
INLINE vf v_mul_err(vf a, vf b, vf ab)
{
    const vf ca = v_mul(a, v_set1(4097.0f)), cb = v_mul(b, v_set1(4097.0f));
    const vf ah = v_sub(ca, v_sub(ca, a)), bh = v_sub(cb, v_sub(cb, b)), al = v_sub(a, ah), bl = v_sub(b, bh);
    const vf e = v_add(v_add(v_sub(v_mul(ah, bh), ab), v_mul(ah, bl)), v_mul(al, bh));
    return v_add(e, v_mul(al, bl));
}
INLINE vf v_quot(vf a, vf b) { return v_div(a, b); }
INLINE vf v_quot_near(vf a, vf b, vf *r) { return *r = v_div(v_set1(1.0f), b), v_div(a, b); }
INLINE vf v_quot_parts(vf a, vf a_lo, vf b, vf b_lo, vf *lo)
{
    const vf q = v_div(a, b), bq = v_mul(b, q), rest = v_sub(v_sub(a, bq), v_mul_err(b, q, bq));
    *lo = v_div(v_add(rest, v_fnma(q, b_lo, a_lo)), b);
    return q;
}
INLINE vm v_lt(vf a, vf b) { return a < b; }
INLINE vm v_le(vf a, vf b) { return a <= b; }
INLINE vm v_eq(vf a, vf b) { return a == b; }
INLINE vm v_isnan(vf a) { return a != a; }
INLINE vm v_unordered(vf a, vf b) { return v_isnan(a) | v_isnan(b); }
INLINE vi v_bits(vf a) { return (vi)a; }
INLINE vf v_from_bits(vi a) { return (vf)a; }
INLINE vf v_sel(vm m, vf a, vf b) { return (vf)(((vi)a & m) | ((vi)b & ~m)); }
INLINE vf v_max(vf a, vf b) { return v_sel(a > b, a, b); }
INLINE vf v_min(vf a, vf b) { return v_sel(a < b, a, b); }
INLINE vm m_and(vm a, vm b) { return a & b; }
INLINE vm m_or(vm a, vm b) { return a | b; }
INLINE int m_any(vm a) { return (a[0] | a[1] | a[2] | a[3]) != 0; }
INLINE vf v_sqrt(vf a) { return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])}; }
INLINE vf v_abs(vf a) { return (vf)((vi)a & 0x7fffffff); }
INLINE vf v_neg(vf a) { return -a; }
INLINE vf v_copysign(vf size, vf sign) { return (vf)(((vi)size & 0x7fffffff) | ((vi)sign & ~0x7fffffff)); }
INLINE vf v_round(vf a) { return (vf){rintf(a[0]), rintf(a[1]), rintf(a[2]), rintf(a[3])}; }
INLINE vi v_to_int(vf a) { return __builtin_convertvector(v_round(a), vi); } /* nearest; in range only */
INLINE vf v_to_float(vi a) { return __builtin_convertvector(a, vf); }
INLINE vi i_set1(int32_t a) { return (vi){a, a, a, a}; }
INLINE vi i_add(vi a, vi b) { return (vi)((__attribute__((vector_size(16))) uint32_t)a + (__attribute__((vector_size(16))) uint32_t)b); }
INLINE vi i_sub(vi a, vi b) { return (vi)((__attribute__((vector_size(16))) uint32_t)a - (__attribute__((vector_size(16))) uint32_t)b); }
INLINE vi i_and(vi a, vi b) { return a & b; }
INLINE vi i_or(vi a, vi b) { return a | b; }
#define i_shl(a, n) ((vi)(a) << (n))
#define i_sra(a, n) ((vi)(a) >> (n))
/* Lanes 0 2 4 ... and 1 3 5 ... of a and b, one after the other. */
INLINE vf v_even(vf a, vf b) { return (vf){a[0], a[2], b[0], b[2]}; }
INLINE vf v_odd(vf a, vf b) { return (vf){a[1], a[3], b[1], b[3]}; }
/* Lane sums and maxima in a fixed order: halves first. */
INLINE float v_hsum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
INLINE double v_hsum_double(vf a) { return ((double)a[0] + a[2]) + ((double)a[1] + a[3]); }
INLINE float v_hmax(vf a)
{
    const float x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
    return x > y ? x : y;
}
/* Streams: see simd.h. */
INLINE void v_unzip4(const vf a[4], vf out[4])
{
    for (int i = 0; i < 4; i++) out[i] = (vf){a[0][i], a[1][i], a[2][i], a[3][i]};
}
INLINE void v_zip2(vf a, vf b, vf *low, vf *high)
{
    *low = (vf){a[0], b[0], a[1], b[1]}, *high = (vf){a[2], b[2], a[3], b[3]};
}
INLINE vf v_next(vf a, vf b) { return (vf){a[1], a[2], a[3], b[0]}; }
