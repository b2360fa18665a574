// conv_tc.cu - convolution and what follows it on Hopper's tensor cores, one launch (or STATS and FINISH as two).
//
// Persistent: one block per SM, block b takes strips b, b + grid, ... (a strip: STRIP output rows of a sample).
//
//   role      warps                     waits for                  signals
//   multiply  0 .. 4 * MMAS - 1         full, oempty, sfull (1)    empty, ofull, sempty (1), words in part
//   finish    TEAMS of 1, 2 or 4        ofull, sfull (2)           oempty, sempty (2)
//   stage     3 to 6, COPIED 2 to 4     empty (COPIED: rawfull)    full (COPIED: rawempty)
//   copy      COPIED: one               rawempty                   rawfull
//   merge     the last                  sempty, words in part      sfull
//   (1) EARLY, (2) else
//
// multiply: tiles, bias, PRE, statistics, pooling; norm and POST where EARLY. finish: norm and POST else; reduce,
// store. stage: global fp32 -> shared fp16. merge: all strips' statistics of a sample -> its norm.
//
// PASS_BOTH: the first multiplying warpgroup takes statistics strips, the others the same strips again, `lead`
// turns later, for finishing; so both run side by side. PASS_KEEP: every strip once, its results wait in shared
// memory. Statistics go from block to block as tagged words: every block must be resident. Shared memory: struct
// shared_memory in conv_tc.cuh. Expected bound and measurements: doc/KERNELS.md.
#include "conv_tc.cuh"
#include "conv_tc_load.cuh"
#include "conv_tc_mma.cuh"
#include "conv_tc_reduce.cuh"
#include "conv_tc_sink.cuh"
#ifndef KERNEL_NAME
#define KERNEL_NAME conv_tc
#endif
// Registers per thread of each role; all warpgroups together at most what the launch takes (512 threads: 4 * 128,
// 640: 5 * 96). Halves are faster with few (doc/KERNELS.md), whole tiles need more.
constexpr bool FEWER = HALVES && BOTH;
constexpr int REGS_FIRST = BOTH         ? (FEWER ? 128 : 112)
                           : TEAMS == 2 ? 120
                                        : 168,
              REGS_SECOND = !BOTH   ? REGS_FIRST
                            : FEWER ? 112
                                    : 120,
              REGS_REST = BOTH         ? 64
                          : TEAMS == 2 ? 80
                                       : 88;

// MBLOCKS > 1: another block of channels.
__device__ __forceinline__ void block_channels(lane_at &l, const tc_args &a, shared_memory &s, stage_view &view,
                                               int block, int g)
{
    lane_channels(l, a, block);
    if (SHIFTED) lane_offset(l, a, s, view, g % TC_STAGES);
}

// A tile's results into buffer b. block: which of the chunk's; k0: the chunk's first channel, index: the tile's
// first pixel in it.
__device__ __forceinline__ void put_results(shared_memory &s, int b, float (&d)[ACC], const strip_at &at,
                                            const tile_at &tile, const lane_at &l, int block, int k0, int index)
{
    if constexpr (PARTIAL)
#pragma unroll
        for (int px = 0; px < TILE; px += HALF)
            put_partial(s, b, block * 4 + threadIdx.x / 32 % 4, *(half_tile *)(d + px / 2), made_values{l}, px,
                        at.cols - tile.ct * TILE);
    else if constexpr (OUT_HALF)
        put_rounded<Y_TYPE>(s.out[b], d, at, tile, l, k0, index);
    else
        put_tile(s.out[b], d, at, tile, l, k0, index);
}

// One strip: tiles of all its chunks. STATS: take statistics; OUT: hand the results to the finishing role. g: the
// strip's first stage, o: chunks handed over before; returns that count.
template <bool STATS, bool OUT>
__device__ __forceinline__ int multiply_strip(shared_memory &s, const tc_args &a, const epi &e, const strip_at &at,
                                              lane_at &l, stage_view &view, int wg, int g, int o, float4 *slots,
                                              const float2 *ab)
{
    constexpr int GW = STATS ? STATW : FINW; // warpgroups that share the tiles
    constexpr int MB = STATS ? 1 : CHUNKM;   // M blocks of a chunk
    constexpr bool POST = OUT && EARLY;
    constexpr bool RAW = !TC_PRE && !(OUT && !POOL); // scale and bias come in where few values are left
    // Warpgroups take chunks (or their tiles) in turn, whoever had the last one. Not where several tiles make one
    // statistic: who has which decides how it is rounded, and may depend on nothing but the strip's place in its
    // sample. A buffer may then change its owner: it was an earlier strip's, and all have met in BAR_STATS since.
    const int lean = STATS && OUT && LINES * CT > 1 ? (at.index ^ o) & 1 : 0;
    const int lines = cdiv(at.rows, LINEROWS), tiles = cdiv(FLAT ? at.rows * PITCH : at.cols, TILE);
#pragma unroll 1
    for (int kb = 0; kb < MBLOCKS; kb += MB) {
        moments m = {{0, 0}, {0, 0}, {0, 0}, 0, true};
        float2 norm[2] = {{1.f, 0.f}, {1.f, 0.f}};
        if (MBLOCKS > 1 && MB == 1) block_channels(l, a, s, view, kb, g);
        if (MB == 1 && POST && NORM) norm[0] = norm_of(ab, l.ch[0]), norm[1] = norm_of(ab, l.ch[1]);
        float unscale = 1.f;
#pragma unroll 1
        for (int l0 = 0; l0 < lines; l0 += LPC)
#pragma unroll 1
            for (int c0 = 0; c0 < tiles; c0 += CPC) {
                if (SOLE && OUT && (wg + o + lean) % GW) {
                    o++;
                    continue;
                }
                const int nl = LPC == 1 ? 1 : min(LPC, lines - l0),
                          nc = CT % CPC == 0 && CSTRIPS == 1 && !FLAT ? CPC : min(CPC, tiles - c0);
                const int b = o % most(OUTS, 1), phase = (o / most(OUTS, 1) & 1) ^ 1;
                bool owned = !OUT; // the chunk's buffer is known to be free
#pragma unroll 1
                for (int i = (wg + o + lean) % GW; i < MB * nl * nc; i += GW) {
                    const int block = kb + i / (nl * nc), u = i % (nl * nc);
                    tile_at tile = {l0 + u / nc, c0 + u % nc, 0, 0};
                    tile.limit = at.cols - tile.ct * TILE - 2 * l.q;
                    if (MB > 1) block_channels(l, a, s, view, block, g);
                    if (MB > 1 && POST && NORM) norm[0] = norm_of(ab, l.ch[0]), norm[1] = norm_of(ab, l.ch[1]);
                    float pooled[POOL && OUT ? 2 * NJ : 1];
                    for (auto &v : pooled) v = __int_as_float(0xff800000);
                    const int rows = POOL ? min(TC_POOLH, at.rows - tile.line * TC_POOLH) : 1;
#pragma unroll 1
                    for (int r = 0; r < rows; r++) {
                        tile.row = FLAT ? 0 : tile.line * LINEROWS + r;
                        float d[ACC];
                        unscale = convolve(d, s, a, at, tile, l, view, block, g);
                        if (!RAW) value_maker<POST>(l, e, norm, at.n, unscale).all(d);
                        if (STATS && (FLAT || tile.row + l.rr < at.rows)) moments_add(m, d, at, tile, l);
                        if constexpr (OUT && POOL) pool_rows(pooled, d);
                        if constexpr (OUT && !POOL) {
                            if (!owned) mbar_wait(&s.oempty[b], phase);
                            owned = true;
                            put_results(s, b, d, at, tile, l, block - kb, kb * KM,
                                        (tile.line - l0) * ROWSM * CHUNKW + (tile.ct - c0) * TILE);
                        }
                    }
                    if constexpr (OUT && POOL) {
                        if (!owned) mbar_wait(&s.oempty[b], phase);
                        owned = true;
                        if (rows == TC_POOLH)
                            put_pooled<RAW>(s.out[b], pooled, tile, l, unscale, kb * KM, tile.line - l0,
                                            at.cols / TC_POOLW);
                    }
                }
                if (OUT) {
                    if (BULK) fence_proxy_async();
                    if (!owned) mbar_wait(&s.oempty[b], phase);
                    warp_arrive(&s.ofull[b]);
                    o++;
                }
            }
        if (STATS) moments_flush<RAW>(m, slots, l, unscale);
    }
    return o;
}

// STREAM: a strip of one tile for each warpgroup, MWIDE blocks of channels at a time. As multiply_strip.
template <bool STATS, bool OUT>
__device__ __forceinline__ int stream_strip(shared_memory &s, const tc_args &a, const epi &e, const strip_at &at,
                                            lane_at &l, stage_view &view, int wg, int g, int o, float4 *slots,
                                            const float2 *ab)
{
    constexpr int MB = CHUNKM; // M blocks of a chunk
    constexpr bool POST = OUT && EARLY, RAW = !TC_PRE && !OUT;
    const int lines = cdiv(at.rows, LINEROWS), tiles = cdiv(FLAT ? at.rows * PITCH : at.cols, TILE),
              line = wg / tiles, ct = wg % tiles;
    const bool mine = line < lines;
    const tile_at tile = {line, ct, FLAT ? 0 : line * LINEROWS, at.cols - ct * TILE - 2 * l.q};
#pragma unroll 1
    for (int kb = 0; kb < MBLOCKS; kb += MWIDE, g += NSTAGE) {
        float d[MWIDE][ACC], unscale = 1.f;
        if (mine)
            unscale = convolve_stages(d, s, tile, view, g);
        else // let the stages pass
            for (int i = 0; i < NSTAGE; i++) {
                view.wait((g + i) % TC_STAGES);
                view.release((g + i) % TC_STAGES);
            }
#pragma unroll
        for (int i = 0; i < MWIDE; i++) {
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
                    put_results(s, b, d[i], at, tile, l, in_chunk, (block - in_chunk) * KM,
                                line * ROWSM * CHUNKW + ct * TILE);
                if (in_chunk == MB - 1) {
                    if (BULK) fence_proxy_async();
                    warp_arrive(&s.ofull[b]);
                    o++;
                }
            }
            if (STATS) moments_flush<RAW>(m, slots, l, unscale);
        }
    }
    return o;
}

// HALVES: a strip of finite values, every tile in halves: the tensor cores work on the second one while the first
// becomes results. No batch may be under way from one tile to the next: ptxas would serialise them all.
__device__ __forceinline__ int reduce_strip(shared_memory &s, const epi &e, const strip_at &at, const lane_at &l,
                                            int wg, int slot, int o, const float2 *ab)
{
    constexpr int RING = most(OUTS, 1);
    const int tiles = cdiv(at.cols, TILE), all = at.rows * tiles;
    const u32 x0 = (smem_u32(s.x) >> 4) + slot * (XSTAGE / 16), w0 = smem_u32(s.w) >> 4;
    const float2 norm[2] = {norm_of(ab, l.ch[0]), norm_of(ab, l.ch[1])};
    const value_maker<true> value(l, e, norm, at.n, s.unscale[slot]);
    half_tile first, second;
#pragma unroll 1
    for (int i = (wg + o) % FINW; i < all; i += FINW) {
        const int b = (o + i) % RING, limit = at.cols - i % tiles * TILE;
        const u32 x = x0 + i / tiles * PITCH + i % tiles * TILE;
        acc_fence(first);
        acc_fence(second);
        wgmma_fence();
        multiply(first, x, w0, 0);
        multiply(second, x + HALF, w0, 0);
        mbar_wait(&s.oempty[b], ((o + i) / RING & 1) ^ 1);
        wgmma_wait<1>();
        acc_fence(first);
        put_partial(s, b, threadIdx.x / 32 % 4, first, value, 0, limit);
        wgmma_wait<0>();
        acc_fence(second);
        put_partial(s, b, threadIdx.x / 32 % 4, second, value, HALF, limit);
        warp_arrive(&s.ofull[b]);
    }
    return o + all;
}

// HOLD: the strip's statistics first, then its results. What other blocks wait for is on its way before this one
// waits for a buffer, and the stage is free as soon as the tensor cores have read it.
__device__ __forceinline__ int hold_strip(shared_memory &s, const tc_args &a, const epi &e, const strip_at &at,
                                          const lane_at &l, stage_view &view, int wg, int g, int o,
                                          float4 (&slots)[NORM ? SLOTS : 1][NORM ? KP : 1], u32 tag)
{
    const int lines = cdiv(at.rows, LINEROWS), tiles = cdiv(FLAT ? at.rows * PITCH : at.cols, TILE);
    const bool mine = wg < lines * tiles;
    const int line = wg / tiles, ct = wg % tiles;
    tile_at tile = {line, ct, FLAT ? 0 : line * LINEROWS, at.cols - ct * TILE - 2 * l.q};
    moments m = {{0, 0}, {0, 0}, {0, 0}, 0, true};
    float d[ACC], unscale = 1.f;

    if (mine)
        unscale = convolve(d, s, a, at, tile, l, view, 0, g);
    else
        view.wait(g % TC_STAGES);
    view.release(g % TC_STAGES);
    if (mine) {
        const float2 later[2] = {};
        value_maker<false>(l, e, later, at.n, unscale).all(d);
        if (FLAT || tile.row + l.rr < at.rows) moments_add(m, d, at, tile, l);
    }
    moments_flush<false>(m, slots[NORM ? wg * ROWSM : 0], l, unscale);
    named_barrier(BAR_STATS, STATW * 128);
    if (wg == 0) publish(slots, a, at, tag);
#pragma unroll 1
    for (int l0 = 0; l0 < lines; l0 += LPC)
#pragma unroll 1
        for (int c0 = 0; c0 < tiles; c0 += CPC, o++) {
            const int b = o % most(OUTS, 1);
            mbar_wait(&s.oempty[b], (o / most(OUTS, 1) & 1) ^ 1);
            if (mine && line >= l0 && line < l0 + LPC && ct >= c0 && ct < c0 + CPC)
                put_tile(s.out[b], d, at, tile, l, 0, (line - l0) * ROWSM * CHUNKW + (ct - c0) * TILE);
            warp_arrive(&s.ofull[b]);
        }
    return o;
}

// The role: all strips of this warpgroup's kind. PASS_BOTH: the first warpgroup takes statistics, the others
// finish.
template <bool STATS, bool OUT>
__device__ __forceinline__ void multiply_role(shared_memory &s, const tc_args &a, const epi &e,
                                              const schedule &order, u32 tag)
{
    constexpr bool WAITS = NORM && OUT && EARLY; // for the merged statistics
    const int lane = threadIdx.x % 32, me = threadIdx.x / 128 - (BOTH && OUT ? STATW : 0);
    lane_at l;
    l.unit = TC_PRE ? CUNIT : OUT && EARLY ? YUNIT : 1.f;
    l.q = lane % 4, l.row = threadIdx.x / 32 % 4 * 16 + lane / 4, l.rr = l.row / KM;
    stage_view view = {s.full[BOTH && OUT], s.empty, BOTH ? (OUT ? STATW : FINW) : 1, 0};
    int o = 0; // chunks handed over
    if (MBLOCKS == 1) lane_channels(l, a, 0);
#pragma unroll 1
    for (int j = 0; j < order.turns(); j++) {
        bool finish;
        const int g = j * PER_STRIP;
        const int done = order.number(j, finish); // strips before this one
        if (BOTH && finish != OUT) continue;
        const strip_at at = strip_position(blockIdx.x + done * gridDim.x);
        if (SHIFTED && MBLOCKS == 1) lane_offset(l, a, s, view, g % TC_STAGES);
        if constexpr (HOLD) {
            o = hold_strip(s, a, e, at, l, view, me, g, o, s.part[done & 1], tag);
            continue;
        }
        if (WAITS) mbar_wait(&s.sfull[done % NORMS], done / NORMS & 1);
        float4 *slots = s.part[NORM ? done & 1 : 0][NORM && STATS ? me * ROWSM : 0];
        bool odd = true;
        if constexpr (HALVES && OUT) {
            view.wait(g % TC_STAGES);
            odd = s.odd[g % TC_STAGES];
            if (!odd) o = reduce_strip(s, e, at, l, me, g % TC_STAGES, o, s.ab[done % NORMS]);
        }
        if constexpr (STREAM)
            o = stream_strip<STATS, OUT>(s, a, e, at, l, view, me, g, o, slots, s.ab[done % NORMS]);
        else if (odd)
            o = multiply_strip<STATS, OUT>(s, a, e, at, l, view, me, g, o, slots, s.ab[done % NORMS]);
        if (!STREAM) {
            view.wait(g % TC_STAGES);
            view.release(g % TC_STAGES);
        }
        if (WAITS) warp_arrive(&s.sempty[done % NORMS]);
        if (STATS) {
            named_barrier(BAR_STATS, STATW * 128);
            if (me == 0) publish(s.part[NORM ? done & 1 : 0], a, at, tag);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL_NAME(const __grid_constant__ tensor_map map, const __grid_constant__ tc_args a,
                const __grid_constant__ epi e)
{
    extern __shared__ __align__(128) char memory[];
    shared_memory &s = *(shared_memory *)memory;
    const int tid = threadIdx.x, warp = tid / 32;
    const schedule order(a.n * STRIPS);
    const u32 tag = NORM ? *(volatile int *)a.state % 3 + 1 : 0; // never that of untouched (zero) words
    if (tid == 0) {
        constexpr int ONE = TC_ARRIVALS; // arrivals of a warp
        for (int i = 0; i < TC_STAGES; i++)
            for (int f = 0; f < 2; f++) mbar_init(&s.full[f][i], LOADWARPS * ONE + STREAM);
        for (int i = 0; i < TC_STAGES; i++) mbar_init(&s.empty[i], (BOTH ? STATW * FINW : MMAS) * 4 * ONE);
        for (int i = 0; i < OUTS; i++)
            mbar_init(&s.ofull[i], (SOLE ? 1 : FINW) * 4 * ONE), mbar_init(&s.oempty[i], SINKWARPS * ONE);
        for (int i = 0; i < NORMS; i++)
            mbar_init(&s.sfull[i], ONE), mbar_init(&s.sempty[i], (EARLY ? FINW * 4 : TEAMS * SINKWARPS) * ONE);
        for (int i = 0; i < TC_RAWS; i++)
            mbar_init(&s.rawfull[i], TC_ROWS ? 8 : 1), mbar_init(&s.rawempty[i], LOADWARPS * ONE);
        mbar_init_fence();
    }
    if (warp == WARP_MERGE) { // NaN: a weight of that channel is not finite
        bool odd = false;
        for (int k = tid % 32; k < KP; k += 32) odd |= !(fabsf(__ldg(a.unscale + k)) < __int_as_float(0x7f800000));
        odd = __any_sync(~0u, odd);
        if (tid % 32 == 0) s.odd_weights = odd;
    } else if (!STREAM)
        for (int i = tid; i < MBLOCKS * WSTAGE / 16; i += WARP_MERGE * 32)
            ((uint4 *)s.w)[i] = __ldg((const uint4 *)a.packed + i);
    fence_proxy_async();
    __syncthreads();

    constexpr bool STATS = NORM && TC_PASS != PASS_FINISH,
                   OUT = TC_PASS == PASS_PLAIN || KEEP || TC_PASS == PASS_FINISH;
    if (warp < STATW * 4) { // PASS_BOTH: statistics
        registers_take<REGS_FIRST>();
        multiply_role<STATS, OUT>(s, a, e, order, tag);
    } else if (warp < WARP_SINK) { // PASS_BOTH: the second time
        registers_take<REGS_SECOND>();
        if constexpr (BOTH) multiply_role<false, true>(s, a, e, order, tag);
    } else {
        registers_give<REGS_REST>();
        if (warp >= WARP_LOAD && warp < WARP_COPY)
            load_role(s, a, order);
        else if (TC_TMA && warp == WARP_COPY && tid % 32 == 0)
            copy_role(s, map, order);
        else if (TC_ROWS && warp == WARP_COPY && tid % 32 < 8)
            copy_rows_role(s, a, order);
        else if (TC_PASS != PASS_STATS && warp < WARP_LOAD)
            sink_role(s, a, e, order);
        else if (TC_PASS != PASS_STATS && NORM && warp == WARP_MERGE)
            merge_role(s, a, order, tag);
    }

    if (NORM && TC_PASS != PASS_STATS && tid == 0 && atomicAdd(a.state + 1, 1) == (int)gridDim.x - 1)
        a.state[1] = 0, a.state[0]++; // the last block: the next launch has the next tag
}
