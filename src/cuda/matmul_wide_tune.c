/* matmul_wide_tune.c - which matrix products matmul_wide.cu takes, with which tile, and how fast that may be. */
#include <math.h>
#include "choice.h"

/* ---- conditions ---- */

static int64_t matrices_of(const shape *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->rank - 2; d++) n *= s->dim[d];
    return n;
}

static const char *refusal(const cvy_plan *p, const cuda_device *d, const node *n, const matmul_geom *e)
{
    const value *x = &p->graph->values[n->arg[0]], *w = &p->graph->values[n->arg[1]];

    if (d->major != 9 || d->minor != 0) return "words: needs compute capability 9.0";
    if (p->tuning >= TUNE_GENERIC) return "words: this tuning does not use tensor cores";
    if (x->dtype != w->dtype) return "words: operands of two dtypes";
    if (x->shape.rank < 2 || w->shape.rank < 2) return "words: a vector";
    if (e->K < WORD_DEPTH) return "words: fewer than 64 terms in a sum";
    if (e->N < 8) return "words: fewer than 8 columns";
    if (e->M <= 8 && e->K >= 128) return "words: few rows, which matmul_thin.cu takes";
    if (e->batch > 1 && ((matrices_of(&x->shape) != e->batch && matrices_of(&x->shape) != 1) ||
                         (matrices_of(&w->shape) != e->batch && matrices_of(&w->shape) != 1)))
        return "words: batches that are broadcast in part";
    if (e->M > INT32_MAX / 2 || e->batch > INT32_MAX / 2 || e->M * e->batch > INT32_MAX / 2 ||
        e->N * e->batch > INT32_MAX / 2 || e->K > (int64_t)GRID_YZ_MOST * WORD_STRETCH)
        return "words: more rows, columns or terms than tensor copies can address";
    return NULL;
}

static word_operand find_operand(const cvy_plan *p, const matmul_geom *e, int v, int64_t lines)
{
    const bool batched = e->batch > 1 && matrices_of(cvyi_shape_of(p->graph, v)) > 1;
    const word_operand o = {.batched = batched,
                            .prepared = p->prepared[v],
                            .lines = lines * (batched ? e->batch : 1),
                            .padded = cvyi_round_up(e->K, 8)};
    return o;
}

/* Tensor copies need rows of whole 16 bytes. */
static void find_operands(const cvy_plan *p, const node *n, word_choice *f)
{
    const matmul_geom *e = &f->geom;

    f->x = find_operand(p, e, n->arg[0], e->M);
    f->other = find_operand(p, e, n->arg[1], e->N);
    f->scaled = p->graph->values[n->arg[0]].dtype == CVY_FLOAT32;
    f->x.words = f->scaled || e->K % 8;
    f->other.words = f->scaled || (e->other_is_nk ? e->K : e->N) % 8;
    f->across = !f->other.words && !e->other_is_nk;
}

/* ---- how fast ---- */

static int64_t count_tiles(const word_choice *f, const word_tile *t)
{
    const matmul_geom *e = &f->geom;
    return cvyi_ceil_div(e->M, t->m) * e->batch * cvyi_ceil_div(e->N, t->n) * t->split;
}

/* The share of the tensor cores' 2048 multiply-adds a cycle that was seen on an H200: real data draws so much power
 * that the clock falls. A single warpgroup reaches less; and if columns of [terms][columns] are few and both
 * warpgroups read them, shared memory is the limit. */
static double rate_of(const word_choice *f)
{
    const word_tile *t = &f->tile;

    if (t->turns) return f->products == 3 ? 0.64 : 0.72;
    return f->across && t->n < 192 ? 0.62 : 0.77;
}

/* Cycles of a step: tensor cores, or what comes from the L2, 46 bytes a cycle. 128 x 256, one product: 1,330, and
 * 1,070. */
static double step_cycles(const word_choice *f)
{
    const double multiply = (double)f->products * f->tile.m * f->tile.n * WORD_DEPTH / (2048 * rate_of(f));

    return fmax(multiply, (f->layout.x_stage + f->layout.w_stage) / 46.0);
}

/* The multiprocessor with the most tiles takes longest. The end of a tile, by results of 16 or 32 bits, which
 * taking turns hides in part; the first copies of all. */
static double sums_seconds(const word_choice *f, const cuda_device *d)
{
    const word_tile *t = &f->tile;
    const double steps = (double)cvyi_ceil_div(cvyi_ceil_div(f->geom.K, WORD_DEPTH), t->split);
    const double end = (f->scaled ? (t->turns ? 0.44 : 0.5) : t->turns ? 0.12 : 0.18) * t->m * t->n;
    const double turns = (double)cvyi_ceil_div(f->tiles, d->sms);

    return (turns * (steps * step_cycles(f) + end) + 3500) / d->clock;
}

/* What becomes words in every run is read and written at four fifths of the memory's bandwidth; parts of sums are
 * written and read. */
static double other_seconds(const cvy_plan *p, const word_choice *f)
{
    const matmul_geom *e = &f->geom;
    const int split = f->tile.split, read = f->scaled ? FLOAT_BYTES : HALF_BYTES;
    const word_operand *both[] = {&f->x, &f->other};
    double bytes = split == 1 ? 0 : (double)FLOAT_BYTES * split * (double)(e->M * e->batch) * (double)e->N;

    for (int i = 0; i < 2; i++)
        if (both[i]->words && !both[i]->prepared)
            bytes += (double)both[i]->lines * (double)e->K * (read + HALF_BYTES * f->layout.parts) / 0.8;
    return bytes / p->machine.bandwidth;
}

/* Two of words that have scales, or one without, take half a launch each. */
static double launches_of(const word_choice *f)
{
    const int made = (f->x.words && !f->x.prepared) + (f->other.words && !f->other.prepared);
    return 1 + 0.375 * made * (f->scaled ? 2 : 1) + (f->tile.split > 1 ? 0.25 : 0);
}

/* ---- the search ---- */

typedef struct search {
    const cvy_plan *p;
    const word_choice *f;
    word_choice best[TUNE_TILES]; /* the fastest first */
    int n;
} search;

static void try_tile(search *s, const word_tile *t)
{
    const cuda_device *d = ((const cuda_state *)s->p->state)->device;
    word_choice f = *s->f;
    int at = s->n;

    f.tile = *t;
    f.tiles = count_tiles(&f, t);
    f.layout = word_find_layout(t->m, t->n, f.products);
    f.launches = launches_of(&f);
    f.seconds = sums_seconds(&f, d) + other_seconds(s->p, &f);
    for (; at > 0 && f.seconds < s->best[at - 1].seconds; at--)
        if (at < TUNE_TILES) s->best[at] = s->best[at - 1];
    if (at < TUNE_TILES) s->best[at] = f;
    if (s->n < TUNE_TILES) s->n++;
}

/* Sums are shared if tiles would not fill the device, in shares of four steps and more. */
static void try_splits(search *s, word_tile *t)
{
    static const int splits[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128};
    const int64_t steps = cvyi_ceil_div(s->f->geom.K, WORD_DEPTH);

    for (int i = 0; i < COUNT_OF(splits) && (i == 0 || 4 * splits[i] <= steps); i++) {
        t->split = splits[i];
        if (count_tiles(s->f, t) <= INT32_MAX / 2) try_tile(s, t);
    }
}

/* Tiles, and the most products: three have twice the accumulators. */
static const struct {
    int m, n;
    bool turns;
    int products;
} rows[] = {
    {128, 256, false, 1}, {128, 128, true, 1},  {64, 256, true, 1},  {128, 192, false, 3},
    {64, 128, true, 3},   {128, 128, false, 3}, {128, 64, false, 3}, {64, 64, true, 3},
};

static word_choice choose(const cvy_plan *p, const word_choice *f, int rank)
{
    search s = {.p = p, .f = f};

    for (int i = 0; i < COUNT_OF(rows); i++) {
        word_tile t = {.m = rows[i].m, .n = rows[i].n, .turns = rows[i].turns};
        if (f->products <= rows[i].products) try_splits(&s, &t);
    }
    return s.best[rank < s.n ? rank : s.n - 1];
}

word_choice cvyi_word_choice(const cvy_plan *p, int core)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    const node *n = &p->graph->nodes[core];
    word_choice f = {.products = cvyi_cuda_products(p, n)};

    cvyi_matmul_geom(p->graph, n, &f.geom);
    f.why = refusal(p, d, n, &f.geom);
    if (f.why) return f;
    find_operands(p, n, &f);
    return choose(p, &f, p->tuning);
}
