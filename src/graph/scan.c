/* scan.c - the words of the chain text: names, numbers, extents, and messages that say where. */
#include <stdio.h>
#include <string.h>
#include "parse.h"

enum { NUMBER_BYTES = 64 };

/* ---- characters ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

size_t cvyi_name_length(const char *at)
{
    size_t n = 0;
    if (is_letter(*at))
        while (is_letter(at[n]) || is_digit(at[n]) || at[n] == '.') n++;
    return n;
}

char cvyi_scan_space(parser *p)
{
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r') p->at++;
    return *p->at;
}

bool cvyi_scan_accept(parser *p, char c)
{
    const bool there = cvyi_scan_space(p) == c;
    if (there) p->at++;
    return there;
}

bool cvyi_word_is(const char *at, size_t len, const char *word)
{
    return strlen(word) == len && !memcmp(at, word, len);
}

/* ---- messages ---- */

cvy_status cvyi_locate(const parser *p, const char *at, cvy_status st)
{
    return st ? cvyi_fail_within(st, "column %td: ", at - p->text + 1) : CVY_OK;
}

void cvyi_describe(const char *at, char seen[SEEN_BYTES])
{
    const size_t name = cvyi_name_length(at);
    size_t n = 0;
    while (is_digit(at[n])) n++;
    if (!*at)
        snprintf(seen, SEEN_BYTES, "the end of the text");
    else if (name > 30)
        snprintf(seen, SEEN_BYTES, "'%.30s...'", at);
    else if (name || n)
        snprintf(seen, SEEN_BYTES, "'%.*s'", (int)(name ? name : n > 30 ? 30 : n), at);
    else if (*at >= ' ' && *at <= '~')
        snprintf(seen, SEEN_BYTES, "'%c'", *at);
    else
        snprintf(seen, SEEN_BYTES, "byte 0x%02x", (unsigned)(unsigned char)*at);
}

cvy_status cvyi_expected(const parser *p, const char *what)
{
    char seen[SEEN_BYTES];
    cvyi_describe(p->at, seen);
    return cvyi_locate(p, p->at, cvyi_fail(CVY_INVALID, "expected %s, got %s", what, seen));
}

/* ---- names, extents, numbers ---- */

cvy_status cvyi_scan_name(parser *p, const char *what, char out[NAME_BYTES])
{
    size_t n;
    cvyi_scan_space(p);
    n = cvyi_name_length(p->at);
    if (!n) return cvyi_expected(p, what);
    if (n >= NAME_BYTES) return cvyi_locate(p, p->at, cvyi_fail(CVY_INVALID, "a name of %zu characters", n));
    memcpy(out, p->at, n);
    out[n] = 0;
    p->at += n;
    return CVY_OK;
}

static cvy_status read_extent(parser *p, int64_t *out)
{
    const char *start = p->at;
    int64_t n = 0;
    bool fits = true;

    if (!is_digit(*p->at)) return cvyi_expected(p, "an extent, a whole number of 0 or more");
    for (; is_digit(*p->at); p->at++) fits = fits && cvyi_mul(n, 10, &n) && cvyi_add(n, *p->at - '0', &n);
    if (!fits) return cvyi_locate(p, start, cvyi_fail(CVY_INVALID, "an extent beyond 64 bits"));
    *out = n;
    return CVY_OK;
}

cvy_status cvyi_scan_extents(parser *p, shape *s)
{
    cvy_status st = CVY_OK;

    *s = (shape){0};
    if (!cvyi_scan_accept(p, '[')) return cvyi_expected(p, "'[' and the extents");
    if (cvyi_scan_accept(p, ']')) return CVY_OK;
    do {
        cvyi_scan_space(p);
        if (s->rank == CVY_MAX_RANK)
            return cvyi_locate(p, p->at, cvyi_fail(CVY_INVALID, "more than %d dimensions", CVY_MAX_RANK));
        TRY(read_extent(p, &s->dim[s->rank++]));
    } while (cvyi_scan_accept(p, ','));
    if (!cvyi_scan_accept(p, ']')) return cvyi_expected(p, "',' or ']'");
fail:
    return st;
}

cvy_status cvyi_scan_dtype(parser *p, cvy_dtype *out)
{
    size_t n;
    cvyi_scan_space(p);
    n = cvyi_name_length(p->at);
    if (!cvyi_dtype_find(p->at, n, out)) return cvyi_expected(p, "fp32, fp16 or bf16 after ':'");
    p->at += n;
    return CVY_OK;
}

/* Bytes of the decimal that begins here after its sign, 0 if none does: 12, .5, 1e-5. */
static size_t decimal_length(const char *at)
{
    size_t n = 0, digits = 0, e;
    for (; is_digit(at[n]); n++) digits++;
    if (at[n] == '.')
        for (n++; is_digit(at[n]); n++) digits++;
    if (!digits) return 0;
    if (at[n] == 'e' || at[n] == 'E') {
        e = n + 1 + (at[n + 1] == '+' || at[n + 1] == '-');
        if (is_digit(at[e]))
            for (n = e; is_digit(at[n]); n++) continue;
    }
    return n;
}

cvy_status cvyi_scan_number(parser *p, double *out)
{
    const char *start = p->at;
    const size_t sign = *start == '-' || *start == '+';
    const size_t word = cvyi_name_length(start + sign);
    size_t n = decimal_length(start + sign);
    char digits[NUMBER_BYTES];

    if (cvyi_word_is(start + sign, word, "inf") || cvyi_word_is(start + sign, word, "nan")) n = word;
    if (!n) return cvyi_expected(p, "a number");
    n += sign;
    if (n >= NUMBER_BYTES) return cvyi_locate(p, start, cvyi_fail(CVY_INVALID, "a number of %zu characters", n));
    memcpy(digits, start, n);
    digits[n] = 0;
    p->at += n;
    if (cvyi_name_length(p->at) || *p->at == '.') {
        const int rest = (int)strspn(p->at, ".") + (int)cvyi_name_length(p->at);
        return cvyi_locate(
            p, start,
            cvyi_fail(CVY_INVALID, "expected a number, got '%s%.*s'", digits, rest > 20 ? 20 : rest, p->at));
    }
    *out = cvyi_text_number(digits);
    return CVY_OK;
}
