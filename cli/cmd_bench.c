/* cmd_bench.c - `convoy bench`: a chain's time, compared with the machine's limits.
 *
 * The first run prepares the parameters (packs, folds, transforms them) and is not counted; later ones keep what it
 * prepared, as a model that runs again and again does. Rates are the plan's own operations and bytes over the
 * median. The error is that of the last run. */
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include "cli.h"

enum { MAX_RUNS = 10000, MIN_RUNS = 3 };
static const double bench_seconds = 2;

/* One way of computing the chain, timed. */
typedef struct timing {
    double first, ms, ms_min, ms_spread; /* first: the run that prepares */
    load load;                           /* of the machine meanwhile */
    int runs;
    cvy_cost cost;
    verdict verdict;
} timing;

static int time_runs(job *j, const options *o, timing *t)
{
    static double times[MAX_RUNS];
    const int most = o->repeat && o->repeat < MAX_RUNS ? o->repeat : MAX_RUNS;
    double first = 0, total = 0;
    int st = job_run(j, 0, &first);

    if (!st && first < bench_seconds) st = job_run(j, CVY_KEEP_PREPARED, NULL); /* warm */
    load_start(&t->load);
    for (t->runs = 0; !st && t->runs < most;) {
        st = job_run(j, CVY_KEEP_PREPARED, &times[t->runs]);
        total += times[t->runs++];
        if (!o->repeat && total >= bench_seconds && t->runs >= MIN_RUNS) break;
        progress("run %d: %.3f ms", t->runs, 1e3 * times[t->runs - 1]);
    }
    load_stop(&t->load);
    if (cvy_plan_device(j->plan) == CVY_CUDA) t->load.is_busy = false; /* processors do not take a kernel's time */
    progress_end();
    if (st) return st;
    t->first = 1e3 * first;
    t->ms = 1e3 * median(times, t->runs); /* sorts */
    t->ms_min = 1e3 * times[0];
    t->ms_spread = 1e3 * spread(times, t->runs);
    return EXIT_FINE;
}

static int measure(job *j, const options *o, const cvy_options *plan, timing *t)
{
    int st = job_plan(j, plan);
    if (!st) st = job_place(j, plan->ordinal);
    if (!st && cvy_plan_cost(j->plan, &t->cost)) st = cli_library_error("plan: ");
    if (!st) st = time_runs(j, o, t);
    if (!st) st = job_fetch(j);
    if (!st) st = oracle_check(j, o, o->samples ? o->samples : CHECK_QUICKLY, &t->verdict);
    return st;
}

/* ---- printing ---- */

static double gflops(const timing *t)
{
    return 1e-6 * t->cost.flops / t->ms;
}

static double gbps(const timing *t)
{
    return 1e-6 * t->cost.bytes / t->ms;
}

static double share(double value, double limit)
{
    return limit > 0 ? value / limit : NAN;
}

/* Digits after the point; negative: with an exponent. */
static void cell(double value, int digits)
{
    if (digits < 0)
        printf("%12.*e", -digits, value);
    else
        printf("%12.*f", digits, value);
}

static void row(const char *label, int digits, double a, const timing *unfused, double b)
{
    printf("  %-18s", label);
    cell(a, digits);
    if (unfused) cell(b, digits);
    putchar('\n');
}

static void print_text(const job *j, const platform *p, const options *o, const timing *f, const timing *u)
{
    const timing *v = u ? u : f;
    char extent[64];
    printf("%s\n", j->text);
    printf("  %s on %s, %d thread%s, %s, %d runs\n", device_name(cvy_plan_device(j->plan)), p->name, p->threads,
           p->threads == 1 ? "" : "s", o->plan.precision == CVY_TF32 ? "tf32" : "fp32", f->runs);
    if (p->fma_gflops > 0) printf("  limits (%s): %.0f GFLOP/s, %.1f GB/s\n", p->source, p->fma_gflops, p->gbps);
    if (u) printf("  %-18s%12s%12s\n", "", "fused", "unfused");
    row("ms, median", 3, f->ms, u, v->ms);
    row("ms, minimum", 3, f->ms_min, u, v->ms_min);
    row("  spread, %", 1, 100 * f->ms_spread / f->ms, u, 100 * v->ms_spread / v->ms);
    row("ms, first run", 3, f->first, u, v->first);
    row("ms, predicted", 3, 1e3 * f->cost.seconds, u, 1e3 * v->cost.seconds);
    row("passes", 0, f->cost.passes, u, v->cost.passes);
    row("GFLOP/s", 1, gflops(f), u, gflops(v));
    row("  % of FMA peak", 1, 100 * share(gflops(f), p->fma_gflops), u, 100 * share(gflops(v), p->fma_gflops));
    row("GB/s", 2, gbps(f), u, gbps(v));
    row("  % of bandwidth", 1, 100 * share(gbps(f), p->gbps), u, 100 * share(gbps(v), p->gbps));
    if (f->verdict.checked) {
        row("max abs error", -2, f->verdict.max_abs_error, u, v->verdict.max_abs_error);
        row("relative error", -2, f->verdict.rel_error, u, v->verdict.rel_error);
    }
    printf("  %s%s\n", oracle_extent(&f->verdict, extent),
           f->verdict.checked ? f->verdict.ok ? " against float64: agrees" : " against float64: DISAGREES" : "");
    if (f->load.is_busy || v->load.is_busy)
        printf("  BUSY: other processes used %.1f of %d processors; these times are not reliable\n",
               fmax(f->load.others, v->load.others), f->load.processors);
    else if (u)
        printf("  fused is %.2f times as fast as unfused\n", u->ms / f->ms);
}

static void print_json(const job *j, const platform *p, const options *o, const timing *f, const timing *u)
{
    const bool checked = f->verdict.checked;
    const time_t today = time(NULL);
    char date[32];

    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S+00:00", gmtime(&today));
    json_begin();
    json_text("chain", j->text);
    json_text("device", device_name(cvy_plan_device(j->plan)));
    json_text("machine", p->name);
    json_text("precision", o->plan.precision == CVY_TF32 ? "tf32" : "fp32");
    json_number("threads", p->threads);
    json_number("ms", f->ms);
    json_number("ms_min", f->ms_min);
    json_number("gflops", gflops(f));
    json_number("fma_share", share(gflops(f), p->fma_gflops));
    json_number("gbps", gbps(f));
    json_number("max_abs_error", checked ? f->verdict.max_abs_error : NAN);
    json_number("rel_error", checked ? f->verdict.rel_error : NAN);
    json_number("samples_checked", checked ? (double)f->verdict.samples : 0);
    json_number("memory_share", share(gbps(f), p->gbps));
    json_number("peak_gflops", p->fma_gflops);
    json_number("peak_gbps", p->gbps);
    json_number("ms_first", f->first);
    json_number("ms_predicted", 1e3 * f->cost.seconds);
    json_number("ms_floor", 1e3 * f->cost.floor);
    json_number("passes", f->cost.passes);
    json_number("runs", f->runs);
    json_number("ms_spread", f->ms_spread);
    json_number("others", f->load.others);
    json_bool("busy", f->load.is_busy);
    if (u) {
        json_number("unfused_ms", u->ms);
        json_number("unfused_ms_min", u->ms_min);
    }
    json_text("date", date);
    json_text("version", cvy_version());
    json_end();
}

int cmd_bench(const options *o)
{
    cvy_options apart = o->plan;
    timing fused = {0}, unfused = {0};
    char *chain = NULL;
    job j = {0};
    platform p;
    int st = chain_load(o->chain, &chain);

    apart.fuse = CVY_OFF;
    if (!st) st = job_open(&j, chain, (cvy_dtype)o->dtype);
    if (!st) st = job_fill(&j, o, true);
    if (!st) st = measure(&j, o, &o->plan, &fused);
    if (!st && o->compare) st = measure(&j, o, &apart, &unfused);
    if (!st) {
        platform_describe(&p, &j, o, true);
        (o->json ? print_json : print_text)(&j, &p, o, &fused, o->compare ? &unfused : NULL);
        if (fused.verdict.checked && !fused.verdict.ok) st = EXIT_CHECK_FAILED;
        if (st) cli_error("the result does not agree with float64");
    }
    free(chain);
    job_close(&j);
    return st;
}
