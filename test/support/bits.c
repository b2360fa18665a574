/* bits.c - see bits.h. */
#include "bits.h"

/* A plan on tensors, stream and workspace of its own. */
typedef struct lane {
    gpu u;
    gpu_rig t;
    guarded work;
    char *bits; /* outputs of the latest run, one after the other */
} lane;

enum { BITS_RUNS = 100, BITS_ROUNDS = 10 };

static size_t lane_bytes(const lane *l)
{
    size_t bytes = 0;
    for (int i = l->t.r->n_sources; i < l->t.r->n; i++) bytes += l->t.memory[i].bytes;
    return bytes;
}

/* Before lane_close() in any case. */
static cvy_status lane_open(lane *l, const gpu *u, rig *r, const cvy_plan *plan)
{
    cvy_status st;

    *l = (lane){.u = *u};
    l->u.stream = NULL;
    TRY(cvyi_cuda_stream_create(u->device, &l->u.stream));
    gpu_rig_open(&l->t, &l->u, r);
    TRY(guarded_alloc(&l->u, cvy_plan_workspace(plan), &l->work));
    TRY(cvyi_cuda_fill(u->device, l->work.at, 0xff, l->work.bytes, l->u.stream));
    l->bits = malloc(lane_bytes(l) + 1);
    st = l->bits ? CVY_OK : CVY_NO_MEMORY;
fail:
    return st;
}

static void lane_close(lane *l)
{
    free(l->bits);
    guarded_free(&l->u, &l->work);
    if (l->t.r) gpu_rig_close(&l->t);
    cvyi_cuda_stream_free(l->u.device, l->u.stream);
}

/* Enqueues a run after NaNs in the place of the outputs. */
static cvy_status lane_start(lane *l, const cvy_plan *plan, bool captured, uint32_t flags)
{
    void *work = (void *)(uintptr_t)l->work.at;
    cvy_status st = CVY_OK;

    for (int i = l->t.r->n_sources; i < l->t.r->n; i++)
        TRY(cvyi_cuda_fill(l->u.device, l->t.memory[i].at, 0xff, l->t.memory[i].bytes, l->u.stream));
    st = captured ? run_captured(&l->t, plan, work)
                  : cvy_plan_run(plan, l->t.buffers, l->t.r->n, work, cvy_plan_workspace(plan), flags, l->u.stream);
fail:
    return st;
}

/* Waits, and takes the outputs. */
static cvy_status lane_finish(lane *l)
{
    size_t at = 0;
    cvy_status st = CVY_OK;

    for (int i = l->t.r->n_sources; i < l->t.r->n; at += l->t.memory[i++].bytes)
        TRY(cvyi_cuda_download(l->u.device, l->bits + at, l->t.memory[i].at, l->t.memory[i].bytes, l->u.stream));
fail:
    return st;
}

/* One run from start to end; *same: are its bits those of `first`? */
static cvy_status lane_again(lane *l, const cvy_plan *plan, bool captured, uint32_t flags, const char *first,
                             bool *same)
{
    cvy_status st;

    TRY(lane_start(l, plan, captured, flags));
    TRY(lane_finish(l));
    *same = !memcmp(first, l->bits, lane_bytes(l));
fail:
    return st;
}

/* One after the other; every fourth prepares its parameters again. */
static cvy_status bits_of_runs(lane *a, const cvy_plan *plan, const char *first, char what[300])
{
    cvy_status st = CVY_OK;
    bool same = true;

    for (int i = 0; i < BITS_RUNS && same; i++) {
        TRY(lane_again(a, plan, false, i % 4 ? CVY_KEEP_PREPARED : 0, first, &same));
        if (!same) snprintf(what, 300, "other bits in run %d", i + 1);
    }
fail:
    return st;
}

/* On two streams at once, in turns. */
static cvy_status bits_of_streams(lane *a, lane *b, const cvy_plan *plan, const char *first, char what[300])
{
    cvy_status st = CVY_OK;

    for (int i = 0; i < BITS_ROUNDS && !*what; i++) {
        TRY(lane_start(a, plan, false, CVY_KEEP_PREPARED));
        TRY(lane_start(b, plan, false, i ? CVY_KEEP_PREPARED : 0));
        TRY(lane_finish(a));
        TRY(lane_finish(b));
        if (memcmp(first, a->bits, lane_bytes(a)) || memcmp(first, b->bits, lane_bytes(b)))
            snprintf(what, 300, "other bits beside a second stream, round %d", i + 1);
    }
fail:
    return st;
}

static bool lane_intact(const lane *l)
{
    return guarded_intact(&l->u, &l->work) && gpu_rig_intact(&l->t);
}

void same_bits(const gpu *u, rig *r, const cvy_plan *plan, char what[300])
{
    lane a = {0}, b = {0};
    char *first = NULL;
    bool same = true;
    cvy_status st;

    TRY(lane_open(&a, u, r, plan));
    TRY(lane_open(&b, u, r, plan));
    TRY(lane_start(&b, plan, false, 0));
    TRY(lane_finish(&b));
    first = malloc(lane_bytes(&b) + 1);
    assert_non_null(first);
    memcpy(first, b.bits, lane_bytes(&b));
    TRY(bits_of_runs(&a, plan, first, what));
    if (!*what) TRY(bits_of_streams(&a, &b, plan, first, what));
    if (!*what && !u->emulated) TRY(lane_again(&a, plan, true, 0, first, &same));
    if (!same) snprintf(what, 300, "other bits from a captured graph");
    if (!*what && !(lane_intact(&a) && lane_intact(&b)))
        snprintf(what, 300, "an input, or memory beside a buffer, was written");
fail:
    if (st) snprintf(what, 300, "%s", cvy_last_error());
    lane_close(&a);
    lane_close(&b);
    free(first);
}

static int64_t batch_of(const rig_tensor *t)
{
    return t->info.rank ? t->info.dims[0] : 0;
}

/* Sample i becomes sample i + 1, the last the first. */
static void rotate(void *data, int64_t samples, size_t sample_bytes)
{
    char *at = data, *last = malloc(sample_bytes + 1);
    const size_t others = (size_t)(samples - 1) * sample_bytes;

    memcpy(last, at + others, sample_bytes);
    memmove(at + sample_bytes, at, others);
    memcpy(at, last, sample_bytes);
    free(last);
}

/* Does the reference say that samples have nothing to do with each other: do others stay when the first one
 * changes? */
static bool samples_apart(rig *r)
{
    const int64_t n = batch_of(&r->t[0]);
    double *before[RIG_TENSORS];
    bool apart = n > 1;

    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < r->n_sources; i++)
            for (int64_t k = 0; n > 1 && k < r->t[i].count / n; k++)
                if (r->t[i].info.role == CVY_INPUT) r->t[i].origin[k] += turn ? 0.5f : -0.5f;
        for (int i = r->n_sources; i < r->n && !turn; i++) before[i] = r->t[i].want, r->t[i].want = NULL;
        if (!turn) rig_reference(r);
    }
    for (int i = r->n_sources; i < r->n; i++) {
        const int64_t first = n ? r->t[i].count / n : 0;
        apart = apart && batch_of(&r->t[i]) == n &&
                !memcmp(before[i] + first, r->t[i].want + first, (size_t)(r->t[i].count - first) * sizeof(double));
        free(before[i]);
    }
    return apart;
}

/* Rotates the inputs, and the outputs of a run. False if the reference's do not go along: a parameter may be
 * different for each sample. */
static bool rotate_rig(rig *r, float *outputs)
{
    const int64_t n = batch_of(&r->t[0]);
    double *before[RIG_TENSORS];
    bool same = true;

    rig_reference(r);
    for (int i = 0; i < r->n; i++) {
        const size_t count = (size_t)(r->t[i].count / n);
        if (r->t[i].info.role == CVY_INPUT) rotate(r->t[i].origin, n, count * sizeof *outputs);
        if (r->t[i].info.role != CVY_OUTPUT) continue;
        rotate(outputs, n, count * sizeof *outputs);
        outputs += r->t[i].count;
        rotate(before[i] = r->t[i].want, n, count * sizeof **before);
        r->t[i].want = NULL;
    }
    rig_reference(r);
    for (int i = r->n_sources; i < r->n; i++) {
        same &= !memcmp(before[i], r->t[i].want, (size_t)r->t[i].count * sizeof **before);
        free(before[i]);
    }
    return same;
}

float *run_rig(const gpu *u, rig *r, const cvy_plan *plan, int64_t *count)
{
    CUdeviceptr work = 0;
    gpu_rig t;
    float *got;

    gpu_rig_open(&t, u, r);
    assert_ok(cvyi_cuda_alloc(u->device, cvy_plan_workspace(plan), &work));
    got = run_one_way(&t, plan, work, RUN_FRESH, count);
    cvyi_cuda_free(u->device, work);
    gpu_rig_close(&t);
    return got;
}

places same_places(const gpu *u, rig *r, const cvy_plan *plan)
{
    places found = PLACES_MEANINGLESS;
    float *first = NULL, *second = NULL;
    int64_t count = 0;

    rig_reference(r);
    if (samples_apart(r)) {
        first = run_rig(u, r, plan, &count);
        if (first && rotate_rig(r, first)) {
            second = run_rig(u, r, plan, &count);
            found = second && rig_same_bits(first, second, count) ? PLACES_SAME : PLACES_DIFFER;
        }
    }
    free(second);
    free(first);
    return found;
}
