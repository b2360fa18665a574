/* text.c - text that grows, and numbers as text. */
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "util.h"

void cvyi_text_add(text *t, const char *format, ...)
{
    va_list args, again;
    char *grown;
    int n;

    va_start(args, format);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, format, args);
    if (!t->failed && n >= 0 && t->len + (size_t)n + 1 > t->cap) {
        t->cap = (t->len + (size_t)n + 1) * 2;
        grown = cvyi_grow(t->data, t->cap, 1);
        if (grown)
            t->data = grown;
        else
            t->failed = true;
    }
    if (!t->failed && n >= 0) {
        vsnprintf(t->data + t->len, t->cap - t->len, format, again);
        t->len += (size_t)n;
    }
    va_end(again);
    va_end(args);
}

void cvyi_text_free(text *t)
{
    cvyi_free(t->data);
    *t = (text){0};
}

cvy_status cvyi_text_copy(const text *t, char *dst, size_t capacity, size_t *needed)
{
    if (t->failed) return CVY_NO_MEMORY;
    if (needed) *needed = t->len + 1;
    if (dst && capacity) {
        const size_t n = t->len < capacity - 1 ? t->len : capacity - 1;
        if (n) memcpy(dst, t->data, n);
        dst[n] = 0;
    }
    return CVY_OK;
}

/* ---- numbers: with a decimal point, though the program around us may have set a locale with a comma ---- */

static pthread_once_t locale_once = PTHREAD_ONCE_INIT;
static locale_t c_locale;

static void make_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

double cvyi_text_number(const char *digits)
{
    pthread_once(&locale_once, make_locale);
    return c_locale ? strtod_l(digits, NULL, c_locale) : strtod(digits, NULL);
}

void cvyi_text_add_number(text *t, double value)
{
    char digits[40];
    int precision = 1;
    locale_t before;

    if (isnan(value)) {
        cvyi_text_add(t, "nan");
        return;
    }
    pthread_once(&locale_once, make_locale);
    before = uselocale(c_locale);
    do snprintf(digits, sizeof digits, "%.*g", precision, value);
    while (cvyi_text_number(digits) != value && ++precision <= 17);
    uselocale(before);
    cvyi_text_add(t, "%s", digits);
}
