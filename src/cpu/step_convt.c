/* step_convt.c - transposed convolution: its steps, and its row in the table of kernels. */
#include "convt.h"
#include "choice.h"

typedef struct convt_step {
    const convt_plan *plan; /* of the choice */
    int x, weight, bias, out;
    int64_t packed;
} convt_step;

static void pack_convt(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const convt_step *c = s->data;
    (void)part;
    (void)scratch;
    cvyi_convt_pack(c->plan, cvyi_unit_data(u, c->weight), cvyi_packed(u, c->packed));
}

static void print_convt(const step *s, text *t)
{
    const convt_step *c = s->data;
    const conv_geom *g = &c->plan->g;
    cvyi_text_add(t, "convt: %lld x %lld / %lld", (long long)g->K, (long long)g->C, (long long)g->groups);
    for (int a = 0; a < 3; a++)
        cvyi_text_add(t, ", %lld stride %lld pad %lld dil %lld", (long long)g->kernel[a], (long long)g->stride[a],
                      (long long)g->pad[a], (long long)g->dil[a]);
    cvyi_text_add(t, "; %d at %lld\n", c->weight, (long long)c->packed);
}

static int64_t convt_parts(const step *s, const cpu_unit *u)
{
    const convt_step *c = s->data;
    return cvyi_unit_batch(u, c->plan->g.N) * c->plan->parts;
}

static void run_convt(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const convt_step *c = s->data;
    const conv_geom *g = &c->plan->g;
    const int64_t sample = part / c->plan->parts;
    const convt_job job = {
        .src = cvyi_unit_data(u, c->x) + sample * g->C * g->in[0] * g->in[1] * g->in[2],
        .packed = cvyi_packed(u, c->packed),
        .bias = cvyi_unit_optional(u, c->bias),
        .dst = cvyi_unit_data(u, c->out) + sample * g->K * g->out[0] * g->out[1] * g->out[2],
    };
    cvyi_convt_run(c->plan, &job, part % c->plan->parts, (float *)(void *)scratch);
}

static cvy_status make(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    void *data;
    step *s = cvyi_add_node_step(b, "transposed convolution", sizeof(convt_step), convt_parts, run_convt, &data);
    step *pack;
    void *unused;
    convt_step *c;

    if (!s) return CVY_NO_MEMORY;
    c = data;
    c->plan = &cvyi_own_choice(b->out->pass, b->choice, index)->how.convt;
    c->x = n->arg[0], c->weight = n->arg[1], c->bias = n->arg[2], c->out = n->out;
    c->packed = cvyi_packed_room(b, c->weight, (int64_t)cvyi_convt_packed_bytes(c->plan));
    s->scratch = (int64_t)cvyi_convt_scratch_bytes(c->plan);
    pack = cvyi_add_pack(b, c->weight, 1, &unused);
    if (!pack) return CVY_NO_MEMORY;
    pack->data = c;
    pack->parts = cvyi_one_part;
    pack->run = pack_convt;
    pack->print = print_convt;
    return CVY_OK;
}

static double seconds(const question *q, const cpu_row *row)
{
    (void)row;
    return cvyi_product_seconds(q, 0.5);
}

static void decide(const question *q, cpu_choice *c)
{
    const cpu_state *s = q->plan->state;
    cvyi_convt_plan(s->isa, &q->conv, &c->how.convt);
}

const cpu_row cvyi_row_conv_transposed = {.name = "transposed convolution",
                                          .kinds = 1u << KIND_CONVT,
                                          .others = "not a transposed convolution",
                                          .seconds = seconds,
                                          .decide = decide,
                                          .make = make};
