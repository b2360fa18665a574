/* describe.c - the launches of a run as JSON, for `convoy eject`.
 *
 *   {"device": "NVIDIA H200", "capability": [9, 0], "multiprocessors": 132, "nvrtc": "13.0", "workspace": 4096,
 *    "launches": [a launch, ...], "files": {"common.cuh": "..."}}
 *
 * A launch has "entry", "source", "epilogue", "options", "arch_specific", "prepared", "grid", "block", "cluster",
 * "shared", "cooperative", "follows", "extent", "views" (each with "tensor" or "at", "name", "strides") and perhaps
 * "tc".
 *
 * A view lies in a tensor of run() or at a byte of the workspace. "prepared" launches depend only on parameters.
 * "tc" is only in tensor-core launches, which have other arguments: numbers of views, -1 for NULL, the
 * tensor map, and how many bytes from `part` on must be zero when a workspace is new. "product": a tensor map of
 * two dimensions ("words": of three), swizzled, and the views, in clusters that the kernel's options say. "pair": w
 * has a map as well. "pixels": the map is of x itself, as cuTensorMapEncodeIm2col takes it. */
#include <string.h>
#include "tc.h"

/* ---- JSON ---- */

static void add_string(text *t, const char *string)
{
    cvyi_text_add(t, "\"");
    while (*string) {
        size_t plain = 0;
        while ((unsigned char)string[plain] >= ' ' && string[plain] != '"' && string[plain] != '\\') plain++;
        if (plain) cvyi_text_add(t, "%.*s", (int)plain, string);
        string += plain;
        if (*string) cvyi_text_add(t, "\\u%04x", (unsigned)(unsigned char)*string++);
    }
    cvyi_text_add(t, "\"");
}

static void add_named(text *t, const char *name, const char *string)
{
    cvyi_text_add(t, "\"%s\": ", name);
    add_string(t, string);
    cvyi_text_add(t, ", ");
}

static void add_three(text *t, const char *name, const unsigned three[3])
{
    cvyi_text_add(t, "\"%s\": [%u, %u, %u], ", name, three[0], three[1], three[2]);
}

static const char *word(bool truth)
{
    return truth ? "true" : "false";
}

/* ---- parts of a launch ---- */

/* The offset of a byte of the run's memory if the prepared part is stored before the workspace. */
static long long in_one_buffer(const cvy_plan *p, int64_t at)
{
    return at < WORKSPACE_BASE ? at : at - WORKSPACE_BASE + p->prepared_bytes;
}

static void add_view(const cuda_run *r, const cuda_step *s, const step_view *view, text *t, bool *strided)
{
    const view_place at = cvyi_cuda_place(r, view);
    int64_t strides[EMIT_DIMS];

    if (cvyi_cuda_strides(r, view, at.tensor, strides) || cvyi_cuda_misaligned(r, s, at.tensor)) *strided = true;
    cvyi_text_add(t, "{");
    if (view->value != CVY_NONE) add_named(t, "name", r->plan->graph->values[view->value].name);
    cvyi_text_add(t, "\"%s\": %lld, \"strides\": [", at.tensor >= 0 ? "tensor" : "at",
                  at.tensor >= 0 ? at.tensor : in_one_buffer(r->plan, at.at));
    for (int d = 0; d < EMIT_DIMS; d++) cvyi_text_add(t, "%s%lld", d ? ", " : "", (long long)strides[d]);
    cvyi_text_add(t, "]}");
}

static void add_code(const cuda_step *s, int which, text *t)
{
    char entry[ENTRY_BYTES + 8];

    add_named(t, "entry", cvyi_cuda_entry(s, which, entry));
    add_named(t, "source", s->source);
    add_named(t, "epilogue", s->epilogue[which]);
    cvyi_text_add(t, "\"options\": [");
    for (int i = 0; i < s->n_options[which]; i++) {
        if (i) cvyi_text_add(t, ", ");
        add_string(t, s->options[which][i]);
    }
    cvyi_text_add(t, "], ");
}

/* The map of x itself, which copies walk through (tc_step.pixels). */
static void add_pixels(const tc_step *s, text *t)
{
    const struct {
        const char *name;
        const int *of_axis;
    } lists[] = {{"lower", s->lower}, {"upper", s->upper}, {"every", s->step}};

    cvyi_text_add(t, ", \"pixels\": {\"dims\": [");
    for (int d = 0; d < s->rank; d++) cvyi_text_add(t, "%s%llu", d ? ", " : "", (unsigned long long)s->dims[d]);
    cvyi_text_add(t, "], \"steps\": [");
    for (int d = 0; d < s->rank - 1; d++)
        cvyi_text_add(t, "%s%llu", d ? ", " : "", (unsigned long long)s->strides[d]);
    for (int i = 0; i < COUNT_OF(lists); i++) {
        cvyi_text_add(t, "], \"%s\": [", lists[i].name);
        for (int a = 0; a < s->rank - 2; a++) cvyi_text_add(t, "%s%d", a ? ", " : "", lists[i].of_axis[a]);
    }
    cvyi_text_add(t, "]}");
}

static void add_tc(const tc_step *s, text *t)
{
    const struct {
        const char *name;
        int view;
#define VIEW(type, name, meaning) {#name, s->name},
    } all[] = {TC_POINTERS(VIEW){"factor", s->factor}};

    cvyi_text_add(t,
                  ", \"tc\": {\"packs\": %s, \"product\": %s, \"words\": %s, \"tma\": %s, \"dtype\": \"%s\", "
                  "\"zero_bytes\": %lld, \"eps\": ",
                  word(s->packs), word(s->product), word(s->words), word(s->tma), cvyi_dtype_name(s->dtype),
                  (long long)s->zero_bytes);
    cvyi_text_add_number(t, s->eps);
    for (int i = 0; i < COUNT_OF(all); i++) cvyi_text_add(t, ", \"%s\": %d", all[i].name, all[i].view);
    cvyi_text_add(t, ", \"dims\": [%llu, %llu, %llu, %llu]", (unsigned long long)s->dims[0],
                  (unsigned long long)s->dims[1], (unsigned long long)s->dims[2], (unsigned long long)s->dims[3]);
    cvyi_text_add(t, ", \"steps\": [%llu, %llu, %llu]", (unsigned long long)s->strides[0],
                  (unsigned long long)s->strides[1], (unsigned long long)s->strides[2]);
    cvyi_text_add(t, ", \"box\": [%u, %u, %u, %u]", s->box[0], s->box[1], s->box[2], s->box[3]);
    if (s->pair)
        cvyi_text_add(t, ", \"w_dims\": [%llu, %llu, %llu], \"w_steps\": [%llu, %llu], \"w_box\": [%u, %u, %u]",
                      (unsigned long long)s->w_dims[0], (unsigned long long)s->w_dims[1],
                      (unsigned long long)s->w_dims[2], (unsigned long long)s->w_strides[0],
                      (unsigned long long)s->w_strides[1], s->w_box[0], s->w_box[1], s->w_box[2]);
    if (s->pixels) add_pixels(s, t);
    cvyi_text_add(t, ", \"pair\": %s}", word(s->pair));
}

static void add_launch(const cuda_run *r, const cuda_step *s, text *t)
{
    bool strided = false;

    cvyi_text_add(t, "{\"views\": [");
    for (int i = 0; i < s->n_views; i++) {
        if (i) cvyi_text_add(t, ", ");
        add_view(r, s, &s->views[i], t, &strided);
    }
    cvyi_text_add(t, "], ");
    add_code(s, cvyi_cuda_code(s, strided), t);
    add_three(t, "grid", s->launch.grid);
    add_three(t, "block", s->launch.block);
    add_three(t, "cluster", s->launch.cluster);
    cvyi_text_add(t,
                  "\"shared\": %u, \"cooperative\": %s, \"follows\": %s, \"prepared\": %s, \"arch_specific\": %s, "
                  "\"extent\": %lld",
                  s->launch.dynamic_shared, word(s->launch.cooperative), word(s->launch.follows), word(s->prepared),
                  word(s->tc), (long long)s->extent);
    if (s->tc) add_tc(s->tc, t);
    cvyi_text_add(t, "}");
}

/* ---- the whole object ---- */

/* An epilogue the first time, then its number: most steps that prepare have one of a few. */
static void add_epilogue(const char *epilogue, text_set *seen, arena *memory, text *t)
{
    const int known = seen->n, number = cvyi_text_set_add(seen, memory, epilogue);
    if (number < 0) t->failed = true;
    cvyi_text_add(t, "epilogue %d\n%s", number, number == known ? epilogue : "");
}

void cvyi_cuda_packing(const cvy_plan *p, text *t)
{
    const cuda_state *state = p->state;
    text_set seen = {0};
    arena memory = {0};

    for (int i = 0; i < state->n_steps; i++) {
        const cuda_step *s = &state->steps[i];
        if (!s->prepared) continue;
        cvyi_text_add(t, "%s %s %lld\n", s->source, s->entry, (long long)s->extent);
        add_epilogue(s->epilogue[0], &seen, &memory, t);
        add_three(t, "grid", s->launch.grid);
        add_three(t, "block", s->launch.block);
        for (int k = 0; k < s->n_options[0]; k++) cvyi_text_add(t, " %s", s->options[0][k]);
        for (int k = 0; k < s->n_views; k++) {
            const step_view *v = &s->views[k];
            cvyi_text_add(t, "\nview %d of %d at %lld", (int)v->kind, v->value, (long long)v->at);
            for (int d = 0; d < EMIT_DIMS; d++) cvyi_text_add(t, " %d*%lld", v->dim[d], (long long)v->times[d]);
        }
        cvyi_text_add(t, "\n");
    }
    cvyi_arena_free(&memory);
}

cvy_status cvyi_cuda_launches(const cvy_plan *p, const cvy_buffer *buffers, text *t)
{
    const cuda_state *state = p->state;
    const cuda_run r = {.plan = p, .buffers = buffers};
    const nvrtc_api *rtc;
    bool any = false;
    cvy_status st;

    TRY(cvyi_cuda_nvrtc(&rtc));
    cvyi_text_add(t, "{");
    add_named(t, "device", state->device->name);
    cvyi_text_add(t, "\"capability\": [%d, %d], \"multiprocessors\": %d, \"nvrtc\": \"%d.%d\", \"workspace\": %zu",
                  state->device->major, state->device->minor, state->device->sms, rtc->major, rtc->minor,
                  cvy_plan_workspace(p));
    cvyi_text_add(t, ", \"launches\": [");
    for (int i = 0; i < state->n_steps; i++) {
        if (!cvyi_cuda_wanted(&r, &state->steps[i], 0)) continue;
        if (any) cvyi_text_add(t, ",\n");
        add_launch(&r, &state->steps[i], t);
        any = true;
    }
    cvyi_text_add(t, "], \"files\": {");
    for (const jit_file *f = cvyi_cuda_files; f->name; f++) {
        if (f != cvyi_cuda_files) cvyi_text_add(t, ",\n");
        cvyi_text_add(t, "\"%s\": ", f->name);
        add_string(t, f->data);
    }
    cvyi_text_add(t, "}}");
fail:
    return st;
}
