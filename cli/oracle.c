/* oracle.c - compares a job's outputs with the float64 reference.
 *
 * Independent samples are checked one by one on all threads; a batch that cannot be split, in one piece.
 *
 * The bound on the relative error (largest error over largest magnitude) is 4 x 2^-24 x the sum over the operators
 * of what each may lose: a sum of L terms 4 + 2 sqrt(L), as rounding errors walk at random, other operators a
 * constant. A, whose convolution sums 72 terms: 4 x 2^-24 x (21 + 24 + 2 + 0 + 8) = 1.3e-5. A chain that multiplies
 * errors (sqrt near 0, division by small numbers) may do worse and be right: before a result is called wrong, the
 * reference runs again on data in which every number has moved by at most one unit in its last place, and what this
 * changes is the least that float32 can lose per operator.
 *
 * If that is not enough, or a NaN or inf is misplaced, every operator's result is rounded and moved likewise.
 * This shows what cancels (the mean of normalised values is 0 except for rounding, so it has no magnitude), and
 * which results are too large for fp16 if they are stored: there a fused plan has a number where another has inf.
 * Elements that differ in kind between the reference and the moved reference are not compared.
 *
 * Results in fp16 or bf16 are also rounded to 2^-11 or 2^-8, at most once per operator, as PyTorch rounds; so that
 * much is added for each, and numbers are moved by a unit in the last place of their dtype. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli.h"
#include "../src/cpu/thread.h"
#include "../src/ref/ref.h"
#include "../src/util/half.h"

typedef struct tally {
    double error, scale; /* largest */
    int64_t mismatches;
    cvy_status st;
} tally;

typedef struct worker {
    void *workspace;
    double **first, **second; /* per output: the reference, and the reference on nudged data */
    cvy_buffer *buffers;
    tally tally;
} worker;

typedef struct oracle {
    const job *j;
    const cvy_graph *graph; /* for one sample, or the whole */
    float **nudged;         /* per tensor, or NULL: compare with the outputs */
    bool moved;             /* results of operators are nudged as well */
    worker *workers;
    int n_workers, n_sources, n_outputs;
    int64_t samples, batch; /* to check; of how many */
    int64_t done;
} oracle;

/* ---- one sample ---- */

/* As float32 or the dtype holds it: what is beyond its range is inf. */
static float held(cvy_dtype dtype, double x)
{
    return dtype == CVY_FLOAT32 ? (float)x : cvyi_widen(dtype, cvyi_narrow(dtype, x));
}

/* Rounding alone decides whether a number this close to the largest of fp16, 65504, becomes inf. */
static bool at_the_edge(cvy_dtype dtype, float a, float b)
{
    return dtype == CVY_FLOAT16 && fminf(fabsf(a), fabsf(b)) > 64512 && signbit(a) == signbit(b);
}

/* Both finite, both NaN, or the same infinity. */
static bool same_kind(cvy_dtype dtype, float a, float b)
{
    return (isfinite(a) && isfinite(b)) || (isnan(a) && isnan(b)) || a == b || at_the_edge(dtype, a, b);
}

static void compare(tally *t, cvy_dtype dtype, double want, double got)
{
    const float w = held(dtype, want), g = held(dtype, got);
    if (isfinite(w) && isfinite(g)) {
        t->error = fmax(t->error, fabs(want - got));
        t->scale = fmax(t->scale, fabs(want));
    } else if (!same_kind(dtype, w, g)) {
        t->mismatches++;
    }
}

/* The two references and the result. If the references differ in kind (a number, NaN, inf), any result is accepted.
 */
static void compare_nudged(tally *t, cvy_dtype dtype, double want, double nudged, double got)
{
    const float w = held(dtype, want), n = held(dtype, nudged), g = held(dtype, got);
    if (isfinite(w) != isfinite(n) || !same_kind(dtype, w, n)) return;
    compare(t, dtype, want, nudged);
    t->mismatches += isfinite(w) != isfinite(g) || !same_kind(dtype, w, g);
}

static int64_t per_sample(const oracle *o, int i)
{
    return o->j->tensors[i].count / o->batch;
}

static void move(void *context, const cvy_graph *g, int v, double *values, int64_t n)
{
    (void)context;
    data_nudge_double(values, n, g->values[v].dtype, (uint64_t)v + 1);
}

static cvy_status reference(const oracle *o, worker *w, int64_t sample, float **data, double **outputs)
{
    for (int i = 0; i < o->n_sources; i++) {
        const tensor *t = &o->j->tensors[i];
        float *base = data ? data[i] : t->host;
        w->buffers[i] = (cvy_buffer){base + (t->info.role == CVY_INPUT ? sample * per_sample(o, i) : 0), NULL};
    }
    return cvyi_ref_run_touched(o->graph, w->buffers, w->workspace, outputs, data && o->moved ? move : NULL, NULL);
}

static void check_sample(void *context, int64_t unit, int number)
{
    oracle *o = context;
    worker *w = &o->workers[number];
    const int64_t sample =
        o->samples > 1 ? unit * (o->batch - 1) / (o->samples - 1) : 0; /* spread over the batch */

    if (!w->tally.st) w->tally.st = reference(o, w, sample, NULL, w->first);
    if (!w->tally.st && o->nudged) w->tally.st = reference(o, w, sample, o->nudged, w->second);
    if (w->tally.st) return;
    for (int k = 0; k < o->n_outputs; k++) {
        const int64_t n = per_sample(o, o->n_sources + k);
        const tensor *t = &o->j->tensors[o->n_sources + k];
        const float *got = t->host + sample * n;
        for (int64_t i = 0; i < n && !o->nudged; i++)
            compare(&w->tally, (cvy_dtype)t->info.dtype, w->first[k][i], got[i]);
        for (int64_t i = 0; i < n && o->nudged; i++)
            compare_nudged(&w->tally, (cvy_dtype)t->info.dtype, w->first[k][i], w->second[k][i], got[i]);
    }
    if (number == 0) progress("checking against float64: %lld of %lld", (long long)unit, (long long)o->samples);
}

static cvy_status check_all(oracle *o, tally *total)
{
    *total = (tally){0};
    for (int i = 0; i < o->n_workers; i++) o->workers[i].tally = *total;
    cvyi_parallel(o->n_workers, o->samples, check_sample, o);
    for (int i = 0; i < o->n_workers; i++) {
        const tally *t = &o->workers[i].tally;
        total->error = fmax(total->error, t->error);
        total->scale = fmax(total->scale, t->scale);
        total->mismatches += t->mismatches;
        if (t->st) total->st = t->st;
    }
    return total->st;
}

/* ---- the bound ---- */

static double sum_units(double terms)
{
    return 4 + 2 * sqrt(terms);
}

static double conv_units(const cvy_graph *g, const node *n)
{
    conv_geom c;
    cvyi_conv_geom(g, n, &c);
    return sum_units((double)(c.C / c.groups * c.kernel[0] * c.kernel[1] * c.kernel[2]));
}

static double matmul_units(const cvy_graph *g, const node *n)
{
    matmul_geom m;
    cvyi_matmul_geom(g, n, &m);
    return sum_units((double)m.K);
}

static double reduce_units(const cvy_graph *g, const node *n)
{
    const double in = (double)cvyi_elements(cvyi_shape_of(g, n->arg[0]));
    return sum_units(in / fmax(1, (double)cvyi_elements(cvyi_shape_of(g, n->out))));
}

/* The rounding error that an operator may add, in units of half the last place. */
static double node_units(const cvy_graph *g, const node *n)
{
    switch (cvyi_info(n)->kind) {
    case KIND_CONV:
    case KIND_CONVT:
        return conv_units(g, n);
    case KIND_LINEAR:
    case KIND_MATMUL:
        return matmul_units(g, n);
    case KIND_AVGPOOL:
    case KIND_ADAPTIVE:
    case KIND_REDUCE:
        return reduce_units(g, n);
    case KIND_NORM:
    case KIND_SOFTMAX:
        return 24;
    case KIND_UNARY:
        return 8;
    case KIND_BINARY:
        return 2;
    default:
        return 0;
    }
}

static bool is_producer(const node *n)
{
    return cvyi_info(n)->kind <= KIND_MATMUL;
}

/* tf32 keeps 11 of 24 bits of a product's factors, so producers lose 2^13 times as much. */
static double units_of(const cvy_graph *g, cvy_precision precision)
{
    double units = 1;
    for (int i = 0; i < g->n_nodes; i++) {
        const node *n = &g->nodes[i];
        units += node_units(g, n) * (precision == CVY_TF32 && is_producer(n) ? 0x1p13 : 1);
    }
    return units;
}

/* The largest of them over all operators. */
static double worst_units(const cvy_graph *g, cvy_precision precision)
{
    double worst = 2;
    for (int i = 0; i < g->n_nodes; i++) {
        const node *n = &g->nodes[i];
        worst = fmax(worst, node_units(g, n) * (precision == CVY_TF32 && is_producer(n) ? 0x1p13 : 1));
    }
    return worst;
}

/* The error that rounding to fp16 and bf16 may add, and in how many operators. */
static double half_units(const cvy_graph *g, int *operators)
{
    static const double lost[] = {[CVY_FLOAT32] = 0, [CVY_FLOAT16] = 0x1p-11, [CVY_BFLOAT16] = 0x1p-8};
    double sum = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        const double one = lost[g->values[g->nodes[i].out].dtype];
        sum += one;
        *operators += one > 0;
    }
    return sum;
}

/* ---- set-up ---- */

static double **alloc_outputs(const oracle *o)
{
    double **outputs = calloc((size_t)o->n_outputs, sizeof *outputs);
    for (int k = 0; outputs && k < o->n_outputs; k++) {
        outputs[k] = malloc((size_t)(per_sample(o, o->n_sources + k) + 1) * sizeof(double));
        if (!outputs[k]) return outputs; /* found by the caller: the last is NULL */
    }
    return outputs;
}

static bool complete(double *const *outputs, int n)
{
    for (int k = 0; outputs && k < n; k++)
        if (!outputs[k]) return false;
    return outputs != NULL;
}

static bool alloc_workers(oracle *o)
{
    size_t bytes = 0;
    o->workers = calloc((size_t)o->n_workers, sizeof *o->workers);
    if (!o->workers || cvyi_ref_workspace(o->graph, &bytes)) return false;
    for (int i = 0; i < o->n_workers; i++) {
        worker *w = &o->workers[i];
        w->workspace = aligned_alloc(CVY_ALIGN, bytes);
        w->buffers = calloc((size_t)o->n_sources + 1, sizeof *w->buffers);
        w->first = alloc_outputs(o);
        w->second = alloc_outputs(o);
        if (!w->workspace || !w->buffers || !complete(w->first, o->n_outputs) || !complete(w->second, o->n_outputs))
            return false;
    }
    return true;
}

static bool nudge(oracle *o)
{
    o->nudged = calloc((size_t)o->n_sources + 1, sizeof *o->nudged);
    for (int i = 0; o->nudged && i < o->n_sources; i++) {
        const tensor *t = &o->j->tensors[i];
        o->nudged[i] = host_alloc((size_t)t->count * sizeof(float));
        if (!o->nudged[i]) return false;
        memcpy(o->nudged[i], t->host, (size_t)t->count * sizeof(float));
        data_nudge(o->nudged[i], t->count, (cvy_dtype)t->info.dtype, (uint64_t)i + 1);
    }
    return o->nudged != NULL;
}

static void free_outputs(double **outputs, int n)
{
    for (int k = 0; outputs && k < n; k++) free(outputs[k]);
    free(outputs);
}

static void close_oracle(oracle *o)
{
    for (int i = 0; o->workers && i < o->n_workers; i++) {
        free(o->workers[i].workspace);
        free(o->workers[i].buffers);
        free_outputs(o->workers[i].first, o->n_outputs);
        free_outputs(o->workers[i].second, o->n_outputs);
    }
    for (int i = 0; o->nudged && i < o->n_sources; i++) free(o->nudged[i]);
    free(o->workers);
    free(o->nudged);
}

static double graph_flops(const cvy_graph *g)
{
    double flops = 0;
    for (int i = 0; i < g->n_nodes; i++) flops += cvyi_node_flops(g, &g->nodes[i]);
    return flops;
}

/* How many samples to check: all, as many as requested, or what a reference of about 10^9 operations per second
 * does in one. 0: not even one. */
static int64_t choose_samples(const oracle *o, int64_t asked)
{
    const double quick = 1e9, patience = 8e9, flops = fmax(1, graph_flops(o->graph));
    if (asked == CHECK_ALL) return o->batch;
    if (asked > 0) return asked < o->batch ? asked : o->batch;
    if (flops > patience) return 0;
    return flops * (double)o->batch <= quick ? o->batch : (int64_t)fmax(1, quick / flops);
}

static bool agrees(const verdict *v)
{
    return !v->mismatches && v->rel_error <= v->bound;
}

/* How much nudged data, and then also nudged results of operators, change the result: `factor` times that is
 * allowed. */
static cvy_status excuse(oracle *o, bool moved, double factor, double scale, verdict *v)
{
    tally total;
    cvy_status st = CVY_OK;

    o->moved = moved;
    if (!o->nudged && !nudge(o)) return CVY_NO_MEMORY;
    TRY(check_all(o, &total));
    v->bound = fmax(v->bound, factor * total.error / scale);
    if (moved) v->mismatches = total.mismatches;
fail:
    return st;
}

static cvy_status judge(oracle *o, const options *opt, verdict *v)
{
    const cvy_precision precision = (cvy_precision)opt->plan.precision;
    const double units = units_of(o->j->graph, precision);
    int rounded = 0;
    const double halves = half_units(o->j->graph, &rounded);
    double scale;
    tally total;
    cvy_status st = CVY_OK;

    TRY(check_all(o, &total));
    scale = total.scale > 0 ? total.scale : 1;
    v->max_abs_error = total.error;
    v->rel_error = total.error / scale;
    v->mismatches = total.mismatches;
    v->bound = 4 * 0x1p-24 * units + halves;
    if (!v->mismatches && !agrees(v)) TRY(excuse(o, false, rounded ? rounded : units, scale, v));
    if (!agrees(v)) TRY(excuse(o, true, rounded ? 2 : worst_units(o->j->graph, precision), scale, v));
    v->ok = agrees(v);
    v->checked = true;
fail:
    return st;
}

int oracle_check(const job *j, const options *opt, int64_t samples, verdict *v)
{
    oracle o = {.j = j, .batch = 1};
    cvy_graph *one = batch_split(j->graph, &o.batch);
    cvy_status st = CVY_OK;

    memset(v, 0, sizeof *v);
    if (!one) o.batch = 1;
    if (!one && cvyi_graph_copy(j->graph, &one)) return cli_error("no memory for the float64 reference");
    for (int i = 0; i < one->n_values; i++) /* it is handed tensors[].host */
        if (one->values[i].kind != VALUE_NODE) one->values[i].dtype = CVY_FLOAT32;
    o.graph = one;
    while (o.n_sources < j->n && j->tensors[o.n_sources].info.role != CVY_OUTPUT) o.n_sources++;
    o.n_outputs = j->n - o.n_sources;
    o.samples = choose_samples(&o, samples);
    o.n_workers = (int)fmin(cvyi_threads_choose(opt->plan.threads), (double)o.samples);
    v->samples = o.samples;
    v->batch = o.batch;
    if (o.samples) {
        st = alloc_workers(&o) ? judge(&o, opt, v) : CVY_NO_MEMORY;
        progress_end();
    }
    close_oracle(&o);
    cvy_graph_free(one);
    return st == CVY_OK          ? EXIT_FINE
           : st == CVY_NO_MEMORY ? cli_error("no memory for the float64 reference")
                                 : cli_library_error("reference: ");
}

const char *oracle_extent(const verdict *v, char line[64])
{
    if (!v->checked)
        snprintf(line, 64, "not checked: float64 would take too long");
    else if (v->samples == v->batch)
        snprintf(line, 64, "all of it checked");
    else
        snprintf(line, 64, "%lld of %lld samples checked", (long long)v->samples, (long long)v->batch);
    return line;
}
