/* wide_tune.c - which convolutions are wide enough for conv_wide.cu, with which tile, and how fast that may be. */
#include <math.h>
#include "choice.h"

/* ---- what it takes ---- */

static const char *refusal(const cvy_plan *p, const cuda_device *d, const conv_geom *e)
{
    if (d->major != 9 || d->minor != 0) return "wide: needs compute capability 9.0";
    if (p->tuning >= TUNE_GENERIC) return "wide: this tuning does without tensor cores";
    if (e->groups > 1) return "wide: one group alone";
    if (e->stride[0] != 1 || e->stride[1] != 1 || e->stride[2] != 1) return "wide: stride 1 alone";
    return e->C < 16 ? "wide: fewer than 16 input channels" : NULL;
}

/* The gap behind an axis of the flat list: the padding of either side, or outputs past the input's end. */
static int64_t gap(const conv_geom *e, int axis)
{
    const int64_t reach = (e->kernel[axis] - 1) * e->dil[axis];
    const int64_t behind = e->out[axis] - 1 + reach - e->pad[axis] - (e->in[axis] - 1);

    return cvyi_max64(cvyi_max64(e->pad[axis], behind), cvyi_max64(0, e->out[axis] - e->in[axis]));
}

static const char *lay_flat(wide_form *f)
{
    const conv_geom *e = &f->geom;

    f->row = e->in[2] + gap(e, 2);
    f->plane = (e->in[1] + gap(e, 1)) * f->row;
    f->sample = (e->in[0] + gap(e, 0)) * f->plane;
    f->places = (e->N - 1) * f->sample + (e->out[0] - 1) * f->plane + (e->out[1] - 1) * f->row + e->out[2];
    /* Places are 32-bit, and so is what a tile reaches beyond them. */
    if (e->N * f->sample > INT32_MAX / 2) return "wide: more pixels than tensor copies count";
    if (e->K * e->out[0] * e->out[1] * e->out[2] > INT32_MAX) return "wide: a sample of more than 2^31 results";
    return e->C * e->in[0] * e->in[1] * e->in[2] > INT32_MAX ? "wide: a sample of more than 2^31 values" : NULL;
}

/* ---- tiles ---- */

typedef struct tile_row {
    int groups_m, groups_n, tile, blocks, products; /* products: the most */
} tile_row;

/* Three products have twice the accumulators: 192 pixels at most. Two blocks of a multiprocessor finish one tile
 * while the other is multiplied, but fetch more. */
static const tile_row rows[] = {
    {2, 1, 256, 1, 1}, {1, 2, 256, 1, 1}, {2, 1, 224, 1, 1}, {2, 1, 192, 1, 3}, {1, 2, 192, 1, 3},
    {2, 1, 144, 1, 3}, {1, 2, 144, 1, 3}, {2, 1, 128, 1, 3}, {1, 2, 128, 1, 3}, {2, 1, 96, 1, 3},
    {2, 1, 64, 1, 3},  {1, 2, 64, 1, 3},  {2, 1, 128, 2, 1}, {1, 2, 128, 2, 1}, {2, 1, 64, 2, 1},
};

wide_layout cvyi_wide_layout(const wide_form *f, const wide_tile *t)
{
    const conv_geom *e = &f->geom;
    const int64_t reach = (t->run_rows - 1) * e->dil[1] * f->row + (e->kernel[2] - 1) * e->dil[2];
    const wide_layout none = {.x_stages = 0};

    /* What no shared memory holds need not fit into the numbers of a layout. */
    if (reach > 4096) return none;
    return wide_find_layout(t->groups_m, t->groups_n, t->tile, f->products, (int)reach, t->blocks);
}

/* ---- how fast ---- */

/* Cycles of a block's share of a sum while the multiprocessor is its own: tensor cores, 2048 multiply-adds a cycle,
 * of which 0.72 were seen on an H200 whatever the tile, of three products 0.78 (real data draws so much power that
 * the clock falls); or what comes from the L2, 36 bytes a cycle. A slice of a 3x3 filter by 128 x 256, one product:
 * 12,800 cycles, and 7,100. */
static double sum_cycles(const wide_form *f, const wide_tile *t, const wide_layout *l)
{
    const conv_geom *e = &f->geom;
    const int64_t taps = e->kernel[0] * e->kernel[1] * e->kernel[2];
    const int64_t runs = e->kernel[0] * e->kernel[1] / t->run_rows;
    const double slices = (double)cvyi_ceil_div(cvyi_ceil_div(e->C, WIDE_CHANNELS), t->split);
    const double rate = 2048 * (f->products == 3 ? 0.78 : 0.72);
    const double multiply = (double)taps * f->products * l->bm * l->bn * WIDE_CHANNELS / rate;
    const double fetch = ((double)runs * l->x_stage + (double)taps * l->w_stage) / 36;

    return slices * fmax(multiply, fetch);
}

/* The multiprocessor with the most blocks takes longest. From the last product of a block to its last store, and
 * until the first copies of the next have come: half a cycle for each result. Two blocks end together. */
static double sums_seconds(const wide_form *f, const wide_tile *t, const wide_layout *l, const cuda_device *d)
{
    const int64_t blocks = cvyi_ceil_div(f->geom.K, l->bm) * cvyi_ceil_div(f->places, l->bn) * t->split;
    const int64_t each = cvyi_ceil_div(blocks, d->sms), ends = cvyi_ceil_div(each, t->blocks);

    return ((double)each * sum_cycles(f, t, l) + (double)ends * (0.5 * l->bm * l->bn + 1000)) / d->clock;
}

/* x is read and words are written at four fifths of the memory's bandwidth; parts of sums are written and read. */
static double other_seconds(const cvy_plan *p, const wide_form *f, const wide_tile *t)
{
    const conv_geom *e = &f->geom;
    const double x = (double)e->N * (double)(e->C * e->in[0] * e->in[1] * e->in[2]);
    const double words =
        (double)(e->N * f->sample * cvyi_round_up(e->C, WIDE_CHANNELS)) * (f->products == 3 ? 2 : 1);
    const double results = (double)(e->N * e->K) * (double)(e->out[0] * e->out[1] * e->out[2]);
    const double parts = t->split == 1 ? 0 : t->split * results;

    return ((4 * x + 2 * words) / 0.8 + 4 * parts) / p->machine.bandwidth;
}

/* ---- the search ---- */

enum { BEST = TUNE_TILES };

typedef struct search {
    const cvy_plan *p;
    const wide_form *f;
    wide_form best[BEST]; /* the fastest first */
    int n;
} search;

static void try_tile(search *s, const wide_tile *t)
{
    const cuda_device *d = ((const cuda_state *)s->p->state)->device;
    const wide_layout l = cvyi_wide_layout(s->f, t);
    wide_form f = *s->f;
    int at = s->n < BEST ? s->n : BEST;

    if (!l.x_stages || l.shared_bytes > d->shared_block / t->blocks) return;
    f.tile = *t;
    f.launches = t->split > 1 ? 2 : 1.75;
    f.seconds = sums_seconds(&f, t, &l, d) + other_seconds(s->p, &f, t);
    for (; at > 0 && f.seconds < s->best[at - 1].seconds; at--)
        if (at < BEST) s->best[at] = s->best[at - 1];
    if (at < BEST) s->best[at] = f;
    if (s->n < BEST) s->n++;
}

/* Sums are shared where blocks would not fill the device. */
static void try_splits(search *s, wide_tile *t)
{
    static const int splits[] = {1, 2, 3, 4, 6, 8};
    const int64_t slices = cvyi_ceil_div(s->f->geom.C, WIDE_CHANNELS);

    for (int i = 0; i < COUNT_OF(splits) && splits[i] <= slices; i++) {
        t->split = splits[i];
        try_tile(s, t);
    }
}

/* Number `rank` of the tiles that fit, the fastest first; the last where there are fewer. */
static wide_form choose(const cvy_plan *p, const wide_form *f, int rank)
{
    search s = {.p = p, .f = f};
    const wide_form none = {.why = "wide: its tiles do not fit into shared memory"};

    for (int i = 0; i < COUNT_OF(rows); i++) {
        const tile_row *r = &rows[i];
        wide_tile t = {.groups_m = r->groups_m, .groups_n = r->groups_n, .tile = r->tile, .blocks = r->blocks};
        if (f->products > r->products) continue;
        t.run_rows = 1;
        try_splits(&s, &t);
        t.run_rows = (int)f->geom.kernel[1];
        if (t.run_rows > 1) try_splits(&s, &t);
    }
    return s.n ? s.best[rank < s.n ? rank : s.n - 1] : none;
}

wide_form cvyi_wide_form(const cvy_plan *p, int core)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    wide_form f = {.products = cvyi_cuda_products(p, &p->graph->nodes[core])};

    cvyi_conv_geom(p->graph, &p->graph->nodes[core], &f.geom);
    f.why = refusal(p, d, &f.geom);
    if (!f.why) f.why = lay_flat(&f);
    return f.why ? f : choose(p, &f, p->tuning);
}
