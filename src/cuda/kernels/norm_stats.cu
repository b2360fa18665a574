// norm_stats.cu - the statistics of a norm: mean and 1 / deviation of every slice.
//
// The source is seen as [outer][GROUPS][PER_GROUP]; a slice is one (outer, group), or with OVER_OUTER one group
// over all outer. VARIANT says which of three kernels this is:
//   0  one block per slice
//   1  PARTS blocks per slice, each a partial result (moments.cuh, as doubles) - for few, long slices
//   2  merges those, one warp per slice, in the order of the parts
// A thread takes NEIGHBOURS values by one access, where slices are whole multiples of them, and several such
// accesses at once. Where tensors are not contiguous (SRC_DENSE 0: mostly channels last) neighbouring threads take
// the CHANNELS of a pixel. Expected bound of 0 and 1: memory.
//
//   0: t[0] stats [slices][3]                1: t[0] partials [slices][PARTS][3] doubles
//   2: t[0] stats, t[1] partials             prologue space (0, 1): inner extents X1...X5
//   grid: x slices (2: warps of THREADS), y PARTS
#ifndef VARIANT
#define VARIANT 0
#endif
#ifndef GROUPS
#define GROUPS 16
#endif
#ifndef PER_GROUP
#define PER_GROUP (4 * 126 * 126)
#endif
#ifndef CHANNELS
#define CHANNELS 4 // of a group
#endif
#ifndef OUTER_PER_SAMPLE
#define OUTER_PER_SAMPLE 1 // outer slices of one index of dimension 0
#endif
#ifndef OVER_OUTER
#define OVER_OUTER 0
#endif
#ifndef PARTS
#define PARTS 1
#endif
#ifndef EPS
#define EPS 1e-5
#endif
#ifndef X1
#define X1 64
#define X2 126
#define X3 126
#define X4 1
#define X5 1
#endif
#ifndef NEIGHBOURS
#define NEIGHBOURS 4
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // all views are contiguous
#endif

#include "epilogue.cuh"
#include "moments.cuh"

constexpr int THREADS = BLOCK_THREADS;
static_assert(PARTS >= 1 && THREADS % 32 == 0, "whole warps");

#if VARIANT < 2
constexpr int WIDTH = SRC_DENSE && PER_GROUP % NEIGHBOURS == 0 ? NEIGHBOURS : 1, ACCESSES = CVY_RUN / WIDTH;
static_assert(CVY_RUN % WIDTH == 0, "whole accesses");

// Element number i of a slice in the order in which threads take them.
template <class I> CVY_INLINE I turned(I i)
{
    return i % CHANNELS * (I)(PER_GROUP / CHANNELS) + i / CHANNELS;
}

// WIDTH elements of a slice from number i on, counted over everything the slice holds. A place is found by
// divisions, which are cheap only for 32-bit numbers.
CVY_INLINE void elements(const cvy_args &a, long long slice, long long i, bool is_short, float *x)
{
    const long long inside = OVER_OUTER ? i % PER_GROUP : i, outer = OVER_OUTER ? i / PER_GROUP * GROUPS : 0;
    const long long lin = (outer + slice) * PER_GROUP + (SRC_DENSE  ? inside
                                                         : is_short ? turned((int)inside)
                                                                    : turned(inside));
    cvy_at at[WIDTH];
    float some[WIDTH];
    if (SRC_DENSE || !is_short)
        cvy_neighbours<WIDTH, X1, X2, X3, X4, X5>((cvy_index)lin, at);
    else
        at[0] = cvy_unravel<X1, X2, X3, X4, X5>((int)lin);
    cvy_read(a, at, some);
#pragma unroll
    for (int e = 0; e < WIDTH; e++) x[e] = some[e];
}

CVY_INLINE cvy_moments moments_of(const cvy_args &a, long long slice, long long begin, long long end)
{
    const bool is_short = a.extent * ((long long)X1 * X2 * X3 * X4 * X5) <= 0x7fffffff;
    cvy_moments total = {0.0, 0.0, 0.0};
    for (long long i = begin + threadIdx.x * WIDTH; i < end; i += THREADS * CVY_RUN) {
        float x[CVY_RUN] = {};
        const long long left = (end - i + THREADS * WIDTH - 1) / (THREADS * WIDTH);
        const int accesses = left < ACCESSES ? (int)left : ACCESSES;
#pragma unroll
        for (int j = 0; j < ACCESSES; j++)
            if (j < accesses) elements(a, slice, i + j * THREADS * WIDTH, is_short, x + j * WIDTH);
        total = cvy_merge(total, cvy_run_moments(x, accesses * WIDTH));
    }
    return cvy_block_moments<THREADS>(total);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const long long slice = blockIdx.x, size = PER_GROUP * (OVER_OUTER ? a.extent * OUTER_PER_SAMPLE : 1LL);
    const long long part = ((size + PARTS - 1) / PARTS + WIDTH - 1) / WIDTH * WIDTH, begin = blockIdx.y * part;
    const cvy_moments m = moments_of(a, slice, begin, begin + part < size ? begin + part : size);
    if (threadIdx.x) return;
#if VARIANT == 0
    cvy_store_stats(a.t[0].p + slice * 3, m, EPS);
#else
    reinterpret_cast<cvy_moments *>(a.t[0].p)[slice * PARTS + blockIdx.y] = m;
#endif
}
#else
CVY_INLINE long long slices_of(const cvy_args &a)
{
    return (OVER_OUTER ? 1 : a.extent * OUTER_PER_SAMPLE) * GROUPS;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const long long slice = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (slice >= slices_of(a)) return; // whole warps leave
    const cvy_moments *parts = reinterpret_cast<const cvy_moments *>(a.t[1].p) + slice * PARTS;
    cvy_moments m = {0.0, 0.0, 0.0};
    for (int i = threadIdx.x % 32; i < PARTS; i += 32) m = cvy_merge(m, parts[i]);
    for (int by = 16; by; by /= 2) m = cvy_merge(m, cvy_shuffle_down(m, by));
    if (threadIdx.x % 32 == 0) cvy_store_stats(a.t[0].p + slice * 3, m, EPS);
}
#endif
