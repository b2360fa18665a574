/* mma.c - which producers run on tensor cores through mma.sync, with which tile, and how fast that may be. */
#include "mma.h"
#include "tc.h"

enum { DEPTH = 16, STAGES = 3 }; /* of both kernels: terms of a step, stages of shared memory */

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

/* ---- what they take ---- */

static const char *device_refusal(const cvy_plan *p, const cuda_device *d)
{
    if (d->major < 8) return "mma.sync: tf32 needs compute capability 8.0";
    if (p->tuning >= TUNE_GENERIC) return "mma.sync: this tuning does without tensor cores";
    return NULL;
}

static const char *conv_tile(const cvy_graph *g, const node *n, mma_tile *t)
{
    const bool transposed = cvyi_info(n)->kind == KIND_CONVT;
    conv_geom e;

    cvyi_conv_geom(g, n, &e);
    const int64_t K = e.K / e.groups, terms = e.C / e.groups * e.kernel[0] * e.kernel[1] * e.kernel[2];
    if (K < 4) return "mma.sync: fewer than 4 output channels in a group";
    if (terms < DEPTH) return "mma.sync: fewer than 16 terms in a sum";
    t->m = K <= 16 ? 16 : K <= 32 ? 32 : 64;
    t->n = K <= 32 ? 256 : 128;
    t->warp_m = t->m == 16 ? 16 : 32;
    t->warp_n = 64;
    t->blocks = cvyi_ceil_div(e.N * e.out[0] * e.out[1] * e.out[2], t->n) * cvyi_ceil_div(K, t->m) * e.groups;
    /* A phase of a transposed convolution meets its share of the taps. */
    t->steps = cvyi_ceil_div(transposed ? terms / (e.stride[0] * e.stride[1] * e.stride[2]) : terms, DEPTH);
    t->copies = DEPTH * (t->n + t->m / 4);
    t->fetched = 0; /* most of what taps share is in the L1 */
    /* pixels [DEPTH][n + 8], weights [DEPTH][m + 8] */
    t->shared_bytes = 4 * STAGES * DEPTH * (t->n + 8 + t->m + 8);
    return NULL;
}

/* Tiles of matrix products: of a block, of a warp. For three products of 64 x 64 a warp has no registers. */
static const struct {
    int m, n, warp_m, warp_n, products;
} product_tiles[] = {
    {128, 256, 64, 64, 1}, {128, 128, 64, 32, 3}, {128, 128, 32, 32, 3}, {64, 128, 32, 32, 3}, {64, 64, 32, 32, 3}};

static const char *product_tile(const matmul_geom *e, int which, mma_tile *t)
{
    const bool fours = e->K % 4 == 0 && (e->other_is_nk || e->N % 4 == 0);

    t->m = product_tiles[which].m;
    t->n = product_tiles[which].n;
    t->warp_m = product_tiles[which].warp_m;
    t->warp_n = product_tiles[which].warp_n;
    t->blocks = e->batch * cvyi_ceil_div(e->M, t->m) * cvyi_ceil_div(e->N, t->n);
    t->steps = cvyi_ceil_div(e->K, DEPTH);
    t->copies = DEPTH * (t->m + t->n) / (fours ? 4 : 1);
    t->fetched = 4 * DEPTH * (t->m + t->n);
    /* x [m][DEPTH + 4], other [n][DEPTH + 4] or [DEPTH][n + 8] */
    t->shared_bytes =
        4 * STAGES * (t->m * (DEPTH + 4) + (e->other_is_nk ? t->n * (DEPTH + 4) : DEPTH * (t->n + 8)));
    return t->products > product_tiles[which].products ? "mma.sync: a warp has no registers for this tile" : NULL;
}

/* ---- how fast ---- */

/* No device has run these kernels yet; conv_direct.cu reaches 55 % of what its instructions would allow. */
static const double share = 0.7;

/* Cycles of a quarter of a multiprocessor for DEPTH terms of a warp's results: the longest of four, and a quarter
 * of the others, since nothing overlaps entirely. tensor core instructions: fragments are loaded and rounded, of
 * three products also taken apart, and every sum of three products is added once more; a copy takes about three
 *   shared memory, 128 bytes per cycle and multiprocessor: fragments, and stages being filled
 *   L2, about 28 (6 TB/s on an H200)
 * 128 x 128 in three products on an H200, a warp 64 x 32: 640, 364, 256 and 293, together 868. */
static double step_cycles(const mma_tile *t, int rate)
{
    const double all = t->warp_m * t->warp_n * (double)DEPTH, mma = t->products * all / (16 * 8 * 8);
    const double fragments = (t->warp_m + t->warp_n) * DEPTH / 32.0, warps = t->threads / 128.0; /* of a quarter */
    const double parts[] = {
        t->products * all / (rate / 4.0),
        mma + 3.0 * t->copies / t->threads +
            (t->products == 1 ? 2 * fragments : 4 * fragments + t->warp_m * t->warp_n / 32.0),
        (32 * 4 * fragments + 4 * DEPTH * (t->m + t->n) / (4 * warps)) / 32,
        t->fetched / (28 * warps),
    };
    double most = 0, sum = 0;

    for (int i = 0; i < COUNT_OF(parts); i++) {
        most = parts[i] > most ? parts[i] : most;
        sum += parts[i];
    }
    return most + (sum - most) / 4;
}

static double believed_flops(const mma_tile *t, const cuda_device *d)
{
    return share * 2 * t->warp_m * t->warp_n * DEPTH / step_cycles(t, cvyi_mma_rate(d->major, d->minor)) * 4 *
           d->sms * d->clock;
}

/* The multiprocessor with the most blocks takes longest. 4096 x 4096 x 4096 in three products on an H200: 1024
 * blocks of 128 x 128, so 8 on each, of 256 steps; eight warps, two on each quarter, of 868 cycles: 2.6 ms at 1.98
 * GHz. */
static double believed_seconds(const mma_tile *t, const cuda_device *d)
{
    const double turns = (double)cvyi_ceil_div(t->blocks, d->sms) * (double)t->steps * t->threads / 128;

    return turns * step_cycles(t, cvyi_mma_rate(d->major, d->minor)) / (share * d->clock);
}

/* ---- forms ---- */

/* What follows from a tile; false: it does not fit. */
static bool complete(const cuda_device *d, mma_form *f)
{
    mma_tile *t = &f->tile;
    const int results = 4 * t->m * (t->n + 8); /* they take the place of the stages */

    t->threads = 32 * (t->m / t->warp_m) * (t->n / t->warp_n);
    if (t->shared_bytes < results) t->shared_bytes = results;
    if (t->shared_bytes > d->shared_block) f->why = "mma.sync: its tiles do not fit into shared memory";
    f->flops = believed_flops(t, d);
    f->seconds = believed_seconds(t, d);
    return !f->why;
}

/* Number `rank` of the tiles that fit, the fastest first; the last where there are fewer. */
static mma_form product_form(const cuda_device *d, const matmul_geom *e, int products, int rank)
{
    mma_form best[COUNT_OF(product_tiles)] = {{.why = NULL}};
    int n = 0;

    if (e->N < 8) return (mma_form){.why = "mma.sync: fewer than 8 columns"};
    if (e->K < DEPTH) return (mma_form){.why = "mma.sync: fewer than 16 terms in a sum"};
    for (int i = 0; i < COUNT_OF(product_tiles); i++) {
        mma_form f = {.tile.products = products};
        int at = n;
        f.why = product_tile(e, i, &f.tile);
        if (!complete(d, &f)) continue;
        for (; at > 0 && f.seconds < best[at - 1].seconds; at--) best[at] = best[at - 1];
        best[at] = f;
        n++;
    }
    if (!n) return (mma_form){.why = "mma.sync: its tiles do not fit into shared memory"};
    return best[rank < n ? rank : n - 1];
}

mma_form cvyi_mma_form(const cvy_plan *p, int core)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    const node *n = core == CVY_NONE ? NULL : &p->graph->nodes[core];
    mma_form f = {.tile.products = p->options.precision == CVY_TF32 ? 1 : 3};
    matmul_geom e;

    if (!n || !cvyi_is_producer(cvyi_info(n)->kind))
        return (mma_form){.why = "mma.sync: neither a convolution nor a matrix product"};
    f.why = device_refusal(p, d);
    if (f.why) return f;
    if (cvyi_info(n)->kind == KIND_CONV || cvyi_info(n)->kind == KIND_CONVT) {
        f.why = conv_tile(p->graph, n, &f.tile);
        if (!f.why) complete(d, &f);
        return f;
    }
    cvyi_matmul_geom(p->graph, n, &e);
    return product_form(d, &e, f.tile.products, p->tuning);
}
