/* simd_avx512.h - AVX-512 F, VL, BW, DQ: 16 lanes. See simd.h. */
#include <immintrin.h>

#define VL 16
#define V_FUSED 1 /* v_fma rounds once */
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

INLINE vm v_first(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (vm)((1u << n) - 1); }
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE void v_stream(float *p, vf a) { V_SHOW(p, 0, VL); _mm512_stream_ps(p, a); } /* aligned to 64, past the caches */
INLINE void v_stream4(float *p, const float *from) { V_SHOW(p, 0, 4); _mm_stream_ps(p, _mm_loadu_ps(from)); } /* aligned to 16 */
INLINE void v_stream_end(void) { _mm_sfence(); }
INLINE vf v_load_n(const float *p, int64_t n) { V_SHOW(p, 0, n); return _mm512_maskz_loadu_ps(v_first(n), p); }
INLINE void v_store_n(float *p, int64_t n, vf a) { V_SHOW(p, 0, n); _mm512_mask_storeu_ps(p, v_first(n), a); }
INLINE vf v_load_range(const float *p, int64_t lo, int64_t hi)
{
    V_SHOW(p, lo, hi);
    return _mm512_maskz_loadu_ps((vm)(v_first(hi) & ~v_first(lo)), p);
}
INLINE vf v_load_fp16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vf v_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INLINE __m256i v_to_fp16(vf a) { return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* Not AVX512-BF16's instruction, which takes subnormal numbers for zero. */
INLINE __m256i v_to_bf16(vf a)
{
    const __m512i x = _mm512_castps_si512(a), front = _mm512_srli_epi32(x, 16);
    const __m512i odd = _mm512_and_si512(front, _mm512_set1_epi32(1));
    const __m512i near = _mm512_srli_epi32(_mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(front, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(near, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet));
}
INLINE void v_store_fp16(uint16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, v_to_fp16(a)); }
INLINE void v_store_bf16(uint16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, v_to_bf16(a)); }
INLINE void v_stream_fp16(uint16_t *p, vf a) { _mm256_stream_si256((__m256i *)p, v_to_fp16(a)); }
INLINE void v_stream_bf16(uint16_t *p, vf a) { _mm256_stream_si256((__m256i *)p, v_to_bf16(a)); }
INLINE vf v_set1(float a) { return _mm512_set1_ps(a); }
INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }   /* a*b + c */
INLINE vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a*b */
INLINE vf v_mul_err(vf a, vf b, vf ab) { return _mm512_fmsub_ps(a, b, ab); }
/* An estimate to 14 bits, then the exact remainder times the same estimate: 28 bits, in half the divider's time. */
INLINE vf v_quot(vf a, vf b)
{
    const vf r = _mm512_rcp14_ps(b), q = v_mul(a, r);
    return v_fma(v_fnma(b, q, a), r, q);
}
INLINE vf v_quot_near(vf a, vf b, vf *r) { return v_mul(a, *r = _mm512_rcp14_ps(b)); }
INLINE vf v_quot_parts(vf a, vf a_lo, vf b, vf b_lo, vf *lo)
{
    const vf r = _mm512_rcp14_ps(b), q = v_mul(a, r);
    *lo = v_mul(v_add(v_fnma(b, q, a), v_fnma(q, b_lo, a_lo)), r);
    return q;
}
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
INLINE vf v_abs(vf a) { return _mm512_abs_ps(a); }
INLINE vf v_neg(vf a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
INLINE vf v_copysign(vf size, vf sign)
{
    const vf s = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(s, size), _mm512_and_ps(s, sign));
}
INLINE vf v_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE vm v_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
INLINE vm v_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE vm v_unordered(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
INLINE vm v_isnan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
INLINE vf v_sel(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
INLINE vm m_and(vm a, vm b) { return a & b; }
INLINE vm m_or(vm a, vm b) { return a | b; }
INLINE int m_any(vm a) { return a != 0; }
INLINE vi v_bits(vf a) { return _mm512_castps_si512(a); }
INLINE vf v_from_bits(vi a) { return _mm512_castsi512_ps(a); }
INLINE vi v_to_int(vf a) { return _mm512_cvtps_epi32(a); } /* nearest */
INLINE vf v_to_float(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi i_set1(int32_t a) { return _mm512_set1_epi32(a); }
INLINE vi i_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi i_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
INLINE vi i_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi i_or(vi a, vi b) { return _mm512_or_si512(a, b); }
#define i_shl(a, n) _mm512_slli_epi32(a, n)
#define i_sra(a, n) _mm512_srai_epi32(a, n)
/* Lanes 0 2 4 ... and 1 3 5 ... of a and b, one after the other. */
INLINE vf v_even(vf a, vf b)
{
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}
INLINE vf v_odd(vf a, vf b)
{
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}
/* Lane sums and maxima in a fixed order: halves first. */
INLINE float v_hsum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE double v_hsum_double(vf a)
{
    return _mm512_reduce_add_pd(_mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(a)),
                                              _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1))));
}
INLINE float v_hmax(vf a) { return _mm512_reduce_max_ps(a); }
/* Streams: see simd.h. */
INLINE void v_unzip4(const vf a[4], vf out[4])
{
    const __m512i k = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i k2 = _mm512_add_epi32(k, _mm512_set1_epi32(2));
    const vf p = _mm512_permutex2var_ps(a[0], k, a[1]), q = _mm512_permutex2var_ps(a[2], k, a[3]);
    const vf r = _mm512_permutex2var_ps(a[0], k2, a[1]), s = _mm512_permutex2var_ps(a[2], k2, a[3]);
    out[0] = _mm512_shuffle_f32x4(p, q, 0x44), out[1] = _mm512_shuffle_f32x4(p, q, 0xee);
    out[2] = _mm512_shuffle_f32x4(r, s, 0x44), out[3] = _mm512_shuffle_f32x4(r, s, 0xee);
}
INLINE void v_zip2(vf a, vf b, vf *low, vf *high)
{
    const __m512i k = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *low = _mm512_permutex2var_ps(a, k, b);
    *high = _mm512_permutex2var_ps(a, _mm512_add_epi32(k, _mm512_set1_epi32(8)), b);
}
INLINE vf v_next(vf a, vf b)
{
    return _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(b), _mm512_castps_si512(a), 1));
}
