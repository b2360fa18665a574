/* asan.h - whether this is a build with the address sanitizer, and how to mark memory that must not be touched. */
#ifndef CVYI_ASAN_H
#define CVYI_ASAN_H

#include <stddef.h>

#if defined(__has_feature)
#define CVYI_ASAN __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define CVYI_ASAN 1
#else
#define CVYI_ASAN 0
#endif

#if CVYI_ASAN
#include <sanitizer/asan_interface.h>
static inline void cvyi_forbid(void *memory, size_t bytes)
{
    ASAN_POISON_MEMORY_REGION(memory, bytes);
}
static inline void cvyi_allow(void *memory, size_t bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
}
#endif

#endif
