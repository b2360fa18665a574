/* mma.c - which producers run on tensor cores through mma.sync, with which tile, and how fast that may be. */
#include <math.h>
#include <stdio.h>
#include "choice.h"
#include "kernels/product_layout.cuh"

enum { DEPTH = MMA_DEPTH, STAGES = MATMUL_MMA_STAGES };

/* From the data sheets, dense: A100 156 TFLOP/s against 19.5 by multiply-adds (64 per cycle), so 512. H100 and H200
 * 494 TFLOP/s, 1024 per cycle, are wgmma's; mma.sync is reported to reach six tenths of that. Of 10.x only
 * tcgen05's rate is published; mma.sync is taken to be as fast as on an A100. GeForce and workstation cards
 * of 8.6, 8.9 and 12.0 have the rate of their 128 multiply-adds: 35.6 (RTX 3090), 82.6 (RTX 4090), 104.8 TFLOP/s
 * (RTX 5090). */
static const struct {
    int major, minor, rate; /* minor -1: any */
} rates[] = {{8, 0, 512}, {9, -1, 614}, {10, -1, 512}, {-1, -1, 128}};

int cvyi_mma_rate(int major, int minor)
{
    int i = 0;

    while (rates[i].major >= 0 && (rates[i].major != major || (rates[i].minor >= 0 && rates[i].minor != minor)))
        i++;
    return rates[i].rate;
}

/* ---- conditions ---- */

static const char *device_refusal(const cvy_plan *p, const cuda_device *d)
{
    if (d->major < 8) return "mma.sync: tf32 needs compute capability 8.0";
    if (p->tuning >= TUNE_GENERIC) return "mma.sync: this tuning does not use tensor cores";
    return NULL;
}

/* A producer in numbers. */
typedef struct producer {
    bool is_conv, transposed;
    conv_geom conv;
    matmul_geom product;
    int64_t rows, columns, terms; /* of the matrix product: of a group; of a product; of a sum */
} producer;

static producer find_producer(const cvy_graph *g, const node *n)
{
    const op_kind kind = cvyi_info(n)->kind;
    producer w = {.is_conv = kind == KIND_CONV || kind == KIND_CONVT, .transposed = kind == KIND_CONVT};
    const conv_geom *e = &w.conv;

    if (!w.is_conv) {
        cvyi_matmul_geom(g, n, &w.product);
        w.rows = w.product.M;
        w.columns = w.product.N;
        w.terms = w.product.K;
        return w;
    }
    cvyi_conv_geom(g, n, &w.conv);
    w.rows = e->K / e->groups;
    w.terms = e->C / e->groups * e->kernel[0] * e->kernel[1] * e->kernel[2];
    return w;
}

static const char *size_refusal(const producer *w)
{
    if (w->is_conv && w->rows < 4) return "mma.sync: fewer than 4 output channels in a group";
    if (!w->is_conv && w->columns < 8) return "mma.sync: fewer than 8 columns";
    return w->terms < DEPTH ? "mma.sync: fewer than 16 terms in a sum" : NULL;
}

/* ---- tiles ---- */

/* Of a block, of a warp; of convolutions, how many blocks a multiprocessor has registers for; the most products:
 * three of a matrix product's 64 x 64 spill; convolutions: stages, for how many output channels. Small ones fill
 * the device if large ones would leave multiprocessors idle; they wait for memory more than they compute, so they
 * have a stage more. */
typedef struct tile_row {
    int m, n, warp_m, warp_n, resident, products, stages;
    int64_t least, most;
} tile_row;

static const tile_row conv_tiles[] = {
    {64, 128, 32, 64, 3, 3, 3, 33, INT64_MAX}, {128, 256, 64, 64, 1, 3, 3, 65, INT64_MAX},
    {32, 256, 32, 64, 3, 3, 3, 17, 32},        {16, 256, 16, 64, 3, 3, 3, 1, 16},
    {64, 64, 32, 32, 4, 3, 4, 33, INT64_MAX},  {32, 64, 16, 32, 6, 3, 4, 17, INT64_MAX},
    {32, 32, 16, 16, 8, 3, 4, 17, INT64_MAX},  {16, 64, 16, 16, 8, 3, 4, 1, 96},
};
static const tile_row product_tiles[] = {
    {64, 64, 32, 32, 0, 3, STAGES, 0, INT64_MAX},   {64, 128, 32, 32, 0, 3, STAGES, 0, INT64_MAX},
    {128, 128, 64, 32, 0, 3, STAGES, 0, INT64_MAX}, {128, 128, 32, 32, 0, 3, STAGES, 0, INT64_MAX},
    {128, 256, 64, 64, 0, 1, STAGES, 0, INT64_MAX},
};

static void fill_conv(const producer *w, mma_tile *t)
{
    const conv_geom *e = &w->conv;
    const conv_phases f = cvyi_conv_phases(e, w->transposed);

    t->blocks = f.count * cvyi_ceil_div(e->N * f.places, t->n) * cvyi_ceil_div(w->rows, t->m) * e->groups;
    t->steps = cvyi_ceil_div(e->C / e->groups * f.taps, DEPTH);
    t->copies = DEPTH * (t->n + t->m / 4);
    t->fetched = 0; /* most of what taps share is in the L1 */
    t->shared_bytes = mma_shared_bytes(conv_mma_stage(t->m, t->n), t->stages, t->m, t->n);
}

static void fill_product(const producer *w, mma_tile *t)
{
    const matmul_geom *e = &w->product;
    const bool fours = e->K % 4 == 0 && (e->other_is_nk || e->N % 4 == 0);

    t->blocks = e->batch * cvyi_ceil_div(e->M, t->m) * cvyi_ceil_div(e->N, t->n);
    t->steps = cvyi_ceil_div(e->K, DEPTH);
    t->copies = DEPTH * (t->m + t->n) / (fours ? 4 : 1);
    t->fetched = (int)cvyi_floats(DEPTH * (t->m + t->n));
    t->shared_bytes = mma_shared_bytes(matmul_mma_stage(t->m, t->n, e->other_is_nk), t->stages, t->m, t->n);
}

/* 10.x is believed to be like 8.0, in this as in its rate. */
static mma_tile make_tile(const producer *w, const cuda_device *d, const tile_row *row, int products)
{
    const int m = row->m, n = row->n;
    mma_tile t = {.m = m,
                  .n = n,
                  .warp_m = row->warp_m,
                  .warp_n = row->warp_n,
                  .products = products,
                  .stages = row->stages,
                  .resident = w->is_conv ? row->resident : matmul_mma_blocks(m, n, products, 8),
                  .bound = w->is_conv ? row->resident : matmul_mma_blocks(m, n, products, d->major),
                  .threads = mma_threads(m, n, row->warp_m, row->warp_n)};

    (w->is_conv ? fill_conv : fill_product)(w, &t);
    return t;
}

/* ---- how fast ---- */

/* The share of what instructions, tensor cores and memory allow; conv_direct.cu reaches 55 % of that. */
static const double share = 0.7;
/* For a warp's copy if many blocks gather: 13 on an H200, times share. */
static const double gather_cycles = 9;

/* Cycles of a quarter of a multiprocessor for DEPTH terms of a warp's results: the longest of four, and of the
 * others what does not overlap, a quarter; half if no second block works while the first one waits at a barrier.
 *   tensor core
 *   instructions: fragments are loaded and rounded, of three products also split, and every sum of three
 *     products is added once more; a copy takes about three
 *   shared memory, 128 bytes per cycle and multiprocessor: fragments, and stages being filled
 *   L2, about 28 (6 TB/s on an H200)
 * A product's 64 x 128 in three products on an H200, a warp 32 x 32: 320, 217, 176 and 219, together 473. */
static double step_cycles(const mma_tile *t, int rate)
{
    const double all = t->warp_m * t->warp_n * (double)DEPTH, mma = t->products * all / (16 * 8 * 8);
    const double fragments = (t->warp_m + t->warp_n) * DEPTH / 32.0, warps = t->threads / 128.0; /* of a quarter */
    const double parts[] = {
        t->products * all / (rate / 4.0),
        mma + 3.0 * t->copies / t->threads +
            (t->products == 1 ? 2 * fragments : 4 * fragments + t->warp_m * t->warp_n / 32.0),
        FLOAT_BYTES * (32 * fragments + DEPTH * (t->m + t->n) / (4 * warps)) / 32,
        t->fetched / (28 * warps),
    };
    double most = 0, sum = 0;

    for (int i = 0; i < COUNT_OF(parts); i++) {
        most = parts[i] > most ? parts[i] : most;
        sum += parts[i];
    }
    return most + (sum - most) / (t->resident > 1 ? 4 : 2);
}

static double believed_flops(const mma_tile *t, const cuda_device *d)
{
    return share * 2 * t->warp_m * t->warp_n * DEPTH / step_cycles(t, cvyi_mma_rate(d->major, d->minor)) * 4 *
           d->sms * d->clock;
}

/* Instructions of a step of a warp, as the compiler makes them for sm_90: a copy takes three, a word of a fragment
 * four with its rounding, of three products nine; barrier and addresses 25. A convolution's 64 x 128 of one
 * product: 32 + 54 + 192 + 25, 32 x 32: 4 + 15 + 64 + 25. */
static double step_instructions(const mma_tile *t)
{
    const double mma = t->products * t->warp_m * t->warp_n * (double)DEPTH / (16 * 8 * 8);
    const double fragments = (t->warp_m + t->warp_n) * DEPTH / 32.0;
    const double sums = t->products == 1 ? 0 : t->warp_m * t->warp_n / 32.0;

    return mma + 3.0 * t->copies / t->threads + (t->products == 1 ? 4 : 9) * fragments + sums + 25;
}

/* The multiprocessor with the most blocks takes longest. 4096 x 4096 x 4096 in three products on an H200: 2048
 * blocks of 64 x 128, so 16 on each, of 256 steps; eight warps, two on each quarter, of 473 cycles: 2.8 ms at 1.98
 * GHz. Small tiles are bound by instructions instead.
 * Few blocks wait: 2,000 cycles until the first copy has come, then a warp alone issues every second cycle, and
 * waits at the barrier for 100, for as many rounds as there are blocks in turn; the work itself counts a quarter.
 * 10 steps of one 64 x 64 on each multiprocessor, one product: 2,000 + 10 x 500 + 10 x 350 / 4 cycles, 4.0 us. */
static double believed_seconds(const mma_tile *t, const cuda_device *d)
{
    const int64_t blocks = cvyi_ceil_div(t->blocks, d->sms);
    const int64_t together = cvyi_max64(1, cvyi_min64(t->resident, d->shared_block / t->shared_bytes));
    const bool gathers = !t->fetched && blocks > together;
    const double gather = gathers ? gather_cycles * t->copies / 32.0 / (t->threads / 128.0) : 0;
    const double step = fmax(step_cycles(t, cvyi_mma_rate(d->major, d->minor)), step_instructions(t));
    const double cycles = fmax(step, gather) / share;
    const double work = (double)blocks * (double)t->steps * t->threads / 128 * cycles;
    const double latency = 2000 + (double)t->steps * (100 + 2 * step_instructions(t));
    const double wait = (double)cvyi_ceil_div(blocks, together) * latency;

    return fmax(work, wait + work / 4) / d->clock;
}

/* ---- forms ---- */

/* Number `rank` of the tiles that fit, the fastest first; the last if there are fewer. */
static mma_choice choose(const cuda_device *d, const producer *w, int products, int rank)
{
    enum { MOST = COUNT_OF(conv_tiles) + COUNT_OF(product_tiles) }; /* more than fit */
    const tile_row *rows = w->is_conv ? conv_tiles : product_tiles;
    const int n_rows = w->is_conv ? COUNT_OF(conv_tiles) : COUNT_OF(product_tiles);
    mma_choice best[MOST] = {{.why = "mma.sync: its tiles do not fit into shared memory"}};
    double flops = 0;
    int n = 0;

    for (int i = 0; i < n_rows; i++) {
        mma_choice f = {.tile = make_tile(w, d, &rows[i], products)};
        int at = n;
        if (products > rows[i].products || w->rows < rows[i].least || w->rows > rows[i].most ||
            f.tile.shared_bytes > d->shared_block)
            continue;
        flops = fmax(flops, believed_flops(&f.tile, d));
        f.seconds = believed_seconds(&f.tile, d);
        for (; at > 0 && f.seconds < best[at - 1].seconds; at--) best[at] = best[at - 1];
        best[at] = f;
        n++;
    }
    n = rank < n ? rank : n ? n - 1 : 0;
    best[n].flops = flops;
    return best[n];
}

/* Of a pass whose core is node `core`; with the tile that the plan's tuning ranks. */
static mma_choice find_choice(const cvy_plan *p, int core)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    const node *n = &p->graph->nodes[core];
    mma_choice f = {.why = device_refusal(p, d)};
    producer w;

    if (f.why) return f;
    w = find_producer(p->graph, n);
    f.why = size_refusal(&w);
    return f.why ? f : choose(d, &w, cvyi_cuda_products(p, n), p->tuning);
}

/* ---- rows of the table ---- */

/* A random plan takes it or not whatever it costs (dice). */
const char *cvyi_mma_refusal(const cvy_plan *p, int core, mma_choice *f)
{
    *f = find_choice(p, core);
    if (f->why) return f->why;
    return p->options.seed || f->flops > p->machine.flops ? NULL : "mma.sync: multiply-adds are faster here";
}

void cvyi_mma_tune(const cvy_plan *p, pass *s, const cuda_choice *c)
{
    const mma_tile *t = &c->mma.tile;

    s->way = WAY_STREAM;
    s->seconds = cvyi_pass_seconds(p, s, 1, c->mma.seconds);
    snprintf(s->note, sizeof s->note, "%s, mma.sync, %d product%s, tile %d x %d, of a warp %d x %d",
             cvyi_info(&p->graph->nodes[c->form.core])->name, t->products, t->products == 1 ? "" : "s", t->m, t->n,
             t->warp_m, t->warp_n);
}

bool cvyi_mma_same(const cuda_choice *a, const cuda_choice *b)
{
    const mma_tile *t = &a->mma.tile, *u = &b->mma.tile;
    return t->m == u->m && t->n == u->n && t->warp_m == u->warp_m && t->warp_n == u->warp_n;
}
