/* simd_avx2.h - AVX2 and FMA: 8 lanes. See simd.h. */
#include <immintrin.h>

#define VL 8
#define V_FUSED 1 /* v_fma rounds once */
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

INLINE vm v_first(int64_t n)
{
    const int k = n >= 8 ? 8 : n <= 0 ? 0 : (int)n;
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(k), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
INLINE void v_stream(float *p, vf a) { V_SHOW(p, 0, VL); _mm256_stream_ps(p, a); } /* aligned to 32, past the caches */
INLINE void v_stream4(float *p, const float *from) { V_SHOW(p, 0, 4); _mm_stream_ps(p, _mm_loadu_ps(from)); } /* aligned to 16 */
INLINE void v_stream_end(void) { _mm_sfence(); }
INLINE vf v_load_n(const float *p, int64_t n) { V_SHOW(p, 0, n); return _mm256_maskload_ps(p, _mm256_castps_si256(v_first(n))); }
INLINE void v_store_n(float *p, int64_t n, vf a) { V_SHOW(p, 0, n); _mm256_maskstore_ps(p, _mm256_castps_si256(v_first(n)), a); }
INLINE vf v_load_range(const float *p, int64_t lo, int64_t hi)
{
    V_SHOW(p, lo, hi);
    return _mm256_maskload_ps(p, _mm256_castps_si256(_mm256_andnot_ps(v_first(lo), v_first(hi))));
}
INLINE vf v_load_fp16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE vf v_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INLINE __m128i v_to_fp16(vf a) { return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE __m128i v_to_bf16(vf a)
{
    const __m256i x = _mm256_castps_si256(a), front = _mm256_srli_epi32(x, 16);
    const __m256i odd = _mm256_and_si256(front, _mm256_set1_epi32(1));
    const __m256i near = _mm256_srli_epi32(_mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(front, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(near, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
INLINE void v_store_fp16(uint16_t *p, vf a) { _mm_storeu_si128((__m128i *)p, v_to_fp16(a)); }
INLINE void v_store_bf16(uint16_t *p, vf a) { _mm_storeu_si128((__m128i *)p, v_to_bf16(a)); }
INLINE void v_stream_fp16(uint16_t *p, vf a) { _mm_stream_si128((__m128i *)p, v_to_fp16(a)); }
INLINE void v_stream_bf16(uint16_t *p, vf a) { _mm_stream_si128((__m128i *)p, v_to_bf16(a)); }
INLINE vf v_set1(float a) { return _mm256_set1_ps(a); }
INLINE vf v_zero(void) { return _mm256_setzero_ps(); }
INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }   /* a*b + c */
INLINE vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); } /* c - a*b */
INLINE vf v_mul_err(vf a, vf b, vf ab) { return _mm256_fmsub_ps(a, b, ab); }
INLINE vf v_quot(vf a, vf b) { return _mm256_div_ps(a, b); }
INLINE vf v_quot_near(vf a, vf b, vf *r) { return *r = _mm256_rcp_ps(b), v_div(a, b); }
INLINE vf v_quot_parts(vf a, vf a_lo, vf b, vf b_lo, vf *lo)
{
    const vf q = v_div(a, b);
    *lo = v_mul(v_add(v_fnma(b, q, a), v_fnma(q, b_lo, a_lo)), _mm256_rcp_ps(b)); /* 12 bits are enough for a rest */
    return q;
}
INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf v_sqrt(vf a) { return _mm256_sqrt_ps(a); }
INLINE vf v_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE vf v_neg(vf a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
INLINE vf v_copysign(vf size, vf sign)
{
    const vf s = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(s, size), _mm256_and_ps(s, sign));
}
INLINE vf v_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vm v_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
INLINE vm v_le(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
INLINE vm v_eq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
INLINE vm v_unordered(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_UNORD_Q); }
INLINE vm v_isnan(vf a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
INLINE vf v_sel(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
INLINE vm m_and(vm a, vm b) { return _mm256_and_ps(a, b); }
INLINE vm m_or(vm a, vm b) { return _mm256_or_ps(a, b); }
INLINE int m_any(vm a) { return _mm256_movemask_ps(a) != 0; }
INLINE vi v_bits(vf a) { return _mm256_castps_si256(a); }
INLINE vf v_from_bits(vi a) { return _mm256_castsi256_ps(a); }
INLINE vi v_to_int(vf a) { return _mm256_cvtps_epi32(a); } /* nearest */
INLINE vf v_to_float(vi a) { return _mm256_cvtepi32_ps(a); }
INLINE vi i_set1(int32_t a) { return _mm256_set1_epi32(a); }
INLINE vi i_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vi i_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
INLINE vi i_and(vi a, vi b) { return _mm256_and_si256(a, b); }
INLINE vi i_or(vi a, vi b) { return _mm256_or_si256(a, b); }
#define i_shl(a, n) _mm256_slli_epi32(a, n)
#define i_sra(a, n) _mm256_srai_epi32(a, n)
/* Lanes 0 2 4 ... and 1 3 5 ... of a and b, one after the other. */
INLINE vf v_even(vf a, vf b)
{
    const __m256d s = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(s, 0xd8));
}
INLINE vf v_odd(vf a, vf b)
{
    const __m256d s = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(s, 0xd8));
}
/* Lane sums and maxima in a fixed order: halves first. */
INLINE float v_hsum(vf a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE double v_hsum_double(vf a)
{
    const __m256d d = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                                    _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)));
    const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(d), _mm256_extractf128_pd(d, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}
INLINE float v_hmax(vf a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
/* Streams: see simd.h. */
INLINE void v_unzip4(const vf a[4], vf out[4])
{
    const vf p = _mm256_permute2f128_ps(a[0], a[2], 0x20), q = _mm256_permute2f128_ps(a[0], a[2], 0x31);
    const vf r = _mm256_permute2f128_ps(a[1], a[3], 0x20), s = _mm256_permute2f128_ps(a[1], a[3], 0x31);
    const vf t = _mm256_unpacklo_ps(p, q), u = _mm256_unpackhi_ps(p, q);
    const vf v = _mm256_unpacklo_ps(r, s), w = _mm256_unpackhi_ps(r, s);
    out[0] = _mm256_shuffle_ps(t, v, 0x44), out[1] = _mm256_shuffle_ps(t, v, 0xee);
    out[2] = _mm256_shuffle_ps(u, w, 0x44), out[3] = _mm256_shuffle_ps(u, w, 0xee);
}
INLINE void v_zip2(vf a, vf b, vf *low, vf *high)
{
    const vf l = _mm256_unpacklo_ps(a, b), h = _mm256_unpackhi_ps(a, b);
    *low = _mm256_permute2f128_ps(l, h, 0x20), *high = _mm256_permute2f128_ps(l, h, 0x31);
}
INLINE vf v_next(vf a, vf b)
{
    const __m256i middle = _mm256_castps_si256(_mm256_permute2f128_ps(a, b, 0x21));
    return _mm256_castsi256_ps(_mm256_alignr_epi8(middle, _mm256_castps_si256(a), 4));
}
