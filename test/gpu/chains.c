/* chains.c - every kind of kernel on a real GPU, against the reference in double (check.h).
 *
 *   chains [CHAIN...]         checks the chains given, or those of chain_list.h, in both precisions
 *   chains -c FILE            checks the chains of a file, one in a line, under fewer plans
 *   chains -r COUNT SEED      checks COUNT random graphs of each flavour (../support/random_chain.h)
 *   chains -s [CHAIN...]      the chains for compute-sanitizer: buffers without guards, workspaces without a fill
 *   chains -b [CHAIN...]      the same bits over 100 runs, on two streams, captured (bits.h); default: A, B, C
 *   chains -m [CHAIN...]      the same bits at any position of a sample in the batch
 *   chains -f CHAIN...        seconds from cvy_plan_create() to the end of the first run, and of the context before
 *   chains -l [CHAIN...]      which kernels the plans have, and their forms on tensor cores; runs nothing
 *   chains -t [CHAIN...]      times chains (CUDA events, L2 thrown out before each run, median of 21)
 *
 * Before these: -p fp32|tf32, one precision alone; -d fp16|bf16, every value of checked chains and random
 * graphs in that dtype; -n, images of checked chains channels last instead of anyhow; -k I/N, of all items every
 * N-th from I on, so that N processes share the work. A chain is planned as the cost model likes it, with every
 * operator in a pass of its own, with other tiles, without tensor cores, and twice at random; a random graph as the
 * cost model likes it and once at random. The last line is "N checked, M failed". */
#include <time.h>
#include <unistd.h>
#include "../support/bits.h"
#include "../support/check_random.h"
#include "chain_list.h"
#include "../support/kernel_list.h"

static bool fail_here(const char *title)
{
    fprintf(stderr, "%s\n    of %s\n", cvy_last_error(), title);
    return false;
}

/* Only products have a precision: without any, tf32 is fp32. */
static bool has_products(const cvy_graph *g)
{
    bool any = false;
    for (int i = 0; i < g->n_nodes; i++) {
        const op_kind kind = cvyi_info(&g->nodes[i])->kind;
        any |= kind == KIND_CONV || kind == KIND_CONVT || kind == KIND_LINEAR || kind == KIND_MATMUL;
    }
    return any;
}

static cvy_dtype dtype = CVY_FLOAT32;                  /* of checked chains */
static bool last;                                      /* are images checked channels last? */
static int precisions = 1 << CVY_FP32 | 1 << CVY_TF32; /* those asked for */

static bool wanted(const cvy_graph *g, cvy_precision p)
{
    return precisions >> p & 1 && (p == CVY_FP32 || precisions == 1 << p || has_products(g));
}

/* ---- right results ---- */

/* Without products all tiles are one. */
static int plans_of(const cvy_graph *g, int kinds)
{
    return has_products(g) ? kinds : kinds & ~(PLAN_TILES | PLAN_GENERIC);
}

static bool check_chain_with(const gpu *u, const char *words, int kinds)
{
    checked_graph c;
    cvy_graph *given = NULL, *g;
    bool good = true;

    if (cvy_graph_parse(words, &given)) return fail_here(words);
    g = dtype == CVY_FLOAT32 ? given : graph_as(given, dtype, true);
    (last ? check_open_last : check_open)(&c, u, g, RIG_REAL, 12345);
    c.title = words;
    for (cvy_precision p = CVY_FP32; p <= CVY_TF32; p++)
        if (wanted(g, p)) good &= check_plans(&c, p, plans_of(g, kinds), 1);
    if (good) printf("ok %.1e %.1e  %s\n", c.worst[CVY_FP32], c.worst[CVY_TF32], words);
    check_close(&c);
    if (g != given) cvy_graph_free(g);
    cvy_graph_free(given);
    return good;
}

static bool check_chain(const gpu *u, const char *words)
{
    return check_chain_with(u, words, EVERY_PLAN);
}

static bool check_briefly(const gpu *u, const char *words)
{
    return check_chain_with(u, words, FEW_PLANS);
}

static bool sanitize_chain(const gpu *u, const char *words)
{
    const gpu bare = {
        .device = u->device, .stream = u->stream, .emulated = u->emulated, .bare = true, .sanitized = true};
    return check_chain_with(&bare, words, SANITIZED_PLANS);
}

/* ---- what a plan does, for each precision ---- */

typedef bool (*plan_check)(const gpu *u, const char *title, rig *r, const cvy_plan *plan);

static bool with_plans(const gpu *u, const char *words, plan_check check)
{
    cvy_graph *g = NULL;
    bool good = true;

    if (cvy_graph_parse(words, &g)) return fail_here(words);
    for (cvy_precision p = CVY_FP32; p <= CVY_TF32 && good; p++) {
        const cvy_options o = {.size = sizeof o, .device = CVY_CUDA, .precision = (int32_t)p, .strided = CVY_OFF};
        cvy_plan *plan = NULL;
        uint64_t seed = 12345;
        char title[600];
        rig r;
        if (!wanted(g, p)) continue;
        snprintf(title, sizeof title, "%s  %s", precision_names[p], words);
        rig_open(&r, g, &seed, RIG_REAL, 0);
        good = cvy_plan_create(g, &o, &plan) ? fail_here(title) : check(u, title, &r, plan);
        cvy_plan_free(plan);
        rig_close(&r);
    }
    cvy_graph_free(g);
    return good;
}

static bool check_bits(const gpu *u, const char *title, rig *r, const cvy_plan *plan)
{
    char what[300] = "";

    same_bits(u, r, plan, what);
    printf("%s  %s\n", *what ? what : "same bits", title);
    return !*what;
}

static bool check_places(const gpu *u, const char *title, rig *r, const cvy_plan *plan)
{
    static const char *const words[] = {"same bits", "OTHER BITS ELSEWHERE IN THE BATCH", "samples not apart"};
    const places found = same_places(u, r, plan);

    printf("%s  %s\n", words[found], title);
    return found != PLACES_DIFFER;
}

static bool list_kernels(const gpu *u, const char *title, rig *r, const cvy_plan *plan)
{
    (void)u, (void)r;
    printf("%s\n", title);
    print_kernels(plan);
    return true;
}

static bool bits_of_chain(const gpu *u, const char *words)
{
    return with_plans(u, words, check_bits);
}
static bool places_of_chain(const gpu *u, const char *words)
{
    return with_plans(u, words, check_places);
}
static bool kernels_of_chain(const gpu *u, const char *words)
{
    return with_plans(u, words, list_kernels);
}

/* ---- time ---- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double context_seconds; /* from the first call of the driver to a context and a stream */

static bool first_call(const gpu *u, const char *words)
{
    const cvy_precision precision = precisions == 1 << CVY_TF32 ? CVY_TF32 : CVY_FP32;
    const cvy_options o = {
        .size = sizeof o, .device = CVY_CUDA, .precision = (int32_t)precision, .strided = CVY_OFF};
    uint64_t seed = 12345;
    cvy_graph *g = NULL;
    cvy_plan *plan = NULL;
    CUdeviceptr work = 0;
    double start, planned = 0;
    gpu_rig t = {0};
    rig r = {0};
    cvy_status st;

    TRY(cvy_graph_parse(words, &g));
    rig_open(&r, g, &seed, RIG_REAL, 0);
    gpu_rig_open(&t, u, &r);
    start = seconds_now();
    TRY(cvy_plan_create(g, &o, &plan));
    planned = seconds_now();
    TRY(cvyi_cuda_alloc(u->device, cvy_plan_workspace(plan), &work));
    TRY(cvy_plan_run(plan, t.buffers, r.n, (void *)(uintptr_t)work, cvy_plan_workspace(plan), 0, u->stream));
    TRY(cvyi_cuda_wait(u->device, u->stream));
    printf("%8.4f s: plan %.4f, run %.4f; context %.4f  %s  %s\n", seconds_now() - start, planned - start,
           seconds_now() - planned, context_seconds, precision_names[precision], words);
fail:
    cvyi_cuda_free(u->device, work);
    cvy_plan_free(plan);
    if (t.r) gpu_rig_close(&t);
    rig_close(&r);
    cvy_graph_free(g);
    return st ? fail_here(words) : true;
}

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

static cvy_status time_plan(const gpu *u, gpu_rig *t, const char *title, const cvy_plan *plan)
{
    enum { RUNS = 21 };
    CUdeviceptr work = 0;
    cuda_timer timer = {0};
    double ms[RUNS];
    cvy_cost cost;
    cvy_status st;

    TRY(cvyi_cuda_alloc(u->device, cvy_plan_workspace(plan), &work));
    TRY(cvyi_cuda_timer_create(u->device, &timer));
    TRY(cvy_plan_run(plan, t->buffers, t->r->n, (void *)(uintptr_t)work, cvy_plan_workspace(plan), 0, u->stream));
    for (int i = 0; i < RUNS; i++) {
        TRY(cvyi_cuda_timer_start(u->device, &timer, u->stream));
        TRY(cvy_plan_run(plan, t->buffers, t->r->n, (void *)(uintptr_t)work, cvy_plan_workspace(plan),
                         CVY_KEEP_PREPARED, u->stream));
        TRY(cvyi_cuda_timer_stop(u->device, &timer, u->stream, &ms[i]));
    }
    qsort(ms, RUNS, sizeof *ms, by_value);
    TRY(cvy_plan_cost(plan, &cost));
    printf("%8.3f ms (min %.3f)  predicted %.3f  floor %.3f  %.1f TFLOP/s  %s\n", ms[RUNS / 2] * 1e3, ms[0] * 1e3,
           cost.seconds * 1e3, cost.floor * 1e3, cost.flops / ms[RUNS / 2] * 1e-12, title);
fail:
    cvyi_cuda_timer_free(u->device, &timer);
    cvyi_cuda_free(u->device, work);
    return st;
}

static bool time_rig(const gpu *u, const char *title, rig *r, const cvy_plan *plan)
{
    gpu_rig t;
    cvy_status st;

    gpu_rig_open(&t, u, r);
    st = time_plan(u, &t, title, plan);
    gpu_rig_close(&t);
    return st ? fail_here(title) : true;
}

static bool time_chain(const gpu *u, const char *words)
{
    return with_plans(u, words, time_rig);
}

/* ---- the command ---- */

typedef struct chain_span {
    const char *const *list;
    int n;
} chain_span;
#define SPAN(list)                                                                                                 \
    {                                                                                                              \
        list, COUNT_OF(list)                                                                                       \
    }

typedef struct mode {
    char letter; /* 0: without any */
    bool (*chain)(const gpu *u, const char *words);
    chain_span spans[2]; /* without chains of its own */
} mode;

static const mode modes[] = {
    {0, check_chain, {SPAN(chains), SPAN(hopper_chains)}},
    {'c', check_briefly, {{NULL, 0}}},
    {'g', check_chain, {SPAN(full)}},
    {'s', sanitize_chain, {SPAN(sanitized)}},
    {'b', bits_of_chain, {SPAN(large)}},
    {'m', places_of_chain, {SPAN(chains), SPAN(hopper_chains)}},
    {'l', kernels_of_chain, {SPAN(chains), SPAN(hopper_chains)}},
    {'f', first_call, {SPAN(large)}},
    {'t', time_chain, {SPAN(large)}},
};

typedef struct command {
    const mode *mode;
    int share, shares; /* items share, share + shares, ... */
    int n;             /* items: chains, or random graphs */
    bool random;
    uint64_t seed;
    chain_span spans[2];
    char *file[2000]; /* lines of the file of -c */
} command;

static const char *chain_of(const command *c, int item)
{
    const int later = item - c->spans[0].n;
    return later < 0 ? c->spans[0].list[item] : c->spans[1].list[later];
}

static bool read_lines(command *c, const char *path)
{
    FILE *f = fopen(path, "r");
    size_t room = 0;

    while (f && c->n < COUNT_OF(c->file) && getline(&c->file[c->n], &room, f) > 0) {
        c->file[c->n][strcspn(c->file[c->n], "\n")] = '\0';
        c->n++;
        room = 0;
    }
    if (f) fclose(f);
    c->spans[0] = (chain_span){(const char *const *)c->file, c->n};
    return c->n > 0;
}

static bool read_command(int argc, char **argv, command *c)
{
    int letter;

    *c = (command){.mode = &modes[0], .shares = 1};
    while ((letter = getopt(argc, argv, "+k:p:d:c:nrgsbmlft")) != -1) {
        if (letter == 'k' && sscanf(optarg, "%d/%d", &c->share, &c->shares) != 2) return false;
        if (letter == 'p') precisions = strcmp(optarg, "tf32") ? 1 << CVY_FP32 : 1 << CVY_TF32;
        if (letter == 'd' && !cvyi_dtype_find(optarg, strlen(optarg), &dtype)) return false;
        if (letter == 'd') precisions = 1 << CVY_FP32; /* tf32 is the same */
        if (letter == 'c' && !read_lines(c, optarg)) return false;
        if (letter == 'n') last = true;
        if (letter == 'r') c->random = true;
        if (letter == '?') return false;
        for (int i = 0; i < COUNT_OF(modes); i++)
            if (modes[i].letter == letter) c->mode = &modes[i];
    }
    if (!c->spans[0].list && optind < argc) {
        c->spans[0] = (chain_span){(const char *const *)argv + optind, argc - optind};
    } else if (!c->spans[0].list) {
        memcpy(c->spans, c->mode->spans, sizeof c->spans);
    }
    c->n = c->spans[0].n + c->spans[1].n;
    if (c->random) {
        if (argc - optind != 2) return false;
        c->n = 3 * atoi(argv[optind]);
        c->seed = strtoull(argv[optind + 1], NULL, 10);
    }
    return c->shares > 0 && c->share >= 0;
}

int main(int argc, char **argv)
{
    const double start = seconds_now();
    int done = 0, bad = 0;
    command c;
    gpu u;

    if (!read_command(argc, argv, &c)) {
        fprintf(stderr,
                "usage: chains [-k I/N] [-p fp32|tf32] [-d fp16|bf16] [-n] [-c FILE | -r COUNT SEED | -g | -s | "
                "-b | -m | -f | -l | "
                "-t] [CHAIN...]\n");
        return 2;
    }
    if (!test_gpu_open(&u)) {
        printf("%s\n", cvy_last_error());
        return 2;
    }
    context_seconds = seconds_now() - start;
    for (int i = c.share; i < c.n; i += c.shares, done++) {
        bad += !(c.random ? check_random(&u, dtype, (flavour)(i % 3), c.seed + (uint64_t)(i / 3),
                                         PLAN_LIKED | PLAN_RANDOM)
                          : c.mode->chain(&u, chain_of(&c, i)));
        fflush(stdout);
    }
    printf("%d checked, %d failed\n", done, bad);
    for (int i = 0; i < COUNT_OF(c.file); i++) free(c.file[i]);
    test_gpu_close(&u);
    return bad != 0;
}
