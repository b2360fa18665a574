/* lower.c - passes into steps: which nodes are computed together, where every value of a pass lies, and the room
 * that slices, scratch and packed weights take. */
#include <stdlib.h>
#include <string.h>
#include "choice.h"
#include "program.h"

/* ---- room ---- */

int64_t cvyi_slice(builder *b, int64_t bytes)
{
    const int64_t at = b->out->slice_bytes;
    b->out->slice_bytes += cvyi_align64(bytes);
    cvyi_fence_slice(b, at, bytes);
    return at;
}

static int64_t take(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += cvyi_align64(bytes);
    return at;
}

int64_t cvyi_packed_room(builder *b, int weight, int64_t bytes)
{
    return take(b->plan->prepared[weight] ? &b->plan->prepared_bytes : &b->state->packed_end, bytes);
}

static step *append(cvy_plan *p, cpu_pass *to, const char *name, size_t data_bytes, void **data)
{
    step *s;
    *data = cvyi_arena_alloc(&p->memory, data_bytes, 1);
    if (!*data || to->n_steps == to->cap_steps) return NULL;
    s = &to->steps[to->n_steps++];
    *s = (step){.name = name, .data = *data};
    return s;
}

step *cvyi_add_step(builder *b, const char *name, size_t data_bytes, void **data)
{
    return append(b->plan, b->out, name, data_bytes, data);
}

cvy_status cvyi_add_node_step(builder *b, const char *name, size_t bytes,
                              int64_t (*parts)(const step *, const cpu_unit *),
                              void (*run)(const step *, const cpu_unit *, int64_t, char *), step **out, void **data)
{
    step *s = cvyi_add_step(b, name, bytes, data);
    if (!s) return CVY_NO_MEMORY;
    s->parts = parts;
    s->run = run;
    *out = s;
    return CVY_OK;
}

int64_t cvyi_one_part(const step *s, const cpu_unit *u)
{
    (void)s;
    (void)u;
    return 1;
}

/* ---- spots ---- */

static int by_number(const void *a, const void *b)
{
    const int x = ((const spot *)a)->v, y = ((const spot *)b)->v;
    return (x > y) - (x < y);
}

/* A spot for each root that the nodes read or make. */
static cvy_status begin_spots(const builder *b, int first, int count, cpu_pass *out)
{
    int n = 0, kept = 0;

    out->spots = cvyi_arena_alloc(&b->plan->memory, (size_t)count * (MAX_ARGS + 1), sizeof *out->spots);
    if (!out->spots) return CVY_NO_MEMORY;
    for (int i = first; i < first + count; i++) {
        const node *at = &b->g->nodes[i];
        out->spots[n++].v = b->plan->root[at->out];
        for (int a = 0; a < at->n_args; a++)
            if (at->arg[a] != CVY_NONE) out->spots[n++].v = b->plan->root[at->arg[a]];
    }
    qsort(out->spots, (size_t)n, sizeof *out->spots, by_number);
    for (int i = 0; i < n; i++)
        if (!i || out->spots[i].v != out->spots[kept - 1].v)
            out->spots[kept++] = (spot){.v = out->spots[i].v, .shadow = -1, .shift = -1};
    out->n_spots = kept;
    return CVY_OK;
}

/* ---- packing ---- */

/* Packing the weights of some nodes is a pass of its own, in which the values are where the plan has put them. */
static cvy_status begin_pack(const builder *b, int first, int count, cpu_pass *out)
{
    static const pass whole = {.samples = 1};
    const cvy_plan *p = b->plan;
    cvy_status st = CVY_OK;

    *out = (cpu_pass){.pass = &whole, .samples = 1, .chunk = 1, .units = 1, .cap_steps = 2 * count};
    out->steps = cvyi_arena_alloc(&b->plan->memory, 2 * (size_t)count, sizeof *out->steps);
    TRY(out->steps ? begin_spots(b, first, count, out) : CVY_NO_MEMORY);
    for (int i = 0; i < out->n_spots; i++) {
        spot *s = &out->spots[i];
        const place *at = &p->places[s->v];
        s->kind = at->kind == PLACE_TENSOR ? SPOT_TENSOR : at->kind == PLACE_WORKSPACE ? SPOT_WORKSPACE : SPOT_NONE;
        s->at = at->at;
        s->per = cvyi_elements(cvyi_shape_of(p->graph, s->v));
    }
fail:
    return st;
}

/* The packing before this pass; a weight that is a tensor of run() may be strided. */
static cpu_pass *late_pack(builder *b, int weight)
{
    cpu_pass *late = &b->state->late[b->out - b->state->passes];
    spot *s;
    if (!late->steps && begin_pack(b, b->out->pass->first, b->out->pass->count, late)) return NULL;
    s = cvyi_find_spot(late, b->plan->root[weight]);
    s->staged = b->g->values[s->v].dtype != CVY_FLOAT32;
    if ((s->kind == SPOT_TENSOR || s->staged) && s->shadow < 0) {
        s->shadow = late->slice_bytes;
        late->slice_bytes += cvyi_align64((int64_t)sizeof(float) * s->per);
    }
    return late;
}

step *cvyi_add_pack(builder *b, int weight, size_t data_bytes, void **data)
{
    cpu_pass *to = b->plan->prepared[weight] ? &b->state->pack : late_pack(b, weight);
    return to ? append(b->plan, to, "pack", data_bytes, data) : NULL;
}

/* ---- which nodes are computed together ---- */

/* Nodes index ... index + n - 1 as one program, with `sink` after them; does it build? */
static bool program_fits(const builder *b, int index, int n, int sink)
{
    const site at = {b->plan, b->out->pass, b->out->chunk, b->out->units, b->out, NULL};
    program_room room;
    program trial = cvyi_program_in(&room);
    return cvyi_program_build(&at, index, n, sink, CVY_NONE, &trial);
}

/* A sink reads the last value of the program, which has the shape of the whole. */
static bool sink_behind(const builder *b, int index, int n, int end)
{
    const int at = index + n;
    return at < end && cvyi_sink_fits(b->plan, b->out->pass, at) &&
           b->g->nodes[at].arg[0] == b->g->nodes[at - 1].out;
}

static int lead_program(builder *b, int index, int end)
{
    int n = cvyi_program_span(b->plan, index, end);
    if (!n) return 1; /* a sink by itself, or a node with steps of its own */
    while (n > 1 && !program_fits(b, index, n, -1)) n--;
    if (sink_behind(b, index, n, end) && program_fits(b, index, n, index + n)) n++;
    for (int i = 0; i < n; i++) b->lead[index + i] = index;
    return n;
}

static void lead_conv(builder *b, int index)
{
    const conv_along *c = &b->choices[index]->conv.along;
    if (c->pool >= 0) b->lead[c->pool] = index;
    if (c->stats >= 0) b->lead[c->stats] = index;
    if (c->prog_stats >= 0) b->lead[c->prog_stats] = index;
    for (int i = 0; i < c->n_prog; i++) b->lead[c->prog + i] = index;
    if (c->centred) {
        const shape *y = cvyi_shape_of(b->g, b->g->nodes[index].out);
        cvyi_spot(b, b->g->nodes[index].out)->shift = cvyi_slice(b, 8 * y->dim[1]);
        if (c->pool >= 0)
            cvyi_spot(b, b->g->nodes[c->pool].out)->shift = cvyi_spot(b, b->g->nodes[index].out)->shift;
    }
}

/* In a reshape that shares memory nothing is computed. */
static bool is_alias(const builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    return cvyi_info(n)->kind == KIND_SHAPE && b->plan->root[n->out] != n->out;
}

/* A maximum of centred values is centred alike. */
static void pass_shift_on(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    if (cvyi_info(n)->kind == KIND_MAXPOOL) cvyi_spot(b, n->out)->shift = cvyi_spot(b, n->arg[0])->shift;
}

/* The choice of the pass is its first node's; the others have one by themselves. */
static cvy_status find_choice(builder *b, int index)
{
    const pass *s = b->out->pass;
    cpu_choice *own;

    b->choices[index] = s->choice;
    if (s->choice && index == s->first) return CVY_OK;
    own = cvyi_arena_alloc(&b->plan->memory, 1, sizeof *own);
    if (!own) return CVY_NO_MEMORY;
    cvyi_cpu_choose_node(b->plan, s, index, own);
    b->choices[index] = own;
    return CVY_OK;
}

static cvy_status find_leads(builder *b)
{
    const pass *s = b->out->pass;
    const int end = s->first + s->count;
    cvy_status st = CVY_OK;

    for (int i = s->first; i < end; i++) b->lead[i] = -1;
    for (int i = s->first; i < end; i++) {
        if (b->lead[i] >= 0) continue;
        b->lead[i] = i;
        TRY(find_choice(b, i));
        if (cvyi_info(&b->g->nodes[i])->kind == KIND_CONV)
            lead_conv(b, i);
        else if (b->choices[i]->row == &cvyi_row_program)
            lead_program(b, i, end);
        pass_shift_on(b, i);
    }
fail:
    return st;
}

/* ---- where values lie ---- */

/* Is v (or a reshape of it) read by a step other than its own? */
static bool read_elsewhere(const builder *b, int v)
{
    const pass *s = b->out->pass;
    const int own = b->lead[b->g->values[v].node];
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &b->g->nodes[i];
        for (int a = 0; a < n->n_args; a++)
            if (n->arg[a] != CVY_NONE && b->plan->root[n->arg[a]] == v && b->lead[i] != own && !is_alias(b, i))
                return true;
    }
    return false;
}

/* Steps that are programs write strided outputs themselves. */
static bool written_by_program(const builder *b, int v)
{
    const int by = b->g->values[v].node, lead = b->lead[by];
    const op_kind kind = cvyi_info(&b->g->nodes[lead])->kind;
    if (kind == KIND_CONV) return b->choices[lead]->conv.along.n_prog && by != lead;
    return b->choices[lead]->row == &cvyi_row_program;
}

/* Does node i of the pass run in a program, or, in a reshape that shares memory, not at all? */
static bool in_program(const builder *b, int i)
{
    const op_kind kind = cvyi_info(&b->g->nodes[i])->kind;
    return cvyi_is_pointwise(kind) || kind == KIND_SHAPE || cvyi_sink_fits(b->plan, b->out->pass, i);
}

/* Is v, or a reshape of it, read by a step that is no program, or by a program as the weight or bias of a norm,
 * which it looks up channel by channel? */
static bool read_by_kernel(const builder *b, int v)
{
    const pass *s = b->out->pass;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &b->g->nodes[i];
        const bool inside = in_program(b, i), apply = cvyi_info(n)->kind == KIND_APPLY;
        for (int a = 0; a < n->n_args; a++)
            if (n->arg[a] != CVY_NONE && b->plan->root[n->arg[a]] == v && (!inside || (apply && a >= 2)))
                return true;
    }
    return false;
}

/* Must v, a tensor or in the workspace, be there as contiguous floats while the pass runs? Programs read words of
 * 16 bits where they lie and write anything, unless somebody else reads what they made. */
static bool needs_floats(const builder *b, int v)
{
    if (!cvyi_made_inside(b->plan, b->out->pass, v)) return read_by_kernel(b, v);
    return !written_by_program(b, v) || read_elsewhere(b, v) || read_by_kernel(b, v);
}

/* Is value w, one of those that share v's memory, seen with one part per sample? */
static bool parted(const builder *b, int v, int w)
{
    return w != CVY_NONE && b->plan->root[w] == v && cvyi_has_samples(b->plan, w, b->out->samples);
}

/* Does the pass see v with one part per sample? What counts is the shape in which it is read or made, not that of
 * the memory: [1,2,3,4] may be read as [2,3,4]. (interval.c sees to it that all readers agree.) */
static bool by_sample(const builder *b, int v)
{
    const pass *s = b->out->pass;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &b->g->nodes[i];
        if (parted(b, v, n->out)) return true;
        for (int a = 0; a < n->n_args; a++)
            if (parted(b, v, n->arg[a])) return true;
    }
    return false;
}

/* Of a unit's part of a value in slices: float32, whatever its dtype. */
static int64_t unit_bytes(const builder *b, const spot *s)
{
    return (int64_t)sizeof(float) * s->per * (s->sliced ? b->out->chunk : 1);
}

static void place_spot(builder *b, spot *s)
{
    const int v = s->v;
    const place *at = &b->plan->places[v];
    const value *val = &b->g->values[v];
    const bool inside = cvyi_made_inside(b->plan, b->out->pass, v), half = val->dtype != CVY_FLOAT32;

    s->sliced = b->out->samples > 1 && !b->plan->prepared[v] && by_sample(b, v);
    s->per = cvyi_elements(&val->shape) / (s->sliced ? b->out->samples : 1);
    s->shadow = -1;
    if (at->kind == PLACE_WORKSPACE) {
        *s = (spot){v, SPOT_WORKSPACE, at->at, s->per, s->sliced, -1, s->shift, half && needs_floats(b, v)};
        if (s->staged) s->shadow = cvyi_slice(b, unit_bytes(b, s));
    } else if (at->kind == PLACE_TENSOR) {
        const bool param = val->kind == VALUE_PARAM;
        *s = (spot){v, SPOT_TENSOR, at->at, s->per, s->sliced, -1, s->shift, false};
        s->staged = !param && half && needs_floats(b, v);
        if (!param && (!inside || needs_floats(b, v))) s->shadow = cvyi_slice(b, unit_bytes(b, s));
    } else if (inside && (read_elsewhere(b, v) || b->g->nodes[val->node].op == OP_norm_stats)) {
        s->kind = SPOT_SLICE;
        s->at = cvyi_slice(b, unit_bytes(b, s));
    }
}

/* ---- passes ---- */

/* A few units are an even number, from 4 on a multiple of 4, so that two and four threads have as much to do each.
 */
static int64_t even_chunk(int64_t chunk, int64_t samples)
{
    const int64_t units = cvyi_ceil_div(samples, chunk);
    return units > 1 && units < 16 ? cvyi_ceil_div(samples, cvyi_round_up(units, units < 4 ? 2 : 4)) : chunk;
}

/* Samples taken together: enough elements to be worth a unit, enough rows for a matrix product, one for
 * convolutions. A function of sizes alone. */
static int64_t choose_chunk(const builder *b, const pass *s)
{
    int64_t chunk = 1, rows;
    double most = 1;
    bool conv = false;

    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &b->g->nodes[i];
        const op_kind kind = cvyi_info(n)->kind;
        const double per = (double)cvyi_elements(cvyi_shape_of(b->g, n->arg[0])) / (double)s->samples;
        matmul_geom m;
        most = per > most ? per : most;
        conv |= kind == KIND_CONV || kind == KIND_CONVT;
        if (kind != KIND_LINEAR && kind != KIND_MATMUL) continue;
        cvyi_matmul_geom(b->g, n, &m);
        rows = cvyi_max64(m.M / s->samples, 1);
        chunk = cvyi_max64(chunk, 192 / rows);
    }
    if (conv) return 1;
    if (chunk < 32768 / most) chunk = even_chunk((int64_t)(32768 / most), s->samples);
    return cvyi_min64(chunk, s->samples);
}

static cvy_status lower_pass(builder *b, int index)
{
    const pass *s = &b->plan->passes[index];
    cpu_pass *out = b->out = &b->state->passes[index];
    cvy_status st = CVY_OK;
    int64_t elements = 0;

    *out = (cpu_pass){.pass = s, .samples = s->samples, .cap_steps = MAX_STEPS * s->count};
    out->chunk = choose_chunk(b, s);
    out->steps = cvyi_arena_alloc(&b->plan->memory, (size_t)out->cap_steps, sizeof *out->steps);
    TRY(out->steps ? begin_spots(b, s->first, s->count, out) : CVY_NO_MEMORY);
    for (int i = s->first; i < s->first + s->count; i++)
        elements += cvyi_elements(cvyi_shape_of(b->g, b->g->nodes[i].out));
    if (!elements) { /* nothing to compute */
        out->samples = 0;
        return CVY_OK;
    }
    out->units = cvyi_ceil_div(out->samples, out->chunk);
    TRY(find_leads(b));
    for (int i = 0; i < out->n_spots; i++) place_spot(b, &out->spots[i]);
    for (int i = s->first; i < s->first + s->count; i++)
        if (b->lead[i] == i) TRY(b->choices[i]->row->make(b, i));
    for (int i = 0; i < out->n_steps; i++)
        out->scratch_bytes = cvyi_max64(out->scratch_bytes, cvyi_align64(out->steps[i].scratch));
    cvyi_fence_pass(out);
    out->slice_bytes =
        cvyi_round_up(out->slice_bytes, 4096) + 64; /* not a multiple of the page: slices do not collide */
fail:
    return st;
}

/* Room for contiguous floats of parameters, should the caller's be strided or of another dtype. */
static cvy_status reserve_params(cvy_plan *p, cpu_state *s)
{
    s->param_copy = cvyi_arena_alloc(&p->memory, (size_t)p->n_tensors + 1, sizeof *s->param_copy);
    if (!s->param_copy) return CVY_NO_MEMORY;
    for (int i = 0; i < p->n_tensors; i++) {
        const value *v = &p->graph->values[p->tensor_value[i]];
        const bool copied = p->options.strided != CVY_OFF || v->dtype != CVY_FLOAT32;
        s->param_copy[i] = v->kind == VALUE_PARAM && copied
                               ? take(&p->prepared_bytes, (int64_t)sizeof(float) * cvyi_elements(&v->shape))
                               : -1;
    }
    return CVY_OK;
}

/* Slices and scratch of a pass while it runs, on however many of the plan's threads. */
static int64_t room_of(const cpu_state *s, const cpu_pass *at)
{
    int64_t most = 0;
    for (int threads = 1; threads <= s->threads; threads++) {
        const int64_t sets = cvyi_pass_many(at, threads) ? threads : 1;
        most = cvyi_max64(most, sets * at->slice_bytes + threads * at->scratch_bytes);
    }
    return most;
}

cvy_status cvyi_lower_passes(cvy_plan *p)
{
    cpu_state *s = p->state;
    builder b = {.plan = p, .state = s, .g = p->graph};
    const size_t nodes = (size_t)p->graph->n_nodes + 1;
    const int64_t values = p->prepared_bytes;
    int64_t most = 0;
    cvy_status st = CVY_OK;

    s->packed_end = WORKSPACE_BASE + p->value_bytes;
    s->passes = cvyi_arena_alloc(&p->memory, (size_t)p->n_passes + 1, sizeof *s->passes);
    s->late = cvyi_arena_alloc(&p->memory, (size_t)p->n_passes + 1, sizeof *s->late);
    b.lead = cvyi_arena_alloc(&p->memory, nodes, sizeof *b.lead);
    b.choices = cvyi_arena_alloc(&p->memory, nodes, sizeof *b.choices);
    if (!s->passes || !s->late || !b.lead || !b.choices) return CVY_NO_MEMORY;
    TRY(begin_pack(&b, 0, p->graph->n_nodes, &s->pack));
    TRY(reserve_params(p, s));
    for (int i = 0; i < p->n_passes; i++) TRY(lower_pass(&b, i));
    for (int i = p->n_prepare; i < p->n_passes; i++) cvyi_cpu_predict(p, &p->passes[i]);
    most = room_of(s, &s->pack);
    for (int i = 0; i < p->n_passes; i++) {
        most = cvyi_max64(most, room_of(s, &s->passes[i]));
        most = cvyi_max64(most, room_of(s, &s->late[i]));
    }
    /* Preparing reads and writes every byte once or twice: some 5 GB/s of one thread. */
    s->pack.work = (double)(p->prepared_bytes - values) * 2e-10;
    for (int i = 0; i < p->n_passes; i++)
        s->passes[i].work = i < p->n_prepare ? p->passes[i].bytes * 2e-10 : p->passes[i].seconds * s->host.threads;
    s->packed_end = cvyi_round_up(s->packed_end, CVY_ALIGN);
    p->workspace = (size_t)(s->packed_end - WORKSPACE_BASE + most);
fail:
    return st;
}
