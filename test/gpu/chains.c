/* chains.c - every kind of kernel on a real GPU, against the reference in double (check.h).
 *
 *   chains [CHAIN...]       checks the chains given, or those of chain_list.h
 *   chains -r COUNT SEED    checks COUNT random graphs of each flavour (../fuse/random_chain.h)
 *   chains -t [CHAIN...]    times chains (CUDA events, L2 thrown out before each run, median of 21)
 *
 * A chain is planned as the cost model likes it, with every operator in a pass of its own, and twice at random; a
 * random graph as the cost model likes it and once at random. */
#include "check_random.h"
#include "chain_list.h"

static bool fail_here(const char *title)
{
    fprintf(stderr, "%s\n    of %s\n", cvy_last_error(), title);
    return false;
}

static bool check_chain(const gpu *u, const char *words)
{
    checked_graph c;
    cvy_graph *g = NULL;
    bool good;

    if (cvy_graph_parse(words, &g)) return fail_here(words);
    check_open(&c, u, g, RIG_REAL, 12345);
    c.title = words;
    good = check_plans(&c, PLAN_LIKED | PLAN_ONE_BY_ONE, 2, 1);
    if (good) printf("ok %.1e  %s\n", c.worst, words);
    check_close(&c);
    cvy_graph_free(g);
    return good;
}

/* ---- time ---- */

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

static cvy_status time_plan(const gpu *u, gpu_rig *t, const char *words, const cvy_plan *plan)
{
    enum { RUNS = 21 };
    CUdeviceptr work = 0;
    cuda_timer timer = {0};
    double ms[RUNS];
    cvy_cost cost;
    cvy_status st;

    TRY(cvyi_cuda_alloc(u->device, cvy_plan_workspace(plan), &work));
    TRY(cvyi_cuda_timer_create(u->device, &timer));
    TRY(cvy_plan_run(plan, t->buffers, t->r->n, (void *)(uintptr_t)work, 0, u->stream));
    for (int i = 0; i < RUNS; i++) {
        TRY(cvyi_cuda_timer_start(u->device, &timer, u->stream));
        TRY(cvy_plan_run(plan, t->buffers, t->r->n, (void *)(uintptr_t)work, CVY_KEEP_PREPARED, u->stream));
        TRY(cvyi_cuda_timer_stop(u->device, &timer, u->stream, &ms[i]));
    }
    qsort(ms, RUNS, sizeof *ms, by_value);
    TRY(cvy_plan_cost(plan, &cost));
    printf("%8.3f ms (min %.3f)  predicted %.3f  floor %.3f  %.1f TFLOP/s  %s\n", ms[RUNS / 2] * 1e3, ms[0] * 1e3,
           cost.seconds * 1e3, cost.floor * 1e3, cost.flops / ms[RUNS / 2] * 1e-12, words);
fail:
    cvyi_cuda_timer_free(u->device, &timer);
    cvyi_cuda_free(u->device, work);
    return st;
}

static bool time_chain(const gpu *u, const char *words)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CUDA};
    uint64_t seed = 12345;
    cvy_graph *g = NULL;
    cvy_plan *plan = NULL;
    gpu_rig t;
    rig r;
    bool good;

    if (cvy_graph_parse(words, &g)) return fail_here(words);
    rig_open(&r, g, &seed, RIG_REAL, 0);
    gpu_rig_open(&t, u, &r);
    good = cvy_plan_create(g, &options, &plan) == CVY_OK && time_plan(u, &t, words, plan) == CVY_OK;
    if (!good) fail_here(words);
    cvy_plan_free(plan);
    gpu_rig_close(&t);
    rig_close(&r);
    cvy_graph_free(g);
    return good;
}

int main(int argc, char **argv)
{
    const bool timing = argc > 1 && strcmp(argv[1], "-t") == 0, random = argc > 3 && strcmp(argv[1], "-r") == 0;
    const char *const *list = argc > 1 + timing ? (const char *const *)argv + 1 + timing : chains;
    const int n = random ? atoi(argv[2]) : argc > 1 + timing ? argc - 1 - timing : COUNT_OF(chains);
    int bad = 0;
    gpu u;

    if (!gpu_open(&u)) {
        printf("%s\n", cvy_last_error());
        return 2;
    }
    for (int i = 0; i < n; i++) {
        const uint64_t seed = random ? strtoull(argv[3], NULL, 10) + (uint64_t)i : 0;
        if (random)
            for (flavour f = EXACT; f <= WILD; f++) bad += !check_random(&u, f, seed, PLAN_LIKED, 1);
        else
            bad += !(timing ? time_chain(&u, list[i]) : check_chain(&u, list[i]));
        fflush(stdout);
    }
    printf("%d %s, %d failed\n", n, random ? "graphs of each flavour" : "chains", bad);
    gpu_close(&u);
    return bad != 0;
}
