/* program_sink.c - a reduction or softmax at the end of a program. See program.h.
 *
 * Horizontal: a row is evaluated, or read in place, and reduced; a long one by segments, which are merged in their
 * order by a step of its own. Vertical: columns of many rows are reduced to one
 * row; rows come in blocks that stay in the second-level cache, so memory does not depend on their number. */
#include <math.h>
#include "program_tiles.h"

/* Room after the registers. Vertical: a block of rows [BLOCK_ROWS][width], VECTORS vectors, then one vector per
 * level of the sum of blocks. */
enum { BLOCK_ROWS = 64, VECTORS = 4 };

static int64_t rows_floats(const program *p)
{
    if (p->sink == SINK_NONE) return 0;
    if (p->segment) return p->segment;
    return cvyi_round_up(p->horizontal ? p->reduced : cvyi_min64(p->reduced, BLOCK_ROWS) * p->width, 16);
}

static int sum_levels(const program *p)
{
    int levels = 1;
    for (int64_t blocks = cvyi_ceil_div(p->reduced, BLOCK_ROWS); blocks > 0; blocks /= 2) levels++;
    return p->sink == SINK_REDUCE && !p->horizontal ? levels : 0;
}

int64_t cvyi_sink_floats(const program *p)
{
    return p->sink == SINK_NONE ? 0 : (VECTORS + sum_levels(p)) * TILE + rows_floats(p);
}

/* Columns [from, from + n) of all rows of one reduction, taken block by block. */
typedef struct columns {
    tiles *t;
    float *rows, *m, *s, *old, *out; /* room for a block of rows; maxima, sums of exp(row - m) */
    int64_t pre, from, n;
    const float *row[BLOCK_ROWS]; /* the block: in `rows`, or where they lie in memory */
} columns;

/* The address of the sink's results: element `at` of the unit's part, or a buffer that is scattered later. */
static void put(const tiles *t, int64_t at, int64_t n, const float *from)
{
    if (t->sink)
        t->vec->copy(t->sink + at, from, n);
    else
        cvyi_unit_scatter(t->u, t->p->sink_v, at, n, from);
}

/* Does the sink read a row of words, one after the other? Then the register that they are widened to; else -1. */
static int held_by(const tiles *t, const prog_arg *a)
{
    const bool words = a->kind == ARG_MEM && t->words[a->index] && !cvyi_tiles_scalar(t, a);
    return words ? t->p->operands[a->index].reg : -1;
}

/* Are the sink's rows already floats in memory, without an instruction? */
static bool rows_in_memory(const tiles *t)
{
    const prog_arg *a = &t->p->sink_arg;
    return !t->p->n_instrs && !cvyi_tiles_scalar(t, a) && held_by(t, a) < 0;
}

/* Evaluates the program for one run into `row`. */
static void fill_row(tiles *t, int64_t run, int64_t from, int64_t n, float *row)
{
    const prog_arg *a = &t->p->sink_arg;
    const int held = a->kind == ARG_REG ? a->index : held_by(t, a); /* the register that the row can be */
    cvyi_tiles_seek(t, run);
    for (int64_t i = 0; i < n; i += TILE) {
        const int64_t count = cvyi_min64(TILE, n - i);
        if (held >= 0) t->reg[held] = row + i;
        cvyi_tiles_run(t, from + i, count);
        if (held >= 0) continue;
        if (cvyi_tiles_scalar(t, a))
            t->vec->fill(row + i, count, *cvyi_tiles_address(t, a));
        else
            t->vec->copy(row + i, cvyi_tiles_address(t, a), count);
    }
}

/* Rows that no instruction makes are read in place. */
static void find_block(columns *c, int64_t first, int64_t count)
{
    tiles *t = c->t;
    const program *p = t->p;
    const operand *o = &p->operands[p->sink_arg.index];
    const bool regular = p->reduce_end == p->reduce_first + 1;
    t->at = c->from;
    for (int64_t r = 0; r < count; r++) {
        if (r && regular) {
            c->row[r] = c->row[r - 1] + o->stride[p->reduce_first];
        } else {
            cvyi_tiles_seek(t, c->pre * p->reduced + first + r);
            c->row[r] = cvyi_tiles_address(t, &p->sink_arg);
        }
    }
}

/* Rows first ... first + count - 1; returns count. */
static int64_t take_block(columns *c, int64_t first)
{
    const program *p = c->t->p;
    const int64_t count = cvyi_min64(BLOCK_ROWS, p->reduced - first);
    if (rows_in_memory(c->t)) {
        find_block(c, first, count);
        return count;
    }
    for (int64_t r = 0; r < count; r++) {
        fill_row(c->t, c->pre * p->reduced + first + r, c->from, c->n, c->rows + r * p->width);
        c->row[r] = c->rows + r * p->width;
    }
    return count;
}

/* out = the extreme of all rows. */
static void extreme_rows(columns *c, void (*pick)(float *, const float *, int64_t), float *out)
{
    const program *p = c->t->p;
    for (int64_t first = 0; first < p->reduced; first += BLOCK_ROWS) {
        const int64_t count = take_block(c, first);
        if (!first) c->t->vec->copy(out, c->row[0], c->n);
        for (int64_t r = !first; r < count; r++) pick(out, c->row[r], c->n);
    }
}

/* m, s of all rows. A block with a larger maximum scales what the blocks before it have summed. */
static void max_sum_rows(columns *c)
{
    const program *p = c->t->p;
    const cpu_vector_kernels *vec = c->t->vec;
    for (int64_t first = 0; first < p->reduced; first += BLOCK_ROWS) {
        const int64_t count = take_block(c, first);
        if (first) vec->copy(c->old, c->m, c->n);
        if (!first) vec->copy(c->m, c->row[0], c->n);
        for (int64_t r = !first; r < count; r++) vec->reduce->max_to(c->m, c->row[r], c->n);
        if (first)
            vec->reduce->rescale(c->s, c->old, c->m, c->n);
        else
            vec->fill(c->s, c->n, 0);
        for (int64_t r = 0; r < count; r++) vec->reduce->add_exp_to(c->s, c->row[r], c->m, c->n);
    }
}

/* The block's rows summed pairwise, so that the error grows with the logarithm of their number; into `out`. */
static void sum_block(columns *c, int64_t count, float *out)
{
    const int64_t width = c->t->p->width;
    cpu_binary_fn *add = c->t->vec->binary[BINARY_VV][OP_add];
    for (int64_t r = 0; r + 1 < count; r += 2) add(c->rows + r * width, c->row[r], c->row[r + 1], c->n, 1);
    if (count % 2) c->t->vec->copy(c->rows + (count - 1) * width, c->row[count - 1], c->n);
    for (int64_t half = 2; half < count; half *= 2)
        for (int64_t r = 0; r + half < count; r += 2 * half)
            c->t->vec->reduce->add_to(c->rows + r * width, c->rows + (r + half) * width, c->n);
    c->t->vec->copy(out, c->rows, c->n);
}

/* The sum of all rows, pairwise: blocks are halves, quarters ... of the same tree; it is left in *out. */
static void sum_blocks(columns *c, float *out)
{
    const program *p = c->t->p;
    const cpu_reduce_kernels *red = c->t->vec->reduce;
    float *level = c->rows + rows_floats(p) + VECTORS * TILE;
    int top = 0;

    for (int64_t first = 0, done = 1; first < p->reduced; first += BLOCK_ROWS, done++) {
        sum_block(c, take_block(c, first), level + top++ * TILE);
        for (int64_t even = done; even % 2 == 0; even /= 2, top--)
            red->add_to(level + (top - 2) * TILE, level + (top - 1) * TILE, c->n);
    }
    for (; top > 1; top--) red->add_to(level + (top - 2) * TILE, level + (top - 1) * TILE, c->n);
    c->t->vec->copy(out, level, c->n);
}

/* Columns of rows to one row, into `out`. */
static void reduce_rows(columns *c)
{
    const program *p = c->t->p;
    const cpu_vector_kernels *vec = c->t->vec;
    const float count = (float)p->reduced;

    if (p->sink_op == OP_logsumexp) {
        max_sum_rows(c);
        vec->reduce->finish_logsumexp(c->out, c->m, c->s, c->n);
    } else if (p->sink_op == OP_max || p->sink_op == OP_min) {
        extreme_rows(c, p->sink_op == OP_max ? vec->reduce->max_to : vec->reduce->min_to, c->out);
    } else {
        sum_blocks(c, c->out);
        if (p->sink_op == OP_mean) vec->binary[BINARY_VS][OP_div](c->out, c->out, &count, c->n, 1);
    }
    put(c->t, c->pre * p->inner + c->from, c->n, c->out);
}

/* One block's part of the result. Exponentials that are still in `rows` (`kept`) are not computed again. */
static void softmax_block(columns *c, int64_t first, int64_t count, bool kept)
{
    const tiles *t = c->t;
    const program *p = t->p;
    const cpu_vector_kernels *vec = t->vec;
    cpu_binary_fn *const *last = (t->sink_streams ? vec->binary_stream : vec->binary)[BINARY_VV];
    const bool logs = p->sink_op == OP_log_softmax;

    for (int64_t r = 0; r < count; r++) {
        const int64_t at = (c->pre * p->reduced + first + r) * p->inner + c->from;
        float *row = c->rows + r * p->width, *out = t->sink ? t->sink + at : row;
        if (logs)
            vec->binary[BINARY_VV][OP_sub](row, c->row[r], c->m, c->n, 1);
        else if (!kept)
            vec->reduce->exp_sum_to(row, c->row[r], c->m, c->old, c->n);
        last[logs ? OP_sub : OP_mul](out, row, c->s, c->n, 1);
        if (!t->sink) cvyi_unit_scatter(t->u, p->sink_v, at, c->n, row);
    }
}

/* One block holds all rows, or they are evaluated twice. */
static void softmax_rows(columns *c)
{
    const program *p = c->t->p;
    const cpu_vector_kernels *vec = c->t->vec;
    const bool whole = p->reduced <= BLOCK_ROWS, logs = p->sink_op == OP_log_softmax;
    const float one = 1;

    if (whole && !logs) {
        extreme_rows(c, vec->reduce->max_to, c->m);
        vec->fill(c->s, c->n, 0);
        for (int64_t r = 0; r < p->reduced; r++)
            vec->reduce->exp_sum_to(c->rows + r * p->width, c->row[r], c->m, c->s, c->n);
    } else {
        max_sum_rows(c);
        vec->fill(c->old, c->n, 0);
    }
    if (logs)
        vec->unary[OP_log](c->s, c->s, c->n, (float[2]){0, 0});
    else
        vec->binary[BINARY_SV][OP_div](c->s, &one, c->s, c->n, 1);
    for (int64_t first = 0; first < p->reduced; first += BLOCK_ROWS)
        softmax_block(c, first, whole ? p->reduced : take_block(c, first), whole);
}

static void run_vertical(tiles *t, int64_t item, float *rows)
{
    const program *p = t->p;
    const int64_t pieces = cvyi_ceil_div(p->inner, p->width);
    float *m = rows + rows_floats(p);
    columns c = {.t = t, .rows = rows, .m = m, .s = m + TILE, .old = m + 2 * TILE, .out = m + 3 * TILE};

    c.pre = item / pieces;
    c.from = item % pieces * p->width;
    c.n = cvyi_min64(p->width, p->inner - c.from);
    (p->sink == SINK_SOFTMAX ? softmax_rows : reduce_rows)(&c);
}

/* What a row, or a segment of one, comes to: its sum, its extreme, or both numbers of a sum of exponentials. */
static cpu_max_sum_exp reduce(const cpu_reduce_kernels *red, op_id op, const float *row, int64_t n)
{
    switch (op) {
    case OP_max:
        return (cpu_max_sum_exp){red->max(row, n), 0};
    case OP_min:
        return (cpu_max_sum_exp){red->min(row, n), 0};
    case OP_logsumexp:
        return red->max_sum_exp(row, n);
    default:
        return (cpu_max_sum_exp){0, red->sum(row, n)};
    }
}

/* The largest or the smallest, NaN if there is one. */
static float extreme_of(const cpu_max_sum_exp *part, int64_t segments, bool least)
{
    float top = part[0].max;
    for (int64_t i = 1; i < segments && !isnan(top); i++)
        if (isnan(part[i].max) || (least ? part[i].max < top : part[i].max > top)) top = part[i].max;
    return top;
}

/* An infinite maximum is the result itself; sums of segments that hold only -inf are NaN, and count for nothing. */
static float log_sum_of(const cpu_max_sum_exp *part, int64_t segments)
{
    const float top = extreme_of(part, segments, false);
    double sum = 0;
    if (isinf(top)) return top;
    for (int64_t i = 0; i < segments; i++)
        if (!isinf(part[i].max)) sum += part[i].sum * exp((double)part[i].max - top);
    return (float)(top + log(sum));
}

/* Of a row with so many elements, from its segments in their order. */
static float merge(op_id op, const cpu_max_sum_exp *part, int64_t segments, int64_t n)
{
    double sum = 0;
    if (op == OP_max || op == OP_min) return extreme_of(part, segments, op == OP_min);
    if (op == OP_logsumexp) return log_sum_of(part, segments);
    for (int64_t i = 0; i < segments; i++) sum += part[i].sum;
    return (float)(op == OP_mean ? sum / (double)n : sum);
}

float cvyi_reduce_row(const cpu_reduce_kernels *red, op_id op, const float *row, int64_t n)
{
    const cpu_max_sum_exp whole = reduce(red, op, row, n);
    return merge(op, &whole, 1, n);
}

/* The place in `room` with the same offset in a page as the row's source. A load at the same page offset as a store
 * that is still in flight waits for it: with results just ahead of the source, exponentials take a third longer. */
static float *beside(const float *src, float *room)
{
    const uintptr_t page = 4096;
    return room + ((uintptr_t)src - (uintptr_t)room) % page / sizeof *room;
}

/* Exponentials are computed once and kept in `row`, in cache; src may be the row itself. */
static void softmax_row(const tiles *t, const float *src, float *row, int64_t at)
{
    const cpu_vector_kernels *vec = t->vec;
    const int64_t n = t->p->reduced;
    const float max = vec->reduce->max(src, n);
    float *out = t->sink ? t->sink + at : row;

    if (t->p->sink_op == OP_log_softmax) {
        const float shift = -(float)log(vec->reduce->sum_exp(src, n, max));
        (t->sink_streams ? vec->pivot_stream : vec->pivot)(out, src, n, max, 1, shift);
    } else {
        const float r = (float)(1 / vec->reduce->exp_sum(row, src, n, max));
        (t->sink_streams ? vec->binary_stream : vec->binary)[BINARY_VS][OP_mul](out, row, &r, n, 1);
    }
    if (!t->sink) cvyi_unit_scatter(t->u, t->p->sink_v, at, n, row);
}

/* Elements [from, from + n) of row `pre`: in place, or evaluated into `room`. */
static const float *evaluate(tiles *t, int64_t pre, int64_t from, int64_t n, float *room)
{
    const program *p = t->p;
    const int64_t runs = p->reduced / p->inner;

    if (rows_in_memory(t) && runs == 1) {
        cvyi_tiles_seek(t, pre);
        t->at = from;
        return cvyi_tiles_address(t, &p->sink_arg);
    }
    for (int64_t i = 0, count; i < n; i += count) {
        const int64_t at = (from + i) % p->inner;
        count = cvyi_min64(n - i, p->inner - at);
        fill_row(t, pre * runs + (from + i) / p->inner, at, count, room + i);
    }
    return room;
}

static void run_horizontal(tiles *t, int64_t pre, float *room)
{
    const program *p = t->p;
    const float *row = evaluate(t, pre, 0, p->reduced, room);
    float out;

    if (p->sink == SINK_SOFTMAX) {
        softmax_row(t, row, beside(row, room), pre * p->reduced);
        return;
    }
    out = cvyi_reduce_row(t->vec->reduce, p->sink_op, row, p->reduced);
    put(t, pre, 1, &out);
}

int64_t cvyi_program_partials(const program *p)
{
    int64_t rows = 1;
    for (int d = 0; d < p->reduce_first; d++) rows *= p->outer[d];
    return rows * cvyi_segments(p) * (int64_t)sizeof(cpu_max_sum_exp);
}

static cpu_max_sum_exp *partials_of(const tiles *t)
{
    return (cpu_max_sum_exp *)(void *)(t->u->slices + t->p->partials);
}

static void run_segment(tiles *t, int64_t item, float *room)
{
    const program *p = t->p;
    const int64_t segments = cvyi_segments(p), from = item % segments * p->segment;
    const int64_t n = cvyi_min64(p->segment, p->reduced - from);
    const float *row = evaluate(t, item / segments, from, n, room);

    partials_of(t)[item] = reduce(t->vec->reduce, p->sink_op, row, n);
}

void cvyi_sink_merge(tiles *t, int64_t rows)
{
    const int64_t segments = cvyi_segments(t->p);
    for (int64_t i = 0; i < rows; i++) {
        const float out = merge(t->p->sink_op, partials_of(t) + i * segments, segments, t->p->reduced);
        put(t, i, 1, &out);
    }
}

void cvyi_sink_run(tiles *t, int64_t item, char *scratch)
{
    float *rows = (float *)(void *)scratch + (int64_t)t->p->n_regs * TILE;
    (!t->p->horizontal ? run_vertical : t->p->segment ? run_segment : run_horizontal)(t, item, rows);
}
