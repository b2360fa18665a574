// conv_tc_moments.cuh - statistics: sums of a thread's tiles, of a block's strip, and the words that carry them
// from block to block.
#pragma once
#include "conv_tc_mma.cuh"

// Sums of a thread's two channels over its tiles of a strip, shifted by a first value: no cancellation wherever the
// mean is. Without a PRE they are sums of what left the tensor cores: scale and bias come in at the end.
struct moments {
    float shift[2], s1[2], s2[2];
    int count; // values; FLAT: this lane's, else all four lanes'
    bool fresh;
};
__device__ __forceinline__ void moments_add(moments &m, const float (&d)[ACC], const strip_at &at,
                                            const tile_at &tile, const lane_at &l)
{
    int row, col;
    if (m.fresh) { // any value that exists will do; all four lanes of a channel take lane 0's
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float first = 0;
#pragma unroll
            for (int j = FLAT ? EIGHTS - 1 : 0; j >= 0; j--)
                first = exists(at, tile, l, j, 0, row, col) ? d[4 * j + 2 * h] : first;
            m.shift[h] = __shfl_sync(~0u, first, threadIdx.x & 28);
        }
        m.fresh = false;
    }
#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const bool ok = exists(at, tile, l, j, e, row, col);
            if (FLAT) m.count += ok;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float v = ok ? d[4 * j + 2 * h + e] - m.shift[h] : 0.f;
                m.s1[h] += v;
                m.s2[h] = fmaf(v, v, m.s2[h]);
            }
        }
    if (!FLAT) m.count += min(TILE, at.cols - tile.ct * TILE);
}
// Mean and squared deviations of each channel's share to shared memory. RAW: the values had neither scale nor bias.
template <bool RAW>
__device__ __forceinline__ void moments_flush(const moments &m, float4 *slots, const lane_at &l, float unscale)
{
    float s1[2] = {m.s1[0], m.s1[1]}, s2[2] = {m.s2[0], m.s2[1]}, count = (float)m.count;
#pragma unroll
    for (int o = 1; o < 4; o *= 2) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            s1[h] += __shfl_xor_sync(~0u, s1[h], o), s2[h] += __shfl_xor_sync(~0u, s2[h], o);
        if (FLAT) count += __shfl_xor_sync(~0u, count, o);
    }
    if (l.q == 0)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float f = RAW ? factor_of(l, unscale, h) : 1.f,
                        mean = s1[h] * reciprocal(fmaxf(count, 1.f)); // no value: 0
            const float y = fmaf(m.shift[h] + mean, f, RAW ? l.bias[h] : 0.f);
            slots[l.rr * PADDED_CHANNELS + l.ch[h]] =
                make_float4(l.sign[h] * y, (s2[h] - s1[h] * mean) * f * f, count, 0.f);
        }
}
// Merged sums of partial results, Chan's formula, over `lanes` neighbouring lanes. Counts are known, so their
// reciprocal comes from outside: this is on every block's way from its tiles to its results, and a division is a
// long one.
struct merged {
    float shift, s1, s2, m2;
    __device__ __forceinline__ void add(float count, float mean, float deviations)
    {
        const float d = mean - shift;
        s1 = fmaf(count, d, s1), s2 = fmaf(count * d, d, s2), m2 += deviations;
    }
    __device__ __forceinline__ void join(int lanes)
    {
        for (int o = 1; o < lanes; o *= 2) {
            s1 += __shfl_xor_sync(~0u, s1, o);
            s2 += __shfl_xor_sync(~0u, s2, o), m2 += __shfl_xor_sync(~0u, m2, o);
        }
    }
    __device__ __forceinline__ float mean(float inverse) const
    {
        return fmaf(s1, inverse, shift);
    }
    __device__ __forceinline__ float deviations(float inverse) const
    {
        return m2 + (s2 - s1 * (s1 * inverse));
    }
};
// A partial result is one 8-byte word: mean, squared deviations, and in its two lowest bits the launch's tag: no
// fence, no counter.
__device__ __forceinline__ u64 tagged(float mean, float deviations, u32 tag)
{
    return (u64)__float_as_uint(mean) << 32 | (__float_as_uint(deviations) & ~3u) | tag;
}
// Publishes the statistics of the block's strip, per group, to all blocks. 128 threads.
__device__ __forceinline__ void publish(const float4 (&slots)[NORM ? SLOTS : 1][NORM ? PADDED_CHANNELS : 1],
                                        const tc_args &a, const strip_at &at, u32 tag)
{
    constexpr int LANES = least(floor_pow2(most(128 / most(G, 1), 1)), 32), GROUPS = 128 / LANES;
    const int t = threadIdx.x % 128, sub = t % LANES;
    const float inverse = reciprocal((float)(CPG * at.rows * at.cols));
#pragma unroll 1
    for (int g0 = 0; g0 < G; g0 += GROUPS) {
        const int g = min(g0 + t / LANES, G - 1);
        merged m = {slots[0][g * CPG].x, 0, 0, 0};
        // Sums are shifted by a mean, which a warpgroup without a tile does not have.
        for (int i = ROWSM; i < SLOTS && !HOLD; i += ROWSM)
            if (slots[0][g * CPG].z == 0.f && slots[i][g * CPG].z > 0.f) m.shift = slots[i][g * CPG].x;
        // A channel's shares are one lane's, so that it does not matter which warpgroup had a strip's only tile.
        for (int i = sub; i < CPG * ROWSM; i += LANES)
#pragma unroll
            for (int w = 0; w < SLOTS; w += ROWSM) {
                const float4 p = slots[w + i / CPG][g * CPG + i % CPG];
                if (p.z > 0.f) m.add(p.z, p.x, p.y);
            }
        m.join(LANES);
        if (sub == 0 && g0 + t / LANES < G)
            store_relaxed(a.part + ((size_t)at.n * STRIPS + at.index) * G + g,
                          tagged(m.mean(inverse), m.deviations(inverse), tag));
    }
}
