// half.cuh - the functions of src/cuda/kernels/half.cuh by the emulator.
#ifndef CVY_HALF_CUH
#define CVY_HALF_CUH

#include "numbers.h"

struct cvy_f16 {
    unsigned short bits;
};
struct cvy_bf16 {
    unsigned short bits;
};

static inline float cvy_widen(cvy_f16 x)
{
    return emulated_from_half(x.bits);
}
static inline float cvy_widen(cvy_bf16 x)
{
    return emulated_float((unsigned)x.bits << 16);
}
static inline unsigned cvy_narrow(float lo, float hi, cvy_f16)
{
    return emulated_to_half(lo) | emulated_to_half(hi) << 16;
}
static inline unsigned cvy_narrow(float lo, float hi, cvy_bf16)
{
    return emulated_to_bfloat(lo) | emulated_to_bfloat(hi) << 16;
}

#endif
