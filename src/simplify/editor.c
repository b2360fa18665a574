/* editor.c - edits of a graph: new nodes are appended, readers redirected, then nodes are sorted and dead ones
 * removed. */
#include <math.h>
#include <string.h>
#include "simplify.h"

/* ---- who reads what ---- */

static cvy_status grow(void **array, int cap, int wanted, size_t size)
{
    void *grown = cap >= wanted ? *array : cvyi_grow(*array, (size_t)wanted, size);
    if (wanted && !grown) return CVY_NO_MEMORY;
    *array = grown;
    return CVY_OK;
}

/* Room for everything in the graph; doubles it if there is not enough. */
static cvy_status make_room(editor *e)
{
    const int values = e->g->n_values > e->cap_values ? 2 * e->g->n_values : e->cap_values;
    const int nodes = e->g->n_nodes > e->cap_nodes ? 2 * e->g->n_nodes : e->cap_nodes;
    cvy_status st = CVY_OK;

    TRY(grow((void **)&e->first_use, e->cap_values, values, sizeof *e->first_use));
    TRY(grow((void **)&e->readers, e->cap_values, values, sizeof *e->readers));
    TRY(grow((void **)&e->next_use, e->cap_nodes, nodes, MAX_ARGS * sizeof *e->next_use));
    TRY(grow((void **)&e->dead, e->cap_nodes, nodes, sizeof *e->dead));
    TRY(grow((void **)&e->dying, e->cap_nodes, nodes, sizeof *e->dying));
    e->cap_values = values;
    e->cap_nodes = nodes;
fail:
    return st;
}

static void add_use(editor *e, int v, int use)
{
    e->next_use[use] = e->first_use[v];
    e->first_use[v] = use;
    e->readers[v]++;
}

static void add_node(editor *e, int index)
{
    const node *n = &e->g->nodes[index];
    e->dead[index] = false;
    for (int a = 0; a < n->n_args; a++)
        if (n->arg[a] != CVY_NONE) add_use(e, n->arg[a], index * MAX_ARGS + a);
}

static void add_values(editor *e, int from)
{
    for (int v = from; v < e->g->n_values; v++) e->first_use[v] = -1, e->readers[v] = 0;
}

cvy_status cvyi_editor_open(editor *e)
{
    const cvy_status st = make_room(e);
    if (st) return st;
    add_values(e, 0);
    for (int i = 0; i < e->g->n_nodes; i++) add_node(e, i);
    for (int i = 0; i < e->g->n_outputs; i++) e->readers[e->g->outputs[i]]++;
    return CVY_OK;
}

void cvyi_editor_close(editor *e)
{
    cvyi_free(e->first_use);
    cvyi_free(e->readers);
    cvyi_free(e->next_use);
    cvyi_free(e->dead);
    cvyi_free(e->dying);
}

/* Removes the node that made v if v has no readers, and with it those that only it has read. */
static void bury(editor *e, int v)
{
    int depth = 0, by = e->g->values[v].node;
    if (e->readers[v] || by < 0 || e->dead[by]) return;
    e->dead[e->dying[depth++] = by] = true;
    while (depth) {
        const node *n = &e->g->nodes[e->dying[--depth]];
        for (int a = 0; a < n->n_args; a++) {
            if (n->arg[a] == CVY_NONE || --e->readers[n->arg[a]]) continue;
            by = e->g->values[n->arg[a]].node;
            if (by >= 0 && !e->dead[by]) e->dead[e->dying[depth++] = by] = true;
        }
    }
}

/* ---- edits ---- */

int cvyi_edit_add(editor *e, const node_spec *spec)
{
    const int values = e->g->n_values;
    int out = CVY_NONE;
    for (int i = 0; i < spec->n_args; i++) /* an argument whose own edit failed */
        if (spec->arg[i] == CVY_NONE && i == 0) return CVY_NONE;
    if (!e->st) e->st = cvyi_graph_add(e->g, spec, &out);
    if (!e->st) e->st = make_room(e);
    if (e->st) return CVY_NONE;
    /* Values computed only from parameters, such as folded weights, are not rounded to their dtype in between. A
     * reshape does not change them. */
    if (e->g->values[out].fixed && cvyi_ops[spec->op].kind != KIND_SHAPE && spec->op != OP_cast)
        e->g->values[out].dtype = CVY_FLOAT32;
    add_values(e, values);
    add_node(e, e->g->n_nodes - 1);
    return out;
}

int cvyi_edit_unary(editor *e, op_id op, int x)
{
    node_spec s;
    cvyi_spec_init(&s, op);
    s.n_args = 1;
    s.arg[0] = x;
    return cvyi_edit_add(e, &s);
}

int cvyi_edit_binary(editor *e, op_id op, int a, int b)
{
    node_spec s;
    cvyi_spec_init(&s, op);
    s.n_args = 2;
    s.arg[0] = a;
    s.arg[1] = b;
    return b == CVY_NONE ? CVY_NONE : cvyi_edit_add(e, &s);
}

int cvyi_edit_number(editor *e, op_id op, int a, double number)
{
    node_spec s;
    cvyi_spec_init(&s, op);
    s.n_args = 1;
    s.arg[0] = a;
    s.attr[0] = (attr_value){.set = true, .count = 1, .f = number};
    return cvyi_edit_add(e, &s);
}

void cvyi_spec_numbers(node_spec *s, int attr, int count, const int64_t *numbers)
{
    s->attr[attr] = (attr_value){.set = true, .count = count};
    memcpy(s->attr[attr].i, numbers, (size_t)count * sizeof *numbers);
}

int cvyi_edit_list(editor *e, op_id op, int x, int count, const int64_t *numbers)
{
    node_spec s;
    cvyi_spec_init(&s, op);
    s.n_args = 1;
    s.arg[0] = x;
    cvyi_spec_numbers(&s, 0, count, numbers);
    return cvyi_edit_add(e, &s);
}

int cvyi_edit_reshape(editor *e, int x, int rank, const int64_t *dims)
{
    return cvyi_edit_list(e, OP_reshape, x, rank, dims);
}

int cvyi_edit_per_channel(editor *e, int x, int front, int after)
{
    int64_t dims[CVY_MAX_RANK];
    int rank = 0;
    if (x == CVY_NONE) return CVY_NONE;
    for (int i = 0; i < front; i++) dims[rank++] = 1;
    dims[rank++] = cvyi_elements(cvyi_shape_of(e->g, x));
    for (int i = 0; i < after; i++) dims[rank++] = 1;
    return cvyi_edit_reshape(e, x, rank, dims);
}

int cvyi_edit_like(editor *e, const node *like, const int *args)
{
    node_spec s = {.op = like->op, .n_args = like->n_args};
    int out;
    memcpy(s.attr, like->attr, sizeof s.attr);
    memcpy(s.arg, args, sizeof s.arg);
    out = cvyi_edit_add(e, &s);
    if (out == CVY_NONE) return out;
    e->g->values[out].watched = e->g->values[like->out].watched;
    e->g->nodes[e->g->values[out].node].halved = like->halved;
    if (!e->g->values[out].fixed) cvyi_edit_dtype(e, out, e->g->values[like->out].dtype);
    return out;
}

void cvyi_edit_dtype(editor *e, int v, cvy_dtype dtype)
{
    e->g->values[v].recast |= e->g->values[v].dtype != dtype;
    e->g->values[v].dtype = dtype;
}

void cvyi_edit_watch(editor *e, int v)
{
    if (v != CVY_NONE && e->mode == REWRITE_WATCH) e->g->values[v].watched = true;
}

/* A value made by an edit gets the name of the value that it replaces, if that is one of the caller's. */
static void take_title(editor *e, int old, int now)
{
    value *v = &e->g->values[now];
    const char *title = old < e->n_given ? e->g->values[old].name : e->g->values[old].title;

    if (now >= e->n_given && !v->title) v->title = title;
}

/* It also gets its dtype, because a result may have another dtype than its data (cast.c). If it is reshaped, the
 * reshaped value gets it. */
static void take_dtype(editor *e, int old, int now)
{
    cvy_graph *g = e->g;

    if (g->values[old].fixed) return;
    while (now >= e->n_given) {
        const node *n = cvyi_maker(g, now);
        cvyi_edit_dtype(e, now, g->values[old].dtype);
        now = cvyi_info(n)->kind == KIND_SHAPE ? n->arg[0] : CVY_NONE;
    }
}

void cvyi_edit_replace(editor *e, int old, int now)
{
    cvy_graph *g = e->g;
    int use, next;

    if (e->st || now == CVY_NONE) return;
    take_title(e, old, now);
    take_dtype(e, old, now);
    use = e->first_use[old];
    e->first_use[old] = -1;
    for (; use >= 0; use = next) {
        node *n = &g->nodes[use / MAX_ARGS];
        next = e->next_use[use];
        if (e->dead[use / MAX_ARGS]) continue;
        e->readers[old]--;
        if (n->out != now) n->arg[use % MAX_ARGS] = now;
        add_use(e, n->arg[use % MAX_ARGS], use);
    }
    for (int i = 0; i < g->n_outputs && g->values[old].output; i++)
        if (g->outputs[i] == old) g->outputs[i] = now;
    if (g->values[old].output) {
        g->values[old].output = false;
        g->values[now].output = true;
        g->values[now].dtype = g->values[old].dtype;
        e->readers[old]--;
        e->readers[now]++;
    }
    bury(e, old);
}

/* ---- questions ---- */

const node *cvyi_maker(const cvy_graph *g, int v)
{
    return g->values[v].node < 0 ? NULL : &g->nodes[g->values[v].node];
}

int cvyi_readers(const editor *e, int v)
{
    return e->readers[v];
}

bool cvyi_foldable_factor(const editor *e, const node *mul)
{
    double p[2];
    cvyi_pointwise_params(mul, p);
    return e->mode != REWRITE_CAREFUL && (mul->arg[1] != CVY_NONE || isfinite(p[0]));
}

bool cvyi_per_channel(const cvy_graph *g, int v, const shape *of)
{
    const shape *s = cvyi_shape_of(g, v);
    if (s->rank > of->rank || of->rank < 2) return false;
    for (int i = 0; i < s->rank; i++) {
        const int d = i + of->rank - s->rank;
        if (s->dim[i] != 1 && (d != 1 || s->dim[i] != of->dim[1])) return false;
    }
    return true;
}
