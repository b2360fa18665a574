/* standin.h - what a test steers and reads of the stand-ins for libcuda and libnvrtc.
 *
 * They need no GPU: device memory is host memory, kernels do nothing, "machine code" is a digest of the texts
 * (../emulate has the same libcuda with a device that runs kernels, and a libnvrtc that compiles them). Every call
 * is counted; call number fail_at (0: the first) fails. A call that frees does so even when told to fail. */
#ifndef STANDIN_H
#define STANDIN_H

#include <stdatomic.h>

typedef struct standin {
    atomic_int calls;   /* since the test last set it */
    int fail_at;        /* negative: none */
    const char *failed; /* the call that was made to fail, NULL: none */
    int freed;          /* it was one that frees, whose failure nobody need report */
    atomic_int live;    /* objects that were made and not freed */
    int depth;          /* contexts pushed and not popped, by any thread */
    atomic_int compiles, launches;
    int devices;                       /* 0: one; at most two */
    atomic_int loaded[2], launched[2]; /* modules and launches, by device */
    atomic_int astray;                 /* launches on another device than the module was loaded on */
    int capability;                    /* of the device, 86 for 8.6; 0: its own */
    int crowded;                       /* 1: no block of a launch fits beside others, 2: and the device says so */
} standin;

/* Exported by both, each for itself. */
standin *standin_state(void);

#endif
