/* random_chain.c - see random_chain.h. */
#define TEST_WITHOUT_CMOCKA
#include "random_chain.h"

typedef struct maker {
    uint64_t seed;
    cvy_graph *g;
    flavour flavour;
    int named; /* values v0 ... v<named - 1> have been made */
} maker;

/* One operator as text. x: what it is applied to. */
typedef void (*writer)(maker *m, const shape *x, char *out, size_t size);

typedef struct choice {
    writer write;
    int weight;
    bool whole; /* keeps whole numbers */
} choice;

static int pick(maker *m, int lo, int hi)
{
    return lo + random_below(&m->seed, hi - lo + 1);
}
static bool chance(maker *m, int of)
{
    return !random_below(&m->seed, of);
}

/* At least 1: a slice may have left none. */
static int64_t channels_of(const shape *x)
{
    return x->rank > 1 && x->dim[1] ? x->dim[1] : 1;
}

static void write_conv(maker *m, const shape *x, char *out, size_t size)
{
    const int spatial = x->rank - 2;
    const int64_t C = channels_of(x);
    const int groups = chance(m, 4) && C % 2 == 0 ? 2 : chance(m, 6) ? (int)C : 1;
    const int K = groups * pick(m, 1, chance(m, 3) ? 20 / groups + 1 : 4);
    const int kernel = chance(m, 2) ? 3 : pick(m, 1, 5);
    const bool same = chance(m, 6); /* of an even filter: more padding after than before */
    char padding[16] = "'same'";
    if (!same) snprintf(padding, sizeof padding, "%d", chance(m, 2) ? kernel / 2 : pick(m, 0, 2));
    snprintf(out, size, "conv%dd(%d, %d, stride=%d, padding=%s, dilation=%d, groups=%d, bias=%s)", spatial, K,
             kernel, chance(m, 3) && !same ? 2 : 1, padding, chance(m, 5) ? 2 : 1, groups,
             chance(m, 3) ? "False" : "True");
}
static void write_plain_conv(maker *m, const shape *x, char *out, size_t size) /* what Winograd takes */
{
    snprintf(out, size, "conv%dd(%d, 3, padding=%d)", x->rank - 2, pick(m, 1, 12), pick(m, 0, 1));
}
static void write_convt(maker *m, const shape *x, char *out, size_t size)
{
    const int stride = pick(m, 1, 3);
    snprintf(out, size, "conv_transpose%dd(%d, %d, stride=%d, padding=%d, output_padding=%d, bias=%s)", x->rank - 2,
             pick(m, 1, 6), pick(m, 1, 4), stride, pick(m, 0, 1), stride > 1 ? pick(m, 0, 1) : 0,
             chance(m, 3) ? "False" : "True");
}
static void write_linear(maker *m, const shape *x, char *out, size_t size)
{
    (void)x;
    snprintf(out, size, "linear(%d, bias=%s)", pick(m, 1, 20), chance(m, 3) ? "False" : "True");
}
static void write_matmul(maker *m, const shape *x, char *out, size_t size)
{
    snprintf(out, size, "matmul(w%d[%d,%d])", m->named, x->rank ? (int)x->dim[x->rank - 1] : 1, pick(m, 1, 9));
}
static void write_norm(maker *m, const shape *x, char *out, size_t size)
{
    const int C = (int)channels_of(x), last = x->rank ? (int)x->dim[x->rank - 1] : 1;
    const char *affine = chance(m, 3) ? "False" : "True";
    int groups = pick(m, 1, C);
    while (C % groups) groups--;
    switch (pick(m, 0, 6)) {
    case 0:
        snprintf(out, size, "batch_norm(training=%s, affine=%s)", chance(m, 2) ? "True" : "False", affine);
        break;
    case 1:
        snprintf(out, size, "instance_norm(affine=%s)", affine);
        break;
    case 2:
        snprintf(out, size, "layer_norm(%d, affine=%s)", last, affine);
        break;
    case 3:
        snprintf(out, size, "rms_norm(%d, affine=%s)", last, affine);
        break;
    case 4:
        snprintf(out, size, "layer_norm((%d, %d))", x->rank > 1 ? (int)x->dim[x->rank - 2] : 1, last);
        break;
    default:
        snprintf(out, size, "group_norm(%d, affine=%s)", groups, affine);
    }
}
static void write_max_pool(maker *m, const shape *x, char *out, size_t size)
{
    const int kernel = pick(m, 1, 3);
    snprintf(out, size, "max_pool%dd(%d, stride=%d, padding=%d, dilation=%d, ceil_mode=%s)", x->rank - 2, kernel,
             chance(m, 2) ? kernel : pick(m, 1, 3), chance(m, 2) ? kernel / 2 : 0, chance(m, 5) ? 2 : 1,
             chance(m, 4) ? "True" : "False");
}
static void write_avg_pool(maker *m, const shape *x, char *out, size_t size)
{
    if (chance(m, 2))
        snprintf(out, size, "adaptive_avg_pool%dd(%d)", x->rank - 2, chance(m, 2) ? 1 : pick(m, 2, 5));
    else
        snprintf(out, size, "avg_pool%dd(%d, stride=%d, padding=%d, ceil_mode=%s, count_include_pad=%s)",
                 x->rank - 2, pick(m, 2, 3), pick(m, 1, 3), pick(m, 0, 1), chance(m, 4) ? "True" : "False",
                 chance(m, 2) ? "True" : "False");
}

static const char *const whole_reduce[] = {"sum", "max", "min"};
static const char *const any_reduce[] = {"sum", "mean", "max", "min", "logsumexp"};
static const char *const whole_unary[] = {
    "relu", "relu6", "neg", "abs", "clamp(-3, 5)", "hardtanh(-2, 4)", "clamp(min=-1)", "square", "cast('fp32')"};
static const char *const any_unary[] = {
    "relu",
    "relu6",
    "leaky_relu(0.1)",
    "elu",
    "selu",
    "gelu",
    "gelu(approximate='tanh')",
    "silu",
    "mish",
    "sigmoid",
    "tanh",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "softplus",
    "softsign",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "neg",
    "abs",
    "square",
    "erf",
    "clamp(-0.5, 0.25)",
    "clamp(max=0.3)",
    "clamp(0, 1)",
    "dropout(0.5)",
    "tanh | hardswish",
    "leaky_relu(-0.5)",
    "elu(-1.5)",
    "softplus(2, 1)",
    "clamp(-0.1, 0.9) | relu6",
    "cast('fp32')",
    "relu | cast('fp32')",
    "cast('fp32') | tanh",
};

static void write_reduce(maker *m, const shape *x, char *out, size_t size)
{
    const char *name = m->flavour == EXACT ? whole_reduce[pick(m, 0, COUNT_OF(whole_reduce) - 1)]
                                           : any_reduce[pick(m, 0, COUNT_OF(any_reduce) - 1)];
    const char *keep = chance(m, 2) ? "True" : "False";
    const int a = pick(m, 0, x->rank > 0 ? x->rank - 1 : 0), b = pick(m, 0, x->rank > 0 ? x->rank - 1 : 0);
    if (chance(m, 6))
        snprintf(out, size, "%s", name);
    else if (chance(m, 3) && a != b)
        snprintf(out, size, "%s((%d, %d), keepdim=%s)", name, a, b, keep);
    else
        snprintf(out, size, "%s(%d, keepdim=%s)", name, chance(m, 2) && x->rank > 1 ? 1 : a, keep);
}
static void write_softmax(maker *m, const shape *x, char *out, size_t size)
{
    snprintf(out, size, "%s(%d)", chance(m, 2) ? "softmax" : "log_softmax",
             pick(m, 0, x->rank > 0 ? x->rank - 1 : 0));
}
static void write_unary(maker *m, const shape *x, char *out, size_t size)
{
    (void)x;
    snprintf(out, size, "%s",
             m->flavour == EXACT ? whole_unary[pick(m, 0, COUNT_OF(whole_unary) - 1)]
                                 : any_unary[pick(m, 0, COUNT_OF(any_unary) - 1)]);
}

/* A number, one per channel, one per element, another value, or one that broadcasts in some other way. */
static void write_operand(maker *m, const shape *x, char *out, size_t size)
{
    char dims[96] = "";
    size_t at = 0;
    const int what = pick(m, 0, 7);
    if (what == 0) {
        snprintf(out, size, m->flavour == EXACT ? "%d" : "%d.25", pick(m, -2, 3));
        return;
    }
    if (what >= 5 && m->named) {
        snprintf(out, size, "@v%d", what == 5 ? m->named - 1 : pick(m, 0, m->named - 1));
        return;
    }
    for (int d = what <= 2 && x->rank > 1 ? 1 : 0; d < x->rank; d++) {
        const bool one = what <= 2 ? d != 1 : what == 3 && chance(m, 2);
        at += (size_t)snprintf(dims + at, sizeof dims - at, "%s%lld", at ? "," : "",
                               one ? 1LL : (long long)x->dim[d]);
    }
    snprintf(out, size, "p%d[%s]", m->named, dims);
}
static void write_binary(maker *m, const shape *x, char *out, size_t size)
{
    static const char *const names[] = {"add", "mul", "sub", "maximum", "minimum", "add", "mul", "div"};
    char operand[128];
    const char *name = names[pick(m, 0, m->flavour == EXACT ? 6 : 7)];
    write_operand(m, x, operand, sizeof operand);
    if ((!strcmp(name, "add") || !strcmp(name, "sub")) && chance(m, 4))
        snprintf(out, size, "%s(%s, alpha=2)", name, operand);
    else
        snprintf(out, size, "%s(%s)", name, operand);
}
static void write_affine(maker *m, const shape *x, char *out, size_t size) /* what rewrites look for */
{
    snprintf(out, size, "%s(s%d[%d%s])", chance(m, 2) ? "mul" : "add", m->named, x->rank > 1 ? (int)x->dim[1] : 1,
             x->rank == 5   ? ",1,1,1"
             : x->rank == 4 ? ",1,1"
             : x->rank == 3 ? ",1"
                            : "");
}
static void write_reshape(maker *m, const shape *x, char *out, size_t size)
{
    const int64_t a = x->rank ? x->dim[0] : 1;
    switch (pick(m, 0, 5)) {
    case 0:
        snprintf(out, size, "flatten(1)");
        break;
    case 1:
        snprintf(out, size, "flatten");
        break;
    case 2:
        snprintf(out, size, "squeeze");
        break;
    case 3:
        snprintf(out, size, "unsqueeze(%d)", pick(m, 0, x->rank));
        break;
    case 4:
        snprintf(out, size, "reshape((%lld, 2, -1))", (long long)a);
        break;
    default:
        snprintf(out, size, "reshape((%lld, -1, 1, %d))", (long long)a, pick(m, 1, 3));
    }
}

/* Elements at other places; what a shape does not take is not applied. */
static void write_move(maker *m, const shape *x, char *out, size_t size)
{
    static const char *const orders[] = {"0", "1,0", "0,2,1", "0,2,3,1", "0,4,2,3,1", "0,2,1,5,4,3"};
    const int d = pick(m, 0, x->rank ? x->rank - 1 : 0), start = pick(m, -2, 3);
    switch (pick(m, 0, 6)) {
    case 0:
        snprintf(out, size, "permute(%s)", orders[x->rank ? x->rank - 1 : 0]);
        break;
    case 1:
        snprintf(out, size, "slice(%d, %d, step=%d)", d, start, pick(m, 1, 3));
        break;
    case 2:
        snprintf(out, size, "pad((%d, %d, %d, %d), value=%d)", pick(m, -1, 2), pick(m, 0, 2), pick(m, 0, 2),
                 pick(m, -1, 1), pick(m, -2, 2));
        break;
    case 3:
        snprintf(out, size, "interpolate(%d)", pick(m, 1, 13));
        break;
    case 4:
        snprintf(out, size, "cat(@v%d, dim=%d)", m->named ? pick(m, 0, m->named - 1) : 0, d);
        break;
    default: /* what a branch of a network is joined with */
        snprintf(out, size, "cat(@v%d, third=@v%d, dim=1)", m->named ? m->named - 1 : 0,
                 m->named ? pick(m, 0, m->named - 1) : 0);
    }
}

static const choice choices[] = {
    {write_conv, 3, true},   {write_plain_conv, 4, true}, {write_convt, 1, true},    {write_linear, 1, true},
    {write_matmul, 1, true}, {write_norm, 6, false},      {write_max_pool, 3, true}, {write_avg_pool, 1, false},
    {write_reduce, 2, true}, {write_softmax, 1, false},   {write_unary, 6, true},    {write_binary, 5, true},
    {write_affine, 3, true}, {write_reshape, 1, true},    {write_move, 4, true},
};

static writer choose(maker *m)
{
    for (;;) {
        int at = pick(m, 0, 41);
        for (int i = 0; i < COUNT_OF(choices); at -= choices[i++].weight)
            if (at < choices[i].weight && (choices[i].whole || m->flavour != EXACT))
                return choices[i].write;
            else if (at < choices[i].weight)
                break;
    }
}

static void make_input(maker *m, cvy_value *x)
{
    static const int batches[] = {1, 2, 3, 5, 2, 3, 1, 0};
    static const int channels[] = {1, 2, 3, 4, 6, 8};
    const int spatial = chance(m, 5) ? pick(m, 0, 3) : 2;
    int64_t dims[CVY_MAX_RANK] = {batches[pick(m, 0, 7)], channels[pick(m, 0, 5)]};
    if (dims[0] == 0 && !chance(m, 3)) dims[0] = 4;
    for (int i = 0; i < spatial; i++) dims[2 + i] = pick(m, 1, spatial == 3 ? 6 : chance(m, 8) ? 40 : 12);
    assert_ok(cvy_graph_input(m->g, "x", CVY_FLOAT32, 2 + spatial, dims, x));
}

static double flops_of(const cvy_graph *g)
{
    double flops = 0;
    for (int i = 0; i < g->n_nodes; i++)
        flops += cvyi_node_flops(g, &g->nodes[i]) + (double)cvyi_elements(cvyi_shape_of(g, g->nodes[i].out));
    return flops;
}

/* Applies what a writer writes to `at`; false if the graph does not take it. */
static bool apply(maker *m, writer write, cvy_value *at)
{
    char op[400], words[448];
    cvy_value y;
    write(m, cvyi_shape_of(m->g, *at), op, sizeof op);
    snprintf(words, sizeof words, "%s @v%d", op, m->named);
    if (cvy_graph_chain(m->g, *at, words, &y)) return false;
    m->named++;
    *at = y;
    return true;
}

static void add_outputs(maker *m, cvy_value last)
{
    while (m->g->n_nodes && chance(m, 4)) {
        cvy_graph_output(m->g, m->g->nodes[random_below(&m->seed, m->g->n_nodes)].out);
        cvy_graph_output(m->g, last);
    }
}

/* A chain of operators, mostly on the value made last; some on an older one. */
static void make_chain(maker *m)
{
    const int steps = pick(m, 1, 9);
    cvy_value at;

    make_input(m, &at);
    for (int tries = 0; m->named < steps && tries < 60; tries++) {
        if (chance(m, 6) && m->g->n_nodes) at = m->g->nodes[random_below(&m->seed, m->g->n_nodes)].out;
        if (!apply(m, choose(m), &at)) continue;
        if (flops_of(m->g) > 2e5) break;
    }
    add_outputs(m, at);
}

/* What is split, joined and dropped where extents are 1: a producer or a reshape, a norm, a few pointwise
 * operators, a reduction or softmax, each there or not. */
static void make_thin(maker *m)
{
    static const writer stages[] = {write_conv,   write_linear, write_reshape, write_norm,    write_unary,
                                    write_affine, write_binary, write_norm,    write_reshape, write_softmax,
                                    write_reduce, write_unary,  write_reduce,  write_unary};
    static const int extents[] = {1, 1, 1, 1, 2, 3, 5}, channels[] = {1, 2, 4, 4, 6, 8, 12, 48};
    const int rank = pick(m, 2, 5);
    int64_t dims[CVY_MAX_RANK] = {extents[pick(m, 0, 6)], channels[pick(m, 0, 7)]};
    cvy_value at;

    for (int d = 2; d < rank; d++) dims[d] = extents[pick(m, 0, 6)];
    assert_ok(cvy_graph_input(m->g, "x", CVY_FLOAT32, rank, dims, &at));
    for (int i = 0; i < COUNT_OF(stages); i++)
        if (!chance(m, i == 3 || i == 10 ? 6 : 2)) apply(m, stages[i], &at);
    add_outputs(m, at);
}

cvy_graph *make_graph(flavour f, uint64_t seed)
{
    maker m = {.seed = seed * UINT64_C(0x9e3779b97f4a7c15) + 1, .flavour = f};
    for (int i = 0; i < 8; i++) random_next(&m.seed);
    if (f == WILD) return random_graph(&m.seed, 40, false);
    assert_ok(cvy_graph_create(&m.g));
    (f == THIN ? make_thin : make_chain)(&m);
    return m.g;
}

/* ---- dtypes ---- */

static bool infer_dtypes(cvy_graph *g)
{
    cvy_status st = CVY_OK;
    for (int i = 0; i < g->n_nodes && !st; i++)
        st = cvyi_infer_dtype(g, &g->nodes[i], &g->values[g->nodes[i].out].dtype);
    return !st;
}

void mix_dtypes(cvy_graph *g, cvy_dtype dtype, uint64_t seed)
{
    for (int wide = 2; wide >= 0; wide -= 2) { /* float32 too; where that does not go together, nowhere */
        for (int v = 0; v < g->n_values; v++)
            if (g->values[v].kind == VALUE_INPUT)
                g->values[v].dtype = random_below(&seed, 4) < wide ? CVY_FLOAT32 : dtype;
        for (int i = 0; i < g->n_nodes; i++)
            if (g->nodes[i].op == OP_cast)
                g->nodes[i].attr[0].i[0] = random_below(&seed, 4) < wide ? CVY_FLOAT32 : dtype;
        if (infer_dtypes(g)) return;
    }
}
