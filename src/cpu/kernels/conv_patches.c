/* conv_patches.c - convolution as a product of weights and patches of x: any rank, stride, padding, dilation,
 * groups.
 *
 * Output pixels of a band run on over the ends of rows, so that narrow images fill vectors too. A strip is up to
 * PATCH_PIXELS of them, cut into panels of VT vectors at most. Per strip, chunk of input channels and panel:
 *
 *   1. patches    B[term][width]      term = (d, r, s, c of the chunk): what the tap reads of x, 0 in the padding
 *   2. products   S[k][strip] += W B  KT x VT register tiles, weights broadcast    packed[chunk][block][term][KT]
 *
 * and after the last chunk S goes to dst and into the statistics. B (256 terms, 48 KiB on AVX-512, 16 on AVX2)
 * stays in the inner caches for all output channels of the part, the chunk's weights and S in L2 for all panels of
 * the strip. A patch costs a load and a store; the inner loop knows nothing of the geometry, so strides and
 * dilations cost no more than their reading. Taps that see only padding in all of a panel are left out,
 * unless a weight is not finite: padding times infinity is NaN.
 *
 * Numerics: a chunk's terms (PATCH_TERMS, or the taps of one channel) are one fp32 FMA chain, chunks are added in
 * order, then the bias; statistics are float runs of a strip per lane, merged in double. */
#include "../conv_tiles.h"
#include "../conv_view.h"

enum { KT = DIRECT_KT, VT = DIRECT_VT, WIDTH = VT * VL, PANELS = (PATCH_PIXELS + WIDTH - 1) / WIDTH };

/* Outputs of a panel that lie in one row. */
typedef struct run {
    int64_t row, col, n; /* of the plane */
} run;

/* Taps first ... end - 1 of an axis. */
typedef struct taps {
    int64_t first, end;
} taps;

typedef struct panel {
    int64_t at; /* first pixel, in the strip */
    int vt, n_runs;
    run runs[WIDTH];
    taps rows;
} panel;

typedef struct work {
    const conv_job *job;
    const conv_tiling *t;
    conv_span span;
    taps planes, columns;
    bool skip;              /* taps in the padding */
    int64_t start, n;       /* pixels of the strip, in the band */
    int64_t channels, taps; /* of a group; of the filter */
    int64_t c0, cn;         /* chunk */
    int64_t k0;             /* first output channel of the part */
    int n_panels;
    panel panels[PANELS];
    float *B, *S;
} work;

/* Taps of an axis that read x for some of the outputs from..to; all, if none may be skipped. */
static taps live_taps(const work *w, int axis, int64_t from, int64_t to)
{
    const conv_geom *g = &w->t->geom;
    const int64_t before = g->pad[axis] - to * g->stride[axis], dil = g->dil[axis];
    const int64_t last = g->in[axis] - 1 + g->pad[axis] - from * g->stride[axis];
    if (!w->skip) return (taps){0, g->kernel[axis]};
    return (taps){before > 0 ? cvyi_ceil_div(before, dil) : 0,
                  last < 0 ? 0 : cvyi_min64(last / dil + 1, g->kernel[axis])};
}

/* Cuts the strip into panels, as even as possible, and finds their rows. */
static void place(work *w)
{
    const int64_t Q = w->t->geom.out[2], vectors = cvyi_ceil_div(w->n, VL), panels = cvyi_ceil_div(vectors, VT);
    w->n_panels = (int)panels;
    for (int64_t i = 0, at = 0; i < panels; i++) {
        panel *p = &w->panels[i];
        p->at = at * VL;
        p->vt = (int)(vectors / panels + (i < vectors % panels));
        p->n_runs = 0;
        const int64_t end = w->start + cvyi_min64(w->n, p->at + p->vt * VL);
        for (int64_t j = w->start + p->at; j < end;) {
            run *r = &p->runs[p->n_runs++];
            *r = (run){w->span.row0 + j / Q, j % Q, cvyi_min64(Q - j % Q, end - j)};
            j += r->n;
        }
        p->rows = live_taps(w, 1, p->runs[0].row, p->runs[p->n_runs - 1].row);
        at += p->vt;
    }
}

/* VL values of a row from x on, every stride-th; zeros outside. */
INLINE vf every(const void *row, int64_t W, int64_t x, const int stride, const cvy_dtype type)
{
    vf v[4];
    UNROLL for (int i = 0; i < stride; i++) v[i] = view_load(row, x + i * VL, W, type);
    if (stride == 4) v[0] = v_even(v[0], v[1]), v[1] = v_even(v[2], v[3]);
    return stride == 1 ? v[0] : v_even(v[0], v[1]);
}

/* Up to VL outputs of a row, in some channels. */
typedef struct lanes {
    const void *row;  /* of x, in the first channel */
    int64_t from;     /* where the first output reads it */
    float *dst;       /* B of the first channel; the next ones are `width` apart */
    int64_t width, n; /* outputs */
    int64_t room;     /* floats of B from dst on: whole vectors are written where they fit */
} lanes;

/* Strides 1, 2 and 4: vectors. */
INLINE void gather_vectors(const work *w, const lanes *l, int64_t channels, const int stride, const cvy_dtype type)
{
    const conv_geom *g = &w->t->geom;
    const int64_t W = g->in[2], chan = g->in[0] * g->in[1] * W;
    const bool whole = l->from >= 0 && l->from + stride * VL <= W;
    for (int64_t c = 0; c < channels; c++) {
        const void *row = source_at(l->row, c * chan, type);
        const vf v = whole ? every(row, INT64_MAX, l->from, stride, type) : every(row, W, l->from, stride, type);
        if (l->room >= VL)
            v_store(l->dst + c * l->width, v);
        else
            v_store_n(l->dst + c * l->width, l->room, v);
    }
}

INLINE void gather_strided(const work *w, const lanes *l, int64_t channels, const cvy_dtype type)
{
    const int64_t stride = w->t->geom.stride[2];
    if (stride == 1)
        gather_vectors(w, l, channels, 1, type);
    else if (stride == 2)
        gather_vectors(w, l, channels, 2, type);
    else
        gather_vectors(w, l, channels, 4, type);
}

static void gather(const work *w, const lanes *l, int64_t channels)
{
    if (!l->row)
        for (int64_t c = 0; c < channels; c++) v_store_n(l->dst + c * l->width, l->n, v_zero());
    else if (w->job->dtype == CVY_FLOAT16)
        gather_strided(w, l, channels, CVY_FLOAT16);
    else if (w->job->dtype == CVY_BFLOAT16)
        gather_strided(w, l, channels, CVY_BFLOAT16);
    else
        gather_strided(w, l, channels, CVY_FLOAT32);
}

/* Other strides: all taps of a row for n outputs from column col on, float by float. B is that of the first tap. */
INLINE void gather_each(const work *w, const void *row, int64_t col, int64_t n, float *B, int64_t width,
                        const cvy_dtype type)
{
    const conv_geom *g = &w->t->geom;
    const int64_t W = g->in[2], stride = g->stride[2], dil = g->dil[2];
    int64_t x = col * stride - g->pad[2] + w->columns.first * dil;
    float *dst = B + w->columns.first * w->cn * width;
    for (int64_t s = w->columns.first; s < w->columns.end; s++, x += dil, dst += w->cn * width) {
        if (x >= 0 && x + (n - 1) * stride < W)
            for (int64_t j = 0; j < n; j++) dst[j] = source_one(row, x + j * stride, type);
        else
            for (int64_t j = 0; j < n; j++) {
                const int64_t at = x + j * stride;
                dst[j] = at >= 0 && at < W ? source_one(row, at, type) : 0;
            }
    }
}

static void gather_floats(const work *w, const void *row, int64_t col, int64_t n, float *B, int64_t width)
{
    if (w->job->dtype == CVY_FLOAT32)
        gather_each(w, row, col, n, B, width, CVY_FLOAT32);
    else
        gather_each(w, row, col, n, B, width, w->job->dtype);
}

/* What a row of taps reads for the outputs of a panel, in some channels, the first of which has its planes at
 * `plane` (NULL: in the padding) and its patches of the row's first tap at B: output row 0 reads row y of x.
 * Vectors that run over the end of a row write where the next one is written later. */
static void patch_row(const work *w, const panel *p, const void *plane, int64_t y, float *B, int64_t channels)
{
    const conv_geom *g = &w->t->geom;
    const int64_t W = g->in[2], size = g->in[0] * g->in[1] * W, width = p->vt * VL, stride = g->stride[2];
    const bool floats = stride != 1 && stride != 2 && stride != 4;
    for (int64_t i = 0, at = 0; i < p->n_runs; at += p->runs[i++].n) {
        const run *o = &p->runs[i];
        const int64_t row = o->row * g->stride[1] + y;
        const bool in = plane && row >= 0 && row < g->in[1];
        lanes l = {.row = in ? source_at(plane, row * W, w->job->dtype) : NULL, .width = width};
        if (floats && l.row) {
            for (int64_t c = 0; c < channels; c++)
                gather_floats(w, source_at(l.row, c * size, w->job->dtype), o->col, o->n, B + at + c * width,
                              width);
            continue;
        }
        for (int64_t s = w->columns.first; s < w->columns.end; s++)
            for (int64_t j = 0; j < o->n; j += VL) {
                l.from = (o->col + j) * stride + s * g->dil[2] - g->pad[2];
                l.dst = B + s * w->cn * width + at + j;
                l.n = cvyi_min64(o->n - j, VL);
                l.room = width - at - j;
                gather(w, &l, channels);
            }
    }
}

/* The patches of the chunk's channels, which begin at src, for one panel; a few channels at a time, whose rows stay
 * in L1 from tap to tap. */
static void patches(const work *w, const panel *p, const void *src)
{
    enum { FEW = 16 };
    const conv_geom *g = &w->t->geom;
    const int64_t width = p->vt * VL, plane = g->in[1] * g->in[2];
    for (int64_t c = 0; c < w->cn; c += FEW)
        for (int64_t d = w->planes.first; d < w->planes.end; d++) {
            const int64_t z = w->span.plane * g->stride[0] - g->pad[0] + d * g->dil[0];
            const bool in = z >= 0 && z < g->in[0];
            const void *x = in ? source_at(src, (c * g->in[0] + z) * plane, w->job->dtype) : NULL;
            for (int64_t r = p->rows.first; r < p->rows.end; r++)
                patch_row(w, p, x, r * g->dil[1] - g->pad[1],
                          w->B + ((d * g->kernel[1] + r) * g->kernel[2] * w->cn + c) * width,
                          cvyi_min64(FEW, w->cn - c));
        }
}

/* One register tile: S = (first chunk: 0, else S) + W B over the terms that are not skipped. */
INLINE void tile(const work *w, const panel *p, const float *f, float *S, const int kt, const int vt)
{
    const conv_geom *g = &w->t->geom;
    const int64_t pitch = w->t->cols, n = (w->columns.end - w->columns.first) * w->cn;
    vf acc[KT][VT];

    UNROLL for (int k = 0; k < kt; k++) UNROLL for (int v = 0; v < vt; v++) acc[k][v] = v_zero();
    for (int64_t d = w->planes.first; d < w->planes.end; d++)
        for (int64_t r = p->rows.first; r < p->rows.end; r++) {
            const int64_t at = ((d * g->kernel[1] + r) * g->kernel[2] + w->columns.first) * w->cn;
            const float *x = w->B + at * vt * VL, *u = f + at * kt;
            for (int64_t i = 0; i < n; i++, x += vt * VL, u += kt) {
                vf xv[VT];
                UNROLL for (int v = 0; v < vt; v++) xv[v] = v_load(x + v * VL);
                UNROLL for (int k = 0; k < kt; k++)
                {
                    const vf wv = v_set1(u[k]);
                    UNROLL for (int v = 0; v < vt; v++) acc[k][v] = v_fma(wv, xv[v], acc[k][v]);
                }
            }
        }
    UNROLL for (int k = 0; k < kt; k++) UNROLL for (int v = 0; v < vt; v++)
    {
        float *to = S + k * pitch + v * VL;
        v_store(to, w->c0 ? v_add(v_load(to), acc[k][v]) : acc[k][v]);
    }
}

CONV_TILES((const work *w, const panel *p, const float *f, float *S), w, p, f, S)

/* Sums of output channel k, less its bias so far, to dst; sum of squares. */
static double finish(const work *w, int64_t k)
{
    const conv_job *job = w->job;
    const vf start = v_set1(job->bias ? job->bias[k] : 0);
    const int64_t Q = w->t->geom.out[2];
    const float *S = w->S + (k - w->k0) * w->t->cols;
    float *dst = job->dst ? job->dst + k * job->dst_chan + w->span.plane * job->dst_plane : NULL;
    vf squares = v_zero();
    for (int64_t i = 0; i < w->n;) {
        const int64_t row = (w->start + i) / Q, col = (w->start + i) % Q, n = cvyi_min64(Q - col, w->n - i);
        float *to = dst ? dst + (w->span.row0 + row) * job->dst_row + col : NULL;
        for (int64_t j = 0; j < n; j += VL) {
            const vf y = v_add(v_load_n(S + i + j, n - j), start);
            const vf z = v_sel(v_first(n - j), y, v_zero());
            if (to) v_store_n(to + j, cvyi_min64(n - j, VL), y);
            squares = v_fma(z, z, squares);
        }
        i += n;
    }
    return v_hsum_double(squares);
}

/* Blocks b0 ... b1 - 1 of output channels, all of one group, for the strip. */
static void strip_of_group(work *w, int64_t b0, int64_t b1)
{
    const conv_tiling *t = w->t;
    const conv_geom *g = &t->geom;
    const int64_t size = g->in[0] * g->in[1] * g->in[2], group = cvyi_conv_block(t, b0).group;
    const int64_t slots = t->full * t->kt + t->tails * t->tail_kt;
    for (w->c0 = 0; w->c0 < w->channels; w->c0 += t->chunk) {
        const float *W = w->job->packed + (group * w->channels + w->c0) * slots * w->taps;
        w->cn = cvyi_min64(t->chunk, w->channels - w->c0);
        for (int i = 0; i < w->n_panels; i++) {
            const panel *p = &w->panels[i];
            patches(w, p, source_at(w->job->src, (group * w->channels + w->c0) * size, w->job->dtype));
            for (int64_t b = b0; b < b1; b++) {
                const conv_block k = cvyi_conv_block(t, b);
                tiles[CONV_TILE_KT(k.kt)][CONV_TILE_VT(p->vt)](w, p, W + (k.slot - group * slots) * w->cn * w->taps,
                                                               w->S + (k.k0 - w->k0) * t->cols + p->at);
            }
        }
    }
}

static void finish_blocks(const work *w)
{
    const conv_block last = cvyi_conv_block(w->t, w->span.block0 + w->span.blocks - 1);
    double *sumsq = w->job->sumsq ? w->job->sumsq + w->span.band * w->t->geom.K : NULL;
    for (int64_t k = w->k0; k < last.k0 + last.kn; k++) {
        const double sum = finish(w, k);
        if (sumsq) sumsq[k] = (w->start ? sumsq[k] : 0) + sum;
    }
}

void CONV_ENTRY(patches, DIRECT_TILE)(const conv_job *job, int64_t part, void *scratch)
{
    const conv_tiling *t = job->tiling;
    const conv_geom *g = &t->geom;
    work w = {.job = job, .t = t, .span = cvyi_conv_part(t, part), .channels = g->C / g->groups};
    const int64_t end = w.span.block0 + w.span.blocks;

    w.taps = cvyi_conv_taps(g);
    w.skip = job->packed[t->packed - 1] != 0;
    w.planes = live_taps(&w, 0, w.span.plane, w.span.plane);
    w.columns = live_taps(&w, 2, 0, g->out[2] - 1);
    w.k0 = cvyi_conv_block(t, w.span.block0).k0;
    w.B = scratch;
    w.S = w.B + t->view_floats;
    for (w.start = 0; w.start < w.span.rows * g->out[2]; w.start += t->cols) {
        w.n = cvyi_min64(t->cols, w.span.rows * g->out[2] - w.start);
        place(&w);
        for (int64_t b = w.span.block0; b < end;) {
            const int64_t next = cvyi_min64(end, (b / t->blocks + 1) * t->blocks);
            strip_of_group(&w, b, next);
            b = next;
        }
        finish_blocks(&w);
    }
}
