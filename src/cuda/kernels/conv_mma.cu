// conv_mma.cu - convolution and transposed convolution in 1 to 3 dimensions on tensor cores through mma.sync, for
// devices of compute capability 8.0 and later.
//
// The matrix product of conv_direct.cu with its terms in another order: the sum runs over (tap, input channel), the
// channel fastest. A chunk of ROWS terms then meets one tap or a few, whose places are found once; its channels lie
// at fixed distances. Per chunk a block stages
//
//   shared memory, STAGES times:   pixels  [ROWS][BP + 8]   gathered with cp.async, 4 bytes each, zero outside x
//                                  weights [ROWS][BK + 8]   copied from the packed weights, 16 bytes each
//
// while the chunk before is multiplied (mma_tile.cuh; the 8 keep fragments off each other's banks). A stage is
// filled again two chunks later: one barrier per chunk is enough. Results then lie in shared memory as [BK][BP + 8]
// and go through the epilogue in the order of memory; those that are not finite are first summed again by
// multiply-adds, straight from memory, which puts infs and NaNs where they belong.
//
//   thread -> data: lane 4g + t of a warp whose results start at channel m, pixel n of the tile:
//     acc[i][j][2h + e] is channel m + 16i + 8h + g, pixel n + 8j + 2t + e; warps lie BP / WP across, BK / WK down
//   expected bound: tensor cores with three products (6 mma for 3 loads and 9 conversions of a fragment's column);
//   with one, gathering
//
//   t[1]  source, strides n, c, d, h, w        t[2]  packed weights [GROUPS][PHASES][TERMS][K_PAD] (pack.cu)
//   epilogue space: n, k, o, p, q
//   grid: x phases x tiles of pixels, y tiles of channels, z groups; THREADS threads
#ifndef BK // tile of a block, and of a warp
#define BK 64
#define BP 128
#define WK 32
#define WP 64
#endif
#ifndef PRODUCTS
#define PRODUCTS 3 // 1: tf32's accuracy, 3: float32's
#endif
#ifndef BLOCKS
#define BLOCKS 3 // at least so many blocks of a multiprocessor: bounds the registers
#endif
#ifndef HOST_SHARED
#define HOST_SHARED 39936 // bytes of shared memory that the launch asks for
#endif

#include "copy.cuh"
#include "mma_tile.cuh"
#include "pixels.cuh"

typedef cvy_mma_tile<BK, BP, WK, WP, PRODUCTS> tile;
constexpr int ROWS = tile::K, CHUNKS = (TERMS + ROWS - 1) / ROWS;
constexpr int K_PAD = (K_OUT + BK - 1) / BK * BK;
constexpr int THREADS = tile::THREADS, PIXELS = BP / THREADS; // pixels that a thread gathers
constexpr int PITCH_P = BP + 8, PITCH_K = BK + 8;
constexpr int STAGE = ROWS * (PITCH_P + PITCH_K), STAGES = 3;
static_assert(BP % THREADS == 0, "every thread gathers whole pixels");
static_assert(BK % 4 == 0 && STAGE % 4 == 0, "weights are copied by 16 bytes");
static_assert(4 * STAGES * STAGE <= HOST_SHARED && 4 * BK * tile::PITCH <= HOST_SHARED, "what the host asked for");

// Tap and input channel of row r of a chunk. Where channels divide a chunk, or a chunk the channels, only the chunk's
// own part is computed at run time.
struct term_at {
    int tap, c;
};
CVY_INLINE term_at find_term(int chunk, int r)
{
    constexpr int WHOLE = C_IN % ROWS == 0 ? C_IN / ROWS : 1; // chunks of a tap
    if (C_IN % ROWS == 0) return {chunk / WHOLE, chunk % WHOLE * ROWS + r};
    if (ROWS % C_IN == 0) return {chunk * (ROWS / C_IN) + r / C_IN, r % C_IN};
    return {(chunk * ROWS + r) / C_IN, (chunk * ROWS + r) % C_IN};
}

CVY_INLINE cvy_index tap_offset(const cvy_args &a, const term_at &term)
{
    return source_offset(a, term.c, term.tap / (R * S) * axis_d::MOVE, term.tap / S % R * axis_h::MOVE,
                         term.tap % S * axis_w::MOVE);
}

// Begins the copy of one chunk into a stage.
CVY_INLINE void gather(const cvy_args &a, const window *windows, const float *weights, int chunk, float *stage)
{
    const int thread = threadIdx.x;
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        const window &v = windows[i];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const term_at term = find_term(chunk, r);
            bool valid = TERMS % ROWS == 0 || term.tap < TAPS;
            valid = valid && (TAPS <= 32 ? v.inside >> term.tap & 1 : v.exists && tap_inside(v, term.tap));
            cvy_copy4(stage + r * PITCH_P + i * THREADS + thread, v.origin + tap_offset(a, term), valid);
        }
    }
    const float *from = weights + (long long)chunk * ROWS * K_PAD;
    for (int i = thread; i < ROWS * BK / 4; i += THREADS)
        cvy_copy16(stage + ROWS * PITCH_P + i / (BK / 4) * PITCH_K + i % (BK / 4) * 4,
                   from + i / (BK / 4) * K_PAD + i % (BK / 4) * 4);
}

// One result by multiply-adds: rare, so out of the way. Padding is zeros, which an infinite weight makes NaN; where a
// transposed convolution meets no source there is nothing.
static __device__ __noinline__ float sum_again(const cvy_args &a, long long pixel, int phase, int group,
                                               const float *weights)
{
    const window v = make_window(a, find_pixel(a, pixel, phase), group);
    float sum = 0.0f;
#pragma unroll 1
    for (int number = 0; number < TERMS; number++) {
        const term_at term = {number / C_IN, number % C_IN};
        const bool inside = tap_inside(v, term.tap);
        const float x = inside ? v.origin[tap_offset(a, term)] : 0.0f;
        if (inside || !TRANSPOSED) sum = fmaf(weights[(long long)number * K_PAD], x, sum);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    extern __shared__ __align__(16) float shared[]; // max(STAGES * STAGE, BK * tile::PITCH) floats
    const int phase = blockIdx.x % PHASES; // of the same places side by side: they share the source in the L2
    const long long first_pixel = (long long)(blockIdx.x / PHASES) * BP;
    const int k_first = blockIdx.y * BK, group = blockIdx.z;
    const float *weights = a.t[2].p + ((long long)group * PHASES + phase) * CHUNKS * ROWS * K_PAD + k_first;
    window windows[PIXELS];
    tile results;

#pragma unroll
    for (int i = 0; i < PIXELS; i++)
        windows[i] = make_window(a, find_pixel(a, first_pixel + i * THREADS + threadIdx.x, phase), group);
    results.start(threadIdx.x);
#pragma unroll
    for (int chunk = 0; chunk < STAGES - 1; chunk++) {
        if (chunk < CHUNKS) gather(a, windows, weights, chunk, shared + chunk * STAGE);
        cvy_copies_commit();
    }
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const float *stage = shared + chunk % STAGES * STAGE;
        const int next = chunk + STAGES - 1; // goes where the chunk before this one was
        cvy_copies_wait<STAGES - 2>();
        __syncthreads();
        if (next < CHUNKS) gather(a, windows, weights, next, shared + next % STAGES * STAGE);
        cvy_copies_commit();
        results.template multiply<PITCH_K, 1, PITCH_P, 1>(stage + ROWS * PITCH_P, stage);
    }
    __syncthreads();
    results.spread(shared);
    __syncthreads();
    cvy_finish<BK, PIXELS, THREADS>(a, first_pixel, phase, k_first, group, [&](int i, int k) {
        const int pixel = i * THREADS + threadIdx.x;
        const float result = shared[k * tile::PITCH + pixel];
        return tile::is_sound(result) ? result : sum_again(a, first_pixel + pixel, phase, group, weights + k);
    });
}
