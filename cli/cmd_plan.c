/* cmd_plan.c - `convoy plan`: how a chain would be computed. */
#include <stdlib.h>
#include "cli.h"

/* why: NULL, or the answers of all kernels. */
static int print_json(const job *j, const char *text, const char *why)
{
    cvy_cost cost;
    if (cvy_plan_cost(j->plan, &cost)) return cli_library_error("plan: ");
    json_begin();
    json_text("chain", j->text);
    json_text("device", device_name(cvy_plan_device(j->plan)));
    json_number("passes", cost.passes);
    json_number("ms", 1e3 * cost.seconds);
    json_number("floor_ms", 1e3 * cost.floor);
    json_number("flops", cost.flops);
    json_number("bytes", cost.bytes);
    json_number("workspace", (double)cvy_plan_workspace(j->plan));
    json_text("plan", text);
    if (why) json_text("why", why);
    json_end();
    return EXIT_FINE;
}

int cmd_plan(const options *o)
{
    char *chain = NULL, *text = NULL, *why = NULL;
    job j = {0};
    int st = chain_load(o->chain, &chain);

    if (!st) st = job_open(&j, chain, (cvy_dtype)o->dtype);
    if (!st) st = job_plan(&j, &o->plan);
    if (!st && o->measure && cvy_plan_measure(j.plan)) st = cli_library_error("plan: ");
    if (!st && !(text = job_plan_text(&j))) st = EXIT_USAGE;
    if (!st && o->why && !(why = job_why_text(&j))) st = EXIT_USAGE;
    if (!st && o->json) st = print_json(&j, text, why);
    if (!st && !o->json && (!why || o->measure)) fputs(text, stdout);
    if (!st && !o->json && why) fputs(why, stdout);
    free(why);
    free(text);
    free(chain);
    job_close(&j);
    return st;
}
