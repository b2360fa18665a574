/* stats.c - the clock and the median. */
#include <stdlib.h>
#include <time.h>
#include "cli.h"

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double spread(const double *sorted, int n)
{
    return 0.5 * (sorted[(3 * n - 1) / 4] - sorted[n / 4]);
}

double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}
