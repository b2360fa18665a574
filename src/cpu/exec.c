/* exec.c - running a plan on the CPU: units over threads, steps in order. See exec.h. */
#include <string.h>
#include "../util/half.h"
#include "exec.h"
#include "strided.h"
#include "thread.h"

/* ---- addresses ---- */

static const shape *tensor_shape(const cpu_run *r, int64_t tensor)
{
    return cvyi_shape_of(r->plan->graph, r->plan->tensor_value[tensor]);
}

static bool tensor_strided(const cpu_run *r, int64_t tensor)
{
    return !cvyi_is_contiguous(tensor_shape(r, tensor), r->buffers[tensor].strides);
}

/* Bytes from a value's beginning to the unit's part of it. */
static int64_t unit_offset(const cpu_unit *u, const spot *s)
{
    return s->sliced ? u->n0 * s->per * cvyi_dtype_bytes(u->run->plan->graph->values[s->v].dtype) : 0;
}

static cvy_dtype dtype_of(const cpu_run *r, const spot *s)
{
    return r->plan->graph->values[s->v].dtype;
}

static bool spot_strided(const cpu_run *r, const spot *s)
{
    return s->kind == SPOT_TENSOR && tensor_strided(r, s->at);
}

/* Where the unit's part of a value lies in the caller's tensor or the workspace. */
static char *memory_of(const cpu_unit *u, const spot *s)
{
    char *base = s->kind == SPOT_TENSOR ? u->run->buffers[s->at].data : cvyi_at(u->run->memory, s->at);
    return base + unit_offset(u, s);
}

/* Is the shadow used instead of the value's own memory? */
static bool in_shadow(const cpu_run *r, const spot *s)
{
    if (s->shadow < 0 || s->staged || !spot_strided(r, s)) return s->shadow >= 0 && s->staged;
    return !s->scatters || cvyi_turned(tensor_shape(r, s->at), r->buffers[s->at].strides);
}

/* The contiguous floats of a parameter; -1: it is used in place, or is not a parameter. */
static int64_t param_copy(const cpu_run *r, const spot *s)
{
    const bool as_it_is = s->kind != SPOT_TENSOR || (dtype_of(r, s) == CVY_FLOAT32 && !spot_strided(r, s));
    return as_it_is ? -1 : r->state->param_copy[s->at];
}

spot *cvyi_find_spot(const cpu_pass *s, int root)
{
    int low = 0, high = s->n_spots - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (s->spots[middle].v < root)
            low = middle + 1;
        else
            high = middle;
    }
    return &s->spots[low];
}

float *cvyi_unit_data(const cpu_unit *u, int v)
{
    const spot *s = cvyi_unit_spot(u, v);
    char *data = NULL;
    if (s->kind == SPOT_SLICE)
        data = u->slices + s->at;
    else if (s->kind != SPOT_NONE && param_copy(u->run, s) >= 0)
        data = cvyi_at(u->run->memory, param_copy(u->run, s));
    else if (s->kind != SPOT_NONE && in_shadow(u->run, s))
        data = u->slices + s->shadow;
    else if (spot_strided(u->run, s))
        data = NULL;
    else if (s->kind != SPOT_NONE && dtype_of(u->run, s) == CVY_FLOAT32)
        data = memory_of(u, s);
    return (float *)(void *)data;
}

uint16_t *cvyi_unit_words(const cpu_unit *u, int v)
{
    const spot *s = cvyi_unit_spot(u, v);
    if (s->kind != SPOT_TENSOR && s->kind != SPOT_WORKSPACE) return NULL;
    if (dtype_of(u->run, s) == CVY_FLOAT32 || s->staged) return NULL;
    if (spot_strided(u->run, s) || param_copy(u->run, s) >= 0) return NULL;
    return (uint16_t *)(void *)memory_of(u, s);
}

const void *cvyi_unit_elements(const cpu_unit *u, int v, cvy_dtype *dtype)
{
    const float *data = cvyi_unit_data(u, v);
    *dtype = data ? CVY_FLOAT32 : cvyi_unit_dtype(u, v);
    return data ? (const void *)data : cvyi_unit_words(u, v);
}

const float *cvyi_unit_floats(const cpu_unit *u, int v, int64_t first, int64_t n, float *room)
{
    const float *data = cvyi_unit_data(u, v);
    if (data) return data + first;
    u->run->state->convert->widen[cvyi_unit_dtype(u, v)](room, cvyi_unit_words(u, v) + first, n);
    return room;
}

/* ---- strided tensors, and those of another dtype ---- */

/* A spot as a tensor: the caller's, or contiguous in the workspace. */
static cvy_buffer tensor_of(const cpu_run *r, const spot *s)
{
    if (s->kind == SPOT_TENSOR) return r->buffers[s->at];
    return (cvy_buffer){cvyi_at(r->memory, s->at), NULL};
}

static const value *value_of(const cpu_run *r, const spot *s)
{
    return &r->plan->graph->values[s->kind == SPOT_TENSOR ? r->plan->tensor_value[s->at] : s->v];
}

/* n elements of the unit's part of a value, from `first` on. */
static stretch stretch_of(const cpu_unit *u, const spot *s, int64_t first, int64_t n)
{
    return (stretch){value_of(u->run, s), tensor_of(u->run, s), first + (s->sliced ? u->n0 * s->per : 0), n};
}

void cvyi_unit_scatter(const cpu_unit *u, int v, int64_t first, int64_t n, const float *src)
{
    const stretch t = stretch_of(u, cvyi_unit_spot(u, v), first, n);
    cvyi_scatter_rows(u->run, &t, 0, n, src);
}

/* The unit's elements that go through the shadow of a spot: values that the pass reads (an earlier pass's output
 * may be one), or else those that it makes. None: n is 0. */
static stretch shadowed(const cpu_unit *u, const spot *s, bool inputs)
{
    const bool input = !cvyi_made_inside(u->run->plan, u->pass->pass, s->v);
    const bool some = input == inputs && in_shadow(u->run, s);
    return stretch_of(u, s, 0, !some ? 0 : s->sliced ? u->m * s->per : s->per);
}

static int64_t shadow_parts(const cpu_unit *u, bool inputs)
{
    int64_t parts = 0;
    for (int i = 0; i < u->pass->n_spots; i++) {
        const stretch t = shadowed(u, &u->pass->spots[i], inputs);
        parts += cvyi_strided_parts(&t);
    }
    return parts;
}

/* Fills a part of the shadows of values that the pass reads, or empties one of those that it makes. */
static void copy_shadow(const cpu_unit *u, bool inputs, int64_t part)
{
    for (int i = 0; i < u->pass->n_spots; i++) {
        const spot *s = &u->pass->spots[i];
        const stretch t = shadowed(u, s, inputs);
        const int64_t parts = cvyi_strided_parts(&t);
        float *shadow = (float *)(void *)(u->slices + s->shadow);
        if (part >= parts) {
            part -= parts;
            continue;
        }
        if (inputs)
            cvyi_gather(u->run, &t, part, shadow);
        else
            cvyi_scatter(u->run, &t, part, shadow);
        return;
    }
}

/* ---- units and steps ---- */

typedef struct pass_run {
    const cpu_run *run;
    const cpu_pass *pass;
    char *slices, *scratch; /* of worker 0; the next worker's follow */
} pass_run;

static cpu_unit unit_of(const pass_run *r, int64_t index, int slices)
{
    cpu_unit u = {r->run, r->pass, r->slices + slices * r->pass->slice_bytes, index * r->pass->chunk, 0};
    u.m = cvyi_min64(r->pass->chunk, r->pass->samples - u.n0);
    return u;
}

static void copy_shadows(const cpu_unit *u, bool inputs)
{
    const int64_t parts = shadow_parts(u, inputs);
    for (int64_t k = 0; k < parts; k++) copy_shadow(u, inputs, k);
}

static void share_shadows(const cpu_unit *u, bool inputs, cpu_team *team, int worker)
{
    cvyi_team_begin(team, worker, shadow_parts(u, inputs));
    for (int64_t k; (k = cvyi_team_claim(team)) >= 0;) copy_shadow(u, inputs, k);
    cvyi_team_barrier(team);
}

/* Many units: this thread takes one through all steps. */
static void run_unit(void *context, int64_t index, int worker)
{
    const pass_run *r = context;
    const cpu_unit u = unit_of(r, index, worker);
    char *scratch = r->scratch + worker * r->pass->scratch_bytes;

    copy_shadows(&u, true);
    for (int i = 0; i < r->pass->n_steps; i++) {
        const step *s = &r->pass->steps[i];
        const int64_t parts = s->parts(s, &u);
        for (int64_t k = 0; k < parts; k++) s->run(s, &u, k, scratch);
    }
    copy_shadows(&u, false);
}

/* Few units: all threads go through the steps of every unit together. */
static void run_team(void *context, int worker, cpu_team *team)
{
    const pass_run *r = context;
    char *scratch = r->scratch + worker * r->pass->scratch_bytes;

    for (int64_t index = 0; index < r->pass->units; index++) {
        const cpu_unit u = unit_of(r, index, 0);
        share_shadows(&u, true, team, worker);
        for (int i = 0; i < r->pass->n_steps; i++) {
            const step *s = &r->pass->steps[i];
            cvyi_team_begin(team, worker, s->parts(s, &u));
            for (int64_t k; (k = cvyi_team_claim(team)) >= 0;) s->run(s, &u, k, scratch);
            cvyi_team_barrier(team);
        }
        share_shadows(&u, false, team, worker);
    }
}

bool cvyi_pass_many(const cpu_pass *s, int threads)
{
    /* Whole units leave no thread idle for long if they are many or divide evenly. */
    return threads == 1 || s->units >= 4 * threads || (s->units >= threads && s->units % threads == 0);
}

/* A thread is woken for 50 microseconds of work or more: waking and waiting for one costs a few. */
static int threads_for(const cpu_state *s, const cpu_pass *which)
{
    const double useful = 1 + which->work / 50e-6;
    return useful < s->threads ? (int)useful : s->threads;
}

static void run_pass(const cpu_run *run, const cpu_pass *which)
{
    const int threads = threads_for(run->state, which);
    const bool many = cvyi_pass_many(which, threads);
    char *slices = cvyi_at(run->memory, run->state->packed_end);
    pass_run r = {run, which, slices, slices + (many ? threads : 1) * which->slice_bytes};

    cvyi_fence_run(which, slices, many ? threads : 1, threads, true);
    if (many)
        cvyi_parallel(threads, which->units, run_unit, &r);
    else
        cvyi_team(threads, run_team, &r);
    cvyi_fence_run(which, slices, many ? threads : 1, threads, false);
}

static void copy_params(const cpu_run *r)
{
    for (int i = 0; i < r->plan->n_tensors; i++) {
        const value *v = &r->plan->graph->values[r->plan->tensor_value[i]];
        const int64_t copy = r->state->param_copy[i];
        if (copy < 0 || (v->dtype == CVY_FLOAT32 && !tensor_strided(r, i))) continue;
        const stretch t = {v, r->buffers[i], 0, cvyi_elements(&v->shape)};
        for (int64_t k = 0; k < cvyi_strided_parts(&t); k++)
            cvyi_gather(r, &t, k, (float *)(void *)cvyi_at(r->memory, copy));
    }
}

void cvyi_cpu_run_pass(const cvy_plan *p, int index, const cvy_buffer *buffers, const run_memory *memory)
{
    const cpu_state *s = p->state;
    const cpu_run run = {p, s, buffers, memory};

    if (s->late[index].n_steps) run_pass(&run, &s->late[index]);
    if (s->passes[index].samples) run_pass(&run, &s->passes[index]);
}

cvy_status cvyi_cpu_run(const cvy_plan *p, const cvy_buffer *buffers, const run_memory *memory, uint32_t flags,
                        void *stream)
{
    const cpu_state *s = p->state;
    const cpu_run run = {p, s, buffers, memory};

    (void)stream;
    if (s->host.elsewhere)
        return cvyi_fail(CVY_UNSUPPORTED, "run: the plan is for the machine of CVY_MACHINE, not for this one");
    if (!(flags & CVY_KEEP_PREPARED)) {
        copy_params(&run);
        for (int i = 0; i < p->n_prepare; i++) run_pass(&run, &s->passes[i]);
        run_pass(&run, &s->pack);
    }
    for (int i = p->n_prepare; i < p->n_passes; i++) cvyi_cpu_run_pass(p, i, buffers, memory);
    return CVY_OK;
}
