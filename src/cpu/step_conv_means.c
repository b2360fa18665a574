/* step_conv_means.c - the means of a convolution's result before it is computed, and x minus its own means. See
 * step_conv.h. */
#include <math.h>
#include "step_conv.h"

static conv_window window_of(const conv_step *c, const cpu_unit *u)
{
    return (conv_window){cvyi_in_slices(u, c->sums), cvyi_in_slices(u, c->xmean)};
}

static int64_t window_parts(const step *s, const cpu_unit *u)
{
    (void)u;
    return ((const conv_step *)s->data)->how->geom.C;
}

static void run_window(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const conv_window w = window_of(c, u);
    int32_t *usable = cvyi_in_slices(u, c->usable);
    conv_input x = {.row = (float *)(void *)scratch};
    x.data = cvyi_unit_elements(u, c->x, &x.dtype);
    usable[part] = cvyi_conv_window_sums(u->run->state->conv, &c->how->geom, &x, part, &w);
}

/* Where the sums of channel k start, and how far the result then is from y. A channel without a mean is not
 * centred; the sample's others are, or their squares would cancel. */
static void set_start(const conv_step *c, const cpu_unit *u, int64_t k, bool plain)
{
    const float *bias = cvyi_conv_bias(c, u);
    const double *mean = cvyi_in_slices(u, c->mean), *lacking = cvyi_in_slices(u, c->constant);
    const int64_t shift = cvyi_unit_spot(u, c->out)->shift;
    float *start = cvyi_in_slices(u, c->start);
    const double whole = (bias ? bias[k] : 0) + (plain ? 0 : lacking[k]);

    start[k] = (float)(c->how->along.centred && isfinite(mean[k]) ? whole - mean[k] : whole);
    if (c->how->along.centred) ((double *)cvyi_in_slices(u, shift))[k] = whole - start[k];
}

enum { MEANS_PART = 64 }; /* output channels */

static int64_t means_parts(const step *s, const cpu_unit *u)
{
    (void)u;
    return cvyi_ceil_div(((const conv_step *)s->data)->how->geom.K, MEANS_PART);
}

static void run_means(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const conv_means means = {.weight = cvyi_unit_data(u, c->weight),
                              .bias = cvyi_conv_bias(c, u),
                              .window = window_of(c, u),
                              .mean = cvyi_in_slices(u, c->mean),
                              .shift = cvyi_in_slices(u, c->constant)};
    (void)scratch;
    cvyi_conv_means(u->run->state->conv, &c->how->geom, &means, part * MEANS_PART,
                    cvyi_min64((part + 1) * MEANS_PART, c->how->geom.K));
}

static void run_starts(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const conv_window w = window_of(c, u);
    const int32_t *usable = cvyi_in_slices(u, c->usable);
    const double *mean = cvyi_in_slices(u, c->mean);
    float *xmean = cvyi_in_slices(u, c->xmean32);
    bool plain = false;

    (void)part;
    (void)scratch;
    for (int64_t i = 0; i < c->how->geom.C; i++) {
        xmean[i] = (float)w.xmean[i];
        plain |= !usable[i];
    }
    /* a weight that is NaN or inf would spread over Winograd's tiles */
    for (int64_t k = 0; k < c->how->geom.K; k++) plain |= !isfinite(mean[k]);
    *(int32_t *)cvyi_in_slices(u, c->plain) = plain;
    for (int64_t k = 0; k < c->how->geom.K; k++) set_start(c, u, k, plain);
}

/* Before the first element, or ("same" of an even filter) only after the last. */
static bool has_padding(const conv_geom *g, const int64_t *to)
{
    bool any = false;
    for (int i = 0; i < 3; i++) any |= g->pad[i] > 0 || to[i] > g->in[i];
    return any;
}

/* One channel of x less its mean. Zeros of the padding become minus the mean, so that the result differs from the
 * true one by a constant per channel, borders included: that constant is in `start`. */
static void run_centre(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const conv_geom *g = &c->how->geom;
    const cpu_vector_kernels *vec = u->run->state->vec;
    const int64_t *in = g->in, *to = c->how->copy.in;
    const float mean = ((const float *)cvyi_in_slices(u, c->xmean32))[part];
    float *dst = (float *)cvyi_in_slices(u, c->centred_x) + part * to[0] * to[1] * to[2];

    if (cvyi_conv_second(c, u)) return;
    if (has_padding(g, to)) vec->fill(dst, to[0] * to[1] * to[2], -mean);
    for (int64_t d = 0; d < in[0] && d + g->pad[0] < to[0]; d++)
        for (int64_t h = 0; h < in[1] && h + g->pad[1] < to[1]; h++)
            vec->pivot(dst + ((d + g->pad[0]) * to[1] + h + g->pad[1]) * to[2] + g->pad[2],
                       cvyi_unit_floats(u, c->x, ((part * in[0] + d) * in[1] + h) * in[2], in[2],
                                        (float *)(void *)scratch),
                       cvyi_min64(in[2], to[2] - g->pad[2]), mean, 1, 0);
}

/* One channel of x, split by columns. */
static void run_split(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const conv_tiling *t = &c->how->tiling[0];
    const int64_t *in = t->geom.in, plane = in[1] * in[2];
    float *dst = (float *)cvyi_in_slices(u, c->split_x) + part * in[0] * t->split_floats;

    if (cvyi_conv_second(c, u)) return;
    for (int64_t z = 0; z < in[0]; z++)
        cvyi_conv_split(t, cvyi_unit_floats(u, c->x, (part * in[0] + z) * plane, plane, (float *)(void *)scratch),
                        dst + z * t->split_floats);
}

cvy_status cvyi_conv_add_means(builder *b, conv_step *c)
{
    const int64_t *in = c->how->geom.in;
    const bool half = b->g->values[b->plan->root[c->x]].dtype != CVY_FLOAT32;
    const int64_t row = half ? cvyi_floats(in[2]) : 0, plane = row * in[1]; /* room to widen one */
    cvy_status st = CVY_OK;

    TRY(cvyi_add_conv_step(b, c, "window sums", window_parts, run_window, row));
    TRY(cvyi_add_conv_step(b, c, "means", means_parts, run_means, 0));
    TRY(cvyi_add_conv_step(b, c, "starts", cvyi_one_part, run_starts, 0));
    if (c->how->centres) TRY(cvyi_add_conv_step(b, c, "centre", window_parts, run_centre, row));
    if (c->how->tiling[0].split_line) TRY(cvyi_add_conv_step(b, c, "split", window_parts, run_split, plane));
fail:
    return st;
}
