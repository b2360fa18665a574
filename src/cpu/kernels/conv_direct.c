/* conv_direct.c - direct convolution over native NCHW: any rank, stride, padding, dilation and groups.
 *
 * A register tile is KT output channels x VT vectors along the output row. Through the view (conv_view.h) a tap of
 * the filter is a constant offset into the input, so the inner loop knows nothing of the geometry:
 *
 *   for input channels, taps:  VT loads of x, KT broadcasts of w, KT * VT FMAs        packed[block][c][tap][KT]
 *
 * On AVX-512 8 x 3 accumulators need 11 loads per 24 FMAs, on AVX2 6 x 2 (the most that 16 registers hold) 8
 * per 12. Narrow outputs are computed "flat": vectors run on over the row ends of the view, what falls between rows
 * is dropped.
 *
 * Sums go from registers to dst and into the statistics; with pooling or flat rows through `tmp`, which stays in
 * L1. Numerics: fp32 FMA chains in the order c, tap, of at most CHAIN terms; the sums of chains are added in order.
 * For N terms the error grows with sqrt(N CHAIN) while N < CHAIN^2, where one chain's grows with N. Statistics are
 * float runs of at most RUN rows per lane, merged in double. Maxima are NaN if any of the window is. */
#include <math.h>
#include "../conv_tiles.h"
#include "../conv_view.h"

enum { KT = DIRECT_KT, VT = DIRECT_VT, RUN = 8, CHAIN = CONV_CHAIN };

typedef struct work {
    const conv_job *job;
    const conv_tiling *t;
    conv_span span;
    conv_view view;
    conv_block block;
    const float *w;         /* of the block */
    int64_t channels, taps; /* of a group */
    float *tmp;             /* [KT][rows][pitch], or NULL: tiles go straight to dst */
    float *line;            /* [cols + 4 VL]: maxima of the rows of a window */
    int64_t col0, cols;
    float start[KT];    /* bias */
    float part[KT][VL]; /* float runs of the sum of squares */
    double total[KT];
} work;

/* Adds the squares of the first n of vt vectors of values to a channel's runs. */
INLINE void count(float part[VL], const vf *y, int64_t n, const int vt)
{
    vf q = v_load(part);
    UNROLL for (int v = 0; v < vt; v++)
    {
        const vf z = n >= (v + 1) * VL ? y[v] : v_sel(v_first(n - v * VL), y[v], v_zero());
        q = v_fma(z, z, q);
    }
    v_store(part, q);
}

static void merge(work *w)
{
    for (int k = 0; k < w->block.kn; k++) {
        w->total[k] += (double)v_hsum(v_load(w->part[k]));
        v_store(w->part[k], v_zero());
    }
}

/* acc += n taps of one channel. */
INLINE void multiply(vf acc[KT][VT], const float *x, const int64_t *off, const float *f, int64_t n, const int kt,
                     const int vt)
{
    for (int64_t i = 0; i < n; i++, f += kt) {
        const float *p = x + off[i];
        vf xv[VT];
        UNROLL for (int v = 0; v < vt; v++) xv[v] = v_load(p + v * VL);
        UNROLL for (int k = 0; k < kt; k++)
        {
            const vf wv = v_set1(f[k]);
            UNROLL for (int v = 0; v < vt; v++) acc[k][v] = v_fma(wv, xv[v], acc[k][v]);
        }
    }
}

/* One register tile. `left` positions are outputs, the rest of the last vector is dropped (tmp has room for it);
 * dst may be NULL. */
INLINE void tile(work *w, const float *x, float *dst, int64_t chan, int64_t left, const int kt, const int vt)
{
    vf acc[KT][VT];
    float sums[KT][VT][VL]; /* of finished chains */
    const float *f = w->w;
    const int64_t taps = w->taps;
    int64_t room = CHAIN;
    bool chains = false;

    UNROLL for (int k = 0; k < kt; k++) UNROLL for (int v = 0; v < vt; v++) acc[k][v] = v_set1(w->start[k]);
    for (int64_t c = w->channels; c > 0; c--, x += w->view.chan)
        for (int64_t i = 0, n; i < taps; i += n, f += n * kt) {
            n = cvyi_min64(taps - i, CHAIN);
            if (n > room) {
                UNROLL for (int k = 0; k < kt; k++) UNROLL for (int v = 0; v < vt; v++)
                {
                    v_store(sums[k][v], chains ? v_add(v_load(sums[k][v]), acc[k][v]) : acc[k][v]);
                    acc[k][v] = v_zero();
                }
                room = CHAIN;
                chains = true;
            }
            room -= n;
            multiply(acc, x, w->view.off + i, f, n, kt, vt);
        }
    if (chains)
        UNROLL for (int k = 0; k < kt; k++) UNROLL for (int v = 0; v < vt; v++) acc[k][v] =
            v_add(v_load(sums[k][v]), acc[k][v]);
    const bool stats = !w->t->flat && w->job->sumsq;
    UNROLL for (int k = 0; k < kt; k++)
    {
        if (k >= w->block.kn) break;
        if (stats) count(w->part[k], acc[k], left, vt);
        if (!dst) continue;
        UNROLL for (int v = 0; v < vt; v++)
            view_store(dst + k * chan + v * VL, w->tmp ? VL : left - v * VL, acc[k][v]);
    }
}

CONV_TILES((struct work * w, const float *x, float *dst, int64_t chan, int64_t left), w, x, dst, chan, left)

/* `n` neighbouring outputs from x on. dst NULL: statistics only. */
static void line(work *w, const float *x, float *dst, int64_t chan, int64_t n)
{
    for (int64_t q = 0; q < n;) {
        const int64_t vectors = (n - q + VL - 1) / VL;
        int vt = vectors < VT ? (int)vectors : VT;
        if (vectors == VT + 1 && VT > 2) vt = 2; /* 4 = 2 + 2, not 3 + 1 */
        tiles[CONV_TILE_KT(w->block.kt)][CONV_TILE_VT(vt)](w, x + q, dst ? dst + q : NULL, chan, n - q);
        q += vt * VL;
    }
}

/* Maxima of ph rows of y by windows of pw columns, n whole windows; by way of row[]. */
static void pool_rows(const float *y, int64_t pitch, int64_t ph, int64_t pw, float *row, float *dst, int64_t n)
{
    int64_t i = 0;
    for (int64_t q = 0; q < n * pw; q += VL) {
        vf m = v_load(y + q);
        for (int64_t r = 1; r < ph; r++) m = v_max_nan(v_load(y + r * pitch + q), m);
        v_store(row + q, m);
    }
    if (pw == 4) {
        for (; i < n; i += VL) {
            vf a[4], b[4];
            UNROLL for (int j = 0; j < 4; j++) a[j] = v_load(row + i * 4 + j * VL);
            v_unzip4(a, b);
            view_store(dst + i, n - i, v_max_nan(v_max_nan(b[0], b[1]), v_max_nan(b[2], b[3])));
        }
    } else if (pw == 2) {
        for (; i < n; i += VL) {
            const vf a = v_load(row + i * 2), b = v_load(row + i * 2 + VL);
            view_store(dst + i, n - i, v_max_nan(v_even(a, b), v_odd(a, b)));
        }
    }
    for (; i < n; i++) {
        float m = row[i * pw];
        for (int64_t j = 1; j < pw; j++) {
            const float next = row[i * pw + j];
            m = m > next || isnan(m) ? m : next;
        }
        dst[i] = m;
    }
}

static void count_row(float part[VL], const float *y, int64_t n)
{
    for (; n >= 2 * VL; n -= 2 * VL, y += 2 * VL) {
        const vf two[2] = {v_load(y), v_load(y + VL)};
        count(part, two, n, 2);
    }
    for (; n > 0; n -= VL, y += VL) {
        const vf one = v_load(y);
        count(part, &one, n, 1);
    }
}

/* Takes `rows` finished rows of all channels of the block from tmp to where they belong. */
static void finish(work *w, int64_t row, int64_t rows, int64_t pitch)
{
    const conv_job *job = w->job;
    const conv_geom *g = &w->t->geom;
    const int64_t ph = w->t->ph, pw = w->t->pw, PH = g->out[1] / ph, PW = g->out[2] / pw;

    for (int k = 0; k < w->block.kn; k++) {
        float *tmp = w->tmp + k * w->t->tmp_floats / KT;
        for (int64_t r = 0; r < rows; r++) {
            const float *y = tmp + r * pitch;
            float *dst = job->dst;
            if (dst) dst += (w->block.k0 + k) * job->dst_chan + w->span.plane * job->dst_plane;
            if (dst) memcpy(dst + (row + r) * job->dst_row + w->col0, y, (size_t)w->cols * sizeof *y);
            if (w->t->flat && job->sumsq) count_row(w->part[k], y, w->cols);
        }
        if (!job->pool) continue;
        const int64_t n = cvyi_min64(w->cols / pw, PW - w->col0 / pw);
        float *pool = job->pool + ((w->block.k0 + k) * g->out[0] + w->span.plane) * PH * PW + w->col0 / pw;
        for (int64_t r = 0; r + ph <= rows; r += ph)
            pool_rows(tmp + r * pitch, pitch, ph, pw, w->line, pool + (row + r) / ph * PW, n);
    }
}

/* All rows of the band for one block of channels. */
static void block_rows(work *w)
{
    const conv_job *job = w->job;
    const conv_span *s = &w->span;
    const int64_t chan = w->t->tmp_floats / KT;

    if (w->t->flat) {
        line(w, w->view.base, w->tmp, chan, (s->rows - 1) * w->view.row + w->cols);
        for (int64_t r = 0; r < s->rows; r += RUN * w->t->ph) {
            float *tmp = w->tmp;
            w->tmp += r * w->view.row;
            finish(w, s->row0 + r, cvyi_min64(RUN * w->t->ph, s->rows - r), w->view.row);
            w->tmp = tmp;
            merge(w);
        }
        return;
    }
    const int64_t step = w->tmp ? w->t->ph : 1, pitch = cvyi_round_up(w->cols, VL);
    for (int64_t r = 0; r < s->rows; r += step) {
        const int64_t rows = cvyi_min64(step, s->rows - r);
        for (int64_t i = 0; i < rows; i++) {
            const float *x = w->view.base + (r + i) * w->view.row;
            float *dst = job->dst;
            if (dst)
                dst += w->block.k0 * job->dst_chan + s->plane * job->dst_plane + (s->row0 + r) * job->dst_row +
                       w->col0;
            if (w->tmp)
                line(w, x, w->tmp + i * pitch, chan, w->cols);
            else
                line(w, x, dst, job->dst_chan, w->cols);
        }
        if (w->tmp) finish(w, s->row0 + r, rows, pitch);
        if (r / RUN != (r + step) / RUN || r + step >= s->rows) merge(w);
    }
}

static void block_start(work *w, int64_t b)
{
    const float *bias = w->job->bias;
    w->block = cvyi_conv_block(w->t, b);
    w->w = w->job->packed + w->block.slot * w->channels * w->taps;
    for (int k = 0; k < KT; k++) w->start[k] = bias && k < w->block.kn ? bias[w->block.k0 + k] : 0;
    memset(w->part, 0, sizeof w->part);
    memset(w->total, 0, sizeof w->total);
}

static void block_end(const work *w)
{
    const int64_t at = w->span.band * w->t->geom.K + w->block.k0;
    for (int k = 0; w->job->sumsq && k < w->block.kn; k++)
        w->job->sumsq[at + k] = (w->col0 ? w->job->sumsq[at + k] : 0) + w->total[k];
}

void CONV_ENTRY(direct, DIRECT_TILE)(const conv_job *job, int64_t part, void *scratch)
{
    const conv_tiling *t = job->tiling;
    const conv_geom *g = &t->geom;
    work w = {.job = job, .t = t, .span = cvyi_conv_part(t, part), .channels = g->C / g->groups};

    w.taps = cvyi_conv_taps(g);
    w.view.off = scratch;
    w.view.copy = (float *)(w.view.off + cvyi_round_up(w.taps, 8));
    if (t->flat || job->pool) w.tmp = w.view.copy + t->view_floats, w.line = w.tmp + t->tmp_floats;
    for (w.col0 = 0; w.col0 < g->out[2]; w.col0 += t->cols) {
        int64_t group = -1;
        w.cols = cvyi_min64(t->cols, g->out[2] - w.col0);
        for (int64_t b = 0; b < w.span.blocks; b++) {
            block_start(&w, w.span.block0 + b);
            if (w.block.group != group) {
                conv_part p = {w.block.group, w.span.plane, w.span.row0, w.span.rows, w.col0, w.cols, 0};
                p.reach = (p.rows - 1) * g->in[2] + p.cols + VL;
                view_make(t, job, &p, &w.view);
                group = w.block.group;
            }
            block_rows(&w);
            block_end(&w);
        }
    }
}
