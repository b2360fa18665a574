/* conv_rows.c - convolutions in the table of kernels: why one refuses, its seconds, and how it would run. */
#include "step_conv.h"

static conv_machine machine_of(const cpu_state *s)
{
    return (conv_machine){s->host.fma_gflops * 1e9, s->host.l3_gbps * 1e9 / s->host.threads};
}

/* ---- refuse ---- */

static const char *refuse_conv(const question *q, const cpu_row *row)
{
    const bool winograd = cvyi_is_winograd(row->algo);

    if (winograd && q->plan->options.winograd == CVY_OFF) return "winograd is off";
    if (winograd && !cvyi_conv_by_sample(q)) return "does not run sample by sample, Winograd needs that";
    return cvyi_conv_refuses(row->algo, &q->conv);
}

static const char *refuse_product(const question *q, const cpu_row *row)
{
    const conv_geom *g = &q->conv;

    (void)row;
    for (int a = 0; a < 3; a++)
        if (g->kernel[a] != 1 || g->stride[a] != 1 || g->pad[a] != 0)
            return "not a 1x1 filter without stride or padding";
    return NULL;
}

/* ---- seconds ---- */

/* Of all samples, cut like this. */
static double cut_seconds(const question *q, const conv_tiling *t)
{
    const conv_machine m = machine_of(q->plan->state);
    return cvyi_conv_algos[t->algo].cost(t, &m) * (double)q->conv.N;
}

/* As a sample by itself is cut, so that all batch sizes choose the same form: they share its packed weights. */
static double conv_seconds(const question *q, const cpu_row *row)
{
    const cpu_state *s = q->plan->state;
    conv_geom one = q->conv;
    conv_tiling t;

    one.N = 1;
    cvyi_conv_tile(row->algo, &one, s->conv, 1, 1, &t);
    return cut_seconds(q, &t);
}

/* FMAs of whole vectors of pixels at 89 % of the peak, and 5 for every vector of results. 64 -> 256 channels,
 * 56x56, on AVX-512 at 263 GFLOP/s: 0.47 ms; measured 0.53. 512 -> 2048, 7x7: 64 pixels for 49, 0.58 ms; measured
 * 0.59. */
static double product_seconds(const question *q, const cpu_row *row)
{
    const cpu_state *s = q->plan->state;
    const conv_geom *g = &q->conv;
    const int64_t pixels = cvyi_round_up(g->out[0] * g->out[1] * g->out[2], s->conv->vl);
    const double fmas = (double)(g->N * pixels * g->K) * ((double)(g->C / g->groups) / 0.89 + 5);
    (void)row;
    return 2.0 * fmas / machine_of(s).fma_flops;
}

/* ---- decide ---- */

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

/* A product works on pixels, not rows: one long row costs less than many short ones. */
static conv_geom one_row(const conv_geom *g)
{
    conv_geom r = *g;
    r.in[2] = r.out[2] = g->out[0] * g->out[1] * g->out[2];
    r.in[0] = r.in[1] = r.out[0] = r.out[1] = 1;
    return r;
}

static void tile_product(const cpu_state *s, conv_choice *c)
{
    const conv_geom *g = &c->geom;
    cvyi_gemm_plan(s->isa, GEMM_KN, g->groups, g->K / g->groups, g->out[2], g->C / g->groups, &c->gemm);
    c->tiling[0] = (conv_tiling){.geom = *g, .parts = c->gemm.parts, .bands = 1};
    c->tiling[0].scratch = cvyi_gemm_scratch_bytes(&c->gemm);
}

static void decide(const question *q, cpu_choice *of)
{
    const cpu_state *s = q->plan->state;
    const conv_algo_id algo = of->row->algo;
    const bool winograd = cvyi_is_winograd(algo);
    conv_choice *c = &of->how.conv;
    int64_t window[2] = {1, 1}; /* of the maximum */

    c->product = of->row->product;
    c->geom = c->product ? one_row(&q->conv) : q->conv;
    c->along = cvyi_conv_take(q, of, c->product);
    c->means = c->along.centred || c->along.prog_stats >= 0 || winograd;
    c->centres = c->means && !winograd;
    c->copy = padded_geom(&c->geom);
    if (c->along.pool >= 0) {
        pool_geom pool;
        cvyi_pool_geom(q->plan->graph, &q->plan->graph->nodes[c->along.pool], &pool);
        window[0] = pool.kernel[1];
        window[1] = pool.kernel[2];
    }
    if (c->product) {
        tile_product(s, c);
    } else {
        cvyi_conv_tile(algo, c->centres ? &c->copy : &c->geom, s->conv, window[0], window[1], &c->tiling[0]);
        of->seconds = cut_seconds(q, &c->tiling[0]);
    }
    if (c->means) cvyi_conv_tile(CONV_DIRECT, &c->geom, s->conv, window[0], window[1], &c->tiling[1]);
}

/* ---- make ---- */

static cvy_status make_product(builder *b, int index)
{
    const conv_choice *c = &cvyi_own_choice(b->out->pass, b->choice, index)->how.conv;
    return c->along.centred ? cvyi_lower_conv(b, index) : cvyi_lower_product(b, index);
}

/* Kernels widen x as they load it, and bands leave as words; but a product is one of floats. */
static bool words(const builder *b, int index)
{
    const cpu_choice *of = cvyi_own_choice(b->out->pass, b->choice, index);
    const conv_choice *c = &of->how.conv;
    return c->centres || (!c->product && cvyi_conv_widens(of->row->algo, &c->geom));
}

static const char *entry(const cpu_state *s, const cpu_row *row)
{
    return s->conv->name[row->algo];
}

#define CONV_ROW(variable, title, id)                                                                              \
    const cpu_row variable = {.name = title,                                                                       \
                              .kinds = 1u << KIND_CONV,                                                            \
                              .others = "not a convolution",                                                       \
                              .algo = id,                                                                          \
                              .refuse = refuse_conv,                                                               \
                              .seconds = conv_seconds,                                                             \
                              .decide = decide,                                                                    \
                              .words = words,                                                                      \
                              .make = cvyi_lower_conv,                                                             \
                              .entry = entry}

CONV_ROW(cvyi_row_conv_direct, "direct", CONV_DIRECT);
CONV_ROW(cvyi_row_conv_depthwise, "depthwise", CONV_DEPTHWISE);
CONV_ROW(cvyi_row_conv_patches, "patches", CONV_PATCHES);
CONV_ROW(cvyi_row_conv_channels, "channels", CONV_CHANNELS);
CONV_ROW(cvyi_row_conv_winograd_4x4, "winograd 4x4", CONV_WINOGRAD_4X4);
CONV_ROW(cvyi_row_conv_winograd_2x4, "winograd 2x4", CONV_WINOGRAD_2X4);
CONV_ROW(cvyi_row_conv_winograd_2x2, "winograd 2x2", CONV_WINOGRAD_2X2);

const cpu_row cvyi_row_conv_product = {.name = "1x1 as a matrix product",
                                       .kinds = 1u << KIND_CONV,
                                       .others = "not a convolution",
                                       .refuse = refuse_product,
                                       .seconds = product_seconds,
                                       .decide = decide,
                                       .words = words,
                                       .make = make_product,
                                       .entry = cvyi_product_entry,
                                       .product = true};
