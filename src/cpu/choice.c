/* choice.c - the table of kernels, and the choice among them; see choice.h. */
#include <math.h>
#include <stddef.h>
#include "choice.h"

static const cpu_row *const rows[] = {
    &cvyi_row_conv_direct,
    &cvyi_row_conv_depthwise,
    &cvyi_row_conv_patches,
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
};
enum { ROWS = COUNT_OF(rows) };

/* The row that a tuning asks for; NULL: none. */
static const cpu_row *forced_row(int tuning)
{
    static const cpu_row *const forced[TUNE_COUNT] = {
        [TUNE_DIRECT] = &cvyi_row_conv_direct,
        [TUNE_PATCHES] = &cvyi_row_conv_patches,
        [TUNE_WINOGRAD_4X4] = &cvyi_row_conv_winograd_4x4,
        [TUNE_WINOGRAD_2X4] = &cvyi_row_conv_winograd_2x4,
        [TUNE_WINOGRAD_2X2] = &cvyi_row_conv_winograd_2x2,
    };
    return forced[tuning];
}

static question ask(const cvy_plan *p, const pass *s, int index)
{
    const node *n = &p->graph->nodes[index];
    const op_kind kind = cvyi_info(n)->kind;
    question q = {.plan = p, .pass = s, .index = index};

    if (kind == KIND_CONV || kind == KIND_CONVT) cvyi_conv_geom(p->graph, n, &q.conv);
    return q;
}

/* The cheapest row that does not refuse; dice in place of costs where the plan has a seed. */
static cpu_choice pick(const question *q)
{
    const cvy_plan *p = q->plan;
    const cpu_row *forced = forced_row(p->tuning);
    uint64_t dice = cvyi_hash(CVYI_HASH_START ^ p->options.seed, &q->conv, offsetof(conv_geom, spatial));
    cpu_choice best = {.row = NULL, .seconds = INFINITY};

    for (int i = 0; i < ROWS; i++) {
        double seconds;
        if (rows[i]->refuse(q, rows[i])) continue;
        seconds = rows[i]->seconds(q, rows[i]);
        if (p->options.seed) seconds = (double)((dice = cvyi_hash(dice, &i, sizeof i)) >> 40); /* any legal one */
        if (rows[i] != forced && seconds >= best.seconds) continue;
        best.row = rows[i];
        best.seconds = seconds;
        if (rows[i] == forced) break;
    }
    return best;
}

void cvyi_cpu_choose_node(const cvy_plan *p, const pass *s, int index, cpu_choice *out)
{
    const question q = ask(p, s, index);

    *out = pick(&q);
    if (out->row->decide) out->row->decide(&q, out);
}

const char *cvyi_cpu_judge(const cvy_plan *p, pass *s)
{
    const char *why = cvyi_pass_refusal(p, s);
    const question q = ask(p, s, s->first);
    cpu_choice *c = s->choice;

    if (why) return why;
    *c = pick(&q);
    cvyi_pass_cost(p, s, c);
    if (c->row->decide) c->row->decide(&q, c);
    return NULL;
}

void cvyi_cpu_why(const cvy_plan *p, const pass *s, text *t)
{
    const question q = ask(p, s, s->first);
    const cpu_row *chosen = cvyi_cpu_choice(s)->row;

    for (int i = 0; i < ROWS; i++) {
        const char *why = rows[i]->refuse(&q, rows[i]);
        pass with = *s;
        cvyi_text_add(t, "  %c %-24s ", rows[i] == chosen ? '*' : ' ', rows[i]->name);
        if (why) {
            cvyi_text_add(t, "%13s %s\n", "-", why);
            continue;
        }
        cvyi_pass_cost(p, &with, &(cpu_choice){.row = rows[i], .seconds = rows[i]->seconds(&q, rows[i])});
        cvyi_text_add(t, "%10.4g ms %s\n", with.seconds * 1e3, cvyi_way_name(with.way));
    }
}

bool cvyi_cpu_same(const void *a, const void *b)
{
    return ((const cpu_choice *)a)->row == ((const cpu_choice *)b)->row;
}
