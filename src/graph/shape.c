/* shape.c - shape inference: one rule per operator family, natural shapes of its tensors, and the checks that make
 * every legal node safe for the engines: no extent is negative, no product overflows. Families with spatial axes
 * are in shape_spatial.c. */
#include <string.h>
#include "shape.h"

static cvy_status fail_shape(const char *op, const char *what, const shape *got, const char *expected)
{
    text t = {0};
    cvy_status st;
    cvyi_text_add_shape(&t, got);
    st = cvyi_fail(CVY_INVALID, "%s: %s is %s, expected %s", op, what, t.failed ? "?" : t.data, expected);
    cvyi_text_free(&t);
    return st;
}

static cvy_status broadcast(const shape *a, const shape *b, shape *out, const char *where)
{
    const int rank = a->rank > b->rank ? a->rank : b->rank;
    shape s = {.rank = rank};
    for (int i = 0; i < rank; i++) {
        const int ia = i - (rank - a->rank), ib = i - (rank - b->rank);
        const int64_t da = ia < 0 ? 1 : a->dim[ia], db = ib < 0 ? 1 : b->dim[ib];
        if (da != db && da != 1 && db != 1)
            return cvyi_fail(CVY_INVALID, "%s: extents %lld and %lld of dimension %d do not broadcast", where,
                             L(da), L(db), i);
        s.dim[i] = da == 1 ? db : da;
    }
    *out = s;
    return CVY_OK;
}

cvy_status cvyi_wrap_dim(const char *op, int64_t dim, int rank, int *out)
{
    const int span = rank ? rank : 1; /* a scalar takes 0 and -1, as in PyTorch */
    if (dim < -span || dim >= span)
        return cvyi_fail(CVY_INVALID, "%s: dim %lld is out of range for rank %d", op, L(dim), rank);
    *out = (int)(dim < 0 ? dim + span : dim);
    return CVY_OK;
}

cvy_status cvyi_check_positive(const op_info *op, const node *n, const char *name, int64_t least)
{
    const attr_value *a = cvyi_attr(n, name);
    for (int i = 0; i < a->count; i++)
        if (a->i[i] < least)
            return cvyi_fail(CVY_INVALID, "%s: %s must be at least %lld, got %lld", op->name, name, L(least),
                             L(a->i[i]));
    return CVY_OK;
}

/* ---- producers ---- */

static cvy_status infer_linear(const cvy_graph *g, const node *n, shape *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    cvy_status st = cvyi_check_positive(cvyi_info(n), n, "out_features", 1);
    if (st) return st;
    if (x->rank < 1) return cvyi_fail(CVY_INVALID, "linear: x is a scalar, expected rank 1 or more");
    *out = *x;
    out->dim[x->rank - 1] = cvyi_attr(n, "out_features")->i[0];
    return CVY_OK;
}

static cvy_status infer_matmul(const cvy_graph *g, const node *n, shape *out)
{
    shape a, b, s;
    bool vector_a, vector_b;
    cvy_status st = CVY_OK;

    if (n->arg[1] == CVY_NONE) return cvyi_fail(CVY_INVALID, "matmul: other is missing");
    a = *cvyi_shape_of(g, n->arg[0]);
    b = *cvyi_shape_of(g, n->arg[1]);
    if (!a.rank || !b.rank) return cvyi_fail(CVY_INVALID, "matmul: both tensors need at least one dimension");
    vector_a = a.rank == 1;
    vector_b = b.rank == 1;
    if (vector_a) a = (shape){2, {1, a.dim[0]}};
    if (vector_b) b = (shape){2, {b.dim[0], 1}};
    if (a.dim[a.rank - 1] != b.dim[b.rank - 2])
        return cvyi_fail(CVY_INVALID, "matmul: x has %lld columns, other has %lld rows", L(a.dim[a.rank - 1]),
                         L(b.dim[b.rank - 2]));
    {
        const int64_t M = a.dim[a.rank - 2], N = b.dim[b.rank - 1];
        a.rank -= 2;
        b.rank -= 2;
        TRY(broadcast(&a, &b, &s, "matmul"));
        if (!vector_a) s.dim[s.rank++] = M;
        if (!vector_b) s.dim[s.rank++] = N;
    }
    *out = s;
fail:
    return st;
}

/* ---- norms ---- */

static cvy_status infer_trailing_norm(const op_info *op, const node *n, const shape *x)
{
    const attr_value *want = cvyi_attr(n, "normalized_shape");
    const int first = x->rank - want->count;
    text t = {0};
    cvy_status st = CVY_OK;
    bool fits = first >= 0 && want->count > 0;

    for (int i = 0; fits && i < want->count; i++) fits = x->dim[first + i] == want->i[i];
    if (!fits) {
        cvyi_text_add(&t, "one that ends with ");
        cvyi_text_add_shape(
            &t, &(shape){want->count, {want->i[0], want->i[1], want->i[2], want->i[3], want->i[4], want->i[5]}});
        st = fail_shape(op->name, "x", x, t.failed ? "its normalized_shape" : t.data);
        cvyi_text_free(&t);
    }
    return st;
}

/* A single value cannot be normalised; PyTorch refuses it, too. */
static cvy_status check_slice(const op_info *op, const node *n, const shape *x)
{
    const int64_t channels = x->dim[1] ? x->dim[1] : 1;
    int64_t per_slice = cvyi_elements(x) / channels;

    if (n->op == OP_instance_norm) per_slice = x->dim[0] ? per_slice / x->dim[0] : 2;
    if (n->op == OP_group_norm) per_slice *= channels / cvyi_attr(n, "num_groups")->i[0];
    if (n->op == OP_batch_norm && !cvyi_attr_true(n, "training")) per_slice = 2;
    if (per_slice == 1)
        return cvyi_fail(CVY_INVALID, "%s: expected more than one value per channel, x has one", op->name);
    return CVY_OK;
}

static cvy_status infer_norm(const cvy_graph *g, const node *n, shape *out)
{
    const op_info *op = cvyi_info(n);
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const int least = n->op == OP_instance_norm ? 3 : 2;
    cvy_status st = CVY_OK;

    *out = *x;
    if (n->op == OP_layer_norm || n->op == OP_rms_norm) return infer_trailing_norm(op, n, x);
    if (x->rank < least)
        return cvyi_fail(CVY_INVALID, "%s: x has rank %d, expected at least %d", op->name, x->rank, least);
    if (n->op == OP_group_norm) {
        const int64_t groups = cvyi_attr(n, "num_groups")->i[0];
        TRY(cvyi_check_positive(op, n, "num_groups", 1));
        if (x->dim[1] % groups)
            return cvyi_fail(CVY_INVALID, "group_norm: %lld channels are not divisible by num_groups %lld",
                             L(x->dim[1]), L(groups));
    }
    TRY(check_slice(op, n, x));
fail:
    return st;
}

static cvy_status infer_stats(const cvy_graph *g, const node *n, shape *out)
{
    norm_geom geom;
    cvy_status st = CVY_OK;

    TRY(cvyi_check_positive(cvyi_info(n), n, "groups", 1));
    TRY(cvyi_check_positive(cvyi_info(n), n, "chan", 0));
    TRY(cvyi_check_positive(cvyi_info(n), n, "inner", 0));
    cvyi_norm_geom(g, n, &geom);
    *out = (shape){3, {geom.over_outer ? 1 : geom.outer, geom.groups, STATS_FIELDS}};
fail:
    return st;
}

static cvy_status infer_apply(const cvy_graph *g, const node *n, shape *out)
{
    if (n->arg[1] == CVY_NONE) return cvyi_fail(CVY_INVALID, "norm_apply: stats are missing");
    *out = *cvyi_shape_of(g, n->arg[0]);
    return CVY_OK;
}

/* ---- pointwise ---- */

static cvy_status infer_same(const cvy_graph *g, const node *n, shape *out)
{
    *out = *cvyi_shape_of(g, n->arg[0]);
    return CVY_OK;
}

static cvy_status infer_clamp(const cvy_graph *g, const node *n, shape *out)
{
    if (n->op == OP_clamp && !cvyi_attr(n, "min")->count && !cvyi_attr(n, "max")->count)
        return cvyi_fail(CVY_INVALID, "clamp: min or max must be given");
    return infer_same(g, n, out);
}

static cvy_status infer_binary(const cvy_graph *g, const node *n, shape *out)
{
    const op_info *op = cvyi_info(n);
    const bool number = cvyi_attr(n, "other")->count > 0;
    if (number == (n->arg[1] != CVY_NONE))
        return cvyi_fail(CVY_INVALID, "%s: other must be a tensor or a number, %s given", op->name,
                         number ? "both are" : "neither is");
    if (number) return infer_same(g, n, out);
    return broadcast(cvyi_shape_of(g, n->arg[0]), cvyi_shape_of(g, n->arg[1]), out, op->name);
}

/* ---- reductions and shapes ---- */

static cvy_status infer_reduce(const cvy_graph *g, const node *n, shape *out)
{
    const op_info *op = cvyi_info(n);
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const attr_value *dims = cvyi_attr(n, "dim");
    const bool keep = cvyi_attr_true(n, "keepdim");
    unsigned seen = 0;
    cvy_status st = CVY_OK;

    for (int i = 0; i < dims->count; i++) {
        int d = 0;
        TRY(cvyi_wrap_dim(op->name, dims->i[i], x->rank, &d));
        if (seen & 1u << d) return cvyi_fail(CVY_INVALID, "%s: dim %d appears twice", op->name, d);
        seen |= 1u << d;
    }
    seen = cvyi_reduced_dims(g, n);
    *out = (shape){0};
    for (int i = 0; i < x->rank; i++) {
        const bool gone = seen >> i & 1;
        if (gone && !x->dim[i] && (n->op == OP_max || n->op == OP_min))
            return cvyi_fail(CVY_INVALID, "%s: dimension %d is empty, so it has no maximum or minimum", op->name,
                             i);
        if (!gone)
            out->dim[out->rank++] = x->dim[i];
        else if (keep)
            out->dim[out->rank++] = 1;
    }
fail:
    return st;
}

static cvy_status infer_softmax(const cvy_graph *g, const node *n, shape *out)
{
    int d;
    cvy_status st =
        cvyi_wrap_dim(cvyi_info(n)->name, cvyi_attr(n, "dim")->i[0], cvyi_shape_of(g, n->arg[0])->rank, &d);
    return st ? st : infer_same(g, n, out);
}

static cvy_status infer_reshape(const node *n, const shape *x, shape *out)
{
    const attr_value *want = cvyi_attr(n, "shape");
    int64_t known = 1;
    int open = -1;

    out->rank = want->count;
    for (int i = 0; i < want->count; i++) {
        out->dim[i] = want->i[i];
        if (want->i[i] < -1 || (want->i[i] == -1 && open >= 0))
            return cvyi_fail(CVY_INVALID, "reshape: extent %lld of dimension %d", L(want->i[i]), i);
        if (want->i[i] == -1)
            open = i;
        else if (!cvyi_mul(known, want->i[i], &known))
            return cvyi_fail(CVY_INVALID, "reshape: too many elements");
    }
    if (open >= 0) {
        if (!known || cvyi_elements(x) % known)
            return cvyi_fail(CVY_INVALID, "reshape: %lld elements do not divide by %lld", L(cvyi_elements(x)),
                             L(known));
        out->dim[open] = cvyi_elements(x) / known;
        known *= out->dim[open];
    }
    if (known != cvyi_elements(x))
        return cvyi_fail(CVY_INVALID, "reshape: x has %lld elements, the new shape %lld", L(cvyi_elements(x)),
                         L(known));
    return CVY_OK;
}

static cvy_status infer_flatten(const node *n, const shape *x, shape *out)
{
    int first = 0, last = 0;
    cvy_status st = CVY_OK;

    TRY(cvyi_wrap_dim("flatten", cvyi_attr(n, "start_dim")->i[0], x->rank, &first));
    TRY(cvyi_wrap_dim("flatten", cvyi_attr(n, "end_dim")->i[0], x->rank, &last));
    if (first > last) return cvyi_fail(CVY_INVALID, "flatten: start_dim %d is after end_dim %d", first, last);
    *out = (shape){1, {1}};
    if (!x->rank) return CVY_OK;
    out->rank = 0;
    for (int i = 0; i < x->rank; i++) {
        if (i > first && i <= last)
            out->dim[out->rank - 1] *= x->dim[i];
        else
            out->dim[out->rank++] = x->dim[i];
    }
fail:
    return st;
}

static cvy_status infer_squeeze(const node *n, const shape *x, shape *out)
{
    const attr_value *dims = cvyi_attr(n, "dim");
    unsigned asked = dims->count ? 0 : ~0u;
    cvy_status st = CVY_OK;

    for (int i = 0; i < dims->count; i++) {
        int d = 0;
        TRY(cvyi_wrap_dim("squeeze", dims->i[i], x->rank, &d));
        if (asked & 1u << d) return cvyi_fail(CVY_INVALID, "squeeze: dim %d appears twice", d);
        asked |= 1u << d;
    }
    *out = (shape){0};
    for (int i = 0; i < x->rank; i++)
        if (x->dim[i] != 1 || !(asked >> i & 1)) out->dim[out->rank++] = x->dim[i];
fail:
    return st;
}

static cvy_status infer_unsqueeze(const node *n, const shape *x, shape *out)
{
    int at = 0;
    cvy_status st = cvyi_wrap_dim("unsqueeze", cvyi_attr(n, "dim")->i[0], x->rank + 1, &at);
    if (st) return st;
    if (x->rank == CVY_MAX_RANK) return cvyi_fail(CVY_INVALID, "unsqueeze: x already has rank %d", x->rank);
    *out = (shape){.rank = x->rank + 1};
    for (int i = 0; i <= x->rank; i++) out->dim[i] = i == at ? 1 : x->dim[i - (i > at)];
    return CVY_OK;
}

static cvy_status infer_shape(const cvy_graph *g, const node *n, shape *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    if (n->op == OP_reshape) return infer_reshape(n, x, out);
    if (n->op == OP_flatten) return infer_flatten(n, x, out);
    if (n->op == OP_squeeze) return infer_squeeze(n, x, out);
    if (n->op == OP_unsqueeze) return infer_unsqueeze(n, x, out);
    *out = *x;
    return CVY_OK;
}

/* ---- tensors after the first ---- */

static void natural_norm(const cvy_graph *g, const node *n, int i, shape *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const char *name = cvyi_info(n)->tensors[i - 1];
    const attr_value *trailing = cvyi_attr(n, "normalized_shape");
    const bool running = !strncmp(name, "running", 7);

    *out = (shape){1, {x->rank > 1 ? x->dim[1] : 0}};
    if (trailing) {
        out->rank = trailing->count;
        memcpy(out->dim, trailing->i, sizeof out->dim);
    }
    if (running ? cvyi_attr_true(n, "training") : !cvyi_attr_true(n, "affine")) out->rank = SHAPE_ABSENT;
    if (n->op == OP_layer_norm && i == 2 && !cvyi_attr_true(n, "bias")) out->rank = SHAPE_ABSENT;
}

cvy_status cvyi_natural_shape(const cvy_graph *g, const node *n, int i, shape *out)
{
    const shape *x = cvyi_shape_of(g, n->arg[0]);

    *out = (shape){.rank = SHAPE_FREE};
    switch (cvyi_info(n)->kind) {
    case KIND_CONV:
    case KIND_CONVT:
        cvyi_natural_conv(g, n, i, out);
        break;
    case KIND_NORM:
        natural_norm(g, n, i, out);
        break;
    case KIND_LINEAR:
        *out = (shape){2, {cvyi_attr(n, "out_features")->i[0], x->rank ? x->dim[x->rank - 1] : 0}};
        if (i == 2) out->rank = cvyi_attr_true(n, "bias") ? 1 : SHAPE_ABSENT;
        break;
    default:
        break;
    }
    return CVY_OK;
}

static cvy_status check_tensors(const cvy_graph *g, const node *n)
{
    const op_info *op = cvyi_info(n);
    cvy_status st = CVY_OK;

    for (int i = 1; i <= op->n_tensors && !st; i++) {
        shape want;
        text t = {0};
        TRY(cvyi_natural_shape(g, n, i, &want));
        if (want.rank < 0) continue;
        if (n->arg[i] == CVY_NONE) return cvyi_fail(CVY_INVALID, "%s: %s is missing", op->name, op->tensors[i - 1]);
        if (cvyi_same_shape(&want, cvyi_shape_of(g, n->arg[i]))) continue;
        cvyi_text_add_shape(&t, &want);
        st = fail_shape(op->name, op->tensors[i - 1], cvyi_shape_of(g, n->arg[i]), t.failed ? "another" : t.data);
        cvyi_text_free(&t);
    }
fail:
    return st;
}

cvy_status cvyi_infer(const cvy_graph *g, const node *n, shape *out)
{
    static cvy_status (*const rules[])(const cvy_graph *, const node *, shape *) = {
        [KIND_CONV] = cvyi_infer_conv,    [KIND_CONVT] = cvyi_infer_conv,
        [KIND_LINEAR] = infer_linear,     [KIND_MATMUL] = infer_matmul,
        [KIND_NORM] = infer_norm,         [KIND_UNARY] = infer_clamp,
        [KIND_BINARY] = infer_binary,     [KIND_MAXPOOL] = cvyi_infer_pool,
        [KIND_AVGPOOL] = cvyi_infer_pool, [KIND_ADAPTIVE] = cvyi_infer_adaptive,
        [KIND_REDUCE] = infer_reduce,     [KIND_SOFTMAX] = infer_softmax,
        [KIND_SHAPE] = infer_shape,       [KIND_STATS] = infer_stats,
        [KIND_APPLY] = infer_apply,       [KIND_MOVE] = cvyi_infer_move,
    };
    cvy_status st = rules[cvyi_info(n)->kind](g, n, out);
    return st ? st : check_tensors(g, n);
}
