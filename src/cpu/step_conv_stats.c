/* step_conv_stats.c - sums of a convolution's bands -> mean and deviation. See step_conv.h. */
#include <math.h>
#include "step_conv.h"

static int64_t channel_parts(const step *s, const cpu_unit *u)
{
    (void)u;
    return ((const conv_step *)s->data)->how->geom.K;
}

/* What a convolution sums while it goes, of a product's result. */
static void run_squares(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const int64_t pixels = c->how->geom.out[0] * c->how->geom.out[1] * c->how->geom.out[2];
    (void)scratch;
    if (!cvyi_conv_is_product(c, u)) return;
    ((double *)cvyi_in_slices(u, c->band_sums))[part] =
        u->run->state->red->sum_squares(cvyi_unit_data(u, c->out) + part * pixels, pixels, 0);
}

/* Moments of channel k over all bands, in their order, of y itself. */
static cpu_moments channel_moments(const conv_step *c, const cpu_unit *u, int64_t k)
{
    const conv_tiling *t = &c->how->tiling[cvyi_conv_second(c, u)];
    const int64_t K = c->how->geom.K, bands = t->bands;
    const double n = (double)(c->how->geom.out[0] * c->how->geom.out[1] * c->how->geom.out[2]);
    cpu_moments m = {0, 0, 0};

    if (c->prog_stats != CVY_NONE) {
        const cpu_moments *of = cvyi_in_slices(u, c->band_sums);
        for (int64_t b = 0; b < bands; b++) m = cvyi_moments_merge(m, of[b * K + k]);
    } else {
        const double *sumsq = cvyi_in_slices(u, c->band_sums), *mean = cvyi_in_slices(u, c->mean);
        const double *shift = cvyi_in_slices(u, cvyi_unit_spot(u, c->out)->shift);
        const double left = mean[k] - shift[k]; /* what rounding the start left of the mean: almost nothing */
        m = (cpu_moments){n, mean[k], -n * left * left};
        for (int64_t b = 0; b < bands; b++) m.m2 += sumsq[b * K + k];
        if (m.m2 < 0) m.m2 = 0;
    }
    return m;
}

void cvyi_store_stats(const norm_geom *e, cpu_moments m, float *out)
{
    const double var = m.n > 0 ? m.m2 / m.n : NAN;
    out[STATS_MEAN] = (float)m.mean;
    out[STATS_RSTD] = (float)(1 / sqrt(var + e->eps));
    out[STATS_MEAN_LOW] = isfinite(m.mean) ? (float)(m.mean - out[STATS_MEAN]) : 0;
}

static void run_stats(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const int v = c->stats != CVY_NONE ? c->stats : c->prog_stats;
    const node *n = &u->run->plan->graph->nodes[u->run->plan->graph->values[v].node];
    const float *sign = n->arg[1] == CVY_NONE ? NULL : cvyi_unit_data(u, n->arg[1]);
    float *out = cvyi_unit_data(u, v);

    (void)part;
    (void)scratch;
    for (int64_t g = 0; g < c->norm.groups; g++) {
        cpu_moments m = {0, 0, 0};
        for (int64_t k = g * c->norm.chan; k < (g + 1) * c->norm.chan; k++) {
            cpu_moments of = channel_moments(c, u, k);
            if (sign) of.mean *= sign[k];
            m = cvyi_moments_merge(m, of);
        }
        cvyi_store_stats(&c->norm, m, out + g * STATS_FIELDS);
    }
}

cvy_status cvyi_conv_add_stats(builder *b, conv_step *c)
{
    cvy_status st = CVY_OK;

    if (c->how->product) TRY(cvyi_add_conv_step(b, c, "squares", channel_parts, run_squares, 0));
    if (c->norm.groups) TRY(cvyi_add_conv_step(b, c, "statistics", cvyi_one_part, run_stats, 0));
fail:
    return st;
}
