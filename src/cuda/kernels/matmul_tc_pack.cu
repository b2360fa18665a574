// matmul_tc_pack.cu - a linear layer's weights [COLS][TERMS] -> what matmul_tc.cu reads, in its order
// (matmul_tc.cuh): rounded to tf32, or 16-bit words unchanged. Packed again only if parameters change.
//
//   t[0]  packed, a.extent column tiles
//   t[1]  weights: slot COLUMN holds the stride along the columns, slot ROW the one along the terms
//   grid: one thread for PIECE terms of a column
#include "matmul_tc.cuh"
#include "mma.cuh"

// Four words of a part: what float32 becomes, or pairs of words as they are.
CVY_INLINE float4 words_of(const float (&w)[4], bool small)
{
    float v[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float big = cvy_to_tf32(w[e]);
        v[e] = small ? cvy_to_tf32(w[e] - big) : big;
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}
template <class T> CVY_INLINE float4 words_of(const T (&w)[8], bool)
{
    float v[4];
#pragma unroll
    for (int e = 0; e < 4; e++) v[e] = __uint_as_float(w[2 * e].bits | (unsigned)w[2 * e + 1].bits << 16);
    return make_float4(v[0], v[1], v[2], v[3]);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    constexpr int GROUPS = 8;
    const long long i = (long long)blockIdx.x * BLOCK_THREADS + threadIdx.x,
                    piece = i / (GROUPS * BN); // of one tile and step
    const int n = (int)(piece / STEPS) * BN + (int)(i % BN);
    const int k = (int)(piece % STEPS) * DEPTH + (int)(i / BN % GROUPS) * PIECE;
    float4 *out = reinterpret_cast<float4 *>(a.t[0].p + piece * W_STAGE) + i % (GROUPS * BN);
    W_TYPE w[PIECE];

    if (piece >= a.extent * STEPS) return;
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        w[e] = n < COLS && k + e < TERMS ? cvy_as<W_TYPE>(a.t[1])[n * a.t[1].s[COLUMN] + (k + e) * a.t[1].s[ROW]]
                                         : W_TYPE();
    out[0] = words_of(w, false);
    if (PARTS == 2) out[GROUPS * BN] = words_of(w, true);
}
