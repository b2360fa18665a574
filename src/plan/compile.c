/* compile.c - the end of planning: code for plans, for many at once if the caller deferred it (option deferred). */
#include "plan.h"

/* What is known as soon as there is code. */
static cvy_status settle(cvy_plan *p)
{
    cvy_status st = CVY_OK;
    p->workspace = (size_t)cvyi_round_up((int64_t)p->workspace + !p->workspace, CVY_ALIGN);
    p->prepared_bytes = cvyi_round_up(p->prepared_bytes, CVY_ALIGN);
    cvyi_watch(p);
    TRY(cvyi_digest_prepared(p));
    p->waits = false;
fail:
    return st;
}

cvy_status cvyi_compile(cvy_plan *const *plans, int n)
{
    const engine *of = plans[0]->engine;
    cvy_status st = CVY_OK;

    if (of->compile) TRY(of->compile(plans, n));
    for (int i = 0; i < n; i++) TRY(settle(plans[i]));
fail:
    return st;
}

/* The deferred plans of one engine, each of them once. */
static int pick(const engine *of, cvy_plan *const *plans, int n, cvy_plan **out)
{
    int found = 0;
    for (int i = 0; i < n; i++) {
        bool again = !plans[i]->waits || plans[i]->engine != of;
        for (int k = 0; k < found && !again; k++) again = out[k] == plans[i];
        if (!again) out[found++] = plans[i];
    }
    return found;
}

cvy_status cvy_plans_compile(cvy_plan *const *plans, int32_t n)
{
    cvy_plan **waiting = NULL;
    cvy_status st = CVY_OK;

    if (n < 0 || (n && !plans))
        return cvyi_fail(CVY_INVALID, "compile: plans is NULL or n_plans (%d) is negative", (int)n);
    for (int i = 0; i < n; i++)
        if (!plans[i]) return cvyi_fail(CVY_INVALID, "compile: plan %d is NULL", i);
    waiting = cvyi_alloc((size_t)n + 1, sizeof *waiting);
    if (!waiting) return CVY_NO_MEMORY;
    for (int i = 0; i < n; i++)
        if (plans[i]->waits) TRY(cvyi_compile(waiting, pick(plans[i]->engine, plans, n, waiting)));
fail:
    cvyi_free(waiting);
    return st;
}
