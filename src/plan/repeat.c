/* repeat.c - repeated runs for callers in whose language checks are expensive: the caller passes the words and
 * bytes that the run relies on, and they are compared here. */
#include <string.h>
#include "plan.h"

int32_t cvy_words_hold(const cvy_word *words, size_t n_words)
{
    for (size_t i = 0; i < n_words; i++)
        if (*words[i].at != words[i].value) return 0;
    return 1;
}

static bool copies_hold(const cvy_copy *copies, size_t n_copies)
{
    for (size_t i = 0; i < n_copies; i++)
        if (memcmp(copies[i].at, copies[i].copy, copies[i].size) != 0) return false;
    return true;
}

/* May a plan that was made for aligned buffers (option strided) run on these? */
static bool aligned(const cvy_repeat *r)
{
    uint64_t bits = 0;
    if (r->plan->options.strided != CVY_OFF || r->plan->engine->device != CVY_CUDA) return true;
    for (int32_t i = 0; i < r->n_buffers; i++) bits |= r->call[i];
    return bits % 16 == 0;
}

cvy_status cvy_plan_repeat(cvy_repeat *r)
{
    if (!r || !r->plan || !r->buffers || !r->call)
        return cvyi_fail(CVY_INVALID, "repeat: the struct, its plan, its buffers or its call is NULL");
    if (r->size != sizeof *r)
        return cvyi_fail(CVY_INVALID, "repeat: size is %zu, expected %zu", r->size, sizeof *r);
    if (!cvy_words_hold(r->words, r->n_words) || !copies_hold(r->copies, r->n_copies) || !aligned(r))
        return CVY_STALE;
    for (int32_t i = 0; i < r->n_buffers; i++) r->buffers[i].data = (void *)(uintptr_t)r->call[i];
    r->memory.workspace = (void *)(uintptr_t)r->call[r->n_buffers];
    return cvy_plan_run_in(r->plan, r->buffers, r->n_buffers, &r->memory, r->flags | CVY_KEEP_PREPARED,
                           (void *)(uintptr_t)r->call[r->n_buffers + 1]);
}
