// conv_direct.cu - convolution and transposed convolution in 1 to 3 dimensions by float32 multiply-adds.
//
// Implicit matrix product: rows are the output channels of a group, columns the output pixels of all samples in one
// row, the sum runs over (input channel, tap). A block computes BK x BP results. Per step of ROWS terms it stages
//
//   shared memory, STAGES times:   pixels  [ROWS][BP]   gathered one by one (fetch.cuh), zero outside x
//                                  weights [ROWS][BK]   copied from the packed weights, 16 bytes each
//
// while the previous step is multiplied (tile.cuh). Results are then in shared memory as [BK][BP] and go through
// the epilogue in the order of memory. Expected bound: FMA; with 8 x 8 results per thread 64 of 69 instructions. A
// transposed convolution runs phase by phase (window.cuh): the blocks of a phase meet the same taps.
//
//   t[1]  source, strides n, c, d, h, w        t[2]  packed weights [GROUPS][PHASES][TERMS][K_PAD] (pack.cu)
//   epilogue space: n, k, o, p, q
//   grid: x phases x tiles of pixels, y tiles of channels, z groups; THREADS threads
#ifndef BK // CONV_DIRECT_TILE of product_layout.cuh
#define BK     64
#define BP     128
#define TK     8
#define TP     8
#define ROWS   18
#define BLOCKS 3
#endif

#include "fetch.cuh"
#include "pixels.cuh"
#include "product_layout.cuh"
#include "tile.cuh"

typedef cvy_tile<BK, BP, TK, TP> tile;

constexpr int STEPS = (TERMS + ROWS - 1) / ROWS;
constexpr int K_PAD = (K_OUT + BK - 1) / BK * BK;
constexpr int THREADS = tile::THREADS, PIXELS = BP / THREADS;             // pixels that a thread gathers
constexpr int STAGE = direct_stage(BK, BP, ROWS), STAGES = DIRECT_STAGES; // floats
constexpr bool WHOLE = ROWS % TAPS == 0; // a step is whole channels: its offsets are constants
static_assert(BP % THREADS == 0, "every thread gathers whole pixels");
static_assert(BK % 4 == 0, "weights are copied by 16 bytes");

// Begins the copy of one step into a stage.
CVY_INLINE void gather(const cvy_args &a, const window *windows, const float *weights, int step, float *stage)
{
    const int thread = threadIdx.x;
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        const window &v = windows[i];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int term = step * ROWS + r;
            const int c = WHOLE ? step * (ROWS / TAPS) + r / TAPS : term / TAPS;
            const int tap = WHOLE ? r % TAPS : term % TAPS;
            bool valid = TAPS <= 32 ? v.inside >> tap & 1 : v.exists && tap_inside(v, tap);
            if (TERMS % ROWS) valid = valid && c < C_IN;
            const cvy_index offset = source_offset(a, c, tap / (R * S) * axis_d::MOVE, tap / S % R * axis_h::MOVE,
                                                   tap % S * axis_w::MOVE);
            cvy_fetch(stage + r * BP + i * THREADS + thread, v.origin + offset, valid);
        }
    }
    const float *from = weights + (long long)step * ROWS * K_PAD;
    for (int i = thread; i < ROWS * BK / 4; i += THREADS)
        cvy_copy16(stage + ROWS * BP + i * 4, from + i / (BK / 4) * K_PAD + i % (BK / 4) * 4);
}

// One result of a transposed convolution without the zeros where it meets no source: a weight that is
// not finite made NaN of them. Rare, so out of the way.
static __device__ __noinline__ float sum_again(const cvy_args &a, long long pixel, int phase, int group,
                                               const float *weights)
{
    const window v = make_window(a, find_pixel(a, pixel, phase), group);
    float sum = 0.0f;
#pragma unroll 1
    for (int term = 0; term < TERMS; term++) {
        const int tap = term % TAPS;
        if (tap_inside(v, tap))
            sum = fmaf(weights[(long long)term * K_PAD],
                       cvy_widen(v.origin[source_offset(a, term / TAPS, tap / (R * S) * axis_d::MOVE,
                                                        tap / S % R * axis_h::MOVE, tap % S * axis_w::MOVE)]),
                       sum);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    extern __shared__ __align__(16) float shared[]; // direct_shared_bytes()
    const int phase =
        blockIdx.x % PHASES; // phases of the same places side by side: they share the source in the L2
    const long long first_pixel = (long long)(blockIdx.x / PHASES) * BP;
    const int k_first = blockIdx.y * BK, group = blockIdx.z;
    const float *weights = a.t[2].p + ((long long)group * PHASES + phase) * STEPS * ROWS * K_PAD + k_first;
    window windows[PIXELS];
    tile results;

#pragma unroll
    for (int i = 0; i < PIXELS; i++)
        windows[i] = make_window(a, find_pixel(a, first_pixel + i * THREADS + threadIdx.x, phase), group);
    results.start(threadIdx.x);
    gather(a, windows, weights, 0, shared);
    cvy_copies_commit();
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        const float *stage = shared + step % STAGES * STAGE;
        if (step + 1 < STEPS) gather(a, windows, weights, step + 1, shared + (step + 1) % STAGES * STAGE);
        cvy_copies_commit();
        cvy_copies_wait<1>();
        __syncthreads();
        results.template multiply<ROWS, BK, BP>(stage + ROWS * BP, stage);
        __syncthreads();
    }
    results.spread(shared);
    __syncthreads();
    cvy_finish<BK, PIXELS, THREADS>(a, first_pixel, phase, k_first, group, [&](int i, int k) {
        const int pixel = i * THREADS + threadIdx.x;
        const float result = shared[k * BP + pixel];
        return !TRANSPOSED || fabsf(result) < CVY_INF
                   ? result
                   : sum_again(a, first_pixel + pixel, phase, group, weights + k);
    });
}
