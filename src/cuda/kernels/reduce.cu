// reduce.cu - sum, mean, max, min and logsumexp over any set of dimensions.
//
// FORM says which of three kernels this is:
//   0  results from their elements
//   1  the elements of every result cut into gridDim.y parts, one gatherer of each part - for few, long results
//   2  results from those, one warp each, in the order of the parts
//
// Elements are read in one of two ways. TRAILING: the reduced dimensions are the last ones, so a result's elements
// are neighbours in memory. LANES threads share a result and read WIDTH neighbours each, UNROLL accesses under way
// at once. Otherwise coordinates are worked out for every element. Where the innermost dimension is reduced, LANES
// threads share a result. Where it is kept, LANES is 1: neighbouring threads make neighbouring results and read
// neighbouring elements, and SPLITS rows of threads share the sum through shared memory. Expected bound: memory.
//
//   prologue space (0, 1): inner extents X1...X5, REDUCED says which     epilogue space (0, 2): the same with
//   extent 1 there 1: t[0] gatherers [results][parts]       2: t[PARTIALS] the same grid: x results over THREADS /
//   LANES / SPLITS (2: over warps), y parts (2: 1)
#ifndef GATHER
#define GATHER logsumexp // sum, mean, max, min, logsumexp
#endif
#ifndef FORM
#define FORM 0
#endif
#ifndef TRAILING
#define TRAILING 0
#endif
#ifndef LANES
#define LANES 1
#endif
#ifndef SPLITS
#define SPLITS 1
#endif
#ifndef PARTS
#define PARTS 1 // FORM 2: of a result
#endif
#ifndef PARTIALS
#define PARTIALS 1
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // all views are contiguous
#endif

#include "epilogue.cuh"
#include "gather.cuh"

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
typedef PASTE(cvy_gather_, GATHER) gatherer;
static_assert(LANES == 1 || SPLITS == 1, "either lanes or rows of threads share a result");
static_assert(THREADS % (LANES * SPLITS) == 0 && THREADS % 32 == 0, "whole groups");

constexpr int RESULTS = THREADS / LANES / SPLITS; // of a block

#if FORM != 1
CVY_INLINE void finish(const cvy_args &a, long long result, const gatherer &g)
{
    cvy_at at[1] = {cvy_place((cvy_index)result, 0)};
    const float x[1] = {g.result((double)cvy_inside_count(a))};
    at[0].lin = (cvy_index)result;
    cvy_write<1>(a, at, x);
}
#endif

#if FORM < 2
// Elements `begin` to `end` of a result, of which this thread is number `part` of those that share it.
#if TRAILING
// Rows begin at multiples of WIDTH: they have such a length, or there is one.
constexpr int WIDTH = SRC_DENSE && (REDUCED & 1 || cvy_inner_count() % 4 == 0) ? 4 : 1, UNROLL = 4;
constexpr int STEP = LANES * WIDTH;

template <int N> CVY_INLINE void read(const cvy_args &a, long long lin, float (&x)[N])
{
    cvy_at at[N];
    cvy_neighbours<N, X1, X2, X3, X4, X5>((cvy_index)lin, at);
    cvy_read<N>(a, at, x);
}

CVY_INLINE void gather(const cvy_args &a, long long result, int part, long long begin, long long end, gatherer &g)
{
    const long long first = result * cvy_inside_count(a);
    long long i = begin + part * WIDTH;

    for (; i + (UNROLL - 1) * STEP + WIDTH <= end; i += UNROLL * STEP) {
        float x[UNROLL][WIDTH];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) read(a, first + i + u * STEP, x[u]);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int j = 0; j < WIDTH; j++) g.take(x[u][j]);
    }
    for (; i < end; i += STEP)
        for (int j = 0; j < WIDTH && i + j < end; j++) {
            float x[1];
            read(a, first + i + j, x);
            g.take(x[0]);
        }
}
#else
constexpr int WIDTH = 1;

CVY_INLINE void gather(const cvy_args &a, long long result, int part, long long begin, long long end, gatherer &g)
{
#pragma unroll 4
    for (long long i = begin + part; i < end; i += LANES * SPLITS) {
        const cvy_at at[1] = {cvy_place((cvy_index)result, (cvy_index)i)};
        float x[1];
        cvy_read<1>(a, at, x);
        g.take(x[0]);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const long long inside = cvy_inside_count(a), kept = cvy_kept_count(a);
    const int column = LANES > 1 ? threadIdx.x / LANES : threadIdx.x % RESULTS;
    const int part = LANES > 1 ? threadIdx.x % LANES : threadIdx.x / RESULTS;
    const long long result = (long long)blockIdx.x * RESULTS + column;
    // Parts of whole accesses: all but the last are as long as each other.
    const long long share = FORM ? ((inside - 1) / gridDim.y / WIDTH + 1) * WIDTH : inside,
                    begin = blockIdx.y * share;
    gatherer g;

    if (result < kept) gather(a, result, part, begin, begin + share < inside ? begin + share : inside, g);
    if (LANES > 1) cvy_join_lanes<LANES, THREADS>(g);
    if (SPLITS > 1) {
        __shared__ __align__(8) char memory[THREADS * sizeof(gatherer)];
        gatherer *parts = reinterpret_cast<gatherer *>(memory);
        parts[threadIdx.x] = g;
        __syncthreads();
        if (part == 0)
            for (int s = 1; s < SPLITS; s++) g.join(parts[s * RESULTS + column]);
    }
    if (part || result >= kept) return;
#if FORM
    reinterpret_cast<gatherer *>(a.t[0].p)[result * gridDim.y + blockIdx.y] = g;
#else
    finish(a, result, g);
#endif
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const long long result = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (result >= cvy_kept_count(a)) return; // whole warps leave
    const gatherer *parts = reinterpret_cast<const gatherer *>(a.t[PARTIALS].p) + result * PARTS;
    gatherer g;
    for (int i = threadIdx.x % 32; i < PARTS; i += 32) g.join(parts[i]);
    cvy_join_lanes<32, THREADS>(g);
    if (threadIdx.x % 32 == 0) finish(a, result, g);
}
#endif
