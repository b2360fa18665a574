/* test_graph.c - graphs through the C calls: values, names, natural parameters, outputs, the tensors of run(),
 * copies, the verifier, and what is refused. */
#include "../support/random_graph.h"
#include "same.h"

static cvy_graph *new_graph(void)
{
    cvy_graph *g = NULL;
    assert_ok(cvy_graph_create(&g));
    return g;
}

static cvy_value input(cvy_graph *g, const char *name, int rank, const int64_t *dims)
{
    cvy_value v = CVY_NONE;
    assert_ok(cvy_graph_input(g, name, CVY_FLOAT32, rank, dims, &v));
    return v;
}

static cvy_value apply(cvy_graph *g, const char *op, const char *name, cvy_value x, const cvy_attr *attrs, int n)
{
    const cvy_call call = {
        .size = sizeof call, .op = op, .name = name, .args = &x, .n_args = 1, .attrs = attrs, .n_attrs = n};
    cvy_value v = CVY_NONE;
    assert_ok(cvy_graph_apply(g, &call, &v));
    return v;
}

static void check_tensor(const cvy_graph *g, int index, const char *name, cvy_role role, const char *dims)
{
    cvy_tensor t;
    text s = {0};
    shape made = {0};
    assert_ok(cvy_graph_tensor(g, index, &t));
    made.rank = t.rank;
    memcpy(made.dim, t.dims, sizeof made.dim);
    cvyi_text_add_shape(&s, &made);
    assert_string_equal(t.name, name);
    assert_int_equal(t.role, role);
    assert_string_equal(s.data, dims);
    assert_string_equal(g->values[t.value].name, name);
    cvyi_text_free(&s);
}

/* Block A by hand is block A by text. */
static void built_and_parsed(void **state)
{
    const cvy_attr conv[] = {{.name = "kernel_size", .count = 1, .value = {3}},
                             {.name = "out_channels", .count = 1, .value = {64}}};
    const cvy_attr groups = {.name = "num_groups", .count = 1, .value = {16}};
    const cvy_attr window = {.name = "kernel_size", .count = 1, .value = {4}};
    const cvy_attr bounds[] = {{.name = "min", .count = 1, .value = {0}},
                               {.name = "max", .count = 1, .value = {1}}};
    cvy_graph *g = new_graph(), *parsed = NULL;
    cvy_value v = input(g, "x", 4, (int64_t[]){128, 8, 128, 128}), scale;
    cvy_call mul = {.size = sizeof mul, .op = "mul", .n_args = 2};
    (void)state;

    v = apply(g, "conv2d", NULL, v, conv, 2);
    v = apply(g, "group_norm", NULL, v, &groups, 1);
    assert_ok(cvy_graph_param(g, "scale", CVY_FLOAT32, 3, (int64_t[]){64, 1, 1}, &scale));
    mul.args = (cvy_value[]){v, scale};
    assert_ok(cvy_graph_apply(g, &mul, &v));
    v = apply(g, "max_pool2d", NULL, v, &window, 1);
    v = apply(g, "clamp", NULL, v, bounds, 2);
    assert_ok(cvy_graph_parse("x[128,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | "
                              "max_pool2d(4) | clamp(0,1)",
                              &parsed));
    assert_true(same_graph(g, parsed));
    assert_ok(cvyi_graph_verify(g));

    assert_int_equal(cvy_graph_tensors(g), 7);
    check_tensor(g, 0, "x", CVY_INPUT, "[128,8,128,128]");
    check_tensor(g, 1, "conv2d.weight", CVY_PARAM, "[64,8,3,3]");
    check_tensor(g, 2, "conv2d.bias", CVY_PARAM, "[64]");
    check_tensor(g, 3, "group_norm.weight", CVY_PARAM, "[64]");
    check_tensor(g, 4, "group_norm.bias", CVY_PARAM, "[64]");
    check_tensor(g, 5, "scale", CVY_PARAM, "[64,1,1]");
    check_tensor(g, 6, "clamp", CVY_OUTPUT, "[128,64,31,31]");
    cvy_graph_free(g);
    cvy_graph_free(parsed);
}

/* Which parameters an operator makes for itself, in which order and shape. */
static void natural_parameters(void **state)
{
    static const struct {
        const char *chain, *params;
    } rows[] = {
        {"x[2,8,9] | conv1d(6,3,groups=2)", "conv1d.weight[6,4,3] conv1d.bias[6] "},
        {"x[2,8,9,9] | conv2d(6,(3,2),bias=False)", "conv2d.weight[6,8,3,2] "},
        {"x[2,8,9,9,9] | conv3d(6,(1,2,3)) @c", "c.weight[6,8,1,2,3] c.bias[6] "},
        {"x[2,8,9] | conv_transpose1d(6,3,groups=2)", "conv_transpose1d.weight[8,3,3] conv_transpose1d.bias[6] "},
        {"x[8,9,9] | conv_transpose2d(6,3)", "conv_transpose2d.weight[8,6,3,3] conv_transpose2d.bias[6] "},
        {"x[2,8] | linear(3) | linear(4,bias=False)", "linear.weight[3,8] linear.bias[3] linear_2.weight[4,3] "},
        {"x[2,8,3] | group_norm(2)", "group_norm.weight[8] group_norm.bias[8] "},
        {"x[2,8,3] | group_norm(2,affine=False)", ""},
        {"x[2,8,3] | batch_norm",
         "batch_norm.running_mean[8] batch_norm.running_var[8] batch_norm.weight[8] batch_norm.bias[8] "},
        {"x[2,8,3] | batch_norm(True)", "batch_norm.weight[8] batch_norm.bias[8] "},
        {"x[2,8,3] | batch_norm(affine=False)", "batch_norm.running_mean[8] batch_norm.running_var[8] "},
        {"x[2,8,3] | batch_norm(True,affine=False)", ""},
        {"x[2,8,3] | instance_norm", ""},
        {"x[2,8,3] | instance_norm(affine=True)", "instance_norm.weight[8] instance_norm.bias[8] "},
        {"x[2,8,3] | layer_norm((8,3))", "layer_norm.weight[8,3] layer_norm.bias[8,3] "},
        {"x[2,8,3] | layer_norm(3,bias=False)", "layer_norm.weight[3] "},
        {"x[2,8,3] | layer_norm(3,affine=False)", ""},
        {"x[2,8,3] | rms_norm(3)", "rms_norm.weight[3] "},
        {"x[2,8] | linear(3,bias=b[3])", "b[3] linear.weight[3,8] "},
        {"x[2,8] | add(1) | relu | sum(0) | softmax(0) | dropout", ""},
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        cvy_graph *g = NULL;
        text t = {0};
        assert_ok(cvy_graph_parse(rows[i].chain, &g));
        cvyi_text_add(&t, "%s", "");
        for (int k = 0; k < g->n_values; k++) {
            if (g->values[k].kind != VALUE_PARAM) continue;
            cvyi_text_add(&t, "%s", g->values[k].name);
            cvyi_text_add_shape(&t, &g->values[k].shape);
            cvyi_text_add(&t, " ");
        }
        assert_string_equal(t.data, rows[i].params);
        cvyi_text_free(&t);
        cvy_graph_free(g);
    }
}

static void automatic_names(void **state)
{
    static const char *const expected[] = {"relu", "relu_2", "relu_4", "exp", "relu_5"};
    cvy_graph *g = new_graph();
    cvy_value v = input(g, "x", 1, (int64_t[]){3});
    (void)state;
    input(g, "relu_4.weight", 0, NULL); /* near, but another name */
    v = apply(g, "relu", NULL, v, NULL, 0);
    v = apply(g, "relu", NULL, v, NULL, 0);
    apply(g, "neg", "relu_3", v, NULL, 0);
    v = apply(g, "relu", NULL, v, NULL, 0);
    v = apply(g, "exp", NULL, v, NULL, 0);
    apply(g, "relu", NULL, v, NULL, 0);
    for (int i = 0, k = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].named) continue;
        assert_string_equal(g->values[g->nodes[i].out].name, expected[k]);
        k++;
    }
    for (int i = 0; i < g->n_values; i++)
        assert_int_equal(cvyi_value_find(g, g->values[i].name, strlen(g->values[i].name)), i);
    assert_int_equal(cvyi_value_find(g, "relu_5x", 6), cvyi_value_find(g, "relu_5", 6));
    assert_int_equal(cvyi_value_find(g, "rel", 3), CVY_NONE);
    assert_int_equal(cvyi_value_find(g, "", 0), CVY_NONE);
    cvy_graph_free(g);
}

static void outputs(void **state)
{
    cvy_graph *g = new_graph();
    const cvy_value x = input(g, "x", 1, (int64_t[]){3});
    const int *marked = NULL;
    cvy_value a, b, p;
    (void)state;
    assert_int_equal(cvyi_graph_outputs(g, &marked), 0);
    assert_int_equal(cvy_graph_tensors(g), 1);
    a = apply(g, "relu", NULL, x, NULL, 0);
    b = apply(g, "exp", NULL, x, NULL, 0);
    assert_ok(cvy_graph_param(g, "p", CVY_FLOAT32, 0, NULL, &p));
    assert_int_equal(cvyi_graph_outputs(g, &marked), 1); /* the last operator's, though a parameter came later */
    assert_int_equal(marked[0], b);
    assert_refused(cvy_graph_output(g, x), "output: 'x' is not the result of an operator");
    assert_refused(cvy_graph_output(g, p), "output: 'p' is not the result of an operator");
    assert_refused(cvy_graph_output(g, 99), "output: not a value of this graph");
    assert_refused(cvy_graph_output(g, CVY_NONE), "output: not a value of this graph");
    assert_refused(cvy_graph_output(NULL, 0), "graph is NULL");
    assert_ok(cvy_graph_output(g, b));
    assert_ok(cvy_graph_output(g, a));
    assert_refused(cvy_graph_output(g, b), "output: 'exp' is already an output");
    assert_int_equal(cvy_graph_tensors(g), 4);
    check_tensor(g, 1, "p", CVY_PARAM, "[]");
    check_tensor(g, 2, "exp", CVY_OUTPUT, "[3]");
    check_tensor(g, 3, "relu", CVY_OUTPUT, "[3]");
    cvy_graph_free(g);
}

static void shapes_and_tensors(void **state)
{
    cvy_graph *g = NULL;
    int64_t dims[CVY_MAX_RANK];
    int32_t rank = -1;
    cvy_tensor t;
    (void)state;
    assert_ok(cvy_graph_parse("x[2,3] | unsqueeze(1)", &g));
    assert_ok(cvy_graph_shape(g, 1, &rank, dims));
    assert_int_equal(rank, 3);
    assert_int_equal(dims[0], 2);
    assert_int_equal(dims[1], 1);
    assert_int_equal(dims[2], 3);
    assert_refused(cvy_graph_shape(g, 2, &rank, dims), "shape: not a value of this graph");
    assert_refused(cvy_graph_shape(g, -1, &rank, dims), "shape: not a value of this graph");
    assert_refused(cvy_graph_shape(NULL, 0, &rank, dims), "graph or result pointer is NULL");
    assert_refused(cvy_graph_shape(g, 0, NULL, dims), "graph or result pointer is NULL");
    assert_refused(cvy_graph_tensor(g, 2, &t), "tensor 2: the graph has 2");
    assert_refused(cvy_graph_tensor(g, -1, &t), "tensor -1: the graph has 2");
    assert_refused(cvy_graph_tensor(g, 0, NULL), "graph or result pointer is NULL");
    assert_int_equal(cvy_graph_tensors(NULL), 0);
    cvy_graph_free(g);
    cvy_graph_free(NULL);
}

static void refused_tensors(void **state)
{
    cvy_graph *g = new_graph();
    char name[260];
    cvy_value v;
    (void)state;
    input(g, "x", 1, (int64_t[]){3});
    assert_refused(cvy_graph_create(NULL), "result pointer is NULL");
    assert_refused(cvy_graph_input(NULL, "y", CVY_FLOAT32, 0, NULL, &v), "graph or result pointer is NULL");
    assert_refused(cvy_graph_input(g, "y", CVY_FLOAT32, 0, NULL, NULL), "graph or result pointer is NULL");
    assert_refused(cvy_graph_input(g, NULL, CVY_FLOAT32, 0, NULL, &v), "a tensor needs a name");
    assert_refused(cvy_graph_param(g, "", CVY_FLOAT32, 0, NULL, &v), "a tensor needs a name");
    assert_refused(cvy_graph_param(g, "x", CVY_FLOAT32, 0, NULL, &v), "name 'x' is already taken");
    assert_refused(cvy_graph_param(g, "a b", CVY_FLOAT32, 0, NULL, &v),
                   "name 'a b': only letters, digits, '_' and '.' can be in it");
    assert_refused(cvy_graph_param(g, "\xc3\xa4", CVY_FLOAT32, 0, NULL, &v),
                   "name '\xc3\xa4': only letters, digits, '_' and '.' can be in it");
    assert_refused(cvy_graph_param(g, "1x", CVY_FLOAT32, 0, NULL, &v),
                   "name '1x': must begin with a letter or '_'");
    assert_refused(cvy_graph_param(g, ".x", CVY_FLOAT32, 0, NULL, &v),
                   "name '.x': must begin with a letter or '_'");
    assert_refused(cvy_graph_param(g, "y", CVY_FLOAT32, 7, (int64_t[7]){0}, &v), "y: rank 7, at most 6 dimensions");
    assert_refused(cvy_graph_param(g, "y", CVY_FLOAT32, -1, NULL, &v), "y: rank -1, at most 6 dimensions");
    assert_refused(cvy_graph_param(g, "y", CVY_FLOAT32, 1, NULL, &v), "y: no extents given");
    assert_refused(cvy_graph_param(g, "y", CVY_FLOAT32, 2, (int64_t[]){2, -3}, &v),
                   "y: extent -3 of dimension 1 is negative");
    assert_refused(cvy_graph_param(g, "y", CVY_FLOAT32, 1, (int64_t[]){INT64_MAX}, &v), "y: too many elements");
    memset(name, 'n', sizeof name);
    name[201] = 0;
    assert_int_equal(cvy_graph_param(g, name, CVY_FLOAT32, 0, NULL, &v), CVY_INVALID);
    name[200] = 0;
    assert_ok(cvy_graph_param(g, name, CVY_FLOAT32, 0, NULL, &v));
    assert_int_equal(g->n_values, 2);
    cvy_graph_free(g);
}

static void refused_calls(void **state)
{
    const cvy_value x = 0, beyond[] = {0, 5}, none = CVY_NONE;
    const cvy_attr bad_name = {.name = "foo", .count = 1}, no_name = {.count = 1};
    const cvy_attr many = {.name = "min", .count = 7}, negative = {.name = "min", .count = -1};
    const cvy_call good = {.size = sizeof good, .op = "clamp", .args = &x, .n_args = 1};
    cvy_graph *g = new_graph();
    cvy_call c = good;
    cvy_value v;
    (void)state;
    input(g, "x", 1, (int64_t[]){3});
    assert_refused(cvy_graph_apply(NULL, &c, &v), "graph, call or result pointer is NULL");
    assert_refused(cvy_graph_apply(g, NULL, &v), "graph, call or result pointer is NULL");
    assert_refused(cvy_graph_apply(g, &c, NULL), "graph, call or result pointer is NULL");
    c.size = 0;
    assert_refused(cvy_graph_apply(g, &c, &v), "cvy_call: size is 0, not set?");
    c = good;
    c.op = NULL;
    assert_refused(cvy_graph_apply(g, &c, &v), "cvy_call: op is NULL");
    c.op = "norm_stats";
    assert_refused(cvy_graph_apply(g, &c, &v), "there is no operator 'norm_stats'");
    c = good;
    c.n_args = 0;
    assert_refused(cvy_graph_apply(g, &c, &v), "clamp: takes 1 to 1 tensors, got 0");
    c.n_args = 1;
    c.args = NULL;
    assert_refused(cvy_graph_apply(g, &c, &v), "clamp: takes 1 to 1 tensors, got 1");
    c.args = &none;
    assert_refused(cvy_graph_apply(g, &c, &v), "clamp: argument 0 is not a value of this graph");
    c = good;
    c.op = "add";
    c.args = beyond;
    c.n_args = 2;
    assert_refused(cvy_graph_apply(g, &c, &v), "add: argument 1 is not a value of this graph");
    c = good;
    c.n_attrs = 1;
    assert_refused(cvy_graph_apply(g, &c, &v), "clamp: attrs is NULL or n_attrs negative");
    c.attrs = &bad_name;
    assert_refused(cvy_graph_apply(g, &c, &v), "clamp: has no attribute 'foo'");
    c.attrs = &no_name;
    assert_refused(cvy_graph_apply(g, &c, &v), "clamp: an attribute has no name");
    c.attrs = &many;
    assert_refused(cvy_graph_apply(g, &c, &v), "clamp: min has 7 numbers, at most 6 can be");
    c.attrs = &negative;
    assert_refused(cvy_graph_apply(g, &c, &v), "clamp: min has -1 numbers, at most 6 can be");
    assert_int_equal(v, CVY_NONE);
    assert_int_equal(g->n_values, 1);
    assert_int_equal(g->n_nodes, 0);
    assert_ok(cvyi_graph_verify(g));
    cvy_graph_free(g);
}

/* A refused node takes its natural parameters with it. */
static void refused_node_leaves_nothing(void **state)
{
    cvy_graph *g = NULL;
    cvy_value y;
    (void)state;
    assert_ok(cvy_graph_parse("x[1,8,4,4] | relu", &g));
    assert_int_equal(cvy_graph_chain(g, 0, "conv2d(4,5)", &y), CVY_INVALID);
    assert_int_equal(g->n_values, 2);
    assert_int_equal(cvyi_value_find(g, "conv2d.weight", 13), CVY_NONE);
    assert_ok(cvy_graph_chain(g, 0, "conv2d(4,3)", &y));
    assert_true(cvyi_value_find(g, "conv2d.weight", 13) != CVY_NONE);
    cvy_graph_free(g);
}

/* Many values come and go: every name is found, no other is. */
static void name_index(void **state)
{
    cvy_graph *g = new_graph();
    graph_mark mark = cvyi_graph_mark(g);
    uint64_t seed = 7;
    char name[32];
    cvy_value v;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "n%d", random_below(&seed, 3000));
        if (cvyi_value_find(g, name, strlen(name)) == CVY_NONE) {
            assert_ok(cvy_graph_param(g, name, CVY_FLOAT32, 0, NULL, &v));
            assert_int_equal(cvyi_value_find(g, name, strlen(name)), v);
        } else {
            assert_int_equal(cvy_graph_param(g, name, CVY_FLOAT32, 0, NULL, &v), CVY_INVALID);
        }
        if (!random_below(&seed, 500)) mark = cvyi_graph_mark(g);
        if (!random_below(&seed, 300) && mark.n_values <= g->n_values) cvyi_graph_rollback(g, &mark);
        if (mark.n_values > g->n_values) mark = cvyi_graph_mark(g);
    }
    for (int i = 0; i < g->n_values; i++)
        assert_int_equal(cvyi_value_find(g, g->values[i].name, strlen(g->values[i].name)), i);
    for (int i = 0, found = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "n%d", i);
        found += cvyi_value_find(g, name, strlen(name)) != CVY_NONE;
        if (i == 2999) assert_int_equal(found, g->n_values);
    }
    cvy_graph_free(g);
}

static void copies(void **state)
{
    uint64_t seed = 42;
    (void)state;
    for (int i = 0; i < 200; i++) {
        cvy_graph *g = random_graph(&seed, 60, true), *copy = NULL;
        cvy_value v;
        assert_ok(cvyi_graph_copy(g, &copy));
        assert_true(same_graph(g, copy));
        assert_int_equal(g->n_outputs, copy->n_outputs);
        assert_ok(cvyi_graph_verify(copy));
        for (int k = 0; k < g->n_values; k++)
            assert_int_equal(cvyi_value_find(copy, g->values[k].name, strlen(g->values[k].name)), k);
        cvy_graph_free(g);
        assert_ok(cvy_graph_input(copy, "one_more", CVY_FLOAT32, 0, NULL, &v)); /* the copy is independent */
        cvy_graph_free(copy);
    }
    assert_int_equal(cvyi_alloc_live(), 0);
}

/* The verifier sees what a wrong rewrite would do. */
static void verifier(void **state)
{
    cvy_graph *g = NULL;
    (void)state;
    assert_ok(cvy_graph_parse("x[2,3] | relu | exp | sum(1)", &g));
    assert_ok(cvyi_graph_verify(g));
    g->values[3].shape.dim[0] = 1;
    assert_refused(cvyi_graph_verify(g), "node 2: the shape of 'sum' is not the inferred one");
    g->values[3].shape.dim[0] = 2;
    g->nodes[0].arg[0] = 2;
    assert_refused(cvyi_graph_verify(g), "node 0: reads 'exp', which comes later");
    g->nodes[0].arg[0] = 1;
    assert_refused(cvyi_graph_verify(g), "node 0: reads 'relu', which comes later");
    g->nodes[0].arg[0] = 4;
    assert_refused(cvyi_graph_verify(g), "node 0: argument 0 is not a value");
    g->nodes[0].arg[0] = CVY_NONE;
    assert_refused(cvyi_graph_verify(g), "node 0: argument 0 is not a value");
    g->nodes[0].arg[0] = 0;
    g->nodes[1].out = 3;
    assert_refused(cvyi_graph_verify(g), "node 1: its result does not point back");
    g->nodes[1].out = 2;
    g->values[0].node = 1;
    assert_refused(cvyi_graph_verify(g), "value 'x': kind and node do not fit");
    g->values[0].node = -1;
    g->nodes[2].attr[0].i[0] = 2;
    assert_refused(cvyi_graph_verify(g), "sum: dim 2 is out of range for rank 2");
    g->nodes[2].attr[0].i[0] = 1;
    assert_ok(cvyi_graph_verify(g));
    cvy_graph_free(g);
}

/* Every operator that is not internal, once, with room to spare in its fixed memory. */
static void signatures(void **state)
{
    int n = 0;
    (void)state;
    for (int i = 0; i < OP_COUNT; i++) {
        const size_t len = strlen(cvyi_ops[i].name);
        const char *s;
        if (cvyi_ops[i].flags & FLAG_INTERNAL) continue;
        s = cvy_op_signature(n++);
        assert_non_null(s);
        assert_memory_equal(s, cvyi_ops[i].name, len);
        assert_int_equal(s[len], '(');
        assert_int_equal(s[strlen(s) - 1], ')');
        assert_int_equal(cvyi_op_find(cvyi_ops[i].name, len), i);
    }
    assert_null(cvy_op_signature(n));
    assert_null(cvy_op_signature(-1));
    assert_int_equal(cvy_op_slow(n), 0);
    assert_int_equal(cvy_op_slow(-1), 0);
    for (int i = 0; i < n; i++) {
        const char *name = cvy_op_signature(i);
        const bool slow = !strncmp(name, "tanh(", 5) || !strncmp(name, "log_softmax(", 12);
        if (slow || !strncmp(name, "relu(", 5) || !strncmp(name, "conv", 4)) assert_int_equal(cvy_op_slow(i), slow);
    }
    assert_string_equal(cvy_op_signature(1), "conv2d(out_channels, kernel_size, stride=1, padding=0, dilation=1, "
                                             "groups=1, bias=True)");
    assert_int_equal(cvyi_op_find("conv", 4), OP_COUNT);
    assert_int_equal(cvyi_op_find("", 0), OP_COUNT);
}

static void statuses(void **state)
{
    (void)state;
    assert_string_equal(cvy_version(), CVY_VERSION);
    assert_string_equal(cvy_status_name(CVY_OK), "ok");
    assert_string_equal(cvy_status_name(CVY_FAILED), "failed");
    assert_string_equal(cvy_status_name((cvy_status)99), "unknown status");
    assert_string_equal(cvy_status_name((cvy_status)-1), "unknown status");
    assert_non_null(cvy_last_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_and_parsed),   cmocka_unit_test(natural_parameters),
        cmocka_unit_test(automatic_names),    cmocka_unit_test(outputs),
        cmocka_unit_test(shapes_and_tensors), cmocka_unit_test(refused_tensors),
        cmocka_unit_test(refused_calls),      cmocka_unit_test(refused_node_leaves_nothing),
        cmocka_unit_test(name_index),         cmocka_unit_test(copies),
        cmocka_unit_test(verifier),           cmocka_unit_test(signatures),
        cmocka_unit_test(statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
