/* step_matmul.c - matrix products, linear layers: their steps, and their row in the table of kernels. */
#include "choice.h"

typedef struct matmul_step {
    matmul_geom geom;
    bool packs;
    gemm_plan plan[2]; /* of a unit; of the last one, which may have fewer samples */
    int x, other, bias, out;
    int64_t packed;
} matmul_step;

static const gemm_plan *plan_of(const matmul_step *c, const cpu_unit *u)
{
    return &c->plan[u->m < u->pass->chunk];
}

static int64_t matmul_parts(const step *s, const cpu_unit *u)
{
    const matmul_step *c = s->data;
    return c->geom.batch * plan_of(c, u)->parts;
}

static void run_matmul(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const matmul_step *c = s->data;
    const matmul_geom *g = &c->geom;
    const gemm_plan *p = plan_of(c, u);
    const int64_t batch = part / p->parts;
    gemm_job job = {.lda = g->K, .ldb = g->other_is_nk ? g->K : g->N, .ldc = g->N};
    int64_t x, other;

    cvyi_matmul_operands(g, batch, &x, &other);
    job.a = cvyi_unit_data(u, c->x) + x * p->M * g->K;
    job.b = c->packs ? cvyi_packed(u, c->packed) : cvyi_unit_data(u, c->other) + other * g->K * g->N;
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
    *k = (pack_matmul_step){*p, c->geom.other_is_nk ? GEMM_NK : GEMM_KN, c->other, c->packed,
                            c->geom.other_is_nk ? c->geom.K : c->geom.N};
    s->parts = pack_matmul_parts;
    s->run = run_pack_matmul;
    s->print = print_matmul;
    return CVY_OK;
}

/* The product of a unit of so many samples. */
static gemm_plan plan_unit(const builder *b, const matmul_step *c, int64_t samples)
{
    const gemm_b layout = c->packs ? GEMM_PACKED : c->geom.other_is_nk ? GEMM_NK : GEMM_KN;
    gemm_plan p;
    cvyi_gemm_plan(b->state->isa, layout, 1, samples * (c->geom.M / b->out->samples), c->geom.N, c->geom.K, &p);
    return p;
}

static cvy_status make(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    const cpu_pass *out = b->out;
    step *s;
    void *data;
    matmul_step *c;
    cvy_status st = CVY_OK;

    TRY(cvyi_add_node_step(b, "matrix product", sizeof *c, matmul_parts, run_matmul, &s, &data));
    c = data;
    cvyi_matmul_geom(b->g, n, &c->geom);
    c->x = n->arg[0], c->other = n->arg[1], c->out = n->out;
    c->bias = c->geom.bias ? n->arg[2] : CVY_NONE;
    c->packs = b->plan->prepared[c->other] && c->geom.batch == 1;
    for (int last = 0; last < 2; last++) {
        c->plan[last] = plan_unit(b, c, last ? out->samples - (out->units - 1) * out->chunk : out->chunk);
        s->scratch = cvyi_max64(s->scratch, (int64_t)cvyi_gemm_scratch_bytes(&c->plan[last]));
    }
    if (c->packs) TRY(pack_other(b, c, &c->plan[0]));
fail:
    return st;
}

static const char *refuse(const question *q, const cpu_row *row)
{
    const op_kind kind = cvyi_info(&q->plan->graph->nodes[q->index])->kind;
    (void)row;
    return kind == KIND_LINEAR || kind == KIND_MATMUL ? NULL : "not a linear layer or a matrix product";
}

const cpu_row cvyi_row_matmul = {
    .name = "matrix product", .refuse = refuse, .seconds = cvyi_row_seconds, .make = make};
