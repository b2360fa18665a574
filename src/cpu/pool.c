/* pool.c - what pooling needs besides its loops: sizes and divisors. */
#include "pool.h"

static const cpu_pool_kernels *const kernels[CPU_ISA_COUNT] = CPU_KERNELS(cvyi_pool);

const cpu_pool_kernels *cvyi_pool_kernels(cpu_isa isa)
{
    return kernels[isa];
}

int64_t cvyi_pool_row_floats(const pool_geom *g)
{
    const int64_t windows = (g->out[2] - 1) * g->stride[2] + (g->kernel[2] - 1) * g->dil[2] + 1;
    return cvyi_round_up(cvyi_max64(g->pad[2] + g->in[2], windows) + POOL_SLACK, 16);
}

size_t cvyi_pool_scratch_bytes(const pool_geom *g)
{
    const int64_t divisors = g->out[0] + g->out[1] + g->out[2];
    return (size_t)cvyi_floats(2 * cvyi_pool_row_floats(g) + cvyi_round_up(divisors, 16));
}

/* The factor of one axis: the divisor with the others made trivial (one element, one window). */
static int64_t axis_divisor(const pool_geom *g, int axis, int64_t index)
{
    pool_geom one = *g;
    int64_t start[3] = {0, 0, 0};
    for (int a = 0; a < 3; a++) {
        if (a == axis) continue;
        one.in[a] = one.out[a] = one.kernel[a] = one.stride[a] = one.dil[a] = 1;
        one.pad[a] = 0;
    }
    start[axis] = index * g->stride[axis] - g->pad[axis];
    return cvyi_pool_divisor(&one, start);
}

void cvyi_pool_divisors(const pool_geom *g, float *memory, const float *along[3])
{
    for (int a = 0; a < 3; a++) {
        along[a] = memory;
        for (int64_t i = 0; i < g->out[a]; i++) {
            *memory++ = (float)(!g->divisor ? axis_divisor(g, a, i) : a == 2 ? g->divisor : 1);
        }
    }
}
