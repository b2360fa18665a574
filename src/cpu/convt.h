/* convt.h - transposed convolution, 1-D to 3-D, with stride, padding, dilation and groups.
 *
 * Per sample: src [C][D][H][W], dst [K][O][P][Q], both contiguous; weight [C][K/groups][kernel]. Parts are cut by
 * sizes alone and write disjoint parts of dst: bitwise the same for any number of threads. */
#ifndef CVYI_CONVT_H
#define CVYI_CONVT_H

#include "../graph/graph.h"
#include "gemm.h"

typedef struct convt_plan {
    conv_geom g;
    cpu_isa isa;
    int64_t phases[3]; /* of each axis that exist: stride, or all results if they are fewer */
    int64_t strip;     /* phases along W whose results are interleaved at once */
    int64_t grid[3];   /* out / stride, rounded up: positions per phase */
    int64_t panels;    /* of grid[0] * grid[1] * grid[2] positions */
    int64_t m_chunks;  /* of a group's output channels */
    int64_t n_chunks;  /* of panels */
    int64_t parts;     /* of one sample: groups * phases[0] * phases[1] * m_chunks * n_chunks */
} convt_plan;

void cvyi_convt_plan(cpu_isa isa, const conv_geom *g, convt_plan *out);
size_t cvyi_convt_packed_bytes(const convt_plan *p);
void cvyi_convt_pack(const convt_plan *p, const float *weight, float *packed);
size_t cvyi_convt_scratch_bytes(const convt_plan *p); /* per worker */
typedef struct convt_job {
    const float *src, *packed, *bias; /* bias [K] or NULL */
    float *dst;
} convt_job;
void cvyi_convt_run(const convt_plan *p, const convt_job *job, int64_t part, float *scratch);

#endif
