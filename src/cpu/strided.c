/* strided.c - copies of tensors that do not lie as contiguous floats. See strided.h. */
#include "strided.h"

enum { PART = 32768, ROWS = 512, LINE = 16 /* floats */ };

/* ---- row by row ---- */

/* A piece of one row of a tensor, or of all of a contiguous one. */
typedef struct piece {
    char *memory;
    int64_t stride, count; /* elements */
} piece;

/* The piece that begins with element `at` and has `most` elements at most. */
static piece piece_at(const stretch *t, int64_t at, int64_t most)
{
    const shape *s = &t->v->shape;
    const int64_t *strides = t->tensor.strides;
    const int last = s->rank - 1;
    const bool whole = cvyi_is_contiguous(s, strides);
    const int64_t width = whole ? INT64_MAX : s->dim[last], stride = whole ? 1 : strides[last];
    int64_t rest = at / width, offset = at % width * stride;

    for (int d = last - 1; !whole && d >= 0; d--) {
        offset += rest % s->dim[d] * strides[d];
        rest /= s->dim[d];
    }
    return (piece){(char *)t->tensor.data + offset * cvyi_dtype_bytes(t->v->dtype), stride,
                   cvyi_min64(most, width - at % width)};
}

static void gather_rows(const cpu_run *r, const stretch *t, int64_t from, int64_t end, float *floats)
{
    const cpu_convert_kernels *convert = r->state->convert;
    const cvy_dtype dtype = t->v->dtype;

    while (from < end) {
        const piece p = piece_at(t, t->first + from, end - from);
        if (dtype != CVY_FLOAT32 && p.stride == 1)
            convert->widen[dtype](floats + from, (const uint16_t *)(const void *)p.memory, p.count);
        else
            convert->take[dtype](floats + from, p.memory, p.stride, p.count);
        from += p.count;
    }
}

void cvyi_scatter_rows(const cpu_run *r, const stretch *t, int64_t from, int64_t end, const float *floats)
{
    const cpu_convert_kernels *convert = r->state->convert;
    const cvy_dtype dtype = t->v->dtype;

    while (from < end) {
        const piece p = piece_at(t, t->first + from, end - from);
        if (dtype != CVY_FLOAT32 && p.stride == 1)
            convert->narrow[dtype]((uint16_t *)(void *)p.memory, floats + from, p.count);
        else
            convert->put[dtype](p.memory, p.stride, floats + from, p.count);
        from += p.count;
    }
}

/* ---- rows and columns exchanged ---- */

/* One axis, of extent above 1: steps in the tensor and in the floats. */
typedef struct axis {
    int64_t extent, tensor, floats;
} axis;

/* A stretch of whole indices of the first axis as matrices: along `high` the tensor is contiguous, along `wide` the
 * floats are. There are `others` of them, one for each index of the remaining axes. */
typedef struct turned {
    int64_t first; /* element of the tensor */
    axis high, wide;
    int n_axes; /* the remaining ones */
    axis axes[CVY_MAX_RANK];
    int64_t others;
    int64_t rows, columns;  /* of a block, */
    int64_t blocks, across; /* of a matrix: in all, beside each other */
    int64_t together;       /* small matrices of one part */
} turned;

/* Neighbours that run on in both are one axis. The extent of the first axis is that of the stretch. */
static int merged_axes(const stretch *t, int64_t samples, axis out[CVY_MAX_RANK])
{
    const shape *s = &t->v->shape;
    int64_t floats[CVY_MAX_RANK];
    int n = 0;

    cvyi_contiguous_strides(s, floats);
    for (int d = 0; d < s->rank; d++) {
        const axis a = {d ? s->dim[d] : samples, t->tensor.strides[d], floats[d]};
        axis *before = n ? &out[n - 1] : NULL;
        if (a.extent == 1) continue;
        if (before && before->tensor == a.tensor * a.extent && before->floats == a.floats * a.extent)
            *before = (axis){before->extent * a.extent, a.tensor, a.floats};
        else
            out[n++] = a;
    }
    return n;
}

static void cut(turned *m)
{
    const int64_t elements = m->high.extent * m->wide.extent;
    m->rows = cvyi_min64(m->high.extent, ROWS);
    m->columns = cvyi_min64(cvyi_round_up(cvyi_ceil_div(PART, m->rows), LINE), m->wide.extent);
    m->across = cvyi_ceil_div(m->wide.extent, m->columns);
    m->blocks = cvyi_ceil_div(m->high.extent, m->rows) * m->across;
    m->together = m->blocks > 1 ? 1 : cvyi_max64(1, PART / elements);
}

/* False: the stretch is copied row by row. */
static bool find_turned(const stretch *t, turned *m)
{
    const shape *s = &t->v->shape;
    axis all[CVY_MAX_RANK];
    int n, high = -1;

    if (!s->rank || t->n <= 0 || cvyi_is_contiguous(s, t->tensor.strides)) return false;
    const int64_t each = cvyi_elements(s) / s->dim[0];
    if (t->first % each || t->n % each) return false;
    n = merged_axes(t, t->n / each, all);
    for (int i = 0; i < n - 1; i++)
        if (all[i].tensor == 1) high = i;
    if (high < 0 || all[n - 1].tensor == 1) return false;
    *m = (turned){
        .first = t->first / each * t->tensor.strides[0], .high = all[high], .wide = all[n - 1], .others = 1};
    for (int i = 0; i < n - 1; i++) {
        if (i == high) continue;
        m->axes[m->n_axes++] = all[i];
        m->others *= all[i].extent;
    }
    cut(m);
    return true;
}

bool cvyi_turned(const shape *s, const int64_t *strides)
{
    const value v = {.shape = *s};
    const stretch all = {&v, {NULL, strides}, 0, cvyi_elements(s)};
    turned m;
    return find_turned(&all, &m);
}

/* A block of one of the matrices: where it begins in the tensor, and among the floats. */
typedef struct block {
    void *memory;
    int64_t floats, rows, columns;
} block;

static block block_at(const stretch *t, const turned *m, int64_t other, int64_t index)
{
    const int64_t row = index / m->across * m->rows, column = index % m->across * m->columns;
    int64_t at = m->first + row + column * m->wide.tensor, floats = row * m->high.floats + column;

    for (int i = m->n_axes - 1; i >= 0; i--) {
        const int64_t k = other % m->axes[i].extent;
        other /= m->axes[i].extent;
        at += k * m->axes[i].tensor, floats += k * m->axes[i].floats;
    }
    return (block){(char *)t->tensor.data + at * cvyi_dtype_bytes(t->v->dtype), floats,
                   cvyi_min64(m->rows, m->high.extent - row), cvyi_min64(m->columns, m->wide.extent - column)};
}

static void gather_turned(const cpu_run *r, const stretch *t, const turned *m, int64_t part, float *floats)
{
    const int64_t first = part / m->blocks * m->together, end = cvyi_min64(first + m->together, m->others);
    cpu_turn_fn *turn = r->state->turn->in[t->v->dtype];

    for (int64_t other = first; other < end; other++) {
        const block b = block_at(t, m, other, part % m->blocks);
        turn(floats + b.floats, m->high.floats, b.memory, m->wide.tensor, b.rows, b.columns);
    }
}

static void scatter_turned(const cpu_run *r, const stretch *t, const turned *m, int64_t part, const float *floats)
{
    const int64_t first = part / m->blocks * m->together, end = cvyi_min64(first + m->together, m->others);
    cpu_turn_fn *turn = r->state->turn->out[t->v->dtype];

    for (int64_t other = first; other < end; other++) {
        const block b = block_at(t, m, other, part % m->blocks);
        turn(b.memory, m->wide.tensor, floats + b.floats, m->high.floats, b.columns, b.rows);
    }
}

/* ---- either way ---- */

int64_t cvyi_strided_parts(const stretch *t)
{
    turned m;
    return find_turned(t, &m) ? m.blocks * cvyi_ceil_div(m.others, m.together) : cvyi_ceil_div(t->n, PART);
}

void cvyi_gather(const cpu_run *r, const stretch *t, int64_t part, float *floats)
{
    turned m;
    if (find_turned(t, &m))
        gather_turned(r, t, &m, part, floats);
    else
        gather_rows(r, t, part * PART, cvyi_min64((part + 1) * PART, t->n), floats);
}

void cvyi_scatter(const cpu_run *r, const stretch *t, int64_t part, const float *floats)
{
    turned m;
    if (find_turned(t, &m))
        scatter_turned(r, t, &m, part, floats);
    else
        cvyi_scatter_rows(r, t, part * PART, cvyi_min64((part + 1) * PART, t->n), floats);
}
