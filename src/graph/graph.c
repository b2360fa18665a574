/* graph.c - building graphs: values, nodes, names, outputs; copies and the verifier. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "graph.h"

int64_t cvyi_elements(const shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= s->dim[i];
    return n;
}

bool cvyi_same_shape(const shape *a, const shape *b)
{
    return a->rank == b->rank && !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim);
}

void cvyi_text_add_shape(text *t, const shape *s)
{
    cvyi_text_add(t, "[");
    for (int i = 0; i < s->rank; i++) cvyi_text_add(t, "%s%lld", i ? "," : "", (long long)s->dim[i]);
    cvyi_text_add(t, "]");
}

/* ---- names ---- */

static cvy_status check_name(const cvy_graph *g, const char *name)
{
    size_t n = 0;
    if (!name || !*name) return cvyi_fail(CVY_INVALID, "a tensor needs a name");
    for (; name[n]; n++)
        if (!isalnum((unsigned char)name[n]) && name[n] != '_' && name[n] != '.')
            return cvyi_fail(CVY_INVALID, "name '%.60s': only letters, digits, '_' and '.' can be in it", name);
    if (isdigit((unsigned char)name[0]) || name[0] == '.')
        return cvyi_fail(CVY_INVALID, "name '%.60s': must begin with a letter or '_'", name);
    if (n > 200) return cvyi_fail(CVY_INVALID, "name '%.60s...': longer than 200 characters", name);
    if (cvyi_value_find(g, name, n) != CVY_NONE)
        return cvyi_fail(CVY_INVALID, "name '%.60s' is already taken", name);
    return CVY_OK;
}

/* ---- growing ---- */

static cvy_status reserve(void **array, int *cap, int needed, size_t size)
{
    void *grown;
    if (needed <= *cap) return CVY_OK;
    grown = cvyi_grow(*array, (size_t)needed * 2, size);
    if (!grown) return CVY_NO_MEMORY;
    *array = grown;
    *cap = needed * 2;
    return CVY_OK;
}

static cvy_status check_shape(const char *name, int rank, const int64_t *dims)
{
    int64_t n = cvyi_dtype_bytes(CVY_FLOAT32); /* of any dtype: it is computed in float32 */
    if (rank < 0 || rank > CVY_MAX_RANK)
        return cvyi_fail(CVY_INVALID, "%s: rank %d, at most %d dimensions", name, rank, CVY_MAX_RANK);
    if (rank && !dims) return cvyi_fail(CVY_INVALID, "%s: no extents given", name);
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0)
            return cvyi_fail(CVY_INVALID, "%s: extent %lld of dimension %d is negative", name, (long long)dims[i],
                             i);
        /* Empty tensors too: the product of the other extents must fit, since strides are made of them. */
        if (!cvyi_mul(n, dims[i] ? dims[i] : 1, &n) || n > INT64_MAX / 16)
            return cvyi_fail(CVY_INVALID, "%s: too many elements", name);
    }
    return CVY_OK;
}

static cvy_status add_value(cvy_graph *g, value_kind kind, const char *name, cvy_dtype dtype, const shape *s,
                            int *out)
{
    value_list *given = kind == VALUE_NODE ? NULL : &g->given[kind];
    cvy_status st = CVY_OK;
    char *copy = NULL;

    TRY(check_shape(name, s->rank, s->dim));
    if (given) TRY(reserve((void **)&given->at, &given->cap, given->n + 1, sizeof *given->at));
    TRY(reserve((void **)&g->values, &g->cap_values, g->n_values + 1, sizeof *g->values));
    copy = cvyi_strdup(name);
    if (!copy) return CVY_NO_MEMORY;
    g->values[g->n_values] =
        (value){.kind = kind, .node = -1, .name = copy, .dtype = dtype, .shape = *s, .fixed = kind == VALUE_PARAM};
    TRY(cvyi_name_add(g, g->n_values));
    if (given) given->at[given->n++] = g->n_values;
    *out = g->n_values++;
    return CVY_OK;
fail:
    cvyi_free(copy);
    return st;
}

static void drop_values(cvy_graph *g, int keep)
{
    while (g->n_values > keep) {
        const value *last = &g->values[g->n_values - 1];
        if (last->kind != VALUE_NODE) g->given[last->kind].n--;
        cvyi_name_remove(g, --g->n_values);
        cvyi_free(last->name);
    }
}

graph_mark cvyi_graph_mark(const cvy_graph *g)
{
    return (graph_mark){g->n_values, g->n_nodes, g->n_outputs};
}

void cvyi_graph_rollback(cvy_graph *g, const graph_mark *mark)
{
    while (g->n_outputs > mark->n_outputs) g->values[g->outputs[--g->n_outputs]].output = false;
    drop_values(g, mark->n_values);
    g->n_nodes = mark->n_nodes;
    memset(g->suffix, 0, sizeof g->suffix); /* names that were taken are free again */
}

static cvy_status check_dtype(const char *name, cvy_dtype dtype)
{
    if ((int)dtype >= 0 && (int)dtype < DTYPE_COUNT) return CVY_OK;
    return cvyi_fail(CVY_INVALID, "%s: dtype %d, expected 0 to %d", name, (int)dtype, DTYPE_COUNT - 1);
}

/* A shape from the caller: its rank is checked before its extents are read. */
static cvy_status add_tensor(cvy_graph *g, value_kind kind, const char *name, cvy_dtype dtype, int rank,
                             const int64_t *dims, cvy_value *out)
{
    cvy_status st = CVY_OK;
    shape s = {.rank = rank};
    int made = CVY_NONE;

    if (!g || !out) return cvyi_fail(CVY_INVALID, "graph or result pointer is NULL");
    *out = CVY_NONE;
    TRY(check_name(g, name));
    TRY(check_dtype(name, dtype));
    TRY(check_shape(name, rank, dims));
    if (rank) memcpy(s.dim, dims, (size_t)rank * sizeof *dims);
    TRY(add_value(g, kind, name, dtype, &s, &made));
    *out = made;
fail:
    return st;
}

cvy_status cvy_graph_input(cvy_graph *g, const char *name, cvy_dtype dtype, int32_t rank, const int64_t *dims,
                           cvy_value *out)
{
    return add_tensor(g, VALUE_INPUT, name, dtype, rank, dims, out);
}

cvy_status cvy_graph_param(cvy_graph *g, const char *name, cvy_dtype dtype, int32_t rank, const int64_t *dims,
                           cvy_value *out)
{
    return add_tensor(g, VALUE_PARAM, name, dtype, rank, dims, out);
}

/* ---- nodes ---- */

static cvy_status check_args(const cvy_graph *g, const op_info *op, const node_spec *spec)
{
    if (spec->n_args < 1 || spec->n_args > 1 + op->n_tensors)
        return cvyi_fail(CVY_INVALID, "%s: takes 1 to %d tensors, got %d", op->name, 1 + op->n_tensors,
                         spec->n_args);
    for (int i = 0; i < spec->n_args; i++) {
        const int v = spec->arg[i];
        if (v == CVY_NONE && i > 0) continue;
        if (v < 0 || v >= g->n_values)
            return cvyi_fail(CVY_INVALID, "%s: argument %d is not a value of this graph", op->name, i);
    }
    for (int i = 0; i < op->n_attrs; i++)
        if (op->attrs[i].required && !spec->attr[i].set && !spec->attr[i].count)
            return cvyi_fail(CVY_INVALID, "%s: %s is missing", op->name, op->attrs[i].name);
    return CVY_OK;
}

/* Creates the natural parameter of tensor argument i, checks the shape of a given tensor, or refuses a tensor that
 * the operator is set up without. */
static cvy_status settle_tensor(cvy_graph *g, node *n, int i, const char *name, bool natural)
{
    const op_info *op = cvyi_info(n);
    char full[512];
    shape want;
    cvy_status st = cvyi_natural_shape(g, n, i, &want);

    if (st) return st;
    if (n->arg[i] != CVY_NONE && want.rank == SHAPE_ABSENT)
        return cvyi_fail(CVY_INVALID, "%s: is set up without %s, but one is given", op->name, op->tensors[i - 1]);
    if (n->arg[i] == CVY_NONE && want.rank >= 0 && natural) {
        snprintf(full, sizeof full, "%s.%s", name, op->tensors[i - 1]);
        if (cvyi_value_find(g, full, strlen(full)) != CVY_NONE)
            return cvyi_fail(CVY_INVALID, "%s: the name '%.60s' is already taken", op->name, full);
        return add_value(g, VALUE_PARAM, full, g->values[n->arg[0]].dtype, &want, &n->arg[i]);
    }
    return CVY_OK;
}

cvy_status cvyi_graph_add(cvy_graph *g, const node_spec *spec, int *out)
{
    const op_info *op = &cvyi_ops[spec->op];
    const int keep = g->n_values;
    node n = {.op = spec->op, .n_args = 1 + op->n_tensors, .named = spec->name != NULL};
    char name[NAME_BYTES];
    cvy_dtype dtype;
    shape s;
    cvy_status st = CVY_OK;

    TRY(check_args(g, op, spec));
    if (spec->name) TRY(check_name(g, spec->name));
    if (spec->name)
        snprintf(name, sizeof name, "%s", spec->name);
    else
        cvyi_automatic_name(g, spec->op, name);
    for (int i = 0; i < MAX_ARGS; i++) n.arg[i] = i < spec->n_args ? spec->arg[i] : CVY_NONE;
    memcpy(n.attr, spec->attr, sizeof n.attr);
    for (int i = 1; i <= op->n_tensors; i++) TRY(settle_tensor(g, &n, i, name, spec->natural));
    TRY(cvyi_infer(g, &n, &s));
    TRY(cvyi_infer_dtype(g, &n, &dtype));
    TRY(reserve((void **)&g->nodes, &g->cap_nodes, g->n_nodes + 1, sizeof *g->nodes));
    TRY(add_value(g, VALUE_NODE, name, dtype, &s, &n.out));
    g->values[n.out].node = g->n_nodes;
    g->values[n.out].fixed = true;
    for (int i = 0; i < n.n_args; i++)
        if (n.arg[i] != CVY_NONE) g->values[n.out].fixed &= g->values[n.arg[i]].fixed;
    g->nodes[g->n_nodes++] = n;
    *out = n.out;
    return CVY_OK;
fail:
    drop_values(g, keep);
    return st;
}

cvy_status cvy_graph_apply(cvy_graph *g, const cvy_call *call, cvy_value *out)
{
    node_spec spec;
    cvy_status st = CVY_OK;
    op_id op;

    if (!g || !call || !out) return cvyi_fail(CVY_INVALID, "graph, call or result pointer is NULL");
    *out = CVY_NONE;
    if (call->size < sizeof *call) return cvyi_fail(CVY_INVALID, "cvy_call: size is %zu, not set?", call->size);
    if (!call->op) return cvyi_fail(CVY_INVALID, "cvy_call: op is NULL");
    op = cvyi_op_find(call->op, strlen(call->op));
    if (op == OP_COUNT) return cvyi_op_unknown(call->op, strlen(call->op));
    if (call->n_args < 1 || call->n_args > 1 + cvyi_ops[op].n_tensors || !call->args)
        return cvyi_fail(CVY_INVALID, "%s: takes 1 to %d tensors, got %d", call->op, 1 + cvyi_ops[op].n_tensors,
                         (int)call->n_args);
    if (call->n_attrs < 0 || (call->n_attrs && !call->attrs))
        return cvyi_fail(CVY_INVALID, "%s: attrs is NULL or n_attrs negative", call->op);
    cvyi_spec_init(&spec, op);
    spec.name = call->name;
    spec.natural = true;
    spec.n_args = call->n_args;
    for (int i = 0; i < call->n_args; i++) spec.arg[i] = call->args[i];
    for (int i = 0; i < call->n_attrs; i++) TRY(cvyi_spec_set(&spec, &call->attrs[i]));
    TRY(cvyi_graph_add(g, &spec, out));
fail:
    return st;
}

/* ---- graphs ---- */

cvy_status cvy_graph_create(cvy_graph **out)
{
    if (!out) return cvyi_fail(CVY_INVALID, "result pointer is NULL");
    *out = cvyi_alloc(1, sizeof **out);
    return *out ? CVY_OK : CVY_NO_MEMORY;
}

void cvy_graph_free(cvy_graph *g)
{
    if (!g) return;
    drop_values(g, 0);
    cvyi_free(g->values);
    cvyi_free(g->nodes);
    for (int kind = 0; kind < VALUE_NODE; kind++) cvyi_free(g->given[kind].at);
    cvyi_free(g->outputs);
    cvyi_free(g->index);
    cvyi_free(g);
}

cvy_status cvyi_graph_copy(const cvy_graph *g, cvy_graph **out)
{
    cvy_graph *c = NULL;
    cvy_status st = CVY_OK;
    int made;

    *out = NULL;
    TRY(cvy_graph_create(&c));
    for (int i = 0; i < g->n_values; i++) {
        const value *v = &g->values[i];
        TRY(add_value(c, v->kind, v->name, v->dtype, &v->shape, &made));
        c->values[i].node = v->node;
        c->values[i].fixed = v->fixed;
    }
    TRY(reserve((void **)&c->nodes, &c->cap_nodes, g->n_nodes, sizeof *c->nodes));
    if (g->n_nodes) memcpy(c->nodes, g->nodes, (size_t)g->n_nodes * sizeof *c->nodes);
    c->n_nodes = g->n_nodes;
    for (int i = 0; i < g->n_outputs; i++) TRY(cvy_graph_output(c, g->outputs[i]));
    *out = c;
    return CVY_OK;
fail:
    cvy_graph_free(c);
    return st;
}

/* In place, cycle by cycle: a second list of nodes would be the largest memory of planning. */
void cvyi_graph_reorder(cvy_graph *g, int *order, int kept)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const node first = g->nodes[i];
        int to = i, from;
        if (order[i] < 0) continue;
        for (; (from = order[to]) != i; to = from) {
            g->nodes[to] = g->nodes[from];
            order[to] = -1;
        }
        g->nodes[to] = first;
        order[to] = -1;
    }
    g->n_nodes = kept;
    for (int v = 0; v < g->n_values; v++) g->values[v].node = -1;
    for (int i = 0; i < g->n_nodes; i++) g->values[g->nodes[i].out].node = i;
}

static cvy_status give_back(void **array, int *cap, int n, size_t size)
{
    void *exact;
    if (!n || n == *cap) return CVY_OK;
    exact = cvyi_grow(*array, (size_t)n, size);
    if (!exact) return CVY_NO_MEMORY;
    *array = exact;
    *cap = n;
    return CVY_OK;
}

cvy_status cvyi_graph_trim(cvy_graph *g)
{
    cvy_status st = give_back((void **)&g->values, &g->cap_values, g->n_values, sizeof *g->values);
    return st ? st : give_back((void **)&g->nodes, &g->cap_nodes, g->n_nodes, sizeof *g->nodes);
}

cvy_status cvy_graph_output(cvy_graph *g, cvy_value v)
{
    cvy_status st = CVY_OK;
    if (!g) return cvyi_fail(CVY_INVALID, "graph is NULL");
    if (v < 0 || v >= g->n_values) return cvyi_fail(CVY_INVALID, "output: not a value of this graph");
    if (g->values[v].kind != VALUE_NODE)
        return cvyi_fail(CVY_INVALID, "output: '%s' is not the result of an operator", g->values[v].name);
    if (g->values[v].output) return cvyi_fail(CVY_INVALID, "output: '%s' is already an output", g->values[v].name);
    TRY(reserve((void **)&g->outputs, &g->cap_outputs, g->n_outputs + 1, sizeof *g->outputs));
    g->outputs[g->n_outputs++] = v;
    g->values[v].output = true;
fail:
    return st;
}

int cvyi_graph_outputs(const cvy_graph *g, const int **values)
{
    if (g->n_outputs) {
        *values = g->outputs;
        return g->n_outputs;
    }
    *values = g->n_nodes ? &g->nodes[g->n_nodes - 1].out : NULL;
    return g->n_nodes ? 1 : 0;
}

cvy_status cvy_graph_shape(const cvy_graph *g, cvy_value v, int32_t *rank, int64_t dims[CVY_MAX_RANK])
{
    if (!g || !rank || !dims) return cvyi_fail(CVY_INVALID, "graph or result pointer is NULL");
    if (v < 0 || v >= g->n_values) return cvyi_fail(CVY_INVALID, "shape: not a value of this graph");
    *rank = g->values[v].shape.rank;
    memcpy(dims, g->values[v].shape.dim, sizeof g->values[v].shape.dim);
    return CVY_OK;
}

cvy_status cvy_graph_dtype(const cvy_graph *g, cvy_value v, cvy_dtype *out)
{
    if (!g || !out) return cvyi_fail(CVY_INVALID, "graph or result pointer is NULL");
    if (v < 0 || v >= g->n_values) return cvyi_fail(CVY_INVALID, "dtype: not a value of this graph");
    *out = g->values[v].dtype;
    return CVY_OK;
}

/* ---- the tensors of run() ---- */

int32_t cvy_graph_tensors(const cvy_graph *g)
{
    const int *outputs;
    return g ? g->given[VALUE_INPUT].n + g->given[VALUE_PARAM].n + cvyi_graph_outputs(g, &outputs) : 0;
}

cvy_status cvy_graph_tensor(const cvy_graph *g, int32_t index, cvy_tensor *out)
{
    const int *outputs;
    const value *v;
    int role = CVY_INPUT, found;

    if (!g || !out) return cvyi_fail(CVY_INVALID, "graph or result pointer is NULL");
    if (index < 0 || index >= cvy_graph_tensors(g))
        return cvyi_fail(CVY_INVALID, "tensor %d: the graph has %d", (int)index, (int)cvy_graph_tensors(g));
    while (role < CVY_OUTPUT && index >= g->given[role].n) index -= g->given[role++].n;
    cvyi_graph_outputs(g, &outputs);
    found = (role == CVY_OUTPUT ? outputs : g->given[role].at)[index];
    v = &g->values[found];
    *out = (cvy_tensor){
        .name = v->name, .value = found, .role = role, .rank = v->shape.rank, .dtype = (int32_t)v->dtype};
    memcpy(out->dims, v->shape.dim, sizeof out->dims);
    return CVY_OK;
}

/* ---- verifier ---- */

static cvy_status verify_node(const cvy_graph *g, int index)
{
    const node *n = &g->nodes[index];
    cvy_dtype dtype;
    shape s;
    cvy_status st = CVY_OK;

    if (n->out < 0 || n->out >= g->n_values || g->values[n->out].node != index)
        return cvyi_fail(CVY_INVALID, "node %d: its result does not point back", index);
    for (int i = 0; i < n->n_args; i++) {
        const int v = n->arg[i];
        if (v == CVY_NONE && i > 0) continue;
        if (v < 0 || v >= g->n_values)
            return cvyi_fail(CVY_INVALID, "node %d: argument %d is not a value", index, i);
        if (g->values[v].kind == VALUE_NODE && g->values[v].node >= index)
            return cvyi_fail(CVY_INVALID, "node %d: reads '%s', which comes later", index, g->values[v].name);
    }
    TRY(cvyi_infer(g, n, &s));
    if (!cvyi_same_shape(&s, &g->values[n->out].shape))
        return cvyi_fail(CVY_INVALID, "node %d: the shape of '%s' is not the inferred one", index,
                         g->values[n->out].name);
    TRY(cvyi_infer_dtype(g, n, &dtype));
    /* Values that rewrites compute from parameters are fp32. */
    if (dtype != g->values[n->out].dtype && !g->values[n->out].fixed && !g->values[n->out].recast)
        return cvyi_fail(CVY_INVALID, "node %d: the dtype of '%s' is not the inferred one", index,
                         g->values[n->out].name);
fail:
    return st;
}

cvy_status cvyi_graph_verify(const cvy_graph *g)
{
    cvy_status st = CVY_OK;
    for (int i = 0; i < g->n_nodes; i++) TRY(verify_node(g, i));
    for (int i = 0; i < g->n_values; i++)
        if (g->values[i].kind != VALUE_NODE && g->values[i].node >= 0) /* rewrites leave values that nobody makes */
            return cvyi_fail(CVY_INVALID, "value '%s': kind and node do not fit", g->values[i].name);
fail:
    return st;
}
