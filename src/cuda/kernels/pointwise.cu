// pointwise.cu - a chain of pointwise operators with broadcasting; also plain and reshaping copies.
//
// Element number i of the source space becomes element number i of the destination space. A thread takes EACH
// elements, a block's width apart: neighbouring threads touch neighbouring elements, and EACH loads are under way
// at once. Expected bound: memory.
//
//   prologue space: inner extents X1...X5      epilogue space: inner extents Y1...Y5
//   grid: x elements over THREADS * EACH
#ifndef X1
#define X1 64
#define X2 126
#define X3 126
#define X4 1
#define X5 1
#endif
#ifndef Y1
#define Y1 X1
#define Y2 X2
#define Y3 X3
#define Y4 X4
#define Y5 X5
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef EACH
#define EACH 4
#endif

#include "epilogue.cuh"

constexpr long long INNER = (long long)X1 * X2 * X3 * X4 * X5;

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    const long long total = a.extent * INNER;
    const long long first = (long long)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    float x[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const long long lin = first + i * THREADS;
        x[i] = lin < total ? cvy_prologue(a, cvy_unravel<X1, X2, X3, X4, X5>((cvy_index)lin)) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const long long lin = first + i * THREADS;
        if (lin < total) cvy_epilogue(a, cvy_unravel<Y1, Y2, Y3, Y4, Y5>((cvy_index)lin), x[i]);
    }
}
