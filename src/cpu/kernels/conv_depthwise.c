/* conv_depthwise.c - convolutions whose groups have one input channel.
 *
 * Every output channel is a filter over one plane, so nothing is shared between channels but the view
 * (conv_view.h), which is small enough for L1. Two kernels, vectors along the output row:
 *
 *   3 rows, stride 1   walks down a column of 2 vectors: an input row is loaded once and added to the three output
 *                      rows that see it, which roll through registers: 3 loads and 9 FMAs per output vector (3x3)
 *   any                4 rows x 2 vectors in registers, a broadcast weight per tap: 9 loads per 8 FMAs
 *
 * Bound by memory for small filters. Numerics as in conv_direct.c: fp32 FMA chains in the order of the taps. */
#include "../conv_view.h"

enum { RT = 4, VT = 2, RUN = 8 };

typedef struct work {
    const conv_job *job;
    const conv_geom *g;
    conv_view view;
    int64_t k, taps, rows, cols;
    const float *w; /* of channel k, one float every wstride */
    int64_t wstride;
    float start;
    float *dst;     /* of channel k, first row of the band, first column; or NULL */
    float part[VL]; /* float runs of the sum of squares */
    double total;
} work;

/* vt vectors of outputs of one row: to dst and into the runs. */
INLINE void finish(work *w, const vf *y, int64_t row, int64_t q, const int vt)
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
        if (w->job->sumsq) {
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

/* rt rows x vt vectors, any filter. */
INLINE void tile(work *w, int64_t row, int64_t q, const int rt, const int vt)
{
    const float *x = w->view.base + row * w->view.row + q;
    vf acc[RT][VT];
    UNROLL for (int i = 0; i < rt * vt; i++) acc[i / vt][i % vt] = v_set1(w->start);
    for (int64_t t = 0; t < w->taps; t++) {
        const vf f = v_set1(w->w[t * w->wstride]);
        const float *p = x + w->view.off[t];
        UNROLL for (int r = 0; r < rt; r++, p += w->view.row) UNROLL for (int v = 0; v < vt; v++) acc[r][v] =
            v_fma(f, v_load(p + v * VL), acc[r][v]);
    }
    UNROLL for (int r = 0; r < rt; r++) finish(w, acc[r], row + r, q, vt);
}

static void tiles(work *w)
{
    int64_t row = 0;
    for (; row + RT <= w->rows; row += RT) {
        int64_t q = 0;
        for (; q + VL < w->cols; q += VT * VL) tile(w, row, q, RT, VT);
        if (q < w->cols) tile(w, row, q, RT, 1);
        if (row % RUN == RUN - RT) merge(w);
    }
    for (; row < w->rows; row++)
        for (int64_t q = 0; q < w->cols; q += VL) tile(w, row, q, 1, 1);
}

/* Down a column of vt vectors, 3 x 3. roll[0], roll[1]: the two output rows that are not complete. */
INLINE void column(work *w, int64_t q, const int vt)
{
    const float *x = w->view.base + q;
    vf f[9], roll[2][VT];
    UNROLL for (int t = 0; t < 9; t++) f[t] = v_set1(w->w[t * w->wstride]);
    UNROLL for (int v = 0; v < vt; v++) roll[0][v] = roll[1][v] = v_set1(w->start);
    for (int64_t i = 0; i < w->rows + 2; i++, x += w->view.row) {
        vf done[VT];
        UNROLL for (int v = 0; v < vt; v++)
        {
            const vf a = v_load(x + w->view.off[0] + v * VL), b = v_load(x + w->view.off[1] + v * VL);
            const vf c = v_load(x + w->view.off[2] + v * VL), start = v_set1(w->start);
            done[v] = v_fma(f[8], c, v_fma(f[7], b, v_fma(f[6], a, roll[0][v])));
            roll[0][v] = v_fma(f[5], c, v_fma(f[4], b, v_fma(f[3], a, roll[1][v])));
            roll[1][v] = v_fma(f[2], c, v_fma(f[1], b, v_fma(f[0], a, start)));
        }
        if (i >= 2) finish(w, done, i - 2, q, vt);
        if (i % RUN == RUN - 1) merge(w);
    }
    merge(w);
}

static void columns(work *w)
{
    int64_t q = 0;
    for (; q + VL < w->cols; q += VT * VL) column(w, q, VT);
    if (q < w->cols) column(w, q, 1);
}

/* One output channel of the band, from col0 on. */
static void channel(work *w, int64_t plane, int64_t band, int64_t row0, int64_t col0)
{
    const conv_job *job = w->job;
    const conv_geom *g = w->g;
    const bool rolls =
        g->kernel[0] == 1 && g->kernel[1] == 3 && g->kernel[2] == 3 && g->stride[1] == 1 && g->dil[1] == 1;
    w->start = job->bias ? job->bias[w->k] : 0;
    w->dst = job->dst;
    if (w->dst) w->dst += w->k * job->dst_chan + plane * job->dst_plane + row0 * job->dst_row + col0;
    memset(w->part, 0, sizeof w->part);
    w->total = 0;
    if (rolls)
        columns(w);
    else
        tiles(w);
    merge(w);
    if (job->sumsq) job->sumsq[band * g->K + w->k] = (col0 ? job->sumsq[band * g->K + w->k] : 0) + w->total;
}

void ISA(cvyi_conv_depthwise)(const conv_job *job, int64_t unit, void *scratch);
void ISA(cvyi_conv_depthwise)(const conv_job *job, int64_t unit, void *scratch)
{
    const conv_tiling *t = job->tiling;
    const conv_geom *g = &t->geom;
    const conv_span s = cvyi_conv_unit(t, unit);
    work w = {.job = job, .g = g, .taps = cvyi_conv_taps(g), .rows = s.rows};
    int64_t *off = scratch;
    float *copy = (float *)(off + cvyi_round_up(w.taps, 8));

    for (int64_t col0 = 0; col0 < g->out[2]; col0 += t->cols) {
        int64_t group = -1;
        w.cols = cvyi_min64(t->cols, g->out[2] - col0);
        for (int64_t b = s.block0; b < s.block0 + s.blocks; b++) {
            const conv_block block = cvyi_conv_block(t, b);
            if (block.group != group) {
                conv_part p = {block.group, s.plane, s.row0, s.rows, col0, w.cols, 0};
                p.reach = (p.rows - 1) * g->in[2] + p.cols + VT * VL;
                w.view = view_make(t, job->src, &p, copy, off);
                group = block.group;
            }
            for (int i = 0; i < block.kn; i++) {
                w.k = block.k0 + i;
                w.w = job->packed + block.slot * w.taps + i;
                w.wstride = block.kt;
                channel(&w, s.plane, s.band, s.row0, col0);
            }
        }
    }
}
