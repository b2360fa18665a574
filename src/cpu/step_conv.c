/* step_conv.c - a convolution in a pass: what it takes along, and its steps.
 *
 *   pack      weights, when parameters have changed
 *   window    window sums of every input channel      } where statistics follow, or a Winograd form is chosen:
 *   means     means of the result before it exists    } NaN, inf and huge values send the sample to the direct form
 *   starts    where the sums of every channel start
 *   centre    x less its means, padded with what zero becomes: for direct forms in front of statistics, pointwise
 *             operators between them or not
 *   conv      bands of rows: into memory, into maxima, or through a pointwise program
 *   stats     sums of the bands -> mean and deviation
 *
 * Where statistics are taken of the result itself, it is produced centred: what lies in memory is v = y - shift[k],
 * so that sums of squares do not cancel and the normalised value is one multiply-add of v (program.h). */
#include <math.h>
#include <string.h>
#include "program.h"

typedef struct conv_step {
    conv_geom geom;
    conv_group group;
    int x, weight, bias, out, pool, stats, prog_stats; /* values; CVY_NONE */
    bool centres;                                      /* the direct form works on a centred copy of x */
    conv_geom copy;                                    /* its geometry: the padding is part of the copy */
    conv_tiling tiling[2];                             /* as chosen; direct, for samples with special values */
    gemm_plan gemm;                                    /* in place of the first: 1x1 as a product of matrices */
    int64_t packed[2];                                 /* bytes of the run's memory */
    bool window;
    norm_geom norm; /* of stats or prog_stats */
    /* bytes of the slices */
    int64_t sums, xmean, usable;   /* double [C][taps], double [C], int32 [C] */
    int64_t xmean32, start;        /* float [C], float [K] */
    int64_t centred_x;             /* float [C][copy.in] */
    int64_t mean, constant, plain; /* double [K], double [K], int32: this sample takes the direct form */
    int64_t band_sums;             /* double [bands][K]; prog_stats: cpu_moments [bands][K] */
    program prog;
    int64_t band_bytes; /* of the scratch, behind the kernel's own */
} conv_step;

/* ---- packing ---- */

typedef struct pack_step {
    conv_tiling tiling;
    int weight;
    int64_t packed;
} pack_step;

static int64_t one_part(const step *s, const cpu_unit *u)
{
    (void)s;
    (void)u;
    return 1;
}

static void run_pack(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const pack_step *p = s->data;
    (void)part;
    (void)scratch;
    cvyi_conv_pack(&p->tiling, cvyi_unit_data(u, p->weight), cvyi_packed(u, p->packed));
}

static void print_pack(const step *s, text *t)
{
    const pack_step *p = s->data;
    const conv_tiling *c = &p->tiling;
    const conv_geom *g = &c->geom;
    cvyi_text_add(t, "conv %d: %lld x %lld / %lld, %lld x %lld x %lld", (int)c->algo, (long long)g->K,
                  (long long)g->C, (long long)g->groups, (long long)g->kernel[0], (long long)g->kernel[1],
                  (long long)g->kernel[2]);
    cvyi_text_add(t, ", blocks %lld + %lld of %d, %d, chunks %lld; %d at %lld\n", (long long)c->full,
                  (long long)c->tails, c->kt, c->tail_kt, (long long)c->chunk, p->weight, (long long)p->packed);
}

static cvy_status add_packing(builder *b, const conv_step *c, int which)
{
    void *data;
    pack_step *p;
    step *s = cvyi_add_pack(b, c->weight, sizeof *p, &data);
    if (!s) return CVY_NO_MEMORY;
    p = data;
    *p = (pack_step){c->tiling[which], c->weight, c->packed[which]};
    s->parts = one_part;
    s->run = run_pack;
    s->print = print_pack;
    return CVY_OK;
}

/* ---- the record in a unit's slices ---- */

static void *at(const cpu_unit *u, int64_t offset)
{
    return u->slices + offset;
}

static conv_window window_of(const conv_step *c, const cpu_unit *u)
{
    return (conv_window){at(u, c->sums), at(u, c->xmean)};
}

static const float *bias_of(const conv_step *c, const cpu_unit *u)
{
    return c->bias == CVY_NONE ? NULL : cvyi_unit_data(u, c->bias);
}

/* Does the convolution take x less its means, except in samples with special values? */
static bool two_forms(const conv_step *c)
{
    return c->centres || cvyi_is_winograd(c->group.algo);
}

/* Does this sample take the second tiling? */
static int form_of(const conv_step *c, const cpu_unit *u)
{
    return two_forms(c) && *(const int32_t *)at(u, c->plain);
}

/* ---- window and means ---- */

static int64_t window_parts(const step *s, const cpu_unit *u)
{
    (void)u;
    return ((const conv_step *)s->data)->geom.C;
}

static void run_window(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const conv_window w = window_of(c, u);
    int32_t *usable = at(u, c->usable);
    (void)scratch;
    usable[part] = cvyi_conv_window_sums(u->run->state->conv, &c->geom, cvyi_unit_data(u, c->x), part, &w);
}

/* Where the sums of channel k start, and how far the result then is from y. A channel without a mean is not
 * centred; the sample's others are, or their squares would cancel. */
static void set_start(const conv_step *c, const cpu_unit *u, int64_t k, bool plain)
{
    const float *bias = bias_of(c, u);
    const double *mean = at(u, c->mean), *lacking = at(u, c->constant);
    const int64_t shift = cvyi_unit_spot(u, c->out)->shift;
    float *start = at(u, c->start);
    const double whole = (bias ? bias[k] : 0) + (plain ? 0 : lacking[k]);

    start[k] = (float)(c->group.centred && isfinite(mean[k]) ? whole - mean[k] : whole);
    if (c->group.centred) ((double *)at(u, shift))[k] = whole - start[k];
}

enum { MEANS_PART = 64 }; /* output channels */

static int64_t means_parts(const step *s, const cpu_unit *u)
{
    (void)u;
    return cvyi_ceil_div(((const conv_step *)s->data)->geom.K, MEANS_PART);
}

static void run_means(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const conv_window w = window_of(c, u);
    (void)scratch;
    cvyi_conv_means(u->run->state->conv, &c->geom, cvyi_unit_data(u, c->weight), bias_of(c, u), &w,
                    part * MEANS_PART, cvyi_min64((part + 1) * MEANS_PART, c->geom.K), at(u, c->mean),
                    at(u, c->constant));
}

static void run_starts(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const conv_window w = window_of(c, u);
    const int32_t *usable = at(u, c->usable);
    const double *mean = at(u, c->mean);
    float *xmean = at(u, c->xmean32);
    bool plain = !two_forms(c);

    (void)part;
    (void)scratch;
    for (int64_t i = 0; i < c->geom.C; i++) {
        xmean[i] = (float)w.xmean[i];
        plain |= !usable[i];
    }
    /* a weight that is NaN or inf would spread over Winograd's tiles */
    for (int64_t k = 0; k < c->geom.K; k++) plain |= !isfinite(mean[k]);
    *(int32_t *)at(u, c->plain) = plain;
    for (int64_t k = 0; k < c->geom.K; k++) set_start(c, u, k, plain);
}

/* In front of the first element, or ("same" of an even filter) behind the last alone. */
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
    const conv_geom *g = &c->geom;
    const cpu_vector_kernels *vec = u->run->state->vec;
    const int64_t *in = g->in, *to = c->copy.in;
    const float mean = ((const float *)at(u, c->xmean32))[part];
    const float *src = cvyi_unit_data(u, c->x) + part * in[0] * in[1] * in[2];
    float *dst = (float *)at(u, c->centred_x) + part * to[0] * to[1] * to[2];

    (void)scratch;
    if (form_of(c, u)) return;
    if (has_padding(g, to)) vec->fill(dst, to[0] * to[1] * to[2], -mean);
    for (int64_t d = 0; d < in[0] && d + g->pad[0] < to[0]; d++)
        for (int64_t h = 0; h < in[1] && h + g->pad[1] < to[1]; h++)
            vec->pivot(dst + ((d + g->pad[0]) * to[1] + h + g->pad[1]) * to[2] + g->pad[2],
                       src + (d * in[1] + h) * in[2], cvyi_min64(in[2], to[2] - g->pad[2]), mean, 1, 0);
}

/* ---- 1x1: weights [K][C] times the sample's [C][pixels] ---- */

static gemm_plan plan_product(const builder *b, const conv_geom *g)
{
    gemm_plan p;
    cvyi_gemm_plan(b->state->isa, GEMM_KN, g->groups, g->K / g->groups, g->out[0] * g->out[1] * g->out[2],
                   g->C / g->groups, &p);
    return p;
}

static void multiply(const gemm_plan *p, const conv_geom *g, const float *weight, const float *x,
                     const float *start, float *y, int64_t unit, char *scratch)
{
    const int64_t pixels = g->out[0] * g->out[1] * g->out[2], K = g->K / g->groups, C = g->C / g->groups;
    const gemm_job job = {.a = weight,
                          .b = x,
                          .c = y,
                          .bias_m = start,
                          .lda = C,
                          .ldb = pixels,
                          .ldc = pixels,
                          .a_batch = K * C,
                          .b_batch = C * pixels,
                          .c_batch = K * pixels,
                          .bias_batch = K};
    cvyi_gemm_run(p, &job, unit, (float *)(void *)scratch);
}

/* Does this sample go through the product of matrices? */
static bool is_product(const conv_step *c, const cpu_unit *u)
{
    return c->group.algo == CONV_BY_GEMM && !form_of(c, u);
}

/* What a convolution sums while it goes, of a product's result. */
static void run_squares(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    const int64_t pixels = c->geom.out[0] * c->geom.out[1] * c->geom.out[2];
    (void)scratch;
    if (!is_product(c, u)) return;
    ((double *)at(u, c->band_sums))[part] =
        u->run->state->red->sum_squares(cvyi_unit_data(u, c->out) + part * pixels, pixels, 0);
}

static int64_t channel_parts(const step *s, const cpu_unit *u)
{
    (void)u;
    return ((const conv_step *)s->data)->geom.K;
}

/* ---- the convolution ---- */

static int64_t conv_parts(const step *s, const cpu_unit *u)
{
    const conv_step *c = s->data;
    return cvyi_unit_batch(u, c->geom.N) * c->tiling[form_of(c, u)].units;
}

/* Output channels of a unit. */
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
    const float *y;
    cpu_moments *m;
    cvyi_program_run_band(&c->prog, u, band, scratch);
    if (c->prog_stats == CVY_NONE) return;
    y = cvyi_unit_data(u, u->run->plan->graph->nodes[c->group.prog + c->group.n_prog - 1].out);
    m = (cpu_moments *)at(u, c->band_sums) + span->band * c->geom.K;
    for (int64_t k = band->k0; k < band->k1; k++)
        m[k] = u->run->state->red->moments(y + k * c->prog.inner + band->i0, band->i1 - band->i0);
}

/* One unit of the convolution. sums: for the statistics; prog: through the program; else to memory or to maxima. */
static void convolve(const conv_step *c, const cpu_unit *u, int64_t part, char *scratch, bool sums, bool prog)
{
    const conv_geom *g = &c->geom;
    const conv_tiling *t = &c->tiling[form_of(c, u)];
    const int64_t sample = part / t->units, unit = part % t->units, plane = g->out[1] * g->out[2];
    conv_span span;
    conv_job job = {.tiling = t, .dst_row = g->out[2], .dst_plane = plane, .dst_chan = g->out[0] * plane};
    prog_band band = {.data = (float *)(void *)(scratch + t->scratch)};

    if (is_product(c, u)) {
        multiply(&c->gemm, g, cvyi_unit_data(u, c->weight), at(u, c->centred_x), at(u, c->start),
                 cvyi_unit_data(u, c->out), unit, scratch);
        return;
    }
    span = cvyi_conv_unit(t, unit);
    job.packed = cvyi_packed(u, c->packed[form_of(c, u)]);
    job.src = cvyi_unit_data(u, c->x) + sample * g->C * g->in[0] * g->in[1] * g->in[2];
    if (c->centres && !form_of(c, u)) job.src = at(u, c->centred_x);
    job.bias = c->window ? at(u, c->start) : bias_of(c, u);
    job.xmean = c->window && cvyi_is_winograd(t->algo) ? at(u, c->xmean32) : NULL;
    if (c->pool != CVY_NONE) job.pool = cvyi_unit_data(u, c->pool);
    if (sums) job.sumsq = at(u, c->band_sums);
    if (prog) {
        channels_of(t, &span, &band.k0, &band.k1);
        band.i0 = (span.plane * g->out[1] + span.row0) * g->out[2];
        band.i1 = band.i0 + span.rows * g->out[2];
        job.dst_chan = span.rows * g->out[2];
        job.dst_plane = 0;
        job.dst = band.data - band.k0 * job.dst_chan - span.row0 * g->out[2];
    } else if (c->pool == CVY_NONE && !c->group.twice) {
        job.dst = cvyi_unit_data(u, c->out) + sample * g->K * job.dst_chan;
    }
    cvyi_conv_run(&job, unit, scratch);
    if (prog) finish_band(c, u, &span, &band, scratch + t->scratch + c->band_bytes);
}

static void run_conv(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const conv_step *c = s->data;
    convolve(c, u, part, scratch, c->stats != CVY_NONE, c->group.n_prog && !c->group.twice);
}

static void run_again(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    convolve(s->data, u, part, scratch, false, true);
}

/* ---- statistics ---- */

/* Moments of channel k over all bands, in their order, of y itself. */
static cpu_moments channel_moments(const conv_step *c, const cpu_unit *u, int64_t k)
{
    const conv_tiling *t = &c->tiling[form_of(c, u)];
    const int64_t K = c->geom.K, bands = t->bands;
    const double n = (double)(c->geom.out[0] * c->geom.out[1] * c->geom.out[2]);
    cpu_moments m = {0, 0, 0};

    if (c->prog_stats != CVY_NONE) {
        const cpu_moments *of = at(u, c->band_sums);
        for (int64_t b = 0; b < bands; b++) m = cvyi_moments_merge(m, of[b * K + k]);
    } else {
        const double *sumsq = at(u, c->band_sums), *mean = at(u, c->mean);
        const double *shift = at(u, cvyi_unit_spot(u, c->out)->shift);
        const double left = mean[k] - shift[k]; /* what rounding the start left of the mean: next to nothing */
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

/* ---- lowering ---- */

static void run_coefs(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    (void)part;
    (void)scratch;
    cvyi_program_coefs(&((const conv_step *)s->data)->prog, u);
}

static cvy_status add_conv_step(builder *b, conv_step *c, const char *name,
                                int64_t (*parts)(const step *, const cpu_unit *),
                                void (*run)(const step *, const cpu_unit *, int64_t, char *), int64_t scratch)
{
    void *unused;
    step *s = cvyi_add_step(b, name, 1, &unused);
    if (!s) return CVY_NO_MEMORY;
    s->parts = parts;
    s->run = run;
    s->data = c;
    s->scratch = scratch;
    return CVY_OK;
}

static void reserve_record(builder *b, conv_step *c)
{
    const conv_geom *g = &c->geom;
    const int64_t bands = cvyi_max64(c->tiling[0].bands, c->tiling[1].bands);
    if (c->window) {
        c->sums = cvyi_slice(b, 8 * g->C * cvyi_conv_taps(g));
        c->xmean = cvyi_slice(b, 8 * g->C);
        c->usable = cvyi_slice(b, 4 * g->C);
        c->xmean32 = cvyi_slice(b, 4 * g->C);
        c->start = cvyi_slice(b, 4 * g->K);
        c->mean = cvyi_slice(b, 8 * g->K);
        c->constant = cvyi_slice(b, 8 * g->K);
        c->plain = cvyi_slice(b, 4);
        if (c->centres) c->centred_x = cvyi_slice(b, 4 * g->C * c->copy.in[0] * c->copy.in[1] * c->copy.in[2]);
    }
    if (c->stats != CVY_NONE) c->band_sums = cvyi_slice(b, 8 * bands * g->K);
    if (c->prog_stats != CVY_NONE) c->band_sums = cvyi_slice(b, (int64_t)sizeof(cpu_moments) * bands * g->K);
}

static int value_of(const builder *b, int index)
{
    return index < 0 ? CVY_NONE : b->g->nodes[index].out;
}

/* A band of the largest unit, in floats. */
static int64_t band_floats(const conv_tiling *t)
{
    const int64_t channels = cvyi_min64(t->blocks_per_unit * t->kt, t->geom.K);
    return channels * cvyi_min64(t->rows, t->geom.out[1]) * t->geom.out[2];
}

/* The same convolution of an input that has its padding around it, as far as a tap reaches. */
static conv_geom padded_geom(const conv_geom *g)
{
    conv_geom p = *g;
    for (int a = 0; a < 3; a++) {
        p.pad[a] = 0;
        p.in[a] = (g->out[a] - 1) * g->stride[a] + (g->kernel[a] - 1) * g->dil[a] + 1;
    }
    return p;
}

static cvy_status tile_and_pack(builder *b, conv_step *c)
{
    const int algos[2] = {c->group.algo, CONV_DIRECT};
    int64_t ph = 1, pw = 1;
    cvy_status st = CVY_OK;

    if (c->group.pool >= 0) {
        pool_geom pool;
        cvyi_pool_geom(b->g, &b->g->nodes[c->group.pool], &pool);
        ph = pool.kernel[1];
        pw = pool.kernel[2];
    }
    if (c->group.algo == CONV_BY_GEMM) {
        c->gemm = plan_product(b, &c->geom);
        c->tiling[0] = (conv_tiling){.geom = c->geom, .units = c->gemm.units, .bands = 1};
        c->tiling[0].scratch = cvyi_gemm_scratch_bytes(&c->gemm);
    }
    for (int i = c->group.algo == CONV_BY_GEMM; i < 1 + two_forms(c); i++) {
        cvyi_conv_tile(algos[i], i || !c->centres ? &c->geom : &c->copy, b->state->conv, ph, pw, &c->tiling[i]);
        c->packed[i] = cvyi_packed_room(b, c->weight, 4 * c->tiling[i].packed);
        TRY(add_packing(b, c, i));
    }
fail:
    return st;
}

/* A product sees pixels, not rows: one long row costs less than many short ones. */
static void one_row(conv_geom *g)
{
    g->in[2] = g->out[2] = g->out[0] * g->out[1] * g->out[2];
    g->in[0] = g->in[1] = g->out[0] = g->out[1] = 1;
}

static cvy_status lower_kernel(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    conv_step *c = cvyi_arena_alloc(&b->plan->memory, 1, sizeof *c);
    int64_t scratch;
    cvy_status st = CVY_OK;

    if (!c) return CVY_NO_MEMORY;
    cvyi_conv_geom(b->g, n, &c->geom);
    c->group = b->convs[index];
    if (c->group.algo == CONV_BY_GEMM) one_row(&c->geom);
    c->x = n->arg[0], c->weight = n->arg[1], c->bias = n->arg[2], c->out = n->out;
    c->pool = value_of(b, c->group.pool);
    c->stats = value_of(b, c->group.stats);
    c->prog_stats = value_of(b, c->group.prog_stats);
    c->window = c->group.centred || c->prog_stats != CVY_NONE || cvyi_is_winograd(c->group.algo);
    c->centres = c->window && !cvyi_is_winograd(c->group.algo);
    c->copy = padded_geom(&c->geom);
    if (c->stats != CVY_NONE || c->prog_stats != CVY_NONE)
        cvyi_norm_geom(b->g, &b->g->nodes[c->stats != CVY_NONE ? c->group.stats : c->group.prog_stats], &c->norm);
    TRY(tile_and_pack(b, c));
    reserve_record(b, c);
    scratch = cvyi_max64((int64_t)c->tiling[0].scratch, (int64_t)c->tiling[1].scratch);
    if (c->group.n_prog) {
        program_room room;
        c->prog = cvyi_program_in(&room);
        if (!cvyi_band_program(b, n->out, c->group.prog, c->group.n_prog, &c->geom, &c->prog))
            return cvyi_fail(CVY_UNSUPPORTED, "%s: its band program does not build", b->g->values[n->out].name);
        TRY(cvyi_program_keep(b->plan, &c->prog));
        c->band_bytes =
            cvyi_align64(4 * cvyi_max64(band_floats(&c->tiling[0]), c->window ? band_floats(&c->tiling[1]) : 0));
        scratch += c->band_bytes + cvyi_program_scratch(&c->prog);
    }
    if (c->window) TRY(add_conv_step(b, c, "window sums", window_parts, run_window, 0));
    if (c->window) TRY(add_conv_step(b, c, "means", means_parts, run_means, 0));
    if (c->window) TRY(add_conv_step(b, c, "starts", one_part, run_starts, 0));
    if (c->centres) TRY(add_conv_step(b, c, "centre", window_parts, run_centre, 0));
    if (c->prog.n_coefs && !c->group.twice) TRY(add_conv_step(b, c, "coefficients", one_part, run_coefs, 0));
    TRY(add_conv_step(b, c, "convolution", conv_parts, run_conv, scratch));
    if (c->group.algo == CONV_BY_GEMM) TRY(add_conv_step(b, c, "squares", channel_parts, run_squares, 0));
    if (c->norm.groups) TRY(add_conv_step(b, c, "statistics", one_part, run_stats, 0));
    if (c->group.twice) {
        TRY(add_conv_step(b, c, "coefficients", one_part, run_coefs, 0));
        TRY(add_conv_step(b, c, "convolution again", conv_parts, run_again, scratch));
    }
fail:
    return st;
}

/* ---- 1x1 where nothing is taken along ---- */

typedef struct product_step {
    conv_geom geom;
    gemm_plan plan;
    int x, weight, bias, out;
} product_step;

static int64_t product_parts(const step *s, const cpu_unit *u)
{
    const product_step *c = s->data;
    return cvyi_unit_batch(u, c->geom.N) * c->plan.units;
}

static void run_product(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const product_step *c = s->data;
    const conv_geom *g = &c->geom;
    const int64_t pixels = g->out[0] * g->out[1] * g->out[2], sample = part / c->plan.units;

    multiply(&c->plan, g, cvyi_unit_data(u, c->weight), cvyi_unit_data(u, c->x) + sample * g->C * pixels,
             c->bias == CVY_NONE ? NULL : cvyi_unit_data(u, c->bias),
             cvyi_unit_data(u, c->out) + sample * g->K * pixels, part % c->plan.units, scratch);
}

static cvy_status lower_product(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    void *data;
    product_step *c;
    step *s = cvyi_add_step(b, "1x1 convolution", sizeof *c, &data);

    if (!s) return CVY_NO_MEMORY;
    c = data;
    cvyi_conv_geom(b->g, n, &c->geom);
    c->x = n->arg[0], c->weight = n->arg[1], c->bias = n->arg[2], c->out = n->out;
    c->plan = plan_product(b, &c->geom);
    s->parts = product_parts;
    s->run = run_product;
    s->scratch = (int64_t)cvyi_gemm_scratch_bytes(&c->plan);
    return CVY_OK;
}

cvy_status cvyi_lower_conv(builder *b, int index)
{
    const conv_group *c = &b->convs[index];
    return c->algo == CONV_BY_GEMM && !c->centred ? lower_product(b, index) : lower_kernel(b, index);
}
