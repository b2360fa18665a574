/* matmul_wide.h - matrix products of words of 16 bits on Hopper's tensor cores: kernels/matmul_wide.cu.
 *
 * The pass is that of matmul.cu (pattern.c), with the same epilogue. fp16 and bf16 are read in place. Other
 * operands, and float32, become words first (matmul_wide_words.cu, matmul_wide_rescale.cu), only once if they
 * depend only on parameters; such an operand may have any strides. If there are few tiles, parts of sums are added
 * (conv_wide_add.cu). matmul_wide_tune.c chooses the tile, matmul_wide.c makes the steps. */
#ifndef CVYI_CUDA_MATMUL_WIDE_H
#define CVYI_CUDA_MATMUL_WIDE_H

#include "kernels/product_layout.cuh"
#include "maker.h"

/* x, or other. */
typedef struct word_operand {
    bool words;     /* it becomes words; else it is read where it lies */
    bool batched;   /* a matrix for each batch, else one for all */
    bool prepared;  /* made only of parameters */
    int64_t lines;  /* rows of x, columns of other: of all matrices */
    int64_t padded; /* terms of a line of words */
} word_operand;

typedef struct word_tile {
    int m, n;   /* rows, columns */
    bool turns; /* warpgroups take turns, else they share a tile */
    int split;  /* tiles that share a sum */
} word_tile;

typedef struct word_choice {
    const char *why; /* NULL: the kernel can run it; else what is in the way, in words */
    matmul_geom geom;
    word_operand x, other;
    bool scaled;  /* float32: words have scales */
    bool across;  /* other is read as [terms][columns] */
    int products; /* 1: tf32's accuracy or operands of 16 bits, 3: float32's */
    word_tile tile;
    int64_t tiles;      /* those that share a sum counted one by one */
    word_layout layout; /* of the tile */
    double seconds;     /* that all steps are believed to take */
    double launches;    /* launches that follow each other on a stream cost a fraction of one by itself */
} word_choice;

/* How the kernel runs a pass whose core is node `core`; with the tile that the plan's tuning ranks. */
word_choice cvyi_word_choice(const cvy_plan *p, int core);

#endif
