// pointwise.cu - a chain of pointwise operators with broadcasting; also plain and reshaping copies.
//
// Element number i of the source space becomes element number i of the destination space. A thread takes EACH
// elements in groups of WIDTH neighbours, which contiguous views move by one access; a block's width of groups lies
// between two groups of a thread, so that a warp touches whole lines, and all loads of a thread are in flight at
// once. Views with strides of their own are touched element by element, neighbouring threads at neighbouring ones.
// Expected bound: memory.
//
//   prologue space: inner extents X1...X5      epilogue space: inner extents Y1...Y5
//   SIZED: both are arguments, the strides of the last two views
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
#ifndef SIZED
#define SIZED 0
#endif
#ifndef EACH
#define EACH 8
#endif
#ifndef NEIGHBOURS
#define NEIGHBOURS 4 // elements that contiguous views move by one access
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // all views are contiguous
#endif

#include "epilogue.cuh"

constexpr int THREADS = BLOCK_THREADS;
constexpr int WIDTH = SRC_DENSE ? NEIGHBOURS : 1, GROUPS = EACH / WIDTH;
static_assert(EACH % WIDTH == 0, "whole groups");
static_assert(!SIZED || WIDTH == 1, "extents that are arguments are not known to be multiples");

#if SIZED
constexpr bool RAGGED = false; // the end may cut a group off
CVY_INLINE long long inner(const cvy_args &a)
{
    const long long *e = a.t[TENSORS - 2].s;
    return e[1] * e[2] * e[3] * e[4] * e[5];
}
template <int N> CVY_INLINE void locate(const cvy_args &a, bool out, cvy_index lin, cvy_at (&at)[N])
{
    const long long *e = a.t[TENSORS - (out ? 1 : 2)].s;
    at[0].lin = lin;
    at[0].i5 = (int)(lin % e[5]), lin /= e[5];
    at[0].i4 = (int)(lin % e[4]), lin /= e[4];
    at[0].i3 = (int)(lin % e[3]), lin /= e[3];
    at[0].i2 = (int)(lin % e[2]), lin /= e[2];
    at[0].i1 = (int)(lin % e[1]), lin /= e[1];
    at[0].i0 = (int)lin;
}
#else
constexpr long long INNER = (long long)X1 * X2 * X3 * X4 * X5;
constexpr bool RAGGED = INNER % WIDTH != 0;
CVY_INLINE long long inner(const cvy_args &)
{
    return INNER;
}
template <int N> CVY_INLINE void locate(const cvy_args &, bool out, cvy_index lin, cvy_at (&at)[N])
{
    if (out)
        cvy_neighbours<N, Y1, Y2, Y3, Y4, Y5>(lin, at);
    else
        cvy_neighbours<N, X1, X2, X3, X4, X5>(lin, at);
}
#endif

template <int N> CVY_INLINE void read(const cvy_args &a, long long lin, float *x)
{
    cvy_at at[N];
    float y[N];
    locate<N>(a, false, (cvy_index)lin, at);
    cvy_read<N>(a, at, y);
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = y[i];
}
template <int N> CVY_INLINE void write(const cvy_args &a, long long lin, const float *x)
{
    cvy_at at[N];
    float y[N];
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = x[i];
    locate<N>(a, true, (cvy_index)lin, at);
    cvy_write<N>(a, at, y);
}

// Groups that the end cuts off: one thread's, element by element.
CVY_INLINE void finish(const cvy_args &a, long long lin, long long total)
{
#pragma unroll 1
    for (; lin < total; lin++) {
        float x;
        read<1>(a, lin, &x);
        write<1>(a, lin, &x);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const long long total = a.extent * inner(a);
    const long long first = ((long long)blockIdx.x * (THREADS * GROUPS) + threadIdx.x) * WIDTH;
    float x[GROUPS][WIDTH];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const long long lin = first + g * THREADS * WIDTH;
        if (lin + WIDTH <= total) read<WIDTH>(a, lin, x[g]);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const long long lin = first + g * THREADS * WIDTH;
        if (lin + WIDTH <= total)
            write<WIDTH>(a, lin, x[g]);
        else if (RAGGED && lin < total)
            finish(a, lin, total);
    }
}
