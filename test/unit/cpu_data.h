/* cpu_data.h - for tests of CPU kernels: random numbers that repeat, whole-numbered floats, memory with guards. */
#ifndef TEST_CPU_DATA_H
#define TEST_CPU_DATA_H

#include "unit.h"

static uint64_t cpu_seed = 1;

/* Whole, between lo and hi. */
static inline int64_t draw(int64_t lo, int64_t hi)
{
    cpu_seed = cpu_seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return lo + (int64_t)((cpu_seed >> 33) % (uint64_t)(hi - lo + 1));
}

/* n floats between two guards of GUARD floats, at an address that no vector is aligned to. */
enum { GUARD = 64 };
#define GUARD_VALUE 12345.75f

static inline float *guarded(int64_t n)
{
    float *all = malloc((size_t)(n + 2 * GUARD + 1) * sizeof *all);
    assert_non_null(all);
    for (int64_t i = 0; i < n + 2 * GUARD + 1; i++) all[i] = GUARD_VALUE;
    return all + GUARD + 1;
}

/* The guards are as they were; frees the memory. */
static inline void guarded_free(float *data, int64_t n)
{
    for (int64_t i = 1; i <= GUARD; i++) assert_true(data[-i] == GUARD_VALUE && data[n + i - 1] == GUARD_VALUE);
    free(data - GUARD - 1);
}

/* Whole numbers in -m ... m: products and sums of a few thousand are exact in float. */
static inline float *guarded_integers(int64_t n, int64_t m)
{
    float *data = guarded(n);
    for (int64_t i = 0; i < n; i++) data[i] = (float)draw(-m, m);
    return data;
}

static inline void assert_same_floats(const float *got, const float *want, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i] || (got[i] != got[i] && want[i] != want[i])) continue;
        fail_msg("%s: element %lld is %g, expected %g", what, (long long)i, (double)got[i], (double)want[i]);
    }
}

#endif
