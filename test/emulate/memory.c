/* memory.c - device memory: host memory that notices what a kernel does beside it.
 *
 *   | fence | guard bytes | the allocation | guard bytes, to a multiple of 256 | fence |
 *
 * A fence is a megabyte that nobody may touch; guard bytes are looked at after every launch. A fresh allocation is
 * all NaN, and -1 for those who read integers. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "run.h"

enum { PAGE = 4096, FENCE = 1 << 20, ALIGN = 256, MOST = 4096 };

typedef struct allocation {
    char *pages, *data;
    size_t bytes, page_bytes; /* page_bytes: fences included */
} allocation;

static allocation all[MOST];
static int n_all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char *inner(const allocation *a)
{
    return a->pages + FENCE;
}
static char *inner_end(const allocation *a)
{
    return a->pages + a->page_bytes - FENCE;
}

static bool map(allocation *a)
{
    const size_t used = (a->bytes + ALIGN - 1) / ALIGN * ALIGN, pages = (used + PAGE - 1) / PAGE * PAGE;

    a->page_bytes = pages + 2 * FENCE;
    a->pages = mmap(NULL, a->page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->pages == MAP_FAILED) return false;
    if (mprotect(inner(a), pages, PROT_READ | PROT_WRITE)) return munmap(a->pages, a->page_bytes), false;
    a->data = inner_end(a) - used;
    memset(inner(a), EMULATED_GUARD, pages);
    memset(a->data, 0xff, a->bytes);
    return true;
}

void *device_alloc(size_t bytes)
{
    allocation a = {.bytes = bytes};
    bool good;

    pthread_mutex_lock(&lock);
    good = n_all < MOST && map(&a);
    if (good) all[n_all++] = a;
    pthread_mutex_unlock(&lock);
    return good ? a.data : NULL;
}

void device_free(void *memory)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_all; i++)
        if (all[i].data == memory) {
            munmap(all[i].pages, all[i].page_bytes);
            all[i] = all[--n_all];
            break;
        }
    pthread_mutex_unlock(&lock);
}

bool memory_changed(const char *guard, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (guard[i] != EMULATED_GUARD) return true;
    return false;
}

bool memory_whole(char *message, size_t size)
{
    for (int i = 0; i < n_all; i++) {
        const allocation *a = &all[i];
        const char *end = a->data + a->bytes;
        const bool before = memory_changed(inner(a), (size_t)(a->data - inner(a)));
        if (!before && !memory_changed(end, (size_t)(inner_end(a) - end))) continue;
        snprintf(message, size, "memory %s an allocation of %zu bytes was written", before ? "before" : "after",
                 a->bytes);
        return false;
    }
    return true;
}

void memory_describe(const void *address, char *out, size_t size)
{
    const char *at = address;

    snprintf(out, size, "an address where nothing is, or a misaligned one");
    for (int i = 0; i < n_all; i++) {
        const allocation *a = &all[i];
        if (at < a->pages || at >= a->pages + a->page_bytes) continue;
        if (at < a->data)
            snprintf(out, size, "%td bytes before an allocation of %zu", a->data - at, a->bytes);
        else
            snprintf(out, size, "byte %td of an allocation of %zu", at - a->data, a->bytes);
    }
}
