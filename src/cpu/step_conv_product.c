/* step_conv_product.c - 1x1 convolutions as products of matrices: weights [K][C] times the sample's [C][pixels]. */
#include "step_conv.h"

void cvyi_multiply(const conv_choice *how, const float *weight, const float *x, const float *start, float *y,
                   int64_t part, char *scratch)
{
    const conv_geom *g = &how->geom;
    const int64_t pixels = g->out[2], K = g->K / g->groups, C = g->C / g->groups;
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
    cvyi_gemm_run(&how->gemm, &job, part, (float *)(void *)scratch);
}

/* ---- where nothing is taken along ---- */

typedef struct product_step {
    const conv_choice *how;
    int x, weight, bias, out;
} product_step;

static int64_t product_parts(const step *s, const cpu_unit *u)
{
    const product_step *c = s->data;
    return cvyi_unit_batch(u, c->how->geom.N) * c->how->gemm.parts;
}

static void run_product(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const product_step *c = s->data;
    const conv_geom *g = &c->how->geom;
    const int64_t pixels = g->out[2], parts = c->how->gemm.parts, sample = part / parts;

    cvyi_multiply(c->how, cvyi_unit_data(u, c->weight), cvyi_unit_data(u, c->x) + sample * g->C * pixels,
                  c->bias == CVY_NONE ? NULL : cvyi_unit_data(u, c->bias),
                  cvyi_unit_data(u, c->out) + sample * g->K * pixels, part % parts, scratch);
}

cvy_status cvyi_lower_product(builder *b, int index)
{
    const conv_choice *how = &cvyi_own_choice(b->out->pass, b->choice, index)->how.conv;
    const node *n = &b->g->nodes[index];
    void *data;
    product_step *c;
    step *s = cvyi_add_step(b, "1x1 convolution", sizeof *c, &data);

    if (!s) return CVY_NO_MEMORY;
    c = data;
    *c = (product_step){how, n->arg[0], n->arg[1], n->arg[2], n->out};
    s->parts = product_parts;
    s->run = run_product;
    s->scratch = (int64_t)how->tiling[0].scratch;
    return CVY_OK;
}
