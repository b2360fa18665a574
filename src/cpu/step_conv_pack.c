/* step_conv_pack.c - a convolution's weights, packed when parameters have changed. See step_conv.h. */
#include "step_conv.h"

typedef struct pack_step {
    const conv_tiling *tiling;
    int weight;
    int64_t packed;
} pack_step;

static void run_pack(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const pack_step *p = s->data;
    (void)part;
    (void)scratch;
    cvyi_conv_pack(p->tiling, cvyi_unit_data(u, p->weight), cvyi_packed(u, p->packed));
}

static void print_pack(const step *s, text *t)
{
    const pack_step *p = s->data;
    const conv_tiling *c = p->tiling;
    const conv_geom *g = &c->geom;
    cvyi_text_add(t, "conv %d: %lld x %lld / %lld, %lld x %lld x %lld", (int)c->algo, (long long)g->K,
                  (long long)g->C, (long long)g->groups, (long long)g->kernel[0], (long long)g->kernel[1],
                  (long long)g->kernel[2]);
    cvyi_text_add(t, ", blocks %lld + %lld of %d, %d, chunks %lld; %d at %lld\n", (long long)c->full,
                  (long long)c->tails, c->kt, c->tail_kt, (long long)c->chunk, p->weight, (long long)p->packed);
}

static cvy_status add_packing(builder *b, conv_step *c, int which)
{
    const conv_tiling *tiling = &c->how->tiling[which];
    void *data;
    pack_step *p;
    step *s = cvyi_add_pack(b, c->weight, sizeof *p, &data);
    if (!s) return CVY_NO_MEMORY;
    c->packed[which] = cvyi_packed_room(b, c->weight, cvyi_floats(tiling->packed));
    p = data;
    *p = (pack_step){tiling, c->weight, c->packed[which]};
    s->parts = cvyi_one_part;
    s->run = run_pack;
    s->print = print_pack;
    return CVY_OK;
}

cvy_status cvyi_conv_add_packing(builder *b, conv_step *c)
{
    cvy_status st = CVY_OK;

    if (!c->how->product) TRY(add_packing(b, c, 0));
    if (c->how->means) TRY(add_packing(b, c, 1));
fail:
    return st;
}
