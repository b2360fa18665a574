/* conv_wide.c - steps of a wide convolution: memory, options, launches, and its row of the table. */
#include <stdio.h>
#include <string.h>
#include "choice.h"
#include "cores.h"

/* Where the pass's own memory lies. */
typedef struct memory_map {
    int64_t packed, w_unscale;                  /* prepared */
    int64_t words, most_seen, x_unscale, parts; /* scratch */
} memory_map;

/* ---- sizes ---- */

static int64_t slices_of(const wide_choice *f)
{
    return cvyi_ceil_div(f->geom.C, WIDE_CHANNELS);
}

static int parts_of(const wide_choice *f)
{
    return f->products == 3 ? 2 : 1;
}

/* The number of lists of x: one for each phase. */
static int lists_of(const wide_choice *f)
{
    return f->transposed ? 1 : f->phases;
}

static int64_t stretches_of(const wide_choice *f)
{
    return lists_of(f) * cvyi_ceil_div(f->sample, WIDE_STRETCH);
}

static int64_t results_of(const wide_choice *f)
{
    const conv_geom *e = &f->geom;
    return e->N * e->K * e->out[0] * e->out[1] * e->out[2];
}

/* Memory from byte `start` on that passes use one after the other; its end. */
static int64_t lay_scratch(const wide_choice *f, int64_t start, memory_map *at)
{
    const conv_geom *e = &f->geom;
    const int64_t bytes[] = {
        HALF_BYTES * parts_of(f) * lists_of(f) * e->N * f->sample * slices_of(f) * WIDE_CHANNELS,
        f->scaled ? cvyi_floats(e->N * slices_of(f) * stretches_of(f)) : 0, f->scaled ? cvyi_floats(e->N) : 0,
        f->tile.split > 1 ? cvyi_floats(f->tile.split * results_of(f)) : 0};
    int64_t *places[] = {&at->words, &at->most_seen, &at->x_unscale, &at->parts}, end = start;

    for (int i = 0; i < COUNT_OF(bytes); i++) {
        *places[i] = end;
        end += cvyi_round_up(bytes[i], CVY_ALIGN);
    }
    return end;
}

static memory_map take_memory(maker *m, const wide_choice *f)
{
    const int weight = m->g->nodes[m->choice->form.core].arg[1];
    const conv_geom *e = &f->geom;
    const int64_t taps = e->kernel[0] * e->kernel[1] * e->kernel[2], k_pad = cvyi_round_up(e->K, WIDE_PADDED_K);
    const int64_t row = HALF_BYTES * WIDE_CHANNELS * parts_of(f);
    memory_map at;

    lay_scratch(f, m->state->scratch, &at);
    at.packed = cvyi_make_packed_memory(m, weight, slices_of(f) * taps * k_pad * row);
    at.w_unscale = cvyi_make_packed_memory(m, weight, cvyi_floats(k_pad));
    return at;
}

/* ---- options ---- */

static void define_words(maker *m, const wide_choice *f)
{
    char word[DEFINE_BYTES];

    snprintf(word, sizeof word, "-DWORD=%s", cvyi_emit_type(f->word));
    cvyi_make_define_text(m, word);
    cvyi_make_define(m, "SCALED", f->scaled);
}

static void define_filter(maker *m, const wide_choice *f)
{
    define_words(m, f);
    cvyi_make_define(m, "C_IN", f->geom.C);
    cvyi_make_define(m, "K_OUT", f->geom.K);
    cvyi_make_define(m, "TRANSPOSED", f->transposed);
    cvyi_core_define_window(m, f->geom.kernel, f->geom.stride, f->geom.pad, f->geom.dil);
    cvyi_make_define(m, "PRODUCTS", f->products);
}

static void define_list(maker *m, const wide_choice *f)
{
    cvyi_core_define_in(m, f->geom.in);
    cvyi_make_define(m, "FLAT_ROW", f->row);
    cvyi_make_define(m, "FLAT_PLANE", f->plane);
    cvyi_make_define(m, "FLAT_SAMPLE", f->sample);
}

static void define_sums(maker *m, const wide_choice *f)
{
    cvyi_core_define_out(m, f->geom.out);
#define DEFINE(NAME, field, meaning) cvyi_make_define(m, #NAME, f->tile.field);
    CONV_WIDE_TILE(DEFINE)
#undef DEFINE
}

/* The dimensions of a tensor map of x itself; the gaps before its rows. */
static void define_placed(maker *m, const wide_choice *f)
{
    cvyi_make_define(m, "PLACED", f->geom.spatial == 3 ? 5 : 4);
    cvyi_make_define3(m, (const char *const[3]){"GAP_D", "GAP_H", "GAP_W"}, f->gap);
}

/* ---- steps ---- */

/* The kernels take them as they lie. */
static void add_weights(maker *m, const wide_choice *f)
{
    const int weight = m->g->nodes[m->choice->form.core].arg[1];
    m->views[cvyi_make_weight_view(m, weight, &f->geom, f->transposed)].any = true;
}

static cvy_status make_pack(maker *m, const wide_choice *f, const memory_map *at)
{
    const int weight = m->g->nodes[m->choice->form.core].arg[1];
    const bool prepared = m->prepared;
    cvy_status st;

    m->prepared = m->plan->prepared[weight];
    cvyi_make_start(m, "conv_wide_pack.cu");
    define_filter(m, f);
    cvyi_make_define_types(m, weight, weight);
    cvyi_make_own_view(m, at->packed, "packed weights");
    cvyi_make_own_view(m, at->w_unscale, "their unscale");
    add_weights(m, f);
    m->step.extent = 1;
    cvyi_core_grid(m, cvyi_round_up(f->geom.K, WIDE_PADDED_K), 1, 1, PACK_THREADS);
    st = cvyi_make_end(m, "");
    m->prepared = prepared;
    return st;
}

/* The operators before the convolution, over its x. */
static cvy_status add_prologue(maker *m, const wide_choice *f)
{
    const int core = m->choice->form.core;
    const space in = cvyi_space_planes(cvyi_shape_of(m->g, m->g->nodes[core].arg[0]), f->geom.spatial);

    m->fast = true;
    return cvyi_core_prologue(m, core, &in);
}

/* The value that is converted to words: the first that the prologue reads. */
static int source_of(const maker *m)
{
    return m->g->nodes[m->pass->first].arg[0];
}

/* Neighbours are channels of a pixel. */
static void take_channels(maker *m)
{
    m->many = LAST_CHANNELS;
    m->of_pixel = true;
}

/* Converts x to words with the usual scale, finds the scale of each sample, and converts those again that need
 * another one. */
static cvy_status make_words(maker *m, const wide_choice *f, const memory_map *at, bool again)
{
    const int64_t N = f->geom.N, tiles = slices_of(f) * stretches_of(f);
    const int64_t each = cvyi_min64(tiles, cvyi_ceil_div(2 * (int64_t)m->state->device->sms, N));
    cvy_status st;

    cvyi_make_start(m, again ? "conv_wide_rescale.cu" : "conv_wide_words.cu");
    define_filter(m, f);
    define_list(m, f);
    if (cvyi_lies_last(m, source_of(m))) {
        cvyi_make_define(m, "X_LAST", 1);
        take_channels(m);
    }
    cvyi_make_own_view(m, at->words, "words");
    if (f->scaled) cvyi_make_own_view(m, at->most_seen, "largest values");
    if (again) cvyi_make_own_view(m, at->x_unscale, "samples' unscale");
    TRY(add_prologue(m, f));
    m->step.extent = N;
    if (again)
        cvyi_core_grid(m, N * each, 1, 1, BLOCK_THREADS);
    else
        cvyi_core_grid(m, N * stretches_of(f), slices_of(f), 1, BLOCK_THREADS);
    TRY(cvyi_make_end(m, m->choice->form.fed ? "fed" : ""));
fail:
    return st;
}

/* x itself instead of words: copies walk along its rows, and through the gaps, where they find zeros. */
static void map_pixels(tc_step *s, const wide_choice *f)
{
    const conv_geom *e = &f->geom;

    s->pixels = true;
    s->rank = e->spatial == 3 ? 5 : 4;
    s->dims[0] = (uint64_t)e->C;
    s->strides[0] = HALF_BYTES * s->dims[0];
    for (int d = 1; d < s->rank - 1; d++) {
        const int axis = 3 - d; /* W, H, D */
        s->dims[d] = (uint64_t)e->in[axis];
        s->strides[d] = s->strides[d - 1] * s->dims[d];
        s->step[d - 1] = f->axes[axis].transposed ? 1 : f->axes[axis].stride;
        s->lower[d - 1] = -(int)f->gap[axis] * s->step[d - 1];
        s->upper[d - 1] = (int)(cvyi_round_up(e->in[axis], s->step[d - 1]) - e->in[axis]);
    }
    s->dims[s->rank - 1] = (uint64_t)e->N;
}

/* Words as tensor copies see them. */
static void map_words(tc_step *s, const wide_choice *f)
{
    s->dims[0] = (uint64_t)(slices_of(f) * WIDE_CHANNELS);
    s->dims[1] = (uint64_t)(f->geom.N * f->sample);
    s->dims[2] = (uint64_t)(parts_of(f) * lists_of(f));
    s->strides[0] = HALF_BYTES * s->dims[0];
    s->strides[1] = s->strides[0] * s->dims[1];
}

static cvy_status add_map(maker *m, const wide_choice *f, int x, bool placed)
{
    tc_step *s = cvyi_tc_new_step(m);

    if (!s) return CVY_NO_MEMORY;
    s->product = s->words = s->tma = s->any_strides = true;
    s->dtype = f->word;
    s->x = x;
    s->box[0] = WIDE_CHANNELS;
    s->box[1] = (unsigned)f->layout.copy;
    s->box[2] = 1;
    (placed ? map_pixels : map_words)(s, f);
    return CVY_OK;
}

/* Are x's own elements the words, where copies find them? A tensor map's box and steps have limits. */
static bool is_placed(const maker *m, const wide_choice *f)
{
    const int limit = f->geom.spatial == 3 ? 15 : 127, most_steps = 8;
    bool fits = !f->scaled && !m->choice->form.fed && cvyi_lies_last(m, source_of(m));

    for (int a = 0; a < 3; a++) {
        const int step = f->transposed ? 1 : f->axes[a].stride;
        fits = fits && step <= most_steps && f->gap[a] * step <= limit;
    }
    return fits;
}

/* Views as conv_wide.cu numbers them, after number 0; the number of the words' or x's, which only the map has. */
static int add_operands(maker *m, const wide_choice *f, const memory_map *at, bool placed)
{
    add_weights(m, f);
    cvyi_make_own_view(m, at->packed, "packed weights");
    if (f->scaled) {
        cvyi_make_own_view(m, at->w_unscale, "their unscale");
        cvyi_make_own_view(m, at->x_unscale, "samples' unscale");
    }
    if (placed) {
        const int x = cvyi_make_raw_view(m, source_of(m));
        m->views[x].any = true;
        return x;
    }
    return cvyi_make_own_view(m, at->words, "words");
}

static cvy_status add_epilogue(maker *m, const space *out)
{
    const int core = m->choice->form.core;
    const node *n = &m->g->nodes[core];

    if (n->n_args > 2 && n->arg[2] != CVY_NONE) cvyi_core_bias(m, core, out, n->arg[2], 1);
    return cvyi_core_epilogue(m, core, out);
}

static cvy_status make_sums(maker *m, const wide_choice *f, const memory_map *at, const space *out, bool placed)
{
    const node *n = &m->g->nodes[m->choice->form.core];
    const wide_layout *l = &f->layout;
    const int split = f->tile.split;
    char variant[32];
    cvy_status st;

    cvyi_make_start(m, "conv_wide.cu");
    define_filter(m, f);
    define_list(m, f);
    define_sums(m, f);
    cvyi_make_define_types(m, n->arg[0], n->arg[1]);
    if (placed) define_placed(m, f);
    if (cvyi_lies_last(m, cvyi_core_first_value(m, m->choice->form.core))) {
        cvyi_make_define(m, "Y_LAST", 1);
        take_channels(m);
        m->lone = true;
    }
    if (split > 1)
        cvyi_core_parts_view(m, out, at->parts);
    else
        cvyi_core_first_view(m, m->choice->form.core, out);
    TRY(add_map(m, f, add_operands(m, f, at, placed), placed));
    TRY(add_prologue(m, f));
    if (split == 1) TRY(add_epilogue(m, out));
    m->step.extent = f->geom.N;
    m->step.launch.dynamic_shared = (unsigned)l->shared_bytes;
    cvyi_core_grid(m, f->tiles, split, 1, (unsigned)l->threads);
    snprintf(variant, sizeof variant, "%dx%d", l->bm, l->bn);
    TRY(cvyi_make_end(m, variant));
fail:
    return st;
}

/* All but the packing of weights. */
static cvy_status make_layout(maker *m, const void *memory)
{
    const memory_map *at = memory;
    const wide_choice *f = &m->choice->wide;
    const node *n = &m->g->nodes[m->choice->form.core];
    const space out = cvyi_space_planes(cvyi_shape_of(m->g, n->out), f->geom.spatial);
    const int bias = n->n_args > 2 ? n->arg[2] : CVY_NONE;
    const bool placed = is_placed(m, f);
    cvy_status st;

    if (!placed) TRY(make_words(m, f, at, false));
    if (f->scaled) TRY(make_words(m, f, at, true));
    TRY(make_sums(m, f, at, &out, placed));
    if (f->tile.split > 1) TRY(cvyi_core_add(m, &out, &(core_parts){at->parts, f->tile.split, bias, 1}));
fail:
    return st;
}

static cvy_status make_conv_wide(maker *m)
{
    const wide_choice *f = &m->choice->wide;
    memory_map at;
    cvy_status st;

    if (!results_of(f)) return CVY_OK;
    at = take_memory(m, f);
    TRY(make_pack(m, f, &at));
    TRY(cvyi_make_both(m, make_layout, &at));
fail:
    return st;
}

/* ---- its row of the table ---- */

static const char *refuse_conv_wide(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    const char *why = cvyi_fed_refusal(p, c, 1u << KIND_CONV | 1u << KIND_CONVT, "not a convolution");

    (void)s;
    if (why) return why;
    c->wide = cvyi_wide_choice(p, c->form.core);
    return c->wide.why;
}

static void tune_conv_wide(const cvy_plan *p, pass *s, const cuda_choice *c)
{
    const wide_choice *f = &c->wide;
    const wide_layout *l = &f->layout;

    s->way = WAY_STREAM;
    s->seconds = cvyi_pass_seconds(p, s, f->launches, f->seconds);
    snprintf(s->note, sizeof s->note, "wide, %d product%s, tile %d x %d, %d + %d stages", f->products,
             f->products == 1 ? "" : "s", l->bm, l->bn, l->x_stages, l->w_stages);
    if (f->tile.split > 1) {
        const size_t length = strlen(s->note);
        snprintf(s->note + length, sizeof s->note - length, ", sums in %d parts", f->tile.split);
    }
}

static bool same_conv_wide(const cuda_choice *a, const cuda_choice *b)
{
    const wide_tile *t = &a->wide.tile, *u = &b->wide.tile;
    return t->groups_m == u->groups_m && t->tile == u->tile && t->blocks == u->blocks &&
           t->together == u->together && t->split == u->split;
}

/* Unbatched images have their channels elsewhere. */
static bool channels_last(const cvy_plan *p, const cuda_choice *c)
{
    const int x = p->graph->nodes[c->form.core].arg[0];
    return cvyi_shape_of(p->graph, x)->rank == c->wide.geom.spatial + 2;
}

static int64_t scratch_of_conv_wide(const cuda_choice *c)
{
    memory_map at;
    return lay_scratch(&c->wide, 0, &at);
}

const kernel_row cvyi_kernel_conv_wide = {.name = "conv_wide",
                                          .refuse = refuse_conv_wide,
                                          .tune = tune_conv_wide,
                                          .make = make_conv_wide,
                                          .launch = cvyi_product_launch,
                                          .same = same_conv_wide,
                                          .scratch = scratch_of_conv_wide,
                                          .channels_last = channels_last,
                                          .dice = 4,
                                          .tensor_cores = true};
