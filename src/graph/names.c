/* names.c - finding values by name, and the automatic names of nodes.
 *
 * The index is a table of value numbers with open addressing and linear probing, at most half full. Values are
 * only removed in the reverse order of their insertion, so a slot can be emptied without leaving a gap at which
 * another value's search would stop: a value that was probed past it was inserted later, and is gone already. */
#include <stdio.h>
#include <string.h>
#include "graph.h"

static size_t start_slot(const cvy_graph *g, const char *name, size_t len)
{
    return (size_t)(cvyi_hash(CVYI_HASH_START, name, len) & (uint64_t)(g->cap_index - 1));
}

/* The slot of a name: the value's, or the empty one where it would go. */
static size_t find_slot(const cvy_graph *g, const char *name, size_t len)
{
    size_t slot = start_slot(g, name, len);
    while (g->index[slot] != CVY_NONE) {
        const char *there = g->values[g->index[slot]].name;
        if (!strncmp(there, name, len) && !there[len]) break;
        slot = (slot + 1) & (size_t)(g->cap_index - 1);
    }
    return slot;
}

int cvyi_value_find(const cvy_graph *g, const char *name, size_t len)
{
    return g->cap_index ? g->index[find_slot(g, name, len)] : CVY_NONE;
}

static void insert(cvy_graph *g, int v)
{
    g->index[find_slot(g, g->values[v].name, strlen(g->values[v].name))] = v;
}

cvy_status cvyi_name_add(cvy_graph *g, int v)
{
    if (2 * (v + 1) > g->cap_index) {
        const int cap = g->cap_index ? 2 * g->cap_index : 16; /* a power of 2 */
        int *grown = cvyi_alloc((size_t)cap, sizeof *grown);
        if (!grown) return CVY_NO_MEMORY;
        cvyi_free(g->index);
        g->index = grown;
        g->cap_index = cap;
        for (int i = 0; i < cap; i++) grown[i] = CVY_NONE;
        for (int i = 0; i < v; i++) insert(g, i);
    }
    insert(g, v);
    return CVY_OK;
}

void cvyi_name_remove(cvy_graph *g, int v)
{
    g->index[find_slot(g, g->values[v].name, strlen(g->values[v].name))] = CVY_NONE;
}

void cvyi_suffixed_name(op_id op, int suffix, char out[NAME_BYTES])
{
    if (suffix < 2)
        snprintf(out, NAME_BYTES, "%s", cvyi_ops[op].name);
    else
        snprintf(out, NAME_BYTES, "%s_%d", cvyi_ops[op].name, suffix);
}

void cvyi_automatic_name(cvy_graph *g, op_id op, char out[NAME_BYTES])
{
    int suffix = g->suffix[op] ? g->suffix[op] : 1; /* all below are taken */
    cvyi_suffixed_name(op, suffix, out);
    while (cvyi_value_find(g, out, strlen(out)) != CVY_NONE) cvyi_suffixed_name(op, ++suffix, out);
    g->suffix[op] = suffix;
}
