/* test_npy.c - the .npy reader and writer: every version and order, and what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../cli/npy.h"
#include "../standin/scratch.h"

static char message[NPY_MESSAGE];

/* A file of the given version around a header; the floats 0, 1, 2, ... follow. */
static size_t build(unsigned char *bytes, int version, const char *header, int floats)
{
    const size_t len = strlen(header), start = version == 1 ? 10 : 12;
    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (unsigned char)version;
    bytes[7] = 0;
    for (size_t i = 8; i < start; i++) bytes[i] = (unsigned char)(len >> 8 * (i - 8));
    memcpy(bytes + start, header, len);
    for (int i = 0; i < floats; i++) {
        const float value = (float)i;
        uint32_t bits;
        memcpy(&bits, &value, 4);
        for (int k = 0; k < 4; k++) bytes[start + len + 4 * (size_t)i + (size_t)k] = (unsigned char)(bits >> 8 * k);
    }
    return start + len + 4 * (size_t)floats;
}

static bool parses(int version, const char *header, int floats, npy_array *a, unsigned char *bytes)
{
    return npy_parse(bytes, build(bytes, version, header, floats), a, message);
}

static void all_versions(void **state)
{
    (void)state;
    for (int version = 1; version <= 3; version++) {
        unsigned char bytes[512];
        float got[6];
        npy_array a;
        assert_true(parses(version, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 6, &a, bytes));
        assert_int_equal(a.rank, 2);
        assert_int_equal(a.dims[0], 2);
        assert_int_equal(a.dims[1], 3);
        assert_int_equal(a.count, 6);
        npy_copy(&a, got);
        for (int i = 0; i < 6; i++) assert_true(got[i] == (float)i);
    }
}

static void fortran_order_is_turned(void **state)
{
    unsigned char bytes[512];
    float got[24];
    npy_array a;
    (void)state;
    assert_true(parses(1, "{\"fortran_order\":True,\"shape\":(2,3,4),\"descr\":\"<f4\"}", 24, &a, bytes));
    npy_copy(&a, got);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 4; k++) assert_true(got[(i * 3 + j) * 4 + k] == (float)(i + 2 * (j + 3 * k)));
}

static void small_shapes(void **state)
{
    static const struct {
        const char *shape;
        int rank, floats;
    } cases[] = {{"()", 0, 1}, {"(1,)", 1, 1}, {"(5L,)", 1, 5}, {"( 0 , 7 )", 2, 0}, {"(1,1,1,1,1,2)", 6, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char bytes[512];
        char header[128];
        float got[8];
        npy_array a;
        snprintf(header, sizeof header, "{'descr':'<f4','fortran_order':True,'shape':%s}", cases[i].shape);
        assert_true(parses(2, header, cases[i].floats, &a, bytes));
        assert_int_equal(a.rank, cases[i].rank);
        assert_int_equal(a.count, cases[i].floats);
        npy_copy(&a, got);
    }
}

#define HEAD(descr, shape) "{'descr': " descr ", 'fortran_order': False, 'shape': " shape "}"

static void refusals_say_what_was_found(void **state)
{
    static const struct {
        const char *header, *said; /* part of the message */
        int version;
    } cases[] = {
        {HEAD("'<f8'", "(2,)"), "'<f8'", 1},
        {HEAD("'>f4'", "(2,)"), "'>f4'", 1},
        {HEAD("[('a', '<f4')]", "(2,)"), "element type", 1},
        {HEAD("'<f4'", "(3,)"), "3 elements need 12 bytes, 8 are there", 1},
        {HEAD("'<f4'", "(1,)"), "1 elements need 4 bytes, 8 are there", 1},
        {HEAD("'<f4'", "(1,1,1,1,1,1,2)"), "more than 6 dimensions", 1},
        {HEAD("'<f4'", "(-2,)"), "expected an extent", 1},
        {HEAD("'<f4'", "(2"), "comma or )", 1},
        {HEAD("'<f4'", "(9223372036854775808,)"), "64 bits", 1},
        {HEAD("'<f4'", "(4611686018427387904,4)"), "64 bits", 1},
        {HEAD("'<f4'", "(0,4611686018427387904,4)"), "64 bits", 1},
        {HEAD("'<f4'", "2"), "parentheses", 1},
        {HEAD("'<f4'", "(2,)") "x", "nothing after", 1},
        {"{'descr': '<f4', 'shape': (2,)}", "'fortran_order' is missing", 1},
        {"{'descr': '<f4', 'descr': '<f4'}", "'descr' twice", 1},
        {"{'colour': 3}", "unknown key 'colour'", 1},
        {"{'descr' '<f4'}", "colon", 1},
        {"{'descr': '<f4'", "comma or }", 1},
        {"{'descr", "key in quotes", 1},
        {"", "{ at the start", 1},
        {HEAD("'<f4'", "(2,)"), "version 4.0", 4},
        {HEAD("'<f4'", "(2,)"), "version 0.0", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char bytes[512];
        npy_array a;
        assert_false(parses(cases[i].version, cases[i].header, 2, &a, bytes));
        if (!strstr(message, cases[i].said)) fail_msg("%s: said: %s", cases[i].header, message);
    }
}

/* Every prefix of a file, and every file with one byte changed, is read or refused within its bytes (the sanitizer
 * builds see the difference). */
static void damage_never_reads_outside(void **state)
{
    unsigned char bytes[512];
    const size_t n = build(bytes, 1, HEAD("'<f4'", "(2, 3)"), 6);
    npy_array a;
    (void)state;
    for (size_t len = 0; len < n; len++) {
        unsigned char *part = malloc(len + !len);
        if (len) memcpy(part, bytes, len);
        assert_false(npy_parse(part, len, &a, message));
        free(part);
    }
    for (size_t at = 0; at < n; at++) {
        for (int value = 0; value < 256; value++) {
            unsigned char *copy = malloc(n);
            float got[64];
            memcpy(copy, bytes, n);
            copy[at] = (unsigned char)value;
            if (npy_parse(copy, n, &a, message)) npy_copy(&a, got);
            free(copy);
        }
    }
}

static bool write_tensor(aside *to, const char *path, cvy_dtype dtype, int32_t rank, const int64_t *dims,
                         const float *data)
{
    cvy_tensor t = {.rank = rank, .dtype = (int32_t)dtype};
    if (rank) memcpy(t.dims, dims, (size_t)rank * sizeof *dims);
    return npy_write(to, path, &t, data, message);
}

/* Elements of 16 bits: as numpy has them for fp16, as words for bf16. */
static void halves(void **state)
{
    static const struct {
        cvy_dtype dtype;
        const char *descr;
        unsigned char bytes[8];
    } cases[] = {{CVY_FLOAT16, "'<f2'", {0x00, 0x3c, 0x00, 0xc0, 0x00, 0x7c, 0x01, 0x00}},
                 {CVY_BFLOAT16, "'<u2'", {0x80, 0x3f, 0x00, 0xc0, 0x80, 0x7f, 0x01, 0x00}}};
    char path[SCRATCH_BYTES];
    (void)state;
    close(mkstemp(scratch_name(path, "npy")));
    for (int i = 0; i < 2; i++) {
        const float data[] = {1, -2, 1.0f / 0.0f, cases[i].dtype == CVY_FLOAT16 ? 0x1p-24f : 0x1p-133f};
        npy_array a;
        void *bytes = NULL;
        float got[4];
        aside to;
        assert_true(write_tensor(&to, path, cases[i].dtype, 1, (int64_t[]){4}, data) && aside_commit(&to));
        assert_true(npy_read(path, &a, &bytes, message));
        assert_int_equal(a.dtype, cases[i].dtype);
        assert_int_equal(a.count, 4);
        assert_memory_equal(a.data, cases[i].bytes, 8);
        assert_non_null(strstr((const char *)bytes + 10, cases[i].descr));
        npy_copy(&a, got);
        assert_memory_equal(got, data, sizeof got);
        free(bytes);
    }
    unlink(path);
}

static void writes_what_it_reads(void **state)
{
    static const int64_t shapes[][CVY_MAX_RANK] = {{2, 3}, {1, 1, 1, 1, 1, 6}, {6}, {0, 4}};
    static const int32_t ranks[] = {2, 6, 1, 2};
    const float data[6] = {-0.0f, 1.5f, -3, 1e-45f, 3e38f, 7};
    char path[SCRATCH_BYTES];
    const int file = mkstemp(scratch_name(path, "npy"));
    (void)state;
    assert_true(file >= 0);
    close(file);
    for (int i = 0; i < 4; i++) {
        npy_array a;
        void *bytes = NULL;
        float got[6];
        aside to;
        assert_true(write_tensor(&to, path, CVY_FLOAT32, ranks[i], shapes[i], data));
        assert_true(aside_commit(&to));
        assert_true(npy_read(path, &a, &bytes, message));
        assert_int_equal(a.rank, ranks[i]);
        assert_memory_equal(a.dims, shapes[i], sizeof *shapes[i] * (size_t)ranks[i]);
        assert_int_equal((a.data - (unsigned char *)bytes) % 64, 0);
        npy_copy(&a, got);
        assert_memory_equal(got, data, sizeof *data * (size_t)a.count);
        free(bytes);
    }
    unlink(path);
}

/* The one float of a file. */
static float read_one(const char *path)
{
    float got = 0;
    npy_array a;
    void *bytes = NULL;
    assert_true(npy_read(path, &a, &bytes, message));
    assert_int_equal(a.count, 1);
    npy_copy(&a, &got);
    free(bytes);
    return got;
}

static void discard_leaves_the_old_file(void **state)
{
    const float one = 1, two = 2;
    char path[SCRATCH_BYTES], part[SCRATCH_BYTES + 64];
    struct stat info;
    aside to;
    (void)state;
    close(mkstemp(scratch_name(path, "npy")));
    chmod(path, 0640);
    assert_true(write_tensor(&to, path, CVY_FLOAT32, 0, NULL, &one) && aside_commit(&to));
    assert_true(!stat(path, &info) && (info.st_mode & 0777) == 0640);
    assert_true(write_tensor(&to, path, CVY_FLOAT32, 0, NULL, &two));
    snprintf(part, sizeof part, "%s", to.name);
    assert_int_equal(access(part, F_OK), 0);
    aside_discard(&to);
    assert_int_not_equal(access(part, F_OK), 0);
    assert_true(read_one(path) == 1);
    unlink(path);
}

/* What lies at the name that would be used is neither opened nor removed, a link least of all. */
static void names_that_are_taken(void **state)
{
    const float two = 2;
    char folder[SCRATCH_BYTES], path[SCRATCH_BYTES + 64], planted[SCRATCH_BYTES + 96], victim[SCRATCH_BYTES + 64];
    struct stat info;
    aside to;
    (void)state;
    assert_non_null(mkdtemp(scratch_name(folder, "npy")));
    snprintf(path, sizeof path, "%s/y.npy", folder);
    snprintf(victim, sizeof victim, "%s/victim", folder);
    snprintf(planted, sizeof planted, "%s/.convoy.%ld.0.part", folder, (long)getpid());
    assert_int_equal(symlink(victim, planted), 0);
    assert_true(write_tensor(&to, path, CVY_FLOAT32, 0, NULL, &two) && aside_commit(&to));
    assert_int_not_equal(access(victim, F_OK), 0);
    assert_true(!lstat(planted, &info) && S_ISLNK(info.st_mode));
    assert_true(read_one(path) == 2);
    unlink(planted), unlink(path), rmdir(folder);
}

/* Pipes are written into and read, not replaced; one that nobody writes into is refused at once. */
static void pipes(void **state)
{
    const float three = 3;
    char folder[SCRATCH_BYTES], path[SCRATCH_BYTES + 64];
    struct stat info;
    npy_array a;
    void *bytes = NULL;
    aside to;
    int held;
    (void)state;
    assert_non_null(mkdtemp(scratch_name(folder, "npy")));
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(npy_read(path, &a, &bytes, message));
    assert_string_equal(message, "a pipe without a writer");
    held = open(path, O_RDONLY | O_NONBLOCK); /* a reader, so that the writer need not wait */
    assert_true(write_tensor(&to, path, CVY_FLOAT32, 0, NULL, &three) && !to.name && aside_commit(&to));
    assert_true(!lstat(path, &info) && S_ISFIFO(info.st_mode));
    assert_true(read_one(path) == 3);
    close(held);
    assert_false(npy_read("/dev/zero", &a, &bytes, message));
    assert_string_equal(message, "neither a regular file nor a pipe");
    unlink(path), rmdir(folder);
}

/* A signal that ends the program takes the file away, and ends it as it would have. */
static void signals_take_it_away(void **state)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    char folder[SCRATCH_BYTES], path[SCRATCH_BYTES + 64];
    (void)state;
    assert_non_null(mkdtemp(scratch_name(folder, "npy")));
    snprintf(path, sizeof path, "%s/y.npy", folder);
    for (int i = 0; i < 4; i++) {
        int status = 0;
        const pid_t child = fork();
        if (!child) {
            const float one = 1;
            aside to[2];
            signal(numbers[i], SIG_DFL);
            if (write_tensor(&to[0], path, CVY_FLOAT32, 0, NULL, &one) &&
                write_tensor(&to[1], path, CVY_FLOAT32, 0, NULL, &one))
                raise(numbers[i]);
            _exit(1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == numbers[i]);
    }
    assert_int_equal(rmdir(folder), 0); /* it is empty */
}

static void files_that_are_not_there(void **state)
{
    npy_array a;
    void *bytes = NULL;
    const float one = 1;
    aside to;
    (void)state;
    assert_false(npy_read("/nonexistent/x.npy", &a, &bytes, message));
    assert_non_null(strstr(message, "No such file"));
    assert_false(npy_read("/tmp", &a, &bytes, message));
    assert_false(write_tensor(&to, "/nonexistent/x.npy", CVY_FLOAT32, 0, NULL, &one));
    assert_non_null(strstr(message, "No such file"));
    assert_null(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_versions),
        cmocka_unit_test(fortran_order_is_turned),
        cmocka_unit_test(small_shapes),
        cmocka_unit_test(refusals_say_what_was_found),
        cmocka_unit_test(damage_never_reads_outside),
        cmocka_unit_test(halves),
        cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(discard_leaves_the_old_file),
        cmocka_unit_test(names_that_are_taken),
        cmocka_unit_test(pipes),
        cmocka_unit_test(signals_take_it_away),
        cmocka_unit_test(files_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
