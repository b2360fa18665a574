/* fence.c - memory between the slices of a unit, and after the scratch of a worker, that must not be touched.
 *
 * The address sanitizer knows where the caller's workspace ends, but not how it is divided. In its builds every
 * slice is followed by a fence that is poisoned while a pass runs. In other builds these functions are empty. */
#include <string.h>
#include "../util/asan.h"
#include "exec.h"

#if CVYI_ASAN

enum { FENCE = 64, GRAIN = 8 /* bytes that the sanitizer tells apart */ };

static bool grow(builder *b)
{
    cpu_pass *s = b->out;
    const int cap = s->n_fences < s->cap_fences ? s->cap_fences : 2 * s->cap_fences + 8;
    fence *grown =
        cap == s->cap_fences ? s->fences : cvyi_arena_alloc(&b->plan->memory, (size_t)cap, sizeof *grown);
    if (!grown) return false;
    if (grown != s->fences && s->n_fences) memcpy(grown, s->fences, (size_t)s->n_fences * sizeof *grown);
    s->fences = grown;
    s->cap_fences = cap;
    return true;
}

void cvyi_fence_slice(builder *b, int64_t at, int64_t bytes)
{
    cpu_pass *s = b->out;
    while (s->n_fences && s->fences[s->n_fences - 1].to > at) s->n_fences--; /* of a trial that was given up */
    if (!grow(b)) return;
    s->slice_bytes += FENCE;
    s->fences[s->n_fences++] = (fence){cvyi_round_up(at + bytes, GRAIN), s->slice_bytes};
}

void cvyi_fence_pass(cpu_pass *s)
{
    while (s->n_fences && s->fences[s->n_fences - 1].to > s->slice_bytes) s->n_fences--;
    s->scratch_bytes += FENCE;
}

void cvyi_fence_run(const cpu_pass *s, char *slices, int sets, int workers, bool up)
{
    void (*const mark)(void *, size_t) = up ? cvyi_forbid : cvyi_allow;
    char *scratch = slices + sets * s->slice_bytes;
    for (int i = 0; i < sets; i++)
        for (int k = 0; k < s->n_fences; k++)
            mark(slices + i * s->slice_bytes + s->fences[k].from, (size_t)(s->fences[k].to - s->fences[k].from));
    for (int i = 1; i <= workers && s->scratch_bytes; i++) mark(scratch + i * s->scratch_bytes - FENCE, FENCE);
}

#else

void cvyi_fence_slice(builder *b, int64_t at, int64_t bytes)
{
    (void)b;
    (void)at;
    (void)bytes;
}

void cvyi_fence_pass(cpu_pass *s)
{
    (void)s;
}

void cvyi_fence_run(const cpu_pass *s, char *slices, int sets, int workers, bool up)
{
    (void)s;
    (void)slices;
    (void)sets;
    (void)workers;
    (void)up;
}

#endif
