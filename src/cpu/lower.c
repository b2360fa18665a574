/* lower.c - from the choice of a pass to its steps: where every value is, and how much memory slices, scratch and
 * packed weights take. */
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

step *cvyi_add_node_step(builder *b, const char *name, size_t bytes,
                         int64_t (*parts)(const step *, const cpu_unit *),
                         void (*run)(const step *, const cpu_unit *, int64_t, char *), void **data)
{
    step *s = cvyi_add_step(b, name, bytes, data);
    if (!s) return NULL;
    s->parts = parts;
    s->run = run;
    return s;
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

    for (int i = first; i < first + count; i++) n += 1 + b->g->nodes[i].n_args;
    out->spots = cvyi_arena_alloc(&b->plan->memory, (size_t)n, sizeof *out->spots);
    if (!out->spots) return CVY_NO_MEMORY;
    n = 0;
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

/* Packing the weights of some nodes is a separate pass, in which values are where the plan has placed them. */
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
        late->slice_bytes += cvyi_align64(cvyi_floats(s->per));
    }
    return late;
}

step *cvyi_add_pack(builder *b, int weight, size_t data_bytes, void **data)
{
    cpu_pass *to = b->plan->prepared[weight] ? &b->state->pack : late_pack(b, weight);
    return to ? append(b->plan, to, "pack", data_bytes, data) : NULL;
}

/* ---- the places of values ---- */

static const node_choice *choice_of(const builder *b, int index)
{
    return cvyi_node_choice(b->out->pass, b->choice, index);
}

/* Is v, made in the pass, (or a reshape of it) read by a step other than its own? */
static bool read_elsewhere(const builder *b, int v)
{
    return choice_of(b, b->g->values[v].node)->read_on;
}

/* Values that are stored minus their channels' means share the shift of the convolution that made them. */
static void place_shifts(builder *b)
{
    const pass *s = b->out->pass;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &b->g->nodes[i];
        if (!choice_of(b, i)->centred) continue;
        cvyi_spot(b, n->out)->shift =
            cvyi_info(n)->kind == KIND_CONV
                ? cvyi_slice(b, (int64_t)sizeof(double) * cvyi_shape_of(b->g, n->out)->dim[1])
                : cvyi_spot(b, n->arg[0])->shift;
    }
}

static bool takes_words(const builder *b, int index)
{
    const cpu_row *row = choice_of(b, index)->row;
    return row->words && row->words(b, index);
}

/* Steps that are programs write strided outputs and words themselves, and so do kernels that say so; of what a
 * convolution takes along, its program's results, but no maxima. */
static bool written_by_step(const builder *b, int v)
{
    const int by = b->g->values[v].node, lead = choice_of(b, by)->lead;
    if (cvyi_info(&b->g->nodes[lead])->kind == KIND_CONV && by != lead)
        return cvyi_own_choice(b->out->pass, b->choice, lead)->how.conv.along.n_prog;
    return choice_of(b, lead)->row->program || takes_words(b, lead);
}

/* Does node i of the pass run in a program, or not at all because it is a reshape that shares memory? */
static bool in_program(const builder *b, int i)
{
    const cpu_row *row = choice_of(b, i)->row;
    return row->program || row->alias;
}

/* Does a convolution take the statistics of node i, of the floats that its band's program leaves? */
static bool of_band(const builder *b, int i)
{
    const int lead = choice_of(b, i)->lead;
    return cvyi_info(&b->g->nodes[lead])->kind == KIND_CONV &&
           cvyi_own_choice(b->out->pass, b->choice, lead)->how.conv.along.prog_stats == i;
}

/* Is v, or a reshape of it, read as floats: by a step that is not a program and does not take words, or by a
 * program as the weight or bias of a norm, which it looks up channel by channel? */
static bool read_by_kernel(const builder *b, int v)
{
    const pass *s = b->out->pass;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &b->g->nodes[i];
        const bool inside = in_program(b, i), apply = cvyi_info(n)->kind == KIND_APPLY;
        for (int a = 0; a < n->n_args; a++) {
            const bool words = inside ? !apply || a < 2 : a == 0 && !of_band(b, i) && takes_words(b, i);
            if (n->arg[a] != CVY_NONE && b->plan->root[n->arg[a]] == v && !words) return true;
        }
    }
    return false;
}

/* Must v, a tensor or in the workspace, be there as contiguous floats while the pass runs? Programs read words of
 * 16 bits in place and write any dtype and strides, unless another step reads their results. */
static bool needs_floats(const builder *b, int v)
{
    if (!cvyi_made_inside(b->plan, b->out->pass, v)) return read_by_kernel(b, v);
    return !written_by_step(b, v) || read_elsewhere(b, v) || read_by_kernel(b, v);
}

/* Is value w, which shares v's memory, read or made with one part per sample? */
static bool parted(const builder *b, int v, int w)
{
    return w != CVY_NONE && b->plan->root[w] == v && cvyi_has_samples(b->plan, w, b->out->samples);
}

/* Does the pass read or make v with one part per sample? What counts is the shape in which it does so, not that of
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

/* Bytes of a unit's part of a value in slices, which is always float32. */
static int64_t unit_bytes(const builder *b, const spot *s)
{
    return cvyi_floats(s->per * (s->sliced ? b->out->chunk : 1));
}

/* Results are scattered by their step if their shadow would be larger: it would leave the cache before it is
 * copied. */
enum { MOST_TURNED = 4 << 20 };

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
        s->kind = SPOT_WORKSPACE;
        s->at = at->at;
        s->staged = half && needs_floats(b, v);
        if (s->staged) s->shadow = cvyi_slice(b, unit_bytes(b, s));
    } else if (at->kind == PLACE_TENSOR) {
        const bool param = val->kind == VALUE_PARAM;
        s->kind = SPOT_TENSOR;
        s->at = at->at;
        s->staged = !param && half && needs_floats(b, v);
        s->scatters = inside && !needs_floats(b, v);
        if (!param && (!s->scatters || unit_bytes(b, s) <= MOST_TURNED))
            s->shadow = cvyi_slice(b, unit_bytes(b, s));
    } else if (inside && choice_of(b, val->node)->sliced) {
        s->kind = SPOT_SLICE;
        s->at = cvyi_slice(b, unit_bytes(b, s));
    }
}

/* ---- passes ---- */

static cvy_status lower_pass(builder *b, int index)
{
    const pass *s = &b->plan->passes[index];
    cpu_pass *out = b->out = &b->state->passes[index];
    cvy_status st = CVY_OK;
    int64_t elements = 0;

    b->choice = cvyi_cpu_choice(s);
    *out = (cpu_pass){.pass = s, .samples = s->samples, .cap_steps = MAX_STEPS * s->count};
    out->chunk = b->choice->chunk;
    out->steps = cvyi_arena_alloc(&b->plan->memory, (size_t)out->cap_steps, sizeof *out->steps);
    TRY(out->steps ? begin_spots(b, s->first, s->count, out) : CVY_NO_MEMORY);
    for (int i = s->first; i < s->first + s->count; i++)
        elements += cvyi_elements(cvyi_shape_of(b->g, b->g->nodes[i].out));
    if (!elements) { /* nothing to compute */
        out->samples = 0;
        return CVY_OK;
    }
    out->units = b->choice->units;
    place_shifts(b);
    for (int i = 0; i < out->n_spots; i++) place_spot(b, &out->spots[i]);
    for (int i = s->first; i < s->first + s->count; i++)
        if (choice_of(b, i)->lead == i) TRY(choice_of(b, i)->row->make(b, i));
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
        s->param_copy[i] =
            v->kind == VALUE_PARAM && copied ? take(&p->prepared_bytes, cvyi_floats(cvyi_elements(&v->shape))) : -1;
    }
    return CVY_OK;
}

/* Slices and scratch of a pass while it runs, on any number of the plan's threads. */
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
    const int64_t values = p->prepared_bytes;
    int64_t most = 0;
    cvy_status st = CVY_OK;

    s->packed_end = WORKSPACE_BASE + p->value_bytes;
    s->passes = cvyi_arena_alloc(&p->memory, (size_t)p->n_passes + 1, sizeof *s->passes);
    s->late = cvyi_arena_alloc(&p->memory, (size_t)p->n_passes + 1, sizeof *s->late);
    if (!s->passes || !s->late) return CVY_NO_MEMORY;
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
