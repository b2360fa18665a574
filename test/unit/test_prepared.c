/* The prepared part of a plan's memory in a buffer of its own, shared by plans whose digests are equal: the same
 * bytes, and results as if each had prepared its own. */
#include "../support/rig.h"

/* %d: the batch. Convolutions of every algorithm, products, transposed ones, arithmetic on weights. */
static const char *const chains[] = {
    "x[%d,8,20,20] | conv2d(32,3,padding=1) | batch_norm | relu | conv2d(32,3,padding=1) | relu",
    "x[%d,8,18,17] | conv2d(16,3) | group_norm(4) | tanh | mul(p[16,1,1]) | max_pool2d(2)",
    "x[%d,12,9,9] | conv2d(24,1) | batch_norm | hardswish | conv2d(24,3,groups=24,padding=1) | batch_norm",
    "x[%d,6,7,5] | conv_transpose2d(5,4,stride=2,padding=1) | sigmoid",
    "x[%d,40] | linear(50) | layer_norm(normalized_shape=[50]) | gelu | linear(7)",
    "x[%d,4,6,6,6] | conv3d(8,3) | relu | mean([2,3,4])",
    "x[%d,4,30] | conv1d(8,5,dilation=2) | silu",
};

static cvy_graph *graph_of(const char *chain, int batch)
{
    char words[300];
    cvy_graph *g = NULL;
    snprintf(words, sizeof words, chain, batch);
    assert_ok(cvy_graph_parse(words, &g));
    return g;
}

static cvy_plan *plan_of(const cvy_graph *g, cvy_options o)
{
    cvy_plan *p = NULL;
    o.size = sizeof o;
    o.device = CVY_CPU;
    assert_ok(cvy_plan_create(g, &o, &p));
    return p;
}

static cvy_prepared prepared_of(const cvy_plan *p)
{
    cvy_prepared out;
    assert_ok(cvy_plan_prepared(p, &out));
    assert_int_equal(strlen(out.digest), 64);
    assert_true(out.bytes % CVY_ALIGN == 0 && out.bytes < cvy_plan_workspace(p));
    return out;
}

/* Zeroed, so that gaps are alike. */
static char *new_buffer(size_t bytes)
{
    char *memory = aligned_alloc(CVY_ALIGN, bytes + CVY_ALIGN);
    assert_non_null(memory);
    memset(memory, 0, bytes + CVY_ALIGN);
    return memory;
}

/* Runs in a prepared buffer and a workspace that holds rubbish. */
static float *run_in(rig *r, const cvy_plan *p, char *prepared, uint32_t flags, int64_t *count)
{
    const size_t bytes = prepared_of(p).bytes, rest = cvy_plan_workspace(p) - bytes;
    char *work = new_buffer(rest);
    const cvy_memory memory = {sizeof memory, prepared, bytes, work, rest};

    memset(work, 0xff, rest);
    rig_wipe(r);
    assert_ok(cvy_plan_run_in(p, r->buffers, r->n, &memory, flags, NULL));
    free(work);
    return rig_outputs(r, count);
}

/* The parameters of one rig into another's. */
static void copy_params(const rig *from, rig *to)
{
    for (int i = 0; i < from->n; i++)
        if (from->t[i].info.role == CVY_PARAM)
            memcpy(to->t[i].origin, from->t[i].origin, (size_t)from->t[i].count * sizeof(float));
}

/* What `first` has prepared in `buffer` serves a plan for another batch. */
static void check_batch(const char *chain, int batch, const rig *first, const cvy_prepared *wanted, char *buffer)
{
    cvy_graph *g = graph_of(chain, batch);
    cvy_plan *p = plan_of(g, (cvy_options){.threads = 2});
    const cvy_prepared got = prepared_of(p);
    char *own = new_buffer(got.bytes);
    uint64_t seed = 5;
    float *a, *b, *c;
    int64_t n;
    rig r;

    if (strcmp(got.digest, wanted->digest)) fail_msg("%s, batch %d: another digest", chain, batch);
    rig_open(&r, g, &seed, RIG_REAL, 0);
    copy_params(first, &r);
    a = rig_run(&r, p, &n);
    b = run_in(&r, p, own, 0, &n);
    if (memcmp(own, buffer, got.bytes)) fail_msg("%s, batch %d: other bytes were prepared", chain, batch);
    c = run_in(&r, p, buffer, CVY_KEEP_PREPARED, &n);
    if (!rig_same_bits(a, b, n) || !rig_same_bits(a, c, n)) fail_msg("%s, batch %d: other bits", chain, batch);
    assert_memory_equal(own, buffer, got.bytes); /* kept, and only read */
    free(a);
    free(b);
    free(c);
    free(own);
    rig_close(&r);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

static void batches_share(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(chains); i++) {
        cvy_graph *g = graph_of(chains[i], 1);
        cvy_plan *p = plan_of(g, (cvy_options){.threads = 1});
        const cvy_prepared wanted = prepared_of(p);
        char *buffer = new_buffer(wanted.bytes);
        uint64_t seed = 11;
        int64_t n;
        rig r;

        rig_open(&r, g, &seed, RIG_REAL, 0);
        free(run_in(&r, p, buffer, 0, &n));
        check_batch(chains[i], 2, &r, &wanted, buffer);
        check_batch(chains[i], 7, &r, &wanted, buffer);
        free(buffer);
        rig_close(&r);
        cvy_plan_free(p);
        cvy_graph_free(g);
    }
}

/* Random plans take other algorithms and cut elsewhere. Equal digests, equal bytes: always; different bytes,
 * different digests: the same said the other way round. */
static void digests_tell_layouts_apart(void **state)
{
    enum { PLANS = 24 };
    int different = 0;
    (void)state;

    for (int i = 0; i < COUNT_OF(chains); i++) {
        cvy_prepared seen[PLANS];
        char *bytes[PLANS];
        for (int k = 0; k < PLANS; k++) {
            cvy_graph *g = graph_of(chains[i], 1 + k % 3);
            const cvy_options o = {
                .threads = 1, .seed = (uint32_t)(k / 3), .winograd = k % 2 ? CVY_OFF : CVY_DEFAULT};
            cvy_plan *p = plan_of(g, o);
            uint64_t seed = 3;
            int64_t n;
            rig r, first;

            seen[k] = prepared_of(p);
            bytes[k] = new_buffer(seen[k].bytes);
            rig_open(&r, g, &seed, RIG_REAL, 0);
            cvy_graph *one = graph_of(chains[i], 1);
            seed = 3;
            rig_open(&first, one, &seed, RIG_REAL, 0);
            copy_params(&first, &r);
            free(run_in(&r, p, bytes[k], 0, &n));
            for (int j = 0; j < k; j++) {
                const bool same = !strcmp(seen[j].digest, seen[k].digest);
                different += !same;
                if (same && (seen[j].bytes != seen[k].bytes || memcmp(bytes[j], bytes[k], seen[k].bytes)))
                    fail_msg("%s: plans %d and %d have one digest and different bytes", chains[i], j, k);
            }
            rig_close(&r);
            rig_close(&first);
            cvy_plan_free(p);
            cvy_graph_free(g);
            cvy_graph_free(one);
        }
        for (int k = 0; k < PLANS; k++) free(bytes[k]);
    }
    assert_true(different > 0);
}

/* Arithmetic on parameters, as in weight standardisation, is prepared: a run that keeps it does not look at what it
 * was made of. */
static void arithmetic_on_parameters_is_prepared(void **state)
{
    cvy_graph *g = NULL;
    cvy_value x, w, m, s, y;
    const int64_t x_dims[] = {2, 3, 8, 8}, w_dims[] = {5, 27};
    (void)state;

    assert_ok(cvy_graph_create(&g));
    assert_ok(cvy_graph_input(g, "x", CVY_FLOAT32, 4, x_dims, &x));
    assert_ok(cvy_graph_param(g, "w", CVY_FLOAT32, 2, w_dims, &w));
    assert_ok(cvy_graph_chain(g, w, "layer_norm(normalized_shape=[27], affine=False)", &m));
    assert_ok(cvy_graph_chain(g, m, "reshape([5,3,3,3])", &s));
    const cvy_value args[] = {x, s};
    const cvy_call call = {.size = sizeof call,
                           .op = "conv2d",
                           .args = args,
                           .n_args = 2,
                           .attrs = (const cvy_attr[]){{"out_channels", NULL, 1, {5}},
                                                       {"kernel_size", NULL, 1, {3}},
                                                       {"bias", NULL, 1, {0}}},
                           .n_attrs = 3};
    assert_ok(cvy_graph_apply(g, &call, &y));
    cvy_plan *p = plan_of(g, (cvy_options){.threads = 1});
    assert_true(prepared_of(p).bytes > 0);
    assert_int_equal(p->n_prepare, 1);
    char *buffer = new_buffer(prepared_of(p).bytes);
    uint64_t seed = 2;
    float *a, *b;
    int64_t n;
    rig r;
    rig_open(&r, g, &seed, RIG_REAL, 0);
    a = run_in(&r, p, buffer, 0, &n);
    for (int64_t i = 0; i < r.t[1].count; i++) *rig_at(&r.t[1], i) = 1e30f;
    b = run_in(&r, p, buffer, CVY_KEEP_PREPARED, &n);
    assert_true(rig_same_bits(a, b, n));
    free(a);
    free(b);
    free(buffer);
    rig_close(&r);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

static void memory_is_checked(void **state)
{
    cvy_graph *g = graph_of(chains[0], 2);
    cvy_plan *p = plan_of(g, (cvy_options){.threads = 1});
    const size_t bytes = prepared_of(p).bytes, rest = cvy_plan_workspace(p) - bytes;
    char *prepared = new_buffer(bytes), *work = new_buffer(rest), words[120];
    cvy_memory m = {sizeof m, prepared, bytes, work, rest};
    uint64_t seed = 1;
    rig r;
    (void)state;

    rig_open(&r, g, &seed, RIG_REAL, 0);
    assert_ok(cvy_plan_run_in(p, r.buffers, r.n, &m, 0, NULL));
    assert_ok(cvy_plan_run_in(p, r.buffers, r.n, &m, CVY_KEEP_PREPARED | CVY_KEEP_WORKSPACE, NULL));
    assert_refused(cvy_plan_run_in(NULL, r.buffers, r.n, &m, 0, NULL), "plan or memory is NULL");
    assert_refused(cvy_plan_run_in(p, r.buffers, r.n, NULL, 0, NULL), "plan or memory is NULL");
    assert_refused(cvy_plan_run_in(p, r.buffers, r.n, &m, 4, NULL), "run: unknown flags 0x4");
    assert_refused(cvy_plan_prepared(p, NULL), "plan or result pointer is NULL");
    m.prepared = NULL;
    assert_refused(cvy_plan_run_in(p, r.buffers, r.n, &m, 0, NULL),
                   "run: the prepared buffer is NULL or not aligned to 256 bytes");
    m = (cvy_memory){sizeof m, prepared, bytes - 1, work, rest};
    snprintf(words, sizeof words, "run: the plan needs a prepared buffer of %zu bytes, got %zu", bytes, bytes - 1);
    assert_refused(cvy_plan_run_in(p, r.buffers, r.n, &m, 0, NULL), words);
    m = (cvy_memory){sizeof m, prepared, bytes, work, rest - 1};
    snprintf(words, sizeof words, "run: the plan needs a workspace of %zu bytes, got %zu", rest, rest - 1);
    assert_refused(cvy_plan_run_in(p, r.buffers, r.n, &m, 0, NULL), words);
    m = (cvy_memory){sizeof m, prepared, bytes, work + 1, rest};
    assert_refused(cvy_plan_run_in(p, r.buffers, r.n, &m, 0, NULL),
                   "run: the workspace is NULL or not aligned to 256 bytes");
    m.size = 1;
    assert_int_equal(cvy_plan_run_in(p, r.buffers, r.n, &m, 0, NULL), CVY_INVALID);
    free(prepared);
    free(work);
    rig_close(&r);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_share),
        cmocka_unit_test(digests_tell_layouts_apart),
        cmocka_unit_test(arithmetic_on_parameters_is_prepared),
        cmocka_unit_test(memory_is_checked),
    };
    return cmocka_run_group_tests_name("prepared", tests, NULL, NULL);
}
