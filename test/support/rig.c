/* rig.c - see rig.h. */
#define TEST_WITHOUT_CMOCKA
#include "rig.h"
#include "../../src/util/half.h"

static shape rig_shape(const rig_tensor *t)
{
    shape s = {.rank = t->info.rank};
    memcpy(s.dim, t->info.dims, sizeof s.dim);
    return s;
}

float *rig_at(const rig_tensor *t, int64_t i)
{
    const shape s = rig_shape(t);
    return t->origin + cvyi_ref_offset(&s, t->strides, i);
}

/* Strides in any order of the dimensions, with gaps and signs; returns the cells, tells where element 0 lies. */
static int64_t rig_random_strides(uint64_t *seed, rig_tensor *t, int64_t *first)
{
    int order[CVY_MAX_RANK] = {0};
    int64_t step = 1;
    const int rank = t->info.rank;
    const bool output = t->info.role == CVY_OUTPUT;

    *first = 0;
    for (int i = 0; i < rank; i++) {
        const int j = random_below(seed, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    if (random_below(seed, 2)) /* or in order, with gaps alone */
        for (int i = 0; i < rank; i++) order[i] = rank - 1 - i;
    for (int i = 0; i < rank; i++) {
        const int d = order[i];
        const int64_t dim = t->info.dims[d];
        const bool backwards = !random_below(seed, 4);
        if (!random_below(seed, 3)) step += 1 + random_below(seed, 3);
        if (!output && !random_below(seed, 8)) {
            t->strides[d] = 0;
            continue;
        }
        t->strides[d] = backwards ? -step : step;
        if (backwards) *first += (dim - 1) * step;
        step *= dim;
    }
    return step;
}

/* As the tensor's dtype holds it. */
static float rig_rounded(const rig_tensor *t, float x)
{
    const cvy_dtype dtype = (cvy_dtype)t->info.dtype;
    return dtype == CVY_FLOAT32 ? x : cvyi_widen(dtype, cvyi_narrow(dtype, x));
}

static void rig_narrow(rig_tensor *t)
{
    for (int64_t k = 0; t->words && k < t->cells; k++)
        t->words[k] = cvyi_narrow((cvy_dtype)t->info.dtype, t->memory[k]);
}

static void rig_widen(rig_tensor *t)
{
    for (int64_t k = 0; t->words && k < t->cells; k++)
        t->memory[k] = cvyi_widen((cvy_dtype)t->info.dtype, t->words[k]);
}

void rig_pass_on(rig *r)
{
    for (int i = 0; i < r->n_sources; i++) rig_narrow(&r->t[i]);
}

static void rig_lay_out(rig *r, int i, uint64_t *seed, bool strided)
{
    rig_tensor *t = &r->t[i];
    const shape s = rig_shape(t);
    int64_t first = 0;

    t->count = t->cells = cvyi_elements(&s);
    cvyi_contiguous_strides(&s, t->strides);
    if (strided && t->count) t->cells = rig_random_strides(seed, t, &first);
    t->cells += 2 * RIG_EDGE;
    t->memory = malloc((size_t)t->cells * sizeof *t->memory);
    assert_non_null(t->memory);
    t->guard = rig_rounded(t, RIG_GUARD);
    for (int64_t k = 0; k < t->cells; k++) t->memory[k] = t->guard;
    t->origin = t->memory + RIG_EDGE + first;
    r->buffers[i] = (cvy_buffer){t->origin, strided ? t->strides : NULL};
    if (t->info.dtype == CVY_FLOAT32) return;
    t->words = malloc((size_t)t->cells * sizeof *t->words);
    assert_non_null(t->words);
    r->buffers[i].data = t->words + RIG_EDGE + first;
}

static float rig_number(uint64_t *seed, const rig_tensor *t, rig_data kind)
{
    const bool variance = strstr(t->info.name, "running_var") != NULL;
    float x;
    if (kind == RIG_WHOLE) {
        const int most = t->info.role == CVY_PARAM ? 2 : 4;
        x = (float)(random_below(seed, 2 * most + 1) - most);
    } else {
        x = (float)random_next(seed) * 0x1p-31f - 1;
    }
    return variance ? fabsf(x) + 0.5f : x;
}

void rig_open(rig *r, cvy_graph *g, uint64_t *seed, rig_data kind, int strided)
{
    *r = (rig){.g = g, .n = cvy_graph_tensors(g)};
    assert_true(r->n <= RIG_TENSORS);
    for (int i = 0; i < r->n; i++) {
        rig_tensor *t = &r->t[i];
        assert_ok(cvy_graph_tensor(g, i, &t->info));
        rig_lay_out(r, i, seed, random_below(seed, 8) < strided);
        if (t->info.role == CVY_OUTPUT) continue;
        r->n_sources = i + 1;
        for (int64_t k = 0; k < t->count; k++) *rig_at(t, k) = rig_rounded(t, rig_number(seed, t, kind));
    }
    rig_pass_on(r);
}

void rig_lay_last(rig *r, int i, int inner)
{
    rig_tensor *t = &r->t[i];
    float *before = malloc((size_t)(t->count + 1) * sizeof *before);
    int64_t step = t->info.dims[inner];

    assert_non_null(before);
    for (int64_t k = 0; k < t->count; k++) before[k] = *rig_at(t, k);
    t->strides[inner] = 1;
    for (int d = t->info.rank - 1; d >= 0; d--) {
        if (d == inner) continue;
        t->strides[d] = step;
        step *= t->info.dims[d];
    }
    r->buffers[i].strides = t->strides;
    for (int64_t k = 0; k < t->count; k++) *rig_at(t, k) = before[k];
    free(before);
}

void rig_images_last(rig *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->t[i].info.role != CVY_PARAM && r->t[i].info.rank > 2 && r->t[i].count) rig_lay_last(r, i, 1);
    rig_pass_on(r);
}

void rig_close(rig *r)
{
    for (int i = 0; i < r->n; i++) {
        free(r->t[i].memory);
        free(r->t[i].words);
        free(r->t[i].want);
    }
}

void rig_reference(rig *r)
{
    double *outputs[RIG_TENSORS];
    size_t bytes;
    void *work;

    assert_ok(cvyi_ref_workspace(r->g, &bytes));
    work = aligned_alloc(CVY_ALIGN, bytes);
    assert_non_null(work);
    for (int i = r->n_sources; i < r->n; i++) {
        if (!r->t[i].want) r->t[i].want = malloc((size_t)(r->t[i].count + 1) * sizeof(double));
        outputs[i - r->n_sources] = r->t[i].want;
    }
    assert_ok(cvyi_ref_run_double(r->g, r->buffers, r->n, work, outputs));
    free(work);
}

void rig_wipe(rig *r)
{
    for (int i = r->n_sources; i < r->n; i++) {
        for (int64_t k = 0; k < r->t[i].cells; k++) r->t[i].memory[k] = r->t[i].guard;
        rig_narrow(&r->t[i]);
    }
}

float *rig_outputs(rig *r, int64_t *count)
{
    float *all;
    int64_t n = 0, at = 0;
    bool kept = true;

    for (int i = r->n_sources; i < r->n; i++) n += r->t[i].count;
    all = malloc((size_t)(n + 1) * sizeof *all);
    assert_non_null(all);
    for (int i = r->n_sources; i < r->n; i++) {
        rig_tensor *t = &r->t[i];
        rig_widen(t);
        for (int64_t k = 0; k < t->count; k++) {
            all[at++] = *rig_at(t, k);
            *rig_at(t, k) = t->guard;
        }
        rig_narrow(t);
    }
    for (int i = r->n_sources; i < r->n; i++)
        for (int64_t k = 0; k < r->t[i].cells; k++) kept &= r->t[i].memory[k] == r->t[i].guard;
    *count = n;
    if (kept) return all;
    free(all);
    return NULL;
}

void *rig_workspace(const cvy_plan *p)
{
    const size_t bytes = cvy_plan_workspace(p);
    void *work = aligned_alloc(CVY_ALIGN, bytes);
    assert_non_null(work);
    assert_true(bytes > 0 && bytes % CVY_ALIGN == 0);
    memset(work, 0xff, bytes); /* NaNs */
    return work;
}

float *rig_run(rig *r, const cvy_plan *p, int64_t *count)
{
    void *work = rig_workspace(p);
    rig_wipe(r);
    assert_ok(cvy_plan_run(p, r->buffers, r->n, work, cvy_plan_workspace(p), 0, NULL));
    free(work);
    return rig_outputs(r, count);
}

bool rig_same_bits(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

char *rig_plan_text(const cvy_plan *p)
{
    size_t needed = 0;
    char *words;
    assert_ok(cvy_plan_print(p, NULL, 0, &needed));
    words = malloc(needed);
    assert_non_null(words);
    assert_ok(cvy_plan_print(p, words, needed, NULL));
    return words;
}
