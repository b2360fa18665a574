/* run.c - runs a kernel: blocks one after the other, the threads of a block as fibers of one system thread.
 *
 * A thread goes on until it has to wait; then the next one that can. Barriers, meetings of a warp and groups of
 * copies are those of emulate.h. When nobody can go on, the threads have parted ways before a barrier or a shuffle:
 * the launch fails and says who waits where. Shared memory is filled with NaNs before each block.
 *
 * CVY_EMULATE_ORDER: the order in which blocks, and threads where they could all go on, take their turns: forward
 * (default), reversed, or a number, the seed of a shuffle. Results that depend on it are a race. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fiber.h"
#include "run.h"

typedef enum waiting { READY, AT_BARRIER, AT_MEETING, RETURNED } waiting;

typedef struct copy {
    void *dst;
    const void *src;
    unsigned bytes, given;
    int group;
} copy;

typedef struct thread {
    fiber fiber;
    waiting waits;
    int barrier;   /* AT_BARRIER: which */
    unsigned mask; /* AT_MEETING: who is to come */
    emulated_place place;
    copy *copies;                          /* under way, in order */
    int n_copies, cap_copies, group;       /* group: the one that is not committed yet */
    emulated_deposit view[EMULATED_LANES]; /* what the lanes of its last meeting brought */
} thread;

static thread threads[EMULATED_THREADS];
static emulated_deposit deposits[EMULATED_THREADS];
static struct {
    int arrived, expected; /* expected 0: the whole block */
} barriers[EMULATED_BARRIERS];
static int n_threads, live, current;
static fiber scheduler;
static emulated *now;
static emulated_kernel *running;
static void **kernel_arguments;
static char message[512];
static volatile bool failed;
static _Alignas(256) char dynamic_shared[EMULATED_SHARED + EMULATED_FENCE];

const char *device_error(void)
{
    return message;
}

/* ---- what a thread calls ---- */

static void give_way(void)
{
    fiber_switch(&threads[current].fiber, &scheduler);
}

__attribute__((format(printf, 1, 2))) static void fail_launch(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    if (!failed) vsnprintf(message, sizeof message, format, list);
    va_end(list);
    failed = true;
}

static void fail_thread(const char *words)
{
    const thread *t = &threads[current];
    fail_launch("thread %u of block %u,%u,%u: %s", t->place.x, now->block.x, now->block.y, now->block.z, words);
    for (;;) give_way();
}

static void release_barrier(int id)
{
    const int expected = barriers[id].expected;

    if (barriers[id].arrived < (expected ? expected : n_threads)) return;
    barriers[id].arrived = 0;
    for (int i = 0; i < n_threads; i++)
        if (threads[i].waits == AT_BARRIER && threads[i].barrier == id) threads[i].waits = READY;
}

static void at_barrier(int id, int expected)
{
    thread *t = &threads[current];

    if (id < 0 || id >= EMULATED_BARRIERS || expected < 0 || expected % EMULATED_LANES)
        fail_thread("there is no such barrier");
    if (barriers[id].arrived && barriers[id].expected != expected) fail_thread("others expect other numbers here");
    t->waits = AT_BARRIER;
    t->barrier = id;
    barriers[id].expected = expected;
    barriers[id].arrived++;
    release_barrier(id);
    while (t->waits != READY) give_way();
}

static const emulated_deposit *at_meeting(unsigned mask, const void *mine, size_t bytes)
{
    const int first = current / EMULATED_LANES * EMULATED_LANES, self = current;
    thread *t = &threads[self];

    if (!(mask >> (self - first) & 1)) fail_thread("it is not in the mask of its own shuffle");
    memcpy(deposits[self], mine, bytes);
    t->waits = AT_MEETING;
    t->mask = mask;
    for (int lane = 0; lane < EMULATED_LANES; lane++) {
        const thread *other = &threads[first + lane];
        if (mask >> lane & 1 && (other->waits != AT_MEETING || other->mask != mask)) goto wait;
    }
    for (int lane = 0; lane < EMULATED_LANES; lane++)
        if (mask >> lane & 1) {
            memcpy(threads[first + lane].view, deposits + first, sizeof t->view);
            threads[first + lane].waits = READY;
        }
wait:
    while (t->waits != READY) give_way();
    return (const emulated_deposit *)t->view;
}

static void begin_copy(void *dst, const void *src, unsigned bytes, unsigned given)
{
    thread *t = &threads[current];

    if (((uintptr_t)dst | (given ? (uintptr_t)src : 0)) % bytes) fail_thread("a copy that is not aligned");
    if (t->n_copies == t->cap_copies) {
        t->cap_copies = t->cap_copies ? 2 * t->cap_copies : 64;
        t->copies = realloc(t->copies, (size_t)t->cap_copies * sizeof *t->copies);
        if (!t->copies) fail_thread("no memory");
    }
    t->copies[t->n_copies++] = (copy){dst, src, bytes, given, t->group};
}

static void commit_copies(void)
{
    threads[current].group++;
}

static void wait_copies(int pending)
{
    thread *t = &threads[current];
    int kept = 0;

    for (int i = 0; i < t->n_copies; i++) {
        const copy *c = &t->copies[i];
        if (c->group >= t->group - pending) {
            t->copies[kept++] = *c;
            continue;
        }
        memcpy(c->dst, c->src, c->given);
        memset((char *)c->dst + c->given, 0, c->bytes - c->given);
    }
    t->n_copies = kept;
}

/* ---- one block ---- */

static void thread_body(void)
{
    running->call(kernel_arguments);
    threads[current].waits = RETURNED;
    live--;
    for (;;) give_way();
}

static void say_who_waits(void)
{
    int at[RETURNED + 1] = {0};
    const thread *some = NULL;

    for (int i = 0; i < n_threads; i++) {
        at[threads[i].waits]++;
        if (threads[i].waits != RETURNED && !some) some = &threads[i];
    }
    fail_launch(
        "block %u,%u,%u stands still: %d threads wait at a barrier, %d for other lanes of their warp, %d have "
        "returned; thread %u waits %s",
        now->block.x, now->block.y, now->block.z, at[AT_BARRIER], at[AT_MEETING], at[RETURNED], some->place.x,
        some->waits == AT_BARRIER ? "at a barrier" : "for other lanes");
}

static void start_block(emulated_place block, unsigned shared_bytes)
{
    now->block = block;
    memset(running->shared_begin, 0xff, (size_t)(running->shared_end - running->shared_begin));
    memset(dynamic_shared, 0xff, shared_bytes);
    memset(dynamic_shared + shared_bytes, EMULATED_GUARD, EMULATED_FENCE);
    memset(barriers, 0, sizeof barriers);
    live = n_threads;
    for (int i = n_threads; i % EMULATED_LANES; i++) threads[i].waits = RETURNED; /* lanes that are not there */
    for (int i = 0; i < n_threads; i++) {
        thread *t = &threads[i];
        t->fiber = fiber_make(i, thread_body);
        t->waits = READY;
        t->n_copies = t->group = 0;
    }
}

static void run_block(const int *order)
{
    while (live && !failed) {
        bool any = false;
        for (int i = 0; i < n_threads && !failed; i++) {
            if (threads[order[i]].waits != READY) continue;
            any = true;
            current = order[i];
            now->thread = threads[current].place;
            fiber_switch(&scheduler, &threads[current].fiber);
        }
        if (!any) say_who_waits();
    }
}

/* ---- order ---- */

static void make_order(int *order, int n)
{
    const char *word = getenv("CVY_EMULATE_ORDER");
    uint64_t seed = word ? strtoull(word, NULL, 10) : 0;

    for (int i = 0; i < n; i++) order[i] = word && strcmp(word, "reversed") == 0 ? n - 1 - i : i;
    for (int i = n - 1; seed && i > 0; i--) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const int j = (int)((seed >> 33) % (uint64_t)(i + 1)), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
}

/* ---- faults: a thread that touches what is not there ends the launch, not the program ---- */

static sigjmp_buf way_out;
static const int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE};
enum { N_FAULTS = sizeof fault_signals / sizeof *fault_signals };

static void on_fault(int number, siginfo_t *info, void *context)
{
    char where[128];

    (void)context;
    memory_describe(info->si_addr, where, sizeof where);
    if (number == SIGFPE)
        fail_launch("thread %u of block %u,%u,%u divides by zero", now->thread.x, now->block.x, now->block.y,
                    now->block.z);
    else
        fail_launch("thread %u of block %u,%u,%u touches %s", now->thread.x, now->block.x, now->block.y,
                    now->block.z, where);
    siglongjmp(way_out, 1);
}

/* What the process does with them at other times, sanitizers included. */
typedef struct fault_state {
    struct sigaction actions[N_FAULTS];
    stack_t stack;
} fault_state;

static void catch_faults(fault_state *before)
{
    static char stack[64 << 10];
    const stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
    const struct sigaction catch = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    sigaltstack(&alternative, &before->stack);
    for (int i = 0; i < N_FAULTS; i++) sigaction(fault_signals[i], &catch, &before->actions[i]);
}

static void drop_faults(const fault_state *before)
{
    for (int i = 0; i < N_FAULTS; i++) sigaction(fault_signals[i], &before->actions[i], NULL);
    sigaltstack(&before->stack, NULL);
}

/* ---- a launch ---- */

static bool ready_threads(const emulated_place size)
{
    n_threads = (int)(size.x * size.y * size.z);
    if (n_threads > EMULATED_THREADS || !fiber_stacks(EMULATED_THREADS)) return false;
    for (int i = 0; i < n_threads; i++) {
        const unsigned n = (unsigned)i;
        threads[i].place = (emulated_place){n % size.x, n / size.x % size.y, n / size.x / size.y};
    }
    return true;
}

static void run_grid(unsigned shared_bytes, const int *blocks, const int *order)
{
    const emulated_place g = now->grid;
    const int total = (int)(g.x * g.y * g.z);

    for (int i = 0; i < total && !failed; i++) {
        const unsigned b = (unsigned)blocks[i];
        start_block((emulated_place){b % g.x, b / g.x % g.y, b / g.x / g.y}, shared_bytes);
        run_block(order);
        if (memory_changed(dynamic_shared + shared_bytes, EMULATED_FENCE))
            fail_launch("block %u,%u,%u writes behind its %u bytes of shared memory", now->block.x, now->block.y,
                        now->block.z, shared_bytes);
    }
}

static bool launch(emulated_kernel *kernel, const CUlaunchConfig *c, void **arguments)
{
    const size_t total = (size_t)c->grid[0] * c->grid[1] * c->grid[2];
    int *blocks = malloc(total * sizeof *blocks);
    int order[EMULATED_THREADS];
    fault_state before;

    running = kernel;
    kernel_arguments = arguments;
    now = running->now;
    failed = false;
    *now = (emulated){.grid = {c->grid[0], c->grid[1], c->grid[2]},
                      .threads = {c->block[0], c->block[1], c->block[2]},
                      .shared = dynamic_shared,
                      .barrier = at_barrier,
                      .meet = at_meeting,
                      .copy = begin_copy,
                      .commit = commit_copies,
                      .wait = wait_copies,
                      .fail = fail_thread};
    if (!blocks || !ready_threads(now->threads) || c->shared_bytes > EMULATED_SHARED) {
        fail_launch("blocks of %d threads with %u bytes of shared memory do not fit", n_threads, c->shared_bytes);
    } else {
        make_order(blocks, (int)total);
        make_order(order, n_threads);
        catch_faults(&before);
        if (!sigsetjmp(way_out, 1)) run_grid(c->shared_bytes, blocks, order);
        drop_faults(&before);
        if (!failed) failed = !memory_whole(message, sizeof message);
    }
    free(blocks);
    return !failed;
}

CUresult device_launch(void *kernel, const CUlaunchConfig *config, void **arguments)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    bool good;

    pthread_mutex_lock(&one_at_a_time);
    good = launch(kernel, config, arguments);
    pthread_mutex_unlock(&one_at_a_time);
    return good ? 0 : DEVICE_FAULT;
}
