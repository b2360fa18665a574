/* test_long_rows.c - reductions of rows that are cut into segments: exact sums, special values in any segment, the
 * same bits on any number of threads, under every instruction set. */
#include "../../src/cpu/cpuinfo.h"
#include "../support/rig.h"

enum { SEGMENT = 32768 }; /* program_build.c */

/* Rows just below, at and just above one and two segments; evaluated and read in place, of one run and of many. */
static const char *const chains[] = {
    "x[3,32767] | %s",
    "x[3,32768] | %s",
    "x[2,32769] | neg | %s",
    "x[65536] | %s",
    "x[2,65537]:bf16 | %s",
    "x[3,5,131,211] | neg | %s",
    "x[2,3,40000], w[3,1] | mul(@w) | %s",
};
static const char *const reductions[] = {"sum", "mean", "max", "min", "logsumexp"};

typedef struct problem {
    cvy_graph *g;
    rig r;
} problem;

/* All dimensions but the first of a chain with several. */
static void open_problem(problem *t, const char *chain, const char *reduction, uint64_t seed)
{
    static const char *const dims[] = {"", "(0)", "(1)", "((1,2))", "((1,2,3))"};
    char op[64], words[160];
    int rank = 1;

    for (const char *c = strchr(chain, '['); *c != ']'; c++) rank += *c == ',';
    snprintf(op, sizeof op, "%s%s", reduction, dims[rank]);
    snprintf(words, sizeof words, chain, op);
    assert_ok(cvy_graph_parse(words, &t->g));
    rig_open(&t->r, t->g, &seed, RIG_WHOLE, 0);
}

static float *run_on(problem *t, int threads, int64_t *n)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CPU, .threads = threads};
    cvy_plan *p = NULL;
    float *got;

    assert_ok(cvy_plan_create(t->g, &options, &p));
    rig_wipe(&t->r);
    got = rig_run(&t->r, p, n);
    cvy_plan_free(p);
    assert_non_null(got);
    return got;
}

/* Sums of whole numbers are exact but for the last rounding; a logarithm is within an ULP or two. */
static bool near(const rig_tensor *y, double got, double want)
{
    const double unit = y->info.dtype == CVY_BFLOAT16 ? 0x1p-8 : 1e-6;
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= unit * (1 + fabs(want));
}

static void check_problem(problem *t, const char *what)
{
    const rig_tensor *y = &t->r.t[t->r.n_sources];
    float *first = NULL;
    int64_t n;

    rig_reference(&t->r);
    for (int threads = 1; threads <= 3; threads++) {
        float *got = run_on(t, threads, &n);
        for (int64_t i = 0; i < n; i++)
            if (!near(y, (double)got[i], y->want[i]))
                fail_msg("%s, %d threads, element %d: %g, not %g", what, threads, (int)i, (double)got[i],
                         y->want[i]);
        if (first && !rig_same_bits(first, got, n)) fail_msg("%s: other bits on %d threads", what, threads);
        if (first) free(got);
        first = first ? first : got;
    }
    free(first);
}

/* Some element of the first row: at the ends of its segments and between. Or every element of the first segment. */
static void put_special(problem *t, int round, float special)
{
    const rig_tensor *x = &t->r.t[0];
    const int64_t row = x->count / (x->info.rank > 1 ? x->info.dims[0] : 1), last = (row - 1) / SEGMENT * SEGMENT;
    const int64_t places[] = {0, row - 1, last, last ? last - 1 : 1};

    if (round < 4)
        *rig_at(x, places[round]) = special;
    else
        for (int64_t i = 0; i < row && i < SEGMENT; i++) *rig_at(x, i) = special;
    rig_pass_on(&t->r);
}

static void every_chain(void (*check)(const char *chain, const char *reduction))
{
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        setenv("CVY_ISA", cvyi_isa_name((cpu_isa)isa), 1);
        for (size_t c = 0; c < sizeof chains / sizeof *chains; c++)
            for (size_t r = 0; r < sizeof reductions / sizeof *reductions; r++) check(chains[c], reductions[r]);
        unsetenv("CVY_ISA");
    }
}

static void check_whole(const char *chain, const char *reduction)
{
    problem t;
    char what[200];
    snprintf(what, sizeof what, "%s of %s", reduction, chain);
    open_problem(&t, chain, reduction, 11);
    check_problem(&t, what);
    rig_close(&t.r);
    cvy_graph_free(t.g);
}

static void check_special(const char *chain, const char *reduction)
{
    static const float specials[] = {NAN, INFINITY, -INFINITY};
    for (int s = 0; s < 3; s++)
        for (int round = s; round < 5; round += 2) {
            problem t;
            char what[200];
            snprintf(what, sizeof what, "%s of %s with %g, round %d", reduction, chain, (double)specials[s], round);
            open_problem(&t, chain, reduction, 12);
            put_special(&t, round, specials[s]);
            check_problem(&t, what);
            rig_close(&t.r);
            cvy_graph_free(t.g);
        }
}

static void whole_numbers(void **state)
{
    (void)state;
    every_chain(check_whole);
}

static void special_values(void **state)
{
    (void)state;
    every_chain(check_special);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers),
        cmocka_unit_test(special_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
