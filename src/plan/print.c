/* print.c - a plan for people.
 *
 *   cpu, 2 threads, avx512: 232 GFLOP/s, 28 GB/s
 *   rewrites   scale after group_norm folded into it
 *   prepare    mul, reshape                              once per change of parameters
 *   pass 1     conv2d | norm_stats | max_pool2d | ...    fold       98.1 MB  18.7 GFLOP    34.1 ms   winograd 4x4
 *     reads    x[128,8,128,128]
 *     writes   clamp[128,64,31,31]
 *   rejected   conv2d ... clamp: ...                                                                           */
#include <string.h>
#include "plan.h"

static void print_nodes(const cvy_plan *p, int first, int count, text *t)
{
    for (int i = first; i < first + count; i++) {
        if (i > first) cvyi_text_add(t, " | ");
        cvyi_text_add(t, "%s", cvyi_info(&p->graph->nodes[i])->name);
    }
}

static void print_value(const cvy_graph *g, int v, text *t)
{
    cvyi_text_add(t, " ");
    cvyi_print_title(g, v, t);
    cvyi_text_add_shape(t, &g->values[v].shape);
}

static bool seen_before(const cvy_plan *p, const pass *s, int index, int arg)
{
    for (int i = s->first; i <= index; i++)
        for (int a = 0; a < (i < index ? p->graph->nodes[i].n_args : arg); a++)
            if (p->graph->nodes[i].arg[a] == p->graph->nodes[index].arg[arg]) return true;
    return false;
}

static void print_reads_writes(const cvy_plan *p, const pass *s, text *t)
{
    cvyi_text_add(t, "    reads   ");
    for (int i = s->first; i < s->first + s->count; i++)
        for (int a = 0; a < p->graph->nodes[i].n_args; a++) {
            const int v = p->graph->nodes[i].arg[a];
            if (v == CVY_NONE || cvyi_made_inside(p, s, v) || seen_before(p, s, i, a)) continue;
            print_value(p->graph, v, t);
        }
    cvyi_text_add(t, "\n    writes  ");
    for (int i = s->first; i < s->first + s->count; i++)
        if (cvyi_needed_after(p, s, p->graph->nodes[i].out)) print_value(p->graph, p->graph->nodes[i].out, t);
    cvyi_text_add(t, "\n");
}

static void print_pass(const cvy_plan *p, int index, text *t)
{
    const pass *s = &p->passes[index];
    cvyi_text_add(t, "pass %d    ", index - p->n_prepare + 1);
    print_nodes(p, s->first, s->count, t);
    cvyi_text_add(t, "\n    %s, %.4g MB, %.4g GFLOP, predicted %.4g ms", cvyi_way_name(s->way), s->bytes * 1e-6,
                  s->flops * 1e-9, s->seconds * 1e3);
    if (s->measured > 0) cvyi_text_add(t, ", measured %.4g ms", s->measured * 1e3);
    cvyi_text_add(t, "%s%s\n", s->note[0] ? "; " : "", s->note);
    print_reads_writes(p, s, t);
}

static void print_rejections(const cvy_plan *p, text *t)
{
    for (int i = 0; i < p->n_rejections; i++) {
        const rejected *r = &p->rejections[i];
        cvyi_text_add(t, "rejected  ");
        print_nodes(p, r->first, r->count, t);
        cvyi_text_add(t, "\n    %s", r->why);
        if (r->seconds > 0) cvyi_text_add(t, ", predicted %.4g ms", r->seconds * 1e3);
        cvyi_text_add(t, "\n");
    }
}

void cvyi_print_why(const cvy_plan *p, text *t)
{
    for (int i = p->n_prepare; i < p->n_passes; i++) {
        cvyi_text_add(t, "pass %d    ", i - p->n_prepare + 1);
        print_nodes(p, p->passes[i].first, p->passes[i].count, t);
        cvyi_text_add(t, "\n");
        p->engine->why(p, &p->passes[i], t);
    }
}

static void print_lowered(const cvy_plan *p, text *t)
{
    double seconds = 0;
    cvyi_text_add(t, "machine   %s: %.4g GFLOP/s, %.4g GB/s, %.4g MB resident per worker, %d workers\n",
                  p->machine.name, p->machine.flops * 1e-9, p->machine.bandwidth * 1e-9,
                  (double)p->machine.cache * 1e-6, p->machine.workers);
    if (p->rewrites.data) cvyi_text_add(t, "%s", p->rewrites.data);
    if (p->n_prepare) {
        cvyi_text_add(t, "prepare   ");
        print_nodes(p, p->passes[0].first, p->passes[0].count, t);
        cvyi_text_add(t, "\n    only when parameters change\n");
    }
    for (int i = p->n_prepare; i < p->n_passes; i++) {
        print_pass(p, i, t);
        seconds += p->passes[i].seconds;
    }
    if (p->engine->describe) p->engine->describe(p, t);
    print_rejections(p, t);
    if (p->measured > 0)
        cvyi_text_add(t, "measured  tuning '%s' was the fastest: %.4g ms\n", p->engine->tunings[p->tuning],
                      p->measured * 1e3);
    cvyi_text_add(t, "total     %d pass%s, predicted %.4g ms, workspace %.4g MB\n", p->n_passes - p->n_prepare,
                  p->n_passes - p->n_prepare == 1 ? "" : "es", seconds * 1e3, (double)cvy_plan_workspace(p) * 1e-6);
}

void cvyi_print_plan(const cvy_plan *p, text *t)
{
    cvyi_text_add(t, "chain     ");
    cvyi_print_graph(p->source, t);
    cvyi_text_add(t, "\ndevice    %s\n", p->engine->name);
    if (p->engine->lowers) {
        print_lowered(p, t);
        return;
    }
    for (int i = 0; i < p->source->n_nodes; i++) {
        cvyi_text_add(t, "step %-4d ", i + 1);
        cvyi_print_node(p->source, &p->source->nodes[i], t);
        print_value(p->source, p->source->nodes[i].out, t);
        cvyi_text_add(t, "\n");
    }
    cvyi_text_add(t, "total     %d operators, workspace %.4g MB\n", p->source->n_nodes,
                  (double)cvy_plan_workspace(p) * 1e-6);
}
