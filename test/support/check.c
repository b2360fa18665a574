/* check.c - see check.h. */
#include "check.h"

static const char *const run_names[] = {"", "with kept parameters", "captured", "in reversed order",
                                        "in shuffled order"};

/* The emulator has no captures, and takes its time: of large tensors one order will do. */
static bool way_exists(const gpu_rig *t, run_way how)
{
    int64_t cells = 0;

    if (how == RUN_FRESH || t->u->sanitized) return how == RUN_FRESH;
    if (how == RUN_KEPT) return true;
    if (how == RUN_CAPTURED) return !t->u->emulated;
    for (int i = 0; i < t->r->n; i++) cells += t->r->t[i].cells;
    return t->u->emulated && cells < 1 << 18;
}

/* Does a pass on tensor cores leave a value in the workspace? initcheck knows bulk copies from CUDA 13.1 on; before
 * it takes what they write for uninitialised. */
static bool copies_in_bulk(const cvy_plan *plan)
{
    const cuda_state *state = plan->state;
    bool found = false;

    for (int i = 0; i + 1 < state->n_steps; i++) found |= !strcmp(state->steps[i].source, "conv_tc.cu");
    return found;
}

float *run_one_way(gpu_rig *t, const cvy_plan *plan, CUdeviceptr at, run_way how, int64_t *count)
{
    void *work = (void *)(uintptr_t)at;
    float *got = NULL;
    cvy_status st = CVY_OK;

    gpu_rig_wipe(t);
    if (how != RUN_KEPT && (!t->u->sanitized || copies_in_bulk(plan)))
        TRY(cvyi_cuda_fill(t->u->device, at, 0xff, cvy_plan_workspace(plan), t->u->stream));
    if (how == RUN_REVERSED) setenv("CVY_EMULATE_ORDER", "reversed", 1);
    if (how == RUN_SHUFFLED) setenv("CVY_EMULATE_ORDER", "20261", 1);
    st = how == RUN_CAPTURED ? run_captured(t, plan, work)
                             : cvy_plan_run(plan, t->buffers, t->r->n, work, cvy_plan_workspace(plan),
                                            how == RUN_KEPT ? CVY_KEEP_PREPARED : 0, t->u->stream);
    unsetenv("CVY_EMULATE_ORDER");
    if (!st && !(got = gpu_rig_outputs(t, count))) st = cvyi_fail(CVY_FAILED, "a guard was overwritten");
fail:
    return st ? NULL : got;
}

/* The largest error over the scale of its output; for the report. */
static double error_of(const rig *r, const float *got)
{
    double worst = 0;
    int64_t at = 0;

    for (int i = r->n_sources; i < r->n; i++) {
        double scale = 1e-30, most = 0;
        for (int64_t k = 0; k < r->t[i].count; k++, at++) {
            const double want = r->t[i].want[k];
            if (!isfinite(want) || !isfinite(got[at])) continue;
            scale = fmax(scale, fabs(want));
            most = fmax(most, fabs(want - got[at]));
        }
        worst = fmax(worst, most / scale);
    }
    return worst;
}

/* Empty where all is well, else what is wrong. */
static void check_rig(gpu_rig *t, const doubt *d, const cvy_plan *plan, const guarded *work, double *worst,
                      char what[300])
{
    float *first = NULL;
    int64_t count = 0;

    for (run_way how = 0; how < RUN_WAYS && !*what; how++) {
        float *got;
        double want = 0;
        const bool strict = plan->options.precision == CVY_FP32;
        if (!way_exists(t, how)) continue;
        got = run_one_way(t, plan, work->at, how, &count);
        if (!got) {
            snprintf(what, 300, "%s: %s", run_names[how], cvy_last_error());
        } else if (!guarded_intact(t->u, work)) {
            snprintf(what, 300, "%s: memory beside the workspace was written", run_names[how]);
        } else if (!gpu_rig_intact(t)) {
            snprintf(what, 300, "%s: an input, or memory beside a tensor, was written", run_names[how]);
        } else if (!first) {
            const int64_t bad = doubt_find(d, t->r, got, strict, &want);
            if (bad >= 0)
                snprintf(what, 300, "element %lld is %.9g, expected %.9g, slack %.2g%s", (long long)bad,
                         (double)got[bad], want, d->slack[bad], d->exact && strict ? ", exact" : "");
            *worst = fmax(*worst, d->beyond ? 0 : error_of(t->r, got));
        } else if (!rig_same_bits(first, got, count)) {
            snprintf(what, 300, "other bits %s", run_names[how]);
        }
        if (first)
            free(got);
        else
            first = got;
    }
    free(first);
}

/* float32's rounding; that of an operand to 11 bits, which is also the error of the hardware's tanh. Values of 16
 * bits may be rounded to those wherever an operator ends, as PyTorch does. */
const doubt_rounding checked_rounding[DTYPE_COUNT][CHECK_PRECISIONS] = {
    [CVY_FLOAT32] = {[CVY_FP32] = DOUBT_FLOAT32, [CVY_TF32] = {0x1p-10, 0x1p-126, 1e36, 0x1p24}},
    [CVY_FLOAT16] = {{0x1p-10, 0x1p-24, 3e4, 0x1p11}, {0x1p-10, 0x1p-24, 3e4, 0x1p11}},
    [CVY_BFLOAT16] = {{0x1p-7, 0x1p-126, 1e36, 0x1p8}, {0x1p-7, 0x1p-126, 1e36, 0x1p8}},
};
const char *const precision_names[CHECK_PRECISIONS] = {[CVY_FP32] = "fp32", [CVY_TF32] = "tf32"};

cvy_graph *graph_as(const cvy_graph *g, cvy_dtype dtype, bool parameters)
{
    cvy_graph *made = NULL;

    assert_ok(cvyi_graph_copy(g, &made));
    for (int v = 0; v < made->n_values; v++)
        if (parameters || !made->values[v].fixed) made->values[v].dtype = dtype;
    for (int i = 0; i < made->n_nodes; i++)
        if (made->nodes[i].op == OP_cast) made->nodes[i].attr[0].i[0] = made->values[made->nodes[i].out].dtype;
    return made;
}

void round_rig(rig *r, const cvy_graph *g)
{
    for (int i = 0; i < r->n_sources; i++) {
        cvy_tensor of;
        assert_ok(cvy_graph_tensor(g, i, &of));
        for (int64_t k = 0; k < r->t[i].count && of.dtype != CVY_FLOAT32; k++) {
            float *x = rig_at(&r->t[i], k);
            *x = half_value((cvy_dtype)of.dtype, half_bits((cvy_dtype)of.dtype, *x));
        }
    }
}

static void open_graph(checked_graph *c, const gpu *u, cvy_graph *g, rig_data kind, uint64_t seed, bool last)
{
    *c = (checked_graph){.u = u, .g = g, .twin = graph_as(g, CVY_FLOAT32, true), .first = last};
    for (int i = 0; i < 4; i++) random_next(&seed);
    for (int i = 0; i < CHECK_RIGS; i++) {
        rig_open(&c->rigs[i], c->twin, &seed, kind, i && !last ? 6 : 0);
        if (i && last) rig_images_last(&c->rigs[i]);
        round_rig(&c->rigs[i], g);
        rig_reference(&c->rigs[i]);
        for (int p = 0; p < CHECK_PRECISIONS; p++)
            doubt_open_by(&c->doubts[p][i], &c->rigs[i], seed, &checked_rounding[doubt_dtype(g)][p]);
        gpu_rig_open_as(&c->on_device[i], u, &c->rigs[i], g);
    }
}

void check_open(checked_graph *c, const gpu *u, cvy_graph *g, rig_data kind, uint64_t seed)
{
    open_graph(c, u, g, kind, seed, false);
}

void check_open_last(checked_graph *c, const gpu *u, cvy_graph *g, rig_data kind, uint64_t seed)
{
    open_graph(c, u, g, kind, seed, true);
}

void check_close(checked_graph *c)
{
    for (int i = 0; i < CHECK_RIGS; i++) {
        gpu_rig_close(&c->on_device[i]);
        for (int p = 0; p < CHECK_PRECISIONS; p++) doubt_close(&c->doubts[p][i]);
        rig_close(&c->rigs[i]);
    }
    cvy_graph_free(c->twin);
}

const plan_kind plan_kinds[PLAN_KINDS] = {
    {"planned", CVY_DEFAULT, 0, 0},          {"one by one", CVY_OFF, 0, 0},
    {"second best tile", CVY_DEFAULT, 1, 0}, {"third best tile", CVY_DEFAULT, 2, 0},
    {"fourth best tile", CVY_DEFAULT, 3, 0}, {"no tensor cores", CVY_DEFAULT, 4, 0},
    {"random", CVY_DEFAULT, 0, 1},           {"random too", CVY_DEFAULT, 0, 2},
};

cvy_status check_plan_create(cvy_graph *g, const plan_kind *k, cvy_precision precision, uint32_t seed,
                             cvy_plan **out)
{
    const cvy_options o = {.size = sizeof o,
                           .device = CVY_CUDA,
                           .precision = (int32_t)precision,
                           .fuse = k->fuse,
                           .seed = k->random ? seed * 16 + k->random : 0};
    return cvyi_plan_tuned(g, &o, k->tuning, out);
}

bool check_plan(checked_graph *c, const plan_kind *k, cvy_precision precision, uint32_t seed)
{
    static const char *const kinds[] = {"", "strided: "};
    cvy_plan *plan = NULL;
    guarded work = {0};
    char what[300] = "";
    bool good = true;

    if (check_plan_create(c->g, k, precision, seed, &plan) ||
        guarded_alloc(c->u, cvy_plan_workspace(plan), &work)) {
        snprintf(what, sizeof what, "%s", cvy_last_error());
        good = false;
    }
    for (int i = c->first; i < CHECK_RIGS && good; i++) {
        check_rig(&c->on_device[i], &c->doubts[precision][i], plan, &work, &c->worst[precision], what);
        if (*what) fprintf(stderr, "%s", kinds[i]);
        good = !*what;
    }
    if (!good)
        fprintf(stderr, "%s\n    %s, %s, seed %u: %s\n", what, k->name, precision_names[precision], (unsigned)seed,
                c->title);
    guarded_free(c->u, &work);
    cvy_plan_free(plan);
    return good;
}

bool check_plans(checked_graph *c, cvy_precision precision, int kinds, uint32_t seed)
{
    bool good = true;

    for (int i = 0; i < PLAN_KINDS; i++)
        if (kinds >> i & 1) good &= check_plan(c, &plan_kinds[i], precision, seed);
    return good;
}
