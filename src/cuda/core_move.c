/* core_move.c - operators that only move elements: one launch of move.cu for each argument. */
#include <math.h>
#include <stdio.h>
#include "choice.h"
#include "cores.h"

/* -DNAME=a,b,c,d,e,f; nothing if all are the default. */
static void define_six(maker *m, const char *name, const move_geom *g, const int64_t *values, int64_t otherwise)
{
    text t = {0};
    bool plain = true;

    cvyi_text_add(&t, "-D%s=", name);
    for (int d = 0; d < EMIT_DIMS; d++) {
        const int64_t v = d < g->rank ? values[d] : otherwise;
        plain &= v == otherwise;
        cvyi_text_add(&t, "%s%lld", d ? "," : "", (long long)v);
    }
    if (!plain && !t.failed) cvyi_make_define_text(m, t.data);
    cvyi_text_free(&t);
}

static void define_from(maker *m, const move_geom *g)
{
    for (int d = 0; d < EMIT_DIMS; d++) {
        const char name[6] = {'F', 'R', 'O', 'M', (char)('0' + d), '\0'};
        cvyi_make_define(m, name, d < g->rank ? g->from[d] : d);
    }
}

static void define_fill(maker *m, const move_geom *g, const space *in)
{
    if (!g->fills) return;
    cvyi_make_define(m, "FILLS", 1);
    cvyi_make_define(m, "X0", cvyi_elements(&in->logical) ? in->extent[0] : 0);
    if (isfinite(g->fill))
        snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-DFILL=(float)%.17g", g->fill);
    else
        cvyi_make_define_text(m, isnan(g->fill) ? "-DFILL=CVY_NAN"
                                 : g->fill > 0  ? "-DFILL=CVY_INF"
                                                : "-DFILL=-CVY_INF");
}

/* Elements that are neighbours in the argument, in the window and in the result, and begin at a multiple of so many
 * in each: how many one access moves. */
static int straight(const maker *m, const move_geom *g, const shape *x, const shape *y)
{
    const int last = g->rank - 1;

    if (last < 1 || g->from[last] != last || g->times[last] != g->over[last]) return 1;
    for (int many = cvyi_make_widest(m); many >= ACCESS_FLOATS; many /= 2)
        if ((x->dim[last] | y->dim[last] | g->at[last] | g->start[last] | g->count[last]) % many == 0) return many;
    return 1;
}

/* If the rest is filled the window is all of the result, and begins before the argument does. */
static void widen(move_geom *g, const shape *y)
{
    for (int d = 0; g->fills && d < g->rank; d++) {
        g->start[d] -= g->at[d];
        g->at[d] = 0;
        g->count[d] = y->dim[d];
    }
}

/* Coordinates are of 32 bits. */
static cvy_status check_extents(const char *name, const shape *s)
{
    for (int d = 0; d < s->rank; d++)
        if (s->dim[d] > INT32_MAX)
            return cvyi_fail(CVY_UNSUPPORTED, "cuda: %s: extent %lld of dimension %d, at most 2^31 - 1 is possible",
                             name, (long long)s->dim[d], d);
    return CVY_OK;
}

static cvy_status make_argument(maker *m, int core, int arg)
{
    const node *n = &m->g->nodes[core];
    const shape *x = cvyi_shape_of(m->g, n->arg[arg]), *y = cvyi_shape_of(m->g, n->out);
    const space in = cvyi_space_plain(x), out = cvyi_space_plain(y);
    shape window = *y;
    move_geom g;
    int each;
    cvy_status st = CVY_OK;

    TRY(check_extents(cvyi_info(n)->name, x));
    TRY(check_extents(cvyi_info(n)->name, y));
    cvyi_move_geom(m->g, n, arg, &g);
    widen(&g, y);
    for (int d = 0; d < g.rank; d++) window.dim[d] = g.count[d];
    const space box = cvyi_space_plain(&window);
    cvyi_make_start(m, "move.cu");
    cvyi_core_first_view(m, core, &out);
    if (arg == 0) {
        TRY(cvyi_core_prologue(m, core, &in));
    } else {
        m->pre.over = in;
        cvyi_make_operand(m, &m->pre, n->arg[arg]);
    }
    TRY(cvyi_core_epilogue(m, core, &out));
    each = straight(m, &g, x, y);
    m->many = most(each, ACCESS_FLOATS);
    cvyi_make_define_extents(m, 'X', &in);
    cvyi_make_define_extents(m, 'Y', &out);
    cvyi_make_define_extents(m, 'B', &box);
    define_from(m, &g);
    define_six(m, "AT", &g, g.at, 0);
    define_six(m, "START", &g, g.start, 0);
    define_six(m, "TIMES", &g, g.times, 1);
    define_six(m, "OVER", &g, g.over, 1);
    define_fill(m, &g, &in);
    cvyi_make_define(m, "EACH", each);
    cvyi_make_define(m, "ALONG", cvyi_max64(g.rank - 1, 0));
    m->step.extent = box.extent[0];
    cvyi_core_grid(m, cvyi_ceil_div(cvyi_elements(&window), BLOCK_THREADS * each), 1, 1, BLOCK_THREADS);
    TRY(cvyi_make_end(m, cvyi_info(n)->name));
fail:
    return st;
}

static cvy_status make_move(maker *m)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];
    cvy_status st = CVY_OK;

    for (int a = 0; a < n->n_args; a++)
        if (n->arg[a] != CVY_NONE) TRY(make_argument(m, core, a));
fail:
    return st;
}

static const char *refuse_move(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    (void)s;
    return cvyi_core_refusal(p, c, 1u << KIND_MOVE, "does more than move elements");
}

/* A launch for each argument. */
static void tune_move(const cvy_plan *p, pass *s, const cuda_choice *c)
{
    const node *n = &p->graph->nodes[c->form.core];
    int launches = 0;

    cvyi_core_tune(p, s, c);
    for (int a = 0; a < n->n_args; a++) launches += n->arg[a] != CVY_NONE;
    s->seconds += (launches - 1) * p->machine.launch;
}

const kernel_row cvyi_kernel_move = {.name = "move", .refuse = refuse_move, .tune = tune_move, .make = make_move};
