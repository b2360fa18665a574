/* ref.h - the reference: every operator in plain loops and double arithmetic, the oracle of all engines.
 *
 * Tensors have their dtypes at the edges, with any strides. Between the edges every value is a contiguous array of
 * double in the caller's workspace, so nothing is rounded before the outputs are, each once, straight to its dtype:
 * a run is the float64 evaluation of the graph on the tensors as they are. Slow on purpose; nothing here is
 * vectorised, blocked or threaded. */
#ifndef CVYI_REF_H
#define CVYI_REF_H

#include "../graph/graph.h"

/* Bytes of workspace for one run; a multiple of CVY_ALIGN, never 0. Fails if the sum overflows. */
cvy_status cvyi_ref_workspace(const cvy_graph *g, size_t *bytes);

/* Buffers are those of cvy_plan_run(). Allocates nothing. */
cvy_status cvyi_ref_run(const cvy_graph *g, const cvy_buffer *buffers, int32_t n_buffers, void *workspace);

/* The same, but output number i goes unrounded and contiguous to outputs[i]; the output buffers are not touched and
 * may be left out of n_buffers. */
cvy_status cvyi_ref_run_double(const cvy_graph *g, const cvy_buffer *buffers, int32_t n_buffers, void *workspace,
                               double *const *outputs);

/* What is done to the result of every node before others read it: n values of value v. */
typedef void ref_touch(void *context, const cvy_graph *g, int v, double *values, int64_t n);

/* The same with every result touched. */
cvy_status cvyi_ref_run_touched(const cvy_graph *g, const cvy_buffer *buffers, void *workspace,
                                double *const *outputs, ref_touch *touch, void *context);

/* ---- inside src/ref ---- */

/* One node at work. Arrays are contiguous in the shapes of the graph. */
typedef struct ref_call {
    const cvy_graph *g;
    const node *n;
    const double *arg[MAX_ARGS]; /* NULL if an optional tensor is absent */
    double *dst;
} ref_call;

/* One function per name in the column `reference` of ops.def; some names are in many rows. */
#define OP(name, kind, spatial, attributes, tensors, reference, flags) void cvyi_ref_##reference(const ref_call *c);
#include "../graph/ops.def"
#undef OP

static inline const shape *ref_shape(const ref_call *c, int i)
{
    return cvyi_shape_of(c->g, c->n->arg[i]);
}
static inline const shape *ref_dst_shape(const ref_call *c)
{
    return cvyi_shape_of(c->g, c->n->out);
}
/* Where element number i of a shape, counted in row-major order, lies under the given strides. */
int64_t cvyi_ref_offset(const shape *s, const int64_t *strides, int64_t i);

#endif
