/* test_oracle.c - the command's judge: it must find what is wrong, and not find what is right wrong. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "../../cli/cli.h"

static const options ref_options = {.plan = {.size = sizeof(cvy_options), .device = CVY_REF}, .seed = SEED_UNSET};

static void open_chain(job *j, const char *chain, cvy_dtype dtype)
{
    assert_int_equal(job_open(j, chain, dtype), EXIT_FINE);
    assert_int_equal(job_plan(j, &ref_options.plan), EXIT_FINE);
    assert_int_equal(job_fill(j, &ref_options, true), EXIT_FINE);
}

static void run_opened(job *j)
{
    assert_int_equal(job_place(j, 0), EXIT_FINE);
    assert_int_equal(job_run(j, 0, NULL), EXIT_FINE);
    assert_int_equal(job_fetch(j), EXIT_FINE);
}

static void run_chain(job *j, const char *chain)
{
    open_chain(j, chain, CVY_FLOAT32);
    run_opened(j);
}

static verdict judge(const job *j, int64_t samples)
{
    verdict v;
    assert_int_equal(oracle_check(j, &ref_options, samples, &v), EXIT_FINE);
    return v;
}

static void right_results_agree(void **state)
{
    static const char *const chains[] = {
        "x[5,3,8,8] | conv2d(4,3) | group_norm(2) | relu",
        "x[3,4] | linear(5) | softmax(1)",
        "x[3,4] | mean(0)",
        "x[0,3,8,8] | conv2d(4,3)",
        "x[7] | exp",
        "a[2,3], b[2,3] | add(@b)",
    };
    (void)state;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        job j;
        verdict v;
        run_chain(&j, chains[i]);
        v = judge(&j, CHECK_ALL);
        assert_true(v.checked && v.ok);
        assert_true(v.rel_error <= 0x1p-23);
        job_close(&j);
    }
}

/* One element too far off, a NaN too many, an inf of the other sign: each is found, whichever sample it is in. */
static void wrong_results_do_not(void **state)
{
    static const float wrong[] = {NAN, INFINITY, -INFINITY, 1e-3f};
    (void)state;
    for (int sample = 0; sample < 4; sample++) {
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            job j;
            verdict v;
            float *y;
            run_chain(&j, "x[4,3,8,8] | conv2d(4,3) | sigmoid");
            y = j.tensors[j.n - 1].host + 144 * sample + 17;
            *y = i == 3 ? *y + wrong[i] : wrong[i];
            v = judge(&j, CHECK_ALL);
            assert_false(v.ok);
            assert_int_equal(v.mismatches, i < 3);
            job_close(&j);
        }
    }
}

/* In fp16 and bf16 a rounding per operator is right, six units in the last place of one result are not. What is too
 * large for fp16 is inf on both sides. */
static void halves(void **state)
{
    static const double unit[] = {[CVY_FLOAT16] = 0x1p-11, [CVY_BFLOAT16] = 0x1p-8};
    (void)state;
    for (int dtype = CVY_FLOAT16; dtype <= CVY_BFLOAT16; dtype++) {
        job j;
        verdict v;
        float *y;
        open_chain(&j, "x[4,3,8,8] | conv2d(4,3) | sigmoid", (cvy_dtype)dtype);
        run_opened(&j);
        assert_int_equal(j.tensors[1].info.dtype, dtype);
        v = judge(&j, CHECK_ALL);
        assert_true(v.ok && v.rel_error > 0 && v.rel_error <= unit[dtype]);
        y = j.tensors[j.n - 1].host;
        *y += (float)(6 * unit[dtype]);
        assert_false(judge(&j, CHECK_ALL).ok);
        job_close(&j);
        open_chain(&j, "x[4,3,8,8] | conv2d(4,3) | mul(1e7)", (cvy_dtype)dtype);
        run_opened(&j);
        assert_int_equal(isinf(j.tensors[j.n - 1].host[0]) != 0, dtype == CVY_FLOAT16);
        assert_true(judge(&j, CHECK_ALL).ok);
        job_close(&j);
    }
}

/* Sums that cancel have no magnitude of their own, and fp16 overflows where a plan stores what another one does
 * not. */
static void right_results_are_no_false_alarms(void **state)
{
    static const struct {
        const char *chain;
        float element;
        double got; /* of a right plan */
        cvy_dtype dtype;
    } rows[] = {
        {"x[3,1] | linear(1000) | softmax(1) | sum(1) | sub(1)", 0, 0x1p-24, CVY_FLOAT32},
        {"x[3,8] | linear(16) | mul(1000) | layer_norm(16,affine=False) | sum(1)", 0, 0x1p-22, CVY_FLOAT32},
        {"x[2,8] | sub(@x) | exp | sub(1)", 0, 0x1p-24, CVY_FLOAT32},
        {"x[2,8] | mul(3e5) | square | sqrt", 0.75f, INFINITY, CVY_FLOAT16},
        {"x[2,8] | mul(3e5) | div(3e5)", 0.75f, INFINITY, CVY_FLOAT16},
        {"x[2,8] | mul(3e5) | div(3e5) | clamp(0,1)", 0.75f, 1, CVY_FLOAT16},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        job j;
        float *y;
        open_chain(&j, rows[i].chain, rows[i].dtype);
        for (int k = 0; rows[i].element && k < 16; k++) /* the others stay in range */
            j.tensors[0].host[k] = k ? 0x1p-12f : rows[i].element;
        run_opened(&j);
        assert_true(judge(&j, CHECK_ALL).ok);
        y = j.tensors[j.n - 1].host;
        y[0] = (float)rows[i].got;
        if (!judge(&j, CHECK_ALL).ok) fail_msg("%s: a false alarm", rows[i].chain);
        y[0] = rows[i].dtype == CVY_FLOAT32 ? 1e-3f : y[0];
        y[1] = rows[i].dtype == CVY_FLOAT32 ? y[1] : NAN; /* wrong whatever is stored */
        if (judge(&j, CHECK_ALL).ok) fail_msg("%s: nothing is wrong any more", rows[i].chain);
        job_close(&j);
    }
}

static void an_element_never_written_is_found(void **state)
{
    job j;
    (void)state;
    run_chain(&j, "x[2,3] | relu");
    memset(&j.tensors[j.n - 1].host[4], 0xff, sizeof(float)); /* what job_fill leaves */
    assert_false(judge(&j, CHECK_ALL).ok);
    job_close(&j);
}

static int64_t parts(const char *chain)
{
    int64_t batch = 0;
    cvy_graph *graph = NULL, *one;
    if (cvy_graph_parse(chain, &graph)) fail_msg("%s: %s", chain, cvy_last_error());
    one = batch_split(graph, &batch);
    cvy_graph_free(graph);
    if (!one) return 0;
    cvy_graph_free(one);
    return batch;
}

/* Samples are parted only where they do not see each other. */
static void batches_are_parted_with_care(void **state)
{
    static const struct {
        const char *chain;
        int64_t batch;
    } cases[] = {
        {"x[6,4,5,5] | conv2d(4,3) @c | group_norm(2) | add(@c) | logsumexp(1,keepdim=True)", 6},
        {"x[6,4,5,5] | batch_norm | max_pool2d(2) | flatten(1) | linear(3) | softmax(1)", 6},
        {"x[6,4,5,5] | layer_norm([4,5,5]) | mean([1,2])", 6},
        {"x[6,4,5,5] | batch_norm(training=True)", 0},
        {"x[6,4] | layer_norm([6,4])", 0},
        {"x[6,4] | mean(0)", 0},
        {"x[6,4] | softmax(0)", 0},
        {"x[6,4] | mul(scale[6,1])", 0},
        {"x[4,4] | mean(1) | add(@x)", 0}, /* [4] meets the columns, not the rows */
        {"x[6,4] | reshape([4,6])", 0},
        {"x[1,4] | relu", 0},
        {"x[8,5,5] | conv2d(4,3)", 0}, /* unbatched: the first dimension is channels */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (parts(cases[i].chain) != cases[i].batch) fail_msg("%s", cases[i].chain);
}

static void some_samples_only(void **state)
{
    job j;
    verdict v;
    (void)state;
    run_chain(&j, "x[9,3,8,8] | conv2d(4,3)");
    j.tensors[j.n - 1].host[144 * 4 + 3] += 1; /* sample 4: the middle one of 0, 4, 8 */
    v = judge(&j, 2);
    assert_true(v.ok && v.samples == 2 && v.batch == 9);
    assert_false(judge(&j, 3).ok);
    job_close(&j);
}

/* sqrt near 0 turns an error of 1e-8 into 1e-4: allowed, as float32 data cannot say better. */
static void ill_conditioned_chains_are_not_blamed(void **state)
{
    job j;
    verdict v;
    (void)state;
    run_chain(&j, "x[1,4] | sub(0.5) | abs | sqrt");
    for (int i = 0; i < 4; i++) {
        j.tensors[0].host[i] = i ? 0.75f : 0.5f;
        j.tensors[j.n - 1].host[i] = i ? 0.5f : 1e-4f; /* sqrt(1e-8), where sqrt(0) is exact */
    }
    v = judge(&j, CHECK_ALL);
    assert_true(v.ok);
    assert_true(v.bound > 1e-4);
    job_close(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_results_agree),
        cmocka_unit_test(wrong_results_do_not),
        cmocka_unit_test(halves),
        cmocka_unit_test(right_results_are_no_false_alarms),
        cmocka_unit_test(an_element_never_written_is_found),
        cmocka_unit_test(batches_are_parted_with_care),
        cmocka_unit_test(some_samples_only),
        cmocka_unit_test(ill_conditioned_chains_are_not_blamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
