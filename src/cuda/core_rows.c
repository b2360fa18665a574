/* core_rows.c - statistics, norms and softmax: which kernel, with how many threads to a row. */
#include <math.h>
#include <stdio.h>
#include "choice.h"
#include "cores.h"
#include "kernels/host_device.cuh"

/* ---- statistics ---- */

static void define_norm(maker *m, const norm_geom *e)
{
    cvyi_make_define(m, "CENTRED", e->centred);
    if (isfinite(e->eps))
        snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-DEPS=%.17g", e->eps);
    else
        cvyi_make_define_text(m, isnan(e->eps) ? "-DEPS=CVY_NAN" : e->eps > 0 ? "-DEPS=CVY_INF" : "-DEPS=-CVY_INF");
}

/* What norm_stats.cu and norm_stats_last.cu are both told. */
static void define_groups(maker *m, const norm_geom *e, int64_t parts)
{
    cvyi_make_define(m, "GROUPS", e->groups);
    cvyi_make_define(m, "CHANNELS", cvyi_max64(e->chan, 1));
    cvyi_make_define(m, "PARTS", parts);
    define_norm(m, e);
}

static const char *define_stats(maker *m, const norm_geom *e, int variant, int64_t parts, int64_t samples)
{
    static const char *const variants[] = {"whole", "partial", "merge"};
    cvyi_make_define(m, "VARIANT", variant);
    cvyi_make_define(m, "PER_GROUP", e->chan * e->inner);
    cvyi_make_define(m, "OUTER_PER_SAMPLE", e->outer / samples);
    cvyi_make_define(m, "OVER_OUTER", e->over_outer);
    define_groups(m, e, parts);
    return variants[variant];
}

/* value * sign[channel], before the statistics. */
static void add_sign(maker *m, const space *over, int sign)
{
    emit_statement load = {.kind = EMIT_LOAD, .note = cvyi_make_label(m, sign)};
    emit_statement mul = {.kind = EMIT_OP, .op = OP_mul, .a = m->pre.n - 1, .p = {0, 1}, .note = "sign"};

    load.view = cvyi_make_channel_view(m, sign, over->place[over->logical.rank > 1]);
    mul.b = cvyi_make_statement(m, &m->pre, &load);
    cvyi_make_statement(m, &m->pre, &mul);
}

/* Threads of a block share a pixel, each with channels of one group. */
static int64_t units_of(const stats_choice *f, const norm_geom *e)
{
    return f->chunk * e->chan / f->width;
}

/* Only by the size of a slice, so that no other sample changes a sample's bits. Channels last, a block has groups
 * of 64 channels together if there are as many: a line of 16-bit elements. */
stats_choice cvyi_stats_choice(const norm_geom *e)
{
    enum { PART = 16384, MOST = 256, LINE = 64 }; /* elements of a slice that a block takes, at least; blocks */
    const int64_t size = e->chan * e->inner * (e->over_outer ? e->outer : 1);
    stats_choice f = {.parts = cvyi_min64(cvyi_max64(size / PART, 1), MOST), .width = 1, .chunk = 1};
    int64_t most;

    while (f.width < LAST_CHANNELS && e->chan % (2 * f.width) == 0) f.width *= 2;
    most = cvyi_min64(e->groups, e->chan ? BLOCK_THREADS * f.width / e->chan : 1); /* a thread for each unit */
    for (int64_t chunk = 2; chunk <= most && f.chunk * e->chan < LINE; chunk++)
        if (e->groups % chunk == 0) f.chunk = chunk;
    f.parts_last = cvyi_min64(cvyi_max64(f.chunk * e->chan * e->inner / PART, 1), MOST);
    return f;
}

typedef struct stats_source {
    int core, sign, value; /* a node; CVY_NONE: no sign; the statistics' value, or CVY_NONE: */
    int64_t at;            /* they are at this byte of the engine's memory */
    const norm_geom *geom;
} stats_source;

static void add_stats_view(maker *m, const stats_source *s)
{
    if (s->value != CVY_NONE)
        cvyi_make_raw_view(m, s->value);
    else
        cvyi_make_own_view(m, s->at, "statistics");
}

static cvy_status add_source(maker *m, const stats_source *s, const space *in)
{
    cvy_status st;

    TRY(cvyi_core_prologue(m, s->core, in));
    if (s->sign != CVY_NONE) add_sign(m, in, s->sign);
    cvyi_make_define_extents(m, 'X', in);
    m->step.extent = in->extent[0];
fail:
    return st;
}

static cvy_status merge_stats(maker *m, const stats_source *s, int64_t partials, int64_t parts)
{
    const norm_geom *e = s->geom;
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, m->g->nodes[s->core].arg[0]));
    const int64_t slices = (e->over_outer ? 1 : e->outer) * e->groups;

    cvyi_make_start(m, "norm_stats.cu");
    add_stats_view(m, s);
    cvyi_make_own_view(m, partials, "partials");
    m->step.extent = in.extent[0];
    cvyi_core_grid(m, cvyi_ceil_div(slices, BLOCK_THREADS / 32), 1, 1, BLOCK_THREADS);
    return cvyi_make_end(m, define_stats(m, e, 2, parts, cvyi_max64(in.extent[0], 1)));
}

static cvy_status make_stats_last(maker *m, const stats_source *s)
{
    const norm_geom *e = s->geom;
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, m->g->nodes[s->core].arg[0]));
    const stats_choice *f = &m->choice->stats;
    const int64_t partials = cvyi_make_memory(m, e->outer * e->groups * f->parts_last * MOMENTS_BYTES);
    cvy_status st;

    cvyi_make_start(m, "norm_stats_last.cu");
    cvyi_make_own_view(m, partials, "partials");
    m->many = (int)f->width;
    m->of_pixel = true;
    TRY(add_source(m, s, &in));
    define_groups(m, e, f->parts_last);
    cvyi_make_define(m, "CHUNK", f->chunk);
    cvyi_make_define(m, "WIDTH", f->width);
    cvyi_core_grid(m, in.extent[0] * (e->groups / f->chunk), f->parts_last, 1, BLOCK_THREADS);
    TRY(cvyi_make_end(m, ""));
    TRY(merge_stats(m, s, partials, f->parts_last));
fail:
    return st;
}

static cvy_status make_stats_plain(maker *m, const stats_source *s)
{
    const norm_geom *e = s->geom;
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, m->g->nodes[s->core].arg[0]));
    const int64_t samples = cvyi_max64(in.extent[0], 1), slices = (e->over_outer ? 1 : e->outer) * e->groups;
    const int64_t parts = m->choice->stats.parts;
    int64_t partials = 0;
    cvy_status st;

    if (parts > 1) partials = cvyi_make_memory(m, slices * parts * MOMENTS_BYTES);
    cvyi_make_start(m, "norm_stats.cu");
    if (parts > 1)
        cvyi_make_own_view(m, partials, "partials");
    else
        add_stats_view(m, s);
    TRY(add_source(m, s, &in));
    m->many = cvyi_make_widest(m);
    cvyi_make_define(m, "NEIGHBOURS", m->many);
    cvyi_core_grid(m, slices, parts, 1, BLOCK_THREADS);
    TRY(cvyi_make_end(m, define_stats(m, e, parts > 1, parts, samples)));
    if (parts > 1) TRY(merge_stats(m, s, partials, parts));
fail:
    return st;
}

static cvy_status make_stats(maker *m, const void *source)
{
    const stats_source *s = source;
    const bool last = cvyi_lies_last(m, m->g->nodes[m->pass->first].arg[0]);

    return (last ? make_stats_last : make_stats_plain)(m, s);
}

cvy_status cvyi_make_stats(maker *m, int core, const norm_geom *e, int sign, int stats_value, int64_t stats_at)
{
    const stats_source s = {core, sign, stats_value, stats_at, e};

    if (!e->groups || (!e->over_outer && !e->outer)) return CVY_OK;
    return cvyi_make_both(m, make_stats, &s);
}

/* ---- rows that stay on chip ---- */

/* The macros that held.cuh needs; the rows of the space `in`. */
static void define_held(maker *m, const held_rows *f, const space *in)
{
    const int64_t rows = cvyi_elements(&in->logical) / f->row;

    cvyi_make_define_extents(m, 'X', in);
    cvyi_make_define(m, "ROW", f->row);
    cvyi_make_define(m, "NEIGHBOURS", f->width);
    cvyi_make_define(m, "LANES", f->lanes);
    cvyi_make_define(m, "THREADS", f->threads);
    cvyi_make_define(m, "HELD", f->held);
    cvyi_make_define(m, "PARKED", f->parked);
    m->many = ACCESS_FLOATS;
    m->step.extent = in->extent[0];
    m->step.launch.dynamic_shared = f->shared_bytes;
    cvyi_core_grid(m, cvyi_ceil_div(rows, f->threads / f->lanes), 1, 1, (unsigned)f->threads);
}

/* A kernel whose result is as large as what its core reads. */
typedef struct row_kernel {
    const char *source;
    void (*define)(maker *m, const space *in); /* options and grid */
    void (*affine)(maker *m, const space *in); /* what precedes the epilogue; NULL: nothing */
} row_kernel;

static cvy_status make_rows(maker *m, const row_kernel *k)
{
    const int core = m->choice->form.core, result = m->choice->form.result;
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, m->g->nodes[core].arg[0]));
    cvy_status st;

    if (!cvyi_elements(&in.logical)) return CVY_OK;
    cvyi_make_start(m, k->source);
    k->define(m, &in);
    cvyi_core_first_view(m, result, &in);
    TRY(cvyi_core_prologue(m, core, &in));
    if (k->affine) k->affine(m, &in);
    TRY(cvyi_core_epilogue(m, result, &in));
    TRY(cvyi_make_end(m, cvyi_info(&m->g->nodes[result])->name));
fail:
    return st;
}

static norm_geom norm_of_core(const maker *m)
{
    norm_geom e;

    cvyi_norm_geom(m->g, &m->g->nodes[m->choice->form.core], &e);
    return e;
}

static void define_norm_rows(maker *m, const space *in)
{
    const norm_geom e = norm_of_core(m);

    define_norm(m, &e);
    define_held(m, &m->choice->form.held, in);
}

/* The kernel leaves the affine operator to the epilogue. */
static void add_norm_affine(maker *m, const space *in)
{
    const node *n = &m->g->nodes[m->choice->form.result];
    const norm_geom e = norm_of_core(m);
    emit_statement l = {.kind = EMIT_SCALE, .op = n->op, .a = EMIT_ARGUMENT, .note = cvyi_info(n)->name};

    m->post.over = *in;
    l.weight = cvyi_make_affine_view(m, &m->post, &e, n->n_args > 2 ? n->arg[2] : CVY_NONE);
    l.bias = cvyi_make_affine_view(m, &m->post, &e, n->n_args > 3 ? n->arg[3] : CVY_NONE);
    m->post.statement_of[n->out] =
        l.weight == CVY_NONE && l.bias == CVY_NONE ? EMIT_ARGUMENT : cvyi_make_statement(m, &m->post, &l);
}

/* Statistics and the norm after them. */
static cvy_status make_norm(maker *m)
{
    return make_rows(m, &(row_kernel){"norm.cu", define_norm_rows, add_norm_affine});
}

static void define_logarithm(maker *m)
{
    cvyi_make_define(m, "LOGARITHM", m->g->nodes[m->choice->form.core].op == OP_log_softmax);
}

static void define_softmax_row(maker *m, const space *in)
{
    define_logarithm(m);
    define_held(m, &m->choice->form.held, in);
}

static cvy_status make_softmax_row(maker *m)
{
    return make_rows(m, &(row_kernel){"softmax_row.cu", define_softmax_row, NULL});
}

/* ---- softmax of rows that do not ---- */

static void define_softmax(maker *m, const space *in)
{
    const int dim = cvyi_softmax_dim(m->g, &m->g->nodes[m->choice->form.core]);
    const int64_t inside = in->extent[dim], lanes = m->choice->lanes;

    define_logarithm(m);
    cvyi_make_define_extents(m, 'X', in);
    cvyi_make_define(m, "REDUCED", (int64_t)1 << dim);
    cvyi_make_define(m, "LANES", lanes);
    m->step.extent = in->extent[0];
    cvyi_core_grid(m, cvyi_ceil_div(cvyi_elements(&in->logical) / inside, BLOCK_THREADS / lanes), 1, 1,
                   BLOCK_THREADS);
}

static cvy_status make_softmax(maker *m)
{
    return make_rows(m, &(row_kernel){"softmax.cu", define_softmax, NULL});
}

/* ---- rows of the table ---- */

static cvy_status make_norm_stats(maker *m)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];
    norm_geom e;

    cvyi_norm_geom(m->g, n, &e);
    return cvyi_make_stats(m, core, &e, n->n_args > 1 ? n->arg[1] : CVY_NONE, n->out, 0);
}

static const char *refuse_norm(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = cvyi_core_refusal(p, c, 1u << KIND_STATS, "not statistics and their norm");
    (void)s;
    return why || c->form.resident ? why : "statistics without their norm";
}

static const char *refuse_norm_stats(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = cvyi_core_refusal(p, c, 1u << KIND_STATS, "not statistics");
    norm_geom e;

    (void)s;
    if (why) return why;
    if (c->form.resident) return "statistics and their norm: norm's";
    cvyi_norm_geom(p->graph, &p->graph->nodes[c->form.core], &e);
    c->stats = cvyi_stats_choice(&e);
    return NULL;
}

/* Groups of channels, over the pixels of a sample. */
static bool stats_take_last(const cvy_plan *p, const cuda_choice *c)
{
    const node *n = &p->graph->nodes[c->form.core];
    const shape *x = cvyi_shape_of(p->graph, n->arg[0]);
    norm_geom e;

    cvyi_norm_geom(p->graph, n, &e);
    return !e.over_outer && x->rank > 2 && e.outer == x->dim[0] && e.groups * e.chan == x->dim[1] &&
           e.outer * x->dim[1] * e.inner == cvyi_elements(x) && e.inner <= INT32_MAX / 2 &&
           units_of(&c->stats, &e) <= BLOCK_THREADS;
}

static const char *refuse_softmax_row(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = cvyi_core_refusal(p, c, 1u << KIND_SOFTMAX, "not a softmax");
    (void)s;
    return why || c->form.resident ? why : "a row does not stay on chip, or is not in one piece";
}

static const char *refuse_softmax(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = cvyi_core_refusal(p, c, 1u << KIND_SOFTMAX, "not a softmax");
    const node *n = why ? NULL : &p->graph->nodes[c->form.core];
    space in;

    (void)s;
    if (why) return why;
    if (c->form.resident) return "rows stay on chip: softmax_row's";
    in = cvyi_space_plain(cvyi_shape_of(p->graph, n->arg[0]));
    c->lanes = cvyi_reduce_lanes(&in, 1u << cvyi_softmax_dim(p->graph, n), 1);
    return NULL;
}

const kernel_row cvyi_kernel_norm = {
    .name = "norm", .refuse = refuse_norm, .tune = cvyi_core_tune, .make = make_norm, .images = true};
const kernel_row cvyi_kernel_norm_stats = {.name = "norm_stats",
                                           .refuse = refuse_norm_stats,
                                           .tune = cvyi_core_tune,
                                           .make = make_norm_stats,
                                           .channels_last = stats_take_last,
                                           .images = true};
const kernel_row cvyi_kernel_softmax_row = {
    .name = "softmax_row", .refuse = refuse_softmax_row, .tune = cvyi_core_tune, .make = make_softmax_row};
const kernel_row cvyi_kernel_softmax = {
    .name = "softmax", .refuse = refuse_softmax, .tune = cvyi_core_tune, .make = make_softmax};
