/* tc_product.c - which matrix products run on Hopper's tensor cores through wgmma, with which tile and in which
 * clusters, and how fast that may be. */
#include <math.h>
#include <stdio.h>
#include "choice.h"
#include "kernels/product_layout.cuh"

enum { DEPTH = WGMMA_DEPTH };

/* ---- conditions ---- */

/* Terms of a step: 128 bytes of them. */
static int depth_of(cvy_dtype dtype)
{
    return (int)(cvyi_floats(WGMMA_DEPTH) / cvyi_dtype_bytes(dtype));
}

static const char *refusal(const cvy_plan *p, const cuda_device *d, const node *n, const matmul_geom *e)
{
    const int depth = depth_of(p->graph->values[n->arg[0]].dtype);

    if (d->major != 9) return "wgmma: needs compute capability 9.x";
    if (p->tuning >= TUNE_GENERIC) return "wgmma: this tuning does not use tensor cores";
    if (!p->prepared[n->arg[1]]) return "wgmma: neither operand is a parameter";
    if (e->batch > 1) return "wgmma: a matrix of weights for each sample";
    if (p->graph->values[n->arg[0]].dtype != p->graph->values[n->arg[1]].dtype)
        return "wgmma: weights of another dtype than the data";
    if (cvyi_shape_of(p->graph, n->arg[0])->rank < 2) return "wgmma: a vector of one row";
    if (e->K % (depth / 8)) return "wgmma: rows are not a multiple of 16 bytes";
    if (e->K < depth)
        return depth == 32 ? "wgmma: fewer than 32 terms in a sum" : "wgmma: fewer than 64 terms in a sum";
    if (e->N < 8) return "wgmma: fewer than 8 columns";
    if (e->M <= 8 && e->K >= 128) return "wgmma: few rows, which matmul_thin.cu takes";
    return e->M > INT32_MAX ? "wgmma: more rows than tensor copies can address" : NULL;
}

/* ---- tiles ---- */

/* Rows, columns, cluster, the most products: three of 256 columns want more registers than there are. Large tiles
 * fetch less; small ones fill the device. Clusters of two are for effort "measure" to try; of four they were slower
 * than blocks by themselves (doc/LAB.md). */
typedef struct tile_row {
    int m, n, cluster_m, cluster_n, products;
} tile_row;

static const tile_row rows[] = {
    {128, 256, 1, 1, 1}, {128, 128, 1, 1, 3}, {128, 128, 2, 1, 3}, {128, 128, 1, 2, 3}, {128, 64, 1, 1, 3},
    {64, 128, 1, 1, 3},  {64, 64, 1, 1, 3},   {64, 64, 1, 2, 3},   {64, 32, 1, 1, 3},   {64, 32, 1, 2, 3},
};

static wgmma_tile make_tile(const matmul_geom *e, const tile_row *row, int products, int depth)
{
    const wgmma_layout l = wgmma_find_layout(row->m, row->n, products);
    wgmma_tile t = {.m = row->m,
                    .n = row->n,
                    .cluster_m = row->cluster_m,
                    .cluster_n = row->cluster_n,
                    .products = products,
                    .threads = l.threads,
                    .shared_bytes = l.shared_bytes,
                    .resident = l.resident,
                    .row_tiles = cvyi_round_up(cvyi_ceil_div(e->M, row->m), row->cluster_m),
                    .column_tiles = cvyi_round_up(cvyi_ceil_div(e->N, row->n), row->cluster_n),
                    .steps = cvyi_ceil_div(e->K, depth)};

    t.packed_bytes = cvyi_floats(t.column_tiles * t.steps * l.w_stage);
    return t;
}

/* ---- how fast ---- */

/* Cycles of a multiprocessor for a step of a block: the longest of three, and an eighth of the others. A step of
 * 16-bit numbers has twice the terms in as many bytes, at twice the rate.
 *   tensor cores, 1024 multiply-adds of tf32 per cycle
 *   shared memory, 128 bytes per cycle: x once, weights once for each product and 64 rows, and what is filled in
 *   L2, 40 bytes per cycle: 32 to 40 were seen on an H200; what a cluster shares was not seen to be faster
 * 128 x 128 on an H200, one product: 512, 640 and 819; three: 1536, 1280 and 1229. */
static double step_cycles(const wgmma_tile *t)
{
    const int parts = t->products == 3 ? 2 : 1;
    const double row = FLOAT_BYTES * DEPTH; /* bytes */
    const double all[] = {
        t->products * (double)t->m * t->n * DEPTH / 1024,
        row * (t->m + t->n * t->products * (t->m / 64) + t->m + parts * t->n) / 128,
        row * (t->m + parts * (double)t->n) / 40,
    };
    double most = 0, sum = 0;

    for (int i = 0; i < COUNT_OF(all); i++) {
        most = fmax(most, all[i]);
        sum += all[i];
    }
    return most + (sum - most) / 8;
}

/* The multiprocessor with the most blocks takes longest; blocks of a cluster wait for each other. A block alone
 * waits: about 4,000 cycles until the first copy has come and the last result is stored, and in each step for its
 * fragments and for the tensor cores, which answer after 60 cycles or more per product of 8 terms. */
static double believed_seconds(const wgmma_tile *t, const cuda_device *d)
{
    const double together = t->cluster_m * t->cluster_n > 1 ? 1.05 : 1;
    const int64_t blocks = t->row_tiles * t->column_tiles, each = cvyi_ceil_div(blocks, d->sms);
    const int64_t rounds = cvyi_ceil_div(each, t->resident);
    const double wait = (double)t->steps * (100 + 150 * t->products);
    const double work = together * (double)t->steps * step_cycles(t);

    return fmax((double)each * work, (double)rounds * wait) / d->clock + (double)rounds * 4000 / d->clock;
}

/* ---- forms ---- */

/* Number `rank` of the tiles that fit, the fastest first; the last if there are fewer. */
static product_choice choose(const cuda_device *d, const matmul_geom *e, int products, int depth, int rank)
{
    product_choice best[COUNT_OF(rows)] = {{.why = "wgmma: its tiles do not fit into shared memory"}};
    int n = 0;

    for (int i = 0; i < COUNT_OF(rows); i++) {
        product_choice f = {.tile = make_tile(e, &rows[i], products, depth)};
        int at = n;
        if (products > rows[i].products || f.tile.shared_bytes > d->shared_block) continue;
        f.seconds = believed_seconds(&f.tile, d);
        for (; at > 0 && f.seconds < best[at - 1].seconds; at--) best[at] = best[at - 1];
        best[at] = f;
        n++;
    }
    return best[rank < n ? rank : n ? n - 1 : 0];
}

/* Of a pass whose core is node `core`; with the tile that the plan's tuning ranks. */
static product_choice find_choice(const cvy_plan *p, int core)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    const node *n = &p->graph->nodes[core];
    product_choice f = {.why = NULL};
    matmul_geom e;

    cvyi_matmul_geom(p->graph, n, &e);
    f.why = refusal(p, d, n, &e);
    return f.why ? f
                 : choose(d, &e, cvyi_cuda_products(p, n), depth_of(p->graph->values[n->arg[0]].dtype), p->tuning);
}

/* ---- its row of the table ---- */

const char *cvyi_product_refusal(const cvy_plan *p, int core, product_choice *f)
{
    *f = find_choice(p, core);
    return f->why;
}

void cvyi_product_tune(const cvy_plan *p, pass *s, const cuda_choice *c)
{
    const wgmma_tile *t = &c->product.tile;

    s->way = WAY_STREAM;
    s->seconds = cvyi_pass_seconds(p, s, 1, c->product.seconds);
    snprintf(s->note, sizeof s->note, "%s, wgmma, %d product%s, tile %d x %d, cluster %d x %d",
             cvyi_info(&p->graph->nodes[c->form.core])->name, t->products, t->products == 1 ? "" : "s", t->m, t->n,
             t->cluster_m, t->cluster_n);
}

bool cvyi_product_same(const cuda_choice *a, const cuda_choice *b)
{
    const wgmma_tile *t = &a->product.tile, *u = &b->product.tile;
    return t->m == u->m && t->n == u->n && t->cluster_m == u->cluster_m && t->cluster_n == u->cluster_n;
}

/* ---- steps ---- */

void cvyi_product_define(maker *m, const wgmma_tile *t)
{
#define DEFINE(NAME, field, meaning) cvyi_make_define(m, #NAME, t->field);
    MATMUL_TC_TILE(DEFINE)
#undef DEFINE
}

cvy_status cvyi_product_step(maker *m, const wgmma_tile *t, const matmul_geom *e, int x)
{
    tc_step *s = cvyi_tc_new_step(m);

    if (!s) return CVY_NO_MEMORY;
    m->step.launch.dynamic_shared = (unsigned)t->shared_bytes;
    s->product = s->tma = true;
    s->x = x;
    s->dtype = m->seen[x].dtype;
    s->dims[0] = (uint64_t)e->K;
    s->dims[1] = (uint64_t)e->M;
    s->strides[0] = (uint64_t)cvyi_dtype_bytes(s->dtype) * s->dims[0];
    s->box[0] = (unsigned)depth_of(s->dtype);
    s->box[1] = (unsigned)(t->m / t->cluster_n);
    return CVY_OK;
}

cvy_status cvyi_product_launch(const cuda_device *d, const cuda_step *s, int code, step_arguments *a, bool fresh,
                               CUstream stream)
{
    CUtensorMap map;
    void *list[] = {&map, a};
    cvy_status st;

    (void)fresh;
    TRY(cvyi_tc_map(d, s->tc, a->view[s->tc->x].p, &map));
    TRY(cvyi_cuda_launch(d, &s->kernel[code], &s->launch, stream, list));
fail:
    return st;
}
