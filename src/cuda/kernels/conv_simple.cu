// conv_simple.cu - convolution and transposed convolution, one thread per output element.
//
// For convolutions that do not fill a matrix tile: depthwise and other groups of few channels, filters with very
// many taps. Neighbouring threads compute neighbouring pixels of one channel, so reads of the source coalesce and
// weights are the same word for the whole warp. Expected bound: load instructions, C_IN x taps of them per element.
// Padding is zeros, so an infinite weight makes NaN; a transposed convolution adds nothing where there is no
// source.
//
//   t[1]  source, strides n, c, d, h, w        t[2]  weights, strides k, c, t, r, s (k and c of the group's own)
//   epilogue space: n, k, o, p, q              grid: x elements of a sample's group over THREADS; y samples; z
//   groups
#ifndef C_IN
#define C_IN 1 // input channels of a group
#endif
#ifndef K_OUT
#define K_OUT 1 // output channels of a group
#endif
#ifndef GROUPS
#define GROUPS 32
#endif
#ifndef IN_D
#define IN_D 1
#define IN_H 56
#define IN_W 56
#endif
#ifndef OUT_O
#define OUT_O 1
#define OUT_P 54
#define OUT_Q 54
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // source and weights are contiguous: their inner strides are known
#endif
#ifndef X_TYPE
#define X_TYPE float // elements of source and weights
#define W_TYPE float
#endif

#include "epilogue.cuh"
#include "filter.cuh"

constexpr int THREADS = BLOCK_THREADS;
constexpr int PLANE = OUT_O * OUT_P * OUT_Q;
static_assert(C_IN >= 1 && K_OUT >= 1 && GROUPS >= 1, "there are channels");

// Where tap number `tap` of output place `out` reads along one axis; false outside the source.
template <int STRIDE, int PAD, int DIL, int EXTENT> CVY_INLINE bool place(int out, int tap, int &at)
{
    if (TRANSPOSED) {
        const int scaled = out + PAD - tap * DIL;
        at = scaled / STRIDE;
        return scaled >= 0 && scaled % STRIDE == 0 && at < EXTENT;
    }
    at = out * STRIDE - PAD + tap * DIL;
    return (unsigned)at < (unsigned)EXTENT;
}

constexpr int TAPS = TAPS_T * TAPS_R * TAPS_S;
constexpr int UNROLL = TAPS <= 64 ? TAPS : 1; // few taps: all loads are in flight at once

// Offsets inside one channel of the source and of the weights.
CVY_INLINE cvy_index source_offset(const cvy_args &a, int d, int h, int w)
{
    if (SRC_DENSE) return ((cvy_index)d * IN_H + h) * IN_W + w;
    return d * cvy_stride(a.t[1], 2) + h * cvy_stride(a.t[1], 3) + w * cvy_stride(a.t[1], 4);
}
CVY_INLINE cvy_index weight_offset(const cvy_args &a, int t, int r, int s)
{
    if (SRC_DENSE) return ((cvy_index)t * TAPS_R + r) * TAPS_S + s;
    return t * cvy_stride(a.t[2], 2) + r * cvy_stride(a.t[2], 3) + s * cvy_stride(a.t[2], 4);
}

CVY_INLINE float window_sum(const cvy_args &a, const cvy_at &at, const X_TYPE *source, const W_TYPE *weight)
{
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int tap = 0; tap < TAPS; tap++) {
        const int t = tap / (TAPS_R * TAPS_S), r = tap / TAPS_S % TAPS_R, s = tap % TAPS_S;
        int d, h, w;
        const bool ok_d = place<STRIDE_D, PAD_D, DIL_D, IN_D>(at.i2, t, d);
        const bool ok_h = place<STRIDE_H, PAD_H, DIL_H, IN_H>(at.i3, r, h);
        const bool ok_w = place<STRIDE_W, PAD_W, DIL_W, IN_W>(at.i4, s, w);
        const bool inside = ok_d && ok_h && ok_w;
        const float x = inside ? cvy_widen(source[source_offset(a, d, h, w)]) : 0.0f;
        if (inside || !TRANSPOSED) sum = fmaf(x, cvy_widen(weight[weight_offset(a, t, r, s)]), sum);
    }
    return sum;
}

// Element number `element` of a sample's group.
CVY_INLINE void compute(const cvy_args &a, int n, int group, int element)
{
    const int k = element / PLANE, in_plane = element % PLANE;
    float sum = 0.0f;
    cvy_at at;

    at.i0 = n;
    at.i1 = group * K_OUT + k;
    at.i2 = in_plane / (OUT_P * OUT_Q);
    at.i3 = in_plane / OUT_Q % OUT_P;
    at.i4 = in_plane % OUT_Q;
    at.i5 = 0;
    at.lin = ((cvy_index)n * (GROUPS * K_OUT) + at.i1) * PLANE + in_plane;
    for (int c = 0; c < C_IN; c++) {
        const long long channel = (long long)group * C_IN + c;
        sum += window_sum(a, at, cvy_as<X_TYPE>(a.t[1]) + n * a.t[1].s[0] + channel * a.t[1].s[1],
                          cvy_as<W_TYPE>(a.t[2]) + group * a.t[2].s[5] + k * a.t[2].s[0] + c * a.t[2].s[1]);
    }
    cvy_epilogue(a, at, sum);
}

// A grid takes 65535 samples and groups; what is past that comes in further turns.
extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const int element = blockIdx.x * THREADS + threadIdx.x;

    if (element >= K_OUT * PLANE) return;
    for (int group = blockIdx.z; group < GROUPS; group += gridDim.z)
        for (int n = blockIdx.y; n < a.extent; n += gridDim.y) compute(a, n, group, element);
}
