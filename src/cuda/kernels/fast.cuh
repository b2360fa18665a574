// fast.cuh - cheaper versions of some pointwise operators, for epilogues that run concurrently with tensor cores.
//
// No branches and no divisions, because no other warp can hide the latency of a warp that multiplies.
// TC_PRODUCTS 3 (float32): an absolute error of about 2e-7, against 1 for the largest value; if that would be
// much of a small value (a norm may follow), the exact version. TC_PRODUCTS 1 (tf32): the hardware's tanh, 2^-11 at
// most: the size of an operand's rounding to tf32; else 1e-6, absolute: softplus far below 0 is 0, as sigmoid is.
// gain: a factor of the result, if constants can include it.
#pragma once
#include "ops.cuh"
#include "ptx.cuh"

CVY_INLINE float cvy_fast_tanh(const float x)
{
    return TC_PRODUCTS == 1 ? tanh_approx(x) : tanhf(x);
}
// exp overflows to inf below -88, and 1 / inf is the 0 it should be.
CVY_INLINE float cvy_fast_sigmoid(const float x, const float gain = 1.0f)
{
    return TC_PRODUCTS == 1 ? fmaf(tanh_approx(0.5f * x), 0.5f * gain, 0.5f * gain)
                            : gain * reciprocal(1.0f + exp2_approx(x * -1.4426950408889634f));
}
CVY_INLINE float cvy_fast_silu(const float x)
{
    return x * cvy_fast_sigmoid(x);
}
// With r = 1 / (1 + exp(2 x)), tanh(x) = 1 - 2 r, and t (t + 3) / 6 is a quadratic in r.
CVY_INLINE float cvy_fast_tanh_hardswish(const float x, const float gain = 1.0f)
{
    if (TC_PRODUCTS == 1) {
        const float t = tanh_approx(x);
        return t * fmaf(t, gain / 6, gain / 2);
    }
    const float r = reciprocal(1.0f + exp2_approx(x * 2.8853900817779268f));
    return fmaf(r, fmaf(r, gain * 2 / 3, gain * -5 / 3), gain * 2 / 3);
}
// As cvy_mish: a quotient of positive numbers, a relative error of about 1e-6 wherever x lies.
CVY_INLINE float cvy_fast_mish(const float x)
{
    const float e = exp2_approx(x * 1.4426950408889634f), n = e * (e + 2.0f);
    return x > 20.0f ? x : x * (n * reciprocal(n + 2.0f));
}
CVY_INLINE float cvy_fast_elu(const float x, const float alpha)
{
    if (TC_PRODUCTS != 1) return cvy_elu(x, alpha);
    return x > 0.0f ? x : fmaf(alpha, exp2_approx(x * 1.4426950408889634f), -alpha);
}
CVY_INLINE float cvy_fast_selu(const float x)
{
    return TC_PRODUCTS == 1 ? 1.0507009873554805f * cvy_fast_elu(x, 1.6732632423543772f) : cvy_selu(x);
}
CVY_INLINE float cvy_fast_softplus(const float x, const float beta, const float threshold)
{
    const float y = x * beta, log2 = log2_approx(1.0f + exp2_approx(y * 1.4426950408889634f));
    if (TC_PRODUCTS != 1) return cvy_softplus(x, beta, threshold);
    return y > threshold ? x : log2 * (0.6931471805599453f / beta);
}
// x times the normal distribution's integral. Its tail from z = |x| / sqrt(2) on: exp(-z^2) / 2 times a polynomial
// of 1 / (1 + p z), which is 1.5e-7 off at most (Abramowitz and Stegun, 7.1.26).
CVY_INLINE float cvy_fast_gelu(const float x)
{
    const float t = reciprocal(fmaf(fabsf(x), 0.3275911f * 0.70710678118654752f, 1.0f));
    const float upper = fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f);
    const float series = fmaf(fmaf(upper, t, -0.284496736f), t, 0.254829592f);
    const float tail = 0.5f * series * t * exp2_approx(x * x * -0.72134752044448170f);
    return TC_PRODUCTS == 1 ? x * (x < 0.0f ? tail : 1.0f - tail) : cvy_gelu(x);
}
CVY_INLINE float cvy_fast_gelu_tanh(const float x)
{
    const float inner = 0.79788456080286536f * fmaf(0.044715f * x * x, x, x), half = 0.5f * x;
    return TC_PRODUCTS == 1 ? fmaf(half, tanh_approx(inner), half) : cvy_gelu_tanh(x);
}
CVY_INLINE float cvy_fast_hardsigmoid(const float x)
{
    return cvy_clamp(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6);
}
CVY_INLINE float cvy_fast_hardswish(const float x)
{
    return x * cvy_clamp(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6);
}
