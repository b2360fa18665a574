// conv_wide_rescale.cu - after conv_wide_words.cu: the scale of every sample; converts samples again that need
// another scale than the one they were converted with. Expected bound: a launch, if no sample does.
//
//   t[0], t[1], prologue space: as conv_wide_words.cu has them      t[2]  [n]: the inverse of a sample's scale
//   grid: x samples (extent) times blocks of each
#include "wide_words.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    __shared__ words_tile tile;
    const unsigned each = gridDim.x / (unsigned)a.extent; // an argument: it depends on the batch
    const int n = (int)(blockIdx.x / each);
    const float *seen = a.t[1].p + (long long)n * (SLICES * STRETCHES);
    float m = 0.0f;
    for (int i = threadIdx.x; i < SLICES * STRETCHES; i += THREADS) m = fmaxf(m, seen[i]);
    const int j = scale_number(over_block(m)), first = (int)(blockIdx.x % each);

    if (first == 0 && threadIdx.x == 0) a.t[2].p[n] = unscale_power(j);
    if (j == 0) return;
#pragma unroll 1
    for (int i = first; i < SLICES * STRETCHES; i += (int)each) {
        make_words(a, tile, find_stretch(n, i / STRETCHES, i % STRETCHES), scale_power(j));
        __syncthreads(); // before the tile is filled again
    }
}
