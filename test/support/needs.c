/* needs.c - see needs.h. */
#include <string.h>
#include "../../src/cuda/choice.h"
#include "kernel_list.h"
#include "needs.h"

/* -1: the choice has no such value. */
static int value_of(const cuda_choice *c, const char *name)
{
    if (c->kernel == &cvyi_kernel_matmul_tc) {
        if (!strcmp(name, "CLUSTER_M")) return c->product.tile.cluster_m;
        if (!strcmp(name, "CLUSTER_N")) return c->product.tile.cluster_n;
    }
    if (c->kernel == &cvyi_kernel_conv_wide) {
        const struct {
            const char *name;
            int value;
        } all[] = {{"GROUPS_M", c->wide.tile.groups_m}, {"TILE", c->wide.tile.tile},
                   {"BLOCKS", c->wide.tile.blocks},     {"TOGETHER", c->wide.tile.together},
                   {"SPLIT", c->wide.tile.split},       {"PRODUCTS", c->wide.products},
                   {"PHASES", c->wide.phases},          {"TRANSPOSED", c->wide.transposed}};
        for (int i = 0; i < COUNT_OF(all); i++)
            if (!strcmp(name, all[i].name)) return all[i].value;
    }
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

static bool meets(const cvy_plan *plan, const need *n)
{
    bool met = false;

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
