// conv_tc_way.cuh - what the ways through a strip share: where a warpgroup is, and how results reach a chunk.
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

// A warpgroup on its way through one strip.
struct strip_way {
    shared_memory &memory;
    const tc_args &args;
    const epi &views;
    const strip_at &at;
    lane_at &lane;
    stage_view &stages;
    float4 *slots;       // where its statistics go
    const float2 *norms; // of the strip's sample: a factor and a summand for each channel
};

// MBLOCKS > 1: another block of channels.
__device__ __forceinline__ void block_channels(const strip_way &w, int block, int first)
{
    lane_channels(w.lane, w.args, block);
    if (SHIFTED) lane_offset(w.lane, w.args, w.memory, w.stages, first % TC_STAGES);
}

// Where in a chunk a tile's results go: the chunk's buffer and first channel, which of its blocks of channels they
// are, the pixel of it that is the tile's first.
struct chunk_place {
    int buffer, block, first_channel, pixel;
};
__device__ __forceinline__ void put_results(const strip_way &w, float (&d)[ACC], const tile_at &tile,
                                            const chunk_place &to)
{
    shared_memory &s = w.memory;
    if constexpr (PARTIAL)
#pragma unroll
        for (int px = 0; px < TILE; px += HALF)
            put_partial(s, to.buffer, to.block * 4 + threadIdx.x / 32 % 4, *(half_tile *)(d + px / 2),
                        made_values{w.lane}, px, w.at.cols - tile.ct * TILE);
    else if constexpr (OUT_LAST)
        put_last<Y_TYPE>(s.out[to.buffer], d, w.at, tile, to.pixel);
    else if constexpr (OUT_HALF)
        put_rounded<Y_TYPE>(s.out[to.buffer], d, w.at, tile, w.lane, to.first_channel, to.pixel);
    else
        put_tile(s.out[to.buffer], d, w.at, tile, w.lane, to.first_channel, to.pixel);
}
