// conv_wide.cuh - wide convolutions: macros, and the layout of operands in memory. Shared by conv_wide*.cu.
//
// x, after the operators of the prologue, is a list of pixels, each a row of words, C_PAD of them:
//
//   words [PARTS][LISTS][n][D + gap][H + gap][W + gap][C_PAD]
//     SCALED: fp16; part 0: fp16(x * scale), part 1: the remainder
//     else: x and the weights are of one type of 16 bits, and the words are its numbers
//
// The gaps are zeros: the padding after a row is also the one before the next row, and likewise for planes
// and samples. Before the first pixel and after the last one, tensor copies insert zeros. So a
// tap is a distance in the list, the same for every pixel, for any rank, padding and dilation:
//
//   out[n, k, o, p, q] = sum over taps and c of w[tap][k][c] * words[at(n, o, p, q) + shift(tap)][c]
//   at(n, o, p, q) = n * FLAT_SAMPLE + o * FLAT_PLANE + p * FLAT_ROW + q
//   shift(t, r, s) = (t * DIL_D - PAD_D) * FLAT_PLANE + (r * DIL_H - PAD_H) * FLAT_ROW + s * DIL_W - PAD_W
//
// Strides divide the taps into phases (wide_layout.cuh). An ordinary convolution has a list for each phase of x
// and sums over all of them; a transposed one has one list, and a block's places are those of one phase of the
// output. Results are computed at every place of the list; those that are not pixels of the output are discarded.
//
//   packed [SLICES][TAPS, phase by phase][PARTS][K_PAD / 64][64 output channels][64 input channels] fp16
//     what a block needs of a tap is one piece, swizzled as tensor copies would do it: 16 bytes number c / 8 of
//     row k lie at place c / 8 ^ k % 8
//   unscale [K_PAD] float32: SCALED: the inverse of the channel's scale
//
// Scales: weight_scale.cuh and words.cuh.
#ifndef CVY_CONV_WIDE_CUH
#define CVY_CONV_WIDE_CUH

#ifndef C_IN
#define C_IN 128
#endif
#ifndef K_OUT
#define K_OUT 128
#endif
#ifndef IN_D // source extents
#define IN_D 1
#define IN_H 64
#define IN_W 64
#endif
#ifndef OUT_O // destination extents
#define OUT_O 1
#define OUT_P 62
#define OUT_Q 62
#endif
#ifndef FLAT_ROW // pixels from one row, plane and sample of the list to the next
#define FLAT_ROW    IN_W
#define FLAT_PLANE  (IN_H * FLAT_ROW)
#define FLAT_SAMPLE (IN_D * FLAT_PLANE)
#endif
#ifndef X_TYPE // elements of x and of the weights
#define X_TYPE float
#define W_TYPE float
#endif
#ifndef PRODUCTS
#define PRODUCTS 3 // 1: tf32's accuracy, 3: float32's
#endif
#ifndef SCALED
#define SCALED 1
#endif
#ifndef WORD
#define WORD cvy_f16
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // all views are contiguous, or channels last:
#endif
#ifndef X_LAST
#define X_LAST 0 // what becomes words lies channels last
#endif
#ifndef Y_LAST
#define Y_LAST 0 // and so does the result
#endif
#ifndef PLACED
#define PLACED                                                                                                     \
    0 // 4 or 5: x lies channels last, of 16 bits, and its own elements are the words; dimensions of its map
#endif

#define TC_PRODUCTS 3 // the forms of float32's accuracy in fast.cuh
#include "fast.cuh"
//
#include "epilogue.cuh"
#include "filter.cuh"
#include "ptx.cuh"
#include "wide_layout.cuh"
#include "words.cuh"

constexpr int PARTS = PRODUCTS == 3 ? 2 : 1, TAPS = TAPS_T * TAPS_R * TAPS_S;
constexpr wide_axis AXIS_D = {TAPS_T, STRIDE_D, PAD_D, DIL_D, TRANSPOSED},
                    AXIS_H = {TAPS_R, STRIDE_H, PAD_H, DIL_H, TRANSPOSED},
                    AXIS_W = {TAPS_S, STRIDE_W, PAD_W, DIL_W, TRANSPOSED};
constexpr int PHASES = STRIDE_D * STRIDE_H * STRIDE_W, LISTS = TRANSPOSED ? 1 : PHASES;
constexpr int SLICES = cdiv(C_IN, WIDE_CHANNELS), C_PAD = SLICES * WIDE_CHANNELS;
constexpr int K_PAD = cdiv(K_OUT, WIDE_PADDED_K) * WIDE_PADDED_K;
constexpr int K_BLOCK = 64 * WIDE_ROW_BYTES; // bytes of 64 packed output channels

// Two scaled numbers as words, in both parts.
CVY_INLINE void pair_words(float lo, float hi, u32 (&words)[PARTS])
{
#if SCALED
    split_words(lo, hi, words);
#else
    words[0] = cvy_narrow(lo, hi, WORD());
#endif
}

// The taps of a phase: along each axis its phase, and how many there are.
struct phase_taps {
    int d, h, w, t, r, s;
};

CVY_INLINE phase_taps find_phase(int phase)
{
    phase_taps f;
    f.d = phase / (STRIDE_H * STRIDE_W), f.h = phase / STRIDE_W % STRIDE_H, f.w = phase % STRIDE_W;
    f.t = wide_count(AXIS_D, f.d), f.r = wide_count(AXIS_H, f.h), f.s = wide_count(AXIS_W, f.w);
    return f;
}

CVY_INLINE int taps_before(int phase)
{
    int before = 0;
#pragma unroll 1
    for (int i = 0; i < phase; i++) {
        const phase_taps f = find_phase(i);
        before += f.t * f.r * f.s;
    }
    return before;
}

#endif
