// conv_tc_load.cuh - the staging role: fp32 NCHW from global memory -> scaled fp16 planes in shared memory.
//
// A thread takes BATCH pixels of 8 channels at a time (8 loads each, neighbouring threads neighbouring columns) and writes
// 16 bytes per pixel and part: neither side conflicts. Padding, ragged channels and the image's edges are zeros put in here. Rows of
// the strips to come are prefetched into L2, so that a batch waits for L2 and not for DRAM.
//
// Range. A stage is scaled by a power of two. The role keeps the last one while the largest |x| times it stays in 1 .. 2^15 and else
// converts the stage again with a new one; fp16 never overflows, and what it rounds away is below 2^-24 of the largest value. An inf or
// NaN marks the stage: the multiplying role then sums it exactly (0 * inf of a padded operand would spread it too far).
#pragma once
#include "conv_tc.cuh"

constexpr int BATCH = TC_LOADS > 1 ? 4 : PARTS == 2 ? 5 : 7, AHEAD = 2; // pixels of a thread in flight, 8 loads each; strips prefetched ahead

// Eight channels of a pixel, scaled, as 16 bytes of hi and of lo.
__device__ __forceinline__ void store_pixel(char *dst, const float (&v)[8], float scale)
{
    u32 hi[4], lo[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float a = v[2 * i] * scale, b = v[2 * i + 1] * scale;
        hi[i] = pack_f16(a, b);
        if (PARTS == 2) {
            float fa, fb;
            unpack_f16(hi[i], fa, fb);
            lo[i] = pack_f16(a - fa, b - fb);
        }
    }
    *(uint4 *)dst = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    if (PARTS == 2) *(uint4 *)(dst + XPART * 16) = make_uint4(lo[0], lo[1], lo[2], lo[3]);
}

// Stages one slice of 8 channels; returns the largest |x| this thread saw (NaN if it saw one).
__device__ __forceinline__ float stage_slice(char *dst, const float *x, const strip_at &at, int channels, float scale, int t)
{
    constexpr int PIXELS = ROWSIN * COLSIN;
    const int h0 = at.p0 * ST - TC_PADH, w0 = at.q0 * ST - TC_PADW;
    float largest = 0;
#pragma unroll 1
    for (int base = t; base < PIXELS; base += LOADERS * BATCH) {
        float v[BATCH][8];
        int to[BATCH];
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            const int i = base + u * LOADERS, row = i / COLSIN, col = i - row * COLSIN, h = h0 + row, w = w0 + col;
            const bool inside = i < PIXELS && (unsigned)h < (unsigned)H && (unsigned)w < (unsigned)W;
            const float *src = x + (inside ? h * W + w : 0);
            to[u] = i < PIXELS ? (row % ST * ST + col % ST) * PHASE + row / ST * PITCH + col / ST : -1;
#pragma unroll
            for (int c = 0; c < 8; c++) v[u][c] = inside && c < channels ? __ldg(src + c * (H * W)) : 0.f;
        }
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
#pragma unroll
            for (int c = 0; c < 8; c++) largest = max_nan(largest, fabsf(v[u][c]));
            if (to[u] >= 0) store_pixel(dst + to[u] * 16, v[u], scale);
        }
    }
    return largest;
}

__device__ __forceinline__ const float *stage_source(const tc_args &a, const strip_at &at, int first)
{
    return a.x + ((size_t)at.n * C + first) * (H * W);
}

// The largest |x| over the role's threads.
__device__ __forceinline__ float role_largest(shared_memory &s, int turn, float v)
{
    const int warp = threadIdx.x / 32 - WARP_LOAD;
    const u32 most_bits = __reduce_max_sync(~0u, __float_as_uint(v)); // v >= 0 or NaN: bits order as values do, NaN last
    if (threadIdx.x % 32 == 0) s.largest[turn & 1][warp] = most_bits;
    named_barrier(BAR_LOAD, LOADERS);
    const u32 *l = s.largest[turn & 1];
    u32 all = l[0];
#pragma unroll
    for (int i = 1; i < LOADWARPS; i++) all = max(all, l[i]);
    return __uint_as_float(all);
}

// The rows of a strip's first slices, one thread per channel, whole 16-byte words.
__device__ __forceinline__ void prefetch_strip(const tc_args &a, const strip_at &at, int channel)
{
    const int h0 = max(at.p0 * ST - TC_PADH, 0), h1 = min(at.p0 * ST - TC_PADH + ROWSIN, H);
    if (channel >= least(C, SPS * 8) || h1 <= h0) return;
    const size_t from = (size_t)(stage_source(a, at, channel) + h0 * W) & ~(size_t)15;
    const size_t to = (size_t)(stage_source(a, at, channel) + h1 * W) & ~(size_t)15;
    if (to > from) bulk_prefetch((const void *)from, (u32)(to - from));
}

__device__ __forceinline__ void load_role(shared_memory &s, const tc_args &a, const schedule &order)
{
    constexpr int BLOCKS = STREAM ? MBLOCKS : 1, PER_STRIP = BLOCKS * NSTAGE;
    const int t = threadIdx.x - WARP_LOAD * 32;
    const int total = order.turns() * PER_STRIP;
    float scale = 64.f;
    int turn = 0; // barriers passed
    for (int g = 0; g < total; g++) {
        const int slot = g % TC_STAGES, stage = g % NSTAGE, block = g / NSTAGE % BLOCKS, channel = stage * SPS * 8;
        bool finish;
        const strip_at at = strip_position(order.get(g / PER_STRIP, finish));
        u64 *full = &s.full[TC_PASS == PASS_BOTH && finish][slot];
        if (g % PER_STRIP == 0 && g / PER_STRIP + AHEAD < order.turns()) {
            bool later;
            const int next = order.get(g / PER_STRIP + AHEAD, later);
            if (!later || TC_PASS != PASS_BOTH) prefetch_strip(a, strip_position(next), t);
        }
        mbar_wait(&s.empty[slot], (g / TC_STAGES & 1) ^ 1);
        if (STREAM && t == 0) {
            mbar_arrive_expect(full, WSTAGE);
            bulk_load(s.w + slot * WSTAGE, (const char *)a.packed + (size_t)(block * NSTAGE + stage) * WSTAGE, WSTAGE, full);
        }
        float largest;
        for (int attempt = 0;; attempt++) {
            largest = 0;
            for (int i = 0; i < SPS; i++) {
                const int first = channel + i * 8, channels = C % 8 == 0 && SLICES % SPS == 0 ? 8 : min(8, C - first);
                largest = max_nan(largest, stage_slice(s.x + slot * XSTAGE + i * SLICE * 16, stage_source(a, at, min(first, C - 1)),
                                                       at, channels, scale, t));
            }
            largest = role_largest(s, turn++, largest);
            const float top = largest * scale;
            if ((top >= 1.f && top <= 32768.f) || largest == 0.f || !(largest < __int_as_float(0x7f800000)) || attempt) break;
            const int exponent = 9 + 127 - (int)(__float_as_uint(largest) >> 23); // brings the largest to 2^9 .. 2^10
            scale = __int_as_float((max(min(exponent, 126), -126) + 127) << 23);
        }
        if (t == 0) {
            s.unscale[slot] = 1.f / scale;
            s.odd[slot] = !(largest < __int_as_float(0x7f800000));
        }
        fence_proxy_async();
        __syncwarp();
        if (t % 32 == 0) mbar_arrive(full);
    }
}
