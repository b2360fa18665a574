/* cost.c - what rows of the table of kernels share: the kind of a core, and the time of a pass without tensor
 * cores.
 *
 * A pass costs its launches, and the longer of its bytes and its operations. Block A's convolution: 18.7 GFLOP at
 * 34 TFLOP/s, 0.55 ms, against 0.58 GB at 4.3 TB/s, 0.13 ms. */
#include <stdio.h>
#include "choice.h"

const char *cvyi_core_refusal(const cvy_plan *p, const cuda_choice *c, unsigned kinds, const char *otherwise)
{
    if (c->form.why) return c->form.why;
    if (c->form.core == CVY_NONE) return otherwise;
    return kinds >> cvyi_info(&p->graph->nodes[c->form.core])->kind & 1 ? NULL : otherwise;
}

double cvyi_pass_seconds(const cvy_plan *p, const pass *s, double launches, double arithmetic)
{
    const double memory = s->bytes / p->machine.bandwidth;
    return launches * p->machine.launch + (arithmetic > memory ? arithmetic : memory);
}

/* After the sums of a convolution: half a cycle of a multiprocessor for each of its results. */
static double results_seconds(const cvy_plan *p, const node *n)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    const bool conv = cvyi_info(n)->kind == KIND_CONV || cvyi_info(n)->kind == KIND_CONVT;

    return conv ? 0.5 * (double)cvyi_elements(cvyi_shape_of(p->graph, n->out)) / (d->sms * d->clock) : 0;
}

/* Statistics and reductions reach half the bandwidth, unless their rows stay on chip. */
void cvyi_core_tune(const cvy_plan *p, pass *s, const cuda_choice *c)
{
    const node *n = &p->graph->nodes[c->form.core == CVY_NONE ? s->first : c->form.core];
    const op_kind kind = cvyi_info(n)->kind;
    const bool reduces = kind == KIND_STATS || kind == KIND_REDUCE || kind == KIND_SOFTMAX;
    const double slower = reduces && !c->form.resident ? 2 : 1;
    const double arithmetic = s->flops / p->machine.flops + results_seconds(p, n);
    const double memory = slower * s->bytes / p->machine.bandwidth;

    s->way = c->form.resident ? WAY_RESIDENT : WAY_STREAM;
    s->seconds = p->machine.launch + (arithmetic > memory ? arithmetic : memory);
    if (kind == KIND_SHAPE && p->root[n->out] != n->out) s->seconds = 0;
    snprintf(s->note, sizeof s->note, "%s%s", cvyi_info(n)->name, c->form.resident ? ", rows stay on chip" : "");
}
