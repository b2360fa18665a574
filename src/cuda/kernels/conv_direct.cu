// conv_direct.cu - convolution and transposed convolution in 1 to 3 dimensions by float32 multiply-adds.
//
// Implicit matrix product: rows are the output channels of a group, columns the output pixels of all samples in one
// row, the sum runs over (input channel, tap). A block computes BK x BP results. Per chunk of ROWS terms it stages
//
//   shared memory, STAGES times:   pixels  [ROWS][BP]   gathered with cp.async, 4 bytes each, zero outside x
//                                  weights [ROWS][BK]   copied from the packed weights, 16 bytes each
//
// while the chunk before is multiplied (tile.cuh). Results then lie in shared memory as [BK][BP] and go through the
// epilogue in the order of memory. Expected bound: FMA; with 8 x 8 results per thread 64 of 69 instructions. A
// transposed convolution runs phase by phase (window.cuh): the blocks of a phase meet the same taps.
//
//   t[1]  source, strides n, c, d, h, w        t[2]  packed weights [GROUPS][PHASES][TERMS][K_PAD] (pack.cu)
//   epilogue space: n, k, o, p, q
//   grid: x phases x tiles of pixels, y tiles of channels, z groups; THREADS threads
#ifndef C_IN
#define C_IN 8 // input channels of a group
#endif
#ifndef K_OUT
#define K_OUT 64 // output channels of a group
#endif
#ifndef GROUPS
#define GROUPS 1
#endif
#ifndef IN_D // source extents
#define IN_D 1
#define IN_H 128
#define IN_W 128
#endif
#ifndef OUT_O // destination extents
#define OUT_O 1
#define OUT_P 126
#define OUT_Q 126
#endif
#ifndef TAPS_T // filter extents
#define TAPS_T 1
#define TAPS_R 3
#define TAPS_S 3
#endif
#ifndef STRIDE_D
#define STRIDE_D 1
#define STRIDE_H 1
#define STRIDE_W 1
#endif
#ifndef PAD_D // in front
#define PAD_D 0
#define PAD_H 0
#define PAD_W 0
#endif
#ifndef DIL_D
#define DIL_D 1
#define DIL_H 1
#define DIL_W 1
#endif
#ifndef TRANSPOSED
#define TRANSPOSED 0
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // the source is contiguous: its inner strides are known
#endif
#ifndef BK // tile
#define BK   64
#define BP   128
#define TK   8
#define TP   8
#define ROWS 18
#endif
#ifndef BLOCKS
#define BLOCKS 3 // at least so many blocks of a multiprocessor: bounds the registers
#endif

#include "copy.cuh"
#include "epilogue.cuh"
#include "tile.cuh"
#include "window.cuh"

typedef cvy_tile<BK, BP, TK, TP> tile;
typedef cvy_axis<TAPS_T, STRIDE_D, PAD_D, DIL_D> axis_d;
typedef cvy_axis<TAPS_R, STRIDE_H, PAD_H, DIL_H> axis_h;
typedef cvy_axis<TAPS_S, STRIDE_W, PAD_W, DIL_W> axis_w;

constexpr int T = axis_d::TAPS, R = axis_h::TAPS, S = axis_w::TAPS, TAPS = T * R * S, TERMS = C_IN * TAPS;
constexpr int PHASES = axis_d::PHASES * axis_h::PHASES * axis_w::PHASES;
// Output places of a phase, the same number for all: some may lie behind the end.
constexpr int PHASE_O = (OUT_O + axis_d::PHASES - 1) / axis_d::PHASES;
constexpr int PHASE_P = (OUT_P + axis_h::PHASES - 1) / axis_h::PHASES;
constexpr int PHASE_Q = (OUT_Q + axis_w::PHASES - 1) / axis_w::PHASES;
constexpr int CHUNKS = (TERMS + ROWS - 1) / ROWS;
constexpr int K_PAD = (K_OUT + BK - 1) / BK * BK;
constexpr int THREADS = tile::THREADS, PIXELS = BP / THREADS; // pixels that a thread gathers
constexpr int STAGE = ROWS * (BP + BK), STAGES = 2;
constexpr bool WHOLE = ROWS % TAPS == 0; // a chunk is whole channels: its offsets are constants
static_assert(BP % THREADS == 0, "every thread gathers whole pixels");
static_assert(BK % 4 == 0, "weights are copied by 16 bytes");

// A pixel of the block's phase: where it lies in the output.
struct pixel_at {
    int n, o, p, q;
    bool exists;
};

CVY_INLINE pixel_at find_pixel(const cvy_args &a, long long number, int phase)
{
    constexpr int PLANE = PHASE_O * PHASE_P * PHASE_Q;
    const int in_plane = (int)(number % PLANE);
    pixel_at at;
    at.n = (int)(number / PLANE);
    at.q = in_plane % PHASE_Q * axis_w::PHASES + phase % axis_w::PHASES;
    at.p = in_plane / PHASE_Q % PHASE_P * axis_h::PHASES + phase / axis_w::PHASES % axis_h::PHASES;
    at.o = in_plane / (PHASE_P * PHASE_Q) * axis_d::PHASES + phase / (axis_w::PHASES * axis_h::PHASES);
    at.exists = at.n < a.extent && at.o < OUT_O && at.p < OUT_P && at.q < OUT_Q;
    return at;
}

// What a thread must know of a pixel whose window it gathers.
struct window {
    const float *origin; // the first tap's place in the first channel of the group, inside the source or not
    int d, h, w;         // that place
    int t, r, s;         // that tap of the filter: 0 unless transposed
    unsigned inside;     // bit per tap, for up to 32 taps
    bool exists;
};

// Is tap number `tap` of the window one of the filter's (a phase may have one less), and its place inside the
// source? Its weight would be 0, but that times an inf is not.
CVY_INLINE bool tap_inside(const window &v, int tap)
{
    if (v.t + tap / (R * S) * axis_d::EVERY >= TAPS_T || v.r + tap / S % R * axis_h::EVERY >= TAPS_R ||
        v.s + tap % S * axis_w::EVERY >= TAPS_S)
        return false;
    return (unsigned)(v.d + tap / (R * S) * axis_d::MOVE) < IN_D &&
           (unsigned)(v.h + tap / S % R * axis_h::MOVE) < IN_H && (unsigned)(v.w + tap % S * axis_w::MOVE) < IN_W;
}

CVY_INLINE cvy_index source_offset(const cvy_args &a, int c, int d, int h, int w)
{
    if (SRC_DENSE) return (((cvy_index)c * IN_D + d) * IN_H + h) * IN_W + w;
    return c * cvy_stride(a.t[1], 1) + d * cvy_stride(a.t[1], 2) + h * cvy_stride(a.t[1], 3) +
           w * cvy_stride(a.t[1], 4);
}

CVY_INLINE window make_window(const cvy_args &a, const pixel_at &at, int group)
{
    window v;
    v.exists = at.exists;
    v.t = axis_d::first(at.o % axis_d::PHASES);
    v.r = axis_h::first(at.p % axis_h::PHASES);
    v.s = axis_w::first(at.q % axis_w::PHASES);
    v.d = axis_d::start(at.o, v.t);
    v.h = axis_h::start(at.p, v.r);
    v.w = axis_w::start(at.q, v.s);
    v.inside = 0;
    if (TAPS <= 32)
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) v.inside |= (unsigned)(v.exists && tap_inside(v, tap)) << tap;
    v.origin = a.t[1].p + (long long)at.n * a.t[1].s[0] + (long long)group * C_IN * a.t[1].s[1] +
               source_offset(a, 0, v.d, v.h, v.w);
    return v;
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
            const int term = chunk * ROWS + r;
            const int c = WHOLE ? chunk * (ROWS / TAPS) + r / TAPS : term / TAPS;
            const int tap = WHOLE ? r % TAPS : term % TAPS;
            bool valid = TAPS <= 32 ? v.inside >> tap & 1 : v.exists && tap_inside(v, tap);
            if (TERMS % ROWS) valid = valid && c < C_IN;
            const cvy_index offset = source_offset(a, c, tap / (R * S) * axis_d::MOVE, tap / S % R * axis_h::MOVE,
                                                   tap % S * axis_w::MOVE);
            cvy_copy4(stage + r * BP + i * THREADS + thread, v.origin + offset, valid);
        }
    }
    const float *from = weights + (long long)chunk * ROWS * K_PAD;
    for (int i = thread; i < ROWS * BK / 4; i += THREADS)
        cvy_copy16(stage + ROWS * BP + i * 4, from + i / (BK / 4) * K_PAD + i % (BK / 4) * 4);
}

// Hands the tile to the epilogue, channel by channel: neighbouring threads take neighbouring pixels.
CVY_INLINE void finish(const cvy_args &a, const float *results, long long first_pixel, int phase, int k_first,
                       int group)
{
    for (int i = 0; i < PIXELS; i++) {
        const pixel_at pixel = find_pixel(a, first_pixel + i * THREADS + threadIdx.x, phase);
        const int in_plane = (pixel.o * OUT_P + pixel.p) * OUT_Q + pixel.q;
        if (!pixel.exists) continue;
        for (int k = 0; k < BK && k_first + k < K_OUT; k++) {
            cvy_at at;
            at.i0 = pixel.n;
            at.i1 = group * K_OUT + k_first + k;
            at.i2 = pixel.o;
            at.i3 = pixel.p;
            at.i4 = pixel.q;
            at.i5 = 0;
            at.lin = ((cvy_index)pixel.n * (GROUPS * K_OUT) + at.i1) * (OUT_O * OUT_P * OUT_Q) + in_plane;
            cvy_epilogue(a, at, results[k * BP + i * THREADS + threadIdx.x]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    extern __shared__ __align__(16) float shared[]; // max(STAGES * STAGE, BK * BP) floats
    const int phase =
        blockIdx.x % PHASES; // phases of the same places side by side: they share the source in the L2
    const long long first_pixel = (long long)(blockIdx.x / PHASES) * BP;
    const int k_first = blockIdx.y * BK, group = blockIdx.z;
    const float *weights = a.t[2].p + ((long long)group * PHASES + phase) * CHUNKS * ROWS * K_PAD + k_first;
    window windows[PIXELS];
    tile results;

#pragma unroll
    for (int i = 0; i < PIXELS; i++)
        windows[i] = make_window(a, find_pixel(a, first_pixel + i * THREADS + threadIdx.x, phase), group);
    results.start(threadIdx.x);
    gather(a, windows, weights, 0, shared);
    cvy_copies_commit();
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const float *stage = shared + chunk % STAGES * STAGE;
        if (chunk + 1 < CHUNKS) gather(a, windows, weights, chunk + 1, shared + (chunk + 1) % STAGES * STAGE);
        cvy_copies_commit();
        cvy_copies_wait<1>();
        __syncthreads();
        results.template multiply<ROWS, BK, BP>(stage + ROWS * BP, stage);
        __syncthreads();
    }
    results.spread(shared);
    __syncthreads();
    finish(a, shared, first_pixel, phase, k_first, group);
}
