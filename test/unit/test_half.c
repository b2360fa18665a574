/* test_half.c - fp16 and bf16 words: every one of them, and every place where rounding turns. */
#include <math.h>
#include "../../src/cpu/convert.h"
#include "../../src/cpu/cpuinfo.h"
#include "../../src/cpu/pointwise.h"
#include "../../src/util/half.h"
#include "unit.h"

static const struct format {
    cvy_dtype dtype;
    int fraction, bias;
    unsigned inf;
} formats[] = {{CVY_FLOAT16, 10, 15, 0x7c00}, {CVY_BFLOAT16, 7, 127, 0x7f80}};

/* By the definition of the format; finite words. */
static double value_of(const struct format *f, unsigned word)
{
    const int exponent = (int)(word >> f->fraction) & (int)(f->inf >> f->fraction);
    const int fraction = (int)(word & ((1u << f->fraction) - 1));
    const double one = exponent ? (double)(1 << f->fraction) : 0;
    return (word >> 15 ? -1 : 1) * ldexp(one + fraction, (exponent ? exponent : 1) - f->bias - f->fraction);
}

static void every_word(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(formats); i++) {
        const struct format *f = &formats[i];
        for (unsigned w = 0; w < 65536; w++) {
            const float wide = cvyi_widen(f->dtype, (uint16_t)w);
            const unsigned magnitude = w & 0x7fff, quiet = 1u << (f->fraction - 1);
            if (magnitude < f->inf) {
                if ((double)wide != value_of(f, w) || !signbit(wide) != !(w >> 15)) fail_msg("%04x: %a", w, wide);
            } else if (magnitude == f->inf) {
                assert_true(isinf(wide) && !signbit(wide) == !(w >> 15));
            } else {
                assert_true(isnan(wide));
            }
            assert_int_equal(cvyi_narrow(f->dtype, (double)wide), magnitude > f->inf ? w | quiet : w);
        }
    }
}

/* One word of any kind among finite ones, at either end or between. */
static void finite_words(void **state)
{
    uint16_t words[67];
    (void)state;
    for (int i = 0; i < COUNT_OF(formats); i++) {
        const struct format *f = &formats[i];
        for (unsigned w = 0; w < 65536; w++) {
            const int at = (int)(w % COUNT_OF(words));
            for (int k = 0; k < COUNT_OF(words); k++) words[k] = (uint16_t)(f->inf - 1 - (unsigned)k);
            words[at] = (uint16_t)w;
            assert_int_equal(cvyi_all_finite_words(f->dtype, words, COUNT_OF(words)), (w & 0x7fff) < f->inf);
        }
        assert_true(cvyi_all_finite_words(f->dtype, words, 0));
    }
}

static void narrows_to(const struct format *f, double x, unsigned want)
{
    for (int sign = 0; sign < 2; sign++) {
        const unsigned got = cvyi_narrow(f->dtype, sign ? -x : x);
        if (got != (want | (unsigned)sign << 15))
            fail_msg("%s of %a: %04x, expected %04x", f->fraction == 7 ? "bf16" : "fp16", sign ? -x : x, got, want);
    }
}

/* Between neighbours: the middle goes to the even one, the next double on either side to the nearer one. A way
 * through float32 would round the latter twice. After the largest number comes infinity, at its distance. */
static void every_tie(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(formats); i++) {
        const struct format *f = &formats[i];
        for (unsigned w = 0; w < f->inf; w++) {
            const double a = value_of(f, w), middle = a + (a - (w ? value_of(f, w - 1) : -value_of(f, 1))) / 2;
            /* Below a power of 2 the distance to the number below is half of that to the one above. */
            const double tie = w + 1 < f->inf ? (a + value_of(f, w + 1)) / 2 : middle;
            narrows_to(f, a, w);
            narrows_to(f, tie, w & 1 ? w + 1 : w);
            narrows_to(f, nextafter(tie, 0), w);
            narrows_to(f, nextafter(tie, INFINITY), w + 1);
        }
        narrows_to(f, 0x1p-200, 0);
        narrows_to(f, 0x1p-1074, 0);
        narrows_to(f, 0x1.fffffffffffffp1023, f->inf);
        narrows_to(f, INFINITY, f->inf);
    }
}

static void elements(void **state)
{
    uint16_t words[2] = {0};
    float floats[2] = {0};
    (void)state;
    cvyi_element_set(CVY_FLOAT16, words, 1, 65519);
    assert_int_equal(words[1], 0x7bff);
    cvyi_element_set(CVY_FLOAT16, words, 1, 65520);
    assert_int_equal(words[1], 0x7c00);
    cvyi_element_set(CVY_BFLOAT16, words, 0, 1.00390625); /* 1 + 2^-8, a tie */
    assert_int_equal(words[0], 0x3f80);
    assert_true(cvyi_element(CVY_BFLOAT16, words, 0) == 1 && isinf(cvyi_element(CVY_FLOAT16, words, 1)));
    cvyi_element_set(CVY_FLOAT32, floats, 1, 0.1);
    assert_true(floats[1] == 0.1f && cvyi_element(CVY_FLOAT32, floats, 1) == 0.1f);
}

/* ---- the CPU's loops: the same bits under every instruction set, nothing outside of a run touched ---- */

enum { WORDS = 65536, GUARD = 40 };
static const uint16_t untouched = 0x1234;

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void check_widen(const cpu_convert_kernels *k, cvy_dtype dtype, const char *isa)
{
    static uint16_t words[WORDS];
    static float wide[WORDS];
    for (int w = 0; w < WORDS; w++) words[w] = (uint16_t)w;
    k->widen[dtype](wide, words, WORDS);
    for (int w = 0; w < WORDS; w++)
        if (bits_of(wide[w]) != bits_of(cvyi_widen(dtype, (uint16_t)w)))
            fail_msg("%s: %04x is %a", isa, w, wide[w]);
}

/* Every word, what is halfway to the next, and the floats beside that; NaNs too. */
static void check_narrow(const cpu_convert_kernels *k, const struct format *f, bool stream, const char *isa)
{
    static float floats[4 * WORDS];
    static uint16_t words[4 * WORDS];
    for (unsigned w = 0; w < WORDS; w++) {
        const unsigned next = (w & 0x7fff) < f->inf ? w + 1 : w;
        const float a = cvyi_widen(f->dtype, (uint16_t)w);
        const float tie =
            isinf(cvyi_widen(f->dtype, (uint16_t)next)) ? a : (a + cvyi_widen(f->dtype, (uint16_t)next)) / 2;
        floats[4 * w] = a;
        floats[4 * w + 1] = tie;
        floats[4 * w + 2] = nextafterf(tie, 0);
        floats[4 * w + 3] = nextafterf(tie, copysignf(INFINITY, tie));
    }
    (stream ? k->narrow_stream : k->narrow)[f->dtype](words, floats, COUNT_OF(floats));
    for (int i = 0; i < COUNT_OF(floats); i++)
        if (words[i] != cvyi_narrow(f->dtype, floats[i])) fail_msg("%s: %a is %04x", isa, floats[i], words[i]);
}

static void check_ends(const cpu_convert_kernels *k, cvy_dtype dtype)
{
    static uint16_t words[GUARD + 100 + GUARD];
    static float floats[GUARD + 100 + GUARD];
    for (int n = 0; n < 100; n++)
        for (int at = 0; at < 33; at += 1 + n / 40) {
            for (int i = 0; i < COUNT_OF(words); i++) words[i] = untouched, floats[i] = -1;
            k->widen[dtype](floats + at, words + at, n);
            for (int i = 0; i < COUNT_OF(floats); i++)
                assert_true(i >= at && i < at + n ? floats[i] == cvyi_widen(dtype, untouched) : floats[i] == -1);
            for (int stream = 0; stream < 2; stream++) {
                for (int i = 0; i < COUNT_OF(words); i++) words[i] = untouched, floats[i] = 1;
                (stream ? k->narrow_stream : k->narrow)[dtype](words + at, floats + at, n);
                for (int i = 0; i < COUNT_OF(words); i++)
                    assert_true(words[i] == (i >= at && i < at + n ? cvyi_narrow(dtype, 1) : untouched));
            }
        }
}

/* A pivot to words is the vector loop's, narrowed: whole lines, and what is left at both ends. */
static void check_pivot(const cpu_convert_kernels *k, const cpu_vector_kernels *vec, cvy_dtype dtype)
{
    const float p[] = {1.25f, 0.7f, -3};
    static float x[200], wide[200];
    static uint16_t words[GUARD + 200 + GUARD];
    for (int i = 0; i < 200; i++) x[i] = 0.37f * (float)(i % 17) - 2;
    vec->pivot(wide, x, 200, p[0], p[1], p[2]);
    for (int n = 0; n <= 200; n += 1 + n / 3)
        for (int at = 0; at < 66; at++) {
            const bool stream = at % 2;
            for (int i = 0; i < COUNT_OF(words); i++) words[i] = untouched;
            (stream ? k->pivot_stream : k->pivot)[dtype](words + at / 2, x, n, p);
            for (int i = 0; i < COUNT_OF(words); i++) {
                const bool inside = i >= at / 2 && i < at / 2 + n;
                assert_int_equal(words[i], inside ? cvyi_narrow(dtype, wide[i - at / 2]) : untouched);
            }
        }
}

static void every_instruction_set(void **state)
{
    static const cpu_vector_kernels *const vectors[] = CPU_KERNELS(cvyi_vector);
    static const cpu_convert_kernels *const kernels[] = CPU_KERNELS(cvyi_convert);
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        for (int i = 0; i < COUNT_OF(formats); i++) {
            check_widen(kernels[isa], formats[i].dtype, cvyi_isa_name((cpu_isa)isa));
            check_narrow(kernels[isa], &formats[i], false, cvyi_isa_name((cpu_isa)isa));
            check_narrow(kernels[isa], &formats[i], true, cvyi_isa_name((cpu_isa)isa));
            check_ends(kernels[isa], formats[i].dtype);
            check_pivot(kernels[isa], vectors[isa], formats[i].dtype);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_word),
        cmocka_unit_test(every_tie),
        cmocka_unit_test(finite_words),
        cmocka_unit_test(elements),
        cmocka_unit_test(every_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
