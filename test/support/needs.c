/* needs.c - see needs.h. */
#include <stdio.h>
#include <string.h>
#include "../../src/cuda/choice.h"
#include "kernel_list.h"
#include "needs.h"

typedef struct named {
    const char *name;
    int value;
} named;

static int find_named(const named *all, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(name, all[i].name)) return all[i].value;
    return -1;
}

static int value_of_product(const product_choice *f, const char *name)
{
    const named all[] = {{"CLUSTER_M", f->tile.cluster_m}, {"CLUSTER_N", f->tile.cluster_n}};
    return find_named(all, COUNT_OF(all), name);
}

static int value_of_wide(const wide_choice *f, const char *name)
{
    const named all[] = {{"GROUPS_M", f->tile.groups_m}, {"TILE", f->tile.tile},       {"BLOCKS", f->tile.blocks},
                         {"TOGETHER", f->tile.together}, {"SPLIT", f->tile.split},     {"PRODUCTS", f->products},
                         {"PHASES", f->phases},          {"TRANSPOSED", f->transposed}};
    return find_named(all, COUNT_OF(all), name);
}

static int value_of_words(const word_choice *f, const char *name)
{
    const named all[] = {{"TURNS", f->tile.turns},    {"SPLIT", f->tile.split},       {"PRODUCTS", f->products},
                         {"SCALED", f->scaled},       {"OTHER_ACROSS", f->across},    {"X_WORDS", f->x.words},
                         {"X_BATCHED", f->x.batched}, {"W_BATCHED", f->other.batched}};
    return find_named(all, COUNT_OF(all), name);
}

/* -1: the choice has no such value. */
static int value_of(const cuda_choice *c, const char *name)
{
    if (c->kernel == &cvyi_kernel_matmul_tc) return value_of_product(&c->product, name);
    if (c->kernel == &cvyi_kernel_conv_wide) return value_of_wide(&c->wide, name);
    if (c->kernel == &cvyi_kernel_matmul_wide) return value_of_words(&c->word, name);
    if (c->kernel != &cvyi_kernel_conv_tc) return -1;
    if (!strcmp(name, "streamed")) return c->tc.tuning.slices * 8 < c->tc.problem.c;
#define VALUE(NAME, field, meaning)                                                                                \
    if (!strcmp(name, "TC_" #NAME)) return c->tc.problem.field;
    TC_PROBLEM(VALUE)
#undef VALUE
#define VALUE(NAME, field, meaning)                                                                                \
    if (!strcmp(name, "TC_" #NAME)) return c->tc.tuning.field;
    TC_TUNING(VALUE)
#undef VALUE
    return -1;
}

/* Is some launch compiled with these macros? */
static bool has_macros(const cvy_plan *plan, const need *n)
{
    const cuda_state *state = plan->state;
    char first[64], second[64] = "";
    bool has = false;

    snprintf(first, sizeof first, "-D%s=%d", n->name, n->value);
    if (n->also) snprintf(second, sizeof second, "-D%s=%d", n->also, n->also_value);
    for (int i = 0; i < state->n_steps && !has; i++)
        has = has_option(&state->steps[i], first) && (!*second || has_option(&state->steps[i], second));
    return has;
}

static bool meets(const cvy_plan *plan, const need *n)
{
    bool met = n->value >= 0 && has_macros(plan, n);

    if (n->value < 0) return step_of(plan, n->name) != NULL;
    for (int i = 0; i < plan->n_passes && !met; i++) {
        const cuda_choice *c = cvyi_cuda_choice(&plan->passes[i]);
        met = c && value_of(c, n->name) == n->value && (!n->also || value_of(c, n->also) == n->also_value);
    }
    return met;
}

uint64_t needs_met(const cvy_plan *plan, const need *needs, int n)
{
    uint64_t met = 0;

    for (int k = 0; k < n; k++) met |= (uint64_t)meets(plan, &needs[k]) << k;
    return met;
}
