/* decide.c - the rest of a pass's choice, once its row is known: how many samples are a unit, which nodes are
 * computed together, and which values lie in slices between steps. See choice.h. */
#include <stdio.h>
#include "choice.h"
#include "program.h"

/* ---- units ---- */

/* A small number of units is even, and from 4 on a multiple of 4, so two and four threads have equal work.
 */
static int64_t even_chunk(int64_t chunk, int64_t samples)
{
    const int64_t units = cvyi_ceil_div(samples, chunk);
    return units > 1 && units < 16 ? cvyi_ceil_div(samples, cvyi_round_up(units, units < 4 ? 2 : 4)) : chunk;
}

/* Samples taken together: enough elements to be worth a unit, enough rows for a matrix product, one for
 * convolutions. A function only of sizes. */
static int64_t choose_chunk(const cvy_plan *p, const pass *s)
{
    const cvy_graph *g = p->graph;
    const op_kind first = cvyi_info(&g->nodes[s->first])->kind;
    int64_t chunk = 1;
    double most = 1;

    if (first == KIND_CONV || first == KIND_CONVT) return 1;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &g->nodes[i];
        const double per = (double)cvyi_elements(cvyi_shape_of(g, n->arg[0])) / (double)s->samples;
        most = per > most ? per : most;
    }
    if (first == KIND_LINEAR || first == KIND_MATMUL) {
        matmul_geom m;
        cvyi_matmul_geom(g, &g->nodes[s->first], &m);
        chunk = cvyi_max64(192 / cvyi_max64(m.M / s->samples, 1), 1);
    }
    if ((double)chunk < 32768 / most) chunk = even_chunk((int64_t)(32768 / most), s->samples);
    return cvyi_min64(chunk, s->samples);
}

/* ---- which nodes are computed together ---- */

/* Nodes index ... index + n - 1 as one program, with `sink` after them; does it build? */
static bool program_fits(const cvy_plan *p, const pass *s, const cpu_choice *c, int index, int n, int sink)
{
    const site at = {.plan = p, .pass = s, .chunk = c->chunk, .units = c->units, .choice = c};
    program_room room;
    program trial = cvyi_program_in(&room);
    return cvyi_program_build(&at, index, n, sink, CVY_NONE, &trial);
}

node_choice cvyi_begin_node(const question *q, const cpu_row *row)
{
    return (node_choice){.row = row, .lead = -1, .per_part = row->per_part ? row->per_part(q) : 0};
}

/* A sink reads the last value of the program, which has the shape of the whole. */
static bool sink_after(const cvy_plan *p, const pass *s, int at)
{
    const node *nodes = p->graph->nodes;
    return at < s->first + s->count && cvyi_sink_fits(p, s, at) && nodes[at].arg[0] == nodes[at - 1].out;
}

static void lead_program(const cvy_plan *p, const pass *s, cpu_choice *c, int index)
{
    int n = cvyi_program_span(p, index, s->first + s->count);
    while (n > 1 && !program_fits(p, s, c, index, n, -1)) n--;
    if (n && sink_after(p, s, index + n) && program_fits(p, s, c, index, n, index + n)) n++;
    for (int i = 0; i < n; i++) cvyi_node_choice(s, c, index + i)->lead = index;
}

static void lead_conv(const pass *s, cpu_choice *c, int index)
{
    const conv_along *with = &cvyi_own_choice(s, c, index)->how.conv.along;
    if (with->pool >= 0) cvyi_node_choice(s, c, with->pool)->lead = index;
    if (with->stats >= 0) cvyi_node_choice(s, c, with->stats)->lead = index;
    if (with->prog_stats >= 0) cvyi_node_choice(s, c, with->prog_stats)->lead = index;
    for (int i = 0; i < with->n_prog; i++) cvyi_node_choice(s, c, with->prog + i)->lead = index;
    cvyi_node_choice(s, c, index)->centred = with->centred;
    if (with->pool >= 0) cvyi_node_choice(s, c, with->pool)->centred = with->centred;
}

void cvyi_lead(const cvy_plan *p, const pass *s, cpu_choice *c, int index)
{
    const node *n = &p->graph->nodes[index];
    const int v = p->root[n->arg[0]];
    node_choice *own = cvyi_node_choice(s, c, index);

    own->lead = index;
    if (cvyi_info(n)->kind == KIND_CONV)
        lead_conv(s, c, index);
    else if (own->row->program)
        lead_program(p, s, c, index);
    else if (cvyi_info(n)->kind == KIND_MAXPOOL && cvyi_made_inside(p, s, v)) /* of centred values: centred alike */
        own->centred = cvyi_node_choice(s, c, p->graph->values[v].node)->centred;
}

void cvyi_mark_reads(const cvy_plan *p, const pass *s, cpu_choice *c)
{
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &p->graph->nodes[i];
        if (cvyi_is_alias(p, i)) continue;
        for (int a = 0; a < n->n_args; a++) {
            const int v = n->arg[a] == CVY_NONE ? CVY_NONE : p->root[n->arg[a]];
            node_choice *maker;
            if (v == CVY_NONE || !cvyi_made_inside(p, s, v)) continue;
            maker = cvyi_node_choice(s, c, p->graph->values[v].node);
            maker->read_on |= maker->lead != cvyi_node_choice(s, c, i)->lead;
            maker->awaited |= !cvyi_node_choice(s, c, i)->row->program;
        }
    }
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &p->graph->nodes[i];
        node_choice *of = cvyi_node_choice(s, c, i);
        of->sliced = (of->read_on || cvyi_info(n)->kind == KIND_STATS) && !cvyi_is_alias(p, i) &&
                     !cvyi_memory_needed_after(p, s, n->out);
    }
}

static void decide_nodes(const cvy_plan *p, const pass *s, cpu_choice *c)
{
    for (int i = s->first; i < s->first + s->count; i++) {
        const question q = cvyi_ask(p, s, i);
        *cvyi_node_choice(s, c, i) = cvyi_begin_node(&q, i == s->first ? c->row : cvyi_only_row(&q));
        if (i == s->first && c->row->decide) c->row->decide(&q, c);
    }
    for (int i = s->first; i < s->first + s->count; i++)
        if (cvyi_node_choice(s, c, i)->lead < 0) cvyi_lead(p, s, c, i);
    cvyi_mark_reads(p, s, c);
    c->slices = cvyi_slice_bytes(p, s, c);
}

const char *cvyi_decide_pass(const cvy_plan *p, pass *s, cpu_choice *c)
{
    bool may_repeat;

    c->chunk = choose_chunk(p, s);
    c->units = cvyi_ceil_div(s->samples, c->chunk);
    decide_nodes(p, s, c);
    may_repeat = c->slices > 0 && !c->row->product && cvyi_conv_twice_fits(p, s);
    if (s->count > 1 && c->slices > (double)p->machine.cache && !may_repeat) {
        snprintf(s->note, sizeof s->note,
                 "a slice of %.1f MB does not stay in the %.1f MB of cache that a thread has", c->slices * 1e-6,
                 (double)p->machine.cache * 1e-6);
        return s->note;
    }
    c->twice = may_repeat && cvyi_recomputes(p, s, c);
    if (c->twice) decide_nodes(p, s, c);
    cvyi_pass_cost(p, s, c);
    return NULL;
}
