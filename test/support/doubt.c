/* doubt.c - see doubt.h. */
#define TEST_WITHOUT_CMOCKA
#include <float.h>
#include "doubt.h"

typedef struct doubt_run {
    const rig *r;
    double **value, **mag; /* per value of the graph */
    bool exact, beyond;
    uint64_t seed;
    doubt_rounding by;
    int way; /* 1, -1: every element is moved, this way; 0: the values as they are */
} doubt_run;

enum { DOUBT_PAIRS = 2, DOUBT_SAFETY = 16 };

static void (*const doubt_reference[OP_COUNT])(const ref_call *c) = {
#define OP(name, kind, spatial, attributes, tensors, reference, flags) [OP_##name] = cvyi_ref_##reference,
#include "../../src/graph/ops.def"
#undef OP
};

/* Operators whose results are whole where their arguments are. */
static bool doubt_keeps_whole(op_id op)
{
    switch (cvyi_ops[op].kind) {
    case KIND_CONV:
    case KIND_CONVT:
    case KIND_LINEAR:
    case KIND_MATMUL:
    case KIND_MAXPOOL:
    case KIND_SHAPE:
        return true;
    default:
        return op == OP_add || op == OP_sub || op == OP_mul || op == OP_maximum || op == OP_minimum ||
               op == OP_relu || op == OP_relu6 || op == OP_hardtanh || op == OP_clamp || op == OP_abs ||
               op == OP_neg || op == OP_square || op == OP_sum || op == OP_max || op == OP_min;
    }
}

/* The node that computes magnitudes from magnitudes: signs gone, minima as maxima. OP_COUNT: |result| will do. */
static op_id doubt_linear(op_id op)
{
    switch (op) {
    case OP_sub:
        return OP_add;
    case OP_minimum:
        return OP_maximum;
    case OP_min:
        return OP_max;
    case OP_add:
    case OP_mul:
    case OP_maximum:
    case OP_sum:
    case OP_mean:
    case OP_max:
    case OP_square:
        return op;
    default:
        break;
    }
    switch (cvyi_ops[op].kind) {
    case KIND_CONV:
    case KIND_CONVT:
    case KIND_LINEAR:
    case KIND_MATMUL:
    case KIND_MAXPOOL:
    case KIND_AVGPOOL:
    case KIND_ADAPTIVE:
    case KIND_SHAPE:
        return op;
    default:
        return op == OP_neg || op == OP_abs || op == OP_relu ? OP_abs : OP_COUNT;
    }
}

/* Of a norm: the product and the bias it is made of, and where statistics are given the mean's share. */
static void doubt_norm_mag(const doubt_run *d, const node *n, double *mag)
{
    const double *x = d->value[n->arg[0]], *y = d->value[n->out];
    norm_geom e;
    norm_args a;

    cvyi_norm_geom(d->r->g, n, &e);
    cvyi_norm_args(n, &a);
    for (int64_t i = 0; i < cvyi_elements(cvyi_shape_of(d->r->g, n->out)); i++) {
        const int64_t c = i / e.inner % (e.groups * e.chan);
        const double bias = a.bias == CVY_NONE ? 0 : fabs(d->value[a.bias][c]);
        mag[i] = fabs(y[i]) + bias;
        if (!e.running) continue;
        mag[i] += (d->mag[n->arg[0]][i] + fabs(x[i]) + fabs(d->value[a.mean][c])) *
                  (a.weight == CVY_NONE ? 1 : fabs(d->value[a.weight][c])) / sqrt(d->value[a.var][c] + e.eps);
    }
}

static double doubt_largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fabs(x[i]) > most ? fabs(x[i]) : most;
    return most;
}

static void doubt_mag(const doubt_run *d, const node *n, double *mag)
{
    const cvy_graph *g = d->r->g;
    const op_kind kind = cvyi_info(n)->kind;
    const int64_t count = cvyi_elements(cvyi_shape_of(g, n->out));
    const double *y = d->value[n->out];
    node like = *n;

    like.op = doubt_linear(n->op);
    if (like.op != OP_COUNT) {
        ref_call c = {.g = g, .n = &like, .dst = mag};
        for (int i = 0; i < MAX_ATTRS; i++) like.attr[i].f = fabs(like.attr[i].f);
        for (int a = 0; a < n->n_args; a++) c.arg[a] = n->arg[a] == CVY_NONE ? NULL : d->mag[n->arg[a]];
        doubt_reference[like.op](&c);
        for (int64_t i = 0; i < count; i++) mag[i] = isfinite(mag[i]) ? fabs(mag[i]) : 0;
    } else if (kind == KIND_NORM) {
        doubt_norm_mag(d, n, mag);
    } else {
        /* log(sum of exp) adds to the largest; hard functions add a constant before they cut. */
        const double more = n->op == OP_logsumexp || kind == KIND_SOFTMAX
                                ? doubt_largest(d->value[n->arg[0]], cvyi_elements(cvyi_shape_of(g, n->arg[0])))
                            : n->op == OP_hardsigmoid ? 1
                                                      : 0;
        for (int64_t i = 0; i < count; i++) mag[i] = fabs(y[i]) + more;
    }
}

/* A number of the graph that a float cannot hold. */
static bool doubt_no_float(double x)
{
    return isfinite(x) && x != 0 && (fabs(x) > FLT_MAX || fabs(x) < FLT_MIN);
}

/* Does float32 arithmetic leave its range on the way to results that are inside? Squares of a norm do, and a beta
 * or a threshold that is no float; PyTorch's float32 results are then others than its float64 ones, too. Nor is
 * there anything to tell where nothing keeps a norm from dividing 0 by 0. */
static bool doubt_overflows(const doubt_run *d, const node *n)
{
    const int x = n->arg[0];
    if (cvyi_info(n)->kind == KIND_NORM) {
        norm_geom e;
        cvyi_norm_geom(d->r->g, n, &e);
        /* Of single elements that are not centred it is their sign, and jumps at 0. */
        if (d->by.move > 0x1p-20 && !e.centred && e.chan * e.inner == 1 && !e.over_outer) return true;
        return e.eps == 0 || doubt_no_float(e.eps) ||
               doubt_largest(d->value[x], cvyi_elements(cvyi_shape_of(d->r->g, x))) > 1e18;
    }
    /* At a low threshold softplus jumps, by more than half precision's rounding may. */
    return n->op == OP_softplus && (doubt_no_float(n->attr[0].f) || doubt_no_float(n->attr[1].f) ||
                                    (d->by.move > 0x1p-20 && n->attr[1].f < 8));
}

/* Of a convolution: the largest x under all taps of the largest filter. */
static double doubt_taps(const doubt_run *d, const node *n)
{
    const shape *w = cvyi_shape_of(d->r->g, n->arg[1]);
    const int64_t taps = w->dim[0] ? cvyi_elements(w) / w->dim[0] : 0;
    double most = 0;
    for (int64_t k = 0; k < w->dim[0]; k++) {
        double sum = 0;
        for (int64_t i = 0; i < taps; i++) sum += d->mag[n->arg[1]][k * taps + i];
        most = fmax(most, sum);
    }
    return most * doubt_largest(d->mag[n->arg[0]], cvyi_elements(cvyi_shape_of(d->r->g, n->arg[0])));
}

static bool doubt_whole(const double *x, int64_t n, double below)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] != rint(x[i]) || fabs(x[i]) >= below) return false;
    return true;
}

static void doubt_node(doubt_run *d, int index)
{
    const cvy_graph *g = d->r->g;
    const node *n = &g->nodes[index];
    const int64_t count = cvyi_elements(cvyi_shape_of(g, n->out));
    double *y = d->value[n->out], *mag = d->mag[n->out], most = 0;
    ref_call c = {.g = g, .n = n, .dst = y};

    for (int a = 0; a < n->n_args; a++) c.arg[a] = n->arg[a] == CVY_NONE ? NULL : d->value[n->arg[a]];
    if (!count) return;
    doubt_reference[n->op](&c);
    if (!d->way) { /* magnitudes are taken of the values as they are */
        doubt_mag(d, n, mag);
        d->exact &=
            doubt_keeps_whole(n->op) && doubt_whole(y, count, d->by.whole) && doubt_whole(mag, count, d->by.whole);
        d->beyond |= doubt_largest(mag, count) > d->by.range || doubt_overflows(d, n);
        return;
    }
    if (cvyi_info(n)->kind == KIND_SHAPE || cvyi_info(n)->kind == KIND_MAXPOOL) return;
    if (cvyi_info(n)->kind == KIND_CONV) most = doubt_taps(d, n);
    for (int64_t i = 0; i < count; i++) {
        const double some = (double)random_next(&d->seed) * 0x1p-31 - 1;
        y[i] += d->way * some * (d->by.move * fmax(mag[i], most) + d->by.tiny);
    }
}

static void doubt_evaluate(doubt_run *d)
{
    const cvy_graph *g = d->r->g;
    for (int i = 0; i < d->r->n_sources; i++) {
        const rig_tensor *t = &d->r->t[i];
        for (int64_t k = 0; k < t->count; k++) {
            d->value[t->info.value][k] = *rig_at(t, k);
            if (!d->way) d->mag[t->info.value][k] = fabs(d->value[t->info.value][k]);
        }
        if (!d->way) d->exact &= doubt_whole(d->value[t->info.value], t->count, d->by.whole);
    }
    for (int i = 0; i < g->n_nodes; i++) doubt_node(d, i);
}

static double **doubt_arrays(const cvy_graph *g)
{
    double **all = calloc((size_t)g->n_values + 1, sizeof *all);
    assert_non_null(all);
    for (int v = 0; v < g->n_values; v++) {
        all[v] = calloc((size_t)cvyi_elements(cvyi_shape_of(g, v)) + 1, sizeof **all);
        assert_non_null(all[v]);
    }
    return all;
}

static void doubt_free_arrays(const cvy_graph *g, double **all)
{
    for (int v = 0; v < g->n_values; v++) free(all[v]);
    free(all);
}

static int doubt_class(double x)
{
    return isnan(x) ? 3 : isinf((float)x) ? (x > 0 ? 1 : 2) : 0;
}

static void doubt_collect(doubt *out, const doubt_run *d)
{
    int64_t at = 0;
    for (int i = d->r->n_sources; i < d->r->n; i++) {
        const rig_tensor *t = &d->r->t[i];
        const double *moved = d->value[t->info.value];
        double most = 0;
        for (int64_t k = 0; k < t->count; k++)
            if (isfinite(t->want[k]) && isfinite(moved[k])) most = fmax(most, fabs(moved[k] - t->want[k]));
        for (int64_t k = 0; k < t->count; k++, at++)
            out->slack[at] = doubt_class(moved[k]) != doubt_class(t->want[k]) || isnan(out->slack[at])
                                 ? NAN
                                 : fmax(out->slack[at], DOUBT_SAFETY * most);
    }
}

void doubt_open_by(doubt *out, const rig *r, uint64_t seed, const doubt_rounding *by)
{
    doubt_run d = {
        .r = r, .value = doubt_arrays(r->g), .mag = doubt_arrays(r->g), .exact = true, .seed = seed, .by = *by};

    *out = (doubt){.unit = 0x1p-24};
    for (int i = r->n_sources; i < r->n; i++) out->count += r->t[i].count;
    out->slack = calloc((size_t)out->count + 1, sizeof *out->slack);
    assert_non_null(out->slack);
    doubt_evaluate(&d);
    out->exact = d.exact;
    out->beyond = d.beyond;
    /* Moved one way and the other: a value that is 0 but for rounding has both signs between them, so that what a
     * logarithm or a root makes of it is not judged. */
    for (int i = 0; i < 2 * DOUBT_PAIRS && !out->beyond; i++) {
        if (i % 2 == 0) seed = d.seed;
        d.seed = seed;
        d.way = i % 2 ? -1 : 1;
        doubt_evaluate(&d);
        doubt_collect(out, &d);
    }
    doubt_free_arrays(r->g, d.value);
    doubt_free_arrays(r->g, d.mag);
}

void doubt_open(doubt *out, const rig *r, uint64_t seed)
{
    doubt_open_by(out, r, seed, &(doubt_rounding)DOUBT_FLOAT32);
}

/* Rounding moves a value by half a unit in its last place at most; DOUBT_SAFETY is there for float32's many small
 * steps, of which this takes back all but four. */
void doubt_open_half(doubt *out, const rig *r, uint64_t seed, cvy_dtype dtype)
{
    static const doubt_rounding by[] = {
        [CVY_FLOAT16] = {0x1p-13, 0x1p-26, 3e4, 0},
        [CVY_BFLOAT16] = {0x1p-10, 0x1p-126, 1e36, 0},
    };
    doubt_open_by(out, r, seed, &by[dtype]);
    out->unit = 4 * by[dtype].move;
}

cvy_dtype doubt_dtype(const cvy_graph *g)
{
    cvy_dtype found = CVY_FLOAT32; /* in the order of cvy_dtype they get coarser */
    for (int v = 0; v < g->n_values; v++)
        if (!g->values[v].fixed && g->values[v].dtype > found) found = g->values[v].dtype;
    return found;
}

void doubt_close(doubt *d)
{
    free(d->slack);
}

int64_t doubt_find(const doubt *d, const rig *r, const float *got, bool strict, double *want)
{
    int64_t at = 0;
    for (int i = r->n_sources; i < r->n && !d->beyond; i++)
        for (int64_t k = 0; k < r->t[i].count; k++, at++) {
            const double slack = d->exact && strict ? 0 : d->slack[at] + d->unit * fabs(r->t[i].want[k]);
            *want = r->t[i].want[k];
            if (isnan(slack)) continue;
            if (doubt_class(*want) != doubt_class(got[at])) {
                if (isfinite(*want) && fabs(*want) > 1e37) continue;
                return at;
            }
            if (doubt_class(*want) == 0 && !(fabs(got[at] - *want) <= slack + 0x1p-149)) return at;
        }
    return -1;
}
