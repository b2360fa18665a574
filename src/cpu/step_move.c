/* step_move.c - operators that only move elements (cat, slice, permute, flip, expand, pad, interpolate): their
 * step, and their row in the table of kernels.
 *
 * Every argument fills a window of the result (move_geom). Neighbouring axes that are contiguous in both tensors
 * are merged, so cat along the channels copies whole samples. A row runs along the last axis; parts consist of
 * rows. */
#include "choice.h"

/* One axis of a window: the element at i comes from i * times / over steps of `stride` after the first. */
typedef struct axis {
    int64_t extent; /* of the result */
    int64_t at, count;
    int64_t times, over, stride;
} axis;

/* The window of one argument. */
typedef struct piece {
    int x;
    int64_t first; /* element of x */
    axis axes[CVY_MAX_RANK + 1];
    int n_axes;
    int64_t per_part; /* rows */
} piece;

typedef struct move_step {
    int out, n_pieces;
    bool fills;
    float fill;
    piece pieces[MAX_ARGS];
} move_step;

/* ---- rows ---- */

/* Rows of a piece run over its window; if the rest is filled, over all of the result. The first axis is that of
 * the samples: a unit has some of them. */
static int64_t rows_along(const move_step *c, const axis *a, bool samples, const cpu_unit *u)
{
    return samples && u->pass->samples > 1 ? u->m : c->fills ? a->extent : a->count;
}

static int64_t rows_of(const move_step *c, const piece *p, const cpu_unit *u)
{
    int64_t rows = 1;
    for (int d = 0; d < p->n_axes - 1; d++) rows *= rows_along(c, &p->axes[d], d == 0, u);
    return rows;
}

static int64_t parts_of(const move_step *c, const piece *p, const cpu_unit *u)
{
    return cvyi_ceil_div(rows_of(c, p, u), p->per_part);
}

static int64_t move_parts(const step *s, const cpu_unit *u)
{
    const move_step *c = s->data;
    int64_t parts = 0;
    for (int i = 0; i < c->n_pieces; i++) parts += parts_of(c, &c->pieces[i], u);
    return parts;
}

/* The elements of a row, i * times / over being counted up without a division. */
static void take_row(const cpu_vector_kernels *vec, const axis *a, const float *x, float *y)
{
    const int64_t whole = a->times / a->over * a->stride, rest = a->times % a->over;
    int64_t from = 0, left = 0;

    if (!rest && whole == 1) {
        vec->copy(y, x, a->count);
        return;
    }
    for (int64_t i = 0; i < a->count; i++) {
        y[i] = x[from];
        from += whole;
        left += rest;
        if (left < a->over) continue;
        left -= a->over;
        from += a->stride;
    }
}

static void write_row(const move_step *c, const cpu_vector_kernels *vec, const axis *a, const float *x, float *y)
{
    if (!c->fills) {
        take_row(vec, a, x, y + a->at);
    } else if (!x) {
        vec->fill(y, a->extent, c->fill);
    } else {
        vec->fill(y, a->at, c->fill);
        take_row(vec, a, x, y + a->at);
        vec->fill(y + a->at + a->count, a->extent - a->at - a->count, c->fill);
    }
}

static void run_rows(const move_step *c, const piece *p, const cpu_unit *u, int64_t first, int64_t n)
{
    const cpu_vector_kernels *vec = u->run->state->vec;
    const float *x = cvyi_unit_data(u, p->x);
    float *y = cvyi_unit_data(u, c->out);
    const axis *last = &p->axes[p->n_axes - 1];

    for (int64_t row = first; row < first + n; row++) {
        int64_t rest = row, from = p->first, to = 0, stride = last->extent;
        bool inside = true;
        for (int d = p->n_axes - 2; d >= 0; d--) {
            const axis *a = &p->axes[d];
            const int64_t rows = rows_along(c, a, d == 0, u), shift = c->fills ? a->at : 0, i = rest % rows - shift;
            rest /= rows;
            inside &= i >= 0 && i < a->count;
            from += i * a->times / a->over * a->stride;
            to += (i + a->at) * stride;
            stride *= a->extent;
        }
        write_row(c, vec, last, inside && last->count ? x + from : NULL, y + to);
    }
}

static void run_move(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const move_step *c = s->data;
    const piece *p = c->pieces;
    int64_t first;

    (void)scratch;
    while (part >= parts_of(c, p, u)) part -= parts_of(c, p++, u);
    first = part * p->per_part;
    run_rows(c, p, u, first, cvyi_min64(p->per_part, rows_of(c, p, u) - first));
}

/* ---- making ---- */

/* Do x and the result run on from axis a into b, all of which lies in the window? */
static bool joins(const axis *a, const axis *b)
{
    return a->times == a->over && b->times == b->over && b->count == b->extent && a->stride == b->stride * b->count;
}

static void make_piece(const builder *b, const node *n, int arg, piece *out)
{
    const shape *y = cvyi_shape_of(b->g, n->out);
    int64_t strides[CVY_MAX_RANK];
    move_geom m;

    cvyi_move_geom(b->g, n, arg, &m);
    cvyi_contiguous_strides(cvyi_shape_of(b->g, n->arg[arg]), strides);
    *out = (piece){.x = n->arg[arg]};
    for (int d = 0; d < m.rank; d++) {
        const axis a = {y->dim[d], m.at[d], m.count[d], m.times[d], m.over[d], strides[m.from[d]]};
        axis *before = out->n_axes ? &out->axes[out->n_axes - 1] : NULL;
        out->first += m.start[d] * a.stride;
        /* Samples stay separate if each unit has some of them. */
        if (before && !(d == 1 && b->out->samples > 1) && joins(before, &a))
            *before =
                (axis){before->extent * a.extent, before->at * a.extent, before->count * a.count, 1, 1, a.stride};
        else
            out->axes[out->n_axes++] = a;
    }
    if (!out->n_axes || (out->n_axes == 1 && b->out->samples > 1))
        out->axes[out->n_axes++] = (axis){1, 0, 1, 1, 1, 1};
    out->per_part = cvyi_max64(1, 32768 / cvyi_max64(out->axes[out->n_axes - 1].extent, 1));
}

static cvy_status make(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    void *data;
    step *s = cvyi_add_node_step(b, cvyi_info(n)->name, sizeof(move_step), move_parts, run_move, &data);
    move_step *c;
    move_geom m;

    if (!s) return CVY_NO_MEMORY;
    c = data;
    cvyi_move_geom(b->g, n, 0, &m);
    *c = (move_step){.out = n->out, .fills = m.fills, .fill = (float)m.fill};
    for (int a = 0; a < n->n_args; a++)
        if (n->arg[a] != CVY_NONE) make_piece(b, n, a, &c->pieces[c->n_pieces++]);
    return CVY_OK;
}

/* Runs are copied; elements that are not neighbours in x are copied one by one. */
static double seconds(const question *q, const cpu_row *row)
{
    const cvy_graph *g = q->plan->graph;
    const node *n = &g->nodes[q->index];
    move_geom m;

    (void)row;
    cvyi_move_geom(g, n, 0, &m);
    const int last = m.rank - 1;
    const bool runs = last < 0 || (m.from[last] == last && m.times[last] == m.over[last]);
    return (double)cvyi_elements(cvyi_shape_of(g, n->out)) * (runs ? 0.1e-9 : 0.8e-9);
}

const cpu_row cvyi_row_move = {.name = "move",
                               .kinds = 1u << KIND_MOVE,
                               .others = "does more than move elements",
                               .seconds = seconds,
                               .make = make};
