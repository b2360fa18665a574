/* test_ref.c - the reference executor: what the tests against PyTorch cannot reach. Nothing rounds between
 * operators, arrays that share memory do not disturb each other, sizes that overflow are refused, and the operators
 * that only rewrites make agree with those they are made from. */
#include <math.h>
#include "unit.h"
#include "../../src/ref/ref.h"

enum { MAX_TENSORS = 32, MAX_ELEMENTS = 4096 };

/* A graph with contiguous float data for all its tensors. */
typedef struct fixture {
    cvy_graph *g;
    int n, n_outputs;
    float *data[MAX_TENSORS];
    cvy_buffer buffers[MAX_TENSORS];
    int64_t count[MAX_TENSORS];
} fixture;

/* The first output. */
static int parse_last(fixture *f, const char *chain)
{
    const int *outputs = NULL;
    *f = (fixture){0};
    assert_ok(cvy_graph_parse(chain, &f->g));
    assert_true(cvyi_graph_outputs(f->g, &outputs) > 0);
    return outputs[0];
}

/* Whole numbers -8 ... 8, in sources; outputs begin as NaN. */
static void fill(fixture *f)
{
    uint64_t seed = 88172645463325252u;
    f->n = cvy_graph_tensors(f->g);
    assert_true(f->n <= MAX_TENSORS);
    for (int i = 0; i < f->n; i++) {
        cvy_tensor t;
        assert_ok(cvy_graph_tensor(f->g, i, &t));
        f->count[i] = cvyi_elements(cvyi_shape_of(f->g, t.value));
        assert_true(f->count[i] <= MAX_ELEMENTS);
        f->n_outputs += t.role == CVY_OUTPUT;
        f->data[i] = malloc((size_t)f->count[i] * sizeof(float) + 1);
        f->buffers[i] = (cvy_buffer){f->data[i], NULL};
        for (int64_t k = 0; k < f->count[i]; k++)
            f->data[i][k] = t.role == CVY_OUTPUT ? NAN : (float)(random_below(&seed, 17) - 8);
    }
}

static void open_chain(fixture *f, const char *chain)
{
    parse_last(f, chain);
    fill(f);
}

static void close_fixture(fixture *f)
{
    for (int i = 0; i < f->n; i++) free(f->data[i]);
    cvy_graph_free(f->g);
    assert_int_equal(cvyi_alloc_live(), 0);
}

/* A workspace of exactly the size asked for, full of NaN: what is read must have been written. */
static void *new_workspace(const cvy_graph *g)
{
    size_t bytes = 0;
    void *workspace;
    assert_ok(cvyi_ref_workspace(g, &bytes));
    assert_true(bytes > 0 && bytes % CVY_ALIGN == 0);
    workspace = aligned_alloc(CVY_ALIGN, bytes);
    memset(workspace, 0xff, bytes);
    return workspace;
}

static void run(fixture *f)
{
    void *workspace = new_workspace(f->g);
    assert_ok(cvyi_ref_run(f->g, f->buffers, f->n, workspace));
    free(workspace);
}

static const float *output(const fixture *f, int i)
{
    return f->data[f->n - f->n_outputs + i];
}

/* ---- values ---- */

static void convolution_by_hand(void **state)
{
    static const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, weight[] = {1, 10, 100, 1000}, bias[] = {0.5f};
    static const float expected[] = {5421.5f, 6532.5f, 8754.5f, 9865.5f};
    fixture f;
    (void)state;
    open_chain(&f, "x[1,1,3,3] | conv2d(1,2)");
    memcpy(f.data[0], x, sizeof x);
    memcpy(f.data[1], weight, sizeof weight);
    memcpy(f.data[2], bias, sizeof bias);
    run(&f);
    for (int i = 0; i < 4; i++) assert_true(output(&f, 0)[i] == expected[i]);
    close_fixture(&f);
}

/* Every product but the last is beyond float32. */
static void nothing_rounds_between_operators(void **state)
{
    fixture f;
    (void)state;
    open_chain(&f, "x[65] | mul(1e30) | mul(1e30) | div(1e30) | div(1e30) | add(1e12) | sub(1e12)");
    run(&f);
    for (int i = 0; i < 65; i++) assert_true(fabsf(output(&f, 0)[i] - f.data[0][i]) < 1e-3f);
    close_fixture(&f);
}

static void doubles_are_not_rounded(void **state)
{
    double values[5];
    double *const outputs[] = {values};
    void *workspace;
    fixture f;
    (void)state;
    open_chain(&f, "x[5] | div(3)");
    workspace = new_workspace(f.g);
    assert_ok(cvyi_ref_run_double(f.g, f.buffers, 1, workspace, outputs)); /* the output buffer is left out */
    for (int i = 0; i < 5; i++) assert_true(values[i] == f.data[0][i] / 3.0);
    for (int i = 0; i < 5; i++) assert_true(isnan(output(&f, 0)[i]));
    free(workspace);
    close_fixture(&f);
}

/* x backwards, y with gaps, the output transposed. */
static void strides(void **state)
{
    static const int64_t back[] = {-3, -1}, gaps[] = {6, 2}, columns[] = {1, 2};
    float x[6], y[12], z[6];
    fixture f;
    (void)state;
    parse_last(&f, "x[2,3], y[2,3] | sub(@y)");
    for (int i = 0; i < 6; i++) x[i] = (float)(10 * i);
    for (int i = 0; i < 12; i++) y[i] = i % 2 ? NAN : (float)(i / 2);
    f.n = 3;
    f.buffers[0] = (cvy_buffer){x + 5, back};
    f.buffers[1] = (cvy_buffer){y, gaps};
    f.buffers[2] = (cvy_buffer){z, columns};
    run(&f);
    for (int i = 0; i < 6; i++) assert_true(z[i / 3 + i % 3 * 2] == (float)(10 * (5 - i) - i));
    f.n = 0;
    close_fixture(&f);
}

/* ---- workspace ---- */

static void chains_share_memory(void **state)
{
    size_t bytes = 0;
    fixture f;
    (void)state;
    open_chain(&f, "x[1024] | neg | neg | neg | neg | neg | neg | neg | neg | neg | neg | neg | neg");
    assert_ok(cvyi_ref_workspace(f.g, &bytes));
    assert_true(bytes >= 2 * 1024 * sizeof(double) && bytes < 4 * 1024 * sizeof(double));
    run(&f);
    for (int i = 0; i < 1024; i++) assert_true(output(&f, 0)[i] == f.data[0][i]);
    close_fixture(&f);
}

/* Values of different sizes that die at different times, among them an input, outputs and one nobody reads. */
static void lifetimes_overlap(void **state)
{
    fixture f;
    (void)state;
    open_chain(&f, "x[4,8,8] | neg @a | abs @b | sum(0) @c | @a | max(0) @unread | @b | add(@a) @d | "
                   "mul(p[8,8]) @e | add(@x) @g | sub(@c) @h | output(@g, @h, @b)");
    run(&f);
    for (int i = 0; i < 256; i++) {
        const float *x = f.data[0], *p = f.data[1];
        const float g = (-x[i] + fabsf(x[i])) * p[i % 64] + x[i];
        float c = 0;
        for (int k = 0; k < 4; k++) c += fabsf(x[k * 64 + i % 64]);
        assert_true(output(&f, 0)[i] == g);
        assert_true(output(&f, 1)[i] == g - c);
        assert_true(output(&f, 2)[i] == fabsf(x[i]));
    }
    close_fixture(&f);
}

/* Outputs of 2^56 elements: each fits, the sum does not. */
static void workspace_overflows(void **state)
{
    const int64_t dims[] = {INT64_C(1) << 56};
    cvy_graph *g = NULL;
    cvy_value v;
    size_t bytes = 77;
    (void)state;
    assert_ok(cvy_graph_create(&g));
    assert_ok(cvy_graph_input(g, "x", CVY_FLOAT32, 1, dims, &v));
    for (int i = 0; i < 17; i++) {
        assert_ok(cvy_graph_chain(g, v, "neg", &v));
        assert_ok(cvy_graph_output(g, v));
    }
    assert_int_equal(cvyi_ref_workspace(g, &bytes), CVY_INVALID);
    assert_non_null(strstr(cvy_last_error(), "too large for the address space"));
    assert_int_equal(bytes, 77);
    cvy_graph_free(g);
    assert_int_equal(cvyi_alloc_live(), 0);
}

static void failures(void **state)
{
    size_t bytes = 0;
    void *workspace;
    fixture f;
    (void)state;
    open_chain(&f, "x[3] | add(p[3])");
    workspace = new_workspace(f.g);
    assert_refused(cvyi_ref_run(f.g, f.buffers, 2, workspace), "reference: 3 buffers expected, got 2");
    assert_refused(cvyi_ref_run_double(f.g, f.buffers, 1, workspace, NULL), "reference: 2 buffers expected, got 1");
    cvyi_alloc_fail_after(0);
    assert_int_equal(cvyi_ref_workspace(f.g, &bytes), CVY_NO_MEMORY);
    cvyi_alloc_fail_after(-1);
    free(workspace);
    close_fixture(&f);
}

/* Only the batch is empty: nothing is read or written. */
static void empty_batch(void **state)
{
    fixture f;
    (void)state;
    open_chain(&f, "x[0,3,5] | conv1d(4,3) | batch_norm(True) | max_pool1d(2) | softmax(1) | sum((1,2))");
    assert_int_equal(f.count[f.n - 1], 0);
    f.buffers[0].data = f.buffers[f.n - 1].data = NULL;
    run(&f);
    close_fixture(&f);
}

/* ---- operators that only rewrites make ---- */

static cvy_attr number_attr(const char *name, double v)
{
    return (cvy_attr){.name = name, .count = 1, .value = {v}};
}

static int add_node(fixture *f, op_id op, const int *args, int n_args, const cvy_attr *attrs, int n_attrs)
{
    node_spec spec;
    int out = CVY_NONE;
    cvyi_spec_init(&spec, op);
    spec.n_args = n_args;
    memcpy(spec.arg, args, (size_t)n_args * sizeof *args);
    for (int i = 0; i < n_attrs; i++) assert_ok(cvyi_spec_set(&spec, &attrs[i]));
    assert_ok(cvyi_graph_add(f->g, &spec, &out));
    return out;
}

static int find(const fixture *f, const char *name)
{
    const int v = cvyi_value_find(f->g, name, strlen(name));
    assert_int_not_equal(v, CVY_NONE);
    return v;
}

typedef struct parts {
    const char *chain, *weight, *bias; /* a norm of x, and its affine's names or NULL */
    double groups, chan, inner, eps;
    bool over_outer, centred;
} parts;

/* norm_apply(x, norm_stats(x)) is the norm. */
static void check_parts(const parts *p)
{
    const cvy_attr stats_attrs[] = {number_attr("groups", p->groups),   number_attr("chan", p->chan),
                                    number_attr("inner", p->inner),     number_attr("eps", p->eps),
                                    number_attr("centred", p->centred), number_attr("over_outer", p->over_outer)};
    const cvy_attr apply_attrs[] = {number_attr("groups", p->groups), number_attr("chan", p->chan),
                                    number_attr("inner", p->inner), number_attr("over_outer", p->over_outer)};
    fixture f;
    const int whole = parse_last(&f, p->chain), x = find(&f, "x");
    const int stats = add_node(&f, OP_norm_stats, &x, 1, stats_attrs, COUNT_OF(stats_attrs));
    const int args[] = {x, stats, p->weight ? find(&f, p->weight) : CVY_NONE,
                        p->bias ? find(&f, p->bias) : CVY_NONE};
    const int apply = add_node(&f, OP_norm_apply, args, 4, apply_attrs, COUNT_OF(apply_attrs));

    assert_ok(cvy_graph_output(f.g, whole));
    assert_ok(cvy_graph_output(f.g, apply));
    assert_ok(cvyi_graph_verify(f.g));
    fill(&f);
    run(&f);
    for (int64_t i = 0; i < f.count[0]; i++) {
        if (fabsf(output(&f, 0)[i] - output(&f, 1)[i]) > 1e-6f || isnan(output(&f, 0)[i]))
            fail_msg("%s: element %d is %g in parts, %g as a whole", p->chain, (int)i, (double)output(&f, 1)[i],
                     (double)output(&f, 0)[i]);
    }
    close_fixture(&f);
}

static void norms_in_parts(void **state)
{
    static const parts rows[] = {
        {"x[3,6,5] | group_norm(2)", "group_norm.weight", "group_norm.bias", 2, 3, 5, 1e-5, false, true},
        {"x[3,6,5] | group_norm(3,eps=0.5,affine=False)", NULL, NULL, 3, 2, 5, 0.5, false, true},
        {"x[3,4,7] | batch_norm(True)", "batch_norm.weight", "batch_norm.bias", 4, 1, 7, 1e-5, true, true},
        {"x[3,4,7] | instance_norm", NULL, NULL, 4, 1, 7, 1e-5, false, true},
        {"x[3,4,7] | layer_norm((4,7))", "layer_norm.weight", "layer_norm.bias", 1, 28, 1, 1e-5, false, true},
        {"x[3,4,7] | rms_norm(7,eps=0.1)", "rms_norm.weight", NULL, 1, 7, 1, 0.1, false, false},
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) check_parts(&rows[i]);
}

/* Statistics of sign * x are those of the product. */
static void statistics_of_a_signed_value(void **state)
{
    const cvy_attr attrs[] = {number_attr("groups", 2), number_attr("chan", 3), number_attr("inner", 5)};
    fixture f;
    const int product = parse_last(&f, "x[2,6,5] | mul(sign[6,1])");
    const int64_t six[] = {6};
    int signs = CVY_NONE;
    assert_ok(cvy_graph_param(f.g, "signs", CVY_FLOAT32, 1, six, &signs));
    const int args[] = {find(&f, "x"), signs};
    const int folded = add_node(&f, OP_norm_stats, args, 2, attrs, COUNT_OF(attrs));
    const int plain = add_node(&f, OP_norm_stats, &product, 1, attrs, COUNT_OF(attrs));
    (void)state;
    assert_ok(cvy_graph_output(f.g, folded));
    assert_ok(cvy_graph_output(f.g, plain));
    fill(&f);
    for (int i = 0; i < 6; i++) f.data[1][i] = f.data[2][i] = i % 2 ? -1 : 1;
    run(&f);
    assert_int_equal(f.count[3], 2 * 2 * STATS_FIELDS);
    for (int i = 0; i < 2 * 2 * STATS_FIELDS; i++) assert_true(output(&f, 0)[i] == output(&f, 1)[i]);
    assert_true(output(&f, 0)[STATS_MEAN] != 0 && output(&f, 0)[STATS_RSTD] > 0);
    close_fixture(&f);
}

static void internal_pointwise(void **state)
{
    static const float points[] = {-INFINITY, -100, -1, -1e-30f, -0.0f, 0, 1e-30f, 0.5f, 20, INFINITY, NAN};
    static const float signs[] = {-1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 1};
    fixture f;
    const int two = parse_last(&f, "x[11] | tanh | hardswish"), x = find(&f, "x");
    const int one = add_node(&f, OP_tanh_hardswish, &x, 1, NULL, 0);
    const int sign = add_node(&f, OP_sign_or_one, &x, 1, NULL, 0);
    (void)state;
    assert_ok(cvy_graph_output(f.g, two));
    assert_ok(cvy_graph_output(f.g, one));
    assert_ok(cvy_graph_output(f.g, sign));
    fill(&f);
    memcpy(f.data[0], points, sizeof points);
    run(&f);
    for (int i = 0; i < 10; i++) assert_true(fabsf(output(&f, 0)[i] - output(&f, 1)[i]) <= 1e-7f);
    assert_true(isnan(output(&f, 0)[10]) && isnan(output(&f, 1)[10]));
    for (int i = 0; i < 11; i++) assert_true(output(&f, 2)[i] == signs[i]);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_by_hand),
        cmocka_unit_test(nothing_rounds_between_operators),
        cmocka_unit_test(doubles_are_not_rounded),
        cmocka_unit_test(strides),
        cmocka_unit_test(chains_share_memory),
        cmocka_unit_test(lifetimes_overlap),
        cmocka_unit_test(workspace_overflows),
        cmocka_unit_test(failures),
        cmocka_unit_test(empty_batch),
        cmocka_unit_test(norms_in_parts),
        cmocka_unit_test(statistics_of_a_signed_value),
        cmocka_unit_test(internal_pointwise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
