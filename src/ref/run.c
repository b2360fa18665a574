/* run.c - runs a graph node by node on arrays of double.
 *
 * The workspace is a table with one slot per value, then the arrays the slots point at. An array lives from the
 * node that makes it (inputs and parameters: from the first that reads them) to the last node that reads it
 * (outputs: to the end), and arrays that never live together may share memory: a chain needs the two largest
 * neighbours, not the sum of all. The same function computes the layout for the size and for the run, so a run
 * allocates nothing; it takes time in proportion to nodes times arrays alive at once. */
#include <stddef.h>
#include "../util/half.h"
#include "ref.h"

typedef struct slot {
    int64_t offset, bytes; /* in the workspace; bytes < 0: not placed yet */
    int first, last;       /* the nodes between which the array lives, both included */
    int buffer;            /* inputs and parameters: which buffer of run() */
    int next;              /* among the arrays alive, the one after this in memory; CVY_NONE: it is the last */
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

/* Inputs come first among the buffers, then parameters, both as they were created. */
static void number_buffers(const cvy_graph *g, slot *slots)
{
    int n = 0;
    for (int v = 0; v < g->n_values; v++)
        if (g->values[v].kind == VALUE_INPUT) slots[v].buffer = n++;
    for (int v = 0; v < g->n_values; v++)
        if (g->values[v].kind == VALUE_PARAM) slots[v].buffer = n++;
}

static void find_lifetimes(const cvy_graph *g, slot *slots)
{
    const int *outputs;
    const int n_outputs = cvyi_graph_outputs(g, &outputs);

    for (int v = 0; v < g->n_values; v++) slots[v] = (slot){.bytes = -1, .first = -1, .last = -1};
    for (int i = 0; i < g->n_nodes; i++) {
        const node *n = &g->nodes[i];
        for (int a = 0; a < n->n_args; a++) {
            if (n->arg[a] == CVY_NONE) continue;
            if (slots[n->arg[a]].first < 0) slots[n->arg[a]].first = i;
            slots[n->arg[a]].last = i;
        }
        slots[n->out].first = slots[n->out].last = i;
    }
    for (int i = 0; i < n_outputs; i++) slots[outputs[i]].last = g->n_nodes;
}

/* Removes arrays that are not read from node i on from the list of those alive. */
static void release(slot *slots, int *alive, int i)
{
    for (int *link = alive; *link != CVY_NONE;) {
        if (slots[*link].last < i) {
            *link = slots[*link].next;
        } else {
            link = &slots[*link].next;
        }
    }
}

static bool slot_bytes(const shape *s, int64_t *bytes)
{
    if (!cvyi_mul(cvyi_elements(s), (int64_t)sizeof(double), bytes)) return false;
    if (!cvyi_add(*bytes, SLOT_ALIGN - 1, bytes)) return false;
    *bytes = *bytes / SLOT_ALIGN * SLOT_ALIGN;
    return true;
}

/* First fit: the first gap between the arrays alive, which are listed in order of memory. */
static cvy_status place(const cvy_graph *g, slot *slots, int v, int *alive, int64_t *total)
{
    int64_t offset = cvyi_round_up(g->n_values * (int64_t)sizeof(slot), SLOT_ALIGN), bytes, end;
    int *link = alive;

    if (!slot_bytes(&g->values[v].shape, &bytes)) goto overflow;
    for (; *link != CVY_NONE && slots[*link].offset - offset < bytes; link = &slots[*link].next) {
        offset = slots[*link].offset + slots[*link].bytes;
    }
    if (!cvyi_add(offset, bytes, &end)) goto overflow;
    slots[v].offset = offset;
    slots[v].bytes = bytes;
    slots[v].next = *link;
    *link = v;
    *total = cvyi_max64(*total, end);
    return CVY_OK;
overflow:
    return cvyi_fail(CVY_INVALID, "reference: the workspace for '%s' is too large for the address space",
                     g->values[v].name);
}

static cvy_status lay_out(const cvy_graph *g, slot *slots, int64_t *total)
{
    int alive = CVY_NONE;
    cvy_status st = CVY_OK;

    *total = g->n_values * (int64_t)sizeof(slot);
    find_lifetimes(g, slots);
    number_buffers(g, slots);
    for (int i = 0; i < g->n_nodes; i++) {
        const node *n = &g->nodes[i];
        release(slots, &alive, i);
        for (int a = 0; a < n->n_args; a++) {
            if (n->arg[a] != CVY_NONE && slots[n->arg[a]].bytes < 0) {
                TRY(place(g, slots, n->arg[a], &alive, total));
            }
        }
        TRY(place(g, slots, n->out, &alive, total));
    }
fail:
    return st;
}

cvy_status cvyi_ref_workspace(const cvy_graph *g, size_t *bytes)
{
    cvy_status st = CVY_OK;
    int64_t total = 0;
    slot *slots = cvyi_alloc((size_t)g->n_values, sizeof *slots);

    if (!slots) return CVY_NO_MEMORY;
    TRY(lay_out(g, slots, &total));
    if (!cvyi_add(total, CVY_ALIGN, &total) || (uint64_t)total > SIZE_MAX) {
        TRY(cvyi_fail(CVY_INVALID, "reference: the workspace is too large for the address space"));
    }
    *bytes = (size_t)total / CVY_ALIGN * CVY_ALIGN;
fail:
    cvyi_free(slots);
    return st;
}

/* ---- run ---- */

static void load(const value *v, const cvy_buffer *b, double *dst)
{
    const shape *s = &v->shape;
    const int64_t n = cvyi_elements(s);

    for (int64_t i = 0; i < n; i++)
        dst[i] = cvyi_element(v->dtype, b->data, b->strides ? cvyi_ref_offset(s, b->strides, i) : i);
}

/* The one place where anything is rounded. */
static void store(const value *v, const double *src, const cvy_buffer *b)
{
    const shape *s = &v->shape;
    const int64_t n = cvyi_elements(s);

    for (int64_t i = 0; i < n; i++)
        cvyi_element_set(v->dtype, b->data, b->strides ? cvyi_ref_offset(s, b->strides, i) : i, src[i]);
}

/* Loads the inputs and parameters that are read here first, and computes. */
static void run_node(const cvy_graph *g, int i, const cvy_buffer *buffers, const slot *slots, char *base)
{
    const node *n = &g->nodes[i];
    ref_call c = {.g = g, .n = n, .dst = (double *)(base + slots[n->out].offset)};

    for (int a = 0; a < n->n_args; a++) {
        const int v = n->arg[a];
        double *array;
        if (v == CVY_NONE) continue;
        array = (double *)(base + slots[v].offset);
        if (g->values[v].kind != VALUE_NODE && slots[v].first == i) {
            load(&g->values[v], &buffers[slots[v].buffer], array);
        }
        c.arg[a] = array;
    }
    if (cvyi_elements(ref_dst_shape(&c))) table[n->op].run(&c);
}

/* Output number i is then at base + slots[outputs[i]].offset. touch may be NULL. */
static cvy_status evaluate(const cvy_graph *g, const cvy_buffer *buffers, char *base, ref_touch *touch,
                           void *context)
{
    slot *slots = (slot *)base;
    int64_t total;
    const cvy_status st = lay_out(g, slots, &total);

    for (int i = 0; !st && i < g->n_nodes; i++) {
        const int v = g->nodes[i].out;
        run_node(g, i, buffers, slots, base);
        if (touch) touch(context, g, v, (double *)(base + slots[v].offset), cvyi_elements(cvyi_shape_of(g, v)));
    }
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
    TRY(evaluate(g, buffers, workspace, NULL, NULL));
    for (int i = 0; i < n_outputs; i++) {
        const double *src = (const double *)((const char *)workspace + slots[outputs[i]].offset);
        store(&g->values[outputs[i]], src, &buffers[n_sources + i]);
    }
fail:
    return st;
}

cvy_status cvyi_ref_run_double(const cvy_graph *g, const cvy_buffer *buffers, int32_t n_buffers, void *workspace,
                               double *const *dst)
{
    const int *outputs;
    const int n_sources = cvy_graph_tensors(g) - cvyi_graph_outputs(g, &outputs);

    if (n_buffers < n_sources)
        return cvyi_fail(CVY_INVALID, "reference: %d buffers expected, got %d", n_sources, n_buffers);
    return cvyi_ref_run_touched(g, buffers, workspace, dst, NULL, NULL);
}

cvy_status cvyi_ref_run_touched(const cvy_graph *g, const cvy_buffer *buffers, void *workspace, double *const *dst,
                                ref_touch *touch, void *context)
{
    const slot *slots = workspace;
    const int *outputs;
    const int n_outputs = cvyi_graph_outputs(g, &outputs);
    cvy_status st = CVY_OK;

    TRY(evaluate(g, buffers, workspace, touch, context));
    for (int i = 0; i < n_outputs; i++) {
        const double *src = (const double *)((const char *)workspace + slots[outputs[i]].offset);
        const int64_t n = cvyi_elements(cvyi_shape_of(g, outputs[i]));
        for (int64_t k = 0; k < n; k++) dst[i][k] = src[k];
    }
fail:
    return st;
}
