/* step_conv_pack.c - how a convolution is cut, and its weights packed when parameters have changed. See
 * step_conv.h. */
#include "step_conv.h"

typedef struct pack_step {
    conv_tiling tiling;
    int weight;
    int64_t packed;
} pack_step;

static void run_pack(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const pack_step *p = s->data;
    (void)part;
    (void)scratch;
    cvyi_conv_pack(&p->tiling, cvyi_unit_data(u, p->weight), cvyi_packed(u, p->packed));
}

static void print_pack(const step *s, text *t)
{
    const pack_step *p = s->data;
    const conv_tiling *c = &p->tiling;
    const conv_geom *g = &c->geom;
    cvyi_text_add(t, "conv %d: %lld x %lld / %lld, %lld x %lld x %lld", (int)c->algo, (long long)g->K,
                  (long long)g->C, (long long)g->groups, (long long)g->kernel[0], (long long)g->kernel[1],
                  (long long)g->kernel[2]);
    cvyi_text_add(t, ", blocks %lld + %lld of %d, %d, chunks %lld; %d at %lld\n", (long long)c->full,
                  (long long)c->tails, c->kt, c->tail_kt, (long long)c->chunk, p->weight, (long long)p->packed);
}

static cvy_status add_packing(builder *b, const conv_step *c, int which)
{
    void *data;
    pack_step *p;
    step *s = cvyi_add_pack(b, c->weight, sizeof *p, &data);
    if (!s) return CVY_NO_MEMORY;
    p = data;
    *p = (pack_step){c->tiling[which], c->weight, c->packed[which]};
    s->parts = cvyi_one_part;
    s->run = run_pack;
    s->print = print_pack;
    return CVY_OK;
}

cvy_status cvyi_conv_tile_and_pack(builder *b, conv_step *c)
{
    const int algos[2] = {c->group.algo, CONV_DIRECT};
    int64_t ph = 1, pw = 1;
    cvy_status st = CVY_OK;

    if (c->group.pool >= 0) {
        pool_geom pool;
        cvyi_pool_geom(b->g, &b->g->nodes[c->group.pool], &pool);
        ph = pool.kernel[1];
        pw = pool.kernel[2];
    }
    if (c->group.algo == CONV_BY_GEMM) {
        c->gemm = cvyi_plan_product(b, &c->geom);
        c->tiling[0] = (conv_tiling){.geom = c->geom, .units = c->gemm.units, .bands = 1};
        c->tiling[0].scratch = cvyi_gemm_scratch_bytes(&c->gemm);
    }
    for (int i = c->group.algo == CONV_BY_GEMM; i < 1 + cvyi_conv_two_forms(c); i++) {
        cvyi_conv_tile(algos[i], i || !c->centres ? &c->geom : &c->copy, b->state->conv, ph, pw, &c->tiling[i]);
        c->packed[i] = cvyi_packed_room(b, c->weight, 4 * c->tiling[i].packed);
        TRY(add_packing(b, c, i));
    }
fail:
    return st;
}
