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
    const conv_geom *g = &c->how->geom;
    const int64_t bands = cvyi_max64(c->how->tiling[0].bands, c->how->tiling[1].bands);
    if (c->how->means) {
        c->sums = cvyi_slice(b, cvyi_doubles(g->C * cvyi_conv_taps(g)));
        c->xmean = cvyi_slice(b, cvyi_doubles(g->C));
        c->usable = cvyi_slice(b, (int64_t)sizeof(int32_t) * g->C);
        c->xmean32 = cvyi_slice(b, cvyi_floats(g->C));
        c->start = cvyi_slice(b, cvyi_floats(g->K));
        c->mean = cvyi_slice(b, cvyi_doubles(g->K));
        c->constant = cvyi_slice(b, cvyi_doubles(g->K));
        c->plain = cvyi_slice(b, sizeof(int32_t));
        if (c->how->centres)
            c->centred_x =
                cvyi_slice(b, cvyi_floats(g->C * c->how->copy.in[0] * c->how->copy.in[1] * c->how->copy.in[2]));
        if (c->how->tiling[0].split_line)
            c->split_x = cvyi_slice(b, cvyi_floats(g->C * g->in[0] * c->how->tiling[0].split_floats));
    }
    if (c->stats != CVY_NONE) c->band_sums = cvyi_slice(b, cvyi_doubles(bands * g->K));
    if (c->prog_stats != CVY_NONE) c->band_sums = cvyi_slice(b, (int64_t)sizeof(cpu_moments) * bands * g->K);
}

static int value_of(const builder *b, int index)
{
    return index < 0 ? CVY_NONE : b->g->nodes[index].out;
}

/* A band of the largest part, in floats. */
static int64_t band_floats(const conv_tiling *t)
{
    const int64_t channels = cvyi_min64(t->blocks_per_part * t->kt, t->geom.K);
    return channels * cvyi_min64(t->rows, t->geom.out[1]) * t->geom.out[2];
}

/* Does the result go to memory by bands that are converted or scattered there? */
static bool stored_by_bands(const builder *b, const conv_step *c)
{
    const spot *at = cvyi_spot(b, c->out);
    const bool words = at->kind == SPOT_WORKSPACE && b->g->values[at->v].dtype != CVY_FLOAT32;
    const bool scattered = at->kind == SPOT_TENSOR && (at->shadow < 0 || at->scatters);
    return c->pool == CVY_NONE && !c->how->along.n_prog && ((words && at->shadow < 0) || scattered);
}

/* The program that runs on bands, and the scratch that it and a band need after the kernel's. */
static cvy_status add_program(builder *b, int index, conv_step *c, int64_t *scratch)
{
    const conv_choice *how = c->how;
    const site at = cvyi_site(b);
    program_room room;
    cvy_status st = CVY_OK;

    if (how->along.n_prog || stored_by_bands(b, c))
        c->band_bytes =
            cvyi_align64((int64_t)sizeof(float) *
                         cvyi_max64(band_floats(&how->tiling[0]), how->means ? band_floats(&how->tiling[1]) : 0));
    *scratch += c->band_bytes;
    if (!how->along.n_prog) return CVY_OK;
    c->prog = cvyi_program_in(&room);
    if (!cvyi_band_program(&at, c->out, how->along.prog, how->along.n_prog, &how->geom, &c->prog))
        return cvyi_fail(CVY_UNSUPPORTED, "%s: its band program does not build",
                         b->g->values[b->g->nodes[index].out].name);
    TRY(cvyi_program_keep(b->plan, &c->prog));
    *scratch += cvyi_program_scratch(&c->prog);
fail:
    return st;
}

cvy_status cvyi_lower_conv(builder *b, int index)
{
    const conv_choice *how = &cvyi_own_choice(b->out->pass, b->choice, index)->how.conv;
    const node *n = &b->g->nodes[index];
    const int stats = how->along.stats >= 0 ? how->along.stats : how->along.prog_stats;
    conv_step *c = cvyi_arena_alloc(&b->plan->memory, 1, sizeof *c);
    int64_t scratch = cvyi_max64((int64_t)how->tiling[0].scratch, (int64_t)how->tiling[1].scratch);
    cvy_status st = CVY_OK;

    if (!c) return CVY_NO_MEMORY;
    c->how = how;
    c->x = n->arg[0], c->weight = n->arg[1], c->bias = n->arg[2], c->out = n->out;
    c->pool = value_of(b, how->along.pool);
    c->stats = value_of(b, how->along.stats);
    c->prog_stats = value_of(b, how->along.prog_stats);
    if (stats >= 0) cvyi_norm_geom(b->g, &b->g->nodes[stats], &c->norm);
    TRY(cvyi_conv_add_packing(b, c));
    reserve_record(b, c);
    TRY(add_program(b, index, c, &scratch));
    if (how->means) TRY(cvyi_conv_add_means(b, c));
    if (c->prog.n_coefs && !how->along.twice)
        TRY(cvyi_add_conv_step(b, c, "coefficients", cvyi_one_part, run_coefs, 0));
    TRY(cvyi_conv_add_bands(b, c, scratch));
    TRY(cvyi_conv_add_stats(b, c));
    if (how->along.twice) {
        TRY(cvyi_add_conv_step(b, c, "coefficients", cvyi_one_part, run_coefs, 0));
        TRY(cvyi_conv_add_again(b, c, scratch));
    }
fail:
    return st;
}
