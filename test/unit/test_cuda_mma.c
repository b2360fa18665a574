/* test_cuda_mma.c - producers on tensor cores through mma.sync, without a GPU: on which devices, with which tile,
 * and the words where they are not; a new batch compiles nothing. What they compute is test_cuda_mma_run.c's. */
#include "../support/fixture.h"
#include "../../src/cuda/choice.h"
#include "../support/kernel_list.h"

static standin *gpu, *rtc;

static cvy_plan *plan_of(const char *chain, int capability, cvy_precision precision)
{
    gpu->capability = capability;
    return chain_plan(chain, precision, 0);
}

static bool has_tile(const pass *s, int m, int n)
{
    const cuda_choice *c = cvyi_cuda_choice(s);
    return c->kernel->tensor_cores && c->mma.tile.m == m && c->mma.tile.n == n;
}

/* Dilated, and rows of no whole 16 bytes: wgmma's kernels do not take them. */
static const char dilated[] = "x[128,8,128,128] | conv2d(64,3,dilation=2) | relu",
                  linear[] = "x[4096,1023] | linear(1000) | gelu";

/* One product pays wherever there are tensor cores, three only where they are much faster than multiply-adds. */
static void devices_choose(void)
{
    static const struct {
        int capability, precision;
        bool taken;
    } cases[] = {
        {80, CVY_FP32, true},  {80, CVY_TF32, true},  {86, CVY_FP32, false},  {86, CVY_TF32, true},
        {89, CVY_FP32, false}, {89, CVY_TF32, true},  {90, CVY_FP32, true},   {90, CVY_TF32, true},
        {100, CVY_FP32, true}, {100, CVY_TF32, true}, {120, CVY_FP32, false}, {120, CVY_TF32, true},
    };
    for (int i = 0; i < COUNT_OF(cases); i++)
        for (int k = 0; k < 2; k++) {
            cvy_plan *p;
            if (k && cases[i].capability == 90) continue; /* matmul_wide.cu's */
            p = plan_of(k ? linear : dilated, cases[i].capability, cases[i].precision);
            if (!p) continue;
            const pass *last = &p->passes[p->n_passes - 1];
            const bool large = k && cases[i].precision == CVY_TF32 &&
                               cvyi_mma_rate(cases[i].capability / 10, cases[i].capability % 10) > 128;
            const cuda_step *s = step_of(p, k ? "matmul_mma.cu" : "conv_mma.cu");
            CHECK(cvyi_cuda_choice(last)->kernel->tensor_cores == cases[i].taken && (s != NULL) == cases[i].taken,
                  "%d.%d: %s", cases[i].capability / 10, cases[i].capability % 10, last->note);
            if (s) {
                CHECK(has_option(s, cases[i].precision == CVY_TF32 ? "-DPRODUCTS=1" : "-DPRODUCTS=3"), "%s",
                      last->note);
                CHECK(has_tile(last, large ? 128 : 64, large ? 256 : 128), "%s", last->note);
                CHECK(s->launch.block[0] == (k ? 256 : 128), "%u threads", s->launch.block[0]);
            } else {
                CHECK(strstr(last->note, "multiply-adds are faster"), "%s", last->note);
            }
            cvy_plan_free(p);
        }
    CHECK(cvyi_mma_rate(8, 0) == 512 && cvyi_mma_rate(8, 9) == 128 && cvyi_mma_rate(9, 0) == 614 &&
              cvyi_mma_rate(10, 3) == 512 && cvyi_mma_rate(12, 0) == 128,
          "rates");
}

/* On Hopper wgmma's kernels and these divide the work; whatever wgmma does not take is here. */
static void hopper_has_both(void)
{
    static const struct {
        const char *chain;
        const kernel_row *kernel;
    } cases[] = {
        {"x[128,8,128,128] | conv2d(64,3) | relu", &cvyi_kernel_conv_tc},
        {"x[128,8,128,128] | conv2d(64,3) | group_norm(16) | relu", &cvyi_kernel_conv_tc},
        {"x[8,12,16,56,56] | conv3d(64,3,padding=1) | relu", &cvyi_kernel_conv_mma},
        {"x[64,256,28,28] | conv2d(256,3,padding=1,groups=8) | relu", &cvyi_kernel_conv_mma},
        {"x[64,64,28,28] | conv_transpose2d(64,4,stride=2,padding=1,groups=2)", &cvyi_kernel_conv_mma},
        {"x[8,512,512] | matmul(w[512,512])", &cvyi_kernel_matmul_tc},
        {"x[8,512,60] | matmul(w[8,60,512])", &cvyi_kernel_matmul_mma},
        {"x[8,512,512] | matmul(w[8,512,512])", &cvyi_kernel_matmul_wide},
        {"x[512,256] | linear(1024) | gelu", &cvyi_kernel_matmul_tc},
        {"x[4096,2048] | linear(2048) | gelu", &cvyi_kernel_matmul_wide},
        {"x[64,128,56,56] | conv2d(128,3,padding=1,groups=128) | relu", &cvyi_kernel_conv_simple},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        cvy_plan *p = plan_of(cases[i].chain, 90, CVY_FP32);
        if (!p) continue;
        CHECK(cvyi_cuda_choice(&p->passes[p->n_passes - 1])->kernel == cases[i].kernel, "%s: %s", cases[i].chain,
              p->passes[p->n_passes - 1].note);
        cvy_plan_free(p);
    }
}

/* A grid that leaves multiprocessors idle is not believed to be faster for it, and a block alone waits for memory.
 */
static void idle_multiprocessors_cost(void)
{
    cvy_plan *one = plan_of("x[1,64,56,56] | conv2d(64,3,padding=2,dilation=2)", 90, CVY_FP32),
             *two = plan_of("x[2,64,28,28] | conv2d(64,3,padding=2,dilation=2)", 90, CVY_FP32);
    if (one && two) {
        cuda_choice of_one, of_two;
        ask_row(one, &one->passes[one->n_passes - 1], &cvyi_kernel_conv_mma, &of_one);
        ask_row(two, &two->passes[two->n_passes - 1], &cvyi_kernel_conv_mma, &of_two);
        const mma_choice f = of_one.mma, h = of_two.mma;
        CHECK(h.tile.blocks < 132 && f.tile.blocks > 132 && f.tile.blocks < 264 && f.tile.steps == 36,
              "%lld and %lld blocks", (long long)f.tile.blocks, (long long)h.tile.blocks);
        CHECK(h.seconds < f.seconds && h.seconds > f.seconds / 2 && h.seconds > 36 * 400 / 1.98e9, "%g and %g s",
              f.seconds, h.seconds);
        CHECK(f.flops == h.flops && f.flops > 50e12, "%g and %g FLOP/s", f.flops, h.flops);
    }
    cvy_plan_free(one);
    cvy_plan_free(two);
}

/* Block A on an A100: its convolution on tensor cores, before the same passes. */
static void block_a_takes_it(void)
{
    cvy_plan *p = plan_of("x[128,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | "
                          "clamp(0,1)",
                          80, CVY_FP32);
    if (!p) return;
    CHECK(step_of(p, "conv_mma.cu") && !step_of(p, "conv_direct.cu") && !step_of(p, "conv_tc.cu"), "other kernels");
    CHECK(step_of(p, "pack.cu") && has_option(step_of(p, "pack.cu"), "-DCHANNELS_FASTEST=1"), "weights' order");
    cvy_plan_free(p);
}

static void refusals_are_in_words(void)
{
    static const struct {
        const char *chain, *why;
    } cases[] = {
        {"x[2,8,20,20] | relu", "not a convolution"},
        {"x[2,8,20,20] | conv2d(2,3)", "4 output channels"},
        {"x[2,12,20,20] | conv2d(12,3,groups=12)", "4 output channels"},
        {"x[2,8,20,20] | conv2d(16,1)", "16 terms"},
        {"x[20,30] | linear(7)", "8 columns"},
        {"x[20,15] | linear(70)", "16 terms"},
        {"x[20,30] | matmul(w[30])", "8 columns"},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        cvy_plan *p = plan_of(cases[i].chain, 80, CVY_FP32);
        if (!p) continue;
        const pass *last = &p->passes[p->n_passes - 1];
        cuda_choice c;
        const bool product = strstr(cases[i].chain, "linear") || strstr(cases[i].chain, "matmul");
        const char *why = ask_row(p, last, product ? &cvyi_kernel_matmul_mma : &cvyi_kernel_conv_mma, &c);
        CHECK(why && strstr(why, cases[i].why), "%s: \"%s\", not \"%s\"", cases[i].chain, why ? why : "(taken)",
              cases[i].why);
        CHECK(!cvyi_cuda_choice(last)->kernel->tensor_cores, "%s: %s", cases[i].chain, last->note);
        cvy_plan_free(p);
    }
}

/* Tiles go by the channels of a group and by what is believed to be fastest: small ones where large ones would not
 * fill the device. */
static void tiles(void)
{
    static const struct {
        const char *chain;
        int m, n;
    } cases[] = {
        {"x[64,8,80,80] | conv2d(12,3)", 16, 256},
        {"x[64,16,80,80] | conv2d(48,3,groups=2)", 32, 256},
        {"x[64,8,80,80] | conv2d(33,3)", 64, 128},
        {"x[64,8,5000] | conv_transpose1d(20,4,stride=2)", 32, 256},
        {"x[2,8,20,20] | conv2d(12,3)", 16, 64},
        {"x[24,3,31,31] | conv2d(72,7,stride=2) | sigmoid", 32, 32},
        {"x[2,3,26,74] | conv2d(65,7,padding=1)", 16, 64},
        {"x[12,24,12,21] | conv2d(168,3,padding=1)", 32, 64},
        {"x[300,16,11,11] | conv2d(128,5,stride=2,padding=1)", 64, 64},
        {"x[2,8,9] | conv_transpose1d(20,4,stride=2)", 32, 32},
        {"x[1000,64] | linear(64)", 64, 64},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        cvy_plan *p = plan_of(cases[i].chain, 80, CVY_TF32);
        if (!p) continue;
        const pass *last = &p->passes[p->n_passes - 1];
        CHECK(has_tile(last, cases[i].m, cases[i].n), "%s: %s", cases[i].chain, last->note);
        cvy_plan_free(p);
    }
}

/* Tunings ask for the next best tiles: others, each believed to be no faster than the one before. */
static void tunings_rank_tiles(void)
{
    static const char *const chains[] = {"x[4096,4096] | linear(4096)", "x[33,64] | linear(64)",
                                         "x[3,200,130] | matmul(w[3,130,77])",
                                         "x[2,64,20,20] | conv2d(130,3,dilation=2)"};
    cvy_plan *p;

    for (int i = 0; i < 2 * COUNT_OF(chains); i++) {
        mma_choice f[TUNE_TILES];
        p = plan_of(chains[i / 2], 90, i % 2 ? CVY_TF32 : CVY_FP32);
        if (!p) continue;
        for (int k = 0; k < TUNE_TILES; k++) {
            cuda_choice c;
            p->tuning = k;
            ask_row(p, &p->passes[p->n_passes - 1],
                    strstr(chains[i / 2], "conv") ? &cvyi_kernel_conv_mma : &cvyi_kernel_matmul_mma, &c);
            f[k] = c.mma;
            CHECK(!f[k].why && f[k].tile.shared_bytes <= 227 * 1024, "%s: %s", chains[i / 2], f[k].why);
            CHECK(!k || f[k].seconds >= f[k - 1].seconds, "%s: tile %d", chains[i / 2], k);
            for (int j = 0; j < k; j++)
                CHECK(f[j].tile.m != f[k].tile.m || f[j].tile.n != f[k].tile.n ||
                          f[j].tile.warp_m != f[k].tile.warp_m,
                      "%s: tiles %d and %d", chains[i / 2], j, k);
        }
        p->tuning = 0;
        cvy_plan_free(p);
    }
}

static void a_new_batch_compiles_nothing(void)
{
    int compiles;

    cvy_plan_free(plan_of("x[3,8,12,13] | conv2d(64,3) | relu", 80, CVY_FP32));
    cvy_plan_free(plan_of("x[3,40] | linear(70) | relu", 80, CVY_FP32));
    compiles = rtc->compiles;
    cvy_plan_free(plan_of("x[9,8,12,13] | conv2d(64,3) | relu", 80, CVY_FP32));
    cvy_plan_free(plan_of("x[90,40] | linear(70) | relu", 80, CVY_FP32));
    CHECK(rtc->compiles == compiles, "%d kernels", rtc->compiles - compiles);
}

int main(int argc, char **argv)
{
    (void)argc;
    use_cache();
    gpu = use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    rtc = use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    devices_choose();
    hopper_has_both();
    idle_multiprocessors_cost();
    block_a_takes_it();
    refusals_are_in_words();
    tiles();
    tunings_rank_tiles();
    a_new_batch_compiles_nothing();
    CHECK(cvyi_alloc_live() == 0, "%lld allocations", (long long)cvyi_alloc_live());
    return finish("cuda_mma");
}
