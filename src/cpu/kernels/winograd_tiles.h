/* winograd_tiles.h - which tiles a strip of conv_winograd.c has, and which of their outputs exist. */
#ifndef CVYI_WINOGRAD_TILES_H
#define CVYI_WINOGRAD_TILES_H

#include "../conv_tiles.h"

enum {
    KT = WINO_KT,
    NT = WINO_NT,
    STRIP = NT * VL,
    ROW = STRIP * 4 + 2 * VL,
    RUN = CONV_GROUP,
    AHEAD = 4,
    CHAIN = 32
};

/* A piece of a vector of tiles that lies in one tile row. */
typedef struct piece {
    int64_t row, col; /* its first output; split: col is the number of the first tile in its row */
    int lane, n;
} piece;

/* One vector of tiles. */
typedef struct lanes {
    bool full; /* one piece, not split, and every output of every tile exists */
    int n;
    piece piece[VL];
    float *mask; /* [mh * mw][VL], all ones where the output exists; for those that are not full */
} lanes;

typedef struct work {
    const conv_job *job;
    const conv_tiling *t;
    conv_span span;
    int64_t channels; /* C * kernel depth */
    float *V, *M, *rows, *part;
    double *total;                       /* [channels of the part] */
    lanes group[CONV_GROUP][NT], *lanes; /* of the group's strips; of the current one */
} work;

/* The piece that begins at tile t of the band and has n tiles at most. */
INLINE piece piece_at(const work *w, int64_t t, int64_t n, const int mh, const int mw)
{
    const conv_tiling *of = w->t;
    const int64_t dil = of->geom.dil[1], group = t / of->tiles[1], rest = t % of->tiles[1];
    const int64_t phase = dil == 1 ? 0 : rest / of->across, col = rest - phase * of->across;
    return (piece){.row = w->span.row0 + group * mh * dil + phase,
                   .col = of->split_line ? col : col * mw,
                   .n = (int)cvyi_min64(of->across - col, n)};
}

/* Split: where output (i, j) of the tiles from lane `lane` of a piece on lies, and how many neighbours they have.
 */
INLINE int64_t split_run(const piece *p, int64_t lane, int64_t dil, int mw, int64_t *col)
{
    const int64_t at = p->col + lane, phase = at % dil;
    *col = at / dil * mw * dil + phase;
    return cvyi_min64(dil - phase, p->n - lane);
}

/* Output e of the tiles of a piece: marks those that exist. */
static void mark(const work *w, const piece *p, float *mask, int e, int mw)
{
    const int64_t Q = w->t->geom.out[2], dil = w->t->geom.dil[2], column = e % mw;
    const size_t each = sizeof *mask;
    if (!w->t->split_line) {
        const int64_t exist = cvyi_min64(cvyi_ceil_div(Q - p->col - column, mw), p->n);
        memset(mask + p->lane, 0xff, each * (size_t)cvyi_max64(exist, 0));
        return;
    }
    for (int64_t lane = 0, n, col; lane < p->n; lane += n) {
        n = split_run(p, lane, dil, mw, &col);
        const int64_t exist = cvyi_min64(Q - col - column * dil, n);
        memset(mask + p->lane + lane, 0xff, each * (size_t)cvyi_max64(exist, 0));
    }
}

/* Marks the outputs of a vector of tiles that exist. */
static void set_mask(const work *w, lanes *l, int mh, int mw)
{
    const conv_geom *g = &w->t->geom;
    memset(l->mask, 0, sizeof(float) * (size_t)(mh * mw * VL));
    for (int k = 0; k < l->n; k++)
        for (int e = 0; e < mh * mw; e++)
            if (l->piece[k].row + e / mw * g->dil[1] < g->out[1]) mark(w, &l->piece[k], l->mask + e * VL, e, mw);
}

/* Where the tiles t0...t0+n-1 of the band are, vector by vector. */
static void place(work *w, int64_t t0, int64_t n, int mh, int mw)
{
    const conv_geom *g = &w->t->geom;
    for (int v = 0; v < NT; v++) {
        lanes *l = &w->lanes[v];
        const int64_t end = cvyi_min64(n, (int64_t)(v + 1) * VL);
        const piece *first = l->piece;
        l->n = 0;
        for (int64_t i = (int64_t)v * VL; i < end; i += l->piece[l->n++].n) {
            l->piece[l->n] = piece_at(w, t0 + i, end - i, mh, mw);
            l->piece[l->n].lane = (int)(i - v * VL);
        }
        l->full = !w->t->split_line && l->n == 1 && first->n == VL &&
                  first->row + (mh - 1) * g->dil[1] < g->out[1] && first->col + VL * mw <= g->out[2];
        if (!l->full) set_mask(w, l, mh, mw);
    }
}

#endif
