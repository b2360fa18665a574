/* conv_group.c - before a convolution's steps: which algorithm it takes, and what it takes along. */
#include <math.h>
#include <stddef.h>
#include "program.h"

/* ---- choosing ---- */

const char *cvyi_conv_algo_name(int algo)
{
    return algo == CONV_BY_GEMM ? "1x1 as a matrix product" : cvyi_conv_algos[algo].name;
}

static bool is_product(const conv_geom *g)
{
    for (int a = 0; a < 3; a++)
        if (g->kernel[a] != 1 || g->stride[a] != 1 || g->pad[a] != 0) return false;
    return true;
}

static double product_cost(const conv_geom *g, const conv_machine *m)
{
    /* 2 C K pixels at 90 % of the peak: 256 -> 256 channels, 28x28, 116 GFLOP/s: 0.98 ms. */
    const double pixels = (double)(g->out[0] * g->out[1] * g->out[2]);
    return 2.0 * (double)g->C * (double)g->K / (double)g->groups * pixels / (0.9 * m->fma_flops);
}

static double algo_cost(int a, const conv_geom *g, const conv_machine *m)
{
    return a == CONV_BY_GEMM ? product_cost(g, m) : cvyi_conv_algos[a].cost(g, &cvyi_conv_algos[a], m);
}

/* The algorithm that a tuning asks for; -1: none. */
static int forced_algo(int tuning)
{
    static const int algos[TUNE_COUNT] = {
        [TUNE_COST] = -1,
        [TUNE_DIRECT] = CONV_DIRECT,
        [TUNE_PATCHES] = CONV_PATCHES,
        [TUNE_WINOGRAD_4X4] = CONV_WINOGRAD_4X4,
        [TUNE_WINOGRAD_2X4] = CONV_WINOGRAD_2X4,
        [TUNE_WINOGRAD_2X2] = CONV_WINOGRAD_2X2,
        [TUNE_RECOMPUTE] = -1,
        [TUNE_APART] = -1,
    };
    return algos[tuning];
}

static const char *algo_refusal(const cvy_plan *p, int a, const conv_geom *g)
{
    if (a == CONV_BY_GEMM) return is_product(g) ? NULL : "not a 1x1 filter without stride or padding";
    if (cvyi_is_winograd(a) && p->options.winograd == CVY_OFF) return "winograd is off";
    return cvyi_conv_refuses(a, g);
}

static conv_machine machine_of(const cpu_state *s)
{
    return (conv_machine){s->host.fma_gflops * 1e9, s->host.l3_gbps * 1e9 / s->host.threads, s->conv};
}

void cvyi_conv_why(const cvy_plan *p, const conv_geom *g, int chosen, text *t)
{
    const cpu_state *s = p->state;
    const conv_machine m = machine_of(s);

    for (int a = 0; a <= CONV_BY_GEMM; a++) {
        const char *why = algo_refusal(p, a, g);
        cvyi_text_add(t, "  %c %-24s ", a == chosen ? '*' : ' ', cvyi_conv_algo_name(a));
        if (why)
            cvyi_text_add(t, "%13s %s\n", "-", why);
        else
            cvyi_text_add(t, "%10.4g ms\n", algo_cost(a, g, &m) * (double)g->N / s->host.threads * 1e3);
    }
}

int cvyi_conv_choose(const cvy_plan *p, const cpu_state *s, const conv_geom *g, double *seconds)
{
    const conv_machine m = machine_of(s);
    uint64_t dice = cvyi_hash(CVYI_HASH_START ^ p->options.seed, g, offsetof(conv_geom, spatial));
    int best = CONV_DIRECT;
    double least = INFINITY;

    for (int a = 0; a <= CONV_BY_GEMM; a++) {
        double cost;
        if (algo_refusal(p, a, g)) continue;
        cost = algo_cost(a, g, &m);
        if (p->options.seed) cost = (double)((dice = cvyi_hash(dice, &a, sizeof a)) >> 40); /* any legal one */
        if (a == forced_algo(p->tuning)) cost = 0;
        if (cost >= least) continue;
        least = cost;
        best = a;
    }
    *seconds = least * (double)g->N;
    if (best == forced_algo(p->tuning)) *seconds = algo_cost(best, g, &m) * (double)g->N;
    return best;
}

/* ---- what it takes along ---- */

/* Whole windows side by side: what a convolution can maximise over as it goes. */
static bool plain_windows(const pool_geom *p)
{
    for (int a = 0; a < 3; a++)
        if (p->kernel[a] != p->stride[a] || p->pad[a] || p->dil[a] != 1 || p->out[a] != p->in[a] / p->kernel[a])
            return false;
    return p->kernel[0] == 1;
}

int cvyi_conv_pool_node(const cvy_plan *p, int index, int end, int algo, const conv_geom *g)
{
    const int v = p->graph->nodes[index].out;
    int found = -1;
    if (algo == CONV_BY_GEMM) return -1;
    if (cvyi_is_output(p->graph, v)) return -1;
    for (int i = index + 1; i <= p->last_reader[v] && i < p->graph->n_nodes; i++) {
        const node *n = &p->graph->nodes[i];
        const op_kind kind = cvyi_info(n)->kind;
        pool_geom pool;
        for (int a = 1; a < n->n_args; a++)
            if (n->arg[a] == v) return -1;
        if (n->arg[0] != v) continue;
        if (i >= end || found >= 0 || (kind != KIND_MAXPOOL && kind != KIND_STATS)) {
            if (kind != KIND_STATS || i >= end) return -1;
        }
        if (kind != KIND_MAXPOOL) continue;
        cvyi_pool_geom(p->graph, n, &pool);
        if (!plain_windows(&pool) || cvyi_conv_pool_legal(algo, g, pool.kernel[1], pool.kernel[2])) return -1;
        found = i;
    }
    return found;
}

/* Statistics over whole channels of a batched result of K channels. */
static bool by_channels(const builder *b, const node *n, const conv_geom *g)
{
    norm_geom e;
    cvyi_norm_geom(b->g, n, &e);
    if (e.inner == 1) return false; /* one pixel: the norm runs by rows, which are not channels */
    return e.groups * e.chan == g->K && e.inner == g->out[0] * g->out[1] * g->out[2] && e.outer == g->N &&
           e.centred && !e.over_outer;
}

static int stats_of(const builder *b, int v, int from, int end, const conv_geom *g)
{
    for (int i = from; i < end; i++) {
        const node *n = &b->g->nodes[i];
        if (cvyi_info(n)->kind == KIND_STATS && n->arg[0] == v && by_channels(b, n, g)) return i;
    }
    return -1;
}

/* Everyone who reads v can undo a shift per channel; a maximum hands it on to its own readers. */
static bool may_be_centred(const builder *b, int v, int stats)
{
    const pass *s = b->out->pass;
    if (cvyi_needed_behind(b->plan, s, v)) return false;
    for (int i = s->first; i < s->first + s->count; i++) {
        const node *n = &b->g->nodes[i];
        const op_kind kind = cvyi_info(n)->kind;
        for (int a = 0; a < n->n_args; a++) {
            if (n->arg[a] != v || i == stats || cvyi_is_pointwise(kind)) continue;
            if (kind != KIND_MAXPOOL || !may_be_centred(b, n->out, -1)) return false;
        }
    }
    return true;
}

static bool read_only_by(const builder *b, int v, int from, int n)
{
    const pass *s = b->out->pass;
    if (cvyi_needed_behind(b->plan, s, v)) return false;
    for (int i = s->first; i < s->first + s->count; i++)
        for (int a = 0; a < b->g->nodes[i].n_args; a++)
            if (b->g->nodes[i].arg[a] == v && (i < from || i >= from + n)) return false;
    return true;
}

bool cvyi_band_program(builder *b, int v, int first, int n, const conv_geom *g, program *out)
{
    const int64_t keep = b->out->slice_bytes;
    const bool built = cvyi_program_build(b, first, n, -1, v, out);
    b->out->slice_bytes = built ? b->out->slice_bytes : keep;
    return built && out->band >= 0 && !out->operands[out->band].scalar && out->n_outer >= 2 &&
           out->outer[out->n_outer - 1] == g->K && out->inner == g->out[0] * g->out[1] * g->out[2];
}

static bool same_as_result(const builder *b, int index, int v)
{
    return cvyi_same_shape(cvyi_shape_of(b->g, b->g->nodes[index].out), cvyi_shape_of(b->g, v));
}

/* Is v read by these two nodes alone? Statistics that are not taken along need it in memory. */
static bool only_stats(const builder *b, int v, int stats, int pool)
{
    for (int i = b->out->pass->first; i <= b->plan->last_reader[v] && i < b->g->n_nodes; i++)
        for (int a = 0; a < b->g->nodes[i].n_args; a++)
            if (b->g->nodes[i].arg[a] == v && i != stats && i != pool) return false;
    return true;
}

void cvyi_conv_group(builder *b, int index, int end, conv_group *out)
{
    const node *n = &b->g->nodes[index];
    const bool batched = cvyi_shape_of(b->g, n->out)->rank == cvyi_info(n)->spatial + 2;
    const cpu_choice *chosen = b->out->pass->choice; /* NULL: a convolution of parameters */
    conv_geom g;
    double seconds;

    cvyi_conv_geom(b->g, n, &g);
    *out = (conv_group){.pool = -1, .stats = -1, .prog_stats = -1};
    out->algo = chosen ? chosen->algo : cvyi_conv_choose(b->plan, b->state, &g, &seconds);
    /* A whole batch at once (a convolution of parameters) is no place for anything but the plain form. */
    if (!batched || g.N != b->out->samples) {
        if (cvyi_is_winograd(out->algo)) out->algo = CONV_DIRECT;
        return;
    }
    out->stats = stats_of(b, n->out, index + 1, end, &g);
    if (out->stats >= 0 && !may_be_centred(b, n->out, out->stats)) out->stats = -1;
    out->centred = out->stats >= 0;
    if (out->algo == CONV_BY_GEMM) return;
    if (out->stats >= 0 && b->out->pass->way == WAY_RECOMPUTE) {
        out->twice = true;
        out->prog = index + 2;
        out->n_prog = end - index - 2;
        return;
    }
    out->pool = cvyi_conv_pool_node(b->plan, index, end, out->algo, &g);
    if (out->pool >= 0 && !only_stats(b, n->out, out->stats, out->pool)) out->pool = -1;
    if (out->pool < 0 && out->stats < 0 && index + 1 < end &&
        same_as_result(b, index, b->g->nodes[index + 1].out)) {
        const int64_t keep = b->out->slice_bytes;
        program_room room;
        program trial = cvyi_program_in(&room);
        int span = cvyi_program_span(b, index + 1, end);
        if (!span || !read_only_by(b, n->out, index + 1, span) ||
            !cvyi_band_program(b, n->out, index + 1, span, &g, &trial))
            span = 0;
        b->out->slice_bytes = keep;
        out->prog = index + 1;
        out->n_prog = span;
        if (span) out->prog_stats = stats_of(b, b->g->nodes[index + span].out, index + 1 + span, end, &g);
    }
}

/* Convolution, its statistics, and pointwise operators alone behind them: the convolution may run twice. */
bool cvyi_conv_twice_fits(const cvy_plan *p, const pass *s)
{
    const cvy_graph *g = p->graph;
    const node *n = &g->nodes[s->first];
    conv_geom geom;
    norm_geom e;

    if (s->count < 3 || s->count > PROG_NODES || cvyi_info(n)->kind != KIND_CONV || !s->by_sample) return false;
    if (g->nodes[s->first + 1].op != OP_norm_stats || g->nodes[s->first + 1].arg[0] != n->out) return false;
    if (cvyi_needed_behind(p, s, n->out) || cvyi_needed_behind(p, s, g->nodes[s->first + 1].out)) return false;
    cvyi_conv_geom(g, n, &geom);
    cvyi_norm_geom(g, &g->nodes[s->first + 1], &e);
    if (e.groups * e.chan != geom.K || e.outer != geom.N || !e.centred || e.over_outer) return false;
    if (e.inner != geom.out[0] * geom.out[1] * geom.out[2]) return false;
    if (e.inner == 1) return false; /* one pixel: the norm runs by rows, which are not channels */
    for (int i = s->first + 2; i < s->first + s->count; i++) {
        const node *at = &g->nodes[i];
        if (!cvyi_is_pointwise(cvyi_info(at)->kind)) return false;
        if (!cvyi_same_shape(cvyi_shape_of(g, at->out), cvyi_shape_of(g, n->out))) return false;
        /* What else is read must be of the same shape or one number per channel, so that runs are whole channels.
         */
        for (int a = 1; a < at->n_args; a++) {
            const shape *o = at->arg[a] == CVY_NONE ? NULL : cvyi_shape_of(g, at->arg[a]);
            if (!o || cvyi_info(at)->kind == KIND_APPLY || cvyi_same_shape(o, cvyi_shape_of(g, n->out))) continue;
            if (cvyi_elements(o) != 1 &&
                (o->rank != geom.spatial + 1 || cvyi_elements(o) != geom.K || o->dim[0] != geom.K))
                return false;
        }
    }
    return geom.N == s->samples;
}
