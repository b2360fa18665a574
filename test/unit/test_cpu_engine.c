/* test_cpu_engine.c - how exact the CPU engine is, against float64, under every instruction set of this machine.
 *
 * Bounds are those of the numerics contract: a GroupNorm is within 5e-6 at unit scale, block B within 4 units in
 * the last place of its largest result; inputs that are large, small, negative, or 1000 with a deviation of 1, cost
 * a normalised result no more than 1e-5 of its scale. NaN and infinities come out where the reference has them. */
#include "../../src/cpu/cpuinfo.h"
#include "../support/rig.h"

#define BLOCK_A "conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)"
#define BLOCK_B "conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)"
#define BLOCK_C "conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)"

/* ---- data ---- */

/* Near enough to normal: mean 0, deviation 1. */
static double normal(uint64_t *seed)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += (double)random_next(seed) * 0x1p-32;
    return sum;
}

/* Inputs as asked for; weights as PyTorch starts them (deviation 0.58 / sqrt(terms)); norms near 1 and 0, or just
 * so. */
static void fill(rig *r, uint64_t seed, double mean, double deviation, bool plain_norms)
{
    for (int i = 0; i < r->n_sources; i++) {
        rig_tensor *t = &r->t[i];
        double terms = 1;
        for (int d = 1; d < t->info.rank; d++) terms *= (double)t->info.dims[d];
        for (int64_t k = 0; k < t->count; k++) {
            double x = normal(&seed);
            if (t->info.role == CVY_INPUT)
                x = mean + deviation * x;
            else if (strstr(t->info.name, "norm.weight") || !strcmp(t->info.name, "scale"))
                x = plain_norms ? 1 : 1 + 0.2 * x;
            else if (strstr(t->info.name, "norm.bias") && plain_norms)
                x = 0;
            else
                x *= 0.58 / sqrt(terms > 1 ? terms : 72);
            *rig_at(t, k) = (float)x;
        }
    }
}

/* ---- one chain on one instruction set ---- */

typedef struct outcome {
    double error, scale; /* the largest, of finite elements */
    int64_t misplaced;   /* NaN or inf where the reference has something else, or the reverse */
} outcome;

static outcome compare(const rig *r, const float *got)
{
    outcome o = {0, 0, 0};
    int64_t at = 0;
    for (int i = r->n_sources; i < r->n; i++)
        for (int64_t k = 0; k < r->t[i].count; k++, at++) {
            const double want = r->t[i].want[k];
            if (isfinite((float)want) && isfinite(got[at])) {
                o.error = fmax(o.error, fabs(got[at] - want));
                o.scale = fmax(o.scale, fabs(want));
            } else if (!(isnan(want) && isnan(got[at])) && (float)want != got[at]) {
                o.misplaced++;
            }
        }
    return o;
}

static outcome run_plan(rig *r, int winograd)
{
    const cvy_options o = {.size = sizeof o, .device = CVY_CPU, .threads = 2, .winograd = winograd};
    cvy_plan *p = NULL;
    int64_t count;
    float *got;
    outcome out;

    assert_ok(cvy_plan_create(r->g, &o, &p));
    got = rig_run(r, p, &count);
    assert_non_null(got);
    out = compare(r, got);
    free(got);
    cvy_plan_free(p);
    return out;
}

static void open_chain(rig *r, cvy_graph **g, const char *chain)
{
    uint64_t seed = 1;
    *g = NULL;
    if (cvy_graph_parse(chain, g)) fail_msg("%s: %s", chain, cvy_last_error());
    rig_open(r, *g, &seed, RIG_REAL, 0);
}

/* Every instruction set there is, Winograd allowed and not. The bound is a function of the reference's scale. */
static void hold_to(const char *chain, rig *r, const char *what, double (*bound)(double scale))
{
    rig_reference(r);
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++)
        for (int winograd = CVY_ON; winograd <= CVY_OFF; winograd++) {
            outcome o;
            if (!cvyi_isa_supported((cpu_isa)isa)) continue;
            setenv("CVY_ISA", cvyi_isa_name((cpu_isa)isa), 1);
            o = run_plan(r, winograd);
            unsetenv("CVY_ISA");
            if (o.misplaced || !(o.error <= bound(o.scale)))
                fail_msg("%s, %s, %s, winograd %s: error %.3g of %.3g, at most %.3g, and %lld misplaced", chain,
                         what, cvyi_isa_name((cpu_isa)isa), winograd == CVY_ON ? "on" : "off", o.error, o.scale,
                         bound(o.scale), (long long)o.misplaced);
        }
}

static double five_millionths(double scale)
{
    (void)scale;
    return 5e-6;
}
static double four_ulp(double scale)
{
    return 4 * ldexp(1, ilogb(scale) - 23);
}
static double relative(double scale)
{
    return 1e-5 * scale;
}

/* ---- normalised results ---- */

static const char *const normalised[] = {
    "x[2,16,33,35] | group_norm(4)",
    "x[2,16,3,5] | group_norm(16,affine=False)",
    "x[2,8,47] | instance_norm(affine=True)",
    "x[3,8,12,13] | batch_norm(training=True)",
    "x[3,7,120] | layer_norm(120)",
    "x[2,8,26,29] | conv2d(16,3) | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,3,padding=1) | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,(2,1),padding='same') | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,(1,2),padding='same') | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,5) | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,5,padding=2) | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,3,stride=2) | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,3,stride=2,padding=1) | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,3,dilation=2) | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,1) | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,3,groups=8) | group_norm(4)",
    "x[2,8,60] | conv1d(16,3) | group_norm(4)",
    "x[2,3,8,9,10] | conv3d(8,3) | group_norm(4)",
    "x[2,8,26,29] | conv2d(16,3) | instance_norm",
    "x[2,8,26,29] | conv2d(16,5) | instance_norm",
    "x[2,8,26,29] | conv2d(16,5,padding=2) | instance_norm",
    "x[2,8,26,29] | conv2d(16,3,stride=2) | instance_norm",
    "x[2,8,26,29] | conv2d(16,3,stride=3) | instance_norm",
    "x[2,8,26,29] | conv2d(16,5,stride=(1,2),padding=2) | instance_norm",
    "x[2,8,26,29] | conv2d(16,3,stride=4,padding=1,dilation=2) | instance_norm",
    "x[2,8,161] | conv1d(16,11,stride=5,padding=3) | instance_norm",
    "x[2,128,26,29] | conv2d(16,1,stride=2) | instance_norm",
    "x[2,128,7,7] | conv2d(128,1) | instance_norm",
    /* maxima of centred values, one of each channel */
    "x[2,6,9,9] | conv2d(16,3) | instance_norm | max_pool2d(7)",
    "x[1,6,9] | conv1d(16,3) | group_norm(4,affine=False) | max_pool1d(7) | gelu",
    "x[2,8,26,29] | conv2d(16,3,stride=2) | group_norm(4) | max_pool2d(2)",
    ("x[2,8,26,29] | " BLOCK_A),
};

/* A sigmoid comes before the statistics, so that values cannot be produced centred. It holds 1e-5 all the
 * same. x less its means is convolved, starting from what that lacks, S = bias + sum of w * mean; then |y| is |S|
 * within the sum M of |w| |x - mean|, and the error of y is at most 73 roundings of |y| + 2 M. With u = 2^-24,
 *
 *     |error of sigmoid(y)|  <=  73 u (|y| sigmoid'(y) + 2 M sigmoid'(y))  <=  73 u (0.224 + M / 2).
 *
 * With M near 4 that is 1e-5 if all roundings have one sign, 1e-6 if they do not. After the norm it is divided by
 * the deviation, as the results are, whose largest is half the way from 0 to 1 or more. Without centring, 73 u
 * times the sum of |w| |x|, 4000, is left: 4e-3. (After a relu instead, y stays as large as it is, and a float has
 * no more than 14 bits for the deviation: PyTorch's own 4e-4 is the best possible there.) */
static const char *const behind_sigmoid[] = {
    ("x[2,8,26,29] | " BLOCK_C),
    "x[2,8,26,29] | conv2d(32,3,stride=2,padding=1) | sigmoid | group_norm(8)",
};

static void unit_scale(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(normalised); i++) {
        cvy_graph *g;
        rig r;
        open_chain(&r, &g, normalised[i]);
        fill(&r, 17, 0, 1, true);
        hold_to(normalised[i], &r, "unit scale", five_millionths);
        rig_close(&r);
        cvy_graph_free(g);
    }
}

static void block_b(void **state)
{
    static const char *const chain = "x[2,8,42,45] | " BLOCK_B;
    cvy_graph *g;
    rig r;
    (void)state;
    open_chain(&r, &g, chain);
    fill(&r, 5, 0, 1, true);
    hold_to(chain, &r, "unit scale", four_ulp);
    rig_close(&r);
    cvy_graph_free(g);
}

typedef struct setting {
    const char *what;
    double mean, deviation;
} setting;
static const setting settings[] = {{"times 3", 0, 3},
                                   {"times 0.01", 0, 0.01},
                                   {"times -1", 0, -1},
                                   {"mean 1000", 1000, 1},
                                   {"mean -1000", -1000, 1}};

static void at_scales(const char *const *list, int n, int first, int last, double (*bound)(double scale))
{
    for (int i = 0; i < n; i++)
        for (int k = first; k <= last; k++) {
            cvy_graph *g;
            rig r;
            open_chain(&r, &g, list[i]);
            fill(&r, 23, settings[k].mean, settings[k].deviation, false);
            hold_to(list[i], &r, settings[k].what, bound);
            rig_close(&r);
            cvy_graph_free(g);
        }
}

static void other_scales(void **state)
{
    static const char *const b[] = {"x[2,8,26,29] | " BLOCK_B};
    (void)state;
    at_scales(normalised, COUNT_OF(normalised), 0, 4, relative);
    at_scales(b, 1, 0, 4, relative);
    at_scales(behind_sigmoid, COUNT_OF(behind_sigmoid), 0, 4, relative);
}

/* ---- NaN and infinities ---- */

static const char *const exposed[] = {
    "x[2,3,12,14] | conv2d(5,3)",
    "x[2,3,12,14] | conv2d(5,3,padding=1)",
    "x[2,3,12,14] | conv2d(5,5,padding=2,stride=2)",
    "x[2,4,12,14] | conv2d(4,3,groups=4,padding=1)",
    "x[2,3,12,14] | conv2d(5,1)",
    "x[2,3,7,7] | conv_transpose2d(4,3,stride=2)",
    "x[2,9] | linear(5)",
    "x[2,3,12,14] | max_pool2d(2)",
    "x[2,3,12,14] | max_pool2d(3,stride=2,padding=1)",
    "x[2,3,12,14] | avg_pool2d(3,stride=2,padding=1)",
    "x[2,3,12,14] | adaptive_avg_pool2d(1)",
    "x[2,4,12,14] | group_norm(2)",
    "x[2,3,12,14] | layer_norm(14)",
    "x[2,3,12,14] | conv2d(4,3) | group_norm(2) | relu",
    "x[2,3,12,14] | conv2d(4,3) | group_norm(4) | max_pool2d(2)",
    "x[2,3,12,14] | conv2d(4,3,stride=2) | group_norm(2) | max_pool2d(2)",
    "x[2,40,5,5] | conv2d(40,1) | group_norm(4) | relu",
    "x[2,3,12,14] | conv2d(4,3) | relu | max_pool2d(2)",
    "x[2,3,12,14] | conv2d(4,3) | sigmoid | clamp(0.25,0.75)",
    "x[2,3,12,14] | softmax(1)",
    "x[2,3,12,14] | log_softmax(3)",
    "x[2,3,12,14] | logsumexp(1)",
    "x[2,3,12,14] | logsumexp((2,3))",
    "x[2,3,12,14] | max(1)",
    "x[2,3,12,14] | min((1,2,3))",
    "x[2,3,12,14] | mean((2,3))",
    ("x[2,8,14,15] | " BLOCK_A),
    ("x[2,8,14,15] | " BLOCK_B),
    ("x[2,8,14,15] | " BLOCK_C),
};

static double loosely(double scale)
{
    return 1e-4 * (scale + 1);
}

/* One special value, then two of different kinds, at places that differ from turn to turn: in x, then in weights,
 * biases, norms and scales too. */
static void special_values(void **state)
{
    static const float special[] = {NAN, INFINITY, -INFINITY};
    uint64_t seed = 99;
    (void)state;
    for (int i = 0; i < COUNT_OF(exposed); i++)
        for (int turn = 0; turn < 18; turn++) {
            cvy_graph *g;
            rig r;
            char what[64];
            int tensor;
            open_chain(&r, &g, exposed[i]);
            fill(&r, 31, 0, 1, false);
            tensor = turn < 9 ? 0 : random_below(&seed, r.n_sources);
            for (int k = 0; k <= turn / 3 % 2; k++)
                *rig_at(&r.t[tensor], random_below(&seed, (int)r.t[tensor].count)) = special[(turn + k) % 3];
            snprintf(what, sizeof what, "special values in %s, turn %d", r.t[tensor].info.name, turn);
            hold_to(exposed[i], &r, what, loosely);
            rig_close(&r);
            cvy_graph_free(g);
        }
}

/* Near the end of float32's range: a Winograd form would overflow inside. */
static void near_overflow(void **state)
{
    static const char *const chain = "x[2,3,12,14] | conv2d(5,3,padding=1)";
    cvy_graph *g;
    rig r;
    (void)state;
    open_chain(&r, &g, chain);
    fill(&r, 3, 0, 1, false);
    for (int64_t k = 0; k < r.t[0].count; k++) *rig_at(&r.t[0], k) *= 3e37f;
    hold_to(chain, &r, "near overflow", relative);
    rig_close(&r);
    cvy_graph_free(g);
}

/* ---- reductions and softmax after norms by rows ---- */

/* Rows of a group are shorter than the dimension they lie in: programs split it, and what is reduced moves along.
 * Extents of 1 at the end are dropped there, and a reshape's copy knows no dimensions at all. */
static const char *const split[] = {
    "x[3,4] | group_norm(2,affine=False) | %s(1)",
    "x[1,4] | group_norm(2) | %s(1)",
    "x[5,12] | group_norm(3) | relu | %s(-1)",
    "x[2,96] | mul(2) | group_norm(3,affine=False) | %s(1)",
    "x[128,64] | linear(64) | group_norm(8) | %s(1)",
    "x[3,8,1] | group_norm(4) | %s(1)",
    "x[3,8,1] | group_norm(4) | %s(2)",
    "x[3,8] | group_norm(4) | %s(0)",
    "x[1,8,1,1] | group_norm(2) | %s(1)",
    "x[2,8,1,1] | group_norm(2) | %s(-1)",
    "x[2,8,1,1,1] | group_norm(2) | %s(1)",
    "x[2,3,3,3] | conv2d(8,3) | group_norm(2) | %s(1)",
    "x[1,3,3,3] | conv2d(8,3) | group_norm(2) | %s(1)",
    "x[3,8] | batch_norm(training=True) | group_norm(2) | %s(1)",
    "x[2,1,6] | layer_norm(6) | %s(1)",
    "x[2,3,6] | layer_norm((3,6)) | %s(1)",
    "x[2,3,4,5] | flatten(1,2) @f | %s(1) @y | output(@f, @y)",
    "x[1,3,4,5] | reshape((3,20)) @f | %s(0) @y | output(@f, @y)",
};

static void split_rows(void **state)
{
    static const char *const sinks[] = {"sum", "mean", "max", "min", "softmax", "log_softmax", "logsumexp"};
    (void)state;
    for (int i = 0; i < COUNT_OF(split); i++)
        for (int k = 0; k < COUNT_OF(sinks); k++) {
            char chain[128];
            cvy_graph *g;
            rig r;
            snprintf(chain, sizeof chain, split[i], sinks[k]);
            open_chain(&r, &g, chain);
            fill(&r, 41, 0, 1, false);
            hold_to(chain, &r, "unit scale", loosely);
            rig_close(&r);
            cvy_graph_free(g);
        }
}

/* ---- statistics of bands ---- */

/* The band's values are stored by the program with strides of their own, and plans with a seed take the statistics
 * in one pass and apply them in another. */
static void strided_bands(void **state)
{
    static const char chain[] =
        "x[2,8,32,32] | conv2d(8,3,padding=1) | relu @a | group_norm(2) @g | output(@a, @g)";
    (void)state;
    for (uint32_t random = 0; random < 64; random++) {
        const cvy_options options = {.size = sizeof options, .device = CVY_CPU, .seed = random};
        uint64_t seed = 1 + random;
        int64_t n = 0, at = 0;
        cvy_graph *g = NULL;
        cvy_plan *p = NULL;
        float *got;
        rig r;
        assert_ok(cvy_graph_parse(chain, &g));
        rig_open(&r, g, &seed, RIG_REAL, 8);
        rig_reference(&r);
        assert_ok(cvy_plan_create(g, &options, &p));
        got = rig_run(&r, p, &n);
        if (!got) fail_msg("seed %d: a guard was hit", (int)random);
        for (int t = r.n_sources; t < r.n; t++)
            for (int64_t k = 0; k < r.t[t].count; k++, at++)
                if (!(fabs((double)got[at] - r.t[t].want[k]) < 1e-4))
                    fail_msg("seed %d, %s, element %lld: %g, not %g", (int)random, r.t[t].info.name, (long long)k,
                             (double)got[at], r.t[t].want[k]);
        free(got);
        rig_close(&r);
        cvy_plan_free(p);
        cvy_graph_free(g);
    }
}

/* ---- transposed convolutions of large strides ---- */

/* More phases than results, and more along a row than are interleaved at once. */
static void large_strides(void **state)
{
    static const char *const chains[] = {
        "x[2,4,2] | conv_transpose1d(3,2,stride=268435456,padding=134217728)",
        "x[1,1,2,2] | conv_transpose2d(1,2,stride=268435456,padding=134217728)",
        "x[1,2,2,2,2] | conv_transpose3d(3,2,stride=3000000000,padding=1500000000)",
        "x[1,4,1,2] | conv_transpose2d(4,2,stride=2,padding=(0,1),dilation=(1,2),output_padding=1)",
        "x[2,6,3] | conv_transpose1d(4,5,stride=1000,groups=2)",
        "x[2,6,3,2] | conv_transpose2d(4,5,stride=(2,700),padding=(2,3))",
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(chains); i++) {
        cvy_graph *g;
        rig r;
        open_chain(&r, &g, chains[i]);
        fill(&r, 61, 0, 1, false);
        hold_to(chains[i], &r, "large strides", relative);
        rig_close(&r);
        cvy_graph_free(g);
    }
}

/* ---- taps far from x ---- */

static double exactly(double scale)
{
    (void)scale;
    return 0;
}

/* Only padding is read, so a norm divides exact zeros by sqrt(eps); taps whose padded input has no memory. */
static void only_padding(void **state)
{
    static const char *const chains[] = {
        "x[7,11,1] | conv1d(44,2,padding=2,dilation=3,groups=11,bias=False) | group_norm(22,affine=False)",
        "x[2,4,3,3] | conv2d(4,2,padding='same',dilation=40,bias=False) | group_norm(2,affine=False)",
        "x[1,1,1,4] | conv2d(1,2,padding='same',dilation=(4294967295,4294967292),bias=False)",
        "x[1,64,4,4] | conv2d(64,2,padding='same',dilation=4294967292,bias=False) | group_norm(1,affine=False)",
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(chains); i++) {
        cvy_graph *g;
        rig r;
        open_chain(&r, &g, chains[i]);
        fill(&r, 51, 0, 1, false);
        hold_to(chains[i], &r, "only padding", exactly);
        rig_close(&r);
        cvy_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unit_scale),     cmocka_unit_test(block_b),       cmocka_unit_test(other_scales),
        cmocka_unit_test(special_values), cmocka_unit_test(near_overflow), cmocka_unit_test(split_rows),
        cmocka_unit_test(strided_bands),  cmocka_unit_test(only_padding),  cmocka_unit_test(large_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
