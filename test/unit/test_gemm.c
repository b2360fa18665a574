/* test_gemm.c - matrix product and transposed convolution: exact on whole numbers, every instruction set, odd
 * sizes. */
#include "cpu_data.h"
#include <math.h>
#include <stdio.h>
#include "../../src/cpu/convt.h"
#include "../../src/cpu/thread.h"

/* ---- product ---- */

typedef struct product {
    gemm_plan plan;
    gemm_job job;
    float *scratch;
    int64_t scratch_floats;
} product;

static void run_unit(void *ctx, int64_t unit, int worker)
{
    const product *p = ctx;
    cvyi_gemm_run(&p->plan, &p->job, unit, p->scratch + worker * p->scratch_floats);
}

/* Sizes and layout of a case. */
typedef struct sizes {
    int64_t batch, M, N, K;
    gemm_b from; /* how B is given */
    bool packed; /* packed ahead */
    bool bias_m, bias_n;
    int64_t slack; /* what row strides are longer than rows by */
} sizes;

static void reference(const sizes *s, const gemm_job *j, const float *b, float *c)
{
    for (int64_t i = 0; i < s->batch * s->M * s->N; i++) {
        const int64_t n = i % s->N, m = i / s->N % s->M, z = i / s->N / s->M;
        double sum =
            (s->bias_m ? j->bias_m[z * j->bias_batch + m] : 0) + (s->bias_n ? j->bias_n[z * j->bias_batch + n] : 0);
        for (int64_t k = 0; k < s->K; k++) {
            const float *bz = b + z * s->N * s->K;
            const float y = s->from == GEMM_KN ? bz[k * s->N + n] : bz[n * s->K + k];
            sum += (double)j->a[z * j->a_batch + m * j->lda + k] * y;
        }
        c[z * j->c_batch + m * j->ldc + n] = (float)sum;
    }
}

static float *pack_all(const product *p, const sizes *s, const float *b, int64_t each)
{
    float *packed = guarded(each * s->batch);
    for (int64_t z = 0; z < s->batch; z++) {
        for (int64_t i = 0; i < p->plan.panels; i++) {
            cvyi_gemm_pack(&p->plan, s->from, b + z * s->N * s->K, s->from == GEMM_KN ? s->N : s->K,
                           packed + z * each, i);
        }
    }
    return packed;
}

static void check_product(cpu_isa isa, const sizes *s)
{
    product p;
    char what[128];
    const int64_t lda = s->K + s->slack, ldc = s->N + s->slack, c_floats = s->batch * s->M * ldc;
    float *a = guarded_integers(s->batch * s->M * lda, 8), *b = guarded_integers(s->batch * s->N * s->K, 8);
    float *bias_m = guarded_integers(s->batch * s->M, 100),
          *bias_n = guarded_integers(s->batch * (s->M + s->N), 100);
    float *c = guarded(c_floats), *want = guarded(c_floats), *twice = guarded(c_floats), *packed = NULL;
    int64_t each;
    cvyi_gemm_plan(isa, s->packed ? GEMM_PACKED : s->from, s->batch, s->M, s->N, s->K, &p.plan);
    each = (int64_t)(cvyi_gemm_packed_bytes(&p.plan) / sizeof(float));
    if (s->packed) packed = pack_all(&p, s, b, each);
    p.scratch_floats = (int64_t)(cvyi_gemm_scratch_bytes(&p.plan) / sizeof(float));
    p.scratch = guarded(2 * p.scratch_floats);
    p.job = (gemm_job){.a = a,
                       .b = packed ? packed : b,
                       .c = c,
                       .lda = lda,
                       .ldc = ldc,
                       .ldb = s->from == GEMM_KN ? s->N : s->K,
                       .a_batch = s->M * lda,
                       .b_batch = packed ? each : s->N * s->K,
                       .c_batch = s->M * ldc,
                       .bias_batch = s->bias_m ? s->M : 0,
                       .bias_m = s->bias_m ? bias_m : NULL,
                       .bias_n = s->bias_n ? bias_n : NULL};
    reference(s, &p.job, b, want);
    cvyi_parallel(1, p.plan.parts, run_unit, &p);
    snprintf(what, sizeof what, "%s %lld x %lldx%lldx%lld b%d packed %d slack %lld", cvyi_isa_name(isa),
             (long long)s->batch, (long long)s->M, (long long)s->N, (long long)s->K, s->from, s->packed,
             (long long)s->slack);
    assert_same_floats(c, want, c_floats, what); /* between rows: guard values in both */
    p.job.c = twice;
    cvyi_parallel(2, p.plan.parts, run_unit, &p);
    assert_memory_equal(c, twice, (size_t)c_floats * sizeof *c);
    guarded_free(a, s->batch * s->M * lda);
    guarded_free(b, s->batch * s->N * s->K);
    guarded_free(bias_m, s->batch * s->M);
    guarded_free(bias_n, s->batch * (s->M + s->N));
    guarded_free(c, c_floats);
    guarded_free(want, c_floats);
    guarded_free(twice, c_floats);
    guarded_free(p.scratch, 2 * p.scratch_floats);
    if (packed) guarded_free(packed, each * s->batch);
}

static sizes random_sizes(void)
{
    const bool large = draw(0, 9) == 0;
    sizes s = {.batch = draw(0, 3) ? 1 : draw(1, 9),
               .M = draw(1, 40),
               .N = draw(1, 110),
               .K = draw(1, 60),
               .from = draw(0, 1) ? GEMM_KN : GEMM_NK,
               .packed = draw(0, 1),
               .bias_m = draw(0, 1),
               .bias_n = draw(0, 1),
               .slack = draw(0, 2) ? 0 : draw(1, 5)};
    if (draw(0, 7) == 0) {
        s.from = GEMM_DOTS;
        s.packed = false;
        s.M = draw(1, 5);
    }
    if (large) s.K = draw(200, 800);
    if (large && draw(0, 1)) s.M = draw(200, 600);
    return s;
}

static void products(void **state)
{
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        cpu_seed = 7;
        for (int i = 0; i < 250; i++) {
            const sizes s = random_sizes();
            check_product((cpu_isa)isa, &s);
        }
    }
}

/* Every size of tile and tail, and nothing to sum: C is the bias. */
static void small_products(void **state)
{
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        for (int64_t M = 1; M <= 17; M++) {
            for (int64_t N = 1; N <= 49; N += 3) {
                const sizes s = {.batch = 1,
                                 .M = M,
                                 .N = N,
                                 .K = (M + N) % 7,
                                 .from = M % 2 ? GEMM_KN : GEMM_NK,
                                 .packed = N % 2,
                                 .bias_m = true,
                                 .bias_n = true,
                                 .slack = 1};
                check_product((cpu_isa)isa, &s);
            }
        }
    }
}

static void empty_products(void **state)
{
    gemm_plan p;
    (void)state;
    cvyi_gemm_plan(CPU_PORTABLE, GEMM_KN, 0, 3, 4, 5, &p);
    assert_int_equal(p.parts, 0);
    cvyi_gemm_plan(CPU_PORTABLE, GEMM_PACKED, 1, 0, 4, 5, &p);
    assert_int_equal(p.parts, 0);
    cvyi_gemm_plan(CPU_PORTABLE, GEMM_PACKED, 2, 3, 0, 5, &p);
    assert_int_equal(p.parts, 0);
    assert_int_equal(p.panels, 0);
}

/* Real numbers: an element's error is at most the roundings on its longest path, a block and the blocks (dot
 * products: K over the lanes), times the sum of magnitudes. */
static void check_real(cpu_isa isa, gemm_b form, int M)
{
    enum { N = 53, K = 1500 };
    product p;
    float *a = guarded(M * K), *b = guarded(N * K), *c = guarded(M * N);
    for (int i = 0; i < M * K; i++) a[i] = (float)draw(-1000000, 1000000) * 1e-6f;
    for (int i = 0; i < N * K; i++) b[i] = (float)draw(-1000000, 1000000) * 1e-6f;
    cvyi_gemm_plan(isa, form, 1, M, N, K, &p.plan);
    p.scratch_floats = (int64_t)(cvyi_gemm_scratch_bytes(&p.plan) / sizeof(float));
    p.scratch = guarded(p.scratch_floats);
    p.job = (gemm_job){.a = a, .b = b, .c = c, .lda = K, .ldb = K, .ldc = N};
    cvyi_parallel(1, p.plan.parts, run_unit, &p);
    for (int i = 0; i < M * N; i++) {
        double sum = 0, size = 0;
        for (int k = 0; k < K; k++) {
            const double x = (double)a[i / N * K + k] * b[i % N * K + k];
            sum += x;
            size += fabs(x);
        }
        assert_true(fabs(c[i] - sum) <= 2 * (K / 4 + 4) * 0x1p-24 * size); /* 4 lanes are the fewest */
    }
    guarded_free(a, M * K);
    guarded_free(b, N * K);
    guarded_free(c, M * N);
    guarded_free(p.scratch, p.scratch_floats);
}

static void real_products(void **state)
{
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        check_real((cpu_isa)isa, GEMM_DOTS, 3);
        check_real((cpu_isa)isa, GEMM_NK, 37);
    }
}

/* ---- transposed convolution ---- */

typedef struct transposed {
    convt_plan plan;
    const float *src, *packed, *bias;
    float *dst, *scratch;
    int64_t scratch_floats;
} transposed;

static void run_convt_unit(void *ctx, int64_t unit, int worker)
{
    const transposed *t = ctx;
    const convt_job job = {t->src, t->packed, t->bias, t->dst};
    cvyi_convt_run(&t->plan, &job, unit, t->scratch + worker * t->scratch_floats);
}

static int64_t volume(const int64_t e[3])
{
    return e[0] * e[1] * e[2];
}

/* The definition in graph.h: every product is added where it belongs. */
static void convt_reference(const conv_geom *g, const float *src, const float *weight, const float *bias,
                            float *dst)
{
    const int64_t chans = g->C / g->groups, rows = g->K / g->groups, in = volume(g->in), out = volume(g->out);
    for (int64_t i = 0; i < g->K * out; i++) dst[i] = bias ? bias[i / out] : 0;
    for (int64_t c = 0; c < g->C; c++) {
        for (int64_t i = 0; i < in; i++) {
            const int64_t at[3] = {i / g->in[2] / g->in[1], i / g->in[2] % g->in[1], i % g->in[2]};
            for (int64_t t = 0; t < volume(g->kernel); t++) {
                const int64_t r[3] = {t / g->kernel[2] / g->kernel[1], t / g->kernel[2] % g->kernel[1],
                                      t % g->kernel[2]};
                int64_t o[3];
                bool there = true;
                for (int a = 0; a < 3; a++) {
                    o[a] = at[a] * g->stride[a] - g->pad[a] + r[a] * g->dil[a];
                    there = there && o[a] >= 0 && o[a] < g->out[a];
                }
                for (int64_t k = 0; k < rows && there; k++) {
                    dst[(c / chans * rows + k) * out + (o[0] * g->out[1] + o[1]) * g->out[2] + o[2]] +=
                        src[c * in + i] * weight[(c * rows + k) * volume(g->kernel) + t];
                }
            }
        }
    }
}

static void check_convt(cpu_isa isa, const conv_geom *g)
{
    transposed t;
    char what[200];
    const int64_t in = g->C * volume(g->in), out = g->K * volume(g->out);
    const int64_t weights = g->C * (g->K / g->groups) * volume(g->kernel);
    float *src = guarded_integers(in, 6), *weight = guarded_integers(weights, 6),
          *bias = guarded_integers(g->K, 50);
    float *packed = guarded(weights + 1), *dst = guarded(out), *want = guarded(out), *twice = guarded(out);
    cvyi_convt_plan(isa, g, &t.plan);
    assert_int_equal(cvyi_convt_packed_bytes(&t.plan), ((size_t)weights + 1) * sizeof(float)); /* and a mark */
    cvyi_convt_pack(&t.plan, weight, packed);
    t.scratch_floats = (int64_t)(cvyi_convt_scratch_bytes(&t.plan) / sizeof(float));
    t.scratch = guarded(2 * t.scratch_floats);
    t.src = src;
    t.packed = packed;
    t.bias = g->bias ? bias : NULL;
    t.dst = dst;
    convt_reference(g, src, weight, t.bias, want);
    cvyi_parallel(1, t.plan.parts, run_convt_unit, &t);
    snprintf(what, sizeof what, "%s C%lld K%lld g%lld in %lldx%lldx%lld k %lldx%lldx%lld s %lldx%lldx%lld",
             cvyi_isa_name(isa), (long long)g->C, (long long)g->K, (long long)g->groups, (long long)g->in[0],
             (long long)g->in[1], (long long)g->in[2], (long long)g->kernel[0], (long long)g->kernel[1],
             (long long)g->kernel[2], (long long)g->stride[0], (long long)g->stride[1], (long long)g->stride[2]);
    assert_same_floats(dst, want, out, what);
    t.dst = twice;
    cvyi_parallel(2, t.plan.parts, run_convt_unit, &t);
    assert_memory_equal(dst, twice, (size_t)out * sizeof *dst);
    guarded_free(src, in);
    guarded_free(weight, weights);
    guarded_free(bias, g->K);
    guarded_free(packed, weights + 1);
    guarded_free(dst, out);
    guarded_free(want, out);
    guarded_free(twice, out);
    guarded_free(t.scratch, 2 * t.scratch_floats);
}

static conv_geom random_convt(void)
{
    conv_geom g = {.N = 1, .spatial = (int)draw(1, 3), .bias = draw(0, 1), .groups = draw(0, 2) ? 1 : draw(2, 4)};
    g.C = g.groups * draw(1, draw(0, 4) ? 6 : 90);
    g.K = g.groups * draw(1, draw(0, 4) ? 9 : 40);
    for (int a = 0; a < 3; a++) {
        const bool there = a >= 3 - g.spatial;
        g.kernel[a] = there ? draw(1, 5) : 1;
        g.stride[a] = there ? draw(1, 4) : 1;
        g.dil[a] = there && draw(0, 2) == 0 ? draw(2, 3) : 1;
        for (g.out[a] = 0; g.out[a] <= 0;) {
            const int64_t more = there ? draw(0, cvyi_max64(g.stride[a], g.dil[a]) - 1) : 0; /* output_padding */
            g.in[a] = there ? draw(1, g.spatial == 3 ? 6 : 20) : 1;
            g.pad[a] = there ? draw(0, 3) : 0;
            g.out[a] = (g.in[a] - 1) * g.stride[a] - 2 * g.pad[a] + g.dil[a] * (g.kernel[a] - 1) + more + 1;
        }
    }
    return g;
}

static void transposed_convolutions(void **state)
{
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        cpu_seed = 11;
        for (int i = 0; i < 200; i++) {
            const conv_geom g = random_convt();
            check_convt((cpu_isa)isa, &g);
        }
    }
}

/* Strides so large that scratch limits the rows of a unit, and phases without a tap. */
static void large_strides(void **state)
{
    const conv_geom wide = {.N = 1,
                            .C = 5,
                            .K = 70,
                            .groups = 1,
                            .in = {1, 2, 9},
                            .out = {1, 6, 9 * 64},
                            .kernel = {1, 3, 64},
                            .stride = {1, 3, 64},
                            .dil = {1, 1, 1},
                            .spatial = 2,
                            .bias = true};
    const conv_geom holes = {.N = 1,
                             .C = 3,
                             .K = 4,
                             .groups = 1,
                             .in = {1, 5, 7},
                             .out = {1, 13, 25},
                             .kernel = {1, 1, 1},
                             .stride = {1, 3, 4},
                             .dil = {1, 1, 1},
                             .spatial = 2,
                             .bias = true};
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        check_convt((cpu_isa)isa, &wide);
        check_convt((cpu_isa)isa, &holes);
    }
}

/* <kernel>_<types>_<tile>_<isa>, the tile as the cutting knows it. */
static void entries_are_named(void **unused)
{
    (void)unused;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const cpu_gemm_kernels *k = cvyi_gemm_kernels((cpu_isa)isa);
        char name[64];
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        snprintf(name, sizeof name, "gemm_f32_%dx%d_%s", k->mr, k->nv, cvyi_isa_name((cpu_isa)isa));
        assert_string_equal(k->name, name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),
        cmocka_unit_test(small_products),
        cmocka_unit_test(empty_products),
        cmocka_unit_test(real_products),
        cmocka_unit_test(entries_are_named),
        cmocka_unit_test(large_strides),
        cmocka_unit_test(transposed_convolutions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
