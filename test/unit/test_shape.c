/* test_shape.c - shape inference of every operator against expectations worked out by hand, and what it refuses:
 * wrong ranks and attributes, sizes that overflow, extremes of nothing. */
#include "unit.h"

typedef struct expectation {
    const char *chain, *shape;
} expectation;

/* The shape of the first output, as text. */
static void check_shapes(const expectation *rows, int n)
{
    for (int i = 0; i < n; i++) {
        cvy_graph *g = NULL;
        const int *outputs = NULL;
        text t = {0};
        if (cvy_graph_parse(rows[i].chain, &g)) fail_msg("%s: %s", rows[i].chain, cvy_last_error());
        assert_ok(cvyi_graph_verify(g));
        assert_true(cvyi_graph_outputs(g, &outputs) > 0);
        cvyi_text_add_shape(&t, cvyi_shape_of(g, outputs[0]));
        if (strcmp(t.data, rows[i].shape))
            fail_msg("%s: shape %s, expected %s", rows[i].chain, t.data, rows[i].shape);
        cvyi_text_free(&t);
        cvy_graph_free(g);
    }
    assert_int_equal(cvyi_alloc_live(), 0);
}

/* The message after the column. */
static void check_refusals(const expectation *rows, int n)
{
    for (int i = 0; i < n; i++) {
        cvy_graph *g = NULL;
        const cvy_status st = cvy_graph_parse(rows[i].chain, &g);
        const char *message = strstr(cvy_last_error(), ": ");
        if (st != CVY_INVALID && st != CVY_UNSUPPORTED) fail_msg("%s: %s", rows[i].chain, cvy_status_name(st));
        assert_null(g);
        assert_non_null(message);
        if (strcmp(message + 2, rows[i].shape))
            fail_msg("%s:\n  got      %s\n  expected %s", rows[i].chain, message + 2, rows[i].shape);
    }
    assert_int_equal(cvyi_alloc_live(), 0);
}

#define CHECK_SHAPES(...)                                                                                          \
    static const expectation rows[] = {__VA_ARGS__};                                                               \
    (void)state;                                                                                                   \
    check_shapes(rows, COUNT_OF(rows))
#define CHECK_REFUSALS(...)                                                                                        \
    static const expectation rows[] = {__VA_ARGS__};                                                               \
    (void)state;                                                                                                   \
    check_refusals(rows, COUNT_OF(rows))

static void convolutions(void **state)
{
    CHECK_SHAPES({"x[2,8,16] | conv1d(4,3)", "[2,4,14]"},                                  /* 16 - 3 + 1 */
                 {"x[2,8,16] | conv1d(4,3,stride=2,padding=1)", "[2,4,8]"},                /* (18 - 3) / 2 + 1 */
                 {"x[8,16] | conv1d(4,3,dilation=5)", "[4,6]"},                            /* span 11, no batch */
                 {"x[128,8,128,128] | conv2d(64,3)", "[128,64,126,126]"},                  /* block A */
                 {"x[1,8,7,9] | conv2d(4,(1,4),stride=(3,2),padding=(1,0))", "[1,4,3,3]"}, /* 8/3+1, 5/2+1 */
                 {"x[1,8,7,9] | conv2d(4,(2,4),padding='same')", "[1,4,7,9]"},             /* even kernels too */
                 {"x[1,8,7,9] | conv2d(4,7,padding='same',dilation=3)", "[1,4,7,9]"},      /* wider than x */
                 {"x[1,8,7,9] | conv2d(4,3,2,'valid')", "[1,4,3,4]"},                      /* 4/2+1, 6/2+1 */
                 {"x[1,8,5,5] | conv2d(8,3,groups=8)", "[1,8,3,3]"},                       /* depthwise */
                 {"x[8,5,5] | conv2d(2,5)", "[2,1,1]"},                                    /* no batch */
                 {"x[0,8,5,5] | conv2d(2,5)", "[0,2,1,1]"},                                /* an empty batch */
                 {"x[2,3,4,5,6] | conv3d(7,(1,2,3))", "[2,7,4,4,4]"},                      /* C D H W */
                 {"x[3,4,5,6] | conv3d(7,2,(1,2,3))", "[7,3,2,2]"},                        /* 3, 3/2+1, 4/3+1 */
                 {"x[2,8,5] | conv_transpose1d(4,3)", "[2,4,7]"},                          /* 4 + 3 */
                 {"x[2,8,5] | conv_transpose1d(4,3,stride=2,padding=1,output_padding=1)", "[2,4,10]"}, /* 8-2+3+1 */
                 {"x[2,8,5,6] | conv_transpose2d(4,(3,2),stride=(2,3),groups=2)", "[2,4,11,17]"}, /* 8+3, 15+2 */
                 {"x[2,2,3,3,3] | conv_transpose3d(5,2,dilation=2)", "[2,5,5,5,5]"},              /* 2 + span 3 */
                 {"x[2,2,3] | conv_transpose1d(5,2,dilation=3,output_padding=2)", "[2,5,8]"},     /* 2 + 4 + 2 */
                 {"x[5,8] | linear(3)", "[5,3]"}, {"x[8] | linear(3)", "[3]"},
                 {"x[2,3,4,8] | linear(3,bias=False)", "[2,3,4,3]"});
}

static void products(void **state)
{
    CHECK_SHAPES({"x[4,3] | matmul(w[3,5])", "[4,5]"}, {"x[3] | matmul(w[3,5])", "[5]"},
                 {"x[4,3] | matmul(w[3])", "[4]"}, {"x[3] | matmul(w[3])", "[]"},
                 {"x[2,4,3] | matmul(w[3,5])", "[2,4,5]"}, {"x[4,3] | matmul(w[7,3,5])", "[7,4,5]"},
                 {"x[2,1,4,3] | matmul(w[6,3,5])", "[2,6,4,5]"}, {"x[2,4,3] | matmul(w[3])", "[2,4]"},
                 {"x[3] | matmul(w[2,3,5])", "[2,5]"}, {"x[4,0] | matmul(w[0,5])", "[4,5]"});
}

static void same_shape(void **state)
{
    CHECK_SHAPES({"x[2,8,5] | group_norm(4)", "[2,8,5]"}, {"x[2,8] | batch_norm", "[2,8]"},
                 {"x[2,8,3] | batch_norm(True)", "[2,8,3]"}, {"x[2,8,3,3] | instance_norm", "[2,8,3,3]"},
                 {"x[2,8,3] | layer_norm((8,3))", "[2,8,3]"}, {"x[2,8,3] | rms_norm(3)", "[2,8,3]"},
                 {"x[0,8,3] | group_norm(2)", "[0,8,3]"}, {"x[] | relu", "[]"},
                 {"x[2,3,4,5,6,7] | relu6 | leaky_relu | elu | selu | gelu | silu | mish", "[2,3,4,5,6,7]"},
                 {"x[0] | sigmoid | hardsigmoid | tanh | hardtanh | hardswish | softplus | softsign", "[0]"},
                 {"x[3] | exp | log | sqrt | rsqrt | neg | abs | square | erf | clamp(0)", "[3]"},
                 {"x[2,3] | softmax(1) | log_softmax(-2) | dropout", "[2,3]"});
}

static void broadcasts(void **state)
{
    CHECK_SHAPES({"x[2,3] | add(1)", "[2,3]"}, {"x[2,3] | add(p[3])", "[2,3]"}, {"x[3] | sub(p[2,3])", "[2,3]"},
                 {"x[2,1] | mul(p[1,3])", "[2,3]"}, {"x[2,64,5,5] | div(p[64,1,1])", "[2,64,5,5]"},
                 {"x[] | maximum(p[4])", "[4]"}, {"x[4] | minimum(p[])", "[4]"}, {"x[0,3] | add(p[1,3])", "[0,3]"},
                 {"x[1,3] | add(p[0,3])", "[0,3]"});
}

static void pools(void **state)
{
    CHECK_SHAPES({"x[2,3,9] | max_pool1d(4)", "[2,3,2]"},                       /* the ragged edge is dropped */
                 {"x[2,3,9] | max_pool1d(4,ceil_mode=True)", "[2,3,3]"},        /* and kept */
                 {"x[2,3,9] | max_pool1d(4,3)", "[2,3,2]"},                     /* 5/3+1 */
                 {"x[2,3,9] | max_pool1d(3,2,1)", "[2,3,5]"},                   /* (11-3)/2+1 */
                 {"x[2,3,9] | max_pool1d(3,1,dilation=4)", "[2,3,1]"},          /* span 9 */
                 {"x[1,1,4] | max_pool1d(1,3,ceil_mode=True)", "[1,1,2]"},      /* starts 0, 3 */
                 {"x[1,1,5] | max_pool1d(1,3,ceil_mode=True)", "[1,1,2]"},      /* a third would begin at 6 */
                 {"x[1,1,3] | max_pool1d(2,2,1,ceil_mode=True)", "[1,1,2]"},    /* starts -1, 1; 3 is past x */
                 {"x[3,126,126] | max_pool2d(4)", "[3,31,31]"},                 /* no batch */
                 {"x[0,3,8,6] | max_pool2d((2,3))", "[0,3,4,2]"},               /* an empty batch */
                 {"x[1,2,4,6,8] | max_pool3d((1,2,3),(1,2,1))", "[1,2,4,3,6]"}, /* 4, 3, 6 */
                 {"x[2,3,9] | avg_pool1d(2,1,1)", "[2,3,10]"}, {"x[1,2,4,5] | avg_pool2d(2)", "[1,2,2,2]"},
                 {"x[1,2,4,5] | avg_pool2d(2,ceil_mode=True,divisor_override=1)", "[1,2,2,3]"},
                 {"x[2,4,5,6] | avg_pool3d(2)", "[2,2,2,3]"}, {"x[2,3,9] | adaptive_avg_pool1d(1)", "[2,3,1]"},
                 {"x[2,3,9,4] | adaptive_avg_pool2d((1,1))", "[2,3,1,1]"},
                 {"x[3,9,4,2] | adaptive_avg_pool3d(1)", "[3,1,1,1]"});
}

static void moves(void **state)
{
    CHECK_SHAPES({"x[2,3] | cat(p[2,4],dim=1)", "[2,7]"}, {"x[2,3] | cat(p[0,3],third=@x)", "[4,3]"},
                 {"x[2,3] | cat(@x,dim=-2)", "[4,3]"}, {"x[2,9] | slice(1,1,8,3)", "[2,3]"},
                 {"x[2,9] | slice(1,-4,-1)", "[2,3]"}, {"x[2,9] | slice(1,5,2)", "[2,0]"},
                 {"x[2,9] | slice(0,-99,99)", "[2,9]"}, {"x[2,3,4] | permute(2,0,-2)", "[4,2,3]"},
                 {"x[2,3] | flip(-1)", "[2,3]"}, {"x[2,1,4] | expand(-1,5,4)", "[2,5,4]"},
                 {"x[1] | expand(0)", "[0]"}, {"x[2,3,4] | pad((1,2))", "[2,3,7]"},
                 {"x[2,3,4] | pad((-1,-3,0,2))", "[2,5,0]"}, {"x[2,3,4,5] | interpolate((8,3))", "[2,3,8,3]"},
                 {"x[2,3,4,5] | interpolate(7)", "[2,3,7,7]"},
                 {"x[2,3,9,4] | adaptive_avg_pool2d((4,9))", "[2,3,4,9]"});
}

static void reductions(void **state)
{
    CHECK_SHAPES({"x[2,3,4] | sum", "[]"}, {"x[2,3,4] | sum(keepdim=True)", "[1,1,1]"},
                 {"x[2,3,4] | mean(1)", "[2,4]"}, {"x[2,3,4] | mean((0,-1))", "[3]"},
                 {"x[2,3,4] | max([2,0],True)", "[1,3,1]"}, {"x[2,3,4] | min(-3)", "[3,4]"},
                 {"x[2,3,4] | logsumexp(1,keepdim=True)", "[2,1,4]"}, {"x[] | sum(0)", "[]"},
                 {"x[2,0] | sum(1)", "[2]"}, {"x[0,2] | max(1)", "[0]"}, {"x[2,0] | mean", "[]"});
}

static void reshapes(void **state)
{
    CHECK_SHAPES(
        {"x[2,3,4] | reshape(6,4)", "[6,4]"}, {"x[2,3,4] | reshape(-1)", "[24]"},
        {"x[2,3,4] | reshape((2,-1,2))", "[2,6,2]"}, {"x[0,3] | reshape(3,0)", "[3,0]"},
        {"x[1,1] | reshape(())", "[]"}, {"x[0,3] | reshape(-1,3)", "[0,3]"}, {"x[2,3,4] | flatten", "[24]"},
        {"x[2,3,4] | flatten(1)", "[2,12]"}, {"x[2,3,4,5] | flatten(1,2)", "[2,12,5]"},
        {"x[2,3,4,5] | flatten(-3,-2)", "[2,12,5]"}, {"x[] | flatten", "[1]"}, {"x[1,3,1] | squeeze", "[3]"},
        {"x[1,3,1] | squeeze(0)", "[3,1]"}, {"x[1,3,1] | squeeze(1)", "[1,3,1]"},
        {"x[1,3,1] | squeeze(0,-1)", "[3]"}, {"x[3] | unsqueeze(0)", "[1,3]"}, {"x[3] | unsqueeze(-1)", "[3,1]"},
        {"x[2,3] | unsqueeze(1)", "[2,1,3]"}, {"x[] | unsqueeze(0)", "[1]"}, {"x[2,3] | dropout(0.1)", "[2,3]"});
}

static void refused_shapes(void **state)
{
    CHECK_REFUSALS(
        {"x[8,5] | conv2d(2,3)", "conv2d: x has rank 2, expected 4 (or 3 without a batch)"},
        {"x[1,8,2,5] | conv2d(2,3)", "conv2d: the kernel spans 3, the padded input only 2 (axis 0)"},
        {"x[1,8,5,5] | conv2d(2,3,groups=3)", "conv2d: x has 8 channels, not divisible by groups 3"},
        {"x[1,8,5,5] | conv2d(3,3,groups=2)", "conv2d: out_channels 3 is not divisible by groups 2"},
        {"x[1,8,5,5] | conv2d(3,3,2,'same')", "conv2d: padding='same' needs stride 1, got 2"},
        {"x[1,8,5,5] | conv2d(3,3,0)", "conv2d: stride must be at least 1, got 0"},
        {"x[1,8,5,5] | conv2d(3,3,dilation=0)", "conv2d: dilation must be at least 1, got 0"},
        {"x[1,8,5,5] | conv2d(3,(3,3,3))", "conv2d: kernel_size takes 1 or 2 numbers, got 3"},
        {"x[1,8,5,5] | conv2d(3,3,padding=-1)", "conv2d: padding must not be negative, got -1"},
        {"x[1,0,5,5] | conv2d(3,3)", "conv2d: extent 1 of x is 0, only the batch may be empty"},
        {"x[1,8,0,5] | conv2d(3,3,padding=3)", "conv2d: extent 2 of x is 0, only the batch may be empty"},
        {"x[1,8,5,5] | conv2d(4,3,weight=w[4,4,3,3])", "conv2d: weight is [4,4,3,3], expected [4,8,3,3]"},
        {"x[1,8,5,5] | conv2d(4,3,bias=b[8])", "conv2d: bias is [8], expected [4]"},
        {"x[1,8,5] | conv_transpose1d(4,1,padding=3)", "conv_transpose1d: padding 3 leaves nothing of 5 (axis 0)"},
        {"x[1,8,5] | conv_transpose1d(4,3,2,output_padding=2)",
         "conv_transpose1d: output_padding 2 must be smaller than stride 2 or dilation 1"},
        {"x[] | linear(3)", "linear: x is a scalar, expected rank 1 or more"},
        {"x[2,3] | linear(4,weight=w[4,2])", "linear: weight is [4,2], expected [4,3]"},
        {"x[2,3] | matmul", "matmul: other is missing"},
        {"x[2,3] | matmul(w[2,3])", "matmul: x has 3 columns, other has 2 rows"},
        {"x[] | matmul(w[2,3])", "matmul: both tensors need at least one dimension"},
        {"x[2,4,3] | matmul(w[5,3,2])", "matmul: extents 2 and 5 of dimension 0 do not broadcast"},
        {"x[2,6,3] | group_norm(4)", "group_norm: 6 channels are not divisible by num_groups 4"},
        {"x[6] | group_norm(2)", "group_norm: x has rank 1, expected at least 2"},
        {"x[1,3] | batch_norm(True)", "batch_norm: expected more than one value per channel, x has one"},
        {"x[2,3] | layer_norm(2)", "layer_norm: x is [2,3], expected one that ends with [2]"},
        {"x[3] | rms_norm((2,3))", "rms_norm: x is [3], expected one that ends with [2,3]"},
        {"x[3] | clamp", "clamp: min or max must be given"},
        {"x[3] | add", "add: other must be a tensor or a number, neither is given"},
        {"x[2,3] | add(p[2])", "add: extents 3 and 2 of dimension 1 do not broadcast"},
        {"x[1,1,3] | max_pool1d(4)", "max_pool1d: the window spans 4, the padded input only 3 (axis 0)"},
        {"x[1,1,3] | max_pool1d(2,1,2)", "max_pool1d: padding 2 is more than half of kernel_size 2"},
        {"x[1,1,3] | avg_pool1d(2,divisor_override=2)", "avg_pool1d: has no divisor_override"},
        {"x[1,1,3] | adaptive_avg_pool1d(0)", "adaptive_avg_pool1d: output_size must be at least 1, got 0"},
        {"x[2,3] | cat(p[3,3],dim=1)", "cat: tensor 1 has extent 3 of dimension 0, expected 2"},
        {"x[2,3] | cat(p[3],dim=1)", "cat: tensor 1 has rank 1, expected 2"},
        {"x[] | cat(p[3])", "cat: x has no dimension to join along"},
        {"x[2,3] | slice(2)", "slice: dim 2 is out of range for rank 2"},
        {"x[2,3] | slice(step=0)", "slice: step must be at least 1, got 0"},
        {"x[2,3] | permute(0)", "permute: x has rank 2, dims has 1 numbers"},
        {"x[2,3] | permute(1,-1)", "permute: dim 1 appears twice"},
        {"x[2,3] | flip((1,-1))", "flip: dim 1 appears twice"},
        {"x[2,3] | expand(4,3)", "expand: extent 2 of dimension 0 does not become 4"},
        {"x[2,3] | pad((1,2,3))", "pad: 3 numbers for rank 2, expected two for each of the last dimensions"},
        {"x[2,3] | pad((-2,-2))", "pad: extent 3 of dimension 1 does not allow -2 and -2"},
        {"x[2,3] | interpolate(4)", "interpolate: x has rank 2, expected 3 to 5"},
        {"x[2,3,4] | interpolate((4,4))", "interpolate: size takes 1 or 1 numbers, got 2"},
        {"x[2,3,4] | interpolate(0)", "interpolate: from extent 4 to 0, expected at least 1"},
        {"x[2,3] | sum(2)", "sum: dim 2 is out of range for rank 2"},
        {"x[2,3] | sum((0,-2))", "sum: dim 0 appears twice"},
        {"x[2,0] | max(1)", "max: dimension 1 is empty, so it has no maximum or minimum"},
        {"x[2,3] | softmax(-3)", "softmax: dim -3 is out of range for rank 2"},
        {"x[2,3] | reshape(4,2)", "reshape: x has 6 elements, the new shape 8"},
        {"x[2,3] | reshape(4,-1)", "reshape: 6 elements do not divide by 4"},
        {"x[2,3] | reshape(-1,-1)", "reshape: extent -1 of dimension 1"},
        {"x[0,3] | reshape(0,-1)", "reshape: 0 elements do not divide by 0"},
        {"x[2,3] | flatten(1,0)", "flatten: start_dim 1 is after end_dim 0"},
        {"x[2,3] | squeeze(1,1)", "squeeze: dim 1 appears twice"},
        {"x[1,1,1,1,1,1] | unsqueeze(0)", "unsqueeze: x already has rank 6"},
        {"x[3] | unsqueeze(2)", "unsqueeze: dim 2 is out of range for rank 2"});
}

/* INT64_MAX is 9223372036854775807; whole numbers of attributes end at 2^53 - 1 = 9007199254740991. */
static void refused_sizes(void **state)
{
    CHECK_REFUSALS(
        {"x[9223372036854775807] | relu", "x: too many elements"},
        {"x[9223372036854775808] | relu", "an extent beyond 64 bits"},
        {"x[4294967296,4294967296] | relu", "x: too many elements"},
        {"x[0,4294967296,4294967296] | relu", "x: too many elements"}, /* strides would overflow */
        {"x[100000000000000000000000000] | relu", "an extent beyond 64 bits"},
        {"x[1,2,3,4,5,6,7] | relu", "more than 6 dimensions"},
        {"x[1,8,9,9] | conv2d(9007199254740991,7)", "conv2d.weight: too many elements"},
        {"x[1,1,5,5] | conv2d(9007199254740992,3)", "conv2d: out_channels must be a whole number, got 9.0072e+15"},
        {"x[1,1,5,5] | conv2d(1,9007199254740991)", "conv2d.weight: too many elements"},
        {"x[1,1,5,5] | conv2d(1,3,dilation=9007199254740991)",
         "conv2d: the kernel spans 18014398509481983, the padded input only 5 (axis 0)"},
        {"x[1,1,5,5] | conv2d(1,3,padding=9007199254740991)", "conv2d: too many elements"},
        {"x[1,1,65] | conv_transpose1d(1,3,9007199254740991)", "conv_transpose1d: too many elements"},
        {"x[1,1,1099511627776] | conv_transpose1d(1,3,9007199254740991)",
         "conv_transpose1d: the output's extent overflows"},
        {"x[536870912,1] | linear(536870912)", "linear: too many elements"},
        {"x[1073741824,1] | add(p[1,1073741824]) ", "add: too many elements"},
        {"x[1073741824,1] | matmul(w[1,1073741824])", "matmul: too many elements"},
        {"x[1,1,3,3] | avg_pool2d(9007199254740991,1,4503599627370495)",
         "avg_pool2d: the window has too many elements"},
        {"x[2,3] | reshape(9007199254740991,9007199254740991)", "reshape: too many elements"});
}

/* Huge but legal: geometry is in 64 bits, nothing is allocated for a graph. */
static void huge(void **state)
{
    CHECK_SHAPES(
        {"x[144115188075855871] | relu", "[144115188075855871]"}, /* (2^63 - 1) / 64 elements, 4 bytes each */
        {"x[1,1,1099511627776] | conv1d(1,3,2)", "[1,1,549755813887]"}, {"x[4294967296,3] | sum(0)", "[3]"},
        {"x[1,1,3] | conv1d(1,3,9007199254740991)", "[1,1,1]"},
        {"x[1,1,3] | max_pool1d(3,9007199254740991,1,ceil_mode=True)", "[1,1,1]"},
        {"x[1,1,3] | max_pool1d(9007199254740991,1,4503599627370495)", "[1,1,3]"});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions),   cmocka_unit_test(products),      cmocka_unit_test(same_shape),
        cmocka_unit_test(broadcasts),     cmocka_unit_test(pools),         cmocka_unit_test(moves),
        cmocka_unit_test(reductions),     cmocka_unit_test(reshapes),      cmocka_unit_test(huge),
        cmocka_unit_test(refused_shapes), cmocka_unit_test(refused_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
