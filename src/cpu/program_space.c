/* program_space.c - the space a program runs over. See program_build.h. */
#include <string.h>
#include "program_build.h"

/* A copy in row-major order needs no dimensions but the samples. */
space cvyi_flat_space(const site *at, int v)
{
    const int64_t samples = at->pass->samples, all = cvyi_elements(cvyi_shape_of(at->plan->graph, v));
    space out = {.n = 2, .channel = -1, .by_sample = samples > 1, .flat = true};
    out.dim[0] = out.by_sample ? at->chunk : 1;
    out.dim[1] = out.by_sample ? all / samples : all;
    out.shape = (shape){2, {out.by_sample ? samples : 1, out.dim[1]}};
    return out;
}

space cvyi_space_of(const pass *p, int64_t chunk, const shape *s)
{
    space out = {.by_sample = p->samples > 1, .shape = *s};
    out.dim[out.n++] = out.by_sample ? chunk : 1;
    for (int i = out.by_sample; i < s->rank; i++) out.dim[out.n++] = s->dim[i];
    out.channel = out.by_sample ? 1 : 2;
    if (out.channel >= out.n) out.channel = -1;
    return out;
}

void cvyi_strides_in(const cvy_graph *g, const space *sp, int v, int64_t *out)
{
    const shape *from = sp->flat ? &sp->shape : cvyi_shape_of(g, v);
    int64_t own[CVY_MAX_RANK], read[CVY_MAX_RANK];
    cvyi_contiguous_strides(from, own);
    cvyi_broadcast_strides(from, own, &sp->shape, read);
    memset(out, 0, PROG_DIMS * sizeof *out);
    for (int i = 0; i < sp->shape.rank; i++) out[i + (!sp->by_sample && !sp->flat)] = read[i];
}

/* ---- sinks ---- */

void cvyi_sink_dims(const space *sp, int *first, int *end)
{
    for (*first = 0; *first < sp->n && !(sp->reduced >> *first & 1); (*first)++) continue;
    for (*end = *first; sp->reduced >> *end & 1; (*end)++) continue;
}

bool cvyi_mark_reduced(const cvy_graph *g, const node *n, space *sp)
{
    const unsigned mask =
        cvyi_info(n)->kind == KIND_SOFTMAX ? 1u << cvyi_softmax_dim(g, n) : cvyi_reduced_dims(g, n);
    int first, end;

    sp->reduced = mask << !sp->by_sample;
    cvyi_sink_dims(sp, &first, &end);
    return mask && !sp->flat && !(sp->reduced >> end) && first > 0;
}

bool cvyi_sink_fits(const cvy_plan *p, const pass *s, int index)
{
    const node *n = &p->graph->nodes[index];
    const op_kind kind = cvyi_info(n)->kind;
    space sp;
    if (kind != KIND_REDUCE && kind != KIND_SOFTMAX) return false;
    sp = cvyi_space_of(s, 1,
                       cvyi_shape_of(p->graph, n->arg[0])); /* whatever the chunk: it is not a reduced dimension */
    return sp.shape.rank > 0 && cvyi_elements(&sp.shape) > 0 && cvyi_mark_reduced(p->graph, n, &sp);
}

/* ---- collapsing the space ---- */

/* May dimension d join the run that is `inner` long so far? */
static bool joins(const assembler *s, int d, int64_t inner, const bool *scalar, bool started)
{
    for (int o = 0; o < s->p->n_operands; o++) {
        const int64_t stride = s->strides[o][d];
        if (!started ? stride > 1 : scalar[o] ? stride != 0 : stride != inner) return false;
    }
    return true;
}

void cvyi_split_last(assembler *s)
{
    space *sp = &s->sp;
    int last;
    int64_t outer;
    if (!s->run_limit) return;
    while (sp->n > 2 && sp->dim[sp->n - 1] == 1) sp->n--; /* these make no difference */
    sp->reduced &= (1u << sp->n) - 1;
    if (sp->channel >= sp->n) sp->channel = -1;
    last = sp->n - 1;
    outer = sp->dim[last] / s->run_limit;
    if (outer <= 1 || sp->dim[last] % s->run_limit || sp->n == PROG_DIMS) return;
    if (sp->channel == last) sp->channel = -1;
    sp->reduced |= (sp->reduced >> last & 1) << sp->n;
    sp->dim[last] = outer;
    sp->dim[sp->n++] = s->run_limit;
    for (int o = 0; o < s->p->n_operands; o++) {
        s->strides[o][last + 1] = s->strides[o][last];
        s->strides[o][last] *= s->run_limit;
    }
}

void cvyi_collapse(assembler *s, int lowest)
{
    program *p = s->p;
    bool scalar[PROG_OPERANDS] = {false}, started = false;
    int d = s->sp.n - 1;

    p->inner = 1;
    for (; d >= lowest; d--) {
        const int64_t extent = s->sp.dim[d];
        if (extent == 1) continue;
        if (s->run_limit && (p->inner == s->run_limit || p->inner * extent > s->run_limit)) break;
        if (!joins(s, d, p->inner, scalar, started)) break;
        if (!started)
            for (int o = 0; o < p->n_operands; o++) scalar[o] = s->strides[o][d] == 0;
        started = true;
        p->inner *= extent;
    }
    p->n_outer = d + 1;
    for (int i = 0; i <= d; i++) p->outer[i] = s->sp.dim[i];
    for (int o = 0; o < p->n_operands; o++) {
        p->operands[o].scalar = started && scalar[o];
        memcpy(p->operands[o].stride, s->strides[o], sizeof s->strides[o]);
    }
}
