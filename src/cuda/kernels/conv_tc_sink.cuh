// conv_tc_sink.cuh - the finishing role (norm, what follows it, store or reduce) and the merging warp (statistics -> factor, summand).
#pragma once
#include "conv_tc.cuh"
#include "conv_tc_mma.cuh"

// ---- the merging warp ----------------------------------------------------------------------------------------------------
// Mean and 1 / deviation of all groups of a sample into s.group; false: some strip's word does not carry this launch's tag yet.
__device__ __forceinline__ bool merge_sample(shared_memory &s, const tc_args &a, int n, u32 tag)
{
    constexpr int LANES = floor_pow2(most(32 / most(G, 1), 1)), GROUPS = 32 / LANES;
    const int lane = threadIdx.x % 32, sub = lane % LANES;
    bool ok = true;
#pragma unroll 1
    for (int g0 = 0; g0 < G; g0 += GROUPS) {
        const int g = min(g0 + lane / LANES, G - 1);
        const u64 *words = a.part + ((size_t)n * G + g) * STRIPS;
        merged m = {__uint_as_float(load_relaxed(words) >> 32), 0, 0, 0, 0};
#pragma unroll 8
        for (int i = sub; i < STRIPS; i += LANES) {
            const strip_at at = strip_position(i);
            const u64 v = load_relaxed(words + i);
            ok &= (v & 3) == tag;
            m.add((float)(CPG * at.rows * at.cols), __uint_as_float(v >> 32), __uint_as_float((u32)v & ~3u));
        }
        m.join(LANES);
        if (sub == 0) s.group[g] = make_float2(m.mean(), rsqrtf(m.deviations() / m.n + a.eps));
    }
    return __all_sync(~0u, ok);
}

__device__ __forceinline__ void merge_role(shared_memory &s, const tc_args &a, const schedule &order, u32 tag)
{
    const int lane = threadIdx.x % 32;
    int f = 0; // finished strips
    for (int j = 0; j < order.turns(); j++) {
        bool finish;
        const int item = order.get(j, finish), b = f & 1;
        if (!finish) continue;
        mbar_wait(&s.sempty[b], (f >> 1 & 1) ^ 1);
        while (!merge_sample(s, a, item / STRIPS, tag)) __nanosleep(64);
        __syncwarp();
        for (int k = lane; k < K; k += 32) {
            const float2 v = s.group[k / CPG];
            const float gamma = a.gamma ? __ldg(a.gamma + k) : 1.f, f0 = gamma * v.y;
            const float shift = (a.beta ? __ldg(a.beta + k) : 0.f) - v.x * f0;
            s.ab[b][k] = make_float2(POOL && gamma < 0.f ? -f0 : f0, shift); // pooled values carry gamma's sign
        }
        __syncwarp();
        if (lane == 0) mbar_arrive(&s.sfull[b]);
        f++;
    }
}

// ---- finishing -----------------------------------------------------------------------------------------------------------
// A chunk: first line and column tile, how many of them; rows and columns of results in it, and where these stand in the output.
struct chunk_at {
    int rows, cols, row0, col0;
};
__device__ __forceinline__ chunk_at chunk_position(const strip_at &at, int l0, int c0)
{
    chunk_at c;
    if (POOL) {
        c.row0 = at.p0 / TC_POOLH + l0, c.col0 = 0, c.cols = OW;
        c.rows = min(LPC, min(OH - c.row0, at.rows / TC_POOLH - l0));
    } else {
        c.row0 = at.p0 + l0 * LINEROWS, c.col0 = at.q0 + c0 * TILE;
        c.rows = min(LPC * LINEROWS, at.rows - l0 * LINEROWS), c.cols = FLAT ? Q : min(CHUNKW, at.cols - c0 * TILE);
    }
    return c;
}
__device__ __forceinline__ float finish_value(float v, const float2 ab, int n, int k, int pixel, const epi &e)
{
    return cvy_post(NORM ? fmaf(v, ab.x, ab.y) : v, v, n, k, pixel, e);
}

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
// One channel's run: loads of up to 4 packs first, then results, so that shared memory's latency is paid once.
template <int VEC> __device__ __forceinline__ void finish_run(float *to, const float *from, int length, float2 ab, int n, int k, int pixel,
                                                              const epi &e)
{
    typedef typename pack_of<VEC>::type pack;
    constexpr int STEP = 32 * VEC;
    const int lane = threadIdx.x % 32, whole = length & ~(VEC - 1);
    for (int base = lane * VEC; base < whole; base += 4 * STEP) {
        union {
            pack p;
            float f[VEC];
        } v[4];
#pragma unroll
        for (int u = 0; u < 4; u++)
            if (base + u * STEP < whole) v[u].p = *(const pack *)(from + base + u * STEP);
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const int i = base + u * STEP;
            if (i >= whole) break;
#pragma unroll
            for (int j = 0; j < VEC; j++) v[u].f[j] = finish_value(v[u].f[j], ab, n, k, pixel + i + j, e);
            __stcs((pack *)(to + i), v[u].p);
        }
    }
    if (lane < length - whole) __stcs(to + whole + lane, finish_value(from[whole + lane], ab, n, k, pixel + whole + lane, e));
}
// Warp w takes channels w, w + 8, ... of the chunk; whole rows are one run.
__device__ __forceinline__ void finish_store(float (*out)[OPITCH], const float2 *ab, const tc_args &a, const strip_at &at, const chunk_at &c,
                                             int k0, const epi &e)
{
    constexpr int UNIT = (POOL ? 1 : LINEROWS) * OW; // runs start at multiples of this
    constexpr int VEC = !TC_ALIGNED || CHUNKW != OW ? 1 : UNIT % 4 == 0 && OH * OW % 4 == 0 ? 4 : UNIT % 2 == 0 && OH * OW % 2 == 0 ? 2 : 1;
    const int warp = threadIdx.x / 32 - WARP_SINK, end = least(CHUNKK, K - k0);
    for (int i = warp; i < end; i += SINKWARPS) {
        const int k = k0 + i;
        const float2 f = NORM ? ab[k] : make_float2(1.f, 0.f);
        float *plane = a.y + ((size_t)at.n * K + k) * (OH * OW);
        const int pixel = c.row0 * OW + c.col0;
        if (CHUNKW == OW)
            finish_run<VEC>(plane + pixel, out[i], c.rows * OW, f, at.n, k, pixel, e);
        else
            for (int r = 0; r < c.rows; r++)
                finish_run<1>(plane + pixel + r * OW, out[i] + r * CHUNKW, c.cols, f, at.n, k, pixel + r * OW, e);
    }
}

// ---- reduction over the channels: 4 lanes a pixel, lane q takes channels q, q + 4, ... (no bank conflicts) ----------------
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
__device__ __forceinline__ float reduce_start()
{
    return TC_REDUCE == REDUCE_MAX ? __int_as_float(0xff800000) : TC_REDUCE == REDUCE_MIN ? __int_as_float(0x7f800000) : 0.f;
}
__device__ __forceinline__ float reduce_join(float a, float b)
{
    return TC_REDUCE == REDUCE_MAX ? max_nan(a, b) : TC_REDUCE == REDUCE_MIN ? min_nan(a, b) : a + b;
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
// logsumexp with the maximum taken out first: for sums that the plain one cannot hold. One pixel of 4 lanes.
__device__ __forceinline__ float lse_with_max(float (*out)[OPITCH], const float2 *ab, int px, int n, int pixel, const epi &e)
{
    const int q = threadIdx.x % 4;
    float m = __int_as_float(0xff800000), sum = 0;
#pragma unroll 1
    for (int k = q; k < K; k += 4) m = max_nan(m, finish_value(out[k][px], ab[k], n, k, pixel, e));
    m = max_lanes(m);
    const float base = fabsf(m) < __int_as_float(0x7f800000) ? m : 0.f; // all -inf gives -inf, an inf gives inf
#pragma unroll 1
    for (int k = q; k < K; k += 4) sum += exp2_approx((finish_value(out[k][px], ab[k], n, k, pixel, e) - base) * LOG2E);
    return base + LN2 * log2_approx(over_lanes(sum));
}
__device__ __forceinline__ void finish_reduce(float (*out)[OPITCH], const float2 *ab, const tc_args &a, const strip_at &at, const chunk_at &c,
                                              const epi &e)
{
    constexpr int PX = SINKWARPS * 8, PER = TILE / PX, BATCHK = 16 / PER; // pixels at a time; of a thread; channels in flight
    const int t = threadIdx.x - WARP_SINK * 32, q = t % 4, first = c.row0 * OW + c.col0;
    float v[PER];
    int px[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) v[i] = reduce_start(), px[i] = min(t / 4 + i * PX, c.cols - 1); // past the edge: the last one again
#pragma unroll 1
    for (int k0 = q; k0 < K; k0 += 4 * BATCHK) { // loads of BATCHK channels first: their latency is paid once
        float2 f[BATCHK];
        float y[BATCHK][PER];
#pragma unroll
        for (int u = 0; u < BATCHK; u++) {
            const int k = K % (4 * BATCHK) ? min(k0 + 4 * u, K - 1) : k0 + 4 * u;
            f[u] = NORM ? ab[k] : make_float2(1.f, 0.f);
#pragma unroll
            for (int i = 0; i < PER; i++) y[u][i] = out[k][px[i]];
        }
#pragma unroll
        for (int u = 0; u < BATCHK; u++)
#pragma unroll
            for (int i = 0; i < PER; i++) {
                const float o = finish_value(y[u][i], f[u], at.n, min(k0 + 4 * u, K - 1), first + px[i], e);
                const float r = TC_REDUCE == REDUCE_LSE ? exp2_approx(o * LOG2E) : o;
                v[i] = reduce_join(v[i], K % (4 * BATCHK) == 0 || k0 + 4 * u < K ? r : reduce_start());
            }
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        v[i] = over_lanes(v[i]);
        if (TC_REDUCE == REDUCE_MEAN) v[i] *= 1.f / K;
        if (TC_REDUCE == REDUCE_LSE) {
            const bool hard = !(v[i] > 1e-30f && v[i] < 1e30f);
            v[i] = LN2 * log2_approx(v[i]);
            if (__any_sync(~0u, hard)) v[i] = lse_with_max(out, ab, px[i], at.n, first + px[i], e);
        }
        if (q == 0 && t / 4 + i * PX < c.cols) __stcs(a.y + (size_t)at.n * (OH * OW) + first + px[i], cvy_last(v[i], at.n, first + px[i], e));
    }
}

__device__ __forceinline__ void sink_role(shared_memory &s, const tc_args &a, const epi &e, const schedule &order)
{
    const int lane = threadIdx.x % 32;
    int f = 0, o = 0; // strips and chunks finished
    for (int j = 0; j < order.turns(); j++) {
        bool finish;
        const strip_at at = strip_position(order.get(j, finish));
        if (!finish) continue;
        if (NORM) mbar_wait(&s.sfull[f & 1], f >> 1 & 1);
        const int lines = cdiv(at.rows, LINEROWS), tiles = cdiv(FLAT ? at.rows * PITCH : at.cols, TILE);
        for (int k0 = 0; k0 < KP; k0 += CHUNKK)
            for (int l0 = 0; l0 < lines; l0 += LPC)
                for (int c0 = 0; c0 < tiles; c0 += CPC, o++) {
                    const int b = o % most(OUTS, 1);
                    mbar_wait(&s.ofull[b], o / most(OUTS, 1) & 1);
                    const chunk_at c = chunk_position(at, l0, c0);
                    if (TC_SINK == SINK_REDUCE)
                        finish_reduce(s.out[b], s.ab[f & 1], a, at, c, e);
                    else
                        finish_store(s.out[b], s.ab[f & 1], a, at, c, k0, e);
                    __syncwarp();
                    if (lane == 0) mbar_arrive(&s.oempty[b]);
                }
        if (NORM && lane == 0) mbar_arrive(&s.sempty[f & 1]);
        f++;
    }
}
