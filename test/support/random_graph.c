/* random_graph.c - see random_graph.h. */
#define TEST_WITHOUT_CMOCKA
#include <math.h>
#include "random_graph.h"

static const char *const random_names[] = {"relu",    "relu_2", "add_2", "conv2d", "conv1d_3", "a",
                                           "layer.0", "inf",    "True",  "None",   "param",    "output",
                                           "_",       "x",      "e5",    "mul_4"};

/* A shape on which many operators work. */
static void random_shape(uint64_t *seed, shape *s)
{
    static const shape shapes[] = {
        {4, {2, 4, 5, 5}},       {4, {1, 4, 6, 5}}, {3, {2, 4, 6}},    {3, {4, 5, 5}},
        {5, {1, 4, 3, 4, 3}},    {2, {3, 4}},       {1, {4}},          {0, {0}},
        {6, {1, 1, 2, 1, 3, 1}}, {2, {0, 4}},       {3, {4, 1, 1}},    {1, {1}},
        {4, {0, 4, 5, 5}},       {2, {4, 4}},       {4, {4, 4, 3, 3}},
    };
    *s = shapes[random_below(seed, COUNT_OF(shapes))];
}

static void random_attr(uint64_t *seed, const op_info *op, const attr_def *def, cvy_attr *out)
{
    static const double numbers[] = {0,     -0.0,     1,       0.1,      -2.5,      1e-5,
                                     1e300, 4.9e-324, 1.0 / 3, INFINITY, -INFINITY, NAN};
    static const int whole[] = {1, 2, 3, 4, 1, 2, 0, -1, -2, 5, 1, 2};
    static const char *const words[] = {"same", "valid", "tanh", "none", "fp32"};
    const bool list = def->kind == ATTR_DIMS || def->kind == ATTR_SPATIAL || def->kind == ATTR_PADDING;

    *out = (cvy_attr){.name = def->name, .count = 1};
    if (list && random_below(seed, 2)) out->count = op->spatial ? op->spatial : 1 + random_below(seed, 3);
    if (!def->required && def->otherwise && !strcmp(def->otherwise, "None") && !random_below(seed, 4))
        out->count = 0;
    for (int i = 0; i < out->count; i++) out->value[i] = whole[random_below(seed, COUNT_OF(whole))];
    if (def->kind == ATTR_NUMBER) out->value[0] = numbers[random_below(seed, COUNT_OF(numbers))];
    if (def->kind == ATTR_BOOL) out->value[0] = random_below(seed, 2);
    if (def->kind == ATTR_WORD || (def->kind == ATTR_PADDING && !random_below(seed, 3)))
        out->text = words[random_below(seed, COUNT_OF(words))];
}

static const char *random_name(uint64_t *seed)
{
    return random_below(seed, 3) ? NULL : random_names[random_below(seed, COUNT_OF(random_names))];
}

static void random_apply(uint64_t *seed, cvy_graph *g)
{
    const op_id id = (op_id)random_below(seed, OP_COUNT);
    const op_info *op = &cvyi_ops[id];
    cvy_value args[MAX_ARGS];
    cvy_attr attrs[MAX_ATTRS];
    cvy_call call = {.size = sizeof call, .op = op->name, .args = args, .attrs = attrs, .n_args = 1};
    cvy_value out;

    args[0] = random_below(seed, g->n_values);
    while (call.n_args <= op->n_tensors && random_below(seed, 2)) {
        args[call.n_args] = random_below(seed, 3) ? random_below(seed, g->n_values) : CVY_NONE;
        call.n_args++;
    }
    for (int i = 0; i < op->n_attrs; i++)
        if (op->attrs[i].required || !random_below(seed, 3))
            random_attr(seed, op, &op->attrs[i], &attrs[call.n_attrs++]);
    call.name = random_name(seed);
    cvy_graph_apply(g, &call, &out);
}

/* Mostly the dtype of the data, so that most calls succeed. */
static cvy_dtype random_dtype(uint64_t *seed, cvy_dtype data)
{
    return random_below(seed, 8) ? data : (cvy_dtype)random_below(seed, DTYPE_COUNT);
}

cvy_graph *random_graph(uint64_t *seed, int steps, bool typed)
{
    cvy_graph *g = NULL;
    const cvy_dtype data = typed ? (cvy_dtype)random_below(seed, DTYPE_COUNT) : CVY_FLOAT32;
    cvy_value v;
    shape s;
    char name[32];

    assert_ok(cvy_graph_create(&g));
    for (int i = 0; i < steps; i++) {
        const int what = random_below(seed, 12);
        snprintf(name, sizeof name, "t%d", i);
        const cvy_dtype dtype = typed ? random_dtype(seed, data) : CVY_FLOAT32;
        random_shape(seed, &s);
        if (what == 0 || !g->n_values) {
            const char *chosen = random_name(seed);
            if (random_below(seed, 4))
                cvy_graph_input(g, chosen ? chosen : name, dtype, s.rank, s.dim, &v);
            else
                cvy_graph_param(g, chosen ? chosen : name, dtype, s.rank, s.dim, &v);
        } else if (what == 1) {
            const char *chosen = random_name(seed);
            cvy_graph_param(g, chosen ? chosen : name, dtype, s.rank, s.dim, &v);
        } else if (what == 2 && !random_below(seed, 4)) {
            cvy_graph_output(g, random_below(seed, g->n_values));
        } else {
            random_apply(seed, g);
        }
    }
    return g;
}
