/* test_cuda_cover.c - the chains that test/gpu checks on a GPU, and those for compute-sanitizer, between them run
 * every kernel file and every form of a pass on tensor cores. Planned for the stand-in's Hopper. */
#include "../gpu/check.h"
#include "../gpu/chain_list.h"
#include "../gpu/kernel_list.h"
#include "../standin/fixture.h"

/* One thing that some kernel of a list must have: a source file, or a value of a macro of its options. */
typedef struct need {
    const char *name; /* the file, or the macro */
    int value;        /* of the macro */
    bool met;
} need;

static const need all_needs[] = {
    {"conv_direct.cu", -1, false}, {"conv_mma.cu", -1, false},     {"conv_simple.cu", -1, false},
    {"conv_tc.cu", -1, false},     {"conv_tc_pack.cu", -1, false}, {"matmul.cu", -1, false},
    {"matmul_mma.cu", -1, false},  {"matmul_tc.cu", -1, false},    {"matmul_tc_pack.cu", -1, false},
    {"norm_stats.cu", -1, false},  {"pack.cu", -1, false},         {"pointwise.cu", -1, false},
    {"pool.cu", -1, false},        {"reduce.cu", -1, false},       {"softmax.cu", -1, false},
    {"TC_PASS", 0, false},         {"TC_PASS", 1, false},          {"TC_SINK", 0, false},
    {"TC_SINK", 1, false},         {"TC_SINK", 2, false},          {"TC_PRODUCTS", 1, false},
    {"TC_PRODUCTS", 3, false},     {"TC_STRIDE", 1, false},        {"TC_STRIDE", 2, false},
    {"TC_TMA", 0, false},          {"TC_TMA", 1, false},           {"TC_FLAT", 0, false},
    {"TC_FLAT", 1, false},         {"streamed", 0, false},         {"streamed", 1, false},
    {"norm.cu", -1, false},        {"softmax_row.cu", -1, false},  {"TC_ROWS", 0, false},
    {"TC_ROWS", 1, false},         {"TC_FINISHERS", 2, false},
};

static int value_of(const cuda_step *s, const char *name)
{
    if (strcmp(name, "streamed")) return macro_of(s, name);
    return macro_of(s, "TC_C") < 0 ? -1 : macro_of(s, "TC_SLICES") * 8 < macro_of(s, "TC_C");
}

static void meet_needs(need *needs, const cvy_plan *plan)
{
    const cuda_state *state = plan->state;

    for (int i = 0; i < state->n_steps; i++)
        for (int k = 0; k < COUNT_OF(all_needs); k++) {
            const cuda_step *s = &state->steps[i];
            const bool file = needs[k].value < 0;
            needs[k].met |= file ? !strcmp(s->source, needs[k].name) : value_of(s, needs[k].name) == needs[k].value;
        }
}

static void check_list(const char *title, const char *const *list, int n, int kinds)
{
    need needs[COUNT_OF(all_needs)];

    memcpy(needs, all_needs, sizeof needs);
    for (int i = 0; i < n * CHECK_PRECISIONS * PLAN_KINDS; i++) {
        const int kind = i / n / CHECK_PRECISIONS, precision = i / n % CHECK_PRECISIONS;
        cvy_graph *g = NULL;
        cvy_plan *plan = NULL;
        if (!(kinds >> kind & 1)) continue;
        assert_ok(cvy_graph_parse(list[i % n], &g));
        assert_ok(check_plan_create(g, &plan_kinds[kind], precision, 1, &plan));
        meet_needs(needs, plan);
        cvy_plan_free(plan);
        cvy_graph_free(g);
    }
    for (int k = 0; k < COUNT_OF(all_needs); k++)
        CHECK(needs[k].met, "%s: nothing with %s %d", title, needs[k].name, needs[k].value);
}

int main(int argc, char **argv)
{
    (void)argc;
    use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    setenv("CVY_CACHE", "off", 1);
    check_list("chains", chains, COUNT_OF(chains), EVERY_PLAN);
    check_list("chains -s", sanitized, COUNT_OF(sanitized), SANITIZED_PLANS);
    return finish("cuda_cover");
}
