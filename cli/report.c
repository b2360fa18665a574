/* report.c - what goes to standard error: messages, and the progress line. */
#include <stdarg.h>
#include <unistd.h>
#include "cli.h"

int cli_error(const char *format, ...)
{
    va_list args;
    progress_end();
    fflush(stdout);
    fputs("convoy: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return EXIT_USAGE;
}

int cli_library_error(const char *what)
{
    return cli_error("%s%s", what, cvy_last_error());
}

enum { QUIET_SECONDS = 4 }; /* between two lines if there is no terminal */

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
