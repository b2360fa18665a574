/* simd_neon.h - AArch64's vectors: 4 lanes, fused, 32 registers. See simd.h. */
#include <arm_neon.h>

#define VL 4
#define V_FUSED 1 /* v_fma rounds once */
typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vm; /* all bits in the lanes that are on */

INLINE vm v_first(int64_t n)
{
    static const int32_t numbers[4] = {0, 1, 2, 3};
    return vcgtq_s32(vdupq_n_s32(n >= 4 ? 4 : n <= 0 ? 0 : (int32_t)n), vld1q_s32(numbers));
}
INLINE vf v_load(const float *p) { return vld1q_f32(p); }
INLINE void v_store(float *p, vf a) { vst1q_f32(p, a); }
/* Plain stores: AArch64 has no cheap store of a vector that bypasses the caches. */
INLINE void v_stream(float *p, vf a) { vst1q_f32(p, a); }
INLINE void v_stream4(float *p, const float *from) { vst1q_f32(p, vld1q_f32(from)); }
INLINE void v_stream_end(void) {}
INLINE vf v_load_n(const float *p, int64_t n)
{
    float lanes[4] = {0, 0, 0, 0};
    for (int i = 0; i < 4 && i < n; i++) lanes[i] = p[i];
    return vld1q_f32(lanes);
}
INLINE void v_store_n(float *p, int64_t n, vf a)
{
    float lanes[4];
    vst1q_f32(lanes, a);
    for (int i = 0; i < 4 && i < n; i++) p[i] = lanes[i];
}
INLINE vf v_load_range(const float *p, int64_t lo, int64_t hi)
{
    float lanes[4] = {0, 0, 0, 0};
    for (int i = 0; i < 4; i++)
        if (i >= lo && i < hi) lanes[i] = p[i];
    return vld1q_f32(lanes);
}
INLINE vf v_load_fp16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE vf v_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
INLINE uint16x4_t v_to_bf16(vf a)
{
    const uint32x4_t x = vreinterpretq_u32_f32(a), front = vshrq_n_u32(x, 16), odd = vandq_u32(front, vdupq_n_u32(1));
    const uint32x4_t near = vshrq_n_u32(vaddq_u32(x, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    const uint32x4_t quiet = vorrq_u32(front, vdupq_n_u32(0x40));
    return vmovn_u32(vbslq_u32(vceqq_f32(a, a), near, quiet));
}
INLINE void v_store_fp16(uint16_t *p, vf a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
INLINE void v_store_bf16(uint16_t *p, vf a) { vst1_u16(p, v_to_bf16(a)); }
INLINE void v_stream_fp16(uint16_t *p, vf a) { v_store_fp16(p, a); }
INLINE void v_stream_bf16(uint16_t *p, vf a) { v_store_bf16(p, a); }
INLINE vf v_set1(float a) { return vdupq_n_f32(a); }
INLINE vf v_zero(void) { return vdupq_n_f32(0.0f); }
INLINE vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
INLINE vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
INLINE vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
INLINE vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }  /* a*b + c */
INLINE vf v_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); } /* c - a*b */
INLINE vf v_mul_err(vf a, vf b, vf ab) { return vfmaq_f32(vnegq_f32(ab), a, b); }
/* 1 / b within 2^-15: the estimate's 8 bits, twice as many by a step of Newton's. */
INLINE vf v_rcp(vf b)
{
    const vf r = vrecpeq_f32(b);
    return vmulq_f32(r, vrecpsq_f32(b, r));
}
INLINE vf v_quot(vf a, vf b) { return vdivq_f32(a, b); }
INLINE vf v_quot_near(vf a, vf b, vf *r) { return *r = v_rcp(b), vdivq_f32(a, b); }
INLINE vf v_quot_parts(vf a, vf a_lo, vf b, vf b_lo, vf *lo)
{
    const vf q = v_div(a, b);
    *lo = v_mul(v_add(v_fnma(b, q, a), v_fnma(q, b_lo, a_lo)), v_rcp(b)); /* 12 bits are enough for a rest */
    return q;
}
INLINE vf v_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); } /* b if either is NaN, as x86 has it */
INLINE vf v_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
INLINE vf v_sqrt(vf a) { return vsqrtq_f32(a); }
INLINE vf v_abs(vf a) { return vabsq_f32(a); }
INLINE vf v_neg(vf a) { return vnegq_f32(a); }
INLINE vf v_copysign(vf size, vf sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, size); }
INLINE vf v_round(vf a) { return vrndnq_f32(a); }
INLINE vm v_lt(vf a, vf b) { return vcltq_f32(a, b); }
INLINE vm v_le(vf a, vf b) { return vcleq_f32(a, b); }
INLINE vm v_eq(vf a, vf b) { return vceqq_f32(a, b); }
INLINE vm v_isnan(vf a) { return vmvnq_u32(vceqq_f32(a, a)); }
INLINE vm v_unordered(vf a, vf b) { return vmvnq_u32(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b))); }
INLINE vf v_sel(vm m, vf a, vf b) { return vbslq_f32(m, a, b); }
INLINE vm m_and(vm a, vm b) { return vandq_u32(a, b); }
INLINE vm m_or(vm a, vm b) { return vorrq_u32(a, b); }
INLINE int m_any(vm a) { return vmaxvq_u32(a) != 0; }
INLINE vi v_bits(vf a) { return vreinterpretq_s32_f32(a); }
INLINE vf v_from_bits(vi a) { return vreinterpretq_f32_s32(a); }
INLINE vi v_to_int(vf a) { return vcvtnq_s32_f32(a); } /* nearest */
INLINE vf v_to_float(vi a) { return vcvtq_f32_s32(a); }
INLINE vi i_set1(int32_t a) { return vdupq_n_s32(a); }
INLINE vi i_add(vi a, vi b) { return vaddq_s32(a, b); }
INLINE vi i_sub(vi a, vi b) { return vsubq_s32(a, b); }
INLINE vi i_and(vi a, vi b) { return vandq_s32(a, b); }
INLINE vi i_or(vi a, vi b) { return vorrq_s32(a, b); }
#define i_shl(a, n) vshlq_n_s32(a, n)
#define i_sra(a, n) vshrq_n_s32(a, n)
/* Lanes 0 2 4 ... and 1 3 5 ... of a and b, one after the other. */
INLINE vf v_even(vf a, vf b) { return vuzp1q_f32(a, b); }
INLINE vf v_odd(vf a, vf b) { return vuzp2q_f32(a, b); }
/* Lane sums and maxima in a fixed order: halves first. */
INLINE float v_hsum(vf a)
{
    const float32x2_t s = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(s, 0) + vget_lane_f32(s, 1);
}
INLINE double v_hsum_double(vf a)
{
    const float64x2_t s = vaddq_f64(vcvt_f64_f32(vget_low_f32(a)), vcvt_f64_f32(vget_high_f32(a)));
    return vgetq_lane_f64(s, 0) + vgetq_lane_f64(s, 1);
}
INLINE float v_hmax(vf a)
{
    const float32x2_t l = vget_low_f32(a), h = vget_high_f32(a), s = vbsl_f32(vcgt_f32(l, h), l, h);
    const float x = vget_lane_f32(s, 0), y = vget_lane_f32(s, 1);
    return x > y ? x : y;
}
/* Streams: see simd.h. */
INLINE void v_zip2(vf a, vf b, vf *low, vf *high) { *low = vzip1q_f32(a, b), *high = vzip2q_f32(a, b); }
INLINE void v_unzip4(const vf a[4], vf out[4])
{
    const vf p = vuzp1q_f32(a[0], a[1]), q = vuzp2q_f32(a[0], a[1]); /* lanes 0 2 0 2, 1 3 1 3 of a[0] and a[1] */
    const vf r = vuzp1q_f32(a[2], a[3]), s = vuzp2q_f32(a[2], a[3]);
    out[0] = vuzp1q_f32(p, r), out[1] = vuzp1q_f32(q, s);
    out[2] = vuzp2q_f32(p, r), out[3] = vuzp2q_f32(q, s);
}
INLINE vf v_next(vf a, vf b) { return vextq_f32(a, b, 1); }
