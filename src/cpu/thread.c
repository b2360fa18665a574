/* thread.c - calls on the pool or on the OpenMP team.
 *
 * The pool. Each worker has one word, on a cache line of its own, that is both its state and what it sleeps on:
 *
 *     IDLE -> POSTED -> RUNNING -> IDLE      spinning for work; work is there; at work
 *     IDLE -> ASLEEP -> POSTED               gave up spinning; must be woken
 *     POSTED -> IDLE                         the caller finished before the worker woke, and took the work back
 *     RUNNING -> WAITED -> IDLE              the caller sleeps until this worker is done
 *
 * Taking work back is what makes the pool usable next to other pools on the same cores: a worker that does not get
 * a core delays no other thread, unless it has begun. Only workers that were posted read the job, and the caller
 * returns only when none of them is RUNNING, so the job's fields need no lock. */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "openmp.h"
#include "thread.h"

enum { IDLE, ASLEEP, POSTED, RUNNING, WAITED };
enum { SPINS = 1500 }; /* pauses before sleeping: 20 to 60 us, more than a gap between two passes of a plan */
enum { CACHE_LINE = 64 };

typedef _Atomic uint32_t futex_word;

struct cpu_team {
    _Atomic int size;
    _Alignas(CACHE_LINE) _Atomic int64_t next; /* the next item to claim */
    _Atomic int64_t items;
    _Alignas(CACHE_LINE) _Atomic int arrived; /* at the barrier */
    futex_word phase;                         /* counts barriers */
    _Atomic int sleepers;                     /* waiting in the kernel for phase to change */
};

typedef struct work {
    void (*item_fn)(void *ctx, int64_t item, int worker); /* one of the two is NULL */
    void (*team_fn)(void *ctx, int worker, cpu_team *team);
    void *ctx;
    int64_t items; /* of item_fn */
} work;

typedef struct job {
    work work;
    cpu_team team;
} job;

typedef struct slot {
    _Alignas(CACHE_LINE) futex_word state;
} slot;

static struct {
    atomic_flag taken; /* a caller has the pool: only this caller may touch what follows */
    _Atomic int made;  /* workers that exist: 1 ... made */
    job job;
    slot slots[CVYI_MAX_THREADS]; /* by worker; 0 is the caller's and unused */
} pool = {.taken = ATOMIC_FLAG_INIT};

static _Thread_local bool inside; /* this thread is in an item or a team */

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

/* ---- workers ---- */

static void run_share(job *j, int worker)
{
    const work *w = &j->work;
    const bool outer = inside;
    int64_t item;
    inside = true;
    if (w->team_fn) {
        w->team_fn(w->ctx, worker, &j->team);
    } else {
        while ((item = cvyi_team_claim(&j->team)) >= 0) w->item_fn(w->ctx, item, worker);
    }
    inside = outer;
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

/* The OpenMP team, if it has that many threads for this caller. */
static const openmp *team_for(int threads)
{
    const openmp *runtime = cvyi_openmp();
    return runtime && threads <= runtime->max_threads() ? runtime : NULL;
}

cvy_status cvyi_threads_reserve(int threads)
{
    cvy_status st = cvyi_openmp_choose();
    int err = 0;
    threads = clamp_threads(threads);
    if (st || inside || atomic_load(&pool.made) >= threads - 1 || team_for(threads)) return st;
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

/* ---- calls on the pool ---- */

static void job_init(job *j, const work *w, int size)
{
    cpu_team *team = &j->team;
    j->work = *w;
    atomic_store_explicit(&team->size, size, memory_order_relaxed);
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    atomic_store_explicit(&team->items, w->items, memory_order_relaxed);
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

/* The pool is taken. */
static void run_pool(int threads, const work *w)
{
    const int most = atomic_load(&pool.made) + 1;
    const int size = threads < most ? threads : most;
    job_init(&pool.job, w, size);
    for (int i = 1; i < size; i++) post(i);
    run_share(&pool.job, 0);
    for (int i = 1; i < size; i++) finish(i, !w->team_fn);
}

/* May this call use the pool? Then it must release it. */
static bool take_pool(int threads)
{
    if (atomic_flag_test_and_set(&pool.taken)) return false;
    if (atomic_load(&pool.made) < threads - 1) make_workers(threads); /* fewer are enough */
    return true;
}

/* ---- calls on the OpenMP team ---- */

typedef struct region {
    job job;
    const openmp *runtime;
    int threads;      /* wanted */
    _Atomic int done; /* orders the job's fields between threads, independently of the runtime's barriers */
} region;

/* The runtime may send fewer threads than the team has, and sends the whole team if fewer are wanted. */
static void run_member(void *arg)
{
    region *r = arg;
    int worker, size;
    atomic_load_explicit(&r->done, memory_order_acquire);
    worker = r->runtime->thread_num();
    size = (int)cvyi_min64(r->runtime->num_threads(), r->threads);
    atomic_store_explicit(&r->job.team.size, size, memory_order_relaxed); /* the same from all */
    if (worker < size) run_share(&r->job, worker);
    atomic_fetch_add_explicit(&r->done, 1, memory_order_release);
}

/* The region always uses the whole team: libgomp ends the threads that a smaller one does not use, and the next
 * operator of PyTorch would have to create them again. */
static void run_region(const openmp *runtime, int threads, const work *w)
{
    region r = {.runtime = runtime, .threads = threads};
    job_init(&r.job, w, 1);
    atomic_store_explicit(&r.done, 0, memory_order_release);
    runtime->parallel(run_member, &r, 0, 0);
    atomic_load_explicit(&r.done, memory_order_acquire);
}

/* ---- calls ---- */

static void run_alone(const work *w)
{
    job alone;
    job_init(&alone, w, 1);
    run_share(&alone, 0);
}

static void run_work(int threads, const work *w)
{
    const openmp *runtime = threads > 1 && !inside ? team_for(threads) : NULL;
    if (threads == 1 || inside || (runtime && runtime->in_parallel())) {
        run_alone(w);
    } else if (runtime) {
        run_region(runtime, threads, w);
    } else if (take_pool(threads)) {
        run_pool(threads, w);
        atomic_flag_clear(&pool.taken);
    } else {
        run_alone(w);
    }
}

void cvyi_parallel(int threads, int64_t items, void (*fn)(void *ctx, int64_t item, int worker), void *ctx)
{
    run_work(clamp_threads(cvyi_min64(threads, items)), &(work){.item_fn = fn, .ctx = ctx, .items = items});
}

void cvyi_team(int threads, void (*fn)(void *ctx, int worker, cpu_team *team), void *ctx)
{
    run_work(clamp_threads(threads), &(work){.team_fn = fn, .ctx = ctx});
}

/* ---- inside a team ---- */

int cvyi_team_size(const cpu_team *team)
{
    return atomic_load_explicit(&team->size, memory_order_relaxed);
}

void cvyi_team_barrier(cpu_team *team)
{
    const uint32_t phase = atomic_load(&team->phase);
    const int size = cvyi_team_size(team);
    if (size == 1) return;
    if (atomic_fetch_add(&team->arrived, 1) == size - 1) {
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

void cvyi_team_begin(cpu_team *team, int worker, int64_t items)
{
    cvyi_team_barrier(team); /* no thread claims items any more */
    if (worker == 0) {
        atomic_store_explicit(&team->items, items, memory_order_relaxed);
        atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    }
    cvyi_team_barrier(team);
}

int64_t cvyi_team_claim(cpu_team *team)
{
    const int64_t item = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
    return item < atomic_load_explicit(&team->items, memory_order_relaxed) ? item : -1;
}
