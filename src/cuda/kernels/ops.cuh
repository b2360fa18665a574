// ops.cuh - the pointwise operators, one function each, named as in ops.def.
//
// Accurate float32: CUDA's own expf, tanhf, erff and their like, which stay within 2 ULP (erfcf 3), and divisions
// that round correctly. NaN goes through everything, as in PyTorch: that is why comparisons stand here, where fmaxf
// and fminf would drop it. Numbers that an operator's attributes hold follow its argument.
#ifndef CVY_OPS_CUH
#define CVY_OPS_CUH

#include "common.cuh"

// ---- bounds ----

// A NaN in x fails both comparisons and stays; lo > hi gives hi, as min(max(x, lo), hi) does.
CVY_INLINE float cvy_clamp(const float x, const float lo, const float hi)
{
    const float above = x < lo ? lo : x;
    return above > hi ? hi : above;
}
CVY_INLINE float cvy_relu(const float x)
{
    return x < 0.0f ? 0.0f : x;
}
CVY_INLINE float cvy_relu6(const float x)
{
    return cvy_clamp(x, 0.0f, 6.0f);
}
CVY_INLINE float cvy_hardtanh(const float x, const float lo, const float hi)
{
    return cvy_clamp(x, lo, hi);
}
CVY_INLINE float cvy_hardsigmoid(const float x)
{
    return cvy_clamp(x + 3.0f, 0.0f, 6.0f) / 6.0f;
}
CVY_INLINE float cvy_hardswish(const float x)
{
    return x * cvy_clamp(x + 3.0f, 0.0f, 6.0f) / 6.0f;
}
CVY_INLINE float cvy_leaky_relu(const float x, const float slope)
{
    return x > 0.0f ? x : x * slope;
}

// ---- exponentials ----

CVY_INLINE float cvy_exp(const float x)
{
    return expf(x);
}
CVY_INLINE float cvy_log(const float x)
{
    return logf(x);
}
CVY_INLINE float cvy_sigmoid(const float x)
{
    return 1.0f / (1.0f + expf(-x)); // exp overflows to inf below -88, and 1 / inf is the 0 it should be
}
CVY_INLINE float cvy_tanh(const float x)
{
    return tanhf(x);
}
CVY_INLINE float cvy_silu(const float x)
{
    return x / (1.0f + expf(-x));
}
// tanh(log(1 + e)) = (e^2 + 2 e) / (e^2 + 2 e + 2) with e = exp(x): no cancellation; above 20 it is 1, and e^2
// would overflow further on.
CVY_INLINE float cvy_mish(const float x)
{
    const float e = expf(x), n = e * (e + 2.0f);
    return x > 20.0f ? x : x * (n / (n + 2.0f));
}
CVY_INLINE float cvy_elu(const float x, const float alpha)
{
    return x > 0.0f ? x : alpha * expm1f(x);
}
CVY_INLINE float cvy_selu(const float x)
{
    const float scale = 1.0507009873554805f, alpha = 1.6732632423543772f;
    return scale * (x > 0.0f ? x : alpha * expm1f(x));
}
CVY_INLINE float cvy_softplus(const float x, const float beta, const float threshold)
{
    const float y = x * beta;
    return y > threshold ? x : log1pf(expf(y)) / beta;
}
CVY_INLINE float cvy_erf(const float x)
{
    return erff(x);
}
// 1 + erf(z) loses everything to cancellation for negative z; erfc(-z) is the same number and does not.
CVY_INLINE float cvy_gelu(const float x)
{
    return 0.5f * x * erfcf(x * -0.70710678118654752f);
}
CVY_INLINE float cvy_gelu_tanh(const float x)
{
    const float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
}
// hardswish(tanh(x)): tanh lies in (-1, 1), where hardswish never clips.
CVY_INLINE float cvy_tanh_hardswish(const float x)
{
    const float t = tanhf(x);
    return t * (t + 3.0f) / 6.0f;
}

// ---- algebra ----

CVY_INLINE float cvy_softsign(const float x)
{
    return x / (1.0f + fabsf(x));
}
CVY_INLINE float cvy_sqrt(const float x)
{
    return sqrtf(x);
}
CVY_INLINE float cvy_rsqrt(const float x)
{
    return rsqrtf(x);
}
CVY_INLINE float cvy_neg(const float x)
{
    return -x;
}
CVY_INLINE float cvy_abs(const float x)
{
    return fabsf(x);
}
CVY_INLINE float cvy_square(const float x)
{
    return x * x;
}
CVY_INLINE float cvy_sign_or_one(const float x)
{
    return x < 0.0f ? -1.0f : 1.0f;
}

// ---- two operands ----

CVY_INLINE float cvy_add(const float x, const float y)
{
    return x + y;
}
CVY_INLINE float cvy_sub(const float x, const float y)
{
    return x - y;
}
CVY_INLINE float cvy_add_scaled(const float x, const float y, const float alpha)
{
    return x + alpha * y;
}
CVY_INLINE float cvy_sub_scaled(const float x, const float y, const float alpha)
{
    return x - alpha * y;
}
CVY_INLINE float cvy_mul(const float x, const float y)
{
    return x * y;
}
CVY_INLINE float cvy_div(const float x, const float y)
{
    return x / y;
}
// NaN if either is: one in x fails the comparison and stays; one in y is asked for.
CVY_INLINE float cvy_maximum(const float x, const float y)
{
    return x < y || y != y ? y : x;
}
CVY_INLINE float cvy_minimum(const float x, const float y)
{
    return x > y || y != y ? y : x;
}

// ---- a norm whose statistics are there ----

// Statistics lie as [slice][3]: mean, 1 / deviation, and what rounding the mean to float left over.
CVY_INLINE float cvy_norm_apply(const float x, const float *stats, const cvy_index slice)
{
    const float *s = stats + slice * 3;
    return (x - s[0] - s[2]) * s[1];
}
CVY_INLINE float cvy_norm_running(const float x, const float mean, const float variance, const float eps)
{
    return (x - mean) / sqrtf(variance + eps);
}
CVY_INLINE float cvy_affine(const float x, const float weight, const float bias)
{
    return x * weight + bias;
}

#endif
