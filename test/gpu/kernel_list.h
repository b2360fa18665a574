/* kernel_list.h - the launches of a plan as lines: source file, and of a tensor-core kernel the macros of its form.
 */
#ifndef TEST_GPU_KERNEL_LIST_H
#define TEST_GPU_KERNEL_LIST_H

#include <stdio.h>
#include <string.h>
#include "../../src/cuda/exec.h"

/* The value of a macro among a step's options; -1: it is not there. */
static inline int macro_of(const cuda_step *s, const char *name)
{
    const size_t length = strlen(name);
    int found = -1;

    for (int i = 0; i < s->n_options[0]; i++) {
        const char *o = s->options[0][i];
        if (!strncmp(o, "-D", 2) && !strncmp(o + 2, name, length) && o[2 + length] == '=')
            found = atoi(o + 3 + length);
    }
    return found;
}

/* The first step from that file; NULL: there is none. */
static inline const cuda_step *step_of(const cvy_plan *plan, const char *source)
{
    const cuda_state *state = plan->state;

    for (int i = 0; i < state->n_steps; i++)
        if (strcmp(state->steps[i].source, source) == 0) return &state->steps[i];
    return NULL;
}

static inline void print_kernels(const cvy_plan *plan)
{
    static const char *const told[] = {"TC_PASS",  "TC_SINK", "TC_PRODUCTS", "TC_STRIDE",   "TC_TMA",
                                       "TC_FLAT",  "TC_TILE", "TC_ROWSM",    "TC_SLICES",   "TC_C",
                                       "TC_STRIP", "TC_SPAN", "TC_ROWS",     "TC_FINISHERS"};
    const cuda_state *state = plan->state;

    for (int i = 0; i < state->n_steps; i++) {
        const cuda_step *s = &state->steps[i];
        printf("    %s", s->source);
        for (int k = 0; k < COUNT_OF(told); k++)
            if (macro_of(s, told[k]) >= 0) printf(" %s=%d", told[k] + 3, macro_of(s, told[k]));
        printf("\n");
    }
}

#endif
