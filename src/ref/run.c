/* run.c - runs a graph node by node on arrays of double.
 *
 * The workspace is a table with one slot per value, then the arrays the slots point at. An array lives from the
 * node that makes it (inputs and parameters: from the start) to the last node that reads it (outputs: to the end),
 * and arrays that never live together may share memory: a chain needs the two largest neighbours, not the sum of
 * all. The layout is computed by the same function for the size and for the run, so that a run allocates nothing.
 */
#include <stddef.h>
#include "ref.h"

typedef struct slot {
    int64_t offset, bytes; /* in the workspace */
    int first, last;       /* the nodes between which the array lives, both included */
} slot;

enum { SLOT_ALIGN = 64 };

static const struct {
    void (*run)(const ref_call *c);
} table[OP_COUNT] = {
#define OP(name, kind, spatial, attributes, tensors, reference, flags) [OP_##name] = {cvyi_ref_##reference},
#include "../graph/ops.def"
#undef OP
};

int64_t cvyi_ref_offset(const shape *s, const int64_t *strides, int64_t i)
{
    int64_t offset = 0;
    for (int d = s->rank - 1; d >= 0; d--) {
        offset += i % s->dim[d] * strides[d];
        i /= s->dim[d];
    }
    return offset;
}

/* ---- layout ---- */

static void find_lifetimes(const cvy_graph *g, slot *slots)
{
    const int *outputs;
    const int n_outputs = cvyi_graph_outputs(g, &outputs);

    for (int v = 0; v < g->n_values; v++) slots[v].first = slots[v].last = -1;
    for (int i = 0; i < g->n_nodes; i++) {
        const node *n = &g->nodes[i];
        slots[n->out].first = slots[n->out].last = i;
        for (int a = 0; a < n->n_args; a++) {
            if (n->arg[a] != CVY_NONE) slots[n->arg[a]].last = i;
        }
    }
    for (int i = 0; i < n_outputs; i++) slots[outputs[i]].last = g->n_nodes;
}

/* A placed array that lives together with v and lies across [offset, offset + bytes of v), or NULL. */
static const slot *find_conflict(const slot *slots, int v, int64_t offset, int64_t end)
{
    for (int u = 0; u < v; u++) {
        const bool together = slots[u].first <= slots[v].last && slots[v].first <= slots[u].last;
        const bool across = slots[u].offset < end && offset < slots[u].offset + slots[u].bytes;
        if (together && across) return &slots[u];
    }
    return NULL;
}

/* First fit: steps over every conflict until there is none. Offsets only grow, so it ends. */
static bool place(slot *slots, int v, int64_t start, int64_t *end)
{
    const slot *conflict;

    slots[v].offset = start;
    do {
        if (!cvyi_add(slots[v].offset, slots[v].bytes, end)) return false;
        conflict = find_conflict(slots, v, slots[v].offset, *end);
        if (conflict) slots[v].offset = conflict->offset + conflict->bytes;
    } while (conflict);
    return true;
}

static bool slot_bytes(const shape *s, int64_t *bytes)
{
    if (!cvyi_mul(cvyi_elements(s), (int64_t)sizeof(double), bytes)) return false;
    if (!cvyi_add(*bytes, SLOT_ALIGN - 1, bytes)) return false;
    *bytes = *bytes / SLOT_ALIGN * SLOT_ALIGN;
    return true;
}

static cvy_status lay_out(const cvy_graph *g, slot *slots, int64_t *total)
{
    const int64_t start = cvyi_round_up(g->n_values * (int64_t)sizeof(slot), SLOT_ALIGN);

    find_lifetimes(g, slots);
    *total = start;
    for (int v = 0; v < g->n_values; v++) {
        int64_t end;
        if (!slot_bytes(&g->values[v].shape, &slots[v].bytes) || !place(slots, v, start, &end)) {
            return cvyi_fail(CVY_INVALID, "reference: the workspace for '%s' is larger than memory can be",
                             g->values[v].name);
        }
        *total = cvyi_max64(*total, end);
    }
    return CVY_OK;
}

cvy_status cvyi_ref_workspace(const cvy_graph *g, size_t *bytes)
{
    cvy_status st = CVY_OK;
    int64_t total = 0;
    slot *slots = cvyi_alloc((size_t)g->n_values, sizeof *slots);

    if (!slots) return CVY_NO_MEMORY;
    TRY(lay_out(g, slots, &total));
    if (!cvyi_add(total, CVY_ALIGN, &total) || (uint64_t)total > SIZE_MAX) {
        TRY(cvyi_fail(CVY_INVALID, "reference: the workspace is larger than memory can be"));
    }
    *bytes = (size_t)total / CVY_ALIGN * CVY_ALIGN;
fail:
    cvyi_free(slots);
    return st;
}

/* ---- run ---- */

static void load(const shape *s, const cvy_buffer *b, double *dst)
{
    const int64_t n = cvyi_elements(s);
    const float *src = b->data;

    for (int64_t i = 0; i < n; i++) dst[i] = src[b->strides ? cvyi_ref_offset(s, b->strides, i) : i];
}

static void store(const shape *s, const double *src, const cvy_buffer *b)
{
    const int64_t n = cvyi_elements(s);
    float *dst = b->data;

    for (int64_t i = 0; i < n; i++) dst[b->strides ? cvyi_ref_offset(s, b->strides, i) : i] = (float)src[i];
}

static void run_node(const cvy_graph *g, const node *n, const slot *slots, char *base)
{
    ref_call c = {.g = g, .n = n, .dst = (double *)(base + slots[n->out].offset)};

    for (int a = 0; a < n->n_args; a++) {
        if (n->arg[a] != CVY_NONE) c.arg[a] = (const double *)(base + slots[n->arg[a]].offset);
    }
    if (cvyi_elements(ref_dst_shape(&c))) table[n->op].run(&c);
}

/* Fills all values; output number i is then at base + slots[outputs[i]].offset. */
static cvy_status evaluate(const cvy_graph *g, const cvy_buffer *buffers, int32_t n_buffers, char *base)
{
    slot *slots = (slot *)base;
    cvy_tensor t;
    int64_t total;
    cvy_status st = lay_out(g, slots, &total);

    for (int32_t i = 0; !st && i < n_buffers; i++) {
        st = cvy_graph_tensor(g, i, &t);
        if (!st && t.role != CVY_OUTPUT) {
            load(cvyi_shape_of(g, t.value), &buffers[i], (double *)(base + slots[t.value].offset));
        }
    }
    for (int i = 0; !st && i < g->n_nodes; i++) run_node(g, &g->nodes[i], slots, base);
    return st;
}

cvy_status cvyi_ref_run(const cvy_graph *g, const cvy_buffer *buffers, int32_t n_buffers, void *workspace)
{
    const slot *slots = workspace;
    const int *outputs;
    const int n_outputs = cvyi_graph_outputs(g, &outputs);
    const int n_sources = cvy_graph_tensors(g) - n_outputs;
    cvy_status st = CVY_OK;

    if (n_buffers != n_sources + n_outputs) {
        TRY(cvyi_fail(CVY_INVALID, "reference: %d buffers expected, got %d", n_sources + n_outputs, n_buffers));
    }
    TRY(evaluate(g, buffers, n_sources, workspace));
    for (int i = 0; i < n_outputs; i++) {
        const double *src = (const double *)((const char *)workspace + slots[outputs[i]].offset);
        store(cvyi_shape_of(g, outputs[i]), src, &buffers[n_sources + i]);
    }
fail:
    return st;
}

cvy_status cvyi_ref_run_double(const cvy_graph *g, const cvy_buffer *buffers, int32_t n_buffers, void *workspace,
                               double *const *dst)
{
    const slot *slots = workspace;
    const int *outputs;
    const int n_outputs = cvyi_graph_outputs(g, &outputs);
    const int n_sources = cvy_graph_tensors(g) - n_outputs;
    cvy_status st = CVY_OK;

    if (n_buffers < n_sources) {
        TRY(cvyi_fail(CVY_INVALID, "reference: %d buffers expected, got %d", n_sources, n_buffers));
    }
    TRY(evaluate(g, buffers, n_sources, workspace));
    for (int i = 0; i < n_outputs; i++) {
        const double *src = (const double *)((const char *)workspace + slots[outputs[i]].offset);
        const int64_t n = cvyi_elements(cvyi_shape_of(g, outputs[i]));
        for (int64_t k = 0; k < n; k++) dst[i][k] = src[k];
    }
fail:
    return st;
}
