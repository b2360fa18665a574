// wide_layout.cuh - shared by the kernels of wide convolutions (conv_wide*.cu) and the host, which chooses their
// tiles (conv_wide.c): stages, threads, bytes of shared memory.
#ifndef CVY_WIDE_LAYOUT_CUH
#define CVY_WIDE_LAYOUT_CUH

#include "host_device.cuh"

enum {
    WIDE_CHANNELS = 64, // of a row of words: 128 bytes, one swizzled row of shared memory
    WIDE_ROW_BYTES = 128,
    WIDE_GROUP_ROWS = 64, // output channels of a warpgroup
    WIDE_PADDED_K = 128,  // output channels are packed up to a multiple of this, whatever the tile
    WIDE_COPY_MOST = 256, // pixels of one tensor copy
    WIDE_STRETCH = 64,    // pixels of a sample that a block turns into words
    WIDE_MOST_STAGES = 8
};

// conv_wide.cu's macros by which the host chooses its tile: -DNAME, the field that holds its value, its meaning.
#define CONV_WIDE_TILE(X)                                                                                          \
    X(GROUPS_M, groups_m, "warpgroups along the channels")                                                         \
    X(GROUPS_N, groups_n, "and along the pixels")                                                                  \
    X(TILE, tile, "pixels of a warpgroup")                                                                         \
    X(TOGETHER, together, "1: all rows of taps share a stage of x, else each has its own")                         \
    X(BLOCKS, blocks, "of a multiprocessor")                                                                       \
    X(SPLIT, split, "blocks that share a sum")

// ---- taps by phases ----
//
// Along an axis of stride s the taps of a filter fall into s phases, by the remainder of r * dil - pad. Each
// phase is a filter of stride 1: of an ordinary convolution over the places of x with that remainder, of a
// transposed one for the places of the output. The quotient is what the tap is shifted by, forwards or backwards;
// within a phase neighbours are `wide_move` apart. Taps are numbered so that shifts rise.
typedef struct wide_axis {
    int taps, stride, pad, dil;
    bool transposed;
} wide_axis;

CVY_CONST int wide_gcd(int a, int b)
{
    return b ? wide_gcd(b, a % b) : a;
}
CVY_CONST int wide_move(wide_axis a)
{
    return a.dil / wide_gcd(a.stride, a.dil);
}
CVY_CONST int wide_every(wide_axis a) // taps from one of a phase to the next
{
    return a.stride / wide_gcd(a.stride, a.dil);
}
CVY_CONST int wide_phase_of(wide_axis a, int tap)
{
    const int rest = (tap * a.dil - a.pad) % a.stride;
    return rest < 0 ? rest + a.stride : rest;
}
// The first tap of a phase; `taps` where it has none.
CVY_CONST int wide_first(wide_axis a, int phase)
{
    int tap = 0;
    while (tap < a.taps && wide_phase_of(a, tap) != phase) tap++;
    return tap;
}
CVY_CONST int wide_count(wide_axis a, int phase)
{
    return cdiv(a.taps - wide_first(a, phase), wide_every(a));
}
// Tap number m of a phase, as the filter counts it.
CVY_CONST int wide_tap(wide_axis a, int phase, int m)
{
    return wide_first(a, phase) + (a.transposed ? wide_count(a, phase) - 1 - m : m) * wide_every(a);
}
// How far tap number 0 of a phase that has one is shifted.
CVY_CONST int wide_shift(wide_axis a, int phase)
{
    const int quotient = (wide_tap(a, phase, 0) * a.dil - a.pad - phase) / a.stride;
    return a.transposed ? -quotient : quotient;
}

CVY_CONST int wide_most(wide_axis a) // taps of a phase
{
    return cdiv(a.taps, wide_every(a));
}
// How far the taps of a run reach: of a row of them, or of all rows, `row` pixels apart.
CVY_CONST int wide_reach(wide_axis h, wide_axis w, int row, bool together)
{
    return (together ? (wide_most(h) - 1) * wide_move(h) * row : 0) + (wide_most(w) - 1) * wide_move(w);
}

// ---- stages ----

typedef struct wide_layout {
    int parts;              // of both operands: 2 where three products are to have float32's accuracy
    int bm, bn;             // results of a block: output channels x pixels
    int pixels;             // of a stage of x: the tile's and those that taps reach beyond
    int copies, copy;       // tensor copies of a part of it, pixels of each
    int x_stage, w_stage;   // bytes
    int x_stages, w_stages; // as many as fit
    int threads;            // a warpgroup for each part of the tile, and one that copies; of two blocks, a warp
    int shared_bytes;       // stages or results, and two barriers for each stage
} wide_layout;

// Results lie in shared memory as [bm][bn + 8], over the stages; those that leave along their channels as
// [bn][wide_pixel_pitch].
CVY_CONST int wide_pixel_pitch(int bm)
{
    return bm + 4;
}
CVY_CONST int wide_results_bytes(int bm, int bn)
{
    return FLOAT_BYTES * most(bm * (bn + 8), bn * wide_pixel_pitch(bm));
}

// groups_m x groups_n warpgroups, 64 output channels x `tile` pixels each; taps of a stage reach `reach` pixels
// beyond them; `blocks` of a multiprocessor. x_stages 0: it does not fit.
CVY_CONST wide_layout wide_find_layout(int groups_m, int groups_n, int tile, int products, int reach, int blocks)
{
    const int parts = products == 3 ? 2 : 1, bm = WIDE_GROUP_ROWS * groups_m, bn = tile * groups_n;
    const int copies = cdiv(bn + reach, WIDE_COPY_MOST), copy = cdiv(cdiv(bn + reach, copies), 8) * 8;
    const int x_stage = parts * copies * copy * WIDE_ROW_BYTES, w_stage = parts * bm * WIDE_ROW_BYTES;
    const int room = (blocks == 2 ? 112 : 225) * 1024;
    int x_stages = least(4, room / x_stage);
    // Weights change with every tap, x only with every stage.
    while (x_stages > 2 && (room - x_stages * x_stage) / w_stage < 4) x_stages--;
    const int w_stages = least((room - x_stages * x_stage) / w_stage, WIDE_MOST_STAGES);
    const bool fits = x_stages >= 2 && w_stages >= 2;
    const int stages = x_stages * x_stage + w_stages * w_stage;
    const wide_layout l = {parts,
                           bm,
                           bn,
                           copies * copy,
                           copies,
                           copy,
                           x_stage,
                           w_stage,
                           fits ? x_stages : 0,
                           fits ? w_stages : 0,
                           128 * groups_m * groups_n + (blocks == 2 ? 32 : 128),
                           most(stages, wide_results_bytes(bm, bn)) + 16 * (x_stages + w_stages)};
    return l;
}

#endif
