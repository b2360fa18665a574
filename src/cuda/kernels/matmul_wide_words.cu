// matmul_wide_words.cu - converts an operand to words (matrix_words.cuh): reads every number once, by whole lines
// of memory along the contiguous direction, and writes it with the scale that nearly all lines have. Expected
// bound: memory.
//
//   t[0], t[1]  matrix_words.cuh      SCALED: t[2]  the largest finite |v| of each block's share:
//   [lines][STRETCHES] grid: x WORD_LINES lines, y WORD_STRETCH terms
//
//   terms are neighbours: a warp takes 8 lines, a lane 4 terms of 128 at a time
//   else: 64 lines x 64 terms at a time go through shared memory, [line][33 pairs], so neither side has bank
//   conflicts; lane l of warp v reads lines l and l + 32 of the term pairs v, v + 8, ...
#include "matrix_words.cuh"

constexpr int THREADS = BLOCK_THREADS, WARPS = THREADS / 32, SIDE = WORD_LINES, PAIRS = 32;

struct words_tile {
    u32 pairs[PARTS][SIDE][PAIRS + 1];
    float most[WARPS][SIDE];
};
static_assert(SIDE == 64 && WORD_STRETCH % 128 == 0, "tiles of 64 x 64, and lanes with 4 terms");

// Four neighbours; zeros past the end.
CVY_INLINE void load_terms(const X_TYPE *line, int term, float (&v)[4])
{
    if (term + 4 <= TERMS && (size_t)(line + term) % (4 * sizeof(X_TYPE)) == 0) {
        cvy_load(line + term, v);
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) v[e] = term + e < TERMS ? cvy_get(line + term + e) : 0.0f;
}

CVY_INLINE void store_terms(const cvy_args &a, long long line, int term, const float (&v)[4])
{
    u32 low[PARTS], high[PARTS];
    pair_words(v[0], v[1], scale_power(0), low);
    pair_words(v[2], v[3], scale_power(0), high);
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        *reinterpret_cast<uint2 *>(words_of(a, line, part) + term / 2) = make_uint2(low[part], high[part]);
}

// One line's share by a warp; returns its largest finite |v|.
CVY_INLINE float take_line(const cvy_args &a, long long line, int first)
{
    const X_TYPE *from = find_line(a, line);
    const int lane = threadIdx.x % 32;
    float v[WORD_STRETCH / 128][4], m = 0.0f;
#pragma unroll
    for (int i = 0; i < WORD_STRETCH / 128; i++) load_terms(from, first + 128 * i + 4 * lane, v[i]);
#pragma unroll
    for (int i = 0; i < WORD_STRETCH / 128; i++) {
        const int term = first + 128 * i + 4 * lane;
#pragma unroll
        for (int e = 0; e < 4; e++) m = larger_finite(m, v[i][e]);
        if (term < TERMS_PAD) store_terms(a, line, term, v[i]);
    }
#pragma unroll
    for (int o = 16; o; o /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    return m;
}

CVY_INLINE void take_lines(const cvy_args &a, long long first_line, int first)
{
    const long long lines = count_lines(a);
#pragma unroll 4
    for (int i = threadIdx.x / 32; i < SIDE; i += WARPS) {
        if (first_line + i >= lines) continue;
        const float m = take_line(a, first_line + i, first);
        if (SCALED && threadIdx.x % 32 == 0) a.t[2].p[(first_line + i) * STRETCHES + blockIdx.y] = m;
    }
}

// 64 x 64 of them, turned round; `most`: of the lines that the thread reads.
CVY_INLINE void turn_tile(const cvy_args &a, words_tile &tile, long long first_line, int first, float (&most)[2])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long lines = count_lines(a), stride = a.t[1].s[5];
    float v[2][PAIRS / WARPS][2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const long long line = first_line + lane + 32 * h;
        const X_TYPE *from = find_line(a, line < lines ? line : 0);
#pragma unroll
        for (int i = 0; i < PAIRS / WARPS; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int term = first + 2 * (warp + WARPS * i) + e;
                v[h][i][e] = line < lines && term < TERMS ? cvy_get(from + term * stride) : 0.0f;
                most[h] = larger_finite(most[h], v[h][i][e]);
            }
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < PAIRS / WARPS; i++) {
            u32 words[PARTS];
            pair_words(v[h][i][0], v[h][i][1], scale_power(0), words);
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                tile.pairs[part][lane + 32 * h][warp + WARPS * i] = words[part];
        }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int i = 0; i < SIDE * 8 / THREADS; i++) {
            const int line = (threadIdx.x + i * THREADS) / 8, piece = threadIdx.x % 8;
            const u32 *from = &tile.pairs[part][line][4 * piece];
            if (first_line + line < lines && first + 8 * piece < TERMS_PAD)
                reinterpret_cast<uint4 *>(words_of(a, first_line + line, part) + first / 2)[piece] =
                    make_uint4(from[0], from[1], from[2], from[3]);
        }
}

// The largest of a line is what the threads bring that have read it, one of each warp.
CVY_INLINE void keep_most(const cvy_args &a, words_tile &tile, long long first_line, const float (&most)[2])
{
    const int lane = threadIdx.x % 32;
    float m = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) tile.most[threadIdx.x / 32][lane + 32 * h] = most[h];
    __syncthreads();
    if (threadIdx.x >= SIDE || first_line + threadIdx.x >= count_lines(a)) return;
#pragma unroll
    for (int w = 0; w < WARPS; w++) m = fmaxf(m, tile.most[w][threadIdx.x]);
    a.t[2].p[(first_line + threadIdx.x) * STRETCHES + blockIdx.y] = m;
}

CVY_INLINE void turn_lines(const cvy_args &a, words_tile &tile, long long first_line, int first)
{
    float most[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (int i = 0; i < WORD_STRETCH / 64 && first + 64 * i < TERMS_PAD; i++) {
        turn_tile(a, tile, first_line, first + 64 * i, most);
        __syncthreads(); // before the tile is filled again
    }
    if (SCALED) keep_most(a, tile, first_line, most);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    __shared__ words_tile tile;
    const long long first_line = (long long)blockIdx.x * SIDE;
    const int first = (int)blockIdx.y * WORD_STRETCH;

    if (a.t[1].s[5] == 1 || TERMS == 1)
        take_lines(a, first_line, first);
    else
        turn_lines(a, tile, first_line, first);
}
