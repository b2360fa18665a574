/* kernel_list.c - see kernel_list.h. */
#include <stdio.h>
#include <string.h>
#include "kernel_list.h"

const cuda_step *step_of(const cvy_plan *plan, const char *source)
{
    const cuda_state *state = plan->state;

    for (int i = 0; i < state->n_steps; i++)
        if (strcmp(state->steps[i].source, source) == 0) return &state->steps[i];
    return NULL;
}

bool has_option(const cuda_step *s, const char *option)
{
    for (int i = 0; i < s->n_options[0]; i++)
        if (strcmp(s->options[0][i], option) == 0) return true;
    return false;
}

const char *ask_row(const cvy_plan *plan, const pass *s, const kernel_row *row, cuda_choice *c)
{
    *c = (cuda_choice){.kernel = row, .form = cvyi_cuda_pattern(plan, s)};
    return row->refuse(plan, s, c);
}

static void print_tc(const tc_form *f)
{
#define PRINT(NAME, field, meaning) printf(" " #NAME "=%d", f->problem.field);
    TC_PROBLEM(PRINT)
#undef PRINT
#define PRINT(NAME, field, meaning) printf(" " #NAME "=%d", f->tuning.field);
    TC_TUNING(PRINT)
#undef PRINT
}

void print_kernels(const cvy_plan *plan)
{
    const cuda_state *state = plan->state;

    for (int i = 0; i < state->n_steps; i++) {
        const cuda_step *s = &state->steps[i];
        printf("    %s", s->source);
        if (s->row == &cvyi_kernel_conv_tc && !s->prepared) print_tc(&cvyi_cuda_choice(&plan->passes[s->pass])->tc);
        printf("\n");
    }
}
