/* test_math.c - the CPU's vector loops, for every instruction set this processor has.
 *
 * Functions: error in ULP over all exponents, special values and a dense range (every float:
 * test/exhaustive_math.c). Loops: every short length against guard pages on both sides, in place, at every
 * alignment. Reductions: against plain sums in double, with bounds from the number of roundings; special values as
 * PyTorch has them. */
#include <sys/mman.h>
#include <unistd.h>

#include "unit.h"
#include "../../src/cpu/program.h"
#include "../support/math_reference.h"

enum { SHORT = 150, LONG = 10007 };

static const cpu_vector_kernels *isas[3];
static int n_isas;

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float uniform(uint64_t *state, float lo, float hi)
{
    return lo + (hi - lo) * ((float)(random_next(state) >> 8) * 0x1p-24f);
}

static void fill_uniform(float *dst, int64_t n, float lo, float hi)
{
    uint64_t state = 88172645463325252u;
    for (int64_t i = 0; i < n; i++) dst[i] = uniform(&state, lo, hi);
}

/* ---- accuracy ---- */

enum { PER_EXPONENT = 40, DENSE = 16000, SAMPLES = 512 * (PER_EXPONENT + 3) + 2 * DENSE };

static void sample_floats(float *x)
{
    uint64_t state = 4101842887655102017u;
    int n = 0;
    for (uint32_t top = 0; top < 512; top++) { /* infinities and NaNs are among them */
        x[n++] = from_bits(top << 23);
        x[n++] = from_bits(top << 23 | 1);
        x[n++] = from_bits(top << 23 | 0x7fffff);
        for (int i = 0; i < PER_EXPONENT; i++) x[n++] = from_bits(top << 23 | random_next(&state) >> 9);
    }
    for (int i = 0; i < DENSE; i++) x[n++] = uniform(&state, -4.0f, 4.0f);
    for (int i = 0; i < DENSE; i++) x[n++] = uniform(&state, -110.0f, 110.0f);
    assert_int_equal(n, SAMPLES);
}

static void check_case(const cpu_vector_kernels *k, const math_case *c, const float *x, float *y)
{
    k->unary[c->op](y, x, SAMPLES, c->p);
    for (int i = 0; i < SAMPLES; i++) {
        const double want = c->reference(x[i], c->p[0], c->p[1]);
        const double error = ulp_error(y[i], want, x[i]);
        if (!(error <= c->ulp))
            fail_msg("%s %s(%a) is %a, not %a: %g ULP", k->isa, c->name, x[i], y[i], want, error);
    }
}

static void test_ulp(void **state)
{
    static float x[SAMPLES], y[SAMPLES];
    (void)state;
    sample_floats(x);
    for (int k = 0; k < n_isas; k++) {
        for (int i = 0; i < n_math_cases; i++) check_case(isas[k], &math_cases[i], x, y);
    }
}

/* The bounds of clamp: the upper one wins, and NaN in a bound is NaN everywhere, as in PyTorch. */
static void test_clamp_bounds(void **state)
{
    const float x[3] = {-5, 0, 5}, crossed[2] = {2, -2}, open[2] = {NAN, 1}, none[2] = {-INFINITY, INFINITY};
    float y[3];
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        isas[k]->unary[OP_clamp](y, x, 3, crossed);
        for (int i = 0; i < 3; i++) assert_true(y[i] == -2);
        isas[k]->unary[OP_clamp](y, x, 3, open);
        for (int i = 0; i < 3; i++) assert_true(isnan(y[i]));
        isas[k]->unary[OP_clamp](y, x, 3, none);
        assert_memory_equal(x, y, sizeof x);
    }
}

static void test_tables(void **state)
{
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        for (int op = 0; op < OP_COUNT; op++) {
            assert_int_equal(isas[k]->unary[op] != NULL, cvyi_ops[op].kind == KIND_UNARY);
            for (int form = 0; form < BINARY_FORMS; form++) {
                assert_int_equal(isas[k]->binary[form][op] != NULL, cvyi_ops[op].kind == KIND_BINARY);
            }
        }
    }
}

/* What has a loop over vectors has a definition in libm's double to compare it with; a cast is a copy. */
static void test_every_function_is_compared(void **state)
{
    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        bool found = cvyi_ops[op].kind != KIND_UNARY || op == OP_cast;
        for (int i = 0; i < n_math_cases; i++) found = found || (int)math_cases[i].op == op;
        if (!found) fail_msg("%s has no row in test/support/math_reference.c", cvyi_ops[op].name);
    }
}

/* ---- loops at their edges ---- */

/* Room for SHORT floats between two pages that must not be touched; at_end: the room ends at the second one. */
typedef struct fenced {
    char *map;
    float *first, *end;
    size_t page;
} fenced;

static fenced fenced_make(void)
{
    fenced f = {.page = (size_t)sysconf(_SC_PAGESIZE)};
    f.map = mmap(NULL, 3 * f.page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.map != MAP_FAILED);
    assert_int_equal(mprotect(f.map + f.page, f.page, PROT_READ | PROT_WRITE), 0);
    f.first = (float *)(void *)(f.map + f.page), f.end = (float *)(void *)(f.map + 2 * f.page);
    return f;
}

static void fenced_free(fenced *f)
{
    munmap(f->map, 3 * f->page);
}

/* Runs `unary` on n floats that touch a guard page, and compares with the same in the middle of a large run. */
static void check_unary_edges(cpu_unary_fn *unary, const float p[2], const fenced *in, const fenced *out)
{
    float x[SHORT], want[SHORT];
    fill_uniform(x, SHORT, -3, 3);
    unary(want, x, SHORT, p);
    for (int n = 0; n < SHORT; n++) {
        for (int at_end = 0; at_end < 2; at_end++) {
            float *src = at_end ? in->end - n : in->first, *dst = at_end ? out->end - n : out->first;
            memcpy(src, x, sizeof(float) * (size_t)n);
            if (at_end)
                dst[-1] = 77;
            else
                dst[n] = 77;
            unary(dst, src, n, p);
            assert_memory_equal(dst, want, sizeof(float) * (size_t)n);
            assert_true((at_end ? dst[-1] : dst[n]) == 77);
            unary(src, src, n, p);
            assert_memory_equal(src, want, sizeof(float) * (size_t)n);
        }
    }
}

static void test_unary_edges(void **state)
{
    fenced in = fenced_make(), out = fenced_make();
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        for (int i = 0; i < n_math_cases; i++) {
            check_unary_edges(isas[k]->unary[math_cases[i].op], math_cases[i].p, &in, &out);
        }
    }
    fenced_free(&in), fenced_free(&out);
}

static float binary_want(op_id op, float a, float b, float alpha)
{
    switch (op) {
    case OP_add:
        return a + alpha * b;
    case OP_sub:
        return a - alpha * b;
    case OP_mul:
        return a * b;
    case OP_div:
        return a / b;
    case OP_maximum:
        return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
    default:
        return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
    }
}

static void check_binary(const cpu_vector_kernels *k, op_id op, int form, int n, int in_place)
{
    static float a[SHORT + 1], b[SHORT + 1], dst[SHORT + 1];
    float alpha = op == OP_add ? 3 : 1, wants[SHORT], *out = in_place == 0 ? dst : in_place == 1 ? a : b;
    for (int i = 0; i <= SHORT; i++) {
        a[i] = (float)(i % 13 - 6), b[i] = (float)(i % 7 - 3), dst[i] = 77; /* small whole numbers: exact */
        if (i % 11 == 5) a[i] = NAN;
        if (i % 17 == 9) b[i] = NAN;
    }
    for (int i = 0; i < n; i++) {
        wants[i] = binary_want(op, a[form == BINARY_SV ? 0 : i], b[form == BINARY_VS ? 0 : i], alpha);
    }
    const float after = out[n];
    k->binary[form][op](out, a, b, n, alpha);
    for (int i = 0; i < n; i++) {
        const bool same = out[i] == wants[i] || (isnan(out[i]) && isnan(wants[i]));
        if (!same)
            fail_msg("%s %s form %d n %d [%d]: %g, not %g", k->isa, cvyi_ops[op].name, form, n, i, out[i],
                     wants[i]);
    }
    assert_memory_equal(&out[n], &after, sizeof after);
}

static void test_binary(void **state)
{
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        for (op_id op = OP_add; op <= OP_minimum; op++) {
            for (int n = 0; n < SHORT; n++) {
                for (int form = 0; form < BINARY_FORMS; form++) {
                    for (int in_place = 0; in_place < 3; in_place++) check_binary(isas[k], op, form, n, in_place);
                }
            }
        }
    }
}

/* Copies and affine maps at every alignment of the output: streaming stores must find their boundary. */
static void check_copies(const cpu_vector_kernels *k, int n, int shift)
{
    static float src[SHORT], buffer[SHORT + 40], scale[SHORT], add[SHORT];
    float *dst = buffer + 1 + shift;
    for (int i = 0; i < SHORT; i++) src[i] = (float)i, scale[i] = (float)(i % 5), add[i] = (float)(i % 3);
    const float p[2] = {0, 0}, three = 3, row[3] = {1, 2, -1};
    for (int which = 0; which < 14; which++) {
        for (int i = 0; i < SHORT + 40; i++) buffer[i] = 77;
        if (which == 0) k->copy(dst, src, n);
        if (which == 1) k->copy_stream(dst, src, n);
        if (which == 2) k->affine(dst, src, n, 2, -1);
        if (which == 3) k->affine_stream(dst, src, n, 2, -1);
        if (which == 4) k->affine_vec(dst, src, n, scale, add);
        if (which == 5) k->fill(dst, n, 5);
        if (which == 6) k->pivot(dst, src, n, 3, 2, -1);
        if (which == 7) k->pivot_stream(dst, src, n, 3, 2, -1);
        if (which == 8) k->unary_stream[OP_neg](dst, src, n, p);
        if (which == 9) k->binary_stream[BINARY_VV][OP_sub](dst, scale, src, n, 1);
        if (which == 10) k->binary_stream[BINARY_VS][OP_sub](dst, src, &three, n, 1);
        if (which == 11) k->binary_stream[BINARY_SV][OP_sub](dst, &three, src, n, 1);
        if (which == 12) k->pivot_vec(dst, src, n, row, scale, add);
        if (which == 13) k->pivot_vec_stream(dst, src, n, row, scale, add);
        k->stream_end();
        for (int i = 0; i < n; i++) {
            const float want = which < 2    ? src[i]
                               : which < 4  ? 2 * src[i] - 1
                               : which < 5  ? src[i] * scale[i] + add[i]
                               : which < 6  ? 5
                               : which < 8  ? 2 * (src[i] - 3) - 1
                               : which < 9  ? -src[i]
                               : which < 10 ? scale[i] - src[i]
                               : which < 11 ? src[i] - 3
                               : which < 12 ? 3 - src[i]
                                            : (2 * (src[i] - 1) - 1) * scale[i] + add[i];
            assert_true(dst[i] == want);
        }
        assert_true(dst[-1] == 77 && dst[n] == 77);
    }
}

static void test_copies(void **state)
{
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        for (int n = 0; n < SHORT; n++) {
            for (int shift = 0; shift < 17; shift++) check_copies(isas[k], n, shift);
        }
    }
}

/* ---- reductions ---- */

/* Whole numbers: every order of summation is exact, so indexing alone is on trial. The input touches a guard page.
 */
static void test_sums_exact(void **state)
{
    fenced room = fenced_make();
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        const cpu_reduce_kernels *r = isas[k]->reduce;
        for (int n = 0; n < SHORT; n++) {
            float *x = room.end - n, top = -INFINITY, low = INFINITY;
            double sum = 0, squares = 0;
            for (int i = 0; i < n; i++) {
                x[i] = (float)((i * 37 + n) % 101 - 50);
                sum += x[i], squares += (x[i] - 3.0) * (x[i] - 3.0);
                top = x[i] > top ? x[i] : top, low = x[i] < low ? x[i] : low;
            }
            assert_true(r->sum(x, n) == sum && r->sum_squares(x, n, 3) == squares);
            assert_true(r->max(x, n) == top && r->min(x, n) == low);
            for (int i = 0; i < n; i++) { /* a NaN in every place */
                const float kept = x[i];
                x[i] = NAN;
                assert_true(isnan(r->max(x, n)) && isnan(r->min(x, n)) && isnan(r->sum(x, n)));
                assert_true(isnan(cvyi_reduce_row(r, OP_logsumexp, x, n)));
                x[i] = kept;
            }
        }
    }
    fenced_free(&room);
}

static cpu_moments plain_moments(const float *x, int64_t n)
{
    long double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    for (int64_t i = 0; i < n; i++) squares += (x[i] - sum / n) * (x[i] - sum / n);
    return (cpu_moments){(double)n, (double)(sum / n), (double)squares};
}

/* Each lane adds 16 values in float, 4 lanes are merged in float: 18 roundings of 2^-24 of the sum of magnitudes. A
 * square has 3 more. m2 is of offsets from the mean: no cancellation, whatever the mean. */
static void check_moments(const cpu_reduce_kernels *r, const float *x, int64_t n)
{
    const cpu_moments want = plain_moments(x, n), got = r->moments(x, n);
    double size = 0;
    for (int64_t i = 0; i < n; i++) size += fabs(x[i]);
    assert_true(fabs(r->sum(x, n) - want.mean * (double)n) <= 18 * 0x1p-24 * size);
    assert_true(got.n == want.n && fabs(got.mean - want.mean) <= 20 * 0x1p-24 * sqrt(want.m2 / want.n));
    if (!(fabs(got.m2 - want.m2) <= 21 * 0x1p-24 * want.m2)) fail_msg("m2 %.9g, not %.9g", got.m2, want.m2);
}

static void test_moments(void **state)
{
    static float x[LONG];
    static const float range[][2] = {{-1, 1},          {0, 1},          {999, 1001},
                                     {1e6f, 1e6f + 8}, {-3e-3f, 1e-3f}, {1e18f, 3e18f}};
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        const cpu_reduce_kernels *r = isas[k]->reduce;
        for (size_t i = 0; i < sizeof range / sizeof range[0]; i++) {
            fill_uniform(x, LONG, range[i][0], range[i][1]);
            check_moments(r, x, LONG);
            check_moments(r, x + 1, 4096);
            check_moments(r, x + 2, 77);
        }
        for (int i = 0; i < LONG; i++) x[i] = i % 2 ? 3e38f : 2e38f; /* sums and squares beyond the floats */
        check_moments(r, x, LONG);
        for (int i = 0; i < LONG; i++) x[i] = 0.1f; /* a constant has no spread at all */
        assert_true(r->moments(x, LONG).m2 == 0 && r->moments(x, LONG).mean == 0.1f);
        assert_true(r->moments(x, 0).n == 0 && r->moments(x, 1).m2 == 0);
    }
}

/* The value is a function of the data: neither the address nor what lies around it matters. */
static void test_sums_repeat(void **state)
{
    static float x[LONG + 32];
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        double first = 0;
        for (int shift = 0; shift < 20; shift++) {
            fill_uniform(x + shift, LONG, -1, 1);
            const double s = isas[k]->reduce->sum_squares(x + shift, LONG, 0.25f);
            if (shift == 0) first = s;
            assert_true(s == first);
        }
    }
}

/* exp(x - m) rounds x - m (1/2 ULP of up to 20: 16 * 2^-24 of the result) and has 2 ULP of its own. */
static void test_exp_rows(void **state)
{
    static float x[LONG], y[LONG];
    (void)state;
    fill_uniform(x, LONG, -10, 10);
    for (int k = 0; k < n_isas; k++) {
        const cpu_reduce_kernels *r = isas[k]->reduce;
        for (int n = 1; n < LONG; n = n * 3 + 1) {
            const cpu_max_sum_exp got = r->max_sum_exp(x, n);
            double sum = 0;
            for (int i = 0; i < n; i++) sum += exp((double)x[i] - got.max);
            assert_true(got.max == r->max(x, n) && fabs(got.sum - sum) <= 40 * 0x1p-24 * sum);
            assert_true(fabs(cvyi_reduce_row(r, OP_logsumexp, x, n) - (got.max + log(sum))) <=
                        40 * 0x1p-24 + 0x1p-24 * 10);
            assert_true(r->exp_sum(y, x, n, got.max) == got.sum);
            for (int i = 0; i < n; i++) {
                const double want = exp((double)x[i] - got.max);
                assert_true(fabs(y[i] - want) <= 40 * 0x1p-24 * want);
            }
        }
    }
}

/* As torch.logsumexp: all -inf, none at all, an inf, inf and -inf, large values. */
static void test_logsumexp_special(void **state)
{
    const float none[3] = {-INFINITY, -INFINITY, -INFINITY}, both[3] = {-INFINITY, INFINITY, 1};
    const float large[2] = {1e30f, 1e30f}, partly[3] = {-INFINITY, 2, -INFINITY};
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        const cpu_reduce_kernels *r = isas[k]->reduce;
        assert_true(cvyi_reduce_row(r, OP_logsumexp, none, 3) == -INFINITY &&
                    cvyi_reduce_row(r, OP_logsumexp, none, 0) == -INFINITY);
        assert_true(cvyi_reduce_row(r, OP_logsumexp, both, 3) == INFINITY &&
                    cvyi_reduce_row(r, OP_logsumexp, large, 2) == 1e30f);
        assert_true(cvyi_reduce_row(r, OP_logsumexp, partly, 3) == 2);
        assert_true(isnan(r->max_sum_exp(both, 3).sum) && isnan(r->max_sum_exp(none, 3).sum)); /* softmax is NaN */
    }
}

/* Rows reduced into one: m, shift, sum of exponentials, logarithm; each column has its own special case. */
static void check_vertical(const cpu_reduce_kernels *r, int n, float rows[][SHORT], int count)
{
    float m[SHORT], s[SHORT] = {0}, low[SHORT], total[SHORT] = {0}, y[SHORT];
    for (int i = 0; i < SHORT; i++) m[i] = -INFINITY, low[i] = INFINITY;
    for (int j = 0; j < count; j++) {
        r->max_to(m, rows[j], n), r->min_to(low, rows[j], n), r->add_to(total, rows[j], n);
    }
    for (int i = 0; i < n; i++) {
        double sum = 0, lse = 0;
        float top = -INFINITY, bottom = INFINITY;
        for (int j = 0; j < count; j++) {
            const float v = rows[j][i];
            sum += v, lse += exp(v);
            top = isnan(v) || v > top ? v : top, bottom = isnan(v) || v < bottom ? v : bottom;
            if (isnan(v)) break;
        }
        y[i] = (float)log(lse);
        assert_true(m[i] == top || (isnan(m[i]) && isnan(top)));
        assert_true(low[i] == bottom || (isnan(low[i]) && isnan(bottom)));
        assert_true(total[i] == sum || isnan(total[i]));
    }
    for (int j = 0; j < count; j++) r->add_exp_to(s, rows[j], m, n);
    r->finish_logsumexp(m, m, s, n);
    for (int i = 0; i < n; i++) {
        if (isnan(y[i]) || isinf(y[i]))
            assert_true(m[i] == y[i] || (isnan(m[i]) && isnan(y[i])));
        else
            assert_true(fabsf(m[i] - y[i]) <= 16 * 0x1p-24f * (1 + fabsf(y[i])));
    }
    for (int i = n; i < SHORT; i++) assert_true(m[i] == -INFINITY && s[i] == 0 && total[i] == 0);
}

static void test_vertical(void **state)
{
    static float rows[5][SHORT];
    (void)state;
    for (int j = 0; j < 5; j++) {
        for (int i = 0; i < SHORT; i++) {
            rows[j][i] = (float)((i * 7 + j * 3) % 19 - 9);
            if (i % 10 == 3) rows[j][i] = -INFINITY;
            if (i % 10 == 5 && j == i % 5) rows[j][i] = INFINITY;
            if (i % 10 == 7 && j == i % 4) rows[j][i] = NAN;
            if (i % 10 == 9 && j > 0) rows[j][i] = -INFINITY;
        }
    }
    for (int k = 0; k < n_isas; k++) {
        for (int n = 0; n < SHORT; n++) check_vertical(isas[k]->reduce, n, rows, 5);
    }
}

static void test_exp_sum_to(void **state)
{
    float x[SHORT], m[SHORT], s[SHORT], y[SHORT];
    (void)state;
    for (int i = 0; i < SHORT; i++) x[i] = (float)(i % 9), m[i] = 8;
    for (int k = 0; k < n_isas; k++) {
        for (int n = 0; n < SHORT; n++) {
            for (int i = 0; i < SHORT; i++) y[i] = 77, s[i] = (float)(i % 4);
            isas[k]->reduce->exp_sum_to(y, x, m, s, n);
            for (int i = 0; i < n; i++) assert_true(ulp_error(y[i], exp((double)x[i] - 8), x[i]) <= 2);
            for (int i = 0; i < n; i++) assert_true(s[i] == (float)(i % 4) + y[i]);
            for (int i = n; i < SHORT; i++) assert_true(y[i] == 77 && s[i] == (float)(i % 4));
        }
    }
}

/* Sums of blocks under one maximum; a block of nothing but -inf counts for nothing, whatever its sum is. */
static void test_rescale(void **state)
{
    (void)state;
    for (int k = 0; k < n_isas; k++) {
        for (int n = 0; n < SHORT; n++) {
            float s[SHORT], m[SHORT], top[SHORT];
            for (int i = 0; i < SHORT; i++)
                s[i] = i % 3 ? 2 : NAN, m[i] = i % 3 ? 5 : -INFINITY, top[i] = 5 + i % 2;
            isas[k]->reduce->rescale(s, m, top, n);
            for (int i = 0; i < n; i++) {
                if (i % 3)
                    assert_true(ulp_error(s[i], 2 * exp(-i % 2), s[i]) <= 2);
                else
                    assert_true(s[i] == 0);
            }
            for (int i = n; i < SHORT; i++) assert_true(i % 3 ? s[i] == 2 : isnan(s[i]));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ulp),
        cmocka_unit_test(test_clamp_bounds),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_unary_edges),
        cmocka_unit_test(test_binary),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_sums_exact),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_sums_repeat),
        cmocka_unit_test(test_exp_rows),
        cmocka_unit_test(test_vertical),
        cmocka_unit_test(test_logsumexp_special),
        cmocka_unit_test(test_exp_sum_to),
        cmocka_unit_test(test_rescale),
        cmocka_unit_test(test_every_function_is_compared),
    };
    n_isas = runnable_kernels(isas);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
