// conv_wide_words.cu - x becomes words (wide_words.cuh): every value read once, by whole lines, and written as fp16
// with the scale that nearly all samples have. Expected bound: memory.
//
//   t[0]  words      t[1]  x, contiguous [n][C_IN][IN_D][IN_H][IN_W]
//   t[2]  the largest finite |x| of each block: [n][SLICES][CHUNKS]
//   grid: x samples x chunks of WIDE_CHUNK pixels, y slices of 64 channels
#include "wide_words.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    __shared__ words_tile tile;
    const long long n = blockIdx.x / CHUNKS;
    const int chunk = (int)(blockIdx.x % CHUNKS), slice = blockIdx.y;
    const float m = over_block(make_words(a, tile, n, slice, chunk, scale_power(0)));

    if (threadIdx.x == 0) a.t[2].p[(n * SLICES + slice) * CHUNKS + chunk] = m;
}
