/* cores.c - what all kinds of cores share: grid, prologue and epilogue, the first view. */
#include "choice.h"
#include "cores.h"

void cvyi_core_grid(maker *m, int64_t x, int64_t y, int64_t z, unsigned threads)
{
    cuda_launch *l = &m->step.launch;
    const int64_t grid[3] = {x, y, z};
    /* Numbers that do not fit into a launch's integers exceed its limits, too: cvyi_make_end() reports that. */
    for (int i = 0; i < 3; i++) l->grid[i] = (unsigned)cvyi_min64(grid[i], UINT32_MAX);
    l->block[0] = threads;
    l->block[1] = l->block[2] = 1;
}

void cvyi_core_define_in(maker *m, const int64_t in[3])
{
    cvyi_make_define3(m, (const char *const[3]){"IN_D", "IN_H", "IN_W"}, in);
}

void cvyi_core_define_out(maker *m, const int64_t out[3])
{
    cvyi_make_define3(m, (const char *const[3]){"OUT_O", "OUT_P", "OUT_Q"}, out);
}

void cvyi_core_define_window(maker *m, const int64_t kernel[3], const int64_t stride[3], const int64_t pad[3],
                             const int64_t dil[3])
{
    cvyi_make_define3(m, (const char *const[3]){"TAPS_T", "TAPS_R", "TAPS_S"}, kernel);
    cvyi_make_define3(m, (const char *const[3]){"STRIDE_D", "STRIDE_H", "STRIDE_W"}, stride);
    cvyi_make_define3(m, (const char *const[3]){"PAD_D", "PAD_H", "PAD_W"}, pad);
    cvyi_make_define3(m, (const char *const[3]){"DIL_D", "DIL_H", "DIL_W"}, dil);
}

cvy_status cvyi_core_epilogue(maker *m, int core, const space *over)
{
    const int v = m->g->nodes[core].out;
    program *p = &m->post;

    p->over = *over;
    if (p->statement_of[v] == NO_STATEMENT) p->statement_of[v] = EMIT_ARGUMENT;
    if (m->prepared || cvyi_needed_after(m->plan, m->pass, v)) cvyi_make_store(m, p, v);
    return cvyi_make_chain(m, p, core + 1, m->pass->first + m->pass->count, true);
}

cvy_status cvyi_core_prologue(maker *m, int core, const space *over)
{
    const int x = m->g->nodes[core].arg[0];
    cvy_status st;

    m->pre.over = *over;
    TRY(cvyi_make_chain(m, &m->pre, m->pass->first, core, false));
    if (cvyi_make_operand(m, &m->pre, x) != m->pre.n - 1) { /* read again, to be the last */
        const emit_statement again = m->pre.statements[m->pre.statement_of[x]];
        m->pre.statement_of[x] = cvyi_make_statement(m, &m->pre, &again);
    }
fail:
    return st;
}

void cvyi_core_bias(maker *m, int core, const space *over, int bias, int slot)
{
    emit_statement load = {.kind = EMIT_LOAD, .note = cvyi_make_label(m, bias)};
    emit_statement add = {.kind = EMIT_OP, .op = OP_add, .a = EMIT_ARGUMENT, .p = {0, 1}, .note = "bias"};

    m->post.over = *over;
    load.view = cvyi_make_channel_view(m, bias, slot);
    add.b = cvyi_make_statement(m, &m->post, &load);
    m->post.statement_of[m->g->nodes[core].out] = cvyi_make_statement(m, &m->post, &add);
}

int cvyi_core_first_value(const maker *m, int core)
{
    const int end = m->pass->first + m->pass->count;
    int first = end - 1;

    for (int i = end - 1; i >= core; i--)
        if (cvyi_needed_after(m->plan, m->pass, m->g->nodes[i].out)) first = i;
    return m->g->nodes[m->prepared ? core : first].out;
}

void cvyi_core_first_view(maker *m, int core, const space *over)
{
    cvyi_make_view(m, cvyi_core_first_value(m, core), over);
}

/* No view of the result says how large its indices get. */
void cvyi_core_parts_view(maker *m, const space *out, int64_t parts)
{
    cvyi_make_own_view(m, parts, "parts of sums");
    if (cvyi_elements(&out->logical) > INT32_MAX) m->far = true;
}

cvy_status cvyi_core_add(maker *m, const space *out, const core_parts *p)
{
    const int core = m->choice->form.core;
    const int64_t results = cvyi_elements(&out->logical);
    const int width = access_width(results / cvyi_max64(out->extent[0], 1));
    cvy_status st;

    cvyi_make_start(m, "conv_wide_add.cu");
    m->many = ACCESS_FLOATS;
    m->of_pixel = cvyi_lies_last(m, cvyi_core_first_value(m, core));
    if (m->of_pixel) cvyi_make_define(m, "Y_LAST", 1);
    cvyi_make_define_extents(m, 'Y', out);
    cvyi_make_define(m, "PARTIALS", p->split);
    cvyi_core_first_view(m, core, out);
    cvyi_core_parts_view(m, out, p->parts);
    if (p->bias != CVY_NONE) cvyi_core_bias(m, core, out, p->bias, p->slot);
    TRY(cvyi_core_epilogue(m, core, out));
    m->step.extent = out->extent[0];
    cvyi_core_grid(m, cvyi_ceil_div(results, BLOCK_THREADS * width), 1, 1, BLOCK_THREADS);
    TRY(cvyi_make_end(m, ""));
fail:
    return st;
}
