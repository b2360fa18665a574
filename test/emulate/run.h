/* run.h - the emulator's own parts: kernels that module.c loaded, memory.c's checks, transfer.c's copies and
 * product.c's arithmetic, for run.c. */
#ifndef EMULATE_RUN_H
#define EMULATE_RUN_H

#include <stdbool.h>
#include "../standin/device.h"
#include "emulate.h"

enum { EMULATED_FENCE = 1024, EMULATED_GUARD = 0x5a }; /* guard bytes after shared memory, and what they hold */

typedef struct emulated_kernel {
    void *library;
    void (*call)(void **arguments); /* the kernel, as one thread */
    emulated *now;
    char *shared_begin, *shared_end; /* static shared memory */
    int cluster[2];                  /* blocks of a cluster along x and y */
    int allowed_shared;              /* dynamic shared memory that launches were allowed */
} emulated_kernel;

/* Were these guard bytes overwritten? */
bool memory_changed(const char *guard, size_t bytes);
/* False if some allocation's guard bytes were; the message says which. */
bool memory_whole(char *message, size_t size);
/* An address that should not have been touched, in words. */
void memory_describe(const void *address, char *out, size_t size);

/* ---- transfer.c: copies into shared memory that are under way ---- */

typedef struct transfer {
    char *dst;
    const void *src; /* NULL: a box of the map, or pixels of it */
    emulated_map map;
    int at[5], off[3]; /* of the box; pixels further along each axis */
    unsigned bytes;
    emulated_mbarrier *barrier;
    long long due; /* the turn in which it may come */
} transfer;

/* What is wrong with it, in words; NULL: nothing. A box's bytes are filled in. */
const char *transfer_check(transfer *t);
void transfer_add(const transfer *t);
/* The next one that is due, or with `now` the next one at all: delivered. Says where; NULL: there is none. */
emulated_mbarrier *transfer_deliver(long long turn, bool now, unsigned *bytes);
/* Forgets all; how many there were. */
int transfer_drop(void);

/* ---- product.c ---- */

/* A wgmma as the lanes of warp `warp` of its warpgroup have it; what is wrong with it, in words; NULL: nothing. */
const char *product_run(const emulated_product *const lanes[EMULATED_LANES], const char *shared,
                        unsigned shared_bytes, int warp);

#endif
