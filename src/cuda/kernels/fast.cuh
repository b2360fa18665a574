// fast.cuh - cheaper forms of some pointwise operators, for epilogues that run beside tensor cores.
//
// TC_PRODUCTS 3 (float32): an absolute error of about 2e-7, against 1 for the largest value; no branches, no divisions.
// TC_PRODUCTS 1 (tf32): the hardware's tanh, 2^-11 at most: the size of an operand's rounding to tf32.
// unit: a factor of the result, where constants can carry it.
#pragma once
#include "ops.cuh"
#include "ptx.cuh"

CVY_INLINE float cvy_rcp_approx(const float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
CVY_INLINE float cvy_tanh_approx(const float x)
{
    float r;
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

CVY_INLINE float cvy_fast_tanh(const float x)
{
    return TC_PRODUCTS == 1 ? cvy_tanh_approx(x) : tanhf(x);
}
// exp overflows to inf below -88, and 1 / inf is the 0 it should be.
CVY_INLINE float cvy_fast_sigmoid(const float x, const float unit = 1.0f)
{
    return TC_PRODUCTS == 1 ? fmaf(cvy_tanh_approx(0.5f * x), 0.5f * unit, 0.5f * unit) : unit * cvy_rcp_approx(1.0f + exp2_approx(x * -1.4426950408889634f));
}
CVY_INLINE float cvy_fast_silu(const float x)
{
    return x * cvy_fast_sigmoid(x);
}
// With r = 1 / (1 + exp(2 x)), tanh(x) = 1 - 2 r, and t (t + 3) / 6 is a quadratic in r.
CVY_INLINE float cvy_fast_tanh_hardswish(const float x, const float unit = 1.0f)
{
    if (TC_PRODUCTS == 1) {
        const float t = cvy_tanh_approx(x);
        return t * fmaf(t, unit / 6, unit / 2);
    }
    const float r = cvy_rcp_approx(1.0f + exp2_approx(x * 2.8853900817779268f));
    return fmaf(r, fmaf(r, unit * 2 / 3, unit * -5 / 3), unit * 2 / 3);
}
CVY_INLINE float cvy_fast_hardsigmoid(const float x)
{
    return cvy_clamp(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6);
}
CVY_INLINE float cvy_fast_hardswish(const float x)
{
    return x * cvy_clamp(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6);
}
