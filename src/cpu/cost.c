/* cost.c - what the CPU engine takes as one pass, and what it costs. Seconds from operations and bytes. */
#include <stdio.h>
#include "exec.h"

/* ---- legal ---- */

/* Must a value made in the pass lie in a slice? Yes, if somebody reads it who cannot take it from a tile: another
 * producer's step, pooling of anything but a convolution, a second look behind statistics. An estimate: lower.c
 * decides, and may need less. */
static bool lies_in_slice(const cvy_plan *p, const pass *s, int index)
{
    const cvy_graph *g = p->graph;
    const int v = g->nodes[index].out;
    const bool made_by_conv = cvyi_info(&g->nodes[index])->kind == KIND_CONV;
    bool stats = false, other = false;

    if (cvyi_needed_behind(p, s, v) || cvyi_info(&g->nodes[index])->kind == KIND_STATS) return false;
    for (int i = index + 1; i <= p->last_reader[v]; i++) {
        const op_kind kind = cvyi_info(&g->nodes[i])->kind;
        if (g->nodes[i].arg[0] != v) continue;
        if (kind == KIND_STATS)
            stats = true;
        else if (kind == KIND_MAXPOOL && made_by_conv)
            continue; /* taken along */
        else if (!cvyi_is_pointwise(kind) && kind != KIND_REDUCE && kind != KIND_SOFTMAX && kind != KIND_SHAPE)
            return true;
        else
            other = true;
    }
    return stats && other;
}

static double slice_bytes(const cvy_plan *p, const pass *s)
{
    double bytes = 0;
    for (int i = s->first; i < s->first + s->count; i++)
        if (lies_in_slice(p, s, i))
            bytes +=
                (double)((int64_t)sizeof(float) * cvyi_elements(cvyi_shape_of(p->graph, p->graph->nodes[i].out))) /
                (double)s->samples; /* computed in float32, whatever the dtype */
    return bytes;
}

static const char *refusal(const cvy_plan *p, const pass *s)
{
    static _Thread_local char why[160];
    const cvy_graph *g = p->graph;

    if (s->count == 1) return NULL;
    if (p->tuning == TUNE_APART) return "this tuning keeps operators apart";
    if (!s->by_sample) return "an operator works across samples: the others would wait for all of them";
    for (int i = s->first + 1; i < s->first + s->count; i++)
        if (cvyi_is_producer(cvyi_info(&g->nodes[i])->kind)) return "a second producer starts a pass of its own";
    if (slice_bytes(p, s) > (double)p->machine.cache && !cvyi_conv_twice_fits(p, s)) {
        snprintf(why, sizeof why, "a slice of %.1f MB does not stay in the %.1f MB of cache that a thread has",
                 slice_bytes(p, s) * 1e-6, (double)p->machine.cache * 1e-6);
        return why;
    }
    return NULL;
}

/* ---- cost ---- */

/* Nanoseconds per element and core of pointwise loops in the first-level cache, AVX-512; fewer lanes take longer.
 */
static double pointwise_ns(op_id op)
{
    switch (op) {
    case OP_exp:
        return 0.2;
    case OP_sigmoid:
    case OP_tanh:
    case OP_tanh_hardswish:
    case OP_silu:
    case OP_log:
    case OP_elu:
    case OP_selu:
        return 0.4;
    case OP_gelu:
    case OP_erf:
    case OP_softplus:
    case OP_mish:
        return 0.8;
    default:
        return 0.06;
    }
}

static double node_seconds(const cvy_plan *p, const pass *s, int index)
{
    const cvy_graph *g = p->graph;
    const node *n = &g->nodes[index];
    const cpu_state *state = p->state;
    const double lanes = state->isa == CPU_AVX512 ? 1 : state->isa == CPU_AVX2 ? 1.8 : 5;
    const double elements = (double)cvyi_elements(cvyi_shape_of(g, n->arg[0]));

    switch (cvyi_info(n)->kind) {
    case KIND_CONV:
        return ((const cpu_choice *)s->choice)->seconds;
    case KIND_CONVT:
        return cvyi_node_flops(g, n) / (0.5 * state->host.fma_gflops * 1e9);
    case KIND_LINEAR:
    case KIND_MATMUL:
        return cvyi_node_flops(g, n) / (0.8 * state->host.fma_gflops * 1e9);
    case KIND_REDUCE:
        return elements * lanes * (n->op == OP_logsumexp ? 0.35e-9 : 0.06e-9);
    case KIND_SOFTMAX:
        return elements * lanes * 0.5e-9;
    case KIND_SHAPE:
        return 0;
    case KIND_STATS:
        /* Behind a convolution the sums cost a multiply-add per element, else a read from cache. */
        return elements * lanes * (cvyi_made_inside(p, s, n->arg[0]) ? 0.03e-9 : 0.08e-9);
    default:
        return elements * lanes * pointwise_ns(n->op) * 1e-9;
    }
}

/* Is it cheaper to run the convolution twice than to keep its result? Always, where it does not stay in cache. */
static bool recomputes(const cvy_plan *p, const pass *s, double slices, double conv_seconds)
{
    const cpu_state *state = p->state;
    if (slices <= 0 || !cvyi_conv_twice_fits(p, s)) return false;
    if (p->tuning == TUNE_RECOMPUTE) return true;
    if (p->options.seed)
        return (p->options.seed ^ (uint32_t)s->count) % 3 == 0 || slice_bytes(p, s) > (double)p->machine.cache;
    return slice_bytes(p, s) > (double)p->machine.cache ||
           conv_seconds / state->host.threads < 2 * slices / p->machine.cache_bandwidth;
}

/* seconds = work of all nodes over the threads + what goes through memory + what goes through slices.
 * A on two cores of 116 GFLOP/s and 28 GB/s: convolution 68 ms of one core -> 34 ms, pointwise on the pooled
 * sixteenth 1 ms, 98 MB -> 3.5 ms. */
static double seconds_of(const cvy_plan *p, const pass *s, bool twice, int threads)
{
    double work = 0, slices = twice ? 0 : slice_bytes(p, s) * (double)s->samples;
    for (int i = s->first; i < s->first + s->count; i++) {
        const double one = node_seconds(p, s, i);
        work += twice && i == s->first ? 2 * one : one;
    }
    return work / threads + s->bytes / p->machine.bandwidth + 2 * slices / p->machine.cache_bandwidth +
           p->machine.launch;
}

/* A pass has at most one producer, and begins with it. */
static void choose(const cvy_plan *p, pass *s)
{
    const node *n = &p->graph->nodes[s->first];
    cpu_choice *c = s->choice;
    conv_geom geom;

    *c = (cpu_choice){.algo = -1};
    if (cvyi_info(n)->kind != KIND_CONV) return;
    cvyi_conv_geom(p->graph, n, &geom);
    c->algo = cvyi_conv_choose(p, p->state, &geom, &c->seconds);
}

/* The choice is made for all threads of the machine, however many this plan may use: the bits of a result must not
 * depend on their number. */
static void cost(const cvy_plan *p, pass *s)
{
    const cpu_state *state = p->state;
    const double slices = slice_bytes(p, s) * (double)s->samples;
    const bool twice = recomputes(p, s, slices, node_seconds(p, s, s->first));
    const int algo = ((const cpu_choice *)s->choice)->algo;
    const char *name = algo < 0 ? "" : cvyi_conv_algo_name(algo);
    bool barrier = false;

    for (int i = s->first; i < s->first + s->count; i++)
        barrier |= cvyi_info(&p->graph->nodes[i])->kind == KIND_STATS;
    s->seconds = seconds_of(p, s, twice, state->host.threads);
    s->way = !barrier || s->count == 1 ? WAY_STREAM : twice ? WAY_RECOMPUTE : slices > 0 ? WAY_RESIDENT : WAY_FOLD;
    snprintf(s->note, sizeof s->note, "%s", name);
    if (slices > 0 && !twice)
        snprintf(s->note, sizeof s->note, "%s%sslice of %.3g MB in cache", name, name[0] ? ", " : "",
                 slice_bytes(p, s) * 1e-6);
}

const char *cvyi_cpu_judge(const cvy_plan *p, pass *s)
{
    const char *why = refusal(p, s);

    if (why) return why;
    choose(p, s);
    cost(p, s);
    return NULL;
}

/* Convolutions have several algorithms; every other operator has one. */
void cvyi_cpu_why(const cvy_plan *p, const pass *s, text *t)
{
    const node *n = &p->graph->nodes[s->first];
    conv_geom geom;

    if (cvyi_info(n)->kind == KIND_CONV) {
        cvyi_conv_geom(p->graph, n, &geom);
        cvyi_conv_why(p, &geom, ((const cpu_choice *)s->choice)->algo, t);
    }
    cvyi_text_add(t, "    %-24s %10.4g ms %s\n", "the whole pass", s->seconds * 1e3, s->note);
}

bool cvyi_cpu_same(const void *a, const void *b)
{
    return ((const cpu_choice *)a)->algo == ((const cpu_choice *)b)->algo;
}

void cvyi_cpu_predict(const cvy_plan *p, pass *s)
{
    const cpu_state *state = p->state;
    s->seconds = seconds_of(p, s, s->way == WAY_RECOMPUTE, state->threads);
}
