/* test_cuda_words.c - matrix products of words of 16 bits on Hopper's tensor cores (matmul_wide.cu), run on the
 * host by test/emulate, against the reference.
 *
 *   test_cuda_words [CHAIN...]      these chains
 *
 * Cost would give most of these small chains to other kernels; so all plans are random ones of those that take
 * these kernels wherever they can run. Checked as a GPU would be (test/gpu/check.h): on contiguous and strided
 * tensors, whole numbers exactly, real ones within bounds, guards, the same bits again and in any order of blocks,
 * threads and copies; values of every size. */
#include "../support/emulated.h"
#include "../support/kernel_list.h"

enum { TAKES_WORDS = 8 | 2 }; /* these bits of a random plan's seed */

static const plan_kind kinds[] = {
    {"best tile", CVY_DEFAULT, 0, TAKES_WORDS},
    {"second best tile", CVY_DEFAULT, 1, TAKES_WORDS},
    {"third best tile", CVY_DEFAULT, 2, TAKES_WORDS},
    {"fourth best tile", CVY_DEFAULT, 3, TAKES_WORDS},
};

static const char *const small[] = {
    /* parameters: [columns][terms], [terms][columns]; ragged on every side */
    "x[70,136] | linear(52) | gelu",
    "x[200,72] | linear(264,bias=False)",
    "x[3,50,100] | linear(36) | add(r[3,50,36])",
    "x[130,64] | matmul(w[64,70]) | relu",
    "x[65,77] | matmul(w[77,13])",
    "x[2,140,64] | matmul(w[64,72]) | mul(s[72])",
    /* two inputs, batches, one matrix for all of them */
    "x[70,96], y[96,136] | matmul(@y) | relu",
    "x[2,3,40,64], y[2,3,64,24] | matmul(@y) | add(r[2,3,40,24])",
    "x[33,80], y[3,80,16] | matmul(@y)",
    "x[3,150,64], y[1,64,96] | matmul(@y) | silu",
    /* long sums, which several blocks share */
    "x[9,1100] | linear(24) | tanh | add(r[9,24])",
    "x[20,640], y[640,9] | matmul(@y)",
    /* few columns, few rows: either direction contiguous, odd ends, batches, vectors, shares of the terms */
    "x[70,1300] | matmul(w[1300,5]) | relu",
    "x[40,2100] | linear(1) | add(r[40,1])",
    "x[7,1030] | linear(77) | gelu",
    "x[1,200], y[200,300] | matmul(@y)",
    "x[3,4,133], y[3,133,60] | matmul(@y) | silu",
    "x[3,50,133], y[3,133,2] | matmul(@y)",
    "x[2,9,150] | matmul(w[150,3])",
    "x[3,2050], y[2050,150] | matmul(@y) | add(r[150])",
    "x[300], y[300,40] | matmul(@y)",
    "x[4,40,300], y[300] | matmul(@y)",
};
static const char *const *listed = small;
static int n_listed = COUNT_OF(small), every;

/* What their plans have between them. */
static const need needs[] = {
    {"matmul_wide.cu", -1, NULL, 0},
    {"matmul_thin.cu", -1, NULL, 0},
    {"matmul_wide_words.cu", -1, NULL, 0},
    {"matmul_wide_rescale.cu", -1, NULL, 0},
    {"conv_wide_add.cu", -1, NULL, 0},
    {"SPLIT", 1, "PRODUCTS", 1},
    {"SPLIT", 1, "PRODUCTS", 3},
    {"SPLIT", 2, NULL, 0},
    {"TURNS", 0, NULL, 0},
    {"TURNS", 1, "PRODUCTS", 1},
    {"TURNS", 1, "PRODUCTS", 3},
    {"OTHER_ACROSS", 0, "SCALED", 0},
    {"OTHER_ACROSS", 1, "SCALED", 0},
    {"X_BATCHED", 1, "W_BATCHED", 1},
    {"X_BATCHED", 0, "W_BATCHED", 1},
    {"X_BATCHED", 1, "W_BATCHED", 0},
    {"X_WORDS", 1, "SCALED", 0},
};

static void check_tiles(const gpu *u, cvy_graph *g, const char *title, cvy_precision precision, rig_data data,
                        int first, int count)
{
    checked_graph c;

    check_open(&c, u, g, data, 12345);
    c.title = title;
    for (int i = first; i < first + count; i++) {
        cvy_plan *plan = NULL;
        CHECK(check_plan(&c, &kinds[i], precision, 1), "%s", title);
        assert_ok(check_plan_create(g, &kinds[i], precision, 1, &plan));
        CHECK(step_of(plan, "matmul_wide.cu") || step_of(plan, "matmul_thin.cu"), "not taken: %s", title);
        met |= needs_met(plan, needs, COUNT_OF(needs));
        cvy_plan_free(plan);
    }
    check_close(&c);
}

/* ---- values of every size, a row of x and a column of the weights each: the scale of one has nothing to do with
 * the others ---- */

static const double sizes[] = {1, 1e-30, 1e30, 3e-38, 0x1p-50, 6e4, 2e-3, 0, 3e5, 1e18, 1e-7, 64};

static void fill_sizes(rig_tensor *t, int64_t terms, uint64_t *seed)
{
    for (int64_t i = 0; i < t->count; i++)
        *rig_at(t, i) = (float)(sizes[i / terms % COUNT_OF(sizes)] * (random_below(seed, 2001) - 1000) / 1000);
}

/* One product: two factors rounded to 11 bits. Three: what they leave out, and sums of float32. A number below the
 * smallest normal one of fp16 after scaling is off by 2^-25 of its line's largest. Results that float32 does not
 * hold are infinite, or where the reference is near its end. */
static void check_sizes(const gpu *u, cvy_precision precision)
{
    enum { ROWS = COUNT_OF(sizes), TERMS = 200, COLUMNS = 2 * COUNT_OF(sizes) };
    uint64_t seed = 5;
    int64_t count = 0;
    cvy_graph *g = NULL;
    cvy_plan *plan = NULL;
    float *got;
    rig r;

    assert_ok(cvy_graph_parse("x[12,200] | linear(24,bias=False)", &g));
    assert_ok(check_plan_create(g, &kinds[0], precision, 1, &plan));
    CHECK(step_of(plan, "matmul_wide.cu"), "not taken");
    rig_open(&r, g, &seed, RIG_REAL, 0);
    fill_sizes(&r.t[0], TERMS, &seed);
    fill_sizes(&r.t[1], TERMS, &seed);
    rig_reference(&r);
    got = run_rig(u, &r, plan, &count);
    CHECK(got, "%s", cvy_last_error());
    for (int i = 0; got && i < ROWS * COLUMNS; i++) {
        const double size = sizes[i / COLUMNS] * sizes[i % COLUMNS % ROWS], want = r.t[r.n - 1].want[i];
        const double bound = TERMS * size * (precision == CVY_TF32 ? 0x1p-10 : 0x1p-19) + 0x1p-149;
        CHECK(size > 1e37 || fabs(got[i] - want) <= bound, "row %d, column %d: %g instead of %g, at most %g off",
              i / COLUMNS, i % COLUMNS, (double)got[i], want, bound);
        CHECK(size <= 1e37 || fabs(want) < 3e38 || isinf(got[i]), "row %d, column %d: %g instead of %g",
              i / COLUMNS, i % COLUMNS, (double)got[i], want);
    }
    free(got);
    rig_close(&r);
    cvy_plan_free(plan);
    cvy_graph_free(g);
}

/* ---- all ---- */

enum { HOWS = 5 }; /* float32, tf32, whole numbers, fp16, bf16 */

static void take_item(const gpu *u, int item)
{
    const bool quick = getenv("CONVOY_TEST_QUICK") != NULL;
    const int at = item / HOWS, how = item % HOWS, tiles = at == 0 || every ? 4 : 1;
    cvy_graph *g = NULL;

    if (quick && item % 7) return; /* the emulator is never built in other ways */
    if (at == n_listed) {
        check_sizes(u, how ? CVY_TF32 : CVY_FP32);
        return;
    }
    assert_ok(cvy_graph_parse(listed[at], &g));
    if (how < 3)
        check_tiles(u, g, listed[at], how == 1 ? CVY_TF32 : CVY_FP32, how == 2 ? RIG_WHOLE : RIG_REAL,
                    tiles == 1 ? at % 4 : 0, tiles);
    else {
        cvy_graph *half = graph_as(g, how == 3 ? CVY_FLOAT16 : CVY_BFLOAT16, true);
        check_tiles(u, half, listed[at], CVY_FP32, RIG_REAL, tiles == 1 ? at % 4 : 0, tiles);
        cvy_graph_free(half);
    }
    cvy_graph_free(g);
}

int main(int argc, char **argv)
{
    if (argc > 1) listed = (const char *const *)argv + 1, n_listed = argc - 1, every = 1;
    use_emulator(argv[0]);
    setenv("CVY_EMULATE_ARCH", "90", 1);
    share_out(HOWS * n_listed + (every ? 0 : 2), take_item);
    for (int i = 0; i < COUNT_OF(needs) && !every && !getenv("CONVOY_TEST_QUICK"); i++)
        CHECK(met >> i & 1, "no plan has %s %d, %s %d", needs[i].name, needs[i].value,
              needs[i].also ? needs[i].also : "", needs[i].also_value);
    return finish("cuda_words");
}
