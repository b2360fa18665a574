/* cut.h - towards zero: how the emulator's tensor cores end a sum. Included by C (product.c) and C++ (mma.cuh). */
#ifndef EMULATE_CUT_H
#define EMULATE_CUT_H

static inline float emulated_cut(double x)
{
    float near = (float)x;
    unsigned bits;

    if (!(__builtin_fabs(x) <= 3.4028234663852886e38)) return near; /* inf, NaN, or overflow */
    if (__builtin_fabs((double)near) <= __builtin_fabs(x)) return near;
    __builtin_memcpy(&bits, &near, sizeof bits);
    bits--;
    __builtin_memcpy(&near, &bits, sizeof bits);
    return near;
}

#endif
