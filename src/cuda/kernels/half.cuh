// half.cuh - numbers of 16 bits, fp16 and bf16, to and from float32: one instruction per function, and nothing
// else, so that test/emulate can put its own in their place. How tensors of them are read and written: common.cuh.
#ifndef CVY_HALF_CUH
#define CVY_HALF_CUH

struct cvy_f16 {
    unsigned short bits;
};
struct cvy_bf16 {
    unsigned short bits;
};

// Exact.
static __device__ __forceinline__ float cvy_widen(cvy_f16 x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
static __device__ __forceinline__ float cvy_widen(cvy_bf16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

// Two numbers of the last argument's type, the first in the lower bits. To the nearest, halves to the even one;
// what is too large becomes inf, a NaN stays one.
static __device__ __forceinline__ unsigned cvy_narrow(float lo, float hi, cvy_f16)
{
    unsigned y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
static __device__ __forceinline__ unsigned cvy_narrow(float lo, float hi, cvy_bf16)
{
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}

#endif
