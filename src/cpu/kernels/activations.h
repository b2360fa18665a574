/* activations.h - act_<operator>(x, p0, p1) on vectors of floats, p the attributes' numbers. As exact as what they
 * are made of: see math.h. */
#ifndef CVYI_CPU_ACTIVATIONS_H
#define CVYI_CPU_ACTIVATIONS_H

#include "math.h"

#define UNUSED    __attribute__((unused))
#define ACT(name) INLINE vf act_##name(vf x UNUSED, vf p0 UNUSED, vf p1 UNUSED)

ACT(exp)
{
    return v_exp(x);
}
ACT(log)
{
    return v_log(x);
}
ACT(erf)
{
    return v_erf(x);
}
ACT(tanh)
{
    return v_tanh(x);
}
ACT(sigmoid)
{
    return v_sigmoid(x);
}
ACT(sqrt)
{
    return v_sqrt(x);
}
ACT(rsqrt)
{
    return v_div(v_set1(1.0f), v_sqrt(x));
}
ACT(neg)
{
    return v_neg(x);
}
ACT(abs)
{
    return v_abs(x);
}
ACT(square)
{
    return v_mul(x, x);
}
/* Rounded where it is stored, as every value is. */
ACT(cast)
{
    return x;
}

/* PyTorch: the upper bound wins where the bounds are the wrong way round, and a NaN bound gives NaN. */
ACT(clamp)
{
    return v_min_nan(v_max_nan(x, p0), p1);
}
ACT(hardtanh)
{
    return act_clamp(x, p0, p1);
}
ACT(relu)
{
    return v_max(v_zero(), x);
}
ACT(relu6)
{
    return v_min(v_set1(6.0f), v_max(v_zero(), x));
}
ACT(leaky_relu)
{
    return v_sel(v_lt(v_zero(), x), x, v_mul(x, p0));
}
ACT(sign_or_one)
{
    return v_sel(v_lt(x, v_zero()), v_set1(-1.0f), v_set1(1.0f));
}
ACT(softsign)
{
    return v_div(x, v_add(v_set1(1.0f), v_abs(x)));
}

/* x / 6: the second product makes up for the rounding of 1/6 */
INLINE vf sixth(vf x)
{
    if (!V_FUSED) return v_div(x, v_set1(6.0f));
    return v_fma(x, v_set1(0x1.555556p-3f), v_mul(x, v_set1(-0x1.555556p-28f)));
}
ACT(hardsigmoid)
{
    return sixth(act_relu6(v_add(x, v_set1(3.0f)), p0, p1));
}
ACT(hardswish)
{
    return v_mul(x, act_hardsigmoid(x, p0, p1));
}
/* hardswish(tanh x) = t (t + 3) / 6: |t| <= 1 never clips */
ACT(tanh_hardswish)
{
    const vf t = v_tanh(x);
    return v_copysign(v_fma(v_mul(t, t), v_set1(0x1.555556p-3f), v_mul(t, v_set1(0.5f))), t); /* keeps -0 */
}

/* p0: alpha */
ACT(elu)
{
    return v_sel(v_lt(x, v_zero()), v_mul(p0, v_expm1_neg(x)), x);
}
/* scale alpha (e^x - 1) or scale x; the first with what a float lacks of the product of the constants */
ACT(selu)
{
    const vf y = v_expm1_neg(x), below = v_fma(y, v_set1(1.75809932f), v_mul(y, v_set1(2.32967174e-08f)));
    return v_sel(v_lt(x, v_zero()), below, v_mul(x, v_set1(1.05070102f)));
}

/* ln(1 + e^(x p0)) / p0 = (max(z, 0) + ln(1 + e^-|z|)) / p0 with z = x p0; x itself where z > p1 */
ACT(softplus)
{
    const vf z = v_mul(x, p0);
    const exp_value e = exp_core(v_neg(v_min(v_set1(104.0f), v_abs(z))), z, 0);
    const vf y = v_add(v_max(v_zero(), z), log1p_unit(scaled(e.y, e)));
    return v_sel(v_lt(p1, z), x, v_div(y, p0));
}

/* What w e.y lacks of (w + w_lo) (e.y + e.y_lo). */
INLINE vf lacking(vf w, vf w_lo, exp_value e)
{
    return v_fma(w, e.y_lo, v_mul(w_lo, e.y));
}

/* x times a gate that goes from 0 to 1, as max(x, 0) - (w e.y + lacks) 2^n: the second term is |x| times what the
 * gate has or, for x > 0, lacks of 1. PyTorch multiplies x by the gate, which makes NaN of -inf * 0; so does the
 * last line. */
INLINE vf gated(vf x, vf w, exp_value e, vf lacks)
{
    const vf part = scaled(v_fma(w, e.y, lacks), e);
    return v_fma(v_min(v_zero(), x), v_zero(), v_sub(v_max(v_zero(), x), part));
}

/* x / (1 + e^-x): the gate is u / (1 + u) or lacks it, u = e^-|x| */
ACT(silu)
{
    const vf a = v_min(v_set1(120.0f), v_abs(x));
    const exp_value e = exp_core(v_neg(a), a, 0);
    vf rest, r;
    const vf w = over_one_plus(a, scaled(e.y, e), &rest, &r);
    return gated(x, w, e, lacking(w, v_mul(rest, r), e));
}

/* x tanh(ln(1 + e^x)), with u = e^-|x|: the gate is u n / (1 + u n), n = 1 + u/2, for x < 0, and lacks
 * 2u^2 / (1 + 2u n), n = 1 + u, for x > 0. */
ACT(mish)
{
    const vf a = v_min(v_set1(120.0f), v_abs(x)), one = v_set1(1.0f);
    const vm neg = v_lt(x, v_zero());
    const exp_value e = exp_core(v_neg(a), a, 0);
    const vf u = scaled(e.y, e), f = v_sel(neg, v_set1(0.5f), one), g = v_sel(neg, u, v_add(u, u));
    const vf n = v_fma(u, f, one), n_lo = v_fma(u, f, v_sub(one, n));
    const vf v = v_mul(g, n), v_lo = v_fma(g, n_lo, v_mul_err(g, n, v));
    const vf d = v_add(one, v), d_lo = v_add(v_add(v_sub(one, d), v), v_lo);
    vf lo;
    const vf q = v_quot_parts(v_sel(neg, n, g), v_sel(neg, n_lo, v_zero()), d, d_lo, &lo), w = v_mul(a, q);
    return gated(x, w, e, lacking(w, v_fma(a, lo, v_mul_err(a, q, w)), e));
}

#ifdef CVY_ISA_AVX512
/* w(a) = a Phi(-a) e^(a^2/2) as tanh above: two intervals per power of two from 1/4 to 15, and all below 1/4.
 * Column: bits 22...25 of a; row 0: the centre, a float at which w is almost a float; rows 1...7: the polynomial in
 * a - c. */
static const float gelu_table[8][16] = {
    {2.50059915f, 3.50045896f, 5.00070095f, 7.00118494f, 9.99901867f, 13.500701f, 0.0f, 0.0f, 0.0f, 0.0f,
     0.312463284f, 0.437433869f, 0.625148952f, 0.875047565f, 1.25008094f, 1.75016189f},
    {0.353344679f, 0.3722139f, 0.384600163f, 0.391256839f, 0.395066202f, 0.396788597f, 0.0f, 0.0f, 0.0f, 0.0f,
     0.123804808f, 0.159278736f, 0.202127442f, 0.244806141f, 0.2884579f, 0.324164212f},
    {0.0272827297f, 0.0127712945f, 0.00518865744f, 0.00207718182f, 0.00075353001f, 0.000313988014f, 0.0f, 0.0f,
     0.0f, -1.02109732e-09f, 0.310251594f, 0.259283781f, 0.200288266f, 0.144886792f, 0.0926369727f, 0.054345835f},
    {-0.0114861f, -0.00437570037f, -0.00136879575f, -0.000414090639f, -0.000108881926f, -3.41556079e-05f, 0.0f,
     0.0f, 0.0f, -0.398941994f, -0.226666272f, -0.182953775f, -0.134209827f, -0.0907447189f, -0.0525825396f,
     -0.0272210706f},
    {0.00406585261f, 0.00127975608f, 0.000312291551f, 7.2183655e-05f, 1.3830414e-05f, 3.28509259e-06f, 0.0f, 0.0f,
     0.0f, 0.249986723f, 0.131505951f, 0.102955334f, 0.0721757114f, 0.0459732488f, 0.0244062264f, 0.0112921214f},
    {-0.00128545542f, -0.000338355458f, -6.52554518e-05f, -1.16217561e-05f, -1.63630887e-06f, -2.94782268e-07f,
     0.0f, 0.0f, 0.0f, -0.132753477f, -0.0653488487f, -0.0497436598f, -0.033458937f, -0.0201920345f,
     -0.00989890844f, -0.00413248781f},
    {0.000385296444f, 8.4953339e-05f, 1.35910777e-05f, 1.83713519e-06f, 2.00512048e-07f, 2.59535593e-08f, 0.0f,
     0.0f, 0.0f, 0.060715057f, 0.030928025f, 0.0232002791f, 0.013956462f, 0.00804539584f, 0.0036706666f,
     0.00138946262f},
    {-0.000104874991f, -1.96752408e-05f, -2.54288489e-06f, -2.69273528e-07f, -2.18611511e-08f, -2.158006e-09f, 0.0f,
     0.0f, 0.0f, -0.0199308526f, 0.000355903991f, -0.00467072194f, -0.00513777137f, -0.00282226852f,
     -0.00124060549f, -0.000430523301f},
};

/* x Phi(x) = max(x, 0) - w(|x|) e^(-x^2/2); fit 2.1e-8 in [4, 6), 1.3e-8 elsewhere. The rounding error of x^2 goes
 * into the exponential, which would magnify it by x^2. */
ACT(gelu_erf)
{
    const vf a = v_min(v_set1(15.0f), v_abs(x)), less = v_set1(-0.5f);
    const vi i = _mm512_srli_epi32(_mm512_max_epi32(v_bits(a), i_set1(0x3e400000)), 22);
    const vf t = v_sub(a, _mm512_permutexvar_ps(i, _mm512_loadu_ps(gelu_table[0])));
    const vf square = v_mul(a, a), low = v_mul_err(a, a, square);
    const exp_value e = exp_core(v_mul(less, square), v_mul(less, low), 1);
    const vf at_c = _mm512_permutexvar_ps(i, _mm512_loadu_ps(gelu_table[1]));
    vf w = _mm512_permutexvar_ps(i, _mm512_loadu_ps(gelu_table[7]));
    for (int k = 6; k > 1; k--) w = v_fma(w, t, _mm512_permutexvar_ps(i, _mm512_loadu_ps(gelu_table[k])));
    w = v_fma(w, t, v_sel(v_lt(a, v_set1(0.25f)), v_mul(a, v_set1(0.5f)), at_c));
    return gated(x, w, e, v_mul(w, e.y_lo));
}
#else
/* x Phi(x): Phi(-a) = e^(-a^2/2) (1/2 + K(t)) / (a + c), a = |x|, t = (a - 3) / (a + 3); fit 6.9e-9. c = 0.797
 * makes K small, and with it K's rounding errors. The rounding error of a^2 goes into the exponential, which would
 * magnify it by a^2. t comes from a / (a + 3), which is accurate where t is near -1. */
ACT(gelu_erf)
{
    static const float k[] = {-0.0386267267f,  -0.0546012521f,   -0.0414624065f, 0.0545517989f,
                              -0.0239725132f,  0.000564271759f,  0.00319158402f, -0.000268618402f,
                              -0.00049285352f, -1.72077978e-06f, 4.48979736e-05f};
    const vf a = v_min(v_set1(15.0f), v_abs(x)), half = v_set1(0.5f), c = v_set1(0.796875f), three = v_set1(3.0f);
    const vf square = v_mul(a, a), low = v_mul_err(a, a, square);
    const exp_value e = exp_core(v_mul(v_neg(half), square), v_mul(v_neg(half), low), 1);
    const vf v = v_quot(a, v_add(a, three)), t = v_fma(v, v_set1(2.0f), v_set1(-1.0f));
    const vf d = v_add(a, c), half_a = v_mul(a, half), y = POLY(t, k);
    vf lo;
    const vf q = v_quot_parts(half_a, v_zero(), d, v_add(v_sub(c, d), a), &lo), y2 = v_add(y, y);
    const vf w = v_fma(q, y2, q), w_lo = v_fma(q, y2, v_sub(q, w));
    const vf rest = V_FUSED ? lo : v_add(lo, v_mul_err(q, y2, v_mul(q, y2))); /* what w_lo misses without FMA */
    return gated(x, w, e, lacking(w, v_add(w_lo, v_fma(lo, y2, rest)), e));
}
#endif

/* x / 2 (1 + tanh(k (x + 0.044715 x^3))) = x / (1 + e^-z), z = c1 x + c3 x^3, c1 = 2k = sqrt(8 / pi). z is computed
 * to twice the bits of a float: its error counts absolutely, in a number that may be 100. */
ACT(gelu_tanh)
{
    const vf c1 = v_set1(1.59576917f), c1_lo = v_set1(-4.53406805e-08f);
    const vf c3 = v_set1(0.0713548139f), c3_lo = v_set1(2.39883247e-09f);
    const vf a = v_min(v_set1(11.5f), v_abs(x));
    const vf a2 = v_mul(a, a), a2_lo = v_mul_err(a, a, a2);
    const vf m = v_mul(c3, a2), m_lo = v_add(v_mul_err(c3, a2, m), v_fma(c3, a2_lo, v_mul(c3_lo, a2)));
    const vf s = v_add(c1, m), m_in_s = v_sub(s, c1);
    const vf s_err = v_add(v_sub(c1, v_sub(s, m_in_s)), v_sub(m, m_in_s));
    const vf s_lo = v_add(s_err, v_add(m_lo, c1_lo));
    const vf z = v_mul(a, s), z_lo = v_fma(a, s_lo, v_mul_err(a, s, z));
    const exp_value e = exp_core(v_neg(z), v_neg(z_lo), 1);
    vf rest, r;
    const vf w = over_one_plus(a, scaled(e.y, e), &rest, &r);
    return gated(x, w, e, lacking(w, v_mul(rest, r), e));
}

#undef ACT

#endif
