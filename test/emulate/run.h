/* run.h - the emulator's own parts: kernels that module.c loaded, and memory.c's checks, for run.c. */
#ifndef EMULATE_RUN_H
#define EMULATE_RUN_H

#include <stdbool.h>
#include "../standin/device.h"
#include "emulate.h"

enum { EMULATED_FENCE = 1024, EMULATED_GUARD = 0x5a }; /* guard bytes behind shared memory, and what they hold */

typedef struct emulated_kernel {
    void *library;
    void (*call)(void **arguments); /* the kernel, as one thread */
    emulated *now;
    char *shared_begin, *shared_end; /* static shared memory */
} emulated_kernel;

/* Were these guard bytes overwritten? */
bool memory_changed(const char *guard, size_t bytes);
/* False where some allocation's guard bytes were; the message says which. */
bool memory_whole(char *message, size_t size);
/* An address that should not have been touched, in words. */
void memory_describe(const void *address, char *out, size_t size);

#endif
