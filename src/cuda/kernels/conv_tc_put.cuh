// conv_tc_put.cuh - stores the results of a tile in its chunk of shared memory: unchanged, rounded, or pooled.
#pragma once
#include "conv_tc_mma.cuh"

// Where in a chunk a tile's results go: the chunk's buffer and first channel, which of its blocks of channels they
// are, the pixel of it that is the tile's first.
struct chunk_place {
    int buffer, block, first_channel, pixel;
};

// OUT_HALF: a tile into the chunk, rounded to T.
template <class T>
__device__ __forceinline__ void put_rounded(const strip_route &w, const float (&d)[ACC], const tile_at &tile,
                                            const chunk_place &place)
{
    const strip_at &at = w.at;
    const lane_at &l = w.lane;
    float(*out)[OPITCH] = w.memory.out[place.buffer];
    const int first =
        at.p0 +
        (FLAT ? 0 : tile.band * BAND_ROWS - (place.pixel - tile.ct * TILE) / CHUNK_COLS); // row of the chunk
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (l.ch[h] >= K) continue;
        T *to = (T *)out[l.ch[h] - place.first_channel] + shift_of(at.n, l.ch[h], first);
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) {
            const u32 pair = cvy_narrow(d[4 * j + 2 * h], d[4 * j + 2 * h + 1], T());
            int row, col;
            if (FLAT) {
                if (exists(at, tile, l, j, 0, row, col))
                    ((unsigned short *)to)[row * Q + col] = (unsigned short)pair;
                if (exists(at, tile, l, j, 1, row, col)) ((unsigned short *)to)[row * Q + col] = pair >> 16;
            } else if (exists(at, tile, l, j, 1, row, col)) // pairs exist together: rows are even
                *(u32 *)(to + place.pixel + l.rr * CHUNK_COLS + 8 * j + 2 * l.q) = pair;
        }
    }
}
// OUT_LAST: a tile into the chunk, rounded to T, as [pixel][channel]. Eight pixels of eight channels are a matrix
// of stmatrix, which turns it: lane 8m + i has the address of pixel i of matrix m, of h = m % 2 and the m / 2nd of
// two j. Those that do not exist go where nothing is read.
template <class T>
__device__ __forceinline__ void put_last(const strip_route &w, const float (&d)[ACC], const tile_at &tile,
                                         const chunk_place &place)
{
    float(*out)[OPITCH] = w.memory.out[place.buffer];
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 8 % 2 * 8,
              channel = row % BLOCK_CHANNELS, first = lane / 16 * 8 + lane % 8;
    T *to = (T *)out[0] + channel, *nowhere = (T *)out[0] + L.chunk_rows * CHUNK_COLS * K;
#pragma unroll
    for (int j = 0; j < EIGHTS; j += 2) {
        u32 words[4];
#pragma unroll
        for (int m = 0; m < 4; m++) words[m] = cvy_narrow(d[4 * j + 2 * m], d[4 * j + 2 * m + 1], T());
        const int col = 8 * j + first;
        const bool there = channel < K && tile.ct * TILE + col < w.at.cols;
        store_blocks(there ? to + (place.pixel + row / BLOCK_CHANNELS * CHUNK_COLS + col) * K : nowhere, words);
    }
}
// A tile into the chunk: out[channel][dense pixel].
__device__ __forceinline__ void put_tile(const strip_route &w, const float (&d)[ACC], const tile_at &tile,
                                         const chunk_place &place)
{
    const strip_at &at = w.at;
    const lane_at &l = w.lane;
    float(*out)[OPITCH] = w.memory.out[place.buffer];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (l.ch[h] >= K) continue;
        float *to = out[l.ch[h] - place.first_channel];
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) {
            const float a = d[4 * j + 2 * h], b = d[4 * j + 2 * h + 1];
            int row, col;
            const bool oka = exists(at, tile, l, j, 0, row, col);
            if (FLAT) {
                if (oka) to[row * Q + col] = a;
                if (exists(at, tile, l, j, 1, row, col)) to[row * Q + col] = b;
                continue;
            }
            const bool okb = exists(at, tile, l, j, 1, row, col);
            const int i = place.pixel + l.rr * CHUNK_COLS + 8 * j + 2 * l.q;
            if (CHUNK_COLS % 2 == 0 && Q % 2 == 0) { // pairs exist together, 8-byte aligned
                if (okb) *(float2 *)(to + i) = make_float2(a, b);
            } else {
                if (oka) to[i] = a;
                if (okb) to[i + 1] = b;
            }
        }
    }
}
// Running maxima over the rows of a pooling band, pairs of pixels taken together.
__device__ __forceinline__ void pool_rows(float (&m)[2 * EIGHTS], const float (&d)[ACC])
{
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; i++) m[i] = max_nan(m[i], max_nan(d[2 * i], d[2 * i + 1]));
}
// Where pooled maxima go: the chunk's buffer and first channel, a row of it, how many columns of the row exist.
struct pooled_place {
    int buffer, first_channel, row, cols;
};
template <bool RAW>
__device__ __forceinline__ void put_pooled(const strip_route &w, float (&m)[2 * EIGHTS], const tile_at &tile,
                                           float unscale, const pooled_place &place)
{
    const lane_at &l = w.lane;
    float(*out)[OPITCH] = w.memory.out[place.buffer];
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; i++) {
        const int h = i & 1, col = (tile.ct * TILE + i / 2 * 8 + 2 * l.q) / TC_POOLW;
        float v = !RAW ? m[i] : fmaf(m[i], factor_of(l, unscale, h), l.bias[h]);
        if (TC_POOLW >= 4) v = max_nan(v, __shfl_xor_sync(~0u, v, 1));
        if (TC_POOLW >= 8) v = max_nan(v, __shfl_xor_sync(~0u, v, 2));
        if (l.q % (TC_POOLW / 2) == 0 && col < place.cols && l.ch[h] < K)
            out[l.ch[h] - place.first_channel][place.row * CHUNK_COLS + col] = v;
    }
}
