/* conv_channels.c - direct convolution with vectors along output channels: any rank, stride, padding, dilation and
 * groups.
 *
 * A register tile is up to PX neighbouring outputs of a row x KV vectors of output channels:
 *
 *   for input channels, taps:  KV loads of w, PX broadcasts of x, PX * KV FMAs        packed[block][c][tap][kt]
 *
 * No lane is lost at the ends of rows, however short they are, and a stride is the distance of the broadcasts: x is
 * read where it lies or, if there is padding, from a copy of the band with its padding (conv_view.h, as for a
 * stride of 1). On AVX-512 14 x 2 accumulators need 16 loads per 28 FMAs, on AVX2 6 x 2 8 per 12.
 *
 * A strip is some whole rows or a piece of one, STRIP outputs at most. Chain by chain of terms, all of its tiles
 * add up in sums[output][kt], so that the chain's weights are read from the inner cache; then vectors of channels
 * are turned into vectors of outputs, VL x VL at a time, for dst and the statistics.
 *
 * Numerics: a chain has at most CONV_CHAIN terms in the order c, tap; chains are added in order, then the bias.
 * Statistics are float runs of a strip per lane, merged in double. */
#include "../conv_tiles.h"
#include "../conv_view.h"

enum { KV = CHANNELS_KV, PX = CHANNELS_PX, KT = KV * VL };

/* Terms that are added up in registers: some taps of some channels. */
typedef struct chain {
    int64_t c, channels, tap, taps;
} chain;

typedef struct work {
    const conv_job *job;
    const conv_tiling *t;
    conv_tiling dense; /* of a stride of 1, as the view has it */
    conv_span span;
    conv_view view;
    conv_block block;
    int64_t channels, taps; /* of a group; of the filter */
    int64_t col0, cols;
    float *sums;        /* [output of the strip][kt] */
    float part[KT][VL]; /* float runs of the sum of squares */
    double total[KT];
} work;

/* sums[px][kv] of the outputs that first read x: the chain's terms, added to those of the chains before it. */
INLINE void tile(const work *w, const chain *c, const float *x, float *sums, const int kv, const int px)
{
    const int64_t stride = w->t->geom.stride[2], three = 3 * stride, next = (w->taps - c->taps) * kv * VL;
    const int64_t *off = w->view.off + c->tap;
    const float *f = w->job->packed + (w->block.slot * w->channels + c->c * kv * VL) * w->taps + c->tap * kv * VL;
    vf acc[PX][KV];

    UNROLL for (int q = 0; q < px; q++) UNROLL for (int k = 0; k < kv; k++) acc[q][k] = v_zero();
    x += c->c * w->view.chan;
    for (int64_t i = 0; i < c->channels; i++, x += w->view.chan, f += next)
        for (int64_t j = 0; j < c->taps; j++, f += kv * VL) {
            const float *p = x + off[j];
            vf u[KV];
            UNROLL for (int k = 0; k < kv; k++) u[k] = v_load(f + k * VL);
            UNROLL for (int q = 0; q < px; q++)
            {
                const vf v = v_set1(p[q % 3 * stride]);
                UNROLL for (int k = 0; k < kv; k++) acc[q][k] = v_fma(u[k], v, acc[q][k]);
                if (q % 3 == 2) p += three;
            }
        }
    const bool first = !c->c && !c->tap;
    UNROLL for (int q = 0; q < px; q++) UNROLL for (int k = 0; k < kv; k++)
    {
        float *to = sums + (q * kv + k) * VL;
        v_store(to, first ? acc[q][k] : v_add(v_load(to), acc[q][k]));
    }
}

#define TILE(px)                                                                                                   \
    static void tile_##px##_1(const work *w, const chain *c, const float *x, float *sums)                          \
    {                                                                                                              \
        tile(w, c, x, sums, 1, px);                                                                                \
    }                                                                                                              \
    static void tile_##px##_2(const work *w, const chain *c, const float *x, float *sums)                          \
    {                                                                                                              \
        tile(w, c, x, sums, 2, px);                                                                                \
    }
#define TILE_ENTRY(px) {tile_##px##_1, tile_##px##_2},
CHANNELS_TILES(TILE)
static void (*const tiles[PX][KV])(const work *w, const chain *c, const float *x,
                                   float *sums) = {CHANNELS_TILES(TILE_ENTRY)};

/* All of a row's outputs in tiles as even as possible: 16 are 8 + 8, not 14 + 2. */
static void row_tiles(const work *w, const chain *c, const float *x, int64_t n, float *sums)
{
    const int64_t parts = cvyi_ceil_div(n, PX), kt = w->block.kt;
    for (int64_t i = 0; i < parts; i++) {
        const int64_t at = cvyi_part_start(n, parts, i), px = cvyi_part_start(n, parts, i + 1) - at;
        tiles[px - 1][kt / VL - 1](w, c, x + at * w->t->geom.stride[2], sums + at * kt);
    }
}

/* Rows of vectors to columns: after each of log2(VL) perfect shuffles a bit of the row's number is one of the
 * lane's. */
INLINE void turn(vf a[VL])
{
    vf b[VL];
    UNROLL for (int s = 1; s < VL; s *= 2)
    {
        UNROLL for (int i = 0; i < VL / 2; i++) v_zip2(a[i], a[i + VL / 2], &b[2 * i], &b[2 * i + 1]);
        UNROLL for (int i = 0; i < VL; i++) a[i] = b[i];
    }
}

/* n outputs, neighbours in dst, from their sums; dst NULL: statistics only. */
static void finish(work *w, const float *sums, float *dst, int64_t n)
{
    const conv_job *job = w->job;
    const conv_block *b = &w->block;
    for (int64_t p = 0; p < n; p += VL)
        for (int k0 = 0; k0 < b->kn; k0 += VL) {
            vf y[VL];
            UNROLL for (int i = 0; i < VL; i++) y[i] = v_load(sums + (p + i) * b->kt + k0);
            turn(y);
            for (int i = 0; i < VL && k0 + i < b->kn; i++) {
                const int64_t k = b->k0 + k0 + i;
                const vf v = v_add(y[i], v_set1(job->bias ? job->bias[k] : 0)),
                         z = v_sel(v_first(n - p), v, v_zero());
                if (dst) view_store(dst + k * job->dst_chan + p, n - p, v);
                if (job->sumsq) v_store(w->part[k0 + i], v_fma(z, z, v_load(w->part[k0 + i])));
            }
        }
    for (int i = 0; job->sumsq && i < b->kn; i++) {
        w->total[i] += v_hsum_double(v_load(w->part[i]));
        v_store(w->part[i], v_zero());
    }
}

/* `rows` rows of the band from `row` on, `cols` columns of the view from `col` on. */
static void strip(work *w, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    const conv_job *job = w->job;
    const conv_geom *g = &w->t->geom;
    const float *x = w->view.base + row * g->stride[1] * w->view.row + col * g->stride[2];
    const int64_t most = cvyi_max64(CONV_CHAIN / w->taps, 1);
    float *dst =
        job->dst ? job->dst + w->span.plane * job->dst_plane + (w->span.row0 + row) * job->dst_row + w->col0 + col
                 : NULL;
    chain c;

    for (c.c = 0; c.c < w->channels; c.c += c.channels)
        for (c.tap = 0, c.channels = cvyi_min64(most, w->channels - c.c); c.tap < w->taps; c.tap += c.taps) {
            c.taps = cvyi_min64(CONV_CHAIN, w->taps - c.tap);
            for (int64_t r = 0; r < rows; r++)
                row_tiles(w, &c, x + r * g->stride[1] * w->view.row, cols, w->sums + r * cols * w->block.kt);
        }
    if (job->dst_row == cols)
        finish(w, w->sums, dst, rows * cols);
    else
        for (int64_t r = 0; r < rows; r++)
            finish(w, w->sums + r * cols * w->block.kt, dst ? dst + r * job->dst_row : NULL, cols);
}

/* All of the band for one block of channels. */
static void block_rows(work *w)
{
    const conv_span *s = &w->span;
    const int64_t rows = cvyi_max64(CHANNELS_STRIP / w->cols, 1), pieces = cvyi_ceil_div(w->cols, CHANNELS_STRIP);
    for (int64_t r = 0; r < s->rows; r += rows)
        for (int64_t i = 0; i < pieces; i++) {
            const int64_t col = cvyi_part_start(w->cols, pieces, i), end = cvyi_part_start(w->cols, pieces, i + 1);
            strip(w, r, cvyi_min64(rows, s->rows - r), col, end - col);
        }
}

static void block_end(const work *w)
{
    const int64_t at = w->span.band * w->t->geom.K + w->block.k0;
    for (int k = 0; w->job->sumsq && k < w->block.kn; k++)
        w->job->sumsq[at + k] = (w->col0 ? w->job->sumsq[at + k] : 0) + w->total[k];
}

/* The given columns of the band, of x's channels of the block's group. */
static void make_view(work *w)
{
    const conv_geom *g = &w->t->geom;
    const conv_span *s = &w->span;
    conv_part p = {w->block.group,
                   s->plane,
                   s->row0 * g->stride[1],
                   (s->rows - 1) * g->stride[1] + 1,
                   w->col0 * g->stride[2],
                   (w->cols - 1) * g->stride[2] + 1,
                   0};
    p.reach = (p.rows - 1) * g->in[2] + p.cols;
    view_make(&w->dense, w->job, &p, &w->view);
}

void CONV_ENTRY(channels, CHANNELS_TILE)(const conv_job *job, int64_t part, void *scratch)
{
    const conv_tiling *t = job->tiling;
    const conv_geom *g = &t->geom;
    work w = {.job = job, .t = t, .dense = *t, .span = cvyi_conv_part(t, part), .channels = g->C / g->groups};

    w.taps = cvyi_conv_taps(g);
    w.dense.geom.stride[1] = w.dense.geom.stride[2] = 1;
    w.dense.rows = (t->rows - 1) * g->stride[1] + 1;
    w.view.off = scratch;
    w.sums = (float *)(w.view.off + cvyi_round_up(w.taps, 8));
    w.view.copy = w.sums + t->tmp_floats;
    for (w.col0 = 0; w.col0 < g->out[2]; w.col0 += t->cols) {
        int64_t group = -1;
        w.cols = cvyi_min64(t->cols, g->out[2] - w.col0);
        for (int64_t b = 0; b < w.span.blocks; b++) {
            w.block = cvyi_conv_block(t, w.span.block0 + b);
            memset(w.total, 0, sizeof w.total);
            if (w.block.group != group) make_view(&w);
            group = w.block.group;
            block_rows(&w);
            block_end(&w);
        }
    }
}
