// wide_words.cuh - x [n][C_IN][D][H][W], after the prologue's operators, -> words (conv_wide.cuh). Shared by
// conv_wide_words.cu and conv_wide_rescale.cu.
//
//   thread -> data: 64 places of the list x 64 channels at a time.
//   x lies along its pixels: lane l of warp v reads places l and l + 32 of the channel pairs v, v + 8, ...: whole
//   lines; words go through shared memory, [place][33 pairs], so neither side has bank conflicts,
//   and leave as 16 bytes of a place for each thread, 128 bytes for eight of them.
//   x lies channels last (X_LAST): a thread reads and writes eight channels of a place by one access.
//   x has any other layout (SRC_DENSE 0): lane l of warp v reads channels 2l and 2l + 1 of the places v, v + 8,
//   ..., and writes them: whole lines on both sides if its channels are neighbours.
#ifndef CVY_WIDE_WORDS_CUH
#define CVY_WIDE_WORDS_CUH

#include "conv_wide.cuh"

constexpr int THREADS = BLOCK_THREADS, WARPS = THREADS / 32, SIDE = WIDE_STRETCH;
constexpr int OF_LIST = cdiv(FLAT_SAMPLE, SIDE),
              STRETCHES = LISTS * OF_LIST; // stretches of a list, of a sample
constexpr int PAIRS = WIDE_CHANNELS / 2, PAIR_PITCH = PAIRS + 1, EACH = SIDE * PAIRS / THREADS;
static_assert(SIDE == 64 && PAIRS == 32 && WARPS * EACH == 2 * PAIRS, "tiles of 64 x 64");

struct words_tile {
    u32 pairs[PARTS][SIDE][PAIR_PITCH];
};

// What a block turns into words at a time: a stretch of a list of a sample, 64 channels of it.
struct words_stretch {
    int n, list, first, slice;
};

CVY_INLINE words_stretch find_stretch(int n, int slice, int stretch)
{
    const words_stretch c = {n, stretch / OF_LIST, stretch % OF_LIST * SIDE, slice};
    return c;
}

// A place of the list as a pixel of x. One in a gap is the first pixel, so that it can be read without
// a test.
struct source_pixel {
    cvy_at at;
    bool exists;
};

CVY_INLINE source_pixel find_source(const words_stretch &c, int place)
{
    constexpr int EVERY_D = TRANSPOSED ? 1 : STRIDE_D, EVERY_H = TRANSPOSED ? 1 : STRIDE_H,
                  EVERY_W = TRANSPOSED ? 1 : STRIDE_W;
    const int at = c.first + place;
    const int d = at / FLAT_PLANE * EVERY_D + c.list / (EVERY_H * EVERY_W);
    const int h = at % FLAT_PLANE / FLAT_ROW * EVERY_H + c.list / EVERY_W % EVERY_H;
    const int w = at % FLAT_ROW * EVERY_W + c.list % EVERY_W;
    source_pixel pixel;
    pixel.exists = at < FLAT_SAMPLE && d < IN_D && h < IN_H && w < IN_W;
    pixel.at.i0 = c.n, pixel.at.i1 = pixel.at.i5 = 0;
    pixel.at.i2 = pixel.exists ? d : 0, pixel.at.i3 = pixel.exists ? h : 0, pixel.at.i4 = pixel.exists ? w : 0;
    pixel.at.lin = ((cvy_index)c.n * C_IN * IN_D + pixel.at.i2) * (IN_H * IN_W) + pixel.at.i3 * IN_W + pixel.at.i4;
    return pixel;
}

CVY_INLINE cvy_at channel_at(const source_pixel &pixel, int channel)
{
    cvy_at at = pixel.at;
    at.i1 = channel;
    at.lin += (cvy_index)channel * (IN_D * IN_H * IN_W);
    return at;
}

#if !X_LAST
// Of a channel. Gaps and what fills up the last slice are zeros, whatever the prologue makes of 0.
CVY_INLINE float source_value(const cvy_args &a, const source_pixel &pixel, int channel)
{
    const bool exists = pixel.exists && (C_IN % WIDE_CHANNELS == 0 || channel < C_IN);
    const float v = cvy_prologue(a, channel_at(pixel, C_IN % WIDE_CHANNELS ? least(channel, C_IN - 1) : channel));
    return exists ? v : 0.0f;
}
#endif

CVY_INLINE u32 *words_at(const cvy_args &a, const words_stretch &c, int part, int place)
{
    const long long row = ((part * LISTS + c.list) * a.extent + c.n) * FLAT_SAMPLE + c.first + place;
    return reinterpret_cast<u32 *>(a.t[0].p) + (row * C_PAD + c.slice * WIDE_CHANNELS) / 2;
}

// ---- along pixels

#if !X_LAST
CVY_INLINE float words_across(const cvy_args &a, words_tile &tile, const words_stretch &c, float scale)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, channel = c.slice * WIDE_CHANNELS + 2 * warp;
    const source_pixel pixels[2] = {find_source(c, lane), find_source(c, lane + 32)};
    float v[EACH][2], most_seen = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) v[i][e] = source_value(a, pixels[i % 2], channel + i / 2 * 2 * WARPS + e);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        u32 words[PARTS];
#pragma unroll
        for (int e = 0; e < 2; e++) most_seen = larger_finite(most_seen, v[i][e]);
        pair_words(v[i][0] * scale, v[i][1] * scale, words);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            tile.pairs[part][lane + i % 2 * 32][warp + i / 2 * WARPS] = words[part];
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int i = 0; i < SIDE * 8 / THREADS; i++) {
            const int place = (threadIdx.x + i * THREADS) / 8, piece = threadIdx.x % 8;
            const u32 *from = &tile.pairs[part][place][4 * piece];
            if (c.first + place < FLAT_SAMPLE)
                reinterpret_cast<uint4 *>(words_at(a, c, part, place))[piece] =
                    make_uint4(from[0], from[1], from[2], from[3]);
        }
    return most_seen;
}
#endif

// ---- along channels

#if X_LAST
// Eight channels of a place for a thread: one access of 16 bits each.
CVY_INLINE float words_along(const cvy_args &a, const words_stretch &c, float scale)
{
    constexpr int UNIT = 8, UNITS = WIDE_CHANNELS / UNIT, TIMES = SIDE * UNITS / THREADS;
    const int unit = threadIdx.x % UNITS, channel = c.slice * WIDE_CHANNELS + unit * UNIT;
    float v[TIMES][UNIT], most_seen = 0.0f;
#pragma unroll
    for (int i = 0; i < TIMES; i++) {
        const source_pixel pixel = find_source(c, (threadIdx.x + i * THREADS) / UNITS);
        cvy_at all[UNIT];
#pragma unroll
        for (int e = 0; e < UNIT; e++) all[e] = channel_at(pixel, least(channel, C_IN - UNIT) + e);
        cvy_read(a, all, v[i]);
#pragma unroll
        for (int e = 0; e < UNIT; e++) {
            v[i][e] = pixel.exists && channel < C_IN ? v[i][e] : 0.0f;
            most_seen = larger_finite(most_seen, v[i][e]);
        }
    }
#pragma unroll
    for (int i = 0; i < TIMES; i++) {
        const int place = (threadIdx.x + i * THREADS) / UNITS;
        u32 words[UNIT / 2][PARTS];
#pragma unroll
        for (int e = 0; e < UNIT / 2; e++) pair_words(v[i][2 * e] * scale, v[i][2 * e + 1] * scale, words[e]);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            if (c.first + place < FLAT_SAMPLE)
                reinterpret_cast<uint4 *>(words_at(a, c, part, place))[unit] =
                    make_uint4(words[0][part], words[1][part], words[2][part], words[3][part]);
    }
    return most_seen;
}
#else
CVY_INLINE float words_along(const cvy_args &a, const words_stretch &c, float scale)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, channel = c.slice * WIDE_CHANNELS + 2 * lane;
    float v[EACH][2], most_seen = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const source_pixel pixel = find_source(c, warp + WARPS * i);
#pragma unroll
        for (int e = 0; e < 2; e++) v[i][e] = source_value(a, pixel, channel + e);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int place = warp + WARPS * i;
        u32 words[PARTS];
#pragma unroll
        for (int e = 0; e < 2; e++) most_seen = larger_finite(most_seen, v[i][e]);
        pair_words(v[i][0] * scale, v[i][1] * scale, words);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            if (c.first + place < FLAT_SAMPLE) words_at(a, c, part, place)[lane] = words[part];
    }
    return most_seen;
}
#endif

// Turns a stretch into words; returns the largest finite |x| that the thread has seen.
CVY_INLINE float make_words(const cvy_args &a, words_tile &tile, const words_stretch &c, float scale)
{
#if SRC_DENSE && !X_LAST
    return words_across(a, tile, c, scale);
#else
    return words_along(a, c, scale);
#endif
}

// The largest of what the block's threads bring.
CVY_INLINE float over_block(float v)
{
    __shared__ float warps[WARPS];
#pragma unroll
    for (int o = 16; o; o /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++) v = fmaxf(v, warps[i]);
    return v;
}

#endif
