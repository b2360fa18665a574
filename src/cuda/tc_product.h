/* tc_product.h - matrix products with a parameter (linear layers) on Hopper's tensor cores: kernels/matmul_tc.cu.
 *
 * The pass is that of matmul.cu (pattern.c), with the same epilogue and views; before it,
 * whenever parameters have changed, matmul_tc_pack.cu packs the weights for the tensor cores. Products that are
 * refused here use mma.sync (mma.h). */
#ifndef CVYI_CUDA_TC_PRODUCT_H
#define CVYI_CUDA_TC_PRODUCT_H

#include "maker.h"

typedef struct wgmma_tile {
    int m, n;                 /* results of a block: rows x columns */
    int cluster_m, cluster_n; /* blocks that share columns, and blocks that share rows */
    int products;             /* 1: tf32's accuracy, 3: float32's */
    int threads, shared_bytes;
    int resident;                    /* blocks of a multiprocessor */
    int64_t row_tiles, column_tiles; /* of the grid: whole clusters */
    int64_t steps;                   /* of a block, 32 terms each */
    int64_t packed_bytes;            /* of the weights */
} wgmma_tile;

typedef struct product_choice {
    const char *why; /* NULL: the kernel can run it; else what is in the way, in words */
    wgmma_tile tile;
    double seconds; /* that the pass's arithmetic is believed to take, multiprocessors that idle included */
} product_choice;

/* Its row of the table (choice.h), of a pass whose core is node `core`, a matrix product. */
const char *cvyi_product_refusal(const cvy_plan *p, int core, product_choice *f);
void cvyi_product_tune(const cvy_plan *p, pass *s, const cuda_choice *c);
bool cvyi_product_same(const cuda_choice *a, const cuda_choice *b);
cvy_status cvyi_product_launch(const cuda_device *d, const cuda_step *s, int code, step_arguments *a, bool fresh,
                               CUstream stream);

/* The options of a step of either kernel, and what the second one has beyond views: x, which is view number `x`, as
 * tensor copies see it. */
void cvyi_product_define(maker *m, const wgmma_tile *t);
cvy_status cvyi_product_step(maker *m, const wgmma_tile *t, const matmul_geom *e, int x);

#endif
