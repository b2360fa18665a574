/* step_conv.c - which steps a convolution has in its pass, and the room they take. See step_conv.h. */
#include "step_conv.h"

cvy_status cvyi_add_conv_step(builder *b, conv_step *c, const char *name,
                              int64_t (*parts)(const step *, const cpu_unit *),
                              void (*run)(const step *, const cpu_unit *, int64_t, char *), int64_t scratch)
{
    void *unused;
    step *s = cvyi_add_step(b, name, 1, &unused);
    if (!s) return CVY_NO_MEMORY;
    s->parts = parts;
    s->run = run;
    s->data = c;
    s->scratch = scratch;
    return CVY_OK;
}

static void run_coefs(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    (void)part;
    (void)scratch;
    cvyi_program_coefs(&((const conv_step *)s->data)->prog, u);
}

static void reserve_record(builder *b, conv_step *c)
{
    const conv_geom *g = &c->geom;
    const int64_t bands = cvyi_max64(c->tiling[0].bands, c->tiling[1].bands);
    if (c->window) {
        c->sums = cvyi_slice(b, 8 * g->C * cvyi_conv_taps(g));
        c->xmean = cvyi_slice(b, 8 * g->C);
        c->usable = cvyi_slice(b, 4 * g->C);
        c->xmean32 = cvyi_slice(b, 4 * g->C);
        c->start = cvyi_slice(b, 4 * g->K);
        c->mean = cvyi_slice(b, 8 * g->K);
        c->constant = cvyi_slice(b, 8 * g->K);
        c->plain = cvyi_slice(b, 4);
        if (c->centres) c->centred_x = cvyi_slice(b, 4 * g->C * c->copy.in[0] * c->copy.in[1] * c->copy.in[2]);
    }
    if (c->stats != CVY_NONE) c->band_sums = cvyi_slice(b, 8 * bands * g->K);
    if (c->prog_stats != CVY_NONE) c->band_sums = cvyi_slice(b, (int64_t)sizeof(cpu_moments) * bands * g->K);
}

static int value_of(const builder *b, int index)
{
    return index < 0 ? CVY_NONE : b->g->nodes[index].out;
}

/* A band of the largest unit, in floats. */
static int64_t band_floats(const conv_tiling *t)
{
    const int64_t channels = cvyi_min64(t->blocks_per_unit * t->kt, t->geom.K);
    return channels * cvyi_min64(t->rows, t->geom.out[1]) * t->geom.out[2];
}

/* The same convolution of an input that has its padding around it, as far as a tap reaches. */
static conv_geom padded_geom(const conv_geom *g)
{
    conv_geom p = *g;
    for (int a = 0; a < 3; a++) {
        p.pad[a] = 0;
        p.in[a] = (g->out[a] - 1) * g->stride[a] + (g->kernel[a] - 1) * g->dil[a] + 1;
    }
    return p;
}

/* A product sees pixels, not rows: one long row costs less than many short ones. */
static void one_row(conv_geom *g)
{
    g->in[2] = g->out[2] = g->out[0] * g->out[1] * g->out[2];
    g->in[0] = g->in[1] = g->out[0] = g->out[1] = 1;
}

static cvy_status lower_kernel(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    conv_step *c = cvyi_arena_alloc(&b->plan->memory, 1, sizeof *c);
    int64_t scratch;
    cvy_status st = CVY_OK;

    if (!c) return CVY_NO_MEMORY;
    cvyi_conv_geom(b->g, n, &c->geom);
    c->group = b->convs[index];
    if (c->group.algo == CONV_BY_GEMM) one_row(&c->geom);
    c->x = n->arg[0], c->weight = n->arg[1], c->bias = n->arg[2], c->out = n->out;
    c->pool = value_of(b, c->group.pool);
    c->stats = value_of(b, c->group.stats);
    c->prog_stats = value_of(b, c->group.prog_stats);
    c->window = c->group.centred || c->prog_stats != CVY_NONE || cvyi_is_winograd(c->group.algo);
    c->centres = c->window && !cvyi_is_winograd(c->group.algo);
    c->copy = padded_geom(&c->geom);
    if (c->stats != CVY_NONE || c->prog_stats != CVY_NONE)
        cvyi_norm_geom(b->g, &b->g->nodes[c->stats != CVY_NONE ? c->group.stats : c->group.prog_stats], &c->norm);
    TRY(cvyi_conv_tile_and_pack(b, c));
    reserve_record(b, c);
    scratch = cvyi_max64((int64_t)c->tiling[0].scratch, (int64_t)c->tiling[1].scratch);
    if (c->group.n_prog) {
        program_room room;
        c->prog = cvyi_program_in(&room);
        if (!cvyi_band_program(b, n->out, c->group.prog, c->group.n_prog, &c->geom, &c->prog))
            return cvyi_fail(CVY_UNSUPPORTED, "%s: its band program does not build", b->g->values[n->out].name);
        TRY(cvyi_program_keep(b->plan, &c->prog));
        c->band_bytes =
            cvyi_align64(4 * cvyi_max64(band_floats(&c->tiling[0]), c->window ? band_floats(&c->tiling[1]) : 0));
        scratch += c->band_bytes + cvyi_program_scratch(&c->prog);
    }
    if (c->window) TRY(cvyi_conv_add_means(b, c));
    if (c->prog.n_coefs && !c->group.twice)
        TRY(cvyi_add_conv_step(b, c, "coefficients", cvyi_one_part, run_coefs, 0));
    TRY(cvyi_conv_add_bands(b, c, scratch));
    TRY(cvyi_conv_add_stats(b, c));
    if (c->group.twice) {
        TRY(cvyi_add_conv_step(b, c, "coefficients", cvyi_one_part, run_coefs, 0));
        TRY(cvyi_conv_add_again(b, c, scratch));
    }
fail:
    return st;
}

cvy_status cvyi_lower_conv(builder *b, int index)
{
    const conv_group *c = &b->convs[index];
    return c->algo == CONV_BY_GEMM && !c->centred ? cvyi_lower_product(b, index) : lower_kernel(b, index);
}
