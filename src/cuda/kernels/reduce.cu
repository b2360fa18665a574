// reduce.cu - sum, mean, max, min and logsumexp over any set of dimensions.
//
// VARIANT says which of three kernels this is:
//   0  results from their elements
//   1  the elements of every result cut into gridDim.y parts, one gatherer of each part - for few, long results
//   2  results from those, one warp each, in the order of the parts
//
// Elements are read in one of three ways. TRAILING: the reduced dimensions are the last ones, so a result's
// elements are neighbours in memory. LANES threads share a result and read WIDTH neighbours each. Otherwise
// coordinates are worked out for every access. Where the innermost dimension is reduced, LANES threads share a
// result. Where it is kept, LANES is 1: a thread has TOGETHER results that are neighbours, as their elements are,
// which one access brings; SPLITS rows of threads share their sums through shared memory. UNROLL accesses are under
// way at once. Expected bound: memory.
//
//   prologue space (0, 1): inner extents X1...X5, REDUCED says which     epilogue space (0, 2): the same with
//   extent 1 there 1: t[0] gatherers [results][parts]       2: t[PARTIALS] the same grid: x results over RESULTS
//   (2: over warps), y parts (2: 1)
#ifndef GATHER
#define GATHER logsumexp // sum, mean, max, min, logsumexp
#endif
#ifndef VARIANT
#define VARIANT 0
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
#ifndef TOGETHER
#define TOGETHER 1
#endif
#ifndef NEIGHBOURS
#define NEIGHBOURS 4 // of an access of 16 bytes
#endif
#ifndef PARTS
#define PARTS 1 // VARIANT 2: of a result
#endif
#ifndef PARTIALS
#define PARTIALS 1
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // all views are contiguous
#endif

#include "epilogue.cuh"
#include "gather.cuh"

constexpr int THREADS = BLOCK_THREADS;
#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
typedef PASTE(cvy_gather_, GATHER) gatherer;
static_assert(sizeof(gatherer) <= GATHERER_BYTES, "what the host takes memory for");
static_assert(LANES == 1 || (SPLITS == 1 && TOGETHER == 1), "either lanes or rows of threads share a result");
static_assert(THREADS % (LANES * SPLITS) == 0 && THREADS % 32 == 0, "whole groups");
static_assert(TOGETHER == 1 || TOGETHER == NEIGHBOURS, "what the generated functions take");

constexpr int COLUMNS = THREADS / LANES / SPLITS, RESULTS = COLUMNS * TOGETHER; // of a block
static_assert(SPLITS == 1 || RESULTS <= THREADS, "a thread for each result of rows of threads");

#if VARIANT != 1
template <int N> CVY_INLINE void finish(const cvy_args &a, long long result, const gatherer (&g)[N])
{
    cvy_at at[N];
    float x[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        at[j] = cvy_place((cvy_index)(result + j), 0);
        at[j].lin = (cvy_index)(result + j);
        x[j] = g[j].result((double)cvy_inside_count(a));
    }
    cvy_write<N>(a, at, x);
}
#endif

#if VARIANT < 2
constexpr int UNROLL = 4;

// Elements of a result that one access brings. Rows begin at multiples of WIDTH: they have such a length, or there
// is one.
constexpr bool WHOLE_ROWS = SRC_DENSE && (REDUCED & 1 || cvy_inner_count() % NEIGHBOURS == 0);
constexpr int WIDTH = TRAILING && WHOLE_ROWS ? NEIGHBOURS : 1, STEP = LANES * SPLITS * WIDTH;
constexpr int ACCESS = WIDTH * TOGETHER;

// Element number i of a result and its neighbours: of that result, or of the results after it.
template <int N> CVY_INLINE void read(const cvy_args &a, long long result, long long i, float (&x)[N])
{
    cvy_at at[N];
    const cvy_index lin =
        TRAILING ? (cvy_index)(result * cvy_inside_count(a) + i) : cvy_place((cvy_index)result, (cvy_index)i).lin;
    cvy_neighbours<N, X1, X2, X3, X4, X5>(lin, at);
    cvy_read<N>(a, at, x);
}

template <int N> CVY_INLINE void take(gatherer (&g)[TOGETHER], const float (&x)[N])
{
#pragma unroll
    for (int j = 0; j < N; j++) g[TOGETHER > 1 ? j : 0].take(x[j]);
}

// Elements `begin` to `end` of a thread's results, which is number `part` of those that share them.
CVY_INLINE void gather(const cvy_args &a, long long result, int part, long long begin, long long end,
                       gatherer (&g)[TOGETHER])
{
    long long i = begin + part * WIDTH;

    for (; i + (UNROLL - 1) * STEP + WIDTH <= end; i += UNROLL * STEP) {
        float x[UNROLL][ACCESS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) read(a, result, i + u * STEP, x[u]);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) take(g, x[u]);
    }
    for (; i + WIDTH <= end; i += STEP) {
        float x[ACCESS];
        read(a, result, i, x);
        take(g, x);
    }
    for (; WIDTH > 1 && i < end; i++) { // of the last access
        float x[TOGETHER];
        read(a, result, i, x);
        take(g, x);
    }
}

// What becomes of N results from `result` on.
template <int N> CVY_INLINE void leave(const cvy_args &a, long long result, const gatherer (&g)[N])
{
#if VARIANT
#pragma unroll
    for (int j = 0; j < N; j++)
        reinterpret_cast<gatherer *>(a.t[0].p)[(result + j) * gridDim.y + blockIdx.y] = g[j];
#else
    finish<N>(a, result, g);
#endif
}

#if SPLITS > 1
// Rows of threads have sums of the same results: a thread joins those of one.
CVY_INLINE void leave_rows(const cvy_args &a, int part, int column, const gatherer (&g)[TOGETHER])
{
    __shared__ __align__(8) char memory[THREADS * TOGETHER * sizeof(gatherer)];
    gatherer(*rows)[RESULTS] = reinterpret_cast<gatherer(*)[RESULTS]>(memory);
    const long long result = (long long)blockIdx.x * RESULTS + threadIdx.x;
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) rows[part][column * TOGETHER + j] = g[j];
    __syncthreads();
    if (threadIdx.x >= RESULTS || result >= cvy_kept_count(a)) return;
    gatherer all[1] = {rows[0][threadIdx.x]};
    for (int s = 1; s < SPLITS; s++) all[0].join(rows[s][threadIdx.x]);
    leave<1>(a, result, all);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    constexpr int GRAIN = UNROLL * STEP;
    cvy_follow();
    const long long inside = cvy_inside_count(a), kept = cvy_kept_count(a);
    const int column = LANES > 1 ? threadIdx.x / LANES : threadIdx.x % COLUMNS;
    const int part = LANES > 1 ? threadIdx.x % LANES : threadIdx.x / COLUMNS;
    const long long result = ((long long)blockIdx.x * COLUMNS + column) * TOGETHER;
    // Parts of whole rounds of accesses: all but the last are as long as each other.
    const long long share = VARIANT ? ((inside - 1) / gridDim.y / GRAIN + 1) * GRAIN : inside,
                    begin = blockIdx.y * share;
    gatherer g[TOGETHER];

    if (result < kept) gather(a, result, part, begin, begin + share < inside ? begin + share : inside, g);
    if (LANES > 1) cvy_join_lanes<LANES, THREADS>(g[0]);
#if SPLITS > 1
    leave_rows(a, part, column, g);
#else
    if (part == 0 && result < kept) leave<TOGETHER>(a, result, g);
#endif
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const long long result = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (result >= cvy_kept_count(a)) return; // whole warps leave
    const gatherer *parts = reinterpret_cast<const gatherer *>(a.t[PARTIALS].p) + result * PARTS;
    gatherer g[1];
#pragma unroll 8
    for (int i = threadIdx.x % 32; i < PARTS; i += 32) g[0].join(parts[i]);
    cvy_join_lanes<32, THREADS>(g[0]);
    if (threadIdx.x % 32 == 0) finish<1>(a, result, g);
}
#endif
