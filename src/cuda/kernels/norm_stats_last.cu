// norm_stats_last.cu - the statistics of a norm over channels and space whose source lies channels last, as partial
// results that norm_stats.cu merges.
//
// A block has a stretch of a sample's pixels, and CHUNK groups of CHANNELS channels each: enough of them for whole
// lines.
//
//   thread -> data: UNITS threads share a pixel, each has WIDTH channels of one group by one access, at ROWS pixels
//   of the block at once; a thread's values become moments (moments.cuh) CVY_RUN at a time. Threads of a group are
//   merged through shared memory, in the order of their numbers.
//
// Expected bound: memory.
//
//   t[0]  partials [sample][GROUPS][PARTS][3] doubles      prologue space: n, c, pixels of extents X2...X5
//   grid: x samples times chunks of groups, y PARTS
#ifndef GROUPS
#define GROUPS 32
#endif
#ifndef CHANNELS
#define CHANNELS 4 // of a group
#endif
#ifndef CHUNK
#define CHUNK 16 // groups of a block
#endif
#ifndef WIDTH
#define WIDTH 4 // divides CHANNELS
#endif
#ifndef PARTS
#define PARTS 1
#endif
#ifndef X1
#define X1 128
#define X2 64
#define X3 64
#define X4 1
#define X5 1
#endif

#include "epilogue.cuh"
#include "moments.cuh"

constexpr int THREADS = BLOCK_THREADS, UNITS = CHUNK * CHANNELS / WIDTH, ROWS = THREADS / UNITS;
constexpr int ACCESSES = CVY_RUN / WIDTH;
constexpr int PIXELS = X2 * X3 * X4 * X5, STRETCH = cdiv(PIXELS, PARTS);
static_assert(CHANNELS % WIDTH == 0 && CVY_RUN % WIDTH == 0 && GROUPS % CHUNK == 0, "whole accesses and blocks");
static_assert(UNITS <= THREADS, "a pixel has no more units than a block has threads");

// WIDTH channels of a pixel.
CVY_INLINE void read_unit(const cvy_args &a, int n, int channel, int pixel, float *x)
{
    const cvy_at first = cvy_unravel<1, X2, X3, X4, X5>(pixel);
    cvy_at at[WIDTH];
    float some[WIDTH];
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        at[e] = first;
        at[e].i0 = n, at[e].i1 = channel + e;
        at[e].lin = ((cvy_index)n * X1 + channel + e) * PIXELS + pixel;
    }
    cvy_read(a, at, some);
#pragma unroll
    for (int e = 0; e < WIDTH; e++) x[e] = some[e];
}

// Of WIDTH channels, at every ROWS-th pixel of [first, end).
CVY_INLINE cvy_moments moments_of(const cvy_args &a, int n, int channel, int first, int end)
{
    cvy_moments total = {0.0, 0.0, 0.0};
#pragma unroll 1
    for (int i = first; i < end; i += ROWS * ACCESSES) {
        float x[CVY_RUN] = {};
        const int accesses = least(ACCESSES, cdiv(end - i, ROWS));
#pragma unroll
        for (int j = 0; j < ACCESSES; j++)
            if (j < accesses) read_unit(a, n, channel, i + j * ROWS, x + j * WIDTH);
        total = cvy_merge(total, cvy_run_moments(x, accesses * WIDTH));
    }
    return total;
}

// A warp has a group: the moments of all threads that have some of its channels.
CVY_INLINE cvy_moments merge_group(const cvy_moments (&of_thread)[THREADS], int group)
{
    constexpr int EACH = CHANNELS / WIDTH;
    cvy_moments m = {0.0, 0.0, 0.0};
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < ROWS * EACH; i += 32)
        m = cvy_merge(m, of_thread[i / EACH * UNITS + group * EACH + i % EACH]);
    for (int by = 16; by; by /= 2) m = cvy_merge(m, cvy_shuffle_down(m, by));
    return m;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    constexpr int CHUNKS = GROUPS / CHUNK;
    __shared__ cvy_moments of_thread[THREADS];
    cvy_follow();
    const int n = blockIdx.x / CHUNKS, chunk = blockIdx.x % CHUNKS, part = blockIdx.y;
    const int unit = threadIdx.x % UNITS, row = threadIdx.x / UNITS,
              channel = chunk * CHUNK * CHANNELS + unit * WIDTH;
    const int begin = part * STRETCH, end = least(begin + STRETCH, PIXELS);

    if (row < ROWS) of_thread[threadIdx.x] = moments_of(a, n, channel, begin + row, end);
    __syncthreads();
#pragma unroll 1
    for (int group = threadIdx.x / 32; group < CHUNK; group += THREADS / 32) {
        const cvy_moments m = merge_group(of_thread, group);
        const long long slice = (long long)n * GROUPS + chunk * CHUNK + group;
        if (threadIdx.x % 32 == 0) reinterpret_cast<cvy_moments *>(a.t[0].p)[slice * PARTS + part] = m;
    }
}
