/* cmd_demo.c - `convoy demo`: three small blocks described, planned, run and checked. */
#include <stdlib.h>
#include <string.h>
#include "cli.h"

static const char *const titles[3] = {
    "A  convolution, GroupNorm, scale, max pooling, clamp",
    "B  convolution, GroupNorm, tanh, hardswish, residual, logsumexp over channels",
    "C  convolution, bias, scale, sigmoid, GroupNorm",
};

static void print_indented(const char *text)
{
    while (*text) {
        const size_t len = strcspn(text, "\n");
        printf("   %.*s\n", (int)len, text);
        text += len + (text[len] == '\n');
    }
}

static int print_result(job *j, const options *o, double seconds)
{
    verdict v;
    const int st = oracle_check(j, o, CHECK_ALL, &v);
    if (st) return st;
    printf("   ran       %.2f ms on %s\n", 1e3 * seconds, device_name(cvy_plan_device(j->plan)));
    printf("   error     %.1e at most, relative %.1e (bound %.1e): %s\n\n", v.max_abs_error, v.rel_error, v.bound,
           v.ok ? "agrees with float64" : "DOES NOT AGREE with float64");
    return v.ok ? EXIT_FINE : EXIT_CHECK_FAILED;
}

static int show(const char *title, const char *chain, const options *o)
{
    job j = {0};
    char *plan = NULL;
    double seconds = 0;
    int st = job_open(&j, chain, CVY_FLOAT32);

    if (!st) st = job_plan(&j, &o->plan);
    if (!st && !(plan = job_plan_text(&j))) st = EXIT_USAGE;
    if (!st) {
        printf("%s\n\n", title);
        print_indented(plan);
        st = job_fill(&j, o, true);
    }
    if (!st) st = job_place(&j, o->plan.ordinal);
    if (!st) st = job_run(&j, 0, NULL); /* the first run prepares the parameters */
    if (!st) st = job_run(&j, CVY_KEEP_PREPARED, &seconds);
    if (!st) st = job_fetch(&j);
    if (!st) st = print_result(&j, o, seconds);
    free(plan);
    job_close(&j);
    return st;
}

int cmd_demo(const options *o)
{
    int worst = EXIT_FINE;
    for (int i = 0; i < 3 && worst != EXIT_USAGE; i++) {
        const int st = show(titles[i], chain_small_blocks[i], o);
        if (st > worst) worst = st;
    }
    if (worst == EXIT_FINE) puts("All three agree.");
    return worst;
}
