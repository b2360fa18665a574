/* fiber.h - stacks that one system thread changes between: the threads of an emulated block. x86-64 and AArch64. */
#ifndef EMULATE_FIBER_H
#define EMULATE_FIBER_H

#include <stdbool.h>

typedef struct fiber {
    void *sp; /* where it stopped, while another one runs */
} fiber;

/* Makes `stacks` stacks, once; false if there is no memory. A page that cannot be touched lies below each. */
bool fiber_stacks(int stacks);
/* A fiber on stack number `stack` that will call start(), which must not return. */
fiber fiber_make(int stack, void (*start)(void));
/* Leaves one, goes on with another; returns when somebody switches back. */
void fiber_switch(fiber *from, const fiber *to);

#endif
