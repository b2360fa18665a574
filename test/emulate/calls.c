/* calls.c - what the threads of a kernel call (emulate.h): barriers, meetings of a warp, copies, mbarriers,
 * products. A thread that has to wait says for what, and gives way until run.c finds that it can go on. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "threads.h"

enum { MOST_NAPS = 1000000 };

static emulated_deposit deposits[MOST_THREADS];

/* ---- all devices ---- */

static void give_way(void)
{
    fiber_switch(&machine.threads[machine.current].fiber, &machine.scheduler);
}

void calls_fail(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    if (!machine.failed) vsnprintf(machine.message, sizeof machine.message, format, list);
    va_end(list);
    machine.failed = true;
}

static void fail_thread(const char *words)
{
    const thread *t = &machine.threads[machine.current];
    calls_fail("thread %u of block %u,%u,%u: %s", t->place.x, machine.now->block.x, machine.now->block.y,
               machine.now->block.z, words);
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
    for (int i = of->first; i < of->first + machine.n_threads; i++)
        if (machine.threads[i].waits == AT_BARRIER && machine.threads[i].barrier == id)
            machine.threads[i].waits = READY;
}

static void at_barrier(int id, int expected)
{
    thread *t = &machine.threads[machine.current];
    block *b = t->block;

    if (id < 0 || id >= EMULATED_BARRIERS || expected < 0 || expected % EMULATED_LANES)
        fail_thread("there is no such barrier");
    if (b->barriers[id].arrived && b->barriers[id].expected != expected)
        fail_thread("others expect other numbers here");
    t->waits = AT_BARRIER;
    t->barrier = id;
    b->barriers[id].expected = expected;
    if (++b->barriers[id].arrived == (expected ? expected : machine.n_threads)) {
        b->barriers[id].arrived = 0;
        release_barrier(b, id);
    }
    while (t->waits != READY) give_way();
}

static const emulated_deposit *at_meeting(unsigned mask, const void *mine, size_t bytes)
{
    const int first = machine.current / EMULATED_LANES * EMULATED_LANES, self = machine.current;
    thread *t = &machine.threads[self];

    if (!(mask >> (self - first) & 1)) fail_thread("it is not in the mask of its own shuffle");
    memcpy(deposits[self], mine, bytes);
    t->waits = AT_MEETING;
    t->mask = mask;
    for (int lane = 0; lane < EMULATED_LANES; lane++) {
        const thread *other = &machine.threads[first + lane];
        if (mask >> lane & 1 && (other->waits != AT_MEETING || other->mask != mask)) goto wait;
    }
    for (int lane = 0; lane < EMULATED_LANES; lane++)
        if (mask >> lane & 1) {
            memcpy(machine.threads[first + lane].view, deposits + first, sizeof t->view);
            machine.threads[first + lane].waits = READY;
        }
wait:
    while (t->waits != READY) give_way();
    return (const emulated_deposit *)t->view;
}

static void begin_copy(void *dst, const void *src, unsigned bytes, unsigned given)
{
    thread *t = &machine.threads[machine.current];

    if (((uintptr_t)dst | (given ? (uintptr_t)src : 0)) % (bytes < 16 ? bytes : 16))
        fail_thread("a copy that is not aligned");
    t->copies = grown(t->copies, t->n_copies, &t->cap_copies, sizeof *t->copies);
    t->copies[t->n_copies++] = (copy){dst, src, bytes, given, t->group};
}

static void commit_copies(void)
{
    machine.threads[machine.current].group++;
}

static void wait_copies(int pending)
{
    thread *t = &machine.threads[machine.current];
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

/* ---- Hopper ---- */

const char *calls_count_down(emulated_mbarrier *b, unsigned arrivals, int bytes)
{
    if ((uintptr_t)b % 8 || b->made != EMULATED_MADE) return "an mbarrier that nobody made";
    if (arrivals > b->pending) return "more arrivals at an mbarrier than it expects";
    b->pending = (unsigned short)(b->pending - arrivals);
    b->bytes -= bytes;
    if (!b->pending && !b->bytes) {
        b->pending = b->expected;
        b->phase ^= 1;
        machine.naps = 0;
    }
    return NULL;
}

static void arrive(emulated_mbarrier *b, unsigned count, unsigned bytes)
{
    const char *wrong = calls_count_down(b, 0, 0);

    if (!wrong) b->bytes += (int)bytes;
    if (!wrong) wrong = calls_count_down(b, count, 0);
    if (wrong) fail_thread(wrong);
}

static void wait_phase(const emulated_mbarrier *b, unsigned parity)
{
    thread *t = &machine.threads[machine.current];

    if ((uintptr_t)b % 8 || b->made != EMULATED_MADE) fail_thread("it waits for an mbarrier that nobody made");
    t->waits = AT_PHASE;
    t->phase_of = b;
    t->parity = parity;
    while (b->phase == parity) give_way();
    t->waits = READY;
}

static void *in_peer(void *p, unsigned rank)
{
    const block *mine = machine.threads[machine.current].block, *first = mine - mine->rank;

    if (rank >= (unsigned)(machine.running->cluster[0] * machine.running->cluster[1]))
        fail_thread("its cluster has no such block");
    return first[rank].shared + ((char *)p - mine->shared);
}

static long long due_turn(void)
{
    if (machine.lateness != AT_RANDOM) return machine.lateness == ON_TIME ? machine.turn : INT64_MAX;
    machine.random = machine.random * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return machine.turn + (long long)(machine.random >> 33) % 64;
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
    memcpy(t.at, at, 4 * sizeof *at);
    begin_transfer(&t, dst, b, to);
}

static void load_pixels(void *dst, const emulated_map *map, const int at[5], const int off[3], emulated_mbarrier *b,
                        unsigned to)
{
    transfer t = {.map = *map};
    memcpy(t.at, at, sizeof t.at);
    memcpy(t.off, off, sizeof t.off);
    begin_transfer(&t, dst, b, to);
}

static void multiply(const emulated_product *p)
{
    thread *t = &machine.threads[machine.current];

    t->products = grown(t->products, t->n_products, &t->cap_products, sizeof *t->products);
    t->products[t->n_products++] = (product){*p, t->batch};
}

static void commit_products(void)
{
    machine.threads[machine.current].batch++;
}

/* The warp's products up to a batch. All lanes have the same ones. */
static const char *run_products(int first, int batch)
{
    const thread *t = &machine.threads[first];
    const char *wrong = NULL;
    int done = 0;

    for (; done < t->n_products && t->products[done].batch < batch && !wrong; done++) {
        const emulated_product *lanes[EMULATED_LANES];
        for (int i = 0; i < EMULATED_LANES; i++) lanes[i] = &machine.threads[first + i].products[done].p;
        wrong = product_run(lanes, t->block->shared, machine.shared_bytes, (int)(t->place.x / EMULATED_LANES % 4));
    }
    for (int i = first; i < first + EMULATED_LANES; i++) {
        machine.threads[i].n_products -= done;
        memmove(machine.threads[i].products, machine.threads[i].products + done,
                (size_t)machine.threads[i].n_products * sizeof *t->products);
    }
    return wrong;
}

/* The warp waits together; the first lane that goes on multiplies for all. */
static void wait_products(int pending)
{
    const int self = machine.current, first = self / EMULATED_LANES * EMULATED_LANES;
    const char *wrong;

    at_meeting(0xffffffffu, "", 0);
    wrong = run_products(first, machine.threads[self].batch - pending);
    if (wrong) fail_thread(wrong);
}

static void wait_cluster(void)
{
    int others = 0;

    machine.threads[machine.current].waits = AT_CLUSTER;
    for (int b = 0; b < machine.n_blocks; b++)
        for (int i = 0; i < machine.n_threads; i++)
            others += machine.threads[machine.blocks[b].first + i].waits != AT_CLUSTER;
    for (int b = 0; b < machine.n_blocks && !others; b++)
        for (int i = 0; i < machine.n_threads; i++) machine.threads[machine.blocks[b].first + i].waits = READY;
    while (machine.threads[machine.current].waits != READY) give_way();
}

static void nap(void)
{
    if (++machine.naps > MOST_NAPS) fail_thread("it looks again and again, and nothing happens");
    give_way();
}

void calls_return(void)
{
    machine.threads[machine.current].waits = RETURNED;
    machine.live--;
    machine.naps = 0;
    for (;;) give_way();
}

void calls_offer(emulated *out)
{
    out->barrier = at_barrier;
    out->meet = at_meeting;
    out->copy = begin_copy;
    out->commit = commit_copies;
    out->wait = wait_copies;
    out->arrive = arrive;
    out->wait_phase = wait_phase;
    out->load = load;
    out->load_box = load_box;
    out->load_pixels = load_pixels;
    out->multiply = multiply;
    out->commit_products = commit_products;
    out->wait_products = wait_products;
    out->peer = in_peer;
    out->wait_cluster = wait_cluster;
    out->nap = nap;
    out->fail = fail_thread;
}
