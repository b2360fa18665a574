// window.cuh - which filter taps contribute to an output position, and where they read, along one axis.
//
// An ordinary convolution reads tap m of output o at o * STRIDE - PAD + m * DIL. A transposed one meets, at output
// o, only the taps r with (o + PAD - r * DIL) divisible by STRIDE: every EVERY-th one, from one that depends on the
// phase o % STRIDE only. Seen phase by phase it is an ordinary convolution with fewer taps, read backwards:
//
//   tap m of phase f: r = first(f) + m * EVERY, at (o + PAD - first(f) * DIL) / STRIDE - m * DIL / gcd(STRIDE, DIL)
#ifndef CVY_WINDOW_CUH
#define CVY_WINDOW_CUH

#include "common.cuh"
#include "filter.cuh"

CVY_INLINE constexpr int cvy_gcd(int a, int b)
{
    return b ? cvy_gcd(b, a % b) : a;
}

template <int N_TAPS, int STRIDE, int PAD, int DIL> struct cvy_axis {
    static constexpr int GCD = TRANSPOSED ? cvy_gcd(STRIDE, DIL) : 1;
    static constexpr int PHASES = TRANSPOSED ? STRIDE : 1;
    static constexpr int EVERY = TRANSPOSED ? STRIDE / GCD : 1;
    static constexpr int TAPS = (N_TAPS + EVERY - 1) / EVERY; // of one phase, at most
    static constexpr int MOVE = TRANSPOSED ? -(DIL / GCD) : DIL;

    // The first tap of a phase; N_TAPS where it has none.
    static CVY_INLINE_MEMBER int first(int phase)
    {
        int r = 0;
        while (TRANSPOSED && r < EVERY && (phase + PAD - r * DIL) % STRIDE) r++;
        return r < EVERY ? r : N_TAPS;
    }
    // Where that tap reads for output number j of the phase.
    static CVY_INLINE_MEMBER int start(int out, int tap)
    {
        return TRANSPOSED ? (out + PAD - tap * DIL) / STRIDE : out * STRIDE - PAD;
    }
};

typedef cvy_axis<TAPS_T, STRIDE_D, PAD_D, DIL_D> axis_d;
typedef cvy_axis<TAPS_R, STRIDE_H, PAD_H, DIL_H> axis_h;
typedef cvy_axis<TAPS_S, STRIDE_W, PAD_W, DIL_W> axis_w;

#endif
