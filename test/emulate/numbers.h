/* numbers.h - the numbers of tensor cores: fp16, tf32, and how a sum ends. Included by C (product.c) and C++. */
#ifndef EMULATE_NUMBERS_H
#define EMULATE_NUMBERS_H

static inline float emulated_float(unsigned bits)
{
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

static inline unsigned emulated_bits_of(float x)
{
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float emulated_from_half(unsigned half)
{
    const unsigned sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;

    if (exponent == 31) return emulated_float(sign | 0x7f800000 | fraction << 13);
    if (exponent) return emulated_float(sign | (exponent + 112) << 23 | fraction << 13);
    return (float)fraction * (sign ? -0x1p-24f : 0x1p-24f);
}

/* To the nearest of fp16, halves to the even one: a float whose last place is fp16's does the rounding. */
static inline unsigned emulated_to_half(float x)
{
    const unsigned bits = emulated_bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;

    if (magnitude > 0x7f800000) return 0x7fff;
    if (magnitude >= 0x477ff000) return sign | 0x7c00; /* 65520 and more */
    if (magnitude < 0x38800000) return sign | (emulated_bits_of(emulated_float(magnitude) + 0.5f) - 0x3f000000);
    return sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
}

/* The same of bf16; what is within half a last place of the largest float becomes inf. */
static inline unsigned emulated_to_bfloat(float x)
{
    const unsigned bits = emulated_bits_of(x);

    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
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
