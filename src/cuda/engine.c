/* engine.c - the CUDA engine: judging passes, preparing a plan, running it.
 *
 * run() launches the steps in order on the caller's stream. It does not allocate, compile, load or wait. */
#include <stdio.h>
#include <string.h>
#include "choice.h"
#include "compile.h"

/* ---- the planner's functions ---- */

static cvy_status open_cuda(cvy_plan *p)
{
    cuda_state *state = cvyi_alloc(1, sizeof *state);
    const nvrtc_api *rtc;
    const cuda_device *d;
    cvy_status st;

    if (!state) return CVY_NO_MEMORY;
    p->state = state;
    TRY(cvyi_cuda_open(p->options.ordinal, &state->device));
    TRY(cvyi_cuda_nvrtc(&rtc));
    d = state->device;
    if (d->major < 8)
        return cvyi_fail(CVY_NO_DEVICE, "cuda: %s has compute capability %d.%d, 8.0 or newer is needed", d->name,
                         d->major, d->minor);
    snprintf(p->machine.name, sizeof p->machine.name, "%.63s", d->name);
    /* The share of the peak that kernels reach, measured on an H200: 34 of 67 TFLOP/s (block A's convolution)
     * and 4.3 of 4.9 TB/s. */
    p->machine.flops = 0.51 * d->fp32_flops;
    p->machine.bandwidth = 0.87 * d->bytes_per_second;
    p->machine.cache_bandwidth = 3 * p->machine.bandwidth;
    p->machine.cache = d->shared_block;
    p->machine.workers = d->sms;
    p->machine.launch = 8e-6; /* the launch, and a kernel that fills and drains the device */
fail:
    return st;
}

/* ---- preparing ---- */

/* Is there a launch whose blocks wait for each other, but do not all fit on the device at once? */
static cvy_status ask_resident(const cuda_state *state, bool *crowded)
{
    cvy_status st;

    *crowded = false;
    TRY(cvyi_cuda_enter(state->device, NULL));
    for (int i = 0; i < state->n_steps && st == CVY_OK; i++) {
        const cuda_step *s = &state->steps[i];
        int blocks = 0;
        if (!s->launch.cooperative) continue;
        st = cvyi_cuda_blocks_per_sm(state->device, &s->kernel[0], &s->launch, &blocks);
        *crowded = *crowded || (int64_t)blocks * state->device->sms < s->launch.grid[0];
    }
    cvyi_cuda_leave(state->device);
fail:
    return st;
}

/* Passes whose blocks wait for each other are tuned to launches that need not. */
static cvy_status tune_alone(cvy_plan *p)
{
    cuda_state *state = p->state;
    cvy_status st = CVY_OK;

    for (int i = 0; i < state->n_steps; i++)
        if (state->steps[i].launch.cooperative) TRY(cvyi_cuda_tune_again(p, &p->passes[state->steps[i].pass]));
    cvyi_cuda_unload_steps(state);
    state->n_steps = 0;
fail:
    return st;
}

/* If not all steps could be made, there are none: compile() makes them. */
static cvy_status lower(cvy_plan *p)
{
    cuda_state *state = p->state;
    cvy_status st;

    p->prepared_bytes = state->values;
    st = cvyi_cuda_lower(p);
    if (st) state->n_steps = 0;
    return st;
}

/* Launches whose blocks do not fit at once are made again. */
static cvy_status fit(cvy_plan *p)
{
    cuda_state *state = p->state;
    cvy_status st;

    TRY(ask_resident(state, &state->alone));
    if (state->alone) {
        TRY(tune_alone(p));
        TRY(lower(p));
        TRY(cvyi_cuda_compile_steps(&p, 1));
    }
fail:
    return st;
}

static cvy_status prepare(cvy_plan *p)
{
    ((cuda_state *)p->state)->values = p->prepared_bytes;
    return lower(p);
}

static cvy_status compile(cvy_plan *const *plans, int n)
{
    cvy_status st = CVY_OK;

    for (int i = 0; i < n; i++)
        if (!((const cuda_state *)plans[i]->state)->n_steps) TRY(lower(plans[i]));
    TRY(cvyi_cuda_compile_steps(plans, n));
    for (int i = 0; i < n; i++) TRY(fit(plans[i]));
fail:
    for (int i = 0; st && i < n; i++) cvyi_cuda_unload_steps(plans[i]->state);
    return st;
}

static void close_cuda(cvy_plan *p)
{
    cuda_state *state = p->state;

    if (!state) return;
    cvyi_cuda_unload_steps(state);
    cvyi_cuda_close(state->device);
    cvyi_free(state->steps);
    cvyi_free(state);
    p->state = NULL;
}

/* ---- running ---- */

static bool tensor_strided(const cuda_run *r, int tensor)
{
    const cvy_plan *p = r->plan;
    return !cvyi_is_contiguous(cvyi_shape_of(p->graph, p->tensor_value[tensor]), r->buffers[tensor].strides);
}

/* Does the tensor lie channels last, without gaps, at a multiple of 16 bytes? */
static bool tensor_last(const cuda_run *r, int tensor)
{
    const shape *s = cvyi_shape_of(r->plan->graph, r->plan->tensor_value[tensor]);
    const int64_t *strides = r->buffers[tensor].strides;
    int64_t step = s->dim[1];
    bool is = strides && (strides[1] == 1 || s->dim[1] == 1);

    for (int d = s->rank - 1; is && d >= 0; d--) {
        if (d == 1) continue;
        is = s->dim[d] == 1 || strides[d] == step;
        step *= s->dim[d];
    }
    return is && (uintptr_t)r->buffers[tensor].data % 16 == 0;
}

/* Do its last two dimensions lie in the other order, without gaps, at a multiple of 16 bytes? */
static bool tensor_turned(const cuda_run *r, int tensor)
{
    const shape *s = cvyi_shape_of(r->plan->graph, r->plan->tensor_value[tensor]);
    const int64_t *strides = r->buffers[tensor].strides;
    int64_t step = s->dim[s->rank - 2] * s->dim[s->rank - 1];
    bool is = strides && strides[s->rank - 2] == 1 && strides[s->rank - 1] == s->dim[s->rank - 2];

    for (int d = s->rank - 3; is && d >= 0; d--) {
        is = s->dim[d] == 1 || strides[d] == step;
        step *= s->dim[d];
    }
    return is && (uintptr_t)r->buffers[tensor].data % 16 == 0;
}

/* Does it have the other layout that the pass takes? */
static bool tensor_suits(const cuda_run *r, int tensor, int number)
{
    const kernel_row *row = cvyi_cuda_choice(&r->plan->passes[number])->kernel;
    return (row->transposed ? tensor_turned : tensor_last)(r, tensor);
}

static bool is_read(const cuda_run *r, int tensor)
{
    return r->plan->graph->values[r->plan->tensor_value[tensor]].kind == VALUE_INPUT;
}

/* Which steps of the pass run: which layout do the tensors have that need not be contiguous? */
static step_layout layout_of(const cuda_run *r, int number)
{
    const cuda_state *state = r->plan->state;
    const int *last = state->last, *all_last = state->tensors_last[number];
    bool any[2] = {false, false}, all[2] = {true, true}; /* of those written, of those read */

    for (int i = 0; all_last && all_last[i] != CVY_NONE; i++)
        if (!tensor_last(r, all_last[i])) return LAYOUT_PLAIN;
    if (all_last) return LAYOUT_LAST;

    for (int i = 0; i < r->plan->n_tensors; i++) {
        if (last[i] != number) continue;
        any[is_read(r, i)] = true;
        all[is_read(r, i)] &= tensor_suits(r, i, number);
    }
    if (all[0] && all[1]) return any[0] || any[1] ? LAYOUT_LAST : LAYOUT_PLAIN;
    return any[0] && any[1] && all[1] ? LAYOUT_X_LAST : LAYOUT_PLAIN;
}

/* Must the tensor's shadow be used, if it has one? */
static bool tensor_shadowed(const cuda_run *r, int tensor)
{
    const int by = ((const cuda_state *)r->plan->state)->last[tensor];
    const step_layout layout = by == CVY_NONE ? LAYOUT_PLAIN : layout_of(r, by);

    if (layout == LAYOUT_LAST || (layout == LAYOUT_X_LAST && is_read(r, tensor))) return false;
    return tensor_strided(r, tensor) || (uintptr_t)r->buffers[tensor].data % 16;
}

view_place cvyi_cuda_place(const cuda_run *r, const step_view *view)
{
    const cuda_state *state = r->plan->state;
    const place at = view->value == CVY_NONE ? (place){PLACE_WORKSPACE, view->at} : r->plan->places[view->value];
    const bool is_tensor = at.kind == PLACE_TENSOR;
    const bool shadowed =
        is_tensor && view->kind == VIEW_VALUE && state->shadow[at.at] >= 0 && tensor_shadowed(r, (int)at.at);

    if (is_tensor && !shadowed && view->kind != VIEW_SHADOW) return (view_place){(int)at.at, 0};
    return (view_place){-1, is_tensor ? state->shadow[at.at] : at.at};
}

bool cvyi_cuda_strides(const cuda_run *r, const step_view *view, int tensor, int64_t out[EMIT_DIMS])
{
    const shape *s = view->value == CVY_NONE ? NULL : cvyi_shape_of(r->plan->graph, view->value);
    const bool strided = tensor >= 0 && tensor_strided(r, tensor);
    int64_t strides[CVY_MAX_RANK] = {0};

    if (view->kind == VIEW_SIZES) memcpy(out, view->times, sizeof view->times);
    if (view->kind == VIEW_SIZES) return false;
    if (s) (view->last ? cvyi_last_strides : cvyi_contiguous_strides)(s, strides);
    if (strided) memcpy(strides, r->buffers[tensor].strides, (size_t)s->rank * sizeof *strides);
    for (int d = 0; d < EMIT_DIMS; d++) out[d] = view->dim[d] < 0 ? 0 : strides[view->dim[d]] * view->times[d];
    return strided && !view->last && !view->any;
}

bool cvyi_cuda_misaligned(const cuda_run *r, const cuda_step *s, int tensor)
{
    return s->aligned && tensor >= 0 && (uintptr_t)r->buffers[tensor].data % 16;
}

/* Fills one view; sets *strided if the contiguous code cannot take it. */
static void fill_view(const cuda_run *r, const cuda_step *s, const step_view *view, view_argument *out,
                      bool *strided)
{
    const view_place at = cvyi_cuda_place(r, view);
    const void *start = at.tensor >= 0 ? r->buffers[at.tensor].data : (void *)cvyi_at(r->memory, at.at);

    out->p = (CUdeviceptr)(uintptr_t)start;
    if (cvyi_cuda_strides(r, view, at.tensor, out->stride) || cvyi_cuda_misaligned(r, s, at.tensor))
        *strided = true;
}

static void fill_arguments(const cuda_run *r, const cuda_step *s, step_arguments *out, bool *strided)
{
    out->extent = s->extent;
    for (int i = 0; i < s->n_views; i++) fill_view(r, s, &s->views[i], &out->view[i], strided);
}

static cvy_status run_step(const cuda_run *r, const cuda_step *s)
{
    const cuda_state *state = r->plan->state;
    step_arguments arguments;
    void *list[] = {&arguments};
    bool strided = false;
    cvy_status st;
    int code;

    fill_arguments(r, s, &arguments, &strided);
    code = cvyi_cuda_code(s, strided);
    if (s->tc)
        st = s->row->launch(state->device, s, code, &arguments, !r->memory->kept, r->stream);
    else
        st = cvyi_cuda_launch(state->device, &s->kernel[code], &s->launch, r->stream, list);
    return st ? cvyi_fail_within(st, "%s: ", s->entry) : CVY_OK;
}

bool cvyi_cuda_wanted(const cuda_run *r, const cuda_step *s, uint32_t flags)
{
    if (s->prepared && (flags & CVY_KEEP_PREPARED)) return false;
    if (s->layout != LAYOUT_ANY && layout_of(r, s->pass) != s->layout) return false;
    return s->only_strided == CVY_NONE || tensor_shadowed(r, s->only_strided);
}

cvy_status cvyi_cuda_run_pass(const cuda_run *r, int index)
{
    const cuda_state *state = r->plan->state;
    cvy_status st = CVY_OK;

    for (int i = 0; i < state->n_steps && st == CVY_OK; i++)
        if (state->steps[i].pass == index && cvyi_cuda_wanted(r, &state->steps[i], CVY_KEEP_PREPARED))
            st = run_step(r, &state->steps[i]);
    return st;
}

/* Prepares a step that does not run now for a later run on the same workspace. */
static cvy_status pass_over(const cuda_run *r, const cuda_step *s)
{
    const cuda_state *state = r->plan->state;
    step_arguments arguments;
    bool strided = false;

    if (s->layout == LAYOUT_ANY || !s->tc || r->memory->kept) return CVY_OK;
    fill_arguments(r, s, &arguments, &strided);
    return cvyi_tc_zero(state->device, s, &arguments, r->stream);
}

static cvy_status run_cuda(const cvy_plan *p, const cvy_buffer *buffers, const run_memory *memory, uint32_t flags,
                           void *stream)
{
    const cuda_state *state = p->state;
    const cuda_run r = {p, buffers, memory, stream};
    cvy_status st;

    TRY(cvyi_cuda_enter(state->device, stream));
    for (int i = 0; i < state->n_steps && st == CVY_OK; i++)
        st = (cvyi_cuda_wanted(&r, &state->steps[i], flags) ? run_step : pass_over)(&r, &state->steps[i]);
    cvyi_cuda_leave(state->device);
fail:
    return st;
}

static void describe(const cvy_plan *p, text *t)
{
    const cuda_state *state = p->state;
    for (int i = 0; i < state->n_steps; i++) {
        const cuda_step *s = &state->steps[i];
        if (s->only_strided != CVY_NONE) continue;
        cvyi_text_add(t, "  kernel %s: %u x %u x %u blocks of %u threads, %d registers%s\n", s->entry,
                      s->launch.grid[0], s->launch.grid[1], s->launch.grid[2], s->launch.block[0],
                      s->kernel[0].registers,
                      s->prepared                                      ? ", prepared"
                      : s->layout == LAYOUT_LAST && s->row->transposed ? ", other transposed"
                      : s->layout == LAYOUT_LAST                       ? ", channels last"
                      : s->layout == LAYOUT_X_LAST                     ? ", x channels last"
                                                                       : "");
    }
}

const engine cvyi_engine_cuda = {
    .device = CVY_CUDA,
    .name = "cuda",
    .dtypes = 1u << CVY_FLOAT32 | 1u << CVY_FLOAT16 | 1u << CVY_BFLOAT16,
    .lowers = true,
    .open = open_cuda,
    .judge = cvyi_cuda_judge,
    .judge_prepared = cvyi_cuda_judge_prepared,
    .choice_bytes = sizeof(cuda_choice),
    .same_choice = cvyi_cuda_same,
    .why = cvyi_cuda_why,
    .prepare = prepare,
    .compile = compile,
    .packing = cvyi_cuda_packing,
    .run = run_cuda,
    .close = close_cuda,
    .describe = describe,
    .launches = cvyi_cuda_launches,
    .tunings = cvyi_cuda_tunings,
    .measure = cvyi_cuda_measure,
    .measure_passes = cvyi_cuda_measure_passes,
};
