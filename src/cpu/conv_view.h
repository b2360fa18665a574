/* conv_view.h - the input of a band in the form the direct kernels read: every filter tap is a constant offset.
 *
 * Where a band lies inside the image and the stride is 1, the view is the caller's tensor itself. Else the part
 * that the band needs is copied into scratch: padding becomes zeros, and a stride s is taken apart into phases
 * (every s-th row or column), so that neighbouring outputs read neighbouring floats:
 *
 *   copy[channel][kernel plane][row phase][column phase][view rows][view columns]
 *
 * Output (p, q) of the band, tap (d, r, s) reads base[c * chan + p * row + q + off[d, r, s]]. Only phases that some
 * tap reads are kept. Included by kernels; compiled once per instruction set. */
#ifndef CVYI_CONV_VIEW_H
#define CVYI_CONV_VIEW_H

#include "conv.h"
#include "simd.h"

typedef struct conv_view {
    const float *base;
    int64_t chan, row; /* strides of input channels and output rows */
    int64_t *off;      /* [taps] */
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
    return index * dil % stride;
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
INLINE vf view_load(const float *row, int64_t x, int64_t W)
{
    return x >= 0 && x + VL <= W ? v_load(row + x) : v_load_range(row + x, -x, W - x);
}

/* Row of n floats: dst[j] = src[j * stride + x0] where that lies in 0...W-1, else 0. Writes whole vectors: what is
 * too much falls on the next row, which is written later, or on the slack behind the copy. */
INLINE void view_row(float *dst, int64_t n, const float *src, int64_t W, int64_t x0, int64_t stride)
{
    if (stride == 1) {
        for (int64_t j = 0; j < n; j += VL) v_store(dst + j, view_load(src, x0 + j, W));
    } else if (stride == 2) {
        for (int64_t j = 0; j < n; j += VL)
            v_store(dst + j, v_even(view_load(src, x0 + 2 * j, W), view_load(src, x0 + 2 * j + VL, W)));
    } else {
        for (int64_t j = 0; j < n; j++) {
            const int64_t x = x0 + j * stride;
            dst[j] = x >= 0 && x < W ? src[x] : 0;
        }
    }
}

/* Both phases of stride 2 from one look: even[j] = src[x0 + 2 j], odd[j] = src[x0 + 2 j + 1]. Writes n floats each.
 */
INLINE void view_pair(float *even, float *odd, int64_t n, const float *src, int64_t W, int64_t x0)
{
    int64_t j = 0;
    for (; j + VL <= n; j += VL) {
        const vf a = view_load(src, x0 + 2 * j, W), b = view_load(src, x0 + 2 * j + VL, W);
        v_store(even + j, v_even(a, b));
        v_store(odd + j, v_odd(a, b));
    }
    if (j < n) {
        const vf a = view_load(src, x0 + 2 * j, W), b = view_load(src, x0 + 2 * j + VL, W);
        v_store_n(even + j, n - j, v_even(a, b));
        v_store_n(odd + j, n - j, v_odd(a, b));
    }
}

/* One row of all column phases, which lie `apart` from each other; row NULL: zeros. */
INLINE void view_phases(const conv_tiling *t, const conv_part *p, const float *row, float *copy, int64_t apart)
{
    const conv_geom *g = &t->geom;
    const int64_t first = p->col0 * g->stride[2] - g->pad[2], n = t->view[1];
    if (row && g->stride[2] == 2 && t->phases[1] == 2) {
        view_pair(copy, copy + apart, n, row, g->in[2], first);
        return;
    }
    for (int64_t b = 0; b < t->phases[1]; b++) {
        if (!row)
            memset(copy + b * apart, 0, (size_t)n * sizeof *copy);
        else
            view_row(copy + b * apart, n, row, g->in[2], first + phase_value(b, g->dil[2], g->stride[2]),
                     g->stride[2]);
    }
}

INLINE void view_plane(const conv_tiling *t, const conv_part *p, const float *src, float *copy)
{
    const conv_geom *g = &t->geom;
    const int64_t apart = t->view[0] * t->view[1];
    for (int64_t a = 0; a < t->phases[0]; a++, copy += t->phases[1] * apart) {
        const int64_t y0 = p->row0 * g->stride[1] - g->pad[1] + phase_value(a, g->dil[1], g->stride[1]);
        for (int64_t i = 0; i < t->view[0]; i++) {
            const int64_t y = y0 + i * g->stride[1];
            const bool in = src && y >= 0 && y < g->in[1] && i < p->rows + t->view[0] - t->rows;
            view_phases(t, p, in ? src + y * g->in[2] : NULL, copy + i * t->view[1], apart);
        }
    }
}

/* True where every read of the part, vectors' overhang included, falls on the caller's tensor and no padding is
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

/* copy: tiling.view_floats of scratch; off: room for the taps' offsets. */
INLINE conv_view view_make(const conv_tiling *t, const float *src, const conv_part *p, float *copy, int64_t *off)
{
    const conv_geom *g = &t->geom;
    const int64_t size = g->in[0] * g->in[1] * g->in[2], channels = g->C / g->groups;
    const int64_t at[3] = {p->plane * g->stride[0] - g->pad[0], p->row0 * g->stride[1] - g->pad[1],
                           p->col0 * g->stride[2] - g->pad[2]};
    const bool source = view_is_source(g, p, at);
    conv_view v = {copy, t->phases[0] * t->phases[1] * t->view[0] * t->view[1], t->view[1], off};
    view_offsets(t, !source, off);
    src += p->group * channels * size;
    if (source) {
        v.base = src + (at[0] * g->in[1] + at[1]) * g->in[2] + at[2];
        v.chan = size, v.row = g->in[2];
        return v;
    }
    for (int64_t c = 0; c < channels; c++)
        for (int64_t d = 0; d < g->kernel[0]; d++) {
            const int64_t z = at[0] + d * g->dil[0];
            const bool in = z >= 0 && z < g->in[0];
            view_plane(t, p, in ? src + c * size + z * g->in[1] * g->in[2] : NULL, copy);
            copy += v.chan;
        }
    v.chan *= g->kernel[0];
    return v;
}

#endif
