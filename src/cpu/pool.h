/* pool.h - maximum, average and adaptive average pooling of planes [D][H][W] -> [O][P][Q], both contiguous.
 *
 * Planes are independent, so a caller may process them in any order. */
#ifndef CVYI_POOL_H
#define CVYI_POOL_H

#include "../graph/graph.h"
#include "cpuinfo.h"

/* `planes` planes from src to dst; scratch as cvyi_pool_scratch_bytes says. */
typedef void (*pool_fn)(const pool_geom *g, int64_t planes, const float *src, float *dst, float *scratch);

typedef struct cpu_pool_kernels {
    pool_fn max;  /* NaN wins; padding is -inf */
    pool_fn avg;  /* padding is 0; divisors by cvyi_pool_divisor */
    pool_fn mean; /* adaptive windows; needs no scratch */
} cpu_pool_kernels;
extern const cpu_pool_kernels cvyi_pool_portable, cvyi_pool_avx2, cvyi_pool_avx512, cvyi_pool_neon;

const cpu_pool_kernels *cvyi_pool_kernels(cpu_isa isa);

/* Bytes per worker, aligned to 64. */
size_t cvyi_pool_scratch_bytes(const pool_geom *g);

/* ---- for the kernels ---- */

/* Scratch: two rows of src with their padding on both sides and room to read past them, then the divisors. */
enum { POOL_SLACK = 64 }; /* floats */
int64_t cvyi_pool_row_floats(const pool_geom *g);

/* The divisor of output (o, p, q) is along[0][o] * along[1][p] * along[2][q]. memory: out[0] + out[1] + out[2]
 * floats. */
void cvyi_pool_divisors(const pool_geom *g, float *memory, const float *along[3]);

#endif
