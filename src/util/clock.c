/* clock.c - seconds that only go forward. */
#include <time.h>
#include "util.h"

double cvyi_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
