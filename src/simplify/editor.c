/* editor.c - changing a graph: new nodes behind the last, readers moved over, then sorted and cleaned. */
#include <math.h>
#include <string.h>
#include "simplify.h"

int cvyi_edit_add(editor *e, const node_spec *spec)
{
    int out = CVY_NONE;
    for (int i = 0; i < spec->n_args; i++) /* an argument whose own edit failed */
        if (spec->arg[i] == CVY_NONE && i == 0) return CVY_NONE;
    if (!e->st) e->st = cvyi_graph_add(e->g, spec, &out);
    return e->st ? CVY_NONE : out;
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

int cvyi_edit_reshape(editor *e, int x, int rank, const int64_t *dims)
{
    node_spec s;
    cvyi_spec_init(&s, OP_reshape);
    s.n_args = 1;
    s.arg[0] = x;
    s.attr[0] = (attr_value){.set = true, .count = rank};
    memcpy(s.attr[0].i, dims, (size_t)rank * sizeof *dims);
    return cvyi_edit_add(e, &s);
}

int cvyi_edit_per_channel(editor *e, int x, int front, int behind)
{
    int64_t dims[CVY_MAX_RANK];
    int rank = 0;
    if (x == CVY_NONE) return CVY_NONE;
    for (int i = 0; i < front; i++) dims[rank++] = 1;
    dims[rank++] = cvyi_elements(cvyi_shape_of(e->g, x));
    for (int i = 0; i < behind; i++) dims[rank++] = 1;
    return cvyi_edit_reshape(e, x, rank, dims);
}

int cvyi_edit_like(editor *e, const node *like, const int *args)
{
    node_spec s = {.op = like->op, .n_args = like->n_args};
    int out;
    memcpy(s.attr, like->attr, sizeof s.attr);
    memcpy(s.arg, args, sizeof s.arg);
    out = cvyi_edit_add(e, &s);
    if (out != CVY_NONE) e->g->values[out].watched = e->g->values[like->out].watched;
    return out;
}

void cvyi_edit_watch(editor *e, int v)
{
    if (v != CVY_NONE && e->mode == REWRITE_WATCH) e->g->values[v].watched = true;
}

void cvyi_edit_replace(editor *e, int old, int now)
{
    cvy_graph *g = e->g;
    if (e->st || now == CVY_NONE) return;
    for (int i = 0; i < g->n_nodes; i++)
        for (int a = 0; a < g->nodes[i].n_args; a++)
            if (g->nodes[i].arg[a] == old && g->nodes[i].out != now) g->nodes[i].arg[a] = now;
    for (int i = 0; i < g->n_outputs; i++)
        if (g->outputs[i] == old) g->outputs[i] = now;
}

/* ---- questions ---- */

const node *cvyi_maker(const cvy_graph *g, int v)
{
    return g->values[v].node < 0 ? NULL : &g->nodes[g->values[v].node];
}

int cvyi_readers(const cvy_graph *g, int v)
{
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++)
        for (int a = 0; a < g->nodes[i].n_args; a++) n += g->nodes[i].arg[a] == v;
    for (int i = 0; i < g->n_outputs; i++) n += g->outputs[i] == v;
    return n;
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
