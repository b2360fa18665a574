// conv_tc_mma.cuh - the multiplying role: convolution tiles, what precedes the norm, statistics, results into
// shared memory.
//
// Thread -> data. A warpgroup's tile is 64 rows of M x TILE pixels. Warp v, lane 4r + q holds rows 16v + r and 16v
// + r + 8 (a row is an output channel, or with ROWSM > 1 a channel of one of ROWSM output rows) at pixels 8j + 2q
// and 8j + 2q + 1:
//   d[4j + 2h + e]: row 16v + r + 8h, pixel 8j + 2q + e.
// Tiles of a chunk go round the warpgroups of a strip. Pooling keeps running maxima over the rows of a line in
// registers.
#pragma once
#include "conv_tc.cuh"
#include "descriptor.cuh"

// One stage's steps on a tile (or half of one), a batch that is not waited for: xs the first pixel, ws the weights,
// in units of 16 bytes. Small products first: the accumulators truncate less.
template <int N> __device__ __forceinline__ void multiply(float (&d)[N], u32 xs, u32 ws, int more)
{
#pragma unroll
    for (int product = PARTS == 2 ? 0 : 2; product < 3; product++) { // hi w * lo x, lo w * hi x, hi w * hi x
        const int xp = product == 0 ? XPART : 0, wp = product == 1 ? WPART / 16 : 0;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int off = operand_offset(2 * i), lead = operand_offset(2 * i + 1) - off;
            wgmma_half(d, wgmma_desc(ws + wp + i * 128, 64), wgmma_desc(xs + xp + off, lead),
                       more || i || (PARTS == 2 && product), operand_word());
        }
    }
    wgmma_commit();
}

// The units of z and y where logsumexp's exponents are made from them.
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
constexpr float ZUNIT = TC_EXPONENT & 4 ? LOG2E : 1.f, YUNIT = !NORM ? ZUNIT : TC_EXPONENT & 2 ? LOG2E : 1.f;
// The unit of what cvy_pre is given.
constexpr float CUNIT = TC_HALVED ? 0.5f : 1.f;
// A channel's norm from y to z.
__device__ __forceinline__ float2 norm_of(const float2 *ab, int k)
{
    return NORM ? make_float2(ab[k].x * (ZUNIT / YUNIT), ab[k].y * ZUNIT) : make_float2(1.f, 0.f);
}

// The position of a thread in a tile, and the constants of its two channels. Where pooling is, weights and bias
// come with the norm's sign; after a PRE it is a factor of its own.
struct lane_at {
    int q, row, rr; // lane % 4; row of M for h = 0; which of ROWSM output rows
    float unit;     // of what leaves the tensor cores: a factor of scale and bias
    int ch[2];      // output channels
    float unscale[2], bias[2], sign[2];
};
__device__ __forceinline__ float lane_bias(const lane_at &l, const tc_args &a, int h)
{
    const int k = min(l.ch[h], K - 1);
    return a.bias ? l.unit * cvy_get(a.bias + k) : 0.f;
}
__device__ __forceinline__ void lane_channels(lane_at &l, const tc_args &a, int block)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int k = block * KM + (l.row + 8 * h) % KM, kc = min(k, K - 1);
        l.ch[h] = k;
        l.unscale[h] = l.unit * __ldg(a.unscale + k);
        l.sign[h] = POOL && NORM && a.gamma && cvy_get(a.gamma + kc) < 0.f
                        ? -1.f
                        : 1.f; // a falling norm turns max into min
        if (!SHIFTED) l.bias[h] = lane_bias(l, a, h);
    }
}

// A tile: its line and column tile in the strip; row: its first output row in the strip; limit: pixels of it that
// exist, from q on.
struct tile_at {
    int line, ct, row, limit;
};

// Does element (j, e) exist? Constant true where the geometry says so. FLAT: tells its row and column in the strip.
__device__ __forceinline__ bool exists(const strip_at &at, const tile_at &tile, const lane_at &l, int j, int e,
                                       int &row, int &col)
{
    if (FLAT) {
        const int i = tile.ct * TILE + 8 * j + 2 * l.q + e;
        row = i / PITCH, col = i - row * PITCH;
        return col < Q && row < at.rows;
    }
    row = tile.row + l.rr, col = tile.ct * TILE + 8 * j + 2 * l.q + e;
    return j < SAFE || 8 * j + e < tile.limit;
}

// The tile in plain float32 sums straight from global memory: the path of infs and NaNs. Slow, small, rarely taken.
__device__ __forceinline__ void exact_tile(float (&d)[ACC], const tc_args &a, const strip_at &at,
                                           const tile_at &tile, const lane_at &l)
{
#pragma unroll 1
    for (int i = 0; i < ACC; i++) {
        int row, col;
        const int k = i & 2 ? l.ch[1] : l.ch[0];
        const bool ok = exists(at, tile, l, i >> 2, i & 1, row, col) && k < K && row < at.rows && col < at.cols;
        const int h0 = (at.p0 + row) * ST - TC_PADH, w0 = (at.q0 + col) * ST - TC_PADW;
        float sum = 0;
        if (ok)
#pragma unroll 1
            for (int c = 0; c < C * R * S; c++) {
                const int h = h0 + c / S % R, w = w0 + c % S;
                const bool inside = (unsigned)h < (unsigned)H && (unsigned)w < (unsigned)W;
                const float x = inside ? cvy_get(a.x + (((size_t)at.n * C + c / (R * S)) * H + h) * W + w) : 0.f;
                sum = fmaf(x, cvy_get(a.w + (size_t)k * (C * R * S) + c), sum); // padding is multiplied, too
            }
#pragma unroll
        for (int u = 0; u < ACC; u++) d[u] = u == i ? sum : d[u];
    }
}

// The stages as one warpgroup sees them: its full barriers, and a bit per slot for the phase that comes next. A
// phase is given back only after it was seen.
struct stage_view {
    u64 *full, *empty;
    u32 weight, phases; // arrivals of a warp on empty, so that groups of different size complete it alike
    __device__ __forceinline__ void wait(int slot)
    {
        mbar_wait(full + slot, phases >> slot & 1);
    }
    __device__ __forceinline__ void release(int slot)
    {
        warp_arrive(empty + slot, weight);
        phases ^= 1u << slot;
    }
};

// SHIFTED: what was taken off the stage's values comes back with the bias. Loads first: the stage may not be there.
__device__ __forceinline__ void lane_offset(lane_at &l, const tc_args &a, shared_memory &s, stage_view &view,
                                            int slot)
{
    float bias[2], sum[2];
#pragma unroll
    for (int h = 0; h < 2; h++) bias[h] = lane_bias(l, a, h), sum[h] = l.unit * __ldg(a.unscale + KP + l.ch[h]);
    view.wait(slot);
#pragma unroll
    for (int h = 0; h < 2; h++) l.bias[h] = fmaf(s.offset[slot], sum[h], bias[h]);
}

// The convolution of a tile as it leaves the tensor cores; returns the factor that undoes the stage's scale
// (negative: that of an exact tile, 1, with the channels' own left out). g: the strip's stage.
__device__ __forceinline__ float convolve(float (&d)[ACC], shared_memory &s, const tc_args &a, const strip_at &at,
                                          const tile_at &tile, const lane_at &l, stage_view &view, int block, int g)
{
    const int slot = g % TC_STAGES;
    const u32 x = (smem_u32(s.x) >> 4) + slot * (XSTAGE / 16) + (FLAT ? 0 : tile.row * PITCH) + tile.ct * TILE;
    view.wait(slot);
    const float unscale = s.unscale[slot];
    const int odd = s.odd[slot];
    acc_fence(d);
    wgmma_fence();
    multiply(d, x, (smem_u32(s.w) >> 4) + block * (WSTAGE / 16), 0);
    wgmma_wait<0>();
    acc_fence(d);
    if (odd) exact_tile(d, a, at, tile, l);
    return odd ? -1.f : unscale;
}
// STREAM: MWIDE blocks of a tile, over all stages, which are given back. g: the first of them. As convolve, but
// exact tiles are left to do. APART: the sums of a stage start from zero and are added up by ordinary additions:
// tensor cores cut off at every step, which shows in a sum of thousands of terms (doc/KERNELS.md).
__device__ __forceinline__ float convolve_stages(float (&d)[MWIDE][ACC], shared_memory &s, const tile_at &tile,
                                                 stage_view &view, int g)
{
    constexpr bool APART = PARTS == 2;
    const u32 x0 = (smem_u32(s.x) >> 4) + (FLAT ? 0 : tile.row * PITCH) + tile.ct * TILE, w0 = smem_u32(s.w) >> 4;
    float unscale = 0, part[MWIDE][ACC];
    float(&sums)[MWIDE][ACC] = APART ? part : d;
    int odd = 0;
#pragma unroll 1
    for (int i = 0; i < NSTAGE; i++) {
        const int slot = (g + i) % TC_STAGES;
        view.wait(slot);
        const float u = s.unscale[slot];
        odd |= s.odd[slot];
        if (i && u != unscale)
#pragma unroll
            for (int j = 0; j < MWIDE * ACC; j++)
                d[j / ACC][j % ACC] *= unscale / u; // the stages of a strip share one scale in the accumulators
        unscale = u;
#pragma unroll
        for (int b = 0; b < MWIDE; b++) acc_fence(sums[b]);
        wgmma_fence();
#pragma unroll
        for (int b = 0; b < MWIDE; b++)
            multiply(sums[b], x0 + slot * (XSTAGE / 16), w0 + (slot * MWIDE + b) * (WSTAGE / 16), APART ? 0 : i);
        wgmma_wait<0>();
#pragma unroll
        for (int b = 0; b < MWIDE; b++) acc_fence(sums[b]);
        view.release(slot);
        if constexpr (APART)
#pragma unroll
            for (int j = 0; j < MWIDE * ACC; j++) {
                const float more = part[j / ACC][j % ACC];
                d[j / ACC][j % ACC] = i ? d[j / ACC][j % ACC] + more : more;
            }
    }
    return odd ? -1.f : unscale;
}
// The factor of channel h: y = d * factor + bias.
__device__ __forceinline__ float factor_of(const lane_at &l, float unscale, int h)
{
    return unscale < 0.f ? l.unit : l.unscale[h] * unscale;
}

// What the tensor cores left -> a result: scale and bias, PRE, and (POST) norm and what follows it. h: which of the
// lane's two channels.
template <bool POST> struct value_maker {
    const lane_at &l;
    const epi &e;
    const float2 (&norm)[2];
    int n;
    float factor[2];
    __device__ __forceinline__ value_maker(const lane_at &lane, const epi &views, const float2 (&factors)[2],
                                           int sample, float unscale)
        : l(lane), e(views), norm(factors),
          n(sample), factor{factor_of(lane, unscale, 0), factor_of(lane, unscale, 1)}
    {
    }
    __device__ __forceinline__ float operator()(float d, int h) const
    {
        const int k = K % KM ? min(l.ch[h], K - 1) : l.ch[h]; // of channels that do not exist nothing is kept
        const float c = fmaf(d, factor[h], l.bias[h]);
        float y = TC_PRE ? (POST ? YUNIT : 1.f) * cvy_pre(c, k, e) : c;
        if (TC_PRE && POOL && NORM) y *= l.sign[h];
        if (!POST) return y;
        const float z = NORM ? fmaf(y, norm[h].x, norm[h].y) : y;
        const float r = cvy_post(z, TC_BEFORE ? YUNIT / CUNIT * c : y, n, k, 0, e);
        return EXPONENTS && !(TC_EXPONENT & 1) ? r * LOG2E : r;
    }
    template <int N> __device__ __forceinline__ void all(float (&d)[N]) const
    {
#pragma unroll
        for (int v = 0; v < N; v++) d[v] = (*this)(d[v], v >> 1 & 1);
    }
};
struct made_values { // in its place where they are results already
    const lane_at &l;
    __device__ __forceinline__ float operator()(float d, int) const
    {
        return d;
    }
};

// ---- statistics ----

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
            for (int j = FLAT ? NJ - 1 : 0; j >= 0; j--)
                first = exists(at, tile, l, j, 0, row, col) ? d[4 * j + 2 * h] : first;
            m.shift[h] = __shfl_sync(~0u, first, threadIdx.x & 28);
        }
        m.fresh = false;
    }
#pragma unroll
    for (int j = 0; j < NJ; j++)
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
            slots[l.rr * KP + l.ch[h]] = make_float4(l.sign[h] * y, (s2[h] - s1[h] * mean) * f * f, count, 0.f);
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
// Statistics of the block's strip, per group, to everybody. 128 threads.
__device__ __forceinline__ void publish(const float4 (&slots)[NORM ? SLOTS : 1][NORM ? KP : 1], const tc_args &a,
                                        const strip_at &at, u32 tag)
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

// ---- results ----

// OUT_HALF: a tile into the chunk, rounded to T. index: as put_tile's.
template <class T>
__device__ __forceinline__ void put_rounded(float (*out)[OPITCH], const float (&d)[ACC], const strip_at &at,
                                            const tile_at &tile, const lane_at &l, int k0, int index)
{
    const int first =
        at.p0 + (FLAT ? 0 : tile.line * LINEROWS - (index - tile.ct * TILE) / CHUNKW); // row of the chunk
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (l.ch[h] >= K) continue;
        T *to = (T *)out[l.ch[h] - k0] + shift_of(at.n, l.ch[h], first);
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            const u32 pair = cvy_narrow(d[4 * j + 2 * h], d[4 * j + 2 * h + 1], T());
            int row, col;
            if (FLAT) {
                if (exists(at, tile, l, j, 0, row, col))
                    ((unsigned short *)to)[row * Q + col] = (unsigned short)pair;
                if (exists(at, tile, l, j, 1, row, col)) ((unsigned short *)to)[row * Q + col] = pair >> 16;
            } else if (exists(at, tile, l, j, 1, row, col)) // pairs exist together: rows are even
                *(u32 *)(to + index + l.rr * CHUNKW + 8 * j + 2 * l.q) = pair;
        }
    }
}
// A tile into the chunk: out[channel][dense pixel]; index: of the tile's first pixel.
__device__ __forceinline__ void put_tile(float (*out)[OPITCH], const float (&d)[ACC], const strip_at &at,
                                         const tile_at &tile, const lane_at &l, int k0, int index)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (l.ch[h] >= K) continue;
        float *to = out[l.ch[h] - k0];
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            const float a = d[4 * j + 2 * h], b = d[4 * j + 2 * h + 1];
            int row, col;
            const bool oka = exists(at, tile, l, j, 0, row, col);
            if (FLAT) {
                if (oka) to[row * Q + col] = a;
                if (exists(at, tile, l, j, 1, row, col)) to[row * Q + col] = b;
                continue;
            }
            const bool okb = exists(at, tile, l, j, 1, row, col);
            const int i = index + l.rr * CHUNKW + 8 * j + 2 * l.q;
            if (CHUNKW % 2 == 0 && Q % 2 == 0) { // pairs exist together, 8-byte aligned
                if (okb) *(float2 *)(to + i) = make_float2(a, b);
            } else {
                if (oka) to[i] = a;
                if (okb) to[i + 1] = b;
            }
        }
    }
}
// Running maxima over the rows of a pooling line, pairs of pixels taken together.
__device__ __forceinline__ void pool_rows(float (&m)[2 * NJ], const float (&d)[ACC])
{
#pragma unroll
    for (int i = 0; i < 2 * NJ; i++) m[i] = max_nan(m[i], max_nan(d[2 * i], d[2 * i + 1]));
}
template <bool RAW>
__device__ __forceinline__ void put_pooled(float (*out)[OPITCH], float (&m)[2 * NJ], const tile_at &tile,
                                           const lane_at &l, float unscale, int k0, int row, int cols)
{
#pragma unroll
    for (int i = 0; i < 2 * NJ; i++) {
        const int h = i & 1, col = (tile.ct * TILE + i / 2 * 8 + 2 * l.q) / TC_POOLW;
        float v = !RAW ? m[i] : fmaf(m[i], factor_of(l, unscale, h), l.bias[h]);
        if (TC_POOLW >= 4) v = max_nan(v, __shfl_xor_sync(~0u, v, 1));
        if (TC_POOLW >= 8) v = max_nan(v, __shfl_xor_sync(~0u, v, 2));
        if (l.q % (TC_POOLW / 2) == 0 && col < cols && l.ch[h] < K) out[l.ch[h] - k0][row * CHUNKW + col] = v;
    }
}
