/* launch.h - kernels loaded and launched; device memory, streams and timing for the command and the tests.
 *
 * Everything but cvyi_cuda_launch() may allocate or wait, so it is only called while preparing. All calls must be
 * between cvyi_cuda_enter() and cvyi_cuda_leave(). */
#ifndef CVYI_CUDA_LAUNCH_H
#define CVYI_CUDA_LAUNCH_H

#include "driver.h"
#include "jit.h"

typedef struct cuda_kernel {
    struct cuda_loaded *loaded; /* its record (modules.h); NULL: it belongs to its loader */
    CUmodule module;
    CUfunction function;
    int registers;    /* per thread */
    int local_bytes;  /* per thread; not 0 if registers spill */
    int shared_bytes; /* static */
    int max_threads;  /* of a block */
} cuda_kernel;

/* Loads code and makes its entry ready to launch: resolved, its shared memory allowed. */
cvy_status cvyi_cuda_load(const cuda_device *d, const jit_code *code, const char *entry, int dynamic_shared,
                          cuda_kernel *out);
void cvyi_cuda_unload(const cuda_device *d, cuda_kernel *k);
/* Allows launches with that many bytes; refused if a block does not have them. */
cvy_status cvyi_cuda_allow_shared(const cuda_device *d, const cuda_kernel *k, int dynamic_shared);

/* Limits that every device has. */
enum { GRID_X_MOST = INT32_MAX, GRID_YZ_MOST = 65535, BLOCK_THREADS_MOST = 1024 };

typedef struct cuda_launch {
    unsigned grid[3], block[3];
    unsigned cluster[3];     /* all 0: no clusters */
    unsigned dynamic_shared; /* bytes */
    bool cooperative;        /* all blocks at once, or the launch fails */
    bool follows;            /* may begin before the launch before it has ended: the kernel waits (follow.cuh) */
} cuda_launch;

/* The property of a launch that no device, or not this one, accepts, in words; NULL: none. Everything that is
 * launched was shown to it while the plan was made. */
const char *cvyi_cuda_launch_refusal(const cuda_device *d, const cuda_launch *l);
cvy_status cvyi_cuda_launch(const cuda_device *d, const cuda_kernel *k, const cuda_launch *l, CUstream stream,
                            void **arguments);
/* How many blocks of this shape one multiprocessor holds at once. */
cvy_status cvyi_cuda_blocks_per_sm(const cuda_device *d, const cuda_kernel *k, const cuda_launch *l, int *out);

/* ---- memory, streams, time ---- */

cvy_status cvyi_cuda_alloc(const cuda_device *d, size_t bytes, CUdeviceptr *out); /* 0 bytes: still some address */
void cvyi_cuda_free(const cuda_device *d, CUdeviceptr memory);                    /* accepts 0 */
/* Both wait until the copy is done. */
cvy_status cvyi_cuda_upload(const cuda_device *d, CUdeviceptr dst, const void *src, size_t bytes, CUstream stream);
cvy_status cvyi_cuda_download(const cuda_device *d, void *dst, CUdeviceptr src, size_t bytes, CUstream stream);
cvy_status cvyi_cuda_fill(const cuda_device *d, CUdeviceptr dst, unsigned char value, size_t bytes,
                          CUstream stream);
cvy_status cvyi_cuda_stream_create(const cuda_device *d, CUstream *out);
void cvyi_cuda_stream_free(const cuda_device *d, CUstream stream); /* accepts NULL */
cvy_status cvyi_cuda_wait(const cuda_device *d, CUstream stream);

/* Times work on a stream with events, after a write of twice the L2 has evicted everything else from it. */
typedef struct cuda_timer {
    CUevent start, stop;
    CUdeviceptr flush; /* flush_bytes that are overwritten before each timed run */
    size_t flush_bytes;
} cuda_timer;

cvy_status cvyi_cuda_timer_create(const cuda_device *d, cuda_timer *out);
void cvyi_cuda_timer_free(const cuda_device *d, cuda_timer *t); /* accepts a zeroed one */
cvy_status cvyi_cuda_timer_start(const cuda_device *d, cuda_timer *t, CUstream stream);
cvy_status cvyi_cuda_timer_stop(const cuda_device *d, cuda_timer *t, CUstream stream, double *seconds); /* waits */

#endif
