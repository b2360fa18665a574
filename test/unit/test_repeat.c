/* A run made again: the same bits as any other run, as long as what it relies on holds; nothing done where it does
 * not. */
#include "../support/rig.h"

static const char chain[] = "x[2,8,20,20] | conv2d(32,3,padding=1) | batch_norm | relu | max_pool2d(2)";

/* A plan, its tensors, memory for a run, and the run to be made again. */
typedef struct rehearsal {
    cvy_graph *g;
    cvy_plan *p;
    rig r;
    char *prepared, *work;
    cvy_repeat again;
    uint64_t call[16];
} rehearsal;

static void open_rehearsal(rehearsal *t)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CPU, .threads = 1};
    cvy_prepared found;
    uint64_t seed = 3;
    size_t rest;

    *t = (rehearsal){0};
    assert_ok(cvy_graph_parse(chain, &t->g));
    assert_ok(cvy_plan_create(t->g, &options, &t->p));
    assert_ok(cvy_plan_prepared(t->p, &found));
    rest = cvy_plan_workspace(t->p) - found.bytes;
    rig_open(&t->r, t->g, &seed, RIG_REAL, 0);
    t->prepared = aligned_alloc(CVY_ALIGN, found.bytes + CVY_ALIGN);
    t->work = aligned_alloc(CVY_ALIGN, rest);
    assert_true(t->prepared && t->work && t->r.n + 2 <= 16);
    for (int i = 0; i < t->r.n; i++) t->call[i] = (uintptr_t)t->r.buffers[i].data;
    t->call[t->r.n] = (uintptr_t)t->work;
    t->again = (cvy_repeat){
        .size = sizeof t->again,
        .plan = t->p,
        .buffers = t->r.buffers,
        .n_buffers = t->r.n,
        .memory = {sizeof(cvy_memory), t->prepared, found.bytes, t->work, rest},
        .call = t->call,
    };
    assert_ok(cvy_plan_run_in(t->p, t->r.buffers, t->r.n, &t->again.memory, 0, NULL));
}

static void close_rehearsal(rehearsal *t)
{
    free(t->prepared);
    free(t->work);
    rig_close(&t->r);
    cvy_plan_free(t->p);
    cvy_graph_free(t->g);
}

static void the_same_bits(void **state)
{
    float *first, *second;
    rehearsal t;
    int64_t n;
    (void)state;

    open_rehearsal(&t);
    first = rig_outputs(&t.r, &n);
    rig_wipe(&t.r);
    for (int i = 0; i < t.r.n; i++) t.r.buffers[i].data = NULL; /* the call brings them */
    t.again.memory.workspace = NULL;
    assert_ok(cvy_plan_repeat(&t.again));
    second = rig_outputs(&t.r, &n);
    assert_true(rig_same_bits(first, second, n));
    free(first);
    free(second);
    close_rehearsal(&t);
}

static void what_it_relies_on(void **state)
{
    uint64_t version = 7;
    char bytes[] = "parameter", copy[] = "parameter";
    rehearsal t;
    (void)state;

    open_rehearsal(&t);
    const cvy_word words[] = {{&version, 7}, {&t.call[1], t.call[1]}};
    const cvy_copy copies[] = {{bytes, copy, sizeof bytes}};
    t.again.words = words, t.again.n_words = 2;
    t.again.copies = copies, t.again.n_copies = 1;
    assert_ok(cvy_plan_repeat(&t.again));
    assert_int_equal(cvy_words_hold(words, 2), 1);
    assert_int_equal(cvy_words_hold(NULL, 0), 1);

    version = 8;
    t.call[t.r.n] = 0; /* no workspace: a run would be refused */
    assert_int_equal(cvy_words_hold(words, 2), 0);
    assert_int_equal(cvy_plan_repeat(&t.again), CVY_STALE);
    version = 7;
    t.call[1] += 64;
    assert_int_equal(cvy_plan_repeat(&t.again), CVY_STALE);
    t.call[1] -= 64;
    bytes[8] = 'R';
    assert_int_equal(cvy_plan_repeat(&t.again), CVY_STALE);
    bytes[8] = 'r';
    assert_refused(cvy_plan_repeat(&t.again), "run: the workspace is NULL or not aligned to 256 bytes");
    assert_string_equal(cvy_status_name(CVY_STALE), "stale");
    close_rehearsal(&t);
}

static void arguments_are_checked(void **state)
{
    static const char words[] = "repeat: the struct, its plan, its buffers or its call is NULL";
    rehearsal t;
    (void)state;

    open_rehearsal(&t);
    assert_refused(cvy_plan_repeat(NULL), words);
    t.again.plan = NULL;
    assert_refused(cvy_plan_repeat(&t.again), words);
    t.again.plan = t.p;
    t.again.call = NULL;
    assert_refused(cvy_plan_repeat(&t.again), words);
    t.again.call = t.call;
    t.again.size = 1;
    assert_int_equal(cvy_plan_repeat(&t.again), CVY_INVALID);
    t.again.size = sizeof t.again;
    t.again.n_buffers--;
    assert_int_equal(cvy_plan_repeat(&t.again), CVY_INVALID);
    close_rehearsal(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits),
        cmocka_unit_test(what_it_relies_on),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
