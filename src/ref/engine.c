/* engine.c - the reference as an engine: it runs the graph unchanged, node by node, in double. */
#include "../plan/plan.h"
#include "ref.h"

static cvy_status open_ref(cvy_plan *p)
{
    (void)p;
    return CVY_OK;
}

static cvy_status prepare_ref(cvy_plan *p)
{
    return cvyi_ref_workspace(p->source, &p->workspace);
}

static cvy_status run_ref(const cvy_plan *p, const cvy_buffer *buffers, const run_memory *memory, uint32_t flags,
                          void *stream)
{
    (void)flags; /* nothing is prepared */
    (void)stream;
    return cvyi_ref_run(p->source, buffers, p->n_tensors, memory->workspace);
}

static void close_ref(cvy_plan *p)
{
    (void)p;
}

const engine cvyi_engine_ref = {.device = CVY_REF,
                                .name = "ref",
                                .dtypes = (1u << DTYPE_COUNT) - 1,
                                .open = open_ref,
                                .prepare = prepare_ref,
                                .run = run_ref,
                                .close = close_ref};
