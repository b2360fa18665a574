/* step_pool.c - pooling: its step, and its row in the table of kernels. */
#include "choice.h"

typedef struct pool_step {
    pool_geom geom;
    pool_fn fn;
    int x, out;
    int64_t per_part;            /* planes */
    bool halves, aside;          /* x may be words; the result does not always lie in memory as floats */
    int64_t widened_at, made_at; /* bytes of the scratch */
} pool_step;

static int64_t planes_of(const pool_step *c, const cpu_unit *u)
{
    return u->pass->samples > 1 ? c->geom.planes / u->pass->samples * u->m : c->geom.planes;
}

static int64_t pool_parts(const step *s, const cpu_unit *u)
{
    const pool_step *c = s->data;
    return cvyi_ceil_div(planes_of(c, u), c->per_part);
}

/* Planes of x as words are widened into scratch; so is the result narrowed, or scattered if it is strided. */
static void run_pool(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const pool_step *c = s->data;
    const pool_geom *g = &c->geom;
    const int64_t first = part * c->per_part, n = cvyi_min64(c->per_part, planes_of(c, u) - first);
    const int64_t in = g->in[0] * g->in[1] * g->in[2], out = g->out[0] * g->out[1] * g->out[2];
    float *own = (float *)(void *)scratch, *made = (float *)(void *)(scratch + c->made_at);
    float *dst = cvyi_unit_data(u, c->out);
    const float *src = cvyi_unit_floats(u, c->x, first * in, n * in, (float *)(void *)(scratch + c->widened_at));

    c->fn(g, n, src, dst ? dst + first * out : made, own);
    if (!dst) cvyi_unit_scatter(u, c->out, first * out, n * out, made);
}

/* Room for what a part widens and makes, after the kernel's own. */
static int64_t reserve(pool_step *c)
{
    const pool_geom *g = &c->geom;
    const int64_t in = g->in[0] * g->in[1] * g->in[2], out = g->out[0] * g->out[1] * g->out[2];

    c->widened_at = cvyi_align64((int64_t)cvyi_pool_scratch_bytes(g));
    c->made_at = c->widened_at + (c->halves ? cvyi_align64(cvyi_floats(c->per_part * in)) : 0);
    return c->made_at + (c->aside ? cvyi_align64(cvyi_floats(c->per_part * out)) : 0);
}

static cvy_status make(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    const op_kind kind = cvyi_info(n)->kind;
    void *data;
    step *s = cvyi_add_node_step(b, "pooling", sizeof(pool_step), pool_parts, run_pool, &data);
    pool_step *c;

    if (!s) return CVY_NO_MEMORY;
    c = data;
    cvyi_pool_geom(b->g, n, &c->geom);
    c->fn = kind == KIND_MAXPOOL   ? b->state->pool->max
            : kind == KIND_AVGPOOL ? b->state->pool->avg
                                   : b->state->pool->mean;
    c->x = n->arg[0];
    c->out = n->out;
    c->per_part = cvyi_node_choice(b->out->pass, b->choice, index)->per_part;
    c->halves = b->g->values[b->plan->root[c->x]].dtype != CVY_FLOAT32;
    c->aside =
        cvyi_spot(b, c->out)->kind == SPOT_TENSOR || b->g->values[b->plan->root[c->out]].dtype != CVY_FLOAT32;
    s->scratch = reserve(c);
    return CVY_OK;
}

static int64_t per_part(const question *q)
{
    pool_geom g;
    cvyi_pool_geom(q->plan->graph, &q->plan->graph->nodes[q->index], &g);
    return cvyi_max64(1, 32768 / cvyi_max64(g.in[0] * g.in[1] * g.in[2], 1));
}

static double seconds(const question *q, const cpu_row *row)
{
    (void)row;
    return cvyi_vector_elements(q) * 0.06e-9;
}

static bool words(const builder *b, int index)
{
    (void)b;
    (void)index;
    return true;
}

const cpu_row cvyi_row_pool = {.name = "pooling",
                               .kinds = 1u << KIND_MAXPOOL | 1u << KIND_AVGPOOL | 1u << KIND_ADAPTIVE,
                               .others = "not a pooling",
                               .seconds = seconds,
                               .words = words,
                               .per_part = per_part,
                               .make = make};
