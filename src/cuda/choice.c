/* choice.c - the table of kernels, and the choice among them; see choice.h. */
#include <stdio.h>
#include <string.h>
#include "choice.h"

static const kernel_row *const kernels[] = {
    &cvyi_kernel_conv_direct, &cvyi_kernel_conv_simple, &cvyi_kernel_conv_mma,   &cvyi_kernel_conv_tc,
    &cvyi_kernel_conv_wide,   &cvyi_kernel_matmul,      &cvyi_kernel_matmul_mma, &cvyi_kernel_matmul_thin,
    &cvyi_kernel_matmul_tc,   &cvyi_kernel_matmul_wide, &cvyi_kernel_pool,       &cvyi_kernel_reduce,
    &cvyi_kernel_norm,        &cvyi_kernel_norm_stats,  &cvyi_kernel_norm_whole, &cvyi_kernel_softmax_row,
    &cvyi_kernel_softmax,     &cvyi_kernel_pointwise,   &cvyi_kernel_copy,       &cvyi_kernel_move,
};
enum { KERNELS = COUNT_OF(kernels) };

/* The answer of a row about a pass. */
typedef struct answer {
    const char *why; /* it refuses */
    pass pass;       /* it does not: way, seconds, note */
    cuda_choice choice;
} answer;

static answer ask(const cvy_plan *p, const pass *s, const kernel_row *row, const pattern *form)
{
    answer a = {.pass = *s, .choice = {.kernel = row, .form = *form}};

    a.why = row->refuse(p, s, &a.choice);
    if (!a.why && p->options.seed && row->dice && !(p->options.seed & row->dice))
        a.why = "this random plan does not use it";
    if (!a.why) row->tune(p, &a.pass, &a.choice);
    return a;
}

/* Is the row taken instead of the best of those before it? */
static bool beats(const cvy_plan *p, const kernel_row *row, const pass *mine, const pass *best)
{
    if (!best->choice || row->instead || (p->options.seed && row->dice)) return true;
    return mine->seconds < best->seconds || (row->ties && mine->seconds == best->seconds);
}

/* Appends why the faster kernel was not taken. */
static void note_refusal(pass *s, const char *why)
{
    const size_t length = strlen(s->note);
    if (why) snprintf(s->note + length, sizeof s->note - length, "; %s", why);
}

static const char *reason_of(const kernel_row *row, const char *const *reasons)
{
    for (int i = 0; i < KERNELS && row; i++)
        if (kernels[i] == row) return reasons[i];
    return NULL;
}

/* For a pass that no kernel takes: the condition that all of them miss; for a convolution, that of the kernel that
 * fuses most. */
static const char *common_reason(const cvy_plan *p, const pass *s, const pattern *form, const char *tensor_cores)
{
    if (cvyi_info(&p->graph->nodes[s->first])->kind == KIND_CONV && tensor_cores) return tensor_cores;
    return form->why ? form->why : "no kernel takes a producer with operators before it here";
}

/* Asks all rows, and keeps the best answer. */
static const char *choose(const cvy_plan *p, pass *s, bool prepared)
{
    const pattern form = cvyi_cuda_pattern(p, s);
    const char *reasons[KERNELS] = {NULL};
    pass best = *s;

    best.choice = NULL;
    for (int i = 0; i < KERNELS; i++) {
        const kernel_row *row = kernels[i];
        answer a;
        if (prepared && row->tensor_cores) continue;
        a = ask(p, s, row, &form);
        reasons[i] = a.why;
        if (a.why || !beats(p, row, &a.pass, &best)) continue;
        best = a.pass;
        *(cuda_choice *)best.choice = a.choice;
    }
    if (!best.choice) return common_reason(p, s, &form, reason_of(&cvyi_kernel_conv_tc, reasons));
    note_refusal(&best, reason_of(cvyi_cuda_choice(&best)->kernel->faster, reasons));
    *s = best;
    return NULL;
}

const char *cvyi_cuda_judge(const cvy_plan *p, pass *s)
{
    if (p->tuning == TUNE_APART && s->count > 1) return "this tuning keeps operators apart";
    return choose(p, s, false);
}

static const cuda_choice *keep(cvy_plan *p, const cuda_choice *c)
{
    cuda_choice *kept = cvyi_arena_alloc(&p->memory, 1, sizeof *kept);
    if (kept) *kept = *c;
    return kept;
}

/* Nodes that depend only on parameters run one by one: they are small, and not part of the time of a run. Most of
 * them are pointwise, which leaves nothing to decide: they have one choice. */
cvy_status cvyi_cuda_judge_prepared(cvy_plan *p, pass *s)
{
    const cuda_choice **each = cvyi_arena_alloc(&p->memory, (size_t)s->count, sizeof *each), *pointwise = NULL;

    s->choice = each;
    if (!each) return CVY_NO_MEMORY;
    for (int i = 0; i < s->count; i++) {
        cuda_choice room;
        pass one = {.first = s->first + i, .count = 1, .choice = &room};
        const char *why = choose(p, &one, true);
        if (why) return cvyi_fail(CVY_FAILED, "cuda: a pass that is not legal: %s", why);
        each[i] = room.kernel == &cvyi_kernel_pointwise ? pointwise : NULL;
        if (!each[i]) each[i] = keep(p, &room);
        if (!each[i]) return CVY_NO_MEMORY;
        if (room.kernel == &cvyi_kernel_pointwise) pointwise = each[i];
    }
    return CVY_OK;
}

/* The answer of the row that was chosen is the pass; those of the others were not kept. */
void cvyi_cuda_why(const cvy_plan *p, const pass *s, text *t)
{
    const cuda_choice *c = cvyi_cuda_choice(s);

    for (int i = 0; i < KERNELS; i++) {
        const kernel_row *row = kernels[i];
        const bool chosen = row == c->kernel;
        const answer a = chosen ? (answer){.pass = *s} : ask(p, s, row, &c->form);
        cvyi_text_add(t, "  %c %-12s ", chosen ? '*' : ' ', row->name);
        if (a.why)
            cvyi_text_add(t, "%13s %s\n", "-", a.why);
        else
            cvyi_text_add(t, "%10.4g ms %s%s%s\n", a.pass.seconds * 1e3, a.pass.note,
                          chosen && row->instead ? "; taken because " : "",
                          chosen && row->instead ? row->instead : "");
    }
}

cvy_status cvyi_cuda_tune_again(const cvy_plan *p, pass *s)
{
    cuda_choice *c = s->choice;
    const char *why = c->kernel->refuse(p, s, c);

    if (why) return cvyi_fail(CVY_FAILED, "cuda: a pass that is not legal: %s", why);
    c->kernel->tune(p, s, c);
    return CVY_OK;
}

bool cvyi_cuda_same(const void *a, const void *b)
{
    const cuda_choice *one = a, *two = b;

    return one->kernel == two->kernel && (!one->kernel->same || one->kernel->same(one, two));
}
