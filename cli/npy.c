/* npy.c - the .npy format.
 *
 *     \x93NUMPY  major minor  header length (2 bytes, from version 2 on 4)  header  data
 *
 * The header is a Python dictionary, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }", padded with
 * spaces and closed by a newline. Files come from anywhere: every length is checked against what is there before it
 * is used, and every product against overflow. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../src/util/half.h"
#include "npy.h"

static const char magic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};
enum { HEADER_MULTIPLE = 64, FOUND = 32 /* characters of a header that a message quotes */ };

/* The rest of the header, and the place for an error message. */
typedef struct cursor {
    const char *at, *end;
    char *message;
} cursor;

__attribute__((format(printf, 2, 3))) static bool refuse(char *message, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, NPY_MESSAGE, format, args);
    va_end(args);
    return false;
}

/* The next few characters in a form that a message may show. */
static const char *found(const cursor *c, char text[FOUND + 1])
{
    int n = 0;
    while (n < FOUND && c->at + n < c->end && c->at[n] >= ' ' && c->at[n] <= '~') {
        text[n] = c->at[n];
        n++;
    }
    text[n] = 0;
    return n ? text : "something unprintable or the end";
}

static bool expected(const cursor *c, const char *what)
{
    char text[FOUND + 1];
    return refuse(c->message, "header: expected %s, found %s", what, found(c, text));
}

static void skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r')) c->at++;
}

static bool take(cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

/* A string in single or double quotes; escapes do not occur in what numpy writes. */
static bool take_string(cursor *c, const char **text, int *len)
{
    const char *close;
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
    close = memchr(c->at + 1, *c->at, (size_t)(c->end - c->at - 1));
    if (!close || close - c->at > NPY_MESSAGE) return false;
    *text = c->at + 1;
    *len = (int)(close - c->at - 1);
    c->at = close + 1;
    return true;
}

static bool take_word(cursor *c, const char *word)
{
    const size_t len = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < len || memcmp(c->at, word, len)) return false;
    c->at += len;
    return true;
}

static const struct {
    const char *descr;
    int bytes;
} elements[] = {[CVY_FLOAT32] = {"<f4", 4}, [CVY_FLOAT16] = {"<f2", 2}, [CVY_BFLOAT16] = {"<u2", 2}};

const char *npy_descr(cvy_dtype dtype)
{
    return elements[dtype].descr;
}

static bool take_descr(cursor *c, npy_array *a)
{
    const char *text = NULL;
    int len = 0;
    if (!take_string(c, &text, &len)) return expected(c, "an element type such as '<f4'");
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
        if (len != 3 || memcmp(text, elements[i].descr, 3)) continue;
        a->dtype = (cvy_dtype)i;
        return true;
    }
    return refuse(c->message, "elements are '%.*s', only '<f4', '<f2' and '<u2' are read: save array.astype('<f4')",
                  len < FOUND ? len : FOUND, text);
}

static bool take_order(cursor *c, npy_array *a)
{
    a->fortran = take_word(c, "True");
    return a->fortran || take_word(c, "False") || expected(c, "True or False after 'fortran_order'");
}

/* One extent: digits, and the L that Python 2 wrote. */
static bool take_extent(cursor *c, int64_t *out)
{
    const char *start;
    int64_t value = 0;
    skip_space(c);
    for (start = c->at; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *c->at - '0', &value))
            return refuse(c->message, "an extent of the shape does not fit 64 bits");
    if (c->at == start) return expected(c, "an extent of the shape");
    if (c->at < c->end && *c->at == 'L') c->at++;
    *out = value;
    return true;
}

static bool take_shape(cursor *c, npy_array *a)
{
    a->rank = 0;
    if (!take(c, '(')) return expected(c, "the shape in parentheses");
    while (!take(c, ')')) {
        if (a->rank == CVY_MAX_RANK) return refuse(c->message, "more than %d dimensions", CVY_MAX_RANK);
        if (!take_extent(c, &a->dims[a->rank++])) return false;
        if (!take(c, ',') && (c->at == c->end || *c->at != ')')) return expected(c, "a comma or ) in the shape");
    }
    return true;
}

/* Extents of 0 make an empty array, but the others must still multiply. */
static bool count_elements(npy_array *a, char *message)
{
    int64_t bytes = elements[a->dtype].bytes;
    a->count = 1;
    for (int d = 0; d < a->rank; d++) {
        if (a->dims[d] && __builtin_mul_overflow(bytes, a->dims[d], &bytes))
            return refuse(message, "the shape's size in bytes does not fit 64 bits");
        a->count *= a->dims[d];
    }
    return true;
}

static bool parse_header(cursor *c, npy_array *a)
{
    static const struct {
        const char *key;
        bool (*take)(cursor *, npy_array *);
    } entries[] = {{"descr", take_descr}, {"fortran_order", take_order}, {"shape", take_shape}};
    enum { N = sizeof entries / sizeof *entries };
    bool seen[N] = {false};
    const char *key = NULL;
    int len = 0;

    if (!take(c, '{')) return expected(c, "{ at the start of the dictionary");
    while (!take(c, '}')) {
        int i = 0;
        if (!take_string(c, &key, &len)) return expected(c, "a key in quotes");
        while (i < N && ((size_t)len != strlen(entries[i].key) || memcmp(key, entries[i].key, (size_t)len))) i++;
        if (i == N) return refuse(c->message, "header: unknown key '%.*s'", len < FOUND ? len : FOUND, key);
        if (seen[i]) return refuse(c->message, "header: '%s' twice", entries[i].key);
        if (!take(c, ':')) return expected(c, "a colon after the key");
        if (!entries[i].take(c, a)) return false;
        seen[i] = true;
        if (!take(c, ',') && (c->at == c->end || *c->at != '}')) return expected(c, "a comma or }");
    }
    for (int i = 0; i < N; i++)
        if (!seen[i]) return refuse(c->message, "header: '%s' is missing", entries[i].key);
    return true;
}

bool npy_parse(const void *bytes, size_t n, npy_array *out, char *message)
{
    const unsigned char *b = bytes;
    size_t start, header, data;
    cursor c;

    memset(out, 0, sizeof *out);
    if (n < 10 || memcmp(b, magic, sizeof magic))
        return refuse(message, "not a .npy file: the magic bytes are missing");
    if (b[6] < 1 || b[6] > 3) return refuse(message, ".npy version %d.%d, 1 to 3 are read", b[6], b[7]);
    start = b[6] == 1 ? 10 : 12;
    if (n < start) return refuse(message, "the file ends inside its header");
    header = b[8] | (size_t)b[9] << 8;
    if (b[6] > 1) header |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (header > n - start)
        return refuse(message, "the header should have %zu bytes, %zu are there", header, n - start);
    c = (cursor){(const char *)b + start, (const char *)b + start + header, message};
    if (!parse_header(&c, out) || !count_elements(out, message)) return false;
    skip_space(&c);
    if (c.at != c.end) return expected(&c, "nothing after the dictionary");
    data = n - start - header;
    if (data != (uint64_t)(out->count * elements[out->dtype].bytes))
        return refuse(message, "%lld elements need %lld bytes, %zu are there", (long long)out->count,
                      (long long)out->count * elements[out->dtype].bytes, data);
    out->data = b + start + header;
    return true;
}

static float load_float(cvy_dtype dtype, const unsigned char *b)
{
    uint32_t bits = 0;
    float value;
    for (int k = 0; k < elements[dtype].bytes; k++) bits |= (uint32_t)b[k] << 8 * k;
    memcpy(&value, &bits, sizeof value);
    return dtype == CVY_FLOAT32 ? value : cvyi_widen(dtype, (uint16_t)bits);
}

static void store_float(cvy_dtype dtype, float value, unsigned char *b)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype != CVY_FLOAT32) bits = cvyi_narrow(dtype, value);
    for (int k = 0; k < elements[dtype].bytes; k++) b[k] = (unsigned char)(bits >> 8 * k);
}

void npy_copy(const npy_array *a, float *dst)
{
    int64_t index[CVY_MAX_RANK] = {0}, stride[CVY_MAX_RANK], step = 1, at = 0;
    for (int i = 0; i < a->rank; i++) {
        const int d = a->fortran ? i : a->rank - 1 - i;
        stride[d] = step;
        step *= a->dims[d];
    }
    for (int64_t i = 0; i < a->count; i++) {
        dst[i] = load_float(a->dtype, a->data + at * elements[a->dtype].bytes);
        for (int d = a->rank - 1; d >= 0; d--) { /* the next index in C order, and where it is */
            at += stride[d];
            if (++index[d] < a->dims[d]) break;
            at -= index[d] * stride[d];
            index[d] = 0;
        }
    }
}

/* ---- reading ---- */

/* Everything up to the end, into memory that grows from `expected` bytes on. NULL with errno set. */
static unsigned char *read_all(int fd, size_t expected, size_t *n)
{
    size_t cap = expected + 1;
    unsigned char *all = malloc(cap), *grown;
    ssize_t got = 1;

    for (*n = 0; all && got;) {
        if (*n == cap) {
            grown = cap > SIZE_MAX / 2 ? NULL : realloc(all, cap *= 2);
            if (!grown) free(all);
            all = grown;
            continue;
        }
        got = read(fd, all + *n, cap - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            free(all);
            return NULL;
        }
        *n += (size_t)got;
    }
    return all;
}

/* A regular file or a pipe, opened without waiting: a pipe without a writer is at its end at once, others
 * are waited for when they are read. Devices and the like may never end. */
static int open_input(const char *path, struct stat *info, char *message)
{
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, info)) {
        refuse(message, "%s", strerror(errno));
    } else if (!S_ISREG(info->st_mode) && !S_ISFIFO(info->st_mode)) {
        refuse(message, "neither a regular file nor a pipe");
    } else {
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

bool npy_read(const char *path, npy_array *out, void **bytes, char *message)
{
    struct stat info;
    const int fd = open_input(path, &info, message);
    unsigned char *all;
    size_t n = 0;
    bool ok = false;

    *bytes = NULL;
    if (fd < 0) return false;
    all = read_all(fd, S_ISREG(info.st_mode) ? (size_t)info.st_size : 4096, &n);
    if (!all)
        refuse(message, "%s", strerror(errno));
    else if (!n && S_ISFIFO(info.st_mode))
        refuse(message, "a pipe without a writer");
    else
        ok = npy_parse(all, n, out, message);
    close(fd);
    if (!ok) free(all);
    if (ok) *bytes = all;
    return ok;
}

/* ---- writing ---- */

/* Version 1.0 with the data at a multiple of 64 bytes, as numpy writes it. Returns the header's bytes. */
static size_t format_header(unsigned char header[4 * HEADER_MULTIPLE], const cvy_tensor *t)
{
    char *text = (char *)header + 10;
    size_t len = (size_t)sprintf(text, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                                 npy_descr((cvy_dtype)t->dtype)),
           total;
    for (int d = 0; d < t->rank; d++)
        len += (size_t)sprintf(text + len, d ? ", %lld" : "%lld", (long long)t->dims[d]);
    len += (size_t)sprintf(text + len, t->rank == 1 ? ",), }" : "), }");
    total = (10 + len + 1 + HEADER_MULTIPLE - 1) / HEADER_MULTIPLE * HEADER_MULTIPLE;
    memset(text + len, ' ', total - 10 - len);
    header[total - 1] = '\n';
    memcpy(header, magic, sizeof magic);
    header[6] = 1;
    header[7] = 0;
    header[8] = (unsigned char)((total - 10) & 255);
    header[9] = (unsigned char)((total - 10) >> 8);
    return total;
}

static bool write_elements(FILE *file, cvy_dtype dtype, const float *data, int64_t count)
{
    unsigned char bytes[4096];
    const int each = elements[dtype].bytes, most = (int)sizeof bytes / each;
    for (int64_t done = 0; done < count;) {
        const int64_t n = count - done < most ? count - done : most;
        for (int64_t i = 0; i < n; i++) store_float(dtype, data[done + i], bytes + i * each);
        if (fwrite(bytes, (size_t)each, (size_t)n, file) != (size_t)n) return false;
        done += n;
    }
    return true;
}

bool npy_write(aside *to, const char *path, const cvy_tensor *t, const float *data, char *message)
{
    unsigned char header[4 * HEADER_MULTIPLE];
    const size_t bytes = format_header(header, t);
    int64_t count = 1;

    for (int d = 0; d < t->rank; d++) count *= t->dims[d];
    if (!aside_open(to, path)) return refuse(message, "%s", strerror(errno));
    if (fwrite(header, 1, bytes, to->file) == bytes && write_elements(to->file, (cvy_dtype)t->dtype, data, count) &&
        aside_finish(to))
        return true;
    refuse(message, "%s", strerror(errno));
    aside_discard(to);
    return false;
}
