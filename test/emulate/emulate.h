/* emulate.h - what a kernel that was compiled for the host shares with the emulator that runs it.
 *
 * The kernel's object has one of these, `emulated_now`, which the emulator fills before every block and, for
 * `thread`, whenever another thread of the block goes on. Included by C (run.c) and C++ (device.cuh). */
#ifndef EMULATE_H
#define EMULATE_H

#include <stddef.h>

enum {
    EMULATED_LANES = 32,        /* of a warp */
    EMULATED_DEPOSIT = 64,      /* bytes that a lane can show the others of its warp at once */
    EMULATED_THREADS = 1024,    /* of a block */
    EMULATED_BARRIERS = 16,     /* named ones: bar.sync id, count */
    EMULATED_SHARED = 163 << 10 /* bytes that a block may ask for: those of compute capability 8.0 */
};

typedef struct emulated_place {
    unsigned x, y, z;
} emulated_place;

typedef char emulated_deposit[EMULATED_DEPOSIT];

typedef struct emulated {
    emulated_place thread, block, grid, threads; /* CUDA's threadIdx, blockIdx, gridDim, blockDim */
    void *shared;                                /* dynamic shared memory */
    /* bar.sync: returns when `threads` threads stand at barrier `id`; 0: all of the block. Hardware lets those off
     * that have returned; here they are missing, since CUDA's rules want them there. */
    void (*barrier)(int id, int threads);
    /* The lanes of `mask` meet, each with some bytes; afterwards every one may read what all of them brought, until
     * it calls again. The lane's own bit must be in the mask. */
    const emulated_deposit *(*meet)(unsigned mask, const void *mine, size_t bytes);
    /* cp.async: `bytes` of which the first `given` come from src and the others are zero. Nothing is copied before
     * the thread waits for the group that the copy was committed to. */
    void (*copy)(void *dst, const void *src, unsigned bytes, unsigned given);
    void (*commit)(void);
    void (*wait)(int pending); /* until at most so many groups are under way */
    /* Ends the launch as failed. */
    void (*fail)(const char *message);
} emulated;

#endif
