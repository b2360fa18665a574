/* math.h - exp, log, tanh, sigmoid, erf on vectors of floats.
 *
 * Everything is correct to 2 ULP for every float: denormal arguments and results, infinities (as PyTorch's formula
 * gives them), NaN in to NaN out, and the sign of zero where the function keeps it. The largest error of each over
 * all floats, by test/exhaustive_math.c, is in doc/LAB.md.
 *
 * The polynomials are minimax fits with coefficients rounded to float one after the other, the rest fitted again
 * each time; "fit" is their own error. 1 ULP just above 1 is 1.2e-7.
 *
 * Rounding to an integer is done by adding and subtracting 1.5 * 2^23: the integer is then also in the low
 * bits. The portable form has no fused multiply-add, so constants that are multiplied by such an integer come as a
 * short high part, whose product is exact, and a low part. */
#ifndef CVYI_CPU_MATH_H
#define CVYI_CPU_MATH_H

#include <math.h>

#include "../simd.h"

#define LOG2_E 1.44269504f
/* ln 2 = HI + LO; HI has 9 bits */
#define LN2_HI 0.693359375f
#define LN2_LO (-2.12194440e-4f)

/* Value of the polynomial c[0] + c[1] x + ... + c[n-1] x^(n-1), by Horner. n is a constant: the loop unrolls. */
INLINE vf poly(vf x, const float *c, int n)
{
    vf y = v_set1(c[n - 1]);
    for (int i = n - 2; i >= 0; i--) y = v_fma(y, x, v_set1(c[i]));
    return y;
}
#define POLY(x, c) poly(x, c, (int)(sizeof(c) / sizeof((c)[0])))

/* x = n ln 2 + r with whole n, |r| <= ln 2 / 2. For |x| <= 150. */
typedef struct exp_parts {
    vf r;
    vi n_bits; /* n in the low bits */
} exp_parts;

INLINE exp_parts exp_reduce(vf x)
{
    const vf magic = v_set1(0x1.8p23f);
    const vf t = v_fma(x, v_set1(LOG2_E), magic), n = v_sub(t, magic);
    const vf r = v_fnma(n, v_set1(LN2_HI), x);
    return (exp_parts){v_fnma(n, v_set1(LN2_LO), r), v_bits(t)};
}

/* e^r - 1 = r + r^2 P(r) for |r| <= ln 2 / 2; fit 1.4e-8 relative to r. */
INLINE vf expm1_poly(vf r)
{
    static const float c[] = {0.5f, 0.16666542f, 0.0416664109f, 0.0083667757f, 0.00139400153f};
    return POLY(r, c);
}
INLINE vf expm1_reduced(vf r)
{
    return v_fma(v_mul(r, r), expm1_poly(r), r);
}

/* 2^n from n in the low bits, for -126 <= n <= 127. */
INLINE vf pow2(vi n_bits)
{
    return v_from_bits(i_add(i_shl(n_bits, 23), i_set1(0x3f800000)));
}

/* e^x before its last step: (y + y_lo) 2^n, y_lo what rounding took away from y. e^x itself is scaled(y, e); a
 * caller may multiply first, so that a denormal result rounds once. */
typedef struct exp_value {
    vf y, y_lo;
#ifdef CVY_ISA_AVX512
    vf n;
#else
    vi n; /* in the low bits */
#endif
} exp_value;

#ifdef CVY_ISA_AVX512
/* 2^(k/16) as the sum of two floats */
static const float exp2_hi[16] = {1.0f,        1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f,
                                  1.29683959f, 1.35425556f, 1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f,
                                  1.68179286f, 1.75625217f, 1.8340081f,  1.91520655f};
static const float exp2_lo[16] = {0.0f,
                                  4.83347016e-08f,
                                  -1.30775399e-08f,
                                  5.38622231e-08f,
                                  3.79763527e-08f,
                                  4.4968381e-08f,
                                  -4.01899953e-08f,
                                  -1.01233493e-08f,
                                  2.4203235e-08f,
                                  -4.50089885e-08f,
                                  8.07090483e-09f,
                                  9.83621717e-09f,
                                  -2.47553267e-08f,
                                  -9.23577037e-09f,
                                  -1.1239278e-08f,
                                  9.84532811e-09f};
#endif

/* e^(x + low) for |x| <= 150 or NaN. low, if has_low: what x lacks of an argument known to more bits; |low| <
 * 2^-16. */
INLINE exp_value exp_core(vf x, vf low, int has_low)
{
#ifdef CVY_ISA_AVX512
    /* x = n ln 2 + r with n a multiple of 1/16, |r| <= ln 2 / 32. 2^frac(n) comes from a register, 2^floor(n) is
     * the scaling instruction's own floor, e^r = 1 + r + c2 r^2 + c3 r^3; fit 1.7e-9. */
    const vf hi = _mm512_loadu_ps(exp2_hi), lo = _mm512_loadu_ps(exp2_lo);
    const vf magic = v_set1(0x1.8p19f);
    const vf t = v_fma(x, v_set1(LOG2_E), magic), n = v_sub(t, magic);
    vf r = v_fnma(n, v_set1(LN2_LO), v_fnma(n, v_set1(LN2_HI), x));
    if (has_low) r = v_add(r, low);
    const vf q = v_fma(v_mul(r, r), v_fma(v_set1(0.166670114f), r, v_set1(0.500016868f)), r);
    const vf s = _mm512_permutexvar_ps(v_bits(t), hi), s_lo = _mm512_permutexvar_ps(v_bits(t), lo);
    const vf more = v_fma(s, q, s_lo), y = v_add(s, more);
    return (exp_value){y, v_add(v_sub(s, y), more), n};
#else
    exp_parts p = exp_reduce(x);
    if (has_low) p.r = v_add(p.r, low);
    const vf one = v_set1(1.0f), more = expm1_reduced(p.r), y = v_add(one, more);
    return (exp_value){y, v_add(v_sub(one, y), more), p.n_bits};
#endif
}

INLINE vf scaled(vf y, exp_value e)
{
#ifdef CVY_ISA_AVX512
    return _mm512_scalef_ps(y, e.n);
#else
    /* In two factors, each a normal number: the product rounds once, into a denormal or infinity. */
    const vi n = i_sub(e.n, i_set1(0x4b400000)), half = i_sra(n, 1);
    return v_mul(v_mul(y, pow2(half)), pow2(i_sub(n, half)));
#endif
}

/* e^x. Outside of the clamp the result is 0 or infinity. v_max(a, b) is b where b is NaN. */
INLINE vf v_exp(vf x)
{
    const exp_value e = exp_core(v_min(v_set1(89.0f), v_max(v_set1(-104.0f), x)), x, 0);
    return scaled(e.y, e);
}

/* e^x for x <= 0, where x is a difference from a maximum and has been rounded: within 1 ULP near 0 and 1 + |x| / 20
 * further down, which is less than that rounding makes. A quarter less work than v_exp. */
INLINE vf v_exp_below(vf x)
{
    const vf c = v_max(v_set1(-104.0f), x);
#ifdef CVY_ISA_AVX512
    const vf magic = v_set1(0x1.8p19f), t = v_fma(c, v_set1(LOG2_E), magic), n = v_sub(t, magic);
    const vf r = v_fnma(n, v_set1(0.693147182f), c), s = _mm512_permutexvar_ps(v_bits(t), _mm512_loadu_ps(exp2_hi));
    const vf q = v_fma(v_mul(r, r), v_fma(v_set1(0.166670114f), r, v_set1(0.500016868f)), r);
    return _mm512_scalef_ps(v_fma(s, q, s), n);
#else
    const exp_value e = exp_core(c, c, 0);
    return scaled(e.y, e);
#endif
}

/* e^x - 1 for x <= 0; the sign of zero is lost. 2^n (e^r - 1) + (2^n - 1): nothing cancels, and 2^n - 1 is exact
 * until it no longer matters. */
INLINE vf v_expm1_neg(vf x)
{
    const exp_parts p = exp_reduce(v_max(v_set1(-20.0f), x));
    const vf s = pow2(p.n_bits);
    return v_fma(s, expm1_reduced(p.r), v_sub(s, v_set1(1.0f)));
}

/* log(1 + f) = f + f^2 P(f) for |f| <= 1/3; fit 5.0e-9 relative to f. */
INLINE vf log1p_reduced(vf f)
{
    static const float c[] = {-0.5f,        0.333332241f,  -0.249996886f, 0.200100332f, -0.166854724f,
                              0.140110761f, -0.121150501f, 0.139617473f,  -0.131919414f};
    return v_fma(v_mul(f, f), POLY(f, c), f);
}

/* ln x: x = 2^e m with 2/3 <= m < 4/3, so that log m never cancels against e ln 2. */
INLINE vf v_log(vf x)
{
    const vf inf = v_set1(INFINITY), zero = v_zero();
    const vm tiny = v_lt(x, v_set1(0x1p-126f));
    const vi bits = v_bits(v_sel(tiny, v_mul(x, v_set1(0x1p23f)), x));
    const vi e = i_sra(i_sub(bits, i_set1(0x3f2aaaab)), 23);
    const vf f = v_sub(v_from_bits(i_sub(bits, i_shl(e, 23))), v_set1(1.0f));
    const vf n = v_sub(v_to_float(e), v_sel(tiny, v_set1(23.0f), zero));
    const vf y = v_fma(n, v_set1(LN2_HI), v_fma(n, v_set1(LN2_LO), log1p_reduced(f)));
    const vf out = v_sel(v_eq(x, zero), v_neg(inf), v_set1(NAN));
    return v_sel(v_lt(zero, x), v_sel(v_lt(x, inf), y, x), out);
}

/* ln(1 + u) for 0 <= u <= 1. 1 + u = 2^e (1 + f) with |f| <= 1/3: f is u itself or u/2 - 1/2, with one rounding. */
INLINE vf log1p_unit(vf u)
{
    const vm upper = v_le(v_set1(1.0f / 3), u);
    const vf s = v_sel(upper, v_set1(0.5f), v_set1(1.0f));
    const vf f = v_fma(u, s, v_sub(s, v_set1(1.0f)));
    const vf y = log1p_reduced(f);
    return v_sel(upper, v_add(v_set1(LN2_HI), v_add(v_set1(LN2_LO), y)), y);
}

/* q about n / (1 + u), 0 <= u <= 1. The remainder is n - q - q u, without the rounding of 1 + u, and n - q is exact
 * because q is between n/2 and n: q + rest r is the quotient. */
INLINE vf over_one_plus(vf n, vf u, vf *rest, vf *r)
{
    const vf q = v_quot_near(n, v_add(v_set1(1.0f), u), r), qu = v_mul(q, u), diff = v_sub(n, q);
    *rest = V_FUSED ? v_fnma(q, u, diff) : v_sub(v_sub(diff, qu), v_mul_err(q, u, qu));
    return q;
}

/* 1 / (1 + e^-x) as u / (1 + u) or 1 / (1 + u), u = e^-|x|: nothing overflows, and small results are accurate. */
INLINE vf v_sigmoid(vf x)
{
    const exp_value e = exp_core(v_neg(v_min(v_set1(104.0f), v_abs(x))), x, 0);
    const vf u = scaled(e.y, e);
    vf rest, r;
    const vf q = over_one_plus(v_sel(v_lt(x, v_zero()), u, v_set1(1.0f)), u, &rest, &r);
    return v_fma(rest, r, q);
}

#ifdef CVY_ISA_AVX512
/* tanh in 12 intervals: two per power of two from 1/4 to 12, and all below 1/4. Column: bits 22...25 of |x|; row 0:
 * the centre c, a float whose tanh is almost a float; rows 1...7: the polynomial in |x| - c. */
static const float tanh_table[8][16] = {
    {2.49971724f, 3.50058651f, 5.07772446f, 6.73926544f, 8.66430664f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.312523425f,
     0.437508523f, 0.625106633f, 0.875141978f, 1.24971187f, 1.74976504f},
    {0.986606777f, 0.998180032f, 0.999922276f, 0.999997199f, 0.99999994f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f,
     0.302731007f, 0.411577135f, 0.554673553f, 0.703977227f, 0.848202825f, 0.941348791f},
    {0.0266071614f, 0.00363669195f, 0.000155605914f, 5.60277658e-06f, 1.19178615e-07f, 0.0f, 0.0f, 0.0f, 0.0f, 1.0f,
     0.908353925f, 0.830604255f, 0.692337275f, 0.504416049f, 0.280551851f, 0.113862403f},
    {-0.0262505095f, -0.00363005302f, -0.000155956863f, -5.58762986e-06f, -1.18986861e-07f, 0.0f, 0.0f, 0.0f, 0.0f,
     -1.09727011e-06f, -0.274986953f, -0.341857731f, -0.384021133f, -0.355097443f, -0.237964988f, -0.107184216f},
    {0.0170267466f, 0.00240896083f, 0.000102092221f, 3.73091257e-06f, 7.98302011e-08f, 0.0f, 0.0f, 0.0f, 0.0f,
     -0.333270192f, -0.219524845f, -0.136160806f, -0.0177826453f, 0.0818441287f, 0.108340502f, 0.0629502609f},
    {-0.00805583131f, -0.00119590119f, -4.95260829e-05f, -1.94102199e-06f, -4.12266736e-08f, 0.0f, 0.0f, 0.0f, 0.0f,
     -0.00118377432f, 0.158168301f, 0.170006499f, 0.137857869f, 0.0607576519f, -0.0125572393f, -0.0235289522f},
    {0.00288802688f, 0.000489700586f, 2.39919791e-05f, 7.91590821e-07f, 1.5930123e-08f, 0.0f, 0.0f, 0.0f, 0.0f,
     0.143084615f, 0.0428879932f, -0.00734602055f, -0.0541455261f, -0.0587677024f, -0.0197156072f, 0.00348025816f},
    {-0.000696299423f, -0.000157677496f, -9.31460272e-06f, -1.74511001e-07f, -3.2009837e-09f, 0.0f, 0.0f, 0.0f,
     0.0f, -0.0369777158f, -0.0813380927f, -0.0640003905f, -0.0235980432f, 0.0127705988f, 0.0151017215f,
     0.0021017082f},
};

/* A polynomial of degree 6 whose coefficients the exponent and the first bit of the mantissa pick from registers;
 * fit 4.6e-8 in [4, 6), 8e-9 elsewhere. Half the time of the quotient below. */
INLINE vf v_tanh(vf x)
{
    const vf a = v_min(v_set1(10.0f), v_abs(x));
    const vi i = _mm512_srli_epi32(_mm512_max_epi32(v_bits(a), i_set1(0x3e400000)), 22);
    vf t = v_sub(a, _mm512_permutexvar_ps(i, _mm512_loadu_ps(tanh_table[0])));
    vf y = _mm512_permutexvar_ps(i, _mm512_loadu_ps(tanh_table[7]));
    for (int k = 6; k > 0; k--) y = v_fma(y, t, _mm512_permutexvar_ps(i, _mm512_loadu_ps(tanh_table[k])));
    return v_copysign(y, x);
}
#else
/* (1 - e^-2|x|) / (1 + e^-2|x|) = -m / (2 + m), m = e^-2|x| - 1 = 2^n (e^r - 1) + (2^n - 1). Near 1 an error of m
 * counts twice: every sum here is taken with its rounding error. Beyond 9.02 the result rounds to 1. */
INLINE vf v_tanh(vf x)
{
    const vf two = v_set1(2.0f);
    const exp_parts p = exp_reduce(v_mul(v_set1(-2.0f), v_min(v_set1(9.5f), v_abs(x))));
    const vf more = v_mul(v_mul(p.r, p.r), expm1_poly(p.r)), y = v_add(p.r, more),
             y_lo = v_add(v_sub(p.r, y), more);
    const vf s = pow2(p.n_bits), s1 = v_sub(s, v_set1(1.0f));
    const vf m = v_fma(s, y, s1), m_lo = v_fma(s, y_lo, v_fma(s, y, v_sub(s1, m)));
    const vf d = v_add(two, m), d_lo = v_add(v_add(v_sub(two, d), m), m_lo);
    vf lo;
    const vf q = v_quot_parts(m, m_lo, d, d_lo, &lo);
    return v_copysign(v_add(q, lo), x);
}
#endif

/* |x| < 0.9: x + x P(x^2), fit 1.4e-8; beyond: 1 - e^-Q(|x|), fit 1.7e-9, 1 beyond 3.92. */
INLINE vf v_erf(vf x)
{
    static const float p[] = {0.128379151f,   -0.376125067f,  0.112819783f,
                              -0.0267733987f, 0.00500434591f, -0.000605344598f};
    static const float q[] = {-0.000166447615f, -1.12779725f,    -0.636976063f,  -0.10411372f,
                              0.0223152526f,    -0.00306550763f, 0.000198222479f};
    const vf a = v_min(v_set1(4.0f), v_abs(x));
    const exp_value e = exp_core(POLY(a, q), a, 0);
    const vf large = v_sub(v_set1(1.0f), scaled(e.y, e));
    const vf small = v_fma(a, POLY(v_mul(a, a), p), a);
    return v_copysign(v_sel(v_lt(a, v_set1(0.9f)), small, large), x);
}

#endif
