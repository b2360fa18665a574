// conv_tc_stream.cuh - STREAM: weights do not fit into shared memory and travel with the stages of x. A strip has
// one tile for each warpgroup; a stage is multiplied with MSHARE blocks of channels before it is released.
#pragma once
#include "conv_tc_route.cuh"

// STREAM: MSHARE blocks of a tile, over all stages, which are given back. g: the first of them. As convolve, but
// exact tiles are left to do. SEPARATE: the sums of a stage start from zero and are added up by ordinary additions:
// tensor cores cut off at every step, which shows in a sum of thousands of terms (doc/LAB.md).
__device__ __forceinline__ float convolve_stages(float (&d)[MSHARE][ACC], shared_memory &s, const tile_at &tile,
                                                 stage_view &view, int g)
{
    constexpr bool SEPARATE = PARTS == 2;
    const u32 x0 = (smem_u32(s.x) >> 4) + (FLAT ? 0 : tile.row * PITCH) + tile.ct * TILE, w0 = smem_u32(s.w) >> 4;
    float unscale = 0, part[MSHARE][ACC];
    float(&sums)[MSHARE][ACC] = SEPARATE ? part : d;
    int odd = 0;
#pragma unroll 1
    for (int i = 0; i < NSTAGE; i++) {
        const int slot = (g + i) % TC_STAGES;
        view.wait(slot);
        const float u = s.unscale[slot];
        odd |= s.odd[slot];
        if (i && u != unscale)
#pragma unroll
            for (int j = 0; j < MSHARE * ACC; j++)
                d[j / ACC][j % ACC] *= unscale / u; // the stages of a strip share one scale in the accumulators
        unscale = u;
#pragma unroll
        for (int b = 0; b < MSHARE; b++) acc_fence(sums[b]);
        wgmma_fence();
#pragma unroll
        for (int b = 0; b < MSHARE; b++)
            multiply(sums[b], x0 + slot * (XSTAGE / 16), w0 + (slot * MSHARE + b) * (WSTAGE / 16),
                     SEPARATE ? 0 : i);
        wgmma_wait<0>();
#pragma unroll
        for (int b = 0; b < MSHARE; b++) acc_fence(sums[b]);
        view.release(slot);
        if constexpr (SEPARATE)
#pragma unroll
            for (int j = 0; j < MSHARE * ACC; j++) {
                const float more = part[j / ACC][j % ACC];
                d[j / ACC][j % ACC] = i ? d[j / ACC][j % ACC] + more : more;
            }
    }
    return odd ? -1.f : unscale;
}

// STREAM: a strip of one tile for each warpgroup, MSHARE blocks of channels at a time.
// As multiply_strip.
template <bool STATS, bool OUT>
__device__ __forceinline__ int stream_strip(const strip_route &w, int group, int first, int o)
{
    shared_memory &s = w.memory;
    const tc_args &a = w.args;
    const epi &e = w.views;
    const strip_at &at = w.at;
    lane_at &l = w.lane;
    stage_view &view = w.stages;
    const float2 *ab = w.norms;
    constexpr int MB = CHUNK_BLOCKS; // M blocks of a chunk
    constexpr bool POST = OUT && EARLY, RAW = !TC_PRE && !OUT;
    const int bands = cdiv(at.rows, BAND_ROWS), tiles = cdiv(FLAT ? at.rows * PITCH : at.cols, TILE),
              band = group / tiles, ct = group % tiles;
    const bool mine = band < bands;
    const tile_at tile = {band, ct, FLAT ? 0 : band * BAND_ROWS, at.cols - ct * TILE - 2 * l.q};
#pragma unroll 1
    for (int kb = 0; kb < MBLOCKS; kb += MSHARE, first += NSTAGE) {
        float d[MSHARE][ACC], unscale = 1.f;
        if (mine)
            unscale = convolve_stages(d, s, tile, view, first);
        else // let the stages pass
            for (int i = 0; i < NSTAGE; i++) {
                view.wait((first + i) % TC_STAGES);
                view.release((first + i) % TC_STAGES);
            }
#pragma unroll
        for (int i = 0; i < MSHARE; i++) {
            const int block = kb + i, in_chunk = block % MB, b = o % most(OUTS, 1);
            moments m = {{0, 0}, {0, 0}, {0, 0}, 0, true};
            float2 norm[2] = {{1.f, 0.f}, {1.f, 0.f}};
            lane_channels(l, a, block);
            if (POST && NORM) norm[0] = norm_of(ab, l.ch[0]), norm[1] = norm_of(ab, l.ch[1]);
            if (mine) {
                if (unscale < 0.f) exact_tile(d[i], a, at, tile, l);
                if (!RAW) value_maker<POST>(l, e, norm, at.n, unscale).all(d[i]);
                if (STATS && (FLAT || tile.row + l.rr < at.rows)) moments_add(m, d[i], at, tile, l);
            }
            if constexpr (OUT) {
                if (in_chunk == 0) mbar_wait(&s.oempty[b], (o / most(OUTS, 1) & 1) ^ 1);
                if (mine)
                    put_results(
                        w, d[i], tile,
                        {b, in_chunk, (block - in_chunk) * BLOCK_CHANNELS, band * ROWSM * CHUNK_COLS + ct * TILE});
                if (in_chunk == MB - 1) {
                    if (BULK) fence_proxy_async();
                    warp_arrive(&s.ofull[b]);
                    o++;
                }
            }
            if (STATS) moments_flush<RAW>(m, w.slots, l, unscale);
        }
    }
    return o;
}
