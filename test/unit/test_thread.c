/* test_thread.c - the pool and the OpenMP team: every unit once, nested and concurrent calls, teams, forks; what
 * the machine is. Nothing here is linked with OpenMP: gcc's runtime is loaded in the middle, as a program would
 * that imports PyTorch late, and the tests of the pool are run again. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../src/cpu/cpuinfo.h"
#include "../../src/cpu/openmp.h"
#include "../../src/cpu/thread.h"
#include "../support/rig.h"

/* ThreadSanitizer refuses threads in the child of a threaded process, unless told. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}

enum { UNITS = 1000, THREADS = 4 };

typedef struct counts {
    atomic_int done[UNITS];
    atomic_int bad_worker;
    int threads;
    int64_t plain[UNITS]; /* written without atomics: each by one worker, read after the call */
} counts;

static void count_unit(void *ctx, int64_t unit, int worker)
{
    counts *c = ctx;
    if (worker < 0 || worker >= c->threads) atomic_store(&c->bad_worker, 1);
    atomic_fetch_add(&c->done[unit], 1);
    c->plain[unit] += unit;
}

static bool each_done(const counts *c, int64_t units, int times)
{
    bool good = !atomic_load(&c->bad_worker);
    for (int64_t i = 0; i < UNITS; i++) {
        const int want = i < units ? times : 0;
        good = good && atomic_load(&c->done[i]) == want && c->plain[i] == want * i;
    }
    return good;
}

static void every_unit_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 8; threads++) {
        for (int64_t units = 0; units <= UNITS; units = units * 3 + 1) {
            counts c = {.threads = threads};
            cvyi_parallel(threads, units, count_unit, &c);
            assert_true(each_done(&c, units, 1));
        }
    }
}

/* Thousands of tiny calls: workers are caught waking, spinning, and falling asleep. */
static void many_small_calls(void **state)
{
    counts c = {.threads = THREADS};
    (void)state;
    for (int i = 0; i < 3000; i++) {
        cvyi_parallel(THREADS, 5, count_unit, &c);
        if (i % 500 == 0) usleep(2000); /* long enough for them to sleep */
    }
    assert_true(each_done(&c, 5, 3000));
}

static void odd_arguments(void **state)
{
    counts c = {.threads = 1};
    (void)state;
    cvyi_parallel(0, 3, count_unit, &c);
    cvyi_parallel(-5, 3, count_unit, &c);
    cvyi_parallel(4, 0, count_unit, &c);
    cvyi_parallel(4, -1, count_unit, &c);
    assert_true(each_done(&c, 3, 2));
    assert_int_equal(cvyi_threads_choose(1 << 30), CVYI_MAX_THREADS);
    assert_int_equal(cvyi_threads_choose(3), 3);
}

/* ---- calls inside calls, calls at once ---- */

typedef struct nest {
    counts inner[8];
} nest;

static void nested_unit(void *ctx, int64_t unit, int worker)
{
    nest *n = ctx;
    (void)worker;
    cvyi_parallel(THREADS, 50, count_unit, &n->inner[unit]);
}

static void nested_calls(void **state)
{
    nest *n = calloc(1, sizeof *n);
    (void)state;
    assert_non_null(n);
    for (int i = 0; i < 8; i++) n->inner[i].threads = 1; /* alone: worker 0 */
    for (int r = 0; r < 20; r++) cvyi_parallel(THREADS, 8, nested_unit, n);
    for (int i = 0; i < 8; i++) assert_true(each_done(&n->inner[i], 50, 20));
    free(n);
}

static void *caller_main(void *arg)
{
    counts *c = arg;
    for (int i = 0; i < 300; i++) cvyi_parallel(THREADS, 40, count_unit, c);
    return NULL;
}

static void callers_at_once(void **state)
{
    enum { CALLERS = 4 };
    pthread_t thread[CALLERS];
    counts *c = calloc(CALLERS, sizeof *c);
    (void)state;
    assert_non_null(c);
    for (int i = 0; i < CALLERS; i++) {
        c[i].threads = THREADS;
        assert_int_equal(pthread_create(&thread[i], NULL, caller_main, &c[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < CALLERS; i++) assert_true(each_done(&c[i], 40, 300));
    free(c);
}

/* ---- teams ---- */

enum { STEPS = 200 };

typedef struct steps {
    int64_t value[STEPS][CVYI_MAX_THREADS]; /* plain: the barriers order them */
    atomic_int wrong;
    counts counts;
} steps;

/* Each step reads what everybody wrote in the one before. */
static void team_member(void *ctx, int worker, cpu_team *team)
{
    steps *s = ctx;
    const int size = cvyi_team_size(team);
    for (int i = 0; i < STEPS; i++) {
        int64_t sum = 1;
        for (int w = 0; w < size && i > 0; w++) sum += s->value[i - 1][w];
        s->value[i][worker] = sum % 1000003;
        if (i > 0 && s->value[i - 1][worker] != s->value[i - 1][0]) atomic_store(&s->wrong, 1);
        if (i % 64 == 63 && worker == 0) usleep(500); /* the others fall asleep at the barrier */
        cvyi_team_barrier(team);
    }
    for (int i = 0; i < 5; i++) {
        cvyi_team_begin(team, worker, 100);
        for (int64_t unit; (unit = cvyi_team_claim(team)) >= 0;) count_unit(&s->counts, unit, worker);
    }
}

static void teams(void **state)
{
    steps *s = calloc(1, sizeof *s);
    (void)state;
    assert_non_null(s);
    for (int threads = 1; threads <= 5; threads++) {
        memset(s, 0, sizeof *s);
        s->counts.threads = threads;
        cvyi_team(threads, team_member, s);
        assert_false(atomic_load(&s->wrong));
        assert_true(each_done(&s->counts, 100, 5));
    }
    free(s);
}

static void lonely_team(void *ctx, int worker, cpu_team *team)
{
    *(int *)ctx = cvyi_team_size(team) * 10 + worker;
    cvyi_team_barrier(team);
}

static void team_in_unit(void *ctx, int64_t unit, int worker)
{
    (void)worker;
    cvyi_team(THREADS, lonely_team, (int *)ctx + unit);
}

static void teams_in_units(void **state)
{
    int seen[16] = {0};
    (void)state;
    cvyi_parallel(THREADS, 16, team_in_unit, seen);
    for (int i = 0; i < 16; i++) assert_int_equal(seen[i], 10); /* one member, number 0 */
}

/* ---- forks ---- */

static void after_fork(void **state)
{
    counts c = {.threads = THREADS};
    (void)state;
    cvyi_parallel(THREADS, 100, count_unit, &c);
    for (int i = 0; i < 5; i++) {
        int status = -1;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            counts mine = {.threads = THREADS};
            alarm(20); /* a deadlock ends as a failure */
            for (int r = 0; r < 50; r++) cvyi_parallel(THREADS, 100, count_unit, &mine);
            _exit(each_done(&mine, 100, 50) ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    cvyi_parallel(THREADS, 100, count_unit, &c);
    assert_true(each_done(&c, 100, 2));
}

static atomic_int keep_calling;

static void *background_main(void *arg)
{
    counts *c = arg;
    while (atomic_load(&keep_calling)) cvyi_parallel(THREADS, 200, count_unit, c);
    return NULL;
}

/* The fork happens while another thread has the pool. */
static void fork_during_a_call(void **state)
{
    counts background = {.threads = THREADS};
    pthread_t thread;
    (void)state;
    atomic_store(&keep_calling, 1);
    assert_int_equal(pthread_create(&thread, NULL, background_main, &background), 0);
    for (int i = 0; i < 10; i++) {
        int status = -1;
        const pid_t child = fork();
        if (child == 0) {
            counts mine = {.threads = THREADS};
            alarm(20);
            cvyi_parallel(THREADS, 100, count_unit, &mine);
            _exit(each_done(&mine, 100, 1) ? 0 : 1);
        }
        assert_true(child > 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    atomic_store(&keep_calling, 0);
    pthread_join(thread, NULL);
}

/* ---- memory, affinity, instruction sets ---- */

static void no_allocation_when_warm(void **state)
{
    counts c = {.threads = THREADS};
    (void)state;
    assert_ok(cvyi_threads_reserve(THREADS));
    cvyi_alloc_fail_after(0); /* the next one would fail */
    cvyi_parallel(THREADS, 100, count_unit, &c);
    cvyi_alloc_fail_after(-1);
    assert_true(each_done(&c, 100, 1));
}

static void affinity_counts(void **state)
{
    cpu_set_t before, one;
    int all = cvyi_threads_available();
    (void)state;
    assert_true(all >= 1);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cvyi_threads_available(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    setenv("CVY_THREADS", "3", 1);
    assert_int_equal(cvyi_threads_choose(0), 3);
    unsetenv("CVY_THREADS");
    assert_int_equal(cvyi_threads_choose(0), all);
}

static void instruction_sets(void **state)
{
    cpu_isa isa = CPU_ISA_COUNT;
    const char *given = getenv("CVY_ISA");
    char *kept = given ? strdup(given) : NULL;
    (void)state;
    setenv("CVY_ISA", "portable", 1);
    assert_ok(cvyi_isa_choose(&isa));
    assert_int_equal(isa, CPU_PORTABLE);
    setenv("CVY_ISA", "sse9", 1);
    assert_refused(cvyi_isa_choose(&isa), "CVY_ISA is 'sse9', expected portable, neon, avx2 or avx512");
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        setenv("CVY_ISA", cvyi_isa_name((cpu_isa)i), 1);
        assert_int_equal(cvyi_isa_choose(&isa), cvyi_isa_supported((cpu_isa)i) ? CVY_OK : CVY_UNSUPPORTED);
    }
    unsetenv("CVY_ISA");
    assert_ok(cvyi_isa_choose(&isa));
    for (int i = isa + 1; i < CPU_ISA_COUNT; i++) assert_false(cvyi_isa_supported((cpu_isa)i));
    if (kept) setenv("CVY_ISA", kept, 1);
    free(kept);
}

static void machine_record(void **state)
{
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        machine m, again;
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        cvyi_machine_measure((cpu_isa)isa, &m);
        assert_true(m.measured && m.isa == (cpu_isa)isa && m.threads >= 1);
        assert_true(m.l1 >= 8 << 10 && m.l2 >= m.l1 && m.l3 >= m.l2);
        assert_true(m.fma_gflops > 0.1 && m.fma_gflops < 1e4);
        assert_true(m.mem_gbps > 0.1 && m.mem_gbps < 1e4 && m.l3_gbps > 0.1 && m.l3_gbps < 1e5);
        cvyi_machine_measure((cpu_isa)isa, &again);
        assert_memory_equal(&m.fma_gflops, &again.fma_gflops, sizeof m.fma_gflops); /* measured once */
    }
}

/* ---- the OpenMP team ---- */

enum { TEAM = 6 }; /* threads of the team: more than most calls here want */

static int no_team(void **state)
{
    (void)state;
    return cvyi_openmp() ? -1 : 0;
}

/* Loads the runtime as PyTorch's wheel does, with symbols that nobody else sees. */
static int load_team(void **state)
{
    char threads[8];
    (void)state;
    snprintf(threads, sizeof threads, "%d", TEAM);
    setenv("OMP_NUM_THREADS", threads, 1);
    if (!dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL)) printf("no libgomp here: the pool is tested twice\n");
    unsetenv("OMP_NUM_THREADS");
    return 0;
}

static const openmp *team_or_skip(void)
{
    const openmp *team = cvyi_openmp();
    if (!team) skip();
    return team;
}

typedef struct witness {
    const openmp *team;
    atomic_int in_region, units, crowd; /* units that ran in a region, all units, the largest team seen */
} witness;

static void witness_unit(void *ctx, int64_t unit, int worker)
{
    witness *w = ctx;
    (void)unit;
    (void)worker;
    atomic_fetch_add(&w->units, 1);
    if (w->team->in_parallel()) atomic_fetch_add(&w->in_region, 1);
    if (w->team->num_threads() > atomic_load(&w->crowd)) atomic_store(&w->crowd, w->team->num_threads());
}

static void witness_member(void *ctx, int worker, cpu_team *team)
{
    witness_unit(ctx, 0, worker);
    if (cvyi_team_size(team) > atomic_load(&((witness *)ctx)->crowd)) atomic_store(&((witness *)ctx)->crowd, 99);
    cvyi_team_barrier(team);
}

/* Calls run in a region of the whole team; those that want more threads than it has run on the pool. */
static void team_is_used(void **state)
{
    witness w = {.team = team_or_skip()};
    (void)state;
    cvyi_parallel(3, 50, witness_unit, &w);
    assert_int_equal(w.in_region, 50);
    assert_int_equal(w.crowd, TEAM);
    w.in_region = w.units = 0;
    cvyi_team(3, witness_member, &w);
    assert_int_equal(w.units, 3);
    assert_int_equal(w.in_region, 3);
    w.in_region = w.units = 0;
    cvyi_parallel(TEAM + 1, 50, witness_unit, &w);
    assert_int_equal(w.units, 50);
    assert_int_equal(w.in_region, 0);
    w.units = 0;
    cvyi_parallel(1, 50, witness_unit, &w);
    assert_int_equal(w.units, 50);
    assert_int_equal(w.in_region, 0);
}

static atomic_int handed; /* orders what threads see: the thread sanitizer does not know libgomp's barriers */

static void region_body(void *arg)
{
    witness *w = arg;
    atomic_load(&handed);
    cvyi_parallel(3, 10, witness_unit, w);
    cvyi_team(3, witness_member, w);
    atomic_fetch_add(&handed, 1);
}

/* Inside the program's own region every call runs alone on its thread: one member, whose number is 0. */
static void calls_in_a_region(void **state)
{
    witness w = {.team = team_or_skip()};
    (void)state;
    atomic_store(&handed, 0);
    w.team->parallel(region_body, &w, 4, 0);
    assert_int_equal(atomic_load(&handed), 4);
    assert_int_equal(w.units, 4 * 11);
    assert_int_equal(w.in_region, 4 * 11);
    assert_int_equal(w.crowd, 4);
}

static void pool_by_choice(void **state)
{
    witness w = {.team = team_or_skip()};
    (void)state;
    setenv("CVY_POOL", "mine", 1);
    assert_refused(cvyi_threads_reserve(3), "CVY_POOL is 'mine', expected own or openmp");
    setenv("CVY_POOL", "own", 1);
    assert_ok(cvyi_threads_reserve(3));
    cvyi_parallel(3, 50, witness_unit, &w);
    assert_int_equal(w.units, 50);
    assert_int_equal(w.in_region, 0);
    unsetenv("CVY_POOL");
    assert_ok(cvyi_threads_reserve(3));
    cvyi_parallel(3, 50, witness_unit, &w);
    assert_int_equal(w.in_region, 50);
}

/* The runtime gives fewer threads than asked for: the limit of this caller is lowered once the team is chosen. */
static int three_threads(void)
{
    return 3;
}

static void fewer_than_asked(void **state)
{
    openmp *team = (openmp *)(uintptr_t)team_or_skip();
    int (*const told)(void) = team->max_threads;
    void (*const limit)(int) =
        (void (*)(int))(uintptr_t)dlsym(dlopen("libgomp.so.1", RTLD_NOW), "omp_set_num_threads");
    steps *s = calloc(1, sizeof *s);
    counts c = {.threads = 2};
    (void)state;
    assert_non_null(s);
    team->max_threads = three_threads;
    limit(2);
    cvyi_parallel(3, 200, count_unit, &c);
    assert_true(each_done(&c, 200, 1));
    s->counts.threads = 2;
    cvyi_team(3, team_member, s);
    limit(TEAM);
    team->max_threads = told;
    assert_false(atomic_load(&s->wrong));
    assert_true(each_done(&s->counts, 100, 5));
    free(s);
}

/* One plan on one thread, on the pool and on the team, whole units and shared parts: the same bits. */
static void same_bits(void **state)
{
    static const char *const chains[] = {
        "x[1,16,40,41] | conv2d(32,3) | group_norm(8) | tanh | max_pool2d(2)",
        "x[8,16,24,21] | conv2d(32,3,padding=1) | relu | softmax(1)",
        "x[1,300,500] | layer_norm(500) | linear(70) | gelu",
    };
    static const struct {
        const char *pool;
        int threads;
    } ways[] = {{"own", 1}, {"own", 4}, {"openmp", 3}, {"openmp", TEAM}};
    (void)state;
    for (int i = 0; i < COUNT_OF(chains); i++) {
        uint64_t seed = 7;
        cvy_graph *g = NULL;
        float *first = NULL;
        rig r;
        assert_ok(cvy_graph_parse(chains[i], &g));
        rig_open(&r, g, &seed, RIG_REAL, 0);
        for (int k = 0; k < COUNT_OF(ways); k++) {
            const cvy_options o = {.size = sizeof o, .device = CVY_CPU, .threads = ways[k].threads};
            cvy_plan *p = NULL;
            int64_t count = 0;
            float *got;
            setenv("CVY_POOL", ways[k].pool, 1);
            assert_ok(cvy_plan_create(g, &o, &p));
            got = rig_run(&r, p, &count);
            assert_non_null(got);
            if (first) assert_memory_equal(got, first, (size_t)count * sizeof *got);
            if (first) free(got);
            first = first ? first : got;
            cvy_plan_free(p);
        }
        unsetenv("CVY_POOL");
        assert_ok(cvyi_threads_reserve(1));
        free(first);
        rig_close(&r);
        cvy_graph_free(g);
    }
}

/* In the child of a fork the team is gone: calls run on a pool of the child's own. */
static void team_lost_in_child(void **state)
{
    witness w = {.team = team_or_skip()};
    int status = -1;
    pid_t child;
    (void)state;
    cvyi_parallel(3, 50, witness_unit, &w); /* the team has been at work */
    child = fork();
    if (child == 0) {
        counts mine = {.threads = 3};
        alarm(20);
        cvyi_parallel(3, 100, count_unit, &mine);
        _exit(!cvyi_openmp() && each_done(&mine, 100, 1) ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define EITHER_POOL                                                                                                \
    cmocka_unit_test(every_unit_once), cmocka_unit_test(many_small_calls), cmocka_unit_test(odd_arguments),        \
        cmocka_unit_test(nested_calls), cmocka_unit_test(callers_at_once), cmocka_unit_test(teams),                \
        cmocka_unit_test(teams_in_units), cmocka_unit_test(after_fork), cmocka_unit_test(fork_during_a_call),      \
        cmocka_unit_test(no_allocation_when_warm), cmocka_unit_test(same_bits)

int main(void)
{
    const struct CMUnitTest pool[] = {
        EITHER_POOL,
        cmocka_unit_test(affinity_counts),
        cmocka_unit_test(instruction_sets),
        cmocka_unit_test(machine_record),
    };
    const struct CMUnitTest team[] = {
        EITHER_POOL,
        cmocka_unit_test(team_is_used),
        cmocka_unit_test(calls_in_a_region),
        cmocka_unit_test(pool_by_choice),
        cmocka_unit_test(fewer_than_asked),
        cmocka_unit_test(team_lost_in_child),
    };
    return cmocka_run_group_tests(pool, no_team, NULL) + cmocka_run_group_tests(team, load_team, NULL);
}
