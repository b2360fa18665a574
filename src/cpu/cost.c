/* cost.c - which nodes the CPU engine accepts as one pass, and its cost: seconds from operations and bytes. */
#include <stdio.h>
#include "choice.h"

/* ---- legal ---- */

/* Would the pass take statistics of values before they are rounded to fp16 or bf16, for another pass to apply to
 * them afterwards? If the values hardly differ from each other, only their rounding errors would remain, many times
 * amplified. */
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

/* A slice may be empty. Programs have no room for such a value next to others; a separate pass costs nothing. */
static bool has_empty_among_others(const cvy_plan *p, const pass *s)
{
    int empty = 0;
    for (int i = s->first; i < s->first + s->count; i++)
        empty += !cvyi_elements(cvyi_shape_of(p->graph, p->graph->nodes[i].out));
    return empty && empty < s->count;
}

const char *cvyi_pass_refusal(const cvy_plan *p, const pass *s)
{
    const cvy_graph *g = p->graph;

    if (s->count == 1) return NULL;
    if (p->tuning == TUNE_APART) return "this tuning keeps operators apart";
    if (!s->by_sample) return "an operator works across samples: the others would wait for all of them";
    for (int i = s->first + 1; i < s->first + s->count; i++)
        if (cvyi_is_producer(cvyi_info(&g->nodes[i])->kind)) return "a second producer starts a pass of its own";
    if (has_empty_among_others(p, s)) return "one of its values is empty, another is not";
    if (parts_statistics(p, s))
        return "statistics of values stored in half precision must be those of the stored values";
    return NULL;
}

/* ---- cost ---- */

double cvyi_vector_elements(const question *q)
{
    const cpu_state *state = q->plan->state;
    const double lanes = state->isa == CPU_AVX512 ? 1
                         : state->isa == CPU_AVX2 ? 1.8
                         : state->isa == CPU_NEON ? 3
                                                  : 5;
    const cvy_graph *g = q->plan->graph;
    return lanes * (double)cvyi_elements(cvyi_shape_of(g, g->nodes[q->index].arg[0]));
}

double cvyi_product_seconds(const question *q, double share)
{
    const cpu_state *state = q->plan->state;
    return cvyi_node_flops(q->plan->graph, &q->plan->graph->nodes[q->index]) /
           (share * state->host.fma_gflops * 1e9);
}

/* Statistics are a few numbers: they do not count. */
double cvyi_slice_bytes(const cvy_plan *p, const pass *s, const cpu_choice *c)
{
    double bytes = 0;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &p->graph->nodes[i];
        const node_choice *at = cvyi_node_choice(s, c, i);
        if (!at->sliced || !at->awaited || cvyi_info(n)->kind == KIND_STATS) continue;
        /* computed in float32, whatever the dtype */
        bytes += (double)cvyi_floats(cvyi_elements(cvyi_shape_of(p->graph, n->out))) / (double)s->samples;
    }
    return bytes;
}

/* Always, if it does not stay in cache. */
bool cvyi_recomputes(const cvy_plan *p, const pass *s, const cpu_choice *c)
{
    const cpu_state *state = p->state;
    const double slices = c->slices * (double)s->samples;
    if (p->tuning == TUNE_RECOMPUTE || c->slices > (double)p->machine.cache) return true;
    if (p->options.seed) return (p->options.seed ^ (uint32_t)s->count) % 3 == 0;
    return c->seconds / state->host.threads < 2 * slices / p->machine.cache_bandwidth;
}

/* seconds = work of all nodes over the threads + time of bytes through memory + time of bytes through slices.
 * A on two cores of 116 GFLOP/s and 28 GB/s: convolution 68 ms of one core -> 34 ms, pointwise on the pooled
 * sixteenth 1 ms, 98 MB -> 3.5 ms.
 * The choice assumes all threads of the machine, regardless of how many this plan may use: the bits of a result
 * must not depend on their number. */
void cvyi_pass_cost(const cvy_plan *p, pass *s, cpu_choice *c)
{
    const cpu_state *state = p->state;
    const char *name = cvyi_info(&p->graph->nodes[s->first])->kind == KIND_CONV ? c->row->name : "";
    bool barrier = false;

    c->work = c->twice ? 2 * c->seconds : c->seconds;
    for (int i = s->first; i < s->first + s->count; i++) {
        const question q = cvyi_ask(p, s, i);
        const cpu_row *row = cvyi_node_choice(s, c, i)->row;
        barrier |= cvyi_info(&p->graph->nodes[i])->kind == KIND_STATS;
        if (i > s->first) c->work += row->seconds(&q, row);
    }
    c->waits = s->bytes / p->machine.bandwidth + 2 * c->slices * (double)s->samples / p->machine.cache_bandwidth +
               p->machine.launch;
    s->seconds = c->work / state->host.threads + c->waits;
    s->way = !barrier || s->count == 1 ? WAY_STREAM
             : c->twice                ? WAY_RECOMPUTE
             : c->slices > 0           ? WAY_RESIDENT
                                       : WAY_FOLD;
    snprintf(s->note, sizeof s->note, "%s", name);
    if (c->slices > 0)
        snprintf(s->note, sizeof s->note, "%s%sslice of %.3g MB in cache", name, name[0] ? ", " : "",
                 c->slices * 1e-6);
}

void cvyi_cpu_predict(const cvy_plan *p, pass *s)
{
    const cpu_state *state = p->state;
    const cpu_choice *c = cvyi_cpu_choice(s);
    s->seconds = c->work / state->threads + c->waits;
}
