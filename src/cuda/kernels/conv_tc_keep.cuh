// conv_tc_keep.cuh - HOLD: a strip of one tile for each warpgroup, whose results wait in registers until its
// statistics are on their way.
#pragma once
#include "conv_tc_route.cuh"

// HOLD: the strip's statistics first, then its results. What other blocks wait for is on its way before this one
// waits for a buffer, and the stage is free as soon as the tensor cores have read it.
__device__ __forceinline__ int hold_strip(const strip_route &w, int group, int first, int o,
                                          float4 (&slots)[NORM ? SLOTS : 1][NORM ? PADDED_CHANNELS : 1], u32 tag)
{
    shared_memory &s = w.memory;
    const tc_args &a = w.args;
    const epi &e = w.views;
    const strip_at &at = w.at;
    const lane_at &l = w.lane;
    stage_view &view = w.stages;
    const int bands = cdiv(at.rows, BAND_ROWS), tiles = cdiv(FLAT ? at.rows * PITCH : at.cols, TILE);
    const bool mine = group < bands * tiles;
    const int band = group / tiles, ct = group % tiles;
    tile_at tile = {band, ct, FLAT ? 0 : band * BAND_ROWS, at.cols - ct * TILE - 2 * l.q};
    moments m = {{0, 0}, {0, 0}, {0, 0}, 0, true};
    float d[ACC], unscale = 1.f;

    if (mine)
        unscale = convolve(w, d, tile, 0, first);
    else
        view.wait(first % TC_STAGES);
    view.release(first % TC_STAGES);
    if (mine) {
        const float2 later[2] = {};
        value_maker<false>(l, e, later, at.n, unscale).all(d);
        if (FLAT || tile.row + l.rr < at.rows) moments_add(m, d, at, tile, l);
    }
    moments_flush<false>(m, slots[NORM ? group * ROWSM : 0], l, unscale);
    named_barrier(BAR_STATS, STAT_GROUPS * 128);
    if (group == 0) publish(slots, a, at, tag);
#pragma unroll 1
    for (int l0 = 0; l0 < bands; l0 += CHUNK_BANDS)
#pragma unroll 1
        for (int c0 = 0; c0 < tiles; c0 += CHUNK_TILES, o++) {
            const int b = o % most(OUTS, 1);
            mbar_wait(&s.oempty[b], (o / most(OUTS, 1) & 1) ^ 1);
            if (mine && band >= l0 && band < l0 + CHUNK_BANDS && ct >= c0 && ct < c0 + CHUNK_TILES)
                put_tile(w, d, tile, {b, 0, 0, (band - l0) * ROWSM * CHUNK_COLS + (ct - c0) * TILE});
            warp_arrive(&s.ofull[b]);
        }
    return o;
}
