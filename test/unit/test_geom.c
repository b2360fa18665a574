/* test_geom.c - the numbers all engines read off a node, against ones worked out by hand. */
#include <math.h>
#include "unit.h"

/* The graph of a chain; its last node is the one under test. */
static cvy_graph *graph_of(const char *chain)
{
    cvy_graph *g = NULL;
    if (cvy_graph_parse(chain, &g)) fail_msg("%s: %s", chain, cvy_last_error());
    return g;
}

static const node *last(const cvy_graph *g)
{
    return &g->nodes[g->n_nodes - 1];
}

static void check_axes(const int64_t got[3], int64_t d, int64_t h, int64_t w)
{
    assert_int_equal(got[0], d);
    assert_int_equal(got[1], h);
    assert_int_equal(got[2], w);
}

static void conv_geometry(void **state)
{
    cvy_graph *g = graph_of("x[2,6,7,9] | conv2d(4,(3,2),stride=(2,1),padding=(1,0),dilation=(1,3),groups=2)");
    conv_geom c;
    (void)state;
    cvyi_conv_geom(g, last(g), &c);
    assert_int_equal(c.N, 2);
    assert_int_equal(c.C, 6);
    assert_int_equal(c.K, 4);
    assert_int_equal(c.groups, 2);
    assert_int_equal(c.spatial, 2);
    assert_true(c.bias);
    check_axes(c.in, 1, 7, 9);
    check_axes(c.out, 1, 4, 6);
    check_axes(c.kernel, 1, 3, 2);
    check_axes(c.stride, 1, 2, 1);
    check_axes(c.dil, 1, 1, 3);
    check_axes(c.pad, 0, 1, 0);
    /* 2 * outputs (2*4*4*6) * channels per group 3 * taps 6 */
    assert_true(cvyi_node_flops(g, last(g)) == 2.0 * 192 * 3 * 6);
    cvy_graph_free(g);
}

static void conv_padding_and_ranks(void **state)
{
    static const struct {
        const char *chain;
        int64_t N, in[3], pad[3];
    } rows[] = {
        {"x[6,9] | conv1d(4,4,padding='same',bias=False)", 1, {1, 1, 9}, {0, 0, 1}}, /* 3 in all: 1 in front */
        {"x[5,6,9] | conv1d(4,4,padding='same',dilation=3,bias=False)",
         5,
         {1, 1, 9},
         {0, 0, 4}}, /* 9: 4 in front */
        {"x[5,6,9] | conv1d(4,4,padding='valid',bias=False)", 5, {1, 1, 9}, {0, 0, 0}},
        {"x[5,6,7,8,9] | conv3d(4,(1,2,3),padding=(3,2,1),bias=False)", 5, {7, 8, 9}, {3, 2, 1}},
        {"x[6,7,8,9] | conv3d(4,3,padding=1,bias=False)", 1, {7, 8, 9}, {1, 1, 1}},
        {"x[6,8,9] | conv_transpose2d(4,3,padding=(2,1),bias=False)", 1, {1, 8, 9}, {0, 2, 1}},
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        cvy_graph *g = graph_of(rows[i].chain);
        conv_geom c;
        cvyi_conv_geom(g, last(g), &c);
        assert_int_equal(c.N, rows[i].N);
        assert_int_equal(c.C, 6);
        assert_int_equal(c.K, 4);
        assert_false(c.bias);
        check_axes(c.in, rows[i].in[0], rows[i].in[1], rows[i].in[2]);
        check_axes(c.pad, rows[i].pad[0], rows[i].pad[1], rows[i].pad[2]);
        cvy_graph_free(g);
    }
}

static void check_product(const char *chain, int64_t batch, int64_t M, int64_t N, int64_t K, bool nk)
{
    cvy_graph *g = graph_of(chain);
    matmul_geom m;
    cvyi_matmul_geom(g, last(g), &m);
    assert_int_equal(m.batch, batch);
    assert_int_equal(m.M, M);
    assert_int_equal(m.N, N);
    assert_int_equal(m.K, K);
    assert_int_equal(m.other_is_nk, nk);
    assert_true(cvyi_node_flops(g, last(g)) == 2.0 * (double)(batch * M * N * K));
    cvy_graph_free(g);
}

static void products(void **state)
{
    (void)state;
    check_product("x[2,3,8] | linear(5)", 1, 6, 5, 8, true);
    check_product("x[8] | linear(5,bias=False)", 1, 1, 5, 8, true);
    check_product("x[4,3] | matmul(w[3,5])", 1, 4, 5, 3, false);
    check_product("x[2,4,3] | matmul(w[3,5])", 1, 8, 5, 3, false); /* one matrix: batches are rows */
    check_product("x[2,4,3] | matmul(w[3])", 1, 8, 1, 3, false);
    check_product("x[3] | matmul(w[3])", 1, 1, 1, 3, false);
    check_product("x[4,3] | matmul(w[7,3,5])", 7, 4, 5, 3, false);
    check_product("x[3] | matmul(w[7,3,5])", 7, 1, 5, 3, false);
    check_product("x[2,1,4,3] | matmul(w[6,3,5])", 12, 4, 5, 3, false);
}

/* x [2,1] and other [6] batches of matrices: product (i, j) takes matrix i of x and j of other. */
static void product_operands(void **state)
{
    cvy_graph *g = graph_of("x[2,1,4,3] | matmul(w[6,3,5])");
    matmul_geom m;
    int64_t x, other;
    (void)state;
    cvyi_matmul_geom(g, last(g), &m);
    for (int64_t b = 0; b < m.batch; b++) {
        cvyi_matmul_operands(&m, b, &x, &other);
        assert_int_equal(x, b / 6);
        assert_int_equal(other, b % 6);
    }
    cvy_graph_free(g);
}

static void check_norm(const char *chain, norm_geom want)
{
    cvy_graph *g = graph_of(chain);
    norm_geom e;
    cvyi_norm_geom(g, last(g), &e);
    assert_int_equal(e.outer, want.outer);
    assert_int_equal(e.groups, want.groups);
    assert_int_equal(e.chan, want.chan);
    assert_int_equal(e.inner, want.inner);
    assert_int_equal(e.over_outer, want.over_outer);
    assert_int_equal(e.running, want.running);
    assert_int_equal(e.centred, want.centred);
    assert_true(e.eps == want.eps);
    cvy_graph_free(g);
}

static void norms(void **state)
{
    (void)state;
    check_norm("x[2,6,4,5] | group_norm(3)", (norm_geom){2, 3, 2, 20, false, false, true, 1e-5});
    check_norm("x[2,6] | group_norm(3,eps=0.5)", (norm_geom){2, 3, 2, 1, false, false, true, 0.5});
    check_norm("x[2,6,4,5] | instance_norm", (norm_geom){2, 6, 1, 20, false, false, true, 1e-5});
    check_norm("x[2,6,4] | batch_norm", (norm_geom){2, 6, 1, 4, true, true, true, 1e-5});
    check_norm("x[2,6,4] | batch_norm(True)", (norm_geom){2, 6, 1, 4, true, false, true, 1e-5});
    check_norm("x[2,6,4] | layer_norm((6,4))", (norm_geom){2, 1, 24, 1, false, false, true, 1e-5});
    check_norm("x[2,6,4] | layer_norm(4)", (norm_geom){12, 1, 4, 1, false, false, true, 1e-5});
    check_norm("x[2,6,4] | rms_norm(4)", (norm_geom){12, 1, 4, 1, false, false, false, ldexp(1, -23)});
    check_norm("x[2,6,4] | rms_norm(4,1e-6)", (norm_geom){12, 1, 4, 1, false, false, false, 1e-6});
    check_norm("x[0,6,4] | group_norm(2)", (norm_geom){0, 2, 3, 4, false, false, true, 1e-5});
}

static void check_norm_args(const char *chain, const char *weight, const char *bias, const char *mean,
                            const char *var)
{
    cvy_graph *g = graph_of(chain);
    const char *const names[] = {weight, bias, mean, var};
    norm_args a;
    int got[4];
    cvyi_norm_args(last(g), &a);
    assert_int_equal(a.x, 0);
    memcpy(got, (int[]){a.weight, a.bias, a.mean, a.var}, sizeof got);
    for (int i = 0; i < 4; i++) {
        if (names[i])
            assert_string_equal(strchr(g->values[got[i]].name, '.') + 1, names[i]);
        else
            assert_int_equal(got[i], CVY_NONE);
    }
    cvy_graph_free(g);
}

static void norm_arguments(void **state)
{
    (void)state;
    check_norm_args("x[2,6,4] | group_norm(2)", "weight", "bias", NULL, NULL);
    check_norm_args("x[2,6,4] | group_norm(2,affine=False)", NULL, NULL, NULL, NULL);
    check_norm_args("x[2,6,4] | batch_norm", "weight", "bias", "running_mean", "running_var");
    check_norm_args("x[2,6,4] | batch_norm(True)", "weight", "bias", NULL, NULL);
    check_norm_args("x[2,6,4] | batch_norm(affine=False)", NULL, NULL, "running_mean", "running_var");
    check_norm_args("x[2,6,4] | layer_norm(4,bias=False)", "weight", NULL, NULL, NULL);
    check_norm_args("x[2,6,4] | rms_norm(4)", "weight", NULL, NULL, NULL);
}

static void pools(void **state)
{
    cvy_graph *g = graph_of("x[2,3,9,8] | max_pool2d((3,2),padding=(1,0),dilation=(2,1))");
    pool_geom p;
    (void)state;
    cvyi_pool_geom(g, last(g), &p);
    assert_int_equal(p.planes, 6);
    assert_int_equal(p.spatial, 2);
    check_axes(p.in, 1, 9, 8);
    check_axes(p.out, 1, 3, 4); /* (11 - 5) / 3 + 1 */
    check_axes(p.kernel, 1, 3, 2);
    check_axes(p.stride, 1, 3, 2); /* the kernel's */
    check_axes(p.dil, 1, 2, 1);
    check_axes(p.pad, 0, 1, 0);
    cvy_graph_free(g);
    g = graph_of("x[3,5,6,7] | adaptive_avg_pool3d(1)");
    cvyi_pool_geom(g, last(g), &p);
    assert_int_equal(p.planes, 3);
    check_axes(p.kernel, 5, 6, 7);
    check_axes(p.out, 1, 1, 1);
    cvy_graph_free(g);
}

static void check_divisors(const char *chain, const int64_t *want, int n)
{
    cvy_graph *g = graph_of(chain);
    pool_geom p;
    cvyi_pool_geom(g, last(g), &p);
    assert_int_equal(p.out[2], n);
    for (int i = 0; i < n; i++)
        assert_int_equal(cvyi_pool_divisor(&p, (int64_t[]){0, 0, i * p.stride[2] - p.pad[2]}), want[i]);
    cvy_graph_free(g);
}

/* x has 5 elements; windows of 3 begin at -1, 1, 3 with padding 1 and stride 2. */
static void divisors(void **state)
{
    (void)state;
    check_divisors("x[1,1,5] | avg_pool1d(3,2,1)", (int64_t[]){3, 3, 3}, 3);
    check_divisors("x[1,1,5] | avg_pool1d(3,2,1,count_include_pad=False)", (int64_t[]){2, 3, 2}, 3);
    /* Without padding: 0..2, 3..5 of which 5 hangs over and never counts. */
    check_divisors("x[1,1,5] | avg_pool1d(3,3,ceil_mode=True)", (int64_t[]){3, 2}, 2);
    check_divisors("x[1,1,1,5] | avg_pool2d((1,3),3,ceil_mode=True,divisor_override=7)", (int64_t[]){7, 7}, 2);
}

static void reductions(void **state)
{
    static const struct {
        const char *chain;
        unsigned mask;
    } rows[] = {{"x[2,3,4] | sum", 7},     {"x[2,3,4] | sum(1)", 2},     {"x[2,3,4] | mean((0,-1))", 5},
                {"x[2,3,4] | max(-3)", 1}, {"x[2,3,4] | min((1,2))", 6}, {"x[] | sum", 0}};
    cvy_graph *g;
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        g = graph_of(rows[i].chain);
        assert_int_equal(cvyi_reduced_dims(g, last(g)), rows[i].mask);
        cvy_graph_free(g);
    }
    g = graph_of("x[2,3,4] | softmax(-1) | log_softmax(1)");
    assert_int_equal(cvyi_softmax_dim(g, &g->nodes[0]), 2);
    assert_int_equal(cvyi_softmax_dim(g, &g->nodes[1]), 1);
    cvy_graph_free(g);
}

static void pointwise_params(void **state)
{
    static const struct {
        const char *chain;
        double p[2];
    } rows[] = {
        {"x[3] | relu", {0, 0}},
        {"x[3] | leaky_relu", {0.01, 0}},
        {"x[3] | elu(2)", {2, 0}},
        {"x[3] | gelu", {0, 0}},
        {"x[3] | gelu('tanh')", {1, 0}},
        {"x[3] | hardtanh", {-1, 1}},
        {"x[3] | softplus", {1, 20}},
        {"x[3] | clamp(0.5,2)", {0.5, 2}},
        {"x[3] | clamp(0)", {0, INFINITY}},
        {"x[3] | add(3)", {3, 1}},
        {"x[3] | clamp(max=0)", {-INFINITY, 0}},
        {"x[3] | sub(3,alpha=-2)", {3, -2}},
        {"x[3] | add(@x,alpha=4)", {0, 4}},
        {"x[3] | mul(3)", {3, 1}},
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        cvy_graph *g = graph_of(rows[i].chain);
        double p[2];
        cvyi_pointwise_params(last(g), p);
        if (p[0] != rows[i].p[0] || p[1] != rows[i].p[1]) fail_msg("%s: %g %g", rows[i].chain, p[0], p[1]);
        cvy_graph_free(g);
    }
}

static void strides(void **state)
{
    const shape x = {4, {2, 3, 4, 5}}, bias = {3, {3, 1, 1}}, row = {1, {5}}, scalar = {0, {0}},
                empty = {3, {2, 0, 4}};
    int64_t s[CVY_MAX_RANK], b[CVY_MAX_RANK];
    (void)state;
    cvyi_contiguous_strides(&x, s);
    assert_memory_equal(s, ((int64_t[]){60, 20, 5, 1}), 4 * sizeof *s);
    cvyi_contiguous_strides(&empty, s);
    assert_memory_equal(s, ((int64_t[]){4, 4, 1}), 3 * sizeof *s);
    cvyi_contiguous_strides(&bias, s);
    cvyi_broadcast_strides(&bias, s, &x, b);
    assert_memory_equal(b, ((int64_t[]){0, 1, 0, 0}), 4 * sizeof *b);
    cvyi_broadcast_strides(&row, (int64_t[]){-7}, &x, b); /* any stride, kept */
    assert_memory_equal(b, ((int64_t[]){0, 0, 0, -7}), 4 * sizeof *b);
    cvyi_broadcast_strides(&scalar, s, &x, b);
    assert_memory_equal(b, ((int64_t[]){0, 0, 0, 0}), 4 * sizeof *b);
}

static void flops(void **state)
{
    static const struct {
        const char *chain;
        double flops;
    } rows[] = {
        {"x[2,4,5] | conv_transpose1d(6,3,groups=2)", 2.0 * 2 * 4 * 5 * 3 * 3}, /* inputs, K / groups, taps */
        {"x[1,2,4,4] | max_pool2d(2)", 8 * 4},
        {"x[1,2,3,3] | avg_pool2d(3,1,1)", 18 * 9},
        {"x[2,3] | relu", 6},
        {"x[2,1] | add(p[1,5])", 10},
        {"x[2,3] | sum", 6},
        {"x[2,3] | flatten", 0},
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        cvy_graph *g = graph_of(rows[i].chain);
        if (cvyi_node_flops(g, last(g)) != rows[i].flops)
            fail_msg("%s: %g", rows[i].chain, cvyi_node_flops(g, last(g)));
        cvy_graph_free(g);
    }
}

/* A step past the end is never taken: kernels multiply by it in 32 bits. */
static void long_steps(void **state)
{
    cvy_graph *g = graph_of("x[2,9] | slice(1,3,step=5000000000)");
    move_geom m;
    (void)state;
    cvyi_move_geom(g, last(g), 0, &m);
    assert_int_equal(m.start[1], 3);
    assert_int_equal(m.count[1], 1);
    assert_int_equal(m.times[1], 9);
    cvy_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_geometry), cmocka_unit_test(conv_padding_and_ranks),
        cmocka_unit_test(products),      cmocka_unit_test(product_operands),
        cmocka_unit_test(norms),         cmocka_unit_test(norm_arguments),
        cmocka_unit_test(pools),         cmocka_unit_test(divisors),
        cmocka_unit_test(reductions),    cmocka_unit_test(pointwise_params),
        cmocka_unit_test(strides),       cmocka_unit_test(flops),
        cmocka_unit_test(long_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
