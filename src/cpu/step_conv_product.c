/* step_conv_product.c - 1x1 convolutions as products of matrices: weights [K][C] times the sample's [C][pixels]. */
#include "step_conv.h"

gemm_plan cvyi_plan_product(const builder *b, const conv_geom *g)
{
    gemm_plan p;
    cvyi_gemm_plan(b->state->isa, GEMM_KN, g->groups, g->K / g->groups, g->out[0] * g->out[1] * g->out[2],
                   g->C / g->groups, &p);
    return p;
}

void cvyi_multiply(const gemm_plan *p, const conv_geom *g, const float *weight, const float *x, const float *start,
                   float *y, int64_t unit, char *scratch)
{
    const int64_t pixels = g->out[0] * g->out[1] * g->out[2], K = g->K / g->groups, C = g->C / g->groups;
    const gemm_job job = {.a = weight,
                          .b = x,
                          .c = y,
                          .bias_m = start,
                          .lda = C,
                          .ldb = pixels,
                          .ldc = pixels,
                          .a_batch = K * C,
                          .b_batch = C * pixels,
                          .c_batch = K * pixels,
                          .bias_batch = K};
    cvyi_gemm_run(p, &job, unit, (float *)(void *)scratch);
}

/* ---- where nothing is taken along ---- */

typedef struct product_step {
    conv_geom geom;
    gemm_plan plan;
    int x, weight, bias, out;
} product_step;

static int64_t product_parts(const step *s, const cpu_unit *u)
{
    const product_step *c = s->data;
    return cvyi_unit_batch(u, c->geom.N) * c->plan.units;
}

static void run_product(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const product_step *c = s->data;
    const conv_geom *g = &c->geom;
    const int64_t pixels = g->out[0] * g->out[1] * g->out[2], sample = part / c->plan.units;

    cvyi_multiply(&c->plan, g, cvyi_unit_data(u, c->weight), cvyi_unit_data(u, c->x) + sample * g->C * pixels,
                  c->bias == CVY_NONE ? NULL : cvyi_unit_data(u, c->bias),
                  cvyi_unit_data(u, c->out) + sample * g->K * pixels, part % c->plan.units, scratch);
}

cvy_status cvyi_lower_product(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    void *data;
    product_step *c;
    step *s = cvyi_add_step(b, "1x1 convolution", sizeof *c, &data);

    if (!s) return CVY_NO_MEMORY;
    c = data;
    cvyi_conv_geom(b->g, n, &c->geom);
    c->x = n->arg[0], c->weight = n->arg[1], c->bias = n->arg[2], c->out = n->out;
    c->plan = cvyi_plan_product(b, &c->geom);
    s->parts = product_parts;
    s->run = run_product;
    s->scratch = (int64_t)cvyi_gemm_scratch_bytes(&c->plan);
    return CVY_OK;
}
