// weight_scale.cuh - the scale of an output channel's weights if operands
// are fp16, found by a block of PACK_THREADS threads.
//
// A power of two brings the channel's largest weight to 2^13 .. 2^14, and if
// there is only one product also a factor of 1 .. 2, the one with which
// fp16 rounds the channel best: 1 if nothing is rounded.
#ifndef CVY_WEIGHT_SCALE_CUH
#define CVY_WEIGHT_SCALE_CUH

#include "host_device.cuh"
#include "ptx.cuh"

__device__ __forceinline__ float as_f16(float v) // and back
{
    float back, zero;
    unpack_f16(pack_f16(v, 0.f), back, zero);
    return back;
}
__device__ __forceinline__ float over_warp(float v)
{
#pragma unroll
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
// The power of two for a largest weight m > 0.
__device__ __forceinline__ float weight_power(float m)
{
    const int exponent = max(min(13 + 127 - (int)(__float_as_uint(m) >> 23), 126), -126);
    return __int_as_float((exponent + 127) << 23);
}
// The factor 1 + j / FINE that loses least of a channel's weights w(0), w(1),
// ..., times `scale` each. What they lose, d, is seen through x: E[(sum of d
// x)^2] is mean(x)^2 (sum of d)^2 + var(x) sum of d^2, which are as 3 to 1
// where x is uniform from 0 on.
template <int TERMS_, class Weight> __device__ __forceinline__ float finest(Weight w, float scale)
{
    constexpr int FINE = 16;
    static_assert(PACK_THREADS == 4 * 32, "sums of four warps are added");
    __shared__ float2 lost[4][FINE];
    const int t = threadIdx.x;
    float least_lost = __int_as_float(0x7f800000), best = 1.f;
#pragma unroll 1
    for (int j = 0; j < FINE; j++) {
        const float factor = scale * (1.f + (float)j / FINE), inverse = scale / factor;
        float sum = 0.f, squares = 0.f;
        for (int i = t; i < TERMS_; i += PACK_THREADS) {
            const float d = fmaf(as_f16(w(i) * factor), inverse, -w(i) * scale);
            sum += d, squares = fmaf(d, d, squares);
        }
        sum = over_warp(sum), squares = over_warp(squares);
        if (t % 32 == 0) lost[t / 32][j] = make_float2(sum, squares);
    }
    __syncthreads();
    for (int j = 0; j < FINE; j++) {
        const float sum = lost[0][j].x + lost[1][j].x + lost[2][j].x + lost[3][j].x,
                    squares = lost[0][j].y + lost[1][j].y + lost[2][j].y + lost[3][j].y,
                    all = fmaf(sum, sum, squares * (1.f / 3));
        if (all < least_lost) least_lost = all, best = 1.f + (float)j / FINE;
    }
    return best;
}

#endif
