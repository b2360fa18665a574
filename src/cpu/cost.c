/* cost.c - what the CPU engine takes as one pass, and what it costs. Seconds from operations and bytes. */
#include <stdio.h>
#include "choice.h"

/* ---- legal ---- */

/* Must a value made in the pass lie in a slice? Yes, if somebody reads it who cannot take it from a tile: another
 * producer's step, pooling of anything but a convolution, a second look after statistics. An estimate: lower.c
 * decides, and may need less. */
static bool lies_in_slice(const cvy_plan *p, const pass *s, int index)
{
    const cvy_graph *g = p->graph;
    const int v = g->nodes[index].out;
    const bool made_by_conv = cvyi_info(&g->nodes[index])->kind == KIND_CONV;
    bool stats = false, other = false;

    if (cvyi_needed_after(p, s, v) || cvyi_info(&g->nodes[index])->kind == KIND_STATS) return false;
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

/* Would the pass take statistics of values before they are rounded to fp16 or bf16, for another pass to apply to
 * them afterwards? Where they hardly differ from each other, that would leave the rounding alone, many times
 * enlarged. */
static bool parts_statistics(const cvy_plan *p, const pass *s)
{
    const cvy_graph *g = p->graph;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &g->nodes[i];
        if (cvyi_info(n)->kind == KIND_STATS && g->values[n->arg[0]].dtype != CVY_FLOAT32 &&
            cvyi_made_inside(p, s, n->arg[0]) && cvyi_needed_after(p, s, n->out))
            return true;
    }
    return false;
}

const char *cvyi_pass_refusal(const cvy_plan *p, const pass *s)
{
    static _Thread_local char why[160];
    const cvy_graph *g = p->graph;

    if (s->count == 1) return NULL;
    if (p->tuning == TUNE_APART) return "this tuning keeps operators apart";
    if (!s->by_sample) return "an operator works across samples: the others would wait for all of them";
    for (int i = s->first + 1; i < s->first + s->count; i++)
        if (cvyi_is_producer(cvyi_info(&g->nodes[i])->kind)) return "a second producer starts a pass of its own";
    if (parts_statistics(p, s))
        return "statistics of values that are stored in half precision are taken of the stored";
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

/* Of an operator on one core, all samples; a convolution's is its row's. */
static double node_seconds(const cvy_plan *p, const pass *s, int index)
{
    const cvy_graph *g = p->graph;
    const node *n = &g->nodes[index];
    const cpu_state *state = p->state;
    const double lanes = state->isa == CPU_AVX512 ? 1 : state->isa == CPU_AVX2 ? 1.8 : 5;
    const double elements = (double)cvyi_elements(cvyi_shape_of(g, n->arg[0]));

    switch (cvyi_info(n)->kind) {
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
        /* After a convolution the sums cost a multiply-add per element, else a read from cache. */
        return elements * lanes * (cvyi_made_inside(p, s, n->arg[0]) ? 0.03e-9 : 0.08e-9);
    default:
        return elements * lanes * pointwise_ns(n->op) * 1e-9;
    }
}

double cvyi_row_seconds(const question *q, const cpu_row *row)
{
    (void)row;
    return node_seconds(q->plan, q->pass, q->index);
}

/* Is it cheaper to run the convolution twice than to keep its result? Always, where it does not stay in cache. A
 * product of matrices is not run by bands, and never twice. */
static bool recomputes(const cvy_plan *p, const pass *s, double slices, const cpu_choice *c)
{
    const cpu_state *state = p->state;
    if (slices <= 0 || c->row == &cvyi_row_conv_product || !cvyi_conv_twice_fits(p, s)) return false;
    if (p->tuning == TUNE_RECOMPUTE) return true;
    if (p->options.seed)
        return (p->options.seed ^ (uint32_t)s->count) % 3 == 0 || slice_bytes(p, s) > (double)p->machine.cache;
    return slice_bytes(p, s) > (double)p->machine.cache ||
           c->seconds / state->host.threads < 2 * slices / p->machine.cache_bandwidth;
}

/* seconds = work of all nodes over the threads + what goes through memory + what goes through slices.
 * A on two cores of 116 GFLOP/s and 28 GB/s: convolution 68 ms of one core -> 34 ms, pointwise on the pooled
 * sixteenth 1 ms, 98 MB -> 3.5 ms. */
static double seconds_of(const cvy_plan *p, const pass *s, double first, bool twice, int threads)
{
    double work = twice ? 2 * first : first, slices = twice ? 0 : slice_bytes(p, s) * (double)s->samples;
    for (int i = s->first + 1; i < s->first + s->count; i++) work += node_seconds(p, s, i);
    return work / threads + s->bytes / p->machine.bandwidth + 2 * slices / p->machine.cache_bandwidth +
           p->machine.launch;
}

/* The choice is made for all threads of the machine, however many this plan may use: the bits of a result must not
 * depend on their number. */
void cvyi_pass_cost(const cvy_plan *p, pass *s, const cpu_choice *c)
{
    const cpu_state *state = p->state;
    const double slices = slice_bytes(p, s) * (double)s->samples;
    const bool twice = recomputes(p, s, slices, c);
    const char *name = cvyi_info(&p->graph->nodes[s->first])->kind == KIND_CONV ? c->row->name : "";
    bool barrier = false;

    for (int i = s->first; i < s->first + s->count; i++)
        barrier |= cvyi_info(&p->graph->nodes[i])->kind == KIND_STATS;
    s->seconds = seconds_of(p, s, c->seconds, twice, state->host.threads);
    s->way = !barrier || s->count == 1 ? WAY_STREAM : twice ? WAY_RECOMPUTE : slices > 0 ? WAY_RESIDENT : WAY_FOLD;
    snprintf(s->note, sizeof s->note, "%s", name);
    if (slices > 0 && !twice)
        snprintf(s->note, sizeof s->note, "%s%sslice of %.3g MB in cache", name, name[0] ? ", " : "",
                 slice_bytes(p, s) * 1e-6);
}

void cvyi_cpu_predict(const cvy_plan *p, pass *s)
{
    const cpu_state *state = p->state;
    s->seconds = seconds_of(p, s, cvyi_cpu_choice(s)->seconds, s->way == WAY_RECOMPUTE, state->threads);
}
