/* test_cuda_mma_run.c - what the kernels on mma.sync compute, run on the host by test/emulate, against the
 * reference.
 *
 *   test_cuda_mma_run [CASES [SEED]]      random convolutions and products in both precisions
 *
 * Whole numbers must come out exactly: tf32 holds them up to 2^11. Real data must be within the bound that follows
 * from the kernels' arithmetic (mma_tile.cuh), in units of the sum of the products' magnitudes:
 *   one product     2 x 2^-11 + 2^-22 of rounded operands, 2^-23 for each of the sums over 8 terms that is cut off
 *   three products  3 x 2^-22 of split operands, 2^-23 for each of 6 cuts, 2^-24 for each rounded sum over 16 terms
 * and one product within its cuts of the reference with rounded operands: what a missing copy leaves, NaNs that are
 * then summed again, would be seen. infs, NaNs and the largest floats must land where the reference has them.
 * Every tile that a tuning asks for, of convolutions all there are; products also from addresses that forbid copies
 * of 16 bytes.
 * Contiguous and strided tensors, blocks and threads in another order: the same bits. */
#include <float.h>
#include "../support/check.h"
#include "../support/fixture.h"
#include "../../src/cuda/choice.h"

typedef struct problem {
    char words[160];
    int64_t terms; /* of a sum, at most */
} problem;

static int pick(uint64_t *seed, int first, int last)
{
    return first + random_below(seed, last - first + 1);
}

/* ---- random producers that the kernels take ---- */

static problem random_conv(uint64_t *seed)
{
    static const int channels[] = {1, 3, 5, 8, 16, 20, 32}, outs[] = {4, 9, 16, 20, 33, 70, 130};
    const int rank = pick(seed, 1, 3), groups = pick(seed, 1, 3) == 3 ? 2 : 1;
    const int c = channels[pick(seed, 0, 6)], k = outs[pick(seed, 0, 6)];
    const bool transposed = pick(seed, 0, 3) == 0;
    char extents[48] = "";
    int size[3], taps = 1, at = 0;
    problem p;

    for (int a = 0; a < rank; a++) taps *= size[a] = pick(seed, 1, rank == 3 ? 3 : 5);
    while (c * taps < 16) taps = taps / size[0] * (size[0] + 1), size[0]++;
    for (int a = 0; a < rank; a++)
        at += snprintf(extents + at, sizeof extents - (size_t)at, ",%d", size[a] + pick(seed, 4, 12 / rank + 4));
    at = snprintf(p.words, sizeof p.words, "x[%d,%d%s] | conv%s%dd(%d,(", pick(seed, 1, 3), c * groups, extents,
                  transposed ? "_transpose" : "", rank, k * groups);
    for (int a = 0; a < rank; a++) at += snprintf(p.words + at, sizeof p.words - (size_t)at, "%d,", size[a]);
    snprintf(p.words + at - 1, sizeof p.words - (size_t)at, "),stride=%d,padding=%d,dilation=%d,groups=%d)",
             pick(seed, 1, 2), transposed ? 0 : pick(seed, 0, 2), size[0] < 4 ? pick(seed, 1, 2) : 1, groups);
    p.terms = c * taps;
    return p;
}

static problem random_product(uint64_t *seed)
{
    const bool fours = pick(seed, 0, 1); /* both ways to copy */
    const int k = fours ? 4 * pick(seed, 4, 22) : pick(seed, 16, 90), rows = pick(seed, 1, 140);
    const int n = fours ? 4 * pick(seed, 2, 70) : pick(seed, 8, 280);
    problem p = {.terms = k};

    switch (pick(seed, 0, 2)) {
    case 0:
        snprintf(p.words, sizeof p.words, "x[%d,%d] | linear(%d)", rows, k, n);
        break;
    case 1:
        snprintf(p.words, sizeof p.words, "x[2,%d,%d] | matmul(w[%d,%d])", rows, k, k, n);
        break;
    default:
        snprintf(p.words, sizeof p.words, "x[2,3,%d,%d] | matmul(w[3,%d,%d])", rows / 4 + 1, k, k, n);
    }
    return p;
}

/* ---- data ---- */

/* Some operands that are not finite, or so large that they are not in tf32. */
static void spoil(rig *r, uint64_t *seed)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0x1.fffffep127f};
    for (int i = 0; i < r->n_sources; i++)
        *rig_at(&r->t[i], random_below(seed, (int)r->t[i].count)) = odd[pick(seed, 0, 3)];
}

/* cvt.rna.tf32 of finite values. */
static float to_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x1000) & 0xffffe000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The reference's outputs where the first `changed` sources are changed; the rig keeps its values. */
static double *outputs_of(rig *r, int changed, float (*change)(float))
{
    const int out = r->n_sources;
    double *want = r->t[out].want, *other;
    float *kept[RIG_TENSORS];

    for (int i = 0; i < changed; i++) {
        kept[i] = malloc((size_t)r->t[i].cells * sizeof(float));
        assert_non_null(kept[i]);
        memcpy(kept[i], r->t[i].memory, (size_t)r->t[i].cells * sizeof(float));
        for (int64_t k = 0; k < r->t[i].cells; k++) r->t[i].memory[k] = change(r->t[i].memory[k]);
    }
    r->t[out].want = NULL;
    rig_reference(r);
    other = r->t[out].want;
    r->t[out].want = want;
    for (int i = 0; i < changed; i++) {
        memcpy(r->t[i].memory, kept[i], (size_t)r->t[i].cells * sizeof(float));
        free(kept[i]);
    }
    return other;
}

static double bound(const problem *p, cvy_precision precision)
{
    const double steps = (double)cvyi_ceil_div(p->terms, 8);
    return precision == CVY_TF32 ? 0x1p-10 + 0x1p-22 + (steps + 2) * 0x1p-23
                                 : 3 * 0x1p-22 + 6 * 0x1p-23 + (steps / 2 + 3) * 0x1p-24;
}

/* NaN where NaN is expected, the same inf, or within the slack. What overflows float32 may do so early. */
static bool agrees(float got, double want, double slack)
{
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got)) return (double)got == want || fabs(want) + slack > FLT_MAX;
    return fabs((double)got - want) <= slack;
}

/* ---- one producer ---- */

typedef enum data { WHOLE, REAL, SPOILT, STRIDED, DATA_KINDS } data;

static void check_data(const gpu *u, const cvy_plan *plan, cvy_graph *g, const problem *p, data kind,
                       uint64_t *seed)
{
    const cvy_precision precision = plan->options.precision;
    CUdeviceptr work = 0;
    int64_t count = 0, bad = -1;
    float *got, *again;
    double *mag, *rounded;
    gpu_rig t;
    rig r;

    rig_open(&r, g, seed, kind == WHOLE ? RIG_WHOLE : RIG_REAL, kind == STRIDED ? 6 : 0);
    if (kind == SPOILT) spoil(&r, seed);
    rig_reference(&r);
    mag = outputs_of(&r, r.n_sources, fabsf);
    rounded = outputs_of(&r, 2, to_tf32); /* all but the bias */
    gpu_rig_open(&t, u, &r);
    assert_ok(cvyi_cuda_alloc(u->device, cvy_plan_workspace(plan), &work));
    got = run_one_way(&t, plan, work, RUN_FRESH, &count);
    again = run_one_way(&t, plan, work, RUN_SHUFFLED, &count);
    CHECK(got && again && rig_same_bits(got, again, count), "%s: other bits in another order, or %s", p->words,
          cvy_last_error());
    for (int64_t k = 0; k < count && got && bad < 0; k++) {
        const double want = r.t[r.n_sources].want[k], slack = kind == WHOLE ? 0 : bound(p, precision) * mag[k];
        /* A result that was not finite on its way, and summed again, would not show rounded operands. */
        const double cuts = ((double)cvyi_ceil_div(p->terms, 8) + 3) * 0x1p-23 * mag[k];
        if (precision == CVY_TF32 && kind != SPOILT && fabs((double)got[k] - rounded[k]) > cuts) bad = k;
        if (!agrees(got[k], want, slack + (kind == WHOLE ? 0 : 1e-37))) bad = k;
    }
    CHECK(bad < 0, "%s, precision %d, data %d: element %lld is %.9g, expected %.9g", p->words, (int)precision,
          (int)kind, (long long)bad, (double)got[bad], r.t[r.n_sources].want[bad]);
    free(got);
    free(again);
    free(mag);
    free(rounded);
    cvyi_cuda_free(u->device, work);
    gpu_rig_close(&t);
    rig_close(&r);
}

/* The tiles of convolutions, and whether one has run. */
static struct {
    int m, n;
    bool seen;
} conv_tiles[] = {{16, 64, 0},  {16, 256, 0}, {32, 32, 0},  {32, 64, 0},
                  {32, 256, 0}, {64, 64, 0},  {64, 128, 0}, {128, 256, 0}};

static void see_tile(const cvy_plan *plan)
{
    const mma_tile t = cvyi_cuda_choice(&plan->passes[plan->n_passes - 1])->mma.tile;

    for (int i = 0; i < COUNT_OF(conv_tiles); i++)
        if (t.m == conv_tiles[i].m && t.n == conv_tiles[i].n) conv_tiles[i].seen = true;
}

static void check_problem(const gpu *u, const problem *p, cvy_precision precision, int tuning, bool strided,
                          uint64_t *seed)
{
    const cvy_options options = {.size = sizeof options,
                                 .device = CVY_CUDA,
                                 .precision = (int32_t)precision,
                                 .strided = strided ? CVY_DEFAULT : CVY_OFF};
    cvy_graph *g = NULL;
    cvy_plan *plan = NULL;

    CHECK(!cvy_graph_parse(p->words, &g) && !cvyi_plan_tuned(g, &options, tuning, &plan), "%s: %s", p->words,
          cvy_last_error());
    if (plan) {
        CHECK(cvyi_cuda_choice(&plan->passes[plan->n_passes - 1])->kernel->tensor_cores, "%s: %s", p->words,
              plan->passes[plan->n_passes - 1].note);
        if (strstr(p->words, "conv")) see_tile(plan);
        for (data kind = 0; kind < (strided ? DATA_KINDS : STRIDED); kind++) check_data(u, plan, g, p, kind, seed);
    }
    cvy_plan_free(plan);
    cvy_graph_free(g);
}

/* Sources 4 bytes past a multiple of 16: copied element by element, the bits are the same. */
static void check_misaligned(const gpu *u, const char *words, uint64_t *seed)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CUDA};
    CUdeviceptr work = 0, moved[RIG_TENSORS] = {0};
    cvy_graph *g = NULL;
    cvy_plan *plan = NULL;
    float *got, *again;
    int64_t count = 0;
    gpu_rig t;
    rig r;

    assert_ok(cvy_graph_parse(words, &g));
    assert_ok(cvy_plan_create(g, &options, &plan));
    rig_open(&r, g, seed, RIG_REAL, 0);
    gpu_rig_open(&t, u, &r);
    assert_ok(cvyi_cuda_alloc(u->device, cvy_plan_workspace(plan), &work));
    got = run_one_way(&t, plan, work, RUN_FRESH, &count);
    for (int i = 0; i < r.n_sources; i++) {
        const size_t bytes = 4 * (size_t)r.t[i].count;
        assert_ok(cvyi_cuda_alloc(u->device, bytes + 4, &moved[i]));
        assert_ok(cvyi_cuda_upload(u->device, moved[i] + 4, r.t[i].origin, bytes, u->stream));
        t.buffers[i].data = (void *)(uintptr_t)(moved[i] + 4);
    }
    again = run_one_way(&t, plan, work, RUN_FRESH, &count);
    CHECK(got && again && rig_same_bits(got, again, count), "%s: other bits from other addresses, or %s", words,
          cvy_last_error());
    free(got);
    free(again);
    for (int i = 0; i < r.n_sources; i++) cvyi_cuda_free(u->device, moved[i]);
    cvyi_cuda_free(u->device, work);
    gpu_rig_close(&t);
    rig_close(&r);
    cvy_plan_free(plan);
    cvy_graph_free(g);
}

/* Channels that do not divide a chunk, many taps, more than there are bits for, sums whose places are found chunk
 * by chunk, tails of pixels, channels and terms; some also strided. Two tunings each, and the tiles that these
 * leave out. */
static void check_tiles(const gpu *u, bool quick, uint64_t *seed)
{
    static const struct {
        problem p;
        bool strided;
    } cases[] = {
        {{"x[3,3,17,15] | conv2d(72,7,stride=2)", 147}, true},
        {{"x[2,24,7,9] | conv2d(40,3,padding=1)", 216}, true},
        {{"x[2,5,13,11] | conv2d(33,5,stride=2,padding=2)", 125}, false},
        {{"x[2,3,13,12] | conv2d(17,7,padding=3)", 147}, false},
        {{"x[1,10,12,9] | conv2d(42,3,padding=2,dilation=2,groups=2)", 45}, false},
        {{"x[2,3,7,5] | conv_transpose2d(70,5,stride=2,padding=1)", 75}, true},
        {{"x[1,24,5,6] | conv_transpose2d(40,4,stride=3,groups=2)", 192}, false},
        {{"x[2,3,90] | conv1d(20,40,stride=2,padding=3)", 120}, true},
        {{"x[1,5,13,12] | conv2d(20,11,padding=2)", 605}, true},
        {{"x[1,3,220] | conv1d(9,200)", 600}, false},
        {{"x[1,5,6,7,5] | conv3d(9,3,padding=1)", 135}, false},
        {{"x[1,3,5,4,6] | conv_transpose3d(36,3,stride=2)", 81}, false},
    };
    static const problem wide = {"x[2,16,9,9] | conv2d(140,3,padding=1)", 144},
                         flat = {"x[2,6,30] | conv1d(30,5)", 30},
                         large = {"x[1,16,4600] | conv1d(256,1)", 16}; /* for the largest tiles */

    for (int i = 0; i < COUNT_OF(cases) && !(quick && i > 1); i++)
        for (int k = 0; k < 2; k++)
            check_problem(u, &cases[i].p, (i + k) % 2 ? CVY_TF32 : CVY_FP32, (2 * i + 3 * k) % TUNE_TILES,
                          cases[i].strided && !k, seed);
    for (int k = 0; k < 2 * TUNE_TILES && !quick; k++)
        check_problem(u, k < TUNE_TILES ? &wide : &flat, k % 2 ? CVY_TF32 : CVY_FP32, k % TUNE_TILES, false, seed);
    for (int k = 0; k < 3 && !quick; k++)
        check_problem(u, &large, k ? CVY_FP32 : CVY_TF32, k < 2 ? 3 : 2, false, seed);
    for (int i = 0; i < COUNT_OF(conv_tiles) && !quick; i++)
        CHECK(conv_tiles[i].seen, "no convolution has run with tiles of %d x %d", conv_tiles[i].m, conv_tiles[i].n);
}

int main(int argc, char **argv)
{
    const int cases = argc > 1 ? atoi(argv[1]) : getenv("CONVOY_TEST_QUICK") ? 1 : 5;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 3;
    char path[1024];
    gpu u;

    use_library(argv[0], "emulate/libcuda.so.1", "CVY_CUDA_LIB", path);
    use_library(argv[0], "emulate/libnvrtc.so.13", "CVY_NVRTC_LIB", path);
    use_cache();
    if (!test_gpu_open(&u)) {
        fprintf(stderr, "%s\n", cvy_last_error());
        return 1;
    }
    for (int i = 0; i < cases; i++) {
        const problem conv = random_conv(&seed), product = random_product(&seed);
        const cvy_precision precision = i % 2 ? CVY_TF32 : CVY_FP32;
        check_problem(&u, &conv, precision, i % 2, i == 0, &seed);
        check_problem(&u, &product, precision, i % TUNE_TILES, i == 1, &seed);
        check_problem(&u, &product, i % 2 ? CVY_FP32 : CVY_TF32, 3 - i % TUNE_TILES, false, &seed);
        check_problem(&u, &conv, i % 2 ? CVY_FP32 : CVY_TF32, i % 2, false, &seed);
    }
    check_tiles(&u, getenv("CONVOY_TEST_QUICK") != NULL, &seed);
    check_misaligned(&u, "x[70,64] | linear(96)", &seed);
    check_misaligned(&u, "x[2,3,40,64] | matmul(w[3,64,36])", &seed);
    test_gpu_close(&u);
    CHECK(cvyi_alloc_live() == 0, "%lld allocations", (long long)cvyi_alloc_live());
    return finish("cuda_mma_run");
}
