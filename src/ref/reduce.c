/* reduce.c - reductions over any dimensions, softmax and log_softmax over one, and copies into another shape.
 *
 * A line is a base address and a shape with strides: the elements that one result is made of. */
#include <math.h>
#include "ref.h"

typedef struct line {
    const double *base;
    const shape *s;
    const int64_t *strides;
    int64_t count;
} line;

static double element(const line *l, int64_t i)
{
    return l->base[cvyi_ref_offset(l->s, l->strides, i)];
}

/* ---- reductions of a line ---- */

static double sum_of(const line *l)
{
    double sum = 0;
    for (int64_t i = 0; i < l->count; i++) sum += element(l, i);
    return sum;
}

static double mean_of(const line *l)
{
    return sum_of(l) / (double)l->count;
}

/* The first NaN stays, because no comparison with it is true. */
static double max_of(const line *l)
{
    double best = -INFINITY;
    for (int64_t i = 0; i < l->count; i++) {
        const double x = element(l, i);
        if (x > best || isnan(x)) best = x;
    }
    return best;
}

static double min_of(const line *l)
{
    double best = INFINITY;
    for (int64_t i = 0; i < l->count; i++) {
        const double x = element(l, i);
        if (x < best || isnan(x)) best = x;
    }
    return best;
}

/* Shifted by the maximum against overflow; an infinite one would give inf - inf, and zero serves as well there. */
static double logsumexp_of(const line *l)
{
    const double max = max_of(l), shift = isinf(max) ? 0 : max;
    double sum = 0;
    for (int64_t i = 0; i < l->count; i++) sum += exp(element(l, i) - shift);
    return log(sum) + shift;
}

static double (*const reductions[OP_COUNT])(const line *) = {
    [OP_sum] = sum_of, [OP_mean] = mean_of, [OP_max] = max_of, [OP_min] = min_of, [OP_logsumexp] = logsumexp_of,
};

void cvyi_ref_reduce(const ref_call *c)
{
    const shape *x = ref_shape(c, 0);
    const unsigned reduced = cvyi_reduced_dims(c->g, c->n);
    const int64_t results = cvyi_elements(ref_dst_shape(c));
    shape part[2] = {{0, {0}}, {0, {0}}}; /* x's dimensions: those that stay, those that go */
    int64_t strides[CVY_MAX_RANK], part_strides[2][CVY_MAX_RANK];

    cvyi_contiguous_strides(x, strides);
    for (int d = 0; d < x->rank; d++) {
        const int which = reduced >> d & 1;
        part_strides[which][part[which].rank] = strides[d];
        part[which].dim[part[which].rank++] = x->dim[d];
    }
    line l = {NULL, &part[1], part_strides[1], cvyi_elements(&part[1])};
    for (int64_t i = 0; i < results; i++) {
        l.base = c->arg[0] + cvyi_ref_offset(&part[0], part_strides[0], i);
        c->dst[i] = reductions[c->n->op](&l);
    }
}

/* softmax: exp(x - max) / sum; log_softmax: x - max - log(sum). A line of only -inf, or with +inf, gives NaN. */
void cvyi_ref_softmax(const ref_call *c)
{
    const shape *x = ref_shape(c, 0);
    const int dim = cvyi_softmax_dim(c->g, c->n);
    const int64_t elements = cvyi_elements(x);
    const bool logarithm = c->n->op == OP_log_softmax;
    const shape along = {1, {x->rank ? x->dim[dim] : 1}};
    int64_t strides[CVY_MAX_RANK] = {1};

    cvyi_contiguous_strides(x, strides);
    const int64_t inner = x->rank ? strides[dim] : 1, count = along.dim[0];
    for (int64_t i = 0; i < elements / count; i++) {
        const int64_t start = i / inner * inner * count + i % inner;
        const line l = {c->arg[0] + start, &along, &inner, count};
        const double max = max_of(&l);
        double sum = 0;
        for (int64_t k = 0; k < count; k++) sum += exp(element(&l, k) - max);
        for (int64_t k = 0; k < count; k++) {
            const double d = element(&l, k) - max;
            c->dst[start + k * inner] = logarithm ? d - log(sum) : exp(d) / sum;
        }
    }
}

/* Same elements in the same order. */
void cvyi_ref_copy(const ref_call *c)
{
    const int64_t elements = cvyi_elements(ref_dst_shape(c));
    for (int64_t i = 0; i < elements; i++) c->dst[i] = c->arg[0][i];
}
