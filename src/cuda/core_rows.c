/* core_rows.c - statistics, norms, reductions and softmax: which kernel, with how many threads to a row. */
#include <math.h>
#include <stdio.h>
#include "choice.h"
#include "cores.h"

/* ---- statistics ---- */

static void define_norm(maker *m, const norm_geom *e)
{
    cvyi_make_define(m, "CENTRED", e->centred);
    if (isfinite(e->eps))
        snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-DEPS=%.17g", e->eps);
    else
        cvyi_make_define_text(m, isnan(e->eps) ? "-DEPS=CVY_NAN" : e->eps > 0 ? "-DEPS=CVY_INF" : "-DEPS=-CVY_INF");
}

static const char *define_stats(maker *m, const norm_geom *e, int variant, int64_t parts, int64_t samples)
{
    static const char *const variants[] = {"whole", "partial", "merge"};
    cvyi_make_define(m, "VARIANT", variant);
    cvyi_make_define(m, "GROUPS", e->groups);
    cvyi_make_define(m, "PER_GROUP", e->chan * e->inner);
    cvyi_make_define(m, "CHANNELS", cvyi_max64(e->chan, 1));
    cvyi_make_define(m, "OUTER_PER_SAMPLE", e->outer / samples);
    cvyi_make_define(m, "OVER_OUTER", e->over_outer);
    cvyi_make_define(m, "PARTS", parts);
    define_norm(m, e);
    return variants[variant];
}

/* value * sign[channel], before the statistics. */
static void add_sign(maker *m, const space *over, int sign)
{
    emit_line load = {.kind = EMIT_LOAD, .note = cvyi_make_label(m, sign)};
    emit_line mul = {.kind = EMIT_OP, .op = OP_mul, .a = m->pre.n - 1, .p = {0, 1}, .note = "sign"};

    load.view = cvyi_make_channel_view(m, sign, over->place[over->logical.rank > 1]);
    mul.b = cvyi_make_line(m, &m->pre, &load);
    cvyi_make_line(m, &m->pre, &mul);
}

/* Elements of 16 bytes; of 16 bits if some views have such. */
static int neighbours_of(const maker *m)
{
    int n = 4;

    for (int i = 0; i < m->step.n_views; i++)
        if (m->seen[i].dtype != CVY_FLOAT32) n = 8;
    return n;
}

enum { STATS_PART = 16384 }; /* elements of a slice that a block takes, at least */

cvy_status cvyi_make_stats(maker *m, int core, const norm_geom *e, int sign, int stats_value, int64_t stats_at)
{
    const node *n = &m->g->nodes[core];
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, n->arg[0]));
    const int64_t samples = cvyi_max64(in.extent[0], 1), slices = (e->over_outer ? 1 : e->outer) * e->groups;
    const int64_t size = e->chan * e->inner * (e->over_outer ? e->outer : 1);
    /* Depends only on the size of a slice, so no other sample changes a sample's bits. */
    const int64_t parts = cvyi_min64(cvyi_max64(size / STATS_PART, 1), 256);
    int64_t partials = 0;
    cvy_status st;

    if (!slices) return CVY_OK;
    if (parts > 1) partials = cvyi_make_memory(m, slices * parts * 24);
    cvyi_make_start(m, "norm_stats.cu");
    if (parts > 1)
        cvyi_make_own_view(m, partials, "partials");
    else if (stats_value != CVY_NONE)
        cvyi_make_raw_view(m, stats_value);
    else
        cvyi_make_own_view(m, stats_at, "statistics");
    TRY(cvyi_core_prologue(m, core, &in));
    if (sign != CVY_NONE) add_sign(m, &in, sign);
    cvyi_make_define_extents(m, 'X', &in);
    m->many = neighbours_of(m);
    cvyi_make_define(m, "NEIGHBOURS", m->many);
    m->step.extent = in.extent[0];
    cvyi_core_grid(m, slices, parts, 1, 256);
    TRY(cvyi_make_end(m, define_stats(m, e, parts > 1, parts, samples)));
    if (parts == 1) return CVY_OK;
    cvyi_make_start(m, "norm_stats.cu");
    if (stats_value != CVY_NONE)
        cvyi_make_raw_view(m, stats_value);
    else
        cvyi_make_own_view(m, stats_at, "statistics");
    cvyi_make_own_view(m, partials, "partials");
    m->step.extent = in.extent[0];
    cvyi_core_grid(m, cvyi_ceil_div(slices, 8), 1, 1, 256);
    TRY(cvyi_make_end(m, define_stats(m, e, 2, parts, samples)));
fail:
    return st;
}

/* ---- rows that stay on chip ---- */

/* The macros that held.cuh needs; the rows of the space `in`. */
static void define_held(maker *m, const held_form *f, const space *in)
{
    const int64_t rows = cvyi_elements(&in->logical) / f->row;

    cvyi_make_define_extents(m, 'X', in);
    cvyi_make_define(m, "ROW", f->row);
    cvyi_make_define(m, "LANES", f->lanes);
    cvyi_make_define(m, "THREADS", f->threads);
    cvyi_make_define(m, "HELD", f->held);
    cvyi_make_define(m, "PARKED", f->parked);
    m->many = 4;
    m->step.extent = in->extent[0];
    m->step.launch.dynamic_shared = f->shared_bytes;
    cvyi_core_grid(m, cvyi_ceil_div(rows, f->threads / f->lanes), 1, 1, (unsigned)f->threads);
}

/* A kernel whose result is as large as what its core reads. */
typedef struct row_kernel {
    const char *source;
    int result;                                /* the node that the epilogue follows */
    void (*define)(maker *m, const space *in); /* options and grid */
    void (*affine)(maker *m, const space *in); /* what precedes the epilogue; NULL: nothing */
} row_kernel;

static cvy_status make_rows(maker *m, const row_kernel *k)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[k->result];
    const space in = cvyi_space_plain(cvyi_shape_of(m->g, m->g->nodes[core].arg[0]));
    cvy_status st;

    if (!cvyi_elements(&in.logical)) return CVY_OK;
    cvyi_make_start(m, k->source);
    k->define(m, &in);
    cvyi_core_first_view(m, k->result, &in);
    TRY(cvyi_core_prologue(m, core, &in));
    if (k->affine) k->affine(m, &in);
    TRY(cvyi_core_epilogue(m, k->result, &in));
    TRY(cvyi_make_end(m, cvyi_info(n)->name));
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
    const node *n = &m->g->nodes[m->choice->form.core + 1];
    const norm_geom e = norm_of_core(m);
    emit_line l = {.kind = EMIT_SCALE, .op = n->op, .a = EMIT_ARGUMENT, .note = cvyi_info(n)->name};

    m->post.over = *in;
    l.weight = cvyi_make_affine_view(m, &m->post, &e, n->n_args > 2 ? n->arg[2] : CVY_NONE);
    l.bias = cvyi_make_affine_view(m, &m->post, &e, n->n_args > 3 ? n->arg[3] : CVY_NONE);
    m->post.line_of[n->out] =
        l.weight == CVY_NONE && l.bias == CVY_NONE ? EMIT_ARGUMENT : cvyi_make_line(m, &m->post, &l);
}

/* Statistics and the norm after them. */
static cvy_status make_norm(maker *m)
{
    return make_rows(m, &(row_kernel){"norm.cu", m->choice->form.core + 1, define_norm_rows, add_norm_affine});
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
    return make_rows(m, &(row_kernel){"softmax_row.cu", m->choice->form.core, define_softmax_row, NULL});
}

/* ---- reductions, softmax ---- */

static int64_t lower_power_of_two(int64_t n, int64_t most)
{
    int64_t p = 1;
    while (2 * p <= n && 2 * p <= most) p *= 2;
    return p;
}

/* How many threads share one result if they read neighbouring elements, `width` at a time. */
static int64_t choose_lanes(int64_t inside, int64_t width)
{
    const int64_t accesses = inside / width;
    return accesses >= 512 ? 256 : lower_power_of_two(accesses, 32);
}

/* Is the innermost dimension that has any extent among the reduced ones? */
static bool innermost_reduced(const space *s, unsigned reduced)
{
    int d = EMIT_DIMS - 1;
    while (d > 0 && s->extent[d] == 1) d--;
    return reduced >> d & 1;
}

/* Are the reduced dimensions the last ones? Those of extent 1 count as either, except for dimension 0, whose extent
 * is an argument of the kernel. */
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

/* Elements from one of the kept last dimensions to the next reduced one: neighbours whose results are neighbours.
 */
static int64_t kept_run(const space *s, unsigned reduced)
{
    int64_t run = 1;
    for (int d = EMIT_DIMS - 1; d >= 0 && !(reduced >> d & 1); d--) run *= s->extent[d];
    return run;
}

/* How a reduction is spread over threads and blocks. It depends only on the extents of one sample (of all, if
 * samples are reduced), so that no other sample changes a sample's bits. */
typedef struct reduce_spread {
    bool trailing;         /* elements of a result are neighbours */
    int many;              /* elements of an access of 16 bytes */
    int64_t lanes, splits; /* threads that share a result: neighbouring ones; rows of a block's threads */
    int64_t together;      /* neighbouring results of a thread */
    int64_t parts;         /* blocks that share a result */
    int64_t results;       /* of a block */
    int64_t inside, kept;  /* elements of a result; results */
} reduce_spread;

enum { REDUCE_THREADS = 256, REDUCE_UNROLL = 4, FEWEST_PARTS = 8, MOST_BLOCKS = 1024 };

/* Blocks that share each result: a round of accesses each up to 256 blocks, four rounds up to 1,024. A million
 * elements: 245 blocks of 4,096. */
static int64_t choose_parts(const reduce_spread *f, int64_t of_sample)
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
static reduce_spread choose_reduce(const space *in, unsigned reduced, cvy_dtype dtype)
{
    reduce_spread f = {
        .trailing = trailing_reduced(in, reduced), .splits = 1, .together = 1, .inside = 1, .kept = 1};
    const bool across = !innermost_reduced(in, reduced);
    int64_t of_sample, run;

    for (int d = 0; d < EMIT_DIMS; d++) *(reduced >> d & 1 ? &f.inside : &f.kept) *= in->extent[d];
    of_sample = reduced & 1 || !in->extent[0] ? f.kept : f.kept / in->extent[0];
    run = !f.trailing ? kept_run(in, reduced) : reduced & 1 ? 0 : f.inside;
    f.many = dtype != CVY_FLOAT32 && run % 8 == 0 ? 8 : 4;
    f.lanes = across ? 1 : choose_lanes(f.inside, f.trailing && f.inside % f.many == 0 ? f.many : 1);
    if (across && !f.trailing && run % f.many == 0) f.together = f.many;
    if (across && f.inside >= 32) f.splits = 8;
    f.results = REDUCE_THREADS / f.lanes / f.splits * f.together;
    f.parts = choose_parts(&f, of_sample);
    return f;
}

static void start_reduce(maker *m, const char *gather, const reduce_spread *f, int variant, const space *in,
                         unsigned reduced)
{
    cvyi_make_start(m, "reduce.cu");
    snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-DGATHER=%s", gather);
    cvyi_make_define(m, "VARIANT", variant);
    cvyi_make_define(m, "TRAILING", f->trailing);
    cvyi_make_define_extents(m, 'X', in);
    cvyi_make_define(m, "REDUCED", reduced);
    cvyi_make_define(m, "LANES", f->lanes);
    cvyi_make_define(m, "SPLITS", f->splits);
    cvyi_make_define(m, "TOGETHER", f->together);
    cvyi_make_define(m, "NEIGHBOURS", f->many);
    if (!f->inside) cvyi_make_define(m, "NOTHING_INSIDE", 1);
    m->many = f->many;
    m->step.extent = in->extent[0];
}

/* The partial results of every part, in the engine's memory. */
static cvy_status make_parts(maker *m, int core, const char *gather, const reduce_spread *f, const space *in,
                             unsigned reduced, int64_t at)
{
    cvy_status st;

    start_reduce(m, gather, f, 1, in, reduced);
    cvyi_make_own_view(m, at, "partials");
    TRY(cvyi_core_prologue(m, core, in));
    cvyi_core_grid(m, cvyi_ceil_div(f->kept, f->results), f->parts, 1, REDUCE_THREADS);
    TRY(cvyi_make_end(m, "partial"));
fail:
    return st;
}

cvy_status cvyi_core_reduction(maker *m, int core, const char *gather, const space *in, const space *out,
                               unsigned reduced)
{
    enum { GATHERER = 8 }; /* bytes at most */
    const cvy_dtype dtype = m->g->values[m->g->nodes[m->pass->first].arg[0]].dtype;
    const reduce_spread f = choose_reduce(in, reduced, dtype);
    const bool merges = f.parts > 1;
    const int64_t at = merges ? cvyi_make_memory(m, GATHERER * f.kept * f.parts) : 0;
    cvy_status st;

    if (merges) TRY(make_parts(m, core, gather, &f, in, reduced, at));
    start_reduce(m, gather, &f, merges ? 2 : 0, in, reduced);
    cvyi_core_first_view(m, core, out);
    if (merges) {
        cvyi_make_define(m, "PARTS", f.parts);
        cvyi_make_define(m, "PARTIALS", cvyi_make_own_view(m, at, "partials"));
    } else {
        TRY(cvyi_core_prologue(m, core, in));
    }
    TRY(cvyi_core_epilogue(m, core, out));
    cvyi_core_grid(m, cvyi_ceil_div(f.kept, merges ? REDUCE_THREADS / 32 : f.results), 1, 1, REDUCE_THREADS);
    TRY(cvyi_make_end(m, gather));
fail:
    return st;
}

/* Reduces only the parts of each result. */
cvy_status cvyi_core_add_many(maker *m, const space *out, const core_parts *p)
{
    const int core = m->choice->form.core;
    const reduce_spread f = {.many = 4, .lanes = 1, .splits = 1, .together = 1, .inside = 1};
    cvy_status st;

    start_reduce(m, "sum", &f, 2, out, 0);
    cvyi_core_first_view(m, core, out);
    cvyi_make_define(m, "PARTS", p->split);
    cvyi_make_define(m, "PARTIALS", cvyi_make_own_view(m, p->parts, "parts of sums"));
    if (p->bias != CVY_NONE) cvyi_core_bias(m, core, out, p->bias, p->slot);
    TRY(cvyi_core_epilogue(m, core, out));
    cvyi_core_grid(m, cvyi_ceil_div(cvyi_elements(&out->logical), REDUCE_THREADS / 32), 1, 1, REDUCE_THREADS);
    TRY(cvyi_make_end(m, "parts"));
fail:
    return st;
}

static cvy_status make_reduce(maker *m)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];
    const shape *x = cvyi_shape_of(m->g, n->arg[0]), *y = cvyi_shape_of(m->g, n->out);
    const space in = cvyi_space_plain(x);
    const unsigned reduced = x->rank ? cvyi_reduced_dims(m->g, n) : 1;
    space out = {.extent = {1, 1, 1, 1, 1, 1}, .logical = *y};

    for (int d = 0, k = 0; d < x->rank; d++) {
        const bool gone = reduced >> d & 1;
        if (!gone) out.extent[d] = x->dim[d];
        if (!gone || y->rank == x->rank) out.place[k++] = d;
    }
    return cvyi_core_reduction(m, core, cvyi_info(n)->name, &in, &out, reduced);
}

static void define_softmax(maker *m, const space *in)
{
    const int dim = cvyi_softmax_dim(m->g, &m->g->nodes[m->choice->form.core]);
    const int64_t inside = in->extent[dim];
    const int64_t lanes = innermost_reduced(in, 1u << dim) ? choose_lanes(inside, 1) : 1;

    define_logarithm(m);
    cvyi_make_define_extents(m, 'X', in);
    cvyi_make_define(m, "REDUCED", (int64_t)1 << dim);
    cvyi_make_define(m, "LANES", lanes);
    m->step.extent = in->extent[0];
    cvyi_core_grid(m, cvyi_ceil_div(cvyi_elements(&in->logical) / inside, 256 / lanes), 1, 1, 256);
}

static cvy_status make_softmax(maker *m)
{
    return make_rows(m, &(row_kernel){"softmax.cu", m->choice->form.core, define_softmax, NULL});
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

static const char *refuse_reduce(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    (void)s;
    return cvyi_core_refusal(p, c, 1u << KIND_REDUCE, "not a reduction");
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
    (void)s;
    return why || !c->form.resident ? why : "statistics and their norm: norm's";
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
    (void)s;
    return why || !c->form.resident ? why : "rows stay on chip: softmax_row's";
}

const kernel_row cvyi_kernel_reduce = {
    .name = "reduce", .refuse = refuse_reduce, .tune = cvyi_core_tune, .make = make_reduce};
const kernel_row cvyi_kernel_norm = {
    .name = "norm", .refuse = refuse_norm, .tune = cvyi_core_tune, .make = make_norm, .images = true};
const kernel_row cvyi_kernel_norm_stats = {.name = "norm_stats",
                                           .refuse = refuse_norm_stats,
                                           .tune = cvyi_core_tune,
                                           .make = make_norm_stats,
                                           .images = true};
const kernel_row cvyi_kernel_softmax_row = {
    .name = "softmax_row", .refuse = refuse_softmax_row, .tune = cvyi_core_tune, .make = make_softmax_row};
const kernel_row cvyi_kernel_softmax = {
    .name = "softmax", .refuse = refuse_softmax, .tune = cvyi_core_tune, .make = make_softmax};
