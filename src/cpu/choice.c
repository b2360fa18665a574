/* choice.c - the table of kernels, and the choice among them; see choice.h. */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include "choice.h"

static const cpu_row *const rows[] = {
    &cvyi_row_conv_direct,
    &cvyi_row_conv_depthwise,
    &cvyi_row_conv_patches,
    &cvyi_row_conv_channels,
    &cvyi_row_conv_winograd_4x4,
    &cvyi_row_conv_winograd_2x4,
    &cvyi_row_conv_winograd_2x2,
    &cvyi_row_conv_product,
    &cvyi_row_conv_transposed,
    &cvyi_row_matmul,
    &cvyi_row_pool,
    &cvyi_row_stats,
    &cvyi_row_program,
    &cvyi_row_gather,
    &cvyi_row_alias,
    &cvyi_row_move,
};
enum { ROWS = COUNT_OF(rows), BEFORE_ALL = -2 };

/* The row that a tuning requests; NULL: none. */
static const cpu_row *forced_row(int tuning)
{
    static const cpu_row *const forced[TUNE_COUNT] = {
        [TUNE_DIRECT] = &cvyi_row_conv_direct,
        [TUNE_PATCHES] = &cvyi_row_conv_patches,
        [TUNE_CHANNELS] = &cvyi_row_conv_channels,
        [TUNE_WINOGRAD_4X4] = &cvyi_row_conv_winograd_4x4,
        [TUNE_WINOGRAD_2X4] = &cvyi_row_conv_winograd_2x4,
        [TUNE_WINOGRAD_2X2] = &cvyi_row_conv_winograd_2x2,
    };
    return forced[tuning];
}

static const char *refusal(const question *q, const cpu_row *row)
{
    if (!(row->kinds >> q->kind & 1)) return row->others;
    return row->refuse ? row->refuse(q, row) : NULL;
}

/* Why the first row for such operators does not take this one. */
static const char *first_refusal(const question *q)
{
    int i = 0;
    while (!(rows[i]->kinds >> q->kind & 1)) i++;
    return refusal(q, rows[i]);
}

/* The key by which the row is chosen, the smallest first: its seconds, or a random number if the plan has a seed,
 * so any legal row may win. The row that a tuning requests comes before all others. */
static double rank_of(const question *q, int row, double seconds)
{
    const uint32_t seed = q->plan->options.seed;
    uint64_t dice;

    if (rows[row] == forced_row(q->plan->tuning)) return -1;
    if (!seed) return seconds;
    dice = cvyi_hash(CVYI_HASH_START ^ seed, &q->conv, offsetof(conv_geom, spatial));
    return (double)(cvyi_hash(dice, &row, sizeof row) >> 40);
}

/* The row with the lowest rank above *rank that does not refuse, its rank and seconds; NULL: there is none. */
static const cpu_row *next_row(const question *q, double *rank, double *seconds)
{
    const double above = *rank;
    const cpu_row *best = NULL;

    for (int i = 0; i < ROWS; i++) {
        double found, at;
        if (refusal(q, rows[i])) continue;
        found = rows[i]->seconds(q, rows[i]);
        at = rank_of(q, i, found);
        if (at <= above || (best && at >= *rank)) continue;
        best = rows[i];
        *rank = at;
        *seconds = found;
    }
    return best;
}

const cpu_row *cvyi_only_row(const question *q)
{
    int i = 0;
    while (refusal(q, rows[i])) i++;
    return rows[i];
}

/* The first row that takes the pass; if none does, why the last refuses, or the first if no row takes its operator.
 */
const char *cvyi_cpu_judge(const cvy_plan *p, pass *s)
{
    const char *why = cvyi_pass_refusal(p, s);
    const question q = cvyi_ask(p, s, s->first);
    cpu_choice *c = s->choice;
    double rank = BEFORE_ALL, seconds;

    if (why) return why;
    for (const cpu_row *row = next_row(&q, &rank, &seconds); row; row = next_row(&q, &rank, &seconds)) {
        /* choice_bytes has room for the nodes */
        *c = (cpu_choice){.row = row, .seconds = seconds, .nodes = (node_choice *)(c + 1)};
        why = cvyi_decide_pass(p, s, c);
        if (!why) return NULL;
    }
    return why ? why : first_refusal(&q);
}

void *cvyi_cpu_keep(cvy_plan *p, const pass *s)
{
    const size_t nodes = (size_t)s->count * sizeof(node_choice);
    cpu_choice *c = cvyi_arena_alloc(&p->memory, 1, sizeof *c + nodes);
    if (!c) return NULL;
    memcpy(c, s->choice, sizeof *c + nodes);
    c->nodes = (node_choice *)(c + 1);
    return c;
}

static cvy_status decide_prepared(cvy_plan *p, const question *q, node_choice *out)
{
    double rank = BEFORE_ALL, seconds;
    const cpu_row *row = next_row(q, &rank, &seconds);
    cpu_choice *own;

    if (!row)
        return cvyi_fail(CVY_UNSUPPORTED, "%s: the cpu device does not run it: %s",
                         cvyi_info(&p->graph->nodes[q->index])->name, first_refusal(q));
    *out = cvyi_begin_node(q, row);
    if (!row->decide) return CVY_OK;
    out->own = own = cvyi_arena_alloc(&p->memory, 1, sizeof *own);
    if (!own) return CVY_NO_MEMORY;
    *own = (cpu_choice){.row = row, .seconds = seconds, .chunk = 1, .units = 1};
    row->decide(q, own);
    return CVY_OK;
}

/* Nodes that depend only on parameters are one pass of one unit; every producer among them has its own choice. */
cvy_status cvyi_cpu_judge_prepared(cvy_plan *p, pass *s)
{
    cpu_choice *c = s->choice = cvyi_arena_alloc(&p->memory, 1, sizeof *c);
    cvy_status st = CVY_OK;

    if (c) c->nodes = cvyi_arena_alloc(&p->memory, (size_t)s->count, sizeof *c->nodes);
    if (!c || !c->nodes) return CVY_NO_MEMORY;
    c->chunk = c->units = 1;
    for (int i = 0; i < s->count; i++) {
        const question q = cvyi_ask(p, s, s->first + i);
        TRY(decide_prepared(p, &q, &c->nodes[i]));
    }
    for (int i = 0; i < s->count; i++)
        if (c->nodes[i].lead < 0) cvyi_lead(p, s, c, s->first + i);
    cvyi_mark_reads(p, s, c);
fail:
    return st;
}

/* Decides the pass as a row would run it; c has room for the nodes. */
static const char *try_row(const question *q, const cpu_row *row, pass *s, cpu_choice *c)
{
    const char *why = refusal(q, row);

    if (why) return why;
    c->row = row;
    c->seconds = row->seconds(q, row);
    s->choice = c;
    why = cvyi_decide_pass(q->plan, s, c);
    if (!why) cvyi_cpu_predict(q->plan, s);
    return why;
}

/* Rows are ranked by the time of the first operator; the others have only one row. The answer of the row
 * that was chosen is the pass; those of the others were not kept. */
void cvyi_cpu_why(const cvy_plan *p, const pass *s, text *t)
{
    const cpu_state *state = p->state;
    const question q = cvyi_ask(p, s, s->first);
    const cpu_row *chosen = cvyi_cpu_choice(s)->row;

    for (int i = 0; i < ROWS; i++) {
        node_choice nodes[PASS_NODES];
        cpu_choice with = {.nodes = nodes};
        pass tried = *s;
        const char *why = rows[i] == chosen ? NULL : try_row(&q, rows[i], &tried, &with);
        cvyi_text_add(t, "  %c %-24s ", rows[i] == chosen ? '*' : ' ', rows[i]->name);
        if (why)
            cvyi_text_add(t, "%13s %s", "-", why);
        else {
            const double first = cvyi_cpu_choice(&tried)->seconds / state->threads;
            cvyi_text_add(t, "%10.4g ms %s", tried.seconds * 1e3, cvyi_way_name(tried.way));
            if (s->count > 1) cvyi_text_add(t, ", first operator %.4g ms", first * 1e3);
        }
        cvyi_text_add(t, "\n");
    }
}

bool cvyi_cpu_same(const void *a, const void *b)
{
    return ((const cpu_choice *)a)->row == ((const cpu_choice *)b)->row;
}
