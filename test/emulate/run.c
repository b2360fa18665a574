/* run.c - runs a kernel: its threads are fibers of one system thread. Blocks run one after the other; those of a
 * cluster, and all of a launch whose blocks wait for each other, at once.
 *
 * A thread goes on until it has to wait; then the next one that can. Barriers, meetings of a warp, copies and
 * products are those of emulate.h. When nobody can go on, the threads have parted ways before a barrier or a
 * shuffle: the launch fails and says who waits where. Shared memory is filled with NaNs before each block.
 *
 * CVY_EMULATE_ORDER: the order in which blocks, and threads where they could all go on, take their turns: forward
 * (default), reversed, or a number, the seed of a shuffle. Results that depend on it are a race. Bulk copies come
 * at once in the first, when nobody can go on without them in the second, and at any time in the third. */
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

enum { MOST_THREADS = EMULATED_RESIDENT * EMULATED_THREADS, MOST_NAPS = 1000000 };

typedef enum waiting { READY, AT_BARRIER, AT_MEETING, AT_PHASE, AT_CLUSTER, RETURNED } waiting;
static const char *const waiting_words[] = {"for nothing", "at a barrier", "for other lanes of its warp",
                                            "for a phase of an mbarrier", "for its cluster"};

typedef struct copy {
    void *dst;
    const void *src;
    unsigned bytes, given;
    int group;
} copy;

typedef struct product {
    emulated_product p;
    int batch;
} product;

typedef struct block {
    emulated_place place;
    unsigned rank;
    int first; /* thread */
    char *shared;
    struct {
        int arrived, expected; /* expected 0: the whole block */
    } barriers[EMULATED_BARRIERS];
} block;

typedef struct thread {
    fiber fiber;
    waiting waits;
    block *block;
    int barrier;                       /* AT_BARRIER: which */
    unsigned mask;                     /* AT_MEETING: who is to come */
    const emulated_mbarrier *phase_of; /* AT_PHASE: which, and the parity that must be over */
    unsigned parity;
    emulated_place place;
    copy *copies;                    /* under way, in order */
    int n_copies, cap_copies, group; /* group: the one that is not committed yet */
    product *products;               /* the same */
    int n_products, cap_products, batch;
    emulated_deposit view[EMULATED_LANES]; /* what the lanes of its last meeting brought */
} thread;

static thread threads[MOST_THREADS];
static emulated_deposit deposits[MOST_THREADS];
static block blocks[EMULATED_RESIDENT];
static int n_blocks, n_threads, stride; /* threads of a block; rounded up to whole warps */
static int live, current, naps;         /* naps: since something last happened */
static long long turn;
static uint64_t lateness; /* of bulk copies: 0 none, 1 as late as can be, else the state of random numbers */
static fiber scheduler;
static emulated *now;
static emulated_kernel *running;
static void **kernel_arguments;
static unsigned shared_bytes;
static char message[512];
static volatile bool failed;
static _Alignas(1024) char dynamic_shared[EMULATED_RESIDENT][EMULATED_SHARED + EMULATED_FENCE];
_Static_assert(sizeof *dynamic_shared % 1024 == 0, "every block's is aligned");

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

/* Room for one more. */
static void *grown(void *list, int n, int *cap, size_t each)
{
    if (n < *cap) return list;
    *cap = *cap ? 2 * *cap : 64;
    list = realloc(list, (size_t)*cap * each);
    if (!list) abort();
    return list;
}

static void release_barrier(const block *of, int id)
{
    for (int i = of->first; i < of->first + n_threads; i++)
        if (threads[i].waits == AT_BARRIER && threads[i].barrier == id) threads[i].waits = READY;
}

static void at_barrier(int id, int expected)
{
    thread *t = &threads[current];
    block *b = t->block;

    if (id < 0 || id >= EMULATED_BARRIERS || expected < 0 || expected % EMULATED_LANES)
        fail_thread("there is no such barrier");
    if (b->barriers[id].arrived && b->barriers[id].expected != expected)
        fail_thread("others expect other numbers here");
    t->waits = AT_BARRIER;
    t->barrier = id;
    b->barriers[id].expected = expected;
    if (++b->barriers[id].arrived == (expected ? expected : n_threads)) {
        b->barriers[id].arrived = 0;
        release_barrier(b, id);
    }
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

    if (((uintptr_t)dst | (given ? (uintptr_t)src : 0)) % (bytes < 16 ? bytes : 16))
        fail_thread("a copy that is not aligned");
    t->copies = grown(t->copies, t->n_copies, &t->cap_copies, sizeof *t->copies);
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

/* ---- what a thread of Hopper calls ---- */

/* Some arrive, some bytes do; the phase may be over with that. */
static const char *count_down(emulated_mbarrier *b, unsigned arrivals, int bytes)
{
    if ((uintptr_t)b % 8 || b->made != EMULATED_MADE) return "an mbarrier that nobody made";
    if (arrivals > b->pending) return "more arrivals at an mbarrier than it expects";
    b->pending = (unsigned short)(b->pending - arrivals);
    b->bytes -= bytes;
    if (!b->pending && !b->bytes) {
        b->pending = b->expected;
        b->phase ^= 1;
        naps = 0;
    }
    return NULL;
}

static void arrive(emulated_mbarrier *b, unsigned count, unsigned bytes)
{
    const char *wrong = count_down(b, 0, 0);

    if (!wrong) b->bytes += (int)bytes;
    if (!wrong) wrong = count_down(b, count, 0);
    if (wrong) fail_thread(wrong);
}

static void wait_phase(const emulated_mbarrier *b, unsigned parity)
{
    thread *t = &threads[current];

    if ((uintptr_t)b % 8 || b->made != EMULATED_MADE) fail_thread("it waits for an mbarrier that nobody made");
    t->waits = AT_PHASE;
    t->phase_of = b;
    t->parity = parity;
    while (b->phase == parity) give_way();
    t->waits = READY;
}

static void *in_peer(void *p, unsigned rank)
{
    const block *mine = threads[current].block, *first = mine - mine->rank;

    if (rank >= (unsigned)(running->cluster[0] * running->cluster[1])) fail_thread("its cluster has no such block");
    return first[rank].shared + ((char *)p - mine->shared);
}

static long long due_turn(void)
{
    if (lateness < 2) return lateness ? INT64_MAX : turn;
    lateness = lateness * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return turn + (long long)(lateness >> 33) % 64;
}

static void begin_transfer(transfer *t, void *dst, emulated_mbarrier *b, unsigned to)
{
    for (unsigned rank = 0; rank < EMULATED_RESIDENT; rank++) {
        const char *wrong;
        if (!(to >> rank & 1)) continue;
        t->dst = in_peer(dst, rank);
        t->barrier = in_peer(b, rank);
        t->due = due_turn();
        wrong = transfer_check(t);
        if (wrong) fail_thread(wrong);
        transfer_add(t);
    }
}

static void load(void *dst, const void *src, unsigned bytes, emulated_mbarrier *b, unsigned to)
{
    transfer t = {.src = src, .bytes = bytes};
    begin_transfer(&t, dst, b, to);
}

static void load_box(void *dst, const emulated_map *map, const int at[4], emulated_mbarrier *b, unsigned to)
{
    transfer t = {.map = *map};
    memcpy(t.at, at, sizeof t.at);
    begin_transfer(&t, dst, b, to);
}

static void multiply(const emulated_product *p)
{
    thread *t = &threads[current];

    t->products = grown(t->products, t->n_products, &t->cap_products, sizeof *t->products);
    t->products[t->n_products++] = (product){*p, t->batch};
}

static void commit_products(void)
{
    threads[current].batch++;
}

/* The warp's products up to a batch. All lanes have the same ones. */
static const char *run_products(int first, int batch)
{
    const thread *t = &threads[first];
    const char *wrong = NULL;
    int done = 0;

    for (; done < t->n_products && t->products[done].batch < batch && !wrong; done++) {
        const emulated_product *lanes[EMULATED_LANES];
        for (int i = 0; i < EMULATED_LANES; i++) lanes[i] = &threads[first + i].products[done].p;
        wrong = product_run(lanes, t->block->shared, shared_bytes, (int)(t->place.x / EMULATED_LANES % 4));
    }
    for (int i = first; i < first + EMULATED_LANES; i++) {
        threads[i].n_products -= done;
        memmove(threads[i].products, threads[i].products + done,
                (size_t)threads[i].n_products * sizeof *t->products);
    }
    return wrong;
}

/* The warp waits together; the first lane that goes on multiplies for all. */
static void wait_products(int pending)
{
    const int self = current, first = self / EMULATED_LANES * EMULATED_LANES;
    const char *wrong;

    at_meeting(0xffffffffu, "", 0);
    wrong = run_products(first, threads[self].batch - pending);
    if (wrong) fail_thread(wrong);
}

static void wait_cluster(void)
{
    int others = 0;

    threads[current].waits = AT_CLUSTER;
    for (int b = 0; b < n_blocks; b++)
        for (int i = 0; i < n_threads; i++) others += threads[blocks[b].first + i].waits != AT_CLUSTER;
    for (int b = 0; b < n_blocks && !others; b++)
        for (int i = 0; i < n_threads; i++) threads[blocks[b].first + i].waits = READY;
    while (threads[current].waits != READY) give_way();
}

static void nap(void)
{
    if (++naps > MOST_NAPS) fail_thread("it looks again and again, and nothing happens");
    give_way();
}

/* ---- blocks ---- */

static void thread_body(void)
{
    running->call(kernel_arguments);
    threads[current].waits = RETURNED;
    live--;
    naps = 0;
    for (;;) give_way();
}

static void say_who_waits(void)
{
    int at[RETURNED + 1] = {0};
    const thread *some = NULL;

    for (int i = 0; i < n_blocks * stride; i++) {
        at[threads[i].waits]++;
        if (threads[i].waits != RETURNED && !some) some = &threads[i];
    }
    at[RETURNED] -= n_blocks * (stride - n_threads);
    fail_launch(
        "block %u,%u,%u stands still: %d threads wait at a barrier, %d for other lanes of their warp, %d for "
        "an mbarrier, %d for their cluster, %d have returned; thread %u waits %s",
        some->block->place.x, some->block->place.y, some->block->place.z, at[AT_BARRIER], at[AT_MEETING],
        at[AT_PHASE], at[AT_CLUSTER], at[RETURNED], some->place.x, waiting_words[some->waits]);
}

static void start_block(block *b, emulated_place place, unsigned rank)
{
    const int number = (int)(b - blocks);

    *b = (block){.place = place, .rank = rank, .first = number * stride, .shared = dynamic_shared[number]};
    memset(running->shared_begin, 0xff, (size_t)(running->shared_end - running->shared_begin));
    memset(b->shared, 0xff, shared_bytes);
    memset(b->shared + shared_bytes, EMULATED_GUARD, EMULATED_FENCE);
    for (int i = 0; i < stride; i++) {
        thread *t = &threads[b->first + i];
        const unsigned n = (unsigned)i;
        t->place = (emulated_place){n % now->threads.x, n / now->threads.x % now->threads.y,
                                    n / now->threads.x / now->threads.y};
        t->block = b;
        t->fiber = fiber_make(b->first + i, thread_body);
        t->waits = i < n_threads ? READY : RETURNED; /* lanes that are not there */
        t->n_copies = t->group = t->n_products = t->batch = 0;
    }
}

static bool can_go_on(const thread *t)
{
    return t->waits == READY || (t->waits == AT_PHASE && t->phase_of->phase != t->parity);
}

static void go_on(int who)
{
    const block *b = threads[who].block;

    current = who;
    now->thread = threads[who].place;
    now->block = b->place;
    now->rank = b->rank;
    now->shared = b->shared;
    fiber_switch(&scheduler, &threads[who].fiber);
}

/* Copies that are due, or where nobody goes on the next one; false: there is none. */
static bool deliver(bool idle)
{
    emulated_mbarrier *b;
    unsigned bytes;
    bool any = false;

    while (!failed && (b = transfer_deliver(turn, idle && !any, &bytes))) {
        const char *wrong = count_down(b, 0, (int)bytes);
        if (wrong) fail_launch("a copy completes on %s", wrong);
        any = true;
    }
    return any;
}

/* Those that only look again and again do not keep late copies waiting for ever. */
static void run_blocks(const int *order)
{
    live = n_blocks * n_threads;
    naps = 0;
    for (turn = 0; live && !failed; turn++) {
        bool any = false;
        for (int i = 0; i < n_blocks * stride && !failed; i++) {
            if (!can_go_on(&threads[order[i]])) continue;
            any = true;
            go_on(order[i]);
        }
        if (!failed && live && !deliver(!any || naps > 100) && !any) say_who_waits();
    }
    if (transfer_drop()) fail_launch("a copy is under way when its block ends");
    for (int i = 0; i < n_blocks; i++)
        if (memory_changed(blocks[i].shared + shared_bytes, EMULATED_FENCE))
            fail_launch("block %u,%u,%u writes behind its %u bytes of shared memory", blocks[i].place.x,
                        blocks[i].place.y, blocks[i].place.z, shared_bytes);
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

/* Clusters one after the other; `all`: every block at once, each a cluster of its own. */
static void run_grid(const int *clusters, const int *order, bool all)
{
    const emulated_place g = now->grid;
    const unsigned cx = (unsigned)running->cluster[0], cy = (unsigned)running->cluster[1];
    const int total = (int)(g.x * g.y * g.z / (cx * cy));

    n_blocks = 0;
    for (int i = 0; i < total && !failed; i++) {
        const unsigned c = (unsigned)clusters[i], x = c % (g.x / cx) * cx, y = c / (g.x / cx) % (g.y / cy) * cy,
                       z = c / (g.x / cx) / (g.y / cy);
        for (unsigned r = 0; r < cx * cy; r++, n_blocks++)
            start_block(&blocks[n_blocks], (emulated_place){x + r % cx, y + r / cx, z}, r);
        if (all && i + 1 < total) continue;
        run_blocks(order);
        n_blocks = 0;
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
    const int *cluster = running->cluster;
    const size_t total = (size_t)c->grid[0] * c->grid[1] * c->grid[2];

    if (n_threads > EMULATED_THREADS || c->shared_bytes > (unsigned)device_describe().shared_bytes)
        return "blocks that large do not fit";
    if (c->grid[0] % (unsigned)cluster[0] || c->grid[1] % (unsigned)cluster[1])
        return "the grid is not of whole clusters";
    if (cluster[0] * cluster[1] > EMULATED_RESIDENT || (is_cooperative(c) && total > EMULATED_RESIDENT))
        return "more blocks at once than there are multiprocessors";
    if ((is_cooperative(c) || cluster[0] * cluster[1] > 1) && running->shared_end > running->shared_begin)
        return "static shared memory is there once: it cannot be that of several blocks at once";
    return fiber_stacks(MOST_THREADS) ? NULL : "no memory for stacks";
}

static bool launch(emulated_kernel *kernel, const CUlaunchConfig *c, void **arguments)
{
    const size_t total = (size_t)c->grid[0] * c->grid[1] * c->grid[2];
    int *clusters = malloc(total * sizeof *clusters);
    static int order[MOST_THREADS];
    const char *word = getenv("CVY_EMULATE_ORDER"), *refused;

    running = kernel;
    kernel_arguments = arguments;
    now = running->now;
    failed = false;
    *now = (emulated){.grid = {c->grid[0], c->grid[1], c->grid[2]},
                      .threads = {c->block[0], c->block[1], c->block[2]},
                      .barrier = at_barrier,
                      .meet = at_meeting,
                      .copy = begin_copy,
                      .commit = commit_copies,
                      .wait = wait_copies,
                      .arrive = arrive,
                      .wait_phase = wait_phase,
                      .load = load,
                      .load_box = load_box,
                      .multiply = multiply,
                      .commit_products = commit_products,
                      .wait_products = wait_products,
                      .peer = in_peer,
                      .wait_cluster = wait_cluster,
                      .nap = nap,
                      .fail = fail_thread};
    n_threads = (int)(c->block[0] * c->block[1] * c->block[2]);
    stride = (n_threads + EMULATED_LANES - 1) / EMULATED_LANES * EMULATED_LANES;
    shared_bytes = c->shared_bytes;
    lateness = !word ? 0 : strcmp(word, "reversed") == 0 ? 1 : strtoull(word, NULL, 10);
    refused = clusters ? refusal(c) : "no memory";
    if (refused) {
        fail_launch("%d threads with %u bytes of shared memory: %s", n_threads, c->shared_bytes, refused);
    } else {
        const int each = running->cluster[0] * running->cluster[1];
        make_order(clusters, (int)total / each);
        make_order(order, stride * (is_cooperative(c) ? (int)total : each));
        run_caught(clusters, order, is_cooperative(c));
        transfer_drop();
        if (!failed) failed = !memory_whole(message, sizeof message);
    }
    free(clusters);
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
