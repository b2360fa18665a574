/* tiles.h - what kernels without tensor cores keep in the choice of a pass (choice.h): tiles of convolutions
 * (core_window.c) and of matrix products (core_product.c), how reductions are spread (core_reduce.c). */
#ifndef CVYI_CUDA_TILES_H
#define CVYI_CUDA_TILES_H

#include "maker.h"

typedef struct conv_tile {
    int64_t channels, pixels; /* of a block */
    int64_t k_each, p_each;   /* of a thread; on tensor cores of a warp */
    int64_t terms, blocks;    /* at a time; of a multiprocessor */
} conv_tile;

typedef struct matmul_tile {
    int64_t rows, columns; /* of a block */
    int64_t each, depth;   /* rows and columns of a thread; terms at a time */
} matmul_tile;

/* Statistics of slices. Of a source that lies channels last a thread takes `width` channels, a block `chunk`
 * groups.
 */
typedef struct stats_choice {
    int64_t parts; /* blocks that share a slice */
    int64_t width, chunk, parts_last;
} stats_choice;

/* A reduction, and how it is spread over threads and blocks. That depends only on the extents of one sample (of
 * all, where samples are reduced), so that no other sample changes a sample's bits. */
typedef struct reduce_choice {
    const char *gather; /* what the kernel makes of the elements of a result; NULL: it is none */
    space in, out;
    unsigned reduced;      /* dimensions of `in`, a bit each */
    bool trailing;         /* elements of a result are neighbours */
    int many;              /* elements of an access of 16 bytes */
    int64_t lanes, splits; /* threads that share a result: neighbouring ones; rows of a block's threads */
    int64_t together;      /* neighbouring results of a thread */
    int64_t parts;         /* blocks that share a result */
    int64_t results;       /* of a block */
    int64_t inside, kept;  /* elements of a result; results */
} reduce_choice;

#endif
