/* run.c - runs a kernel: its threads are fibers of one system thread. Blocks run one after the other; those of a
 * cluster, and all of a launch whose blocks wait for each other, at once.
 *
 * A thread goes on until it has to wait (calls.c); then the next one that can. When nobody can go on, the threads
 * have parted ways before a barrier or a shuffle: the launch fails and says who waits where. Shared memory is
 * filled with NaNs before each block.
 *
 * CVY_EMULATE_ORDER: the order in which blocks, and threads where they could all go on, take their turns: forward
 * (default), reversed, or a number, the seed of a shuffle. Results that depend on it are a race. Bulk copies come
 * at once in the first, when nobody can go on without them in the second, and at any time in the third. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "threads.h"

static const char *const waiting_words[] = {"for nothing", "at a barrier", "for other lanes of its warp",
                                            "for a phase of an mbarrier", "for its cluster"};

emulated_machine machine;
static void **kernel_arguments;
static _Alignas(1024) char dynamic_shared[EMULATED_RESIDENT][EMULATED_SHARED + EMULATED_FENCE];
_Static_assert(sizeof *dynamic_shared % 1024 == 0, "every block's is aligned");

const char *device_error(void)
{
    return machine.message;
}

/* ---- blocks ---- */

static void thread_body(void)
{
    machine.running->call(kernel_arguments);
    calls_return();
}

static void say_who_waits(void)
{
    int at[RETURNED + 1] = {0};
    const thread *some = NULL;

    for (int i = 0; i < machine.n_blocks * machine.stride; i++) {
        at[machine.threads[i].waits]++;
        if (machine.threads[i].waits != RETURNED && !some) some = &machine.threads[i];
    }
    at[RETURNED] -= machine.n_blocks * (machine.stride - machine.n_threads);
    calls_fail("block %u,%u,%u is stuck: %d threads wait at a barrier, %d for other lanes of their warp, %d for "
               "an mbarrier, %d for their cluster, %d have returned; thread %u waits %s",
               some->block->place.x, some->block->place.y, some->block->place.z, at[AT_BARRIER], at[AT_MEETING],
               at[AT_PHASE], at[AT_CLUSTER], at[RETURNED], some->place.x, waiting_words[some->waits]);
}

static void start_block(block *b, emulated_place place, unsigned rank)
{
    const int number = (int)(b - machine.blocks);

    *b = (block){.place = place, .rank = rank, .first = number * machine.stride, .shared = dynamic_shared[number]};
    memset(machine.running->shared_begin, 0xff,
           (size_t)(machine.running->shared_end - machine.running->shared_begin));
    memset(b->shared, 0xff, machine.shared_bytes);
    memset(b->shared + machine.shared_bytes, EMULATED_GUARD, EMULATED_FENCE);
    for (int i = 0; i < machine.stride; i++) {
        thread *t = &machine.threads[b->first + i];
        const unsigned n = (unsigned)i;
        t->place = (emulated_place){n % machine.now->threads.x, n / machine.now->threads.x % machine.now->threads.y,
                                    n / machine.now->threads.x / machine.now->threads.y};
        t->block = b;
        t->fiber = fiber_make(b->first + i, thread_body);
        t->waits = i < machine.n_threads ? READY : RETURNED; /* lanes that are not there */
        t->n_copies = t->group = t->n_products = t->batch = 0;
    }
}

static bool can_go_on(const thread *t)
{
    return t->waits == READY || (t->waits == AT_PHASE && t->phase_of->phase != t->parity);
}

static void go_on(int who)
{
    const block *b = machine.threads[who].block;

    machine.current = who;
    machine.now->thread = machine.threads[who].place;
    machine.now->block = b->place;
    machine.now->rank = b->rank;
    machine.now->shared = b->shared;
    fiber_switch(&machine.scheduler, &machine.threads[who].fiber);
}

/* Copies that are due, or where nobody goes on the next one; false: there is none. */
static bool deliver(bool idle)
{
    emulated_mbarrier *b;
    unsigned bytes;
    bool any = false;

    while (!machine.failed && (b = transfer_deliver(machine.turn, idle && !any, &bytes))) {
        const char *wrong = calls_count_down(b, 0, (int)bytes);
        if (wrong) calls_fail("a copy completes on %s", wrong);
        any = true;
    }
    return any;
}

/* Those that only look again and again do not keep late copies waiting forever. */
static void run_blocks(const int *order)
{
    machine.live = machine.n_blocks * machine.n_threads;
    machine.naps = 0;
    for (machine.turn = 0; machine.live && !machine.failed; machine.turn++) {
        bool any = false;
        for (int i = 0; i < machine.n_blocks * machine.stride && !machine.failed; i++) {
            if (!can_go_on(&machine.threads[order[i]])) continue;
            any = true;
            go_on(order[i]);
        }
        if (!machine.failed && machine.live && !deliver(!any || machine.naps > 100) && !any) say_who_waits();
    }
    if (transfer_drop()) calls_fail("a copy is under way when its block ends");
    for (int i = 0; i < machine.n_blocks; i++)
        if (memory_changed(machine.blocks[i].shared + machine.shared_bytes, EMULATED_FENCE))
            calls_fail("block %u,%u,%u writes past its %u bytes of shared memory", machine.blocks[i].place.x,
                       machine.blocks[i].place.y, machine.blocks[i].place.z, machine.shared_bytes);
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
        calls_fail("thread %u of block %u,%u,%u divides by zero", machine.now->thread.x, machine.now->block.x,
                   machine.now->block.y, machine.now->block.z);
    else
        calls_fail("thread %u of block %u,%u,%u touches %s", machine.now->thread.x, machine.now->block.x,
                   machine.now->block.y, machine.now->block.z, where);
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

/* Clusters one after the other; `all`: every block at once, each a cluster of its own. */
static void run_grid(const int *clusters, const int *order, bool all)
{
    const emulated_place g = machine.now->grid;
    const unsigned cx = (unsigned)machine.running->cluster[0], cy = (unsigned)machine.running->cluster[1];
    const int total = (int)(g.x * g.y * g.z / (cx * cy));

    machine.n_blocks = 0;
    for (int i = 0; i < total && !machine.failed; i++) {
        const unsigned c = (unsigned)clusters[i], x = c % (g.x / cx) * cx, y = c / (g.x / cx) % (g.y / cy) * cy,
                       z = c / (g.x / cx) / (g.y / cy);
        for (unsigned r = 0; r < cx * cy; r++, machine.n_blocks++)
            start_block(&machine.blocks[machine.n_blocks], (emulated_place){x + r % cx, y + r / cx, z}, r);
        if (all && i + 1 < total) continue;
        run_blocks(order);
        machine.n_blocks = 0;
    }
}

static void run_caught(const int *clusters, const int *order, bool all)
{
    fault_state before;

    catch_faults(&before);
    if (!sigsetjmp(way_out, 1)) run_grid(clusters, order, all);
    drop_faults(&before);
}

static bool is_cooperative(const CUlaunchConfig *c)
{
    bool is = false;
    for (unsigned i = 0; i < c->n_attrs; i++) is |= c->attrs[i].id == CU_LAUNCH_COOPERATIVE;
    return is;
}

/* Why it cannot be; NULL: it can. */
static const char *refusal(const CUlaunchConfig *c)
{
    const int *cluster = machine.running->cluster;
    const size_t total = (size_t)c->grid[0] * c->grid[1] * c->grid[2];

    if (machine.n_threads > EMULATED_THREADS || c->shared_bytes > (unsigned)device_describe().shared_bytes)
        return "blocks that large do not fit";
    if (c->grid[0] % (unsigned)cluster[0] || c->grid[1] % (unsigned)cluster[1])
        return "the grid is not of whole clusters";
    if (cluster[0] * cluster[1] > EMULATED_RESIDENT || (is_cooperative(c) && total > EMULATED_RESIDENT))
        return "more blocks at once than there are multiprocessors";
    if ((is_cooperative(c) || cluster[0] * cluster[1] > 1) &&
        machine.running->shared_end > machine.running->shared_begin)
        return "static shared memory is there once: it cannot be that of several blocks at once";
    return fiber_stacks(MOST_THREADS) ? NULL : "no memory for stacks";
}

static bool launch(emulated_kernel *kernel, const CUlaunchConfig *c, void **arguments)
{
    const size_t total = (size_t)c->grid[0] * c->grid[1] * c->grid[2];
    int *clusters = malloc(total * sizeof *clusters);
    static int order[MOST_THREADS];
    const char *word = getenv("CVY_EMULATE_ORDER"), *refused;

    machine.running = kernel;
    kernel_arguments = arguments;
    machine.now = machine.running->now;
    machine.failed = false;
    *machine.now = (emulated){.grid = {c->grid[0], c->grid[1], c->grid[2]},
                              .threads = {c->block[0], c->block[1], c->block[2]}};
    calls_offer(machine.now);
    machine.n_threads = (int)(c->block[0] * c->block[1] * c->block[2]);
    machine.stride = (machine.n_threads + EMULATED_LANES - 1) / EMULATED_LANES * EMULATED_LANES;
    machine.shared_bytes = c->shared_bytes;
    machine.random = word ? strtoull(word, NULL, 10) : 0;
    machine.lateness = word && strcmp(word, "reversed") == 0 ? AS_LATE_AS_CAN_BE
                       : machine.random                      ? AT_RANDOM
                                                             : ON_TIME;
    refused = clusters ? refusal(c) : "no memory";
    if (refused) {
        calls_fail("%d threads with %u bytes of shared memory: %s", machine.n_threads, c->shared_bytes, refused);
    } else {
        const int each = machine.running->cluster[0] * machine.running->cluster[1];
        make_order(clusters, (int)total / each);
        make_order(order, machine.stride * (is_cooperative(c) ? (int)total : each));
        run_caught(clusters, order, is_cooperative(c));
        transfer_drop();
        if (!machine.failed) machine.failed = !memory_whole(machine.message, sizeof machine.message);
    }
    free(clusters);
    return !machine.failed;
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
