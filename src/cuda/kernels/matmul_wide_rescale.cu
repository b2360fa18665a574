// matmul_wide_rescale.cu - after matmul_wide_words.cu: the scale of every line; converts lines again that need
// another scale than the one they were converted with. Expected bound: a launch, if no line does.
//
//   t[0] to t[2]  as matmul_wide_words.cu has them      t[3]  [lines]: the inverse of a line's scale
//   grid: x lines, a warp each
#include "matrix_words.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const long long line = blockIdx.x * (BLOCK_THREADS / 32LL) + threadIdx.x / 32, stride = a.t[1].s[5];
    const int lane = threadIdx.x % 32;
    float m = 0.0f;
    if (line >= count_lines(a)) return;
    for (int i = lane; i < STRETCHES; i += 32) m = fmaxf(m, a.t[2].p[line * STRETCHES + i]);
#pragma unroll
    for (int o = 16; o; o /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    const int j = scale_number(m);
    if (lane == 0) a.t[3].p[line] = unscale_power(j);
    if (j == 0) return;
    const X_TYPE *from = find_line(a, line);
#pragma unroll 1
    for (int pair = lane; pair < TERMS_PAD / 2; pair += 32) {
        const int term = 2 * pair;
        u32 words[PARTS];
        pair_words(term < TERMS ? cvy_get(from + term * stride) : 0.0f,
                   term + 1 < TERMS ? cvy_get(from + (term + 1) * stride) : 0.0f, scale_power(j), words);
#pragma unroll
        for (int part = 0; part < PARTS; part++) words_of(a, line, part)[pair] = words[part];
    }
}
