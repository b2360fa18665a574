/* test_cuda_half.c - fp16 and bf16 on the CUDA engine, run on the host by test/emulate, against the reference in
 * double of the same rounded data.
 *
 *   test_cuda_half [hopper | last | CHAIN...]   what is Hopper's alone, or channels last; these chains, under every
 * plan
 *
 * Chains for every kernel, with what is odd for elements of two bytes: odd extents, strided views, addresses that
 * are multiples of two bytes alone, parameters in float32 beside half data. Then random graphs, whole numbers
 * exactly; the largest numbers, infinities, NaN and subnormals. */
#include "../support/check_random.h"
#include "../support/emulated.h"

static const char *const generic[] = {
    /* the three blocks */
    "x[3,8,20,22] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[3,8,20,22] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[3,8,20,22] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
    /* conv_mma, conv_direct, conv_simple */
    "x[2,3,50] | conv1d(5,7,stride=2,padding=3) | relu",
    "x[1,5,9,11] | conv2d(7,(3,2),stride=(2,1),padding=(1,2),dilation=(1,2)) | silu",
    "x[2,12,14,13] | conv2d(12,3,padding=1,groups=12) | hardswish",
    "x[2,20,8,8] | conv2d(130,1) | relu",
    "x[2,4,6,7,8] | conv3d(18,3,padding=1,stride=(1,2,1)) | elu(0.7)",
    "x[2,8,7,9] | conv_transpose2d(20,3,stride=2,padding=1) | gelu | avg_pool2d(2)",
    /* matmul_mma, matmul: rows of whole groups of four, or not */
    "x[70,36] | linear(52) | gelu",
    "x[9,19] | linear(67,bias=False) | tanh",
    "x[65,20] | matmul(w[20,64]) | relu",
    "x[2,5,18] | matmul(w[2,18,9]) | softmax(2)",
    /* norm, norm_stats, norm_whole, softmax_row, softmax, reduce, pool, pointwise, copy */
    "x[9,1028] | add(y[1028]) @a | layer_norm(1028) | mul(@a)",
    "x[9,1021] | sigmoid | rms_norm(1021) | mish",
    "x[2,6,31,33] | instance_norm | gelu",
    "x[4,6,5,3] | batch_norm(training=True) | relu",
    "x[2,4,130,131] | group_norm(2) | silu",
    "x[3,40001] | layer_norm(40001,affine=False) | elu",
    "x[5,300] | gelu | softmax(1) | mul(s[300])",
    "x[4,33,19] | log_softmax(1) | tanh",
    "x[3,5,64] | sum(2) | relu",
    "x[3,5,7,9] | mean((1,3),keepdim=True) | neg",
    "x[2,70000] | logsumexp(1)",
    "x[2,3,17,19] | max_pool2d(3,2,1) | leaky_relu(0.2)",
    "x[2,3,16,16] | adaptive_avg_pool2d(1) | relu",
    "x[3,8,6] | add(1) | reshape(12,12) | square",
    "x[2,6,4,8] | add(y[6,1,1]) | mul(z[4,8]) | relu | sub(w[8]) | maximum(v[1])",
    "x[1003] | gelu",
};

/* On Hopper's tensor cores: the three blocks; results that wait, are computed twice, pooled, reduced; x by tensor
 * copies, by rows with an end inside 16 bytes, by loads in pairs and single; streamed weights; stride 2; folded
 * weights, which are not numbers of 16 bits. */
static const char *const hopper[] = {
    "x[5,8,10,16] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[5,8,5,16] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[6,8,6,16] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
    "x[2,8,10,128] | conv2d(40,3) @c | group_norm(8) | tanh | add(@c) | sub(9) | logsumexp(1)",
    "x[2,8,8,12] | conv2d(32,3) | group_norm(8) | add(r[32,6,10]) | relu",
    "x[3,8,11,13] | conv2d(48,3) | group_norm(3) | max_pool2d(2) | relu",
    "x[1,72,9,16] | conv2d(64,3) | relu",
    "x[2,72,5,12] | conv2d(130,3) | logsumexp(1)",
    "x[2,16,13,15] | conv2d(40,3,stride=2,padding=1) | hardswish | min(1)",
    "x[2,3,16,16] | conv2d(64,7,stride=2,padding=3) | batch_norm | relu | max_pool2d(2)",
    "x[2,8,40] | conv1d(64,5) | instance_norm | silu",
    "x[3,3,11,13] | conv2d(48,5,padding=2) | group_norm(3) | silu",
    "x[2,5,7,9] | conv2d(24,3,padding=1) | batch_norm | relu",
    /* matmul_tc */
    "x[70,128] | linear(52) | gelu",
    "x[130,200] | linear(264,bias=False)",
    "x[3,9,64] | linear(8) | softmax(2)",
    /* rows that leave by bulk copies from the middle of 16 bytes */
    "x[3,8,16,64] | conv2d(32,3) | relu",
    "x[3,8,15,24] | conv2d(24,3) | mul(s[24,1,1]) | sigmoid | group_norm(3)",
};

static const cvy_dtype halves[] = {CVY_FLOAT16, CVY_BFLOAT16};

static const char *const *listed = generic;
static int n_listed = COUNT_OF(generic), graphs = 12;
static bool every;

/* ---- chains ---- */

/* mixed: parameters stay float32. */
static void check_half(const gpu *u, const cvy_graph *g, const char *title, cvy_dtype dtype, bool mixed,
                       rig_data kind, int plans, uint64_t seed)
{
    char words[1200];
    checked_graph c;
    cvy_graph *half = graph_as(g, dtype, !mixed);

    snprintf(words, sizeof words, "%s, %s%s", title, cvyi_dtype_name(dtype), mixed ? " beside fp32" : "");
    check_open(&c, u, half, kind, seed);
    c.title = words;
    CHECK(check_plans(&c, CVY_FP32, plans, (uint32_t)seed), "%s", words);
    check_close(&c);
    cvy_graph_free(half);
}

static void take_listed(const gpu *u, int item)
{
    const int at = item / 2,
              plans = every ? 255 : PLAN_LIKED | PLAN_RANDOM | (at % 2 ? PLAN_ONE_BY_ONE : PLAN_GENERIC);
    cvy_graph *g = NULL;

    assert_ok(cvy_graph_parse(listed[at], &g));
    check_half(u, g, listed[at], halves[item % 2], false, RIG_REAL, plans, 12345);
    if ((at + item) % 2 || every) check_half(u, g, listed[at], halves[item % 2], true, RIG_REAL, PLAN_LIKED, 777);
    cvy_graph_free(g);
}

static void take_random(const gpu *u, int item)
{
    const flavour f = (flavour)(item % 3);
    const uint64_t seed = 1 + (uint64_t)item / 6;
    cvy_graph *g = make_graph(f, seed);

    if (g->n_nodes && cvy_graph_tensors(g) <= RIG_TENSORS) {
        char *title = random_title(g, f, seed);
        check_half(u, g, title, halves[item / 3 % 2], seed % 3 == 0, f == EXACT ? RIG_WHOLE : RIG_REAL,
                   seed % 2 ? PLAN_LIKED : PLAN_RANDOM, seed);
        free(title);
    }
    cvy_graph_free(g);
}

/* ---- channels last ---- */

/* x as it lies in most networks, the result too: pooled, stored, reduced, streamed weights, stride 2, padding. */
static const char *const last[] = {
    "x[5,8,10,16] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[5,8,5,16] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[6,8,6,13] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
    "x[2,72,9,11] | conv2d(64,3,padding=1) | relu",
    "x[2,16,13,15] | conv2d(40,3,stride=2,padding=1) | silu",
    "x[2,8,8,12] | conv2d(32,3) | group_norm(8) | add(r[32,6,10]) | relu",
};

/* A tensor's elements where they lie channels last. */
static void lay_last(rig *r, int i)
{
    rig_tensor *t = &r->t[i];
    float *before = malloc((size_t)(t->count + 1) * sizeof *before);
    int64_t step = t->info.dims[1];

    assert_non_null(before);
    for (int64_t k = 0; k < t->count; k++) before[k] = *rig_at(t, k);
    t->strides[1] = 1;
    for (int d = t->info.rank - 1; d >= 0; d--) {
        if (d == 1) continue;
        t->strides[d] = step;
        step *= t->info.dims[d];
    }
    r->buffers[i].strides = t->strides;
    for (int64_t k = 0; k < t->count; k++) *rig_at(t, k) = before[k];
    free(before);
}

static bool has_layout(const cvy_plan *plan, step_layout layout)
{
    const cuda_state *state = plan->state;
    bool found = false;

    for (int i = 0; i < state->n_steps; i++) found = found || state->steps[i].layout == layout;
    return found;
}

/* Channels last, contiguous and channels last again on one workspace: bits do not depend on what ran before. */
static void check_last(const gpu *u, const cvy_graph *g, const char *title)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CUDA};
    cvy_graph *twin = graph_as(g, CVY_FLOAT32, true);
    uint64_t seed = 31;
    int64_t count = 0;
    cvy_plan *plan = NULL;
    guarded work = {0};
    gpu_rig t[2];
    doubt d;
    rig r[2];

    assert_ok(cvy_plan_create(g, &options, &plan));
    assert_ok(guarded_alloc(u, cvy_plan_workspace(plan), &work));
    CHECK(has_layout(plan, LAYOUT_LAST), "no kernel for channels last: %s", title);
    for (int i = 0; i < 2; i++) { /* the second lies as it is */
        uint64_t same = seed;
        rig_open(&r[i], twin, &same, RIG_REAL, 0);
        round_rig(&r[i], g);
        if (i == 0) lay_last(&r[i], 0);
        if (i == 0 && r[i].t[r[i].n - 1].info.rank == 4) lay_last(&r[i], r[i].n - 1);
        rig_reference(&r[i]);
        gpu_rig_open_as(&t[i], u, &r[i], g);
    }
    doubt_open_by(&d, &r[0], seed, &check_rounding[g->values[0].dtype][CVY_FP32]);
    for (int turn = 0; turn < 3; turn++) {
        const int i = turn % 2;
        double want = 0;
        float *got = run_one_way(&t[i], plan, work.at, turn ? RUN_KEPT : RUN_FRESH, &count);
        const int64_t bad = got ? doubt_find(&d, &r[i], got, false, &want) : 0;
        CHECK(got && bad < 0 && gpu_rig_intact(&t[i]), "%s, run %d: %s, element %lld is %g, not %g", title, turn,
              got ? "wrong" : cvy_last_error(), (long long)bad, got && bad >= 0 ? (double)got[bad] : 0, want);
        free(got);
    }
    doubt_close(&d);
    for (int i = 0; i < 2; i++) {
        gpu_rig_close(&t[i]);
        rig_close(&r[i]);
    }
    guarded_free(u, &work);
    cvy_plan_free(plan);
    cvy_graph_free(twin);
}

static void take_last(const gpu *u, int item)
{
    cvy_graph *g = NULL, *half;

    assert_ok(cvy_graph_parse(last[item / 2], &g));
    half = graph_as(g, halves[item % 2], true);
    check_last(u, half, last[item / 2]);
    cvy_graph_free(half);
    cvy_graph_free(g);
}

int main(int argc, char **argv)
{
    const bool only_last = argc == 2 && !strcmp(argv[1], "last"),
               only_hopper = argc == 2 && !strcmp(argv[1], "hopper");

    every = argc > 1 && !only_last && !only_hopper;
    if (every) listed = (const char *const *)argv + 1, n_listed = argc - 1;
    use_emulator(argv[0]);
    if (argc == 1 || every) share_out(2 * n_listed, take_listed);
    if (argc == 1) share_out(6 * graphs, take_random);
    setenv("CVY_EMULATE_ARCH", "90", 1);
    if (!every) listed = hopper, n_listed = COUNT_OF(hopper);
    if (!only_last) share_out(2 * n_listed, take_listed);
    if (!every) share_out(2 * COUNT_OF(last), take_last);
    return finish("cuda_half");
}
