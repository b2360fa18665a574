/* test_fuse.c - random small graphs x random plans against the reference.
 *
 *   test_fuse [GRAPHS [SEED [KINDS]]]      graphs of each kind, the first one's seed; '*16_graphs': some kinds
 *
 * Graphs: "exact" ones of operators that keep whole numbers whole, "real" ones of the whole vocabulary, both chains
 * with branches, residuals and several outputs, "thin" ones of norms and reductions over extents of 1, and "wild"
 * ones of whatever the C calls accept. Each runs under the default plan and random ones, fused and not, with and
 * without Winograd, on one to four threads, on one instruction set after the other (or that of CVY_ISA), with
 * prepared parameters kept and not; tensors with random strides. Where arithmetic is exact results must be equal,
 * elsewhere within what doubt.h derives; the same plan must give the same bits on any number of threads.
 *
 * A failure prints the graph as chain text, the options, and the command that repeats it. */
#include "../../src/cpu/cpuinfo.h"
#include "../support/doubt.h"
#include "../support/random_chain.h"

static int graphs = 120;
static uint64_t first_seed = 1;
static const char *program;
static bool one_isa; /* CVY_ISA was set from outside */

/* ---- one graph under many plans ---- */

/* The next instruction set of this machine, unless one was asked for. */
static void next_isa(int turn)
{
    cpu_isa there[CPU_ISA_COUNT];
    int n = 0;
    for (int i = 0; i < CPU_ISA_COUNT; i++)
        if (cvyi_isa_supported((cpu_isa)i)) there[n++] = (cpu_isa)i;
    if (!one_isa) setenv("CVY_ISA", cvyi_isa_name(there[turn % n]), 1);
}

static void describe(const cvy_graph *g, const cvy_options *o, uint64_t seed, const char *what)
{
    size_t needed = 0;
    char *words;
    const char *isa = getenv("CVY_ISA");
    cvy_graph_print(g, NULL, 0, &needed);
    words = malloc(needed);
    cvy_graph_print(g, words, needed, NULL);
    fprintf(stderr,
            "%s\n    graph    %s\n    options  seed %u, threads %d, fuse %s, winograd %s\n    repeat   %s%s %s 1 "
            "%llu\n",
            what, words, (unsigned)o->seed, (int)o->threads, o->fuse == CVY_OFF ? "off" : "on",
            o->winograd == CVY_OFF ? "off" : "on", isa ? "CVY_ISA=" : "", isa ? isa : "", program,
            (unsigned long long)seed);
    free(words);
}

/* Runs twice in one workspace, the second time with what was prepared, and compares the bits. */
static float *run_twice(rig *r, const cvy_plan *p, int64_t *count)
{
    void *work = rig_workspace(p);
    float *first, *second;

    rig_wipe(r);
    assert_ok(cvy_plan_run(p, r->buffers, r->n, work, cvy_plan_workspace(p), 0, NULL));
    first = rig_outputs(r, count);
    assert_ok(cvy_plan_run(p, r->buffers, r->n, work, cvy_plan_workspace(p), CVY_KEEP_PREPARED, NULL));
    second = rig_outputs(r, count);
    free(work);
    if (first && second && rig_same_bits(first, second, *count)) {
        free(second);
        return first;
    }
    free(first);
    free(second);
    return NULL;
}

static bool check_plan(rig *r, const doubt *d, const cvy_options *o, uint64_t seed, float **bits)
{
    cvy_plan *p = NULL;
    char what[200] = "";
    int64_t count = 0, bad;
    double want = 0;
    float *got = NULL;
    const cvy_status st = cvy_plan_create(r->g, o, &p);

    if (st) {
        snprintf(what, sizeof what, "no plan: %s", cvy_last_error());
    } else {
        got = run_twice(r, p, &count);
        if (!got)
            snprintf(what, sizeof what, "memory beside an output was written, or kept parameters change the bits");
    }
    bad = got ? doubt_find(d, r, got, o->winograd == CVY_OFF, &want) : -1;
    if (bad >= 0)
        snprintf(what, sizeof what, "element %lld is %.9g, expected %.9g, slack %g%s", (long long)bad,
                 (double)got[bad], want, d->slack[bad], d->exact ? ", exact" : "");
    if (got && *bits && !rig_same_bits(got, *bits, count))
        snprintf(what, sizeof what, "other bits than on another number of threads");
    if (*what) describe(r->g, o, seed, what);
    free(*bits);
    *bits = got;
    cvy_plan_free(p);
    return !*what;
}

/* The graph in another dtype; some parameters stay float32 beside it, and data where casts go with that. */
static void set_dtype(cvy_graph *g, cvy_dtype dtype, uint64_t seed)
{
    for (int v = 0; v < g->n_values; v++)
        if (g->values[v].kind != VALUE_PARAM || random_below(&seed, 4)) g->values[v].dtype = dtype;
    mix_dtypes(g, dtype, seed);
}

static bool check_graph(flavour f, uint64_t seed, cvy_dtype dtype)
{
    cvy_graph *g = make_graph(f, seed);
    uint64_t state = seed * 77 + 13;
    bool good = true;
    rig r;
    doubt d;

    if (!g->n_nodes || cvy_graph_tensors(g) > RIG_TENSORS) {
        cvy_graph_free(g);
        return true;
    }
    for (int i = 0; i < 4; i++) random_next(&state);
    if (dtype != CVY_FLOAT32) set_dtype(g, dtype, seed * 3 + 1);
    rig_open(&r, g, &state, f == EXACT ? RIG_WHOLE : RIG_REAL, random_below(&state, 2) ? 2 : 0);
    rig_reference(&r);
    if (dtype == CVY_FLOAT32)
        doubt_open(&d, &r, state);
    else
        doubt_open_half(&d, &r, state, dtype);
    for (int k = 0; good && k < 4; k++) {
        float *bits = NULL;
        next_isa((int)seed + k);
        cvy_options o = {.size = sizeof o, .device = CVY_CPU, .seed = k ? random_next(&state) | 1 : 0};
        o.winograd = k == 0 || random_below(&state, 2) ? CVY_DEFAULT : CVY_OFF;
        o.fuse = random_below(&state, 4) || !k ? CVY_ON : CVY_OFF;
        for (int i = 0; good && i < 2; i++) {
            o.threads = 1 + random_below(&state, 4);
            good = check_plan(&r, &d, &o, seed, &bits);
        }
        free(bits);
    }
    doubt_close(&d);
    rig_close(&r);
    cvy_graph_free(g);
    return good;
}

static void check_flavour(flavour f, cvy_dtype dtype)
{
    int bad = 0;
    for (int i = 0; i < graphs; i++) bad += !check_graph(f, first_seed + (uint64_t)i, dtype);
    if (bad) fail_msg("%d of %d graphs", bad, graphs);
}

static void exact_graphs(void **state)
{
    (void)state;
    check_flavour(EXACT, CVY_FLOAT32);
}
static void real_graphs(void **state)
{
    (void)state;
    check_flavour(REAL, CVY_FLOAT32);
}
static void thin_graphs(void **state)
{
    (void)state;
    check_flavour(THIN, CVY_FLOAT32);
}
static void wild_graphs(void **state)
{
    (void)state;
    check_flavour(WILD, CVY_FLOAT32);
}
static void fp16_graphs(void **state)
{
    (void)state;
    check_flavour(REAL, CVY_FLOAT16);
    check_flavour(THIN, CVY_FLOAT16);
    check_flavour(WILD, CVY_FLOAT16);
}
static void bf16_graphs(void **state)
{
    (void)state;
    check_flavour(REAL, CVY_BFLOAT16);
    check_flavour(THIN, CVY_BFLOAT16);
    check_flavour(WILD, CVY_BFLOAT16);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_graphs), cmocka_unit_test(real_graphs), cmocka_unit_test(thin_graphs),
        cmocka_unit_test(wild_graphs),  cmocka_unit_test(fp16_graphs), cmocka_unit_test(bf16_graphs),
    };
    program = argv[0];
    one_isa = getenv("CVY_ISA") != NULL;
    if (argc > 1) graphs = atoi(argv[1]);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    if (argc > 3) cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
