/* test_cuda_tc.c - passes on tensor cores, without a GPU: which chains take that form, in which way, and the words
 * for those that do not; tunings that fit; the generated text, word for word; memory that is zeroed once. */
#include "../support/fixture.h"
#include "../../src/cuda/choice.h"
#include "../support/kernel_list.h"

static standin *gpu, *rtc;

#define BLOCK_A "conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)"
#define BLOCK_B "conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)"
#define BLOCK_C "conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)"

static cvy_plan *plan_of(const char *chain, cvy_precision precision)
{
    return chain_plan(chain, precision, 0);
}

static const cuda_step *convolution(const cvy_plan *p)
{
    const cuda_state *state = p ? p->state : NULL;
    for (int i = 0; state && i < state->n_steps; i++)
        if (state->steps[i].tc && !state->steps[i].tc->packs) return &state->steps[i];
    return NULL;
}

/* ---- the form ---- */

/* Chains that are one launch; which pass it is may differ between precisions, the way over the barrier follows it.
 */
static void whole_chains_are_one_pass(void)
{
    static const struct {
        const char *chain;
        int sink;
        int pass[2]; /* float32, tf32 */
    } cases[] = {
        {"x[128,8,128,128] | " BLOCK_A, SINK_POOL, {PASS_KEEP, PASS_KEEP}},
        {"x[128,8,128,128] | " BLOCK_B, SINK_REDUCE, {PASS_KEEP, PASS_BOTH}},
        {"x[128,8,256,256] | " BLOCK_C, SINK_STORE, {PASS_KEEP, PASS_BOTH}},
        {"x[64,64,56,56] | conv2d(64,3,padding=1) | relu", SINK_STORE, {PASS_PLAIN, PASS_PLAIN}},
        {"x[64,16,128,128] | conv2d(64,3) | relu | max_pool2d(2)", SINK_POOL, {PASS_PLAIN, PASS_PLAIN}},
        {"x[64,8,512,512] | conv2d(64,3) | instance_norm | silu", SINK_STORE, {PASS_BOTH, PASS_BOTH}},
        {"x[64,8,128,128] | conv2d(128,3) | gelu | max(1)", SINK_REDUCE, {PASS_PLAIN, PASS_PLAIN}},
        {"x[128,16,128,128] | conv2d(128,3) | group_norm(4) | max_pool2d(2) | relu",
         SINK_POOL,
         {PASS_BOTH, PASS_KEEP}},
    };
    static const way ways[] = {[PASS_PLAIN] = WAY_STREAM, [PASS_KEEP] = WAY_RESIDENT, [PASS_BOTH] = WAY_RECOMPUTE};

    for (int i = 0; i < COUNT_OF(cases); i++)
        for (int precision = CVY_FP32; precision <= CVY_TF32; precision++) {
            cvy_plan *p = plan_of(cases[i].chain, precision);
            const cuda_step *s = convolution(p);
            const pass *only = p ? &p->passes[p->n_passes - 1] : NULL;
            if (!p) continue;
            CHECK(p->n_passes - p->n_prepare == 1 && cvyi_cuda_choice(only)->kernel == &cvyi_kernel_conv_tc && s,
                  "%s: %d passes", cases[i].chain, p->n_passes - p->n_prepare);
            if (s) {
                const tc_form f = cvyi_cuda_choice(only)->tc;
                const bool fold = f.tuning.pass == PASS_KEEP && cases[i].sink == SINK_POOL;
                CHECK(!f.why && f.problem.sink == cases[i].sink &&
                          f.tuning.pass == cases[i].pass[precision == CVY_TF32],
                      "%s: %s, %d, %d", cases[i].chain, f.why ? f.why : "", f.problem.sink, f.tuning.pass);
                CHECK(only->way == (fold ? WAY_FOLD : ways[f.tuning.pass]), "%s: %s", cases[i].chain,
                      cvyi_way_name(only->way));
                CHECK(f.problem.products == (precision == CVY_TF32 ? 1 : 3), "%d", f.problem.products);
                CHECK(s->launch.cooperative == (f.problem.groups > 0), "%s", cases[i].chain);
                CHECK(s->launch.grid[0] <= 132 && s->launch.dynamic_shared <= 227 * 1024, "%s", cases[i].chain);
            }
            cvy_plan_free(p);
        }
}

/* The whole of a chain as one pass, judged. */
static void refusals_are_in_words(void)
{
    static const struct {
        const char *chain, *why;
    } cases[] = {
        {"x[2,8,20,20] | conv2d(16,3,groups=2)", "groups"},
        {"x[2,8,20,20] | conv2d(16,3,dilation=2)", "dilated"},
        {"x[2,8,20,20] | conv2d(16,3,stride=3)", "stride above 2"},
        {"x[2,8,20,20] | conv2d(16,3,stride=(1,2))", "strides differ"},
        {"x[2,8,20,20] | conv2d(16,(13,1))", "11 taps"},
        {"x[2,8,9,20,20] | conv3d(16,3)", "three dimensions"},
        {"x[8,20,20] | conv2d(16,3)", "without its dimension"},
        {"x[2,8,20,20] | relu", "does not begin with a convolution"},
        {"x[2,8,20,20] | conv2d(16,3) | max_pool2d(3)", "2, 4 or 8 wide"},
        {"x[2,8,20,20] | conv2d(16,3) | max_pool2d(2,stride=1)", "overlap"},
        {"x[2,8,20,20] | conv2d(16,3) | add(r[16,18,18]) | max_pool2d(2)", "not per channel"},
        {"x[2,8,20,20] | conv2d(16,3) | relu | mean((2,3))", "not over the channels"},
        {"x[2,8,20,20] | conv2d(16,3) | softmax(1)", "more operators follow"},
        {"x[2,8,20,20] | conv2d(16,3) | max_pool2d(2) | sum(1)", "after pooling"},
        {"x[2,8,20,20] | conv2d(16,3) | batch_norm(training=True)", "over the batch"},
        {"x[2,8,20,20] | conv2d(16,3) | layer_norm(18)", "not of channels"},
        {"x[2,8,20,20] | conv2d(16,3) | group_norm(4,eps=inf)", "eps that is not finite"},
        {"x[2,8,20,20] | conv2d(16,3) | relu @r | tanh | output(@r, @tanh)", "needed after"},
        {"x[2,8,20,20] | conv2d(16,3) @c | sigmoid | group_norm(4) | add(@c) | mul(r[16,18,18])", "another tensor"},
        {"x[2,8,20,20] | conv2d(16,3) @c | sigmoid @s | group_norm(4) | add(@c) | mul(@s)", "another part"},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        cvy_plan *p = plan_of(cases[i].chain, CVY_FP32);
        int first = 0;
        if (!p) continue;
        if (p->n_prepare) first = p->passes[0].count;
        const pass whole = {.first = first, .count = p->graph->n_nodes - first};
        cuda_choice c;
        const char *why = ask_row(p, &whole, &cvyi_kernel_conv_tc, &c);
        CHECK(why && strstr(why, cases[i].why), "%s: \"%s\", not \"%s\"", cases[i].chain, why ? why : "(taken)",
              cases[i].why);
        cvy_plan_free(p);
    }
}

static void check_alone(const char *chain)
{
    cvy_plan *p = plan_of(chain, CVY_FP32);
    const cuda_step *stats = convolution(p), *finish = stats ? stats + 1 : NULL;

    if (!p) return;
    CHECK(stats && finish->tc && strstr(stats->entry, "stats") && strstr(finish->entry, "finish"), "%s: %s", chain,
          stats ? stats->entry : "no tensor cores");
    if (finish && finish->tc) {
        CHECK(!stats->launch.cooperative && !finish->launch.cooperative, "%s", chain);
        CHECK(stats->tc->zero_bytes > 0 && finish->tc->zero_bytes == 0, "%s", chain);
        CHECK(stats->launch.block[0] == finish->launch.block[0], "%s", chain);
    }
    cvy_plan_free(p);
}

/* Where blocks of a launch cannot wait for each other (the device says so, or the driver finds no room for all of
 * them), statistics and finishing are two launches with the same macros; words are zeroed before the first. */
static void crowded_blocks_are_alone(void)
{
    static const char *const chains[] = {"x[128,8,128,128] | " BLOCK_A, "x[128,8,128,128] | " BLOCK_B,
                                         "x[128,8,256,256] | " BLOCK_C};

    for (int i = 0; i < COUNT_OF(chains); i++)
        for (gpu->crowded = 2; gpu->crowded; gpu->crowded--) check_alone(chains[i]);
}

/* ---- tunings ---- */

static uint32_t seed = 7;
static int pick(int n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int)((seed >> 10) % (uint32_t)n);
}

/* Whatever fits keeps the kernel's rules; nearly everything fits. The kernel's static_asserts judge the bytes. */
static void tunings_keep_the_rules(void)
{
    static const int cs[] = {1, 3, 8, 16, 24, 64}, ks[] = {1, 16, 24, 32, 64, 100, 256}, rs[] = {1, 3, 5, 7};
    int none = 0;

    for (int i = 0; i < 300; i++) {
        tc_problem b = {
            .c = cs[pick(6)], .k = ks[pick(7)], .h = 7 + pick(300), .w = 7 + pick(300), .stride = 1 + pick(2)};
        tc_tuning t = {0};
        b.r = b.s = rs[pick(4)];
        b.products = 1 + 2 * pick(2);
        b.sink = pick(3);
        b.pool_h = 1 + pick(4);
        b.pool_w = 2 << pick(3);
        b.groups = pick(2);
        b.few = pick(2);
        b.alone = pick(4) == 0;
        if (!cvyi_tc_tune(&b, 227 * 1024, 132, 0, &t)) {
            none++;
            continue;
        }
        const int q = (b.w - b.s) / b.stride + 1;
        CHECK(t.shared_bytes <= 227 * 1024 && t.packed_bytes > 0 && t.strips > 0, "%d", i);
        CHECK(t.channels >= b.k && t.channels % (64 / t.rowsm) == 0, "%d: %d channels", i, t.channels);
        CHECK(t.rowsm == 1 || (b.k <= 64 / t.rowsm && b.sink == SINK_STORE && !t.flat), "%d: %d rows", i, t.rowsm);
        CHECK(t.span >= q || t.span % t.tile == 0, "%d: span %d", i, t.span);
        CHECK(t.share == 1 || (t.slices * 8 < b.c && t.channels / 64 % t.share == 0), "%d: share %d", i, t.share);
        CHECK(t.strip % (t.flat ? 1 : b.sink == SINK_POOL ? b.pool_h : t.rowsm) == 0, "%d: strip %d", i, t.strip);
        CHECK(!t.tma || (b.w % 4 == 0 && t.box_cols <= 256), "%d: box of %d", i, t.box_cols);
        CHECK((t.pass == PASS_PLAIN) == !b.groups && (t.pass == PASS_FINISH) == (b.groups && b.alone),
              "%d: pass %d", i, t.pass);
        CHECK(t.pass != PASS_KEEP || t.outs > (b.sink == SINK_REDUCE ? 1 : t.channels * t.rowsm / 64), "%d", i);
        CHECK(t.pass != PASS_KEEP || b.sink == SINK_POOL || t.outs % 2 == 0, "%d: %d chunks for two teams", i,
              t.outs);
    }
    CHECK(none < 60, "%d of 300 without a tuning", none);
    const tc_problem huge = {.c = 4096,
                             .k = 1024,
                             .h = 9,
                             .w = 9,
                             .r = 9,
                             .s = 9,
                             .stride = 1,
                             .products = 3,
                             .sink = SINK_POOL,
                             .pool_h = 1,
                             .pool_w = 2};
    tc_tuning t;
    CHECK(!cvyi_tc_tune(&huge, 227 * 1024, 132, 0, &t), "eight megabytes of weights in shared memory");
}

/* ---- text ---- */

/* Of the first plan, the cheapest or a random one, that is a single pass. */
static cvy_plan *whole_plan(const char *chain, cvy_precision precision)
{
    for (uint32_t random = 0; random < 200; random++) {
        cvy_plan *p = chain_plan(chain, precision, random);
        if (!p || p->n_passes - p->n_prepare == 1) return p;
        cvy_plan_free(p);
    }
    return NULL;
}

static void expect_text_in(cvy_precision precision, const char *chain, const char *golden)
{
    cvy_plan *p = whole_plan(chain, precision);
    const cuda_step *s = convolution(p);
    const char *got = s ? strstr(s->epilogue[0], "#include") : NULL;

    CHECK(got && strcmp(got, golden) == 0, "%s\n---- got\n%s---- expected\n%s", chain, got ? got : "", golden);
    CHECK(!s || !strstr(s->epilogue[0], "[128,"), "the batch is in the text");
    for (int i = 0; s && i < s->n_options[0]; i++)
        CHECK(strcmp(s->options[0][i], "-DTC_N=128") != 0, "the batch is among the options");
    cvy_plan_free(p);
}

static void expect_text(const char *chain, const char *golden)
{
    expect_text_in(CVY_FP32, chain, golden);
}

#define HEAD_IN(pre, halved, external, before, exponent)                                                           \
    "#include \"common.cuh\"\n#include \"fast.cuh\"\n#define TC_PRE " #pre "\n#define TC_HALVED " #halved          \
    "\n#define TC_EXTERN " #external "\n#define TC_BEFORE " #before "\n#define TC_EXPONENT " #exponent             \
    "\ntypedef cvy_args epi;\n"
#define HEAD(pre, external, before, exponent) HEAD_IN(pre, 0, external, before, exponent)

#define PRE(body) "\nCVY_INLINE float cvy_pre(const float t0, const int k, const epi &a)\n{\n" body "}\n"
#define POST(body)                                                                                                 \
    "\nCVY_INLINE float cvy_post(const float t0, const float y, const int n, const int k, const int pixel, const " \
    "epi &a)\n{\n" body "}\n"
#define LAST(body)                                                                                                 \
    "\nCVY_INLINE float cvy_last(const float t0, const int n, const int pixel, const epi &a)\n{\n" body "}\n"
#define SAME "    return t0;\n"

static void texts(void)
{
    expect_text("x[128,8,128,128] | " BLOCK_A,
                HEAD(0, 0, 0, 0) PRE(SAME)
                    POST("    const float t1 = cvy_clamp(t0, 0.0f, 1.0f); // clamp\n    return t1;\n") LAST(SAME));
    expect_text("x[128,8,128,128] | " BLOCK_B,
                HEAD(0, 0, 0, 0) PRE(SAME)
                    POST("    const float t1 = cvy_fast_tanh_hardswish(t0); // tanh_hardswish\n"
                         "    const float t2 = cvy_add(t1, y); // add\n"
                         "    return t2;\n") LAST(SAME));
    expect_text("x[128,8,128,128] | " BLOCK_C,
                HEAD(1, 0, 0, 0) PRE("    const float t1 = cvy_fast_sigmoid(t0); // sigmoid\n    return t1;\n")
                    POST(SAME) LAST(SAME));
    expect_text(
        "x[128,8,128,128] | conv2d(64,3) | add(r[126,126]) | relu | min(1) | mul(s[126]) | tanh",
        HEAD(0, 1, 0, 0) PRE(SAME)
            POST("    const cvy_at at = {n, k, 0, pixel / OW, pixel % OW, 0, ((cvy_index)n * K + k) * (OH * OW) + "
                 "pixel};\n"
                 "    const float t1 = __ldg(&a.t[6].p[(cvy_index)at.i3 * 126 + at.i4]); // parameter\n"
                 "    const float t2 = cvy_add(t0, t1); // add\n"
                 "    const float t3 = cvy_relu(t2); // relu\n"
                 "    return t3;\n")
                LAST("    const cvy_at at = {n, 0, 0, pixel / OW, pixel % OW, 0, (cvy_index)n * (OH * OW) + "
                     "pixel};\n"
                     "    const float t1 = __ldg(&a.t[7].p[at.i4]); // parameter\n"
                     "    const float t2 = cvy_mul(t0, t1); // mul\n"
                     "    const float t3 = cvy_fast_tanh(t2); // tanh\n"
                     "    return t3;\n"));
}

/* The convolution's own result after a norm of something else. */
static void befores(void)
{
#define IN "x[128,8,128,128] | conv2d(64,3) @c | mul(s[64,1,1]) "
    expect_text(IN "| group_norm(16) | add(@c) | relu",
                HEAD(1, 0, 1, 0) PRE("    const cvy_at at = {0, k, 0, 0, 0, 0, 0};\n"
                                     "    const float t1 = __ldg(&a.t[10].p[at.i1]); // parameter\n"
                                     "    const float t2 = cvy_mul(t0, t1); // mul\n"
                                     "    return t2;\n") POST("    const float t1 = cvy_add(t0, y); // add\n"
                                                              "    const float t2 = cvy_relu(t1); // relu\n"
                                                              "    return t2;\n") LAST(SAME));
#undef IN
}

/* In tf32, and before a norm that alone reads it, sigmoid is tanh of half, of which only one is left to do. */
static void halves(void)
{
#define IN      "x[128,8,128,128] | conv2d(64,3) @c "
#define TANH    PRE("    const float t1 = cvy_fast_tanh(t0); // sigmoid\n    return t1;\n")
#define SIGMOID PRE("    const float t1 = cvy_fast_sigmoid(t0); // sigmoid\n    return t1;\n")
    expect_text_in(CVY_TF32, "x[128,8,128,128] | " BLOCK_C, HEAD_IN(1, 1, 0, 0, 0) TANH POST(SAME) LAST(SAME));
    expect_text_in(CVY_TF32, IN "| sigmoid | group_norm(8) | mul(@c)",
                   HEAD_IN(1, 1, 0, 1, 0) TANH POST("    const float t1 = cvy_mul(t0, y); // mul\n    return t1;\n")
                       LAST(SAME));
    expect_text_in(CVY_TF32, IN "| sigmoid @s | group_norm(8) | mul(@s)",
                   HEAD(1, 0, 0, 0) SIGMOID POST("    const float t1 = cvy_mul(t0, y); // mul\n    return t1;\n")
                       LAST(SAME));
#undef IN
#undef TANH
#undef SIGMOID
}

/* Where a logsumexp follows in powers of two, log2(e) is in constants, or in what the kernel hands over. */
static void exponents(void)
{
#define IN "x[128,8,128,128] | conv2d(64,3) "
    expect_text_in(CVY_TF32, "x[128,8,128,128] | " BLOCK_B,
                   HEAD(0, 0, 0, 3) PRE(SAME)
                       POST("    const float t1 = cvy_fast_tanh_hardswish(t0, 1.44269502f); // tanh_hardswish\n"
                            "    const float t2 = cvy_add(t1, y); // add\n"
                            "    return t2;\n") LAST(SAME));
    expect_text_in(CVY_TF32, IN "| logsumexp(1)", HEAD(0, 0, 0, 5) PRE(SAME) POST(SAME) LAST(SAME));
    expect_text_in(CVY_TF32, IN "| relu | add(0.5) | logsumexp(1)",
                   HEAD(0, 0, 0, 5) PRE(SAME) POST("    const float t1 = cvy_relu(t0); // relu\n"
                                                   "    const float t2 = cvy_add(t1, 0.721347511f); // add\n"
                                                   "    return t2;\n") LAST(SAME));
    /* not for nothing: tanh has no constants; what is read twice has two units */
    expect_text_in(CVY_TF32, IN "| group_norm(16) | tanh | logsumexp(1)",
                   HEAD(0, 0, 0, 0) PRE(SAME)
                       POST("    const float t1 = cvy_fast_tanh(t0); // tanh\n    return t1;\n") LAST(SAME));
    expect_text_in(CVY_TF32, IN "@y | group_norm(16) | sigmoid | add(@y) | mul(@y) | logsumexp(1)",
                   HEAD(0, 0, 0, 0) PRE(SAME) POST("    const float t1 = cvy_fast_sigmoid(t0); // sigmoid\n"
                                                   "    const float t2 = cvy_add(t1, y); // add\n"
                                                   "    const float t3 = cvy_mul(t2, y); // mul\n"
                                                   "    return t3;\n") LAST(SAME));
    expect_text_in(CVY_TF32, IN "| group_norm(16) @z | sigmoid | add(@z) | logsumexp(1)",
                   HEAD(0, 0, 0, 0) PRE(SAME) POST("    const float t1 = cvy_fast_sigmoid(t0); // sigmoid\n"
                                                   "    const float t2 = cvy_add(t1, t0); // add\n"
                                                   "    return t2;\n") LAST(SAME));
#undef IN
}

/* ---- running ---- */

static void a_new_batch_compiles_nothing(void)
{
    cvy_plan *p = plan_of("x[100,8,128,128] | " BLOCK_B, CVY_TF32);
    const int compiles = rtc->compiles;

    cvy_plan_free(p);
    cvy_plan_free(plan_of("x[128,8,128,128] | " BLOCK_B, CVY_TF32));
    CHECK(rtc->compiles == compiles, "%d kernels", rtc->compiles - compiles);
}

/* Where no tensor will be strided, none has a copy. */
static void promised_tensors_have_no_copies(void)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CUDA, .strided = CVY_OFF};
    cvy_graph *graph = NULL;
    cvy_plan *plan = NULL, *any = plan_of("x[128,8,256,256] | " BLOCK_C, CVY_FP32);

    CHECK(!cvy_graph_parse("x[128,8,256,256] | " BLOCK_C, &graph) && !cvy_plan_create(graph, &options, &plan), "%s",
          cvy_last_error());
    CHECK(cvy_plan_workspace(plan) < 1 << 21 && cvy_plan_workspace(any) > 1 << 30, "%zu and %zu bytes",
          cvy_plan_workspace(plan), cvy_plan_workspace(any));
    cvy_graph_free(graph);
    cvy_plan_free(plan);
    cvy_plan_free(any);
}

/* The words of statistics are zeroed when the workspace is new, and left alone when it is kept. */
static void words_are_zeroed_once(void)
{
    cvy_plan *p = plan_of("x[3,8,64,64] | " BLOCK_A, CVY_FP32);
    const cuda_step *s = convolution(p);
    float *tensors[16] = {0};
    cvy_buffer buffers[16] = {0};
    unsigned char *workspace;

    CHECK(s && s->tc->zero_bytes > 8 && s->tc->gamma != CVY_NONE, "no statistics");
    if (!s) return;
    workspace = cvyi_alloc_aligned(cvy_plan_workspace(p));
    for (int i = 0; i < p->n_tensors; i++) {
        tensors[i] = cvyi_alloc_aligned(1 << 20);
        buffers[i].data = tensors[i];
    }
    const int64_t before_workspace =
        p->prepared_bytes - WORKSPACE_BASE; /* one buffer, the prepared part in front */
    const int64_t part = s->views[s->tc->part].at + before_workspace;
    const int64_t state = s->views[s->tc->state].at + before_workspace;
    memset(workspace, 0xaa, cvy_plan_workspace(p));
    CHECK(cvy_plan_run(p, buffers, p->n_tensors, workspace, cvy_plan_workspace(p), CVY_KEEP_PREPARED, NULL) ==
              CVY_OK,
          "%s", cvy_last_error());
    CHECK(workspace[part] == 0xaa && workspace[state + 7] == 0xaa, "kept words were zeroed");
    CHECK(cvy_plan_run(p, buffers, p->n_tensors, workspace, cvy_plan_workspace(p), 0, NULL) == CVY_OK, "%s",
          cvy_last_error());
    CHECK(workspace[part] == 0 && workspace[state] == 0 && workspace[state + 7] == 0, "new words were not zeroed");
    CHECK(workspace[state + 8] == 0xaa, "more than the words");
    /* A tensor that is not aligned goes through a copy: two launches more for x and y each alone. */
    const int before = gpu->launches;
    CHECK(cvy_plan_run(p, buffers, p->n_tensors, workspace, cvy_plan_workspace(p), 0, NULL) == CVY_OK, "%s",
          cvy_last_error());
    const int plain = gpu->launches - before;
    buffers[0].data = tensors[0] + 1;
    CHECK(cvy_plan_run(p, buffers, p->n_tensors, workspace, cvy_plan_workspace(p), 0, NULL) == CVY_OK, "%s",
          cvy_last_error());
    CHECK(gpu->launches - before - plain == plain + 1, "%d launches, then %d", plain,
          gpu->launches - before - plain);
    for (int i = 0; i < p->n_tensors; i++) cvyi_free(tensors[i]);
    cvyi_free(workspace);
    cvy_plan_free(p);
}

int main(int argc, char **argv)
{
    (void)argc;
    use_cache();
    gpu = use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    rtc = use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    whole_chains_are_one_pass();
    refusals_are_in_words();
    crowded_blocks_are_alone();
    tunings_keep_the_rules();
    texts();
    befores();
    halves();
    exponents();
    a_new_batch_compiles_nothing();
    promised_tensors_have_no_copies();
    words_are_zeroed_once();
    CHECK(cvyi_alloc_live() == 0, "%lld allocations", (long long)cvyi_alloc_live());
    return finish("cuda_tc");
}
