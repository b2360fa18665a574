/* step_program.c - pointwise operators, copies, reductions and softmax as programs: their steps, and their row in
 * the table of kernels; and reshapes that share memory, in which nothing is computed. */
#include <string.h>
#include "choice.h"
#include "program.h"

static void run_coefs(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    (void)part;
    (void)scratch;
    cvyi_program_coefs(s->data, u);
}
static int64_t program_parts(const step *s, const cpu_unit *u)
{
    return cvyi_program_parts(s->data, u);
}
static void run_program(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    cvyi_program_run(s->data, u, part, scratch);
}

static cvy_status make(builder *b, int index)
{
    const pass *p = b->out->pass;
    const site at = cvyi_site(b);
    void *data, *coefs;
    step *s = NULL, *c;
    int n = 0, sink = -1;
    program_room room;
    program made = cvyi_program_in(&room);

    for (int i = index; i < p->first + p->count && b->lead[i] == index; i++) n++;
    if (!cvyi_is_pointwise(cvyi_info(&b->g->nodes[index + n - 1])->kind) && n &&
        cvyi_sink_fits(b->plan, p, index + n - 1))
        sink = index + --n;
    if (!cvyi_program_build(&at, index, n, sink, CVY_NONE, &made))
        return cvyi_fail(CVY_UNSUPPORTED, "%s: does not fit a program of the cpu engine",
                         b->g->values[b->g->nodes[index].out].name);
    if (cvyi_program_keep(b->plan, &made)) return CVY_NO_MEMORY;
    if (made.n_coefs) {
        c = cvyi_add_step(b, "coefficients", sizeof made, &coefs);
        if (!c) return CVY_NO_MEMORY;
        memcpy(coefs, &made, sizeof made);
        c->parts = cvyi_one_part;
        c->run = run_coefs;
    }
    s = cvyi_add_step(b, "program", sizeof made, &data);
    if (!s) return CVY_NO_MEMORY;
    memcpy(data, &made, sizeof made);
    s->parts = program_parts;
    s->run = run_program;
    s->scratch = cvyi_program_scratch(&made);
    return CVY_OK;
}

static bool is_alias(const question *q)
{
    const node *n = &q->plan->graph->nodes[q->index];
    return cvyi_info(n)->kind == KIND_SHAPE && q->plan->root[n->out] != n->out;
}

static const char *refuse(const question *q, const cpu_row *row)
{
    const op_kind kind = cvyi_info(&q->plan->graph->nodes[q->index])->kind;

    (void)row;
    if (kind == KIND_REDUCE || kind == KIND_SOFTMAX)
        return cvyi_sink_fits(q->plan, q->pass, q->index)
                   ? NULL
                   : "its dimensions are not neighbours, or the samples are among them, or it is empty";
    if (is_alias(q)) return "shares memory: nothing is computed";
    return cvyi_is_pointwise(kind) || kind == KIND_SHAPE ? NULL : "not pointwise, a copy, a reduction or softmax";
}

const cpu_row cvyi_row_program = {.name = "program", .refuse = refuse, .seconds = cvyi_row_seconds, .make = make};

static const char *refuse_alias(const question *q, const cpu_row *row)
{
    (void)row;
    return is_alias(q) ? NULL : "not a reshape that shares memory";
}

static cvy_status make_nothing(builder *b, int index)
{
    (void)b;
    (void)index;
    return CVY_OK;
}

const cpu_row cvyi_row_alias = {
    .name = "alias", .refuse = refuse_alias, .seconds = cvyi_row_seconds, .make = make_nothing};
