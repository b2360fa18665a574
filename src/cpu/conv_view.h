/* conv_view.h - the input of a band in the form the direct kernels read: every filter tap is a constant offset.
 *
 * If a band lies inside the image and the stride is 1, the view is the caller's tensor itself. Else the part
 * that the band needs is copied into scratch: padding becomes zeros, and a stride s is split into phases
 * (every s-th row or column), so that neighbouring outputs read neighbouring floats:
 *
 *   copy[channel][kernel plane][row phase][column phase][view rows][view columns]
 *
 * Output (p, q) of the band, tap (d, r, s) reads base[c * chan + p * row + q + off[d, r, s]]. Only phases that some
 * tap reads are kept. Included by kernels; compiled once per instruction set. */
#ifndef CVYI_CONV_VIEW_H
#define CVYI_CONV_VIEW_H

#include "conv.h"
#include "source.h"

typedef struct conv_view {
    float *copy;       /* tiling.view_floats of scratch */
    int64_t *off;      /* [taps] of scratch */
    const float *base; /* NULL: no view has been made */
    int64_t chan, row; /* strides of input channels and output rows */
} conv_view;

/* What a view is of. */
typedef struct conv_part {
    int64_t group, plane, row0, rows, col0, cols;
    int64_t reach; /* positions, from the first output on, that vectors touch */
} conv_part;

/* Phases come in the order in which taps first read them. They repeat with the period stride / gcd(stride, dil), so
 * tap r has phase number r modulo that period: the number of phases kept is min(kernel, period). */
INLINE int64_t phase_value(int64_t index, int64_t dil, int64_t stride)
{
    return index ? index * dil % stride : 0;
}

INLINE void view_offsets(const conv_tiling *t, bool copied, int64_t *off)
{
    const conv_geom *g = &t->geom;
    const int64_t plane = copied ? t->view[0] * t->view[1] : 0;
    int64_t n = 0;
    for (int64_t d = 0; d < g->kernel[0]; d++)
        for (int64_t r = 0; r < g->kernel[1]; r++)
            for (int64_t s = 0; s < g->kernel[2]; s++) {
                const int64_t y = r * g->dil[1], x = s * g->dil[2];
                if (copied)
                    off[n++] = ((d * t->phases[0] + r % t->phases[0]) * t->phases[1] + s % t->phases[1]) * plane +
                               y / g->stride[1] * t->view[1] + x / g->stride[2];
                else
                    off[n++] = (d * g->dil[0] * g->in[1] + y) * g->in[2] + x;
            }
}

/* VL floats of a row of W from column x on, zeros outside. */
INLINE vf view_load(const void *row, int64_t x, int64_t W, const cvy_dtype type)
{
    return x >= 0 && x + VL <= W ? source_load(row, x, type) : source_load_range(row, x, -x, W - x, type);
}

/* The first n lanes. */
INLINE void view_store(float *p, int64_t n, vf a)
{
    if (n >= VL)
        v_store(p, a);
    else
        v_store_n(p, n, a);
}

/* Where n floats of a row begin in x, and how far they are from each other. */
typedef struct view_cut {
    int64_t x, stride, n;
} view_cut;

/* dst[j] = row[x + j stride] if that lies in 0...W-1, else 0. Writes whole vectors: what is too much falls on
 * the next row, which is written later, or on the slack after the copy. */
INLINE void view_row(float *dst, const void *row, int64_t W, view_cut c, const cvy_dtype type)
{
    if (c.stride == 1) {
        for (int64_t j = 0; j < c.n; j += VL) v_store(dst + j, view_load(row, c.x + j, W, type));
    } else if (c.stride == 2) {
        for (int64_t j = 0; j < c.n; j += VL)
            v_store(dst + j,
                    v_even(view_load(row, c.x + 2 * j, W, type), view_load(row, c.x + 2 * j + VL, W, type)));
    } else {
        for (int64_t j = 0; j < c.n; j++) {
            const int64_t x = c.x + j * c.stride;
            dst[j] = x >= 0 && x < W ? source_one(row, x, type) : 0;
        }
    }
}

/* Both phases of stride 2 in one pass: even[j] = row[x + 2 j], odd[j] = row[x + 2 j + 1]. Writes whole vectors,
 * but nothing from `end` of the even ones on: the odd plane's first row, written before, may follow. */
INLINE void view_pair(float *even, float *odd, const float *end, const void *row, int64_t W, view_cut c,
                      const cvy_dtype type)
{
    for (int64_t j = 0; j < c.n; j += VL) {
        const vf a = view_load(row, c.x + 2 * j, W, type), b = view_load(row, c.x + 2 * j + VL, W, type);
        const vf p = v_even(a, b), q = v_odd(a, b);
        if (even + j + VL > end) {
            v_store_n(even + j, cvyi_min64(c.n - j, VL), p);
            v_store_n(odd + j, cvyi_min64(c.n - j, VL), q);
        } else {
            v_store(even + j, p);
            v_store(odd + j, q);
        }
    }
}

/* Rows of the copy's plane that lie in x, those before them and those after them: zeros. */
typedef struct view_rows {
    const void *first; /* of those in x */
    int64_t pitch;     /* in x */
    int64_t before, inside, after;
} view_rows;

/* n rows from row y of x on, every step-th, of which the first `most` are wanted. plane NULL: only zeros. */
INLINE view_rows view_find_rows(const conv_geom *g, const void *plane, int64_t y, int64_t n, int64_t most,
                                const cvy_dtype type)
{
    const int64_t step = g->stride[1], left = g->in[1] - y;
    const int64_t before = y >= 0 ? 0 : step == 1 ? -y : cvyi_ceil_div(-y, step);
    const int64_t end = left <= 0 ? 0 : step == 1 ? left : cvyi_ceil_div(left, step);
    view_rows r = {NULL, step * g->in[2], cvyi_min64(before, n), 0, 0};
    if (plane) r.inside = cvyi_max64(cvyi_min64(end, most) - r.before, 0);
    if (r.inside) r.first = source_at(plane, (y + r.before * step) * g->in[2], type);
    r.after = n - r.before - r.inside;
    return r;
}

INLINE void view_zeros(float *dst, int64_t n)
{
    if (n > 0) memset(dst, 0, (size_t)n * sizeof *dst);
}

/* One column phase. A row of one vector has the same lanes outside x as every other. */
INLINE void view_phase(const conv_tiling *t, const view_rows *r, view_cut c, float *copy, const cvy_dtype type)
{
    const int64_t W = t->geom.in[2];
    const void *row = r->first;
    view_zeros(copy, r->before * c.n);
    copy += r->before * c.n;
    if (c.stride == 1 && c.n <= VL)
        for (int64_t i = 0; i < r->inside; i++, copy += c.n, row = source_at(row, r->pitch, type))
            v_store(copy, source_load_range(row, c.x, -c.x, W - c.x, type));
    else
        for (int64_t i = 0; i < r->inside; i++, copy += c.n, row = source_at(row, r->pitch, type))
            view_row(copy, row, W, c, type);
    view_zeros(copy, r->after * c.n);
}

/* Both column phases of stride 2, whose planes lie one after the other. */
INLINE void view_phases(const conv_tiling *t, const view_rows *r, view_cut c, float *even, const cvy_dtype type)
{
    const int64_t W = t->geom.in[2];
    const void *row = r->first;
    const float *end = even + (r->before + r->inside) * c.n;
    float *odd = even + t->view[0] * c.n;
    view_zeros(even, r->before * c.n);
    view_zeros(odd, r->before * c.n);
    even += r->before * c.n, odd += r->before * c.n;
    for (; c.n <= VL && even + VL <= end; even += c.n, odd += c.n, row = source_at(row, r->pitch, type)) {
        const vf x = source_load_range(row, c.x, -c.x, W - c.x, type);
        const vf y = source_load_range(row, c.x + VL, -c.x - VL, W - c.x - VL, type);
        v_store(even, v_even(x, y));
        v_store(odd, v_odd(x, y));
    }
    for (; even < end; even += c.n, odd += c.n, row = source_at(row, r->pitch, type))
        view_pair(even, odd, end, row, W, c, type);
    view_zeros(even, r->after * c.n);
    view_zeros(odd, r->after * c.n);
}

INLINE void view_plane(const conv_tiling *t, const conv_part *p, const void *src, float *copy, const cvy_dtype type)
{
    const conv_geom *g = &t->geom;
    const int64_t plane = t->view[0] * t->view[1], x = p->col0 * g->stride[2] - g->pad[2];
    const int64_t y = p->row0 * g->stride[1] - g->pad[1], most = p->rows + t->view[0] - t->rows;
    for (int64_t a = 0; a < t->phases[0]; a++, copy += t->phases[1] * plane) {
        const view_rows rows =
            view_find_rows(g, src, y + phase_value(a, g->dil[1], g->stride[1]), t->view[0], most, type);
        if (g->stride[2] == 2 && t->phases[1] == 2)
            view_phases(t, &rows, (view_cut){x, 2, t->view[1]}, copy, type);
        else
            for (int64_t b = 0; b < t->phases[1]; b++)
                view_phase(t, &rows,
                           (view_cut){x + phase_value(b, g->dil[2], g->stride[2]), g->stride[2], t->view[1]},
                           copy + b * plane, type);
    }
}

/* The copy of a part whose first output reads x from `at` on. */
INLINE void view_fill(const conv_tiling *t, const void *src, const conv_part *p, const int64_t at[3], float *copy,
                      const cvy_dtype type)
{
    const conv_geom *g = &t->geom;
    const int64_t size = g->in[0] * g->in[1] * g->in[2], channels = g->C / g->groups;
    const int64_t each = t->phases[0] * t->phases[1] * t->view[0] * t->view[1];

    src = source_at(src, p->group * channels * size, type);
    for (int64_t c = 0; c < channels; c++)
        for (int64_t d = 0; d < g->kernel[0]; d++, copy += each) {
            const int64_t z = at[0] + d * g->dil[0];
            const bool in = z >= 0 && z < g->in[0];
            view_plane(t, p, in ? source_at(src, c * size + z * g->in[1] * g->in[2], type) : NULL, copy, type);
        }
}

/* True if every read of the part, vectors' overhang included, falls on the caller's floats and no padding is
 * read. */
INLINE bool view_is_source(const conv_geom *g, const conv_part *p, const int64_t at[3])
{
    const int64_t size = g->in[0] * g->in[1] * g->in[2], channels = g->C / g->groups;
    const int64_t last[3] = {at[0] + (g->kernel[0] - 1) * g->dil[0], at[1] + (g->kernel[1] - 1) * g->dil[1],
                             at[2] + (g->kernel[2] - 1) * g->dil[2]};
    const int64_t end =
        ((p->group + 1) * channels - 1) * size + (last[0] * g->in[1] + last[1]) * g->in[2] + last[2];
    return g->stride[1] == 1 && g->stride[2] == 1 && at[0] >= 0 && at[1] >= 0 && at[2] >= 0 && last[0] < g->in[0] &&
           last[1] + p->rows <= g->in[1] && last[2] + p->cols <= g->in[2] && end + p->reach <= g->C * size;
}

/* The view of the next part of a sample, divided as in t. Offsets of taps are those of the copy or of the caller's
 * tensor; returns true if they have changed. */
INLINE bool view_make(const conv_tiling *t, const conv_job *job, const conv_part *p, conv_view *v)
{
    const conv_geom *g = &t->geom;
    const int64_t size = g->in[0] * g->in[1] * g->in[2];
    const int64_t at[3] = {p->plane * g->stride[0] - g->pad[0], p->row0 * g->stride[1] - g->pad[1],
                           p->col0 * g->stride[2] - g->pad[2]};
    const bool source = job->dtype == CVY_FLOAT32 && view_is_source(g, p, at);
    const bool other = !v->base || source == (v->base == v->copy);

    if (other) view_offsets(t, !source, v->off);
    if (source) {
        v->base = (const float *)job->src + p->group * (g->C / g->groups) * size +
                  (at[0] * g->in[1] + at[1]) * g->in[2] + at[2];
        v->chan = size, v->row = g->in[2];
        return other;
    }
    v->base = v->copy;
    v->chan = t->phases[0] * t->phases[1] * t->view[0] * t->view[1] * g->kernel[0];
    v->row = t->view[1];
    if (job->dtype == CVY_FLOAT16)
        view_fill(t, job->src, p, at, v->copy, CVY_FLOAT16);
    else if (job->dtype == CVY_BFLOAT16)
        view_fill(t, job->src, p, at, v->copy, CVY_BFLOAT16);
    else
        view_fill(t, job->src, p, at, v->copy, CVY_FLOAT32);
    return other;
}

#endif
