// turn.cu - a tensor [n][channels][pixels] copied between two layouts, mostly contiguous and channels last: the
// copy of a strided tensor of run() that other kernels read or write in its place.
//
// SIDE channels x SIDE pixels at a time go through shared memory, so that both sides are read and written along
// whichever of the two directions is contiguous there. Elements are copied unchanged. Expected bound: memory.
//
//   t[0]  the copy      t[1]  the source: any strides, inner extents X1 (channels), X2...X5 (pixels)
//   grid: x samples x tiles of channels x tiles of pixels
#ifndef X1
#define X1 64
#define X2 32
#define X3 32
#define X4 1
#define X5 1
#endif
#ifndef ELEMENT
#define ELEMENT unsigned // 16 bits: unsigned short
#endif

#include "common.cuh"

typedef ELEMENT element;
constexpr int THREADS = BLOCK_THREADS, WARPS = THREADS / 32, SIDE = TURN_SIDE, PIXELS = X2 * X3 * X4 * X5;
constexpr int ACROSS = (PIXELS + SIDE - 1) / SIDE, DOWN = (X1 + SIDE - 1) / SIDE;
constexpr int PITCH = SIDE + 4 / (int)sizeof(element); // an odd number of banks

// Where a tile begins, and an element of it in a tensor.
struct tile_at {
    long long n;
    int channel, pixel;
};

CVY_INLINE bool exists(const tile_at &t, int channel, int pixel)
{
    return t.channel + channel < X1 && t.pixel + pixel < PIXELS;
}

CVY_INLINE element *element_at(const cvy_view &v, const tile_at &t, int channel, int pixel)
{
    const int p = t.pixel + pixel;
    return reinterpret_cast<element *>(v.p) + t.n * v.s[0] + (t.channel + channel) * v.s[1] +
           p / (X3 * X4 * X5) * v.s[2] + p / (X4 * X5) % X3 * v.s[3] + p / X5 % X4 * v.s[4] + p % X5 * v.s[5];
}

// Calls f(channel, pixel) for all elements of a tile, neighbouring lanes along the tensor's contiguous direction.
template <class F> CVY_INLINE void along(const cvy_view &v, const F &f)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool last = v.s[1] == 1;
#pragma unroll
    for (int i = 0; i < SIDE / WARPS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int slow = warp + i * WARPS, quick = lane + h * 32;
            f(i * 2 + h, last ? quick : slow, last ? slow : quick);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    __shared__ element tile[SIDE][PITCH]; // [channel][pixel]
    const unsigned each = ACROSS * DOWN, number = blockIdx.x % each;
    const tile_at t = {blockIdx.x / each, (int)(number / ACROSS) * SIDE, (int)(number % ACROSS) * SIDE};
    element some[2 * SIDE / WARPS];

    along(a.t[1],
          [&](int i, int c, int p) { some[i] = exists(t, c, p) ? *element_at(a.t[1], t, c, p) : element(); });
    along(a.t[1], [&](int i, int c, int p) { tile[c][p] = some[i]; });
    __syncthreads();
    along(a.t[0], [&](int, int c, int p) {
        if (exists(t, c, p)) *element_at(a.t[0], t, c, p) = tile[c][p];
    });
}
