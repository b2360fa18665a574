/* step_matmul.c - matrix products, linear layers: their steps, and their row in the table of kernels. */
#include "choice.h"

typedef struct matmul_step {
    const matmul_choice *how;
    int x, other, bias, out;
    int64_t packed;
} matmul_step;

static const gemm_plan *plan_of(const matmul_step *c, const cpu_unit *u)
{
    return &c->how->plan[u->m < u->pass->chunk];
}

static int64_t matmul_parts(const step *s, const cpu_unit *u)
{
    const matmul_step *c = s->data;
    return c->how->geom.batch * plan_of(c, u)->parts;
}

static void run_matmul(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const matmul_step *c = s->data;
    const matmul_geom *g = &c->how->geom;
    const gemm_plan *p = plan_of(c, u);
    const int64_t batch = part / p->parts;
    gemm_job job = {.lda = g->K, .ldb = g->other_is_nk ? g->K : g->N, .ldc = g->N};
    int64_t x, other;

    cvyi_matmul_operands(g, batch, &x, &other);
    job.a = cvyi_unit_data(u, c->x) + x * p->M * g->K;
    job.b = c->how->packs ? cvyi_packed(u, c->packed) : cvyi_unit_data(u, c->other) + other * g->K * g->N;
    job.c = cvyi_unit_data(u, c->out) + batch * p->M * g->N;
    job.bias_n = cvyi_unit_optional(u, c->bias);
    cvyi_gemm_run(p, &job, part % p->parts, (float *)(void *)scratch);
}

typedef struct pack_matmul_step {
    gemm_plan plan;
    gemm_b from;
    int other;
    int64_t packed, ld;
} pack_matmul_step;

static int64_t pack_matmul_parts(const step *s, const cpu_unit *u)
{
    (void)u;
    return ((const pack_matmul_step *)s->data)->plan.panels;
}

static void run_pack_matmul(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const pack_matmul_step *c = s->data;
    (void)scratch;
    cvyi_gemm_pack(&c->plan, c->from, cvyi_unit_data(u, c->other), c->ld, cvyi_packed(u, c->packed), part);
}

static void print_matmul(const step *s, text *t)
{
    const pack_matmul_step *c = s->data;
    cvyi_text_add(t, "matmul %d: %lld x %lld, %lld panels, rows of %lld; %d at %lld\n", (int)c->from,
                  (long long)c->plan.N, (long long)c->plan.K, (long long)c->plan.panels, (long long)c->ld, c->other,
                  (long long)c->packed);
}

static cvy_status pack_other(builder *b, matmul_step *c, const gemm_plan *p)
{
    void *data;
    pack_matmul_step *k;
    step *s = cvyi_add_pack(b, c->other, sizeof *k, &data);
    if (!s) return CVY_NO_MEMORY;
    c->packed = cvyi_packed_room(b, c->other, (int64_t)cvyi_gemm_packed_bytes(p));
    k = data;
    *k = (pack_matmul_step){*p, c->how->geom.other_is_nk ? GEMM_NK : GEMM_KN, c->other, c->packed,
                            c->how->geom.other_is_nk ? c->how->geom.K : c->how->geom.N};
    s->parts = pack_matmul_parts;
    s->run = run_pack_matmul;
    s->print = print_matmul;
    return CVY_OK;
}

static cvy_status make(builder *b, int index)
{
    const matmul_choice *how = &cvyi_own_choice(b->out->pass, b->choice, index)->how.matmul;
    const node *n = &b->g->nodes[index];
    void *data;
    step *s = cvyi_add_node_step(b, "matrix product", sizeof(matmul_step), matmul_parts, run_matmul, &data);
    matmul_step *c;

    if (!s) return CVY_NO_MEMORY;
    c = data;
    *c = (matmul_step){.how = how, .x = n->arg[0], .other = n->arg[1], .out = n->out};
    c->bias = how->geom.bias ? n->arg[2] : CVY_NONE;
    for (int last = 0; last < 2; last++)
        s->scratch = cvyi_max64(s->scratch, (int64_t)cvyi_gemm_scratch_bytes(&how->plan[last]));
    return how->packs ? pack_other(b, c, &how->plan[0]) : CVY_OK;
}

static double seconds(const question *q, const cpu_row *row)
{
    (void)row;
    return cvyi_product_seconds(q, 0.8);
}

static void decide(const question *q, cpu_choice *of)
{
    const cpu_state *s = q->plan->state;
    const node *n = &q->plan->graph->nodes[q->index];
    const int64_t samples = q->pass->samples, last = samples - (of->units - 1) * of->chunk;
    matmul_choice *c = &of->how.matmul;
    gemm_b layout;

    cvyi_matmul_geom(q->plan->graph, n, &c->geom);
    c->packs = q->plan->prepared[n->arg[1]] && c->geom.batch == 1;
    layout = c->packs ? GEMM_PACKED : c->geom.other_is_nk ? GEMM_NK : GEMM_KN;
    for (int i = 0; i < 2; i++)
        cvyi_gemm_plan(s->isa, layout, 1, (i ? last : of->chunk) * (c->geom.M / samples), c->geom.N, c->geom.K,
                       &c->plan[i]);
}

const char *cvyi_product_entry(const cpu_state *s, const cpu_row *row)
{
    (void)row;
    return cvyi_gemm_kernels(s->isa)->name;
}

const cpu_row cvyi_row_matmul = {.name = "matrix product",
                                 .kinds = 1u << KIND_LINEAR | 1u << KIND_MATMUL,
                                 .others = "not a linear layer or a matrix product",
                                 .seconds = seconds,
                                 .decide = decide,
                                 .make = make,
                                 .entry = cvyi_product_entry,
                                 .product = true};
