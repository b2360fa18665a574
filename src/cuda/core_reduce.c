/* core_reduce.c - reductions over any dimensions: how they are spread over threads and blocks, and their steps. */
#include <stdio.h>
#include "choice.h"
#include "cores.h"
#include "kernels/host_device.cuh"

/* ---- the spread ---- */

static int64_t lower_power_of_two(int64_t n, int64_t most)
{
    int64_t p = 1;
    while (2 * p <= n && 2 * p <= most) p *= 2;
    return p;
}

/* How many threads share one result where they read neighbouring elements, `width` at a time. */
static int64_t choose_lanes(int64_t inside, int64_t width)
{
    const int64_t accesses = inside / width;
    return accesses >= 2 * BLOCK_THREADS ? BLOCK_THREADS : lower_power_of_two(accesses, 32);
}

/* Is the innermost dimension that has any extent among the reduced ones? */
static bool innermost_reduced(const space *s, unsigned reduced)
{
    int d = EMIT_DIMS - 1;
    while (d > 0 && s->extent[d] == 1) d--;
    return reduced >> d & 1;
}

/* Are the reduced dimensions the last ones? Those of extent 1 count as either, but for dimension 0, whose extent is
 * an argument of the kernel. */
static bool trailing_reduced(const space *s, unsigned reduced)
{
    bool kept = false, out_of_order = false;
    for (int d = EMIT_DIMS - 1; d >= 0; d--) {
        const bool gone = reduced >> d & 1;
        if (d && s->extent[d] == 1) continue;
        kept = kept || !gone;
        out_of_order = out_of_order || (gone && kept);
    }
    return !out_of_order;
}

int64_t cvyi_reduce_lanes(const space *in, unsigned reduced, int width)
{
    int64_t inside = 1;

    for (int d = 0; d < EMIT_DIMS; d++) inside *= reduced >> d & 1 ? in->extent[d] : 1;
    return innermost_reduced(in, reduced) ? choose_lanes(inside, width) : 1;
}

/* Elements along the kept last dimensions, up to the first reduced one: neighbours whose results are neighbours. */
static int64_t kept_run(const space *s, unsigned reduced)
{
    int64_t run = 1;
    for (int d = EMIT_DIMS - 1; d >= 0 && !(reduced >> d & 1); d--) run *= s->extent[d];
    return run;
}

enum { REDUCE_UNROLL = 4, FEWEST_PARTS = 8, MOST_BLOCKS = 1024 };

/* Blocks that share each result: a round of accesses each up to 256 blocks, four rounds up to 1,024. A million
 * elements: 245 blocks of 4,096. */
static int64_t choose_parts(const reduce_choice *f, int64_t of_sample)
{
    const int64_t blocks = cvyi_max64(cvyi_ceil_div(of_sample, f->results), 1);
    const int64_t grain = REDUCE_UNROLL * f->lanes * f->splits * (f->trailing ? f->many : 1);
    const int64_t rounds = cvyi_ceil_div(f->inside, grain);
    const int64_t wanted =
        cvyi_max64(cvyi_min64(rounds, 256 / blocks), cvyi_min64(rounds / 4, MOST_BLOCKS / blocks));
    const int64_t share = cvyi_round_up(cvyi_ceil_div(f->inside, cvyi_max64(wanted, 1)), grain);

    return wanted >= FEWEST_PARTS ? cvyi_ceil_div(f->inside, share) : 1;
}

/* dtype: of what is read. */
void cvyi_reduce_spread(reduce_choice *f, cvy_dtype dtype)
{
    const space *in = &f->in;
    const unsigned reduced = f->reduced;
    const bool across = !innermost_reduced(in, reduced);
    int64_t of_sample, run;

    f->trailing = trailing_reduced(in, reduced);
    f->splits = f->together = f->inside = f->kept = 1;
    for (int d = 0; d < EMIT_DIMS; d++) *(reduced >> d & 1 ? &f->inside : &f->kept) *= in->extent[d];
    of_sample = reduced & 1 || !in->extent[0] ? f->kept : f->kept / in->extent[0];
    run = !f->trailing ? kept_run(in, reduced) : reduced & 1 ? 0 : f->inside;
    f->many = cvyi_make_access(dtype);
    if (run % f->many) f->many = ACCESS_FLOATS;
    f->lanes = cvyi_reduce_lanes(in, reduced, f->trailing && f->inside % f->many == 0 ? f->many : 1);
    if (across && !f->trailing && run % f->many == 0) f->together = f->many;
    if (across && f->inside >= 32) f->splits = 8;
    f->results = BLOCK_THREADS / f->lanes / f->splits * f->together;
    f->parts = choose_parts(f, of_sample);
}

/* ---- steps ---- */

static void start_reduce(maker *m, const reduce_choice *f, int variant)
{
    cvyi_make_start(m, "reduce.cu");
    snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-DGATHER=%s", f->gather);
    cvyi_make_define(m, "VARIANT", variant);
    cvyi_make_define(m, "TRAILING", f->trailing);
    cvyi_make_define_extents(m, 'X', &f->in);
    cvyi_make_define(m, "REDUCED", f->reduced);
    cvyi_make_define(m, "LANES", f->lanes);
    cvyi_make_define(m, "SPLITS", f->splits);
    cvyi_make_define(m, "TOGETHER", f->together);
    cvyi_make_define(m, "NEIGHBOURS", f->many);
    if (!f->inside) cvyi_make_define(m, "NOTHING_INSIDE", 1);
    m->many = f->many;
    m->step.extent = f->in.extent[0];
}

/* Gatherers of every part, in memory of our own. */
static cvy_status make_parts(maker *m, const reduce_choice *f, int64_t at)
{
    cvy_status st;

    start_reduce(m, f, 1);
    cvyi_make_own_view(m, at, "partials");
    TRY(cvyi_core_prologue(m, m->choice->form.core, &f->in));
    cvyi_core_grid(m, cvyi_ceil_div(f->kept, f->results), f->parts, 1, BLOCK_THREADS);
    TRY(cvyi_make_end(m, "partial"));
fail:
    return st;
}

cvy_status cvyi_core_reduction(maker *m)
{
    const int core = m->choice->form.core;
    const reduce_choice *f = &m->choice->reduce;
    const bool merges = f->parts > 1;
    const int64_t at = merges ? cvyi_make_memory(m, GATHERER_BYTES * f->kept * f->parts) : 0;
    cvy_status st;

    if (merges) TRY(make_parts(m, f, at));
    start_reduce(m, f, merges ? 2 : 0);
    cvyi_core_first_view(m, core, &f->out);
    if (merges) {
        cvyi_make_define(m, "PARTS", f->parts);
        cvyi_make_define(m, "PARTIALS", cvyi_make_own_view(m, at, "partials"));
    } else {
        TRY(cvyi_core_prologue(m, core, &f->in));
    }
    TRY(cvyi_core_epilogue(m, core, &f->out));
    cvyi_core_grid(m, cvyi_ceil_div(f->kept, merges ? BLOCK_THREADS / 32 : f->results), 1, 1, BLOCK_THREADS);
    TRY(cvyi_make_end(m, f->gather));
fail:
    return st;
}

/* Nothing is reduced but the parts of each result. */
cvy_status cvyi_core_add_many(maker *m, const space *out, const core_parts *p)
{
    const int core = m->choice->form.core;
    const reduce_choice f = {
        .gather = "sum", .in = *out, .many = ACCESS_FLOATS, .lanes = 1, .splits = 1, .together = 1, .inside = 1};
    cvy_status st;

    start_reduce(m, &f, 2);
    cvyi_core_first_view(m, core, out);
    cvyi_make_define(m, "PARTS", p->split);
    cvyi_make_define(m, "PARTIALS", cvyi_make_own_view(m, p->parts, "parts of sums"));
    if (p->bias != CVY_NONE) cvyi_core_bias(m, core, out, p->bias, p->slot);
    TRY(cvyi_core_epilogue(m, core, out));
    cvyi_core_grid(m, cvyi_ceil_div(cvyi_elements(&out->logical), BLOCK_THREADS / 32), 1, 1, BLOCK_THREADS);
    TRY(cvyi_make_end(m, "parts"));
fail:
    return st;
}

/* ---- its row of the table ---- */

static const char *refuse_reduce(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = cvyi_core_refusal(p, c, 1u << KIND_REDUCE, "not a reduction");
    const cvy_graph *g = p->graph;
    reduce_choice *f = &c->reduce;
    const node *n;
    const shape *x, *y;

    if (why) return why;
    n = &g->nodes[c->form.core];
    x = cvyi_shape_of(g, n->arg[0]);
    y = cvyi_shape_of(g, n->out);
    *f = (reduce_choice){.gather = cvyi_info(n)->name,
                         .in = cvyi_space_plain(x),
                         .out = {.extent = {1, 1, 1, 1, 1, 1}, .logical = *y},
                         .reduced = x->rank ? cvyi_reduced_dims(g, n) : 1};
    for (int d = 0, k = 0; d < x->rank; d++) {
        const bool gone = f->reduced >> d & 1;
        if (!gone) f->out.extent[d] = x->dim[d];
        if (!gone || y->rank == x->rank) f->out.place[k++] = d;
    }
    cvyi_reduce_spread(f, g->values[g->nodes[s->first].arg[0]].dtype);
    return NULL;
}

const kernel_row cvyi_kernel_reduce = {
    .name = "reduce", .refuse = refuse_reduce, .tune = cvyi_core_tune, .make = cvyi_core_reduction};
