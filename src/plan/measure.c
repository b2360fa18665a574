/* measure.c - effort "measure": the best few plans are timed, and the winner is remembered.
 *
 * An engine offers tunings: 0 leaves everything to its cost model, the others force something (an algorithm, no
 * fusion). Each gives a plan. Of the plans that differ, the MEASURED cheapest by prediction are run on random data,
 * and the fastest is kept. The choice is stored in the cache under a digest of everything it depends on: engine
 * version, machine, operator table, instruction set and options, and the graph's text. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../util/cache.h"
#include "plan.h"

enum { MEASURED = 6, MAX_TUNINGS = 16 };

typedef struct memory_entry {
    int tuning;
    double seconds;
} memory_entry;

/* ---- the stored choice ---- */

/* On disk: the tuning in one byte, then the seconds as a little-endian double. */
enum { ENTRY_BYTES = 9 };

static void remember(const cache_key *key, const memory_entry *entry)
{
    unsigned char bytes[ENTRY_BYTES] = {(unsigned char)entry->tuning};
    uint64_t bits;
    memcpy(&bits, &entry->seconds, sizeof bits);
    for (int i = 1; i < ENTRY_BYTES; i++) bytes[i] = (unsigned char)(bits >> 8 * (i - 1));
    cvyi_cache_store(key, bytes, sizeof bytes);
}

static cvy_status digest_of(const cvy_plan *p, cache_key *key)
{
    sha256 h;
    text t = {0};
    cvy_status st = cvyi_print_graph(p->source, &t);

    cvyi_sha256_start(&h);
    cvyi_sha256_add(&h, CVY_VERSION, sizeof CVY_VERSION);
    cvyi_sha256_add(&h, p->machine.name, strlen(p->machine.name) + 1);
    cvyi_sha256_add(&h, &p->machine.workers, sizeof p->machine.workers);
    cvyi_sha256_add(&h, &p->options.precision, sizeof p->options.precision);
    cvyi_sha256_add(&h, &p->options.winograd, sizeof p->options.winograd);
    cvyi_sha256_add(&h, &p->options.fuse, sizeof p->options.fuse);
    for (int i = 0; i < OP_COUNT; i++) cvyi_sha256_add(&h, cvyi_ops[i].name, strlen(cvyi_ops[i].name) + 1);
    if (!st && !t.failed) cvyi_sha256_add(&h, t.data, t.len);
    cvyi_sha256_end(&h, key->digest);
    cvyi_text_free(&t);
    return st;
}

/* False if nothing is stored, or something that this engine cannot have written. */
static bool recall(const cache_key *key, int n_tunings, memory_entry *out)
{
    size_t size = 0;
    unsigned char *found = cvyi_cache_load(key, &size);
    bool good = found && size == ENTRY_BYTES && found[0] < n_tunings;
    uint64_t bits = 0;

    for (int i = 1; good && i < ENTRY_BYTES; i++) bits |= (uint64_t)found[i] << 8 * (i - 1);
    if (good) out->tuning = found[0];
    if (good) memcpy(&out->seconds, &bits, sizeof bits);
    cvyi_free(found);
    return good && out->seconds > 0 && isfinite(out->seconds);
}

/* ---- measuring ---- */

/* A plan of the same graph with another tuning; NULL if that is not possible. */
static cvy_plan *attempt(const cvy_plan *p, int tuning)
{
    cvy_options options = p->options;
    cvy_plan *made = NULL;
    options.effort = CVY_ESTIMATE;
    if (cvyi_plan_tuned(p->source, &options, tuning, &made)) made = NULL;
    return made;
}

static double predicted(const cvy_plan *p)
{
    cvy_cost cost = {0};
    cvy_plan_cost(p, &cost);
    return cost.seconds;
}

/* Two tunings may lead to the same plan: then one is timed. */
static bool same_passes(const cvy_plan *a, const cvy_plan *b)
{
    if (a->n_passes != b->n_passes) return false;
    for (int i = 0; i < a->n_passes; i++)
        if (a->passes[i].count != b->passes[i].count || a->passes[i].way != b->passes[i].way ||
            (i >= a->n_prepare && !a->engine->same_choice(a->passes[i].choice, b->passes[i].choice)))
            return false;
    return true;
}

static int best_untried(cvy_plan *const *plans, int n, const bool *tried)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (plans[i] && !tried[i] && (best < 0 || predicted(plans[i]) < predicted(plans[best]))) best = i;
    return best;
}

static memory_entry time_best(cvy_plan *const *plans, int n)
{
    memory_entry best = {0, INFINITY};
    bool tried[MAX_TUNINGS] = {false};

    for (int round = 0; round < MEASURED; round++) {
        const int i = best_untried(plans, n, tried);
        double seconds = INFINITY;
        if (i < 0) break;
        tried[i] = true;
        for (int k = 0; k < n; k++)
            if (plans[k] && k != i && !tried[k] && same_passes(plans[i], plans[k])) tried[k] = true;
        if (plans[i]->engine->measure(plans[i], &seconds)) continue;
        cvyi_log(2, "measured tuning '%s': %.4g ms, predicted %.4g ms", plans[i]->engine->tunings[i], seconds * 1e3,
                 predicted(plans[i]) * 1e3);
        if (seconds < best.seconds) best = (memory_entry){i, seconds};
    }
    return best;
}

cvy_status cvyi_measure(cvy_plan *p, int *tuning, double *seconds)
{
    cvy_plan *plans[MAX_TUNINGS] = {NULL};
    memory_entry best = {0, INFINITY};
    cache_key key;
    int n = 0;
    cvy_status st = CVY_OK;

    *tuning = 0;
    *seconds = 0;
    if (!p->engine->measure || !p->engine->tunings) return CVY_OK;
    while (n < MAX_TUNINGS && p->engine->tunings[n]) n++;
    TRY(digest_of(p, &key));
    if (!recall(&key, n, &best)) {
        for (int i = 0; i < n; i++) plans[i] = attempt(p, i);
        best = time_best(plans, n);
        if (!isinf(best.seconds)) remember(&key, &best);
    }
    *tuning = best.tuning;
    *seconds = isinf(best.seconds) ? 0 : best.seconds;
fail:
    for (int i = 0; i < n; i++) cvy_plan_free(plans[i]);
    return st;
}
