// conv_direct.cu - convolution and transposed convolution in 1 to 3 dimensions by float32 multiply-adds.
//
// Implicit matrix product: rows are the output channels of a group, columns the output pixels of all samples in one
// row, the sum runs over (input channel, tap). A block computes BK x BP results. Per chunk of ROWS terms it stages
//
//   shared memory, STAGES times:   pixels  [ROWS][BP]   gathered with cp.async, 4 bytes each, zero outside the input
//                                  weights [ROWS][BK]   copied from the packed weights, 16 bytes each
//
// while the chunk before is multiplied (tile.cuh). Results then lie in shared memory as [BK][BP] and go through the
// epilogue in the order of memory. Expected bound: FMA; with 8 x 8 results per thread 64 of 69 instructions.
//
//   t[1]  source, strides n, c, d, h, w        t[2]  packed weights [GROUPS][TERMS][K_PAD] (pack.cu)
//   epilogue space: n, k, o, p, q
//   grid: x tiles of pixels, y tiles of channels, z groups; THREADS threads
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
#define BK 64
#define BP 128
#define TK 8
#define TP 8
#define ROWS 18
#endif
#ifndef BLOCKS
#define BLOCKS 3 // at least so many blocks of a multiprocessor: bounds the registers
#endif

#include "epilogue.cuh"
#include "tile.cuh"

typedef cvy_tile<BK, BP, TK, TP> tile;

constexpr int TAPS = TAPS_T * TAPS_R * TAPS_S, TERMS = C_IN * TAPS;
constexpr int CHUNKS = (TERMS + ROWS - 1) / ROWS;
constexpr int K_PAD = (K_OUT + BK - 1) / BK * BK;
constexpr int THREADS = tile::THREADS, PIXELS = BP / THREADS; // pixels that a thread gathers
constexpr int STAGE = ROWS * (BP + BK), STAGES = 2;
constexpr bool WHOLE = ROWS % TAPS == 0; // a chunk is whole channels: its offsets are constants
static_assert(BP % THREADS == 0, "every thread gathers whole pixels");
static_assert(BK % 4 == 0, "weights are copied by 16 bytes");

// What a thread must know of a pixel whose window it gathers.
struct window {
    const float *origin; // sample n, first channel of the group; not transposed: the first tap's place, inside or not
    int d, h, w;         // first tap's place in the source; transposed: the place times the stride
    unsigned inside;     // bit per tap, for up to 32 taps
    bool exists;
};

// The place along one axis; false outside the source.
template <int STRIDE, int DIL, int EXTENT> CVY_INLINE bool place(int first, int tap, int &at)
{
    if (TRANSPOSED) {
        const int scaled = first - tap * DIL;
        at = scaled / STRIDE;
        return scaled >= 0 && scaled % STRIDE == 0 && at < EXTENT;
    }
    at = first + tap * DIL;
    return (unsigned)at < (unsigned)EXTENT;
}

CVY_INLINE bool place_of_tap(const window &v, int tap, int &d, int &h, int &w)
{
    const bool ok_d = place<STRIDE_D, DIL_D, IN_D>(v.d, tap / (TAPS_R * TAPS_S), d);
    const bool ok_h = place<STRIDE_H, DIL_H, IN_H>(v.h, tap / TAPS_S % TAPS_R, h);
    const bool ok_w = place<STRIDE_W, DIL_W, IN_W>(v.w, tap % TAPS_S, w);
    return ok_d && ok_h && ok_w;
}

// For one axis of an output place: where its first tap reads.
template <int STRIDE, int PAD> CVY_INLINE int first_tap(int out)
{
    return TRANSPOSED ? out + PAD : out * STRIDE - PAD;
}

CVY_INLINE cvy_index source_offset(const cvy_args &a, int c, int d, int h, int w)
{
    if (SRC_DENSE) return (((cvy_index)c * IN_D + d) * IN_H + h) * IN_W + w;
    return c * cvy_stride(a.t[1], 1) + d * cvy_stride(a.t[1], 2) + h * cvy_stride(a.t[1], 3) +
           w * cvy_stride(a.t[1], 4);
}

CVY_INLINE window make_window(const cvy_args &a, long long pixel, int group)
{
    constexpr int PLANE = OUT_O * OUT_P * OUT_Q;
    const int n = (int)(pixel / PLANE), in_plane = (int)(pixel % PLANE);
    window v;
    v.exists = n < a.extent;
    v.origin = a.t[1].p + (long long)n * a.t[1].s[0] + (long long)group * C_IN * a.t[1].s[1];
    v.d = first_tap<STRIDE_D, PAD_D>(in_plane / (OUT_P * OUT_Q));
    v.h = first_tap<STRIDE_H, PAD_H>(in_plane / OUT_Q % OUT_P);
    v.w = first_tap<STRIDE_W, PAD_W>(in_plane % OUT_Q);
    v.inside = 0;
    if (TAPS <= 32) {
        int d, h, w;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) v.inside |= (unsigned)(v.exists && place_of_tap(v, tap, d, h, w)) << tap;
    }
    if (!TRANSPOSED) v.origin += source_offset(a, 0, v.d, v.h, v.w);
    return v;
}

// Where the source holds term (c, tap) of a window, and whether it does.
CVY_INLINE const float *term_place(const cvy_args &a, const window &v, int c, int tap, bool &valid)
{
    int d, h, w;
    const bool inside = place_of_tap(v, tap, d, h, w);
    valid = TAPS <= 32 ? v.inside >> tap & 1 : inside && v.exists;
    if (TERMS % ROWS) valid = valid && c < C_IN;
    if (TRANSPOSED) return v.origin + source_offset(a, c, d, h, w);
    return v.origin + source_offset(a, c, tap / (TAPS_R * TAPS_S) * DIL_D, tap / TAPS_S % TAPS_R * DIL_H,
                                    tap % TAPS_S * DIL_W);
}

// Begins the copy of one chunk into a stage.
CVY_INLINE void gather(const cvy_args &a, const window *windows, const float *weights, int chunk, float *stage)
{
    const int thread = threadIdx.x;
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int term = chunk * ROWS + r;
            const int c = WHOLE ? chunk * (ROWS / TAPS) + r / TAPS : term / TAPS;
            const int tap = WHOLE ? r % TAPS : term % TAPS;
            bool valid;
            const float *from = term_place(a, windows[i], c, tap, valid);
            cvy_copy4(stage + r * BP + i * THREADS + thread, from, valid);
        }
    }
    const float *from = weights + (long long)chunk * ROWS * K_PAD;
    for (int i = thread; i < ROWS * BK / 4; i += THREADS)
        cvy_copy16(stage + ROWS * BP + i * 4, from + i / (BK / 4) * K_PAD + i % (BK / 4) * 4);
}

// Hands the tile to the epilogue, channel by channel: neighbouring threads take neighbouring pixels.
CVY_INLINE void finish(const cvy_args &a, const float *results, long long first_pixel, int k_first, int group)
{
    constexpr int PLANE = OUT_O * OUT_P * OUT_Q;
    for (int i = 0; i < PIXELS; i++) {
        const long long pixel = first_pixel + i * THREADS + threadIdx.x;
        const int n = (int)(pixel / PLANE), in_plane = (int)(pixel % PLANE);
        if (n >= a.extent) return;
        for (int k = 0; k < BK && k_first + k < K_OUT; k++) {
            cvy_at at;
            at.i0 = n;
            at.i1 = group * K_OUT + k_first + k;
            at.i2 = in_plane / (OUT_P * OUT_Q);
            at.i3 = in_plane / OUT_Q % OUT_P;
            at.i4 = in_plane % OUT_Q;
            at.i5 = 0;
            at.lin = ((cvy_index)n * (GROUPS * K_OUT) + at.i1) * PLANE + in_plane;
            cvy_epilogue(a, at, results[k * BP + i * THREADS + threadIdx.x]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    extern __shared__ __align__(16) float shared[]; // max(STAGES * STAGE, BK * BP) floats
    const long long first_pixel = (long long)blockIdx.x * BP;
    const int k_first = blockIdx.y * BK, group = blockIdx.z;
    const float *weights = a.t[2].p + (long long)group * CHUNKS * ROWS * K_PAD + k_first;
    window windows[PIXELS];
    tile results;

#pragma unroll
    for (int i = 0; i < PIXELS; i++) windows[i] = make_window(a, first_pixel + i * THREADS + threadIdx.x, group);
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
    finish(a, shared, first_pixel, k_first, group);
}
