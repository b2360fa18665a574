// conv_tc_reduce.cuh - reduction over the channels: logsumexp, max, min, sum, mean.
//
// PARTIAL (the rule): a lane of the multiplying role holds 2 channels of each of its pixels. It joins the two and
// leaves one value per pixel, for logsumexp the sum of their exponentials; the finishing role joins the 32 values
// of a pixel (per block of 64 channels). If such a sum leaves the range of floats, the warp subtracts its 16
// channels' maximum and stores that as well. Else (the operators after the norm read other tensors) all channels go
// through shared memory.
#pragma once
#include "conv_tc.cuh"
#include "conv_tc_mma.cuh"

// Neighbours into global memory by one access, for what is not read again.
__device__ __forceinline__ void stream_out(float *to, const float (&v)[1])
{
    __stcs(to, v[0]);
}
__device__ __forceinline__ void stream_out(float *to, const float (&v)[2])
{
    __stcs((float2 *)to, make_float2(v[0], v[1]));
}
__device__ __forceinline__ void stream_out(float *to, const float (&v)[4])
{
    __stcs((float4 *)to, make_float4(v[0], v[1], v[2], v[3]));
}
__device__ __forceinline__ void stream_out(float *to, const float (&v)[8])
{
    __stcs((float4 *)to, make_float4(v[0], v[1], v[2], v[3]));
    __stcs((float4 *)to + 1, make_float4(v[4], v[5], v[6], v[7]));
}
template <class T> __device__ __forceinline__ void stream_out(T *to, const float (&v)[8])
{
    __stcs((uint4 *)to, make_uint4(cvy_narrow(v[0], v[1], T()), cvy_narrow(v[2], v[3], T()),
                                   cvy_narrow(v[4], v[5], T()), cvy_narrow(v[6], v[7], T())));
}
template <class T> __device__ __forceinline__ void stream_out(T *to, const float (&v)[1])
{
    __stcs(&to->bits, (unsigned short)cvy_narrow(v[0], 0.f, T()));
}
template <class T> __device__ __forceinline__ void stream_out(T *to, const float (&v)[2])
{
    __stcs((u32 *)to, cvy_narrow(v[0], v[1], T()));
}
template <class T> __device__ __forceinline__ void stream_out(T *to, const float (&v)[4])
{
    __stcs((uint2 *)to, make_uint2(cvy_narrow(v[0], v[1], T()), cvy_narrow(v[2], v[3], T())));
}

// A chunk: its first channel; rows and columns of results in it, and where these are in the output.
struct chunk_at {
    int channel, rows, cols, row0, col0;
};
// k0, l0, c0: its first channel, band and column tile.
__device__ __forceinline__ chunk_at chunk_position(const strip_at &at, int k0, int l0, int c0)
{
    chunk_at c;
    c.channel = k0;
    if (POOL) {
        c.row0 = at.p0 / TC_POOLH + l0, c.col0 = at.q0 / TC_POOLW, c.cols = at.cols / TC_POOLW;
        c.rows = min(CHUNK_BANDS, min(OH - c.row0, at.rows / TC_POOLH - l0));
    } else {
        c.row0 = at.p0 + l0 * BAND_ROWS, c.col0 = at.q0 + c0 * TILE;
        c.rows = min(CHUNK_BANDS * BAND_ROWS, at.rows - l0 * BAND_ROWS),
        c.cols = FLAT ? Q : min(CHUNK_COLS, at.cols - c0 * TILE);
    }
    return c;
}
// The thread's number in its team of the finishing role.
__device__ __forceinline__ int sink_thread()
{
    return (threadIdx.x - WARP_SINK * 32) % (SINKWARPS * 32);
}
__device__ __forceinline__ float finish_value(float v, const float2 ab, int n, int k, int pixel, const epi &e)
{
    return EARLY ? v : cvy_post(NORM ? fmaf(v, ab.x, ab.y) : v, v, n, k, pixel, e);
}

__device__ __forceinline__ float reduce_start()
{
    return TC_REDUCE == REDUCE_MAX   ? __int_as_float(0xff800000)
           : TC_REDUCE == REDUCE_MIN ? __int_as_float(0x7f800000)
                                     : 0.f;
}
__device__ __forceinline__ float reduce_join(float a, float b)
{
    return TC_REDUCE == REDUCE_MAX ? max_nan(a, b) : TC_REDUCE == REDUCE_MIN ? min_nan(a, b) : a + b;
}
// The value that changes nothing: of a channel that does not exist (before the exponential).
__device__ __forceinline__ float reduce_neutral()
{
    return TC_REDUCE == REDUCE_LSE ? __int_as_float(0xff800000) : reduce_start();
}
__device__ __forceinline__ float over_lanes(float v)
{
    v = reduce_join(v, __shfl_xor_sync(~0u, v, 1));
    return reduce_join(v, __shfl_xor_sync(~0u, v, 2));
}
__device__ __forceinline__ float max_lanes(float v)
{
    v = max_nan(v, __shfl_xor_sync(~0u, v, 1));
    return max_nan(v, __shfl_xor_sync(~0u, v, 2));
}
// ---- PARTIAL ----

constexpr float FARTHEST = 3.402823466e38f;

// The result of one of the lane's channels; of none, what changes nothing.
template <typename maker> __device__ __forceinline__ float channel_value(const maker &value, float d, int h)
{
    return K % 64 == 0 || value.l.ch[h] < K ? value(d, h) : reduce_neutral();
}
// logsumexp of a warp's channels with the maximum taken out: the sum in the first of its 8 rows (the others 0), the
// maximum in peaks. px0: the first pixel.
template <typename maker>
__device__ __forceinline__ void put_shifted(float (*out)[OPITCH], float *peaks, const half_tile &d,
                                            const maker &value, int px0)
{
    const int r = threadIdx.x / 4 % 8;
#pragma unroll
    for (int v = 0; v < HALF / 4; v++) {
        const float a = channel_value(value, d[v / 2 * 4 + v % 2], 0),
                    b = channel_value(value, d[v / 2 * 4 + 2 + v % 2], 1);
        const int px = px0 + v / 2 * 8 + 2 * value.l.q + v % 2;
        float top = max_nan(a, b);
        for (int o = 4; o < 32; o *= 2) top = max_nan(top, __shfl_xor_sync(~0u, top, o));
        // An inf as far out as a float goes: all -inf gives -inf, an inf inf, and neither hides other warps'
        // values.
        top = fabsf(top) <= FARTHEST ? top : top != top ? 0.f : top > 0.f ? FARTHEST : -FARTHEST;
        float sum = exp2_approx(a - top) + exp2_approx(b - top);
        for (int o = 4; o < 32; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
        out[r][px] = r == 0 ? sum : 0.f;
        if (r == 0) peaks[px] = top;
    }
}
// Where half a tile goes: the chunk's buffer, the warp's number among those that share the tile's channels, the
// half's first pixel; and how many pixels of the tile exist.
struct half_place {
    int buffer, warp, px0, limit;
};
// HALF pixels of a tile into a buffer: row 8 * warp + r holds lane r's values. d: what the tensor cores left. From
// d to the sum of exponentials without a stop: registers hold what is in flight, not a tile of results.
template <typename maker>
__device__ __forceinline__ void put_partial(shared_memory &s, const half_tile &d, const maker &value,
                                            const half_place &place)
{
    const int b = place.buffer, warp = place.warp, px0 = place.px0, limit = place.limit;
    float(*out)[OPITCH] = s.out[b] + 8 * warp, *to = out[threadIdx.x / 4 % 8] + px0;
    const int q = value.l.q;
    const bool judged = K % 64 == 0 || value.l.ch[0] < K; // sums of channels that do not exist are 0
    float least_sum = 1.f, most_sum = 1.f;
#pragma unroll
    for (int j = 0; j < HALF / 8; j++) {
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float lo = channel_value(value, d[4 * j + e], 0), hi = channel_value(value, d[4 * j + 2 + e], 1);
            v[e] = TC_REDUCE == REDUCE_LSE ? exp2_approx(lo) + exp2_approx(hi) : reduce_join(lo, hi);
        }
        if (TC_REDUCE == REDUCE_LSE)
#pragma unroll
            for (int e = 0; e < 2; e++) { // garbage past the edge must not trigger the slow path
                const bool exists = px0 / 8 + j < SAFE || px0 + 8 * j + 2 * q + e < limit;
                const float u = judged && exists ? v[e] : 1.f;
                least_sum = fminf(least_sum, u), most_sum = max_nan(most_sum, u);
            }
        *(float2 *)&to[8 * j + 2 * q] = make_float2(v[0], v[1]);
    }
    if constexpr (TC_REDUCE == REDUCE_LSE) {
        const bool hard = __any_sync(~0u, !(least_sum > 1e-30f && most_sum < 1e30f));
        if (hard) put_shifted(out, s.peaks[b][warp], d, value, px0);
        if (threadIdx.x % 32 == 0) s.flags[b][warp][px0 / HALF] = hard;
    }
}
// One warp's sum of a pixel's exponentials, and the maximum that was taken out of it: 0 if none was, and for a
// warp without channels, whose sum is 0, a value below every other maximum.
__device__ __forceinline__ float warp_sum(const shared_memory &s, int b, int w, int px, float &peak)
{
    float sum = 0;
    for (int r = 0; r < 8; r++) sum += s.out[b][8 * w + r][px];
    peak = s.flags[b][w][px / HALF] ? s.peaks[b][w][px] : sum == 0.f ? -FARTHEST : 0.f;
    return sum;
}
// The sum of a pixel's exponentials where some warp took its maximum out: divided by 2 to the power of top.
__device__ __forceinline__ float join_shifted(const shared_memory &s, int b, int px, float &top)
{
    float v = 0, peak;
    top = __int_as_float(0xff800000);
    for (int w = 0; w < PEAKS; w++) {
        warp_sum(s, b, w, px, peak);
        top = fmaxf(top, peak);
    }
    for (int w = 0; w < PEAKS; w++) {
        const float sum = warp_sum(s, b, w, px, peak);
        v += sum * exp2_approx(peak - top);
    }
    return v;
}
// Joins the values of a tile's pixels and stores: two neighbours a thread, each in two sums, so that loads and
// additions are on their way together. Rows: 32 per block of 64 channels; peaks and flags: 4.
__device__ __forceinline__ void finish_partial(const shared_memory &s, int b, const tc_args &a, const strip_at &at,
                                               const chunk_at &c, const epi &e)
{
    static_assert(!PARTIAL || SINKWARPS * 64 >= TILE, "a thread has two pixels of the tile");
    constexpr bool PAIRED = OW % 2 == 0; // two neighbours leave as one
    const int first = c.row0 * OW + c.col0, mine = 2 * sink_thread();
    const int px = min(mine, (c.cols - 1) / 2 * 2); // past the edge: the last ones again
    int hard = 0;
    if (TC_REDUCE == REDUCE_LSE)
#pragma unroll
        for (int w = 0; w < PEAKS; w++) hard |= s.flags[b][w][px / HALF];
    float v[2][2] = {{reduce_start(), reduce_start()}, {reduce_start(), reduce_start()}}, top[2] = {0, 0};
#pragma unroll 16
    for (int r = 0; r < MBLOCKS * 32; r++) {
        const float2 pair = *(const float2 *)&s.out[b][r][px];
        v[0][r % 2] = reduce_join(v[0][r % 2], pair.x), v[1][r % 2] = reduce_join(v[1][r % 2], pair.y);
    }
    Y_TYPE *to = a.y + (size_t)at.n * (OH * OW) + first + px;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float &o = v[i][0];
        o = hard ? join_shifted(s, b, px + i, top[i]) : reduce_join(v[i][0], v[i][1]);
        if (TC_REDUCE == REDUCE_LSE) o = LN2 * (top[i] + log2_approx(o));
        if (TC_REDUCE == REDUCE_MEAN) o *= 1.f / K;
        o = cvy_last(o, at.n, first + min(px + i, c.cols - 1), e);
    }
    const float both[2] = {v[0][0], v[1][0]}, one[1] = {v[0][0]}, other[1] = {v[1][0]};
    if (PAIRED && mine < c.cols) stream_out(to, both);
    if (!PAIRED && mine < c.cols) stream_out(to, one);
    if (!PAIRED && mine + 1 < c.cols) stream_out(to + 1, other);
}

// ---- all channels through shared memory ----

// logsumexp with the maximum taken out first: for sums that the plain one cannot hold. One pixel of 4 lanes, lane q
// takes channels q, q + 4, ...
__device__ __forceinline__ float lse_with_max(float (*out)[OPITCH], const float2 *ab, int px, int n, int pixel,
                                              const epi &e)
{
    const int q = threadIdx.x % 4;
    float m = __int_as_float(0xff800000), sum = 0;
#pragma unroll 1
    for (int k = q; k < K; k += 4) m = max_nan(m, finish_value(out[k][px], ab[k], n, k, pixel, e));
    m = max_lanes(m);
    const float base = fabsf(m) < __int_as_float(0x7f800000) ? m : 0.f; // all -inf gives -inf, an inf gives inf
#pragma unroll 1
    for (int k = q; k < K; k += 4)
        sum += exp2_approx((finish_value(out[k][px], ab[k], n, k, pixel, e) - base) * LOG2E);
    return base + LN2 * log2_approx(over_lanes(sum));
}
// Lane q of four takes channels q, q + 4, ... of PER neighbouring pixels: rows are 8 words apart modulo 32, so 8
// lanes meet all banks. A chunk is one tile, a team's lanes have all its pixels at once.
__device__ __forceinline__ void finish_reduce(float (*out)[OPITCH], const float2 *ab, const tc_args &a,
                                              const strip_at &at, const chunk_at &c, const epi &e)
{
    constexpr int PER = 4,
                  BATCHK = 4; // pixels of a thread; channels in flight: the latency of loads is paid once for them
    static_assert(PARTIAL || TC_SINK != SINK_REDUCE || SINKWARPS * 8 * PER >= TILE, "all pixels of a tile at once");
    const int t = sink_thread(), q = t % 4, first = c.row0 * OW + c.col0;
    const int px = min(t / 4 * PER, (c.cols - 1) / PER * PER); // past the edge: the last ones again
    float v[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) v[i] = reduce_start();
#pragma unroll 1
    for (int k0 = q; k0 < K; k0 += 4 * BATCHK) {
        float2 f[BATCHK];
        float4 y[BATCHK];
#pragma unroll
        for (int u = 0; u < BATCHK; u++) {
            const int k = K % (4 * BATCHK) ? min(k0 + 4 * u, K - 1) : k0 + 4 * u;
            f[u] = NORM && !EARLY ? ab[k] : make_float2(1.f, 0.f);
            y[u] = *(const float4 *)&out[k][px];
        }
#pragma unroll
        for (int u = 0; u < BATCHK; u++) {
            const float four[PER] = {y[u].x, y[u].y, y[u].z, y[u].w};
            const bool exists = K % (4 * BATCHK) == 0 || k0 + 4 * u < K;
#pragma unroll
            for (int i = 0; i < PER; i++) {
                const float o = finish_value(four[i], f[u], at.n, min(k0 + 4 * u, K - 1), first + px + i, e);
                const float r = TC_REDUCE == REDUCE_LSE ? exp2_approx(o * LOG2E) : o;
                v[i] = reduce_join(v[i], exists ? r : reduce_start());
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const bool inside = px + i < c.cols; // what is past the edge must not trigger the slow path
        v[i] = over_lanes(v[i]);
        if (TC_REDUCE == REDUCE_MEAN) v[i] *= 1.f / K;
        if (TC_REDUCE == REDUCE_LSE) {
            const bool hard = inside && !(v[i] > 1e-30f && v[i] < 1e30f);
            v[i] = LN2 * log2_approx(v[i]);
            if (__any_sync(~0u, hard)) v[i] = lse_with_max(out, ab, px + i, at.n, first + px + i, e);
        }
    }
    // Lane q keeps pixel q: the four of them store neighbours.
    const float mine = q == 0 ? v[0] : q == 1 ? v[1] : q == 2 ? v[2] : v[3];
    const float last[1] = {cvy_last(mine, at.n, first + px + q, e)};
    if (t / 4 * PER + q < c.cols) stream_out(a.y + (size_t)at.n * (OH * OW) + first + px + q, last);
}
