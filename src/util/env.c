/* env.c - environment variables and the log they switch on. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "util.h"

static const char *const names[ENV_COUNT] = {
#define ENV(id, name, help) name,
#include "env.def"
#undef ENV
};

const char *cvyi_env(env_var which)
{
    const char *value = getenv(names[which]);
    return value && *value ? value : NULL;
}

int cvyi_env_int(env_var which, int otherwise)
{
    const char *value = cvyi_env(which);
    char *end = NULL;
    const long n = value ? strtol(value, &end, 10) : otherwise;
    return value && *end ? otherwise : (int)n;
}

bool cvyi_logs(int level)
{
    return cvyi_env_int(ENV_DEBUG, 0) >= level;
}

void cvyi_log(int level, const char *format, ...)
{
    va_list args;
    if (!cvyi_logs(level)) return;
    fputs("convoy: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}
