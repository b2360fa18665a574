// pool.cu - max and average pooling in 1 to 3 dimensions, adaptive average pooling.
//
// One thread per output element; neighbouring threads have neighbouring windows, whose overlapping reads the L1
// serves. Expected bound: memory for windows that do not overlap.
//
//   prologue space: n, c, d, h, w      epilogue space: n, c, o, p, q
//   grid: x output elements over THREADS
#ifndef MODE
#define MODE 0 // 0 max, 1 average, 2 adaptive average
#endif
#ifndef CHANNELS
#define CHANNELS 64
#endif
#ifndef IN_D
#define IN_D 1
#define IN_H 126
#define IN_W 126
#endif
#ifndef OUT_O
#define OUT_O 1
#define OUT_P 31
#define OUT_Q 31
#endif
#ifndef TAPS_T
#define TAPS_T 1
#define TAPS_R 4
#define TAPS_S 4
#endif
#ifndef STRIDE_D
#define STRIDE_D 1
#define STRIDE_H 4
#define STRIDE_W 4
#endif
#ifndef COUNT_PAD
#define COUNT_PAD 1 // average: padding counts
#endif
#ifndef DIVISOR
#define DIVISOR 0 // average: what to divide by; 0: the window's size
#endif

#include "epilogue.cuh"
#include "filter.cuh"

constexpr int THREADS = BLOCK_THREADS;
constexpr int PLANE_IN = IN_D * IN_H * IN_W;
static_assert(MODE >= 0 && MODE <= 2, "max, average, adaptive");

// A window along one axis: places first, first + dil, ... below end; size as the average counts it.
struct span {
    int first, end, dil, size;
};

template <int IN, int OUT, int TAPS, int STRIDE, int PAD, int DIL> CVY_INLINE span window(int out)
{
    span w;
    if (MODE == 2) { // PyTorch: from floor(i * in / out) to ceil((i + 1) * in / out)
        w.first = (int)((long long)out * IN / OUT);
        w.end = (int)(((long long)(out + 1) * IN + OUT - 1) / OUT);
        w.dil = 1;
        w.size = w.end - w.first;
        return w;
    }
    const int start = out * STRIDE - PAD, stop = start + (TAPS - 1) * DIL + 1;
    const int padded = stop < IN + PAD ? stop : IN + PAD; // ceil_mode windows reach beyond the padding
    w.end = stop < IN ? stop : IN;
    w.dil = DIL;
    w.first = start < 0 ? start + (-start + DIL - 1) / DIL * DIL : start;
    w.size = COUNT_PAD ? padded - start : w.end - (start < 0 ? 0 : start);
    return w;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    constexpr long long INNER = (long long)CHANNELS * OUT_O * OUT_P * OUT_Q;
    const long long lin = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (lin >= a.extent * INNER) return;
    const cvy_at out = cvy_unravel<CHANNELS, OUT_O, OUT_P, OUT_Q, 1>((cvy_index)lin);
    const span d = window<IN_D, OUT_O, TAPS_T, STRIDE_D, PAD_D, DIL_D>(out.i2);
    const span h = window<IN_H, OUT_P, TAPS_R, STRIDE_H, PAD_H, DIL_H>(out.i3);
    const span w = window<IN_W, OUT_Q, TAPS_S, STRIDE_W, PAD_W, DIL_W>(out.i4);
    cvy_at at = out;
    float best = -CVY_INF, sum = 0.0f;

    for (at.i2 = d.first; at.i2 < d.end; at.i2 += d.dil)
        for (at.i3 = h.first; at.i3 < h.end; at.i3 += h.dil)
#pragma unroll 4
            for (at.i4 = w.first; at.i4 < w.end; at.i4 += w.dil) {
                at.lin = ((cvy_index)out.i0 * CHANNELS + out.i1) * PLANE_IN +
                         ((cvy_index)at.i2 * IN_H + at.i3) * IN_W + at.i4;
                const float x = cvy_prologue(a, at);
                best = cvy_maximum(best, x);
                sum += x;
            }
    const int divisor = DIVISOR ? DIVISOR : d.size * h.size * w.size;
    cvy_epilogue(a, out, MODE == 0 ? best : sum / (float)divisor);
}
