// conv_tc_route.cuh - code shared by the ways through a strip: where a warpgroup is, and how results reach a chunk.
//
//   conv_tc_plain.cuh   tile by tile, all chunks; weights stay in shared memory
//   conv_tc_keep.cuh    a tile for each warpgroup, statistics first: results wait in registers
//   conv_tc_stream.cuh  a tile for each warpgroup, weights travel with x: several blocks of channels at once
//   conv_tc_halves.cuh  results of half a tile are reduced while the tensor cores work on the other half
//
// Each takes the warpgroup's number among those that share the strip, the strip's first stage (counted from the
// launch's first) and the chunks that were handed over before it, and gives their number after it.
#pragma once
#include "conv_tc_mma.cuh"
#include "conv_tc_moments.cuh"
#include "conv_tc_put.cuh"
#include "conv_tc_reduce.cuh"

// MBLOCKS > 1: another block of channels.
__device__ __forceinline__ void block_channels(const strip_route &w, int block, int first)
{
    lane_channels(w.lane, w.args, block);
    if (SHIFTED) lane_offset(w.lane, w.args, w.memory, w.stages, first % TC_STAGES);
}

__device__ __forceinline__ void put_results(const strip_route &w, float (&d)[ACC], const tile_at &tile,
                                            const chunk_place &to)
{
    if constexpr (PARTIAL)
#pragma unroll
        for (int px = 0; px < TILE; px += HALF)
            put_partial(w.memory, *(half_tile *)(d + px / 2), made_values{w.lane},
                        {to.buffer, to.block * 4 + (int)(threadIdx.x / 32 % 4), px, w.at.cols - tile.ct * TILE});
    else if constexpr (OUT_LAST)
        put_last<Y_TYPE>(w, d, tile, to);
    else if constexpr (OUT_HALF)
        put_rounded<Y_TYPE>(w, d, tile, to);
    else
        put_tile(w, d, tile, to);
}
