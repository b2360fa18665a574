/* maker.c - builds a step: views of tensors, statements of the prologue and the epilogue, options. */
#include <stdio.h>
#include <string.h>
#include "choice.h"

/* ---- spaces ---- */

space cvyi_space_plain(const shape *s)
{
    space out = {.extent = {1, 1, 1, 1, 1, 1}, .logical = *s};
    for (int d = 0; d < s->rank; d++) {
        out.place[d] = d;
        out.extent[d] = s->dim[d];
    }
    return out;
}

space cvyi_space_planes(const shape *s, int spatial)
{
    space out = {.extent = {1, 1, 1, 1, 1, 1}, .logical = *s};
    for (int d = 0; d < s->rank; d++) {
        const int from_end = s->rank - d; /* 1: the innermost, which is dimension 4 of the space */
        out.place[d] = from_end <= spatial ? 5 - from_end : from_end == spatial + 1 ? 1 : 0;
        out.extent[out.place[d]] = s->dim[d];
    }
    return out;
}

/* ---- steps ---- */

/* No statement holds any value that the pass touches. (A program asks for no others.) */
void cvyi_make_forget(const maker *m, program *p)
{
    p->n = 0;
    for (int i = 0; m->pass && i < m->pass->count; i++) {
        const node *n = &m->g->nodes[m->pass->first + i];
        p->statement_of[n->out] = NO_STATEMENT;
        for (int a = 0; a < n->n_args; a++)
            if (n->arg[a] != CVY_NONE) p->statement_of[n->arg[a]] = NO_STATEMENT;
    }
}

void cvyi_make_start(maker *m, const char *source)
{
    memset(&m->step, 0, sizeof m->step);
    m->step.source = source;
    m->step.row = m->choice ? m->choice->kernel : NULL;
    m->step.views = m->views;
    m->step.prepared = m->prepared;
    m->step.pass = m->pass_index;
    m->step.only_strided = CVY_NONE;
    m->step.layout = m->layout;
    m->n_defines = 0;
    m->text = NULL;
    m->many = 0;
    m->far = false;
    m->fast = false;
    m->sized = false;
    m->of_pixel = false;
    m->lone = false;
    cvyi_make_forget(m, &m->pre);
    cvyi_make_forget(m, &m->post);
}

/* ---- options ---- */

void cvyi_make_define(maker *m, const char *name, int64_t number)
{
    snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-D%s=%lld", name, (long long)number);
}

void cvyi_make_define_text(maker *m, const char *option)
{
    snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "%s", option);
}

void cvyi_make_define3(maker *m, const char *const names[3], const int64_t values[3])
{
    for (int i = 0; i < 3; i++) cvyi_make_define(m, names[i], values[i]);
}

void cvyi_make_define_extents(maker *m, char letter, const space *s)
{
    for (int d = 1; d < EMIT_DIMS; d++) {
        const char name[3] = {letter, (char)('0' + d), '\0'};
        /* An extent of 0 would be divided by, in code that never runs. */
        cvyi_make_define(m, name, cvyi_max64(s->extent[d], 1));
    }
}

void cvyi_make_define_types(maker *m, int x, int w)
{
    const cvy_dtype of_x = m->g->values[x].dtype, of_w = m->g->values[w].dtype;

    if (of_x == CVY_FLOAT32 && of_w == CVY_FLOAT32) return;
    snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-DX_TYPE=%s", cvyi_emit_type(of_x));
    snprintf(m->defines[m->n_defines++], DEFINE_BYTES, "-DW_TYPE=%s", cvyi_emit_type(of_w));
}

int cvyi_make_access(cvy_dtype dtype)
{
    return ACCESS_BYTES / (int)cvyi_dtype_bytes(dtype);
}

int cvyi_make_widest(const maker *m)
{
    int n = ACCESS_FLOATS;

    for (int i = 0; i < m->step.n_views; i++) n = most(n, cvyi_make_access(m->seen[i].dtype));
    return n;
}

/* ---- views ---- */

const char *cvyi_make_label(const maker *m, int v)
{
    const value *of = &m->g->values[v];
    return of->kind == VALUE_NODE    ? cvyi_info(&m->g->nodes[of->node])->name
           : of->kind == VALUE_INPUT ? "input"
                                     : "parameter";
}

/* "input[*,8,128,128]": what is an argument, such as the extent of the batch, stays out of the text,
 * which is part of the cache's key. */
static void name_view(const maker *m, int v, char out[NAME_LENGTH])
{
    const shape *s = cvyi_shape_of(m->g, v);
    text t = {0};

    cvyi_text_add(&t, "%s[", cvyi_make_label(m, v));
    for (int d = 0; d < s->rank; d++) {
        if (m->sized || (d == 0 && !m->plan->prepared[v]))
            cvyi_text_add(&t, "%s*", d ? "," : "");
        else
            cvyi_text_add(&t, "%s%lld", d ? "," : "", (long long)s->dim[d]);
    }
    cvyi_text_add(&t, "]");
    snprintf(out, NAME_LENGTH, "%s", t.data ? t.data : "");
    cvyi_text_free(&t);
}

static int new_view(maker *m, int v, const char *name)
{
    const int i = m->step.n_views++;
    step_view *view = &m->views[i];

    memset(view, 0, sizeof *view);
    memset(&m->seen[i], 0, sizeof m->seen[i]);
    view->value = v;
    for (int d = 0; d < EMIT_DIMS; d++) {
        view->dim[d] = -1;
        view->times[d] = 1;
    }
    if (v != CVY_NONE) {
        name_view(m, v, m->names[i]);
        if (cvyi_elements(cvyi_shape_of(m->g, v)) > INT32_MAX) m->far = true;
        m->seen[i].dtype = m->g->values[v].dtype;
    } else {
        snprintf(m->names[i], NAME_LENGTH, "%s", name);
    }
    m->seen[i].name = m->names[i];
    return i;
}

int cvyi_make_own_view(maker *m, int64_t at, const char *name)
{
    const int i = new_view(m, CVY_NONE, name);
    m->views[i].kind = VIEW_OWN;
    m->views[i].at = at;
    return i;
}

static void vary(maker *m, int view, int slot, int dim, int64_t stride)
{
    m->views[view].dim[slot] = dim;
    m->seen[view].varies[slot] = true;
    m->seen[view].stride[slot] = stride;
}

int cvyi_make_view(maker *m, int v, const space *over)
{
    const shape *s = cvyi_shape_of(m->g, v);
    const bool last = cvyi_lies_last(m, v);
    int64_t strides[CVY_MAX_RANK];
    const int i = new_view(m, v, NULL);

    (last ? cvyi_last_strides : cvyi_contiguous_strides)(s, strides);
    for (int d = 0; d < s->rank; d++)
        if (s->dim[d] != 1) vary(m, i, over->place[over->logical.rank - s->rank + d], d, strides[d]);
    m->seen[i].whole = !last && cvyi_same_shape(s, &over->logical);
    m->views[i].last = last;
    if (last && m->plan->places[v].kind == PLACE_TENSOR) m->views[i].kind = VIEW_TENSOR;
    return i;
}

int cvyi_make_channel_view(maker *m, int v, int slot)
{
    const int i = new_view(m, v, NULL);
    if (cvyi_elements(cvyi_shape_of(m->g, v)) != 1) vary(m, i, slot, 0, 1);
    return i;
}

void cvyi_make_sizes_view(maker *m, const space *s)
{
    const int i = new_view(m, CVY_NONE, "extents");
    m->views[i].kind = VIEW_SIZES;
    memcpy(m->views[i].times, s->extent, sizeof s->extent);
}

int cvyi_make_raw_view(maker *m, int v)
{
    return new_view(m, v, NULL);
}

int cvyi_make_weight_view(maker *m, int v, const conv_geom *e, bool transposed)
{
    const shape *s = cvyi_shape_of(m->g, v);
    const int k = transposed ? 1 : 0, c = 1 - k;
    const int i = new_view(m, v, NULL);

    m->views[i].dim[0] = k;
    m->views[i].dim[1] = c;
    for (int a = 0; a < e->spatial; a++) m->views[i].dim[4 - a] = s->rank - 1 - a;
    /* A group owns K / groups rows of the weights, or C / groups if they are transposed. */
    m->views[i].dim[5] = 0;
    m->views[i].times[5] = (transposed ? e->C : e->K) / e->groups;
    return i;
}

/* ---- statements ---- */

int cvyi_make_statement(maker *m, program *p, const emit_statement *statement)
{
    (void)m;
    p->statements[p->n] = *statement;
    return p->n++;
}

int cvyi_make_operand(maker *m, program *p, int v)
{
    emit_statement load = {.kind = EMIT_LOAD};

    if (p->statement_of[v] == NO_STATEMENT) {
        load.view = cvyi_make_view(m, v, &p->over);
        load.note = cvyi_make_label(m, v);
        p->statement_of[v] = cvyi_make_statement(m, p, &load);
    }
    return p->statement_of[v];
}

void cvyi_make_store(maker *m, program *p, int v)
{
    emit_statement store = {.kind = EMIT_STORE, .a = p->statement_of[v], .note = cvyi_make_label(m, v)};

    store.view = m->step.n_views && m->views[0].value == v ? 0 : cvyi_make_view(m, v, &p->over);
    cvyi_make_statement(m, p, &store);
}

/* The affine of a norm: along the channels (dimension 1 of x), or along the trailing dimensions that were
 * normalised. */
int cvyi_make_affine_view(maker *m, const program *p, const norm_geom *e, int v)
{
    const shape *x = &p->over.logical;

    if (v == CVY_NONE) return CVY_NONE;
    if (x->rank > 1 && x->dim[1] == e->groups * e->chan &&
        e->groups * e->chan * e->inner * x->dim[0] == cvyi_elements(x) && cvyi_shape_of(m->g, v)->rank == 1)
        return cvyi_make_channel_view(m, v, p->over.place[1]);
    return cvyi_make_view(m, v, &p->over);
}

static void apply_line(maker *m, program *p, const node *n)
{
    emit_statement l = {.kind = EMIT_APPLY, .op = n->op, .a = cvyi_make_operand(m, p, n->arg[0])};

    cvyi_norm_geom(m->g, n, &l.norm);
    l.view = cvyi_make_raw_view(m, n->arg[1]);
    l.weight = cvyi_make_affine_view(m, p, &l.norm, n->n_args > 2 ? n->arg[2] : CVY_NONE);
    l.bias = cvyi_make_affine_view(m, p, &l.norm, n->n_args > 3 ? n->arg[3] : CVY_NONE);
    l.note = cvyi_info(n)->name;
    p->statement_of[n->out] = cvyi_make_statement(m, p, &l);
}

static void running_line(maker *m, program *p, const node *n)
{
    emit_statement l = {.kind = EMIT_NORM, .op = n->op, .a = cvyi_make_operand(m, p, n->arg[0])};
    norm_args args;

    cvyi_norm_geom(m->g, n, &l.norm);
    cvyi_norm_args(n, &args);
    l.view = cvyi_make_channel_view(m, args.mean, p->over.place[1]);
    l.var = cvyi_make_channel_view(m, args.var, p->over.place[1]);
    l.weight = cvyi_make_affine_view(m, p, &l.norm, args.weight);
    l.bias = cvyi_make_affine_view(m, p, &l.norm, args.bias);
    l.p[0] = l.norm.eps;
    l.note = cvyi_info(n)->name;
    p->statement_of[n->out] = cvyi_make_statement(m, p, &l);
}

static void op_line(maker *m, program *p, const node *n)
{
    emit_statement l = {.kind = EMIT_OP, .op = n->op, .a = cvyi_make_operand(m, p, n->arg[0]), .b = CVY_NONE};

    l.rough = m->g->values[n->out].dtype != CVY_FLOAT32;
    cvyi_pointwise_params(n, l.p);
    if (n->n_args > 1 && n->arg[1] != CVY_NONE) l.b = cvyi_make_operand(m, p, n->arg[1]);
    l.note = cvyi_info(n)->name;
    p->statement_of[n->out] = cvyi_make_statement(m, p, &l);
}

cvy_status cvyi_make_chain(maker *m, program *p, int first, int end, bool stores)
{
    for (int i = first; i < end; i++) {
        const node *n = &m->g->nodes[i];
        if (p->n + 8 > MAX_STATEMENTS || m->step.n_views + 6 > MAX_VIEWS)
            return cvyi_fail(CVY_UNSUPPORTED, "cuda: a pass of %d operators is longer than a kernel takes",
                             end - first);
        if (cvyi_info(n)->kind == KIND_APPLY)
            apply_line(m, p, n);
        else if (cvyi_info(n)->kind == KIND_NORM)
            running_line(m, p, n);
        else
            op_line(m, p, n);
        if (stores && (m->prepared || cvyi_needed_after(m->plan, m->pass, n->out))) cvyi_make_store(m, p, n->out);
    }
    return CVY_OK;
}

/* ---- the end of a step ---- */

static int64_t take(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += cvyi_round_up(bytes, CVY_ALIGN);
    return at;
}

int64_t cvyi_make_memory(maker *m, int64_t bytes)
{
    return take(&m->state->kept_end, bytes);
}

int64_t cvyi_make_packed_memory(maker *m, int weight, int64_t bytes)
{
    return take(m->plan->prepared[weight] ? &m->plan->prepared_bytes : &m->state->kept_end, bytes);
}

/* Can a view of the step be strided, or begin at an odd place? */
static bool may_be_strided(const maker *m)
{
    if (m->plan->options.strided == CVY_OFF) return false;
    for (int i = 0; i < m->step.n_views; i++)
        if (m->views[i].value != CVY_NONE && !m->views[i].last && !m->views[i].any &&
            m->plan->places[m->views[i].value].kind == PLACE_TENSOR)
            return true;
    return false;
}

static const char *kept(maker *m, const char *source)
{
    const int number = cvyi_text_set_add(&m->state->texts, &m->plan->memory, source);
    return number < 0 ? NULL : m->state->texts.texts[number];
}

static cvy_status make_text(maker *m, bool strided, const char **out)
{
    emit_program pre = {.statements = m->pre.statements, .n_statements = m->pre.n, .result = m->pre.n - 1};
    emit_program post = {.statements = m->post.statements, .n_statements = m->post.n};
    emit_spec spec = {.title = m->step.source,
                      .views = m->seen,
                      .n_views = m->step.n_views,
                      .strided = strided,
                      .many = m->many,
                      .of_pixel = m->of_pixel,
                      .lone = m->lone,
                      .fast = m->fast};
    text t = {0};

    if (m->text) return (*out = kept(m, m->text)) ? CVY_OK : CVY_NO_MEMORY;
    memcpy(pre.extent, m->pre.over.extent, sizeof pre.extent);
    memcpy(post.extent, m->post.over.extent, sizeof post.extent);
    if (pre.n_statements) spec.prologue = &pre;
    if (post.n_statements) spec.epilogue = &post;
    cvyi_emit(&spec, &t);
    *out = t.failed ? NULL : kept(m, t.data);
    cvyi_text_free(&t);
    return *out ? CVY_OK : CVY_NO_MEMORY;
}

static cvy_status make_options(maker *m, bool strided, cuda_step *s)
{
    const int which = strided && !m->sized, n = m->n_defines + 3;
    const char **list = cvyi_arena_alloc(&m->plan->memory, (size_t)n, sizeof *list);
    char define[DEFINE_BYTES];

    if (!list) return CVY_NO_MEMORY;
    for (int i = 0; i < m->n_defines; i++)
        if (!(list[i] = kept(m, m->defines[i]))) return CVY_NO_MEMORY;
    snprintf(define, sizeof define, "-DTENSORS=%d", s->n_views);
    if (!(list[n - 3] = kept(m, define))) return CVY_NO_MEMORY;
    list[n - 2] = strided || m->far ? "-DFAR=1" : "-DFAR=0";
    list[n - 1] = strided ? "-DSRC_DENSE=0" : "-DSRC_DENSE=1";
    s->options[which] = list;
    s->n_options[which] = n;
    return make_text(m, strided, &s->epilogue[which]);
}

/* The dtype that a step reads or writes besides float32; float32 if there is no other. */
static const char *type_name(const maker *m)
{
    static const char *const names[DTYPE_COUNT] = {
        [CVY_FLOAT32] = "f32", [CVY_FLOAT16] = "f16", [CVY_BFLOAT16] = "bf16"};
    cvy_dtype found = CVY_FLOAT32;

    for (int i = 0; i < m->step.n_views && found == CVY_FLOAT32; i++) found = m->seen[i].dtype;
    return names[found];
}

/* <kernel>_<type>_<tile or variant>_<architecture>_<digest of text and options> */
static void make_name(const maker *m, cuda_step *s, const char *variant)
{
    uint64_t h = cvyi_hash(CVYI_HASH_START, s->epilogue[0], strlen(s->epilogue[0]));

    for (int i = 0; i < s->n_options[0]; i++) h = cvyi_hash(h, s->options[0][i], strlen(s->options[0][i]) + 1);
    snprintf(s->entry, sizeof s->entry, "%.*s_%s%s%s_sm%d%d%s_%08x", (int)strcspn(s->source, "."), s->source,
             type_name(m), *variant ? "_" : "", variant, m->state->device->major, m->state->device->minor,
             s->tc ? "a" : "", (unsigned)(h ^ h >> 32));
}

/* Kernels on compute capability 9.0 and newer wait for the launches before them (follow.cuh), conv_tc*.cu
 * excepted; drivers before 12.3 do not capture such launches. */
static bool may_follow(const maker *m)
{
    enum { CAPTURED = 12030 };
    const cuda_device *d = m->state->device;

    return d->major >= 9 && d->cu->version >= CAPTURED && (!m->step.tc || m->step.tc->product);
}

static bool room_for_step(cuda_state *state)
{
    const int cap = state->n_steps < state->cap_steps ? state->cap_steps : state->n_steps + state->n_steps / 2 + 8;
    cuda_step *grown = cap == state->cap_steps ? state->steps : cvyi_grow(state->steps, (size_t)cap, sizeof *grown);

    if (!grown) return false;
    state->steps = grown;
    state->cap_steps = cap;
    return true;
}

cvy_status cvyi_make_end(maker *m, const char *variant)
{
    cuda_state *state = m->state;
    cuda_step *s = &m->step;
    const char *refusal = cvyi_cuda_launch_refusal(state->device, &s->launch);
    step_view *views;
    cvy_status st = CVY_OK;

    if (!s->launch.grid[0] || !s->launch.grid[1] || !s->launch.grid[2]) return CVY_OK; /* nothing to compute */
    if (refusal) return cvyi_fail(CVY_UNSUPPORTED, "cuda: %s: %s", s->source, refusal);
    views = cvyi_arena_alloc(&m->plan->memory, (size_t)s->n_views, sizeof *views);
    if (!views || !room_for_step(state)) return CVY_NO_MEMORY;
    memcpy(views, m->views, (size_t)s->n_views * sizeof *views);
    TRY(make_options(m, m->sized, s));
    if (!m->text && (!s->tc || s->tc->any_strides) && !m->sized && may_be_strided(m)) TRY(make_options(m, true, s));
    make_name(m, s, variant);
    s->aligned = m->many > 0 && !m->sized;
    s->launch.follows = may_follow(m);
    s->any = m->sized;
    state->steps[state->n_steps] = *s;
    state->steps[state->n_steps++].views = views;
fail:
    return st;
}
