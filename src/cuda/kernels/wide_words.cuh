// wide_words.cuh - x [n][C_IN][pixels] -> words (conv_wide.cuh); a sample has a scale (words.cuh). Shared by
// conv_wide_words.cu and conv_wide_rescale.cu.
//
//   thread -> data: 64 pixels x 64 channels at a time. Lane l of warp v reads pixels l and l + 32 of channels 2v,
//   2v + 1, 2v + 16, ...: rows of 128 bytes; words go through shared memory, [pixel][33 pairs], so that both sides
//   have their banks for themselves, and leave as 16 bytes of a pixel for each thread, 128 bytes for eight of them.
#ifndef CVY_WIDE_WORDS_CUH
#define CVY_WIDE_WORDS_CUH

#include "conv_wide.cuh"

constexpr int THREADS = 256, SIDE = WIDE_CHUNK;
constexpr int OF_LIST = cdiv(FLAT_SAMPLE, SIDE),
              CHUNKS = LISTS * OF_LIST; // chunks of a list, of a sample
constexpr int PAIRS = WIDE_CHANNELS / 2, PAIR_PITCH = PAIRS + 1, EACH = SIDE * PAIRS / THREADS;
static_assert(SIDE == 64 && THREADS / 32 * EACH == 2 * PAIRS, "tiles of 64 x 64");

struct words_tile {
    u32 pairs[PARTS][SIDE][PAIR_PITCH];
};

// Where place `at` of a sample's list number `list` lies in a channel of x; -1: in a gap.
CVY_INLINE int source_place(int at, int list)
{
    constexpr int EVERY_D = TRANSPOSED ? 1 : STRIDE_D, EVERY_H = TRANSPOSED ? 1 : STRIDE_H,
                  EVERY_W = TRANSPOSED ? 1 : STRIDE_W;
    const int d = at / FLAT_PLANE * EVERY_D + list / (EVERY_H * EVERY_W);
    const int h = at % FLAT_PLANE / FLAT_ROW * EVERY_H + list / EVERY_W % EVERY_H;
    const int w = at % FLAT_ROW * EVERY_W + list % EVERY_W;
    return d < IN_D && h < IN_H && w < IN_W ? (d * IN_H + h) * IN_W + w : -1;
}

// Turns a chunk of a sample's slice into words; returns the largest finite |x| that the thread has seen. The
// chunks of all lists are in one row.
CVY_INLINE float make_words(const cvy_args &a, words_tile &tile, long long n, int slice, int chunk, float scale)
{
    constexpr long long PLANE = (long long)IN_D * IN_H * IN_W;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, list = chunk / OF_LIST,
              first = chunk % OF_LIST * SIDE;
    const X_TYPE *x = cvy_as<X_TYPE>(a.t[1]) + (n * C_IN + slice * WIDE_CHANNELS) * PLANE;
    const long long pixels = a.extent * FLAT_SAMPLE;
    float v[EACH][2], most_seen = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int c = 2 * (warp + THREADS / 32 * (i / 2)), at = first + lane + i % 2 * 32;
        const int from = at < FLAT_SAMPLE ? source_place(at, list) : -1;
#pragma unroll
        for (int e = 0; e < 2; e++)
            v[i][e] =
                from >= 0 && slice * WIDE_CHANNELS + c + e < C_IN ? cvy_get(x + (c + e) * PLANE + from) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        u32 words[PARTS];
#pragma unroll
        for (int e = 0; e < 2; e++) most_seen = larger_finite(most_seen, v[i][e]);
        split_words(v[i][0] * scale, v[i][1] * scale, words);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            tile.pairs[part][lane + i % 2 * 32][warp + THREADS / 32 * (i / 2)] = words[part];
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int i = 0; i < SIDE * 8 / THREADS; i++) {
            const int pixel = (threadIdx.x + i * THREADS) / 8, piece = threadIdx.x % 8, at = first + pixel;
            const u32 *from = &tile.pairs[part][pixel][4 * piece];
            uint4 *to =
                reinterpret_cast<uint4 *>(a.t[0].p) +
                (((part * LISTS + list) * pixels + n * FLAT_SAMPLE + at) * C_PAD + slice * WIDE_CHANNELS) / 8 +
                piece;
            if (at < FLAT_SAMPLE) *to = make_uint4(from[0], from[1], from[2], from[3]);
        }
    return most_seen;
}

// The largest of what the block's threads bring.
CVY_INLINE float over_block(float v)
{
    __shared__ float warps[THREADS / 32];
#pragma unroll
    for (int o = 16; o; o /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) v = fmaxf(v, warps[i]);
    return v;
}

#endif
