// conv_tc_plain.cuh - a strip tile by tile: the route of every pass except those that keep, stream or halve.
// Weights of all blocks of channels stay in shared memory, warpgroups take tiles in turn, and results go into
// chunks for the finishing role.
#pragma once
#include "conv_tc_route.cuh"

// One strip: tiles of all its chunks. STATS: take statistics; OUT: hand the results to the finishing role. o:
// chunks handed over before.
template <bool STATS, bool OUT>
__device__ __forceinline__ int multiply_strip(const strip_route &w, int group, int first, int o)
{
    shared_memory &s = w.memory;
    const strip_at &at = w.at;
    lane_at &l = w.lane;
    constexpr int GW = STATS ? STAT_GROUPS : FINISH_GROUPS;                       // warpgroups that share the tiles
    constexpr int MB = STATS ? 1 : CHUNK_BLOCKS;                                  // M blocks of a chunk
    constexpr bool EVEN = BAND_TILES % CHUNK_TILES == 0 && CSTRIPS == 1 && !FLAT; // all chunks are as wide
    constexpr bool POST = OUT && EARLY;
    constexpr bool RAW = !TC_PRE && !(OUT && !POOL); // scale and bias come in where few values are left
    // Warpgroups take chunks (or their tiles) in turn, regardless of which had the last one. Not if several tiles
    // make one statistic: who has which decides how it is rounded, and may depend only on the strip's place
    // in its sample. A buffer may then change its owner: it was an earlier strip's, and all have met in BAR_STATS
    // since.
    const int lean = STATS && OUT && BANDS * BAND_TILES > 1 ? (at.index ^ o) & 1 : 0;
    const int bands = cdiv(at.rows, BAND_ROWS), tiles = cdiv(FLAT ? at.rows * PITCH : at.cols, TILE);
#pragma unroll 1
    for (int kb = 0; kb < MBLOCKS; kb += MB) {
        moments m = {{0, 0}, {0, 0}, {0, 0}, 0, true};
        float2 norm[2] = {{1.f, 0.f}, {1.f, 0.f}};
        if (MBLOCKS > 1 && MB == 1) block_channels(w, kb, first);
        if (MB == 1 && POST && NORM) norm[0] = norm_of(w.norms, l.ch[0]), norm[1] = norm_of(w.norms, l.ch[1]);
        float unscale = 1.f;
#pragma unroll 1
        for (int l0 = 0; l0 < bands; l0 += CHUNK_BANDS)
#pragma unroll 1
            for (int c0 = 0; c0 < tiles; c0 += CHUNK_TILES) {
                if (SOLE && OUT && (group + o + lean) % GW) {
                    o++;
                    continue;
                }
                const int nl = CHUNK_BANDS == 1 ? 1 : min(CHUNK_BANDS, bands - l0),
                          nc = EVEN ? CHUNK_TILES : min(CHUNK_TILES, tiles - c0);
                const int b = o % most(OUTS, 1), phase = (o / most(OUTS, 1) & 1) ^ 1;
                bool owned = !OUT; // the chunk's buffer is known to be free
#pragma unroll 1
                for (int i = (group + o + lean) % GW; i < MB * nl * nc; i += GW) {
                    const int block = kb + i / (nl * nc), u = i % (nl * nc);
                    tile_at tile = {l0 + u / nc, c0 + u % nc, 0, 0};
                    tile.limit = at.cols - tile.ct * TILE - 2 * l.q;
                    if (MB > 1) block_channels(w, block, first);
                    if (MB > 1 && POST && NORM)
                        norm[0] = norm_of(w.norms, l.ch[0]), norm[1] = norm_of(w.norms, l.ch[1]);
                    float pooled[POOL && OUT ? 2 * EIGHTS : 1];
                    for (auto &v : pooled) v = __int_as_float(0xff800000);
                    const int rows = POOL ? min(TC_POOLH, at.rows - tile.band * TC_POOLH) : 1;
#pragma unroll 1
                    for (int r = 0; r < rows; r++) {
                        tile.row = FLAT ? 0 : tile.band * BAND_ROWS + r;
                        float d[ACC];
                        unscale = convolve(w, d, tile, block, first);
                        if (!RAW) value_maker<POST>(l, w.views, norm, at.n, unscale).all(d);
                        if (STATS && (FLAT || tile.row + l.rr < at.rows)) moments_add(m, d, at, tile, l);
                        if constexpr (OUT && POOL) pool_rows(pooled, d);
                        if constexpr (OUT && !POOL) {
                            if (!owned) mbar_wait(&s.oempty[b], phase);
                            owned = true;
                            put_results(w, d, tile,
                                        {b, block - kb, kb * BLOCK_CHANNELS,
                                         (tile.band - l0) * ROWSM * CHUNK_COLS + (tile.ct - c0) * TILE});
                        }
                    }
                    if constexpr (OUT && POOL) {
                        if (!owned) mbar_wait(&s.oempty[b], phase);
                        owned = true;
                        if (rows == TC_POOLH)
                            put_pooled<RAW>(w, pooled, tile, unscale,
                                            {b, kb * BLOCK_CHANNELS, tile.band - l0, at.cols / TC_POOLW});
                    }
                }
                if (OUT) {
                    if (BULK) fence_proxy_async();
                    if (!owned) mbar_wait(&s.oempty[b], phase);
                    warp_arrive(&s.ofull[b]);
                    o++;
                }
            }
        if (STATS) moments_flush<RAW>(m, w.slots, l, unscale);
    }
    return o;
}
