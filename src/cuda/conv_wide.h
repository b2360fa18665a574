/* conv_wide.h - convolutions with many channels on Hopper's tensor cores: kernels/conv_wide.cu.
 *
 * The pass is [pointwise] convolution [pointwise] (pattern.c). Its steps: packing weights into words of 16 bits,
 * repeated only if parameters change; applying the operators before the convolution and converting x to words
 * (conv_wide_words.cu and, for float32, conv_wide_rescale.cu); the sums; if there are few tiles, adding parts of
 * sums (conv_wide_add.cu). wide_tune.c chooses the tile, conv_wide.c makes the steps. */
#ifndef CVYI_CUDA_CONV_WIDE_H
#define CVYI_CUDA_CONV_WIDE_H

#include "maker.h"
#include "kernels/wide_layout.cuh"

typedef struct wide_tile {
    int groups_m, groups_n, tile; /* warpgroups along channels and pixels; pixels of each */
    int blocks;                   /* of a multiprocessor */
    bool together;                /* all rows of taps share a stage of x, else each has its own */
    int split;                    /* blocks that share a sum */
} wide_tile;

typedef struct wide_choice {
    const char *why; /* NULL: the kernel can run it; else what is in the way, in words */
    conv_geom geom;
    wide_axis axes[3]; /* D, H, W */
    int phases;        /* of all axes: of x, or of the output of a transposed convolution */
    bool transposed;
    int64_t row, plane, sample; /* pixels of the flat list (conv_wide.cuh) */
    int64_t gap[3];             /* D, H, W: of them that follow x's own */
    int64_t places;             /* of it that results are computed at */
    int products;               /* 1: tf32's accuracy, 3: float32's */
    bool scaled;                /* words are scaled; else they are the numbers of x and of the weights */
    cvy_dtype word;
    wide_tile tile;
    wide_layout layout; /* of the tile */
    int64_t tiles;      /* each of `tile.split` blocks */
    double seconds;     /* that all steps are believed to take */
    double launches;    /* launches that follow each other on a stream cost a fraction of one by itself */
} wide_choice;

/* How the kernel runs a pass whose core is node `core`; with the tile that the plan's tuning ranks. */
wide_choice cvyi_wide_choice(const cvy_plan *p, int core);

#endif
