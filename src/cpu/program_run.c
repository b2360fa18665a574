/* program_run.c - tiles of a program. See program.h. */
#include <math.h>
#include <string.h>
#include "program_tiles.h"

/* ---- coefficients ---- */

/* x -> scale * x + shift, composed in double; pivot: the x that the first norm of the chain takes to zero.
 * A scale that is not finite needs the sign of what it multiplies, so the form is then x -> (x - pivot) * scale +
 * shift, the pivot being the zero of the chain before it. Results are NaN and infinities in the same places as
 * without composition.
 */
typedef struct affine {
    double scale, shift, pivot;
    bool centred;  /* x is near zero itself: no pivot */
    bool infinite; /* the second form */
} affine;

static affine multiply(affine f, double number)
{
    if (isfinite(number) || f.infinite) {
        f.scale *= number;
        f.shift *= number;
    } else if (!isfinite(f.shift) || f.scale == 0) { /* the same for every finite x */
        f.shift *= number;
    } else {
        f = (affine){f.scale * number, 0, -f.shift / f.scale, f.centred, true};
    }
    return f;
}

static double channel_value(const cpu_unit *u, int v, int64_t channel)
{
    const shape *s = cvyi_shape_of(u->run->plan->graph, v);
    return cvyi_unit_data(u, v)[cvyi_elements(s) == 1 ? 0 : channel];
}

static affine apply_norm(const cpu_unit *u, const coef_op *op, int64_t outer, int64_t channel, affine f)
{
    const node *n = &u->run->plan->graph->nodes[op->index];
    const norm_geom *e = &op->norm;
    const float *stats = cvyi_unit_data(u, n->arg[1]);
    double w = 1, bias = 0, mean, rstd, a;

    stats += STATS_FIELDS * ((e->over_outer ? 0 : outer * e->groups) + channel / e->chan);
    mean = (double)stats[STATS_MEAN] + (double)stats[STATS_MEAN_LOW];
    rstd = stats[STATS_RSTD];
    if (n->arg[2] != CVY_NONE) w = channel_value(u, n->arg[2], channel);
    if (n->arg[3] != CVY_NONE) bias = channel_value(u, n->arg[3], channel);
    a = rstd * w;
    if (!isfinite(a) || f.infinite) { /* as PyTorch works: x a + (bias - mean a) */
        f = multiply(f, a);
        f.shift += bias - mean * a;
        return f;
    }
    if (!f.centred && f.pivot == 0 && f.scale != 0) f.pivot = (mean - f.shift) / f.scale;
    f.shift = (f.shift - mean) * a + bias;
    f.scale *= a;
    return f;
}

static affine apply_coef(const cpu_unit *u, const coef_op *op, int64_t outer, int64_t channel, int64_t channels,
                         affine f)
{
    const double number = op->kind == COEF_APPLY || op->kind == COEF_SHIFT ? 0
                          : op->v == CVY_NONE                              ? op->number
                                                                           : channel_value(u, op->v, channel);
    const double alpha = op->v == CVY_NONE ? 1 : op->number;
    const double *shifts;

    switch (op->kind) {
    case COEF_SHIFT:
        shifts = (const double *)(const void *)(u->slices + cvyi_find_spot(u->pass, op->v)->shift);
        f.shift += shifts[outer * channels + channel];
        f.centred = true;
        break;
    case COEF_MUL:
        f = multiply(f, number);
        break;
    case COEF_ADD:
        f.shift += alpha * number;
        break;
    case COEF_SUB:
        f.shift -= alpha * number;
        break;
    case COEF_APPLY:
        f = apply_norm(u, op, outer, channel, f);
        break;
    }
    return f;
}

/* Extent of the sample dimension of this unit; the last unit may be shorter. */
static int64_t samples_of(const program *p, const cpu_unit *u)
{
    return u->pass->samples > 1 ? u->m : p->outer[0];
}

static int64_t coef_rows(const program *p, const cpu_unit *u)
{
    int64_t rows = samples_of(p, u);
    for (int d = 1; d < p->channel; d++) rows *= p->outer[d];
    return rows;
}

static affine32 rounded(affine f)
{
    affine32 r = {(float)f.pivot, (float)f.scale, 0};
    if (!isfinite(r.from)) r.from = 0;
    r.shift = (float)(f.infinite ? f.shift : f.shift + f.scale * (double)r.from);
    return r;
}

void cvyi_program_coefs(const program *p, const cpu_unit *u)
{
    const int64_t rows = p->n_coefs ? coef_rows(p, u) : 0;
    for (int i = 0; i < p->n_coefs; i++) {
        const coef *c = &p->coefs[i];
        affine32 *out = (affine32 *)(void *)(u->slices + c->at);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < p->channels; k++) {
                affine f = {1, 0, 0, false, false};
                for (int j = 0; j < c->n; j++) f = apply_coef(u, &c->ops[j], r, k, p->channels, f);
                out[r * p->channels + k] = rounded(f);
            }
    }
}

/* ---- tiles ---- */

static bool past_caches(const cpu_unit *u, int v)
{
    const spot *at = cvyi_unit_spot(u, v);
    const int64_t bytes = cvyi_value_bytes(u->run->plan->graph, v);
    return at->kind == SPOT_TENSOR && cvyi_past_caches(u->run->state, bytes);
}

/* An affine whose result no instruction reads again stores it as words directly. */
static void find_direct_words(tiles *t)
{
    const program *p = t->p;
    for (int k = 0; k < p->n_instrs; k++) {
        const instr *i = &p->instrs[k];
        if (i->kind != INSTR_AFFINE || !i->last || !t->words[i->dst.index] || cvyi_tiles_scalar(t, &i->a)) continue;
        t->direct[i->dst.index] = true;
        t->aside[i->dst.index] = false;
    }
    for (int o = 0; o < p->n_operands; o++) t->halves |= t->words[o] && !t->direct[o];
}

static tiles begin(const program *p, const cpu_unit *u, char *scratch)
{
    tiles t = {.p = p, .u = u, .vec = u->run->state->vec};
    for (int r = 0; r < p->n_regs; r++) t.reg[r] = (float *)(void *)scratch + (int64_t)r * TILE;
    for (int o = 0; o < p->n_operands; o++) {
        const operand *at = &p->operands[o];
        t.base[o] = cvyi_unit_data(u, at->v); /* NULL: a strided output without a shadow, or words */
        t.words[o] = at->reg >= 0 ? cvyi_unit_words(u, at->v) : NULL;
        t.aside[o] = at->written && (!t.base[o] || at->stream);
        t.streams |= at->stream;
    }
    for (int k = 0; t.streams && k < p->n_instrs; k++) {
        const instr *i = &p->instrs[k];
        const bool again =
            i->a.kind == ARG_MEM && i->a.index == i->dst.index; /* the first store would be a usual one */
        const bool can = i->kind != INSTR_ROW_WEIGHTED && i->kind != INSTR_COPY && !again;
        if (!can || !i->last || !p->operands[i->dst.index].stream || !t.base[i->dst.index]) continue;
        t.direct[i->dst.index] = true;
        t.aside[i->dst.index] = false;
    }
    find_direct_words(&t);
    if (p->sink != SINK_NONE) {
        t.sink = cvyi_unit_data(u, p->sink_v);
        t.sink_streams = t.sink && past_caches(u, p->sink_v);
        t.streams |= t.sink_streams;
    }
    return t;
}

/* Moves to run number `run`: its offsets in every operand and its coefficients. */
void cvyi_tiles_seek(tiles *t, int64_t run)
{
    const program *p = t->p;
    int64_t digit[PROG_DIMS], rest = run;

    t->run = run;
    for (int d = p->n_outer - 1; d > 0; d--) {
        digit[d] = rest % p->outer[d];
        rest /= p->outer[d];
    }
    digit[0] = rest;
    t->coef = 0;
    for (int d = 0; d <= p->channel; d++) t->coef = t->coef * p->outer[d] + digit[d];
    for (int o = 0; o < p->n_operands; o++) {
        t->offset[o] = 0;
        for (int d = 0; d < p->n_outer; d++) t->offset[o] += digit[d] * p->operands[o].stride[d];
    }
}

/* The address of a register's or an operand's tile. */
static float *tile_of(const tiles *t, const prog_arg *a)
{
    const operand *o;
    if (a->kind == ARG_REG) return t->reg[a->index];
    o = &t->p->operands[a->index];
    if (t->band && a->index == t->p->band)
        return t->band->data + (t->run - t->band->k0) * (t->band->i1 - t->band->i0) + t->at - t->band->i0;
    if (t->words[a->index] || (o->written && t->aside[a->index])) return t->reg[o->reg];
    return t->base[a->index] + t->offset[a->index] + (o->scalar ? 0 : t->at);
}

const float *cvyi_tiles_address(const tiles *t, const prog_arg *a)
{
    return a->kind == ARG_NUM ? &a->number : tile_of(t, a);
}

bool cvyi_tiles_scalar(const tiles *t, const prog_arg *a)
{
    return a->kind == ARG_NUM || (a->kind == ARG_MEM && t->p->operands[a->index].scalar);
}

static bool streamed(const tiles *t, const instr *i)
{
    return i->dst.kind == ARG_MEM && t->direct[i->dst.index];
}

static void run_binary(const tiles *t, const instr *i, float *dst)
{
    const bool sa = cvyi_tiles_scalar(t, &i->a), sb = cvyi_tiles_scalar(t, &i->b);
    const cpu_binary_form form = sa && !sb ? BINARY_SV : !sa && sb ? BINARY_VS : BINARY_VV;
    const float alpha = i->p[1];
    float one;
    if (sa && sb) {
        t->vec->binary[BINARY_VV][i->op](&one, cvyi_tiles_address(t, &i->a), cvyi_tiles_address(t, &i->b), 1,
                                         alpha);
        t->vec->fill(dst, t->n, one);
    } else {
        (streamed(t, i) ? t->vec->binary_stream : t->vec->binary)[form][i->op](
            dst, cvyi_tiles_address(t, &i->a), cvyi_tiles_address(t, &i->b), t->n, alpha);
    }
}

static void run_unary(const tiles *t, const instr *i, float *dst)
{
    float one;
    if (cvyi_tiles_scalar(t, &i->a)) {
        t->vec->unary[i->op](&one, cvyi_tiles_address(t, &i->a), 1, i->p);
        t->vec->fill(dst, t->n, one);
    } else {
        (streamed(t, i) ? t->vec->unary_stream : t->vec->unary)[i->op](dst, cvyi_tiles_address(t, &i->a), t->n,
                                                                       i->p);
    }
}

/* Straight to memory, in the dtype of the result. */
static void pivot_words(const tiles *t, const instr *i, const float *x, affine32 f)
{
    const cpu_convert_kernels *convert = t->u->run->state->convert;
    const operand *w = &t->p->operands[i->dst.index];
    (w->stream ? convert->pivot_stream : convert->pivot)[cvyi_unit_dtype(t->u, w->v)](
        t->words[i->dst.index] + t->offset[i->dst.index] + t->at, x, t->n,
        (const float[]){f.from, f.scale, f.shift});
}

static void run_affine(const tiles *t, const instr *i, float *dst)
{
    const affine32 f = ((const affine32 *)(const void *)(t->u->slices + t->p->coefs[i->coef].at))[t->coef];
    const bool stream = streamed(t, i);
    const float *x = cvyi_tiles_address(t, &i->a);

    if (stream && t->words[i->dst.index])
        pivot_words(t, i, x, f);
    else if (cvyi_tiles_scalar(t, &i->a))
        t->vec->fill(dst, t->n, (*x - f.from) * f.scale + f.shift);
    else if (f.from == 0)
        (stream ? t->vec->affine_stream : t->vec->affine)(dst, x, t->n, f.scale, f.shift);
    else
        (stream ? t->vec->pivot_stream : t->vec->pivot)(dst, x, t->n, f.from, f.scale, f.shift);
}

/* (x - mean) / deviation, the mean in two parts: x - mean is exact where it matters. Then weight and bias. */
static void run_row(const tiles *t, const instr *i, float *dst)
{
    const cpu_vector_kernels *vec = t->vec;
    const float *stats = cvyi_unit_data(t->u, i->stats) + STATS_FIELDS * t->run, *x = cvyi_tiles_address(t, &i->a);
    const float mean = stats[STATS_MEAN], rstd = stats[STATS_RSTD];
    const float shift = (float)(-(double)stats[STATS_MEAN_LOW] * rstd);
    const bool stream = streamed(t, i);

    if (cvyi_tiles_scalar(t, &i->a)) {
        vec->fill(dst, t->n, *x);
        x = dst;
    }
    if (i->c.kind == ARG_NONE)
        (stream ? vec->pivot_stream : vec->pivot)(dst, x, t->n, mean, rstd, shift);
    else
        (stream ? vec->pivot_vec_stream : vec->pivot_vec)(dst, x, t->n, (const float[]){mean, rstd, shift},
                                                          cvyi_tiles_address(t, &i->b),
                                                          cvyi_tiles_address(t, &i->c));
}

/* The same times a weight per channel; one that is not finite in PyTorch's order: x a - mean a. */
static void run_row_weighted(const tiles *t, const instr *i, float *dst)
{
    const float *stats = cvyi_unit_data(t->u, i->stats) + STATS_FIELDS * t->run;
    const float mean = stats[STATS_MEAN], rstd = stats[STATS_RSTD], low = stats[STATS_MEAN_LOW] * rstd;
    const float *x = cvyi_tiles_address(t, &i->a), *w = cvyi_tiles_address(t, &i->b);
    const int64_t dx = !cvyi_tiles_scalar(t, &i->a), dw = !cvyi_tiles_scalar(t, &i->b);
    const bool finite = dx && dw && isfinite(rstd) && cvyi_all_finite(w, t->n);

    if (finite) {
        t->vec->pivot(dst, x, t->n, mean, rstd, -low);
        t->vec->binary[BINARY_VV][OP_mul](dst, dst, w, t->n, 1);
    }
    for (int64_t j = 0; j < t->n && !finite; j++) {
        const float a = rstd * w[j * dw], v = x[j * dx];
        dst[j] = isfinite(a) ? ((v - mean) * rstd - low) * w[j * dw] : v * a - mean * a;
    }
}

static void run_copy(const tiles *t, const instr *i, float *dst)
{
    if (cvyi_tiles_scalar(t, &i->a))
        t->vec->fill(dst, t->n, *cvyi_tiles_address(t, &i->a));
    else
        t->vec->copy(dst, cvyi_tiles_address(t, &i->a), t->n);
}

/* Words that the tile reads, as floats. */
static void load_words(const tiles *t)
{
    for (int o = 0; o < t->p->n_operands; o++) {
        const operand *r = &t->p->operands[o];
        if (r->written || !t->words[o]) continue;
        t->u->run->state->convert->widen[cvyi_unit_dtype(t->u, r->v)](
            t->reg[r->reg], t->words[o] + t->offset[o] + (r->scalar ? 0 : t->at), r->scalar ? 1 : t->n);
    }
}

/* Stores what was set aside: past the caches, as words, or element by element. */
static void store_aside(const tiles *t, int o)
{
    const operand *w = &t->p->operands[o];
    const cpu_convert_kernels *convert = t->u->run->state->convert;
    const int64_t at = t->offset[o] + t->at;

    if (t->base[o])
        t->vec->copy_stream(t->base[o] + at, t->reg[w->reg], t->n);
    else if (t->words[o])
        (w->stream ? convert->narrow_stream : convert->narrow)[cvyi_unit_dtype(t->u, w->v)](t->words[o] + at,
                                                                                            t->reg[w->reg], t->n);
    else
        cvyi_unit_scatter(t->u, w->v, at, t->n, t->reg[w->reg]);
}

void cvyi_tiles_run(tiles *t, int64_t at, int64_t n)
{
    static void (*const run[])(const tiles *, const instr *, float *) = {run_unary, run_binary,       run_affine,
                                                                         run_row,   run_row_weighted, run_copy};
    t->at = at;
    t->n = n;
    if (t->halves) load_words(t);
    for (int k = 0; k < t->p->n_instrs; k++) {
        const instr *i = &t->p->instrs[k];
        run[i->kind](t, i, tile_of(t, &i->dst));
    }
    for (int o = 0; o < t->p->n_operands; o++)
        if (t->aside[o]) store_aside(t, o);
}

/* Columns at a time: what a register holds; one instruction from memory to memory needs none. */
static int64_t tile_columns(const tiles *t)
{
    const instr *only = &t->p->instrs[0];
    const bool straight =
        t->p->n_instrs == 1 && only->dst.kind == ARG_MEM && !t->aside[only->dst.index] && !t->halves;
    return straight ? INT64_MAX : TILE;
}

/* Columns of the first tile: fewer, if words are streamed, so that the others begin at a line of the caches. */
static int64_t first_columns(const tiles *t, int64_t from)
{
    const int64_t columns = tile_columns(t);
    for (int o = 0; columns == TILE && o < t->p->n_operands; o++) {
        if (!t->words[o] || !t->p->operands[o].stream) continue;
        return TILE -
               (int64_t)((uintptr_t)(t->words[o] + t->offset[o] + from) / sizeof **t->words % CPU_LINE_WORDS);
    }
    return columns;
}

static void run_columns(tiles *t, int64_t from, int64_t to)
{
    for (int64_t i = from, columns = first_columns(t, from); i < to; columns = tile_columns(t)) {
        const int64_t n = cvyi_min64(columns, to - i);
        cvyi_tiles_run(t, i, n);
        i += n;
    }
}

/* Tiles first ... end - 1, counted through all runs. */
static void run_tiles(tiles *t, int64_t first, int64_t end)
{
    const int64_t inner = t->p->inner, pieces = cvyi_ceil_div(inner, TILE);
    for (int64_t i = first; i < end;) {
        const int64_t run = pieces == 1 ? i : i / pieces, at = i - run * pieces; /* rows are short: no division */
        const int64_t n = cvyi_min64(pieces - at, end - i);
        cvyi_tiles_seek(t, run);
        run_columns(t, at * TILE, cvyi_min64((at + n) * TILE, inner));
        i += n;
    }
}

/* Makes streamed stores visible to others. */
static void finish_streams(const tiles *t)
{
    if (t->streams) t->vec->stream_end();
}

void cvyi_program_run_band(const program *p, const cpu_unit *u, const prog_band *band, const prog_moments *m,
                           char *scratch)
{
    tiles t = begin(p, u, scratch);
    t.band = band;
    for (int64_t k = band->k0; k < band->k1; k++) {
        cvyi_tiles_seek(&t, k);
        run_columns(&t, band->i0, band->i1);
        if (m->y) m->of[k] = u->run->state->red->moments(m->y + k * p->inner + band->i0, band->i1 - band->i0);
    }
    finish_streams(&t);
}

int64_t cvyi_program_scratch(const program *p)
{
    return cvyi_floats((int64_t)p->n_regs * TILE + cvyi_sink_floats(p));
}

/* ---- parts ---- */

/* A program's items: tiles, or reductions; and how many make a part of some 32,000 elements. */
typedef struct items {
    int64_t count, per_part;
} items;

static items items_of(const program *p, const cpu_unit *u)
{
    items it = {samples_of(p, u), 1};
    int64_t elements;
    const int outer = p->sink == SINK_NONE ? p->n_outer : p->reduce_first;

    for (int d = 1; d < outer; d++) it.count *= p->outer[d];
    if (p->sink == SINK_NONE) {
        elements = cvyi_min64(p->inner, TILE);
        it.count *= cvyi_ceil_div(p->inner, TILE);
    } else if (p->horizontal) {
        elements = p->segment ? p->segment : p->reduced;
        it.count *= cvyi_segments(p);
    } else {
        elements = p->reduced * cvyi_min64(p->width, p->inner);
        it.count *= cvyi_ceil_div(p->inner, p->width);
    }
    it.per_part = cvyi_max64(1, 32768 / cvyi_max64(elements, 1));
    return it;
}

void cvyi_program_merge(const program *p, const cpu_unit *u, char *scratch)
{
    tiles t = begin(p, u, scratch);
    cvyi_sink_merge(&t, items_of(p, u).count / cvyi_segments(p));
    finish_streams(&t);
}

int64_t cvyi_program_parts(const program *p, const cpu_unit *u)
{
    const items it = items_of(p, u);
    return cvyi_ceil_div(it.count, it.per_part);
}

void cvyi_program_run(const program *p, const cpu_unit *u, int64_t part, char *scratch)
{
    tiles t = begin(p, u, scratch);
    const items it = items_of(p, u);
    const int64_t first = part * it.per_part, end = cvyi_min64(it.count, first + it.per_part);

    if (p->sink == SINK_NONE)
        run_tiles(&t, first, end);
    else
        for (int64_t i = first; i < end; i++) cvyi_sink_run(&t, i, scratch);
    finish_streams(&t);
}
