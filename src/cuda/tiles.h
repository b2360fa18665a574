/* tiles.h - tiles of the convolutions and matrix products by multiply-adds: what they keep in the choice of a pass
 * (choice.h). core_window.c and core_product.c choose them. */
#ifndef CVYI_CUDA_TILES_H
#define CVYI_CUDA_TILES_H

#include <stdint.h>

typedef struct conv_tile {
    int64_t channels, pixels; /* of a block */
    int64_t k_each, p_each;   /* of a thread; on tensor cores of a warp */
    int64_t terms, blocks;    /* at a time; of a multiprocessor */
} conv_tile;

typedef struct matmul_tile {
    int64_t rows, columns; /* of a block */
    int64_t each, depth;   /* rows and columns of a thread; terms at a time */
    unsigned threads;
} matmul_tile;

#endif
