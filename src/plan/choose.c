/* choose.c - the search: enumerate, legal, cost, pick.
 *
 * A plan is a partition of the node list into intervals. best[i] is the cheapest way to run the first i nodes, and
 * best[j] = min over i of best[i] + cost(i ... j-1): a shortest path, exact for the cost model. An interval has
 * PASS_NODES nodes at most, so the search is linear in their number. The engine decides how to run an interval
 * when it is judged; the decision stays with it. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "plan.h"

enum { MAX_REJECTED = 32 };

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

/* The best partition of the nodes up to one of them: its seconds, and its last interval. */
typedef struct partition {
    double total;
    pass last;
} partition;

typedef struct search {
    cvy_plan *plan;
    arena memory;    /* only the search uses it; the plan keeps a copy of what is picked */
    int start;       /* the nodes before it are prepared */
    partition *best; /* of nodes [start, start + i) */
    void *spare;     /* room for a decision; swapped with that of an interval that is beaten */
    uint32_t seed;
} search;

/* Judges an interval as a pass, with the decision in the spare room. Returns the reason why it cannot be one, or
 * NULL. */
static const char *judge(const search *at, const interval *in, pass *s)
{
    const cvy_plan *p = at->plan;
    const char *why = NULL;
    *s = (pass){.first = in->first, .count = in->end - in->first, .choice = at->spare};
    s->flops = in->flops;
    s->bytes = in->bytes;
    s->by_sample = in->samples > 0;
    s->samples = s->by_sample ? in->samples : 1;
    if (s->count > 1 && p->options.fuse == CVY_OFF) why = "fusing is off";
    return why ? why : p->engine->judge(p, s);
}

/* Room for the engine's part of a decision. */
static void *new_choice(search *at)
{
    return cvyi_arena_alloc(&at->memory, 1, at->plan->engine->choice_bytes);
}

static void extend(search *at, int end)
{
    cvy_plan *p = at->plan;
    const int start = at->start;
    partition *best = at->best;
    interval in;

    best[end - start].total = INFINITY;
    cvyi_interval_begin(p, end, &in);
    for (int first = end - 1; first >= start && end - first <= PASS_NODES; first--) {
        const char *why;
        double total;
        pass s;
        cvyi_interval_grow(p, &in);
        why = judge(at, &in, &s);
        if (why) {
            /* Only whole tails after a producer are worth printing; the rest would fill pages. */
            if (cvyi_is_producer(cvyi_info(&p->graph->nodes[first])->kind) && end == p->graph->n_nodes)
                reject(p, &s, why);
            continue;
        }
        total = best[first - start].total + s.seconds;
        if (at->seed) total = (double)next_random(&at->seed); /* any legal plan may win */
        if (!(total < best[end - start].total)) continue;
        at->spare = best[end - start].last.choice;
        best[end - start] = (partition){total, s};
    }
}

static const char *judge_nodes(const search *at, int first, int count, pass *s)
{
    interval in;
    cvyi_interval_begin(at->plan, first + count, &in);
    while (in.first > first) cvyi_interval_grow(at->plan, &in);
    return judge(at, &in, s);
}

/* Alternatives that were legal and lost, for the printed plan: what it would have cost to cut after each producer.
 * The search kept no answers of intervals that it did not choose, so they are judged once more. */
static void note_losers(const search *at)
{
    cvy_plan *p = at->plan;
    for (int i = p->n_prepare; i < p->n_passes && p->n_rejections < MAX_REJECTED; i++) {
        const pass whole = p->passes[i];
        char why[120];
        for (int cut = 1; cut < whole.count; cut++) {
            const op_kind kind = cvyi_info(&p->graph->nodes[whole.first + cut])->kind;
            pass a, b;
            if (kind == KIND_UNARY || kind == KIND_BINARY) continue;
            if (judge_nodes(at, whole.first, cut, &a)) continue;
            if (judge_nodes(at, whole.first + cut, whole.count - cut, &b)) continue;
            a.seconds += b.seconds;
            a.count = whole.count;
            snprintf(why, sizeof why, "store: cut before %s", cvyi_info(&p->graph->nodes[whole.first + cut])->name);
            reject(p, &a, why);
        }
    }
}

/* n elements of the search that outlast it, or NULL. */
static void *kept(cvy_plan *p, const void *data, size_t n, size_t size)
{
    void *copy = cvyi_arena_alloc(&p->memory, n, size);
    return copy ? memcpy(copy, data, n * size) : NULL;
}

/* The passes of the best partition, after the one that prepares. */
static cvy_status pick(const search *at, int end, const pass *prepares)
{
    cvy_plan *p = at->plan;
    int n = 0;

    for (int i = end; i > at->start; i = at->best[i - at->start].last.first) n++;
    p->n_prepare = at->start > 0;
    p->n_passes = p->n_prepare + n;
    p->passes = cvyi_arena_alloc(&p->memory, (size_t)p->n_passes + 1, sizeof *p->passes);
    if (!p->passes) return CVY_NO_MEMORY;
    p->passes[0] = *prepares;
    for (int i = end; i > at->start; i = at->best[i - at->start].last.first) {
        pass *s = &p->passes[p->n_prepare + --n];
        *s = at->best[i - at->start].last;
        s->choice = p->engine->keep ? p->engine->keep(p, s) : kept(p, s->choice, 1, p->engine->choice_bytes);
        if (!s->choice) return CVY_NO_MEMORY;
    }
    return CVY_OK;
}

static cvy_status cut(search *at, int end)
{
    cvy_plan *p = at->plan;
    const int start = at->start;
    cvy_status st = CVY_OK;

    at->spare = new_choice(at);
    at->best = cvyi_arena_alloc(&at->memory, (size_t)(end - start) + 1, sizeof *at->best);
    TRY(at->best && at->spare ? CVY_OK : CVY_NO_MEMORY);
    for (int i = start + 1; i <= end; i++) {
        TRY((at->best[i - start].last.choice = new_choice(at)) ? CVY_OK : CVY_NO_MEMORY);
        extend(at, i);
        if (isinf(at->best[i - start].total)) {
            pass alone;
            const char *why = judge_nodes(at, i - 1, 1, &alone);
            TRY(cvyi_fail(CVY_UNSUPPORTED, "%s: the %s device does not run it: %s",
                          cvyi_info(&p->graph->nodes[i - 1])->name, p->engine->name, why));
        }
    }
fail:
    return st;
}

/* The pass of all nodes that are prepared; place.c has sorted them to the front. */
static cvy_status prepare_pass(cvy_plan *p, int count, pass *out)
{
    interval in;
    cvyi_interval_begin(p, count, &in);
    while (in.first) cvyi_interval_grow(p, &in);
    *out = (pass){.first = 0, .count = count, .samples = 1, .flops = in.flops, .bytes = in.bytes};
    return p->engine->judge_prepared(p, out);
}

cvy_status cvyi_choose(cvy_plan *p)
{
    const int end = p->graph->n_nodes;
    search at = {.plan = p, .seed = p->options.seed};
    pass prepares = {0};
    cvy_status st = CVY_OK;

    p->rejections = cvyi_arena_alloc(&at.memory, MAX_REJECTED, sizeof *p->rejections);
    p->read_by = cvyi_arena_alloc(&p->memory, (size_t)p->graph->n_values + 1, sizeof *p->read_by);
    TRY(p->rejections && p->read_by ? CVY_OK : CVY_NO_MEMORY);
    while (at.start < end && p->prepared[p->graph->nodes[at.start].out]) at.start++;
    if (at.start) TRY(prepare_pass(p, at.start, &prepares));
    TRY(cut(&at, end));
    TRY(pick(&at, end, &prepares));
    note_losers(&at);
    p->rejections = kept(p, p->rejections, (size_t)p->n_rejections, sizeof *p->rejections);
    TRY(p->rejections ? CVY_OK : CVY_NO_MEMORY);
fail:
    cvyi_arena_free(&at.memory);
    return st;
}
