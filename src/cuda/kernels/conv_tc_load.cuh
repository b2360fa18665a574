// conv_tc_load.cuh - the staging role: fp32 NCHW from global memory -> scaled fp16 planes in shared memory.
//
// A thread takes two pixels of 8 channels at a time (one pack, or two where x is not aligned in pairs), neighbouring threads
// neighbouring columns, and writes 16 bytes per pixel and part: neither side conflicts. The next two are in flight meanwhile. Padding, ragged channels and the image's edges are zeros put in here. Rows of
// the strips to come are prefetched into L2, so that a batch waits for L2 and not for DRAM.
//
// Range. A stage is scaled by a power of two. The role keeps the last one while the largest |x| times it stays in 1 .. 2^15 and else
// converts the stage again with a new one; fp16 never overflows, and what it rounds away is below 2^-24 of the largest value. An inf or
// NaN marks the stage: the multiplying role then sums it exactly (0 * inf of a padded operand would spread it too far).
#pragma once
#include "conv_tc.cuh"

constexpr int PACKS = ROWSIN * COLPACKS, BATCH = 2 / XVEC; // packs of a slice; of a thread at a time: two pixels
constexpr int BATCHES = cdiv(SPS * PACKS, LOADERS * BATCH), AHEAD = 2; // of a stage; strips prefetched ahead

// Eight channels of a pixel, scaled, as 16 bytes of hi and of lo.
struct pixel_parts {
    uint4 part[PARTS];
};
__device__ __forceinline__ pixel_parts convert_pixel(const float (&v)[8], float scale)
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
    pixel_parts p;
    p.part[0] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    if (PARTS == 2) p.part[PARTS - 1] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
    return p;
}
__device__ __forceinline__ uint4 either(bool first, const uint4 &a, const uint4 &b)
{
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}
__device__ __forceinline__ void store_pixel(char *dst, const pixel_parts &a)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) *(uint4 *)(dst + i * (XPART * 16)) = a.part[i];
}
// Two neighbouring pixels of one plane; lanes 4-7 of each 8 store them in the other order, so that 8 lanes meet 8 different banks of 16
// bytes. One part: exchange the results, two: the values, which are fewer and die sooner.
__device__ __forceinline__ void store_pair(char *dst, float (&x)[8], float (&y)[8], float scale)
{
    const bool straight = !(threadIdx.x & 4);
    char *first = dst + (straight ? 0 : 16), *second = dst + (straight ? 16 : 0);
    if (PARTS == 1) {
        const pixel_parts a = convert_pixel(x, scale), b = convert_pixel(y, scale);
        *(uint4 *)first = either(straight, a.part[0], b.part[0]);
        *(uint4 *)second = either(straight, b.part[0], a.part[0]);
        return;
    }
#pragma unroll
    for (int c = 0; c < 8; c++) {
        const float a = x[c], b = y[c];
        x[c] = straight ? a : b, y[c] = straight ? b : a;
    }
    store_pixel(first, convert_pixel(x, scale));
    store_pixel(second, convert_pixel(y, scale));
}

// Where a stage comes from: its first channel's plane, and where the strip begins in it.
struct stage_at {
    const float *x;
    int h0, w0, channels; // channels that exist from the first one on
};
__device__ __forceinline__ stage_at stage_position(const tc_args &a, const strip_at &at, int channel)
{
    return {a.x + ((size_t)at.n * C + channel) * (H * W), at.p0 * ST - TC_PADH, at.q0 * ST - TC_PADW, C - channel};
}

// Two pixels of 8 channels, as they are in memory.
struct batch {
    float v[BATCH][XVEC][8];
};
// Pack i of a stage: which slice, row and column.
struct pack_at {
    int slice, row, col;
};
__device__ __forceinline__ pack_at pack_position(int i)
{
    const int slice = SPS == 1 ? 0 : i / PACKS, p = i - slice * PACKS, row = p / COLPACKS;
    return {slice, row, (p - row * COLPACKS) * XVEC};
}
__device__ __forceinline__ void load_batch(batch &b, const stage_at &from, int turn)
{
    const int t = threadIdx.x - WARP_LOAD * 32;
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
        const int i = (turn * BATCH + u) * LOADERS + t;
        const pack_at p = pack_position(i);
        const int h = from.h0 + p.row, w = from.w0 + p.col, channels = from.channels - p.slice * 8;
        const bool inside = i < SPS * PACKS && (unsigned)h < (unsigned)H && (unsigned)w < (unsigned)W; // W is whole packs
        const float *src = from.x + (inside ? p.slice * (8 * H * W) + h * W + w : 0);
        asm("" : "+l"(src)); // one address, the channels as immediate offsets
#pragma unroll
        for (int c = 0; c < 8; c++) {
#pragma unroll
            for (int j = 0; j < XVEC; j++) b.v[u][j][c] = 0.f;
            if (!inside || (C % (8 * SPS) && c >= channels)) continue;
            if (XVEC == 2) {
                const float2 v = __ldg((const float2 *)(src + c * (H * W)));
                b.v[u][0][c] = v.x, b.v[u][XVEC - 1][c] = v.y;
            } else
                b.v[u][0][c] = __ldg(src + c * (H * W));
        }
    }
}
// A batch, scaled, to the stage at dst; largest: |x| seen so far (NaN if there was one).
__device__ __forceinline__ void store_batch(char *dst, batch &b, int turn, float scale, float &largest)
{
    const int t = threadIdx.x - WARP_LOAD * 32;
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
        const int i = (turn * BATCH + u) * LOADERS + t;
        const pack_at p = pack_position(i);
#pragma unroll
        for (int c = 0; c < 8 * XVEC; c++) largest = max_nan(largest, fabsf(b.v[u][c / 8][c % 8]));
        if (i >= SPS * PACKS) continue;
        char *to = dst + (p.slice * SLICE + p.row % ST * ST * PHASE + p.row / ST * PITCH) * 16;
        if constexpr (XVEC == 2 && ST == 1)
            store_pair(to + p.col * 16, b.v[u][0], b.v[u][XVEC - 1], scale);
        else // pixels of a pack belong to different phases
#pragma unroll
            for (int j = 0; j < XVEC; j++)
                store_pixel(to + ((p.col + j) % ST * PHASE + (p.col + j) / ST) * 16, convert_pixel(b.v[u][j], scale));
    }
}
// Stage g of the block.
constexpr int PER_STRIP = STREAM ? MBLOCKS * NSTAGE : 1; // stages of a strip
__device__ __forceinline__ stage_at stage_of(const tc_args &a, const schedule &order, int g)
{
    bool finish;
    return stage_position(a, strip_position(order.get(g / PER_STRIP, finish)), g % NSTAGE * SPS * 8);
}
// Converts stage g, which begins at `from`; a holds its first batch. At the end both are the next stage's: loads run ahead of
// conversions all the time.
__device__ __forceinline__ float convert_stage(char *dst, batch &a, stage_at &from, const tc_args &args, const schedule &order, int g,
                                               float scale)
{
    float largest = 0;
    batch b;
#pragma unroll 1
    for (int i = 0; i + 1 < BATCHES; i += 2) {
        load_batch(b, from, i + 1);
        store_batch(dst, a, i, scale, largest);
        if (i + 2 >= BATCHES) from = stage_of(args, order, g + 1);
        load_batch(a, from, i + 2 >= BATCHES ? 0 : i + 2);
        store_batch(dst, b, i + 1, scale, largest);
    }
    if (BATCHES % 2) {
        from = stage_of(args, order, g + 1);
        load_batch(b, from, 0);
        store_batch(dst, a, BATCHES - 1, scale, largest);
        a = b;
    }
    return largest;
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
    const float *plane = stage_position(a, at, channel).x;
    const size_t from = (size_t)(plane + h0 * W) & ~(size_t)15, to = (size_t)(plane + h1 * W) & ~(size_t)15;
    if (to > from) bulk_prefetch((const void *)from, (u32)(to - from));
}

__device__ __forceinline__ void load_role(shared_memory &s, const tc_args &a, const schedule &order)
{
    const int t = threadIdx.x - WARP_LOAD * 32, total = order.turns() * PER_STRIP;
    float scale = 64.f;
    int turn = 0; // barriers passed
    stage_at from = stage_of(a, order, 0);
    batch first;
    load_batch(first, from, 0);
#pragma unroll 1
    for (int g = 0; g < total; g++) {
        const int slot = g % TC_STAGES;
        bool finish;
        if (g % PER_STRIP == 0 && g / PER_STRIP + AHEAD < order.turns())
            prefetch_strip(a, strip_position(order.get(g / PER_STRIP + AHEAD, finish)), t);
        order.get(g / PER_STRIP, finish);
        u64 *full = &s.full[BOTH && finish][slot];
        mbar_wait(&s.empty[slot], (g / TC_STAGES & 1) ^ 1);
        if (STREAM && t == 0) {
            mbar_arrive_expect(full, WSTAGE);
            bulk_load(s.w + slot * WSTAGE, (const char *)a.packed + (size_t)(g % PER_STRIP) * WSTAGE, WSTAGE, full);
        }
        char *dst = s.x + slot * XSTAGE;
        const int until = min(g, total - 2); // behind the last stage nothing is loaded but that again
        const float largest = role_largest(s, turn++, convert_stage(dst, first, from, a, order, until, scale)), top = largest * scale;
        const bool odd = !(largest < __int_as_float(0x7f800000));
        if (!odd && largest != 0.f && !(top >= 1.f && top <= 32768.f)) { // another power of two, and the stage once more
            const int exponent = 9 + 127 - (int)(__float_as_uint(largest) >> 23); // brings the largest to 2^9 .. 2^10
            scale = __int_as_float((max(min(exponent, 126), -126) + 127) << 23);
            from = stage_of(a, order, g);
            load_batch(first, from, 0);
            convert_stage(dst, first, from, a, order, until, scale);
        }
        if (t == 0) s.unscale[slot] = 1.f / scale, s.odd[slot] = odd;
        fence_proxy_async();
        __syncwarp();
        if (t % 32 == 0) mbar_arrive(full);
    }
}
