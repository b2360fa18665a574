// conv_tc_pack.cu - weights [K][C][R][S] -> operands of conv_tc: [block][stage][part][step][k half][64 rows][8
// channels] fp16, or bf16 if x is bf16 and DIRECT. factor: one for each output channel; NULL: 1. Its sign goes
// into the operand, its magnitude into unscale, so 16-bit weights stay exact for any factor.
//
// Launch: PADDED_CHANNELS blocks (conv_tc.cuh) of 128 threads; block k packs output channel k (zeros past K) and
// its rows for all ROWSM output rows. Each channel is scaled by a power of two that brings its largest weight to
// 2^13 .. 2^14, and with one product by another factor of 1 .. 2, the one with which fp16 rounds the channel best:
// 1 if nothing is rounded. unscale[k] is the inverse, unscale[PADDED_CHANNELS + k] the sum of the weights. NaN says
// that a weight, or their sum, is not finite: the convolution then sums exactly (inf * lo of x would be NaN, or the
// other inf). Compile with the same -D as the convolution.
#include "conv_tc.cuh"
#include "weight_scale.cuh"
#ifndef KERNEL_NAME
#define KERNEL_NAME conv_tc_pack
#endif
#ifndef FACTOR_TYPE
#define FACTOR_TYPE float
#endif

extern "C" __global__ void __launch_bounds__(PACK_THREADS)
    KERNEL_NAME(const W_TYPE *w, u32 *packed, float *unscale, const FACTOR_TYPE *factor)
{
    __shared__ u32 largest[4];
    __shared__ float sums[4];
    const int k = blockIdx.x, t = threadIdx.x;
    float m = 0, sum = 0;
    if (k < K)
        for (int i = t; i < C * R * S; i += PACK_THREADS) {
            const float v = cvy_get(w + (size_t)k * (C * R * S) + i);
            m = max_nan(m, fabsf(v)), sum += v;
        }
    const u32 bits = __reduce_max_sync(~0u, __float_as_uint(m));
    sum = over_warp(sum);
    if (t % 32 == 0) largest[t / 32] = bits, sums[t / 32] = sum;
    __syncthreads();
    m = __uint_as_float(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
    const bool usable = m > 0.f && m < __int_as_float(0x7f800000);
    const float power = usable && SCALED ? weight_power(m) : 1.f;
    const bool fine = SCALED && PARTS == 1 && usable && k < K;
    const auto weight = [&](int i) { return cvy_get(w + (size_t)k * (C * R * S) + i); };
    const float scale = fine ? power * finest<C * R * S>(weight, power) : power;
    const float total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    const float times = factor && k < K ? cvy_get(factor + k) : 1.f, sign = times < 0.f ? -1.f : 1.f;
    const bool finite = m < __int_as_float(0x7f800000) && fabsf(total * times) < __int_as_float(0x7f800000);
    if (t == 0) {
        unscale[k] = finite ? fabsf(times) / scale : __int_as_float(0x7fc00000);
        unscale[PADDED_CHANNELS + k] = finite ? total * times : 0.f;
    }
    unsigned short *out = (unsigned short *)packed;
    const int block = k / BLOCK_CHANNELS;
    for (int i = t; i < NSTAGE * STEPS * 2 * ROWSM * 8; i += PACK_THREADS) {
        const int c8 = i % 8, rr = i / 8 % ROWSM, operand = i / (8 * ROWSM) % (2 * STEPS),
                  stage = i / (8 * ROWSM * 2 * STEPS);
        const tap_at tap = tap_position(operand % TAPS);
        const int c = (stage * SLICES + operand / TAPS) * 8 + c8, r = tap.row - rr * ST;
        const bool is = k < K && operand < SLICES * TAPS && c < C && r >= 0 && r < R;
        const float v = is ? cvy_get(w + (((size_t)k * C + c) * R + r) * S + tap.col) * scale * sign : 0.f;
        const u32 hi = cvy_narrow(v, 0.f, operand_word());
        const float back = as_f16(v);
        const u32 lo =
            pack_f16(fabsf(back) < __int_as_float(0x7f800000) ? v - back : 0.f, 0.f); // inf - inf would be NaN
        const size_t at = (size_t)(block * NSTAGE + stage) * (WSTAGE / 2) +
                          (operand * 64 + rr * BLOCK_CHANNELS + k % BLOCK_CHANNELS) * 8 + c8;
        out[at] = (unsigned short)hi;
        if (PARTS == 2) out[at + WPART / 2] = (unsigned short)lo;
    }
}
