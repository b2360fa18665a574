// tile.cuh - a block's matrix product out of shared memory, with a register tile per thread.
//
//   acc[m][n] += sum over r of A[r][m] * B[r][n]      A: [][M], B: [][N] floats in shared memory
//
// A thread owns M_EACH x N_EACH results: groups of four rows and four columns, each group GROUP_M (GROUP_N) apart,
// so that a warp reads neighbouring 16-byte words. Lanes of a warp form an 8 x 4 patch (columns x rows) of threads:
// that keeps the distinct words that one row of the product needs, 8 + 4 of them, few.
//
// Per r a thread reads (M_EACH + N_EACH) / 4 words of 16 bytes for M_EACH * N_EACH multiply-adds: with 8 x 8
// results 4 words for 64.
#ifndef CVY_TILE_CUH
#define CVY_TILE_CUH

#include "common.cuh"
#include "product_layout.cuh"

template <int M, int N, int M_EACH, int N_EACH> struct cvy_tile {
    static_assert(M_EACH % 4 == 0 && N_EACH % 4 == 0, "registers are filled by 16-byte words");
    static constexpr int ACROSS = N / N_EACH, DOWN = M / M_EACH; // threads
    static constexpr int THREADS = tile_threads(M, N, M_EACH, N_EACH);
    static_assert(ACROSS % 8 == 0 && DOWN % 4 == 0, "a warp is a patch of 8 x 4 threads");
    static constexpr int GROUP_M = M / (M_EACH / 4), GROUP_N = N / (N_EACH / 4);

    float acc[M_EACH][N_EACH];
    int m, n; // first row and first column of this thread

    CVY_INLINE_MEMBER void start(int thread)
    {
        const int lane = thread % 32, warp = thread / 32;
        n = (warp % (ACROSS / 8) * 8 + lane % 8) * 4;
        m = (warp / (ACROSS / 8) * 4 + lane / 8) * 4;
#pragma unroll
        for (int i = 0; i < M_EACH; i++)
#pragma unroll
            for (int j = 0; j < N_EACH; j++) acc[i][j] = 0.0f;
    }

    // Row and column of register i, j.
    CVY_INLINE_MEMBER int row(int i) const
    {
        return i / 4 * GROUP_M + m + i % 4;
    }
    CVY_INLINE_MEMBER int column(int j) const
    {
        return j / 4 * GROUP_N + n + j % 4;
    }

    template <int TERMS_, int PITCH_A, int PITCH_B> CVY_INLINE_MEMBER void multiply(const float *A, const float *B)
    {
#pragma unroll
        for (int r = 0; r < TERMS_; r++) {
            float a[M_EACH], b[N_EACH];
#pragma unroll
            for (int i = 0; i < M_EACH; i += 4)
                *reinterpret_cast<float4 *>(a + i) = *reinterpret_cast<const float4 *>(A + r * PITCH_A + row(i));
#pragma unroll
            for (int j = 0; j < N_EACH; j += 4)
                *reinterpret_cast<float4 *>(b + j) = *reinterpret_cast<const float4 *>(B + r * PITCH_B + column(j));
#pragma unroll
            for (int i = 0; i < M_EACH; i++)
#pragma unroll
                for (int j = 0; j < N_EACH; j++) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
        }
    }

    // Lays the results out as [M][N] in shared memory, from where the epilogue takes them in the order of memory.
    CVY_INLINE_MEMBER void spread(float *tile) const
    {
#pragma unroll
        for (int i = 0; i < M_EACH; i++)
#pragma unroll
            for (int j = 0; j < N_EACH; j += 4)
                *reinterpret_cast<float4 *>(tile + row(i) * N + column(j)) =
                    make_float4(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]);
    }
};

#endif
