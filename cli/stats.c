/* stats.c - the clock, the median, and the progress line. */
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
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

double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

enum { QUIET_SECONDS = 2 }; /* between two lines where there is no terminal */

void progress(const char *format, ...)
{
    static double last;
    const bool terminal = isatty(STDERR_FILENO);
    const double t = now();
    va_list args;

    if (last == 0) last = t;
    if (t - last < (terminal ? 0.1 : QUIET_SECONDS)) return;
    last = t;
    if (terminal) fputs("\r\033[K", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    if (!terminal) fputc('\n', stderr);
    fflush(stderr);
}

void progress_end(void)
{
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
}
