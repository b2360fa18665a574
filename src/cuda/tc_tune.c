/* tc_tune.c - tile, strip and buffers of the tensor-core convolution, from geometry and the device's limits.
 *
 * All tunings that fit into shared memory are tried, and their cycles estimated: tensor cores and epilogue of a
 * tile, or staging, whichever is longer, times the strips of the busiest multiprocessor. The best few are kept, for
 * effort "measure" to try. Extents and bytes are those of conv_tc_layout.cuh, which the kernel includes as well. */
#include <math.h>
#include "../util/util.h"
#include "tc_tune.h"

/* Do the macros contradict each other? The kernel's static_asserts, for what the search can reach. */
static bool contradicts(const tc_problem *b, const tc_tuning *t, const tc_layout *l)
{
    if (l->stream &&
        (b->sink == SINK_POOL || l->col_tiles * l->bands > least(l->stat_groups, l->fin_groups) || l->chunks > 1))
        return true;
    if (t->flat && l->col_tiles > 1 && t->coltiles) return true;
    if (t->pass == PASS_BOTH && b->products == 3 && b->sink == SINK_STORE && l->tiles_chunk < l->col_tiles)
        return true; /* only registers: they spill */
    return t->pass == PASS_KEEP && b->sink == SINK_REDUCE && l->blocks > 1;
}

/* Kept results wait in the chunks for the statistics of strips that are still to come: all strips of a sample that
 * a block may have, and one more, so that it need not wait. Each of two teams has buffers of its own. */
static bool too_few_chunks(const tc_problem *b, const tc_tuning *t, const tc_layout *l, int sms)
{
    const int own = (t->strips - 1) / sms + 1, chunks = l->chunks * (b->sink == SINK_REDUCE ? 1 : l->blocks);

    return t->pass == PASS_KEEP && (t->outs < (own + 1) * chunks || (l->teams == 2 && t->outs % 2));
}

/* Does staging only convert what tensor copies bring? Pixels that lie channels last are no more work. */
static bool is_quick(const tc_problem *b, const tc_tuning *t)
{
    return t->tma || b->x_last;
}

/* Cycles to stage a strip, as measured on an H200: a parcel of copied pixels takes its conversions, or a thread's
 * way through one of them; a batch of loads its latency. Several stages have their barriers, and are staged once
 * more for every `share` blocks of channels. Tensor copies of a strip in one stage were fitted as part of the
 * whole. */
static double load_cycles(const tc_problem *b, const tc_tuning *t, const tc_layout *l)
{
    const int64_t pixels = (int64_t)l->rows_in * l->cols_in;
    const bool many = b->stride > 1 || t->slices > 1 || (t->pass == PASS_BOTH && b->products == 3);
    const bool few_registers = many && l->multiply * 4 + l->side == 20;
    const double each =
        is_quick(b, t) ? b->products + 1 : (3 + 5.0 * b->products) / l->load; /* a pixel, 8 channels */
    const int parcels = cdiv(l->rows_in, l->parcel_rows);
    const double parcel = fmax(600, each * (double)pixels / parcels) + 200;
    const int batch = few_registers ? 2 : 4; /* pixels of a thread */
    const double batches = (double)cvyi_ceil_div(pixels, 32 * l->load * batch);
    const double slice = is_quick(b, t) && !l->stream ? each * (double)pixels
                         : is_quick(b, t) || t->rows  ? parcels * parcel
                                                      : batches * (1100 + 60 * batch * (b->products + 1));

    return (cdiv(b->c, 8) * slice + (l->stream ? 600 * l->stages : 0)) * (l->stream ? l->blocks / t->share : 1);
}

/* Cycles until the results of a strip are stored: a bulk copy for each channel of a chunk, or threads' stores, four
 * of a run at a time or one. */
static double store_cycles(const tc_problem *b, const tc_tuning *t, const tc_layout *l)
{
    const bool fours = (t->flat ? t->strip : t->rowsm) * l->q % 4 == 0 && l->p * l->q % 4 == 0 && l->span == l->q;
    const double values = (double)t->strip * l->span * b->k;

    if (b->sink != SINK_STORE || !l->early) return 0;
    return l->finish == 1 ? 100.0 * b->k * l->chunks : values * (fours ? 1.3 : 3.2) / l->finish;
}

/* Cycles of a strip whose results wait for statistics, measured on an H200: the exchange of words takes a
 * fixed time, the work next to the tensor cores grows with theirs, and a single stage is filled while nothing is
 * multiplied. */
static double keep_cycles(const tc_tuning *t, double compute, double load)
{
    return fmax(2500 + 1.8 * compute, t->stages == 1 ? 1.2 * (load + 0.9 * compute) : load);
}

/* Cycles. A tile: tensor cores (64 pixels wide: shared memory is the limit), then the epilogue. Against this sum
 * kernels took `longer` on an H200; and again if weights travel with x, 1.0 to 1.6 times with one product, 1.3
 * to 1.7 with three (eight convolutions of 96 to 640 channels: 256 of them, 256 x 256, were predicted 0.32 ms and
 * took 0.48). */
static void estimate(const tc_problem *b, tc_tuning *t, const tc_layout *l)
{
    const bool both = t->pass == PASS_BOTH, teams = l->teams == 2;
    const double streamed = !l->stream ? 1 : b->products == 1 ? 1.2 : 1.4;
    const double longer = streamed * (both ? (b->products == 1 ? 1.13 : 1.33) : b->products == 1 ? 1.5 : 1.6);
    const double tiles = t->flat ? l->col_tiles : (double)t->strip / t->rowsm * cdiv(l->span, t->tile);
    const double steps = (double)l->stages * l->steps * b->products;
    const double per_tile = t->tile * (steps * (t->tile == 64 ? 0.75 : 0.5) + 10) + 300;
    const bool again = both || t->pass == PASS_FINISH; /* every strip comes twice, else two warpgroups share it */
    const double compute = tiles * l->blocks * per_tile / (again ? 1 : 2) * (b->external && !teams ? 3 : 1);
    /* Weights that travel with the strips; words of statistics that one warp reads for each. */
    const double weights = l->stream ? (double)l->w_stage * l->stages * l->blocks / 32 : 0;
    const double load = fmax(load_cycles(b, t, l), weights), store = store_cycles(b, t, l);
    const double merge = (double)b->groups / (b->groups % 2 ? 1 : 2) * t->strips / 32 * 250;
    const double fitted = is_quick(b, t) && !l->stream ? load * (both ? 1.5 : 1) : 0;
    const double slowest = longer * (fmax(compute, fmax(fitted, merge)) + 1500);

    t->strip_cycles =
        teams ? fmax(keep_cycles(t, compute, load), merge) : fmax(slowest, fmax(load * (again ? 2 : 1), store));
    /* The first of several stages is enough to begin with. Counted if there are few samples: otherwise the
     * start is negligible, and the constants were fitted without it. */
    t->start_cycles = longer * (load / (b->few || !is_quick(b, t) ? l->stages : 1) + 2000) *
                      (both    ? 3
                       : teams ? 2
                               : 1);
}

/* Measured effects that the estimate does not model: blocks that run strips twice need small strips in many stages,
 * whole rows leave fastest, copies help, flat tiles of 128 spill if they are held, and tall strips that are
 * reduced by halves (for which other passes have no room), pooled strips of columns take 1.2 times the estimate. */
static double penalty(const tc_problem *b, const tc_tuning *t, const tc_layout *l)
{
    const bool cut = l->span < l->q, stored = b->sink == SINK_STORE, pooled = b->sink == SINK_POOL,
               spills = (l->teams == 2 && t->flat && t->tile == 128) ||
                        (b->x_last && l->partial && t->pass == PASS_BOTH && t->strip > 9);
    const double buffers = (t->pass == PASS_BOTH ? 0.15 : 0.01) * (4 - t->stages) + 0.02 * most(4 - t->outs, 0);

    return (1 + buffers + 0.05 * !(is_quick(b, t) || t->rows)) *
           (1 + (pooled ? 0.3 : 0.1) * cut + 0.5 * spills + stored * (0.5 * cut + 0.5 * (t->coltiles && !t->flat)));
}

/* ---- the search ---- */

typedef struct search {
    const tc_problem *b;
    int64_t shared;
    int sms, samples;
    struct ranked {
        double cycles;
        tc_tuning tuning;
    } best[TUNE_TILES]; /* so far, by cycles; no two with the same tile and strip */
    int n;
} search;

bool cvyi_tc_same(const tc_tuning *a, const tc_tuning *b)
{
    return a->pass == b->pass && a->tile == b->tile && a->rowsm == b->rowsm && a->flat == b->flat &&
           a->strip == b->strip && a->span == b->span && a->slices == b->slices;
}

/* Of those that are equally good the first stays first. */
static void keep(search *s, const tc_tuning *t, double cycles)
{
    int at = 0, i;

    while (at < s->n && s->best[at].cycles <= cycles)
        if (cvyi_tc_same(&s->best[at++].tuning, t)) return;
    if (at == TUNE_TILES) return;
    for (i = at; i < s->n && !cvyi_tc_same(&s->best[i].tuning, t); i++) continue;
    if (i == s->n && s->n < TUNE_TILES) s->n++;
    if (i == TUNE_TILES) i--;
    for (; i > at; i--) s->best[i] = s->best[i - 1];
    s->best[at] = (struct ranked){cycles, *t};
}

/* Does it fit? Then it is kept, if it is good. */
static bool try_one(search *s, tc_tuning *t, const tc_layout *l)
{
    const tc_problem *b = s->b;
    double cycles;

    if (too_few_chunks(b, t, l, s->sms)) return false;
    t->shared_bytes = tc_shared_bytes(b, t, l);
    if (t->shared_bytes > s->shared) return false;
    estimate(b, t, l);
    cycles = t->strip_cycles * (double)cvyi_ceil_div((int64_t)s->samples * t->strips, s->sms) + t->start_cycles;
    cycles *= penalty(b, t, l);
    keep(s, t, cycles);
    return true;
}

/* Blocks of channels that a thread's accumulators have room for; sums of stages on their own take as much again. */
static bool is_too_wide(const tc_problem *b, const tc_tuning *t, const tc_layout *l)
{
    const int sums = t->tile / 2 * t->share * (b->products == 3 ? 2 : 1);

    return l->blocks % t->share || (t->share > 1 && sums > (t->pass == PASS_BOTH || l->teams == 2 ? 64 : 128));
}

static int least_stages(const tc_problem *b, const tc_tuning *t)
{
    return t->pass == PASS_KEEP && b->sink != SINK_POOL ? 1 : 2;
}

/* Are even the fewest stages too large for shared memory? Most tunings are, and end here. */
static bool is_too_large(const search *s, const tc_tuning *t)
{
    const int stages = least_stages(s->b, t);
    tc_layout l = {0};

    tc_find_taps(s->b, t, &l);
    tc_find_strips(s->b, t, &l);
    return stages * l.x_stage + (int64_t)(l.stream ? stages : l.blocks) * l.w_stage > s->shared;
}

/* Buffers: stages and chunks of results, as many of these as fit; streamed weights: blocks of channels in a stage.
 */
static void try_buffers(search *s, tc_tuning *t)
{
    const tc_problem *b = s->b;
    const int outs = t->pass == PASS_KEEP || b->sink == SINK_REDUCE ? 6 : 3;
    tc_layout l;

    if (is_too_large(s, t)) return;
    l = tc_find_layout(b, t);
    t->strips = l.row_strips * l.col_strips;
    if (contradicts(b, t, &l)) return;
    for (t->share = 1; t->share <= (l.stream ? TC_SHARE_MOST : 1); t->share++)
        for (t->stages = 4; t->stages >= least_stages(b, t) && !is_too_wide(b, t, &l); t->stages--)
            for (t->outs = outs; t->outs >= 1 && !try_one(s, t, &l); t->outs--) continue;
}

/* How x comes: by tensor copies if its rows are whole 16 bytes and 256 columns at most, by copies of its rows
 * if strips are as wide, or by ordinary loads. Chunks of one tile, if a band has more. Who stores: four
 * warps, or two if threads store. */
static void try_sources(search *s, tc_tuning *t, int q)
{
    const tc_problem *b = s->b;
    const bool stores = b->sink == SINK_STORE, reduces = b->sink == SINK_REDUCE;
    const int columns = (least(t->span, q) - 1) * b->stride + b->s;
    const int align = 16 / (b->x_half ? HALF_BYTES : FLOAT_BYTES);
    const int coltiles = reduces || (stores && !t->flat && least(t->span, q) > t->tile);
    const int finishers = stores && t->pass != PASS_KEEP && !b->external ? 2 : 4;

    t->tma = b->x_last ? b->stride == 1 && columns <= 256
                       : b->w % align == 0 && b->pad_w % align == 0 && cdiv(columns, align) * align <= 256;
    for (t->coltiles = reduces; t->coltiles <= coltiles; t->coltiles++)
        for (t->rows = 0; t->rows <= (!t->tma && !b->x_last && t->span == q && b->h * b->w >= align); t->rows++)
            for (t->finishers = 4; t->finishers >= finishers; t->finishers -= 2) try_buffers(s, t);
}

/* Rows of a strip at most. If weights are streamed, its tiles are multiplied at once: see contradicts(). */
static int most_rows(const tc_problem *b, const tc_tuning *t, int band_rows, int p, int q)
{
    const int tiles = t->flat ? 2 * t->tile / q : 2 * band_rows;
    const int rows = least(cdiv(p, band_rows) * band_rows, TC_STRIP_MOST);

    return t->slices < cdiv(b->c, 8) ? least(tiles, rows) : rows;
}

/* Strips: columns and rows. */
static void try_strips(search *s, tc_tuning *t, int p, int q)
{
    const int band_rows = s->b->sink == SINK_POOL ? s->b->pool_h : t->rowsm;
    const int most = most_rows(s->b, t, band_rows, p, q);

    for (t->span = q; t->span == q || t->span >= t->tile;
         t->span = t->span == q ? (q - 1) / t->tile * t->tile : t->span - t->tile) {
        if (t->span != q && t->flat) break;
        for (t->strip = band_rows; t->strip <= most; t->strip += band_rows) try_sources(s, t, q);
    }
}

/* All slices of 8 channels in a stage, or two, or one. */
static void try_slices(search *s, tc_tuning *t, int p, int q)
{
    const tc_problem *b = s->b;
    const int all = cdiv(b->c, 8);

    for (int i = 0; i < 3; i++) {
        t->slices = i == 0 ? all : 3 - i;
        if (i && t->slices >= all) continue;
        t->bands = b->sink == SINK_POOL || (i && b->sink == SINK_STORE) ? TC_STRIP_MOST : 1;
        try_strips(s, t, p, q);
    }
}

/* One choice of tiles and their strips. */
static void try_pass(search *s, int pass, int p, int q)
{
    const tc_problem *b = s->b;

    for (int flat = 0; flat <= (b->sink == SINK_STORE); flat++)
        for (int tile = 64; tile <= 128; tile *= 2)
            for (int rowsm = 1; rowsm <= (b->sink == SINK_STORE && !flat ? 4 : 1); rowsm *= 2) {
                tc_tuning t = {.pass = pass, .tile = tile, .rowsm = rowsm, .flat = flat};
                if (rowsm == 1 || (b->k <= 64 / rowsm && b->r > 1)) try_slices(s, &t, p, q);
            }
}

static bool is_possible(const tc_problem *b, int pass)
{
    if (!b->groups) return pass == PASS_PLAIN;
    return b->alone ? pass == PASS_FINISH : (pass == PASS_KEEP && !b->before) || pass == PASS_BOTH;
}

bool cvyi_tc_tune(const tc_problem *b, int64_t shared, int sms, int rank, tc_tuning *out)
{
    const int p = tc_extent(b->h, b->pad_h, b->r, b->stride), q = tc_extent(b->w, b->pad_w, b->s, b->stride);
    search s = {.b = b, .shared = shared, .sms = sms, .samples = b->few ? 4 : 128};
    tc_layout l;

    for (int pass = PASS_PLAIN; pass <= PASS_FINISH; pass++)
        if (is_possible(b, pass)) try_pass(&s, pass, p, q);
    if (!s.n) return false;
    *out = s.best[least(rank, s.n - 1)].tuning;
    l = tc_find_layout(b, out);
    out->threads = l.threads;
    out->channels = l.channels;
    out->box_rows = l.parcel_rows;
    out->box_cols = l.parcel_cols;
    out->packed_bytes = tc_packed_bytes(&l);
    return true;
}
