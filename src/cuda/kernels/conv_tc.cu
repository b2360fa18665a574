// conv_tc.cu - convolution and what follows it on Hopper's tensor cores, one launch (or STATS and FINISH as two).
//
// Persistent: one block per SM, block b takes strips b, b + grid, ... (a strip: STRIP output rows of a sample).
//
//   role      warps                     waits for                  signals
//   multiply  0 .. 4 * MMAS - 1         full, oempty, sfull (1)    empty, ofull, sempty (1), words in part
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
__device__ __forceinline__ void multiply_role(shared_memory &s, const tc_args &a, const epi &e,
                                              const schedule &order, u32 tag)
{
    constexpr bool WAITS = NORM && OUT && EARLY; // for the merged statistics
    const int lane = threadIdx.x % 32, me = threadIdx.x / 128 - (BOTH && OUT ? STATW : 0);
    lane_at l;
    l.gain = TC_PRE ? CGAIN : OUT && EARLY ? YGAIN : 1.f;
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
            const strip_way way = {s, a, e, at, l, view, nullptr, nullptr};
            o = hold_strip(way, me, g, o, s.part[done & 1], tag);
            continue;
        }
        if (WAITS) mbar_wait(&s.sfull[done % NORMS], done / NORMS & 1);
        float4 *slots = s.part[NORM ? done & 1 : 0][NORM && STATS ? me * ROWSM : 0];
        const strip_way way = {s, a, e, at, l, view, slots, s.ab[done % NORMS]};
        bool odd = true;
        if constexpr (HALVES && OUT) {
            view.wait(g % TC_STAGES);
            odd = s.odd[g % TC_STAGES];
            if (!odd) o = reduce_strip(way, me, g, o);
        }
        if constexpr (STREAM)
            o = stream_strip<STATS, OUT>(way, me, g, o);
        else if (odd)
            o = multiply_strip<STATS, OUT>(way, me, g, o);
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
    // Not the name that others have: in one file with them (convoy eject) it would have their alignment.
    extern __shared__ __align__(128) char strips_memory[];
    shared_memory &s = *(shared_memory *)strips_memory;
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
        else if (PLACED && warp == WARP_COPY && tid % 32 == 0)
            place_role(s, map, order);
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
