/* threads.h - the threads and blocks that are resident, for calls.c (what a thread calls) and run.c (who goes on).
 */
#ifndef EMULATE_THREADS_H
#define EMULATE_THREADS_H

#include <stdint.h>
#include "fiber.h"
#include "run.h"

enum { MOST_THREADS = EMULATED_RESIDENT * EMULATED_THREADS };

typedef enum waiting { READY, AT_BARRIER, AT_MEETING, AT_PHASE, AT_CLUSTER, RETURNED } waiting;

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

typedef struct emulated_machine {
    thread threads[MOST_THREADS];
    block blocks[EMULATED_RESIDENT];
    int n_blocks, n_threads, stride; /* threads of a block; rounded up to whole warps */
    int live, current, naps;         /* threads that have not returned; the one that runs; naps without an event */
    long long turn;                  /* of all threads */
    enum { ON_TIME, AS_LATE_AS_CAN_BE, AT_RANDOM } lateness; /* of bulk copies */
    uint64_t random;                                         /* the state of their numbers */
    fiber scheduler;
    emulated *now;
    emulated_kernel *running;
    unsigned shared_bytes; /* of a block */
    volatile bool failed;
    char message[512];
} emulated_machine;

extern emulated_machine machine;

/* The first failure of a launch is the one that is told. */
__attribute__((format(printf, 1, 2))) void calls_fail(const char *format, ...);
/* Everything that threads call. */
void calls_offer(emulated *out);
/* The end of a thread; does not return. */
void calls_return(void);
/* Some arrive at an mbarrier, some bytes do; the phase may be over with that. What is wrong, in words; NULL:
 * nothing. */
const char *calls_count_down(emulated_mbarrier *b, unsigned arrivals, int bytes);

#endif
