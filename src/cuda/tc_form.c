/* tc_form.c - which passes the tensor-core convolution takes, and why it refuses the others; see tc.h. */
#include <math.h>
#include "tc.h"

/* ---- the convolution ---- */

static const char *geometry_refusal(const conv_geom *e)
{
    if (e->groups != 1) return "tensor cores: a convolution in groups";
    if (e->in[0] != 1 || e->kernel[0] != 1 || e->pad[0]) return "tensor cores: a convolution over three dimensions";
    for (int a = 1; a < 3; a++) {
        if (e->dil[a] != 1 && e->kernel[a] != 1) return "tensor cores: a dilated filter";
        if (e->out[a] != (e->in[a] + 2 * e->pad[a] - e->kernel[a]) / e->stride[2] + 1)
            return "tensor cores: strides differ, or padding before and after";
        if (e->kernel[a] > 11) return "tensor cores: a filter of more than 11 taps a side";
    }
    if (e->stride[2] > 2) return "tensor cores: a stride above 2";
    if (e->K > 1024 || e->C > 4096) return "tensor cores: more than 1024 channels out or 4096 in";
    if (e->C * e->in[1] * e->in[2] > INT32_MAX / FLOAT_BYTES ||
        e->K * e->out[1] * e->out[2] > INT32_MAX / FLOAT_BYTES)
        return "tensor cores: a sample of more than 2^29 elements";
    if (e->N < 1 || e->N > 65536 || e->C < 1 || e->K < 1 || e->out[1] < 1 || e->out[2] < 1)
        return "tensor cores: nothing to compute, or more than 65536 samples";
    return NULL;
}

/* The node that makes v, seen through changes of shape; NULL: a parameter or an input. */
static const node *made_by(const cvy_graph *g, int v)
{
    const node *n = NULL;

    do {
        n = g->values[v].node < 0 ? NULL : &g->nodes[g->values[v].node];
        if (n) v = n->arg[0];
    } while (n && cvyi_info(n)->kind == KIND_SHAPE);
    return n;
}

/* A factor for each output channel, in the shape of the weights? */
static bool is_per_output(const cvy_graph *g, int v, const shape *weight)
{
    const shape *s = cvyi_shape_of(g, v);
    return s->rank == weight->rank && s->dim[0] == weight->dim[0] && cvyi_elements(s) == s->dim[0];
}

/* Which weights are packed. Rewrites multiply them with a factor per output channel, in float32; the
 * kernel can do that with its results, and 16-bit weights are exact next to 16-bit data. */
static void find_weights(const cvy_graph *g, const node *conv, tc_form *f)
{
    const cvy_dtype x = g->values[conv->arg[0]].dtype;
    const node *n = made_by(g, conv->arg[1]);
    const bool product = x != CVY_FLOAT32 && n && n->op == OP_mul && n->arg[1] != CVY_NONE;

    f->weight = conv->arg[1];
    f->factor = CVY_NONE;
    for (int i = 0; product && i < 2; i++) {
        const int base = n->arg[i], factor = n->arg[1 - i];
        if (made_by(g, base) || g->values[base].dtype != x ||
            !cvyi_same_shape(cvyi_shape_of(g, base), cvyi_shape_of(g, conv->arg[1])) ||
            !is_per_output(g, factor, cvyi_shape_of(g, base)))
            continue;
        f->weight = base;
        f->factor = factor;
    }
    /* Otherwise one product in fp16 has enough bits. */
    f->problem.direct = x == CVY_FLOAT16 || (x == CVY_BFLOAT16 && g->values[f->weight].dtype == x);
}

static const char *take_conv(const cvy_plan *p, const pass *s, tc_form *f)
{
    const cvy_graph *g = p->graph;
    const node *n = &g->nodes[s->first];
    const char *why;
    conv_geom e;

    if (cvyi_info(n)->kind != KIND_CONV) return "tensor cores: the pass does not begin with a convolution";
    cvyi_conv_geom(g, n, &e);
    if ((why = geometry_refusal(&e))) return why;
    if (cvyi_shape_of(g, n->out)->rank != e.spatial + 2)
        return "tensor cores: a single sample without its dimension";
    f->conv = s->first;
    f->samples = e.N;
    f->problem = (tc_problem){.c = (int)e.C,
                              .k = (int)e.K,
                              .h = (int)e.in[1],
                              .w = (int)e.in[2],
                              .r = (int)e.kernel[1],
                              .s = (int)e.kernel[2],
                              .stride = (int)e.stride[2],
                              .pad_h = (int)e.pad[1],
                              .pad_w = (int)e.pad[2],
                              .products = cvyi_cuda_products(p, n),
                              .pool_h = 1,
                              .pool_w = 2,
                              .x_half = g->values[n->arg[0]].dtype != CVY_FLOAT32,
                              .y_half = g->values[g->nodes[s->first + s->count - 1].out].dtype != CVY_FLOAT32};
    find_weights(g, n, f);
    return NULL;
}

/* ---- the parts of the form, in order; each takes nodes from *at on ---- */

typedef struct walk {
    const cvy_plan *p;
    const pass *s;
    const cvy_graph *g;
    tc_form *f;
    int at, end;
} walk;

static const node *next(const walk *w)
{
    return w->at < w->end ? &w->g->nodes[w->at] : NULL;
}

static bool next_is(const walk *w, op_kind kind)
{
    return w->at < w->end && cvyi_info(next(w))->kind == kind;
}

/* Unary and binary operators; a norm with given statistics is an affine. */
static tc_range take_chain(walk *w)
{
    tc_range r = {w->at, w->at};

    while (next_is(w, KIND_UNARY) || next_is(w, KIND_BINARY)) r.end = ++w->at;
    return r;
}

static int end_of(const walk *w, const tc_range *r, int otherwise)
{
    return r->end > r->first ? w->g->nodes[r->end - 1].out : otherwise;
}

static const char *take_stats(walk *w, int of)
{
    const node *n = next(w);
    const tc_problem *b = &w->f->problem;
    const shape *x = cvyi_shape_of(w->g, of);
    norm_geom e;

    cvyi_norm_geom(w->g, n, &e);
    if (n->arg[0] != of) return "tensor cores: statistics of a value inside the chain";
    if (e.over_outer || !e.centred) return "tensor cores: statistics over the batch, or without the mean";
    if (!isfinite(e.eps)) return "tensor cores: an eps that is not finite";
    if (e.outer != w->f->samples || e.groups * e.chan != b->k ||
        e.groups * e.chan * e.inner * e.outer != cvyi_elements(x))
        return "tensor cores: statistics that are not of channels of a sample";
    w->f->stats = w->at++;
    w->f->problem.groups = (int)e.groups;
    return NULL;
}

static const char *take_pool(walk *w, int of)
{
    const node *n = next(w);
    tc_problem *b = &w->f->problem;
    conv_geom c;
    pool_geom e;

    cvyi_pool_geom(w->g, n, &e);
    cvyi_conv_geom(w->g, &w->g->nodes[w->f->conv], &c);
    if (n->arg[0] != of) return "tensor cores: a pooling of a value inside the chain";
    for (int a = 0; a < 3; a++)
        if (e.pad[a] || e.stride[a] != e.kernel[a] || (e.dil[a] != 1 && e.kernel[a] != 1) ||
            e.out[a] != c.out[a] / e.kernel[a])
            return "tensor cores: pooling windows that overlap, are padded or run over the edge";
    if (e.kernel[2] != 2 && e.kernel[2] != 4 && e.kernel[2] != 8)
        return "tensor cores: pooling windows that are not 2, 4 or 8 wide";
    if (e.kernel[1] > TC_STRIP_MOST) return "tensor cores: a pooling window of more than 64 rows";
    w->f->pool = w->at++;
    b->sink = SINK_POOL;
    b->pool_h = (int)e.kernel[1];
    b->pool_w = (int)e.kernel[2];
    return NULL;
}

/* The sign of the norm's weight before the norm, if pooling went before it (simplify/pool.c). */
static const char *take_sign(walk *w, int *x)
{
    const node *stats = &w->g->nodes[w->f->stats], *n = next(w);

    if (stats->n_args < 2 || stats->arg[1] == CVY_NONE) return NULL;
    if (w->f->pool == CVY_NONE || !n || n->op != OP_mul || n->arg[0] != *x || n->arg[1] == CVY_NONE ||
        w->p->root[n->arg[1]] != w->p->root[stats->arg[1]])
        return "tensor cores: a sign that is not between pooling and norm";
    w->f->signed_pool = true;
    *x = n->out;
    w->at++;
    return NULL;
}

/* Is v the sign of the norm's weight? Something folded into the weight later may have turned it. */
static bool is_sign_of(const walk *w, int v, int weight)
{
    const int by = w->g->values[w->p->root[v]].node;
    const node *n = by < 0 ? NULL : &w->g->nodes[by];
    return n && n->op == OP_sign_or_one && w->p->root[n->arg[0]] == w->p->root[weight];
}

static bool per_channel(const walk *w, int v)
{
    return v == CVY_NONE || cvyi_elements(cvyi_shape_of(w->g, v)) == w->f->problem.k;
}

static const char *take_apply(walk *w, int x)
{
    const node *n = next(w), *stats = &w->g->nodes[w->f->stats];
    const int weight = n && n->n_args > 2 ? n->arg[2] : CVY_NONE, bias = n && n->n_args > 3 ? n->arg[3] : CVY_NONE;

    if (!n || cvyi_info(n)->kind != KIND_APPLY || n->arg[0] != x || n->arg[1] != stats->out)
        return "tensor cores: statistics that are not followed by their norm";
    if (!per_channel(w, weight) || !per_channel(w, bias))
        return "tensor cores: a norm's affine that is not per channel";
    if (w->f->pool != CVY_NONE && weight != CVY_NONE &&
        (!w->f->signed_pool || !is_sign_of(w, stats->arg[1], weight)))
        return "tensor cores: pooling before a norm whose weight came later";
    w->f->apply = w->at++;
    return NULL;
}

/* Reductions in the order of conv_tc.cuh's reduce_kind. */
static const char *take_reduce(walk *w, int of)
{
    static const op_id known[] = {OP_logsumexp, OP_max, OP_min, OP_sum, OP_mean};
    const node *n = next(w);
    int kind = COUNT_OF(known);

    while (kind--)
        if (known[kind] == n->op) break;
    if (kind < 0) return "tensor cores: this reduction is not among logsumexp, max, min, sum, mean";
    if (cvyi_reduced_dims(w->g, n) != 2 || n->arg[0] != of)
        return "tensor cores: a reduction that is not over the channels";
    if (w->f->pool != CVY_NONE) return "tensor cores: a reduction after pooling";
    w->f->problem.sink = SINK_REDUCE;
    w->f->problem.reduce = kind;
    w->f->reduce = w->at++;
    return NULL;
}

/* ---- what the functions may read ---- */

/* Along which dimensions of the space does v vary, bit by bit? The space's own dimensions, right-aligned. */
static bool varies(const cvy_graph *g, int v, const shape *over, unsigned *dims)
{
    const shape *s = cvyi_shape_of(g, v);

    *dims = 0;
    if (s->rank > over->rank) return false;
    for (int i = 1; i <= s->rank; i++) {
        if (s->dim[s->rank - i] == 1) continue;
        if (s->dim[s->rank - i] != over->dim[over->rank - i]) return false;
        *dims |= 1u << (over->rank - i);
    }
    return true;
}

/* A function's nodes: all as large as the space, reading each other, the arguments and tensors that vary along
 * `allowed` alone. The union of what they vary along is left in *seen. */
static const char *check_chain(const walk *w, const tc_range *r, const shape *over, const int arguments[2],
                               unsigned allowed, unsigned *seen)
{
    for (int i = r->first; i < r->end; i++) {
        const node *n = &w->g->nodes[i];
        if (!cvyi_same_shape(cvyi_shape_of(w->g, n->out), over)) return "tensor cores: the chain changes its shape";
        for (int a = 0; a < n->n_args; a++) {
            const int v = n->arg[a], by = v == CVY_NONE ? -1 : w->g->values[v].node;
            unsigned dims = 0;
            if (v == CVY_NONE || v == arguments[0] || v == arguments[1] || (by >= r->first && by < r->end))
                continue;
            if (by >= w->s->first) return "tensor cores: a value of another part of the pass";
            if (!varies(w->g, v, over, &dims) || dims & ~allowed)
                return "tensor cores: an operand before the norm or the pooling that is not per channel";
            *seen |= dims;
        }
    }
    return NULL;
}

static bool reads(const walk *w, const tc_range *r, int v)
{
    bool found = false;

    for (int i = r->first; i < r->end; i++)
        for (int a = 0; a < w->g->nodes[i].n_args; a++) found = found || w->g->nodes[i].arg[a] == v;
    return found;
}

static const char *check_parts(walk *w)
{
    tc_form *f = w->f;
    const int conv = w->g->nodes[f->conv].out;
    const int pooled = f->pool == CVY_NONE ? CVY_NONE : w->g->nodes[f->pool].out;
    const shape *inside = cvyi_shape_of(w->g, conv), *after = cvyi_shape_of(w->g, f->z);
    const unsigned channel = 2;
    unsigned seen = 0;
    const char *why = check_chain(w, &f->pre, inside, (int[2]){conv, conv}, channel, &seen);

    seen = 0;
    f->problem.before = pooled == CVY_NONE && f->y != conv && reads(w, &f->post, conv);
    f->other = pooled != CVY_NONE ? CVY_NONE : f->problem.before ? conv : f->y;
    if (!why) why = check_chain(w, &f->post, after, (int[2]){f->z, f->other}, ~0u, &seen);
    f->problem.external = (seen & ~3u) != 0;
    if (!why && f->problem.before && f->problem.external)
        why = "tensor cores: after the norm the convolution's result and another tensor";
    if (!why && f->reduce != CVY_NONE)
        why = check_chain(w, &f->last, cvyi_shape_of(w->g, w->g->nodes[f->reduce].out),
                          (int[2]){w->g->nodes[f->reduce].out, w->g->nodes[f->reduce].out}, ~0u, &seen);
    f->halved = f->problem.products == 1 && f->problem.groups && f->pre.end - f->pre.first == 1 &&
                w->g->nodes[f->pre.first].op == OP_sigmoid && !reads(w, &f->post, f->y);
    for (int i = w->s->first; !why && i < w->end - 1; i++)
        if (cvyi_needed_after(w->p, w->s, w->g->nodes[i].out))
            why = "tensor cores: a value inside is needed after the pass";
    return why;
}

/* ---- the form ---- */

static const char *take_norm(walk *w)
{
    const char *why = take_stats(w, w->f->y);
    int x = w->f->y;

    if (!why && next_is(w, KIND_MAXPOOL)) {
        why = take_pool(w, x);
        if (!why) x = w->g->nodes[w->f->pool].out;
    }
    if (!why) why = take_sign(w, &x);
    if (!why) why = take_apply(w, x);
    if (!why) w->f->z = w->g->nodes[w->f->apply].out;
    return why;
}

static const char *take_parts(walk *w)
{
    tc_form *f = w->f;
    const int conv = w->g->nodes[f->conv].out;
    const char *why = NULL;

    f->pre = take_chain(w);
    f->y = f->z = end_of(w, &f->pre, conv);
    if (next_is(w, KIND_STATS)) {
        why = take_norm(w);
        f->post = take_chain(w);
    } else if (next_is(w, KIND_MAXPOOL)) {
        why = take_pool(w, f->y);
        f->z = w->g->nodes[w->at - 1].out;
        f->post = take_chain(w);
    } else { /* nothing parts the chain: all of it is cvy_post's */
        f->post = f->pre;
        f->pre.end = f->pre.first;
        f->y = f->z = conv;
    }
    f->out = end_of(w, &f->post, f->z);
    if (!why && next_is(w, KIND_REDUCE)) {
        why = take_reduce(w, f->out);
        f->last = take_chain(w);
        f->out = end_of(w, &f->last, w->g->nodes[w->at - 1].out);
    }
    if (!why && w->at != w->end) why = "tensor cores: more operators follow than the form has";
    return why ? why : check_parts(w);
}

static const char *check_device(const cuda_device *d)
{
    if (d->major != 9 || d->minor != 0) return "tensor cores: needs compute capability 9.0";
    return NULL;
}

/* Few samples: with a full batch's strips some multiprocessors would have nothing to do. Decided by this, and not
 * by the number itself, so that nearly every new batch size finds its code compiled. */
static const char *tune(const cvy_plan *p, tc_form *f)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    bool fits = cvyi_tc_tune(&f->problem, d->shared_block, d->sms, p->tuning, &f->tuning);

    f->problem.few = fits && f->samples * f->tuning.strips < 2 * (int64_t)d->sms;
    if (f->problem.few) fits = cvyi_tc_tune(&f->problem, d->shared_block, d->sms, p->tuning, &f->tuning);
    return fits ? NULL : "tensor cores: no tile of it fits into shared memory";
}

tc_form cvyi_tc_form(const cvy_plan *p, const pass *s)
{
    const cuda_state *state = p->state;
    tc_form f = {.stats = CVY_NONE, .pool = CVY_NONE, .apply = CVY_NONE, .reduce = CVY_NONE};
    walk w = {.p = p, .s = s, .g = p->graph, .f = &f, .at = s->first + 1, .end = s->first + s->count};
    int views = 12;

    f.why = take_conv(p, s, &f);
    if (!f.why) f.why = take_parts(&w);
    if (!f.why) f.why = check_device(state->device);
    f.problem.alone = !state->device->cooperative || state->alone;
    for (int i = s->first; i < w.end; i++) views += p->graph->nodes[i].n_args;
    if (!f.why && views > MAX_VIEWS - 6) f.why = "tensor cores: more tensors than a launch takes";
    if (!f.why && p->tuning >= TUNE_GENERIC) f.why = "tensor cores: this tuning does not use them";
    if (!f.why) f.why = tune(p, &f);
    return f;
}

/* ---- channels last ---- */

static bool is_in_tensor(const cvy_plan *p, int v)
{
    const place *at = &p->places[v];
    return at->kind == PLACE_TENSOR &&
           cvyi_same_shape(cvyi_shape_of(p->graph, v), cvyi_shape_of(p->graph, p->tensor_value[at->at]));
}

void cvyi_tc_tensors(const cvy_plan *p, const tc_form *f, int *x, int *y)
{
    const int of_x = p->graph->nodes[f->conv].arg[0];
    const bool stores = f->problem.sink != SINK_REDUCE && f->problem.y_half && f->problem.k % 8 == 0;

    *x = f->problem.direct && f->problem.c % 8 == 0 && is_in_tensor(p, of_x) ? of_x : CVY_NONE;
    *y = stores && is_in_tensor(p, f->out) ? f->out : CVY_NONE;
}

static bool tune_last(const cvy_plan *p, const tc_form *f, bool x, bool y, tc_form *out)
{
    *out = *f;
    out->problem.x_last = x;
    out->problem.y_last = y;
    out->problem.few = 0;
    return !tune(p, out);
}

bool cvyi_tc_last(const cvy_plan *p, const tc_form *f, int x, int y, tc_last *out)
{
    const bool has_x = x != CVY_NONE, has_y = y != CVY_NONE;

    out->x = x;
    out->y = y;
    return (has_x || has_y) && tune_last(p, f, has_x, has_y, &out->both) &&
           (!has_x || tune_last(p, f, true, false, &out->x_alone));
}
