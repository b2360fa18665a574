/* test_cuda_half.c - fp16 and bf16 on the CUDA engine, run on the host by test/emulate, against the reference in
 * double of the same rounded data.
 *
 *   test_cuda_half [generic | random | hopper | last | special | casts | CHAIN...]      some of it; these chains,
 * under every plan
 *
 * Chains for every kernel, with what is odd for elements of two bytes: odd extents, strided views, addresses that
 * are multiples of two bytes alone, parameters in float32 beside half data. Then random graphs, whole numbers
 * exactly; the largest numbers, infinities, NaN and subnormals. */
#include "../support/check_random.h"
#include "../support/emulated.h"
#include "../../src/cuda/tc.h"

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
static int n_listed = COUNT_OF(generic), graphs = 6;
static bool every;

/* ---- chains ---- */

/* mixed: parameters stay float32. */
static void check_half(const gpu *u, const cvy_graph *g, const char *title, cvy_dtype dtype, bool mixed, int plans,
                       uint64_t seed)
{
    char words[1200];
    checked_graph c;
    cvy_graph *half = graph_as(g, dtype, !mixed);

    snprintf(words, sizeof words, "%s, %s%s", title, cvyi_dtype_name(dtype), mixed ? " beside fp32" : "");
    check_open(&c, u, half, RIG_REAL, seed);
    c.title = words;
    CHECK(check_plans(&c, CVY_FP32, plans, (uint32_t)seed), "%s", words);
    check_close(&c);
    cvy_graph_free(half);
}

static void take_listed(const gpu *u, int item)
{
    static const int others[] = {PLAN_RANDOM, PLAN_ONE_BY_ONE, PLAN_GENERIC};
    const int at = item / 2;
    const bool another = test_long() || (item + at / 3) % 2; /* else in the other dtype */
    const int plans = every ? 255 : PLAN_LIKED | (another ? others[at % 3] : 0);
    cvy_graph *g = NULL;

    if (getenv("CONVOY_TEST_QUICK") && item % 5) return; /* the emulator is never built in other ways */
    assert_ok(cvy_graph_parse(listed[at], &g));
    check_half(u, g, listed[at], halves[item % 2], false, plans, 12345);
    if ((at + item) % 4 == 1 || every) check_half(u, g, listed[at], halves[item % 2], true, PLAN_LIKED, 777);
    cvy_graph_free(g);
}

static void take_random(const gpu *u, int item)
{
    const uint64_t seed = 1 + (uint64_t)item / 6;

    CHECK(check_random(u, halves[item / 3 % 2], (flavour)(item % 3), seed, seed % 2 ? PLAN_LIKED : PLAN_RANDOM),
          "graph %d, flavour %d", (int)seed, item % 3);
}

/* ---- special values ---- */

/* The outputs of a plan on a rig of the graph's twin in float32. */
static float *run_half(const gpu *u, const cvy_graph *g, rig *r, const cvy_plan *plan, int64_t *count)
{
    CUdeviceptr work = 0;
    gpu_rig t;
    float *got;

    gpu_rig_open_as(&t, u, r, g);
    assert_ok(cvyi_cuda_alloc(u->device, cvy_plan_workspace(plan), &work));
    got = run_one_way(&t, plan, work, RUN_FRESH, count);
    cvyi_cuda_free(u->device, work);
    gpu_rig_close(&t);
    return got;
}

/* Every number there is, times 3: rounded once, to the nearest; infinities, NaN and subnormals are what they must
 * be, and what is too large becomes inf. Neighbours by one access, and one by one. */
static void check_numbers(const gpu *u, cvy_dtype dtype)
{
    static const char *const chains[] = {"x[65536] | mul(3)", "x[65536,1] | sum(1) | mul(3)"};

    for (int c = 0; c < COUNT_OF(chains); c++) {
        int64_t count = 0, wrong = 0;
        float *got;
        planned t;
        planned_open(&t, chains[c], dtype, &plan_kinds[0], CVY_FP32);
        for (int64_t i = 0; i < 65536; i++) *rig_at(&t.r.t[0], i) = half_value(dtype, (uint16_t)i);
        got = run_half(u, t.graph, &t.r, t.plan, &count);
        for (int64_t i = 0; got && i < count; i++) {
            const float want = 3 * *rig_at(&t.r.t[0], i);
            wrong += isnan(want)
                         ? !isnan(got[i])
                         : half_value(dtype, half_bits(dtype, got[i])) != half_value(dtype, half_bits(dtype, want));
        }
        CHECK(got && count == 65536 && !wrong, "%s, %s: %lld of %lld", chains[c], cvyi_dtype_name(dtype),
              (long long)wrong, (long long)count);
        free(got);
        planned_close(&t);
    }
}

/* Tensors that begin at multiples of two bytes alone give the same bits. */
static void check_addresses(const gpu *u, cvy_dtype dtype)
{
    static const char *const of_two[] = {"x[9,64] | relu | layer_norm(64,affine=False) | gelu",
                                         "x[5,4,24] | softmax(2) | neg", "x[1003] | gelu | tanh",
                                         "x[3,8,6] | add(1) | reshape(12,12) | square"};
    for (int i = 0; i < COUNT_OF(of_two); i++) {
        uint16_t x[1003], y[8][1003];
        uint64_t seed = 11;
        bool same = true;
        int64_t count;
        planned t;
        planned_open(&t, of_two[i], dtype, &plan_kinds[0], CVY_FP32);
        count = t.r.t[0].count;
        for (int64_t k = 0; k < count; k++) x[k] = half_bits(dtype, (float)random_next(&seed) * 0x1p-31f - 1);
        for (int off = 0; off < 8; off++) {
            run_shifted(u, t.plan, x, (size_t)count * sizeof *x, (size_t)off * sizeof *x, y[off]);
            same = same && !memcmp(y[off], y[0], (size_t)count * sizeof *x);
        }
        CHECK(same, "other bits at another address: %s, %s", of_two[i], cvyi_dtype_name(dtype));
        planned_close(&t);
    }
}

/* NaN and infinities, in one place of one tensor at a time: results have theirs where the reference does. Without
 * the rewrites that trust factors to be finite. */
static const char *const planted_chains[] = {
    "x[2,8,10,16] | conv2d(24,3,padding=1) | relu",
    "x[2,8,12,16] | conv2d(32,3) | sigmoid | group_norm(8)",
    "x[2,8,12,16] | conv2d(64,3) | max_pool2d(2) | relu",
    "x[1,72,5,12] | conv2d(64,3) | relu",
    "x[40,72] | linear(40)",
    "x[3,300] | softmax(1)",
    "x[2,3,8,8] | max_pool2d(3,2,1)",
    "x[2,5,7] | logsumexp(1)",
};

static void check_planted(const gpu *u, planned *t, const char *title)
{
    static const float planted[] = {NAN, INFINITY, -INFINITY};
    rig *r = &t->r;

    for (int i = 0; i < r->n_sources; i++)
        for (int k = 0; k < 6 && !strstr(r->t[i].info.name, "norm.weight"); k++) {
            float *cell = rig_at(&r->t[i], k % 2 * (r->t[i].count - 1)), keep = *cell, *got;
            int64_t count = 0, wrong = 0;
            *cell = planted[k / 2];
            rig_reference(r);
            got = run_half(u, t->graph, r, t->plan, &count);
            for (int64_t e = 0; got && e < count; e++) {
                const double want = r->t[r->n - 1].want[e];
                wrong += isnan(want) ? !isnan(got[e]) : isinf(want) ? got[e] != (float)want : !isfinite(got[e]);
            }
            CHECK(got && !wrong, "%s, %s, %g in %s: %lld of %lld", title,
                  cvyi_dtype_name(t->graph->values[0].dtype), (double)*cell, r->t[i].info.name, (long long)wrong,
                  (long long)count);
            free(got);
            *cell = keep;
        }
}

static void take_special(const gpu *u, int item)
{
    planned t;

    if (item < 2) {
        check_numbers(u, halves[item]);
        check_addresses(u, halves[item]);
        return;
    }
    planned_open(&t, planted_chains[item / 2 - 1], halves[item % 2], &plan_kinds[0], CVY_FP32);
    round_rig(&t.r, t.graph);
    check_planted(u, &t, planted_chains[item / 2 - 1]);
    planned_close(&t);
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

/* Products whose second operand lies transposed: batches, an epilogue, shares of the terms. */
static const char *const turned[] = {
    "x[200,128], y[128,264] | matmul(@y) | relu",
    "x[3,70,64], y[3,64,136] | matmul(@y)",
    "x[70,1024], y[1024,72] | matmul(@y) | gelu",
};

static bool has_layout(const cvy_plan *plan, step_layout layout)
{
    const cuda_state *state = plan->state;
    bool found = false;

    for (int i = 0; i < state->n_steps; i++) found = found || state->steps[i].layout == layout;
    return found;
}

/* Do tensor copies put x in its place? */
static bool is_placed(const cvy_plan *plan)
{
    const cuda_state *state = plan->state;
    bool found = false;

    for (int i = 0; i < state->n_steps; i++)
        found = found || (state->steps[i].layout == LAYOUT_LAST && state->steps[i].tc->tma);
    return found;
}

/* x and the result channels last, or a product's second operand transposed. */
static void lay_all(rig *r, bool product, bool result)
{
    if (product) {
        rig_lay_last(r, 1, r->t[1].info.rank - 2);
        return;
    }
    rig_lay_last(r, 0, 1);
    if (result && r->t[r->n - 1].info.rank == 4) rig_lay_last(r, r->n - 1, 1);
}

/* Channels last, contiguous, x alone channels last, and all again on one workspace: bits do not depend on what ran
 * before. */
enum { LAYOUTS = 3 };
static void check_last(const gpu *u, const cvy_graph *g, const char *title, bool product)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CUDA};
    cvy_graph *twin = graph_as(g, CVY_FLOAT32, true);
    uint64_t seed = 31;
    int64_t count = 0;
    cvy_plan *plan = NULL;
    guarded work = {0};
    gpu_rig t[LAYOUTS];
    doubt d;
    rig r[LAYOUTS];

    assert_ok(cvy_plan_create(g, &options, &plan));
    assert_ok(guarded_alloc(u, cvy_plan_workspace(plan), &work));
    CHECK(has_layout(plan, LAYOUT_LAST), "no kernel for channels last: %s", title);
    CHECK(is_placed(plan) == !strstr(title, "stride=2"), "tensor copies of channels-last tensors: %s", title);
    for (int i = 0; i < LAYOUTS; i++) { /* the second lies as it is */
        uint64_t same = seed;
        rig_open(&r[i], twin, &same, RIG_REAL, 0);
        round_rig(&r[i], g);
        if (i != 1) lay_all(&r[i], product, i == 0);
        rig_reference(&r[i]);
        gpu_rig_open_as(&t[i], u, &r[i], g);
    }
    doubt_open_by(&d, &r[0], seed, &checked_rounding[g->values[0].dtype][CVY_FP32]);
    for (int turn = 0; turn < 2 * LAYOUTS; turn++) {
        const int i = turn % LAYOUTS;
        double want = 0;
        float *got = run_one_way(&t[i], plan, work.at, turn ? RUN_KEPT : RUN_FRESH, &count);
        const int64_t bad = got ? doubt_find(&d, &r[i], got, false, &want) : 0;
        CHECK(got && bad < 0 && gpu_rig_intact(&t[i]), "%s, run %d: %s, element %lld is %g, not %g", title, turn,
              got ? "wrong" : cvy_last_error(), (long long)bad, got && bad >= 0 ? (double)got[bad] : 0, want);
        free(got);
    }
    doubt_close(&d);
    for (int i = 0; i < LAYOUTS; i++) {
        gpu_rig_close(&t[i]);
        rig_close(&r[i]);
    }
    guarded_free(u, &work);
    cvy_plan_free(plan);
    cvy_graph_free(twin);
}

static void take_last(const gpu *u, int item)
{
    const int product = item / 2 - COUNT_OF(last);
    const char *chain = product < 0 ? last[item / 2] : turned[product];
    cvy_graph *g = NULL, *half;

    assert_ok(cvy_graph_parse(chain, &g));
    half = graph_as(g, halves[item % 2], true);
    check_last(u, half, chain, product >= 0);
    cvy_graph_free(half);
    cvy_graph_free(g);
}

/* ---- casts ---- */

/* What autocast makes of the three blocks, a block with a shortcut and an MLP; casts that stay, of inputs, outputs
 * and parameters. */
static const char *const casts[] = {
    "x[5,8,10,16] | cast('bf16') | conv2d(64,3) | cast('fp32') | group_norm(16) | mul(scale[64,1,1]) | "
    "max_pool2d(4) | clamp(0,1)",
    "x[5,8,5,16] | cast('fp16') | conv2d(64,3) @c | cast('fp32') | group_norm(16) | tanh | hardswish @t | @c | "
    "cast('fp32') | add(@t) | logsumexp(1,keepdim=True)",
    "x[6,8,6,16] | cast('bf16') | conv2d(32,3) | cast('fp32') | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | "
    "group_norm(8)",
    "x[2,72,7,9] | cast('bf16') @h | conv2d(72,3,padding=1) | relu | add(@h) | cast('fp32')",
    "x[70,64] | cast('fp16') | linear(128) | gelu | linear(64) | cast('fp32') | add(@x) | layer_norm(64)",
    "x[3,8,6]:fp16 | cast('bf16') | reshape(12,12) | cast('fp32') | softmax(1) | cast('fp16')",
    "x[2,8,9,9]:bf16 | param(w[16,8,3,3]) | @w | cast('bf16') @half | @x | conv2d(16,3,weight=@half) | relu @y | "
    "cast('fp32') @z | output(@y, @z)",
};

static void take_cast(const gpu *u, int item)
{
    cvy_graph *g = NULL;
    checked_graph c;

    assert_ok(cvy_graph_parse(casts[item], &g));
    check_open(&c, u, g, RIG_REAL, 4711);
    c.title = casts[item];
    CHECK(check_plans(&c, CVY_FP32, PLAN_LIKED | (item % 2 ? PLAN_ONE_BY_ONE : PLAN_RANDOM), 5), "%s", casts[item]);
    check_close(&c);
    cvy_graph_free(g);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"", "generic", "random", "hopper", "last", "special", "casts"};
    int part = argc == 1 ? 0 : -1; /* 0: all of them */

    for (int i = 1; i < COUNT_OF(names); i++)
        if (argc == 2 && !strcmp(argv[1], names[i])) part = i;
    every = part < 0;
    if (every) listed = (const char *const *)argv + 1, n_listed = argc - 1;
    use_emulator(argv[0]);
    if (part <= 1) share_out(2 * n_listed, take_listed);
    if (part == 0 || part == 2) share_out(6 * graphs, take_random);
    if (part == 0 || part == 6) share_out(COUNT_OF(casts), take_cast);
    setenv("CVY_EMULATE_ARCH", "90", 1);
    if (!every) listed = hopper, n_listed = COUNT_OF(hopper);
    if (part <= 0 || part == 3) share_out(2 * n_listed, take_listed);
    if (part == 0 || part == 4) share_out(2 * (COUNT_OF(last) + COUNT_OF(turned)), take_last);
    if (part == 0 || part == 6) share_out(COUNT_OF(casts), take_cast);
    setenv("CVY_SIMPLIFY", "-fold_conv_affine,-fold_norm_affine,-reduce_producer,-pool_before_norm", 1);
    if (part == 0 || part == 5) share_out(2 * COUNT_OF(planted_chains) + 2, take_special);
    return finish("cuda_half");
}
