/* json.c - one flat JSON object on standard output. */
#include <math.h>
#include <stdlib.h>
#include "cli.h"

static bool first;

void json_string(const char *value)
{
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)value; *c; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < ' ')
            printf("\\u%04x", *c);
        else
            putchar(*c);
    }
    putchar('"');
}

static void key_of(const char *key)
{
    fputs(first ? "{" : ", ", stdout);
    first = false;
    json_string(key);
    fputs(": ", stdout);
}

void json_begin(void)
{
    first = true;
}

void json_text(const char *key, const char *value)
{
    key_of(key);
    json_string(value);
}

/* The fewest digits that read back as the same double. */
void json_number(const char *key, double value)
{
    char text[32];
    int digits = 6;
    if (!isfinite(value)) {
        json_null(key);
        return;
    }
    do snprintf(text, sizeof text, "%.*g", digits, value);
    while (strtod(text, NULL) != value && digits++ < 17);
    key_of(key);
    fputs(text, stdout);
}

void json_bool(const char *key, bool value)
{
    key_of(key);
    fputs(value ? "true" : "false", stdout);
}

void json_null(const char *key)
{
    key_of(key);
    fputs("null", stdout);
}

void json_end(void)
{
    puts(first ? "{}" : "}");
}
