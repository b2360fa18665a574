/* test_cuda_cover.c - the chains that test/gpu checks on a GPU, and those for compute-sanitizer, between them run
 * every kernel file and every form of a pass on tensor cores. Planned for the stand-in's Hopper. */
#include "../support/check.h"
#include "../gpu/chain_list.h"
#include "../support/needs.h"
#include "../support/fixture.h"

static const need all_needs[] = {
    {"conv_direct.cu", -1, NULL, 0},
    {"conv_mma.cu", -1, NULL, 0},
    {"conv_simple.cu", -1, NULL, 0},
    {"conv_tc.cu", -1, NULL, 0},
    {"conv_tc_pack.cu", -1, NULL, 0},
    {"matmul.cu", -1, NULL, 0},
    {"matmul_mma.cu", -1, NULL, 0},
    {"matmul_tc.cu", -1, NULL, 0},
    {"matmul_tc_pack.cu", -1, NULL, 0},
    {"conv_wide.cu", -1, NULL, 0},
    {"conv_wide_pack.cu", -1, NULL, 0},
    {"conv_wide_words.cu", -1, NULL, 0},
    {"conv_wide_rescale.cu", -1, NULL, 0},
    {"conv_wide_add.cu", -1, NULL, 0},
    {"matmul_thin.cu", -1, NULL, 0},
    {"matmul_wide.cu", -1, NULL, 0},
    {"matmul_wide_words.cu", -1, NULL, 0},
    {"matmul_wide_rescale.cu", -1, NULL, 0},
    {"norm_stats.cu", -1, NULL, 0},
    {"pack.cu", -1, NULL, 0},
    {"pointwise.cu", -1, NULL, 0},
    {"pool.cu", -1, NULL, 0},
    {"move.cu", -1, NULL, 0},
    {"reduce.cu", -1, NULL, 0},
    {"softmax.cu", -1, NULL, 0},
    {"TC_PASS", 0, NULL, 0},
    {"TC_PASS", 1, NULL, 0},
    {"TC_SINK", 0, NULL, 0},
    {"TC_SINK", 1, NULL, 0},
    {"TC_SINK", 2, NULL, 0},
    {"TC_PRODUCTS", 1, NULL, 0},
    {"TC_PRODUCTS", 3, NULL, 0},
    {"TC_STRIDE", 1, NULL, 0},
    {"TC_STRIDE", 2, NULL, 0},
    {"TC_TMA", 0, NULL, 0},
    {"TC_TMA", 1, NULL, 0},
    {"TC_FLAT", 0, NULL, 0},
    {"TC_FLAT", 1, NULL, 0},
    {"streamed", 0, NULL, 0},
    {"streamed", 1, NULL, 0},
    {"norm.cu", -1, NULL, 0},
    {"softmax_row.cu", -1, NULL, 0},
    {"TC_ROWS", 0, NULL, 0},
    {"TC_ROWS", 1, NULL, 0},
    {"TC_FINISHERS", 2, NULL, 0},
};

static uint64_t needs_of(const char *const *list, int n, int kinds)
{
    uint64_t met = 0;

    for (int i = 0; i < n * CHECK_PRECISIONS * PLAN_KINDS; i++) {
        const int kind = i / n / CHECK_PRECISIONS, precision = i / n % CHECK_PRECISIONS;
        cvy_graph *g = NULL;
        cvy_plan *plan = NULL;
        if (!(kinds >> kind & 1)) continue;
        assert_ok(cvy_graph_parse(list[i % n], &g));
        assert_ok(check_plan_create(g, &plan_kinds[kind], precision, 1, &plan));
        met |= needs_met(plan, all_needs, COUNT_OF(all_needs));
        cvy_plan_free(plan);
        cvy_graph_free(g);
    }
    return met;
}

static void check_needs(const char *title, uint64_t met)
{
    for (int k = 0; k < COUNT_OF(all_needs); k++)
        CHECK(met >> k & 1, "%s: nothing with %s %d", title, all_needs[k].name, all_needs[k].value);
}

int main(int argc, char **argv)
{
    (void)argc;
    use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    setenv("CVY_CACHE", "off", 1);
    check_needs("chains", needs_of(chains, COUNT_OF(chains), EVERY_PLAN) |
                              needs_of(hopper_chains, COUNT_OF(hopper_chains), EVERY_PLAN));
    check_needs("chains -s", needs_of(sanitized, COUNT_OF(sanitized), SANITIZED_PLANS));
    return finish("cuda_cover");
}
