/* core_window.c - convolutions and pooling: which kernel, with which tile, over which grid. */
#include <stdio.h>
#include "choice.h"
#include "cores.h"
#include "kernels/product_layout.cuh"

static int64_t product(const int64_t v[3])
{
    return v[0] * v[1] * v[2];
}

/* ---- convolutions ---- */

enum { PHASES_MOST = 4096 }; /* 16 in each direction */

static void define_filter(maker *m, const conv_geom *e, bool transposed)
{
    cvyi_make_define(m, "C_IN", e->C / e->groups);
    cvyi_make_define(m, "K_OUT", e->K / e->groups);
    cvyi_make_define(m, "GROUPS", e->groups);
    cvyi_make_define(m, "TRANSPOSED", transposed);
    cvyi_core_define_window(m, e->kernel, e->stride, e->pad, e->dil);
}

static void define_extents(maker *m, const conv_geom *e)
{
    cvyi_core_define_in(m, e->in);
    cvyi_core_define_out(m, e->out);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

conv_phases cvyi_conv_phases(const conv_geom *e, bool transposed)
{
    conv_phases p = {1, 1, 1};
    for (int a = 0; a < 3; a++) {
        const int64_t stride = transposed ? e->stride[a] : 1;
        p.count *= stride;
        p.taps *= cvyi_ceil_div(e->kernel[a], stride / common_divisor(stride, e->dil[a]));
        p.places *= cvyi_ceil_div(e->out[a], stride);
    }
    return p;
}

/* Of a pass whose core is a convolution: would weights packed by phases be mostly gaps? */
static bool many_phases(const cvy_plan *p, const cuda_choice *c, const conv_geom *e)
{
    const bool transposed = cvyi_info(&p->graph->nodes[c->form.core])->kind == KIND_CONVT;
    return transposed && (double)e->stride[0] * (double)e->stride[1] * (double)e->stride[2] > PHASES_MOST;
}

/* By multiply-adds. */
static conv_tile choose_tile(const conv_geom *e, bool transposed)
{
    const int64_t K = e->K / e->groups, C = e->C / e->groups, taps = cvyi_conv_phases(e, transposed).taps;
    conv_tile t = {64, 128, 8, 8, 16, 3};

    if (K <= 16)
        t = (conv_tile){16, 256, 4, 8, 16, 4};
    else if (K <= 32)
        t = (conv_tile){32, 256, 8, 8, 16, 3};
    /* Whole channels of up to 32 taps make every offset a constant; about 18 terms hide the copies' latency. */
    if (taps <= 32) t.terms = taps * cvyi_max64(1, cvyi_min64(C, 18 / taps));
    return t;
}

/* Packed weights: [groups][phases][terms][k_pad]. */
typedef struct packing {
    int64_t terms, k_pad, elements, at;
} packing;

static packing find_packing(const conv_geom *e, const conv_phases *f, const conv_tile *t)
{
    packing p = {.terms = cvyi_round_up(e->C / e->groups * f->taps, t->terms),
                 .k_pad = cvyi_round_up(e->K / e->groups, t->channels)};
    p.elements = e->groups * f->count * p.terms * p.k_pad;
    return p;
}

static cvy_status make_pack(maker *m, const node *n, const conv_geom *e, const packing *p, bool channels_fastest)
{
    const bool prepared = m->prepared, transposed = cvyi_info(n)->kind == KIND_CONVT;
    cvy_status st;

    m->prepared = m->plan->prepared[n->arg[1]];
    cvyi_make_start(m, "pack.cu");
    define_filter(m, e, transposed);
    cvyi_make_define(m, "K_PAD", p->k_pad);
    cvyi_make_define(m, "TERMS_PAD", p->terms);
    if (channels_fastest) cvyi_make_define(m, "CHANNELS_FASTEST", 1);
    cvyi_make_define_types(m, n->arg[1], n->arg[1]);
    cvyi_make_own_view(m, p->at, "packed weights");
    cvyi_make_weight_view(m, n->arg[1], e, transposed);
    cvyi_core_grid(m, cvyi_ceil_div(p->elements, BLOCK_THREADS), 1, 1, BLOCK_THREADS);
    st = cvyi_make_end(m, "");
    m->prepared = prepared;
    return st;
}

static void define_tile(maker *m, const conv_tile *t)
{
#define DEFINE(NAME, field, meaning) cvyi_make_define(m, #NAME, t->field);
    CONV_DIRECT_TILE(DEFINE)
#undef DEFINE
    m->step.launch.dynamic_shared = (unsigned)direct_shared_bytes((int)t->channels, (int)t->pixels, (int)t->terms);
}

static void define_mma(maker *m, const mma_tile *t)
{
#define DEFINE(NAME, field, meaning) cvyi_make_define(m, #NAME, t->field);
    CONV_MMA_TILE(DEFINE)
#undef DEFINE
    m->step.launch.dynamic_shared = (unsigned)t->shared_bytes;
}

/* mma: on tensor cores; NULL: by multiply-adds. */
static cvy_status make_tiled(maker *m, const conv_geom *e, const conv_tile *t, const mma_tile *mma)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];
    const bool transposed = cvyi_info(n)->kind == KIND_CONVT;
    const conv_phases f = cvyi_conv_phases(e, transposed);
    packing w = find_packing(e, &f, t);
    const space in = cvyi_space_planes(cvyi_shape_of(m->g, n->arg[0]), e->spatial);
    const space out = cvyi_space_planes(cvyi_shape_of(m->g, n->out), e->spatial);
    char variant[24];
    cvy_status st;

    w.at = cvyi_make_packed_memory(m, n->arg[1], cvyi_floats(w.elements));
    TRY(make_pack(m, n, e, &w, mma != NULL));
    cvyi_make_start(m, mma ? "conv_mma.cu" : "conv_direct.cu");
    define_filter(m, e, transposed);
    define_extents(m, e);
    if (mma)
        define_mma(m, mma);
    else
        define_tile(m, t);
    cvyi_make_define_types(m, n->arg[0], n->arg[0]); /* packed weights are float32 */
    cvyi_core_first_view(m, core, &out);
    cvyi_make_view(m, n->arg[0], &in);
    cvyi_make_own_view(m, w.at, "packed weights");
    if (e->bias) cvyi_core_bias(m, core, &out, n->arg[2], 1);
    TRY(cvyi_core_epilogue(m, core, &out));
    m->step.extent = e->N;
    cvyi_core_grid(m, f.count * cvyi_ceil_div(e->N * f.places, t->pixels), w.k_pad / t->channels, e->groups,
                   mma ? (unsigned)mma->threads
                       : (unsigned)tile_threads((int)t->channels, (int)t->pixels, (int)t->k_each, (int)t->p_each));
    snprintf(variant, sizeof variant, "%dx%d", (int)t->channels, (int)t->pixels);
    TRY(cvyi_make_end(m, variant));
fail:
    return st;
}

static cvy_status make_simple(maker *m, const conv_geom *e)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];
    const bool transposed = cvyi_info(n)->kind == KIND_CONVT;
    const space in = cvyi_space_planes(cvyi_shape_of(m->g, n->arg[0]), e->spatial);
    const space out = cvyi_space_planes(cvyi_shape_of(m->g, n->out), e->spatial);
    cvy_status st;

    cvyi_make_start(m, "conv_simple.cu");
    define_filter(m, e, transposed);
    define_extents(m, e);
    cvyi_make_define_types(m, n->arg[0], n->arg[1]);
    cvyi_core_first_view(m, core, &out);
    cvyi_make_view(m, n->arg[0], &in);
    cvyi_make_weight_view(m, n->arg[1], e, transposed);
    if (e->bias) cvyi_core_bias(m, core, &out, n->arg[2], 1);
    TRY(cvyi_core_epilogue(m, core, &out));
    m->step.extent = e->N;
    cvyi_core_grid(m, cvyi_ceil_div(e->K / e->groups * product(e->out), BLOCK_THREADS),
                   cvyi_min64(e->N, GRID_YZ_MOST), cvyi_min64(e->groups, GRID_YZ_MOST), BLOCK_THREADS);
    TRY(cvyi_make_end(m, ""));
fail:
    return st;
}

/* The convolution of a pass; false: it has no results. */
static bool find_conv(const maker *m, conv_geom *e)
{
    const node *n = &m->g->nodes[m->choice->form.core];

    cvyi_conv_geom(m->g, n, e);
    return cvyi_elements(cvyi_shape_of(m->g, n->out)) > 0;
}

static cvy_status make_conv_direct(maker *m)
{
    conv_geom e;
    return find_conv(m, &e) ? make_tiled(m, &e, &m->choice->conv, NULL) : CVY_OK;
}

static cvy_status make_conv_mma(maker *m)
{
    const mma_tile *mma = &m->choice->mma.tile;
    const conv_tile t = {mma->m, mma->n, mma->warp_m, mma->warp_n, MMA_DEPTH, mma->bound};
    conv_geom e;
    return find_conv(m, &e) ? make_tiled(m, &e, &t, mma) : CVY_OK;
}

static cvy_status make_conv_simple(maker *m)
{
    conv_geom e;
    return find_conv(m, &e) ? make_simple(m, &e) : CVY_OK;
}

enum { CONVOLUTIONS = 1 << KIND_CONV | 1 << KIND_CONVT };

static const char *refuse_conv_simple(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    (void)s;
    return cvyi_core_refusal(p, c, CONVOLUTIONS, "not a convolution");
}

/* Tiles have a block for every group, and packed weights for every phase. */
static const char *refuse_tiles(const cvy_plan *p, const pass *s, cuda_choice *c, conv_geom *e)
{
    const char *why = refuse_conv_simple(p, s, c);

    if (why) return why;
    cvyi_conv_geom(p->graph, &p->graph->nodes[c->form.core], e);
    if (e->groups > GRID_YZ_MOST) return "more groups than a grid has blocks";
    return many_phases(p, c, e) ? "strides with more than 4096 phases" : NULL;
}

/* A tile of 16 channels is worth it from about 4 channels on, if there are enough terms to share its cost. */
static const char *refuse_conv_direct(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    conv_geom e;
    const char *why = refuse_tiles(p, s, c, &e);

    if (why) return why;
    if (e.K / e.groups < 4) return "fewer than 4 output channels in a group";
    if (e.C / e.groups * product(e.kernel) < 16) return "fewer than 16 terms in a sum";
    c->conv = choose_tile(&e, cvyi_info(&p->graph->nodes[c->form.core])->kind == KIND_CONVT);
    return NULL;
}

static const char *refuse_conv_mma(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    conv_geom e;
    const char *why = refuse_tiles(p, s, c, &e);
    return why ? why : cvyi_mma_refusal(p, c->form.core, &c->mma);
}

const kernel_row cvyi_kernel_conv_simple = {.name = "conv_simple",
                                            .refuse = refuse_conv_simple,
                                            .tune = cvyi_core_tune,
                                            .make = make_conv_simple,
                                            .faster = &cvyi_kernel_conv_mma};
const kernel_row cvyi_kernel_conv_direct = {.name = "conv_direct",
                                            .refuse = refuse_conv_direct,
                                            .tune = cvyi_core_tune,
                                            .make = make_conv_direct,
                                            .faster = &cvyi_kernel_conv_mma};
const kernel_row cvyi_kernel_conv_mma = {.name = "conv_mma",
                                         .refuse = refuse_conv_mma,
                                         .tune = cvyi_mma_tune,
                                         .make = make_conv_mma,
                                         .instead = MMA_INSTEAD,
                                         .same = cvyi_mma_same,
                                         .dice = 2,
                                         .tensor_cores = true};

/* ---- pooling ---- */

static cvy_status make_pool(maker *m)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];
    const op_kind kind = cvyi_info(n)->kind;
    pool_geom e;
    cvy_status st;

    if (!cvyi_elements(cvyi_shape_of(m->g, n->out))) return CVY_OK;
    if (m->choice->reduce.gather) return cvyi_core_reduction(m);
    cvyi_pool_geom(m->g, n, &e);
    const space in = cvyi_space_planes(cvyi_shape_of(m->g, n->arg[0]), e.spatial);
    const space out = cvyi_space_planes(cvyi_shape_of(m->g, n->out), e.spatial);
    cvyi_make_start(m, "pool.cu");
    cvyi_make_define(m, "MODE", kind == KIND_MAXPOOL ? 0 : kind == KIND_AVGPOOL ? 1 : 2);
    cvyi_make_define(m, "CHANNELS", out.extent[1]);
    cvyi_core_define_in(m, e.in);
    cvyi_core_define_out(m, e.out);
    cvyi_core_define_window(m, e.kernel, e.stride, e.pad, e.dil);
    cvyi_make_define(m, "COUNT_PAD", e.count_include_pad);
    cvyi_make_define(m, "DIVISOR", e.divisor);
    cvyi_core_first_view(m, core, &out);
    TRY(cvyi_core_prologue(m, core, &in));
    TRY(cvyi_core_epilogue(m, core, &out));
    m->step.extent = out.extent[0];
    cvyi_core_grid(m, cvyi_ceil_div(cvyi_elements(&out.logical), BLOCK_THREADS), 1, 1, BLOCK_THREADS);
    TRY(cvyi_make_end(m, cvyi_info(n)->name));
fail:
    return st;
}

static const char *refuse_pool(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const unsigned kinds = 1u << KIND_MAXPOOL | 1u << KIND_AVGPOOL | 1u << KIND_ADAPTIVE;
    const char *why = cvyi_core_refusal(p, c, kinds, "not a pooling");
    const cvy_graph *g = p->graph;
    const node *n = why ? NULL : &g->nodes[c->form.core];
    pool_geom e;

    if (why) return why;
    cvyi_pool_geom(g, n, &e);
    c->reduce.gather = NULL;
    if (cvyi_info(n)->kind != KIND_ADAPTIVE || product(e.out) != 1) return NULL;
    c->reduce = (reduce_choice){.gather = "mean", /* one window, the whole: a mean over space */
                                .in = cvyi_space_planes(cvyi_shape_of(g, n->arg[0]), e.spatial),
                                .out = cvyi_space_planes(cvyi_shape_of(g, n->out), e.spatial),
                                .reduced = 4 | 8 | 16};
    cvyi_reduce_spread(&c->reduce, g->values[g->nodes[s->first].arg[0]].dtype);
    return NULL;
}

const kernel_row cvyi_kernel_pool = {
    .name = "pool", .refuse = refuse_pool, .tune = cvyi_core_tune, .make = make_pool};
