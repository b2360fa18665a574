/* choose.c - the search: enumerate, legal, cost, pick.
 *
 * A plan is a partition of the node list into intervals. best[i] is the cheapest way to run the first i nodes, and
 * best[j] = min over i of best[i] + cost(i ... j-1): a shortest path, exact for the cost model. An interval has
 * MAX_INTERVAL nodes at most, so the search is linear in their number. The engine decides how to run an interval
 * when it is judged; the decision stays with it. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "plan.h"

enum { MAX_INTERVAL = 48, MAX_REJECTED = 32 };

static const char *const way_names[] = {"stream", "fold", "resident", "recompute", "store"};
const char *cvyi_way_name(way w)
{
    return way_names[w];
}

/* xorshift: the random plans of tests must be the same everywhere. */
static uint32_t next_random(uint32_t *state)
{
    uint32_t x = *state ? *state : 1;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return *state = x;
}

static void reject(cvy_plan *p, const pass *s, const char *why)
{
    rejected *r;
    if (p->n_rejections == MAX_REJECTED) return;
    r = &p->rejections[p->n_rejections++];
    *r = (rejected){.first = s->first, .count = s->count, .seconds = s->seconds};
    snprintf(r->why, sizeof r->why, "%s", why);
}

/* The pass that an interval would be, with room for the engine's part of the decision; why it cannot be one, or
 * NULL.
 */
static const char *judge(const cvy_plan *p, const interval *in, void *room, pass *s)
{
    const char *why = NULL;
    *s = (pass){.first = in->first, .count = in->end - in->first, .choice = room};
    s->flops = in->flops;
    s->bytes = in->bytes;
    s->by_sample = in->samples > 0;
    s->samples = s->by_sample ? in->samples : 1;
    if (s->count > 1 && p->options.fuse == CVY_OFF) why = "fusing is off";
    return why ? why : p->engine->judge(p, s);
}

/* Room for the engine's part of a decision. */
static void *new_choice(cvy_plan *p)
{
    return cvyi_arena_alloc(&p->memory, 1, p->engine->choice_bytes);
}

/* The last interval of the best partition of nodes [start, end). */
typedef struct step {
    double total; /* seconds of everything up to here */
    pass last;
} step;

/* spare: room for a decision; changes places with that of an interval that is beaten. */
static void extend(cvy_plan *p, step *best, int start, int end, void **spare, uint32_t *seed)
{
    interval in;

    best[end - start].total = INFINITY;
    cvyi_interval_begin(p, end, &in);
    for (int first = end - 1; first >= start && end - first <= MAX_INTERVAL; first--) {
        const char *why;
        double total;
        pass s;
        cvyi_interval_grow(p, &in);
        why = judge(p, &in, *spare, &s);
        if (why) {
            /* Only whole tails behind a producer are news; the rest would fill pages. */
            if (cvyi_is_producer(cvyi_info(&p->graph->nodes[first])->kind) && end == p->graph->n_nodes)
                reject(p, &s, why);
            continue;
        }
        total = best[first - start].total + s.seconds;
        if (*seed) total = (double)next_random(seed); /* any legal plan may win */
        if (!(total < best[end - start].total)) continue;
        *spare = best[end - start].last.choice;
        best[end - start] = (step){total, s};
    }
}

static const char *judge_nodes(cvy_plan *p, int first, int count, void *room, pass *s)
{
    interval in;
    cvyi_interval_begin(p, first + count, &in);
    while (in.first > first) cvyi_interval_grow(p, &in);
    return judge(p, &in, room, s);
}

/* Alternatives that were legal and lost: what it would have cost to cut behind each producer. */
static void note_losers(cvy_plan *p, void *spare)
{
    for (int i = p->n_prepare; i < p->n_passes && p->n_rejections < MAX_REJECTED; i++) {
        const pass whole = p->passes[i];
        char why[120];
        for (int cut = 1; cut < whole.count; cut++) {
            const op_kind kind = cvyi_info(&p->graph->nodes[whole.first + cut])->kind;
            pass a, b;
            if (kind == KIND_UNARY || kind == KIND_BINARY) continue;
            if (judge_nodes(p, whole.first, cut, spare, &a)) continue;
            if (judge_nodes(p, whole.first + cut, whole.count - cut, spare, &b)) continue;
            a.seconds += b.seconds;
            a.count = whole.count;
            snprintf(why, sizeof why, "store: cut in front of %s",
                     cvyi_info(&p->graph->nodes[whole.first + cut])->name);
            reject(p, &a, why);
        }
    }
}

static cvy_status cut(cvy_plan *p, int start, int end)
{
    uint32_t seed = p->options.seed;
    step *best = cvyi_arena_alloc(&p->memory, (size_t)(end - start) + 1, sizeof *best);
    void *spare = new_choice(p);
    int n = 0;

    if (!best || !spare) return CVY_NO_MEMORY;
    for (int i = start + 1; i <= end; i++) {
        if (!(best[i - start].last.choice = new_choice(p))) return CVY_NO_MEMORY;
        extend(p, best, start, i, &spare, &seed);
        if (isinf(best[i - start].total))
            return cvyi_fail(
                CVY_UNSUPPORTED, "%s: the %s device does not run it: %s", cvyi_info(&p->graph->nodes[i - 1])->name,
                p->engine->name,
                p->engine->judge(p, &(pass){.first = i - 1, .count = 1, .samples = 1, .choice = spare}));
    }
    for (int at = end; at > start; at = best[at - start].last.first) n++;
    p->n_passes = p->n_prepare + n;
    for (int at = end; at > start; at = best[at - start].last.first)
        p->passes[p->n_prepare + --n] = best[at - start].last;
    note_losers(p, spare);
    return CVY_OK;
}

cvy_status cvyi_choose(cvy_plan *p)
{
    int prepared = 0;

    p->passes = cvyi_arena_alloc(&p->memory, (size_t)p->graph->n_nodes + 1, sizeof *p->passes);
    p->rejections = cvyi_arena_alloc(&p->memory, MAX_REJECTED, sizeof *p->rejections);
    p->read_by = cvyi_arena_alloc(&p->memory, (size_t)p->graph->n_values + 1, sizeof *p->read_by);
    if (!p->passes || !p->rejections || !p->read_by) return CVY_NO_MEMORY;
    /* place.c has sorted the prepared nodes to the front. */
    while (prepared < p->graph->n_nodes && p->prepared[p->graph->nodes[prepared].out]) prepared++;
    p->n_prepare = prepared > 0;
    if (prepared) {
        interval in;
        cvyi_interval_begin(p, prepared, &in);
        while (in.first) cvyi_interval_grow(p, &in);
        p->passes[0] = (pass){.first = 0, .count = prepared, .samples = 1, .flops = in.flops, .bytes = in.bytes};
    }
    return cut(p, prepared, p->graph->n_nodes);
}
