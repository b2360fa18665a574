/* exhaustive_math.c - the largest error of every vector function over all 2^32 floats.
 *
 *   exhaustive_math [ISA or all [FUNCTION or all [THREADS [STEP]]]]
 *
 * STEP > 1 takes only every STEP-th bit pattern. Exit status 1 if an error is above the function's bound. A
 * function takes a few minutes of one core: the time is libm's, in double. Not part of `make test`. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/math_reference.h"

enum { MAX_THREADS = 64, MAX_KERNELS = 3, CHUNK = 4096 };

typedef struct worst {
    double error;
    float x, y;
} worst;

typedef struct job {
    const cpu_vector_kernels *const *kernels; /* each of these instruction sets */
    int n_kernels;
    const math_case *what;
    uint64_t from, to, step;
    bool progress; /* this one tells on standard error how far it is */
    worst of[MAX_KERNELS];
} job;

static void check_chunk(const float *x, const float *y, const double *want, int n, worst *w)
{
    for (int i = 0; i < n; i++) {
        double error;
        if (y[i] == (float)want[i] && x[i] != 0 && w->error >= 0.5) continue; /* rounded right: at most 0.5 */
        error = ulp_error(y[i], want[i], x[i]);
        if (error > w->error) *w = (worst){error, x[i], y[i]};
    }
}

/* The truth is what takes the time: once for all instruction sets. */
static void *run_job(void *arg)
{
    job *j = arg;
    float x[CHUNK], y[CHUNK];
    double want[CHUNK];
    uint64_t bits = j->from;
    while (bits < j->to) {
        int n = 0;
        for (; n < CHUNK && bits < j->to; n++, bits += j->step) {
            const uint32_t b = (uint32_t)bits;
            memcpy(&x[n], &b, sizeof b);
            want[n] = j->what->reference(x[n], j->what->p[0], j->what->p[1]);
        }
        for (int k = 0; k < j->n_kernels; k++) {
            j->kernels[k]->unary[j->what->op](y, x, n, j->what->p);
            check_chunk(x, y, want, n, &j->of[k]);
        }
        if (j->progress && bits % (j->step << 22) < CHUNK * j->step)
            fprintf(stderr, "\r%-18s %3d %%\r", j->what->name, (int)(100 * bits / j->to));
    }
    return NULL;
}

/* The errors over all floats, by `threads` threads over equal parts; 0 if within the bound. */
static int check(const cpu_vector_kernels *const *kernels, int n, const math_case *what, int threads, uint64_t step)
{
    job jobs[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    const uint64_t all = UINT64_C(1) << 32;
    int started = 1, failed = 0;
    for (int t = 0; t < threads; t++) {
        const uint64_t part = all / (uint64_t)threads / step * step;
        jobs[t] = (job){.kernels = kernels, .n_kernels = n, .what = what, .from = part * (uint64_t)t, .step = step};
        jobs[t].to = t + 1 < threads ? part * (uint64_t)(t + 1) : all;
        jobs[t].progress = t == 0;
    }
    while (started < threads && pthread_create(&ids[started], NULL, run_job, &jobs[started]) == 0) started++;
    for (int t = started; t < threads; t++) run_job(&jobs[t]);
    run_job(&jobs[0]);
    for (int t = 1; t < started; t++) pthread_join(ids[t], NULL);
    for (int k = 0; k < n; k++) {
        worst *w = &jobs[0].of[k];
        for (int t = 1; t < threads; t++)
            if (jobs[t].of[k].error > w->error) *w = jobs[t].of[k];
        printf("%-18s %-9s %.3f ULP at %a: %a\n", what->name, kernels[k]->isa, w->error, w->x, w->y);
        failed |= w->error > what->ulp;
    }
    fflush(stdout);
    return failed;
}

int main(int argc, char **argv)
{
    const char *isa = argc > 1 ? argv[1] : "all", *name = argc > 2 ? argv[2] : "all";
    const int threads = argc > 3 ? atoi(argv[3]) : 1;
    const long long step = argc > 4 ? atoll(argv[4]) : 1;
    const cpu_vector_kernels *kernels[MAX_KERNELS];
    const int all = runnable_kernels(kernels);
    int n = 0, found = 0, failed = 0;
    if (threads < 1 || threads > MAX_THREADS || step < 1 || step > 1 << 20) {
        fprintf(stderr, "usage: exhaustive_math [ISA or all [FUNCTION or all [THREADS [STEP]]]]\n");
        return 2;
    }
    for (int k = 0; k < all; k++)
        if (strcmp(isa, "all") == 0 || strcmp(isa, kernels[k]->isa) == 0) kernels[n++] = kernels[k];
    for (int i = 0; n && i < n_math_cases; i++) {
        if (strcmp(name, "all") != 0 && strcmp(name, math_cases[i].name) != 0) continue;
        found = 1;
        failed |= check(kernels, n, &math_cases[i], threads, (uint64_t)step);
    }
    if (!found) fprintf(stderr, "exhaustive_math: nothing here is called %s %s\n", isa, name);
    return found ? failed : 2;
}
