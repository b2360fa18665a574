/* conv_core.c - times the convolution cores alone: every algorithm that takes a shape, with statistics and
 * pooling where the shape has it, against the FMA peak measured in the same run; errors against float64.
 *
 *   conv_core [isa] [threads] [a shape's name] */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "../../src/cpu/conv.h"
#include "../../src/cpu/cpuinfo.h"

typedef struct shape_row {
    const char *name;
    int64_t N, C, K, groups, H, R, stride, pad, pool;
    bool stats, dst;
} shape_row;
static const shape_row shapes[] = {
    {"A", 128, 8, 64, 1, 128, 3, 1, 0, 4, true, false},
    {"A-dst", 128, 8, 64, 1, 128, 3, 1, 0, 1, true, true},
    {"C", 128, 8, 32, 1, 256, 3, 1, 0, 1, true, true},
    {"C-stats", 128, 8, 32, 1, 256, 3, 1, 0, 1, true, false},
    {"64-64-56", 16, 64, 64, 1, 56, 3, 1, 1, 1, false, true},
    {"128-128-28", 16, 128, 128, 1, 28, 3, 1, 1, 1, false, true},
    {"256-256-14", 16, 256, 256, 1, 14, 3, 1, 1, 1, false, true},
    {"512-512-7", 16, 512, 512, 1, 7, 3, 1, 1, 1, false, true},
    {"3-64-7x7s2", 16, 3, 64, 1, 224, 7, 2, 3, 1, false, true},
    {"3-64-3x3", 16, 3, 64, 1, 224, 3, 1, 1, 1, false, true},
    {"64-128-s2", 16, 64, 128, 1, 56, 3, 2, 1, 1, false, true},
    {"dw128-56", 64, 128, 128, 128, 56, 3, 1, 1, 1, false, true},
    {"dw128-56s2", 64, 128, 128, 128, 56, 3, 2, 1, 1, false, true},
    {"g32-128-28", 16, 128, 128, 32, 28, 3, 1, 1, 1, false, true},
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void *memory(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 8191) / 4096 * 4096);
    if (!p) exit(2);
    memset(p, 0, bytes);
    return p;
}

typedef struct team {
    conv_job job;
    int64_t N, nx, ny, np;
    float *x, *y;
    atomic_long next;
    struct lot {
        void *scratch;
        double *stats;
        float *pool, *y;
        conv_window window;
    } lots[64]; /* one per thread */
    atomic_int members;
} team;

/* Samples one by one, each with all its parts, into one output that stays in the caches as far as it fits. */
static void *member(void *arg)
{
    team *t = arg;
    const struct lot *l = &t->lots[atomic_fetch_add(&t->members, 1)];
    for (long n; (n = atomic_fetch_add(&t->next, 1)) < t->N;) {
        conv_job job = t->job;
        job.src = t->x + n * t->nx;
        const conv_input x = {job.src, CVY_FLOAT32, NULL};
        if (job.dst) job.dst = n ? l->y : t->y;
        if (job.sumsq) job.sumsq = l->stats;
        if (job.tiling->ph > 1) job.pool = l->pool;
        if (job.sumsq) { /* means first, as the engine does before a norm */
            const conv_geom *g = &job.tiling->geom;
            for (int64_t c = 0; c < g->C; c++) cvyi_conv_window_sums(job.tiling->kernels, g, &x, c, &l->window);
        }
        for (int64_t u = 0; u < job.tiling->parts; u++) cvyi_conv_run(&job, u, l->scratch);
    }
    return NULL;
}
static double run(team *t, int threads)
{
    pthread_t id[64];
    const double start = now();
    atomic_store(&t->next, 0);
    atomic_store(&t->members, 0);
    for (int i = 1; i < threads; i++) pthread_create(&id[i], NULL, member, t);
    member(t);
    for (int i = 1; i < threads; i++) pthread_join(id[i], NULL);
    return now() - start;
}

enum { PEAK_ROUNDS = 16000000 };
static void *peak_member(void *probe)
{
    ((const cpu_probe_kernels *)probe)->fma(PEAK_ROUNDS);
    return NULL;
}
static double peak(const cpu_probe_kernels *probe, int threads)
{
    pthread_t id[64];
    cpu_probe_kernels of = *probe;
    double start;
    probe->fma(PEAK_ROUNDS / 20);
    start = now();
    for (int i = 1; i < threads; i++) pthread_create(&id[i], NULL, peak_member, &of);
    peak_member(&of);
    for (int i = 1; i < threads; i++) pthread_join(id[i], NULL);
    return (double)threads * PEAK_ROUNDS * (double)probe->flops_per_round / (now() - start);
}

/* Largest and root mean square error of sample 0, over the largest output. */
static void errors(const team *t, const float *w, const float *bias, const double *shift, double *worst,
                   double *rms)
{
    const conv_geom *g = &t->job.tiling->geom;
    const int64_t cg = g->C / g->groups, kg = g->K / g->groups, P = g->out[1], Q = g->out[2];
    double top = 0, sum = 0;
    *worst = 0;
    for (int64_t i = 0; i < g->K * P * Q; i++) {
        const int64_t k = i / (P * Q), p = i / Q % P, q = i % Q;
        double y = (double)bias[k] - shift[k];
        for (int64_t c = 0; c < cg; c++)
            for (int64_t r = 0; r < g->kernel[1]; r++)
                for (int64_t s = 0; s < g->kernel[2]; s++) {
                    const int64_t a = p * g->stride[1] + r - g->pad[1], b = q * g->stride[2] + s - g->pad[2];
                    if (a < 0 || a >= g->in[1] || b < 0 || b >= g->in[2]) continue;
                    y += (double)w[((k * cg + c) * g->kernel[1] + r) * g->kernel[2] + s] *
                         (double)t->x[((k / kg * cg + c) * g->in[1] + a) * g->in[2] + b];
                }
        const double e = fabs((double)t->y[i] - y);
        sum += e * e;
        if (e > *worst) *worst = e;
        if (fabs(y + shift[k]) > top) top = fabs(y + shift[k]);
    }
    *worst /= top;
    *rms = sqrt(sum / (double)(g->K * P * Q)) / top;
}

static void bench(const shape_row *row, const cpu_conv_kernels *k, int threads, double top)
{
    const int64_t P = (row->H + 2 * row->pad - row->R) / row->stride + 1;
    const conv_geom g = {row->N,
                         row->C,
                         row->K,
                         row->groups,
                         {1, row->H, row->H},
                         {1, P, P},
                         {1, row->R, row->R},
                         {1, row->stride, row->stride},
                         {1, 1, 1},
                         {0, row->pad, row->pad},
                         2,
                         true};
    const double flop = 2.0 * (double)(row->N * row->K * P * P * (row->C / row->groups) * row->R * row->R);
    const int64_t nw = row->K * row->C / row->groups * row->R * row->R;
    team t = {.N = row->N, .nx = row->C * row->H * row->H, .ny = row->K * P * P};
    float *w = memory((size_t)nw * 4), *bias = memory((size_t)row->K * 4), *xmean = memory((size_t)row->C * 4);
    double *shift = memory((size_t)row->K * 8), *mean = memory((size_t)row->K * 8);
    conv_window win = {memory((size_t)(row->C * row->R * row->R) * 8), memory((size_t)row->C * 8)};
    t.x = memory((size_t)(t.N * t.nx) * 4), t.y = memory((size_t)t.ny * 4);
    srand48(1);
    for (int64_t i = 0; i < t.N * t.nx; i++) t.x[i] = (float)drand48();
    for (int64_t i = 0; i < nw; i++) w[i] = (float)((2 * drand48() - 1) / sqrt((double)(nw / row->K)));
    for (int64_t i = 0; i < row->K; i++) bias[i] = (float)drand48();
    for (int a = 0; a < CONV_ALGO_COUNT; a++) {
        conv_tiling tile;
        double best = 1e9, times[9], worst = NAN, rms = NAN;
        int n = 0;
        if (cvyi_conv_algos[a].legal(&g)) continue;
        if (row->pool > 1 && cvyi_conv_pool_legal(a, &g, row->pool, row->pool)) continue;
        cvyi_conv_tile(a, &g, k, row->pool, row->pool, &tile);
        float *packed = memory((size_t)tile.packed * 4);
        cvyi_conv_pack(&tile, w, packed);
        t.np = row->K * (P / row->pool) * (P / row->pool);
        t.job = (conv_job){.tiling = &tile,
                           .packed = packed,
                           .bias = bias,
                           .dst = row->dst ? t.y : NULL,
                           .dst_chan = P * P,
                           .dst_plane = P * P,
                           .dst_row = P,
                           .sumsq = row->stats ? mean : NULL};
        for (int i = 0; i < threads; i++)
            t.lots[i] = (struct lot){memory(tile.scratch),
                                     memory((size_t)(tile.bands * row->K) * 8),
                                     memory((size_t)t.np * 4 + 64),
                                     memory((size_t)t.ny * 4),
                                     {memory((size_t)(row->C * row->R * row->R) * 8), memory((size_t)row->C * 8)}};
        memset(shift, 0, (size_t)row->K * 8);
        if (a >= CONV_WINOGRAD_4X4) {
            double start = now();
            const conv_input x = {t.x, CVY_FLOAT32, NULL};
            for (int64_t c = 0; c < row->C; c++) cvyi_conv_window_sums(k, &g, &x, c, &win);
            cvyi_conv_means(k, &g, &(conv_means){w, bias, win, mean, shift}, 0, row->K);
            if (a == CONV_WINOGRAD_4X4)
                printf("  window sums and means %.1f us per sample\n", (now() - start) * 1e6);
            for (int64_t c = 0; c < row->C; c++) xmean[c] = (float)win.xmean[c];
            t.job.xmean = xmean;
        }
        while (n < 5 || (n < 9 && best * n < 0.3)) {
            times[n] = run(&t, threads);
            if (times[n] < best) best = times[n];
            n++;
        }
        if (row->dst) errors(&t, w, bias, shift, &worst, &rms);
        printf("%-12s %-13s %8.2f ms %7.0f GFLOP/s %5.0f %% of peak   err %.1e rms %.1e   parts %lld rows %lld "
               "scratch %zu KiB%s\n",
               row->name, cvyi_conv_algos[a].name, best * 1e3, flop / best / 1e9, 100 * flop / best / top, worst,
               rms, (long long)tile.parts, (long long)tile.rows, tile.scratch >> 10, tile.flat ? " flat" : "");
        fflush(stdout);
        for (int i = 0; i < threads; i++)
            free(t.lots[i].window.sums), free(t.lots[i].window.xmean), free(t.lots[i].scratch),
                free(t.lots[i].stats), free(t.lots[i].pool), free(t.lots[i].y);
        free(packed);
    }
    free(w), free(bias), free(xmean), free(shift), free(mean), free(win.sums), free(win.xmean), free(t.x),
        free(t.y);
}

int main(int argc, char **argv)
{
    static const cpu_conv_kernels *const kernels[] = CPU_KERNELS(cvyi_conv);
    static const cpu_probe_kernels *const probes[] = CPU_KERNELS(cvyi_probe);
    const int threads = argc > 2 ? atoi(argv[2]) : 1;
    cpu_isa isa = CPU_ISA_COUNT - 1;

    while (isa && (!kernels[isa] || !cvyi_isa_supported(isa) || (argc > 1 && strcmp(argv[1], cvyi_isa_name(isa)))))
        isa--;
    const double top = peak(probes[isa], threads);
    printf("%s, %d thread(s), FMA peak %.0f GFLOP/s\n", cvyi_isa_name(isa), threads, top / 1e9);
    for (int i = 0; i < COUNT_OF(shapes); i++)
        if (argc < 4 || !strcmp(shapes[i].name, argv[3])) bench(&shapes[i], kernels[isa], threads, top);
    return 0;
}
