/* matmul_thin.c - matrix products with at most 8 columns, or rows, by multiply-adds: kernels/matmul_thin.cu. They
 * are bound by the long operand, which is read once; if it has few lines, blocks share the terms. */
#include <math.h>
#include <stdio.h>
#include "choice.h"
#include "cores.h"
#include "kernels/host_device.cuh"

enum { MOST = 8, SHORTEST = 128, SHARE = 512, FEW_PARTS = 8, BLOCK_TERMS = 4096 };

/* ---- form ---- */

/* Adjacent lines are taken four at a time. Of lines with adjacent terms, as few as give every multiprocessor three
 * blocks: but every block reads the thin operand, which should be a quarter of its lines at most, and its warps
 * share their terms, at least 512 each. */
static int find_lines(const cuda_device *d, const thin_choice *f)
{
    const int64_t lines = f->lines, batch = f->geom.batch;
    int n = 32;

    if (f->across && !f->geom.other_is_nk) return 128;
    if (lines == 1) return 1;
    while (n >= 8 * f->thin && 64 * SHARE / n <= f->geom.K && cvyi_ceil_div(lines, n) * batch < 3 * (int64_t)d->sms)
        n /= 2;
    return n;
}

/* Blocks that share a sum, if fewer than three for every two multiprocessors had one. Of one line a block has
 * 4,096 terms at least; shares are whole spans of a warp, and none is empty. */
static int find_split(const cuda_device *d, const thin_choice *f)
{
    const matmul_geom *e = &f->geom;
    const int64_t tiles = cvyi_max64(f->tiles * e->batch, 1);
    const int64_t shortest = f->block_lines == 1 ? BLOCK_TERMS : SHARE, span = 512 / f->long_bytes;
    const int64_t wanted = cvyi_min64(cvyi_ceil_div(4 * (int64_t)d->sms, tiles), cvyi_ceil_div(e->K, shortest));
    const int64_t share = cvyi_round_up(cvyi_ceil_div(e->K, cvyi_max64(wanted, 1)), span);

    return 2 * tiles >= 3 * d->sms ? 1 : (int)cvyi_ceil_div(e->K, share);
}

static thin_choice find_choice(const cvy_plan *p, int core)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    const node *n = &p->graph->nodes[core];
    thin_choice f = {.why = NULL};

    cvyi_matmul_geom(p->graph, n, &f.geom);
    f.across = f.geom.N > MOST;
    f.thin = (int)cvyi_min64(f.across ? f.geom.M : f.geom.N, MOST + 1);
    f.lines = f.across ? f.geom.N : f.geom.M;
    if (f.thin > MOST) f.why = "thin: more than 8 rows and columns";
    if (!f.why && f.geom.K < SHORTEST) f.why = "thin: fewer than 128 terms in a sum";
    if (!f.why && f.geom.K > INT32_MAX / 2) f.why = "thin: more than 2^30 terms in a sum";
    if (!f.why && f.geom.batch > GRID_YZ_MOST) f.why = "thin: more batches than a grid has blocks in z";
    f.long_bytes = (int)cvyi_dtype_bytes(p->graph->values[n->arg[f.across]].dtype);
    f.block_lines = find_lines(d, &f);
    f.tiles = cvyi_ceil_div(f.lines, f.block_lines);
    if (!f.why) f.split = find_split(d, &f);
    return f;
}

/* ---- steps ---- */

static bool has_many_parts(const thin_choice *f)
{
    return f->split > FEW_PARTS;
}

static int64_t parts_bytes(const thin_choice *f)
{
    const int64_t results = f->geom.M * f->geom.batch * f->geom.N;
    return f->split > 1 ? (has_many_parts(f) ? DOUBLE_BYTES : FLOAT_BYTES) * f->split * results : 0;
}

static cvy_status make_sums(maker *m, const thin_choice *f, const space *out, int row, int column)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];
    cvy_status st;

    cvyi_make_start(m, "matmul_thin.cu");
    cvyi_product_sizes(m, &f->geom, row, column);
    cvyi_make_define(m, "ROWS_OF_BATCH", f->geom.batch > 1 ? f->geom.M : 0);
    cvyi_make_define(m, "THIN", f->thin);
    cvyi_make_define(m, "ACROSS", f->across);
    cvyi_make_define(m, "OTHER_NK", f->geom.other_is_nk);
    cvyi_make_define(m, "SPLIT", f->split);
    cvyi_make_define(m, "MANY_PARTS", has_many_parts(f));
    cvyi_make_define(m, "LINES", f->block_lines);
    cvyi_make_define(m, "EACH", f->block_lines == 1 ? 1 : 4);
    cvyi_make_define_types(m, n->arg[0], n->arg[1]);
    cvyi_make_define_extents(m, 'Y', out);
    if (f->split > 1)
        cvyi_core_parts_view(m, out, m->state->scratch);
    else
        cvyi_core_first_view(m, core, out);
    cvyi_product_x(m, n, row, column);
    cvyi_product_other(m, n, row, column);
    if (f->split == 1) {
        if (f->geom.bias) cvyi_core_bias(m, core, out, n->arg[2], column);
        TRY(cvyi_core_epilogue(m, core, out));
    }
    m->step.extent = out->extent[0];
    cvyi_core_grid(m, f->tiles, f->split, f->geom.batch, BLOCK_THREADS);
    TRY(cvyi_make_end(m, ""));
fail:
    return st;
}

static cvy_status make_matmul_thin(maker *m)
{
    const thin_choice *f = &m->choice->thin;
    const node *n = &m->g->nodes[m->choice->form.core];
    int row, column;
    const space out = cvyi_product_space(m->g, n, &row, &column);
    const core_parts parts = {m->state->scratch, f->split, f->geom.bias ? n->arg[2] : CVY_NONE, column};
    cvy_status st = CVY_OK;

    if (!cvyi_elements(&out.logical)) return CVY_OK;
    TRY(make_sums(m, f, &out, row, column));
    if (f->split > 1) TRY((has_many_parts(f) ? cvyi_core_add_many : cvyi_core_add)(m, &out, &parts));
fail:
    return st;
}

/* ---- its row of the table ---- */

static const char *refuse_matmul_thin(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = cvyi_core_refusal(p, c, 1u << KIND_LINEAR | 1u << KIND_MATMUL, "not a matrix product");

    (void)s;
    if (why) return why;
    c->thin = find_choice(p, c->form.core);
    return c->thin.why;
}

/* Memory at nine tenths of its bandwidth, less if blocks do not fill the device, or multiply-adds; parts of sums
 * are added. x[7,8192], y[8192,8192] of bf16: 134 MB, 35 us, against 0.94 GFLOP, 28 us. */
static void tune_matmul_thin(const cvy_plan *p, pass *s, const cuda_choice *c)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    const thin_choice *f = &c->thin;
    const double blocks = (double)(f->tiles * f->geom.batch) * f->split;
    const double full = fmin(1, fmax(blocks, 1) / d->sms);
    const double memory = s->bytes / (0.9 * full * p->machine.bandwidth), multiply = s->flops / p->machine.flops;

    s->way = WAY_STREAM;
    s->seconds = cvyi_pass_seconds(p, s, f->split > 1 ? 1.25 : 1, fmax(memory, multiply));
    snprintf(s->note, sizeof s->note, "%s, %d %s%s by multiply-adds, sums in %d part%s",
             cvyi_info(&p->graph->nodes[c->form.core])->name, f->thin, f->across ? "row" : "column",
             f->thin == 1 ? "" : "s", f->split, f->split == 1 ? "" : "s");
}

static bool same_matmul_thin(const cuda_choice *a, const cuda_choice *b)
{
    return a->thin.across == b->thin.across && a->thin.thin == b->thin.thin &&
           a->thin.block_lines == b->thin.block_lines && a->thin.split == b->thin.split;
}

static int64_t scratch_of_matmul_thin(const cuda_choice *c)
{
    return parts_bytes(&c->thin);
}

const kernel_row cvyi_kernel_matmul_thin = {.name = "matmul_thin",
                                            .refuse = refuse_matmul_thin,
                                            .tune = tune_matmul_thin,
                                            .make = make_matmul_thin,
                                            .instead = "the other kernels multiply whole tiles",
                                            .same = same_matmul_thin,
                                            .scratch = scratch_of_matmul_thin,
                                            .dice = 2};
