/* test_conv.c - the CPU convolution cores against plain loops in double: every algorithm, every instruction set of
 * this processor, random geometries (the seed of a failing case is printed), guard floats around every buffer.
 *
 * Small whole numbers: every sum is exact in float, so the direct forms must agree to the bit. Winograd is held to
 * the error bound that its transforms derive: see bound_of(). */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../src/cpu/conv.h"
#include "../../src/util/half.h"

enum { GUARD = 64, CASES = 250 };
static const float guard_value = -12345.75f;

static uint64_t state;
static uint64_t next(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}
static int64_t between(int64_t lo, int64_t hi)
{
    return lo + (int64_t)(next() >> 11) % (hi - lo + 1);
}
static float real(void)
{
    return (float)(next() >> 40) / (1 << 24);
}

static int isas(const cpu_conv_kernels *out[3])
{
    int n = 0;
    out[n++] = &cvyi_conv_portable;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[n++] = &cvyi_conv_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) out[n++] = &cvyi_conv_avx512;
#elif defined(__aarch64__)
    out[n++] = &cvyi_conv_neon;
#endif
    return n;
}

/* What is running; printed by failures. */
static char running[400];
static void describe(const char *algo, const char *isa, uint64_t seed, const conv_geom *g)
{
#define THREE(a) (long long)a[0], (long long)a[1], (long long)a[2]
    snprintf(running, sizeof running,
             "%s %s seed %llu: C %lld K %lld groups %lld in %lld,%lld,%lld out %lld,%lld,%lld kernel "
             "%lld,%lld,%lld stride "
             "%lld,%lld,%lld dil %lld,%lld,%lld pad %lld,%lld,%lld",
             algo, isa, (unsigned long long)seed, (long long)g->C, (long long)g->K, (long long)g->groups,
             THREE(g->in), THREE(g->out), THREE(g->kernel), THREE(g->stride), THREE(g->dil), THREE(g->pad));
#undef THREE
}

#define FAIL(...)                                                                                                  \
    do {                                                                                                           \
        print_error("%s\n", running);                                                                              \
        fail_msg(__VA_ARGS__);                                                                                     \
    } while (0)
#define MUST(condition)                                                                                            \
    do {                                                                                                           \
        if (!(condition)) FAIL("%s", #condition);                                                                  \
    } while (0)

/* Floats with guards before and after. */
static float *guarded(int64_t n)
{
    float *p = malloc((size_t)(n + 2 * GUARD) * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n + 2 * GUARD; i++) p[i] = guard_value;
    return p + GUARD;
}
static void check_guards(float *p, int64_t n, const char *what)
{
    for (int i = 0; i < GUARD; i++)
        if (p[-1 - i] != guard_value || p[n + i] != guard_value) FAIL("written outside %s", what);
}
static void release(float *p)
{
    if (p) free(p - GUARD);
}

/* Floats that end (or, by chance, begin) at a page which must not be touched: the input, of which kernels must not
 * read a byte too much. */
static size_t fenced_bytes(int64_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return ((size_t)n * sizeof(float) + page - 1) / page * page + 2 * page;
}
static float *fenced(int64_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = fenced_bytes(n);
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    assert_int_equal(mprotect(p, page, PROT_NONE) | mprotect(p + bytes - page, page, PROT_NONE), 0);
    return between(0, 1) ? (float *)(p + page) : (float *)(p + bytes - page) - n;
}
static void unfence(float *x, int64_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap((void *)((uintptr_t)x / page * page - page), fenced_bytes(n));
}

/* One sample, all in double. */
typedef struct sample {
    conv_geom g;
    int64_t nx, nw, ny;
    float *x, *w, *bias;
    double *y, *size; /* result; sum of |x w|, for bounds */
    double max_x, max_w;
} sample;

static double tap(const sample *s, int64_t k, const int64_t at[3], double *size)
{
    const conv_geom *g = &s->g;
    const int64_t cg = g->C / g->groups, c0 = k / (g->K / g->groups) * cg, taps = cvyi_conv_taps(g);
    double sum = 0;
    for (int64_t c = 0; c < cg; c++)
        for (int64_t t = 0; t < taps; t++) {
            const int64_t r[3] = {t / (g->kernel[1] * g->kernel[2]), t / g->kernel[2] % g->kernel[1],
                                  t % g->kernel[2]};
            int64_t i[3];
            bool in = true;
            for (int a = 0; a < 3; a++) {
                i[a] = at[a] * g->stride[a] - g->pad[a] + r[a] * g->dil[a];
                in = in && i[a] >= 0 && i[a] < g->in[a];
            }
            if (!in) continue;
            const double p = (double)s->w[(k * cg + c) * taps + t] *
                             (double)s->x[(((c0 + c) * g->in[0] + i[0]) * g->in[1] + i[1]) * g->in[2] + i[2]];
            sum += p;
            *size += fabs(p);
        }
    return sum;
}

static void reference(sample *s)
{
    const conv_geom *g = &s->g;
    int64_t n = 0;
    for (int64_t k = 0; k < g->K; k++)
        for (int64_t o = 0; o < g->out[0]; o++)
            for (int64_t p = 0; p < g->out[1]; p++)
                for (int64_t q = 0; q < g->out[2]; q++, n++) {
                    const int64_t at[3] = {o, p, q};
                    s->size[n] = fabs((double)s->bias[k]);
                    s->y[n] = (double)s->bias[k] + tap(s, k, at, &s->size[n]);
                }
}

static void make_sample(sample *s, const conv_geom *g, bool whole)
{
    s->g = *g;
    s->nx = g->C * g->in[0] * g->in[1] * g->in[2];
    s->nw = g->K * (g->C / g->groups) * cvyi_conv_taps(g);
    s->ny = g->K * g->out[0] * g->out[1] * g->out[2];
    s->x = fenced(s->nx), s->w = guarded(s->nw), s->bias = guarded(g->K);
    s->y = malloc((size_t)s->ny * sizeof *s->y), s->size = malloc((size_t)s->ny * sizeof *s->size);
    for (int64_t i = 0; i < s->nx; i++) s->x[i] = whole ? (float)between(-8, 8) : real();
    for (int64_t i = 0; i < s->nw; i++) s->w[i] = whole ? (float)between(-4, 4) : 2 * real() - 1;
    for (int64_t i = 0; i < g->K; i++) s->bias[i] = whole ? (float)between(-9, 9) : real();
    s->max_x = s->max_w = 0;
    for (int64_t i = 0; i < s->nx; i++) s->max_x = fmax(s->max_x, fabs((double)s->x[i]));
    for (int64_t i = 0; i < s->nw; i++) s->max_w = fmax(s->max_w, fabs((double)s->w[i]));
    reference(s);
}
static void free_sample(sample *s)
{
    unfence(s->x, s->nx), release(s->w), release(s->bias);
    free(s->y), free(s->size);
}

static void random_geom(conv_geom *g, bool winograd, bool depthwise)
{
    const bool wide = between(0, 3) == 0;
    *g = (conv_geom){.N = 1, .spatial = (int)between(1, 3), .bias = true};
    g->groups = winograd ? 1 : between(0, 2) ? 1 : between(1, 5);
    if (depthwise) g->groups = between(1, 9);
    g->C = g->groups * (depthwise ? 1 : between(1, 9));
    g->K = g->groups * (depthwise ? between(1, 3) : between(1, 19));
    if (winograd && between(0, 9) == 0) g->C = between(90, 210);
    for (int a = 0; a < 3; a++) {
        const bool exists = a >= 3 - g->spatial;
        const int64_t most = a == 2 && wide ? 150 : a ? 20 : 4;
        const bool fixed = winograd && a > 0;
        g->in[a] = exists || fixed ? between(1, most) : 1;
        g->kernel[a] = fixed ? 3 : exists ? between(1, depthwise && g->spatial < 3 ? 12 : 5) : 1;
        g->stride[a] = exists && !fixed && between(0, 1) ? between(1, 3) : 1;
        g->dil[a] = (exists || fixed) && between(0, 2) == 0 ? between(1, fixed ? 7 : 4) : 1;
        const int64_t reach = (g->kernel[a] - 1) * g->dil[a] + 1;
        g->pad[a] = exists || fixed ? between(0, 1) ? 0 : between(0, reach - 1) : 0;
        if (g->in[a] + 2 * g->pad[a] < reach) g->in[a] = reach;
        const int64_t after = between(0, 3) ? g->pad[a]
                              : exists      ? between(0, reach - 1)
                                            : 0; /* 'same' may be uneven */
        if (g->in[a] + g->pad[a] + after < reach) g->pad[a] = reach - g->in[a] - after;
        g->out[a] = (g->in[a] + g->pad[a] + after - reach) / g->stride[a] + 1;
    }
}

/* |error| of one output, to first order. Direct: n roundings of the sum of sizes. Winograd: with u = 2^-24, values
 * pass through C + 20 roundings at most (sums over channels, three transforms along two axes), each of a value not
 * above sum over points of |At| (|G| |w|) (|Bt| |x|); along one axis that is at most `grow` times max |w| max |x|,
 * for the points of conv.c (computed row by row: 23.7 for m = 4, 8 for m = 2). Centred values are at most twice as
 * large. */
static double bound_of(conv_algo_id algo, const sample *s, int64_t i)
{
    static const double grow[3][2] = {{23.7, 23.7}, {8, 23.7}, {8, 8}};
    const double n = (double)(s->g.C / s->g.groups * cvyi_conv_taps(&s->g)), u = FLT_EPSILON / 2;
    if (algo <= CONV_CHANNELS) return (n + 2) * u * s->size[i];
    const double *f = grow[algo - CONV_WINOGRAD_4X4];
    return (n / 9 + 20) * u * f[0] * f[1] * n / 9 * s->max_x * 2 * s->max_w + 4 * u * fabs(s->y[i]);
}

static void compare(conv_algo_id algo, const sample *s, double got, int64_t i, bool exact, double shift)
{
    const double want = s->y[i] - shift, bound = exact ? 0 : bound_of(algo, s, i);
    if (!(fabs(got - want) <= bound)) FAIL("output %lld is %.9g, expected %.9g", (long long)i, got, want);
}

static void check_dst(conv_algo_id algo, const sample *s, const conv_job *job, bool exact, const double *shift)
{
    const conv_geom *g = &s->g;
    int64_t n = 0;
    for (int64_t k = 0; k < g->K; k++)
        for (int64_t o = 0; o < g->out[0]; o++)
            for (int64_t p = 0; p < g->out[1]; p++) {
                const float *row = job->dst + k * job->dst_chan + o * job->dst_plane + p * job->dst_row;
                for (int64_t q = 0; q < g->out[2]; q++, n++) compare(algo, s, (double)row[q], n, exact, shift[k]);
                for (int64_t q = g->out[2]; q < job->dst_row; q++) MUST(row[q] == guard_value);
            }
}

/* Statistics and maxima must fit the values that were written: these are checked already. */
static void check_stats(const sample *s, const conv_job *job, const double *of)
{
    const conv_tiling *t = job->tiling;
    const conv_geom *g = &s->g;
    for (int64_t b = 0; b < t->bands; b++)
        for (int64_t k = 0; k < g->K; k++) {
            double sumsq = 0;
            const int64_t o = b / t->bands_per_plane, p0 = b % t->bands_per_plane * t->rows;
            for (int64_t p = p0; p < cvyi_min64(p0 + t->rows, g->out[1]); p++)
                for (int64_t q = 0; q < g->out[2]; q++) {
                    const double y =
                        (double)job->dst[k * job->dst_chan + o * job->dst_plane + p * job->dst_row + q];
                    sumsq += y * y;
                }
            MUST(fabs(of[b * g->K + k] - sumsq) <= 600 * FLT_EPSILON * sumsq);
        }
}
static void check_pool(const sample *s, const conv_job *job, const float *pool)
{
    const conv_tiling *t = job->tiling;
    const conv_geom *g = &s->g;
    const int64_t PH = g->out[1] / t->ph, PW = g->out[2] / t->pw;
    for (int64_t i = 0; i < g->K * g->out[0] * PH * PW; i++) {
        const int64_t k = i / (g->out[0] * PH * PW), o = i / (PH * PW) % g->out[0], p = i / PW % PH, q = i % PW;
        float m = -INFINITY;
        for (int64_t e = 0; e < t->ph * t->pw; e++) {
            const float y = job->dst[k * job->dst_chan + o * job->dst_plane +
                                     (p * t->ph + e / t->pw) * job->dst_row + q * t->pw + e % t->pw];
            m = y > m ? y : m;
        }
        if (pool[i] != m) FAIL("maximum %lld is %g, expected %g", (long long)i, (double)pool[i], (double)m);
    }
}

static void run_units(const conv_job *job)
{
    const conv_tiling *t = job->tiling;
    float *scratch = guarded((int64_t)t->scratch / 4 + 16), *at = scratch;
    while ((uintptr_t)at % 64) at++;
    for (int64_t u = t->parts - 1; u >= 0; u--) { /* any order will do */
        memset(at, 0xff, t->scratch);             /* NaN: what is left from before must not matter */
        cvyi_conv_run(job, u, at);
        check_guards(at, (int64_t)t->scratch / 4, "the scratch");
    }
    release(scratch);
}

/* x in fp16 and bf16, widened by the kernel: the bits of x that was widened before. */
static void check_words(const conv_job *of, const float *x, int64_t n)
{
    const conv_geom *g = &of->tiling->geom;
    const int64_t ny = of->dst_chan * g->K, ns = of->tiling->bands * g->K;
    for (cvy_dtype dtype = CVY_FLOAT16; dtype <= CVY_BFLOAT16; dtype++) {
        float *wide = fenced(n), *room = fenced((n + 1) / 2), *y[2] = {guarded(ny), guarded(ny)};
        double *squares[2] = {calloc((size_t)ns, sizeof(double)), calloc((size_t)ns, sizeof(double))};
        uint16_t *words = (uint16_t *)room + n % 2;
        for (int64_t i = 0; i < n; i++) {
            words[i] = cvyi_narrow(dtype, (double)x[i]);
            wide[i] = cvyi_widen(dtype, words[i]);
        }
        for (int i = 0; i < 2; i++) {
            conv_job job = *of;
            job.src = i ? (const void *)words : wide, job.dtype = i ? dtype : CVY_FLOAT32;
            job.dst = y[i], job.sumsq = squares[i];
            run_units(&job);
            check_guards(y[i], ny, "dst");
        }
        MUST(!memcmp(y[0], y[1], (size_t)ny * sizeof *y[0]));
        MUST(!memcmp(squares[0], squares[1], (size_t)ns * sizeof *squares[0]));
        release(y[0]), release(y[1]), unfence(wide, n), unfence(room, (n + 1) / 2);
        free(squares[0]), free(squares[1]);
    }
}

/* Runs a sample twice: to dst with wide rows, with statistics; then maxima and statistics alone. */
static void run_case(conv_algo_id algo, const cpu_conv_kernels *isa, const sample *s, bool exact, int64_t ph,
                     int64_t pw, bool centre)
{
    const conv_geom *g = &s->g;
    const bool pool = !cvyi_conv_pool_legal(algo, g, ph, pw);
    conv_tiling t;
    double *shift = calloc((size_t)g->K, sizeof *shift), *mean = calloc((size_t)g->K, sizeof *mean);
    conv_window win = {calloc((size_t)(g->C * cvyi_conv_taps(g)), sizeof(double)),
                       calloc((size_t)g->C, sizeof(double))};
    cvyi_conv_tile(algo, g, isa, pool ? ph : 1, pool ? pw : 1, &t);
    const int64_t row = g->out[2] + between(0, 2), plane = row * g->out[1], chan = plane * g->out[0];
    const int64_t np = g->K * g->out[0] * (g->out[1] / t.ph) * (g->out[2] / t.pw), ns = t.bands * g->K;
    float *packed = guarded(t.packed), *dst = guarded(chan * g->K), *pool_to = guarded(np), *xmean = guarded(g->C);
    double *stats = malloc((size_t)ns * sizeof *stats), *again = malloc((size_t)ns * sizeof *stats);

    const conv_input x = {s->x, CVY_FLOAT32, NULL};
    for (int64_t c = 0; c < g->C; c++) assert_true(isa->window_sums(g, &x, c, &win));
    for (int64_t c = 0; c < g->C; c++) xmean[c] = (float)win.xmean[c];
    if (centre) cvyi_conv_means(isa, g, &(conv_means){s->w, s->bias, win, mean, shift}, 0, g->K);
    cvyi_conv_pack(&t, s->w, packed);
    check_guards(packed, t.packed, "the packed weights");
    float *split = guarded(g->C * g->in[0] * t.split_floats + 1);
    for (int64_t i = 0; t.split_line && i < g->C * g->in[0]; i++)
        cvyi_conv_split(&t, s->x + i * g->in[1] * g->in[2], split + i * t.split_floats);
    conv_job job = {
        &t,    packed,     t.split_line ? split : s->x, s->bias, centre ? xmean : NULL, dst, chan, plane, row, NULL,
        stats, CVY_FLOAT32};
    run_units(&job);
    check_guards(dst, chan * g->K, "dst");
    check_dst(algo, s, &job, exact, shift);
    check_stats(s, &job, stats);
    if (!t.split_line && cvyi_conv_widens(algo, g)) check_words(&job, s->x, s->nx);

    conv_job lean = job;
    lean.dst = NULL, lean.sumsq = again, lean.pool = pool ? pool_to : NULL;
    run_units(&lean);
    check_guards(pool_to, np, "the maxima");
    if (pool) check_pool(s, &job, pool_to);
    check_stats(s, &job, again);

    release(packed), release(dst), release(pool_to), release(xmean), release(split);
    free(shift), free(mean), free(stats), free(again), free(win.sums), free(win.xmean);
}

static void sweep(conv_algo_id algo, uint64_t seed, int cases)
{
    const cpu_conv_kernels *isa[3];
    const int n = isas(isa);
    const bool winograd = cvyi_conv_algos[algo].mh > 1;
    for (int i = 0; i < cases; i++) {
        conv_geom g;
        sample s;
        state = (seed + (uint64_t)i) * UINT64_C(0x9e3779b97f4a7c15) | 1;
        for (int k = 0; k < 8; k++) next();
        random_geom(&g, winograd, algo == CONV_DEPTHWISE);
        if (algo == CONV_CHANNELS) g.K = g.groups * between(1, 70); /* beyond a block of any instruction set */
        const bool whole = between(0, 3) > 0, centre = winograd && !whole && between(0, 1);
        const bool exact = whole && (!winograd || algo == CONV_WINOGRAD_2X2); /* F(2x2) halves and quarters only */
        const int64_t ph = winograd ? 1 << between(0, 2) : between(1, 5),
                      pw = winograd ? 1 << between(0, 2) : between(1, 5);
        assert_null(cvyi_conv_algos[algo].legal(&g));
        make_sample(&s, &g, whole);
        for (int k = 0; k < n; k++) {
            describe(cvyi_conv_algos[algo].name, isa[k]->isa, seed + (uint64_t)i, &g);
            run_case(algo, isa[k], &s, exact, ph, pw, centre);
        }
        free_sample(&s);
    }
}

static void test_direct(void **unused)
{
    (void)unused;
    sweep(CONV_DIRECT, 1000, CASES);
}
static void test_depthwise(void **unused)
{
    (void)unused;
    sweep(CONV_DEPTHWISE, 2000, CASES / 2);
}
static void test_patches(void **unused)
{
    (void)unused;
    sweep(CONV_PATCHES, 9000, CASES);
}
static void test_channels(void **unused)
{
    (void)unused;
    sweep(CONV_CHANNELS, 12000, CASES);
}
static void test_winograd(void **unused)
{
    (void)unused;
    for (int a = CONV_WINOGRAD_4X4; a <= CONV_WINOGRAD_2X2; a++)
        sweep((conv_algo_id)a, 3000 + 1000 * (uint64_t)a, CASES / 2);
}

/* Means from window sums against the mean of the reference, any geometry. */
static void test_window_means(void **unused)
{
    const cpu_conv_kernels *isa[3];
    const int n = isas(isa);
    (void)unused;
    for (int i = 0; i < CASES; i++) {
        conv_geom g;
        sample s;
        state = (uint64_t)(i + 7) * UINT64_C(0x9e3779b97f4a7c15) | 1;
        random_geom(&g, false, false);
        make_sample(&s, &g, true);
        for (int k = 0; k < n; k++) {
            double *sums = malloc((size_t)(g.C * cvyi_conv_taps(&g)) * 8), *xmean = malloc((size_t)g.C * 8);
            double *mean = malloc((size_t)g.K * 8);
            const conv_window win = {sums, xmean};
            describe("window sums", isa[k]->isa, (uint64_t)i, &g);
            const conv_input x = {s.x, CVY_FLOAT32, NULL};
            for (int64_t c = 0; c < g.C; c++) MUST(cvyi_conv_window_sums(isa[k], &g, &x, c, &win));
            cvyi_conv_means(isa[k], &g, &(conv_means){s.w, s.bias, win, mean, NULL}, 0, g.K);
            const int64_t each = s.ny / g.K;
            for (int64_t c = 0; c < g.K; c++) {
                double want = 0;
                for (int64_t j = 0; j < each; j++) want += s.y[c * each + j];
                MUST(fabs(mean[c] - want / (double)each) <= 1e-12 * (1 + fabs(want)));
            }
            free(sums), free(xmean), free(mean);
        }
        free_sample(&s);
    }
}

/* 3x3, no dilation: out is what padding and stride leave. */
static conv_geom plain_geom(int64_t C, int64_t K, int64_t groups, int64_t H, int64_t W, int64_t stride, int64_t pad)
{
    return (conv_geom){.N = 1,
                       .C = C,
                       .K = K,
                       .groups = groups,
                       .in = {1, H, W},
                       .out = {1, (H + 2 * pad - 3) / stride + 1, (W + 2 * pad - 3) / stride + 1},
                       .kernel = {1, 3, 3},
                       .stride = {1, stride, stride},
                       .dil = {1, 1, 1},
                       .pad = {0, pad, pad},
                       .spatial = 2};
}

/* One bad value anywhere is seen. */
static void test_window_flags(void **unused)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 2e15f, -3e38f};
    const cpu_conv_kernels *isa[3];
    const int n = isas(isa);
    const conv_geom g = plain_geom(2, 1, 1, 5, 37, 1, 0);
    float x[2 * 5 * 37];
    double sums[18], xmean[2];
    const conv_window win = {sums, xmean};
    const conv_input in = {x, CVY_FLOAT32, NULL};
    (void)unused;
    for (int k = 0; k < n; k++)
        for (int b = 0; b < COUNT_OF(bad); b++)
            for (int i = 0; i < COUNT_OF(x); i++) {
                for (int j = 0; j < COUNT_OF(x); j++) x[j] = 1;
                x[i] = bad[b];
                for (int c = 0; c < 2; c++)
                    assert_int_equal(cvyi_conv_window_sums(isa[k], &g, &in, c, &win), i / (5 * 37) != c);
            }
}

/* A NaN and an inf reach exactly the outputs and windows that read them. */
static void test_direct_nan(void **unused)
{
    const cpu_conv_kernels *isa[3];
    const int n = isas(isa);
    const conv_geom g = plain_geom(1, 9, 1, 20, 40, 1, 1);
    sample s;
    (void)unused;
    state = 99;
    make_sample(&s, &g, true);
    for (int64_t i = 0; i < s.nw; i++) s.w[i] = 1;
    s.x[7 * 40 + 13] = NAN;
    for (int k = 0; k < n; k++) {
        conv_tiling t;
        cvyi_conv_tile(CONV_DIRECT, &g, isa[k], 4, 4, &t);
        float *packed = guarded(t.packed), *y = guarded(s.ny), *pool = guarded(9 * 5 * 10);
        cvyi_conv_pack(&t, s.w, packed);
        conv_job job = {&t, packed, s.x, s.bias, NULL, y, 800, 800, 40, NULL, NULL, CVY_FLOAT32};
        run_units(&job);
        job.dst = NULL, job.pool = pool;
        run_units(&job);
        for (int64_t i = 0; i < s.ny; i++) {
            const int64_t p = i / 40 % 20, q = i % 40;
            assert_int_equal(isnan(y[i]) != 0, p >= 6 && p <= 8 && q >= 12 && q <= 14);
        }
        for (int64_t i = 0; i < 9 * 50; i++)
            assert_int_equal(isnan(pool[i]) != 0, i / 10 % 5 >= 1 && i / 10 % 5 <= 2 && i % 10 == 3);
        release(packed), release(y), release(pool);
    }
    free_sample(&s);
}

/* Rows too wide for one copy are cut into columns, statistics and maxima too. */
static void test_direct_columns(void **unused)
{
    const cpu_conv_kernels *isa[3];
    const int n = isas(isa);
    const conv_geom g = plain_geom(60, 3, 1, 5, 900, 1, 1);
    sample s;
    (void)unused;
    state = 5;
    make_sample(&s, &g, true);
    for (int k = 0; k < n; k++) {
        conv_tiling t;
        describe("direct", isa[k]->isa, 5, &g);
        cvyi_conv_tile(CONV_DIRECT, &g, isa[k], 2, 3, &t);
        assert_true(t.cols < g.out[2]);
        run_case(CONV_DIRECT, isa[k], &s, true, 2, 3, false);
    }
    free_sample(&s);
}

static void test_refusals(void **unused)
{
    const conv_geom g = plain_geom(4, 4, 2, 9, 9, 2, 0);
    (void)unused;
    assert_null(cvyi_conv_algos[CONV_DIRECT].legal(&g));
    assert_null(cvyi_conv_algos[CONV_PATCHES].legal(&g));
    assert_non_null(cvyi_conv_algos[CONV_DEPTHWISE].legal(&g));
    const conv_geom wide = {.C = 2, .K = 2, .groups = 2, .in = {1, 40, 40}, .kernel = {1, 17, 17}};
    assert_non_null(cvyi_conv_algos[CONV_DEPTHWISE].legal(&wide)); /* 289 terms in one chain */
    assert_null(cvyi_conv_algos[CONV_DIRECT].legal(&wide));
    for (int a = CONV_WINOGRAD_4X4; a < CONV_ALGO_COUNT; a++) assert_non_null(cvyi_conv_algos[a].legal(&g));
    assert_non_null(cvyi_conv_pool_legal(CONV_WINOGRAD_4X4, &g, 3, 3));
    assert_non_null(cvyi_conv_pool_legal(CONV_DIRECT, &g, 5, 1));
    assert_null(cvyi_conv_pool_legal(CONV_DIRECT, &g, 3, 2));
}

/* Forms that are legal and not accurate enough: few channels, each plane of the kernel counted. */
static void test_inaccurate(void **unused)
{
    conv_geom g = plain_geom(3, 4, 1, 9, 9, 1, 0);
    (void)unused;
    assert_null(cvyi_conv_refuses(CONV_DIRECT, &g));
    assert_null(cvyi_conv_algos[CONV_WINOGRAD_4X4].legal(&g));
    assert_non_null(cvyi_conv_refuses(CONV_WINOGRAD_4X4, &g));
    assert_null(cvyi_conv_refuses(CONV_WINOGRAD_2X4, &g));
    g.kernel[0] = 3;
    assert_null(cvyi_conv_refuses(CONV_WINOGRAD_4X4, &g));
    g.C = 1;
    assert_non_null(cvyi_conv_refuses(CONV_WINOGRAD_4X4, &g));
    g.kernel[0] = 1;
    assert_non_null(cvyi_conv_refuses(CONV_WINOGRAD_2X4, &g));
    assert_null(cvyi_conv_refuses(CONV_WINOGRAD_2X2, &g));
}

/* <kernel>_<types>_<tile>_<isa>, the tile as the cutting knows it. */
static void entries_are_named(void **unused)
{
    const cpu_conv_kernels *isa[3];
    const int n = isas(isa);
    (void)unused;
    for (int i = 0; i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "conv_direct_f32_%dx%d_%s", isa[i]->direct_kt, isa[i]->direct_vt, isa[i]->isa);
        assert_string_equal(isa[i]->name[CONV_DIRECT], name);
        snprintf(name, sizeof name, "conv_winograd_2x4_f32_%dx%d_%s", isa[i]->wino_kt, isa[i]->wino_nt,
                 isa[i]->isa);
        assert_string_equal(isa[i]->name[CONV_WINOGRAD_2X4], name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct),         cmocka_unit_test(test_depthwise),
        cmocka_unit_test(test_patches),        cmocka_unit_test(test_channels),
        cmocka_unit_test(test_winograd),       cmocka_unit_test(test_window_means),
        cmocka_unit_test(test_window_flags),   cmocka_unit_test(test_direct_nan),
        cmocka_unit_test(test_direct_columns), cmocka_unit_test(test_refusals),
        cmocka_unit_test(entries_are_named),   cmocka_unit_test(test_inaccurate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
