/* mma.h - convolutions and matrix products on tensor cores through mma.sync: kernels/conv_mma.cu, matmul_mma.cu.
 *
 * For compute capability 8.0 and later; on 9.0 for passes that the wgmma kernels refuse or would run more slowly.
 * The passes are those of the multiply-add kernels (pattern.c), with the same prologue, epilogue and views; only
 * the tile differs. */
#ifndef CVYI_CUDA_MMA_H
#define CVYI_CUDA_MMA_H

#include "maker.h"

typedef struct mma_tile {
    int m, n;           /* results of a block: channels x pixels, or rows x columns */
    int warp_m, warp_n; /* results of a warp */
    int products;       /* 1: tf32's accuracy, 3: float32's */
    int threads, shared_bytes;
    int stages;            /* at least */
    int resident;          /* blocks that a multiprocessor is believed to have registers for */
    int bound;             /* and that the compiler leaves registers for, at least */
    int64_t blocks, steps; /* of the grid; of a block, 16 terms each */
    int copies, fetched;   /* instructions of a step of all threads; bytes of it that come from the L2 */
} mma_tile;

typedef struct mma_choice {
    const char *why; /* NULL: these kernels can run it; else what is in the way, in words */
    mma_tile tile;
    double flops;   /* per second that the best tile is believed to reach on a device that is full of its blocks, a
                     * multiply-add counted as two */
    double seconds; /* that the pass's arithmetic is believed to take with this one, blocks that are not full and
                     * multiprocessors that idle included */
} mma_choice;

/* What its rows of the table share (choice.h). */
/* Of a pass whose core is node `core`, a producer; also: multiply-adds are faster. */
const char *cvyi_mma_refusal(const cvy_plan *p, int core, mma_choice *f);
void cvyi_mma_tune(const cvy_plan *p, pass *s, const cuda_choice *c);
/* If multiply-adds are faster, they have refused: they judge by what a full device reaches, the rows before them by
 * the times of this pass. */
#define MMA_INSTEAD "mma.sync is faster than multiply-adds on a full device"
bool cvyi_mma_same(const cuda_choice *a, const cuda_choice *b);

/* Of a transposed convolution: phases, the taps that each one meets, its output places (window.cuh). One phase of
 * everything for an ordinary one. (core_window.c) */
typedef struct conv_phases {
    int64_t count, taps, places;
} conv_phases;
conv_phases cvyi_conv_phases(const conv_geom *e, bool transposed);

/* Multiply-adds of tf32 per multiprocessor and cycle through mma.sync. */
int cvyi_mma_rate(int major, int minor);

#endif
