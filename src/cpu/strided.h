/* strided.h - tensors of run() that do not lie as contiguous floats: copied to floats, and back.
 *
 * A copy is cut into parts of about as many elements as a part of a step; how depends only on shape and strides. */
#ifndef CVYI_CPU_STRIDED_H
#define CVYI_CPU_STRIDED_H

#include "exec.h"

/* Elements [first, first + n) of a tensor, counted in row-major order. */
typedef struct stretch {
    const value *v;
    cvy_buffer tensor;
    int64_t first, n;
} stretch;

/* Do rows of the tensor lie across memory, as those of an image channels last or of a transposed matrix? Then it is
 * copied in blocks, with rows and columns exchanged; an element at a time would be slow. */
bool cvyi_turned(const shape *s, const int64_t *strides);

/* Row by row, elements [from, end) of the stretch. */
void cvyi_scatter_rows(const cpu_run *r, const stretch *t, int64_t from, int64_t end, const float *floats);

int64_t cvyi_strided_parts(const stretch *t);
/* Floats are those of the whole stretch. */
void cvyi_gather(const cpu_run *r, const stretch *t, int64_t part, float *floats);
void cvyi_scatter(const cpu_run *r, const stretch *t, int64_t part, const float *floats);

#endif
