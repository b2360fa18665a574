// softmax.cu - softmax and log_softmax along one dimension, in two readings: maximum and sum, then the values. Rows
// that are contiguous and fit on chip are left to softmax_row.cu.
//
// Threads share a row as in reduce.cu: LANES of them if the dimension is the innermost one with any extent, one
// thread per row if it is not. The second reading comes from the cache for rows that fit. Expected bound:
// memory.
//
//   prologue and epilogue space: inner extents X1...X5; REDUCED has the one bit
//   grid: x rows over THREADS / LANES
#ifndef LOGARITHM
#define LOGARITHM 0 // 1: log_softmax
#endif
#ifndef LANES
#define LANES 1
#endif

#include "epilogue.cuh"
#include "gather.cuh"

constexpr int THREADS = BLOCK_THREADS;
static_assert((REDUCED & (REDUCED - 1)) == 0 && REDUCED, "one dimension");
static_assert(THREADS % LANES == 0 && THREADS % 32 == 0, "whole groups");
constexpr int RESULTS = THREADS / LANES;

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    __shared__ float tops[RESULTS], sums[RESULTS];
    const long long inside = cvy_inside_count(a), kept = cvy_kept_count(a);
    const int column = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const long long row = (long long)blockIdx.x * RESULTS + column;
    cvy_gather_logsumexp g;

    if (row < kept)
#pragma unroll 4
        for (long long i = lane; i < inside; i += LANES)
            g.take(cvy_prologue(a, cvy_place((cvy_index)row, (cvy_index)i)));
    if (LANES > 1) {
        cvy_join_lanes<LANES, THREADS>(g);
        if (lane == 0) tops[column] = g.top, sums[column] = g.sum;
        __syncthreads();
        g.top = tops[column], g.sum = sums[column];
    }
    if (row >= kept) return;
    const float sum = fabsf(g.top) == CVY_INF ? CVY_NAN : g.sum; // of exp(x - top), one of them inf - inf
    const float shift = LOGARITHM ? logf(sum) : 1.0f / sum;
#pragma unroll 4
    for (long long i = lane; i < inside; i += LANES) {
        const cvy_at at = cvy_place((cvy_index)row, (cvy_index)i);
        const float x = cvy_prologue(a, at) - g.top;
        cvy_epilogue(a, at, LOGARITHM ? x - shift : expf(x) * shift);
    }
}
