/* test_util.c - text that grows, numbers as text, memory that can be made to fail, arenas, checked arithmetic, the
 * log. */
#include <math.h>
#include <pthread.h>
#include <unistd.h>
#include "unit.h"

static void text_grows(void **state)
{
    text t = {0};
    char *expected = malloc(100001);
    (void)state;
    for (int i = 0; i < 20000; i++) cvyi_text_add(&t, "%05d", i % 100000);
    for (int i = 0; i < 20000; i++) sprintf(expected + 5 * i, "%05d", i);
    assert_int_equal(t.len, 100000);
    assert_string_equal(t.data, expected);
    assert_false(t.failed);
    cvyi_text_free(&t);
    assert_null(t.data);
    free(expected);
}

/* A failed allocation sticks, the text that was there stays readable, and the copy says so. */
static void text_fails_once(void **state)
{
    text t = {0};
    size_t needed = 0;
    char memory[8];
    (void)state;
    cvyi_text_add(&t, "abc");
    cvyi_alloc_fail_after(0);
    cvyi_text_add(&t, "%200s", "long");
    cvyi_alloc_fail_after(-1);
    assert_true(t.failed);
    cvyi_text_add(&t, "d");
    assert_string_equal(t.data, "abc");
    assert_int_equal(cvyi_text_copy(&t, memory, sizeof memory, &needed), CVY_NO_MEMORY);
    cvyi_text_free(&t);
    assert_int_equal(cvyi_alloc_live(), 0);
}

static void check_number(double number, const char *expected)
{
    text t = {0};
    cvyi_text_add_number(&t, number);
    assert_string_equal(t.data, expected);
    cvyi_text_free(&t);
}

static void numbers_as_text(void **state)
{
    uint64_t seed = 99;
    (void)state;
    check_number(0, "0");
    check_number(-0.0, "-0");
    check_number(0.1, "0.1");
    check_number(1e-5, "1e-05");
    check_number(100, "1e+02");
    check_number(123456, "123456");
    check_number(1.0 / 3, "0.3333333333333333");
    check_number(INFINITY, "inf");
    check_number(-INFINITY, "-inf");
    check_number(NAN, "nan");
    check_number(4.9406564584124654e-324, "5e-324");
    for (int i = 0; i < 20000; i++) {
        const uint64_t bits = (uint64_t)random_next(&seed) << 32 | random_next(&seed);
        text t = {0};
        double number, back;
        memcpy(&number, &bits, sizeof number);
        if (isnan(number)) continue;
        cvyi_text_add_number(&t, number);
        back = cvyi_text_number(t.data);
        assert_memory_equal(&back, &number, sizeof number);
        assert_true(t.len < 26);
        cvyi_text_free(&t);
    }
}

static void memory(void **state)
{
    const int64_t live = cvyi_alloc_live();
    unsigned char *a, *b;
    (void)state;
    a = cvyi_alloc(10, 3);
    assert_non_null(a);
    for (int i = 0; i < 30; i++) assert_int_equal(a[i], 0);
    b = cvyi_alloc_aligned(100);
    assert_int_equal((uintptr_t)b % CVY_ALIGN, 0);
    for (int i = 0; i < 100; i++) assert_int_equal(b[i], 0);
    assert_int_equal(cvyi_alloc_live(), live + 2);
    cvyi_alloc_fail_after(1);
    a = cvyi_grow(a, 100, 3); /* number 0 goes well, number 1 does not, number 2 again */
    assert_non_null(a);
    assert_null(cvyi_strdup("text"));
    assert_string_equal(cvy_last_error(), "out of memory: 5 x 1 bytes");
    cvyi_free(cvyi_strdup("text"));
    assert_null(cvyi_grow(NULL, SIZE_MAX / 2, 3));
    assert_null(cvyi_alloc_aligned(SIZE_MAX));
    cvyi_free(a);
    cvyi_free(b);
    cvyi_free(NULL);
    assert_int_equal(cvyi_alloc_live(), live);
}

static void arenas(void **state)
{
    static const size_t sizes[] = {1, 64, 65, 1000, 20000, 3, 16384, 0};
    arena a = {0};
    (void)state;
    for (int i = 0; i < 500; i++) {
        const size_t n = sizes[i % COUNT_OF(sizes)];
        unsigned char *m = cvyi_arena_alloc(&a, n, 1);
        assert_non_null(m);
        assert_int_equal((uintptr_t)m % 64, 0);
        for (size_t k = 0; k < n; k++) assert_int_equal(m[k], 0); /* nothing of a neighbour's */
        memset(m, 0xff, n);
    }
    assert_null(cvyi_arena_alloc(&a, SIZE_MAX / 2, 4));
    cvyi_arena_free(&a);
    cvyi_arena_free(&a);
    assert_int_equal(cvyi_alloc_live(), 0);
}

static void checked_arithmetic(void **state)
{
    int64_t n = 0;
    (void)state;
    assert_true(cvyi_mul(INT64_MAX, 1, &n));
    assert_int_equal(n, INT64_MAX);
    assert_true(cvyi_mul(-3037000499, 3037000499, &n));
    assert_false(cvyi_mul(INT64_MAX, 2, &n));
    assert_false(cvyi_mul(INT64_MIN, -1, &n));
    assert_true(cvyi_add(INT64_MAX, -1, &n));
    assert_false(cvyi_add(INT64_MAX, 1, &n));
    assert_false(cvyi_add(INT64_MIN, -1, &n));
    assert_int_equal(cvyi_ceil_div(7, 3), 3);
    assert_int_equal(cvyi_ceil_div(6, 3), 2);
    assert_int_equal(cvyi_round_up(257, 256), 512);
}

/* Published values of 64-bit FNV-1a. */
static void hashes(void **state)
{
    (void)state;
    assert_true(cvyi_hash(CVYI_HASH_START, "", 0) == UINT64_C(0xcbf29ce484222325));
    assert_true(cvyi_hash(CVYI_HASH_START, "a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(cvyi_hash(CVYI_HASH_START, "foobar", 6) == UINT64_C(0x85944171f73967e8));
}

static void environment(void **state)
{
    (void)state;
    unsetenv("CVY_THREADS");
    assert_null(cvyi_env(ENV_THREADS));
    assert_int_equal(cvyi_env_int(ENV_THREADS, 3), 3);
    setenv("CVY_THREADS", "", 1);
    assert_null(cvyi_env(ENV_THREADS));
    setenv("CVY_THREADS", "8", 1);
    assert_string_equal(cvyi_env(ENV_THREADS), "8");
    assert_int_equal(cvyi_env_int(ENV_THREADS, 3), 8);
    setenv("CVY_THREADS", "8x", 1);
    assert_int_equal(cvyi_env_int(ENV_THREADS, 3), 3);
    unsetenv("CVY_THREADS");
}

static void messages(void **state)
{
    char longer[3000];
    (void)state;
    assert_int_equal(cvyi_fail(CVY_INVALID, "pass %d", 2), CVY_INVALID);
    assert_int_equal(cvyi_fail_within(CVY_FAILED, "plan %s: ", "a"), CVY_FAILED);
    assert_string_equal(cvy_last_error(), "plan a: pass 2");
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    cvyi_fail(CVY_INVALID, "%s", longer); /* cut, not overrun */
    assert_int_equal(strlen(cvy_last_error()), 1023);
    cvyi_fail_within(CVY_INVALID, "%s", longer);
    assert_int_equal(strlen(cvy_last_error()), 1023);
}

/* ---- the log ---- */

enum { LINES = 20000 };

static void *log_lines(void *word)
{
    for (int i = 0; i < LINES; i++) cvyi_log(1, "%s %d %s", (const char *)word, i, "of them");
    return NULL;
}

/* Lines of two threads do not run into each other. */
static void log_of_threads(void **state)
{
    static char words[] = "one\0two";
    FILE *file = tmpfile();
    const int before = dup(STDERR_FILENO);
    pthread_t threads[2];
    char line[100], rest[100], word[10];
    int lines = 0, number;

    (void)state;
    assert_true(file && before >= 0 && !setenv("CVY_DEBUG", "1", 1));
    dup2(fileno(file), STDERR_FILENO);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, log_lines, words + 4 * i), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    dup2(before, STDERR_FILENO);
    close(before);
    unsetenv("CVY_DEBUG");
    rewind(file);
    for (; fgets(line, sizeof line, file); lines++) {
        assert_int_equal(sscanf(line, "convoy: %9s %d %99[^\n]", word, &number, rest), 3);
        assert_string_equal(rest, "of them");
    }
    fclose(file);
    assert_int_equal(lines, 2 * LINES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_grows),     cmocka_unit_test(text_fails_once), cmocka_unit_test(numbers_as_text),
        cmocka_unit_test(memory),         cmocka_unit_test(arenas),          cmocka_unit_test(checked_arithmetic),
        cmocka_unit_test(hashes),         cmocka_unit_test(environment),     cmocka_unit_test(messages),
        cmocka_unit_test(log_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
