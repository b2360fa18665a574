// conv_wide_add.cu - sums that several blocks of conv_wide.cu or matmul_wide.cu share: their parts are added in
// order, and the epilogue follows. Expected bound: memory, mostly the L2.
//
//   t[1]  parts: PARTIALS times the result; Y_LAST: channels last, as the result lies
//   epilogue space: inner extents Y1...Y5      grid: x elements over THREADS * WIDTH
#ifndef Y1
#define Y1 128
#define Y2 1
#define Y3 64
#define Y4 64
#define Y5 1
#endif
#ifndef PARTIALS
#define PARTIALS 2
#endif
#ifndef Y_LAST
#define Y_LAST 0
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // all views are contiguous, or channels last
#endif

#include "epilogue.cuh"

constexpr int THREADS = BLOCK_THREADS;
constexpr long long INNER = (long long)Y1 * Y2 * Y3 * Y4 * Y5;
constexpr int WIDTH = SRC_DENSE ? access_width(INNER) : 1;

// WIDTH results from number `lin` on, as the parts are numbered.
CVY_INLINE void find_results(long long lin, cvy_at (&at)[WIDTH])
{
#if Y_LAST
    constexpr int PLANE = Y2 * Y3 * Y4 * Y5;
    const cvy_index pixel = (cvy_index)(lin / Y1);
    const int channel = (int)(lin % Y1);
    const cvy_at first = cvy_unravel<1, Y2, Y3, Y4, Y5>(pixel);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        at[i] = first;
        at[i].i1 = channel + i;
        at[i].lin = ((cvy_index)first.i0 * Y1 + channel + i) * PLANE + pixel % PLANE;
    }
#else
    cvy_neighbours<WIDTH, Y1, Y2, Y3, Y4, Y5>((cvy_index)lin, at);
#endif
}

CVY_INLINE void add_parts(const cvy_args &a, long long total, long long lin)
{
    float sum[WIDTH];
    cvy_at at[WIDTH];
    cvy_load(a.t[1].p + lin, sum);
#pragma unroll 32 // loads that are in flight at once
    for (int i = 1; i < PARTIALS; i++) {
        float part[WIDTH];
        cvy_load(a.t[1].p + i * total + lin, part);
#pragma unroll
        for (int e = 0; e < WIDTH; e++) sum[e] += part[e];
    }
    find_results(lin, at);
    cvy_write(a, at, sum);
}

// The grid is that of contiguous tensors: elsewhere WIDTH is 1, and a thread has several results.
extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const long long total = a.extent * INNER, stride = (long long)gridDim.x * (THREADS * WIDTH);
    for (long long lin = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH; lin < total; lin += stride)
        add_parts(a, total, lin);
}
