/* wide_tune.c - which convolutions are wide enough for conv_wide.cu, with which tile, and how fast that may be. */
#include <math.h>
#include "choice.h"

/* ---- conditions ---- */

enum { FARTHEST = 1 << 20, STRIDE_MOST = 16, PHASES_MOST = 64 };

static const char *refusal(const cvy_plan *p, const cuda_device *d, const conv_geom *e)
{
    if (d->major != 9 || d->minor != 0) return "wide: needs compute capability 9.0";
    if (p->tuning >= TUNE_GENERIC) return "wide: this tuning does not use tensor cores";
    if (e->groups > 1) return "wide: more than one group";
    for (int a = 0; a < 3; a++) {
        if (e->stride[a] > STRIDE_MOST) return "wide: a stride above 16";
        if (e->kernel[a] * e->dil[a] + e->pad[a] > FARTHEST)
            return "wide: a filter that spans more than 2^20 pixels";
    }
    /* Each is a list of its own with gaps of its own, or a tile with few taps. */
    if (e->stride[0] * e->stride[1] * e->stride[2] > PHASES_MOST) return "wide: strides with more than 64 phases";
    return e->C < 16 ? "wide: fewer than 16 input channels" : NULL;
}

/* Along an axis: places of a list that x fills, places that results are computed at, the gap after x's: what taps
 * reach before the first place or after the last, or results past x's end. */
typedef struct extent {
    int64_t filled, results, gap;
} extent;

static extent find_extent(const conv_geom *e, int axis, wide_axis a)
{
    extent x = {.filled = a.transposed ? e->in[axis] : cvyi_ceil_div(e->in[axis], a.stride),
                .results = a.transposed ? cvyi_ceil_div(e->out[axis], a.stride) : e->out[axis]};

    x.gap = cvyi_max64(0, x.results - x.filled);
    for (int phase = 0; phase < a.stride; phase++) {
        const int count = wide_count(a, phase);
        int64_t lowest, highest;
        if (!count) continue;
        lowest = wide_shift(a, phase);
        highest = lowest + (int64_t)(count - 1) * wide_move(a);
        x.gap = cvyi_max64(x.gap, cvyi_max64(-lowest, x.results - 1 + highest - (x.filled - 1)));
    }
    return x;
}

static const char *lay_flat(wide_choice *f)
{
    const conv_geom *e = &f->geom;
    extent x[3];

    f->phases = 1;
    for (int i = 0; i < 3; i++) {
        f->axes[i] =
            (wide_axis){(int)e->kernel[i], (int)e->stride[i], (int)e->pad[i], (int)e->dil[i], f->transposed};
        f->phases *= f->axes[i].stride;
        x[i] = find_extent(e, i, f->axes[i]);
        f->gap[i] = x[i].gap;
    }
    f->row = x[2].filled + x[2].gap;
    /* Places are 32-bit, and so is what a tile reaches beyond them. Each factor is below 2^31: no product wraps. */
    f->plane = (x[1].filled + x[1].gap) * f->row;
    if (f->plane > INT32_MAX / 2) return "wide: more pixels than tensor copies can address";
    f->sample = (x[0].filled + x[0].gap) * f->plane;
    if (f->sample > INT32_MAX / 2 || e->N * f->sample > INT32_MAX / 2)
        return "wide: more pixels than tensor copies can address";
    f->places = (e->N - 1) * f->sample + (x[0].results - 1) * f->plane + (x[1].results - 1) * f->row + x[2].results;
    if (e->K * e->C * e->kernel[0] * e->kernel[1] * e->kernel[2] > INT32_MAX) return "wide: more than 2^31 weights";
    if (e->K * e->out[0] * e->out[1] * e->out[2] > INT32_MAX) return "wide: a sample of more than 2^31 results";
    return e->C * e->in[0] * e->in[1] * e->in[2] > INT32_MAX ? "wide: a sample of more than 2^31 values" : NULL;
}

/* ---- tiles ---- */

typedef struct tile_row {
    int groups_m, groups_n, tile, blocks;
    enum { ONE = 1, THREE = 2, ANY = ONE | THREE } products;
} tile_row;

/* Three products have twice the accumulators: 192 pixels at most. Two blocks of a multiprocessor finish one tile
 * while the other is multiplied, but fetch more. Of tiles that take the same time the first is chosen: with one
 * product a block by itself was 4 to 6 % faster with 64 channels, two of them 7 to 12 % faster with 128. */
static const tile_row rows[] = {
    {1, 2, 256, 1, ONE}, {2, 1, 256, 1, ONE},   {2, 1, 224, 1, ONE},   {1, 2, 192, 1, ONE}, {1, 2, 144, 1, ONE},
    {1, 2, 128, 1, ONE}, {2, 1, 192, 1, ANY},   {1, 2, 192, 1, THREE}, {2, 1, 144, 1, ANY}, {1, 2, 144, 1, THREE},
    {2, 1, 128, 1, ANY}, {1, 2, 128, 1, THREE}, {2, 1, 96, 1, ANY},    {2, 1, 64, 1, ANY},  {1, 2, 64, 1, ANY},
    {2, 1, 128, 2, ONE}, {1, 2, 128, 2, ONE},   {2, 1, 64, 2, ONE},
};

static wide_layout find_layout(const wide_choice *f)
{
    const wide_tile *t = &f->tile;
    const wide_layout none = {.x_stages = 0};
    const double farthest =
        (t->together ? (double)f->geom.kernel[1] * (double)f->geom.dil[1] * (double)f->row : 0) +
        (double)f->geom.kernel[2] * (double)f->geom.dil[2];

    /* Sizes beyond any shared memory need not fit into the integers of a layout. */
    if (farthest > 1 << 16) return none;
    return wide_find_layout(t->groups_m, t->groups_n, t->tile, f->products,
                            wide_reach(f->axes[1], f->axes[2], (int)f->row, t->together), t->blocks);
}

/* ---- how fast ---- */

/* Stages of x that the taps along an axis need: one per tap, or one for all taps of a phase. */
static double stages_along(wide_axis a, bool together)
{
    return a.transposed ? (together ? 1 : wide_most(a)) : together ? least(a.stride, a.taps) : a.taps;
}

/* Cycles of a block's share of a sum while the multiprocessor is its own: tensor cores, 2048 multiply-adds a cycle,
 * of which 0.72 were seen on an H200 whatever the tile, of three products 0.78 (real data draws so much power that
 * the clock falls); or what comes from the L2, 36 bytes a cycle. A slice of a 3x3 filter by 128 x 256, one product:
 * 12,800 cycles, and 7,100. */
static double sum_cycles(const wide_choice *f)
{
    const conv_geom *e = &f->geom;
    const wide_tile *t = &f->tile;
    const wide_layout *l = &f->layout;
    /* Of a transposed convolution a block has one phase. */
    const double share = f->transposed ? f->phases : 1;
    const double taps = (double)(e->kernel[0] * e->kernel[1] * e->kernel[2]) / share;
    const double runs = fmin(taps, stages_along(f->axes[0], false) * stages_along(f->axes[1], t->together) *
                                       stages_along(f->axes[2], true));
    const double slices = (double)cvyi_ceil_div(cvyi_ceil_div(e->C, WIDE_CHANNELS), t->split);
    const double rate = 2048 * (f->products == 3 ? 0.78 : 0.72);
    const double multiply = taps * f->products * l->bm * l->bn * WIDE_CHANNELS / rate;
    const double fetch = (runs * l->x_stage + taps * l->w_stage) / 36;

    return slices * fmax(multiply, fetch);
}

/* The multiprocessor with the most blocks takes longest. From the last product of a block to its last store, and
 * until the first copies of the next have come: half a cycle for each result. Two blocks end together. */
static double sums_seconds(const wide_choice *f, const cuda_device *d)
{
    const int64_t each = cvyi_ceil_div(f->tiles * f->tile.split, d->sms);
    const int64_t ends = cvyi_ceil_div(each, f->tile.blocks);

    return ((double)each * sum_cycles(f) + (double)ends * (0.5 * f->layout.bm * f->layout.bn + 1000)) / d->clock;
}

/* x is read (a line for every phase along it) and words are written at four fifths of the memory's bandwidth; parts
 * of sums are written and read. */
static double other_seconds(const cvy_plan *p, const wide_choice *f)
{
    const conv_geom *e = &f->geom;
    const int x_bytes = f->scaled ? FLOAT_BYTES : HALF_BYTES, split = f->tile.split;
    const double x = x_bytes * (double)e->N * (double)(e->C * e->in[0] * e->in[1] * e->in[2]);
    const double lists = f->transposed ? 1 : f->phases, lines = f->transposed ? 1 : f->axes[2].stride;
    const double words =
        lists * (double)(e->N * f->sample * cvyi_round_up(e->C, WIDE_CHANNELS)) * (f->products == 3 ? 2 : 1);
    const double results = (double)(e->N * e->K) * (double)(e->out[0] * e->out[1] * e->out[2]);
    const double parts = split == 1 ? 0 : split * results;

    return ((x * lines + HALF_BYTES * words) / 0.8 + FLOAT_BYTES * parts) / p->machine.bandwidth;
}

/* ---- the search ---- */

enum { BEST = TUNE_TILES };

typedef struct search {
    const cvy_plan *p;
    const wide_choice *f;
    wide_choice best[BEST]; /* the fastest first */
    int n;
} search;

static void try_tile(search *s, const wide_tile *t)
{
    const cuda_device *d = ((const cuda_state *)s->p->state)->device;
    wide_choice f = *s->f;
    int at = s->n < BEST ? s->n : BEST;

    f.tile = *t;
    f.layout = find_layout(&f);
    if (!f.layout.x_stages || f.layout.shared_bytes > d->shared_block / t->blocks) return;
    f.tiles =
        cvyi_ceil_div(f.geom.K, f.layout.bm) * cvyi_ceil_div(f.places, f.layout.bn) * (f.transposed ? f.phases : 1);
    f.launches = 1.375 + (f.scaled ? 0.375 : 0) + (t->split > 1 ? 0.25 : 0);
    f.seconds = sums_seconds(&f, d) + other_seconds(s->p, &f);
    for (; at > 0 && f.seconds < s->best[at - 1].seconds; at--)
        if (at < BEST) s->best[at] = s->best[at - 1];
    if (at < BEST) s->best[at] = f;
    if (s->n < BEST) s->n++;
}

/* Sums are shared if blocks would not fill the device. */
static void try_splits(search *s, wide_tile *t)
{
    static const int splits[] = {1, 2, 3, 4, 6, 8};
    const int64_t slices = cvyi_ceil_div(s->f->geom.C, WIDE_CHANNELS);

    for (int i = 0; i < COUNT_OF(splits) && splits[i] <= slices; i++) {
        t->split = splits[i];
        try_tile(s, t);
    }
}

/* Number `rank` of the tiles that fit, the fastest first; the last if there are fewer. */
static wide_choice choose(const cvy_plan *p, const wide_choice *f, int rank)
{
    search s = {.p = p, .f = f};
    const wide_choice none = {.why = "wide: its tiles do not fit into shared memory"};

    for (int i = 0; i < COUNT_OF(rows); i++) {
        const tile_row *r = &rows[i];
        wide_tile t = {.groups_m = r->groups_m, .groups_n = r->groups_n, .tile = r->tile, .blocks = r->blocks};
        if (!(r->products & (f->products == 3 ? THREE : ONE))) continue;
        try_splits(&s, &t);
        t.together = true;
        if (wide_most(f->axes[1]) > 1) try_splits(&s, &t);
    }
    return s.n ? s.best[rank < s.n ? rank : s.n - 1] : none;
}

wide_choice cvyi_wide_choice(const cvy_plan *p, int core)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    const node *n = &p->graph->nodes[core];
    const cvy_dtype x = p->graph->values[n->arg[0]].dtype, w = p->graph->values[n->arg[1]].dtype;
    const bool scaled = x == CVY_FLOAT32 || x != w;
    wide_choice f = {.products = cvyi_cuda_products(p, n),
                     .transposed = cvyi_info(n)->kind == KIND_CONVT,
                     .scaled = scaled,
                     .word = scaled ? CVY_FLOAT16 : x};

    cvyi_conv_geom(p->graph, n, &f.geom);
    f.why = refusal(p, d, &f.geom);
    if (!f.why) f.why = lay_flat(&f);
    return f.why ? f : choose(p, &f, p->tuning);
}
