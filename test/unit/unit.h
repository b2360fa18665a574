/* unit.h - cmocka and what its header needs before it; TEST_WITHOUT_CMOCKA: for programs that run where there
 * is none, the few checks that rig.h and its like make, which end the program. */
#ifndef TEST_UNIT_H
#define TEST_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifndef TEST_WITHOUT_CMOCKA
#include <cmocka.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../src/graph/graph.h"

#ifdef TEST_WITHOUT_CMOCKA
#define fail_msg(...)          (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define assert_true(condition) ((condition) ? (void)0 : fail_msg("%s:%d: %s", __FILE__, __LINE__, #condition))
#define assert_non_null(p)     assert_true((p) != NULL)
#endif

/* Fails with the library's message, unless the call went well. */
#define assert_ok(call)                                                                                            \
    do {                                                                                                           \
        const cvy_status status_ = (call);                                                                         \
        if (status_) fail_msg("%s: %s: %s", #call, cvy_status_name(status_), cvy_last_error());                    \
    } while (0)

/* The call is refused, with this message. */
#define assert_refused(call, message)                                                                              \
    do {                                                                                                           \
        const cvy_status status_ = (call);                                                                         \
        if (status_ != CVY_INVALID) fail_msg("%s: %s", #call, cvy_status_name(status_));                           \
        assert_string_equal(cvy_last_error(), message);                                                            \
    } while (0)

/* xorshift: the same numbers everywhere. */
static inline uint32_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}
static inline int random_below(uint64_t *state, int n)
{
    return (int)(random_next(state) % (uint32_t)n);
}

#endif
