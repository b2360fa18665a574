// conv_mma.cu - convolution and transposed convolution in 1 to 3 dimensions on tensor cores through mma.sync, for
// devices of compute capability 8.0 and later.
//
// The matrix product of conv_direct.cu with its terms in another order: the sum runs over (tap, input channel), the
// channel fastest. A step of ROWS terms is then a few runs: neighbouring channels of one tap, at fixed distances.
// The starts of runs, and the positions inside the source that they need, are computed at the start, for long sums
// one step ahead; a copy then costs a bit test and an addition. Per step a block stages
//
//   shared memory, STAGES times:   pixels  [ROWS][BP + 8]   gathered one by one (fetch.cuh), zero outside x
//                                  weights [ROWS][BK + 8]   copied from the packed weights, 16 bytes each
//
// while the previous step is multiplied (mma_tile.cuh; the 8 avoids bank conflicts between fragments). A stage is
// filled again one step after it was read: one barrier per step is enough. Small tiles have more threads than
// pixels: SHARERS of them gather a pixel's rows and finish its channels. Results then lie in shared memory as
// [BK][BP + 8] and go through the epilogue in the order of memory; those that are not finite are first summed again
// by multiply-adds, directly from memory, which puts infs and NaNs in the right places.
//
//   thread -> data: lane 4g + t of a warp whose results start at channel m, pixel n of the tile:
//     acc[i][j][2h + e] is channel m + 16i + 8h + g, pixel n + 8j + 2t + e; warps lie BP / WP across, BK / WK down
//   expected bound: tensor cores with three products (6 mma for 3 loads and 9 conversions of a fragment's column);
//   with one, gathering
//
//   t[1]  source, strides n, c, d, h, w        t[2]  packed weights [GROUPS][PHASES][TERMS][K_PAD] (pack.cu)
//   epilogue space: n, k, o, p, q
//   grid: x phases x tiles of pixels, y tiles of channels, z groups; THREADS threads
#ifndef BK // CONV_MMA_TILE of product_layout.cuh
#define BK           64
#define BP           128
#define WK           32
#define WP           64
#define PRODUCTS     3
#define LEAST_STAGES 3
#define BLOCKS       3
#endif

#include "fetch.cuh"
#include "mma_tile.cuh"
#include "pixels.cuh"
#include "product_layout.cuh"

typedef cvy_mma_tile<BK, BP, WK, WP, PRODUCTS> tile;
constexpr int ROWS = tile::K, STEPS = (TERMS + ROWS - 1) / ROWS;
constexpr int K_PAD = (K_OUT + BK - 1) / BK * BK;
constexpr int THREADS = tile::THREADS, SHARERS = THREADS > BP ? THREADS / BP : 1; // threads of a pixel
constexpr int ACROSS = THREADS / SHARERS, PIXELS = BP / ACROSS;                   // pixels that a thread gathers
constexpr int EACH = ROWS / SHARERS;                                              // rows of a step that it gathers
constexpr int RUN = cvy_gcd(C_IN, EACH), RUNS = ROWS / RUN; // rows of a tap and neighbouring channels; of a step
constexpr int PITCH_P = BP + 8, PITCH_K = BK + 8;
constexpr int STAGE = conv_mma_stage(BK, BP),
              SHARED = mma_shared_bytes(STAGE, LEAST_STAGES, BK, BP), // floats; bytes
    STAGES = least(SHARED / (FLOAT_BYTES * STAGE), CONV_MMA_MOST_STAGES);
static_assert(BP % ACROSS == 0 && ROWS % SHARERS == 0, "every thread gathers as many rows of as many pixels");
static_assert(BK % 4 == 0 && STAGE % 4 == 0, "weights are copied by 16 bytes");
static_assert(STAGES >= 3 && ROWS == MMA_DEPTH && STAGE == ROWS * (PITCH_P + PITCH_K) && tile::PITCH == BP + 8,
              "the layout that the host counts on");

// Bytes between a window's origin and its terms: in 32 bits where strides are known and a sample is not huge.
template <bool FITS> struct distance {
    typedef int type;
};
template <> struct distance<false> {
    typedef long long type;
};
constexpr bool NEAR =
    SRC_DENSE &&
    (((long long)C_IN * IN_D + TAPS_T * DIL_D) * IN_H + TAPS_R * DIL_H) * IN_W + TAPS_S * DIL_W < 1 << 29;
typedef distance<NEAR>::type bytes;

// Where a run of terms lies, seen from a pixel's window.
struct run_at {
    bytes offset; // from the window's origin
    unsigned tap; // what its axes must have; the tap's number where they do not fit
};

CVY_INLINE cvy_index tap_offset(const cvy_args &a, unsigned tap, int c)
{
    return source_offset(a, c, (int)(tap / (R * S)) * axis_d::MOVE, (int)(tap / S % R) * axis_h::MOVE,
                         (int)(tap % S) * axis_w::MOVE);
}

constexpr bool ALL_NOTED = STEPS * RUNS <= 512; // a few KB
constexpr int NOTED = ALL_NOTED && STEPS > STAGES ? STEPS : STAGES;
static_assert(SHARED > 48 << 10 || SHARED + NOTED * RUNS * (int)sizeof(run_at) <= 48 << 10,
              "more than 48 KB would have to be requested");

// Where run number i of a step begins: divisions by channels and taps, done once for all pixels.
CVY_INLINE run_at find_run(const cvy_args &a, int step, int i)
{
    const unsigned number = step * ROWS + i * RUN, tap = number / C_IN;
    run_at at;
    at.offset = (bytes)sizeof(X_TYPE) * tap_offset(a, tap, (int)(number % C_IN));
    at.tap = AXES_FIT ? tap < TAPS ? tap_axes(tap) : NO_TAP : tap;
    return at;
}

CVY_INLINE bool is_inside(const window &v, unsigned tap)
{
    return AXES_FIT ? !(tap & ~v.axes) : v.exists && tap < TAPS && tap_inside(v, tap);
}

CVY_INLINE const X_TYPE *after(const X_TYPE *p, bytes offset)
{
    return reinterpret_cast<const X_TYPE *>(reinterpret_cast<const char *>(p) + offset);
}

// Begins the copy of a step's pixels into a stage.
CVY_INLINE void gather(const cvy_args &a, const window *windows, const run_at *noted, float *stage)
{
    const int first = threadIdx.x / ACROSS * EACH; // of the thread's rows
    float *to = stage + first * PITCH_P + threadIdx.x % ACROSS;
    run_at runs[EACH / RUN]; // all at once: a load does not pass a copy
#pragma unroll
    for (int i = 0; i < EACH / RUN; i++) runs[i] = noted[first / RUN + i];
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {
            const run_at &run = runs[r / RUN];
            cvy_fetch(to + r * PITCH_P + i * ACROSS,
                      after(windows[i].origin, run.offset) + source_offset(a, r % RUN, 0, 0, 0),
                      is_inside(windows[i], run.tap));
        }
}

// And of its weights; `weights`: the thread's first four.
CVY_INLINE void copy_weights(const float *weights, int step, float *stage)
{
    constexpr int FOURS = BK / 4, AT_ONCE = THREADS / FOURS; // of a row; rows
    const int row = threadIdx.x / FOURS;
    const float *from = weights + (long long)step * ROWS * K_PAD;
    float *to = stage + row * PITCH_K + threadIdx.x % FOURS * 4;
    static_assert(THREADS % FOURS == 0, "whole rows at once");
#pragma unroll
    for (int r = 0; r < ROWS; r += AT_ONCE)
        if (ROWS % AT_ONCE == 0 || row < ROWS - r) cvy_copy16(to + r * PITCH_K, from + r * K_PAD);
}

// One result by multiply-adds: rare, so out of the way. Padding is zeros, which an infinite weight makes NaN; where
// a transposed convolution meets no source there is nothing.
static __device__ __noinline__ float sum_again(const cvy_args &a, long long pixel, int phase, int group,
                                               const float *weights)
{
    const window v = make_window(a, find_pixel(a, pixel, phase), group);
    float sum = 0.0f;
#pragma unroll 1
    for (int number = 0; number < TERMS; number++) {
        const int tap = number / C_IN;
        const bool inside = v.exists && tap_inside(v, tap);
        const float x = inside ? cvy_widen(v.origin[tap_offset(a, tap, number % C_IN)]) : 0.0f;
        if (inside || !TRANSPOSED) sum = fmaf(weights[(long long)number * K_PAD], x, sum);
    }
    return sum;
}

// A block's place in the work.
struct block_at {
    long long first_pixel;
    int phase, k_first, group;
    const float *weights; // of its first channel
};

CVY_INLINE block_at find_block(const cvy_args &a)
{
    block_at at;
    at.phase = blockIdx.x % PHASES; // of the same places side by side: they share the source in the L2
    at.first_pixel = (long long)(blockIdx.x / PHASES) * BP;
    at.k_first = blockIdx.y * BK;
    at.group = blockIdx.z;
    at.weights = a.t[2].p + ((long long)at.group * PHASES + at.phase) * STEPS * ROWS * K_PAD + at.k_first;
    return at;
}

// Puts others in the place of the thread's results that are not finite.
CVY_INLINE void mend(const cvy_args &a, const block_at &block, const tile &results, float *shared)
{
    constexpr int MINE = tile::TILES_M * tile::TILES_N * 4;
    bool sound = true;
#pragma unroll
    for (int i = 0; i < MINE; i++) sound &= tile::is_sound((&results.acc[0][0][0])[i]);
    if (sound) return;
#pragma unroll 1
    for (int i = 0; i < MINE; i++) {
        const int k = results.m + i / (4 * tile::TILES_N) * 16 + i / 2 % 2 * 8 + results.g;
        const int pixel = results.n + i / 4 % tile::TILES_N * 8 + results.t * 2 + i % 2;
        float *result = shared + k * tile::PITCH + pixel;
        if (!tile::is_sound(*result))
            *result = sum_again(a, block.first_pixel + pixel, block.phase, block.group, block.weights + k);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    extern __shared__ __align__(16) float shared[]; // STAGES x STAGE floats, then BK x tile::PITCH
    __shared__ __align__(16) run_at runs[NOTED][RUNS];
    const block_at block = find_block(a);
    const float *weights = block.weights + threadIdx.x / (BK / 4) * K_PAD + threadIdx.x % (BK / 4) * 4;
    const int column = threadIdx.x % ACROSS; // the thread's first pixel
    window windows[PIXELS];
    tile results;

#pragma unroll 1
    for (int i = threadIdx.x; i < NOTED * RUNS; i += THREADS)
        runs[i / RUNS][i % RUNS] = find_run(a, i / RUNS, i % RUNS);
#pragma unroll
    for (int i = 0; i < PIXELS; i++)
        windows[i] =
            make_window(a, find_pixel(a, block.first_pixel + i * ACROSS + column, block.phase), block.group);
    results.start(threadIdx.x);
    __syncthreads();
#pragma unroll 1 // code that runs once is slow to fetch
    for (int step = 0; step < STAGES - 1; step++) {
        float *stage = shared + step * STAGE;
        if (step < STEPS) {
            gather(a, windows, runs[step], stage);
            copy_weights(weights, step, stage + ROWS * PITCH_P);
        }
        cvy_copies_commit();
    }
    int now = 0, before = STAGES - 1; // stages of a step and of the one before it
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        const float *stage = shared + now * STAGE;
        const int next = step + STAGES - 1; // goes where the step before this one was
        cvy_copies_wait<STAGES - 2>();
        __syncthreads();
        if (next < STEPS) {
            gather(a, windows, runs[ALL_NOTED ? next : before], shared + before * STAGE);
            copy_weights(weights, next, shared + before * STAGE + ROWS * PITCH_P);
            if (!ALL_NOTED && threadIdx.x < RUNS) runs[now][threadIdx.x] = find_run(a, next + 1, threadIdx.x);
        }
        cvy_copies_commit();
        results.template multiply<PITCH_K, 1, PITCH_P, 1>(stage + ROWS * PITCH_P, stage);
        before = now;
        now = now + 1 < STAGES ? now + 1 : 0;
    }
    __syncthreads();
    results.spread(shared);
    mend(a, block, results, shared);
    __syncthreads();
    cvy_finish<BK, PIXELS, THREADS, SHARERS>(
        a, block.first_pixel, block.phase, block.k_first, block.group,
        [&](int i, int k) { return shared[k * tile::PITCH + i * ACROSS + column]; });
}
