/* step_conv_bands.c - a convolution by bands of rows: into memory, into maxima, or through a pointwise program. See
 * step_conv.h. */
#include "step_conv.h"

static int64_t conv_parts(const step *s, const cpu_unit *u)
{
    const conv_step *c = s->data;
    return cvyi_unit_batch(u, c->how->geom.N) * c->how->tiling[cvyi_conv_second(c, u)].parts;
}

/* Output channels of a part. */
static void channels_of(const conv_tiling *t, const conv_span *span, int64_t *k0, int64_t *k1)
{
    const conv_block last = cvyi_conv_block(t, span->block0 + span->blocks - 1);
    *k0 = cvyi_conv_block(t, span->block0).k0;
    *k1 = last.k0 + last.kn;
}

/* Through the program while the band is in cache, and the statistics of what it leaves. */
static void finish_band(const conv_step *c, const cpu_unit *u, const conv_span *span, const prog_band *band,
                        char *scratch)
{
    const int last = c->how->along.prog + c->how->along.n_prog - 1;
    prog_moments m = {0};

    if (c->prog_stats != CVY_NONE) {
        m.y = cvyi_unit_data(u, u->run->plan->graph->nodes[last].out);
        m.of = (cpu_moments *)cvyi_in_slices(u, c->band_sums) + span->band * c->how->geom.K;
    }
    cvyi_program_run_band(&c->prog, u, band, &m, scratch);
}

/* To memory that the kernel cannot write as floats: 16-bit words, past the caches if there are many, or strided. */
static void store_band(const conv_step *c, const cpu_unit *u, int64_t sample, const prog_band *band)
{
    const conv_geom *g = &c->how->geom;
    const cpu_state *s = u->run->state;
    const int64_t pixels = g->out[0] * g->out[1] * g->out[2], n = band->i1 - band->i0;
    const bool stream = cvyi_past_caches(s, cvyi_value_bytes(u->run->plan->graph, c->out));
    const cvy_dtype dtype = cvyi_unit_dtype(u, c->out);
    uint16_t *words = cvyi_unit_words(u, c->out);

    for (int64_t k = band->k0; k < band->k1; k++) {
        const int64_t first = (sample * g->K + k) * pixels + band->i0;
        const float *y = band->data + (k - band->k0) * n;
        if (words)
            (stream ? s->convert->narrow_stream : s->convert->narrow)[dtype](words + first, y, n);
        else
            cvyi_unit_scatter(u, c->out, first, n, y);
    }
    if (words && stream) s->vec->stream_end();
}

/* Where the kernel finds x: in place, or in the copy that was made for it. */
static void send_input(const conv_step *c, const cpu_unit *u, int64_t sample, conv_job *job)
{
    const conv_geom *g = &c->how->geom;
    const int64_t first = sample * g->C * g->in[0] * g->in[1] * g->in[2];
    const bool centred = c->how->centres && !cvyi_conv_second(c, u);

    if (centred || job->tiling->split_line) {
        job->src = cvyi_in_slices(u, centred ? c->centred_x : c->split_x);
        return;
    }
    job->src = cvyi_unit_elements(u, c->x, &job->dtype);
    job->src = (const char *)job->src + first * cvyi_dtype_bytes(job->dtype);
}

/* The part writes to a band of its own in the scratch, [channels][rows][columns]. */
static void send_to_band(const conv_tiling *t, const conv_span *span, prog_band *band, conv_job *job)
{
    const conv_geom *g = &t->geom;

    channels_of(t, span, &band->k0, &band->k1);
    band->i0 = (span->plane * g->out[1] + span->row0) * g->out[2];
    band->i1 = band->i0 + span->rows * g->out[2];
    job->dst_chan = span->rows * g->out[2];
    job->dst_plane = 0;
    job->dst = band->data - band->k0 * job->dst_chan - span->row0 * g->out[2];
}

/* One part of the convolution. sums: for the statistics; prog: through the program; else to memory or to maxima. */
static void convolve(const conv_step *c, const cpu_unit *u, int64_t part, char *scratch, bool sums, bool prog)
{
    const conv_geom *g = &c->how->geom;
    const conv_tiling *t = &c->how->tiling[cvyi_conv_second(c, u)];
    const int64_t sample = part / t->parts, own = part % t->parts, plane = g->out[1] * g->out[2];
    const bool stored = !prog && c->pool == CVY_NONE && !c->how->along.twice;
    float *out = stored ? cvyi_unit_data(u, c->out) : NULL;
    conv_span span;
    conv_job job = {.tiling = t, .dst_row = g->out[2], .dst_plane = plane, .dst_chan = g->out[0] * plane};
    prog_band band = {.data = (float *)(void *)(scratch + t->scratch)};

    if (cvyi_conv_is_product(c, u)) {
        cvyi_multiply(c->how, cvyi_unit_data(u, c->weight), cvyi_in_slices(u, c->centred_x),
                      cvyi_in_slices(u, c->start), out, own, scratch);
        return;
    }
    span = cvyi_conv_part(t, own);
    job.packed = cvyi_packed(u, c->packed[cvyi_conv_second(c, u)]);
    send_input(c, u, sample, &job);
    job.bias = c->how->means ? cvyi_in_slices(u, c->start) : cvyi_conv_bias(c, u);
    job.xmean = c->how->means && cvyi_is_winograd(t->algo) ? cvyi_in_slices(u, c->xmean32) : NULL;
    if (c->pool != CVY_NONE) job.pool = cvyi_unit_data(u, c->pool);
    if (sums) job.sumsq = cvyi_in_slices(u, c->band_sums);
    if (out)
        job.dst = out + sample * g->K * job.dst_chan;
    else if (prog || stored)
        send_to_band(t, &span, &band, &job);
    cvyi_conv_run(&job, own, scratch);
    if (prog)
        finish_band(c, u, &span, &band, scratch + t->scratch + c->band_bytes);
    else if (stored && !out)
        store_band(c, u, sample, &band);
}

static void run_conv(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    convolve(c, u, part, scratch, c->stats != CVY_NONE, c->how->along.n_prog && !c->how->along.twice);
}

static void run_again(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    convolve(s->data, u, part, scratch, false, true);
}

cvy_status cvyi_conv_add_bands(builder *b, conv_step *c, int64_t scratch)
{
    return cvyi_add_conv_step(b, c, "convolution", conv_parts, run_conv, scratch);
}

cvy_status cvyi_conv_add_again(builder *b, conv_step *c, int64_t scratch)
{
    return cvyi_add_conv_step(b, c, "convolution again", conv_parts, run_again, scratch);
}
