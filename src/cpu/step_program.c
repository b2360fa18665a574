/* step_program.c - pointwise operators, copies, reductions and softmax as programs: their steps, and their row in
 * the table of kernels; and reshapes that share memory and compute nothing. */
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

static void run_merge(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    (void)part;
    cvyi_program_merge(s->data, u, scratch);
}

static bool is_sink(const node *n)
{
    const op_kind kind = cvyi_info(n)->kind;
    return kind == KIND_REDUCE || kind == KIND_SOFTMAX;
}

/* A step with a copy of the program; NULL: out of memory. */
static step *add(builder *b, const char *name, const program *made)
{
    void *data;
    step *s = cvyi_add_step(b, name, sizeof *made, &data);
    if (!s) return NULL;
    memcpy(data, made, sizeof *made);
    s->parts = cvyi_one_part;
    s->scratch = cvyi_program_scratch(made);
    return s;
}

static cvy_status add_steps(builder *b, const program *made)
{
    step *s;
    cvy_status st = CVY_OK;

    if (made->n_coefs) {
        TRY((s = add(b, "coefficients", made)) ? CVY_OK : CVY_NO_MEMORY);
        s->run = run_coefs;
    }
    TRY((s = add(b, "program", made)) ? CVY_OK : CVY_NO_MEMORY);
    s->parts = program_parts;
    s->run = run_program;
    if (made->segment) {
        TRY((s = add(b, "merge", made)) ? CVY_OK : CVY_NO_MEMORY);
        s->run = run_merge;
    }
fail:
    return st;
}

static cvy_status make(builder *b, int index)
{
    const pass *p = b->out->pass;
    const site at = cvyi_site(b);
    int n = 0, sink = -1;
    program_room room;
    program made = cvyi_program_in(&room);

    for (int i = index; i < p->first + p->count && cvyi_node_choice(p, b->choice, i)->lead == index; i++) n++;
    if (is_sink(&b->g->nodes[index + n - 1])) sink = index + --n;
    if (!cvyi_program_build(&at, index, n, sink, CVY_NONE, &made))
        return cvyi_fail(CVY_UNSUPPORTED, "%s: does not fit a program of the cpu engine",
                         b->g->values[b->g->nodes[index].out].name);
    if (cvyi_program_keep(b->plan, &made)) return CVY_NO_MEMORY;
    if (made.segment) made.partials = cvyi_slice(b, cvyi_program_partials(&made));
    return add_steps(b, &made);
}

static const char *refuse(const question *q, const cpu_row *row)
{
    (void)row;
    if (is_sink(&q->plan->graph->nodes[q->index]) && !cvyi_sink_fits(q->plan, q->pass, q->index))
        return "its dimensions are not neighbours, or the samples are among them, or it is empty";
    return cvyi_is_alias(q->plan, q->index) ? "shares memory: nothing is computed" : NULL;
}

/* Nanoseconds per element and core of loops in the first-level cache, AVX-512; those of slow operators that were
 * not measured are as tanh's. */
static double element_ns(op_id op)
{
    static const double measured[OP_COUNT] = {
        [OP_exp] = 0.2,  [OP_logsumexp] = 0.35, [OP_softmax] = 0.5,  [OP_log_softmax] = 0.5,
        [OP_gelu] = 0.8, [OP_erf] = 0.8,        [OP_softplus] = 0.8, [OP_mish] = 0.8,
    };
    if (measured[op] > 0) return measured[op];
    return cvyi_ops[op].flags & FLAG_SLOW ? 0.4 : 0.06;
}

double cvyi_program_seconds(const question *q, const cpu_row *row)
{
    const node *n = &q->plan->graph->nodes[q->index];
    (void)row;
    return cvyi_info(n)->kind == KIND_SHAPE ? 0 : cvyi_vector_elements(q) * element_ns(n->op) * 1e-9;
}

const cpu_row cvyi_row_program = {.name = "program",
                                  .kinds = 1u << KIND_UNARY | 1u << KIND_BINARY | 1u << KIND_APPLY |
                                           1u << KIND_REDUCE | 1u << KIND_SOFTMAX | 1u << KIND_SHAPE,
                                  .others = "not pointwise, a copy, a reduction or softmax",
                                  .refuse = refuse,
                                  .seconds = cvyi_program_seconds,
                                  .make = make,
                                  .program = true};

static const char *refuse_alias(const question *q, const cpu_row *row)
{
    (void)row;
    return cvyi_is_alias(q->plan, q->index) ? NULL : "not a reshape that shares memory";
}

static cvy_status make_nothing(builder *b, int index)
{
    (void)b;
    (void)index;
    return CVY_OK;
}

const cpu_row cvyi_row_alias = {.name = "alias",
                                .kinds = 1u << KIND_SHAPE,
                                .others = "not a reshape that shares memory",
                                .refuse = refuse_alias,
                                .seconds = cvyi_program_seconds,
                                .make = make_nothing,
                                .alias = true};
