/* matmul_wide.c - steps of a matrix product of words: memory, options, launches, and its row of the table. */
#include <stdio.h>
#include <string.h>
#include "choice.h"
#include "cores.h"

/* ---- memory ---- */

/* The places of an operand's words and scales; unset if it is read in place. */
typedef struct words_map {
    int64_t words, unscale;
} words_map;

typedef struct memory_map {
    words_map x, other; /* prepared, or scratch */
    int64_t most_seen, parts;
} memory_map;

static int parts_of(const word_choice *f)
{
    return f->products == 3 ? 2 : 1;
}

static int64_t words_bytes(const word_choice *f, const word_operand *o)
{
    return o->words ? HALF_BYTES * parts_of(f) * o->lines * o->padded : 0;
}

static int64_t unscale_bytes(const word_choice *f, const word_operand *o)
{
    return f->scaled ? cvyi_floats(o->lines) : 0;
}

static int64_t stretches_of(const word_choice *f)
{
    return cvyi_ceil_div(f->geom.K, WORD_STRETCH);
}

static int64_t results_of(const word_choice *f)
{
    return f->geom.M * f->geom.batch * f->geom.N;
}

static int64_t take(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += cvyi_round_up(bytes, CVY_ALIGN);
    return at;
}

/* Memory from byte `start` on that passes use one after the other; its end. */
static int64_t lay_scratch(const word_choice *f, int64_t start, memory_map *at)
{
    const word_operand *both[] = {&f->x, &f->other};
    words_map *maps[] = {&at->x, &at->other};
    int64_t end = start;

    for (int i = 0; i < 2; i++) {
        if (both[i]->prepared) continue;
        maps[i]->words = take(&end, words_bytes(f, both[i]));
        maps[i]->unscale = take(&end, unscale_bytes(f, both[i]));
    }
    at->most_seen =
        take(&end, f->scaled ? cvyi_floats(stretches_of(f) * cvyi_max64(f->x.lines, f->other.lines)) : 0);
    at->parts = take(&end, f->tile.split > 1 ? cvyi_floats(f->tile.split * results_of(f)) : 0);
    return end;
}

static memory_map take_memory(maker *m, const word_choice *f)
{
    const node *n = &m->g->nodes[m->choice->form.core];
    const word_operand *both[] = {&f->x, &f->other};
    memory_map at;
    words_map *maps[] = {&at.x, &at.other};

    lay_scratch(f, m->state->scratch, &at);
    for (int i = 0; i < 2; i++) {
        if (!both[i]->prepared) continue;
        maps[i]->words = cvyi_make_packed_memory(m, n->arg[i], words_bytes(f, both[i]));
        maps[i]->unscale = cvyi_make_packed_memory(m, n->arg[i], unscale_bytes(f, both[i]));
    }
    return at;
}

/* ---- options ---- */

static void define_words(maker *m, const word_choice *f)
{
    const cvy_dtype dtype = m->g->values[m->g->nodes[m->choice->form.core].arg[0]].dtype;
    char word[DEFINE_BYTES];

    snprintf(word, sizeof word, "-DWORD=%s", cvyi_emit_type(f->scaled ? CVY_FLOAT16 : dtype));
    cvyi_make_define_text(m, word);
    cvyi_make_define(m, "SCALED", f->scaled);
    cvyi_make_define(m, "PRODUCTS", f->products);
}

static void define_sums(maker *m, const word_choice *f, int neighbours)
{
    cvyi_make_define(m, "ROWS_OF_BATCH", f->geom.batch > 1 ? f->geom.M : 0);
    cvyi_make_define(m, "X_BATCHED", f->x.batched);
    cvyi_make_define(m, "W_BATCHED", f->other.batched);
    cvyi_make_define(m, "OTHER_ACROSS", f->across);
#define DEFINE(NAME, field, meaning) cvyi_make_define(m, #NAME, f->tile.field);
    MATMUL_WIDE_TILE(DEFINE)
#undef DEFINE
    cvyi_make_define(m, "NEIGHBOURS", neighbours);
}

/* ---- words ---- */

/* An operand as matrix_words.cuh sees it; of several matrices dimension 0 is the batch. */
static void add_matrix(maker *m, const node *n, int argument)
{
    const shape *s = cvyi_shape_of(m->g, n->arg[argument]);
    const bool terms_last = argument == 0 || cvyi_info(n)->kind == KIND_LINEAR;
    const int line = s->rank - (terms_last ? 2 : 1), term = s->rank - (terms_last ? 1 : 2);
    const bool rows = argument == 0 && s->rank == 2;
    step_view *v = &m->views[cvyi_make_raw_view(m, n->arg[argument])];

    for (int d = 0; d < s->rank - 2; d++) v->dim[d] = d;
    v->dim[4] = line;
    v->dim[5] = term;
    cvyi_make_define(m, "LINES", rows ? 0 : s->dim[line]);
    for (int d = 1; d < 4; d++) {
        const char name[3] = {'B', (char)('0' + d), '\0'};
        cvyi_make_define(m, name, d < s->rank - 2 ? s->dim[d] : 1);
    }
    m->step.extent = rows || s->rank > 2 ? s->dim[0] : 1;
}

/* again: finds the scale of each line, and converts the lines again that need another one than the usual. */
static cvy_status make_words(maker *m, const word_choice *f, const memory_map *at, int argument, bool again)
{
    const node *n = &m->g->nodes[m->choice->form.core];
    const word_operand *o = argument ? &f->other : &f->x;
    const words_map *map = argument ? &at->other : &at->x;
    const bool prepared = m->prepared;
    cvy_status st;

    m->prepared = o->prepared;
    cvyi_make_start(m, again ? "matmul_wide_rescale.cu" : "matmul_wide_words.cu");
    define_words(m, f);
    cvyi_make_define(m, "TERMS", f->geom.K);
    cvyi_make_define_types(m, n->arg[argument], n->arg[argument]);
    cvyi_make_own_view(m, map->words, "words");
    add_matrix(m, n, argument);
    if (f->scaled) cvyi_make_own_view(m, at->most_seen, "largest values");
    if (again) {
        cvyi_make_own_view(m, map->unscale, "lines' unscale");
        cvyi_core_grid(m, cvyi_ceil_div(o->lines, BLOCK_THREADS / 32), 1, 1, BLOCK_THREADS);
    } else
        cvyi_core_grid(m, cvyi_ceil_div(o->lines, WORD_LINES), stretches_of(f), 1, BLOCK_THREADS);
    st = cvyi_make_end(m, "");
    m->prepared = prepared;
    return st;
}

static cvy_status make_operand(maker *m, const word_choice *f, const memory_map *at, int argument)
{
    const word_operand *o = argument ? &f->other : &f->x;
    cvy_status st = CVY_OK;

    if (o->words) TRY(make_words(m, f, at, argument, false));
    if (o->words && f->scaled) TRY(make_words(m, f, at, argument, true));
fail:
    return st;
}

/* ---- sums ---- */

/* Both operands as tensor copies see them. x, other: numbers of the views that they lie in. */
static cvy_status add_maps(maker *m, const word_choice *f, int x, int other)
{
    const matmul_geom *e = &f->geom;
    const uint64_t batch = (uint64_t)e->batch, parts = (uint64_t)parts_of(f), padded = (uint64_t)f->x.padded;
    tc_step *s = cvyi_tc_new_step(m);

    if (!s) return CVY_NO_MEMORY;
    s->product = s->words = s->tma = s->pair = true;
    s->dtype = f->scaled ? CVY_FLOAT16 : m->g->values[m->g->nodes[m->choice->form.core].arg[0]].dtype;
    s->x = x;
    s->dims[0] = padded;
    s->dims[1] = (uint64_t)e->M;
    s->dims[2] = parts * (f->x.batched ? batch : 1);
    s->box[0] = WORD_DEPTH;
    s->box[1] = (unsigned)f->tile.m;
    s->box[2] = 1;
    s->w = other;
    s->w_dims[0] = f->across ? (uint64_t)e->N : padded;
    s->w_dims[1] = (uint64_t)(f->across ? e->K : e->N);
    s->w_dims[2] = parts * (f->other.batched ? batch : 1);
    s->w_box[0] = WORD_DEPTH;
    s->w_box[1] = f->across ? WORD_DEPTH : (unsigned)f->tile.n;
    s->w_box[2] = 1;
    for (int d = 0; d < 2; d++) {
        s->strides[d] = d ? s->strides[0] * s->dims[1] : HALF_BYTES * s->dims[0];
        s->w_strides[d] = d ? s->w_strides[0] * s->w_dims[1] : HALF_BYTES * s->w_dims[0];
    }
    return CVY_OK;
}

/* Views as matmul_wide.cu numbers them, after number 0. */
static cvy_status add_operands(maker *m, const word_choice *f, const memory_map *at, int row, int column)
{
    const node *n = &m->g->nodes[m->choice->form.core];
    int x = 1, other = 2;

    cvyi_product_x(m, n, row, column);
    cvyi_product_other(m, n, row, column);
    if (f->scaled) {
        cvyi_make_own_view(m, at->x.unscale, "rows' unscale");
        cvyi_make_own_view(m, at->other.unscale, "columns' unscale");
    }
    if (f->x.words) x = cvyi_make_own_view(m, at->x.words, "words of rows");
    if (f->other.words) other = cvyi_make_own_view(m, at->other.words, "words of columns");
    return add_maps(m, f, x, other);
}

static cvy_status add_epilogue(maker *m, const word_choice *f, const space *out, int column)
{
    const int core = m->choice->form.core;

    if (f->geom.bias) cvyi_core_bias(m, core, out, m->g->nodes[core].arg[2], column);
    return cvyi_core_epilogue(m, core, out);
}

/* Neighbours that the epilogue takes at a time: 16 bytes of them. */
static int neighbours_of(maker *m, const word_choice *f)
{
    m->many = ACCESS_FLOATS;
    for (int i = m->pass->first; i < m->pass->first + m->pass->count; i++) {
        const int access = cvyi_make_access(m->g->values[m->g->nodes[i].out].dtype);
        if (f->geom.N % access == 0) m->many = most(m->many, access);
    }
    return f->geom.N % m->many ? 1 : m->many;
}

static cvy_status make_sums(maker *m, const word_choice *f, const memory_map *at)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];
    const word_tile *t = &f->tile;
    const int64_t stay = cvyi_min64(f->tiles, m->state->device->sms);
    int row, column;
    const space out = cvyi_product_space(m->g, n, &row, &column);
    char variant[32];
    cvy_status st;

    cvyi_make_start(m, "matmul_wide.cu");
    define_words(m, f);
    cvyi_product_sizes(m, &f->geom, row, column);
    define_sums(m, f, neighbours_of(m, f));
    cvyi_make_define_types(m, n->arg[0], n->arg[1]);
    cvyi_make_define_extents(m, 'Y', &out);
    if (t->split > 1)
        cvyi_core_parts_view(m, &out, at->parts);
    else
        cvyi_core_first_view(m, core, &out);
    TRY(add_operands(m, f, at, row, column));
    if (t->split == 1)
        TRY(add_epilogue(m, f, &out, column));
    else
        m->text = "// epilogue.cuh - of parts of sums: conv_wide_add.cu has it\n";
    m->step.extent = out.extent[0];
    m->step.launch.dynamic_shared = (unsigned)f->layout.shared_bytes;
    cvyi_core_grid(m, stay, 1, 1, WORD_THREADS);
    snprintf(variant, sizeof variant, "%dx%d", t->m, t->n);
    TRY(cvyi_make_end(m, variant));
fail:
    return st;
}

/* The sums, and once more for an `other` that lies transposed. */
static cvy_status make_layouts(maker *m, const word_choice *f, const memory_map *at)
{
    const place *at_other = &m->plan->places[m->g->nodes[m->choice->form.core].arg[1]];
    const bool turns = at_other->kind == PLACE_TENSOR && m->state->last[at_other->at] == m->pass_index;
    word_choice turned = *f;
    cvy_status st;

    turned.across = !f->across;
    m->layout = turns ? LAYOUT_PLAIN : LAYOUT_ANY;
    TRY(make_sums(m, f, at));
    m->layout = LAYOUT_LAST;
    if (turns) TRY(make_sums(m, &turned, at));
fail:
    m->layout = LAYOUT_ANY;
    return st;
}

static cvy_status make_matmul_wide(maker *m)
{
    const word_choice *f = &m->choice->word;
    const node *n = &m->g->nodes[m->choice->form.core];
    int row, column;
    const space out = cvyi_product_space(m->g, n, &row, &column);
    memory_map at;
    cvy_status st = CVY_OK;

    if (!results_of(f)) return CVY_OK;
    at = take_memory(m, f);
    TRY(make_operand(m, f, &at, 0));
    TRY(make_operand(m, f, &at, 1));
    TRY(make_layouts(m, f, &at));
    if (f->tile.split > 1)
        TRY(cvyi_core_add(m, &out,
                          &(core_parts){at.parts, f->tile.split, f->geom.bias ? n->arg[2] : CVY_NONE, column}));
fail:
    return st;
}

static cvy_status launch_matmul_wide(const cuda_device *d, const cuda_step *s, int code, step_arguments *a,
                                     bool fresh, CUstream stream)
{
    CUtensorMap x, w;
    void *list[] = {&x, &w, a};
    cvy_status st;

    (void)fresh;
    TRY(cvyi_tc_map(d, s->tc, a->view[s->tc->x].p, &x));
    TRY(cvyi_tc_map_w(d, s->tc, a->view[s->tc->w].p, &w));
    TRY(cvyi_cuda_launch(d, &s->kernel[code], &s->launch, stream, list));
fail:
    return st;
}

/* ---- its row of the table ---- */

static const char *refuse_matmul_wide(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = cvyi_core_refusal(p, c, 1u << KIND_LINEAR | 1u << KIND_MATMUL, "not a matrix product");

    (void)s;
    if (why) return why;
    c->word = cvyi_word_choice(p, c->form.core);
    return c->word.why;
}

static void tune_matmul_wide(const cvy_plan *p, pass *s, const cuda_choice *c)
{
    const word_choice *f = &c->word;
    size_t length;

    s->way = WAY_STREAM;
    s->seconds = cvyi_pass_seconds(p, s, f->launches, f->seconds);
    snprintf(s->note, sizeof s->note, "%s, words, %d product%s, tile %d x %d",
             cvyi_info(&p->graph->nodes[c->form.core])->name, f->products, f->products == 1 ? "" : "s", f->tile.m,
             f->tile.n);
    length = strlen(s->note);
    if (f->tile.turns) snprintf(s->note + length, sizeof s->note - length, " in turns");
    length = strlen(s->note);
    if (f->tile.split > 1) snprintf(s->note + length, sizeof s->note - length, ", sums in %d parts", f->tile.split);
}

static bool same_matmul_wide(const cuda_choice *a, const cuda_choice *b)
{
    const word_tile *t = &a->word.tile, *u = &b->word.tile;
    return t->m == u->m && t->n == u->n && t->turns == u->turns && t->split == u->split;
}

static int64_t scratch_of_matmul_wide(const cuda_choice *c)
{
    memory_map at;
    return lay_scratch(&c->word, 0, &at);
}

/* Operands that become words may have any strides. */
static bool any_strides(const cuda_choice *c, int argument)
{
    return argument == 0 ? c->word.x.words : argument == 1 && c->word.other.words;
}

/* The second operand, if it is a tensor of run() that tensor copies read where it lies, transposed or not. */
static void lying(const cvy_plan *p, const cuda_choice *c, int *x, int *y)
{
    const word_choice *f = &c->word;
    const int v = p->graph->nodes[c->form.core].arg[1];
    const place *at = &p->places[v];
    const bool could = !f->x.words && f->geom.N % 8 == 0 && at->kind == PLACE_TENSOR;

    *x = could && cvyi_same_shape(cvyi_shape_of(p->graph, v), cvyi_shape_of(p->graph, p->tensor_value[at->at]))
             ? v
             : CVY_NONE;
    *y = CVY_NONE;
}

const kernel_row cvyi_kernel_matmul_wide = {.name = "matmul_wide",
                                            .refuse = refuse_matmul_wide,
                                            .tune = tune_matmul_wide,
                                            .make = make_matmul_wide,
                                            .launch = launch_matmul_wide,
                                            .same = same_matmul_wide,
                                            .scratch = scratch_of_matmul_wide,
                                            .dice = 8,
                                            .tensor_cores = true,
                                            .dense = true,
                                            .any_strides = any_strides,
                                            .lying = lying,
                                            .transposed = true};
