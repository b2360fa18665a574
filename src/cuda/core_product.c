/* core_product.c - matrix products and linear layers: which kernel, with which tile, over which grid. */
#include <stdio.h>
#include "choice.h"
#include "cores.h"
#include "kernels/product_layout.cuh"

space cvyi_product_space(const cvy_graph *g, const node *n, int *row, int *column)
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

void cvyi_product_x(maker *m, const node *n, int row, int column)
{
    const shape *x = cvyi_shape_of(m->g, n->arg[0]);
    step_view *v = &m->views[cvyi_make_raw_view(m, n->arg[0])];

    v->dim[column] = x->rank - 1;
    for (int d = 0; d < x->rank - 1; d++) /* dimension d of x is x->rank - 2 - d before the row */
        if (x->dim[d] != 1) v->dim[row - (x->rank - 2 - d)] = d;
}

void cvyi_product_other(maker *m, const node *n, int row, int column)
{
    const shape *w = cvyi_shape_of(m->g, n->arg[1]);
    const bool linear = cvyi_info(n)->kind == KIND_LINEAR;
    step_view *v = &m->views[cvyi_make_raw_view(m, n->arg[1])];

    v->dim[row] = linear ? 1 : w->rank > 1 ? w->rank - 2 : 0;
    if (w->rank > 1) v->dim[column] = linear ? 0 : w->rank - 1;
    for (int d = 0; d < w->rank - 2; d++)
        if (w->dim[d] != 1) v->dim[row - (w->rank - 2 - d)] = d;
}

/* By multiply-adds: large where that still gives every multiprocessor something to do. */
static matmul_tile choose_tile(const matmul_geom *e, int sms)
{
    const bool large = e->N > 64 && e->M * e->N * e->batch >= (int64_t)64 * 128 * sms;

    return large ? (matmul_tile){64, 128, 8, 8} : (matmul_tile){64, 64, 4, 16};
}

static void define_tile(maker *m, const matmul_tile *t)
{
#define DEFINE(NAME, field, meaning) cvyi_make_define(m, #NAME, t->field);
    MATMUL_TILE(DEFINE)
#undef DEFINE
    m->step.launch.dynamic_shared = (unsigned)matmul_shared_bytes((int)t->rows, (int)t->columns, (int)t->depth);
}

static void define_mma(maker *m, const mma_tile *t)
{
#define DEFINE(NAME, field, meaning) cvyi_make_define(m, #NAME, t->field);
    MATMUL_MMA_TILE(DEFINE)
#undef DEFINE
    m->step.launch.dynamic_shared = (unsigned)t->shared_bytes;
}

void cvyi_product_sizes(maker *m, const matmul_geom *e, int row, int column)
{
    cvyi_make_define(m, "COLS", e->N);
    cvyi_make_define(m, "TERMS", e->K);
    cvyi_make_define(m, "ROW", row);
    cvyi_make_define(m, "COLUMN", column);
}

/* Weights for wgmma, at byte `at`. */
static cvy_status make_product_pack(maker *m, const matmul_geom *e, const wgmma_tile *t, int row, int column,
                                    int64_t at)
{
    const node *n = &m->g->nodes[m->choice->form.core];
    const bool prepared = m->prepared;
    cvy_status st;

    m->prepared = true;
    cvyi_make_start(m, "matmul_tc_pack.cu");
    cvyi_product_sizes(m, e, row, column);
    cvyi_product_define(m, t);
    cvyi_make_define_types(m, n->arg[1], n->arg[1]);
    cvyi_make_own_view(m, at, "packed weights");
    cvyi_product_other(m, n, row, column);
    m->step.extent = t->column_tiles;
    cvyi_core_grid(m, cvyi_ceil_div(t->column_tiles * t->steps * t->n * 8, BLOCK_THREADS), 1, 1,
                   BLOCK_THREADS); /* 16 bytes of terms per thread */
    st = cvyi_make_end(m, "");
    m->prepared = prepared;
    return st;
}

/* On Hopper's tensor cores. */
static cvy_status make_wgmma(maker *m, const matmul_geom *e, const wgmma_tile *t)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];
    int row, column;
    const space out = cvyi_product_space(m->g, n, &row, &column);
    const int64_t packed = cvyi_make_packed_memory(m, n->arg[1], t->packed_bytes);
    const int64_t y_tiles = cvyi_min64(t->row_tiles, GRID_YZ_MOST / t->cluster_m * t->cluster_m);
    char variant[24];
    cvy_status st;

    TRY(make_product_pack(m, e, t, row, column, packed));
    cvyi_make_start(m, "matmul_tc.cu");
    m->many = ACCESS_FLOATS;
    cvyi_product_sizes(m, e, row, column);
    cvyi_product_define(m, t);
    cvyi_make_define_types(m, n->arg[0], n->arg[1]);
    cvyi_make_define_extents(m, 'Y', &out);
    cvyi_core_first_view(m, core, &out);
    cvyi_product_x(m, n, row, column);
    cvyi_product_other(m, n, row, column);
    cvyi_make_define(m, "PACKED", cvyi_make_own_view(m, packed, "packed weights"));
    TRY(cvyi_product_step(m, t, e, 1));
    if (e->bias) cvyi_core_bias(m, core, &out, n->arg[2], column);
    TRY(cvyi_core_epilogue(m, core, &out));
    m->step.extent = out.extent[0];
    cvyi_core_grid(m, t->column_tiles, y_tiles, cvyi_ceil_div(t->row_tiles, y_tiles), (unsigned)t->threads);
    snprintf(variant, sizeof variant, "%dx%d", t->m, t->n);
    TRY(cvyi_make_end(m, variant));
fail:
    return st;
}

/* mma: on tensor cores; NULL: by multiply-adds. */
static cvy_status make_product(maker *m, const matmul_geom *e, const matmul_tile *t, const mma_tile *mma)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];
    int row, column;
    const space out = cvyi_product_space(m->g, n, &row, &column);
    const int64_t row_tiles = cvyi_ceil_div(e->M, t->rows) * e->batch;
    const int64_t y_tiles = cvyi_min64(row_tiles, GRID_YZ_MOST);
    const int threads =
        mma ? mma->threads : tile_threads((int)t->rows, (int)t->columns, (int)t->each, (int)t->each);
    char variant[24];
    cvy_status st;

    cvyi_make_start(m, mma ? "matmul_mma.cu" : "matmul.cu");
    cvyi_product_sizes(m, e, row, column);
    cvyi_make_define(m, "ROWS_OF_BATCH", e->batch > 1 ? e->M : 0);
    cvyi_make_define(m, "OTHER_NK", e->other_is_nk);
    cvyi_make_define_types(m, n->arg[0], n->arg[1]);
    if (mma)
        define_mma(m, mma);
    else
        define_tile(m, t);
    cvyi_make_define_extents(m, 'Y', &out);
    cvyi_core_first_view(m, core, &out);
    cvyi_product_x(m, n, row, column);
    cvyi_product_other(m, n, row, column);
    if (e->bias) cvyi_core_bias(m, core, &out, n->arg[2], column);
    TRY(cvyi_core_epilogue(m, core, &out));
    m->step.extent = out.extent[0];
    cvyi_core_grid(m, cvyi_ceil_div(e->N, t->columns), y_tiles, cvyi_ceil_div(row_tiles, y_tiles),
                   (unsigned)threads);
    snprintf(variant, sizeof variant, "%dx%d", (int)t->rows, (int)t->columns);
    TRY(cvyi_make_end(m, variant));
fail:
    return st;
}

/* ---- rows of the table ---- */

/* The product of a pass; false: it has no results. */
static bool find_product(const maker *m, matmul_geom *e)
{
    const node *n = &m->g->nodes[m->choice->form.core];

    cvyi_matmul_geom(m->g, n, e);
    return cvyi_elements(cvyi_shape_of(m->g, n->out)) > 0;
}

static cvy_status make_matmul(maker *m)
{
    matmul_geom e;
    return find_product(m, &e) ? make_product(m, &e, &m->choice->matmul, NULL) : CVY_OK;
}

static cvy_status make_matmul_mma(maker *m)
{
    const mma_tile *mma = &m->choice->mma.tile;
    const matmul_tile t = {.rows = mma->m, .columns = mma->n};
    matmul_geom e;
    return find_product(m, &e) ? make_product(m, &e, &t, mma) : CVY_OK;
}

static cvy_status make_matmul_tc(maker *m)
{
    matmul_geom e;
    return find_product(m, &e) ? make_wgmma(m, &e, &m->choice->product.tile) : CVY_OK;
}

static const char *refuse_others(const cvy_plan *p, const cuda_choice *c)
{
    return cvyi_core_refusal(p, c, 1u << KIND_LINEAR | 1u << KIND_MATMUL, "not a matrix product");
}

static const char *refuse_matmul(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = refuse_others(p, c);
    matmul_geom e;

    (void)s;
    if (why) return why;
    cvyi_matmul_geom(p->graph, &p->graph->nodes[c->form.core], &e);
    c->matmul = choose_tile(&e, ((const cuda_state *)p->state)->device->sms);
    return NULL;
}

static const char *refuse_matmul_mma(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = refuse_others(p, c);
    (void)s;
    return why ? why : cvyi_mma_refusal(p, c->form.core, &c->mma);
}

static const char *refuse_matmul_tc(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = refuse_others(p, c);
    (void)s;
    return why ? why : cvyi_product_refusal(p, c->form.core, &c->product);
}

const kernel_row cvyi_kernel_matmul = {.name = "matmul",
                                       .refuse = refuse_matmul,
                                       .tune = cvyi_core_tune,
                                       .make = make_matmul,
                                       .faster = &cvyi_kernel_matmul_mma};
const kernel_row cvyi_kernel_matmul_mma = {.name = "matmul_mma",
                                           .refuse = refuse_matmul_mma,
                                           .tune = cvyi_mma_tune,
                                           .make = make_matmul_mma,
                                           .instead = MMA_INSTEAD,
                                           .same = cvyi_mma_same,
                                           .dice = 2,
                                           .tensor_cores = true};
const kernel_row cvyi_kernel_matmul_tc = {.name = "matmul_tc",
                                          .refuse = refuse_matmul_tc,
                                          .tune = cvyi_product_tune,
                                          .make = make_matmul_tc,
                                          .launch = cvyi_product_launch,
                                          .ties = true,
                                          .same = cvyi_product_same,
                                          .dice = 1,
                                          .tensor_cores = true,
                                          .dense = true};
