/* move.c - operators that move elements and compute nothing: cat, slice, permute, flip, expand, pad,
 * interpolate. Their shape rules, and where every element comes from (move_geom). */
#include "shape.h"

/* ---- shapes ---- */

static cvy_status infer_cat(const cvy_graph *g, const node *n, shape *out)
{
    int64_t total = 0;
    int along = 0;
    cvy_status st = CVY_OK;

    *out = *cvyi_shape_of(g, n->arg[0]);
    if (!out->rank) return cvyi_fail(CVY_INVALID, "cat: x has no dimension to join along");
    TRY(cvyi_wrap_dim("cat", cvyi_attr(n, "dim")->i[0], out->rank, &along));
    for (int a = 0; a < n->n_args; a++) {
        const shape *s = n->arg[a] == CVY_NONE ? NULL : cvyi_shape_of(g, n->arg[a]);
        if (!s) continue;
        if (s->rank != out->rank)
            return cvyi_fail(CVY_INVALID, "cat: tensor %d has rank %d, expected %d", a, s->rank, out->rank);
        for (int d = 0; d < s->rank; d++)
            if (d != along && s->dim[d] != out->dim[d])
                return cvyi_fail(CVY_INVALID, "cat: tensor %d has extent %lld of dimension %d, expected %lld", a,
                                 L(s->dim[d]), d, L(out->dim[d]));
        if (!cvyi_add(total, s->dim[along], &total)) return cvyi_fail(CVY_INVALID, "cat: too many elements");
    }
    out->dim[along] = total;
fail:
    return st;
}

/* A position along an extent as Python counts it: from the end if negative, clamped to both ends. */
static int64_t clip(int64_t at, int64_t extent)
{
    if (at < 0) at += extent;
    return cvyi_max64(0, cvyi_min64(at, extent));
}

static void slice_range(const node *n, int64_t extent, int64_t *start, int64_t *count)
{
    const attr_value *end = cvyi_attr(n, "end");
    const int64_t last = end->count ? clip(end->i[0], extent) : extent;

    *start = clip(cvyi_attr(n, "start")->i[0], extent);
    *count = last > *start ? cvyi_ceil_div(last - *start, cvyi_attr(n, "step")->i[0]) : 0;
}

static cvy_status infer_slice(const cvy_graph *g, const node *n, shape *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    int64_t start;
    int d = 0;
    cvy_status st = CVY_OK;

    if (!x->rank) return cvyi_fail(CVY_INVALID, "slice: x has no dimension to cut");
    TRY(cvyi_check_positive(cvyi_info(n), n, "step", 1));
    TRY(cvyi_wrap_dim("slice", cvyi_attr(n, "dim")->i[0], x->rank, &d));
    *out = *x;
    slice_range(n, x->dim[d], &start, &out->dim[d]);
fail:
    return st;
}

static cvy_status infer_permute(const cvy_graph *g, const node *n, shape *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const attr_value *dims = cvyi_attr(n, "dims");
    unsigned seen = 0;
    cvy_status st = CVY_OK;

    if (dims->count != x->rank)
        return cvyi_fail(CVY_INVALID, "permute: x has rank %d, dims has %d numbers", x->rank, dims->count);
    *out = *x;
    for (int i = 0; i < x->rank; i++) {
        int d = 0;
        TRY(cvyi_wrap_dim("permute", dims->i[i], x->rank, &d));
        if (seen & 1u << d) return cvyi_fail(CVY_INVALID, "permute: dim %d appears twice", d);
        seen |= 1u << d;
        out->dim[i] = x->dim[d];
    }
fail:
    return st;
}

/* The dimensions to flip, each at most once, as bits. */
static cvy_status flipped_dims(const node *n, int rank, unsigned *out)
{
    const attr_value *dims = cvyi_attr(n, "dims");
    cvy_status st = CVY_OK;

    *out = 0;
    for (int i = 0; i < dims->count; i++) {
        int d = 0;
        TRY(cvyi_wrap_dim("flip", dims->i[i], rank, &d));
        if (*out & 1u << d) return cvyi_fail(CVY_INVALID, "flip: dim %d appears twice", d);
        *out |= 1u << d;
    }
fail:
    return st;
}

static cvy_status infer_flip(const cvy_graph *g, const node *n, shape *out)
{
    unsigned dims;
    *out = *cvyi_shape_of(g, n->arg[0]);
    return flipped_dims(n, out->rank, &dims);
}

/* Of the same rank: dimensions of one element become longer, -1 leaves one as it is. */
static cvy_status infer_expand(const cvy_graph *g, const node *n, shape *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const attr_value *want = cvyi_attr(n, "shape");

    if (want->count != x->rank)
        return cvyi_fail(CVY_INVALID, "expand: x has rank %d, shape has %d numbers", x->rank, want->count);
    *out = *x;
    for (int d = 0; d < x->rank; d++) {
        if (want->i[d] != -1) out->dim[d] = want->i[d];
        if (out->dim[d] < 0 || (out->dim[d] != x->dim[d] && x->dim[d] != 1))
            return cvyi_fail(CVY_INVALID, "expand: extent %lld of dimension %d does not become %lld", L(x->dim[d]),
                             d, L(want->i[d]));
    }
    return CVY_OK;
}

/* PyTorch lists the padding before and after the last dimension, then of the one before it, ... */
static void padding_of(const node *n, int rank, int d, int64_t *before, int64_t *after)
{
    const attr_value *pad = cvyi_attr(n, "pad");
    const int at = 2 * (rank - 1 - d);
    *before = at < pad->count ? pad->i[at] : 0;
    *after = at + 1 < pad->count ? pad->i[at + 1] : 0;
}

static cvy_status infer_pad(const cvy_graph *g, const node *n, shape *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const attr_value *pad = cvyi_attr(n, "pad");

    if (pad->count % 2 || pad->count > 2 * x->rank)
        return cvyi_fail(CVY_INVALID, "pad: %d numbers for rank %d, expected two for each of the last dimensions",
                         pad->count, x->rank);
    *out = *x;
    for (int d = 0; d < x->rank; d++) {
        int64_t before, after;
        padding_of(n, x->rank, d, &before, &after);
        if (!cvyi_add(x->dim[d], before, &out->dim[d]) || !cvyi_add(out->dim[d], after, &out->dim[d]))
            return cvyi_fail(CVY_INVALID, "pad: dimension %d is too long", d);
        /* What is cut off one end may not reach beyond the other: PyTorch differs from release to release there. */
        if (x->dim[d] + cvyi_min64(before, 0) + cvyi_min64(after, 0) < 0 || out->dim[d] < 0)
            return cvyi_fail(CVY_INVALID, "pad: extent %lld of dimension %d does not allow %lld and %lld",
                             L(x->dim[d]), d, L(before), L(after));
    }
    return CVY_OK;
}

static cvy_status infer_interpolate(const cvy_graph *g, const node *n, shape *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const attr_value *size = cvyi_attr(n, "size");
    const int spatial = x->rank - 2;
    int64_t both; /* what geometry multiplies */

    if (spatial < 1 || spatial > MAX_SPATIAL)
        return cvyi_fail(CVY_INVALID, "interpolate: x has rank %d, expected 3 to %d", x->rank, 2 + MAX_SPATIAL);
    if (size->count != 1 && size->count != spatial)
        return cvyi_fail(CVY_INVALID, "interpolate: size takes 1 or %d numbers, got %d", spatial, size->count);
    *out = *x;
    for (int i = 0; i < spatial; i++) {
        out->dim[2 + i] = size->i[size->count > 1 ? i : 0];
        if (out->dim[2 + i] < 1 || x->dim[2 + i] < 1)
            return cvyi_fail(CVY_INVALID, "interpolate: from extent %lld to %lld, expected at least 1",
                             L(x->dim[2 + i]), L(out->dim[2 + i]));
        if (!cvyi_mul(x->dim[2 + i], out->dim[2 + i], &both))
            return cvyi_fail(CVY_INVALID, "interpolate: size %lld is too large", L(out->dim[2 + i]));
    }
    return CVY_OK;
}

cvy_status cvyi_infer_move(const cvy_graph *g, const node *n, shape *out)
{
    switch (n->op) {
    case OP_cat:
        return infer_cat(g, n, out);
    case OP_slice:
        return infer_slice(g, n, out);
    case OP_permute:
        return infer_permute(g, n, out);
    case OP_flip:
        return infer_flip(g, n, out);
    case OP_expand:
        return infer_expand(g, n, out);
    case OP_pad:
        return infer_pad(g, n, out);
    default:
        return infer_interpolate(g, n, out);
    }
}

/* ---- geometry ---- */

/* A dimension counted from the end if negative, of a node that is legal. */
static int dim_of(int64_t dim, int rank)
{
    return (int)(dim < 0 ? dim + rank : dim);
}

void cvyi_move_geom(const cvy_graph *g, const node *n, int arg, move_geom *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[arg]), *y = cvyi_shape_of(g, n->out);
    const int along = n->op == OP_cat || n->op == OP_slice ? dim_of(cvyi_attr(n, "dim")->i[0], y->rank) : -1;
    unsigned flipped = 0;

    *out = (move_geom){.rank = y->rank, .fills = n->op == OP_pad};
    for (int d = 0; d < y->rank; d++) {
        out->from[d] = n->op == OP_permute ? dim_of(cvyi_attr(n, "dims")->i[d], y->rank) : d;
        out->count[d] = n->op == OP_cat ? x->dim[d] : y->dim[d];
        out->times[d] = out->over[d] = 1;
    }
    if (n->op == OP_cat)
        for (int a = 0; a < arg; a++)
            if (n->arg[a] != CVY_NONE) out->at[along] += cvyi_shape_of(g, n->arg[a])->dim[along];
    if (n->op == OP_slice) {
        slice_range(n, x->dim[along], &out->start[along], &out->count[along]);
        /* A longer step is never taken. */
        out->times[along] = cvyi_min64(cvyi_attr(n, "step")->i[0], cvyi_max64(x->dim[along], 1));
    }
    if (n->op == OP_flip) flipped_dims(n, y->rank, &flipped);
    for (int d = 0; d < y->rank; d++) {
        if (!(flipped >> d & 1)) continue;
        out->start[d] = x->dim[d] - 1;
        out->times[d] = -1;
    }
    for (int d = 0; d < y->rank && n->op == OP_expand; d++) out->times[d] = x->dim[d] == y->dim[d];
    for (int d = 0; d < y->rank && n->op == OP_pad; d++) {
        int64_t before, after;
        padding_of(n, y->rank, d, &before, &after);
        out->at[d] = cvyi_max64(before, 0);
        out->start[d] = cvyi_max64(-before, 0);
        out->count[d] = x->dim[d] + cvyi_min64(before, 0) + cvyi_min64(after, 0);
    }
    for (int d = 2; d < y->rank && n->op == OP_interpolate; d++) {
        out->times[d] = x->dim[d];
        out->over[d] = y->dim[d];
    }
    if (out->fills) out->fill = cvyi_attr(n, "value")->f;
}

bool cvyi_move_by_sample(const cvy_graph *g, const node *n)
{
    move_geom m;

    for (int a = 0; a < n->n_args; a++) {
        if (n->arg[a] == CVY_NONE) continue;
        cvyi_move_geom(g, n, a, &m);
        if (!m.rank || m.from[0] || m.at[0] || m.start[0] || m.times[0] != m.over[0]) return false;
        if (m.count[0] != cvyi_shape_of(g, n->out)->dim[0] || m.count[0] != cvyi_shape_of(g, n->arg[a])->dim[0])
            return false;
    }
    return true;
}
