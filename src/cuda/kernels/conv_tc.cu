// conv_tc.cu - convolution and what follows it on Hopper's tensor cores, one launch (or STATS and FINISH as two).
//
// Persistent: one block per SM, block b takes strips b, b + grid, ... (a strip: STRIP output rows of a sample).
//
//   role      warps                     waits for                  signals
//   multiply  0 .. 4 * MULTIPLIERS - 1         full, oempty, sfull (1)    empty, ofull, sempty (1), words in part
//   finish    TEAMS of 1, 2 or 4        ofull, sfull (2)           oempty, sempty (2)
//   stage     3 to 6, COPIED 2 to 4     empty (COPIED: rawfull)    full (COPIED: rawempty)
//   copy      COPIED: one               rawempty                   rawfull
//             PLACED: one               empty                      rawfull
//   merge     the last                  sempty, words in part      sfull
//   (1) EARLY, (2) else
//
// multiply: tiles, bias, PRE, statistics, pooling; norm and POST if EARLY. finish: norm and POST otherwise; reduce,
// store. stage: global fp32 -> shared fp16. merge: all strips' statistics of a sample -> its norm.
//
// PASS_BOTH: the first multiplying warpgroup takes statistics strips, the others the same strips again, `lead`
// turns later, to finish them, concurrently. PASS_KEEP: every strip once, its results wait in shared
// memory. Statistics go from block to block as tagged words: every block must be resident. Shared memory: struct
// shared_memory in conv_tc.cuh. Expected bound: doc/kernels/conv_tc.md; measurements: doc/LAB.md.
#include "conv_tc.cuh"
#include "conv_tc_load.cuh"
#include "conv_tc_halves.cuh"
#include "conv_tc_keep.cuh"
#include "conv_tc_plain.cuh"
#include "conv_tc_sink.cuh"
#include "conv_tc_stream.cuh"
#ifndef KERNEL_NAME
#define KERNEL_NAME conv_tc
#endif
// Registers per thread of each role; all warpgroups together at most what the launch takes (512 threads: 4 * 128,
// 640: 5 * 96). Halves are faster with few (doc/LAB.md), whole tiles need more.
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

// The role: all strips of this warpgroup's kind. PASS_BOTH: the first warpgroup takes statistics, the others
// finish.
template <bool STATS, bool OUT>
__device__ __forceinline__ void multiply_role(shared_memory &shared, const tc_args &args, const epi &epilogue,
                                              const schedule &order, u32 tag)
{
    constexpr bool WAITS = NORM && OUT && EARLY; // for the merged statistics
    const int lane = threadIdx.x % 32, me = threadIdx.x / 128 - (BOTH && OUT ? STAT_GROUPS : 0);
    lane_at place;
    place.gain = TC_PRE ? CGAIN : OUT && EARLY ? YGAIN : 1.f;
    place.q = lane % 4, place.row = threadIdx.x / 32 % 4 * 16 + lane / 4, place.rr = place.row / BLOCK_CHANNELS;
    stage_view view = {shared.full[BOTH && OUT], shared.empty, BOTH ? (OUT ? STAT_GROUPS : FINISH_GROUPS) : 1, 0};
    int handed = 0; // chunks handed over
    if (MBLOCKS == 1) lane_channels(place, args, 0);
#pragma unroll 1
    for (int turn = 0; turn < order.turns(); turn++) {
        bool finish;
        const int stage = turn * PER_STRIP;
        const int done = order.number(turn, finish); // strips before this one
        if (BOTH && finish != OUT) continue;
        const strip_at strip = strip_position(blockIdx.x + done * gridDim.x);
        if (SHIFTED && MBLOCKS == 1) lane_offset(place, args, shared, view, stage % TC_STAGES);
        if constexpr (HOLD) {
            const strip_route route = {shared, args, epilogue, strip, place, view, nullptr, nullptr};
            handed = hold_strip(route, me, stage, handed, shared.part[done & 1], tag);
            continue;
        }
        if (WAITS) mbar_wait(&shared.sfull[done % NORMS], done / NORMS & 1);
        float4 *slots = shared.part[NORM ? done & 1 : 0][NORM && STATS ? me * ROWSM : 0];
        const strip_route route = {shared, args, epilogue, strip, place, view, slots, shared.ab[done % NORMS]};
        bool odd = true;
        if constexpr (HALVES && OUT) {
            view.wait(stage % TC_STAGES);
            odd = shared.odd[stage % TC_STAGES];
            if (!odd) handed = reduce_strip(route, me, stage, handed);
        }
        if constexpr (STREAM)
            handed = stream_strip<STATS, OUT>(route, me, stage, handed);
        else if (odd)
            handed = multiply_strip<STATS, OUT>(route, me, stage, handed);
        if (!STREAM) {
            view.wait(stage % TC_STAGES);
            view.release(stage % TC_STAGES);
        }
        if (WAITS) warp_arrive(&shared.sempty[done % NORMS]);
        if (STATS) {
            named_barrier(BAR_STATS, STAT_GROUPS * 128);
            if (me == 0) publish(shared.part[NORM ? done & 1 : 0], args, strip, tag);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL_NAME(const __grid_constant__ tensor_map map, const __grid_constant__ tc_args args,
                const __grid_constant__ epi epilogue)
{
    // Not the name that others have: in one file with them (convoy eject) it would have their alignment.
    extern __shared__ __align__(128) char strips_memory[];
    shared_memory &shared = *(shared_memory *)strips_memory;
    const int tid = threadIdx.x, warp = tid / 32;
    const schedule order(args.n * STRIPS);
    const u32 tag = NORM ? *(volatile int *)args.state % 3 + 1 : 0; // never that of untouched (zero) words
    if (tid == 0) {
        constexpr int ONE = TC_ARRIVALS; // arrivals of a warp
        for (int i = 0; i < TC_STAGES; i++)
            for (int f = 0; f < 2; f++) mbar_init(&shared.full[f][i], LOADWARPS * ONE + STREAM);
        for (int i = 0; i < TC_STAGES; i++)
            mbar_init(&shared.empty[i], (BOTH ? STAT_GROUPS * FINISH_GROUPS : MULTIPLIERS) * 4 * ONE);
        for (int i = 0; i < OUTS; i++)
            mbar_init(&shared.ofull[i], (SOLE ? 1 : FINISH_GROUPS) * 4 * ONE),
                mbar_init(&shared.oempty[i], SINKWARPS * ONE);
        for (int i = 0; i < NORMS; i++)
            mbar_init(&shared.sfull[i], ONE),
                mbar_init(&shared.sempty[i], (EARLY ? FINISH_GROUPS * 4 : TEAMS * SINKWARPS) * ONE);
        for (int i = 0; i < TC_RAWS; i++)
            mbar_init(&shared.rawfull[i], TC_ROWS ? 8 : 1), mbar_init(&shared.rawempty[i], LOADWARPS * ONE);
        mbar_init_fence();
    }
    if (warp == WARP_MERGE) { // NaN: a weight of that channel is not finite
        bool odd = false;
        for (int k = tid % 32; k < PADDED_CHANNELS; k += 32)
            odd |= !(fabsf(__ldg(args.unscale + k)) < __int_as_float(0x7f800000));
        odd = __any_sync(~0u, odd);
        if (tid % 32 == 0) shared.odd_weights = odd;
    } else if (!STREAM)
        for (int i = tid; i < MBLOCKS * WSTAGE / 16; i += WARP_MERGE * 32)
            ((uint4 *)shared.w)[i] = __ldg((const uint4 *)args.packed + i);
    fence_proxy_async();
    __syncthreads();

    constexpr bool STATS = NORM && TC_PASS != PASS_FINISH,
                   OUT = TC_PASS == PASS_PLAIN || KEEP || TC_PASS == PASS_FINISH;
    if (warp < STAT_GROUPS * 4) { // PASS_BOTH: statistics
        registers_take<REGS_FIRST>();
        multiply_role<STATS, OUT>(shared, args, epilogue, order, tag);
    } else if (warp < WARP_SINK) { // PASS_BOTH: the second time
        registers_take<REGS_SECOND>();
        if constexpr (BOTH) multiply_role<false, true>(shared, args, epilogue, order, tag);
    } else {
        registers_give<REGS_REST>();
        if (warp >= WARP_LOAD && warp < WARP_COPY)
            load_role(shared, args, order);
        else if (PLACED && warp == WARP_COPY && tid % 32 == 0)
            place_role(shared, map, order);
        else if (TC_TMA && warp == WARP_COPY && tid % 32 == 0)
            copy_role(shared, map, order);
        else if (TC_ROWS && warp == WARP_COPY && tid % 32 < 8)
            copy_rows_role(shared, args, order);
        else if (TC_PASS != PASS_STATS && warp < WARP_LOAD)
            sink_role(shared, args, epilogue, order);
        else if (TC_PASS != PASS_STATS && NORM && warp == WARP_MERGE)
            merge_role(shared, args, order, tag);
    }

    if (NORM && TC_PASS != PASS_STATS && tid == 0 && atomicAdd(args.state + 1, 1) == (int)gridDim.x - 1)
        args.state[1] = 0, args.state[0]++; // the last block: the next launch has the next tag
}
