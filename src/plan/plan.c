/* plan.c - the public functions of plans: options, the steps of planning, the checks of run, calls of the engine.
 */
#include <string.h>
#include "../simplify/simplify.h"
#include "plan.h"

static const engine *const engines[] = {&cvyi_engine_ref, &cvyi_engine_cpu, &cvyi_engine_cuda};

static const engine *engine_of(int device)
{
    for (int i = 0; i < COUNT_OF(engines); i++)
        if ((int)engines[i]->device == device) return engines[i];
    return NULL;
}

typedef struct option_range {
    const char *name;
    int value, last;
} option_range;

static cvy_status check_options(const cvy_options *o)
{
    const option_range checks[] = {
        {"device", o->device, CVY_CUDA},    {"precision", o->precision, CVY_TF32},
        {"effort", o->effort, CVY_MEASURE}, {"winograd", o->winograd, CVY_OFF},
        {"fuse", o->fuse, CVY_OFF},         {"strided", o->strided, CVY_OFF},
        {"deferred", o->deferred, CVY_OFF},
    };
    for (int i = 0; i < COUNT_OF(checks); i++)
        if (checks[i].value < 0 || checks[i].value > checks[i].last)
            return cvyi_fail(CVY_INVALID, "options: %s is %d, expected 0 to %d", checks[i].name, checks[i].value,
                             checks[i].last);
    if (o->threads < 0 || o->threads > 1024)
        return cvyi_fail(CVY_INVALID, "options: threads is %d, expected 0 to 1024", (int)o->threads);
    return CVY_OK;
}

/* A shorter struct comes from a program that knew fewer options: the rest are defaults. */
static cvy_status take_options(const cvy_options *given, cvy_options *out)
{
    *out = (cvy_options){.size = sizeof *out};
    if (cvyi_env_check()) return CVY_INVALID;
    if (given) {
        const size_t known = given->size < sizeof *out ? given->size : sizeof *out;
        if (given->size < sizeof given->size)
            return cvyi_fail(CVY_INVALID, "options: size is %zu, not set?", given->size);
        memcpy(out, given, known);
        out->size = sizeof *out;
    }
    if (!out->seed) out->seed = (uint32_t)cvyi_env_int(ENV_PLAN_SEED, 0);
    if (!out->fuse && cvyi_env_int(ENV_FUSE, 1) == 0) out->fuse = CVY_OFF;
    return check_options(out);
}

/* In the order of cvy_graph_tensor(). */
static cvy_status list_tensors(cvy_plan *p)
{
    const cvy_graph *g = p->graph;
    const int *outputs;
    const int n_outputs = cvyi_graph_outputs(g, &outputs);
    int n = 0;

    p->n_tensors = cvy_graph_tensors(p->source);
    p->tensor_value = cvyi_arena_alloc(&p->memory, (size_t)p->n_tensors + 1, sizeof *p->tensor_value);
    if (!p->tensor_value) return CVY_NO_MEMORY;
    for (int kind = VALUE_INPUT; kind <= VALUE_PARAM; kind++)
        for (int i = 0; i < g->given[kind].n; i++) p->tensor_value[n++] = g->given[kind].at[i];
    for (int i = 0; i < n_outputs; i++) p->tensor_value[n++] = outputs[i];
    return CVY_OK;
}

/* What depends only on parameters is prepared in float32: nothing is rounded in between, unless the graph asks for
 * it by a cast. A reshape does not change parameters. */
static void widen_prepared(cvy_graph *g)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const node *n = &g->nodes[i];
        const bool reshaped = cvyi_info(n)->kind == KIND_SHAPE;
        if (!g->values[n->out].fixed || g->values[n->out].output || n->op == OP_cast) continue;
        g->values[n->out].dtype = reshaped ? g->values[n->arg[0]].dtype : CVY_FLOAT32;
    }
}

static cvy_status lower(cvy_plan *p)
{
    cvy_status st = CVY_OK;
    const int *outputs;
    int n;

    TRY(cvyi_graph_copy(p->source, &p->graph));
    /* Outputs are marked, so that rewrites can replace the last node. */
    n = cvyi_graph_outputs(p->source, &outputs);
    if (!p->graph->n_outputs)
        for (int i = 0; i < n; i++) TRY(cvy_graph_output(p->graph, outputs[i]));
    if (!p->engine->lowers) return list_tensors(p);
    widen_prepared(p->graph);
    TRY(cvyi_simplify(p->graph, p->mode, &p->rewrites));
    TRY(cvyi_graph_trim(p->graph));
    TRY(list_tensors(p));
    TRY(cvyi_find_roots(p));
    TRY(cvyi_choose(p));
    TRY(cvyi_place(p));
fail:
    return st;
}

static cvy_status open_engine(cvy_plan *p)
{
    cvy_status st;
    if (p->options.device != CVY_AUTO) {
        p->engine = engine_of(p->options.device);
        return p->engine->open(p);
    }
    p->engine = &cvyi_engine_cuda;
    st = p->engine->open(p);
    if (!st) return st;
    p->engine->close(p);
    p->state = NULL;
    cvyi_log(1, "no GPU: %s", cvy_last_error());
    p->engine = &cvyi_engine_cpu;
    return p->engine->open(p);
}

/* Does the engine take the dtype of every value? */
static cvy_status check_dtypes(const cvy_plan *p)
{
    const cvy_graph *g = p->source;
    for (int v = 0; v < g->n_values; v++)
        if (!(p->engine->dtypes & 1u << g->values[v].dtype))
            return cvyi_fail(CVY_UNSUPPORTED, "'%.60s' is %s, which the %s engine does not take", g->values[v].name,
                             cvyi_dtype_name(g->values[v].dtype), p->engine->name);
    return CVY_OK;
}

/* Options and engine, nothing planned yet. */
static cvy_status begin(const cvy_graph *graph, const cvy_options *options, cvy_plan **out)
{
    cvy_status st = CVY_OK;
    cvy_plan *p = NULL;

    *out = NULL;
    if (!graph) return cvyi_fail(CVY_INVALID, "graph is NULL");
    if (!graph->n_nodes) return cvyi_fail(CVY_INVALID, "the graph has no operator");
    if (graph->n_nodes > CVY_MAX_OPERATORS)
        return cvyi_fail(CVY_UNSUPPORTED, "the graph has %d operators; the limit is %d", graph->n_nodes,
                         CVY_MAX_OPERATORS);
    p = cvyi_alloc(1, sizeof *p);
    if (!p) return CVY_NO_MEMORY;
    TRY(take_options(options, &p->options));
    TRY(cvyi_graph_copy(graph, &p->source));
    TRY(open_engine(p));
    TRY(check_dtypes(p));
    p->mode = p->engine->watches ? REWRITE_WATCH : REWRITE_TRUST;
    *out = p;
    return CVY_OK;
fail:
    cvy_plan_free(p);
    return st;
}

/* Everything but code. */
static cvy_status prepare(cvy_plan *p)
{
    cvy_status st = CVY_OK;
    TRY(lower(p));
    TRY(p->engine->prepare(p));
    p->waits = true;
fail:
    return st;
}

static cvy_status finish(cvy_plan *p)
{
    const cvy_status st = prepare(p);
    return st ? st : cvyi_compile(&p, 1);
}

cvy_status cvyi_plan_tuned(const cvy_graph *graph, const cvy_options *options, int tuning, cvy_plan **out)
{
    cvy_status st = CVY_OK;
    cvy_plan *p = NULL;

    *out = NULL;
    TRY(begin(graph, options, &p));
    p->tuning = tuning;
    TRY(finish(p));
    *out = p;
    return CVY_OK;
fail:
    cvy_plan_free(p);
    return st;
}

cvy_status cvyi_plan_careful(const cvy_plan *of, cvy_plan **out)
{
    cvy_options options = of->options;
    cvy_status st = CVY_OK;
    cvy_plan *p = NULL;

    *out = NULL;
    options.device = of->engine->device;
    TRY(begin(of->source, &options, &p));
    p->mode = REWRITE_CAREFUL;
    TRY(finish(p));
    *out = p;
    return CVY_OK;
fail:
    cvy_plan_free(p);
    return st;
}

/* What CVY_DEBUG shows of a plan. */
static void log_plan(const cvy_plan *p, int level, const char *title, void (*print)(const cvy_plan *, text *))
{
    text t = {0};

    if (!cvyi_logs(level)) return;
    print(p, &t);
    if (t.len && !t.failed) cvyi_log(level, "%s:\n%s", title, t.data);
    cvyi_text_free(&t);
}

cvy_status cvy_plan_create(const cvy_graph *graph, const cvy_options *options, cvy_plan **out)
{
    cvy_status st = CVY_OK;
    cvy_plan *p = NULL;

    if (!out) return cvyi_fail(CVY_INVALID, "result pointer is NULL");
    *out = NULL;
    TRY(begin(graph, options, &p));
    if (p->options.effort == CVY_MEASURE && !p->options.seed) TRY(cvyi_measure(p, &p->tuning, &p->measured));
    TRY((p->options.deferred == CVY_ON && p->engine->compile ? prepare : finish)(p));
    log_plan(p, 2, "plan", cvyi_print_plan);
    log_plan(p, 3, "kernels", cvyi_print_why);
    *out = p;
    return CVY_OK;
fail:
    cvy_plan_free(p);
    return st;
}

void cvy_plan_free(cvy_plan *p)
{
    if (!p) return;
    if (p->engine) p->engine->close(p);
    cvyi_text_free(&p->rewrites);
    cvyi_arena_free(&p->memory);
    cvy_graph_free(p->graph);
    cvy_graph_free(p->source);
    cvyi_free(p);
}

/* Refuses calls that need a plan with code. */
static cvy_status waits(const char *call)
{
    return cvyi_fail(CVY_INVALID, "%s: the plan has no code yet (option deferred): call cvy_plans_compile() first",
                     call);
}

size_t cvy_plan_workspace(const cvy_plan *p)
{
    return p && !p->waits ? (size_t)p->prepared_bytes + p->workspace : 0;
}

cvy_status cvy_plan_prepared(const cvy_plan *p, cvy_prepared *out)
{
    if (!p || !out) return cvyi_fail(CVY_INVALID, "plan or result pointer is NULL");
    if (p->waits) return waits("prepared");
    *out = (cvy_prepared){.bytes = (size_t)p->prepared_bytes};
    memcpy(out->digest, p->digest, sizeof out->digest);
    return CVY_OK;
}

cvy_device cvy_plan_device(const cvy_plan *p)
{
    return p ? p->engine->device : CVY_AUTO;
}

cvy_status cvy_plan_cost(const cvy_plan *p, cvy_cost *out)
{
    if (!p || !out) return cvyi_fail(CVY_INVALID, "plan or result pointer is NULL");
    *out = (cvy_cost){
        .passes = p->n_passes - p->n_prepare, .peak = p->machine.flops, .bandwidth = p->machine.bandwidth};
    for (int i = p->n_prepare; i < p->n_passes; i++) {
        out->seconds += p->passes[i].seconds;
        out->bytes += p->passes[i].bytes;
    }
    for (int i = 0; i < p->source->n_nodes; i++) out->flops += cvyi_node_flops(p->source, &p->source->nodes[i]);
    for (int i = 0; i < p->n_tensors; i++) out->floor += (double)cvyi_value_bytes(p->graph, p->tensor_value[i]);
    if (!p->engine->lowers) out->bytes = out->floor;
    out->floor = p->machine.bandwidth > 0 ? out->floor / p->machine.bandwidth : 0;
    return CVY_OK;
}

/* The end of calls that return a text: copies it to the caller, unless there was an error. */
static cvy_status give_text(text *t, cvy_status st, char *dst, size_t capacity, size_t *needed)
{
    if (!st) st = cvyi_text_copy(t, dst, capacity, needed);
    cvyi_text_free(t);
    return st;
}

/* What `print` writes of a plan, for the caller. */
static cvy_status give_print(const cvy_plan *p, void (*print)(const cvy_plan *, text *), char *dst, size_t capacity,
                             size_t *needed)
{
    text t = {0};

    if (!p) return cvyi_fail(CVY_INVALID, "plan is NULL");
    print(p, &t);
    return give_text(&t, CVY_OK, dst, capacity, needed);
}

cvy_status cvy_plan_print(const cvy_plan *p, char *dst, size_t capacity, size_t *needed)
{
    return give_print(p, cvyi_print_plan, dst, capacity, needed);
}

cvy_status cvy_plan_why(const cvy_plan *p, char *dst, size_t capacity, size_t *needed)
{
    if (p && !p->engine->why)
        return cvyi_fail(CVY_UNSUPPORTED, "why: the plan is for %s, which has no passes", p->engine->name);
    return give_print(p, cvyi_print_why, dst, capacity, needed);
}

cvy_status cvy_plan_measure(cvy_plan *p)
{
    cvy_status st = CVY_OK;
    double *seconds = NULL;

    if (!p) return cvyi_fail(CVY_INVALID, "plan is NULL");
    if (p->waits) return waits("measure");
    if (!p->engine->measure_passes)
        return cvyi_fail(CVY_UNSUPPORTED, "measure: the plan is for %s, which has no passes", p->engine->name);
    seconds = cvyi_alloc((size_t)p->n_passes + 1, sizeof *seconds);
    if (!seconds) return CVY_NO_MEMORY;
    TRY(p->engine->measure_passes(p, seconds));
    for (int i = p->n_prepare; i < p->n_passes; i++) p->passes[i].measured = seconds[i];
    log_plan(p, 2, "measured", cvyi_print_plan);
fail:
    cvyi_free(seconds);
    return st;
}

/* Do these buffers fit the plan? `call` is named in messages; data may be NULL if nothing runs. */
static cvy_status check_buffers(const cvy_plan *p, const char *call, const cvy_buffer *buffers, int32_t n,
                                bool runs)
{
    if (n != p->n_tensors || (n && !buffers))
        return cvyi_fail(CVY_INVALID, "%s: the plan takes %d buffers, got %d", call, p->n_tensors, (int)n);
    for (int i = 0; i < n; i++) {
        const value *v = &p->graph->values[p->tensor_value[i]];
        if (runs && !buffers[i].data && cvyi_elements(&v->shape))
            return cvyi_fail(CVY_INVALID, "%s: buffer %d ('%s') is NULL", call, i, v->name);
        if ((uintptr_t)buffers[i].data % (uintptr_t)cvyi_dtype_bytes(v->dtype))
            return cvyi_fail(CVY_INVALID, "%s: buffer %d ('%s') is not at a multiple of its elements' %d bytes",
                             call, i, v->name, (int)cvyi_dtype_bytes(v->dtype));
        if (p->options.strided != CVY_OFF) continue;
        const bool aligned = p->engine->device != CVY_CUDA || (uintptr_t)buffers[i].data % 16 == 0;
        if (!cvyi_is_contiguous(&v->shape, buffers[i].strides) || !aligned)
            return cvyi_fail(CVY_INVALID,
                             "%s: buffer %d ('%s') is strided or not at a multiple of 16 bytes: this plan was made "
                             "for buffers that are neither (option strided)",
                             call, i, v->name);
    }
    return CVY_OK;
}

/* A buffer of run(): is it there, aligned, and large enough? */
static cvy_status check_memory(const char *what, const void *memory, size_t size, size_t needed)
{
    if (!needed) return CVY_OK;
    if (!memory || (uintptr_t)memory % CVY_ALIGN)
        return cvyi_fail(CVY_INVALID, "run: the %s is NULL or not aligned to %d bytes", what, CVY_ALIGN);
    if (size < needed)
        return cvyi_fail(CVY_INVALID, "run: the plan needs a %s of %zu bytes, got %zu", what, needed, size);
    return CVY_OK;
}

static cvy_status run_in(const cvy_plan *p, const cvy_buffer *buffers, int32_t n_buffers, const run_memory *memory,
                         uint32_t flags, void *stream)
{
    cvy_status st = CVY_OK;
    if (p->waits) return waits("run");
    if (p->engine->device != CVY_CUDA && stream)
        return cvyi_fail(CVY_INVALID, "run: a stream is for the cuda device, this plan is for %s", p->engine->name);
    TRY(check_buffers(p, "run", buffers, n_buffers, true));
    TRY((p->watches ? cvyi_watched_run : p->engine->run)(p, buffers, memory, flags, stream));
fail:
    return st;
}

cvy_status cvy_plan_run(const cvy_plan *p, const cvy_buffer *buffers, int32_t n_buffers, void *workspace,
                        size_t workspace_size, uint32_t flags, void *stream)
{
    const bool kept = flags & CVY_KEEP_PREPARED;
    run_memory memory = {workspace, workspace, kept};
    cvy_status st = CVY_OK;

    if (!p) return cvyi_fail(CVY_INVALID, "plan is NULL");
    TRY(check_memory("workspace", workspace, workspace_size, cvy_plan_workspace(p)));
    if (flags & ~(uint32_t)CVY_KEEP_PREPARED)
        return cvyi_fail(CVY_INVALID, "run: unknown flags 0x%x", (unsigned)flags);
    memory.workspace += p->prepared_bytes;
    TRY(run_in(p, buffers, n_buffers, &memory, flags, stream));
fail:
    return st;
}

cvy_status cvy_plan_run_in(const cvy_plan *p, const cvy_buffer *buffers, int32_t n_buffers, const cvy_memory *given,
                           uint32_t flags, void *stream)
{
    run_memory memory = {NULL, NULL, flags & CVY_KEEP_WORKSPACE};
    cvy_status st = CVY_OK;

    if (!p || !given) return cvyi_fail(CVY_INVALID, "plan or memory is NULL");
    if (given->size != sizeof *given)
        return cvyi_fail(CVY_INVALID, "run: memory.size is %zu, expected %zu", given->size, sizeof *given);
    TRY(check_memory("prepared buffer", given->prepared, given->prepared_size, (size_t)p->prepared_bytes));
    TRY(check_memory("workspace", given->workspace, given->workspace_size, p->workspace));
    if (flags & ~(uint32_t)(CVY_KEEP_PREPARED | CVY_KEEP_WORKSPACE))
        return cvyi_fail(CVY_INVALID, "run: unknown flags 0x%x", (unsigned)flags);
    memory.prepared = given->prepared;
    memory.workspace = given->workspace;
    TRY(run_in(p, buffers, n_buffers, &memory, flags, stream));
fail:
    return st;
}

cvy_status cvy_plan_launches(const cvy_plan *p, const cvy_buffer *buffers, int32_t n_buffers, char *dst,
                             size_t capacity, size_t *needed)
{
    text t = {0};
    cvy_status st;

    if (!p) return cvyi_fail(CVY_INVALID, "plan is NULL");
    if (!p->engine->launches)
        return cvyi_fail(CVY_UNSUPPORTED, "launches: the plan is for %s, which launches no kernels",
                         p->engine->name);
    TRY(check_buffers(p, "launches", buffers, n_buffers, false));
    st = p->engine->launches(p, buffers, &t);
fail:
    return give_text(&t, st, dst, capacity, needed);
}
