// conv_tc_load.cuh - the staging role: NCHW from global memory -> planes of 16-bit words in shared memory.
//
// A thread takes BATCH packs of one or two pixels and 8 channels at a time (8 loads each, neighbouring threads
// neighbouring columns) and writes 16 bytes per pixel and part: neither side conflicts. Padding, ragged channels
// and the image's edges are zeros written here. Rows of the next strips are prefetched into L2, so a batch
// waits for L2 and not for DRAM.
//
// Range. A stage is scaled by a power of two, one of 2^(6 + 15 j): the one that brings its largest |x| to 1 ..
// 2^15 (SHIFTED: 13 for 15, since values may move away from zero by 1.5 times as much). The role tries the last
// one, and converts the stage again if it needs another; fp16 never overflows, and its rounding error is below
// 2^-24 of the largest value. An inf or NaN marks the stage, one among the weights every stage: the multiplying
// role then sums it exactly (0 * inf of a padded operand would spread it too far). DIRECT: nothing is scaled.
#pragma once
#include "conv_tc_pixel.cuh"

constexpr bool ALL_CHANNELS = C % 8 == 0 && cdiv(C, 8) % SLICES == 0; // every slice of every stage has eight
constexpr int BATCH = (THREADS == 640 && (ST > 1 || SLICES > 1 || (BOTH && PARTS == 2)) ? 2 : 4) / XVEC,
              AHEAD = 2; // packs of a thread in flight, 8 loads each; strips prefetched ahead

constexpr int OCTAVES = SHIFTED ? 13 : 15; // of the largest |x| that a scale is for

__device__ __forceinline__ const X_TYPE *stage_source(const tc_args &a, const strip_at &at, int first)
{
    return a.x + ((size_t)at.n * C + first) * (H * W);
}

// The largest |x| over the role's threads.
__device__ __forceinline__ float role_largest(shared_memory &s, int turn, float v)
{
    const int warp = threadIdx.x / 32 - WARP_LOAD;
    const u32 most_bits =
        __reduce_max_sync(~0u, __float_as_uint(v)); // v >= 0 or NaN: bits order as values do, NaN last
    if (threadIdx.x % 32 == 0) s.largest[turn & 1][warp] = most_bits;
    named_barrier(BAR_LOAD, LOADERS);
    const u32 *l = s.largest[turn & 1];
    u32 all = l[0];
#pragma unroll
    for (int i = 1; i < LOADWARPS; i++) all = max(all, l[i]);
    return __uint_as_float(all);
}

// The one of 2^(6 + OCTAVES j) that brings a largest |x| to 1 .. 2^OCTAVES. No other would: what became of the
// strips before does not show.
__device__ __forceinline__ float scale_of(float largest)
{
    const int exponent = (int)(__float_as_uint(largest) >> 23) - 127;
    const int steps = (OCTAVES - 7 - exponent + OCTAVES * 16) / OCTAVES - 16;
    return __int_as_float((max(min(6 + OCTAVES * steps, 126), -126) + 127) << 23);
}

// The rows of a strip's first slices, one thread per channel, whole 16-byte words.
__device__ __forceinline__ void prefetch_strip(const tc_args &a, const strip_at &at, int channel)
{
    const int h0 = max(at.p0 * ST - TC_PADH, 0), h1 = min(at.p0 * ST - TC_PADH + ROWSIN, H);
    if (TC_XLAST && h0 + channel < h1) // a row each
        bulk_prefetch(a.x + x_index(at.n, 0, h0 + channel, 0), W * C * (u32)sizeof(X_TYPE));
    if (TC_XLAST || channel >= least(C, SLICES * 8) || h1 <= h0) return;
    const size_t from = (size_t)(stage_source(a, at, channel) + h0 * W) & ~(size_t)15;
    const size_t to = (size_t)(stage_source(a, at, channel) + h1 * W) & ~(size_t)15;
    if (to > from) bulk_prefetch((const void *)from, (u32)(to - from));
}

// ---- ordinary loads ----

struct x_loads {
    const tc_args &a;
    int t;
    __device__ __forceinline__ x_loads(shared_memory &, const tc_args &args, const schedule &, int thread)
        : a(args), t(thread)
    {
    }
    // One slice of 8 channels.
    __device__ __forceinline__ float convert_slice(char *dst, const X_TYPE *x, const strip_at &at, int channels,
                                                   x_range range)
    {
        constexpr int PACKS = ROWSIN * COLPACKS;
        const int h0 = at.p0 * ST - TC_PADH, w0 = at.q0 * ST - TC_PADW;
        x_seen seen;
#pragma unroll 1
        for (int base = t; base < PACKS; base += LOADERS * BATCH) {
            x_pack v[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                const int i = base + u * LOADERS, row = i / COLPACKS, h = h0 + row,
                          w = w0 + (i - row * COLPACKS) * XVEC;
                const bool inside =
                    i < PACKS && (unsigned)h < (unsigned)H && (unsigned)w < (unsigned)W; // W is whole packs
                const X_TYPE *src = x + (inside ? h * W + w : 0);
                one_address(src);
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    v[u].clear(c);
                    if (inside && c < channels) v[u].load(c, src + c * (H * W));
                }
            }
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                const int i = base + u * LOADERS, row = i / COLPACKS;
                seen.add(v[u]);
                if (i < PACKS) put_pack(dst, row, (i - row * COLPACKS) * XVEC, v[u], range);
            }
        }
        return seen.largest();
    }
    // Stages the slices from `channel` on; returns the largest |x| this thread saw (NaN if it saw one). May choose
    // the shift.
    __device__ __forceinline__ float convert(char *dst, const strip_at &at, int channel, x_range &range)
    {
        float largest = 0;
        for (int i = 0; i < SLICES; i++) {
            const int first = channel + i * 8, channels = ALL_CHANNELS ? 8 : min(8, C - first);
            largest = max_nan(largest, convert_slice(dst + i * SLICE * 16, stage_source(a, at, min(first, C - 1)),
                                                     at, channels, range));
        }
        return largest;
    }
};

// ---- channels last ----

#if TC_XLAST
// A load brings eight channels of a pixel, as they are staged.
struct x_last {
    static constexpr int EACH = THREADS == 640 ? 4 : 8; // loads of a thread on their way: registers
    const tc_args &a;
    int t;
    __device__ __forceinline__ x_last(shared_memory &, const tc_args &args, const schedule &, int thread)
        : a(args), t(thread)
    {
    }
    // As x_loads'.
    __device__ __forceinline__ float convert(char *dst, const strip_at &at, int channel, x_range &)
    {
        constexpr int PIXELS = ROWSIN * COLSIN;
        const int h0 = at.p0 * ST - TC_PADH, w0 = at.q0 * ST - TC_PADW;
        x_seen seen;
#pragma unroll 1
        for (int slice = 0; slice < SLICES; slice++) {
            const int first = channel + slice * 8;
#pragma unroll 1
            for (int base = t; base < PIXELS; base += LOADERS * EACH) {
                uint4 v[EACH];
#pragma unroll
                for (int u = 0; u < EACH; u++) {
                    const int i = base + u * LOADERS, row = i / COLSIN, h = h0 + row, w = w0 + i - row * COLSIN;
                    const bool inside =
                        i < PIXELS && first < C && (unsigned)h < (unsigned)H && (unsigned)w < (unsigned)W;
                    v[u] = make_uint4(0, 0, 0, 0);
                    if (inside) v[u] = __ldg((const uint4 *)(a.x + x_index(at.n, first, h, w)));
                }
#pragma unroll
                for (int u = 0; u < EACH; u++) {
                    const int i = base + u * LOADERS, row = i / COLSIN;
                    seen.add(v[u]);
                    if (i < PIXELS) *(uint4 *)pixel_place(dst + slice * SLICE * 16, row, i - row * COLSIN) = v[u];
                }
            }
        }
        return seen.largest();
    }
};
// PLACED: the pixels are there already, and are looked at for infs and NaNs.
struct x_placed {
    static constexpr int EACH = 4; // loads of a thread on their way
    shared_memory &s;
    int t, u; // thread; stages seen so far
    __device__ __forceinline__ x_placed(shared_memory &memory, const tc_args &, const schedule &, int thread)
        : s(memory), t(thread), u(0)
    {
    }
    // As x_loads'.
    __device__ __forceinline__ float convert(char *dst, const strip_at &, int, x_range &)
    {
        constexpr int PIXELS = ROWSIN * COLSIN;
        x_seen seen;
        mbar_wait(&s.rawfull[u % TC_STAGES], u / TC_STAGES & 1);
        u++;
#pragma unroll 1
        for (int slice = 0; slice < SLICES; slice++)
#pragma unroll 1
            for (int base = t; base < PIXELS; base += LOADERS * EACH) {
                uint4 v[EACH];
#pragma unroll
                for (int i = 0; i < EACH; i++) // of the last pixels the last one again
                    v[i] = *(const uint4 *)(dst + (slice * SLICE + min(base + i * LOADERS, PIXELS - 1)) * 16);
#pragma unroll
                for (int i = 0; i < EACH; i++) seen.add(v[i]);
            }
        return seen.largest();
    }
};
#else
typedef x_loads x_last;
typedef x_loads x_placed;
#endif

// ---- TMA ----

// Issues the copies of all parcels, in the order of the stages, as far ahead as the ring allows. One thread. (A
// staging thread that does it in passing holds up its role: C took 0.54 ms instead of 0.43.)
__device__ __forceinline__ void copy_role(shared_memory &s, const tensor_map &map, const schedule &order)
{
    const int total = order.turns() * PER_STRIP;
    int u = 0;
    for (int g = 0; g < total; g++) {
        bool finish;
        const strip_at at = strip_position(order.get(g / PER_STRIP, finish));
        for (int i = 0; i < SLICES * PARCELS; i++, u++) {
            const int b = u % TC_RAWS;
            mbar_wait(&s.rawempty[b], (u / TC_RAWS & 1) ^ 1);
            mbar_arrive_expect(&s.rawfull[b], PARCEL * 8 * (u32)sizeof(X_TYPE));
            tensor_load(s.raw[b], &map, at.q0 * ST - TC_PADW, at.p0 * ST - TC_PADH + i % PARCELS * UROWS,
                        (g % NSTAGE * SLICES + i / PARCELS) * 8, at.n, &s.rawfull[b]);
        }
    }
}
// PLACED: the copies of all stages, as far ahead as there are stages. One thread.
__device__ __forceinline__ void place_role(shared_memory &s, const tensor_map &map, const schedule &order)
{
    const int total = order.turns() * PER_STRIP;
    for (int g = 0; g < total; g++) {
        bool finish;
        const strip_at at = strip_position(order.get(g / PER_STRIP, finish));
        const int slot = g % TC_STAGES;
        mbar_wait(&s.empty[slot], (g / TC_STAGES & 1) ^ 1);
        mbar_arrive_expect(&s.rawfull[slot], SLICES * ROWSIN * COLSIN * 16);
        for (int i = 0; i < SLICES; i++)
            tensor_load(s.x + slot * XSTAGE + i * (SLICE * 16), &map, (g % NSTAGE * SLICES + i) * 8,
                        at.q0 - TC_PADW, at.p0 - TC_PADH, at.n, &s.rawfull[slot]);
    }
}
// A float's bits as an integer that orders as it does; its own inverse.
__device__ __forceinline__ int order_key(int bits)
{
    return bits ^ (bits >> 31 & 0x7fffffff);
}
struct x_parcels {
    shared_memory &s;
    u32 t, u; // thread; parcels converted so far
    __device__ __forceinline__ x_parcels(shared_memory &memory, const tc_args &, const schedule &, int thread)
        : s(memory), t(thread), u(0)
    {
    }
    // SHIFTED: a power of two near the middle of the lanes' means of 8 values all over a parcel; 0 if these are
    // of both signs, or so large that sums might overflow. Whatever it is, it depends on the stage's own values
    // alone, and all warps find the same. Few instructions: the role waits for it, and in C the others wait for the
    // role.
    __device__ __forceinline__ float offset(const void *parcel) const
    {
        const float *from = (const float *)parcel + t % least(8, C) * PARCEL + t / 8 % 4 * (PARCEL / 32 * 4);
        const float4 a = *(const float4 *)from, b = *(const float4 *)(from + PARCEL / 8 * 4);
        const int key = order_key(__float_as_int(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w))));
        const int low = __reduce_min_sync(~0u, key), high = __reduce_max_sync(~0u, key);
        const float middle = (__int_as_float(order_key(low)) + __int_as_float(order_key(high))) * (1.f / 16);
        const bool usable = (low ^ high) >= 0 && fabsf(middle) < 1e18f;
        return usable ? __uint_as_float((__float_as_uint(middle) + 0x400000u) & 0xff800000u) : 0.f;
    }
    // As x_loads'.
    __device__ __forceinline__ float convert(char *dst, const strip_at &, int, x_range &range)
    {
        constexpr u32 PACKS = PARCEL / XVEC, ROW = UCOLS / XVEC, TURNS = cdiv(PACKS, LOADERS);
        constexpr bool ROWS_FIT = ROWSIN % UROWS == 0, COLS_FIT = UCOLS <= COLPACKS * XVEC;
        x_seen seen;
#pragma unroll 1
        for (int slice = 0; slice < SLICES; slice++)
#pragma unroll 1
            for (int row0 = 0; row0 < ROWSIN; row0 += UROWS, u++) {
                const u32 b = u % TC_RAWS;
                mbar_wait(&s.rawfull[b], u / TC_RAWS & 1);
                if (SHIFTED && slice == 0 && row0 == 0) range.set(range.scale, offset(s.raw[b][0]));
#pragma unroll 1
                for (u32 turn = 0; turn < TURNS; turn++) {
                    const u32 p = t + turn * LOADERS, row = row0 + p / ROW, col = p % ROW * XVEC;
                    if (PACKS % LOADERS && p >= PACKS) break;
                    x_pack v;
#pragma unroll
                    for (int c = 0; c < 8; c++) v.set(c, &s.raw[b][c][XVEC * p]);
                    seen.add(v);
                    if ((ROWS_FIT || row < ROWSIN) && (COLS_FIT || col < COLPACKS * XVEC))
                        put_pack(dst + slice * SLICE * 16, row, col, v, range);
                }
                warp_arrive(&s.rawempty[b]);
            }
        return seen.largest();
    }
};

// ---- whole rows ----

constexpr int ALIGN = 16 / (int)sizeof(X_TYPE); // elements in 16 bytes
constexpr size_t WHOLE_BYTES = ~(size_t)(ALIGN - 1);

// What a parcel holds of the image: rows lo ... hi - 1, the first of them staged row `from`.
struct parcel_rows {
    int from, lo, hi;
    __device__ __forceinline__ parcel_rows(const strip_at &at, int parcel) : from(parcel * UROWS)
    {
        const int h = at.p0 * ST - TC_PADH;
        lo = max(h + from, 0), hi = max(min(h + least(from + UROWS, ROWSIN), H), lo);
    }
};
// The first of them, channel k: its place in x.
__device__ __forceinline__ size_t parcel_start(const strip_at &at, const parcel_rows &rows, int k)
{
    return (((size_t)at.n * C + k) * H + rows.lo) * W;
}
// As copy_role, a channel each by the warp's first 8 lanes. x may end in the middle of 16 bytes, which are not
// copied.
__device__ __forceinline__ void copy_rows_role(shared_memory &s, const tc_args &a, const schedule &order)
{
    const int total = order.turns() * PER_STRIP, c = threadIdx.x % 32;
    const size_t end = (size_t)a.n * (C * H * W) & WHOLE_BYTES;
    int u = 0;
    for (int g = 0; g < total; g++) {
        bool finish;
        const strip_at at = strip_position(order.get(g / PER_STRIP, finish));
        for (int i = 0; i < SLICES * PARCELS; i++, u++) {
            const int b = u % TC_RAWS, k = (g % NSTAGE * SLICES + i / PARCELS) * 8 + c;
            const parcel_rows rows(at, i % PARCELS);
            const size_t first = parcel_start(at, rows, k), from = first & WHOLE_BYTES,
                         to = min((first + (rows.hi - rows.lo) * W + ALIGN - 1) & WHOLE_BYTES, end);
            const u32 bytes = k < C && rows.hi > rows.lo && to > from ? (u32)(to - from) * (u32)sizeof(X_TYPE) : 0;
            mbar_wait(&s.rawempty[b], (u / TC_RAWS & 1) ^ 1);
            mbar_arrive_expect(&s.rawfull[b], bytes);
            if (bytes) bulk_load(s.raw[b][c], a.x + from, bytes, &s.rawfull[b]);
        }
    }
}
struct x_rows {
    static constexpr int EACH = 2; // pixels of a thread at a time
    shared_memory &s;
    const tc_args &a;
    int t, u; // thread; parcels converted so far
    __device__ __forceinline__ x_rows(shared_memory &memory, const tc_args &args, const schedule &, int thread)
        : s(memory), a(args), t(thread), u(0)
    {
    }
    // The elements after the last whole 16 bytes of x, where this parcel has them.
    __device__ __forceinline__ void add_end(const strip_at &at, const parcel_rows &rows, int first, int b)
    {
        constexpr int LAST = C - 1;
        if (C * H * W % ALIGN == 0 || at.n < a.n - 1 || LAST < first || LAST >= first + 8 || rows.hi == rows.lo)
            return;
        const size_t whole = (size_t)a.n * (C * H * W) & WHOLE_BYTES, first_at = parcel_start(at, rows, LAST),
                     stop = first_at + (rows.hi - rows.lo) * W, i = whole + t;
        if (stop <= whole) return;
        if (i < stop) s.raw[b][LAST - first][i - (first_at & WHOLE_BYTES)] = a.x[i];
        fence_proxy_async();
        named_barrier(BAR_LOAD, LOADERS);
    }
    __device__ __forceinline__ float convert_parcel(char *dst, const strip_at &at, int parcel, int first, int b,
                                                    x_range range)
    {
        const parcel_rows rows(at, parcel);
        const int h0 = at.p0 * ST - TC_PADH;
        const X_TYPE *raw = &s.raw[b][0][0];
        // The number of offsets within 16 bytes that a channel can begin at.
        constexpr int SHIFTS = H * W % ALIGN == 0 ? 1
                               : H * W % 4 == 0   ? ALIGN / 4
                               : H * W % 2 == 0   ? ALIGN / 2
                                                  : ALIGN;
        int base[SHIFTS]; // of pixel (0, 0), with the first channel's place
#pragma unroll
        for (int c = 0; c < SHIFTS; c++)
            base[c] = (int)(parcel_start(at, rows, first + c) & (ALIGN - 1)) - rows.lo * W - TC_PADW;
        x_seen seen;
#pragma unroll 1
        for (int p0 = t; p0 < UROWS * COLSIN; p0 += EACH * LOADERS) {
            x_pack v[EACH];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int p = p0 + e * LOADERS, row = p / COLSIN, h = h0 + rows.from + row, col = p - row * COLSIN;
                const bool inside = h >= rows.lo && h < rows.hi && (unsigned)(col - TC_PADW) < (unsigned)W;
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    v[e].clear(c);
                    if (inside && (ALL_CHANNELS || first + c < C))
                        v[e].set(c, raw + base[c % SHIFTS] + c * PARCEL + h * W + col);
                }
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int p = p0 + e * LOADERS, row = p / COLSIN, r = rows.from + row;
                seen.add(v[e]);
                if (row < UROWS && r < ROWSIN) put_pack(dst, r, p - row * COLSIN, v[e], range);
            }
        }
        return seen.largest();
    }
    // As x_parcels'.
    __device__ __forceinline__ float convert(char *dst, const strip_at &at, int channel, x_range &range)
    {
        float largest = 0;
#pragma unroll 1
        for (int i = 0; i < SLICES * PARCELS; i++, u++) {
            const int b = u % TC_RAWS, slice = i / PARCELS, first = channel + slice * 8;
            mbar_wait(&s.rawfull[b], u / TC_RAWS & 1);
            add_end(at, parcel_rows(at, i % PARCELS), first, b);
            largest = max_nan(largest, convert_parcel(dst + slice * SLICE * 16, at, i % PARCELS, first, b, range));
            warp_arrive(&s.rawempty[b]);
        }
        return largest;
    }
};

// A stage once more, by single loads: what was copied is gone when a new scale turns out to be needed. Rare, so two
// channels at a time: few registers.
__device__ __forceinline__ void restage(char *dst, const tc_args &a, const strip_at &at, int channel, x_range range,
                                        int t)
{
    const int h0 = at.p0 * ST - TC_PADH, w0 = at.q0 * ST - TC_PADW;
#pragma unroll 1
    for (int i = t; i < SLICES * ROWSIN * COLSIN * 4; i += LOADERS) {
        const int pair = i % 4, slice = i / (ROWSIN * COLSIN * 4), row = i / (COLSIN * 4) % ROWSIN,
                  col = i / 4 % COLSIN, h = h0 + row, w = w0 + col, k = channel + slice * 8 + 2 * pair;
        const bool inside = (unsigned)h < (unsigned)H && (unsigned)w < (unsigned)W;
        const X_TYPE *src = a.x + (((size_t)at.n * C + k) * H + h) * W + w;
        const float x = range.of(inside && k < C ? cvy_get(src) : 0.f),
                    y = range.of(inside && k + 1 < C ? cvy_get(src + H * W) : 0.f);
        char *to = dst + (slice * SLICE + (row % ST * ST + col % ST) * PHASE + row / ST * PITCH + col / ST) * 16 +
                   4 * pair;
        const u32 hi = pack_f16(x, y);
        *(u32 *)to = hi;
        if (PARTS == 2) {
            float fx, fy;
            unpack_f16(hi, fx, fy);
            *(u32 *)(to + XPART * 16) = pack_f16(x - fx, y - fy);
        }
    }
}

// ---- the role ----

template <int KIND> struct x_source {
    typedef x_loads type;
};
template <> struct x_source<1> {
    typedef x_parcels type;
};
template <> struct x_source<2> {
    typedef x_rows type;
};
template <> struct x_source<3> {
    typedef x_last type;
};
template <> struct x_source<4> {
    typedef x_placed type;
};

__device__ __forceinline__ void load_role(shared_memory &s, const tc_args &a, const schedule &order)
{
    const int t = threadIdx.x - WARP_LOAD * 32;
    const int total = order.turns() * PER_STRIP;
    x_source<TC_XLAST ? 3 + PLACED : COPIED + TC_ROWS>::type source(s, a, order, t);
    x_range range;
    range.set(DIRECT ? 1.f : 64.f, 0.f);
    int turn = 0; // barriers passed
    for (int g = 0; g < total; g++) {
        const int slot = g % TC_STAGES, stage = g % NSTAGE, channel = stage * SLICES * 8,
                  block = g / NSTAGE % BLOCKS * MSHARE; // the first that the stage is for
        bool finish;
        const strip_at at = strip_position(order.get(g / PER_STRIP, finish));
        u64 *full = &s.full[BOTH && finish][slot];
        if (!COPIED && !PLACED && g % PER_STRIP == 0 && g / PER_STRIP + AHEAD < order.turns()) {
            bool later;
            prefetch_strip(a, strip_position(order.get(g / PER_STRIP + AHEAD, later)), t);
        }
        mbar_wait(&s.empty[slot], (g / TC_STAGES & 1) ^ 1);
        if (STREAM && t == 0) {
            mbar_arrive_expect(full, MSHARE * WSTAGE);
            for (int i = 0; i < MSHARE; i++)
                bulk_load(s.w + (slot * MSHARE + i) * WSTAGE,
                          (const char *)a.packed + (size_t)((block + i) * NSTAGE + stage) * WSTAGE, WSTAGE, full);
        }
        float largest;
        for (int attempt = 0;; attempt++) {
            largest = 0;
            if (COPIED && attempt)
                restage(s.x + slot * XSTAGE, a, at, channel, range, t);
            else
                largest = source.convert(s.x + slot * XSTAGE, at, channel, range);
            largest = role_largest(s, turn++, largest);
            const float top = largest * range.scale;
            const bool fits = DIRECT || (top >= 1.f && top < (float)(1 << OCTAVES)) || largest == 0.f;
            if (fits || !(largest < __int_as_float(0x7f800000)) || attempt) break;
            range.set(scale_of(largest), range.offset);
        }
        if (t == 0) {
            s.unscale[slot] = 1.f / range.scale;
            s.odd[slot] = s.odd_weights || !(largest < __int_as_float(0x7f800000));
            if (SHIFTED) s.offset[slot] = s.odd[slot] ? 0.f : range.offset; // exact sums are of x itself
        }
        fence_proxy_async();
        warp_arrive(full);
    }
}
