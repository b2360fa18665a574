/* step_gather.c - reductions and softmax by gathering, over any dimensions: their step, and their row in the table
 * of kernels. */
#include <math.h>
#include "choice.h"
#include "program.h"

typedef struct gather_step {
    op_id op;
    int x, out;
    bool keeps; /* softmax: the result has every element */
    int n_free, n_gone;
    int64_t free_dim[CVY_MAX_RANK], free_stride[CVY_MAX_RANK]; /* of x */
    int64_t gone_dim[CVY_MAX_RANK], gone_stride[CVY_MAX_RANK];
    int64_t results, reduced;
} gather_step;

static int64_t offset_of(int n, const int64_t *dim, const int64_t *stride, int64_t i)
{
    int64_t at = 0;
    for (int d = n - 1; d >= 0; d--) {
        at += i % dim[d] * stride[d];
        i /= dim[d];
    }
    return at;
}

static int64_t gather_parts(const step *s, const cpu_unit *u)
{
    const int64_t results = ((const gather_step *)s->data)->results;
    return u->pass->samples > 1 ? results / u->pass->samples * u->m : results;
}

/* Runs along the last reduced dimension, into which lower_gather joined its neighbours. */
static void gather_row(const gather_step *c, const cpu_vector_kernels *vec, const float *x, float *row)
{
    const int last = c->n_gone - 1;
    const int64_t n = last < 0 ? 1 : c->gone_dim[last], stride = last < 0 ? 1 : c->gone_stride[last];
    for (int64_t i = 0; i < c->reduced; i += n) {
        const float *from = x + offset_of(last, c->gone_dim, c->gone_stride, i / n);
        if (stride == 1)
            vec->copy(row + i, from, n);
        else
            for (int64_t j = 0; j < n; j++) row[i + j] = from[j * stride];
    }
}

static void run_gather(const step *s, const cpu_unit *u, int64_t part, char *scratch)
{
    const gather_step *c = s->data;
    const cpu_vector_kernels *vec = u->run->state->vec;
    const int64_t base = offset_of(c->n_free, c->free_dim, c->free_stride, part);
    const float *x = cvyi_unit_data(u, c->x) + base;
    float *row = (float *)(void *)scratch, *out = cvyi_unit_data(u, c->out);

    gather_row(c, vec, x, row);
    if (!c->keeps) {
        out[part] = cvyi_reduce_row(vec->reduce, c->op, row, c->reduced);
        return;
    }
    const cpu_max_sum_exp e = vec->reduce->max_sum_exp(row, c->reduced);
    for (int64_t i = 0; i < c->reduced; i++) {
        const int64_t at = base + offset_of(c->n_gone, c->gone_dim, c->gone_stride, i);
        out[at] = (float)(c->op == OP_log_softmax ? (double)row[i] - e.max - log(e.sum)
                                                  : exp((double)row[i] - e.max) / e.sum);
    }
}

static cvy_status make(builder *b, int index)
{
    const node *n = &b->g->nodes[index];
    const shape *x = cvyi_shape_of(b->g, n->arg[0]);
    const bool keeps = cvyi_info(n)->kind == KIND_SOFTMAX;
    const unsigned gone = keeps ? (x->rank ? 1u << cvyi_softmax_dim(b->g, n) : 0) : cvyi_reduced_dims(b->g, n);
    int64_t strides[CVY_MAX_RANK];
    void *data;
    step *s = cvyi_add_node_step(b, "reduction", sizeof(gather_step), gather_parts, run_gather, &data);
    gather_step *c;

    if (!s) return CVY_NO_MEMORY;
    c = data;
    *c = (gather_step){.op = n->op, .x = n->arg[0], .out = n->out, .keeps = keeps, .results = 1, .reduced = 1};
    cvyi_contiguous_strides(x, strides);
    for (int d = 0; d < x->rank; d++) {
        const bool is_gone = gone >> d & 1, joins = d && is_gone == (gone >> (d - 1) & 1);
        int *count = is_gone ? &c->n_gone : &c->n_free;
        int64_t *dims = is_gone ? c->gone_dim : c->free_dim;
        if (!joins) dims[(*count)++] = 1;
        dims[*count - 1] *= x->dim[d];
        (is_gone ? c->gone_stride : c->free_stride)[*count - 1] = strides[d];
        *(is_gone ? &c->reduced : &c->results) *= x->dim[d];
    }
    s->scratch = cvyi_floats(cvyi_max64(c->reduced, 1));
    return CVY_OK;
}

static const char *refuse(const question *q, const cpu_row *row)
{
    (void)row;
    return cvyi_sink_fits(q->plan, q->pass, q->index) ? "a program computes it on the fly" : NULL;
}

const cpu_row cvyi_row_gather = {.name = "reduction by gathering",
                                 .kinds = 1u << KIND_REDUCE | 1u << KIND_SOFTMAX,
                                 .others = "not a reduction or softmax",
                                 .refuse = refuse,
                                 .seconds = cvyi_program_seconds,
                                 .make = make};
