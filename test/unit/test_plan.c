/* test_plan.c - plans: passes and places keep their promises, options and buffers are checked, plans print what
 * they do, and run from several threads at once. */
#include <pthread.h>
#include "../support/rig.h"
#include "../../src/cpu/choice.h"

#define BLOCK_A "conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)"
#define BLOCK_B "conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)"
#define BLOCK_C "conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)"

static cvy_graph *parse(const char *chain)
{
    cvy_graph *g = NULL;
    if (cvy_graph_parse(chain, &g)) fail_msg("%s: %s", chain, cvy_last_error());
    return g;
}

static cvy_plan *plan_with(const cvy_graph *g, cvy_options o)
{
    cvy_plan *p = NULL;
    o.size = sizeof o;
    o.device = CVY_CPU;
    assert_ok(cvy_plan_create(g, &o, &p));
    return p;
}

/* ---- passes and places ---- */

static const char *const chains[] = {
    "x[3,8,20,20] | " BLOCK_A,
    "x[3,8,20,20] | " BLOCK_B,
    "x[3,8,20,20] | " BLOCK_C,
    "x[2,4,9,9] | conv2d(4,3,padding=1) @a | relu | conv2d(4,3,padding=1) @b | add(@a) | relu @c | conv2d(4,3) | "
    "adaptive_avg_pool2d(1) | flatten(1) | linear(7) @y | output(@y, @c)",
    "x[5,6], y[5,6] | linear(4) @p | @y | linear(4) | add(@p) | layer_norm(4) | softmax(1) | sum(0)",
    "x[4,6,7] | batch_norm(training=True) @b | mean(0) @m | @b | sub(@m) | reshape((2,-1)) @r | flatten @f | "
    "output(@r, @f)",
    "x[3,4,8,8], w[6,4,3,3] | conv2d(6,3,weight=@w) | batch_norm | relu | max_pool2d(2)",
};

static void check_partition(const cvy_plan *p)
{
    int next = 0;
    for (int i = 0; i < p->n_passes; i++) {
        assert_int_equal(p->passes[i].first, next);
        assert_true(p->passes[i].count > 0);
        next += p->passes[i].count;
    }
    assert_int_equal(next, p->graph->n_nodes);
    for (int i = 0; i < p->graph->n_nodes; i++) /* prepared nodes, and they alone, are in front */
        assert_int_equal(p->prepared[p->graph->nodes[i].out], p->n_prepare && i < p->passes[0].count);
}

static int pass_of(const cvy_plan *p, int index)
{
    int i = 0;
    while (index >= p->passes[i].first + p->passes[i].count) i++;
    return i;
}

/* First and last pass in which the memory of root v is in use. */
typedef struct life {
    int from, to;
} life;

static life life_of(const cvy_plan *p, int v)
{
    const cvy_graph *g = p->graph;
    life l = {pass_of(p, g->values[v].node), 0};
    l.to = l.from;
    for (int i = 0; i < g->n_nodes; i++)
        for (int a = 0; a < g->nodes[i].n_args; a++)
            if (g->nodes[i].arg[a] != CVY_NONE && p->root[g->nodes[i].arg[a]] == v && pass_of(p, i) > l.to)
                l.to = pass_of(p, i);
    return p->prepared[v] ? (life){0, p->n_passes} : l;
}

static void check_places(const cvy_plan *p)
{
    const cvy_graph *g = p->graph;
    for (int i = 0; i < g->n_nodes; i++) {
        const int v = g->nodes[i].out;
        const int64_t bytes = 4 * cvyi_elements(cvyi_shape_of(g, v));
        const life mine = life_of(p, v);
        if (p->root[v] != v) continue;
        if (mine.to > mine.from) assert_true(p->places[v].kind != PLACE_NONE); /* it crosses passes */
        if (p->places[v].kind != PLACE_WORKSPACE) continue;
        assert_int_equal(p->places[v].at % 64, 0);
        const int64_t from = p->prepared[v] ? 0 : WORKSPACE_BASE;
        assert_true(p->places[v].at >= from);
        assert_true(p->places[v].at - from + bytes <= (p->prepared[v] ? p->prepared_bytes : p->value_bytes));
        for (int k = 0; k < i; k++) {
            const int w = g->nodes[k].out;
            const life other = life_of(p, w);
            const int64_t at = p->places[w].at, end = at + 4 * cvyi_elements(cvyi_shape_of(g, w));
            if (p->root[w] != w || p->places[w].kind != PLACE_WORKSPACE) continue;
            if (other.to < mine.from || mine.to < other.from) continue;
            assert_true(end <= p->places[v].at || p->places[v].at + bytes <= at);
        }
    }
    assert_true((int64_t)p->workspace >= p->value_bytes);
    assert_int_equal(cvy_plan_workspace(p), (size_t)p->prepared_bytes + p->workspace);
}

static void passes_and_places(void **state)
{
    (void)state;
    for (int c = 0; c < COUNT_OF(chains); c++) {
        cvy_graph *g = parse(chains[c]);
        for (uint32_t seed = 0; seed < 40; seed++) {
            cvy_plan *p = plan_with(g, (cvy_options){.seed = seed, .fuse = seed == 39 ? CVY_OFF : CVY_DEFAULT});
            check_partition(p);
            check_places(p);
            if (seed == 39)
                assert_int_equal(p->n_passes - p->n_prepare,
                                 p->graph->n_nodes - (p->n_prepare ? p->passes[0].count : 0));
            cvy_plan_free(p);
        }
        cvy_graph_free(g);
    }
}

/* A seed is a plan: the same twice, and not the same for all. */
static void seeds(void **state)
{
    cvy_graph *g = parse(chains[1]);
    int different = 0;
    char *first = NULL;
    (void)state;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        cvy_plan *p = plan_with(g, (cvy_options){.seed = seed}), *q = plan_with(g, (cvy_options){.seed = seed}), *r;
        char number[16], *a = rig_plan_text(p), *b = rig_plan_text(q), *c;
        snprintf(number, sizeof number, "%u", (unsigned)seed);
        setenv("CVY_PLAN_SEED", number, 1);
        r = plan_with(g, (cvy_options){0});
        unsetenv("CVY_PLAN_SEED");
        c = rig_plan_text(r);
        assert_string_equal(a, b);
        assert_string_equal(a, c);
        if (first) different += strcmp(first, a) != 0;
        free(first);
        first = a;
        free(b);
        free(c);
        cvy_plan_free(p);
        cvy_plan_free(q);
        cvy_plan_free(r);
    }
    assert_true(different > 3);
    free(first);
    cvy_graph_free(g);
}

/* A pass keeps no slice that the cache has no room for, whatever its kernel: 256 x 20,000 floats are 20 MB. */
static void slices_stay_in_cache(void **state)
{
    cvy_graph *g = parse("x[2,64,1,20000] | conv2d(256,1) | group_norm(8) | relu");
    int products = 0, again = 0;
    (void)state;
    setenv("CVY_MACHINE", "portable,2", 1);
    for (uint32_t seed = 1; seed <= 60; seed++) {
        cvy_plan *p = plan_with(g, (cvy_options){.seed = seed});
        for (int i = p->n_prepare; i < p->n_passes; i++) {
            const pass *s = &p->passes[i];
            const cpu_choice *c = cvyi_cpu_choice(s);
            assert_true(s->count == 1 || c->twice || c->slices <= (double)p->machine.cache);
            assert_true(!c->twice || c->row != &cvyi_row_conv_product);
            products += c->row == &cvyi_row_conv_product;
            again += c->twice;
        }
        cvy_plan_free(p);
    }
    unsetenv("CVY_MACHINE");
    assert_true(products && again);
    cvy_graph_free(g);
}

/* What leaves a pass through a reshape that shares its memory is written like anything else, and lies in no slice.
 */
static void reshaped_results_are_written(void **state)
{
    cvy_graph *g = parse("x[4,64,16,16] | relu @r | max_pool2d(2) @z | @r | reshape(4,16384) @y | output(@y, @z)");
    const int64_t floats = 4 * 64 * 16 * 16;
    cvy_plan *p;
    cvy_cost cost;
    (void)state;
    setenv("CVY_MACHINE", "portable,2", 1);
    p = plan_with(g, (cvy_options){0});
    unsetenv("CVY_MACHINE");
    assert_ok(cvy_plan_cost(p, &cost));
    assert_int_equal(p->n_passes, 1);
    assert_true(cost.bytes == (double)cvyi_floats(2 * floats + floats / 4));
    assert_true(cvyi_cpu_choice(&p->passes[0])->slices == 0);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

/* ---- memory ---- */

static double parameter_bytes(const cvy_graph *g)
{
    double bytes = 0;
    for (int i = 0; i < cvy_graph_tensors(g); i++) {
        cvy_tensor t;
        double elements = 4;
        assert_ok(cvy_graph_tensor(g, i, &t));
        for (int d = 0; d < t.rank; d++) elements *= (double)t.dims[d];
        if (t.role == CVY_PARAM) bytes += elements;
    }
    return bytes;
}

/* A, B and C at full size and at any batch: no more than 16 MiB a thread beside what the caller has. */
static void workspace_of_blocks(void **state)
{
    static const char *const shapes[] = {"128,128", "128,128", "256,256"};
    static const char *const blocks[] = {BLOCK_A, BLOCK_B, BLOCK_C};
    static const int batches[] = {1, 7, 128, 1024};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int b = 0; b < COUNT_OF(batches); b++)
            for (int threads = 1; threads <= 4; threads++) {
                char chain[256];
                cvy_graph *g;
                cvy_plan *p;
                snprintf(chain, sizeof chain, "x[%d,8,%s] | %s", batches[b], shapes[i], blocks[i]);
                g = parse(chain);
                p = plan_with(g, (cvy_options){.threads = threads});
                assert_int_equal(cvy_plan_workspace(p) % CVY_ALIGN, 0);
                if ((double)cvy_plan_workspace(p) > 16777216.0 * threads + 4 * parameter_bytes(g))
                    fail_msg("%s, %d threads: a workspace of %.1f MB", chain, threads,
                             (double)cvy_plan_workspace(p) * 1e-6);
                cvy_plan_free(p);
                cvy_graph_free(g);
            }
}

/* A pass may take fewer threads than the plan has, and then keep more slices at once: nothing is written past the
 * workspace, whatever the numbers of samples and threads. Strided outputs lie in slices. */
static void workspace_is_enough(void **state)
{
    enum { GUARD = 1 << 20 };
    (void)state;
    for (int samples = 1; samples <= 6; samples++)
        for (int threads = 1; threads <= 4; threads++) {
            char chain[128];
            uint64_t seed = 7;
            cvy_graph *g;
            cvy_plan *p;
            char *work;
            rig r;
            snprintf(chain, sizeof chain, "x[%d,6,31,11] | conv_transpose2d(6,4,stride=3)", samples);
            g = parse(chain);
            p = plan_with(g, (cvy_options){.threads = threads});
            work = aligned_alloc(CVY_ALIGN, cvy_plan_workspace(p) + GUARD);
            assert_non_null(work);
            memset(work, 0x5a, cvy_plan_workspace(p) + GUARD);
            rig_open(&r, g, &seed, RIG_REAL, 8);
            assert_ok(cvy_plan_run(p, r.buffers, r.n, work, cvy_plan_workspace(p), 0, NULL));
            for (size_t i = cvy_plan_workspace(p); i < cvy_plan_workspace(p) + GUARD; i++)
                if (work[i] != 0x5a) fail_msg("%s, %d threads: wrote past the workspace", chain, threads);
            free(work);
            rig_close(&r);
            cvy_plan_free(p);
            cvy_graph_free(g);
        }
}

/* ---- what is kept of parameters ---- */

static void kept_parameters(void **state)
{
    cvy_graph *g = parse("x[3,8,20,20] | " BLOCK_A);
    cvy_plan *p = plan_with(g, (cvy_options){.threads = 2});
    void *work = rig_workspace(p);
    uint64_t seed = 5;
    int64_t n;
    float *a, *b, *c, *d;
    rig r;
    (void)state;

    rig_open(&r, g, &seed, RIG_REAL, 0);
    assert_ok(cvy_plan_run(p, r.buffers, r.n, work, cvy_plan_workspace(p), 0, NULL));
    a = rig_outputs(&r, &n);
    assert_ok(cvy_plan_run(p, r.buffers, r.n, work, cvy_plan_workspace(p), CVY_KEEP_PREPARED, NULL));
    b = rig_outputs(&r, &n);
    assert_true(rig_same_bits(a, b, n));
    *rig_at(&r.t[0], 0) += 4; /* an input may change under the flag */
    assert_ok(cvy_plan_run(p, r.buffers, r.n, work, cvy_plan_workspace(p), CVY_KEEP_PREPARED, NULL));
    c = rig_outputs(&r, &n);
    d = rig_run(&r, p, &n);
    assert_true(rig_same_bits(c, d, n) && !rig_same_bits(a, c, n));
    free(c), free(d);
    for (int i = 1; i < r.n_sources; i++) *rig_at(&r.t[i], 0) += 3; /* a parameter without it */
    assert_ok(cvy_plan_run(p, r.buffers, r.n, work, cvy_plan_workspace(p), 0, NULL));
    c = rig_outputs(&r, &n);
    d = rig_run(&r, p, &n);
    assert_true(rig_same_bits(c, d, n) && !rig_same_bits(a, c, n));
    free(a), free(b), free(c), free(d);
    free(work);
    rig_close(&r);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

/* ---- threads ---- */

typedef struct caller {
    const cvy_plan *plan[2];
    const rig *rig[2];
    const float *want[2];
    bool good;
} caller;

static bool run_once(const cvy_plan *p, const rig *r, const float *want)
{
    void *work = aligned_alloc(CVY_ALIGN, cvy_plan_workspace(p));
    cvy_buffer buffers[RIG_TENSORS];
    const rig_tensor *out = &r->t[r->n_sources];
    float *y = malloc((size_t)out->count * sizeof *y);
    bool good = work && y;

    memcpy(buffers, r->buffers, sizeof buffers);
    buffers[r->n_sources] = (cvy_buffer){y, NULL};
    for (int i = 0; good && i < 3; i++) {
        good =
            cvy_plan_run(p, buffers, r->n, work, cvy_plan_workspace(p), i ? CVY_KEEP_PREPARED : 0, NULL) == CVY_OK;
        good = good && rig_same_bits(y, want, out->count);
    }
    free(work);
    free(y);
    return good;
}

static void *call(void *context)
{
    caller *c = context;
    c->good = true;
    for (int i = 0; i < 4; i++) c->good &= run_once(c->plan[i % 2], c->rig[i % 2], c->want[i % 2]);
    return NULL;
}

/* Two plans, each from four threads at once. */
static void several_callers(void **state)
{
    static const char *const two[] = {"x[3,8,20,20] | " BLOCK_A, "x[2,8,20,20] | " BLOCK_B};
    caller callers[4], common = {.good = false};
    cvy_graph *graphs[2];
    cvy_plan *plans[2];
    rig rigs[2];
    float *want[2];
    pthread_t threads[4];
    uint64_t seed = 3;
    int64_t n;
    (void)state;

    for (int i = 0; i < 2; i++) {
        graphs[i] = parse(two[i]);
        plans[i] = plan_with(graphs[i], (cvy_options){.threads = 2});
        rig_open(&rigs[i], graphs[i], &seed, RIG_REAL, 0);
        common.plan[i] = plans[i];
        common.rig[i] = &rigs[i];
        common.want[i] = want[i] = rig_run(&rigs[i], plans[i], &n);
    }
    for (int i = 0; i < 4; i++) {
        callers[i] = common;
        assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(callers[i].good);
    }
    for (int i = 0; i < 2; i++) {
        free(want[i]);
        rig_close(&rigs[i]);
        cvy_plan_free(plans[i]);
        cvy_graph_free(graphs[i]);
    }
}

/* Long chains of pointwise operators, every value read again at the end: more than one program can hold. */
static void long_chains(void **state)
{
    static const char *const steps[] = {"mul(q%d[6,1,1])", "add(q%d[6,10,11])", "tanh"};
    (void)state;
    for (int kind = 0; kind < COUNT_OF(steps); kind++) {
        char chain[8192];
        size_t at =
            (size_t)snprintf(chain, sizeof chain, "x[3,6,10,11] | conv2d(6,3,padding=1) | group_norm(3) @v0");
        cvy_graph *g;
        for (int i = 1; i < 30; i++) {
            at += (size_t)snprintf(chain + at, sizeof chain - at, " | ");
            at += (size_t)snprintf(chain + at, sizeof chain - at, steps[kind], i);
            at += (size_t)snprintf(chain + at, sizeof chain - at, " @v%d", i);
        }
        for (int i = 0; i < 30; i++) at += (size_t)snprintf(chain + at, sizeof chain - at, " | add(@v%d)", i);
        g = parse(chain);
        for (uint32_t seed = 0; seed < 10; seed++) cvy_plan_free(plan_with(g, (cvy_options){.seed = seed}));
        cvy_graph_free(g);
    }
}

/* The same passes, taken the same way, for any number of threads: where the machine's caches would let fewer
 * threads keep more, the bits would differ. */
static void any_number_of_threads(void **state)
{
    static const char *const large[] = {
        "x[128,8,128,128] | " BLOCK_A,
        "x[128,8,128,128] | " BLOCK_B,
        "x[128,8,256,256] | " BLOCK_C,
        "x[2,8,512,512] | conv2d(64,3) | group_norm(8) | silu",
        "x[2,8,1024,1024] | conv2d(64,3) | group_norm(8)",
    };
    (void)state;
    for (int c = 0; c < COUNT_OF(large); c++) {
        cvy_graph *g = parse(large[c]);
        cvy_plan *one = plan_with(g, (cvy_options){.threads = 1});
        for (int threads = 2; threads <= 64; threads *= 2) {
            cvy_plan *p = plan_with(g, (cvy_options){.threads = threads});
            assert_int_equal(p->n_passes, one->n_passes);
            for (int i = 0; i < p->n_passes; i++) {
                assert_int_equal(p->passes[i].first, one->passes[i].first);
                assert_int_equal(p->passes[i].way, one->passes[i].way);
                if (i < p->n_prepare) continue;
                assert_true(p->engine->same_choice(p->passes[i].choice, one->passes[i].choice));
                assert_true(p->passes[i].seconds < one->passes[i].seconds);
            }
            cvy_plan_free(p);
        }
        cvy_plan_free(one);
        cvy_graph_free(g);
    }
}

/* ---- options, buffers, errors ---- */

static void options_checked(void **state)
{
    cvy_graph *g = parse("x[2,3] | relu"), *empty = NULL;
    cvy_plan *p = (cvy_plan *)g; /* must become NULL */
    cvy_options o = {.size = sizeof o, .device = CVY_CPU};
    struct {
        cvy_options known;
        char more[64];
    } later = {.known = {.size = sizeof later, .device = CVY_CPU, .threads = 1}}; /* of a newer header */
    (void)state;

    assert_refused(cvy_plan_create(g, &(cvy_options){.size = 0}, &p), "options: size is 0, not set?");
    assert_null(p);
    assert_refused(cvy_plan_create(g, &(cvy_options){.size = sizeof o, .device = 7}, &p),
                   "options: device is 7, expected 0 to 3");
    assert_refused(cvy_plan_create(g, &(cvy_options){.size = sizeof o, .device = CVY_CPU, .precision = -1}, &p),
                   "options: precision is -1, expected 0 to 1");
    assert_refused(cvy_plan_create(g, &(cvy_options){.size = sizeof o, .device = CVY_CPU, .effort = 2}, &p),
                   "options: effort is 2, expected 0 to 1");
    assert_refused(cvy_plan_create(g, &(cvy_options){.size = sizeof o, .device = CVY_CPU, .winograd = 3}, &p),
                   "options: winograd is 3, expected 0 to 2");
    assert_refused(cvy_plan_create(g, &(cvy_options){.size = sizeof o, .device = CVY_CPU, .fuse = 9}, &p),
                   "options: fuse is 9, expected 0 to 2");
    assert_refused(cvy_plan_create(g, &(cvy_options){.size = sizeof o, .device = CVY_CPU, .strided = -1}, &p),
                   "options: strided is -1, expected 0 to 2");
    assert_refused(cvy_plan_create(g, &(cvy_options){.size = sizeof o, .device = CVY_CPU, .threads = -1}, &p),
                   "options: threads is -1, expected 0 to 1024");
    assert_refused(cvy_plan_create(NULL, &o, &p), "graph is NULL");
    assert_refused(cvy_plan_create(g, &o, NULL), "result pointer is NULL");
    assert_ok(cvy_graph_create(&empty));
    assert_refused(cvy_plan_create(empty, &o, &p), "the graph has no operator");
    setenv("CVY_ISA", "abacus", 1);
    assert_int_equal(cvy_plan_create(g, &o, &p), CVY_INVALID);
    assert_non_null(strstr(cvy_last_error(), "abacus"));
    unsetenv("CVY_ISA");
    assert_null(p);
    assert_ok(cvy_plan_create(g, &later.known, &p)); /* options of tomorrow, and of yesterday */
    cvy_plan_free(p);
    o.size = offsetof(cvy_options, threads);
    o.threads = -5;
    assert_ok(cvy_plan_create(g, &o, &p));
    assert_int_equal(cvy_plan_device(p), CVY_CPU);
    cvy_plan_free(p);
    cvy_plan_free(NULL);
    cvy_graph_free(empty);
    cvy_graph_free(g);
}

static void runs_checked(void **state)
{
    cvy_graph *g = parse("x[2,3,8,8] | conv2d(4,3) | group_norm(2) | relu");
    cvy_plan *p = plan_with(g, (cvy_options){.threads = 2});
    const size_t size = cvy_plan_workspace(p);
    char *work = aligned_alloc(CVY_ALIGN, size + CVY_ALIGN), small[100], none[100];
    uint64_t seed = 9;
    float *a, *b;
    int64_t n;
    rig r;
    void *data;
    (void)state;

    snprintf(small, sizeof small, "run: the plan needs a workspace of %zu bytes, got %zu", size, size - 1);
    snprintf(none, sizeof none, "run: the plan needs a workspace of %zu bytes, got 0", size);
    rig_open(&r, g, &seed, RIG_REAL, 0);
    a = rig_run(&r, p, &n);
    assert_refused(cvy_plan_run(NULL, r.buffers, r.n, work, size, 0, NULL), "plan is NULL");
    assert_refused(cvy_plan_run(p, r.buffers, r.n - 1, work, size, 0, NULL),
                   "run: the plan takes 6 buffers, got 5");
    assert_refused(cvy_plan_run(p, NULL, r.n, work, size, 0, NULL), "run: the plan takes 6 buffers, got 6");
    assert_refused(cvy_plan_run(p, r.buffers, r.n, NULL, size, 0, NULL),
                   "run: the workspace is NULL or not aligned to 256 bytes");
    assert_refused(cvy_plan_run(p, r.buffers, r.n, work + 64, size, 0, NULL),
                   "run: the workspace is NULL or not aligned to 256 bytes");
    assert_refused(cvy_plan_run(p, r.buffers, r.n, work, size - 1, 0, NULL), small);
    assert_refused(cvy_plan_run(p, r.buffers, r.n, work, 0, 0, NULL), none);
    assert_refused(cvy_plan_run(p, r.buffers, r.n, work, size, 6, NULL), "run: unknown flags 0x6");
    assert_refused(cvy_plan_run(p, r.buffers, r.n, work, size, 0, work),
                   "run: a stream is for the cuda device, this plan is for cpu");
    data = r.buffers[0].data;
    r.buffers[0].data = NULL;
    assert_refused(cvy_plan_run(p, r.buffers, r.n, work, size, 0, NULL), "run: buffer 0 ('x') is NULL");
    r.buffers[0].data = data;
    assert_refused(cvy_plan_cost(p, NULL), "plan or result pointer is NULL");
    cvy_plan *dense = plan_with(g, (cvy_options){.threads = 2, .strided = CVY_OFF});
    r.buffers[0].data = (float *)data + 1; /* only the GPU wants addresses that are multiples of 16 */
    assert_ok(cvy_plan_run(dense, r.buffers, r.n, work, size, 0, NULL));
    r.buffers[0] = (cvy_buffer){data, (const int64_t[]){192, 64, 1, 8}};
    assert_refused(
        cvy_plan_run(dense, r.buffers, r.n, work, size, 0, NULL),
        "run: buffer 0 ('x') is strided or not at a multiple of 16 bytes: this plan was made for buffers "
        "that are neither (option strided)");
    r.buffers[0] = (cvy_buffer){data, (const int64_t[]){192, 64, 8, 1}};
    assert_ok(cvy_plan_run(dense, r.buffers, r.n, work, size, 0, NULL));
    r.buffers[0].strides = NULL;
    cvy_plan_free(dense);
    b = rig_run(&r, p, &n); /* and after all that it runs as before */
    assert_true(rig_same_bits(a, b, n));
    free(a);
    free(b);
    free(work);
    rig_close(&r);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

/* ---- print ---- */

static void assert_prints(const char *chain, const char *const *words)
{
    cvy_graph *g = parse(chain);
    cvy_plan *p = plan_with(g, (cvy_options){.threads = 2});
    char *printed = rig_plan_text(p), few[12];
    size_t needed = 0;
    cvy_cost cost;

    for (; *words; words++)
        if (!strstr(printed, *words)) fail_msg("%s: no '%s' in\n%s", chain, *words, printed);
    assert_ok(cvy_plan_print(p, few, sizeof few, &needed)); /* cut short, and told so */
    assert_int_equal(needed, strlen(printed) + 1);
    assert_int_equal(strlen(few), sizeof few - 1);
    assert_memory_equal(few, printed, sizeof few - 1);
    assert_ok(cvy_plan_cost(p, &cost));
    assert_true(cost.passes == 1 && cost.seconds > 0 && cost.flops > 1e9 && cost.bytes > 0 && cost.floor > 0);
    assert_true(cost.seconds >= cost.floor);
    free(printed);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

/* Extents that no memory holds are planned, without an overflow in costs, or refused with a reason. */
static void huge_extents(void **state)
{
    static const struct {
        const char *chain, *refusal;
    } cases[] = {
        {"x[3,4503599627370496] | matmul(w[4503599627370496,5])", NULL},
        {"x[30000000000000001] | linear(1)", NULL},
        {"x[72057594037927935] | linear(2)", NULL},
        {"x[1,1,2] | conv_transpose1d(1,2,stride=4503599627370496)", NULL},
        {"x[1,1,67108864,67108864] | conv_transpose2d(4,3,stride=2)", NULL},
        {"x[1,1,4503599627370496] | max_pool1d(3,stride=1)", NULL},
        {"x[1,1,90071992547409] | conv1d(1,90071992547407)",
         "conv1d: the cpu device does not run it: a copy of the input with the padding that its taps reach would "
         "be "
         "too large"},
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(cases); i++) {
        const cvy_options on_cpu = {.size = sizeof on_cpu, .device = CVY_CPU};
        cvy_graph *g = parse(cases[i].chain);
        cvy_plan *p = NULL;
        const cvy_status st = cvy_plan_create(g, &on_cpu, &p);
        if (st != (cases[i].refusal ? CVY_UNSUPPORTED : CVY_OK))
            fail_msg("%s: %s", cases[i].chain, st ? cvy_last_error() : "it was planned");
        if (cases[i].refusal) assert_string_equal(cvy_last_error(), cases[i].refusal);
        cvy_plan_free(p);
        cvy_graph_free(g);
    }
}

static void blocks_print(void **state)
{
    (void)state;
    assert_prints("x[128,8,128,128] | " BLOCK_A,
                  (const char *const[]){"fold,", "(fold_norm_affine)", "(pool_before_norm)", "rejected",
                                        "store:", "predicted", "1 pass,", "reads    x[128,8,128,128]",
                                        "writes   clamp[128,64,31,31]", "workspace", NULL});
    assert_prints("x[128,8,128,128] | " BLOCK_B, (const char *const[]){"resident,", "(merge_tanh_hardswish)",
                                                                       "rejected", "store:", "1 pass,", NULL});
    assert_prints("x[128,8,256,256] | " BLOCK_C,
                  (const char *const[]){"(fold_conv_affine)", "rejected", "store:", "1 pass,", "prepare", NULL});
}

static void unfused_prints(void **state)
{
    cvy_graph *g = parse("x[2,8,20,20] | " BLOCK_A);
    cvy_plan *p;
    char *printed;
    (void)state;
    setenv("CVY_FUSE", "0", 1);
    p = plan_with(g, (cvy_options){0});
    unsetenv("CVY_FUSE");
    printed = rig_plan_text(p);
    assert_non_null(strstr(printed, "fusing is off"));
    assert_int_equal(p->n_passes, p->n_prepare + 6);
    free(printed);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

/* Values that rewrites make say what they are, at any depth, in a text that stays short. */
static void values_have_titles(void **state)
{
    static const struct {
        const char *chain, *words;
    } cases[] = {
        {"x[2,4,9,9] | conv2d(8,3) | add(b[8,1,1]) | mul(s[8,1,1])",
         " conv2d.weight*s[8,4,3,3] (conv2d.bias+b)*s[8]"},
        {"x[2,4,9,9] | conv2d(8,3) | sub(b[8,1,1]) | relu", " conv2d.bias-b[8]"},
        {"x[2,4,9,9] | conv2d(8,3) | sub(b[8,1,1],alpha=2) | relu", " conv2d.bias-b*2[8]"},
        {"x[2,4,9,9] | conv2d(8,3) | mul(2) | relu", " conv2d.weight*2[8,4,3,3] conv2d.bias*2[8]"},
        {"x[2,4,9,9] | conv2d(8,3) @c | group_norm(2) @n | add(@c)", "writes   add[2,8,7,7]"},
        {"x[2,4,9,9] | conv2d(8,3) | group_norm(2) @n", "writes   n[2,8,7,7]"},
    };
    cvy_graph *g = NULL;
    cvy_plan *p;
    char *words;
    (void)state;

    for (int i = 0; i < COUNT_OF(cases); i++) {
        assert_ok(cvy_graph_parse(cases[i].chain, &g));
        p = plan_with(g, (cvy_options){.threads = 1});
        words = rig_plan_text(p);
        if (!strstr(words, cases[i].words)) fail_msg("%s: no %s in\n%s", cases[i].chain, cases[i].words, words);
        free(words);
        cvy_plan_free(p);
        cvy_graph_free(g);
    }
    assert_ok(cvy_graph_parse("x[2,4,9,9] | conv2d(8,3) | add(b[8,1,1]) | mul(s[8,1,1])", &g));
    for (int i = 0; i < 40; i++) {
        cvy_value last = g->nodes[g->n_nodes - 1].out, y;
        cvy_call call = {.size = sizeof call, .op = i % 2 ? "mul" : "add", .n_args = 2};
        call.args = (const cvy_value[]){last, g->nodes[i % 2 ? 2 : 1].arg[1]};
        assert_ok(cvy_graph_apply(g, &call, &y));
    }
    p = plan_with(g, (cvy_options){.threads = 1});
    words = rig_plan_text(p);
    assert_non_null(strstr(words, "*s[8,4,3,3]"));
    assert_non_null(strstr(words, "(...*s+b)*s"));
    assert_true(strlen(words) < 20000);
    free(words);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_and_places),     cmocka_unit_test(seeds),
        cmocka_unit_test(slices_stay_in_cache),  cmocka_unit_test(reshaped_results_are_written),
        cmocka_unit_test(any_number_of_threads), cmocka_unit_test(long_chains),
        cmocka_unit_test(workspace_of_blocks),   cmocka_unit_test(workspace_is_enough),
        cmocka_unit_test(kept_parameters),       cmocka_unit_test(several_callers),
        cmocka_unit_test(options_checked),       cmocka_unit_test(runs_checked),
        cmocka_unit_test(blocks_print),          cmocka_unit_test(unfused_prints),
        cmocka_unit_test(values_have_titles),    cmocka_unit_test(huge_extents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
