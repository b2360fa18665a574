/* test_watch.c - rewrites that hold for finite values alone: what they have watched, that nothing is left of them
 * in careful plans, and that runs come out as the reference's whatever is not finite, and whatever ran before. */
#include "../../src/simplify/simplify.h"
#include "../support/rig.h"

static cvy_graph *parse(const char *chain)
{
    cvy_graph *g = NULL;
    if (cvy_graph_parse(chain, &g)) fail_msg("%s: %s", chain, cvy_last_error());
    return g;
}

/* ---- marks ---- */

typedef struct mark {
    const char *chain;
    const char *watched; /* the only source that is; NULL: none */
    int made;            /* values of nodes that are */
} mark;

static const mark marks[] = {
    {"x[2,3,8,8] | conv2d(4,3) | mul(s[4,1,1])", NULL, 2}, /* weight and bias times s */
    {"x[2,3,8,8] | conv2d(4,3) | add(t[4,1,1])", NULL, 0},
    {"x[2,3,8,8] | conv2d(4,3) | mul(2)", NULL, 2},
    {"x[2,5] | linear(4) | mul(s[4])", NULL, 2},
    {"x[2,4,8,8] | group_norm(2) | mul(s[4,1,1])", NULL, 2},
    {"x[2,3,8,8] | conv2d(4,3) | group_norm(2) | max_pool2d(2)", "group_norm.weight", 0},
    {"x[2,3,8,8] | conv2d(4,3) | group_norm(2) | mul(s[4,1,1]) | max_pool2d(2)", NULL, 2},
    {"x[2,3,8,8] | conv2d(4,3) | group_norm(2,affine=False) | max_pool2d(2)", NULL, 0},
    {"x[2,3,8,8] | conv2d(4,3) | mean((2,3))", "conv2d.weight", 0},
    {"x[2,3,8,8] | conv2d(4,3) | sum(1)", NULL, 1},
    {"x[2,5] | linear(4) | mean(1)", NULL, 1},
    {"x[2,5] | linear(4) | mean(1,keepdim=True) | mul(2)", NULL, 1},
    {"x[2,3,8,8] | softsign | max_pool2d(2)", NULL, 0},
};

static cvy_graph *simplified(const cvy_graph *g, rewrite_mode mode)
{
    const int *outputs;
    const int n = cvyi_graph_outputs(g, &outputs);
    cvy_graph *copy = NULL;

    assert_ok(cvyi_graph_copy(g, &copy));
    for (int i = 0; i < n && !copy->n_outputs; i++) assert_ok(cvy_graph_output(copy, outputs[i]));
    assert_ok(cvyi_simplify(copy, mode, NULL));
    return copy;
}

static void values_that_are_watched(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(marks); i++)
        for (rewrite_mode mode = REWRITE_TRUST; mode <= REWRITE_CAREFUL; mode++) {
            cvy_graph *g = parse(marks[i].chain), *s = simplified(g, mode);
            const bool some = mode == REWRITE_WATCH;
            int made = 0;
            for (int v = 0; v < s->n_values; v++) {
                const value *at = &s->values[v];
                const bool named = some && marks[i].watched && !strcmp(at->name, marks[i].watched);
                made += cvyi_is_watched(s, v);
                if (at->kind != VALUE_NODE && at->watched != named)
                    fail_msg("%s, mode %d: %s", marks[i].chain, (int)mode, at->name);
            }
            if (made != (some ? marks[i].made : 0))
                fail_msg("%s, mode %d: %d results are watched", marks[i].chain, (int)mode, made);
            cvy_graph_free(s);
            cvy_graph_free(g);
        }
}

/* ---- runs ---- */

static void assert_as_reference(rig *r, const char *chain, int turn)
{
    int64_t n, at = 0;
    float *got = rig_outputs(r, &n);
    assert_non_null(got);
    rig_reference(r);
    for (int i = r->n_sources; i < r->n; i++) {
        double most = 1;
        for (int64_t k = 0; k < r->t[i].count; k++)
            if (fabs(r->t[i].want[k]) < 1e37) most = fmax(most, fabs(r->t[i].want[k]));
        for (int64_t k = 0; k < r->t[i].count; k++, at++) {
            const double want = r->t[i].want[k];
            if (got[at] == (float)want || (isnan(want) && isnan(got[at]))) continue;
            if (isfinite(want) && fabs(got[at] - want) <= 1e-5 * most) continue;
            fail_msg("%s, turn %d: element %lld is %g, expected %g", chain, turn, (long long)k, got[at], want);
        }
    }
    free(got);
}

/* A chain planned for two threads, with tensors and a workspace. */
typedef struct bed {
    cvy_graph *g;
    cvy_plan *p;
    void *work;
    rig r;
} bed;

static void bed_open(bed *b, const char *chain, uint64_t seed, int strided)
{
    const cvy_options o = {.size = sizeof o, .device = CVY_CPU, .threads = 2};

    b->g = parse(chain);
    assert_ok(cvy_plan_create(b->g, &o, &b->p));
    b->work = rig_workspace(b->p);
    rig_open(&b->r, b->g, &seed, RIG_REAL, strided);
}

static void bed_run(bed *b, uint32_t flags, const char *chain, int turn)
{
    assert_ok(cvy_plan_run(b->p, b->r.buffers, b->r.n, b->work, cvy_plan_workspace(b->p), flags, NULL));
    assert_as_reference(&b->r, chain, turn);
}

static void bed_close(bed *b)
{
    free(b->work);
    rig_close(&b->r);
    cvy_plan_free(b->p);
    cvy_graph_free(b->g);
}

/* Tensor by tensor an infinity comes and goes, in one workspace; under CVY_KEEP_PREPARED where it is an input. */
static void run_turns(const char *chain, int strided)
{
    bed b;

    bed_open(&b, chain, 11, strided);
    for (int turn = 0; turn < 4 * b.r.n_sources; turn++) {
        rig_tensor *t = &b.r.t[turn / 4];
        float *cell = rig_at(t, t->count / 2), keep = *cell;
        const bool input = t->info.role == CVY_INPUT && turn;
        *cell = turn % 2 ? keep : turn % 4 ? -INFINITY : INFINITY;
        bed_run(&b, input ? CVY_KEEP_PREPARED : 0, chain, turn);
        bed_run(&b, CVY_KEEP_PREPARED, chain, turn);
        *cell = keep;
    }
    bed_close(&b);
}

static void infinities_come_and_go(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(marks); i++)
        for (int strided = 0; strided <= 8; strided += 8) run_turns(marks[i].chain, strided);
}

/* Factors that are finite, with products that are not; x as small as makes results finite again, or not. Values in
 * front of a norm stay small: their squares are float32's. */
static void run_large(const char *chain, bool norm, float of_params, float of_inputs)
{
    bed b;

    bed_open(&b, chain, 5, 0);
    for (int i = 0; i < b.r.n_sources; i++) {
        rig_tensor *t = &b.r.t[i];
        for (int64_t k = 0; k < t->count && !(norm && strstr(t->info.name, "conv2d")); k++)
            *rig_at(t, k) *= t->info.role == CVY_PARAM ? of_params : of_inputs;
    }
    bed_run(&b, 0, chain, 0);
    bed_run(&b, CVY_KEEP_PREPARED, chain, 1);
    bed_close(&b);
}

static void products_beyond_floats(void **state)
{
    static const char *const chains[] = {
        "x[2,3,8,8] | conv2d(4,3,bias=False) | mul(s[4,1,1])",
        "x[2,3,8,8] | conv2d(4,3,bias=False) | mul(1e25) | relu",
        "x[2,5] | linear(4,bias=False) | mul(s[4])",
        "x[2,3,8,8] | conv2d(4,3) | mul(s[4,1,1]) | add(t[4,1,1])",
        "x[2,5] | linear(4) | mul(s[4])",
    };
    static const char *const norms[] = {
        "x[2,4,8,8] | group_norm(2) | mul(s[4,1,1])",
        "x[2,4,8,8] | clamp(3,3) | group_norm(2) | mul(s[4,1,1])", /* the bias alone: its sign is the result's */
        "x[2,4,8,8] | instance_norm(affine=True) | mul(s[4,1,1]) | add(t[4,1,1])",
        "x[2,3,8,8] | conv2d(4,3) | group_norm(2) | mul(s[4,1,1]) | max_pool2d(2)",
        "x[2,3,8,8] | conv2d(4,3) | group_norm(2) | mul(1e25) | relu",
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(chains); i++)
        for (int small = 0; small < 2; small++) run_large(chains[i], false, 1e25f, small ? 1e-25f : 1);
    for (int i = 0; i < COUNT_OF(norms); i++) run_large(norms[i], true, 1e25f, 1);
}

/* Plans are made in run() for such values: whichever allocation fails, the run says so and loses nothing. */
static void out_of_memory(void **state)
{
    static const char *const chains[] = {"x[2,3,8,8] | conv2d(4,3) | mul(s[4,1,1])", "x[2,5] | linear(4) | sum(1)"};
    (void)state;
    for (int i = 0; i < COUNT_OF(chains); i++) {
        const cvy_options o = {.size = sizeof o, .device = CVY_CPU, .threads = 1};
        cvy_graph *g = parse(chains[i]);
        cvy_plan *p = NULL;
        uint64_t seed = 3;
        cvy_status st = CVY_NO_MEMORY;
        int64_t live;
        void *work;
        rig r;

        assert_ok(cvy_plan_create(g, &o, &p));
        work = rig_workspace(p);
        rig_open(&r, g, &seed, RIG_REAL, 0);
        *rig_at(&r.t[i ? 0 : r.n_sources - 1], 0) = INFINITY;
        live = cvyi_alloc_live();
        for (int64_t n = 0; st == CVY_NO_MEMORY; n++) {
            assert_true(n < 1000);
            cvyi_alloc_fail_after(n);
            st = cvy_plan_run(p, r.buffers, r.n, work, cvy_plan_workspace(p), 0, NULL);
            cvyi_alloc_fail_after(-1);
            assert_int_equal(cvyi_alloc_live(), live);
            assert_true(n > 0 || st == CVY_NO_MEMORY); /* there is something that can fail */
        }
        assert_ok(st);
        assert_as_reference(&r, chains[i], 0);
        free(work);
        rig_close(&r);
        cvy_plan_free(p);
        cvy_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_are_watched),
        cmocka_unit_test(infinities_come_and_go),
        cmocka_unit_test(products_beyond_floats),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
