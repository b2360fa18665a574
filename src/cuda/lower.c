/* lower.c - from passes to steps: the kernel that was chosen for a pass makes them (choice.h). */
#include "choice.h"

static cvy_status make_pass(maker *m, const pass *s)
{
    m->pass = s;
    m->choice = cvyi_cuda_choice(s);
    return m->choice->kernel->make(m);
}

/* What is prepared comes first, node by node. */
static cvy_status make_prepared(maker *m)
{
    const pass *all = &m->plan->passes[0];
    cuda_choice *const *each = all->choice;
    cvy_status st = CVY_OK;

    m->prepared = true;
    for (int i = 0; i < all->count; i++) {
        const pass one = {.first = all->first + i, .count = 1, .choice = each[i]};
        TRY(make_pass(m, &one));
    }
    m->prepared = false;
fail:
    return st;
}

/* Steps run in order, so passes may use the same scratch. */
static void take_scratch(maker *m)
{
    const cvy_plan *p = m->plan;
    int64_t most = 0;

    for (int i = p->n_prepare; i < p->n_passes; i++) {
        const cuda_choice *c = cvyi_cuda_choice(&p->passes[i]);
        if (c->kernel->scratch) most = cvyi_max64(most, c->kernel->scratch(c));
    }
    m->state->scratch = cvyi_make_memory(m, most);
}

static int *new_statements(cvy_plan *p)
{
    return cvyi_arena_alloc(&p->memory, (size_t)p->graph->n_values + 1, sizeof(int));
}

cvy_status cvyi_cuda_lower(cvy_plan *p)
{
    cuda_state *state = p->state;
    maker *m = cvyi_arena_alloc(&p->memory, 1, sizeof *m);
    cvy_status st = CVY_OK;

    if (!m) return CVY_NO_MEMORY;
    m->plan = p;
    m->state = state;
    m->g = p->graph;
    m->pre.statement_of = new_statements(p);
    m->post.statement_of = new_statements(p);
    if (!m->pre.statement_of || !m->post.statement_of) return CVY_NO_MEMORY;
    state->kept_end = WORKSPACE_BASE + cvyi_round_up(p->value_bytes, CVY_ALIGN);
    take_scratch(m);
    TRY(cvyi_make_shadows(m));
    TRY(cvyi_find_last(m));
    TRY(cvyi_copy_shadows(m, false));
    if (p->n_prepare) TRY(make_prepared(m));
    for (int i = p->n_prepare; i < p->n_passes; i++) {
        m->pass_index = i;
        TRY(make_pass(m, &p->passes[i]));
    }
    TRY(cvyi_copy_shadows(m, true));
    p->workspace = (size_t)(state->kept_end - WORKSPACE_BASE);
fail:
    return st;
}
