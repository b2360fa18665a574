/* cost.c - what rows of the table of kernels share: the kind of a core, and the time of a pass without tensor
 * cores.
 *
 * A pass costs its launches, and the longer of its bytes and its operations. Block A's convolution: 18.7 GFLOP at
 * 34 TFLOP/s, 0.55 ms, against 0.58 GB at 4.3 TB/s, 0.13 ms. */
#include <stdio.h>
#include "choice.h"

const char *cvyi_fed_refusal(const cvy_plan *p, const cuda_choice *c, unsigned kinds, const char *otherwise)
{
    if (c->form.why) return c->form.why;
    if (c->form.core == CVY_NONE) return otherwise;
    return kinds >> cvyi_info(&p->graph->nodes[c->form.core])->kind & 1 ? NULL : otherwise;
}

const char *cvyi_core_refusal(const cvy_plan *p, const cuda_choice *c, unsigned kinds, const char *otherwise)
{
    const char *why = cvyi_fed_refusal(p, c, kinds, otherwise);
    const bool fed = !why && c->form.fed && cvyi_is_producer(cvyi_info(&p->graph->nodes[c->form.core])->kind);

    return fed ? "a producer begins its pass" : why;
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

/* A convolution by multiply-adds reads x for each output channel that a thread has: 16 of them or more, or it waits
 * for its loads. (3 of 128 channels, 512 x 512, in bf16 on an H200: 0.37 ms; 0.06 by its multiply-adds.) */
static double few_outputs(const cvy_plan *p, const node *n)
{
    conv_geom e;

    if (cvyi_info(n)->kind != KIND_CONV) return 1;
    cvyi_conv_geom(p->graph, n, &e);
    return e.groups == 1 && e.K < 16 ? 16.0 / (double)cvyi_max64(e.K, 1) : 1;
}

/* Rows that stay on chip belong to a block: one multiprocessor moves 20 bytes per nanosecond, as seen on an H200,
 * and if there are fewer blocks than multiprocessors, some are idle. */
static double rows_seconds(const cvy_plan *p, const pass *s, const held_rows *f)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    const double elements = (double)cvyi_elements(cvyi_shape_of(p->graph, p->graph->nodes[s->first].arg[0]));
    const double blocks = elements / ((double)f->row * (f->threads / f->lanes));

    return blocks < d->sms ? s->bytes / (blocks * 20e9) : 0;
}

/* Reductions reach half the bandwidth, statistics three quarters, unless their rows stay on chip. */
void cvyi_core_tune(const cvy_plan *p, pass *s, const cuda_choice *c)
{
    const node *n = &p->graph->nodes[c->form.core == CVY_NONE ? s->first : c->form.core];
    const op_kind kind = cvyi_info(n)->kind;
    const bool reduces = kind == KIND_REDUCE || kind == KIND_SOFTMAX;
    const double slower = c->form.resident ? 1 : reduces ? 2 : kind == KIND_STATS ? 1.33 : 1;
    const double rows = c->form.resident ? rows_seconds(p, s, &c->form.held) : 0;
    const double arithmetic = few_outputs(p, n) * s->flops / p->machine.flops + results_seconds(p, n) + rows;
    const double memory = slower * s->bytes / p->machine.bandwidth;

    s->way = c->form.resident ? WAY_RESIDENT : WAY_STREAM;
    s->seconds = p->machine.launch + (arithmetic > memory ? arithmetic : memory);
    if (kind == KIND_SHAPE && p->root[n->out] != n->out) s->seconds = 0;
    snprintf(s->note, sizeof s->note, "%s%s", cvyi_info(n)->name, c->form.resident ? ", rows stay on chip" : "");
}
