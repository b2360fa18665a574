/* winograd_store.h - the way of conv_winograd.c's outputs from registers to dst, or to the maxima of windows. */
#ifndef CVYI_WINOGRAD_STORE_H
#define CVYI_WINOGRAD_STORE_H

#include "winograd_tiles.h"

/* Where the outputs of tiles go, or their maxima. */
typedef struct target {
    float *dst;
    int64_t pitch, P, Q; /* of its rows; extents */
    int64_t ph, pw;      /* outputs that a value stands for */
    int64_t below;       /* rows between those of a tile */
} target;

/* A vector of tiles that is not one piece, piece by piece. y: [ni][nj * VL], columns in order. */
static __attribute__((noinline)) void store_pieces(const float *y, const lanes *l, const target *to, int ni, int nj)
{
    for (int k = 0; k < l->n; k++) {
        const piece *p = l->piece + k;
        const int64_t row = p->row / to->ph, col = p->col / to->pw;
        const int64_t rows = cvyi_min64(cvyi_ceil_div(to->P - row, to->below), ni);
        const int64_t cols = cvyi_min64(to->Q - col, (int64_t)p->n * nj);
        const float *from = y + p->lane * nj;
        float *dst = to->dst + row * to->pitch + col;
        for (int64_t i = 0; i < rows; i++, from += nj * VL, dst += to->below * to->pitch)
            for (int64_t q = 0; q < cols; q += VL) v_store_n(dst + q, cols - q, v_load_n(from + q, cols - q));
    }
}

/* A vector of tiles of a split plane. y: [mh][mw][VL] */
static __attribute__((noinline)) void store_split(const float *y, const lanes *l, const target *to, int64_t dil,
                                                  int mh, int mw)
{
    for (int k = 0; k < l->n; k++) {
        const piece *p = l->piece + k;
        const int64_t rows = cvyi_min64(cvyi_ceil_div(to->P - p->row, to->below), mh);
        for (int64_t lane = 0, n, col; lane < p->n; lane += n) {
            n = split_run(p, lane, dil, mw, &col);
            for (int64_t i = 0; i < rows; i++)
                for (int64_t j = 0; j < mw; j++) {
                    const int64_t x = col + j * dil, exist = cvyi_min64(to->Q - x, n);
                    if (exist <= 0) break;
                    v_store_n(to->dst + (p->row + i * to->below) * to->pitch + x, exist,
                              v_load_n(y + (i * mw + j) * VL + p->lane + lane, exist));
                }
        }
    }
}

/* nj vectors of tiles, one per column of a tile, as columns in order. */
INLINE void zip_columns(const vf *y, vf *z, const int nj)
{
    if (nj == 4)
        v_zip4(y, z);
    else if (nj == 2)
        v_zip2(y[0], y[1], &z[0], &z[1]);
    else
        z[0] = y[0];
}

/* ni rows of nj interleaved vectors of columns, the part of them that exists. */
INLINE void store_tiles(const vf *y, const lanes *l, const target *to, const int ni, const int nj)
{
    vf z[4];
    if (l->n > 1) {
        float line[16 * VL];
        UNROLL for (int i = 0; i < ni; i++)
        {
            zip_columns(y + i * nj, z, nj);
            UNROLL for (int j = 0; j < nj; j++) v_store(line + (i * nj + j) * VL, z[j]);
        }
        store_pieces(line, l, to, ni, nj);
        return;
    }
    const piece *p = l->piece;
    const int64_t row = p->row / to->ph, col = p->col / to->pw;
    const int64_t rows = to->P - row, cols = cvyi_min64(to->Q - col, (int64_t)p->n * nj);
    float *dst = to->dst + row * to->pitch + col;
    UNROLL for (int i = 0; i < ni; i++, dst += to->below * to->pitch)
    {
        zip_columns(y + i * nj, z, nj);
        if (i * to->below >= rows) return;
        if (cols == nj * VL)
            UNROLL for (int j = 0; j < nj; j++) v_store(dst + j * VL, z[j]);
        else
            UNROLL for (int j = 0; j < nj; j++) v_store_n(dst + j * VL, cols - j * VL, z[j]);
    }
}

/* Maxima of windows of ph x pw values of the tile, and their way out. */
INLINE void pool_tiles(const work *w, const vf *y, const lanes *l, int64_t k, const int mh, const int mw,
                       const int ph, const int pw)
{
    const conv_geom *g = &w->t->geom;
    const int64_t PH = g->out[1] / ph, PW = g->out[2] / pw;
    const int ni = mh / ph, nj = mw / pw;
    const target to = {w->job->pool + (k * g->out[0] + w->span.plane) * PH * PW, PW, PH, PW, ph, pw, 1};
    vf m[16];
    UNROLL for (int i = 0; i < ni; i++) UNROLL for (int j = 0; j < nj; j++)
    {
        vf s[16];
        UNROLL for (int e = 0; e < ph * pw; e++) s[e] = y[(i * ph + e / pw) * mw + j * pw + e % pw];
        UNROLL for (int h = ph * pw / 2; h > 0; h /= 2) UNROLL for (int e = 0; e < h; e++) s[e] =
            v_max(s[e], s[e + h]);
        m[i * nj + j] = s[0];
    }
    store_tiles(m, l, &to, ni, nj);
}

/* The legal windows: those that divide the tile. */
INLINE void pool_any(const work *w, const vf *y, const lanes *l, int64_t k, const int mh, const int mw)
{
    const int64_t ph = w->t->ph, pw = w->t->pw;
#define POOL(h, v)                                                                                                 \
    if (mh % h == 0 && mw % v == 0 && ph == h && pw == v) pool_tiles(w, y, l, k, mh, mw, h, v)
    POOL(4, 4);
    else POOL(2, 2);
    else POOL(2, 4);
    else POOL(4, 2);
    else POOL(1, 2);
    else POOL(2, 1);
    else POOL(1, 4);
    else POOL(4, 1);
#undef POOL
}

/* All outputs of the tiles to dst. */
INLINE void store_outputs(const work *w, const vf *y, const lanes *l, int64_t k, const int mh, const int mw)
{
    const conv_job *job = w->job;
    const conv_geom *g = &w->t->geom;
    float *dst = job->dst + k * job->dst_chan + w->span.plane * job->dst_plane;
    const target to = {dst, job->dst_row, g->out[1], g->out[2], 1, 1, g->dil[1]};
    if (w->t->split_line) {
        float lines[16 * VL];
        UNROLL for (int e = 0; e < mh * mw; e++) v_store(lines + e * VL, y[e]);
        store_split(lines, l, &to, g->dil[2], mh, mw);
    } else {
        store_tiles(y, l, &to, mh, mw);
    }
}

#endif
