/* fiber.c - a switch saves what the calling convention says a function must keep, and nothing else: a hundredth of
 * what swapcontext() costs, which asks the kernel about signals. */
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include "fiber.h"

enum { STACK_BYTES = 64 << 10, FENCE_BYTES = 4096 };

static char *stacks_at;

bool fiber_stacks(int stacks)
{
    const size_t bytes = (size_t)stacks * STACK_BYTES;
    char *all;

    if (stacks_at) return true;
    all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return false;
    for (int i = 0; i < stacks; i++) mprotect(all + (size_t)i * STACK_BYTES, FENCE_BYTES, PROT_NONE);
    stacks_at = all;
    return true;
}

void emulated_switch(void **save, void *restore);

#if defined(__x86_64__)
enum { SAVED_WORDS = 7, RETURN_WORD = 6, ABOVE_WORDS = 3 }; /* on entry the stack is 8 off a multiple of 16 */
__asm__(".text\n.globl emulated_switch\n.hidden emulated_switch\n.type emulated_switch, @function\n"
        "emulated_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size emulated_switch, . - emulated_switch\n");
#elif defined(__aarch64__)
enum { SAVED_WORDS = 20, RETURN_WORD = 11, ABOVE_WORDS = 2 };
__asm__(".text\n.globl emulated_switch\n.hidden emulated_switch\n.type emulated_switch, %function\n"
        "emulated_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size emulated_switch, . - emulated_switch\n");
#else
#error "the emulator has no switch for this processor"
#endif

fiber fiber_make(int stack, void (*start)(void))
{
    uintptr_t *sp = (uintptr_t *)(stacks_at + (size_t)(stack + 1) * STACK_BYTES) - ABOVE_WORDS - SAVED_WORDS;

    for (int i = 0; i < SAVED_WORDS + ABOVE_WORDS; i++) sp[i] = 0;
    sp[RETURN_WORD] = (uintptr_t)start;
    return (fiber){sp};
}

void fiber_switch(fiber *from, const fiber *to)
{
    emulated_switch(&from->sp, to->sp);
}
