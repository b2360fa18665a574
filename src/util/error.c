/* error.c - the thread's last message. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "util.h"

enum { MESSAGE_BYTES = 1024 };
static _Thread_local char message[MESSAGE_BYTES];

cvy_status cvyi_fail(cvy_status st, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return st;
}

cvy_status cvyi_fail_within(cvy_status st, const char *format, ...)
{
    char rest[MESSAGE_BYTES];
    va_list args;
    int n;

    memcpy(rest, message, sizeof rest);
    va_start(args, format);
    n = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (n >= 0 && n < MESSAGE_BYTES) snprintf(message + n, sizeof message - (size_t)n, "%s", rest);
    return st;
}

cvy_status cvyi_fail_more(cvy_status st, const char *format, ...)
{
    const size_t n = strlen(message);
    va_list args;
    va_start(args, format);
    vsnprintf(message + n, sizeof message - n, format, args);
    va_end(args);
    return st;
}

const char *cvy_last_error(void)
{
    return message;
}

const char *cvy_version(void)
{
    return CVY_VERSION;
}

const char *cvy_status_name(cvy_status status)
{
    static const char *const names[] = {"ok",        "invalid argument", "out of memory", "unsupported",
                                        "no device", "failed",           "stale"};
    const int i = (int)status;
    return i >= 0 && i < COUNT_OF(names) ? names[i] : "unknown status";
}
