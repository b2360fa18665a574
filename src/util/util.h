/* util.h - errors, memory, text and the environment: what every folder may use. */
#ifndef CVYI_UTIL_H
#define CVYI_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "convoy.h"

#if defined(__GNUC__)
#define CVYI_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define CVYI_PRINTF(f, a)
#endif

/* Jumps to the function's one exit; `st` and the label `fail` are the function's own. */
#define TRY(call)                                                                                                  \
    do {                                                                                                           \
        st = (call);                                                                                               \
        if (st != CVY_OK) goto fail;                                                                               \
    } while (0)

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- errors (error.c) ---- */

/* Leaves the message for cvy_last_error() and returns st. */
cvy_status cvyi_fail(cvy_status st, const char *format, ...) CVYI_PRINTF(2, 3);

/* Puts words before the message that is there: "pass 2: " */
cvy_status cvyi_fail_within(cvy_status st, const char *format, ...) CVYI_PRINTF(2, 3);

/* Adds words after it: "; did you mean ...?" */
cvy_status cvyi_fail_more(cvy_status st, const char *format, ...) CVYI_PRINTF(2, 3);

/* ---- memory (memory.c): zeroed; NULL (with a message) when there is none ---- */

void *cvyi_alloc(size_t count, size_t size);
void *cvyi_alloc_aligned(size_t bytes);                /* to CVY_ALIGN; freed by cvyi_free */
void *cvyi_grow(void *old, size_t count, size_t size); /* old stays valid on failure; new part not zeroed */
void cvyi_free(void *memory);
char *cvyi_strdup(const char *text);

/* Makes allocation number n from now on fail, once (0: the next); negative: none. For tests. */
void cvyi_alloc_fail_after(int64_t n);
/* Allocations that are alive. For tests. */
int64_t cvyi_alloc_live(void);
/* Bytes asked for since the program began, given back or not. For tests. */
int64_t cvyi_alloc_bytes(void);

/* An arena: everything in it lives until the arena is freed. */
typedef struct arena {
    struct arena_block *head;
} arena;
void *cvyi_arena_alloc(arena *a, size_t count, size_t size); /* zeroed, aligned to 64 */
void cvyi_arena_free(arena *a);

/* Texts of an arena, each of them once (text_set.c). */
typedef struct text_set {
    const char **texts; /* by their numbers: in the order in which they came */
    int n;
    int *slots; /* cap of them, each 1 + a number, or 0 */
    size_t cap;
} text_set;
/* The number of a text, which is copied if it is new; -1: no memory. */
int cvyi_text_set_add(text_set *set, arena *a, const char *source);

/* ---- numbers: false on overflow ---- */

bool cvyi_mul(int64_t a, int64_t b, int64_t *out);
bool cvyi_add(int64_t a, int64_t b, int64_t *out);

static inline int64_t cvyi_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t cvyi_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
/* Bytes of n numbers: what engines compute with, whatever a value's own dtype is. */
static inline int64_t cvyi_floats(int64_t n)
{
    return n * (int64_t)sizeof(float);
}
static inline int64_t cvyi_doubles(int64_t n)
{
    return n * (int64_t)sizeof(double);
}
static inline int64_t cvyi_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
/* Part number i of `total` things divided into `parts` whose sizes differ by at most one, the larger ones first. */
static inline int64_t cvyi_part_start(int64_t total, int64_t parts, int64_t i)
{
    return i * (total / parts) + cvyi_min64(i, total % parts);
}
static inline int64_t cvyi_round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}
/* No NaN, no infinity among n floats. */
static inline bool cvyi_all_finite(const float *x, int64_t n)
{
    uint32_t bits, found = 0;
    for (int64_t i = 0; i < n; i++) {
        memcpy(&bits, x + i, sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !found;
}

/* ---- text that grows (text.c). A failed allocation sticks: `failed` is checked once, at the end ---- */

typedef struct text {
    char *data;
    size_t len, cap;
    bool failed;
} text;
void cvyi_text_add(text *t, const char *format, ...) CVYI_PRINTF(2, 3);
void cvyi_text_free(text *t);
/* Copies into a caller's memory by the rule of cvy_graph_print(). */
cvy_status cvyi_text_copy(const text *t, char *dst, size_t capacity, size_t *needed);
/* The shortest decimal that reads back as the same double; or "inf", "-inf" or "nan". */
void cvyi_text_add_number(text *t, double value);
/* The number that a decimal text means, including "inf" and "nan", in any locale. */
double cvyi_text_number(const char *digits);

/* ---- "did you mean" (near.c) ---- */

typedef struct nearest {
    const char *word; /* what was written, `length` bytes of it */
    size_t length;
    const char *best; /* the nearest candidate so far, if it is near enough; else NULL */
    int distance;
} nearest;
void cvyi_near_try(nearest *n, const char *candidate);

/* ---- 64-bit hash (FNV-1a) ---- */
#define CVYI_HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t cvyi_hash(uint64_t start, const void *data, size_t bytes);

/* ---- clock (clock.c) ---- */
double cvyi_now(void); /* seconds since a fixed moment; never decreases */

/* ---- environment (env.c): listed by `convoy --help` ---- */

typedef enum env_var {
#define ENV(id, name, takes, help) ENV_##id,
#include "env.def"
#undef ENV
    ENV_COUNT
} env_var;
const char *cvyi_env(env_var which); /* NULL if unset or empty */
int cvyi_env_int(env_var which, int otherwise);
/* Is every value one that its variable takes? Variables without a list in env.def are checked where they are read.
 */
cvy_status cvyi_env_check(void);

/* ---- log: printed to standard error when CVY_DEBUG >= level ---- */
bool cvyi_logs(int level);
void cvyi_log(int level, const char *format, ...) CVYI_PRINTF(2, 3);

#endif
