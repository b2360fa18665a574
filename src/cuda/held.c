/* held.c - how a row stays on chip between readings; held.cuh is the kernels' part. */
#include "exec.h"
#include "kernels/host_device.cuh"

/* Threads that share a row, and the elements that each of them keeps in registers: 64 of 512 threads leave as many
 * for everything else. A warp or less needs no barriers; larger groups are separate blocks. */
typedef struct sharing {
    int lanes, each;
} sharing;
static const sharing sharings[] = {{32, 32}, {128, 32}, {256, 32}, {512, 64}};

enum { SHORT = 4, OTHER_SHARED = 1024 }; /* groups; bytes that kernels have */

held_rows cvyi_held_rows(const cuda_device *d, int64_t row)
{
    const int width = access_width(row);
    const int64_t groups = cvyi_max64(row / width, 1), /* an empty row: as one of one */
        pieces = width == 1 ? 8 : 4;
    const sharing *s = sharings;
    held_rows f = {.row = row, .width = width};
    int64_t each;

    while (s < sharings + COUNT_OF(sharings) - 1 && row > (int64_t)s->lanes * s->each) s++;
    f.lanes = s->lanes;
    /* Short rows: up to SHORT groups each, so that fewer threads merge statistics, but lines that are read in
     * pieces of 64 bytes (32, of single elements). */
    while (f.lanes <= 32 && f.lanes / 2 >= cvyi_max64(cvyi_ceil_div(groups, SHORT), cvyi_min64(groups, pieces)))
        f.lanes /= 2;
    f.threads = f.lanes > 32 ? f.lanes : BLOCK_THREADS;
    each = cvyi_min64(cvyi_ceil_div(groups, f.lanes), INT32_MAX);
    f.held = (int)cvyi_min64(each, s->each / width);
    f.parked = (int)(each - f.held);
    const int64_t parked = cvyi_floats((int64_t)f.parked * f.threads * width);
    f.fits = row > 0 && parked <= d->shared_block - OTHER_SHARED;
    f.shared_bytes = f.fits ? (unsigned)parked : 0;
    return f;
}

held_rows cvyi_held_softmax(const cuda_device *d, const cvy_graph *g, const node *n)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const int dim = cvyi_softmax_dim(g, n);
    held_rows f = {.fits = false};

    if (!x->rank) return f;
    f = cvyi_held_rows(d, x->dim[dim]);
    for (int i = dim + 1; i < x->rank; i++) f.fits = f.fits && x->dim[i] == 1;
    return f;
}
