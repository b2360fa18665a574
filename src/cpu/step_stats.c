/* step_stats.c - statistics of values in memory: their step, and their row in the table of kernels. */
#include "choice.h"

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
    const float *x = cvyi_unit_data(u, c->x), *sign = cvyi_unit_optional(u, c->sign);
    const int64_t slice = e->chan * e->inner, group = part % e->groups;
    cpu_moments m = {0, 0, 0};

    (void)scratch;
    if (sign) sign += group * e->chan;
    if (!e->over_outer) m = run_moments(u->run->state->red, e, x + part * slice, sign);
    for (int64_t o = 0; e->over_outer && o < e->outer; o++)
        m = cvyi_moments_merge(m, run_moments(u->run->state->red, e, x + (o * e->groups + group) * slice, sign));
    cvyi_store_stats(e, m, cvyi_unit_data(u, c->out) + part * STATS_FIELDS);
}

static cvy_status make(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    step *s;
    void *data;
    stats_step *c;
    cvy_status st = CVY_OK;

    TRY(cvyi_add_node_step(b, "statistics", sizeof *c, stats_parts, run_stats, &s, &data));
    c = data;
    cvyi_norm_geom(b->g, n, &c->geom);
    c->x = n->arg[0], c->sign = n->arg[1], c->out = n->out;
fail:
    return st;
}

static const char *refuse(const question *q, const cpu_row *row)
{
    const op_kind kind = cvyi_info(&q->plan->graph->nodes[q->index])->kind;
    (void)row;
    return kind == KIND_STATS ? NULL : "not statistics of a norm";
}

const cpu_row cvyi_row_stats = {.name = "statistics", .refuse = refuse, .seconds = cvyi_row_seconds, .make = make};
