/* norm.c - the normalisations: (x - mean) / sqrt(variance + eps) * weight + bias, x seen as in norm_geom.
 *
 * Statistics take two passes, the mean first and then the squared distances from it: no cancellation however large
 * the mean is. The variance is the biased one everywhere, as PyTorch normalises. An infinite element makes its
 * slice's mean infinite and its variance NaN, so the whole slice comes out NaN, also as in PyTorch. An infinite
 * weight shows the order in which PyTorch works: norms with a weight per channel are x a + (bias - mean a) with
 * a = weight / deviation there, NaN wherever x and the mean have one sign. */
#include <math.h>
#include "ref.h"

typedef struct moments {
    double mean, rstd;
} moments;

/* Of one (outer, group); over_outer: of a group in all of them. */
typedef struct slice {
    const norm_geom *e;
    int64_t outer, group;
} slice;

static int64_t position(const norm_geom *e, int64_t outer, int64_t channel, int64_t i)
{
    return (outer * e->groups * e->chan + channel) * e->inner + i;
}

/* The slice covers [first, last) outer; sum of (sign * x - centre)^power over it. */
static double slice_sum(slice s, const double *x, const double *sign, double centre, int power)
{
    const norm_geom *e = s.e;
    const int64_t first = e->over_outer ? 0 : s.outer, last = e->over_outer ? e->outer : s.outer + 1;
    double sum = 0;

    for (int64_t o = first; o < last; o++) {
        for (int64_t k = s.group * e->chan; k < (s.group + 1) * e->chan; k++) {
            for (int64_t i = 0; i < e->inner; i++) {
                const double d = x[position(e, o, k, i)] * (sign ? sign[k] : 1) - centre;
                sum += power == 2 ? d * d : d;
            }
        }
    }
    return sum;
}

static moments slice_moments(slice s, const double *x, const double *sign)
{
    const norm_geom *e = s.e;
    const double count = (double)((e->over_outer ? e->outer : 1) * e->chan * e->inner);
    moments m = {0, 0};

    if (e->centred) m.mean = slice_sum(s, x, sign, 0, 1) / count;
    m.rstd = 1 / sqrt(slice_sum(s, x, sign, m.mean, 2) / count + e->eps);
    return m;
}

/* Normalises the slice's part that lies in one outer. */
static void apply_slice(slice s, const double *x, const double *weight, const double *bias, moments m, double *dst)
{
    const norm_geom *e = s.e;

    for (int64_t k = s.group * e->chan; k < (s.group + 1) * e->chan; k++) {
        const double w = weight ? weight[k] : 1, shift = bias ? bias[k] : 0, a = m.rstd * w;
        const bool by_channel = !cvyi_norm_rows(e) && !isfinite(a);
        for (int64_t i = 0; i < e->inner; i++) {
            const int64_t p = position(e, s.outer, k, i);
            dst[p] = by_channel ? x[p] * a + (shift - m.mean * a) : (x[p] - m.mean) * m.rstd * w + shift;
        }
    }
}

/* The array of a value among the node's arguments. */
static const double *find_arg(const ref_call *c, int v)
{
    for (int a = 0; v != CVY_NONE && a < c->n->n_args; a++) {
        if (c->n->arg[a] == v) return c->arg[a];
    }
    return NULL;
}

void cvyi_ref_norm(const ref_call *c)
{
    norm_geom e;
    norm_args args;
    cvyi_norm_geom(c->g, c->n, &e);
    cvyi_norm_args(c->n, &args);
    const double *weight = find_arg(c, args.weight), *bias = find_arg(c, args.bias);
    const double *mean = find_arg(c, args.mean), *var = find_arg(c, args.var);

    for (int64_t g = 0; g < e.groups; g++) {
        moments m = {0, 0};
        for (int64_t o = 0; o < e.outer; o++) {
            if (e.running) {
                m = (moments){mean[g], 1 / sqrt(var[g] + e.eps)};
            } else if (o == 0 || !e.over_outer) {
                m = slice_moments((slice){&e, o, g}, c->arg[0], NULL);
            }
            apply_slice((slice){&e, o, g}, c->arg[0], weight, bias, m, c->dst);
        }
    }
}

/* dst [outer][groups][STATS_FIELDS], of sign[channel] * x. In double the mean leaves nothing over. */
void cvyi_ref_norm_stats(const ref_call *c)
{
    norm_geom e;
    cvyi_norm_geom(c->g, c->n, &e);
    const int64_t slices = cvyi_elements(ref_dst_shape(c)) / STATS_FIELDS;

    for (int64_t i = 0; i < slices; i++) {
        const moments m = slice_moments((slice){&e, i / e.groups, i % e.groups}, c->arg[0], c->arg[1]);
        double *stats = c->dst + i * STATS_FIELDS;
        stats[STATS_MEAN] = m.mean;
        stats[STATS_RSTD] = m.rstd;
        stats[STATS_MEAN_LOW] = 0;
    }
}

void cvyi_ref_norm_apply(const ref_call *c)
{
    norm_geom e;
    cvyi_norm_geom(c->g, c->n, &e);

    for (int64_t o = 0; o < e.outer; o++) {
        for (int64_t g = 0; g < e.groups; g++) {
            const double *stats = c->arg[1] + STATS_FIELDS * ((e.over_outer ? 0 : o) * e.groups + g);
            const moments m = {stats[STATS_MEAN] + stats[STATS_MEAN_LOW], stats[STATS_RSTD]};
            apply_slice((slice){&e, o, g}, c->arg[0], c->arg[2], c->arg[3], m, c->dst);
        }
    }
}
