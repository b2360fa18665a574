// mma_tile.cuh - a block's matrix product out of shared memory on tensor cores: mma.sync, sm_80 and later.
//
//   acc[m][n] += sum over k of A(k, m) * B(k, n)
//   A(k, m) = A[k * A_K + m * A_M]
//   B(k, n) = B[k * B_K + n * B_N]
//
// A warp owns M_EACH x N_EACH results as M_EACH / 16 x N_EACH / 8 tiles of mma.m16n8k8; which lane has what of a
// tile is in mma.cuh. Lane 4g + t reads A(t, g), so reads of a warp fall on 32 different banks where one stride
// is 1 and the other 8 or 24 modulo 32 (rows of k), or 1 and 4, 12, 20 or 28 modulo 32 (rows of m or n). Rows of m
// or n must begin at multiples of 16 bytes: four blocks of 8 x 4 of them arrive at once.
//
// One product: operands are rounded to tf32, errors are up to 2^-11 of each. Three: x = big + small, both tf32's,
// and small * big, big * small, big * big are added, small ones first; what is left out or rounded off is below
// 3 * 2^-22 of a product. Tensor cores truncate when they add, always towards zero, which over a long sum is a
// bias: sums of 16 terms therefore start from zero and are added to acc by an ordinary, rounded addition.
//
// An operand that is inf or NaN, or so large that it rounds to inf, makes small a NaN or an inf, and every result
// it contributes to is not finite. The kernel must compute those in another way (is_sound): with three
// products even inf * 1 would be inf * 1 + inf * 0.
#ifndef CVY_MMA_TILE_CUH
#define CVY_MMA_TILE_CUH

#include "mma.cuh"
#include "product_layout.cuh"

template <int M, int N, int M_EACH, int N_EACH, int N_PRODUCTS> struct cvy_mma_tile {
    static_assert(N_PRODUCTS == 1 || N_PRODUCTS == 3, "tf32's accuracy or float32's");
    static_assert(M % M_EACH == 0 && N % N_EACH == 0 && M_EACH % 16 == 0 && N_EACH % 8 == 0, "whole tiles");
    static constexpr int ACROSS = N / N_EACH, DOWN = M / M_EACH; // warps
    static constexpr int THREADS = mma_threads(M, N, M_EACH, N_EACH);
    static constexpr int TILES_M = M_EACH / 16, TILES_N = N_EACH / 8;
    static constexpr int K = MMA_DEPTH; // terms between two rounded additions
    static constexpr int PITCH = N + 8; // of the results in shared memory: halves of a warp store to 32 banks

    static_assert(K == 16, "a column's terms are four blocks");

    float acc[TILES_M][TILES_N][4];
    int m, n; // first row and first column of the warp
    int g, t; // of the lane

    // COUNT registers of a fragment, in both parts.
    template <int COUNT> struct operand {
        float big[COUNT], small[COUNT];

        CVY_INLINE_MEMBER void set(int i, float x)
        {
            big[i] = cvy_to_tf32(x);
            small[i] = N_PRODUCTS == 3 ? cvy_to_tf32(x - big[i]) : 0.0f;
        }
    };

    CVY_INLINE_MEMBER void start(int thread)
    {
        const int warp = thread / 32;
        g = thread % 32 / 4;
        t = thread % 4;
        n = warp % ACROSS * N_EACH;
        m = warp / ACROSS * M_EACH;
#pragma unroll
        for (int i = 0; i < TILES_M; i++)
#pragma unroll
            for (int j = 0; j < TILES_N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) acc[i][j][e] = 0.0f;
    }

    // The sums over K terms of the tiles of a column. Tiles take turns: the products of one wait for each other.
    CVY_INLINE_MEMBER void add(int j, const operand<4> a[TILES_M][K / 8], const operand<2> b[K / 8])
    {
        float part[TILES_M][4] = {};
#pragma unroll
        for (int s = 0; s < K / 8 && N_PRODUCTS == 3; s++) {
#pragma unroll
            for (int i = 0; i < TILES_M; i++) cvy_mma(part[i], a[i][s].small, b[s].big);
#pragma unroll
            for (int i = 0; i < TILES_M; i++) cvy_mma(part[i], a[i][s].big, b[s].small);
        }
#pragma unroll
        for (int s = 0; s < K / 8; s++)
#pragma unroll
            for (int i = 0; i < TILES_M; i++) cvy_mma(N_PRODUCTS == 3 ? part[i] : acc[i][j], a[i][s].big, b[s].big);
#pragma unroll
        for (int i = 0; i < TILES_M && N_PRODUCTS == 3; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[i][j][e] += part[i][e];
    }

    // K terms of the 16 rows of a tile, A being the lane's place in it. Blocks 0 and 2 are rows 0 to 7, k 0 to 3
    // and 4 to 7; blocks 1 and 3 are rows 8 to 15.
    template <int A_K, int A_M> static CVY_INLINE_MEMBER void load_a(operand<4> a[K / 8], const float *A)
    {
#pragma unroll
        for (int s = 0; s < K / 8; s++) {
            float x[4];
            if (A_K == 1) cvy_load_blocks(x, A + 8 * s);
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[s].set(e, A_K == 1 ? x[e] : A[(8 * s + e / 2 * 4) * A_K + e % 2 * 8 * A_M]);
        }
    }
    // K terms of the 8 columns of a tile; a block is four of the terms.
    template <int B_K, int B_N> static CVY_INLINE_MEMBER void load_b(operand<2> b[K / 8], const float *B)
    {
        float x[4];
        if (B_K == 1) cvy_load_blocks(x, B);
#pragma unroll
        for (int s = 0; s < K / 8; s++)
#pragma unroll
            for (int e = 0; e < 2; e++) b[s].set(e, B_K == 1 ? x[2 * s + e] : B[(8 * s + 4 * e) * B_K]);
    }

    template <int A_K, int A_M, int B_K, int B_N> CVY_INLINE_MEMBER void multiply(const float *A, const float *B)
    {
        const int lane = 4 * g + t;
        operand<4> a[TILES_M][K / 8];
        A += m * A_M + (A_K == 1 ? lane % 16 * A_M + lane / 16 * 4 : t * A_K + g * A_M);
        B += n * B_N + (B_K == 1 ? lane % 8 * B_N + lane / 8 * 4 : t * B_K + g * B_N);
#pragma unroll
        for (int i = 0; i < TILES_M; i++) load_a<A_K, A_M>(a[i], A + 16 * i * A_M);
#pragma unroll
        for (int j = 0; j < TILES_N; j++) {
            operand<2> b[K / 8];
            load_b<B_K, B_N>(b, B + 8 * j * B_N);
            add(j, a, b);
        }
    }

    // Lays the results out as [M][PITCH] in shared memory, from where the epilogue takes them in the order of
    // memory.
    CVY_INLINE_MEMBER void spread(float *tile) const
    {
#pragma unroll
        for (int i = 0; i < TILES_M; i++)
#pragma unroll
            for (int j = 0; j < TILES_N; j++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    *reinterpret_cast<float2 *>(tile + (m + 16 * i + 8 * h + g) * PITCH + n + 8 * j + 2 * t) =
                        make_float2(acc[i][j][2 * h], acc[i][j][2 * h + 1]);
    }

    // Can a result be taken as it is?
    static CVY_INLINE_MEMBER bool is_sound(float result)
    {
        return fabsf(result) < CVY_INF;
    }
};

#endif
