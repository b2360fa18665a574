// pack.cu - weights as conv_direct.cu copies them: [GROUPS][TERMS_PAD][K_PAD], zero where it is padding.
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
#ifndef TAPS_T
#define TAPS_T 1
#define TAPS_R 3
#define TAPS_S 3
#endif
#ifndef K_PAD
#define K_PAD 64 // K_OUT rounded up to the tile
#endif
#ifndef TERMS_PAD
#define TERMS_PAD 72 // C_IN x taps rounded up to the chunk
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "common.cuh"

constexpr int TAPS = TAPS_T * TAPS_R * TAPS_S;
static_assert(K_PAD >= K_OUT && TERMS_PAD >= C_IN * TAPS, "padding only adds");

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (long long)GROUPS * TERMS_PAD * K_PAD) return;
    const int k = (int)(i % K_PAD), term = (int)(i / K_PAD % TERMS_PAD), group = (int)(i / K_PAD / TERMS_PAD);
    const int c = term / TAPS, tap = term % TAPS;
    const long long *s = a.t[1].s;
    float w = 0.0f;
    if (k < K_OUT && c < C_IN)
        w = a.t[1].p[group * s[5] + k * s[0] + c * s[1] + tap / (TAPS_R * TAPS_S) * s[2] +
                     tap / TAPS_S % TAPS_R * s[3] + tap % TAPS_S * s[4]];
    a.t[0].p[i] = w;
}
