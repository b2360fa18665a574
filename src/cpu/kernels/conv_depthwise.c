/* conv_depthwise.c - convolutions whose groups have one input channel.
 *
 * Every output channel is a filter over one plane, so nothing is shared between channels but the view
 * (conv_view.h), which is small enough for the inner caches. A tile is rt rows x vt vectors along the output row.
 * Taps that lie below each other in the view are a column: a row of it is loaded once and added to all output rows
 * of the tile that see it. 5x5, 4 rows x 2 vectors: 16 loads and 40 FMAs a column; tap by tap it would be 40 loads,
 * most of which cross a cache line.
 *
 * The last tile of a band begins early enough to be a whole one: rows that the tile above has computed are computed
 * again, to the same bits, and counted once.
 *
 * Bound by FMAs from 3x3 on while x is in L2. Numerics: one fp32 FMA chain in the order of the columns, which has
 * at most CONV_CHAIN terms. */
#include "../conv_tiles.h"
#include "../conv_view.h"

/* Rows and vectors of a tile. 7 rows where a single vector is left: images are often 7, 14, 28 ... high. */
enum { RT = 4, TALL = 7, VT = 2 };

typedef struct work {
    const conv_job *job;
    const conv_geom *g;
    conv_view view;
    conv_column *columns;
    int n_columns;
    int64_t k, taps, rows, cols;
    const float *w;  /* of channel k, one float every wstride */
    int64_t wstride; /* from tap to tap */
    int64_t wstep;   /* from tap to tap of a column */
    float start;
    float *dst;     /* of channel k, first row of the band, first column; or NULL */
    float part[VL]; /* float runs of the sum of squares */
    double total;
} work;

/* vt vectors of outputs of one row: to dst, and if they are new into the runs. */
INLINE void finish(work *w, const vf *y, int64_t row, int64_t q, bool fresh, const int vt)
{
    UNROLL for (int v = 0; v < vt; v++)
    {
        const int64_t n = w->cols - q - v * VL;
        float *dst = w->dst + row * w->job->dst_row + q + v * VL;
        if (n <= 0) return;
        if (w->dst && n >= VL)
            v_store(dst, y[v]);
        else if (w->dst)
            v_store_n(dst, n, y[v]);
        if (w->job->sumsq && fresh) {
            const vf z = n >= VL ? y[v] : v_sel(v_first(n), y[v], v_zero());
            v_store(w->part, v_fma(z, z, v_load(w->part)));
        }
    }
}

static void merge(work *w)
{
    w->total += (double)v_hsum(v_load(w->part));
    v_store(w->part, v_zero());
}

/* A column of n taps: acc[r] += f[j] x[r + j]. */
INLINE void add_column(const work *w, const conv_column *c, const float *x, vf acc[TALL][VT], const int n,
                       const int rt, const int vt)
{
    vf f[CONV_COLUMN];
    x += c->off;
    UNROLL for (int j = 0; j < n; j++) f[j] = v_set1(w->w[c->tap * w->wstride + j * w->wstep]);
    UNROLL for (int i = 0; i < rt + n - 1; i++, x += w->view.row)
    {
        UNROLL for (int v = 0; v < vt; v++)
        {
            const vf a = v_load(x + v * VL);
            UNROLL for (int j = 0; j < n; j++) if (i - j >= 0 && i - j < rt) acc[i - j][v] =
                v_fma(f[j], a, acc[i - j][v]);
        }
    }
}

/* rt rows x vt vectors. Rows from `fresh` on have not been computed before. */
INLINE void tile(work *w, int64_t row, int64_t q, int64_t fresh, const int rt, const int vt)
{
    const float *x = w->view.base + row * w->view.row + q;
    vf acc[TALL][VT];
    UNROLL for (int r = 0; r < rt; r++) UNROLL for (int v = 0; v < vt; v++) acc[r][v] = v_set1(w->start);
    for (int i = 0; i < w->n_columns; i++) {
        const conv_column *c = &w->columns[i];
        switch (c->n) {
        case 1:
            add_column(w, c, x, acc, 1, rt, vt);
            break;
        case 2:
            add_column(w, c, x, acc, 2, rt, vt);
            break;
        case 3:
            add_column(w, c, x, acc, 3, rt, vt);
            break;
        case 4:
            add_column(w, c, x, acc, 4, rt, vt);
            break;
        default:
            add_column(w, c, x, acc, CONV_COLUMN, rt, vt);
            break;
        }
    }
    UNROLL for (int r = 0; r < rt; r++) finish(w, acc[r], row + r, q, row + r >= fresh, vt);
}

/* All rows of vt vectors from column q on, rt at a time. */
INLINE void strip(work *w, int64_t q, const int rt, const int vt)
{
    for (int64_t row = 0; row < w->rows; row += rt) {
        tile(w, cvyi_min64(row, w->rows - rt), q, row, rt, vt);
        if (w->job->sumsq) merge(w);
    }
}

static void strips(work *w)
{
    int64_t q = 0;
    for (; q + VL < w->cols; q += VT * VL) {
        if (w->rows >= RT)
            strip(w, q, RT, VT);
        else
            strip(w, q, 1, VT);
    }
    if (q >= w->cols) return;
    if (w->rows >= TALL)
        strip(w, q, TALL, 1);
    else if (w->rows >= RT)
        strip(w, q, RT, 1);
    else
        strip(w, q, 1, 1);
}

/* Taps of the view in columns: those of a kernel plane, column and row phase, as far as their rows lie below each
 * other. */
static void find_columns(work *w, const conv_tiling *t)
{
    const conv_geom *g = w->g;
    const int64_t S = g->kernel[2], phases = t->phases[0];
    w->n_columns = 0;
    for (int64_t i = 0; i < g->kernel[0] * phases * S; i++) {
        const int64_t d = i / (phases * S), first = (d * g->kernel[1] + i / S % phases) * S + i % S;
        conv_column *c = NULL;
        for (int64_t tap = first; tap < (d + 1) * g->kernel[1] * S; tap += phases * S) {
            const int64_t off = w->view.off[tap];
            if (c && c->n < CONV_COLUMN && off == c->off + c->n * w->view.row) {
                c->n++;
            } else {
                c = &w->columns[w->n_columns++];
                *c = (conv_column){off, (int32_t)tap, 1};
            }
        }
    }
}

/* One output channel of the band, from col0 on. */
static void channel(work *w, int64_t plane, int64_t band, int64_t row0, int64_t col0)
{
    const conv_job *job = w->job;
    const conv_geom *g = w->g;
    w->start = job->bias ? job->bias[w->k] : 0;
    w->dst = job->dst;
    if (w->dst) w->dst += w->k * job->dst_chan + plane * job->dst_plane + row0 * job->dst_row + col0;
    memset(w->part, 0, sizeof w->part);
    w->total = 0;
    strips(w);
    if (job->sumsq) job->sumsq[band * g->K + w->k] = (col0 ? job->sumsq[band * g->K + w->k] : 0) + w->total;
}

void CONV_ENTRY(depthwise, DEPTHWISE_TILE)(const conv_job *job, int64_t part, void *scratch)
{
    const conv_tiling *t = job->tiling;
    const conv_geom *g = &t->geom;
    const conv_span s = cvyi_conv_part(t, part);
    work w = {.job = job, .g = g, .taps = cvyi_conv_taps(g), .rows = s.rows};

    w.columns = scratch;
    w.view.off = (int64_t *)(w.columns + cvyi_round_up(w.taps, 4));
    w.view.copy = (float *)(w.view.off + cvyi_round_up(w.taps, 8));
    for (int64_t col0 = 0; col0 < g->out[2]; col0 += t->cols) {
        int64_t group = -1;
        w.cols = cvyi_min64(t->cols, g->out[2] - col0);
        for (int64_t b = s.block0; b < s.block0 + s.blocks; b++) {
            const conv_block block = cvyi_conv_block(t, b);
            if (block.group != group) {
                conv_part p = {block.group, s.plane, s.row0, s.rows, col0, w.cols, 0};
                p.reach = (p.rows - 1) * g->in[2] + p.cols + VT * VL;
                if (view_make(t, job, &p, &w.view)) find_columns(&w, t);
                group = block.group;
            }
            for (int i = 0; i < block.kn; i++) {
                w.k = block.k0 + i;
                w.w = job->packed + block.slot * w.taps + i;
                w.wstride = block.kt;
                w.wstep = t->phases[0] * g->kernel[2] * block.kt;
                channel(&w, s.plane, s.band, s.row0, col0);
            }
        }
    }
}
