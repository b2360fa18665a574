// ops.cuh - the pointwise operators, one function each, named as in ops.def.
//
// Accurate float32: CUDA's own expf, tanhf, erff and their like, which stay within 2 ULP, and divisions that round
// correctly. NaN passes through everything, as in PyTorch, so comparisons are used here, because fmaxf
// and fminf would drop it. The numbers of an operator's attributes follow its argument.
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
// x Phi(x) without a branch. With a = |x|, r = 1 / (a + c) and u = a r,
//   Phi(-a) = exp(-a^2 / 2) r g(u),   g(u) = c / 2 + u polynomial(u), fit 3e-8
// the rounding errors of a^2, a + c, r and r exp(...) are known, and go into `rest` and `low`. Below 0 the result
// is x Phi(-a), good to 4 ULP (less where Phi is denormal, below -12.9); above it is x / 2 + x (1/2 - Phi(-a)),
// which rounds once where x is small: 2 ULP, of which the exponential adds its own. A NaN fails the
// comparison; inf stays, and -inf times 0 is the NaN that PyTorch has.
CVY_INLINE float cvy_gelu(const float x)
{
    const float c = 1.6875f, a = fminf(fabsf(x), 15.0f), d = a + c, about = __fdividef(1.0f, d);
    const float r = fmaf(about, fmaf(-d, about, 1.0f), about), u = a * r, square = a * a;
    const float rest = fmaf(-0.5f, fmaf(a, a, -square), fmaf(d - c - a, r, fmaf(-d, r, 1.0f)));
    const float e = expf(-0.5f * square), p = r * e, low = fmaf(p, rest, fmaf(r, e, -p));
    const float k[] = {-0.29229927f, -0.227017947f, -0.0388379824f, 0.0546508564f, 0.0119991066f,
                       0.215836723f, -0.447530978f, 0.640741236f,   -0.521007077f, 0.158672985f};
    float g = k[9];
#pragma unroll
    for (int i = 8; i >= 0; i--) g = fmaf(g, u, k[i]);
    g = fmaf(g, u, 0.5f * c);
    const float above = fmaf(-low, g, fmaf(-p, g, 0.5f)); // 1/2 - Phi(-a)
    return x < 0.0f ? x * fmaf(p, g, low * g) : fmaf(x, above, 0.5f * x);
}
// The same where the result is rounded to 16 bits: c = 2.5, g fit to 4.5e-6; the relative error is 2.4e-5 at
// most. A third of the instructions.
CVY_INLINE float cvy_gelu_half(const float x)
{
    const float c = 2.5f, a = fminf(fabsf(x), 15.0f), r = __fdividef(1.0f, a + c), u = a * r;
    const float k[] = {1.25000557f,  -1.24395392f, 0.179063636f, 0.232289823f,
                       0.226190549f, -0.35086957f, 0.10601617f};
    float g = k[6];
#pragma unroll
    for (int i = 5; i >= 0; i--) g = fmaf(g, u, k[i]);
    const float tail = r * g * __expf(-0.5f * a * a);
    return x * (x < 0.0f ? tail : 1.0f - tail);
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
// Rounded where it is stored, as every value is.
CVY_INLINE float cvy_cast(const float x)
{
    return x;
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
// NaN if either is: one in x fails the comparison and stays; one in y is tested for.
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
