// pack.cu - weights as conv_direct.cu and conv_mma.cu copy them: [GROUPS][PHASES][TERMS_PAD][K_PAD], zero where it
// is padding. Terms run over (channel, tap), the tap fastest, or over (tap, channel).
//
//   t[0]  packed weights        t[1]  weights, strides k, c, t, r, s, group (k and c of the group's own)
//   grid: x elements over THREADS
#ifndef C_IN
#define C_IN 8
#endif
#ifndef K_OUT
#define K_OUT 64
#endif
#ifndef GROUPS
#define GROUPS 1
#endif
#ifndef K_PAD
#define K_PAD 64 // K_OUT rounded up to the tile
#endif
#ifndef TERMS_PAD
#define TERMS_PAD 72 // C_IN x taps rounded up to whole steps
#endif
#ifndef CHANNELS_FASTEST
#define CHANNELS_FASTEST 0
#endif
#ifndef W_TYPE
#define W_TYPE float // the weights' elements; packed ones are float32
#endif

#include "window.cuh"

constexpr int THREADS = BLOCK_THREADS;
constexpr int TAPS = axis_d::TAPS * axis_h::TAPS * axis_w::TAPS;
constexpr int PHASES = axis_d::PHASES * axis_h::PHASES * axis_w::PHASES;
static_assert(K_PAD >= K_OUT && TERMS_PAD >= C_IN * TAPS, "padding only adds");

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (long long)GROUPS * PHASES * TERMS_PAD * K_PAD) return;
    const int k = (int)(i % K_PAD), term = (int)(i / K_PAD % TERMS_PAD);
    const int phase = (int)(i / K_PAD / TERMS_PAD % PHASES), group = (int)(i / K_PAD / TERMS_PAD / PHASES);
    const int c = CHANNELS_FASTEST ? term % C_IN : term / TAPS, tap = CHANNELS_FASTEST ? term / C_IN : term % TAPS;
    const int t = axis_d::first(phase / (axis_w::PHASES * axis_h::PHASES)) +
                  tap / (axis_h::TAPS * axis_w::TAPS) * axis_d::EVERY;
    const int r =
        axis_h::first(phase / axis_w::PHASES % axis_h::PHASES) + tap / axis_w::TAPS % axis_h::TAPS * axis_h::EVERY;
    const int s = axis_w::first(phase % axis_w::PHASES) + tap % axis_w::TAPS * axis_w::EVERY;
    const long long *stride = a.t[1].s;
    float w = 0.0f;
    if (k < K_OUT && c < C_IN && t < TAPS_T && r < TAPS_R && s < TAPS_S)
        w = cvy_widen(cvy_as<W_TYPE>(a.t[1])[group * stride[5] + k * stride[0] + c * stride[1] + t * stride[2] +
                                             r * stride[3] + s * stride[4]]);
    a.t[0].p[i] = w;
}
