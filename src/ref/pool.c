/* pool.c - max and average pooling, window by window; src and dst are [planes][3 spatial extents].
 *
 * A maximum ignores padding. An average counts it as zeros or ignores it, according to the divisor's rule (geom.c).
 */
#include <math.h>
#include "ref.h"

typedef double (*window_fn)(const pool_geom *e, const double *src, const int64_t start[3]);

/* Calls f once per window; start[] may lie in the padding. */
static void each_window(const ref_call *c, window_fn f)
{
    pool_geom e;
    cvyi_pool_geom(c->g, c->n, &e);
    const int64_t in = e.in[0] * e.in[1] * e.in[2], out = e.out[0] * e.out[1] * e.out[2];

    for (int64_t i = 0; i < e.planes * out; i++) {
        const int64_t o = i % out / (e.out[1] * e.out[2]), p = i / e.out[2] % e.out[1], q = i % e.out[2];
        const int64_t start[3] = {o * e.stride[0] - e.pad[0], p * e.stride[1] - e.pad[1],
                                  q * e.stride[2] - e.pad[2]};
        c->dst[i] = f(&e, c->arg[0] + i / out * in, start);
    }
}

/* The element at the tap (a, r, s) of a window, NULL on padding. */
static const double *tap(const pool_geom *e, const double *src, const int64_t start[3], int64_t i)
{
    const int64_t d = start[0] + i / (e->kernel[1] * e->kernel[2]) * e->dil[0];
    const int64_t h = start[1] + i / e->kernel[2] % e->kernel[1] * e->dil[1];
    const int64_t w = start[2] + i % e->kernel[2] * e->dil[2];
    const bool inside = d >= 0 && d < e->in[0] && h >= 0 && h < e->in[1] && w >= 0 && w < e->in[2];
    return inside ? &src[(d * e->in[1] + h) * e->in[2] + w] : NULL;
}

/* A NaN replaces any number and is never replaced by one, because no comparison with it is true. */
static double max_window(const pool_geom *e, const double *src, const int64_t start[3])
{
    const int64_t taps = e->kernel[0] * e->kernel[1] * e->kernel[2];
    double best = -INFINITY;

    for (int64_t i = 0; i < taps; i++) {
        const double *x = tap(e, src, start, i);
        if (x && (*x > best || isnan(*x))) best = *x;
    }
    return best;
}

static double avg_window(const pool_geom *e, const double *src, const int64_t start[3])
{
    const int64_t taps = e->kernel[0] * e->kernel[1] * e->kernel[2];
    double sum = 0;

    for (int64_t i = 0; i < taps; i++) {
        const double *x = tap(e, src, start, i);
        if (x) sum += *x;
    }
    return sum / (double)cvyi_pool_divisor(e, start);
}

void cvyi_ref_max_pool(const ref_call *c)
{
    each_window(c, max_window);
}

void cvyi_ref_avg_pool(const ref_call *c)
{
    each_window(c, avg_window);
}

/* Every sum is divided by its window's elements, so that an empty plane gives NaN as a mean does. */
static double mean_window(const pool_geom *e, const double *src, const int64_t at[3])
{
    int64_t first[3], end[3];
    double sum = 0, n = 0;

    for (int a = 0; a < 3; a++) cvyi_adaptive_window(e->in[a], e->out[a], at[a], &first[a], &end[a]);
    for (int64_t d = first[0]; d < end[0]; d++)
        for (int64_t h = first[1]; h < end[1]; h++)
            for (int64_t w = first[2]; w < end[2]; w++, n++) sum += src[(d * e->in[1] + h) * e->in[2] + w];
    return sum / n;
}

void cvyi_ref_adaptive(const ref_call *c)
{
    pool_geom e;
    cvyi_pool_geom(c->g, c->n, &e);
    const int64_t in = e.in[0] * e.in[1] * e.in[2], out = e.out[0] * e.out[1] * e.out[2];

    for (int64_t i = 0; i < e.planes * out; i++) {
        const int64_t at[3] = {i % out / (e.out[1] * e.out[2]), i / e.out[2] % e.out[1], i % e.out[2]};
        c->dst[i] = mean_window(&e, c->arg[0] + i / out * in, at);
    }
}
