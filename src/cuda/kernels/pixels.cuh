// pixels.cuh - a convolution as a matrix product, for any way to multiply: output pixels of all samples in one row,
// and what a thread needs to gather the taps of one pixel. Shared by conv_direct.cu and conv_mma.cu.
//
//   t[1]  source, strides n, c, d, h, w        epilogue space: n, k, o, p, q
#ifndef CVY_PIXELS_CUH
#define CVY_PIXELS_CUH

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
#ifndef SRC_DENSE
#define SRC_DENSE 1 // the source is contiguous: its inner strides are known
#endif
#ifndef X_TYPE
#define X_TYPE float // the source's elements
#endif

#include "epilogue.cuh"
#include "window.cuh"

constexpr int T = axis_d::TAPS, R = axis_h::TAPS, S = axis_w::TAPS, TAPS = T * R * S, TERMS = C_IN * TAPS;
constexpr int PHASES = axis_d::PHASES * axis_h::PHASES * axis_w::PHASES;
// Output places of a phase, the same number for all: some may lie past the end.
constexpr int PHASE_O = (OUT_O + axis_d::PHASES - 1) / axis_d::PHASES;
constexpr int PHASE_P = (OUT_P + axis_h::PHASES - 1) / axis_h::PHASES;
constexpr int PHASE_Q = (OUT_Q + axis_w::PHASES - 1) / axis_w::PHASES;

// A pixel of the block's phase: where it lies in the output.
struct pixel_at {
    int n, o, p, q;
    bool exists;
};

CVY_INLINE pixel_at find_pixel(const cvy_args &a, long long number, int phase)
{
    constexpr int PLANE = PHASE_O * PHASE_P * PHASE_Q;
    const cvy_index index = (cvy_index)number; // there are more results than pixels
    const int in_plane = (int)(index % PLANE);
    pixel_at at;
    at.n = (int)(index / PLANE);
    at.q = in_plane % PHASE_Q * axis_w::PHASES + phase % axis_w::PHASES;
    at.p = in_plane / PHASE_Q % PHASE_P * axis_h::PHASES + phase / axis_w::PHASES % axis_h::PHASES;
    at.o = in_plane / (PHASE_P * PHASE_Q) * axis_d::PHASES + phase / (axis_w::PHASES * axis_h::PHASES);
    at.exists = at.n < a.extent && at.o < OUT_O && at.p < OUT_P && at.q < OUT_Q;
    return at;
}

// What a thread must know of a pixel whose window it gathers.
struct window {
    const X_TYPE *origin; // the first tap's place in the first channel of the group, inside the source or not
    int d, h, w;          // that place
    int t, r, s;          // that tap of the filter: 0 unless transposed
    unsigned inside;      // bit per tap, for up to 32 taps
    unsigned axes;        // bit per tap of each axis, for up to 31 in all: see tap_axes
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

// The same in T + R + S bits: tap number `tap` is inside where a window's axes have all of tap_axes.
constexpr bool AXES_FIT = T + R + S < 32;
constexpr unsigned NO_TAP = 1u << 31; // no window's axes have it

CVY_INLINE unsigned tap_axes(int tap)
{
    return 1u << tap / (R * S) | 1u << (T + tap / S % R) | 1u << (T + R + tap % S);
}

template <class axis, int N_TAPS, int EXTENT> CVY_INLINE unsigned axis_inside(int tap, int place)
{
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < axis::TAPS; i++)
        bits |= (unsigned)(tap + i * axis::EVERY < N_TAPS && (unsigned)(place + i * axis::MOVE) < EXTENT) << i;
    return bits;
}

CVY_INLINE unsigned axes_inside(const window &v)
{
    return axis_inside<axis_d, TAPS_T, IN_D>(v.t, v.d) | axis_inside<axis_h, TAPS_R, IN_H>(v.r, v.h) << T |
           axis_inside<axis_w, TAPS_S, IN_W>(v.s, v.w) << (T + R);
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
    v.axes = AXES_FIT && v.exists ? axes_inside(v) : 0;
    v.origin = cvy_as<X_TYPE>(a.t[1]) + (long long)at.n * a.t[1].s[0] + (long long)group * C_IN * a.t[1].s[1] +
               source_offset(a, 0, v.d, v.h, v.w);
    return v;
}

// Hands a tile of BK channels from k_first on to the epilogue, channel by channel: neighbouring threads take
// neighbouring pixels, PIXELS each; SHARERS threads take the channels of a pixel in turn.
// result(i, k): of the thread's pixel number i, channel k of the tile.
template <int BK_, int PIXELS_, int THREADS_, int SHARERS_ = 1, class Result>
CVY_INLINE void cvy_finish(const cvy_args &a, long long first_pixel, int phase, int k_first, int group,
                           Result result)
{
    constexpr int ACROSS = THREADS_ / SHARERS_; // pixels that threads take at once
    for (int i = 0; i < PIXELS_; i++) {
        const pixel_at pixel = find_pixel(a, first_pixel + i * ACROSS + threadIdx.x % ACROSS, phase);
        const int in_plane = (pixel.o * OUT_P + pixel.p) * OUT_Q + pixel.q;
        if (!pixel.exists) continue;
        for (int k = threadIdx.x / ACROSS; k < BK_ && k_first + k < K_OUT; k += SHARERS_) {
            cvy_at at;
            at.i0 = pixel.n;
            at.i1 = group * K_OUT + k_first + k;
            at.i2 = pixel.o;
            at.i3 = pixel.p;
            at.i4 = pixel.q;
            at.i5 = 0;
            at.lin = ((cvy_index)pixel.n * (GROUPS * K_OUT) + at.i1) * (OUT_O * OUT_P * OUT_Q) + in_plane;
            cvy_epilogue(a, at, result(i, k));
        }
    }
}

#endif
