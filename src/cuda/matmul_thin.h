/* matmul_thin.h - matrix products with few columns or rows: matmul_thin.c. */
#ifndef CVYI_CUDA_MATMUL_THIN_H
#define CVYI_CUDA_MATMUL_THIN_H

#include "maker.h"

typedef struct thin_choice {
    const char *why; /* NULL: the kernel can run it; else what is in the way, in words */
    matmul_geom geom;
    bool across;                 /* rows of x are few; else columns of other */
    int thin;                    /* how many */
    int64_t lines;               /* of the other operand, in each batch */
    int long_bytes, block_lines; /* of one of its elements; its lines of a block */
    int64_t tiles;               /* of so many lines, in each batch */
    int split;                   /* blocks that share a sum */
} thin_choice;

#endif
