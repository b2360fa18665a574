// move.cu - operators that move elements: cat, slice, permute, flip, expand, pad, interpolate (nearest). One launch
// per argument.
//
// A thread takes an element of the window that the argument fills, or EACH elements if they are neighbours in both
// tensors, computes where it comes from, and passes it from the prologue to the epilogue. Expected bound: memory.
//
//   prologue space: inner extents X1...X5 of the argument      epilogue space: inner extents Y1...Y5 of the result
//   window: inner extents B1...B5; index i of dimension d is AT<d> + i of the result, and START<d> + i * TIMES<d> /
//   OVER<d> along dimension FROM<d> of the argument
//   grid: x elements of the window over THREADS * EACH
#ifndef X1
#define X1 8
#define X2 20
#define X3 22
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
#ifndef B1
#define B1 X1
#define B2 X2
#define B3 X3
#define B4 X4
#define B5 X5
#endif
#ifndef FROM0
#define FROM0 0
#define FROM1 1
#define FROM2 2
#define FROM3 3
#define FROM4 4
#define FROM5 5
#endif
#ifndef AT
#define AT 0, 0, 0, 0, 0, 0
#endif
#ifndef START
#define START 0, 0, 0, 0, 0, 0
#endif
#ifndef TIMES
#define TIMES 1, 1, 1, 1, 1, 1
#endif
#ifndef OVER
#define OVER 1, 1, 1, 1, 1, 1
#endif
#ifndef FILLS
#define FILLS 0 // 1: the window is the whole result; what does not come from the argument is FILL
#define FILL  0.0f
#endif
#ifndef X0
#define X0 1 // FILLS: extent 0 of the argument; 0 if it has no elements
#endif
#ifndef EACH
#define EACH 1
#endif
#ifndef ALONG
#define ALONG 3 // dimension along which the neighbours lie
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // all views are contiguous
#endif

#include "epilogue.cuh"

constexpr int THREADS = BLOCK_THREADS;
constexpr int WIDTH = SRC_DENSE ? EACH : 1;

CVY_INLINE cvy_at place(const int (&i)[6], int E1, int E2, int E3, int E4, int E5)
{
    cvy_at at;
    at.i0 = i[0], at.i1 = i[1], at.i2 = i[2], at.i3 = i[3], at.i4 = i[4], at.i5 = i[5];
    at.lin = (((((cvy_index)i[0] * E1 + i[1]) * E2 + i[2]) * E3 + i[3]) * E4 + i[4]) * E5 + i[5];
    return at;
}

template <int N> CVY_INLINE void neighbours(const cvy_at &first, cvy_at (&at)[N])
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        at[j] = first;
        int *i[6] = {&at[j].i0, &at[j].i1, &at[j].i2, &at[j].i3, &at[j].i4, &at[j].i5};
        *i[ALONG] += j;
        at[j].lin = first.lin + j;
    }
}

// Where an element of the window comes from; false: it does not come from the argument.
CVY_INLINE bool source(const int (&b)[6], cvy_at *at)
{
    const int start[6] = {START}, times[6] = {TIMES}, over[6] = {OVER},
              from[6] = {FROM0, FROM1, FROM2, FROM3, FROM4, FROM5};
    const int extent[6] = {X0, X1, X2, X3, X4, X5};
    int x[6];
    bool inside = true;
#pragma unroll
    for (int d = 0; d < 6; d++) {
        const int i =
            over[d] == 1 ? start[d] + b[d] * times[d] : start[d] + (int)((long long)b[d] * times[d] / over[d]);
        if (FILLS) inside = inside && i >= 0 && i < extent[from[d]];
        x[from[d]] = i;
    }
    *at = place(x, X1, X2, X3, X4, X5);
    return inside;
}

template <int N> CVY_INLINE void move_elements(const cvy_args &a, long long lin)
{
    const cvy_at w = cvy_unravel<B1, B2, B3, B4, B5>((cvy_index)lin);
    const int b[6] = {w.i0, w.i1, w.i2, w.i3, w.i4, w.i5}, at[6] = {AT};
    int y[6];
    cvy_at from, here[N];
    float x[N];
#pragma unroll
    for (int d = 0; d < 6; d++) y[d] = b[d] + at[d];
    if (source(b, &from)) {
        cvy_at there[N];
        neighbours<N>(from, there);
        cvy_read<N>(a, there, x);
    } else {
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = FILL;
    }
    neighbours<N>(place(y, Y1, Y2, Y3, Y4, Y5), here);
    cvy_write<N>(a, here, x);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const long long total = a.extent * ((long long)B1 * B2 * B3 * B4 * B5);
#pragma unroll
    for (int g = 0; g < EACH / WIDTH; g++) {
        const long long lin = (((long long)blockIdx.x * (EACH / WIDTH) + g) * THREADS + threadIdx.x) * WIDTH;
        if (lin < total) move_elements<WIDTH>(a, lin);
    }
}
