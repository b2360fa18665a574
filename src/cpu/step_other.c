/* step_other.c - steps of the operators that have kernels of their own beside the convolution: transposed
 * convolution, matrix products, pooling, statistics, and reductions over dimensions that are not neighbours. */
#include <math.h>
#include <string.h>
#include "convt.h"
#include "program.h"

/* A node's step: record, functions and scratch. */
static cvy_status add(builder *b, const char *name, size_t bytes, int64_t (*parts)(const step *, const cpu_unit *),
                      void (*run)(const step *, const cpu_unit *, int64_t, char *), step **out, void **data)
{
    step *s = cvyi_add_step(b, name, bytes, data);
    if (!s) return CVY_NO_MEMORY;
    s->parts = parts;
    s->run = run;
    *out = s;
    return CVY_OK;
}

static const float *optional(const cpu_unit *u, int v)
{
    return v == CVY_NONE ? NULL : cvyi_unit_data(u, v);
}

/* ---- transposed convolution ---- */

typedef struct convt_step {
    convt_plan plan;
    int x, weight, bias, out;
    int64_t packed;
} convt_step;

static void pack_convt(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const convt_step *c = s->data;
    (void)part;
    (void)scratch;
    cvyi_convt_pack(&c->plan, cvyi_unit_data(u, c->weight), cvyi_packed(u, c->packed));
}

static void print_convt(const step *s, text *t)
{
    const convt_step *c = s->data;
    const conv_geom *g = &c->plan.g;
    cvyi_text_add(t, "convt: %lld x %lld / %lld", (long long)g->K, (long long)g->C, (long long)g->groups);
    for (int a = 0; a < 3; a++)
        cvyi_text_add(t, ", %lld stride %lld pad %lld dil %lld", (long long)g->kernel[a], (long long)g->stride[a],
                      (long long)g->pad[a], (long long)g->dil[a]);
    cvyi_text_add(t, "; %d at %lld\n", c->weight, (long long)c->packed);
}

static int64_t convt_parts(const step *s, const cpu_unit *u)
{
    const convt_step *c = s->data;
    return cvyi_unit_batch(u, c->plan.g.N) * c->plan.units;
}

static void run_convt(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const convt_step *c = s->data;
    const conv_geom *g = &c->plan.g;
    const int64_t sample = part / c->plan.units;
    const float *src = cvyi_unit_data(u, c->x) + sample * g->C * g->in[0] * g->in[1] * g->in[2];
    float *dst = cvyi_unit_data(u, c->out) + sample * g->K * g->out[0] * g->out[1] * g->out[2];
    cvyi_convt_run(&c->plan, src, cvyi_packed(u, c->packed), optional(u, c->bias), dst, part % c->plan.units,
                   (float *)(void *)scratch);
}

cvy_status cvyi_lower_convt(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    conv_geom g;
    step *s, *pack;
    void *data, *unused;
    convt_step *c;
    cvy_status st = CVY_OK;

    TRY(add(b, "transposed convolution", sizeof *c, convt_parts, run_convt, &s, &data));
    c = data;
    cvyi_conv_geom(b->g, n, &g);
    cvyi_convt_plan(b->state->isa, &g, &c->plan);
    c->x = n->arg[0], c->weight = n->arg[1], c->bias = n->arg[2], c->out = n->out;
    c->packed = cvyi_packed_room(b, c->weight, (int64_t)cvyi_convt_packed_bytes(&c->plan));
    s->scratch = (int64_t)cvyi_convt_scratch_bytes(&c->plan);
    pack = cvyi_add_pack(b, c->weight, 1, &unused);
    if (!pack) return CVY_NO_MEMORY;
    pack->data = c;
    pack->parts = cvyi_one_part;
    pack->run = pack_convt;
    pack->print = print_convt;
fail:
    return st;
}

/* ---- matrix products ---- */

typedef struct matmul_step {
    matmul_geom geom;
    int64_t rows; /* M per sample; all of M where the pass is taken as a whole */
    bool by_sample, packs;
    int x, other, bias, out;
    int64_t packed;
} matmul_step;

/* The product of one unit: the number of its rows differs in the last. */
static gemm_plan plan_of(const matmul_step *c, const cpu_unit *u)
{
    const gemm_b form = c->packs ? GEMM_PACKED : c->geom.other_is_nk ? GEMM_NK : GEMM_KN;
    gemm_plan p;
    cvyi_gemm_plan(u->run->state->isa, form, 1, c->by_sample ? u->m * c->rows : c->rows, c->geom.N, c->geom.K, &p);
    return p;
}

static int64_t matmul_parts(const step *s, const cpu_unit *u)
{
    const matmul_step *c = s->data;
    const gemm_plan p = plan_of(c, u);
    return c->geom.batch * p.units;
}

static void run_matmul(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const matmul_step *c = s->data;
    const matmul_geom *g = &c->geom;
    const gemm_plan p = plan_of(c, u);
    const int64_t batch = part / p.units;
    gemm_job job = {.lda = g->K, .ldb = g->other_is_nk ? g->K : g->N, .ldc = g->N};
    int64_t x, other;

    cvyi_matmul_operands(g, batch, &x, &other);
    job.a = cvyi_unit_data(u, c->x) + x * p.M * g->K;
    job.b = c->packs ? cvyi_packed(u, c->packed) : cvyi_unit_data(u, c->other) + other * g->K * g->N;
    job.c = cvyi_unit_data(u, c->out) + batch * p.M * g->N;
    job.bias_n = optional(u, c->bias);
    cvyi_gemm_run(&p, &job, part % p.units, (float *)(void *)scratch);
}

typedef struct pack_matmul_step {
    gemm_plan plan;
    gemm_b from;
    int other;
    int64_t packed, ld;
} pack_matmul_step;

static int64_t pack_matmul_parts(const step *s, const cpu_unit *u)
{
    (void)u;
    return ((const pack_matmul_step *)s->data)->plan.panels;
}

static void run_pack_matmul(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const pack_matmul_step *c = s->data;
    (void)scratch;
    cvyi_gemm_pack(&c->plan, c->from, cvyi_unit_data(u, c->other), c->ld, cvyi_packed(u, c->packed), part);
}

static void print_matmul(const step *s, text *t)
{
    const pack_matmul_step *c = s->data;
    cvyi_text_add(t, "matmul %d: %lld x %lld, %lld panels, rows of %lld; %d at %lld\n", (int)c->from,
                  (long long)c->plan.N, (long long)c->plan.K, (long long)c->plan.panels, (long long)c->ld, c->other,
                  (long long)c->packed);
}

static cvy_status pack_other(builder *b, matmul_step *c, const gemm_plan *p)
{
    void *data;
    pack_matmul_step *k;
    step *s = cvyi_add_pack(b, c->other, sizeof *k, &data);
    if (!s) return CVY_NO_MEMORY;
    c->packed = cvyi_packed_room(b, c->other, (int64_t)cvyi_gemm_packed_bytes(p));
    k = data;
    *k = (pack_matmul_step){*p, c->geom.other_is_nk ? GEMM_NK : GEMM_KN, c->other, c->packed,
                            c->geom.other_is_nk ? c->geom.K : c->geom.N};
    s->parts = pack_matmul_parts;
    s->run = run_pack_matmul;
    s->print = print_matmul;
    return CVY_OK;
}

cvy_status cvyi_lower_matmul(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    step *s;
    void *data;
    matmul_step *c;
    gemm_plan p;
    cvy_status st = CVY_OK;

    TRY(add(b, "matrix product", sizeof *c, matmul_parts, run_matmul, &s, &data));
    c = data;
    cvyi_matmul_geom(b->g, n, &c->geom);
    c->x = n->arg[0], c->other = n->arg[1], c->out = n->out;
    c->bias = c->geom.bias ? n->arg[2] : CVY_NONE;
    c->by_sample = b->out->samples > 1;
    c->rows = c->by_sample ? c->geom.M / b->out->samples : c->geom.M;
    c->packs = b->plan->prepared[c->other] && c->geom.batch == 1;
    cvyi_gemm_plan(b->state->isa,
                   c->packs              ? GEMM_PACKED
                   : c->geom.other_is_nk ? GEMM_NK
                                         : GEMM_KN,
                   1, (c->by_sample ? b->out->chunk : 1) * c->rows, c->geom.N, c->geom.K, &p);
    s->scratch = (int64_t)cvyi_gemm_scratch_bytes(&p);
    if (c->packs) TRY(pack_other(b, c, &p));
fail:
    return st;
}

/* ---- pooling ---- */

typedef struct pool_step {
    pool_geom geom;
    pool_fn fn;
    int x, out;
    int64_t per_part; /* planes */
} pool_step;

static int64_t planes_of(const pool_step *c, const cpu_unit *u)
{
    return u->pass->samples > 1 ? c->geom.planes / u->pass->samples * u->m : c->geom.planes;
}

static int64_t pool_parts(const step *s, const cpu_unit *u)
{
    const pool_step *c = s->data;
    return cvyi_ceil_div(planes_of(c, u), c->per_part);
}

static void run_pool(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const pool_step *c = s->data;
    const pool_geom *g = &c->geom;
    const int64_t first = part * c->per_part, n = cvyi_min64(c->per_part, planes_of(c, u) - first);
    c->fn(g, n, cvyi_unit_data(u, c->x) + first * g->in[0] * g->in[1] * g->in[2],
          cvyi_unit_data(u, c->out) + first * g->out[0] * g->out[1] * g->out[2], (float *)(void *)scratch);
}

cvy_status cvyi_lower_pool(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    const op_kind kind = cvyi_info(n)->kind;
    step *s;
    void *data;
    pool_step *c;
    cvy_status st = CVY_OK;

    TRY(add(b, "pooling", sizeof *c, pool_parts, run_pool, &s, &data));
    c = data;
    cvyi_pool_geom(b->g, n, &c->geom);
    c->fn = kind == KIND_MAXPOOL   ? b->state->pool->max
            : kind == KIND_AVGPOOL ? b->state->pool->avg
                                   : b->state->pool->mean;
    c->x = n->arg[0];
    c->out = n->out;
    c->per_part = cvyi_max64(1, 32768 / cvyi_max64(c->geom.in[0] * c->geom.in[1] * c->geom.in[2], 1));
    s->scratch = (int64_t)cvyi_pool_scratch_bytes(&c->geom);
fail:
    return st;
}

/* ---- statistics of values in memory ---- */

typedef struct stats_step {
    norm_geom geom;
    int x, sign, out;
} stats_step;

static int64_t stats_parts(const step *s, const cpu_unit *u)
{
    const norm_geom *e = &((const stats_step *)s->data)->geom;
    if (e->over_outer) return e->groups;
    return (u->pass->samples > 1 ? e->outer / u->pass->samples * u->m : e->outer) * e->groups;
}

/* Of x[i] - shift, to the first or the second power; four sums, so that additions do not wait for each other. */
static double few_sum(const float *x, int64_t n, double shift, bool squares)
{
    double s[4] = {0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) s[k] += (x[i + k] - shift) * (squares ? x[i + k] - shift : 1);
    for (; i < n; i++) s[0] += (x[i] - shift) * (squares ? x[i] - shift : 1);
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* Few values: in double throughout, so that equal ones have no deviation at all. */
static cpu_moments few_moments(const float *x, int64_t n)
{
    const double mean = few_sum(x, n, 0, false) / (double)n;
    return (cpu_moments){(double)n, mean, few_sum(x, n, mean, true)};
}

/* The channels of one group in one outer: one run, or channel by channel where signs differ. */
static cpu_moments run_moments(const cpu_reduce_kernels *red, const norm_geom *e, const float *x, const float *sign)
{
    cpu_moments m = {0, 0, 0};
    if (!e->centred) {
        const double n = (double)(e->chan * e->inner);
        m = (cpu_moments){n, 0, red->sum_squares(x, e->chan * e->inner, 0)};
    } else if (!sign) {
        m = e->chan * e->inner <= 32 ? few_moments(x, e->chan * e->inner) : red->moments(x, e->chan * e->inner);
    } else {
        for (int64_t c = 0; c < e->chan; c++) {
            cpu_moments of = red->moments(x + c * e->inner, e->inner);
            of.mean *= sign[c];
            m = cvyi_moments_merge(m, of);
        }
    }
    return m;
}

static void run_stats(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const stats_step *c = s->data;
    const norm_geom *e = &c->geom;
    const float *x = cvyi_unit_data(u, c->x), *sign = optional(u, c->sign);
    const int64_t slice = e->chan * e->inner, group = part % e->groups;
    cpu_moments m = {0, 0, 0};

    (void)scratch;
    if (sign) sign += group * e->chan;
    if (!e->over_outer) m = run_moments(u->run->state->red, e, x + part * slice, sign);
    for (int64_t o = 0; e->over_outer && o < e->outer; o++)
        m = cvyi_moments_merge(m, run_moments(u->run->state->red, e, x + (o * e->groups + group) * slice, sign));
    cvyi_store_stats(e, m, cvyi_unit_data(u, c->out) + part * STATS_FIELDS);
}

cvy_status cvyi_lower_stats(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    step *s;
    void *data;
    stats_step *c;
    cvy_status st = CVY_OK;

    TRY(add(b, "statistics", sizeof *c, stats_parts, run_stats, &s, &data));
    c = data;
    cvyi_norm_geom(b->g, n, &c->geom);
    c->x = n->arg[0], c->sign = n->arg[1], c->out = n->out;
fail:
    return st;
}

/* ---- reductions and softmax by gathering: any dimensions ---- */

typedef struct gather_step {
    op_id op;
    int x, out;
    bool keeps; /* softmax: the result has every element */
    int n_free, n_gone;
    int64_t free_dim[CVY_MAX_RANK], free_stride[CVY_MAX_RANK]; /* of x */
    int64_t gone_dim[CVY_MAX_RANK], gone_stride[CVY_MAX_RANK];
    int64_t results, reduced;
} gather_step;

static int64_t offset_of(int n, const int64_t *dim, const int64_t *stride, int64_t i)
{
    int64_t at = 0;
    for (int d = n - 1; d >= 0; d--) {
        at += i % dim[d] * stride[d];
        i /= dim[d];
    }
    return at;
}

static int64_t gather_parts(const step *s, const cpu_unit *u)
{
    const int64_t results = ((const gather_step *)s->data)->results;
    return u->pass->samples > 1 ? results / u->pass->samples * u->m : results;
}

/* Runs along the last reduced dimension, into which lower_gather joined its neighbours. */
static void gather_row(const gather_step *c, const cpu_vector_kernels *vec, const float *x, float *row)
{
    const int last = c->n_gone - 1;
    const int64_t n = last < 0 ? 1 : c->gone_dim[last], apart = last < 0 ? 1 : c->gone_stride[last];
    for (int64_t i = 0; i < c->reduced; i += n) {
        const float *from = x + offset_of(last, c->gone_dim, c->gone_stride, i / n);
        if (apart == 1)
            vec->copy(row + i, from, n);
        else
            for (int64_t j = 0; j < n; j++) row[i + j] = from[j * apart];
    }
}

static void run_gather(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const gather_step *c = s->data;
    const cpu_vector_kernels *vec = u->run->state->vec;
    const int64_t base = offset_of(c->n_free, c->free_dim, c->free_stride, part);
    const float *x = cvyi_unit_data(u, c->x) + base;
    float *row = (float *)(void *)scratch, *out = cvyi_unit_data(u, c->out);

    gather_row(c, vec, x, row);
    if (!c->keeps) {
        out[part] = cvyi_reduce_row(vec->reduce, c->op, row, c->reduced);
        return;
    }
    const cpu_max_sum_exp e = vec->reduce->max_sum_exp(row, c->reduced);
    for (int64_t i = 0; i < c->reduced; i++) {
        const int64_t at = base + offset_of(c->n_gone, c->gone_dim, c->gone_stride, i);
        out[at] = (float)(c->op == OP_log_softmax ? (double)row[i] - e.max - log(e.sum)
                                                  : exp((double)row[i] - e.max) / e.sum);
    }
}

cvy_status cvyi_lower_gather(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    const shape *x = cvyi_shape_of(b->g, n->arg[0]);
    const bool keeps = cvyi_info(n)->kind == KIND_SOFTMAX;
    const unsigned gone = keeps ? (x->rank ? 1u << cvyi_softmax_dim(b->g, n) : 0) : cvyi_reduced_dims(b->g, n);
    int64_t strides[CVY_MAX_RANK];
    step *s;
    void *data;
    gather_step *c;
    cvy_status st = CVY_OK;

    TRY(add(b, "reduction", sizeof *c, gather_parts, run_gather, &s, &data));
    c = data;
    *c = (gather_step){.op = n->op, .x = n->arg[0], .out = n->out, .keeps = keeps, .results = 1, .reduced = 1};
    cvyi_contiguous_strides(x, strides);
    for (int d = 0; d < x->rank; d++) {
        const bool is_gone = gone >> d & 1, joins = d && is_gone == (gone >> (d - 1) & 1);
        int *count = is_gone ? &c->n_gone : &c->n_free;
        int64_t *dims = is_gone ? c->gone_dim : c->free_dim;
        if (!joins) dims[(*count)++] = 1;
        dims[*count - 1] *= x->dim[d];
        (is_gone ? c->gone_stride : c->free_stride)[*count - 1] = strides[d];
        *(is_gone ? &c->reduced : &c->results) *= x->dim[d];
    }
    s->scratch = 4 * cvyi_max64(c->reduced, 1);
fail:
    return st;
}
