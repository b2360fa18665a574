/* step_stats.c - statistics of values in memory: their step, and their row in the table of kernels. */
#include "choice.h"

typedef struct stats_step {
    norm_geom geom;
    int x, sign, out;
    int64_t per_part; /* slices */
} stats_step;

enum { PART_FLOATS = 4096, PIECE = 4096 };

static int64_t slices_of(const norm_geom *e, const cpu_unit *u)
{
    if (e->over_outer) return e->groups;
    return (u->pass->samples > 1 ? e->outer / u->pass->samples * u->m : e->outer) * e->groups;
}

static int64_t stats_parts(const step *s, const cpu_unit *u)
{
    const stats_step *c = s->data;
    return cvyi_ceil_div(slices_of(&c->geom, u), c->per_part);
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

/* The channels of one group in one outer: one run, or channel by channel if signs differ. */
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

/* Slice number i: a group of a sample, or of all samples. */
static cpu_moments slice_moments(const cpu_reduce_kernels *red, const norm_geom *e, const float *x,
                                 const float *sign, int64_t i)
{
    const int64_t slice = e->chan * e->inner, group = e->groups > 1 ? i % e->groups : 0;
    cpu_moments m = {0, 0, 0};

    if (sign) sign += group * e->chan;
    if (!e->over_outer) return run_moments(red, e, x + i * slice, sign);
    for (int64_t o = 0; o < e->outer; o++)
        m = cvyi_moments_merge(m, run_moments(red, e, x + (o * e->groups + group) * slice, sign));
    return m;
}

/* x as 16-bit words, widened into `room` a piece at a time, so it stays in L1 for both passes. */
typedef struct stats_words {
    const cpu_reduce_kernels *red;
    const uint16_t *x;
    cpu_widen_fn *widen;
    float *room; /* PIECE floats */
} stats_words;

/* Of n neighbours. */
static cpu_moments words_moments(const stats_words *w, const norm_geom *e, int64_t first, int64_t n)
{
    cpu_moments m = {0, 0, 0};
    for (int64_t i = 0; i < n; i += PIECE) {
        const norm_geom piece = {.centred = e->centred, .chan = 1, .inner = cvyi_min64(PIECE, n - i)};
        w->widen(w->room, w->x + first + i, piece.inner);
        m = cvyi_moments_merge(m, run_moments(w->red, &piece, w->room, NULL));
    }
    return m;
}

/* The channels of one group in one outer. */
static cpu_moments words_group(const stats_words *w, const norm_geom *e, int64_t first, const float *sign)
{
    cpu_moments m = {0, 0, 0};
    if (!sign || !e->centred) return words_moments(w, e, first, e->chan * e->inner);
    for (int64_t c = 0; c < e->chan; c++) {
        cpu_moments of = words_moments(w, e, first + c * e->inner, e->inner);
        of.mean *= sign[c];
        m = cvyi_moments_merge(m, of);
    }
    return m;
}

/* slice_moments() of words. */
static cpu_moments words_slice(const stats_words *w, const norm_geom *e, const float *sign, int64_t i)
{
    const int64_t slice = e->chan * e->inner, group = e->groups > 1 ? i % e->groups : 0;
    cpu_moments m = {0, 0, 0};

    if (sign) sign += group * e->chan;
    if (!e->over_outer) return words_group(w, e, i * slice, sign);
    for (int64_t o = 0; o < e->outer; o++)
        m = cvyi_moments_merge(m, words_group(w, e, (o * e->groups + group) * slice, sign));
    return m;
}

/* A few slices at a time, so several roots and quotients are computed at once. */
static void run_stats(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    enum { FEW = 8 };
    const stats_step *c = s->data;
    const norm_geom *e = &c->geom;
    const float *x = cvyi_unit_data(u, c->x), *sign = cvyi_unit_optional(u, c->sign);
    const int64_t end = cvyi_min64((part + 1) * c->per_part, slices_of(e, u));
    float *out = cvyi_unit_data(u, c->out);
    const stats_words w = {u->run->state->red, x ? NULL : cvyi_unit_words(u, c->x),
                           u->run->state->convert->widen[cvyi_unit_dtype(u, c->x)], (float *)(void *)scratch};
    cpu_moments m[FEW];

    for (int64_t i = part * c->per_part; i < end; i += FEW) {
        const int64_t n = cvyi_min64(FEW, end - i);
        for (int64_t k = 0; k < n; k++)
            m[k] = x ? slice_moments(u->run->state->red, e, x, sign, i + k) : words_slice(&w, e, sign, i + k);
        for (int64_t k = 0; k < n; k++) cvyi_store_stats(e, m[k], out + (i + k) * STATS_FIELDS);
    }
}

static cvy_status make(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    void *data;
    step *s = cvyi_add_node_step(b, "statistics", sizeof(stats_step), stats_parts, run_stats, &data);
    stats_step *c;

    if (!s) return CVY_NO_MEMORY;
    c = data;
    cvyi_norm_geom(b->g, n, &c->geom);
    c->x = n->arg[0], c->sign = n->arg[1], c->out = n->out;
    c->per_part = cvyi_node_choice(b->out->pass, b->choice, index)->per_part;
    if (b->g->values[b->plan->root[c->x]].dtype != CVY_FLOAT32) s->scratch = cvyi_floats(PIECE);
    return CVY_OK;
}

/* Short slices do not get a part each. */
static int64_t per_part(const question *q)
{
    norm_geom e;
    cvyi_norm_geom(q->plan->graph, &q->plan->graph->nodes[q->index], &e);
    return e.over_outer ? 1 : cvyi_max64(PART_FLOATS / cvyi_max64(e.chan * e.inner, 1), 1);
}

/* After a convolution the sums cost a multiply-add per element, else a read from cache. */
static double seconds(const question *q, const cpu_row *row)
{
    const int x = q->plan->graph->nodes[q->index].arg[0];
    (void)row;
    return cvyi_vector_elements(q) * (cvyi_made_inside(q->plan, q->pass, x) ? 0.03e-9 : 0.08e-9);
}

/* Short rows are widened together, once for the statistics and for the steps that apply them. */
static bool words(const builder *b, int index)
{
    norm_geom e;
    cvyi_norm_geom(b->g, &b->g->nodes[index], &e);
    return e.chan * e.inner >= 512;
}

const cpu_row cvyi_row_stats = {.name = "statistics",
                                .kinds = 1u << KIND_STATS,
                                .others = "not statistics of a norm",
                                .seconds = seconds,
                                .words = words,
                                .per_part = per_part,
                                .make = make};
