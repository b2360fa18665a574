/* program_build.c - which nodes share a program, and building it. See program_build.h. */
#include <string.h>
#include "program_build.h"

/* Columns of a vertical sink at a time. Long rows keep the prefetchers at work: B takes 95 ms with rows of 1024,
 * 123 ms with rows of 96 that would fit the first-level cache. Narrower if few columns would leave threads idle.
 */
static int64_t sink_width(const program *p, int64_t units)
{
    int64_t width = cvyi_min64(TILE, cvyi_round_up(p->inner, 16)), others = units;
    for (int d = 0; d < p->reduce_first; d++) others *= p->outer[d];
    while (width > 128 && others * cvyi_ceil_div(p->inner, width) < 8) width = cvyi_round_up(width / 2, 16);
    return width;
}

/* Elements of a row from which on it is cut into segments of so many, which threads can share. */
enum { SEGMENT = 32768 };

static void place_sink(assembler *s)
{
    program *p = s->p;
    const node *n = &s->g->nodes[s->sink];
    int first, end;

    cvyi_sink_dims(&s->sp, &first, &end);
    p->sink = cvyi_info(n)->kind == KIND_SOFTMAX ? SINK_SOFTMAX : SINK_REDUCE;
    p->sink_op = n->op;
    p->sink_v = n->out;
    p->reduce_first = first;
    p->horizontal = end == s->sp.n;
    /* Trailing extents of 1 after the reduced ones make no difference to the order of elements. */
    for (int d = end; d < s->sp.n && !p->horizontal; d++)
        if (s->sp.dim[d] > 1)
            break;
        else if (d == s->sp.n - 1)
            p->horizontal = true;
    if (p->n_coefs && p->horizontal)
        cvyi_collapse(s, first > s->sp.channel ? first : s->sp.channel + 1);
    else
        cvyi_collapse(s, p->horizontal ? first : end);
    p->reduce_end = p->horizontal ? p->n_outer : end;
    p->reduced = p->horizontal ? p->inner : 1;
    for (int d = first; d < p->reduce_end; d++) p->reduced *= p->outer[d];
    p->width = sink_width(p, s->at->units);
    p->segment = p->horizontal && p->sink == SINK_REDUCE && p->reduced > SEGMENT ? SEGMENT : 0;
}

static void place_coefs(assembler *s)
{
    program *p = s->p;
    int64_t count = 1;
    if (!p->n_coefs) return;
    p->channel = s->sp.channel;
    p->channels = s->sp.dim[p->channel];
    for (int d = 0; d <= p->channel; d++) count *= s->sp.dim[d];
    for (int i = 0; i < p->n_coefs && s->at->room; i++)
        p->coefs[i].at = cvyi_slice(s->at->room, (int64_t)sizeof(affine32) * count);
}

static int64_t row_limit(const assembler *s)
{
    int64_t limit = 0;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &s->g->nodes[i];
        norm_geom e;
        if (cvyi_info(n)->kind != KIND_APPLY || cvyi_applies_by_channel(s, n)) continue;
        cvyi_norm_geom(s->g, n, &e);
        limit = e.chan;
    }
    return limit;
}

bool cvyi_program_build(const site *at, int index, int n, int sink, int band, program *out)
{
    const cvy_graph *g = at->plan->graph;
    assembler s = {.at = at, .g = g, .p = out, .first = index, .count = n, .sink = sink};
    const int shaped_by = n ? g->nodes[index].out : g->nodes[sink].arg[0];

    *out = (program){.instrs = out->instrs,
                     .operands = out->operands,
                     .coefs = out->coefs,
                     .channel = -1,
                     .band = -1,
                     .sink_v = CVY_NONE};
    if (n && cvyi_info(&g->nodes[index])->kind == KIND_SHAPE)
        s.sp = cvyi_flat_space(at, shaped_by);
    else
        s.sp = cvyi_space_of(at->pass, at->chunk, cvyi_shape_of(g, shaped_by));
    if (sink >= 0 && !cvyi_mark_reduced(g, &g->nodes[sink], &s.sp)) return false;
    s.run_limit = row_limit(&s);
    for (int i = index; i < index + n; i++) cvyi_assemble_node(&s, i);
    if (sink >= 0) out->sink_arg = cvyi_settle(&s, g->nodes[sink].arg[0]);
    if (s.full) return false;
    for (int o = 0; o < out->n_operands; o++)
        if (band != CVY_NONE && out->operands[o].v == band && !out->operands[o].written) out->band = o;
    if (at->room) { /* a trial needs no registers */
        cvyi_mark_last(out);
        cvyi_share_registers(out);
    }
    cvyi_split_last(&s);
    if (sink >= 0 && !s.sp.reduced) return false;
    if ((out->n_coefs || out->band >= 0) && s.sp.channel < 0) return false;
    if (sink >= 0)
        place_sink(&s);
    else
        cvyi_collapse(&s, out->n_coefs || out->band >= 0 ? s.sp.channel + 1 : 1);
    place_coefs(&s);
    /* Columns of a sink must be one run; rows of a norm whole runs; channels must not have been joined. */
    if (out->sink != SINK_NONE && !out->horizontal && out->n_outer != out->reduce_end) return false;
    if (s.run_limit && out->inner != s.run_limit) return false;
    return !out->n_coefs || out->n_outer > out->channel;
}

static void *keep(cvy_plan *p, const void *table, int n, size_t size)
{
    void *kept = cvyi_arena_alloc(&p->memory, (size_t)n, size);
    if (kept) memcpy(kept, table, (size_t)n * size);
    return kept;
}

cvy_status cvyi_program_keep(cvy_plan *p, program *made)
{
    made->instrs = keep(p, made->instrs, made->n_instrs, sizeof *made->instrs);
    made->operands = keep(p, made->operands, made->n_operands, sizeof *made->operands);
    made->coefs = keep(p, made->coefs, made->n_coefs, sizeof *made->coefs);
    return made->instrs && made->operands && made->coefs ? CVY_OK : CVY_NO_MEMORY;
}

/* ---- which nodes ---- */

static bool has_row_apply(const cvy_graph *g, int index)
{
    const node *n = &g->nodes[index];
    norm_geom e;
    if (cvyi_info(n)->kind != KIND_APPLY) return false;
    cvyi_norm_geom(g, n, &e);
    return e.inner == 1 && !e.over_outer;
}

int cvyi_program_span(const cvy_plan *p, int index, int end)
{
    const cvy_graph *g = p->graph;
    const shape *s = cvyi_shape_of(g, g->nodes[index].out);
    int n = 0, rows = 0;
    for (int i = index; i < end && n < PROG_NODES; i++, n++) {
        const node *at = &g->nodes[i];
        const op_kind kind = cvyi_info(at)->kind;
        const bool reshape = kind == KIND_SHAPE && p->root[at->out] == at->out && n == 0;
        if (!reshape && !cvyi_is_pointwise(kind)) break;
        if (!cvyi_same_shape(s, cvyi_shape_of(g, at->out))) break;
        if (reshape) return 1;
        rows += has_row_apply(g, i);
        if (rows > 1) break; /* two norms by rows may differ in their rows */
    }
    return n;
}
