/* env.c - environment variables and the log they switch on. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "util.h"

static const struct {
    const char *name, *takes;
} variables[ENV_COUNT] = {
#define ENV(id, name, takes, help) {name, takes},
#include "env.def"
#undef ENV
};

const char *cvyi_env(env_var which)
{
    const char *value = getenv(variables[which].name);
    return value && *value ? value : NULL;
}

int cvyi_env_int(env_var which, int otherwise)
{
    const char *value = cvyi_env(which);
    char *end = NULL;
    const long n = value ? strtol(value, &end, 10) : otherwise;
    return value && *end ? otherwise : (int)n;
}

/* Is `value` one of "a|b|c"? */
static bool is_listed(const char *words, const char *value)
{
    const size_t length = strlen(value);
    for (const char *at = words; at; at = strchr(at, '|')) {
        if (*at == '|') at++;
        if (strcspn(at, "|") == length && !memcmp(at, value, length)) return true;
    }
    return false;
}

static bool is_whole(const char *value)
{
    char *end = NULL;
    const long n = strtol(value, &end, 10);
    return *value >= '0' && *value <= '9' && !*end && n <= INT32_MAX;
}

cvy_status cvyi_env_check(void)
{
    for (int i = 0; i < ENV_COUNT; i++) {
        const char *name = variables[i].name, *takes = variables[i].takes, *value = cvyi_env((env_var)i);
        if (!value || !*takes) continue;
        if (!strcmp(takes, "N") && !is_whole(value))
            return cvyi_fail(CVY_INVALID, "%s is '%s', expected a whole number, at least 0", name, value);
        if (strcmp(takes, "N") && !is_listed(takes, value))
            return cvyi_fail(CVY_INVALID, "%s is '%s', expected %s", name, value, takes);
    }
    return CVY_OK;
}

bool cvyi_logs(int level)
{
    return cvyi_env_int(ENV_DEBUG, 0) >= level;
}

void cvyi_log(int level, const char *format, ...)
{
    va_list args;
    if (!cvyi_logs(level)) return;
    flockfile(stderr); /* kernels are compiled by many threads */
    fputs("convoy: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    funlockfile(stderr);
}
