/* tc.c - steps of the tensor-core convolution: options, memory, and the launches themselves.
 *
 * Memory of a pass: packed weights and their scales, which are kept until parameters change, and the words through
 * which blocks exchange statistics, tagged by launch. The words are zeroed when a workspace is new to the plan;
 * then every launch leaves them ready for the next, so a captured graph can be replayed. */
#include <stdio.h>
#include <string.h>
#include "choice.h"

/* The numbers among the macros of conv_tc_layout.cuh; kind: which of the launches it is. */
static void define_all(maker *m, const tc_problem *b, const tc_tuning *t, int kind)
{
    tc_tuning of_launch = *t;

    of_launch.pass = kind;
#define DEFINE(NAME, field, meaning) cvyi_make_define(m, "TC_" #NAME, b->field);
    TC_PROBLEM(DEFINE)
#undef DEFINE
#define DEFINE(NAME, field, meaning)                                                                               \
    if (b->field) cvyi_make_define(m, "TC_" #NAME, b->field);
    TC_TENSORS(DEFINE)
#undef DEFINE
#define DEFINE(NAME, field, meaning) cvyi_make_define(m, "TC_" #NAME, of_launch.field);
    TC_TUNING(DEFINE)
#undef DEFINE
}

static cvy_dtype type_of(const maker *m, const node *n, int argument)
{
    return n && n->n_args > argument && n->arg[argument] != CVY_NONE ? m->g->values[n->arg[argument]].dtype
                                                                     : CVY_FLOAT32;
}

/* Elements of the tensors that the kernels read and write by themselves; nothing if all are float32. */
static void define_types(maker *m, const tc_form *f, bool packs)
{
    const node *conv = &m->g->nodes[f->conv], *norm = f->apply == CVY_NONE ? NULL : &m->g->nodes[f->apply];
    const int factor = packs ? f->factor : CVY_NONE;
#define FIELD(NAME, field, meaning) cvy_dtype field;
    const struct {
        TC_TYPES(FIELD)
    } of = {.x = type_of(m, conv, 0),
            .w = packs ? m->g->values[f->weight].dtype : type_of(m, conv, 1),
            .bias = type_of(m, conv, 2),
            .gamma = type_of(m, norm, 2),
            .beta = type_of(m, norm, 3),
            .y = m->g->values[f->out].dtype,
            .factor = factor == CVY_NONE ? CVY_FLOAT32 : m->g->values[factor].dtype};
#undef FIELD
    bool single = true;

#define LOOK(NAME, field, meaning) single = single && of.field == CVY_FLOAT32;
    TC_TYPES(LOOK)
#undef LOOK
    if (single) return;
#define DEFINE(NAME, field, meaning)                                                                               \
    snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-D" #NAME "=%s", cvyi_emit_type(of.field));
    TC_TYPES(DEFINE)
#undef DEFINE
}

tc_step *cvyi_tc_new_step(maker *m)
{
    tc_step *t = cvyi_arena_alloc(&m->plan->memory, 1, sizeof *t);

    if (!t) return NULL;
    *t = (tc_step){.x = CVY_NONE,
                   .w = CVY_NONE,
                   .packed = CVY_NONE,
                   .unscale = CVY_NONE,
                   .bias = CVY_NONE,
                   .gamma = CVY_NONE,
                   .beta = CVY_NONE,
                   .y = CVY_NONE,
                   .part = CVY_NONE,
                   .state = CVY_NONE,
                   .factor = CVY_NONE};
    m->step.tc = t;
    return t;
}

static int optional_view(maker *m, const node *n, int argument)
{
    return n->n_args > argument && n->arg[argument] != CVY_NONE ? cvyi_make_raw_view(m, n->arg[argument])
                                                                : CVY_NONE;
}

/* Where the pass's own memory lies. */
typedef struct memory_map {
    int64_t packed, unscale, part, state, end;
} memory_map;

static memory_map take_memory(maker *m, const tc_form *f)
{
    const int weight = m->g->nodes[f->conv].arg[1];
    memory_map a;

    a.packed = cvyi_make_packed_memory(m, weight, f->tuning.packed_bytes);
    a.unscale = cvyi_make_packed_memory(m, weight, cvyi_floats(2 * f->tuning.channels));
    a.part = a.state = a.end = 0;
    if (!f->problem.groups) return a;
    a.part = cvyi_make_memory(m, TC_PART_BYTES * f->samples * f->problem.groups * f->tuning.strips);
    a.state = cvyi_make_memory(m, TC_STATE_BYTES);
    a.end = a.state + TC_STATE_BYTES;
    return a;
}

static cvy_status make_pack(maker *m, const tc_form *f, const memory_map *at)
{
    const int w = m->g->nodes[f->conv].arg[1];
    const bool prepared = m->prepared;
    tc_step *t;
    cvy_status st;

    m->prepared = m->plan->prepared[w];
    cvyi_make_start(m, "conv_tc_pack.cu");
    m->text = "// epilogue.cuh - conv_tc_pack.cu reads none\n";
    define_all(m, &f->problem, &f->tuning, f->tuning.pass);
    define_types(m, f, true);
    if (!(t = cvyi_tc_new_step(m))) return CVY_NO_MEMORY;
    t->packs = true;
    t->packed = cvyi_make_own_view(m, at->packed, "packed weights");
    t->unscale = cvyi_make_own_view(m, at->unscale, "their scales and sums");
    t->w = cvyi_make_raw_view(m, f->weight);
    if (f->factor != CVY_NONE) t->factor = cvyi_make_raw_view(m, f->factor);
    m->step.launch = (cuda_launch){.grid = {(unsigned)f->tuning.channels, 1, 1}, .block = {PACK_THREADS, 1, 1}};
    st = cvyi_make_end(m, "");
    m->prepared = prepared;
    return st;
}

/* x as tensor copies see it: {W, H, C, samples}, boxes of whole rows of a strip and 8 channels; channels last
 * {C, W, H, samples}. */
static void fill_map(tc_step *t, const tc_form *f, cvy_dtype dtype)
{
    const tc_problem *b = &f->problem;
    const int last = b->x_last; /* dimensions of the plane move up by one */

    t->tma = f->tuning.tma;
    t->dtype = dtype;
    t->dims[last] = (uint64_t)b->w;
    t->dims[last + 1] = (uint64_t)b->h;
    t->dims[last ? 0 : 2] = (uint64_t)b->c;
    t->dims[3] = (uint64_t)f->samples;
    t->strides[0] = (uint64_t)cvyi_dtype_bytes(dtype) * t->dims[0];
    t->strides[1] = t->strides[0] * t->dims[1];
    t->strides[2] = t->strides[1] * t->dims[2];
    t->box[last] = (unsigned)f->tuning.box_cols;
    t->box[last + 1] = (unsigned)f->tuning.box_rows;
    t->box[last ? 0 : 2] = 8;
    t->box[3] = 1;
}

static void add_norm(maker *m, const tc_form *f, const memory_map *at, tc_step *t)
{
    norm_geom e;

    cvyi_norm_geom(m->g, &m->g->nodes[f->stats], &e);
    t->eps = (float)(f->halved ? 4 * e.eps : e.eps);
    t->gamma = optional_view(m, &m->g->nodes[f->apply], 2);
    t->beta = optional_view(m, &m->g->nodes[f->apply], 3);
    t->part = cvyi_make_own_view(m, at->part, "words of statistics");
    t->state = cvyi_make_own_view(m, at->state, "launches so far");
    t->zero_bytes = at->end - at->part;
}

static void add_views(maker *m, const tc_form *f, const memory_map *at, tc_step *t)
{
    const node *n = &m->g->nodes[f->conv];

    t->y = cvyi_make_raw_view(m, f->out);
    t->x = cvyi_make_raw_view(m, n->arg[0]);
    t->w = cvyi_make_raw_view(m, n->arg[1]);
    t->packed = cvyi_make_own_view(m, at->packed, "packed weights");
    t->unscale = cvyi_make_own_view(m, at->unscale, "their scales and sums");
    t->bias = optional_view(m, n, 2);
    if (f->problem.groups) add_norm(m, f, at, t);
}

/* One launch of it; the words that blocks exchange are zeroed before the first. */
static cvy_status make_convolution(maker *m, const tc_form *f, const memory_map *at, int kind)
{
    static const char *const passes[] = {"plain", "keep", "both", "stats", "finish"};
    const int64_t strips = f->samples * f->tuning.strips;
    char variant[24];
    text t = {0};
    tc_step *step;
    cvy_status st;

    cvyi_make_start(m, "conv_tc.cu");
    define_all(m, &f->problem, &f->tuning, kind);
    define_types(m, f, false);
    cvyi_make_define_text(m, "-DTC_EPILOGUE=\"epilogue.cuh\"");
    if (!(step = cvyi_tc_new_step(m))) return CVY_NO_MEMORY;
    add_views(m, f, at, step);
    if (kind == PASS_FINISH) step->zero_bytes = 0;
    fill_map(step, f, m->g->values[m->g->nodes[f->conv].arg[0]].dtype);
    TRY(cvyi_tc_emit(m, f, &t));
    m->text = t.data;
    m->step.extent = f->samples;
    m->step.launch = (cuda_launch){
        .grid = {(unsigned)cvyi_min64(strips, m->state->device->sms), 1, 1},
        .block = {(unsigned)f->tuning.threads, 1, 1},
        .dynamic_shared = (unsigned)f->tuning.shared_bytes,
        .cooperative = kind == PASS_KEEP || kind == PASS_BOTH, /* blocks wait for each other */
    };
    snprintf(variant, sizeof variant, "%s_64x%d", passes[kind], f->tuning.tile);
    TRY(cvyi_make_end(m, variant));
fail:
    cvyi_text_free(&t);
    return st;
}

/* Weights packed, whatever the layout, then the convolution. */
static cvy_status make_steps(maker *m, const tc_form *f, step_layout layout)
{
    const memory_map at = take_memory(m, f);
    cvy_status st;

    TRY(make_pack(m, f, &at));
    m->layout = layout;
    if (f->tuning.pass == PASS_FINISH) TRY(make_convolution(m, f, &at, PASS_STATS));
    TRY(make_convolution(m, f, &at, f->tuning.pass));
fail:
    m->layout = LAYOUT_ANY;
    return st;
}

/* The steps of a pass, and once more if it takes tensors channels last: all of them, or x alone. */
static cvy_status make_conv_tc(maker *m)
{
    const tc_form *f = &m->choice->tc;
    const tc_last *last = m->state->layouts[m->pass_index];
    cvy_status st;

    TRY(make_steps(m, f, last ? LAYOUT_PLAIN : LAYOUT_ANY));
    if (last) TRY(make_steps(m, &last->both, LAYOUT_LAST));
    if (last && last->x != CVY_NONE && last->y != CVY_NONE) TRY(make_steps(m, &last->x_alone, LAYOUT_X_LAST));
fail:
    return st;
}

/* ---- launching ---- */

/* struct tc_args of conv_tc.cuh */
#define ADDRESS(type, name, meaning) CUdeviceptr name;
#define NUMBER(type, name, meaning)  type name;
typedef struct tc_arguments {
    TC_POINTERS(ADDRESS)
    TC_NUMBERS(NUMBER)
} tc_arguments;

static CUdeviceptr at(const step_arguments *a, int view)
{
    return view == CVY_NONE ? 0 : a->view[view].p;
}

/* Extents, strides in bytes and boxes of a tensor. */
typedef struct tensor_tiles {
    unsigned rank;
    cvy_dtype dtype;
    bool swizzled;
    const uint64_t *dims, *strides;
    const unsigned *box;
} tensor_tiles;

/* The driver's numbers. */
enum { NO_INTERLEAVE = 0, NO_SWIZZLE = 0, SWIZZLE_128 = 3, L2_256_BYTES = 3, ZEROS = 0 };
static const int map_types[DTYPE_COUNT] = {[CVY_FLOAT32] = 7, [CVY_FLOAT16] = 6, [CVY_BFLOAT16] = 9};

static cvy_status encode(const cuda_device *d, const tensor_tiles *t, CUdeviceptr at, CUtensorMap *out)
{
    static const unsigned steps[4] = {1, 1, 1, 1};

    return CU(d->cu, cuTensorMapEncodeTiled, out, map_types[t->dtype], t->rank, (void *)(uintptr_t)at, t->dims,
              t->strides, t->box, steps, NO_INTERLEAVE, t->swizzled ? SWIZZLE_128 : NO_SWIZZLE, L2_256_BYTES,
              ZEROS);
}

/* x as copies that walk through its pixels see it (tc_step.pixels). */
static cvy_status encode_pixels(const cuda_device *d, const tc_step *t, CUdeviceptr at, CUtensorMap *out)
{
    unsigned steps[5] = {1, 1, 1, 1, 1};

    for (int i = 0; i < t->rank - 2; i++) steps[i + 1] = (unsigned)t->step[i];
    return CU(d->cu, cuTensorMapEncodeIm2col, out, map_types[t->dtype], (unsigned)t->rank, (void *)(uintptr_t)at,
              t->dims, t->strides, t->lower, t->upper, t->box[0], t->box[1], steps, NO_INTERLEAVE, SWIZZLE_128,
              L2_256_BYTES, ZEROS);
}

cvy_status cvyi_tc_map(const cuda_device *d, const tc_step *t, CUdeviceptr x, CUtensorMap *out)
{
    const unsigned rank = t->words ? 3 : t->product ? 2 : 4;
    const tensor_tiles tiles = {rank, t->dtype, t->product, t->dims, t->strides, t->box};

    memset(out, 0, sizeof *out);
    if (t->pixels) return encode_pixels(d, t, x, out);
    return t->tma ? encode(d, &tiles, x, out) : CVY_OK;
}

cvy_status cvyi_tc_map_w(const cuda_device *d, const tc_step *t, CUdeviceptr w, CUtensorMap *out)
{
    const tensor_tiles tiles = {3, t->dtype, true, t->w_dims, t->w_strides, t->w_box};

    return encode(d, &tiles, w, out);
}

static cvy_status launch_pack(const cuda_device *d, const cuda_step *s, int code, const step_arguments *a,
                              CUstream stream)
{
    CUdeviceptr w = at(a, s->tc->w), packed = at(a, s->tc->packed), unscale = at(a, s->tc->unscale),
                factor = at(a, s->tc->factor);
    void *list[] = {&w, &packed, &unscale, &factor};
    return cvyi_cuda_launch(d, &s->kernel[code], &s->launch, stream, list);
}

cvy_status cvyi_tc_zero(const cuda_device *d, const cuda_step *s, const step_arguments *a, CUstream stream)
{
    const tc_step *t = s->tc;
    return t->zero_bytes ? cvyi_cuda_fill(d, at(a, t->part), 0, (size_t)t->zero_bytes, stream) : CVY_OK;
}

/* fresh: the workspace's statistics words are not from this plan. */
static cvy_status launch_conv_tc(const cuda_device *d, const cuda_step *s, int code, step_arguments *a, bool fresh,
                                 CUstream stream)
{
    const tc_step *t = s->tc;
#define ADDRESS_OF(type, name, meaning) .name = at(a, t->name),
    tc_arguments args = {TC_POINTERS(ADDRESS_OF).n = (int)a->extent, .eps = t->eps};
    CUtensorMap map;
    void *list[] = {&map, &args, a};
    cvy_status st;

    if (t->packs) return launch_pack(d, s, code, a, stream);
    TRY(cvyi_tc_map(d, t, args.x, &map));
    if (fresh) TRY(cvyi_tc_zero(d, s, a, stream));
    TRY(cvyi_cuda_launch(d, &s->kernel[code], &s->launch, stream, list));
fail:
    return st;
}

/* ---- its row of the table ---- */

static const char *refuse_conv_tc(const cvy_plan *p, const pass *s, cuda_choice *c)
{
    c->tc = cvyi_tc_form(p, s);
    return c->tc.why;
}

static way way_of(const tc_form *f)
{
    static const way ways[] = {[PASS_PLAIN] = WAY_STREAM,
                               [PASS_KEEP] = WAY_RESIDENT,
                               [PASS_BOTH] = WAY_RECOMPUTE,
                               [PASS_FINISH] = WAY_RECOMPUTE};
    return f->tuning.pass == PASS_KEEP && f->problem.sink == SINK_POOL ? WAY_FOLD : ways[f->tuning.pass];
}

/* The estimate of the tile that was chosen. One wave of blocks: less than a launch that fills and drains. */
static void tune_conv_tc(const cvy_plan *p, pass *s, const cuda_choice *c)
{
    const cuda_device *d = ((const cuda_state *)p->state)->device;
    const tc_form *f = &c->tc;
    const tc_tuning *t = &f->tuning;
    const int64_t turns = cvyi_ceil_div(f->samples * t->strips, d->sms);

    s->way = way_of(f);
    s->seconds = cvyi_pass_seconds(p, s, 0.75, ((double)turns * t->strip_cycles + t->start_cycles) / d->clock);
    snprintf(s->note, sizeof s->note, "tensor cores, %d product%s, tile %d, strip %d x %d, %d stages, %d KB",
             f->problem.products, f->problem.products == 1 ? "" : "s", t->tile, t->strip, t->span, t->stages,
             (int)(t->shared_bytes / 1024));
}

static bool same_conv_tc(const cuda_choice *a, const cuda_choice *b)
{
    return cvyi_tc_same(&a->tc.tuning, &b->tc.tuning);
}

/* The weights that its own are made of. */
static void packs(const cuda_choice *c, int values[2])
{
    values[0] = c->tc.weight;
    values[1] = c->tc.factor;
}

static void lying(const cvy_plan *p, const cuda_choice *c, int *x, int *y)
{
    cvyi_tc_tensors(p, &c->tc, x, y);
}

static bool lay_last(const cvy_plan *p, const cuda_choice *c, int x, int y, tc_last *out)
{
    return cvyi_tc_last(p, &c->tc, x, y, out);
}

const kernel_row cvyi_kernel_conv_tc = {.name = "conv_tc",
                                        .refuse = refuse_conv_tc,
                                        .tune = tune_conv_tc,
                                        .make = make_conv_tc,
                                        .launch = launch_conv_tc,
                                        .same = same_conv_tc,
                                        .tensor_cores = true,
                                        .dense = true,
                                        .packs = packs,
                                        .lying = lying,
                                        .lay_last = lay_last};
