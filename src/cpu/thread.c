/* thread.c - the pool.
 *
 * Each worker has one word, on a cache line of its own, that is both its state and what it sleeps on:
 *
 *     IDLE -> POSTED -> RUNNING -> IDLE      spinning for work; work is there; at work
 *     IDLE -> ASLEEP -> POSTED               gave up spinning; must be woken
 *     POSTED -> IDLE                         the caller finished before the worker woke, and took the work back
 *     RUNNING -> WAITED -> IDLE              the caller sleeps until this worker is done
 *
 * Taking work back is what makes the pool bearable beside other pools (PyTorch's OpenMP threads) on the same cores:
 * a worker that does not get a core delays nobody, unless it has begun. Only workers that were posted look at the
 * job, and the caller leaves only when none of them is RUNNING, so the job's fields need no protection of their
 * own. */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "thread.h"

enum { IDLE, ASLEEP, POSTED, RUNNING, WAITED };
enum { SPINS = 1500 }; /* pauses before sleeping: 20 to 60 us, more than a gap between two passes of a plan */
enum { CACHE_LINE = 64 };

typedef _Atomic uint32_t futex_word;

struct cpu_team {
    int size;
    _Alignas(CACHE_LINE) _Atomic int64_t next; /* the next unit to claim */
    _Atomic int64_t units;
    _Alignas(CACHE_LINE) _Atomic int arrived; /* at the barrier */
    futex_word phase;                         /* counts barriers */
    _Atomic int sleepers;                     /* waiting in the kernel for phase to change */
};

typedef struct job {
    void (*unit_fn)(void *ctx, int64_t unit, int worker); /* one of the two is NULL */
    void (*team_fn)(void *ctx, int worker, cpu_team *team);
    void *ctx;
    cpu_team team;
} job;

typedef struct slot {
    _Alignas(CACHE_LINE) futex_word state;
} slot;

static struct {
    atomic_flag taken; /* a caller has the pool: it alone may touch what follows */
    _Atomic int made;  /* workers that exist: 1 ... made */
    job job;
    slot slots[CVYI_MAX_THREADS]; /* by worker; 0 is the caller's and unused */
} pool = {.taken = ATOMIC_FLAG_INIT};

static _Thread_local bool inside; /* this thread is in a unit or a team */

/* ---- waiting ---- */

static void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(futex_word *word, uint32_t while_equal)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_equal, NULL, NULL, 0);
}

static void futex_wake(futex_word *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Spins while *word is `value`; true if it still is. */
static bool spin_while(futex_word *word, uint32_t value)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) return false;
        spin_pause();
    }
    return true;
}

/* ---- a worker's life ---- */

static void run_share(job *j, int worker)
{
    int64_t unit;
    inside = true;
    if (j->team_fn) {
        j->team_fn(j->ctx, worker, &j->team);
    } else {
        while ((unit = cvyi_team_claim(&j->team)) >= 0) j->unit_fn(j->ctx, unit, worker);
    }
    inside = false;
}

/* Returns with work in hand. */
static void await_work(futex_word *state)
{
    for (;;) {
        uint32_t seen = IDLE;
        if (spin_while(state, IDLE) && atomic_compare_exchange_strong(state, &seen, ASLEEP)) {
            while (atomic_load(state) == ASLEEP) futex_wait(state, ASLEEP);
        }
        seen = POSTED;
        if (atomic_compare_exchange_strong(state, &seen, RUNNING)) return;
    }
}

static void *worker_main(void *arg)
{
    const int worker = (int)(intptr_t)arg;
    futex_word *state = &pool.slots[worker].state;
    for (;;) {
        await_work(state);
        run_share(&pool.job, worker);
        if (atomic_exchange(state, IDLE) == WAITED) futex_wake(state, 1);
    }
    return NULL;
}

/* ---- making workers ---- */

/* The child of a fork has none of the workers: it starts with an empty pool. */
static void forget_workers(void)
{
    for (int i = 0; i < CVYI_MAX_THREADS; i++) atomic_store(&pool.slots[i].state, IDLE);
    atomic_store(&pool.made, 0);
    atomic_flag_clear(&pool.taken);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_workers);
}

static int make_worker(int worker)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    char name[24]; /* the system takes 15 characters: convoy-255 fits */
    int err = pthread_attr_init(&attr);
    if (err) return err;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    err = pthread_create(&thread, &attr, worker_main, (void *)(intptr_t)worker);
    if (!err) {
        snprintf(name, sizeof name, "convoy-%d", worker);
        pthread_setname_np(thread, name);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return err;
}

/* Workers for `threads` threads, as far as the system gives them; an errno if it refuses one. The pool is taken. */
static int make_workers(int threads)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int err = 0;
    pthread_once(&once, watch_forks);
    while (!err && atomic_load(&pool.made) < threads - 1) {
        err = make_worker(atomic_load(&pool.made) + 1);
        if (!err) atomic_fetch_add(&pool.made, 1);
    }
    return err;
}

static int clamp_threads(int64_t threads)
{
    return (int)cvyi_max64(1, cvyi_min64(threads, CVYI_MAX_THREADS));
}

cvy_status cvyi_threads_reserve(int threads)
{
    int err = 0;
    threads = clamp_threads(threads);
    if (inside || atomic_load(&pool.made) >= threads - 1) return CVY_OK;
    while (atomic_flag_test_and_set(&pool.taken)) usleep(50);
    err = make_workers(threads);
    atomic_flag_clear(&pool.taken);
    if (err)
        return cvyi_fail(CVY_FAILED, "threads: the system refused thread %d of %d: %s", atomic_load(&pool.made) + 2,
                         threads, strerror(err));
    return CVY_OK;
}

int cvyi_threads_choose(int asked)
{
    if (asked <= 0) asked = cvyi_env_int(ENV_THREADS, 0);
    return clamp_threads(asked > 0 ? asked : cvyi_threads_available());
}

/* ---- calls ---- */

static void team_init(cpu_team *team, int size, int64_t units)
{
    team->size = size;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    atomic_store_explicit(&team->units, units, memory_order_relaxed);
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&team->phase, 0, memory_order_relaxed);
    atomic_store_explicit(&team->sleepers, 0, memory_order_relaxed);
}

static void post(int worker)
{
    futex_word *state = &pool.slots[worker].state;
    if (atomic_exchange(state, POSTED) == ASLEEP) futex_wake(state, 1);
}

/* Takes the work back from a worker that has not begun (`revoke`), or waits until it is done. */
static void finish(int worker, bool revoke)
{
    futex_word *state = &pool.slots[worker].state;
    uint32_t seen = POSTED;
    if (revoke && atomic_compare_exchange_strong(state, &seen, IDLE)) return;
    for (;;) {
        seen = atomic_load_explicit(state, memory_order_acquire);
        if (seen == IDLE || seen == ASLEEP) return;
        if (!spin_while(state, seen)) continue;
        if (seen == POSTED) {
            sched_yield(); /* a team waits for all its workers to come */
        } else if (seen == WAITED || atomic_compare_exchange_strong(state, &seen, WAITED)) {
            futex_wait(state, WAITED);
        }
    }
}

/* The pool is taken and the job described, but for its team. */
static void run_job(int threads, int64_t units)
{
    const int most = atomic_load(&pool.made) + 1;
    const int size = threads < most ? threads : most;
    const bool revoke = !pool.job.team_fn;
    team_init(&pool.job.team, size, units);
    for (int i = 1; i < size; i++) post(i);
    run_share(&pool.job, 0);
    for (int i = 1; i < size; i++) finish(i, revoke);
}

/* Whether this call may use the pool; then it must give it back. */
static bool take_pool(int threads)
{
    if (threads <= 1 || inside || atomic_flag_test_and_set(&pool.taken)) return false;
    if (atomic_load(&pool.made) < threads - 1) make_workers(threads); /* fewer will do */
    return true;
}

void cvyi_parallel(int threads, int64_t units, void (*fn)(void *ctx, int64_t unit, int worker), void *ctx)
{
    const bool outer = inside;
    threads = clamp_threads(cvyi_min64(threads, units));
    if (take_pool(threads)) {
        pool.job.unit_fn = fn;
        pool.job.team_fn = NULL;
        pool.job.ctx = ctx;
        run_job(threads, units);
        atomic_flag_clear(&pool.taken);
        return;
    }
    inside = true;
    for (int64_t unit = 0; unit < units; unit++) fn(ctx, unit, 0);
    inside = outer;
}

void cvyi_team(int threads, void (*fn)(void *ctx, int worker, cpu_team *team), void *ctx)
{
    const bool outer = inside;
    cpu_team alone;
    threads = clamp_threads(threads);
    if (take_pool(threads)) {
        pool.job.unit_fn = NULL;
        pool.job.team_fn = fn;
        pool.job.ctx = ctx;
        run_job(threads, 0);
        atomic_flag_clear(&pool.taken);
        return;
    }
    team_init(&alone, 1, 0);
    inside = true;
    fn(ctx, 0, &alone);
    inside = outer;
}

/* ---- inside a team ---- */

int cvyi_team_size(const cpu_team *team)
{
    return team->size;
}

void cvyi_team_barrier(cpu_team *team)
{
    const uint32_t phase = atomic_load(&team->phase);
    if (team->size == 1) return;
    if (atomic_fetch_add(&team->arrived, 1) == team->size - 1) {
        atomic_store(&team->arrived, 0); /* before the others can arrive at the next one */
        atomic_store(&team->phase, phase + 1);
        if (atomic_load(&team->sleepers) > 0) futex_wake(&team->phase, CVYI_MAX_THREADS);
        return;
    }
    if (!spin_while(&team->phase, phase)) return;
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->phase) == phase) futex_wait(&team->phase, phase);
    atomic_fetch_sub(&team->sleepers, 1);
}

void cvyi_team_begin(cpu_team *team, int worker, int64_t units)
{
    cvyi_team_barrier(team); /* nobody claims any more */
    if (worker == 0) {
        atomic_store_explicit(&team->units, units, memory_order_relaxed);
        atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    }
    cvyi_team_barrier(team);
}

int64_t cvyi_team_claim(cpu_team *team)
{
    const int64_t unit = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
    return unit < atomic_load_explicit(&team->units, memory_order_relaxed) ? unit : -1;
}
