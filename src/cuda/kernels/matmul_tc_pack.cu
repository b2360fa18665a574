// matmul_tc_pack.cu - a linear layer's weights [COLS][TERMS] -> tf32's in the order of matmul_tc.cu
// (matmul_tc.cuh). Made once for as long as the parameters stay.
//
//   t[0]  packed, a.extent column tiles
//   t[1]  weights: slot COLUMN holds the stride along the columns, slot ROW the one along the terms
//   grid: one thread for four terms of a column
#include "matmul_tc.cuh"
#include "mma.cuh"

extern "C" __global__ void __launch_bounds__(256) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    constexpr int GROUPS = DEPTH / 4;
    const long long i = blockIdx.x * 256LL + threadIdx.x, piece = i / (GROUPS * BN); // of one tile and step
    const int n = (int)(piece / STEPS) * BN + (int)(i % BN);
    const int k = (int)(piece % STEPS) * DEPTH + (int)(i / BN % GROUPS) * 4;
    float4 *out = reinterpret_cast<float4 *>(a.t[0].p + piece * W_STAGE) + i % (GROUPS * BN);
    float big[4], small[4];

    if (piece >= a.extent * STEPS) return;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float w = n < COLS && k + e < TERMS ? a.t[1].p[n * a.t[1].s[COLUMN] + (k + e) * a.t[1].s[ROW]] : 0.0f;
        big[e] = cvy_to_tf32(w);
        small[e] = cvy_to_tf32(w - big[e]);
    }
    out[0] = make_float4(big[0], big[1], big[2], big[3]);
    if (PARTS == 2) out[GROUPS * BN] = make_float4(small[0], small[1], small[2], small[3]);
}
