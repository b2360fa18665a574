// conv_tc_mma.cuh - tiles of the multiplying role: the convolution, scale and bias, and the operators after the
// norm if that role can apply them.
//
// Thread -> data. A warpgroup's tile is 64 rows of M x TILE pixels. Warp v, lane 4r + q holds rows 16v + r and 16v
// + r + 8 (a row is an output channel, or with ROWSM > 1 a channel of one of ROWSM output rows) at pixels 8j + 2q
// and 8j + 2q + 1:
//   d[4j + 2h + e]: row 16v + r + 8h, pixel 8j + 2q + e.
// The warpgroups of a strip take tiles of a chunk in turn. Pooling keeps running maxima over the rows of a band in
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

// The factors of z and y where logsumexp's exponents are made from them.
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
constexpr float ZGAIN = TC_EXPONENT & 4 ? LOG2E : 1.f, YGAIN = !NORM ? ZGAIN : TC_EXPONENT & 2 ? LOG2E : 1.f;
// The factor of what cvy_pre is given.
constexpr float CGAIN = TC_HALVED ? 0.5f : 1.f;
// A channel's norm from y to z.
__device__ __forceinline__ float2 norm_of(const float2 *ab, int k)
{
    return NORM ? make_float2(ab[k].x * (ZGAIN / YGAIN), ab[k].y * ZGAIN) : make_float2(1.f, 0.f);
}

// The position of a thread in a tile, and the constants of its two channels. Where pooling is, weights and bias
// come with the norm's sign; after a PRE it is a factor of its own.
struct lane_at {
    int q, row, rr; // lane % 4; row of M for h = 0; which of ROWSM output rows
    float gain;     // of what leaves the tensor cores: a factor of scale and bias
    int ch[2];      // output channels
    float unscale[2], bias[2], sign[2];
};
__device__ __forceinline__ float lane_bias(const lane_at &l, const tc_args &a, int h)
{
    const int k = min(l.ch[h], K - 1);
    return a.bias ? l.gain * cvy_get(a.bias + k) : 0.f;
}
__device__ __forceinline__ void lane_channels(lane_at &l, const tc_args &a, int block)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int k = block * BLOCK_CHANNELS + (l.row + 8 * h) % BLOCK_CHANNELS, kc = min(k, K - 1);
        l.ch[h] = k;
        l.unscale[h] = l.gain * __ldg(a.unscale + k);
        l.sign[h] = POOL && NORM && a.gamma && cvy_get(a.gamma + kc) < 0.f
                        ? -1.f
                        : 1.f; // a falling norm turns max into min
        if (!SHIFTED) l.bias[h] = lane_bias(l, a, h);
    }
}

// A tile: its band and column tile in the strip; row: its first output row in the strip; limit: pixels of it that
// exist, from q on.
struct tile_at {
    int band, ct, row, limit;
};

// Does element (j, e) exist? Constant true if the geometry says so. FLAT: tells its row and column in the strip.
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
                const float x = inside ? cvy_get(a.x + x_index(at.n, c / (R * S), h, w)) : 0.f;
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
    for (int h = 0; h < 2; h++)
        bias[h] = lane_bias(l, a, h), sum[h] = l.gain * __ldg(a.unscale + PADDED_CHANNELS + l.ch[h]);
    view.wait(slot);
#pragma unroll
    for (int h = 0; h < 2; h++) l.bias[h] = fmaf(s.offset[slot], sum[h], bias[h]);
}

// The route of a warpgroup through one strip.
struct strip_route {
    shared_memory &memory;
    const tc_args &args;
    const epi &views;
    const strip_at &at;
    lane_at &lane;
    stage_view &stages;
    float4 *slots;       // where its statistics go
    const float2 *norms; // of the strip's sample: a factor and a summand for each channel
};

// The convolution of a tile as it leaves the tensor cores; returns the factor that undoes the stage's scale
// (negative: that of an exact tile, 1, with the channels' own left out). g: the strip's stage.
__device__ __forceinline__ float convolve(const strip_route &route, float (&d)[ACC], const tile_at &tile, int block,
                                          int g)
{
    shared_memory &s = route.memory;
    const int slot = g % TC_STAGES;
    const u32 x = (smem_u32(s.x) >> 4) + slot * (XSTAGE / 16) + (FLAT ? 0 : tile.row * PITCH) + tile.ct * TILE;
    route.stages.wait(slot);
    const float unscale = s.unscale[slot];
    const int odd = s.odd[slot];
    acc_fence(d);
    wgmma_fence();
    multiply(d, x, (smem_u32(s.w) >> 4) + block * (WSTAGE / 16), 0);
    wgmma_wait<0>();
    acc_fence(d);
    if (odd) exact_tile(d, route.args, route.at, tile, route.lane);
    return odd ? -1.f : unscale;
}

// The factor of channel h: y = d * factor + bias.
__device__ __forceinline__ float factor_of(const lane_at &l, float unscale, int h)
{
    return unscale < 0.f ? l.gain : l.unscale[h] * unscale;
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
        const int k =
            K % BLOCK_CHANNELS ? min(l.ch[h], K - 1) : l.ch[h]; // of channels that do not exist nothing is kept
        const float c = fmaf(d, factor[h], l.bias[h]);
        float y = TC_PRE ? (POST ? YGAIN : 1.f) * cvy_pre(c, k, e) : c;
        if (TC_PRE && POOL && NORM) y *= l.sign[h];
        if (!POST) return y;
        const float z = NORM ? fmaf(y, norm[h].x, norm[h].y) : y;
        const float r = cvy_post(z, TC_BEFORE ? YGAIN / CGAIN * c : y, n, k, 0, e);
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
