/* test_pool.c - pooling: exact on whole numbers, random windows in 1-D to 3-D, NaN, every instruction set. */
#include "cpu_data.h"
#include <math.h>
#include <stdio.h>
#include "../../src/cpu/pool.h"

static int64_t volume(const int64_t e[3])
{
    return e[0] * e[1] * e[2];
}

/* Output number i of a plane: its window, element by element. */
static float max_reference(const pool_geom *g, const float *src, const int64_t start[3])
{
    float best = -INFINITY;
    for (int64_t t = 0; t < volume(g->kernel); t++) {
        const int64_t d = start[0] + t / g->kernel[2] / g->kernel[1] * g->dil[0];
        const int64_t h = start[1] + t / g->kernel[2] % g->kernel[1] * g->dil[1];
        const int64_t x = start[2] + t % g->kernel[2] * g->dil[2];
        if (d < 0 || d >= g->in[0] || h < 0 || h >= g->in[1] || x < 0 || x >= g->in[2]) continue;
        const float v = src[(d * g->in[1] + h) * g->in[2] + x];
        if (v > best || isnan(v)) best = isnan(best) ? best : v;
    }
    return best;
}

static float avg_reference(const pool_geom *g, const float *src, const int64_t start[3])
{
    float sum = 0; /* of whole numbers: exact in any order */
    for (int64_t t = 0; t < volume(g->kernel); t++) {
        const int64_t d = start[0] + t / g->kernel[2] / g->kernel[1];
        const int64_t h = start[1] + t / g->kernel[2] % g->kernel[1];
        const int64_t x = start[2] + t % g->kernel[2];
        if (d < 0 || d >= g->in[0] || h < 0 || h >= g->in[1] || x < 0 || x >= g->in[2]) continue;
        sum += src[(d * g->in[1] + h) * g->in[2] + x];
    }
    return sum / (float)cvyi_pool_divisor(g, start);
}

typedef float (*window_fn)(const pool_geom *g, const float *src, const int64_t start[3]);

static void reference(const pool_geom *g, window_fn window, const float *src, float *dst)
{
    for (int64_t i = 0; i < g->planes * volume(g->out); i++) {
        const int64_t p = i / volume(g->out), o = i % volume(g->out);
        const int64_t start[3] = {o / g->out[2] / g->out[1] * g->stride[0] - g->pad[0],
                                  o / g->out[2] % g->out[1] * g->stride[1] - g->pad[1],
                                  o % g->out[2] * g->stride[2] - g->pad[2]};
        dst[i] = window(g, src + p * volume(g->in), start);
    }
}

static void check(cpu_isa isa, const pool_geom *g, pool_fn run, window_fn window, const float *src)
{
    char what[200];
    const int64_t out = g->planes * volume(g->out), floats = (int64_t)(cvyi_pool_scratch_bytes(g) / sizeof(float));
    float *dst = guarded(out), *want = guarded(out), *scratch = guarded(floats);
    reference(g, window, src, want);
    run(g, g->planes, src, dst, scratch);
    snprintf(what, sizeof what, "%s in %lldx%lldx%lld k %lldx%lldx%lld s %lldx%lldx%lld dil %lld pad %lld",
             cvyi_isa_name(isa), (long long)g->in[0], (long long)g->in[1], (long long)g->in[2],
             (long long)g->kernel[0], (long long)g->kernel[1], (long long)g->kernel[2], (long long)g->stride[0],
             (long long)g->stride[1], (long long)g->stride[2], (long long)g->dil[2], (long long)g->pad[2]);
    assert_same_floats(dst, want, out, what);
    guarded_free(dst, out);
    guarded_free(want, out);
    guarded_free(scratch, floats);
}

/* A legal window: padding at most half the kernel; with ceil mode, windows that begin in the right padding go. */
static void draw_axis(pool_geom *g, int a, bool dilated, int64_t extent)
{
    const bool ceil = draw(0, 1);
    do {
        int64_t room;
        g->kernel[a] = draw(1, 6);
        g->stride[a] = draw(0, 1) ? g->kernel[a] : draw(1, 5);
        g->dil[a] = dilated ? draw(1, 3) : 1;
        g->pad[a] = draw(0, g->kernel[a] / 2);
        g->in[a] = draw(1, extent);
        room = g->in[a] + 2 * g->pad[a] - g->dil[a] * (g->kernel[a] - 1) - 1;
        g->out[a] = room < 0 ? 0 : (room + (ceil ? g->stride[a] - 1 : 0)) / g->stride[a] + 1;
        if (ceil && (g->out[a] - 1) * g->stride[a] >= g->in[a] + g->pad[a]) g->out[a]--;
    } while (g->out[a] <= 0);
}

static pool_geom draw_geometry(bool dilated)
{
    pool_geom g = {.planes = draw(1, 3), .spatial = (int)draw(1, 3), .count_include_pad = draw(0, 1)};
    for (int a = 0; a < 3; a++) {
        g.in[a] = g.out[a] = g.kernel[a] = g.stride[a] = g.dil[a] = 1;
        if (a >= 3 - g.spatial) draw_axis(&g, a, dilated, a == 2 ? 90 : 12);
    }
    if (draw(0, 3) == 0) g.divisor = draw(1, 9);
    return g;
}

/* Some elements are NaN or infinite. */
static void spoil(float *src, int64_t n)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, -0.0f};
    for (int64_t i = 0; i < n / 20 + 1; i++) src[draw(0, n - 1)] = odd[draw(0, 3)];
}

static void maxima(void **state)
{
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        cpu_seed = 3;
        for (int i = 0; i < 1500; i++) {
            const pool_geom g = draw_geometry(true);
            const int64_t in = g.planes * volume(g.in);
            float *src = guarded_integers(in, 1000);
            if (i % 3 == 0) spoil(src, in);
            check((cpu_isa)isa, &g, cvyi_pool_kernels((cpu_isa)isa)->max, max_reference, src);
            guarded_free(src, in);
        }
    }
}

static void averages(void **state)
{
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        cpu_seed = 5;
        for (int i = 0; i < 1500; i++) {
            const pool_geom g = draw_geometry(false);
            const int64_t in = g.planes * volume(g.in);
            float *src = guarded_integers(in, 1000);
            check((cpu_isa)isa, &g, cvyi_pool_kernels((cpu_isa)isa)->avg, avg_reference, src);
            guarded_free(src, in);
        }
    }
}

/* Every width around the vectors' for the windows that have code of their own. */
static void widths(void **state)
{
    static const int64_t windows[][2] = {{2, 2}, {3, 2}, {4, 4}, {3, 1},
                                         {2, 1}, {5, 2}, {3, 3}}; /* kernel, stride */
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        for (int w = 0; w < COUNT_OF(windows); w++) {
            for (int64_t W = windows[w][0]; W < 150; W++) {
                const int64_t k = windows[w][0], s = windows[w][1], Q = (W - k) / s + 1;
                const pool_geom g = {.planes = 2,
                                     .in = {1, k, W},
                                     .out = {1, 1, Q},
                                     .kernel = {1, k, k},
                                     .stride = {1, s, s},
                                     .dil = {1, 1, 1},
                                     .spatial = 2};
                float *src = guarded_integers(2 * k * W, 1000);
                check((cpu_isa)isa, &g, cvyi_pool_kernels((cpu_isa)isa)->max, max_reference, src);
                check((cpu_isa)isa, &g, cvyi_pool_kernels((cpu_isa)isa)->avg, avg_reference, src);
                guarded_free(src, 2 * k * W);
            }
        }
    }
}

static void means(void **state)
{
    static const int64_t sizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 1000, 1023, 1024, 1025, 5000};
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        for (int i = 0; i < COUNT_OF(sizes); i++) {
            const int64_t n = sizes[i];
            const pool_geom g = {.planes = 3,
                                 .in = {1, 1, n},
                                 .out = {1, 1, 1},
                                 .kernel = {1, 1, n},
                                 .stride = {1, 1, 1},
                                 .dil = {1, 1, 1},
                                 .spatial = 1};
            float *src = guarded_integers(3 * n, 1000), *dst = guarded(3);
            cvyi_pool_kernels((cpu_isa)isa)->mean(&g, 3, src, dst, NULL);
            for (int64_t p = 0; p < 3; p++) {
                double sum = 0;
                for (int64_t k = 0; k < n; k++) sum += src[p * n + k];
                assert_true(dst[p] == (float)(sum / (double)n));
            }
            guarded_free(src, 3 * n);
            guarded_free(dst, 3);
        }
    }
}

/* A million equal values: float alone would drift. */
static void large_mean(void **state)
{
    enum { N = 1 << 20 };
    const pool_geom g = {.planes = 1, .in = {1, 1024, 1024}, .out = {1, 1, 1}, .spatial = 2};
    float *src = guarded(N), dst = 0;
    (void)state;
    for (int i = 0; i < N; i++) src[i] = 0.1f;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        cvyi_pool_kernels((cpu_isa)isa)->mean(&g, 1, src, &dst, NULL);
        assert_true(fabs((double)dst - (double)0.1f) <= 0.1 * 64 * 0x1p-24); /* RUN / 4 VL roundings at most */
    }
    guarded_free(src, N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maxima), cmocka_unit_test(averages),   cmocka_unit_test(widths),
        cmocka_unit_test(means),  cmocka_unit_test(large_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
