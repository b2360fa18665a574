/* exec.c - running a plan on the CPU: units over threads, steps in order. See exec.h. */
#include <string.h>
#include "exec.h"
#include "thread.h"

/* ---- where things are ---- */

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

static char *tensor_data(const cpu_unit *u, const spot *s)
{
    const cpu_run *r = u->run;
    if (tensor_strided(r, s->at)) {
        const int64_t copy = r->state->param_copy[s->at];
        if (copy >= 0) return cvyi_at(r->memory, copy);
        return s->shadow >= 0 ? u->slices + s->shadow : NULL;
    }
    return (char *)r->buffers[s->at].data + unit_offset(u, s);
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
    if (s->kind == SPOT_TENSOR)
        data = tensor_data(u, s);
    else if (s->kind == SPOT_WORKSPACE)
        data = cvyi_at(u->run->memory, s->at) + unit_offset(u, s);
    else if (s->kind == SPOT_SLICE)
        data = u->slices + s->at;
    return (float *)(void *)data;
}

/* ---- strided tensors ---- */

/* A piece of one row of a strided tensor. */
typedef struct strided_row {
    int64_t offset, stride, count; /* elements: of the first from the tensor's own, between two; how many */
} strided_row;

/* The piece that begins at element `first`, counted in row-major order, of n elements at most. */
static strided_row row_at(const shape *s, const int64_t *strides, int64_t first, int64_t n)
{
    const int last = s->rank - 1;
    const int64_t width = s->rank ? s->dim[last] : 1, column = first % width;
    strided_row r = {0, s->rank ? strides[last] : 1, cvyi_min64(n, width - column)};
    int64_t rest = first / width;

    for (int d = last - 1; d >= 0; d--) {
        r.offset += rest % s->dim[d] * strides[d];
        rest /= s->dim[d];
    }
    r.offset += column * r.stride;
    return r;
}

/* n elements from `first` on, counted in row-major order, out of a strided tensor and into one. */
static void gather(const shape *s, const cvy_buffer *from, int64_t first, int64_t n, float *dst)
{
    for (int64_t done = 0; done < n;) {
        const strided_row r = row_at(s, from->strides, first + done, n - done);
        const float *at = (const float *)from->data + r.offset;
        for (int64_t i = 0; i < r.count; i++) dst[done + i] = at[i * r.stride];
        done += r.count;
    }
}

static void scatter(const shape *s, const cvy_buffer *to, int64_t first, int64_t n, const float *src)
{
    for (int64_t done = 0; done < n;) {
        const strided_row r = row_at(s, to->strides, first + done, n - done);
        float *at = (float *)to->data + r.offset;
        for (int64_t i = 0; i < r.count; i++) at[i * r.stride] = src[done + i];
        done += r.count;
    }
}

void cvyi_unit_scatter(const cpu_unit *u, int v, int64_t first, int64_t n, const float *src)
{
    const spot *s = cvyi_unit_spot(u, v);
    const int64_t start = first + (s->sliced ? u->n0 * s->per : 0);
    scatter(tensor_shape(u->run, s->at), &u->run->buffers[s->at], start, n, src);
}

static void fill_shadow(const cpu_unit *u, const spot *s)
{
    gather(tensor_shape(u->run, s->at), &u->run->buffers[s->at], s->sliced ? u->n0 * s->per : 0,
           s->sliced ? u->m * s->per : s->per, (float *)(void *)(u->slices + s->shadow));
}

static void empty_shadow(const cpu_unit *u, const spot *s)
{
    scatter(tensor_shape(u->run, s->at), &u->run->buffers[s->at], s->sliced ? u->n0 * s->per : 0,
            s->sliced ? u->m * s->per : s->per, (const float *)(const void *)(u->slices + s->shadow));
}

/* Fills the shadows of strided tensors that the pass reads (an earlier pass's output may be one), or empties those
 * of strided outputs that it makes, of one unit. */
static void copy_shadows(const cpu_unit *u, bool inputs)
{
    for (int i = 0; i < u->pass->n_spots; i++) {
        const spot *s = &u->pass->spots[i];
        const bool input = !cvyi_made_inside(u->run->plan, u->pass->pass, s->v);
        if (s->kind != SPOT_TENSOR || s->shadow < 0 || input != inputs || !tensor_strided(u->run, s->at)) continue;
        (inputs ? fill_shadow : empty_shadow)(u, s);
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
        if (worker == 0) copy_shadows(&u, true);
        cvyi_team_barrier(team);
        for (int i = 0; i < r->pass->n_steps; i++) {
            const step *s = &r->pass->steps[i];
            cvyi_team_begin(team, worker, s->parts(s, &u));
            for (int64_t k; (k = cvyi_team_claim(team)) >= 0;) s->run(s, &u, k, scratch);
            cvyi_team_barrier(team);
        }
        if (worker == 0) copy_shadows(&u, false);
        cvyi_team_barrier(team);
    }
}

bool cvyi_pass_many(const cpu_pass *s, int threads)
{
    /* Whole units leave no thread idle for long where they are many or divide evenly. */
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
        const int64_t copy = r->state->param_copy[i];
        if (copy < 0 || !tensor_strided(r, i)) continue;
        gather(tensor_shape(r, i), &r->buffers[i], 0, cvyi_elements(tensor_shape(r, i)),
               (float *)(void *)cvyi_at(r->memory, copy));
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
