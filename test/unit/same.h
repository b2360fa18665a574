/* same.h - whether two graphs are the same: inputs, parameters, nodes and outputs, their order and their names.
 * Value numbers may differ, since the text creates a parameter where it is first read. */
#ifndef TEST_SAME_H
#define TEST_SAME_H

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../../src/graph/graph.h"

static inline bool same_value(const cvy_graph *a, int va, const cvy_graph *b, int vb)
{
    if (va == CVY_NONE || vb == CVY_NONE) return va == vb;
    return a->values[va].kind == b->values[vb].kind && !strcmp(a->values[va].name, b->values[vb].name) &&
           a->values[va].dtype == b->values[vb].dtype &&
           cvyi_same_shape(&a->values[va].shape, &b->values[vb].shape);
}

static inline bool same_number(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

static inline bool same_node(const cvy_graph *a, const node *na, const cvy_graph *b, const node *nb)
{
    bool same = na->op == nb->op && na->n_args == nb->n_args && same_value(a, na->out, b, nb->out);
    for (int i = 0; same && i < na->n_args; i++) same = same_value(a, na->arg[i], b, nb->arg[i]);
    for (int i = 0; same && i < cvyi_info(na)->n_attrs; i++) {
        const attr_value *x = &na->attr[i], *y = &nb->attr[i];
        same = x->count == y->count;
        if (cvyi_info(na)->attrs[i].kind == ATTR_NUMBER)
            same = same && same_number(x->f, y->f);
        else
            for (int k = 0; same && k < x->count; k++) same = x->i[k] == y->i[k];
    }
    return same;
}

static inline int of_kind(const cvy_graph *g, value_kind kind, int v)
{
    while (v < g->n_values && g->values[v].kind != kind) v++;
    return v;
}

static inline bool same_tensors(const cvy_graph *a, const cvy_graph *b, value_kind kind)
{
    int va = of_kind(a, kind, 0), vb = of_kind(b, kind, 0);
    while (va < a->n_values && vb < b->n_values) {
        if (!same_value(a, va, b, vb)) return false;
        va = of_kind(a, kind, va + 1);
        vb = of_kind(b, kind, vb + 1);
    }
    return va == a->n_values && vb == b->n_values;
}

static inline bool same_graph(const cvy_graph *a, const cvy_graph *b)
{
    const int *oa = NULL, *ob = NULL;
    const int na = cvyi_graph_outputs(a, &oa), nb = cvyi_graph_outputs(b, &ob);
    bool same =
        same_tensors(a, b, VALUE_INPUT) && same_tensors(a, b, VALUE_PARAM) && a->n_nodes == b->n_nodes && na == nb;
    for (int i = 0; same && i < a->n_nodes; i++) same = same_node(a, &a->nodes[i], b, &b->nodes[i]);
    for (int i = 0; same && i < na; i++) same = same_value(a, oa[i], b, ob[i]);
    return same;
}

#endif
