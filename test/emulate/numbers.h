/* numbers.h - the numbers of tensor cores: fp16, tf32, and how a sum ends. Included by C (product.c) and C++. */
#ifndef EMULATE_NUMBERS_H
#define EMULATE_NUMBERS_H

static inline float emulated_float(unsigned bits)
{
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float emulated_from_half(unsigned half)
{
    const unsigned sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;

    if (exponent == 31) return emulated_float(sign | 0x7f800000 | fraction << 13);
    if (exponent) return emulated_float(sign | (exponent + 112) << 23 | fraction << 13);
    return (float)fraction * (sign ? -0x1p-24f : 0x1p-24f);
}

/* Without the bits that tf32 has not. */
static inline float emulated_tf32(float x)
{
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return emulated_float(bits & 0xffffe000u);
}

/* Towards zero. */
static inline float emulated_cut(double x)
{
    const float near = (float)x;
    unsigned bits;

    if (!(__builtin_fabs(x) <= 3.4028234663852886e38)) return near; /* inf, NaN, or overflow */
    if (__builtin_fabs((double)near) <= __builtin_fabs(x)) return near;
    __builtin_memcpy(&bits, &near, sizeof bits);
    return emulated_float(bits - 1);
}

#endif
