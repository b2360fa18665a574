// reduce.cu - sum, mean, max, min and logsumexp over any set of dimensions.
//
// LANES neighbouring threads share one result. Where the innermost dimension is reduced they read neighbouring
// elements (LANES up to a block). Where it is kept, LANES is 1: neighbouring threads make neighbouring results and
// read neighbouring elements, and SPLITS rows of threads share the sum through shared memory. Expected bound:
// memory.
//
//   prologue space: inner extents X1...X5, REDUCED says which      epilogue space: the same with extent 1 there
//   grid: x results over THREADS / LANES / SPLITS
#ifndef GATHER
#define GATHER logsumexp // sum, mean, max, min, logsumexp
#endif
#ifndef LANES
#define LANES 1
#endif
#ifndef SPLITS
#define SPLITS 1
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "epilogue.cuh"
#include "gather.cuh"

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
typedef PASTE(cvy_gather_, GATHER) gatherer;
static_assert(LANES == 1 || SPLITS == 1, "either lanes or rows of threads share a result");
static_assert(THREADS % (LANES * SPLITS) == 0 && THREADS % 32 == 0, "whole groups");

constexpr int RESULTS = THREADS / LANES / SPLITS; // of a block

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    const long long inside = cvy_inside_count(a), kept = cvy_kept_count(a);
    const int column = LANES > 1 ? threadIdx.x / LANES : threadIdx.x % RESULTS;
    const int part = LANES > 1 ? threadIdx.x % LANES : threadIdx.x / RESULTS;
    const long long result = (long long)blockIdx.x * RESULTS + column;
    gatherer g;

    if (result < kept)
#pragma unroll 4
        for (long long i = part; i < inside; i += LANES * SPLITS)
            g.take(cvy_prologue(a, cvy_place((cvy_index)result, (cvy_index)i)));
    if (LANES > 1) cvy_join_lanes<LANES, THREADS>(g);
    if (SPLITS > 1) {
        __shared__ __align__(8) char memory[THREADS * sizeof(gatherer)];
        gatherer *parts = reinterpret_cast<gatherer *>(memory);
        parts[threadIdx.x] = g;
        __syncthreads();
        if (part == 0)
            for (int s = 1; s < SPLITS; s++) g.join(parts[s * RESULTS + column]);
    }
    if (part == 0 && result < kept) {
        cvy_at at = cvy_place((cvy_index)result, 0);
        at.lin = (cvy_index)result;
        cvy_epilogue(a, at, g.result((double)inside));
    }
}
