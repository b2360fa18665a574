// conv_tc_sink.cuh - the finishing role (norm, what follows it, store or reduce) and the merging warp (statistics
// -> factor, summand).
#pragma once
#include "conv_tc.cuh"
#include "conv_tc_moments.cuh"
#include "conv_tc_reduce.cuh"

// ---- the merging warp: statistics of all strips of a sample -> norm ----
// Mean and 1 / deviation of all groups of a sample into s.group; false: some strip's word does not carry this
// launch's tag yet. Every block reads the words of all strips, and everybody waits for it: a lane takes the words
// of two groups at once where it can, has DEPTH loads on their way together, and counts values only where strips
// differ.
__device__ __forceinline__ bool merge_sample(shared_memory &s, const tc_args &a, int n, u32 tag)
{
    constexpr int ABREAST = G % 2 ? 1 : 2, PAIRS = most(G / ABREAST, 1);
    constexpr int LANES = floor_pow2(most(32 / PAIRS, 1)), ROUND = 32 / LANES;
    constexpr int DEPTH = least(BOTH ? 2 : 4, cdiv(STRIPS, LANES));
    constexpr bool ALIKE = P % STRIP_ROWS == 0 && Q % STRIP_COLS == 0; // all strips have as many values
    const int lane = threadIdx.x % 32, sub = lane % LANES;
#pragma unroll 1
    for (int p0 = 0; p0 < PAIRS; p0 += ROUND) {
        const int g = min(p0 + lane / LANES, PAIRS - 1) * ABREAST;
        const u64 *words = a.part + (size_t)n * STRIPS * G + g;
        merged m[ABREAST];
        u64 v[DEPTH][ABREAST];
#pragma unroll 1
        for (int i0 = sub; i0 - sub < STRIPS; i0 += LANES * DEPTH) {
#pragma unroll
            for (int d = 0; d < DEPTH; d++)
                if (i0 + d * LANES < STRIPS) load_words(words + i0 * G + d * (LANES * G), v[d]);
            u32 other = 0; // bits in which some tag is not this launch's
#pragma unroll
            for (int d = 0; d < DEPTH; d++)
#pragma unroll
                for (int w = 0; w < ABREAST; w++)
                    if (i0 + d * LANES < STRIPS) other |= (u32)v[d][w] ^ tag;
            if (__any_sync(~0u, other & 3)) return false;
            if (i0 == sub) // sums are shifted by the first strip's mean, which lane 0 of them has
#pragma unroll
                for (int w = 0; w < ABREAST; w++)
                    m[w] = {__shfl_sync(~0u, __uint_as_float(v[0][w] >> 32), lane - sub), 0, 0, 0};
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                if (i0 + d * LANES >= STRIPS) continue;
                const strip_at at = strip_position(ALIKE ? 0 : i0 + d * LANES);
#pragma unroll
                for (int w = 0; w < ABREAST; w++)
                    m[w].add(ALIKE ? 1.f : (float)(at.rows * at.cols), __uint_as_float(v[d][w] >> 32),
                             __uint_as_float((u32)v[d][w] & ~3u));
            }
        }
        constexpr float COUNT = (float)(CPG * (ALIKE ? STRIP_ROWS * STRIP_COLS : 1)),
                        INVERSE = 1.f / ((float)CPG * P * Q);
#pragma unroll
        for (int w = 0; w < ABREAST; w++) {
            m[w].join(LANES);
            m[w].s1 *= COUNT, m[w].s2 *= COUNT;
            if (sub == 0 && p0 + lane / LANES < PAIRS)
                s.group[g + w] =
                    make_float2(m[w].mean(INVERSE), rsqrtf(fmaf(m[w].deviations(INVERSE), INVERSE, a.eps)));
        }
    }
    return true;
}

__device__ __forceinline__ void merge_role(shared_memory &s, const tc_args &a, const schedule &order, u32 tag)
{
    const int lane = threadIdx.x % 32;
    int f = 0; // finished strips
    for (int j = 0; j < order.turns(); j++) {
        bool finish;
        const int item = order.get(j, finish), b = f % NORMS;
        if (!finish) continue;
        mbar_wait(&s.sempty[b], (f / NORMS & 1) ^ 1);
        while (!merge_sample(s, a, item / STRIPS, tag)) __nanosleep(20);
        __syncwarp();
        for (int k = lane; k < K; k += 32) {
            const float2 v = s.group[k / CPG];
            const float gamma = a.gamma ? cvy_get(a.gamma + k) : 1.f, f0 = gamma * v.y;
            const float shift = (a.beta ? cvy_get(a.beta + k) : 0.f) - v.x * f0;
            s.ab[b][k] = make_float2(POOL && gamma < 0.f ? -f0 : f0, shift); // pooled values carry gamma's sign
        }
        warp_arrive(&s.sfull[b]);
        f++;
    }
}

// ---- finishing ----

// VEC neighbours as one access.
template <int VEC> struct pack_of;
template <> struct pack_of<1> {
    typedef float type;
};
template <> struct pack_of<2> {
    typedef float2 type;
};
template <> struct pack_of<4> {
    typedef float4 type;
};
// Neighbours of one channel: of which sample, from which pixel of the output on, how many.
struct run_at {
    int n, k, pixel, length;
};
// One channel's run: loads of DEPTH packs first, then results, so that shared memory's latency is paid once.
template <int VEC>
__device__ __forceinline__ void finish_run(Y_TYPE *to, const float *from, const run_at &run, float2 ab,
                                           const epi &e)
{
    const int length = run.length, n = run.n, k = run.k, pixel = run.pixel;
    typedef typename pack_of<VEC>::type pack;
    constexpr int REACH = 32 * VEC, DEPTH = 4;
    const int lane = threadIdx.x % 32, whole = length & ~(VEC - 1);
    for (int base = lane * VEC; base < whole; base += DEPTH * REACH) {
        union {
            pack p;
            float f[VEC];
        } v[DEPTH];
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (base + u * REACH < whole) v[u].p = *(const pack *)(from + base + u * REACH);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            const int i = base + u * REACH;
            if (i >= whole) break;
#pragma unroll
            for (int j = 0; j < VEC; j++) v[u].f[j] = finish_value(v[u].f[j], ab, n, k, pixel + i + j, e);
            stream_out(to + i, v[u].f);
        }
    }
    if (lane >= length - whole) return;
    const float last[1] = {finish_value(from[whole + lane], ab, n, k, pixel + whole + lane, e)};
    stream_out(to + whole + lane, last);
}
// TC_YLAST: a lane stores eight channels of a pixel; warps take eights of channels in turn.
__device__ __forceinline__ void finish_last(float (*out)[OPITCH], const float2 *ab, const tc_args &a,
                                            const strip_at &at, const chunk_at &c, const epi &e)
{
    const int k0 = c.channel, end = least(CHUNK_CHANNELS, K - k0), all = c.rows * c.cols;
#pragma unroll 1
    for (int k = sink_thread() / 32 * 8; k < end; k += SINKWARPS * 8)
#pragma unroll 2
        for (int i = threadIdx.x % 32; i < all; i += 32) {
            const int row = i / c.cols, col = i - row * c.cols, pixel = (c.row0 + row) * OW + c.col0 + col;
            float v[8];
#pragma unroll
            for (int u = 0; u < 8; u++) {
                const float2 f = NORM && !EARLY ? ab[k0 + k + u] : make_float2(1.f, 0.f);
                v[u] = finish_value(out[k + u][row * CHUNK_COLS + col], f, at.n, k0 + k + u, pixel, e);
            }
            stream_out(a.y + y_index(at.n, k0 + k, pixel), v);
        }
}
// Warp w takes channels w, w + 4, ... of the chunk; whole rows are one run.
__device__ __forceinline__ void finish_store(float (*out)[OPITCH], const float2 *ab, const tc_args &a,
                                             const strip_at &at, const chunk_at &c, const epi &e)
{
    constexpr int BEGIN = (POOL ? 1 : BAND_ROWS) * OW; // runs start at multiples of this
    constexpr bool WHOLE = CSTRIPS == 1 && CHUNK_COLS == OW;
    constexpr int VEC = !WHOLE                               ? 1
                        : BEGIN % 4 == 0 && OH * OW % 4 == 0 ? 4
                        : BEGIN % 2 == 0 && OH * OW % 2 == 0 ? 2
                                                             : 1;
    const int warp = sink_thread() / 32, k0 = c.channel, end = least(CHUNK_CHANNELS, K - k0);
    for (int i = warp; i < end; i += SINKWARPS) {
        const int k = k0 + i;
        const float2 f = NORM && !EARLY ? ab[k] : make_float2(1.f, 0.f);
        Y_TYPE *plane = a.y + ((size_t)at.n * K + k) * (OH * OW);
        const int pixel = c.row0 * OW + c.col0;
        if (WHOLE)
            finish_run<VEC>(plane + pixel, out[i], {at.n, k, pixel, c.rows * OW}, f, e);
        else
            for (int r = 0; r < c.rows; r++)
                finish_run<1>(plane + pixel + r * OW, out[i] + r * CHUNK_COLS, {at.n, k, pixel + r * OW, c.cols}, f,
                              e);
    }
}

// OUT_HALF: a row of `length` elements. An even number of them precedes the first whole 16 bytes, and
// after the last ones.
__device__ __forceinline__ void store_rounded(Y_TYPE *to, const float *row, int shift, int length, u64 policy)
{
    const u32 *from = (const u32 *)((const Y_TYPE *)row + shift);
    const int head = (8 - shift) % 8 / 2, whole = (length / 2 - head) / 4 * 4, end = length / 2; // pairs
    bulk_store((u32 *)to + head, from + head, whole * 2 * HALF_BYTES, policy);
    for (int i = 0; i < head; i++) ((u32 *)to)[i] = from[i];
    for (int i = head + whole; i < end; i++) ((u32 *)to)[i] = from[i];
}
// BULK: one copy per channel. Lane l of the first warp takes channels l, l + 32. OUT_LAST: one of all.
__device__ __forceinline__ void finish_bulk(float (*out)[OPITCH], const tc_args &a, const strip_at &at,
                                            const chunk_at &c)
{
    const int k0 = c.channel;
    const u64 policy = policy_evict_first();
    if (OUT_LAST && threadIdx.x % 32 == 0)
        bulk_store(a.y + y_index(at.n, 0, c.row0 * OW), out[0], c.rows * OW * K * HALF_BYTES, policy);
    for (int i = threadIdx.x % 32; !OUT_LAST && i < least(CHUNK_CHANNELS, K - k0); i += 32) {
        Y_TYPE *to = a.y + ((size_t)at.n * K + k0 + i) * (OH * OW) + c.row0 * OW;
        if (OUT_HALF)
            store_rounded(to, out[i], shift_of(at.n, k0 + i, c.row0), c.rows * OW, policy);
        else
            bulk_store(to, out[i], c.rows * OW * FLOAT_BYTES, policy);
    }
    bulk_commit();
}

__device__ __forceinline__ void sink_role(shared_memory &s, const tc_args &a, const epi &e, const schedule &order)
{
    constexpr int RING = most(OUTS, 1);
    const int team = (threadIdx.x / 32 - WARP_SINK) / SINKWARPS;
    int f = 0, o = 0; // strips and chunks finished
    for (int j = 0; j < order.turns(); j++) {
        bool finish;
        const strip_at at = strip_position(order.get(j, finish));
        if (!finish) continue;
        if (NORM && !EARLY) mbar_wait(&s.sfull[f % NORMS], f / NORMS & 1);
        const int bands = cdiv(at.rows, BAND_ROWS), tiles = cdiv(FLAT ? at.rows * PITCH : at.cols, TILE);
        for (int k0 = 0; k0 < PADDED_CHANNELS; k0 += CHUNK_CHANNELS)
            for (int l0 = 0; l0 < bands; l0 += CHUNK_BANDS)
                for (int c0 = 0; c0 < tiles; c0 += CHUNK_TILES, o++) {
                    const int b = o % RING;
                    if (TEAMS > 1 && o % TEAMS != team) continue;
                    mbar_wait(&s.ofull[b], o / RING & 1);
                    const chunk_at c = chunk_position(at, k0, l0, c0);
                    if (BULK) {
                        finish_bulk(s.out[b], a, at, c);
                        bulk_wait_read<RING - 1>(); // the copies RING - 1 chunks ago have left their buffer
                    } else if (PARTIAL)
                        finish_partial(s, b, a, at, c, e);
                    else if (TC_SINK == SINK_REDUCE)
                        finish_reduce(s.out[b], s.ab[f % NORMS], a, at, c, e);
                    else if (TC_YLAST)
                        finish_last(s.out[b], s.ab[f % NORMS], a, at, c, e);
                    else
                        finish_store(s.out[b], s.ab[f % NORMS], a, at, c, e);
                    if (!BULK || o >= RING - 1) warp_arrive(&s.oempty[BULK ? (o + 1) % RING : b]);
                }
        if (NORM && !EARLY) warp_arrive(&s.sempty[f % NORMS]);
        f++;
    }
    if (BULK) bulk_wait();
}
