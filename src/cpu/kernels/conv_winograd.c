/* conv_winograd.c - Winograd's minimal filtering F(mh x mw, 3x3), stride 1: F(4x4), F(2x4), F(2x2).
 *
 * Vectors run along tiles. A strip is NT vectors of neighbouring tiles of the band, running on over the ends of
 * tile rows, so that narrow images fill vectors too. Per strip and chunk of input channels:
 *
 *   1. input transform   V[point][channel][strip]        Bt (x - xmean) B: along H on raw rows, then along W
 *   2. products          M[kt][point][strip] += U V      KT x NT register tiles, weights broadcast
 *   3. output transform  y = At M A, + bias, then statistics, maxima and dst straight from registers
 *
 * with 2 and 3 for KT output channels at a time, one after the other (3 of one block interleaved with 2 of the
 * next gained nothing). With few input channels V and M stay in L1 and nothing else is stored; with many, chunks of
 * them add up in M, which then holds all output channels of the part. A kernel of depth kd is 2-D with C * kd input
 * channels.
 *
 * Points: 0, +-1, infinity for m = 2; 0, +-5/8, +-3/2, infinity for m = 4 (all powers used are exact in fp32).
 * Numerics: everything fp32, weights transformed in double; sums over channels are chains of CHAIN terms, then of
 * the chains of a chunk, then of chunks. xmean and zero padding: padding is read as -xmean,
 * which makes the result conv of the padded x, less a constant per channel. A NaN or inf would spread over its
 * whole tile: callers send such samples to the direct form. */
#include "../conv.h"
#include "../conv_tiles.h"

enum { KT = WINO_KT, NT = WINO_NT, STRIP = NT * VL, ROW = STRIP * 4 + 2 * VL, RUN = 4, AHEAD = 4, CHAIN = 32 };

/* A piece of a vector of tiles that lies in one tile row. */
typedef struct piece {
    int64_t row, col; /* of its first tile, in tiles of the plane */
    int lane, n;
} piece;

/* One vector of tiles. */
typedef struct lanes {
    bool full; /* one piece, and every output of every tile exists */
    int n;
    piece piece[VL];
    float *mask; /* [mh * mw][VL], all ones where the output exists; for those that are not full */
} lanes;

typedef struct work {
    const conv_job *job;
    const conv_tiling *t;
    conv_span span;
    int64_t row0;     /* of the band, in tiles */
    int64_t channels; /* C * kernel depth */
    float *V, *M, *rows, *part;
    double *total; /* [channels of the part] */
    lanes lanes[NT];
} work;

#define PA 0.625f
#define PB 1.5f

/* v = Bt d along one axis. */
INLINE void input_1d(const int m, const vf *d, vf *v)
{
    if (m == 2) {
        v[0] = v_sub(d[2], d[0]), v[1] = v_add(d[2], d[1]), v[2] = v_sub(d[2], d[1]), v[3] = v_sub(d[3], d[1]);
        return;
    }
    const vf a = v_set1(PA), b = v_set1(PB), a2 = v_set1(PA * PA), b2 = v_set1(PB * PB);
    const vf e1 = v_fnma(b2, d[2], d[4]), o1 = v_mul(a, v_fnma(b2, d[1], d[3]));
    const vf e2 = v_fnma(a2, d[2], d[4]), o2 = v_fnma(a2, d[1], d[3]);
    v[0] = v_fnma(b2, v_fnma(a2, d[0], d[2]), e2);
    v[1] = v_add(e1, o1), v[2] = v_sub(e1, o1);
    v[3] = v_fma(b, o2, e2), v[4] = v_fnma(b, o2, e2);
    v[5] = v_fnma(b2, o2, v_fnma(a2, d[3], d[5]));
}

/* y = At z along one axis (plus `start`, unless NULL), one point j at a time in the order 0, infinity, 1, 2, (3,
 * 4): few values stay alive. */
INLINE void output_1d(const int m, const int j, vf z, vf *keep, vf *y, const vf *start)
{
    if (j == 0) {
        y[0] = start ? v_add(z, *start) : z;
    } else if (j == m + 1) {
        y[m - 1] = start ? v_add(z, *start) : z;
    } else if (j % 2) {
        *keep = z;
    } else {
        const vf s = v_add(*keep, z), d = v_sub(*keep, z);
        const float p = j == 2 ? PA : PB;
        y[0] = v_add(y[0], s);
        if (m == 2) {
            y[1] = v_add(y[1], d);
            return;
        }
        if (j == 2 && !start) {
            y[1] = v_mul(v_set1(p), d);
            y[2] = v_mul(v_set1(p * p), s);
        } else {
            y[1] = v_fma(v_set1(p), d, j == 2 ? *start : y[1]);
            y[2] = v_fma(v_set1(p * p), s, j == 2 ? *start : y[2]);
        }
        y[3] = v_fma(v_set1(p * p * p), d, y[3]);
    }
}

/* VL columns from x on of `rows` rows from y on, zeros outside the plane (NULL: all of it is outside). */
static __attribute__((noinline)) void load_edge(float *edge, const float *plane, int64_t y, int64_t x, int rows,
                                                const conv_geom *g)
{
    const int64_t H = g->in[1], W = g->in[2];
    for (int i = 0; i < rows; i++, y++) {
        const bool in = plane && y >= 0 && y < H;
        v_store(edge + i * VL, in ? v_load_range(plane + y * W + x, -x, W - x) : v_zero());
    }
}

/* m + 2 vectors of tile columns from interleaved ones: d[j] = p[m * lane + j]. */
INLINE void split(const int m, const float *p, vf *d)
{
    vf a[4];
    UNROLL for (int j = 0; j < m; j++) a[j] = v_load(p + j * VL);
    if (m == 4)
        v_unzip4(a, d);
    else
        d[0] = v_even(a[0], a[1]), d[1] = v_odd(a[0], a[1]);
    d[m] = v_next(d[0], v_set1(p[m * VL]));
    d[m + 1] = v_next(d[1], v_set1(p[m * VL + 1]));
}

/* Tiles of one row, n of them from (row, col) on, of one channel plane (NULL: outside, zeros) -> V. Writes whole
 * vectors: what is too much is overwritten by the next piece or channel, or falls on the slack after a point's
 * rows. */
INLINE void input_tiles(work *w, const float *plane, vf mean, int64_t row, int64_t col, int64_t n, float *V,
                        int64_t point, const int mh, const int mw)
{
    const conv_geom *g = &w->t->geom;
    const int64_t H = g->in[1], W = g->in[2], y0 = row * mh - g->pad[1], x0 = col * mw - g->pad[2];
    /* Where the next strip will read: farther along these rows or, at their end, mh rows below. */
    const int64_t ahead = col + n < w->t->tiles[1] ? n * mw : mh * W - x0;
    const bool rows_inside = plane && y0 >= 0 && y0 + mh + 2 <= H;
    float edge[6 * VL];
    vf d[6], v[6];

    for (int64_t x = 0; x < n * mw + 2; x += VL) {
        const bool inside = rows_inside && x0 + x >= 0 && x0 + x + VL <= W;
        const float *src = inside ? plane + y0 * W + x0 + x : edge;
        const int64_t pitch = inside ? W : VL;
        if (!inside) load_edge(edge, plane, y0, x0 + x, mh + 2, g);
        UNROLL for (int i = 0; i < mh + 2; i++) d[i] = v_sub(v_load(src + i * pitch), mean);
        if (inside) UNROLL for (int i = 0; i < mh + 2; i++) __builtin_prefetch(src + i * pitch + ahead);
        input_1d(mh, d, v);
        UNROLL for (int i = 0; i < mh + 2; i++) v_store(w->rows + i * ROW + x, v[i]);
    }
    for (int64_t j = 0; j < n; j += VL) {
        float *p = V + j;
        for (int i = 0; i < mh + 2; i++) {
            split(mw, w->rows + i * ROW + j * mw, d);
            input_1d(mw, d, v);
            UNROLL for (int k = 0; k < mw + 2; k++, p += point) v_store(p, v[k]);
        }
    }
}

/* Transforms channels c0... of the strip that begins at tile t0 of the band and has n tiles. */
INLINE void input_strip(work *w, int64_t t0, int64_t n, int64_t c0, int64_t channels, const int mh, const int mw)
{
    const conv_geom *g = &w->t->geom;
    const int64_t TW = w->t->tiles[1], depth = g->kernel[0], plane = g->in[1] * g->in[2];
    const int64_t point = w->t->chunk * STRIP + VL;
    for (int64_t c = 0; c < channels; c++) {
        const int64_t ci = (c0 + c) / depth,
                      z = w->span.plane * g->stride[0] - g->pad[0] + (c0 + c) % depth * g->dil[0];
        const float *src = z >= 0 && z < g->in[0] ? w->job->src + (ci * g->in[0] + z) * plane : NULL;
        const vf mean = v_set1(w->job->xmean ? w->job->xmean[ci] : 0);
        for (int64_t i = 0; i < n;) {
            const int64_t row = (t0 + i) / TW, col = (t0 + i) % TW, m = cvyi_min64(TW - col, n - i);
            input_tiles(w, src, mean, w->row0 + row, col, m, w->V + c * STRIP + i, point, mh, mw);
            i += m;
        }
    }
}

/* acc += U[c][KT] v[c][strip], n input channels. */
INLINE void multiply(vf acc[KT][NT], const float *U, const float *v, const int n)
{
    UNROLL for (int c = 0; c < n; c++)
    {
        vf x[NT];
        UNROLL for (int i = 0; i < NT; i++) x[i] = v_load(v + c * STRIP + i * VL);
        UNROLL for (int k = 0; k < KT; k++)
        {
            const vf u = v_set1(U[c * KT + k]);
            UNROLL for (int i = 0; i < NT; i++) acc[k][i] = v_fma(u, x[i], acc[k][i]);
        }
    }
}

/* M[kt][point][strip] = (first: 0, else M) + U[point][c][kt] V[point][c][strip]. Chains of CHAIN channels are
 * added up before they meet M. */
INLINE void products(const float *U, const float *V, float *M, int64_t channels, int64_t point, bool first,
                     const int points)
{
    for (int p = 0; p < points; p++, V += point, M += STRIP) {
        vf acc[KT][NT], sum[KT][NT];
        UNROLL for (int i = 0; i < KT * NT; i++) sum[i / NT][i % NT] = v_zero();
        for (int64_t c = 0; c < channels;) {
            const int64_t end = cvyi_min64(channels, c + CHAIN);
            UNROLL for (int i = 0; i < KT * NT; i++) acc[i / NT][i % NT] = v_zero();
            for (; c + 8 <= end; c += 8, U += 8 * KT) multiply(acc, U, V + c * STRIP, 8);
            for (; c < end; c++, U += KT) multiply(acc, U, V + c * STRIP, 1);
            UNROLL for (int i = 0; i < KT * NT; i++) sum[i / NT][i % NT] =
                v_add(sum[i / NT][i % NT], acc[i / NT][i % NT]);
        }
        UNROLL for (int i = 0; i < KT * NT; i++)
        {
            float *to = M + i / NT * points * STRIP + i % NT * VL;
            v_store(to, first ? sum[i / NT][i % NT] : v_add(v_load(to), sum[i / NT][i % NT]));
        }
    }
}

/* Where a vector of tiles that is not one piece goes, piece by piece. y: [ni][nj * VL], columns in order. */
static __attribute__((noinline)) void store_pieces(const float *y, const lanes *l, float *dst, int64_t pitch,
                                                   int64_t P, int64_t Q, int ni, int nj)
{
    for (int k = 0; k < l->n; k++) {
        const piece *p = l->piece + k;
        const int64_t rows = cvyi_min64(P - p->row * ni, ni),
                      cols = cvyi_min64(Q - p->col * nj, (int64_t)p->n * nj);
        const float *from = y + p->lane * nj;
        float *to = dst + p->row * ni * pitch + p->col * nj;
        for (int64_t i = 0; i < rows; i++, from += nj * VL, to += pitch)
            for (int64_t q = 0; q < cols; q += VL) v_store_n(to + q, cols - q, v_load_n(from + q, cols - q));
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

/* ni rows of nj interleaved vectors of columns, the part of them that lies in P x Q. */
INLINE void store_tiles(const vf *y, const lanes *l, float *dst, int64_t pitch, int64_t P, int64_t Q, const int ni,
                        const int nj)
{
    vf z[4];
    if (l->n > 1) {
        float line[16 * VL];
        UNROLL for (int i = 0; i < ni; i++)
        {
            zip_columns(y + i * nj, z, nj);
            UNROLL for (int j = 0; j < nj; j++) v_store(line + (i * nj + j) * VL, z[j]);
        }
        store_pieces(line, l, dst, pitch, P, Q, ni, nj);
        return;
    }
    const piece *p = l->piece;
    const int64_t rows = P - p->row * ni, cols = cvyi_min64(Q - p->col * nj, (int64_t)p->n * nj);
    dst += p->row * ni * pitch + p->col * nj;
    UNROLL for (int i = 0; i < ni; i++, dst += pitch)
    {
        zip_columns(y + i * nj, z, nj);
        if (i >= rows) return;
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
    float *dst = w->job->pool + (k * g->out[0] + w->span.plane) * PH * PW;
    vf m[16];
    UNROLL for (int i = 0; i < ni; i++) UNROLL for (int j = 0; j < nj; j++)
    {
        vf s[16];
        UNROLL for (int e = 0; e < ph * pw; e++) s[e] = y[(i * ph + e / pw) * mw + j * pw + e % pw];
        UNROLL for (int h = ph * pw / 2; h > 0; h /= 2) UNROLL for (int e = 0; e < h; e++) s[e] =
            v_max(s[e], s[e + h]);
        m[i * nj + j] = s[0];
    }
    store_tiles(m, l, dst, PW, PH, PW, ni, nj);
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

/* Adds the squares of a tile's outputs to the runs of its channel. */
INLINE void count(const vf *y, const lanes *l, float *part, const int outputs)
{
    vf q[2] = {v_load(part), v_zero()};
    UNROLL for (int e = 0; e < outputs; e++)
    {
        const vf v = l->full ? y[e] : v_and(y[e], v_load(l->mask + e * VL));
        q[e % 2] = v_fma(v, v, q[e % 2]);
    }
    v_store(part, v_add(q[0], q[1]));
}

/* Output transform of channel k (number i of the part) for one vector of tiles, and all that follows. */
INLINE void output_tiles(work *w, const float *M, const lanes *l, int64_t k, int64_t i, const int mh, const int mw)
{
    static const int order[2][6] = {{0, 3, 1, 2}, {0, 5, 1, 2, 3, 4}};
    const conv_job *job = w->job;
    const conv_geom *g = &w->t->geom;
    const vf start = v_set1(job->bias ? job->bias[k] : 0);
    vf y[16], keep[4];

    UNROLL for (int p = 0; p < mw + 2; p++)
    {
        const int j = order[mw == 4][p];
        vf z[4], last;
        UNROLL for (int q = 0; q < mh + 2; q++)
        {
            const int r = order[mh == 4][q];
            output_1d(mh, r, v_load(M + (r * (mw + 2) + j) * STRIP), &last, z, NULL);
        }
        UNROLL for (int r = 0; r < mh; r++) output_1d(mw, j, z[r], keep + r, y + r * mw, &start);
    }
    if (job->sumsq) count(y, l, w->part + i * VL, mh * mw);
    if (job->pool)
        pool_any(w, y, l, k, mh, mw);
    else if (job->dst)
        store_tiles(y, l, job->dst + k * job->dst_chan + w->span.plane * job->dst_plane, job->dst_row, g->out[1],
                    g->out[2], mh, mw);
}

/* Calls for the lines of dst that channel k is about to write. A strip's outputs lie in hundreds of short pieces,
 * which no hardware prefetcher foresees: without this, writing dst doubles the time. AHEAD channels are enough to
 * hide the outer cache, and few enough to stay in L1 where all channels fall on the same sets. */
static void expect_dst(const work *w, int64_t k, int mh, int mw)
{
    const conv_job *job = w->job;
    const float *dst = job->dst + k * job->dst_chan + w->span.plane * job->dst_plane;
    for (int v = 0; v < NT; v++) {
        const piece *p = w->lanes[v].piece;
        for (int i = 0; i < mh && w->lanes[v].n; i++) {
            const float *row = dst + (p->row * mh + i) * job->dst_row + p->col * mw;
            for (int x = 0; x <= p->n * mw; x += 16) __builtin_prefetch(row + x, 1);
        }
    }
}

/* All channels of a block, number i... of the part, and all vectors of the strip. */
INLINE void output_block(work *w, const float *M, int64_t k0, int64_t i, const int mh, const int mw)
{
    const int64_t points = (mh + 2) * (mw + 2);
    for (int k = 0; k < KT && k0 + k < w->t->geom.K; k++) {
        if (w->job->dst && k0 + k + AHEAD < w->t->geom.K) expect_dst(w, k0 + k + AHEAD, mh, mw);
        for (int v = 0; v < NT; v++)
            if (w->lanes[v].n)
                output_tiles(w, M + k * points * STRIP + v * VL, &w->lanes[v], k0 + k, i + k, mh, mw);
    }
}

/* Where the tiles t0...t0+n-1 of the band are, vector by vector. */
static void place(work *w, int64_t t0, int64_t n, int mh, int mw)
{
    const int64_t TW = w->t->tiles[1], P = w->t->geom.out[1], Q = w->t->geom.out[2];
    for (int v = 0; v < NT; v++) {
        lanes *l = &w->lanes[v];
        const int64_t end = cvyi_min64(n, (int64_t)(v + 1) * VL);
        l->n = 0;
        for (int64_t i = (int64_t)v * VL; i < end;) {
            piece *p = &l->piece[l->n++];
            p->row = w->row0 + (t0 + i) / TW, p->col = (t0 + i) % TW;
            p->lane = (int)(i - v * VL), p->n = (int)cvyi_min64(TW - p->col, end - i);
            i += p->n;
        }
        l->full =
            l->n == 1 && l->piece[0].n == VL && (l->piece[0].row + 1) * mh <= P && (l->piece[0].col + VL) * mw <= Q;
        if (l->full) continue;
        memset(l->mask, 0, sizeof(float) * (size_t)(mh * mw * VL));
        for (int k = 0; k < l->n; k++)
            for (int e = 0; e < mh * mw; e++) {
                const piece *p = &l->piece[k];
                const int64_t exist = p->row * mh + e / mw < P ? cvyi_ceil_div(Q - e % mw, mw) - p->col : 0;
                memset(l->mask + e * VL + p->lane, 0xff,
                       sizeof(float) * (size_t)cvyi_max64(cvyi_min64(exist, p->n), 0));
            }
    }
}

static void merge(work *w)
{
    for (int64_t i = 0; i < w->span.blocks * KT; i++) {
        w->total[i] += (double)v_hsum(v_load(w->part + i * VL));
        v_store(w->part + i * VL, v_zero());
    }
}

/* The three steps, compiled for one size of tile: apart, so that each has all registers to itself. */
typedef struct form {
    int mh, mw;
    void (*input)(work *w, int64_t t0, int64_t n, int64_t c0, int64_t channels);
    void (*products)(const float *U, const float *V, float *M, int64_t channels, int64_t point, bool first);
    void (*output)(work *w, const float *M, int64_t k0, int64_t i);
} form;

static void strip(work *w, const form *f, int64_t t0, int64_t n)
{
    const conv_tiling *t = w->t;
    const int64_t point = t->chunk * STRIP + VL, points = (f->mh + 2) * (f->mw + 2);
    place(w, t0, n, f->mh, f->mw);
    for (int64_t c0 = 0; c0 < w->channels; c0 += t->chunk) {
        const int64_t channels = cvyi_min64(t->chunk, w->channels - c0);
        f->input(w, t0, n, c0, channels);
        for (int64_t k = w->span.block0 * KT, i = 0; w->job->dst && i < AHEAD && k + i < t->geom.K; i++)
            expect_dst(w, k + i, f->mh, f->mw);
        for (int64_t b = 0; b < w->span.blocks; b++) {
            const int64_t k0 = (w->span.block0 + b) * KT;
            const float *U = w->job->packed + (k0 * w->channels + c0 * KT) * points;
            float *M = w->M + (t->chunks > 1 ? b * KT * points * STRIP : 0);
            f->products(U, w->V, M, channels, point, c0 == 0);
            if (c0 + channels == w->channels) f->output(w, M, k0, b * KT);
        }
    }
}

static void winograd(const conv_job *job, int64_t part, float *scratch, const form *f)
{
    const conv_tiling *t = job->tiling;
    const int64_t runs = t->blocks_per_part * KT, K = t->geom.K;
    work w;

    w.job = job, w.t = t, w.span = cvyi_conv_part(t, part);
    w.channels = t->geom.C * t->geom.kernel[0];
    w.row0 = w.span.row0 / f->mh;
    w.total = (double *)scratch, scratch += runs * 2;
    w.V = scratch, scratch += t->view_floats;
    w.M = scratch, scratch += t->tmp_floats;
    w.part = scratch, scratch += runs * VL;
    w.rows = scratch, scratch += 6 * ROW;
    for (int v = 0; v < NT; v++, scratch += 16 * VL) w.lanes[v].mask = scratch;
    memset(w.part, 0, sizeof(float) * (size_t)(runs * VL));
    memset(w.total, 0, sizeof(double) * (size_t)runs);

    const int64_t tiles = cvyi_ceil_div(w.span.rows, f->mh) * t->tiles[1], first = w.span.block0 * KT;
    for (int64_t i = 0; i * STRIP < tiles; i++) {
        strip(&w, f, i * STRIP, cvyi_min64(STRIP, tiles - i * STRIP));
        if (job->sumsq && (i % RUN == RUN - 1 || (i + 1) * STRIP >= tiles)) merge(&w);
    }
    for (int64_t k = 0; job->sumsq && k < w.span.blocks * KT && first + k < K; k++)
        job->sumsq[w.span.band * K + first + k] = w.total[k];
}

#define WINOGRAD(mh, mw)                                                                                           \
    static void input_##mh##x##mw(work *w, int64_t t0, int64_t n, int64_t c0, int64_t channels)                    \
    {                                                                                                              \
        input_strip(w, t0, n, c0, channels, mh, mw);                                                               \
    }                                                                                                              \
    static void products_##mh##x##mw(const float *U, const float *V, float *M, int64_t channels, int64_t point,    \
                                     bool first)                                                                   \
    {                                                                                                              \
        products(U, V, M, channels, point, first, (mh + 2) * (mw + 2));                                            \
    }                                                                                                              \
    static void output_##mh##x##mw(work *w, const float *M, int64_t k0, int64_t i)                                 \
    {                                                                                                              \
        output_block(w, M, k0, i, mh, mw);                                                                         \
    }                                                                                                              \
    void CONV_ENTRY(winograd_##mh##x##mw, WINO_TILE)(const conv_job *job, int64_t part, void *scratch)             \
    {                                                                                                              \
        static const form f = {mh, mw, input_##mh##x##mw, products_##mh##x##mw, output_##mh##x##mw};               \
        winograd(job, part, scratch, &f);                                                                          \
    }
WINOGRAD(4, 4)
WINOGRAD(2, 4)
WINOGRAD(2, 2)
