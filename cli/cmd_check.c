/* cmd_check.c - `convoy check`: a chain's result against float64. */
#include <stdlib.h>
#include "cli.h"

static void print_json(const job *j, const platform *m, const options *o, const verdict *v)
{
    json_begin();
    json_text("chain", j->text);
    json_text("device", device_name(cvy_plan_device(j->plan)));
    json_text("machine", m->name);
    json_text("precision", o->plan.precision == CVY_TF32 ? "tf32" : "fp32");
    json_number("threads", m->threads);
    json_number("max_abs_error", v->max_abs_error);
    json_number("rel_error", v->rel_error);
    json_number("bound", v->bound);
    json_number("mismatches", (double)v->mismatches);
    json_number("samples", (double)v->samples);
    json_bool("agree", v->ok);
    json_end();
}

static void print_text(const job *j, const platform *m, const verdict *v)
{
    char extent[64];
    printf("%s\n", j->text);
    printf("  device          %s, %d thread%s\n", device_name(cvy_plan_device(j->plan)), m->threads,
           m->threads == 1 ? "" : "s");
    printf("  compared        with float64, %s\n", oracle_extent(v, extent));
    printf("  max abs error   %.3g\n", v->max_abs_error);
    printf("  relative error  %.3g (bound %.3g)\n", v->rel_error, v->bound);
    if (v->mismatches) printf("  NaN or inf      %lld elements differ\n", (long long)v->mismatches);
    printf("  %s\n", v->ok ? "agrees" : "DOES NOT AGREE");
}

int cmd_check(const options *o)
{
    char *chain = NULL;
    job j = {0};
    verdict v = {0};
    platform m;
    int st = chain_load(o->chain, &chain);

    if (!st) st = job_open(&j, chain, (cvy_dtype)o->dtype);
    if (!st) st = job_plan(&j, &o->plan);
    if (!st) st = job_fill(&j, o, true);
    if (!st) st = job_place(&j, o->plan.ordinal);
    if (!st) st = job_run(&j, 0, NULL);
    if (!st) st = job_fetch(&j);
    if (!st) st = oracle_check(&j, o, o->samples ? o->samples : CHECK_ALL, &v);
    if (!st) {
        platform_describe(&m, &j, o, false);
        if (o->json)
            print_json(&j, &m, o, &v);
        else
            print_text(&j, &m, &v);
        st = v.ok ? EXIT_FINE : EXIT_CHECK_FAILED;
    }
    free(chain);
    job_close(&j);
    return st;
}
