// conv_wide_words.cu - converts x to words (wide_words.cuh): reads every value once, by whole lines, applies the
// prologue's operators, and writes it with the scale that nearly all samples have. Expected bound: memory.
//
//   t[0]  words      SCALED: t[1]  the largest finite |x| of each block: [n][SLICES][STRETCHES]
//   prologue space: n, c, d, h, w
//   grid: x samples x stretches of WIDE_STRETCH places, y slices of 64 channels
#include "wide_words.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    __shared__ words_tile tile;
    const int stretch = (int)(blockIdx.x % STRETCHES);
    const words_stretch c = find_stretch((int)(blockIdx.x / STRETCHES), (int)blockIdx.y, stretch);
    const float m = make_words(a, tile, c, SCALED ? scale_power(0) : 1.0f);

#if SCALED
    const float most = over_block(m);
    if (threadIdx.x == 0) a.t[1].p[((long long)c.n * SLICES + c.slice) * STRETCHES + stretch] = most;
#endif
}
