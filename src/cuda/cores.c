/* cores.c - the kernels behind each kind of core: which one, with which tile, over which grid. */
#include <math.h>
#include <stdio.h>
#include "mma.h"
#include "tc.h"
#include "tc_product.h"

static const char *const in_names[3] = {"IN_D", "IN_H", "IN_W"};
static const char *const out_names[3] = {"OUT_O", "OUT_P", "OUT_Q"};
static const char *const tap_names[3] = {"TAPS_T", "TAPS_R", "TAPS_S"};
static const char *const stride_names[3] = {"STRIDE_D", "STRIDE_H", "STRIDE_W"};
static const char *const pad_names[3] = {"PAD_D", "PAD_H", "PAD_W"};
static const char *const dil_names[3] = {"DIL_D", "DIL_H", "DIL_W"};

static int64_t product(const int64_t v[3])
{
    return v[0] * v[1] * v[2];
}

static void set_grid(maker *m, int64_t x, int64_t y, int64_t z, unsigned threads)
{
    cuda_launch *l = &m->step.launch;
    l->grid[0] = (unsigned)x;
    l->grid[1] = (unsigned)cvyi_min64(y, UINT32_MAX);
    l->grid[2] = (unsigned)cvyi_min64(z, UINT32_MAX);
    l->block[0] = threads;
    l->block[1] = l->block[2] = 1;
}

/* What stands behind the core: its result stored where it is needed, then the pass's other nodes. */
static cvy_status add_epilogue(maker *m, int core, const space *over)
{
    const int v = m->g->nodes[core].out;
    program *p = &m->post;

    p->over = *over;
    if (p->line_of[v] == LINE_NONE) p->line_of[v] = EMIT_ARGUMENT;
    if (m->prepared || cvyi_needed_behind(m->plan, m->pass, v)) cvyi_make_store(m, p, v);
    return cvyi_make_chain(m, p, core + 1, m->pass->first + m->pass->count, true);
}

/* What stands in front of it; the last line is the value the core reads. */
static cvy_status add_prologue(maker *m, int core, const space *over)
{
    const int x = m->g->nodes[core].arg[0];
    cvy_status st;

    m->pre.over = *over;
    TRY(cvyi_make_chain(m, &m->pre, m->pass->first, core, false));
    if (cvyi_make_operand(m, &m->pre, x) != m->pre.n - 1) { /* read again, to be the last */
        const emit_line again = m->pre.lines[m->pre.line_of[x]];
        m->pre.line_of[x] = cvyi_make_line(m, &m->pre, &again);
    }
fail:
    return st;
}

/* value + bias in front of everything else of the epilogue. */
static void add_bias(maker *m, int core, const space *over, int bias, int slot)
{
    emit_line load = {.kind = EMIT_LOAD, .note = cvyi_make_label(m, bias)};
    emit_line add = {.kind = EMIT_OP, .op = OP_add, .a = EMIT_ARGUMENT, .p = {0, 1}, .note = "bias"};

    m->post.over = *over;
    load.view = cvyi_make_channel_view(m, bias, slot);
    add.b = cvyi_make_line(m, &m->post, &load);
    m->post.line_of[m->g->nodes[core].out] = cvyi_make_line(m, &m->post, &add);
}

/* ---- convolutions ---- */

static void define_filter(maker *m, const conv_geom *e, bool transposed)
{
    cvyi_make_define(m, "C_IN", e->C / e->groups);
    cvyi_make_define(m, "K_OUT", e->K / e->groups);
    cvyi_make_define(m, "GROUPS", e->groups);
    cvyi_make_define(m, "TRANSPOSED", transposed);
    cvyi_make_define3(m, tap_names, e->kernel);
    cvyi_make_define3(m, stride_names, e->stride);
    cvyi_make_define3(m, pad_names, e->pad);
    cvyi_make_define3(m, dil_names, e->dil);
}

static void define_extents(maker *m, const conv_geom *e)
{
    cvyi_make_define3(m, in_names, e->in);
    cvyi_make_define3(m, out_names, e->out);
}

/* Phases of a transposed convolution, the taps each one meets, and its output places (window.cuh). */
typedef struct phases {
    int64_t count, taps, places;
} phases;

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

static phases find_phases(const conv_geom *e, bool transposed)
{
    phases p = {1, 1, 1};
    for (int a = 0; a < 3; a++) {
        const int64_t stride = transposed ? e->stride[a] : 1;
        p.count *= stride;
        p.taps *= cvyi_ceil_div(e->kernel[a], stride / common_divisor(stride, e->dil[a]));
        p.places *= cvyi_ceil_div(e->out[a], stride);
    }
    return p;
}

/* The block's tile: channels x pixels, per thread (of tensor cores per warp), terms at a time. */
typedef struct conv_tile {
    int64_t channels, pixels, k_each, p_each, terms, blocks;
    const mma_tile *mma; /* NULL: by multiply-adds */
} conv_tile;

static conv_tile choose_tile(const conv_geom *e, const phases *f, const mma_tile *mma)
{
    const int64_t K = e->K / e->groups, C = e->C / e->groups;
    conv_tile t = {64, 128, 8, 8, 16, 3, NULL};

    if (mma) return (conv_tile){mma->m, mma->n, mma->warp_m, mma->warp_n, 16, mma->resident, mma};
    if (K <= 16)
        t = (conv_tile){16, 256, 4, 8, 16, 4, NULL};
    else if (K <= 32)
        t = (conv_tile){32, 256, 8, 8, 16, 3, NULL};
    /* Whole channels of up to 32 taps make every offset a constant; about 18 terms hide the copies' latency. */
    if (f->taps <= 32) t.terms = f->taps * cvyi_max64(1, cvyi_min64(C, 18 / f->taps));
    return t;
}

/* Packed weights: [groups][phases][terms][k_pad]. */
typedef struct packing {
    int64_t terms, k_pad, elements, at;
} packing;

static packing find_packing(const conv_geom *e, const phases *f, const conv_tile *t)
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
    cvyi_make_own_view(m, p->at, "packed weights");
    cvyi_make_weight_view(m, n->arg[1], e, transposed);
    set_grid(m, cvyi_ceil_div(p->elements, 256), 1, 1, 256);
    st = cvyi_make_end(m, "");
    m->prepared = prepared;
    return st;
}

/* The view that takes the pass's first result is number 0. */
static void make_first_view(maker *m, int core, const space *over)
{
    const int end = m->pass->first + m->pass->count;
    int first = end - 1;

    for (int i = end - 1; i >= core; i--)
        if (cvyi_needed_behind(m->plan, m->pass, m->g->nodes[i].out)) first = i;
    cvyi_make_view(m, m->g->nodes[m->prepared ? core : first].out, over);
}

/* What both tensor-core kernels have beside a tile. */
static void define_mma(maker *m, const mma_tile *t)
{
    cvyi_make_define(m, "PRODUCTS", t->products);
    cvyi_make_define(m, "HOST_SHARED", t->shared_bytes);
    m->step.launch.dynamic_shared = (unsigned)t->shared_bytes;
}

static void define_tile(maker *m, const conv_tile *t)
{
    cvyi_make_define(m, "BK", t->channels);
    cvyi_make_define(m, "BP", t->pixels);
    cvyi_make_define(m, t->mma ? "WK" : "TK", t->k_each);
    cvyi_make_define(m, t->mma ? "WP" : "TP", t->p_each);
    if (!t->mma) cvyi_make_define(m, "ROWS", t->terms);
    cvyi_make_define(m, "BLOCKS", t->blocks);
    if (t->mma) {
        define_mma(m, t->mma);
        return;
    }
    m->step.launch.dynamic_shared =
        4 * (unsigned)cvyi_max64(2 * t->terms * (t->pixels + t->channels), t->channels * t->pixels);
}

/* mma: on tensor cores; NULL: by multiply-adds. */
static cvy_status make_tiled(maker *m, int core, const conv_geom *e, const mma_tile *mma)
{
    const node *n = &m->g->nodes[core];
    const bool transposed = cvyi_info(n)->kind == KIND_CONVT;
    const phases f = find_phases(e, transposed);
    const conv_tile t = choose_tile(e, &f, mma);
    packing w = find_packing(e, &f, &t);
    const space in = cvyi_space_planes(cvyi_shape_of(m->g, n->arg[0]), e->spatial);
    const space out = cvyi_space_planes(cvyi_shape_of(m->g, n->out), e->spatial);
    char form[24];
    cvy_status st;

    w.at = cvyi_make_memory(m, 4 * w.elements);
    TRY(make_pack(m, n, e, &w, mma != NULL));
    cvyi_make_start(m, mma ? "conv_mma.cu" : "conv_direct.cu");
    define_filter(m, e, transposed);
    define_extents(m, e);
    define_tile(m, &t);
    make_first_view(m, core, &out);
    cvyi_make_view(m, n->arg[0], &in);
    cvyi_make_own_view(m, w.at, "packed weights");
    if (e->bias) add_bias(m, core, &out, n->arg[2], 1);
    TRY(add_epilogue(m, core, &out));
    m->step.extent = e->N;
    set_grid(m, f.count * cvyi_ceil_div(e->N * f.places, t.pixels), w.k_pad / t.channels, e->groups,
             mma ? (unsigned)mma->threads : (unsigned)(t.channels / t.k_each * t.pixels / t.p_each));
    snprintf(form, sizeof form, "%dx%d", (int)t.channels, (int)t.pixels);
    TRY(cvyi_make_end(m, form));
fail:
    return st;
}

static cvy_status make_simple(maker *m, int core, const conv_geom *e)
{
    const node *n = &m->g->nodes[core];
    const bool transposed = cvyi_info(n)->kind == KIND_CONVT;
    const space in = cvyi_space_planes(cvyi_shape_of(m->g, n->arg[0]), e->spatial);
    const space out = cvyi_space_planes(cvyi_shape_of(m->g, n->out), e->spatial);
    cvy_status st;

    cvyi_make_start(m, "conv_simple.cu");
    define_filter(m, e, transposed);
    define_extents(m, e);
    make_first_view(m, core, &out);
    cvyi_make_view(m, n->arg[0], &in);
    cvyi_make_weight_view(m, n->arg[1], e, transposed);
    if (e->bias) add_bias(m, core, &out, n->arg[2], 1);
    TRY(add_epilogue(m, core, &out));
    m->step.extent = e->N;
    set_grid(m, cvyi_ceil_div(e->K / e->groups * product(e->out), 256), cvyi_min64(e->N, 65535), e->groups, 256);
    TRY(cvyi_make_end(m, ""));
fail:
    return st;
}

cvy_status cvyi_make_conv(maker *m, int core)
{
    const mma_form f = cvyi_mma_form(m->plan, core);
    conv_geom e;

    cvyi_conv_geom(m->g, &m->g->nodes[core], &e);
    if (!cvyi_elements(cvyi_shape_of(m->g, m->g->nodes[core].out))) return CVY_OK;
    if (m->pass->variant == VARIANT_MMA) return make_tiled(m, core, &e, &f.tile);
    /* A tile of 16 channels pays from about 4 on, if there are terms to share its cost. */
    if (e.K / e.groups >= 4 && e.C / e.groups * product(e.kernel) >= 16) return make_tiled(m, core, &e, NULL);
    return make_simple(m, core, &e);
}

/* ---- matrix products ---- */

/* The result with the row and the column that vectors lack put back. */
static space product_space(const cvy_graph *g, const node *n, int *row, int *column)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]), *w = cvyi_shape_of(g, n->arg[1]), *y = cvyi_shape_of(g, n->out);
    const bool has_row = x->rank > 1, has_column = w->rank > 1;
    const int leading = y->rank - has_column - has_row;
    space s = {.extent = {1, 1, 1, 1, 1, 1}, .logical = *y};

    *row = leading;
    *column = leading + 1;
    for (int d = 0; d < y->rank; d++) {
        s.place[d] = d < leading ? d : d == leading && has_row ? *row : *column;
        s.extent[s.place[d]] = y->dim[d];
    }
    return s;
}

/* Operands: batch dimensions right-aligned in front of their matrix; vectors have one dimension less. */
static void x_view(maker *m, const node *n, int row, int column)
{
    const shape *x = cvyi_shape_of(m->g, n->arg[0]);
    step_view *v = &m->views[cvyi_make_raw_view(m, n->arg[0])];

    v->dim[column] = x->rank - 1;
    for (int d = 0; d < x->rank - 1; d++) /* dimension d of x stands x->rank - 2 - d in front of the row */
        if (x->dim[d] != 1) v->dim[row - (x->rank - 2 - d)] = d;
}

static void other_view(maker *m, const node *n, int row, int column)
{
    const shape *w = cvyi_shape_of(m->g, n->arg[1]);
    const bool linear = cvyi_info(n)->kind == KIND_LINEAR;
    step_view *v = &m->views[cvyi_make_raw_view(m, n->arg[1])];

    v->dim[row] = linear ? 1 : w->rank > 1 ? w->rank - 2 : 0;
    if (w->rank > 1) v->dim[column] = linear ? 0 : w->rank - 1;
    for (int d = 0; d < w->rank - 2; d++)
        if (w->dim[d] != 1) v->dim[row - (w->rank - 2 - d)] = d;
}

/* The tile of a product, rows x columns, and the threads of a block. */
typedef struct product_tile {
    int64_t rows, columns;
    unsigned threads;
} product_tile;

static product_tile define_product_tile(maker *m, const matmul_geom *e, const mma_tile *mma)
{
    const bool large = cvyi_large_product(e, m->state->device->sms);
    const product_tile t = mma ? (product_tile){mma->m, mma->n, (unsigned)mma->threads}
                               : (product_tile){64, large ? 128 : 64, large ? 128 : 256};

    cvyi_make_define(m, "BM", t.rows);
    cvyi_make_define(m, "BN", t.columns);
    if (mma) {
        cvyi_make_define(m, "WM", mma->warp_m);
        cvyi_make_define(m, "WN", mma->warp_n);
        define_mma(m, mma);
        return t;
    }
    cvyi_make_define(m, "TM", large ? 8 : 4);
    cvyi_make_define(m, "TN", large ? 8 : 4);
    cvyi_make_define(m, "DEPTH", large ? 8 : 16);
    m->step.launch.dynamic_shared = (unsigned)(4 * t.rows * t.columns);
    return t;
}

static void define_product(maker *m, const matmul_geom *e, int row, int column)
{
    cvyi_make_define(m, "COLS", e->N);
    cvyi_make_define(m, "TERMS", e->K);
    cvyi_make_define(m, "ROW", row);
    cvyi_make_define(m, "COLUMN", column);
}

/* Weights for wgmma, at byte `at`. */
static cvy_status make_product_pack(maker *m, const node *n, const matmul_geom *e, const wgmma_tile *t, int row,
                                    int column, int64_t at)
{
    const bool prepared = m->prepared;
    cvy_status st;

    m->prepared = true;
    cvyi_make_start(m, "matmul_tc_pack.cu");
    define_product(m, e, row, column);
    cvyi_product_define(m, t);
    cvyi_make_own_view(m, at, "packed weights");
    other_view(m, n, row, column);
    m->step.extent = t->column_tiles;
    set_grid(m, cvyi_ceil_div(t->column_tiles * t->steps * t->n * 8, 256), 1, 1, 256); /* four terms per thread */
    st = cvyi_make_end(m, "");
    m->prepared = prepared;
    return st;
}

/* On Hopper's tensor cores. */
static cvy_status make_wgmma(maker *m, int core, const matmul_geom *e, const wgmma_tile *t)
{
    const node *n = &m->g->nodes[core];
    int row, column;
    const space out = product_space(m->g, n, &row, &column);
    const int64_t packed = cvyi_make_memory(m, t->packed_bytes);
    const int64_t y_tiles = cvyi_min64(t->row_tiles, 65535 / t->cluster_m * t->cluster_m);
    char form[24];
    cvy_status st;

    TRY(make_product_pack(m, n, e, t, row, column, packed));
    cvyi_make_start(m, "matmul_tc.cu");
    m->many = true;
    define_product(m, e, row, column);
    cvyi_product_define(m, t);
    cvyi_make_define_extents(m, 'Y', &out);
    make_first_view(m, core, &out);
    x_view(m, n, row, column);
    other_view(m, n, row, column);
    cvyi_make_define(m, "PACKED", cvyi_make_own_view(m, packed, "packed weights"));
    TRY(cvyi_product_step(m, t, e, 1));
    if (e->bias) add_bias(m, core, &out, n->arg[2], column);
    TRY(add_epilogue(m, core, &out));
    m->step.extent = out.extent[0];
    set_grid(m, t->column_tiles, y_tiles, cvyi_ceil_div(t->row_tiles, y_tiles), (unsigned)t->threads);
    snprintf(form, sizeof form, "%dx%d", t->m, t->n);
    TRY(cvyi_make_end(m, form));
fail:
    return st;
}

cvy_status cvyi_make_matmul(maker *m, int core)
{
    const node *n = &m->g->nodes[core];
    const mma_form f = cvyi_mma_form(m->plan, core);
    const product_form w = cvyi_product_form(m->plan, core);
    const bool mma = m->pass->variant == VARIANT_MMA;
    int row, column;
    const space out = product_space(m->g, n, &row, &column);
    matmul_geom e;
    product_tile t;
    int64_t row_tiles, y_tiles;
    char form[24];
    cvy_status st;

    cvyi_matmul_geom(m->g, n, &e);
    if (!cvyi_elements(cvyi_shape_of(m->g, n->out))) return CVY_OK;
    if (m->pass->variant == VARIANT_PRODUCT) return make_wgmma(m, core, &e, &w.tile);
    cvyi_make_start(m, mma ? "matmul_mma.cu" : "matmul.cu");
    define_product(m, &e, row, column);
    cvyi_make_define(m, "ROWS_OF_BATCH", e.batch > 1 ? e.M : 0);
    cvyi_make_define(m, "OTHER_NK", e.other_is_nk);
    t = define_product_tile(m, &e, mma ? &f.tile : NULL);
    cvyi_make_define_extents(m, 'Y', &out);
    make_first_view(m, core, &out);
    x_view(m, n, row, column);
    other_view(m, n, row, column);
    if (e.bias) add_bias(m, core, &out, n->arg[2], column);
    TRY(add_epilogue(m, core, &out));
    m->step.extent = out.extent[0];
    row_tiles = cvyi_ceil_div(e.M, t.rows);
    y_tiles = cvyi_min64(row_tiles, 65535);
    set_grid(m, cvyi_ceil_div(e.N, t.columns), y_tiles, e.batch > 1 ? e.batch : cvyi_ceil_div(row_tiles, y_tiles),
             t.threads);
    snprintf(form, sizeof form, "%dx%d", (int)t.rows, (int)t.columns);
    TRY(cvyi_make_end(m, form));
fail:
    return st;
}

/* ---- statistics ---- */

static void define_norm(maker *m, const norm_geom *e)
{
    cvyi_make_define(m, "CENTRED", e->centred);
    if (isfinite(e->eps))
        snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-DEPS=%.17g", e->eps);
    else
        cvyi_make_define_text(m, isnan(e->eps) ? "-DEPS=CVY_NAN" : e->eps > 0 ? "-DEPS=CVY_INF" : "-DEPS=-CVY_INF");
}

static const char *define_stats(maker *m, const norm_geom *e, int form, int64_t parts, int64_t samples)
{
    static const char *const forms[] = {"whole", "partial", "merge"};
    cvyi_make_define(m, "FORM", form);
    cvyi_make_define(m, "GROUPS", e->groups);
    cvyi_make_define(m, "PER_GROUP", e->chan * e->inner);
    cvyi_make_define(m, "OUTER_PER_SAMPLE", e->outer / samples);
    cvyi_make_define(m, "OVER_OUTER", e->over_outer);
    cvyi_make_define(m, "PARTS", parts);
    define_norm(m, e);
    return forms[form];
}

/* value * sign[channel], in front of the statistics. */
static void add_sign(maker *m, const space *over, int sign)
{
    emit_line load = {.kind = EMIT_LOAD, .note = cvyi_make_label(m, sign)};
    emit_line mul = {.kind = EMIT_OP, .op = OP_mul, .a = m->pre.n - 1, .p = {0, 1}, .note = "sign"};

    load.view = cvyi_make_channel_view(m, sign, over->place[over->logical.rank > 1]);
    mul.b = cvyi_make_line(m, &m->pre, &load);
    cvyi_make_line(m, &m->pre, &mul);
}

cvy_status cvyi_make_stats(maker *m, int core, const norm_geom *e, int sign, int stats_value, int64_t stats_at)
{
    const node *n = &m->g->nodes[core];
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, n->arg[0]));
    const int64_t samples = cvyi_max64(in.extent[0], 1), slices = (e->over_outer ? 1 : e->outer) * e->groups;
    const int64_t size = e->chan * e->inner * (e->over_outer ? e->outer : 1);
    /* By the size of a slice alone, so that no other sample changes a sample's bits. */
    const int64_t parts = cvyi_min64(cvyi_max64(size / 65536, 1), 256);
    int64_t partials = 0;
    cvy_status st;

    if (!slices) return CVY_OK;
    if (parts > 1) partials = cvyi_make_memory(m, slices * parts * 24);
    cvyi_make_start(m, "norm_stats.cu");
    if (parts > 1)
        cvyi_make_own_view(m, partials, "partials");
    else if (stats_value != CVY_NONE)
        cvyi_make_raw_view(m, stats_value);
    else
        cvyi_make_own_view(m, stats_at, "statistics");
    TRY(add_prologue(m, core, &in));
    if (sign != CVY_NONE) add_sign(m, &in, sign);
    cvyi_make_define_extents(m, 'X', &in);
    m->step.extent = in.extent[0];
    set_grid(m, slices, parts, 1, 256);
    TRY(cvyi_make_end(m, define_stats(m, e, parts > 1, parts, samples)));
    if (parts == 1) return CVY_OK;
    cvyi_make_start(m, "norm_stats.cu");
    if (stats_value != CVY_NONE)
        cvyi_make_raw_view(m, stats_value);
    else
        cvyi_make_own_view(m, stats_at, "statistics");
    cvyi_make_own_view(m, partials, "partials");
    m->step.extent = in.extent[0];
    set_grid(m, cvyi_ceil_div(slices, 8), 1, 1, 256);
    TRY(cvyi_make_end(m, define_stats(m, e, 2, parts, samples)));
fail:
    return st;
}

/* ---- rows that stay on chip ---- */

/* What held.cuh asks for; the rows of the space `in`. */
static void define_held(maker *m, const held_form *f, const space *in)
{
    const int64_t rows = cvyi_elements(&in->logical) / f->row;

    cvyi_make_define_extents(m, 'X', in);
    cvyi_make_define(m, "ROW", f->row);
    cvyi_make_define(m, "LANES", f->lanes);
    cvyi_make_define(m, "THREADS", f->threads);
    cvyi_make_define(m, "HELD", f->held);
    cvyi_make_define(m, "PARKED", f->parked);
    m->many = true;
    m->step.extent = in->extent[0];
    m->step.launch.dynamic_shared = f->shared_bytes;
    set_grid(m, cvyi_ceil_div(rows, f->threads / f->lanes), 1, 1, (unsigned)f->threads);
}

/* Statistics `core` and the norm behind them: the kernel leaves the affine to the epilogue. */
cvy_status cvyi_make_norm(maker *m, int core)
{
    const node *stats = &m->g->nodes[core], *n = stats + 1;
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, n->arg[0]));
    emit_line l = {.kind = EMIT_SCALE, .op = n->op, .a = EMIT_ARGUMENT, .note = cvyi_info(n)->name};
    norm_geom e;
    held_form f;
    cvy_status st;

    if (!cvyi_elements(&in.logical)) return CVY_OK;
    cvyi_norm_geom(m->g, stats, &e);
    f = cvyi_held_form(m->state->device, e.chan * e.inner);
    cvyi_make_start(m, "norm.cu");
    define_norm(m, &e);
    define_held(m, &f, &in);
    make_first_view(m, core + 1, &in);
    TRY(add_prologue(m, core, &in));
    m->post.over = in;
    l.weight = cvyi_make_affine_view(m, &m->post, &e, n->n_args > 2 ? n->arg[2] : CVY_NONE);
    l.bias = cvyi_make_affine_view(m, &m->post, &e, n->n_args > 3 ? n->arg[3] : CVY_NONE);
    m->post.line_of[n->out] =
        l.weight == CVY_NONE && l.bias == CVY_NONE ? EMIT_ARGUMENT : cvyi_make_line(m, &m->post, &l);
    TRY(add_epilogue(m, core + 1, &in));
    TRY(cvyi_make_end(m, cvyi_info(n)->name));
fail:
    return st;
}

cvy_status cvyi_make_softmax_row(maker *m, int core)
{
    const node *n = &m->g->nodes[core];
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, n->arg[0]));
    const held_form f = cvyi_held_softmax(m->state->device, m->g, n);
    cvy_status st;

    if (!cvyi_elements(&in.logical)) return CVY_OK;
    cvyi_make_start(m, "softmax_row.cu");
    cvyi_make_define(m, "LOGARITHM", n->op == OP_log_softmax);
    define_held(m, &f, &in);
    make_first_view(m, core, &in);
    TRY(add_prologue(m, core, &in));
    TRY(add_epilogue(m, core, &in));
    TRY(cvyi_make_end(m, cvyi_info(n)->name));
fail:
    return st;
}

/* ---- pooling, reductions, softmax ---- */

static int64_t lower_power_of_two(int64_t n, int64_t most)
{
    int64_t p = 1;
    while (2 * p <= n && 2 * p <= most) p *= 2;
    return p;
}

/* How many threads share one result where they read neighbouring elements. */
static int64_t choose_lanes(int64_t inside)
{
    return inside >= 1024 ? 256 : lower_power_of_two(inside, 32);
}

/* Is the innermost dimension that has any extent among the reduced ones? */
static bool innermost_reduced(const space *s, unsigned reduced)
{
    int d = EMIT_DIMS - 1;
    while (d > 0 && s->extent[d] == 1) d--;
    return reduced >> d & 1;
}

static cvy_status make_reduction(maker *m, int core, const char *gather, const space *in, const space *out,
                                 unsigned reduced)
{
    int64_t inside = 1, kept = 1;
    cvy_status st;

    for (int d = 0; d < EMIT_DIMS; d++) *(reduced >> d & 1 ? &inside : &kept) *= in->extent[d];
    const bool inner = innermost_reduced(in, reduced);
    const int64_t lanes = inner ? choose_lanes(inside) : 1;
    const int64_t splits = !inner && inside >= 32 && kept < 65536 ? 8 : 1;
    cvyi_make_start(m, "reduce.cu");
    snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-DGATHER=%s", gather);
    cvyi_make_define_extents(m, 'X', in);
    cvyi_make_define(m, "REDUCED", reduced);
    cvyi_make_define(m, "LANES", lanes);
    cvyi_make_define(m, "SPLITS", splits);
    if (!inside) cvyi_make_define(m, "NOTHING_INSIDE", 1);
    make_first_view(m, core, out);
    TRY(add_prologue(m, core, in));
    TRY(add_epilogue(m, core, out));
    m->step.extent = in->extent[0];
    set_grid(m, cvyi_ceil_div(kept, 256 / lanes / splits), 1, 1, 256);
    TRY(cvyi_make_end(m, gather));
fail:
    return st;
}

cvy_status cvyi_make_reduce(maker *m, int core)
{
    const node *n = &m->g->nodes[core];
    const shape *x = cvyi_shape_of(m->g, n->arg[0]), *y = cvyi_shape_of(m->g, n->out);
    const space in = cvyi_space_plain(x);
    const unsigned reduced = x->rank ? cvyi_reduced_dims(m->g, n) : 1;
    space out = {.extent = {1, 1, 1, 1, 1, 1}, .logical = *y};

    for (int d = 0, k = 0; d < x->rank; d++) {
        const bool gone = reduced >> d & 1;
        if (!gone) out.extent[d] = x->dim[d];
        if (!gone || y->rank == x->rank) out.place[k++] = d;
    }
    return make_reduction(m, core, cvyi_info(n)->name, &in, &out, reduced);
}

cvy_status cvyi_make_softmax(maker *m, int core)
{
    const node *n = &m->g->nodes[core];
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, n->arg[0]));
    const int dim = cvyi_softmax_dim(m->g, n);
    const int64_t inside = in.extent[dim], total = cvyi_elements(&in.logical);
    const int64_t lanes = innermost_reduced(&in, 1u << dim) ? choose_lanes(inside) : 1;
    cvy_status st;

    if (!total) return CVY_OK;
    cvyi_make_start(m, "softmax.cu");
    cvyi_make_define(m, "LOGARITHM", n->op == OP_log_softmax);
    cvyi_make_define_extents(m, 'X', &in);
    cvyi_make_define(m, "REDUCED", (int64_t)1 << dim);
    cvyi_make_define(m, "LANES", lanes);
    make_first_view(m, core, &in);
    TRY(add_prologue(m, core, &in));
    TRY(add_epilogue(m, core, &in));
    m->step.extent = in.extent[0];
    set_grid(m, cvyi_ceil_div(total / inside, 256 / lanes), 1, 1, 256);
    TRY(cvyi_make_end(m, cvyi_info(n)->name));
fail:
    return st;
}

cvy_status cvyi_make_pool(maker *m, int core)
{
    const node *n = &m->g->nodes[core];
    const op_kind kind = cvyi_info(n)->kind;
    pool_geom e;
    cvy_status st;

    cvyi_pool_geom(m->g, n, &e);
    const space in = cvyi_space_planes(cvyi_shape_of(m->g, n->arg[0]), e.spatial);
    const space out = cvyi_space_planes(cvyi_shape_of(m->g, n->out), e.spatial);
    const int64_t total = cvyi_elements(&out.logical);
    if (!total) return CVY_OK;
    if (kind == KIND_ADAPTIVE && product(e.out) == 1) /* one window, the whole: a mean over space */
        return make_reduction(m, core, "mean", &in, &out, 4 | 8 | 16);
    cvyi_make_start(m, "pool.cu");
    cvyi_make_define(m, "MODE", kind == KIND_MAXPOOL ? 0 : kind == KIND_AVGPOOL ? 1 : 2);
    cvyi_make_define(m, "CHANNELS", out.extent[1]);
    cvyi_make_define3(m, in_names, e.in);
    cvyi_make_define3(m, out_names, e.out);
    cvyi_make_define3(m, tap_names, e.kernel);
    cvyi_make_define3(m, stride_names, e.stride);
    cvyi_make_define3(m, pad_names, e.pad);
    cvyi_make_define3(m, dil_names, e.dil);
    cvyi_make_define(m, "COUNT_PAD", e.count_include_pad);
    cvyi_make_define(m, "DIVISOR", e.divisor);
    make_first_view(m, core, &out);
    TRY(add_prologue(m, core, &in));
    TRY(add_epilogue(m, core, &out));
    m->step.extent = out.extent[0];
    set_grid(m, cvyi_ceil_div(total, 256), 1, 1, 256);
    TRY(cvyi_make_end(m, cvyi_info(n)->name));
fail:
    return st;
}
