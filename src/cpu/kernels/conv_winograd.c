/* conv_winograd.c - Winograd's minimal filtering F(mh x mw, 3x3), stride 1, any dilation: F(4x4), F(2x4), F(2x2).
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
 * channels. Strips then go together in groups, so that weights from an outer cache serve all of them.
 *
 * With dilation d, rows (columns) y, y + d, y + 2 d ... of the output read such rows (columns) of the input alone:
 * they are a phase, a convolution without dilation, and a tile lies in one. Tiles of all phases share strips. Where
 * columns are dilated, neighbouring tiles are those of neighbouring phases, and x is read from a split copy
 * (cvyi_conv_split) in which they are neighbours as well.
 *
 * Points: 0, +-1, infinity for m = 2; 0, +-5/8, +-3/2, infinity for m = 4 (all powers used are exact in fp32).
 * Numerics: everything fp32, weights transformed in double; sums over channels are chains of CHAIN terms, then of
 * the chains of a chunk, then of chunks. xmean and zero padding: padding is read as -xmean,
 * which makes the result conv of the padded x, less a constant per channel. A NaN or inf would spread over its
 * whole tile: callers send such samples to the direct form. */
#include "../source.h"
#include "winograd_store.h"

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

/* VL columns from x on of `rows` rows from y on, dil[1] apart; zeros outside the plane (NULL: all of it is
 * outside).
 */
INLINE void load_edge(float *edge, const void *plane, int64_t y, int64_t x, int rows, const conv_geom *g,
                      const cvy_dtype type)
{
    const int64_t H = g->in[1], W = g->in[2];
    for (int i = 0; i < rows; i++, y += g->dil[1]) {
        const bool in = plane && y >= 0 && y < H;
        v_store(edge + i * VL, in ? source_load_range(plane, y * W + x, -x, W - x, type) : v_zero());
    }
}

#define LOAD_EDGE(type)                                                                                            \
    static __attribute__((noinline)) void load_edge_##type(float *edge, const void *plane, int64_t y, int64_t x,   \
                                                           int rows, const conv_geom *g)                           \
    {                                                                                                              \
        load_edge(edge, plane, y, x, rows, g, type);                                                               \
    }
LOAD_EDGE(CVY_FLOAT32)
LOAD_EDGE(CVY_FLOAT16)
LOAD_EDGE(CVY_BFLOAT16)
static void (*const load_edges[DTYPE_COUNT])(float *, const void *, int64_t, int64_t, int,
                                             const conv_geom *) = {[CVY_FLOAT32] = load_edge_CVY_FLOAT32,
                                                                   [CVY_FLOAT16] = load_edge_CVY_FLOAT16,
                                                                   [CVY_BFLOAT16] = load_edge_CVY_BFLOAT16};

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

/* A piece of one channel plane (NULL: outside, zeros) -> V. Writes whole vectors: what is too much is overwritten
 * by the next piece or channel, or falls on the slack after a point's rows. */
INLINE void input_tiles(work *w, const void *plane, vf mean, const piece *from, float *V, const int mh,
                        const int mw, const cvy_dtype type)
{
    const conv_geom *g = &w->t->geom;
    const int64_t H = g->in[1], W = g->in[2], y0 = from->row - g->pad[1], x0 = from->col - g->pad[2], n = from->n;
    const int64_t point = w->t->chunk * STRIP + VL, dil = g->dil[1];
    /* Where the next strip will read: farther along these rows or, at their end, mh rows below. */
    const int64_t ahead = from->col + n * mw < g->out[2] ? n * mw : mh * W - x0;
    const bool rows_inside = plane && y0 >= 0 && y0 + (mh + 1) * dil < H;
    float edge[6 * VL];
    vf d[6], v[6];

    for (int64_t x = 0; x < n * mw + 2; x += VL) {
        const bool inside = rows_inside && x0 + x >= 0 && x0 + x + VL <= W;
        if (inside) {
            const void *src = source_at(plane, y0 * W + x0 + x, type);
            UNROLL for (int i = 0; i < mh + 2; i++) d[i] = v_sub(source_load(src, i * W * dil, type), mean);
            UNROLL for (int i = 0; i < mh + 2; i++) __builtin_prefetch(source_at(src, i * W * dil + ahead, type));
        } else {
            load_edges[type](edge, plane, y0, x0 + x, mh + 2, g);
            UNROLL for (int i = 0; i < mh + 2; i++) d[i] = v_sub(v_load(edge + i * VL), mean);
        }
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

/* The same of a split plane of floats, in which all that a tile reads exists. */
INLINE void input_split(work *w, const float *plane, vf mean, const piece *from, float *V, const int mh,
                        const int mw)
{
    const int64_t line = w->t->split_line, dil = w->t->geom.dil[2], point = w->t->chunk * STRIP + VL;
    const int64_t below = w->t->geom.dil[1] * mw * line;
    const float *src = plane + from->row * mw * line + from->col;
    vf d[6], v[6];

    for (int64_t x = 0; x < from->n; x += VL) {
        float *p = V + x;
        UNROLL for (int s = 0; s < mw + 2; s++)
        {
            const float *column = src + x + s % mw * line + s / mw * dil;
            UNROLL for (int i = 0; i < mh + 2; i++) d[i] = v_sub(v_load(column + i * below), mean);
            input_1d(mh, d, v);
            UNROLL for (int i = 0; i < mh + 2; i++) v_store(w->rows + (i * (mw + 2) + s) * VL, v[i]);
        }
        for (int i = 0; i < mh + 2; i++) {
            UNROLL for (int s = 0; s < mw + 2; s++) d[s] = v_load(w->rows + (i * (mw + 2) + s) * VL);
            input_1d(mw, d, v);
            UNROLL for (int s = 0; s < mw + 2; s++, p += point) v_store(p, v[s]);
        }
    }
}

/* A channel's plane for kernel plane d, or its split copy; NULL: it lies in the padding. */
INLINE const void *plane_of(const work *w, int64_t c, int64_t d, const cvy_dtype type)
{
    const conv_geom *g = &w->t->geom;
    const int64_t z = w->span.plane * g->stride[0] - g->pad[0] + d * g->dil[0];
    const int64_t each = w->t->split_line ? w->t->split_floats : g->in[1] * g->in[2];
    return z >= 0 && z < g->in[0] ? source_at(w->job->src, (c * g->in[0] + z) * each, type) : NULL;
}

/* Transforms channels c0... of the strips that begin at tile t0 of the band and have n tiles. */
INLINE void input_strip(work *w, int64_t t0, int64_t n, int64_t c0, int64_t channels, const int mh, const int mw,
                        const cvy_dtype type)
{
    const int64_t depth = w->t->geom.kernel[0];
    for (int64_t c = 0; c < channels; c++) {
        const int64_t ci = (c0 + c) / depth;
        const void *src = plane_of(w, ci, (c0 + c) % depth, type);
        const vf mean = v_set1(w->job->xmean ? w->job->xmean[ci] : 0);
        for (int64_t i = 0; i < n;) {
            const int64_t lane = i % STRIP;
            const piece p = piece_at(w, t0 + i, cvyi_min64(n - i, STRIP - lane), mh, mw);
            float *V = w->V + i / STRIP * w->t->view_floats + c * STRIP + lane;
            if (src && w->t->split_line)
                input_split(w, src, mean, &p, V, mh, mw);
            else
                input_tiles(w, src, mean, &p, V, mh, mw, type);
            i += p.n;
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

/* Prefetches weights from an outer cache two points before they are needed. */
INLINE void expect_weights(const float *U, int64_t floats)
{
    for (int64_t i = 0; i < floats; i += 64 / (int64_t)sizeof(float)) __builtin_prefetch(U + 2 * floats + i);
}

/* M[kt][point][strip] = (first: 0, else M) + U[point][c][kt] V[point][c][strip]. Chains of CHAIN channels are
 * added up before they meet M. */
INLINE void products(const float *U, const float *V, float *M, int64_t channels, int64_t point, bool first,
                     bool afar, const int points)
{
    for (int p = 0; p < points; p++, V += point, M += STRIP) {
        vf acc[KT][NT], sum[KT][NT];
        if (afar) expect_weights(U, channels * KT);
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
        store_outputs(w, y, l, k, mh, mw);
}

/* Prefetches the lines of dst that channel k is about to write. A strip's outputs are hundreds of short pieces,
 * which no hardware prefetcher predicts: without this, writing dst doubles the time. AHEAD channels are enough to
 * hide the outer cache, and few enough to stay in L1 where all channels fall on the same sets. */
static void expect_dst(const work *w, int64_t k, int mh, int mw)
{
    const conv_job *job = w->job;
    const float *dst = job->dst + k * job->dst_chan + w->span.plane * job->dst_plane;
    for (int v = 0; v < NT; v++) {
        const piece *p = w->lanes[v].piece;
        for (int i = 0; i < mh && w->lanes[v].n; i++) {
            const float *row = dst + (p->row + i * w->t->geom.dil[1]) * job->dst_row + p->col;
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

static void merge(work *w)
{
    for (int64_t i = 0; i < w->span.blocks * KT; i++) {
        w->total[i] += (double)v_hsum(v_load(w->part + i * VL));
        v_store(w->part + i * VL, v_zero());
    }
}

/* The three steps, compiled for one size of tile and, the first, for the dtype of x: each by itself, so that each
 * has all registers to itself. */
typedef struct form {
    int mh, mw;
    void (*input[DTYPE_COUNT])(work *w, int64_t t0, int64_t n, int64_t c0, int64_t channels);
    void (*products)(const float *U, const float *V, float *M, int64_t channels, int64_t point, bool first,
                     bool afar);
    void (*output)(work *w, const float *M, int64_t k0, int64_t i);
} form;

/* One block of output channels of a strip, number b of the part: products of a chunk, and what follows the last. */
static void block(work *w, const form *f, int64_t strip, int64_t b, int64_t c0, int64_t channels)
{
    const conv_tiling *t = w->t;
    const int64_t point = t->chunk * STRIP + VL, points = (f->mh + 2) * (f->mw + 2), k0 = (w->span.block0 + b) * KT;
    const float *U = w->job->packed + (k0 * w->channels + c0 * KT) * points;
    float *M = w->M + strip * t->tmp_floats + (t->chunks > 1 ? b * KT * points * STRIP : 0);
    w->lanes = w->group[strip];
    f->products(U, w->V + strip * t->view_floats, M, channels, point, c0 == 0, t->chunks > 1 && strip == 0);
    if (c0 + channels == w->channels) f->output(w, M, k0, b * KT);
}

/* Strips of the band from tile t0 on, n tiles. */
static void group(work *w, const form *f, int64_t t0, int64_t n)
{
    const conv_tiling *t = w->t;
    const int64_t strips = cvyi_ceil_div(n, STRIP), first = w->span.block0 * KT;
    for (int64_t s = 0; s < strips; s++) {
        w->lanes = w->group[s];
        place(w, t0 + s * STRIP, cvyi_min64(STRIP, n - s * STRIP), f->mh, f->mw);
    }
    for (int64_t c0 = 0; c0 < w->channels; c0 += t->chunk) {
        const int64_t channels = cvyi_min64(t->chunk, w->channels - c0);
        f->input[w->job->dtype](w, t0, n, c0, channels);
        w->lanes = w->group[0];
        for (int64_t i = 0; w->job->dst && i < AHEAD && first + i < t->geom.K; i++)
            expect_dst(w, first + i, f->mh, f->mw);
        for (int64_t b = 0; b < w->span.blocks; b++)
            for (int64_t s = 0; s < strips; s++) block(w, f, s, b, c0, channels);
    }
}

static void winograd(const conv_job *job, int64_t part, float *scratch, const form *f)
{
    const conv_tiling *t = job->tiling;
    const int64_t runs = t->blocks_per_part * KT, K = t->geom.K;
    work w;

    w.job = job, w.t = t, w.span = cvyi_conv_part(t, part);
    w.channels = t->geom.C * t->geom.kernel[0];
    w.total = (double *)scratch, scratch += runs * 2;
    w.V = scratch, scratch += t->group * t->view_floats;
    w.M = scratch, scratch += t->group * t->tmp_floats;
    w.part = scratch, scratch += runs * VL;
    w.rows = scratch, scratch += 6 * ROW;
    for (int64_t v = 0; v < t->group * NT; v++, scratch += 16 * VL) w.group[v / NT][v % NT].mask = scratch;
    memset(w.part, 0, sizeof(float) * (size_t)(runs * VL));
    memset(w.total, 0, sizeof(double) * (size_t)runs);

    const int64_t tiles = cvyi_ceil_div(w.span.rows, f->mh * t->geom.dil[1]) * t->tiles[1],
                  first = w.span.block0 * KT;
    for (int64_t i = 0; i * STRIP < tiles; i += t->group) {
        group(&w, f, i * STRIP, cvyi_min64(t->group * STRIP, tiles - i * STRIP));
        if (job->sumsq && ((i + t->group) % RUN == 0 || (i + t->group) * STRIP >= tiles)) merge(&w);
    }
    for (int64_t k = 0; job->sumsq && k < w.span.blocks * KT && first + k < K; k++)
        job->sumsq[w.span.band * K + first + k] = w.total[k];
}

#define INPUT(mh, mw, type)                                                                                        \
    static void input_##mh##x##mw##_##type(work *w, int64_t t0, int64_t n, int64_t c0, int64_t channels)           \
    {                                                                                                              \
        input_strip(w, t0, n, c0, channels, mh, mw, type);                                                         \
    }
#define INPUT_OF(mh, mw, type) [type] = input_##mh##x##mw##_##type
#define WINOGRAD(mh, mw)                                                                                           \
    INPUT(mh, mw, CVY_FLOAT32)                                                                                     \
    INPUT(mh, mw, CVY_FLOAT16)                                                                                     \
    INPUT(mh, mw, CVY_BFLOAT16)                                                                                    \
    static void products_##mh##x##mw(const float *U, const float *V, float *M, int64_t channels, int64_t point,    \
                                     bool first, bool afar)                                                        \
    {                                                                                                              \
        products(U, V, M, channels, point, first, afar, (mh + 2) * (mw + 2));                                      \
    }                                                                                                              \
    static void output_##mh##x##mw(work *w, const float *M, int64_t k0, int64_t i)                                 \
    {                                                                                                              \
        output_block(w, M, k0, i, mh, mw);                                                                         \
    }                                                                                                              \
    void CONV_ENTRY(winograd_##mh##x##mw, WINO_TILE)(const conv_job *job, int64_t part, void *scratch)             \
    {                                                                                                              \
        static const form f = {                                                                                    \
            mh,                                                                                                    \
            mw,                                                                                                    \
            {INPUT_OF(mh, mw, CVY_FLOAT32), INPUT_OF(mh, mw, CVY_FLOAT16), INPUT_OF(mh, mw, CVY_BFLOAT16)},        \
            products_##mh##x##mw,                                                                                  \
            output_##mh##x##mw};                                                                                   \
        winograd(job, part, scratch, &f);                                                                          \
    }
WINOGRAD(4, 4)
WINOGRAD(2, 4)
WINOGRAD(2, 2)
