/* cores.h - shared by the files that make a core's steps: core_window.c (convolutions, pooling), core_product.c
 * (matrix products), core_rows.c (statistics, norms, softmax), core_reduce.c (reductions), core_move.c,
 * core_pointwise.c (no core). */
#ifndef CVYI_CUDA_CORES_H
#define CVYI_CUDA_CORES_H

#include "kernels/host_device.cuh"
#include "mma.h"
#include "tiles.h"

void cvyi_core_grid(maker *m, int64_t x, int64_t y, int64_t z, unsigned threads);
/* Macros of kernels with a window: the extents of planes that it reads and writes, and its own. */
void cvyi_core_define_in(maker *m, const int64_t in[3]);
void cvyi_core_define_out(maker *m, const int64_t out[3]);
void cvyi_core_define_window(maker *m, const int64_t kernel[3], const int64_t stride[3], const int64_t pad[3],
                             const int64_t dil[3]);
/* The epilogue: the core's result is stored where it is needed, then the pass's other nodes follow. */
cvy_status cvyi_core_epilogue(maker *m, int core, const space *over);
/* The prologue; its last statement is the value that the core reads. */
cvy_status cvyi_core_prologue(maker *m, int core, const space *over);
/* value + bias before everything else of the epilogue. */
void cvyi_core_bias(maker *m, int core, const space *over, int bias, int slot);
/* The pass's first result that is stored; the view that takes it is number 0. */
int cvyi_core_first_value(const maker *m, int core);
void cvyi_core_first_view(maker *m, int core, const space *over);
/* How statistics are spread. (core_rows.c) */
stats_choice cvyi_stats_choice(const norm_geom *e);
/* Ends a step of pointwise.cu, which reads `in` and writes `out`. */
cvy_status cvyi_core_end_pointwise(maker *m, const space *in, const space *out, const char *variant);
/* reduce.cu: the reduction of the pass's choice. */
cvy_status cvyi_core_reduction(maker *m);
/* How it is spread; gather, spaces and dimensions are there. dtype: of what is read. */
void cvyi_reduce_spread(reduce_choice *f, cvy_dtype dtype);
/* Threads that share a result, each of them with `width` neighbours at a time. */
int64_t cvyi_reduce_lanes(const space *in, unsigned reduced, int width);

/* conv_wide_add.cu: `split` parts of the pass's sums, at byte `parts`, are added, and its epilogue follows. bias: a
 * value along dimension `slot`, or CVY_NONE. */
typedef struct core_parts {
    int64_t parts;
    int split, bias, slot;
} core_parts;
cvy_status cvyi_core_add(maker *m, const space *out, const core_parts *p);
/* reduce.cu: the same for many parts of few results, [result][split] in double. */
cvy_status cvyi_core_add_many(maker *m, const space *out, const core_parts *p);
/* The view of those parts, of a step that makes or reads them. */
void cvyi_core_parts_view(maker *m, const space *out, int64_t parts);

/* A product's result with the row and the column that vectors lack put back. */
space cvyi_product_space(const cvy_graph *g, const node *n, int *row, int *column);
/* Views of its operands: batch dimensions right-aligned in front of their matrix; vectors have one dimension less.
 */
void cvyi_product_x(maker *m, const node *n, int row, int column);
void cvyi_product_other(maker *m, const node *n, int row, int column);
/* COLS, TERMS, ROW and COLUMN of rows.cuh. */
void cvyi_product_sizes(maker *m, const matmul_geom *e, int row, int column);

#endif
