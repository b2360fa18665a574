/* needs.h - what the kernels of some plans must have between them, so that a list of chains cannot lose what it is
 * for. */
#ifndef TEST_GPU_NEEDS_H
#define TEST_GPU_NEEDS_H

#include "kernel_list.h"

/* Some kernel has a source file (value -1), or a value of a macro of its options and perhaps that of another, too.
 */
typedef struct need {
    const char *name;
    int value;
    const char *also;
    int also_value;
} need;

static inline int value_of(const cuda_step *s, const char *name)
{
    if (strcmp(name, "streamed")) return macro_of(s, name);
    return macro_of(s, "TC_C") < 0 ? -1 : macro_of(s, "TC_SLICES") * 8 < macro_of(s, "TC_C");
}

static inline bool meets(const cuda_step *s, const need *n)
{
    if (n->value < 0) return !strcmp(s->source, n->name);
    return value_of(s, n->name) == n->value && (!n->also || value_of(s, n->also) == n->also_value);
}

/* Bit i: a kernel of the plan meets need i, of at most 64. */
static inline uint64_t needs_met(const cvy_plan *plan, const need *needs, int n)
{
    const cuda_state *state = plan->state;
    uint64_t met = 0;

    for (int i = 0; i < state->n_steps; i++)
        for (int k = 0; k < n; k++) met |= (uint64_t)meets(&state->steps[i], &needs[k]) << k;
    return met;
}

#endif
