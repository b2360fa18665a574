/* test_cuda_wide.c - convolutions with many channels on Hopper's tensor cores (conv_wide.cu), run on the host by
 * test/emulate, against the reference.
 *
 *   test_cuda_wide [CHAIN...]      these chains
 *
 * Chains are small, and cost would give some of them to other kernels; so all plans are random ones of those that
 * take conv_wide.cu wherever it can run, with each of the four best tiles. Checked as a GPU would be
 * (test/gpu/check.h): whole numbers exactly, real ones within bounds, guards, the same bits again and in any order
 * of blocks, threads and copies; a sample's bits at any position in the batch; values of every size. */
#include "../support/emulated.h"
#include "../support/kernel_list.h"

enum { TAKES_WIDE = 4 }; /* this bit of a random plan's seed */

static const plan_kind kinds[] = {
    {"best tile", CVY_DEFAULT, 0, TAKES_WIDE},
    {"second best tile", CVY_DEFAULT, 1, TAKES_WIDE},
    {"third best tile", CVY_DEFAULT, 2, TAKES_WIDE},
    {"fourth best tile", CVY_DEFAULT, 3, TAKES_WIDE},
};

static const char *const small[] = {
    /* padding, residuals, ragged channels on both sides, tiles across rows and samples */
    "x[1,72,9,12] | conv2d(64,3,padding=1) | relu",
    "x[2,64,5,7] | conv2d(130,3,padding=1) | add(r[130,5,7]) | silu",
    "x[3,24,6,20] | conv2d(16,3,bias=False) | mul(s[16,1,1])",
    /* gaps of another size on either side: dilation, unequal padding, more outputs than inputs */
    "x[1,40,7,9] | conv2d(24,(3,2),padding=(2,1),dilation=(2,3))",
    "x[1,24,6,7] | conv2d(16,(2,4),padding='same') | gelu",
    "x[2,16,4,5] | conv2d(20,1,padding=2)",
    "x[1,16,2,300] | conv2d(8,3,padding=1)",
    /* other ranks, 1x1 */
    "x[2,33,50] | conv1d(65,5,padding=2) | gelu",
    "x[2,20,3,5,6] | conv3d(36,(2,3,3),padding=1) | relu",
    "x[2,130,6,7] | conv2d(70,1) | relu",
    /* strides: phases of x; taps that fall apart unevenly, or leave a phase without any */
    "x[2,24,9,11] | conv2d(20,3,stride=2,padding=1) | relu",
    "x[1,40,8,9] | conv2d(16,(3,4),stride=(3,2),padding=(0,2),dilation=(2,1))",
    "x[1,20,4,7,6] | conv3d(12,3,stride=(1,2,2),padding=1)",
    "x[2,20,6,7] | conv2d(24,1,stride=2)",
    /* transposed: phases of the output */
    "x[2,24,5,6] | conv_transpose2d(20,3,stride=2,padding=1,output_padding=1) | relu",
    "x[1,24,5,6] | conv_transpose2d(12,(3,2),dilation=(2,3),padding=1)",
    "x[1,80,4,5] | conv_transpose2d(24,4,stride=2,padding=1) | gelu",
    "x[1,20,3,4,3] | conv_transpose3d(12,2,stride=2)",
    "x[2,18,9] | conv_transpose1d(20,3,stride=4,padding=1) | add(r[20,33])",
    /* operators before the convolution: a norm's affine, an activation that makes something of 0, ragged channels
     */
    "x[2,64,5,8] | group_norm(8) | silu | conv2d(64,3,padding=1) | add(@x)",
    "x[2,24,9,11] | batch_norm | exp | conv2d(20,3,stride=2,padding=1) | relu",
    "x[2,20,3,5,6] | group_norm(4) | add(1) | conv3d(36,3,padding=1)",
    "x[2,24,5,6] | sigmoid | conv_transpose2d(20,3,stride=2,padding=1,output_padding=1) | relu",
    /* values between passes, which lie channels last: through statistics, a residual, rows that are no images */
    "x[2,64,5,8] | group_norm(16) | silu | conv2d(64,3,padding=1) | group_norm(8) | silu | conv2d(64,3,padding=1) "
    "| "
    "add(@x)",
    "x[2,24,9,7] | conv2d(32,3,padding=1) @c | relu | conv2d(32,3,stride=2) | relu | "
    "conv_transpose2d(32,3,stride=2) | "
    "add(@c)",
    "x[2,16,3,5,6] | conv3d(40,3,padding=1) | relu | conv3d(24,(2,3,3),padding=1,dilation=(1,2,1)) | group_norm(4)",
    "x[2,48,31] | conv1d(96,3,padding=1) | group_norm(8) | gelu | conv1d(16,5,stride=3) | mean(2)",
    /* long sums, which several blocks share */
    "x[1,260,4,4] | conv2d(40,3,padding=1) | tanh | add(r[1,40,4,4])",
    "x[2,520,3,3] | conv2d(10,1)",
};
static const char *const *listed = small;
static int n_listed = COUNT_OF(small), every;

/* What their plans have between them. */
static const need needs[] = {
    {"conv_wide.cu", -1, NULL, 0},
    {"conv_wide_pack.cu", -1, NULL, 0},
    {"conv_wide_words.cu", -1, NULL, 0},
    {"conv_wide_add.cu", -1, NULL, 0},
    {"SPLIT", 1, "PRODUCTS", 1},
    {"SPLIT", 1, "PRODUCTS", 3},
    {"SPLIT", 2, NULL, 0},
    {"TOGETHER", 0, NULL, 0},
    {"TOGETHER", 1, NULL, 0},
    {"PHASES", 4, "TRANSPOSED", 0},
    {"PHASES", 4, "TRANSPOSED", 1},
    {"GROUPS_M", 1, NULL, 0},
    {"GROUPS_M", 2, NULL, 0},
    {"BLOCKS", 1, NULL, 0},
    {"PLACED", 4, NULL, 0},
    {"PLACED", 5, NULL, 0},
    {"X_LAST", 1, "SCALED", 1},
    {"X_LAST", 1, "SCALED", 0},
    {"Y_LAST", 1, "SPLIT", 1},
    {"Y_LAST", 1, "SPLIT", 2},
    {"norm_stats_last.cu", -1, NULL, 0},
};

static void check_kinds(checked_graph *c, cvy_precision precision, int tiles, uint32_t seed)
{
    for (int i = 0; i < tiles; i++) {
        cvy_plan *plan = NULL;
        CHECK(check_plan(c, &kinds[i], precision, seed), "%s", c->title);
        assert_ok(check_plan_create(c->g, &kinds[i], precision, seed, &plan));
        CHECK(step_of(plan, "conv_wide.cu"), "not taken: %s", c->title);
        met |= needs_met(plan, needs, COUNT_OF(needs));
        cvy_plan_free(plan);
    }
}

static void check_tiles(const gpu *u, const char *words, cvy_precision precision, rig_data data, int tiles)
{
    checked_graph c;
    cvy_graph *g = NULL;

    assert_ok(cvy_graph_parse(words, &g));
    check_open(&c, u, g, data, 12345);
    c.title = words;
    check_kinds(&c, precision, tiles, 1);
    check_close(&c);
    cvy_graph_free(g);
}

/* Images that lie channels last. The plans of this seed have values that do, too. */
enum { LAST_SEED = 3 };
static void check_last(const gpu *u, const char *words, cvy_dtype dtype, cvy_precision precision)
{
    checked_graph c;
    cvy_graph *g = NULL, *as;

    assert_ok(cvy_graph_parse(words, &g));
    as = graph_as(g, dtype, true);
    check_open_last(&c, u, as, RIG_REAL, 54321);
    c.title = words;
    check_kinds(&c, precision, 1, LAST_SEED);
    check_close(&c);
    cvy_graph_free(as);
    cvy_graph_free(g);
}

/* ---- values of every size ---- */

static const value_range ranges[] = {{0, 1, 0},        {0, 1e-30, 0},   {1000, 1, 0},    {1e30, 1e29, 0},
                                     {0, 3e-38, 0},    {2e36, 1e36, 0}, {0, 0x1p-50, 0}, {6e4, 1000, 0},
                                     {-2e-3, 1e-3, 0}, {0, 0, 0},       {0, 3e5, 0},     {0.5, 0.5, 0}};

/* One product: two factors rounded to 11 bits. Three: what they leave out, 2^-22 of each of two factors and of the
 * product of their small parts, and sums of float32 over 13 additions of taps and 12 cuts each. A value below the
 * smallest normal number of fp16 after scaling is off by 2^-25 of the sample's largest. */
static void take_ranges(const gpu *u, cvy_precision precision)
{
    const rounding by = {precision == CVY_TF32 ? 0x1p-10 + 0x1p-20 : 0x1p-19, 0};
    planned t;

    planned_open(&t, "x[12,40,6,6] | conv2d(24,3,padding=1,bias=False)", CVY_FLOAT32, &kinds[0], precision);
    CHECK(step_of(t.plan, "conv_wide.cu"), "not taken");
    check_ranges(u, &t, ranges, COUNT_OF(ranges), &by);
    planned_close(&t);
}

/* ---- all ---- */

enum { WAYS = 5 }; /* in which a chain is checked */
static void take_item(const gpu *u, int item)
{
    const bool quick = getenv("CONVOY_TEST_QUICK") != NULL;
    const int at = item / WAYS, kind = item % WAYS;

    if (quick && item % 7) return; /* the emulator is never built in other ways */
    if (at == n_listed)
        take_ranges(u, kind ? CVY_TF32 : CVY_FP32);
    else if (kind == 2)
        check_tiles(u, listed[at], CVY_FP32, RIG_WHOLE, 1);
    else if (kind == 3)
        check_last(u, listed[at], CVY_FLOAT32, at % 2 ? CVY_TF32 : CVY_FP32);
    else if (kind == 4)
        check_last(u, listed[at], at % 2 ? CVY_BFLOAT16 : CVY_FLOAT16, CVY_FP32);
    else
        check_tiles(u, listed[at], kind ? CVY_TF32 : CVY_FP32, RIG_REAL, at == 0 || every ? 4 : 1);
}

int main(int argc, char **argv)
{
    if (argc > 1) listed = (const char *const *)argv + 1, n_listed = argc - 1, every = 1;
    use_emulator(argv[0]);
    setenv("CVY_EMULATE_ARCH", "90", 1);
    share_out(WAYS * n_listed + (every ? 0 : 2), take_item);
    if (!every && !getenv("CONVOY_TEST_QUICK")) check_needs(needs, COUNT_OF(needs));
    return finish("cuda_wide");
}
