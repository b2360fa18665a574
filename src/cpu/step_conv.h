/* step_conv.h - a convolution in a pass: the record that its steps share. Each group of steps has a file:
 *
 *   step_conv_pack.c    weights packed when parameters have changed
 *   step_conv_means.c   window sums of every input channel      } where statistics follow, or a Winograd form is
 *                       means of the result before it exists    } chosen: NaN, inf and huge values send the sample
 *                       where the sums of every channel start     to the direct form
 *                       x less its means, padded with what zero becomes: for direct forms before statistics,
 *                       pointwise operators between them or not
 *                       x split by columns, for Winograd forms with dilation
 *   step_conv_bands.c   bands of rows: into memory, into maxima, or through a pointwise program
 *   step_conv_stats.c   sums of the bands -> mean and deviation
 *   step_conv.c         which of these steps a convolution has
 *
 * Where statistics are taken of the result itself, it is produced centred: what lies in memory is v = y - shift[k],
 * so that sums of squares do not cancel and the normalised value is one multiply-add of v (program.h). */
#ifndef CVYI_STEP_CONV_H
#define CVYI_STEP_CONV_H

#include "choice.h"
#include "program.h"

typedef struct conv_step {
    const conv_choice *how;                            /* in the plan's memory */
    int x, weight, bias, out, pool, stats, prog_stats; /* values; CVY_NONE */
    int64_t packed[2];                                 /* bytes of the run's memory, by tiling */
    norm_geom norm;                                    /* of stats or prog_stats */
    /* bytes of the slices */
    int64_t sums, xmean, usable;   /* double [C][taps], double [C], int32 [C] */
    int64_t xmean32, start;        /* float [C], float [K] */
    int64_t centred_x;             /* float [C][copy.in] */
    int64_t split_x;               /* float [C][in[0]][split_floats] */
    int64_t mean, constant, plain; /* double [K], double [K], int32: this sample takes the direct form */
    int64_t band_sums;             /* double [bands][K]; prog_stats: cpu_moments [bands][K] */
    program prog;
    int64_t band_bytes; /* of the scratch, after the kernel's own: where a program or a conversion takes it from */
} conv_step;

/* ---- a record in a unit's slices ---- */

static inline void *cvyi_in_slices(const cpu_unit *u, int64_t offset)
{
    return u->slices + offset;
}

static inline const float *cvyi_conv_bias(const conv_step *c, const cpu_unit *u)
{
    return c->bias == CVY_NONE ? NULL : cvyi_unit_data(u, c->bias);
}

/* Does this sample take the second tiling? */
static inline int cvyi_conv_second(const conv_step *c, const cpu_unit *u)
{
    return c->how->means && *(const int32_t *)cvyi_in_slices(u, c->plain);
}

/* Does this sample go through the product of matrices? */
static inline bool cvyi_conv_is_product(const conv_step *c, const cpu_unit *u)
{
    return c->how->product && !cvyi_conv_second(c, u);
}

/* ---- adding steps ---- */

/* A step with the convolution's record. (step_conv.c) */
cvy_status cvyi_add_conv_step(builder *b, conv_step *c, const char *name,
                              int64_t (*parts)(const step *, const cpu_unit *),
                              void (*run)(const step *, const cpu_unit *, int64_t, char *), int64_t scratch);

/* step_conv_pack.c: the steps that pack weights for both tilings. */
cvy_status cvyi_conv_add_packing(builder *b, conv_step *c);
/* step_conv_means.c: window sums, means, starts, and the centred copy where there is one. */
cvy_status cvyi_conv_add_means(builder *b, conv_step *c);
/* step_conv_bands.c: the convolution itself; again, through its program. */
cvy_status cvyi_conv_add_bands(builder *b, conv_step *c, int64_t scratch);
cvy_status cvyi_conv_add_again(builder *b, conv_step *c, int64_t scratch);
/* step_conv_stats.c: what a product did not sum as it went, and the statistics. */
cvy_status cvyi_conv_add_stats(builder *b, conv_step *c);

/* step_conv_product.c: 1x1, weights [K][C] times the sample's [C][pixels]. */
void cvyi_multiply(const conv_choice *how, const float *weight, const float *x, const float *start, float *y,
                   int64_t part, char *scratch);
/* The whole convolution, where nothing is fused into it. */
cvy_status cvyi_lower_product(builder *b, int index);
/* step_conv.c: by bands, or as a product whose result is centred. */
cvy_status cvyi_lower_conv(builder *b, int index);

#endif
