/* memory.c - all of the library's allocations pass through here, so that tests can make any one of them fail. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "util.h"

static atomic_int_fast64_t fail_after = -1; /* counts down to the allocation that fails */
static atomic_int_fast64_t live, asked;

void cvyi_alloc_fail_after(int64_t n)
{
    atomic_store(&fail_after, n);
}

int64_t cvyi_alloc_live(void)
{
    return atomic_load(&live);
}

int64_t cvyi_alloc_bytes(void)
{
    return atomic_load(&asked);
}

static bool told_to_fail(void)
{
    return atomic_load(&fail_after) >= 0 && atomic_fetch_sub(&fail_after, 1) == 0;
}

static void count_in(size_t bytes)
{
    atomic_fetch_add(&live, 1);
    atomic_fetch_add(&asked, (int_fast64_t)bytes);
}

static void *checked(void *memory, size_t count, size_t size)
{
    if (!memory) cvyi_fail(CVY_NO_MEMORY, "out of memory: %zu x %zu bytes", count, size);
    return memory;
}

void *cvyi_alloc(size_t count, size_t size)
{
    void *memory = told_to_fail() ? NULL : calloc(count ? count : 1, size ? size : 1);
    if (memory) count_in(count * size);
    return checked(memory, count, size);
}

void *cvyi_alloc_aligned(size_t bytes)
{
    void *memory = NULL;
    if (bytes > SIZE_MAX - CVY_ALIGN) return checked(NULL, 1, bytes);
    bytes = (bytes / CVY_ALIGN + 1) * CVY_ALIGN;
    if (!told_to_fail()) memory = aligned_alloc(CVY_ALIGN, bytes);
    if (memory) {
        memset(memory, 0, bytes);
        count_in(bytes);
    }
    return checked(memory, 1, bytes);
}

void *cvyi_grow(void *old, size_t count, size_t size)
{
    const bool overflow = size && count > SIZE_MAX / size;
    void *memory = overflow || told_to_fail() ? NULL : realloc(old, count && size ? count * size : 1);
    if (memory) count_in(count * size);
    if (memory && old) atomic_fetch_sub(&live, 1);
    return checked(memory, count, size);
}

void cvyi_free(void *memory)
{
    if (memory) atomic_fetch_sub(&live, 1);
    free(memory);
}

char *cvyi_strdup(const char *source)
{
    const size_t bytes = strlen(source) + 1;
    char *copy = cvyi_alloc(bytes, 1);
    if (copy) memcpy(copy, source, bytes);
    return copy;
}

/* ---- arena: blocks, each a header and then its memory; of small ones the next has twice the size ---- */

enum { ARENA_FIRST = 1024, ARENA_BLOCK = 4096, ARENA_ALIGN = 64 };

struct arena_block {
    struct arena_block *next;
    size_t used, size; /* bytes after the header */
};
/* The header fills one alignment unit, so that what follows it is aligned as the block is. */
_Static_assert(sizeof(struct arena_block) <= ARENA_ALIGN, "the header fits before the memory");

void *cvyi_arena_alloc(arena *a, size_t count, size_t size)
{
    struct arena_block *b = a->head;
    size_t bytes, room;

    if (size && count > (SIZE_MAX / 2 - ARENA_ALIGN) / size) return checked(NULL, count, size);
    bytes = (count * size + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (!b || b->size - b->used < bytes) {
        room = !b ? ARENA_FIRST : b->size < ARENA_BLOCK / 2 ? 2 * b->size : ARENA_BLOCK;
        room = bytes > room ? bytes : room;
        b = cvyi_alloc_aligned(ARENA_ALIGN + room);
        if (!b) return NULL;
        b->next = a->head;
        b->size = room;
        a->head = b;
    }
    b->used += bytes;
    return (char *)b + ARENA_ALIGN + b->used - bytes;
}

void cvyi_arena_free(arena *a)
{
    while (a->head) {
        struct arena_block *next = a->head->next;
        cvyi_free(a->head);
        a->head = next;
    }
}

/* ---- numbers ---- */

bool cvyi_mul(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool cvyi_add(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

uint64_t cvyi_hash(uint64_t start, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) start = (start ^ p[i]) * UINT64_C(0x100000001b3);
    return start;
}
