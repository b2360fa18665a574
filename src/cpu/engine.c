/* engine.c - the CPU engine: its state on this machine, and the functions that plan.h declares. */
#include <stdio.h>
#include "choice.h"
#include "thread.h"

static cvy_status open_cpu(cvy_plan *p)
{
    static const cpu_vector_kernels *const vectors[] = CPU_KERNELS(cvyi_vector);
    static const cpu_conv_kernels *const convs[] = CPU_KERNELS(cvyi_conv);
    static const cpu_convert_kernels *const converts[] = CPU_KERNELS(cvyi_convert);
    static const cpu_turn_kernels *const turns[] = CPU_KERNELS(cvyi_turn);
    cpu_state *s = cvyi_arena_alloc(&p->memory, 1, sizeof *s);
    cvy_status st = CVY_OK;

    if (!s) return CVY_NO_MEMORY;
    p->state = s;
    TRY(cvyi_machine_choose(&s->host));
    s->isa = s->host.isa;
    s->threads =
        cvyi_threads_choose(s->host.elsewhere && !p->options.threads ? s->host.threads : p->options.threads);
    p->options.threads = s->threads;
    if (!s->host.elsewhere) TRY(cvyi_threads_reserve(s->threads));
    s->vec = vectors[s->isa];
    s->red = s->vec->reduce;
    s->conv = convs[s->isa];
    s->convert = converts[s->isa];
    s->turn = turns[s->isa];
    s->pool = cvyi_pool_kernels(s->isa);
    p->machine = (device_model){
        .flops = s->host.fma_gflops * 1e9 * s->threads,
        .bandwidth = s->host.mem_gbps * 1e9,
        .cache_bandwidth = s->host.l3_gbps * 1e9,
        .cache = s->host.l2 + s->host.l3 / s->host.threads, /* not the plan's threads: see cost.c */
        .workers = s->threads,
        .launch = 5e-6,
    };
    snprintf(p->machine.name, sizeof p->machine.name, "cpu, %s", cvyi_isa_name(s->isa));
    cvyi_log(1, "cpu: %s, %d threads", cvyi_isa_name(s->isa), s->threads);
fail:
    return st;
}

static void close_cpu(cvy_plan *p)
{
    (void)p; /* everything lies in the plan's arena */
}

/* The entry that computes the pass's first operator; NULL: it has more than one, or none. */
static const char *entry_of(const cpu_state *s, const pass *at)
{
    const cpu_row *row = cvyi_cpu_choice(at)->row;
    return row->entry ? row->entry(s, row) : NULL;
}

static void describe_cpu(const cvy_plan *p, text *t)
{
    const cpu_state *s = p->state;
    for (int i = p->n_prepare; i < p->n_passes; i++) {
        const cpu_pass *at = &s->passes[i];
        cvyi_text_add(t, "steps %d   %s", i - p->n_prepare + 1, at->n_steps ? "" : "none");
        for (int k = 0; k < at->n_steps; k++) cvyi_text_add(t, "%s%s", k ? ", " : "", at->steps[k].name);
        if (entry_of(s, at->pass)) cvyi_text_add(t, "; %s", entry_of(s, at->pass));
        cvyi_text_add(t, "; %lld unit%s, %.3g MB of slices\n", (long long)at->units, at->units == 1 ? "" : "s",
                      (double)at->slice_bytes * 1e-6);
    }
}

static void print_packing(const cvy_plan *p, text *t)
{
    const cpu_state *s = p->state;
    for (int i = 0; i < p->n_tensors; i++)
        if (s->param_copy[i] >= 0) cvyi_text_add(t, "copy of tensor %d at %lld\n", i, (long long)s->param_copy[i]);
    for (int i = 0; i < s->pack.n_steps; i++) s->pack.steps[i].print(&s->pack.steps[i], t);
}

static const char *const tunings[TUNE_COUNT + 1] = {
    "by cost",      "direct convolution", "patches",   "channels",        "winograd 4x4",
    "winograd 2x4", "winograd 2x2",       "recompute", "operators apart", NULL};

const engine cvyi_engine_cpu = {.device = CVY_CPU,
                                .name = "cpu",
                                .dtypes = (1u << DTYPE_COUNT) - 1,
                                .lowers = true,
                                .watches = true,
                                .open = open_cpu,
                                .judge = cvyi_cpu_judge,
                                .judge_prepared = cvyi_cpu_judge_prepared,
                                .choice_bytes = sizeof(cpu_choice) + PASS_NODES * sizeof(node_choice),
                                .keep = cvyi_cpu_keep,
                                .same_choice = cvyi_cpu_same,
                                .why = cvyi_cpu_why,
                                .prepare = cvyi_lower_passes,
                                .packing = print_packing,
                                .run = cvyi_cpu_run,
                                .close = close_cpu,
                                .describe = describe_cpu,
                                .tunings = tunings,
                                .measure = cvyi_cpu_measure,
                                .measure_passes = cvyi_cpu_measure_passes};
