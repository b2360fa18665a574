// wide_layout.cuh - what the kernels of wide convolutions (conv_wide*.cu) agree on with the host that chooses their
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
    WIDE_CHUNK = 64,      // pixels of a sample that a block turns into words
    WIDE_MOST_STAGES = 8
};

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

// Results lie in shared memory as [bm][bn + 8], over the stages.
CVY_CONST int wide_results_bytes(int bm, int bn)
{
    return 4 * bm * (bn + 8);
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
