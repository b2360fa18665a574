/* watch.c - rewrites that hold only for finite values, and what happens if a value is not finite.
 *
 * conv(x, W) * s and conv(x, W s) agree while W s is finite. An infinity in W s can turn a sum into NaN, where
 * PyTorch multiplies the finite sum by s and gets an infinity. So simplify marks the values that must be finite:
 * parameters and values prepared from them, which are checked after the run that prepares them, and small results,
 * which are checked after every run (they are kept until then). If one is not finite, the run is repeated with a
 * plan without those rewrites. That plan and its memory are only created when needed, so finite values cost only
 * the check.
 *
 * Last CVY_ALIGN bytes of what is prepared: whether it was finite. */
#include <math.h>
#include "../util/half.h"
#include "plan.h"

void cvyi_watch(cvy_plan *p)
{
    for (int v = 0; v < p->graph->n_values; v++) {
        const value *at = &p->graph->values[v];
        p->watches |= at->watched && (at->kind != VALUE_NODE || at->node >= 0);
    }
    if (p->watches) p->prepared_bytes += CVY_ALIGN;
}

/* No NaN, no infinity in a tensor of any dtype with any strides. */
static bool finite_tensor(const value *v, const int64_t *strides, const void *data)
{
    const shape *s = &v->shape;
    const int64_t n = cvyi_elements(s);
    bool finite = true;
    if (!strides)
        return v->dtype == CVY_FLOAT32 ? cvyi_all_finite(data, n) : cvyi_all_finite_words(v->dtype, data, n);
    for (int64_t i = 0; i < n && finite; i++) {
        int64_t at = 0, rest = i;
        for (int d = s->rank - 1; d >= 0; d--) {
            at += rest % s->dim[d] * strides[d];
            rest /= s->dim[d];
        }
        finite = isfinite(cvyi_element(v->dtype, data, at));
    }
    return finite;
}

static bool finite_value(const cvy_plan *p, const cvy_buffer *buffers, const run_memory *memory, int v)
{
    const place *at = &p->places[p->root[v]];
    if (at->kind == PLACE_TENSOR) {
        const cvy_buffer *b = &buffers[at->at];
        return finite_tensor(&p->graph->values[p->tensor_value[at->at]], b->strides, b->data);
    }
    return finite_tensor(&p->graph->values[p->root[v]], NULL, cvyi_at(memory, at->at));
}

/* Are all watched values of one kind finite: those that depend only on parameters, or the others? */
static bool all_finite(const cvy_plan *p, const cvy_buffer *buffers, const run_memory *memory, bool prepared)
{
    for (int v = 0; v < p->graph->n_values; v++) {
        const value *at = &p->graph->values[v];
        if (!at->watched || p->prepared[v] != prepared || (at->kind == VALUE_NODE && at->node < 0)) continue;
        if (!finite_value(p, buffers, memory, v)) return false;
    }
    return true;
}

static cvy_status run_carefully(const cvy_plan *p, const cvy_buffer *buffers)
{
    cvy_status st = CVY_OK;
    cvy_plan *c = NULL;
    run_memory memory = {NULL, NULL, false};

    TRY(cvyi_plan_careful(p, &c));
    memory.prepared = cvyi_alloc_aligned(cvy_plan_workspace(c));
    if (!memory.prepared) TRY(CVY_NO_MEMORY);
    memory.workspace = memory.prepared + c->prepared_bytes;
    TRY(c->engine->run(c, buffers, &memory, 0, NULL));
fail:
    cvyi_free(memory.prepared);
    cvy_plan_free(c);
    return st;
}

cvy_status cvyi_watched_run(const cvy_plan *p, const cvy_buffer *buffers, const run_memory *memory, uint32_t flags,
                            void *stream)
{
    bool *finite = (bool *)memory->prepared + p->prepared_bytes - CVY_ALIGN;
    const bool kept = flags & CVY_KEEP_PREPARED;
    cvy_status st = CVY_OK;

    if (kept && !*finite) return run_carefully(p, buffers);
    TRY(p->engine->run(p, buffers, memory, flags, stream));
    if (!kept) *finite = all_finite(p, buffers, memory, true);
    if (!*finite || !all_finite(p, buffers, memory, false)) TRY(run_carefully(p, buffers));
fail:
    return st;
}
