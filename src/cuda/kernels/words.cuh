// words.cuh - float32 numbers as one or two fp16 words, and the scale that brings them into fp16's range. Shared by
// wide_words.cuh (convolutions) and matrix_words.cuh (matrix products).
//
// Values that are scaled together (a sample, a line of a matrix) have the power 2^(6 + 15 j) that brings their
// largest finite |v| to 1 .. 2^15: fp16 never overflows, keeps its 11 bits down to 2^-14 of the largest, and bits
// do not depend on anything else. Nearly always j is 0, so words are made with 2^6 while the largest value is
// found, and made again if j turns out to be another.
#ifndef CVY_WORDS_CUH
#define CVY_WORDS_CUH

#include "common.cuh"
#include "ptx.cuh"

// Two scaled numbers: what fp16 holds of them, and with two parts what that leaves. An inf stays one: the result is
// then summed again. inf - inf would be NaN, which is as good.
template <int COUNT> CVY_INLINE void split_words(float a, float b, u32 (&words)[COUNT])
{
    float back_a, back_b;
    words[0] = pack_f16(a, b);
    if (COUNT == 1) return;
    unpack_f16(words[0], back_a, back_b);
    words[COUNT - 1] = pack_f16(a - back_a, b - back_b);
}

// The larger of m and |v|, where v is finite.
CVY_INLINE float larger_finite(float m, float v)
{
    return fabsf(v) < CVY_INF ? fmaxf(m, fabsf(v)) : m;
}

// j of the scale where the largest value is m; 2^126 is the largest scale.
CVY_INLINE int scale_number(float m)
{
    const int exponent = (int)(__float_as_uint(m) >> 23) - 127 + 6; // of m * 2^6
    const int j = -(exponent >= 0 ? exponent / 15 : -((14 - exponent) / 15));
    return m > 0.0f ? (j > 8 ? 8 : j) : 0;
}
CVY_INLINE float scale_power(int j)
{
    return __int_as_float((127 + 6 + 15 * j) << 23);
}
CVY_INLINE float unscale_power(int j)
{
    return __int_as_float((127 - 6 - 15 * j) << 23);
}

#endif
