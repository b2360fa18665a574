/* test_parse.c - the chain text: what it means, what it refuses and with which words, and that printing and reading
 * back gives the same graph, for every operator and for random graphs. */
#include <locale.h>
#include <pthread.h>
#include "../support/random_graph.h"
#include "same.h"

typedef struct pair {
    const char *from, *to;
} pair;

static char *print(const cvy_graph *g)
{
    text t = {0};
    assert_ok(cvyi_print_graph(g, &t));
    if (!t.data) cvyi_text_add(&t, "%s", "");
    return t.data;
}

/* The printed text reads back into the same graph and prints the same again. */
static void check_round_trip(const cvy_graph *g)
{
    char *once = print(g), *twice;
    cvy_graph *back = NULL;

    assert_ok(cvyi_graph_verify(g));
    if (cvy_graph_parse(once, &back)) fail_msg("%s\n  %s", once, cvy_last_error());
    if (!same_graph(g, back)) fail_msg("%s\n  reads back differently", once);
    twice = print(back);
    assert_string_equal(once, twice);
    cvy_graph_free(back);
    cvyi_free(once);
    cvyi_free(twice);
}

static void check_printed(const pair *rows, int n)
{
    for (int i = 0; i < n; i++) {
        cvy_graph *g = NULL;
        char *printed;
        if (cvy_graph_parse(rows[i].from, &g)) fail_msg("%s: %s", rows[i].from, cvy_last_error());
        printed = print(g);
        assert_string_equal(printed, rows[i].to);
        check_round_trip(g);
        cvyi_free(printed);
        cvy_graph_free(g);
    }
    assert_int_equal(cvyi_alloc_live(), 0);
}

static void check_refused(const pair *rows, int n)
{
    for (int i = 0; i < n; i++) {
        cvy_graph *g = (cvy_graph *)&g;
        const cvy_status st = cvy_graph_parse(rows[i].from, &g);
        if (st != CVY_INVALID) fail_msg("%s: %s", rows[i].from, cvy_status_name(st));
        assert_null(g);
        if (strcmp(cvy_last_error(), rows[i].to))
            fail_msg("%s\n  got      %s\n  expected %s", rows[i].from, cvy_last_error(), rows[i].to);
    }
    assert_int_equal(cvyi_alloc_live(), 0);
}

#define CHECK(check, ...)                                                                                          \
    static const pair rows[] = {__VA_ARGS__};                                                                      \
    (void)state;                                                                                                   \
    check(rows, COUNT_OF(rows))

/* ---- what is written how ---- */

static void blocks(void **state)
{
    CHECK(check_printed,
          {"x[128,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
           "x[128,8,128,128] | conv2d(64, 3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | "
           "clamp(min=0, max=1)"},
          {"x[128,8,128,128]|conv2d(64,3)@c|group_norm(16)|tanh|hardswish|add(@c)|logsumexp(1,keepdim=True)",
           "x[128,8,128,128] | conv2d(64, 3) @c | group_norm(16) | tanh | hardswish | add(@c) | "
           "logsumexp(dim=1, keepdim=True)"},
          {"x[128,8,256,256] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
           "x[128,8,256,256] | conv2d(32, 3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)"});
}

static void attributes(void **state)
{
    CHECK(check_printed, {"x[1,4,9,9] | conv2d(4,3,1,0,1,1,True)", "x[1,4,9,9] | conv2d(4, 3)"},
          {"x[1,4,9,9] | conv2d(kernel_size=3, out_channels=4)", "x[1,4,9,9] | conv2d(4, 3)"},
          {"x[1,4,9,9] | conv2d(4,[3,3,],padding=same)", "x[1,4,9,9] | conv2d(4, (3, 3), padding='same')"},
          {"x[1,4,9,9] | conv2d(4,3,(2,1),\"valid\")", "x[1,4,9,9] | conv2d(4, 3, stride=(2, 1), padding='valid')"},
          {"x[1,4,9,9] | conv2d(4,3,bias=False)", "x[1,4,9,9] | conv2d(4, 3, bias=False)"},
          {"x[1,4,9,9] | conv2d(4,3,bias=0)", "x[1,4,9,9] | conv2d(4, 3, bias=False)"},
          {"x[3] | relu()", "x[3] | relu"},
          {"x[3] | gelu('none') | gelu('tanh')", "x[3] | gelu | gelu(approximate='tanh')"},
          {"x[3] | clamp(None,1e0)", "x[3] | clamp(max=1)"},
          {"x[3] | clamp(-inf,+inf)", "x[3] | clamp(min=-inf, max=inf)"},
          {"x[3] | add(nan) | add(.5) | add(5.) | add(-0) | add(1E+2)",
           "x[3] | add(nan) | add(0.5) | add(5) | add(-0) | add(1e+02)"},
          {"x[3] | mul(0.1) | mul(0.30000000000000004) | mul(other=1e999)",
           "x[3] | mul(0.1) | mul(0.30000000000000004) | mul(inf)"},
          {"x[3] | add(1, 2) | sub(1, alpha=1)", "x[3] | add(1, alpha=2) | sub(1)"},
          {"x[6] | reshape(2,3) | reshape((3,2)) | reshape(-1)",
           "x[6] | reshape((2, 3)) | reshape((3, 2)) | reshape(-1)"},
          {"x[1] | reshape([]) | reshape(()) | reshape(1,1)", "x[1] | reshape(()) | reshape(()) | reshape((1, 1))"},
          {"x[2,3] | sum(None) ", "x[2,3] | sum"},
          {"x[2,3] | sum([1,0],True)", "x[2,3] | sum(dim=(1, 0), keepdim=True)"},
          {"x[2,3,4] | group_norm(1,1e-6) | rms_norm(4,None) | rms_norm(4,1e-6)",
           "x[2,3,4] | group_norm(1, eps=1e-06) | rms_norm(4) | rms_norm(4, eps=1e-06)"},
          {" \t\n x [ 3 ]\r\n| clamp ( min = 0 ,\n max = 1 ) @ c | @c | relu ",
           "x[3] | clamp(min=0, max=1) @c | relu"});
}

static void tensors(void **state)
{
    CHECK(check_printed, {"x[3]", "x[3]"}, {"x[], y[0,2]", "x[], y[0,2]"},
          {"x[2,3], y[3] | add(@y, alpha=2) | add(other=@x)", "x[2,3], y[3] | add(@y, alpha=2) | add(@x)"},
          {"x[3] | add(b[3]) | mul(@b)", "x[3] | add(b[3]) | mul(@b)"},
          {"x[2,3] | matmul(w[3,5])", "x[2,3] | matmul(w[3,5])"},
          {"x[2,4] | linear(3, w[3,4], b[3])", "x[2,4] | linear(3, weight=w[3,4], bias=b[3])"},
          {"x[2,4] | linear(3, bias=b[3]) | linear(2)", "x[2,4] | linear(3, bias=b[3]) | linear(2)"},
          {"x[2,4] | linear(4) | linear(4, weight=@linear.weight)",
           "x[2,4] | linear(4) | linear(4, weight=@linear.weight)"},
          {"x[2,4] | batch_norm(running_mean=m[4], running_var=@m, weight=@m)",
           "x[2,4] | batch_norm(running_mean=m[4], running_var=@m, weight=@m)"},
          {"x[3] | mul(inf[3]) | mul(True[3]) | add(@inf)", "x[3] | mul(inf[3]) | mul(True[3]) | add(@inf)"},
          {"param(w[3]) | @w | relu", "param(w[3]) | @w | relu"}, {"param(w[3], v[]) ", "param(w[3], v[])"},
          {"x[3] | param(unused[7]) | relu", "x[3] | relu | param(unused[7])"},
          {"x[3] | param(b[3], a[3]) | add(@a) | add(@b)", "x[3] | param(b[3]) | add(a[3]) | add(@b)"},
          {"x[2,3] | param(w[3,3]) | linear(3) | matmul(@w)", "x[2,3] | param(w[3,3]) | linear(3) | matmul(@w)"},
          {"x[3] | mul(relu[3]) | relu", "x[3] | mul(relu[3]) | relu"});
}

static void names_and_outputs(void **state)
{
    CHECK(check_printed, {"x[3] | relu @a | exp @b", "x[3] | relu @a | exp @b"},
          {"x[3] | relu | exp | add(@relu)", "x[3] | relu @relu | exp | add(@relu)"},
          {"x[3] | relu | relu | relu | add(@relu_2)", "x[3] | relu | relu @relu_2 | relu | add(@relu_2)"},
          {"x[3] | relu @relu_2 | relu | relu", "x[3] | relu @relu_2 | relu | relu"},
          {"relu[3] | relu", "relu[3] | relu"}, {"x[3] | exp | @x | relu", "x[3] | exp | @x | relu"},
          {"x[3] | exp @e | @x | relu | sub(@e)", "x[3] | exp @e | @x | relu | sub(@e)"},
          {"x[3] | exp | @exp | relu", "x[3] | exp | relu"},
          {"x[3] | relu @a | exp | @a", "x[3] | relu @a | exp | output(@a)"},
          {"x[3] | relu @a | output(@a)", "x[3] | relu @a"},
          {"x[3] | relu | exp | output(@exp, @relu)", "x[3] | relu @relu | exp @exp | output(@exp, @relu)"},
          {"x[3], output[3] | add(@output) @param", "x[3], output[3] | add(@output) @param"},
          {"x[3] | relu @layer.0.act_1", "x[3] | relu @layer.0.act_1"});
}

/* ---- what is refused ---- */

static void refused_syntax(void **state)
{
    CHECK(check_refused, {"", "column 1: expected an input such as x[1,8,32,32], got the end of the text"},
          {"  ", "column 3: expected an input such as x[1,8,32,32], got the end of the text"},
          {"3[2]", "column 1: expected an input such as x[1,8,32,32], got '3'"},
          {"\x80", "column 1: expected an input such as x[1,8,32,32], got byte 0x80"},
          {"relu | relu", "column 6: expected '[' and the extents, got '|'"},
          {"x[3], | relu", "column 7: expected an input such as x[1,8,32,32], got '|'"},
          {"x[3,]", "column 5: expected an extent, a whole number of 0 or more, got ']'"},
          {"x[-1]", "column 3: expected an extent, a whole number of 0 or more, got '-'"},
          {"x[2.5]", "column 4: expected ',' or ']', got '.'"},
          {"x[2", "column 4: expected ',' or ']', got the end of the text"},
          {"x[3] relu", "column 6: expected '|' or the end of the text, got 'relu'"},
          {"x[3] |", "column 7: expected an operator, got the end of the text"},
          {"x[3] || relu", "column 7: expected an operator, got '|'"},
          {"x[3] | relu relu", "column 13: expected '|' or the end of the text, got 'relu'"},
          {"x[3] | relu @", "column 14: expected a name after '@', got the end of the text"},
          {"x[3] | relu @2", "column 14: expected a name after '@', got '2'"},
          {"x[3] | @", "column 9: expected a name after '@', got the end of the text"},
          {"x[3] | mul(", "column 12: expected an argument, got the end of the text"},
          {"x[3] | mul(,1)", "column 12: expected an argument, got ','"},
          {"x[3] | mul(1", "column 13: expected ',' or ')', got the end of the text"},
          {"x[3] | mul(1 2)", "column 14: expected ',' or ')', got '2'"},
          {"x[3] | clamp(min=)", "column 18: expected an argument, got ')'"},
          {"x[3] | reshape(())", "column 8: reshape: x has 3 elements, the new shape 1"},
          {"x[3] | sum(())", "column 12: expected whole numbers for dim, got '()'"},
          {"x[3] | softmax([])", "column 16: expected a number for dim, got '()'"},
          {"x[3] | reshape(None)", "column 16: expected whole numbers for shape, got 'None'"},
          {"x[3] | reshape(,3)", "column 16: expected an argument, got ','"},
          {"x[3] | reshape((,3))", "column 17: expected a number, got ','"},
          {"x[3] | reshape((3]", "column 18: expected ',' or ')', got ']'"},
          {"x[3] | reshape([3)", "column 18: expected ',' or ']', got ')'"},
          {"x[3] | reshape((1,(3)))", "column 19: expected a number, got '('"},
          {"x[3] | gelu('tanh)", "column 18: expected the closing quote, got ')'"},
          {"x[3] | gelu('')", "column 14: expected a word in quotes, got '''"},
          {"x[3] | relu | output(relu)", "column 22: expected '@' and the name of a value, got 'relu'"},
          {"x[3] | relu | output(@relu", "column 27: expected ',' or ')', got the end of the text"},
          {"x[3] | relu | output(@relu) | exp", "column 31: expected nothing after output(...), got 'exp'"},
          {"x[3] | relu | output(@relu) exp", "column 29: expected the end of the text, got 'exp'"},
          {"x[3] | param() | relu", "column 14: expected a parameter such as scale[64,1,1], got ')'"},
          {"x[3] | param(w[3] | relu", "column 19: expected ',' or ')', got '|'"});
}

static void refused_numbers(void **state)
{
    CHECK(check_refused, {"x[3] | add(1px)", "column 12: expected a number, got '1px'"},
          {"x[3] | add(1.2.3)", "column 12: expected a number, got '1.2.'"},
          {"x[3] | add(-)", "column 12: expected a number, got '-'"},
          {"x[3] | add(-foo)", "column 12: expected a number, got '-'"},
          {"x[3] | add(0x10)", "column 12: expected a number, got '0x10'"},
          {"x[3] | add(.)", "column 12: expected a number, got '.'"},
          {"x[3] | add(1e)", "column 12: expected a number, got '1e'"},
          {"x[3] | add(infinity)", "column 12: expected a number for other, got 'infinity'"},
          {"x[3] | add(1000000000000000000000000000000000000000000000000000000000000000000000)",
           "column 12: a number of 70 characters"},
          {"x[3] | reshape(1,1,1,1,1,1,3)", "column 28: more than 6 numbers in a list"},
          {"x[3] | reshape((1,1,1,1,1,1,3))", "column 29: more than 6 numbers in a list"},
          {"x[3] | softmax(0.5)", "column 16: softmax: dim must be a whole number, got 0.5"},
          {"x[3] | softmax(inf)", "column 16: softmax: dim must be a whole number, got inf"},
          {"x[3] | softmax(None)", "column 16: expected a number for dim, got 'None'"},
          {"x[3] | softmax((0,1))", "column 16: softmax: dim is one value, got 2"});
}

static void refused_arguments(void **state)
{
    CHECK(check_refused, {"x[3] | foo", "column 8: there is no operator 'foo'"},
          {"x[3] | tanh_hardswish", "column 8: there is no operator 'tanh_hardswish'"},
          {"x[3] | aVeryLongNameThatNobodyWouldEverGive",
           "column 8: there is no operator 'aVeryLongNameThatNobodyWouldEv...'"},
          {"x[1,8,4,4] | conv2d(64,stride=foo)", "column 31: expected a number for stride, got 'foo'"},
          {"x[1,8,4,4] | conv2d(64,3,bias=foo)", "column 31: expected True or False for bias, got 'foo'"},
          {"x[1,8,4,4] | conv2d(64,3,bias=2)", "column 31: conv2d: bias must be True or False, got 2"},
          {"x[1,8,4,4] | conv2d(64,3,padding=True)",
           "column 34: expected a number, 'same' or 'valid' for padding, got 'True'"},
          {"x[1,8,4,4] | conv2d(64,3,padding=@x)",
           "column 34: expected a number, 'same' or 'valid' for padding, got 'x'"},
          {"x[1,8,4,4] | conv2d(64,3,padding=full)",
           "column 34: conv2d: padding is a number, 'same' or 'valid', got 'full'"},
          {"x[1,8,4,4] | conv2d(64)", "column 14: conv2d: kernel_size is missing"},
          {"x[1,8,4,4] | conv2d(64,3,strid=1)",
           "column 26: conv2d has no argument 'strid': conv2d(out_channels, kernel_size, stride=1, padding=0, "
           "dilation=1, groups=1, bias=True); did you mean 'stride'?"},
          {"x[1,8,4,4] | conv2d(64,3,stride=1,stride=1)", "column 42: conv2d: stride is given twice"},
          {"x[1,8,4,4] | conv2d(64,3,kernel_size=1)", "column 38: conv2d: kernel_size is given twice"},
          {"x[1,8,4,4] | conv2d(64,kernel_size=3,1)", "column 38: conv2d: expected a keyword after a keyword"},
          {"x[1,8,4,4] | conv2d(64,3,weight=3)", "column 33: expected a tensor for weight, such as @c or w[8,3]"},
          {"x[1,8,4,4] | conv2d(64,3,bias=b[64],bias=@b)", "column 42: conv2d: bias is given twice"},
          {"x[1,8,4,4] | conv2d(64,3,bias=False,bias=b[64])",
           "column 14: conv2d: is set up without bias, but one is given"},
          {"x[3] | relu(1)", "column 13: relu takes no arguments besides tensors"},
          {"x[3] | relu(@x)", "column 13: relu takes no tensors"},
          {"x[3] | mul(1,2)", "column 14: mul takes at most 1 argument besides tensors"},
          {"x[3] | clamp(1,2,3)", "column 18: clamp takes at most 2 arguments besides tensors"},
          {"x[3] | squeeze(None,0)", "column 21: squeeze takes at most 1 argument besides tensors"},
          {"x[3] | mul(@x,@x)", "column 15: mul takes at most 1 tensor"},
          {"x[3] | mul(@x,2)", "column 15: mul: other is given twice"},
          {"x[3] | mul(2,@x)", "column 14: mul: other is given twice"},
          {"x[3] | gelu(fast)", "column 13: gelu: approximate must be one of none|tanh, got 'fast'"},
          {"x[3] | gelu(1)", "column 13: gelu: approximate must be one of none|tanh, got 1"});
}

static void refused_names(void **state)
{
    CHECK(check_refused, {"x[3] | add(@y)", "column 12: there is no value 'y'"},
          {"x[3] | @relu | relu", "column 8: there is no value 'relu'"},
          {"x[3] | add(@relu) @relu", "column 12: there is no value 'relu'"},
          {"x[3] | relu @skip | add(@skp)", "column 25: there is no value 'skp'; did you mean 'skip'?"},
          {"x[3], x[4]", "column 7: 'x' already exists; @x reads it"},
          {"x[3] | add(x[3])", "column 12: 'x' already exists; @x reads it"},
          {"x[3] | relu @x", "column 8: name 'x' is already taken"},
          {"x[3] | relu | @x", "column 17: output: 'x' is not the result of an operator"},
          {"x[3] | relu | output(@x)", "column 22: output: 'x' is not the result of an operator"},
          {"x[3] | relu | output(@relu,@relu)", "column 28: output: 'relu' is already an output"},
          {"param(w[3]) | relu", "column 15: relu has no input: expected '@name' before it"},
          {"x[2,4] | mul(linear.weight[]) | linear(3)",
           "column 33: linear: the name 'linear.weight' is already taken"});
}

static void refused_pointers(void **state)
{
    cvy_graph *g = NULL;
    cvy_value v = 7;
    (void)state;
    assert_refused(cvy_graph_parse(NULL, &g), "the text is NULL");
    assert_refused(cvy_graph_parse("x[3]", NULL), "result pointer is NULL");
    assert_ok(cvy_graph_parse("x[3] | relu", &g));
    assert_refused(cvy_graph_chain(NULL, 0, "relu", &v), "graph, text or result pointer is NULL");
    assert_refused(cvy_graph_chain(g, 0, NULL, &v), "graph, text or result pointer is NULL");
    assert_refused(cvy_graph_chain(g, 0, "relu", NULL), "graph, text or result pointer is NULL");
    assert_refused(cvy_graph_chain(g, 2, "relu", &v), "chain: not a value of this graph");
    assert_refused(cvy_graph_chain(g, CVY_NONE, "relu", &v), "chain: not a value of this graph");
    assert_refused(cvy_graph_print(NULL, NULL, 0, NULL), "graph is NULL");
    cvy_graph_free(g);
}

/* ---- long texts: time must grow with the length ---- */

static char *repeat(const char *head, const char *stage, size_t bytes)
{
    const size_t h = strlen(head), s = strlen(stage);
    char *source = malloc(bytes + 1);
    size_t n = h;
    memcpy(source, head, h);
    for (; n + s <= bytes; n += s) memcpy(source + n, stage, s);
    memset(source + n, ' ', bytes - n);
    source[bytes] = 0;
    return source;
}

/* The printed text, which may be longer than what can be read, is made in time too. */
static void check_printed_again(const cvy_graph *g)
{
    char *printed = print(g);
    cvy_graph *back = NULL;
    if (strlen(printed) <= 1 << 20) {
        assert_ok(cvy_graph_parse(printed, &back));
        assert_true(same_graph(g, back));
    }
    cvy_graph_free(back);
    cvyi_free(printed);
}

static void long_texts(void **state)
{
    static const char *const stages[] = {"|abs", "|add(@x)", "|@x|relu", "|mul(@abs)", "|linear(1)"};
    (void)state;
    for (int i = 0; i < COUNT_OF(stages); i++) {
        char *source = repeat("x[1]|abs", stages[i], 1 << 18);
        cvy_graph *g = NULL;
        assert_ok(cvy_graph_parse(source, &g));
        assert_true(g->n_nodes > 20000);
        check_printed_again(g);
        cvy_graph_free(g);
        free(source);
    }
}

static void too_long(void **state)
{
    char *source = repeat("x[1]", "|abs", (1 << 20) + 1);
    cvy_graph *g = NULL;
    (void)state;
    assert_refused(cvy_graph_parse(source, &g), "column 1048577: the text is longer than 1 MiB");
    free(source);
}

/* ---- chains after a value ---- */

static void chains(void **state)
{
    cvy_graph *g = NULL;
    cvy_value y, z;
    char *printed;
    (void)state;
    assert_ok(cvy_graph_parse("x[2,4] | relu @r | exp", &g));
    assert_ok(cvy_graph_chain(g, 1, "linear(3) | add(b[3]) @s", &y));
    assert_int_equal(g->values[y].kind, VALUE_NODE);
    assert_string_equal(g->values[y].name, "s");
    assert_ok(cvy_graph_chain(g, y, "@r", &z)); /* no operator: just another value */
    assert_int_equal(z, 1);
    printed = print(g);
    assert_string_equal(printed, "x[2,4] | relu @r | exp | @r | linear(3) | add(b[3]) @s");
    cvyi_free(printed);
    assert_ok(cvy_graph_chain(g, y, "neg | output(@neg, @r)", &z));
    check_round_trip(g);
    assert_int_equal(g->n_outputs, 2);
    cvy_graph_free(g);
}

/* A chain that fails half-way leaves nothing in the graph, names included. */
static void failed_chain_leaves_nothing(void **state)
{
    static const char *const broken[] = {"relu | mul(s[4]) | linear(3) @l | foo", "relu | output(@relu, @x)",
                                         "relu | exp |", "param(p[3], q[2]) | relu | add(@nobody)"};
    cvy_graph *g = NULL;
    char *before, *after;
    cvy_value y;
    (void)state;
    assert_ok(cvy_graph_parse("x[2,4] | relu", &g));
    before = print(g);
    for (int i = 0; i < COUNT_OF(broken); i++) {
        y = 7;
        assert_int_equal(cvy_graph_chain(g, 1, broken[i], &y), CVY_INVALID);
        assert_int_equal(y, CVY_NONE);
        assert_int_equal(g->n_outputs, 0);
        after = print(g);
        assert_string_equal(before, after);
        cvyi_free(after);
    }
    assert_ok(cvy_graph_chain(g, 1, "relu | linear(3) @l | mul(s[3])", &y));
    assert_string_equal(g->values[g->nodes[1].out].name, "relu_2");
    check_round_trip(g);
    cvyi_free(before);
    cvy_graph_free(g);
}

/* ---- printing into a caller's memory ---- */

static void print_into_memory(void **state)
{
    cvy_graph *g = NULL;
    char small[8] = "#######", exact[12];
    size_t needed = 0;
    (void)state;
    assert_ok(cvy_graph_parse("x[3] | relu", &g));
    assert_ok(cvy_graph_print(g, NULL, 0, &needed));
    assert_int_equal(needed, 12);
    assert_ok(cvy_graph_print(g, small, 5, &needed));
    assert_memory_equal(small, "x[3]\0##", 8);
    assert_ok(cvy_graph_print(g, exact, sizeof exact, NULL));
    assert_string_equal(exact, "x[3] | relu");
    assert_ok(cvy_graph_print(g, exact, 1, NULL));
    assert_string_equal(exact, "");
    cvy_graph_free(g);
}

/* One node, as the printed plan shows it: tensors by their names, natural ones left out. */
static void print_one_node(void **state)
{
    cvy_graph *g = NULL;
    text t = {0};
    char signature[SIGNATURE_BYTES];
    (void)state;
    assert_ok(cvy_graph_parse("x[1,4,9,9] | conv2d(4,3,padding=same,bias=b[4]) @c | relu | add(@c) | add(2)", &g));
    for (int i = 0; i < g->n_nodes; i++) {
        if (i) cvyi_text_add(&t, "; ");
        cvyi_print_node(g, &g->nodes[i], &t);
    }
    cvyi_signature(OP_gelu, signature);
    cvyi_text_add(&t, "; %s", signature);
    assert_string_equal(t.data, "conv2d(4, 3, padding='same', bias=@b); relu; add(@c); add(2); "
                                "gelu(approximate='none')");
    cvyi_text_free(&t);
    cvy_graph_free(g);
}

/* A program may have set a locale in which 0.5 is written 0,5. */
static void locale_with_comma(void **state)
{
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    const char *set = NULL;
    cvy_graph *g = NULL;
    char *printed;
    (void)state;
    for (int i = 0; i < COUNT_OF(locales) && !set; i++) set = setlocale(LC_NUMERIC, locales[i]);
    if (!set) skip();
    assert_ok(cvy_graph_parse("x[3] | mul(0.5) | leaky_relu(0.25) | leaky_relu", &g));
    assert_true(g->nodes[0].attr[0].f == 0.5);
    assert_true(g->nodes[2].attr[0].f == 0.01);
    printed = print(g);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(printed, "x[3] | mul(0.5) | leaky_relu(negative_slope=0.25) | leaky_relu");
    cvyi_free(printed);
    cvy_graph_free(g);
}

/* ---- threads: each has its own message; nothing else is shared ---- */

static void *parse_for_a_while(void *number)
{
    const int id = *(const int *)number;
    char good[64], bad[64], message[96];
    int wrong = 0;
    snprintf(good, sizeof good, "x[%d] | relu @r%d", id, id);
    snprintf(bad, sizeof bad, "x[3] | add(@y%d)", id);
    snprintf(message, sizeof message, "column 12: there is no value 'y%d'", id);
    for (int i = 0; i < 500; i++) {
        cvy_graph *g = NULL, *none = NULL;
        char printed[64];
        wrong += cvy_graph_parse(good, &g) != CVY_OK || cvy_graph_print(g, printed, sizeof printed, NULL) != CVY_OK;
        wrong += strcmp(printed, good) != 0 || !cvy_op_signature(id);
        wrong += cvy_graph_parse(bad, &none) != CVY_INVALID || strcmp(cvy_last_error(), message) != 0;
        cvy_graph_free(g);
    }
    return wrong ? number : NULL;
}

static void threads(void **state)
{
    pthread_t running[8];
    int ids[COUNT_OF(running)];
    (void)state;
    for (int i = 0; i < COUNT_OF(running); i++) {
        ids[i] = i;
        assert_int_equal(pthread_create(&running[i], NULL, parse_for_a_while, &ids[i]), 0);
    }
    for (int i = 0; i < COUNT_OF(running); i++) {
        void *wrong;
        assert_int_equal(pthread_join(running[i], &wrong), 0);
        assert_null(wrong);
    }
    assert_int_equal(cvyi_alloc_live(), 0);
}

/* ---- random graphs ---- */

static void random_round_trips(void **state)
{
    uint64_t seed = 0x9e3779b97f4a7c15;
    int seen[OP_COUNT] = {0};
    (void)state;
    for (int i = 0; i < 2000; i++) {
        cvy_graph *g = random_graph(&seed, 4 + i % 120, true);
        for (int k = 0; k < g->n_nodes; k++) seen[g->nodes[k].op]++;
        if (g->n_values) check_round_trip(g);
        cvy_graph_free(g);
    }
    for (int i = 0; i < OP_COUNT; i++)
        if (!(cvyi_ops[i].flags & FLAG_INTERNAL) && seen[i] < 5)
            fail_msg("%s: only %d times", cvyi_ops[i].name, seen[i]);
    assert_int_equal(cvyi_alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks),
        cmocka_unit_test(attributes),
        cmocka_unit_test(tensors),
        cmocka_unit_test(names_and_outputs),
        cmocka_unit_test(refused_syntax),
        cmocka_unit_test(refused_numbers),
        cmocka_unit_test(refused_arguments),
        cmocka_unit_test(refused_names),
        cmocka_unit_test(refused_pointers),
        cmocka_unit_test(long_texts),
        cmocka_unit_test(too_long),
        cmocka_unit_test(chains),
        cmocka_unit_test(failed_chain_leaves_nothing),
        cmocka_unit_test(print_into_memory),
        cmocka_unit_test(print_one_node),
        cmocka_unit_test(locale_with_comma),
        cmocka_unit_test(threads),
        cmocka_unit_test(random_round_trips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
