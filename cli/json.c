/* json.c - one flat JSON object on standard output. */
#include <math.h>
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

void json_number(const char *key, double value)
{
    if (!isfinite(value)) {
        json_null(key);
        return;
    }
    key_of(key);
    printf("%.10g", value);
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
