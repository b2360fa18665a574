/* test_dtype.c - element types: how they are written, which one a result has, what is refused, and what bytes and
 * digests make of them. */
#include <math.h>
#include "../../src/plan/plan.h"
#include "../../src/simplify/simplify.h"
#include "../../src/util/half.h"
#include "../support/random_graph.h"
#include "same.h"

static cvy_graph *parse(const char *chain)
{
    cvy_graph *g = NULL;
    if (cvy_graph_parse(chain, &g)) fail_msg("%s: %s", chain, cvy_last_error());
    return g;
}

static cvy_dtype dtype_of(const cvy_graph *g, const char *name)
{
    const int v = cvyi_value_find(g, name, strlen(name));
    cvy_dtype dtype = CVY_FLOAT32;
    assert_int_not_equal(v, CVY_NONE);
    assert_ok(cvy_graph_dtype(g, v, &dtype));
    return dtype;
}

static void names_and_bytes(void **state)
{
    static const char *const names[] = {"fp32", "fp16", "bf16"};
    static const int64_t bytes[] = {4, 2, 2};
    cvy_dtype found;
    (void)state;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        assert_string_equal(cvyi_dtype_name((cvy_dtype)i), names[i]);
        assert_int_equal(cvyi_dtype_bytes((cvy_dtype)i), bytes[i]);
        assert_true(cvyi_dtype_find(names[i], 4, &found));
        assert_int_equal(found, i);
        assert_false(cvyi_dtype_find(names[i], 3, &found));
    }
    assert_false(cvyi_dtype_find("", 0, &found));
}

static void printed(void **state)
{
    static const struct {
        const char *from, *to;
    } rows[] = {
        {"x[2,3]:fp32 | relu", "x[2,3] | relu"},
        {"x [2,3] : bf16 | relu", "x[2,3]:bf16 | relu"},
        {"x[]:fp16, y[0,2]:bf16", "x[]:fp16, y[0,2]:bf16"},
        {"x[1,8,9,9]:bf16 | conv2d(4,3) | add(b[4,1,1])", "x[1,8,9,9]:bf16 | conv2d(4, 3) | add(b[4,1,1])"},
        {"x[1,8,9,9]:bf16 | group_norm(2, weight=w[8]:fp16, bias=b[8])",
         "x[1,8,9,9]:bf16 | group_norm(2, weight=w[8]:fp16, bias=b[8])"},
        /* A parameter under its natural name is written where its dtype is not the natural one. */
        {"x[2,4]:fp16 | linear(3, weight=linear.weight[3,4]:fp16, bias=linear.bias[3])",
         "x[2,4]:fp16 | param(linear.weight[3,4]:fp16) | linear(3, weight=@linear.weight, bias=linear.bias[3])"},
        {"x[2,4] | param(s[]:bf16) | mul(@s)", "x[2,4] | mul(s[]:bf16)"},
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        cvy_graph *g = parse(rows[i].from), *back = NULL;
        text t = {0};
        assert_ok(cvyi_print_graph(g, &t));
        assert_string_equal(t.data, rows[i].to);
        back = parse(t.data);
        assert_true(same_graph(g, back));
        cvyi_text_free(&t);
        cvy_graph_free(back);
        cvy_graph_free(g);
    }
}

/* The first argument that depends on an input says it; natural parameters have that of what flows. */
static void results(void **state)
{
    static const struct {
        const char *name;
        cvy_dtype dtype;
    } rows[] = {
        {"conv2d", CVY_BFLOAT16},
        {"conv2d.weight", CVY_BFLOAT16},
        {"conv2d.bias", CVY_BFLOAT16},
        {"n", CVY_BFLOAT16},
        {"g", CVY_FLOAT32},
        {"group_norm.bias", CVY_FLOAT32},
        {"reshape", CVY_BFLOAT16},
        {"s", CVY_BFLOAT16},
        {"w", CVY_FLOAT16},
        {"twice", CVY_FLOAT16},
        {"first", CVY_BFLOAT16},
        {"linear", CVY_FLOAT16},
        {"linear.weight", CVY_FLOAT16},
    };
    cvy_graph *g = parse("x[1,8,9,9]:bf16 | param(w[4]:fp16) | conv2d(4,3) | group_norm(2, weight=g[4], "
                         "bias=group_norm.bias[4]) @n | reshape(4,49) | sum(1) @s | @w | mul(2) @twice | "
                         "mul(@s) @first | @w | linear(2)");
    cvy_tensor t;
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++)
        if (dtype_of(g, rows[i].name) != rows[i].dtype) fail_msg("%s", rows[i].name);
    assert_ok(cvy_graph_tensor(g, 0, &t));
    assert_int_equal(t.dtype, CVY_BFLOAT16);
    assert_int_equal(cvyi_value_bytes(g, t.value), 8 * 9 * 9 * 2);
    assert_int_equal(cvyi_value_bytes(g, cvyi_value_find(g, "g", 1)), 4 * 4);
    assert_ok(cvyi_graph_verify(g));
    g->values[cvyi_value_find(g, "s", 1)].dtype = CVY_FLOAT32;
    assert_refused(cvyi_graph_verify(g), "node 3: the dtype of 's' is not the inferred one");
    cvy_graph_free(g);
}

static void refused(void **state)
{
    static const struct {
        const char *from, *why;
    } rows[] = {
        {"x[3]:int8 | relu", "column 6: expected fp32, fp16 or bf16 after ':', got 'int8'"},
        {"x[3]: | relu", "column 7: expected fp32, fp16 or bf16 after ':', got '|'"},
        {"x[3]:bf16x | relu", "column 6: expected fp32, fp16 or bf16 after ':', got 'bf16x'"},
        {"x[3]:bf16, y[3] | add(@y)",
         "column 19: add: 'x' is bf16, 'y' is fp32: only parameters may have another dtype"},
        {"x[2,3]:fp16, w[4,3]:bf16 | linear(4, weight=@w)",
         "column 28: linear: 'x' is fp16, 'w' is bf16: only parameters may have another dtype"},
    };
    cvy_graph *g = NULL;
    cvy_dtype dtype;
    cvy_value v;
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(cvy_graph_parse(rows[i].from, &g), CVY_INVALID);
        assert_string_equal(cvy_last_error(), rows[i].why);
    }
    assert_ok(cvy_graph_create(&g));
    assert_refused(cvy_graph_input(g, "x", (cvy_dtype)3, 0, NULL, &v), "x: dtype 3, expected 0 to 2");
    assert_refused(cvy_graph_param(g, "x", (cvy_dtype)-1, 0, NULL, &v), "x: dtype -1, expected 0 to 2");
    assert_refused(cvy_graph_dtype(g, 0, &dtype), "dtype: not a value of this graph");
    assert_refused(cvy_graph_dtype(NULL, 0, &dtype), "graph or result pointer is NULL");
    cvy_graph_free(g);
}

/* An element lies at a multiple of its bytes. */
static void odd_addresses(void **state)
{
    static _Alignas(CVY_ALIGN) char memory[1 << 16], x[64], y[64];
    const cvy_options o = {.size = sizeof o, .device = CVY_CPU};
    const cvy_buffer buffers[] = {{x + 1, NULL}, {y, NULL}}, even[] = {{x + 2, NULL}, {y + 6, NULL}};
    cvy_graph *g = parse("x[5]:bf16 | relu");
    cvy_plan *p = NULL;
    (void)state;
    assert_ok(cvy_plan_create(g, &o, &p));
    assert_in_range(cvy_plan_workspace(p), 1, sizeof memory);
    assert_refused(cvy_plan_run(p, buffers, 2, memory, sizeof memory, 0, NULL),
                   "run: buffer 0 ('x') is not at a multiple of its elements' 2 bytes");
    assert_ok(cvy_plan_run(p, even, 2, memory, sizeof memory, 0, NULL));
    cvy_plan_free(p);
    cvy_graph_free(g);
}

/* The reference rounds its result once, to the dtype of the output, whatever its parameters have. */
static void reference(void **state)
{
    static const char *const chains[] = {
        "x[40]:bf16 | mul(w[40]) | exp",
        "x[40]:fp16 | mul(w[40]:bf16) | exp",
        "x[40] | mul(w[40]:fp16) | exp",
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(chains); i++) {
        cvy_graph *g = parse(chains[i]);
        const cvy_dtype x = dtype_of(g, "x"), w = dtype_of(g, "w"), y = dtype_of(g, "exp");
        const cvy_options o = {.size = sizeof o, .device = CVY_REF};
        uint64_t data[3][40];
        const cvy_buffer buffers[] = {{data[0], NULL}, {data[1], (int64_t[]){-1}}, {data[2], NULL}};
        cvy_buffer turned[3];
        cvy_plan *p = NULL;
        void *work;
        memset(data, 0, sizeof data);
        memcpy(turned, buffers, sizeof turned);
        turned[1].data = (char *)data[1] + 39 * cvyi_dtype_bytes(w); /* backwards */
        for (int k = 0; k < 40; k++)
            cvyi_element_set(x, data[0], k, 0.1 * k), cvyi_element_set(w, data[1], k, 0.3 * k);
        assert_ok(cvy_plan_create(g, &o, &p));
        work = aligned_alloc(CVY_ALIGN, cvy_plan_workspace(p));
        assert_ok(cvy_plan_run(p, turned, 3, work, cvy_plan_workspace(p), 0, NULL));
        for (int k = 0; k < 40; k++) {
            uint64_t want[1] = {0};
            cvyi_element_set(y, want, 0, exp(cvyi_element(x, data[0], k) * cvyi_element(w, data[1], 39 - k)));
            assert_true(cvyi_element(y, data[2], k) == cvyi_element(y, want, 0));
        }
        free(work);
        cvy_plan_free(p);
        cvy_graph_free(g);
    }
}

/* An engine says which value it does not take: the table's word, whatever engine that is. */
static void taken_by_engines(void **state)
{
    const unsigned all = (1u << DTYPE_COUNT) - 1;
    (void)state;
    assert_int_equal(cvyi_engine_ref.dtypes, all);
    assert_int_equal(cvyi_engine_cpu.dtypes, all);
    assert_true(cvyi_engine_cuda.dtypes & 1u << CVY_FLOAT32);
}

/* What rewrites make of half-precision parameters is float32, but for another shape, which may lie where they do;
 * an output keeps its dtype. */
static void rewrites(void **state)
{
    cvy_graph *g =
        parse("x[2,3,8,8]:bf16 | conv2d(4,3) | mul(s[4,1,1]:bf16) | param(w[4]:fp16) | relu @y | @w | add(1) "
              "| add(2) @z | output(@y, @z)");
    text log = {0};
    int folded = 0;
    (void)state;
    assert_ok(cvyi_simplify(g, REWRITE_TRUST, &log));
    assert_ok(cvyi_graph_verify(g));
    for (int i = 0; i < g->n_nodes; i++) {
        const value *v = &g->values[g->nodes[i].out];
        if (cvyi_info(&g->nodes[i])->kind == KIND_SHAPE) {
            assert_int_equal(v->dtype, g->values[g->nodes[i].arg[0]].dtype);
            continue;
        }
        folded += v->fixed && !v->output;
        assert_int_equal(v->dtype, v->output && v->fixed ? CVY_FLOAT16 : v->fixed ? CVY_FLOAT32 : CVY_BFLOAT16);
    }
    assert_true(folded > 0);
    cvyi_text_free(&log);
    cvy_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_bytes), cmocka_unit_test(printed),       cmocka_unit_test(results),
        cmocka_unit_test(refused),         cmocka_unit_test(reference),     cmocka_unit_test(taken_by_engines),
        cmocka_unit_test(rewrites),        cmocka_unit_test(odd_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
