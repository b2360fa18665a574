/* emulate.h - what a kernel that was compiled for the host shares with the emulator that runs it.
 *
 * The kernel's object has one of these, `emulated_now`, which the emulator fills before every launch and, for the
 * places and `shared`, whenever another thread goes on. Included by C (run.c) and C++ (device.cuh). */
#ifndef EMULATE_H
#define EMULATE_H

#include <stddef.h>

enum {
    EMULATED_LANES = 32,         /* of a warp */
    EMULATED_DEPOSIT = 64,       /* bytes that a lane can show the others of its warp at once */
    EMULATED_THREADS = 1024,     /* of a block */
    EMULATED_RESIDENT = 4,       /* blocks at once: those of a cluster, or of a launch that needs them all */
    EMULATED_BARRIERS = 16,      /* named ones: bar.sync id, count */
    EMULATED_SHARED = 227 << 10, /* bytes that a block may have: those of compute capability 9.0 */
    EMULATED_RANK = 24 /* the bit of an address in shared memory from which on it holds the block's rank */
};

typedef struct emulated_place {
    unsigned x, y, z;
} emulated_place;

typedef char emulated_deposit[EMULATED_DEPOSIT];

/* An mbarrier: 8 bytes of shared memory. A phase is over when nobody is awaited any more, and no bytes are. */
typedef struct emulated_mbarrier {
    unsigned short expected, pending; /* arrivals of a phase; those still to come */
    int bytes : 24;                   /* announced and not arrived; negative: arrived before they were announced */
    unsigned made : 7, phase : 1;     /* made: EMULATED_MADE; phase: the parity of the one under way */
} emulated_mbarrier;
enum { EMULATED_MADE = 0x2a };
typedef char emulated_mbarrier_is_a_word[sizeof(emulated_mbarrier) == 8 ? 1 : -1];

/* A wgmma as one thread sees it: d = a * b (+ d) of its two rows. a comes from shared memory, or as these rows
 * themselves (in_rows), always in tf32. */
typedef struct emulated_product {
    float *d;
    unsigned long long a, b; /* descriptors */
    float a_rows[2][16];
    int in_rows;
    int columns, tf32, bf16, accumulate; /* operands: fp16 where neither */
    int across;                          /* b lies along its columns, swizzled */
} emulated_product;

/* cuTensorMapEncodeTiled's result, as test/standin/cuda.c writes it: up to four dimensions; and
 * cuTensorMapEncodeIm2col's, of four or five: box[1] pixels of box[0] channels each, walked through along W, H and
 * D from `lower` to `upper` beyond the end, a step at a time. */
typedef struct emulated_map {
    const char *base;
    unsigned long long dims[5], strides[4]; /* elements; bytes */
    unsigned box[4];                        /* elements */
    unsigned char rank, swizzle, element;   /* swizzle: of 128 bytes; element: bytes */
    unsigned char walks, step[3];
    short lower[3], upper[3];
} emulated_map;

typedef struct emulated {
    emulated_place thread, block, grid, threads; /* CUDA's threadIdx, blockIdx, gridDim, blockDim */
    char *shared;                                /* the block's dynamic shared memory */
    unsigned rank;                               /* of the block in its cluster */
    /* bar.sync: returns when `threads` threads are at barrier `id`; 0: all of the block. Hardware lets those off
     * that have returned; here they are missing, since CUDA's rules want them there. */
    void (*barrier)(int id, int threads);
    /* The lanes of `mask` meet, each with some bytes; afterwards every one may read what all of them brought, until
     * it calls again. The lane's own bit must be in the mask. */
    const emulated_deposit *(*meet)(unsigned mask, const void *mine, size_t bytes);
    /* cp.async, and bulk copies to device memory: `bytes` of which the first `given` come from src and the others
     * are zero. Nothing is copied before the thread waits for the group that the copy was committed to. */
    void (*copy)(void *dst, const void *src, unsigned bytes, unsigned given);
    void (*commit)(void);
    void (*wait)(int pending); /* until at most so many groups are under way */
    /* mbarriers: some arrive, some bytes are announced (before the arrivals); a thread goes on when the phase of
     * that parity is over. */
    void (*arrive)(emulated_mbarrier *b, unsigned count, unsigned bytes);
    void (*wait_phase)(const emulated_mbarrier *b, unsigned parity);
    /* Bulk copies into the shared memory of some blocks of the cluster (bits of a mask), at the same place of each.
     * They come some time later, and complete on the barrier at the same place. */
    void (*load)(void *dst, const void *src, unsigned bytes, emulated_mbarrier *b, unsigned blocks);
    void (*load_box)(void *dst, const emulated_map *map, const int at[4], emulated_mbarrier *b, unsigned blocks);
    void (*load_pixels)(void *dst, const emulated_map *map, const int at[5], const int off[3], emulated_mbarrier *b,
                        unsigned blocks);
    /* wgmma: nothing is multiplied before the thread waits for the batch. */
    void (*multiply)(const emulated_product *p);
    void (*commit_products)(void);
    void (*wait_products)(int pending);
    /* Where another block of the cluster has what lies at p here. */
    void *(*peer)(void *p, unsigned rank);
    void (*wait_cluster)(void); /* for all threads of the cluster */
    void (*nap)(void);          /* a thread that looks again and again lets others go on */
    /* Ends the launch as failed. */
    void (*fail)(const char *message);
} emulated;

#endif
