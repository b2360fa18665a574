/* test_cuda_special.c - NaN and infinities on the CUDA engine's generic kernels, run on the host by test/emulate:
 * in one place of one tensor at a time, and results have theirs where the reference does. Once on tensor cores
 * where the engine likes them, once by multiply-adds alone.
 *
 * Without the rewrites that trust factors to be finite (nothing is watched on a GPU). The weight of a norm is left
 * alone: times a normalised value an infinite one gives an infinity here, where PyTorch's x a - mean a is NaN. */
#include "../support/emulated.h"
#include "../../src/cuda/tc_tune.h"

static const char *const chains[] = {
    /* padding: zeros that are multiplied */
    "x[2,3,7,9] | conv2d(8,3,padding=1)",
    "x[2,1,7,9] | conv2d(5,3,padding=(2,1),dilation=(2,1),bias=False)",
    "x[2,4,11] | conv1d(4,3,stride=2,padding=1,groups=4)",
    "x[1,4,3,4,5] | conv3d(6,2,padding='same',groups=2)",
    "x[1,6,9,9] | conv2d(4,7,padding=3,bias=False) | relu",
    /* what a transposed convolution does not meet: nothing */
    "x[2,8,5,6] | conv_transpose2d(8,3,stride=2,padding=1,output_padding=1)",
    "x[2,1,5,6] | conv_transpose2d(3,3,stride=2,padding=1)",
    "x[2,6,7] | conv_transpose1d(5,4,stride=3,bias=False)",
    "x[1,8,5,6] | conv_transpose2d(12,(3,2),groups=2,dilation=2,padding=1)",
    "x[1,4,3,4,5] | conv_transpose3d(5,(1,3,2),stride=(1,2,1),padding=(0,1,1))",
    "x[1,2,9] | conv_transpose1d(4,40,stride=2,padding=7)", /* more taps than a word has bits */
    /* products: edges of tiles */
    "x[9,7] | linear(5)",
    "x[3,19] | linear(67,bias=False)",
    "x[65,17] | matmul(w[17,66])",
    "x[2,5,18] | matmul(w[2,18,9])",
    /* lines */
    "x[2,5,7] | softmax(1)",
    "x[3,300] | softmax(1)",
    "x[2,5,7] | log_softmax(-1)",
    "x[3,40] | log_softmax(1) | relu",
    "x[2,40001] | softmax(1)",
    "x[3,40] | layer_norm(40)",
    "x[3,1501] | layer_norm(1501,affine=False) | neg",
    "x[2,40000] | rms_norm(40000)",
    "x[3,2,6,6] | tanh | instance_norm",
    "x[40] | gelu",
    "x[2,5,7] | logsumexp(1)",
    "x[2,5,7] | max(1)",
    "x[2,3,8,8] | max_pool2d(3,2,1)",
    "x[2,3,8,8] | avg_pool2d(3,2,1)",
    "x[2,3,8,8] | conv2d(16,3) | add(t[16,1,1]) | mul(s[16,1,1]) | softmax(1)",
    "x[2,3,8,8] | conv2d(16,3) | group_norm(4) | mul(s[16,1,1]) | relu | max_pool2d(2)",
    "x[2,6,5] | group_norm(2,eps=inf)",
};

/* On Hopper's tensor cores: results that wait, that are computed twice, that are pooled or reduced, in halves of
 * tiles; whole rows by copies, streamed weights, stride 2. */
static const char *const hopper[] = {
    "x[2,8,12,16] | conv2d(32,3) | sigmoid | group_norm(8)",
    "x[2,8,12,16] | conv2d(64,3) | group_norm(16) | max_pool2d(2) | relu",
    "x[2,8,8,20] | conv2d(64,3) @c | group_norm(16) | tanh | add(@c) | logsumexp(1,keepdim=True)",
    "x[1,8,10,128] | conv2d(40,3) @c | group_norm(8) | tanh | add(@c) | logsumexp(1)",
    "x[1,24,9,11] | conv2d(48,3,padding=1) | relu",
    "x[1,72,9,12] | conv2d(64,3) | relu",
    "x[2,16,13,15] | conv2d(40,3,stride=2,padding=1) | hardswish | min(1)",
    "x[2,8,10,13] | conv2d(48,3) | max_pool2d(2)",
    "x[2,8,10,13] | conv2d(20,3) | logsumexp(1)",
    "x[40,36] | linear(40)",
};

/* The same by conv_wide.cu, which random plans of such a seed take wherever it can run: padding, sums in parts. */
enum { TAKES_WIDE = 4 };
static const char *const wide[] = {
    "x[2,24,5,6] | conv2d(20,3,padding=1)",
    "x[1,20,5,6] | conv2d(12,3,stride=2,padding=1)",
    "x[1,20,3,4] | conv_transpose2d(12,3,stride=2,padding=1)",
    "x[1,130,3,4] | conv2d(9,(1,3),padding=(0,2),dilation=2,bias=False) | relu",
};

#define AS_WRITTEN "-fold_conv_affine,-fold_norm_affine,-reduce_producer,-pool_before_norm,-flip_transposed"

static bool same_kind(float got, double want)
{
    return isnan(want) ? isnan(got) : isinf(want) ? got == (float)want : isfinite(got);
}

static void check_run(const gpu *u, rig *r, const cvy_plan *p, const char *what)
{
    CUdeviceptr work = 0;
    int64_t count = 0, at = 0, wrong = 0;
    gpu_rig t;
    float *got;

    gpu_rig_open(&t, u, r);
    assert_ok(cvyi_cuda_alloc(u->device, cvy_plan_workspace(p), &work));
    got = run_one_way(&t, p, work, RUN_FRESH, &count);
    CHECK(got, "%s: %s", what, cvy_last_error());
    rig_reference(r);
    for (int i = r->n_sources; i < r->n && got; i++)
        for (int64_t k = 0; k < r->t[i].count; k++, at++) wrong += !same_kind(got[at], r->t[i].want[k]);
    CHECK(wrong == 0, "%s: %lld of %lld", what, (long long)wrong, (long long)count);
    free(got);
    cvyi_cuda_free(u->device, work);
    gpu_rig_close(&t);
}

static void check_chain(const gpu *u, const char *chain, cvy_precision precision, int tuning, uint32_t random)
{
    static const float planted[] = {NAN, INFINITY, -INFINITY};
    const cvy_options options = {
        .size = sizeof options, .device = CVY_CUDA, .precision = (int32_t)precision, .seed = random};
    cvy_graph *g = NULL;
    cvy_plan *p = NULL;
    uint64_t seed = 8;
    char what[300];
    rig r;

    assert_ok(cvy_graph_parse(chain, &g));
    assert_ok(cvyi_plan_tuned(g, &options, tuning, &p));
    rig_open(&r, g, &seed, RIG_REAL, 0);
    for (int i = 0; i < r.n_sources; i++)
        for (int k = 0; k < 9 && !strstr(r.t[i].info.name, "norm.weight"); k++) {
            const int64_t cell_at = k % 3 * (r.t[i].count - 1) / 2;
            float *cell = rig_at(&r.t[i], cell_at), keep = *cell;
            *cell = planted[k / 3];
            snprintf(what, sizeof what, "%s, %s, tuning %d, %g at %lld of %s", chain, precision_names[precision],
                     tuning, (double)*cell, (long long)cell_at, r.t[i].info.name);
            check_run(u, &r, p, what);
            *cell = keep;
        }
    rig_close(&r);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

static void take_generic(const gpu *u, int item)
{
    static const int tunings[] = {TUNE_COST, TUNE_GENERIC};
    check_chain(u, chains[item / 2], CVY_FP32, tunings[item % 2], 0);
}

/* The last chain: pooling before the norm, weights with the sign of the norm's. */
static void take_hopper(const gpu *u, int item)
{
    if (item / 2 == COUNT_OF(hopper)) {
        setenv("CVY_SIMPLIFY", "-fold_conv_affine,-fold_norm_affine,-reduce_producer", 1);
        check_chain(u, hopper[1], item % 2 ? CVY_TF32 : CVY_FP32, TUNE_COST, 0);
        setenv("CVY_SIMPLIFY", AS_WRITTEN, 1);
        return;
    }
    check_chain(u, hopper[item / 2], item % 2 ? CVY_TF32 : CVY_FP32, TUNE_COST, 0);
}

static void take_wide(const gpu *u, int item)
{
    check_chain(u, wide[item / 2], item % 2 ? CVY_TF32 : CVY_FP32, TUNE_COST, TAKES_WIDE);
}

int main(int argc, char **argv)
{
    (void)argc;
    use_emulator(argv[0]);
    setenv("CVY_SIMPLIFY", AS_WRITTEN, 1);
    share_out(2 * COUNT_OF(chains), take_generic);
    setenv("CVY_EMULATE_ARCH", "90", 1);
    share_out(2 * COUNT_OF(hopper) + 2, take_hopper);
    share_out(2 * COUNT_OF(wide), take_wide);
    return finish("cuda_special");
}
