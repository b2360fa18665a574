/* move.c - operators that move elements: every argument's window of the result, one element after the other. */
#include "ref.h"

static void move_argument(const ref_call *c, int arg)
{
    const shape *x = ref_shape(c, arg);
    int64_t x_strides[CVY_MAX_RANK], y_strides[CVY_MAX_RANK];
    shape window;
    move_geom m;

    cvyi_move_geom(c->g, c->n, arg, &m);
    cvyi_contiguous_strides(x, x_strides);
    cvyi_contiguous_strides(ref_dst_shape(c), y_strides);
    window.rank = m.rank;
    for (int d = 0; d < m.rank; d++) window.dim[d] = m.count[d];
    for (int64_t i = 0; i < cvyi_elements(&window); i++) {
        int64_t from = 0, to = 0, rest = i;
        for (int d = m.rank - 1; d >= 0; d--) {
            const int64_t k = rest % m.count[d];
            rest /= m.count[d];
            to += (m.at[d] + k) * y_strides[d];
            from += (m.start[d] + k * m.times[d] / m.over[d]) * x_strides[m.from[d]];
        }
        c->dst[to] = c->arg[arg][from];
    }
}

void cvyi_ref_move(const ref_call *c)
{
    move_geom m;

    cvyi_move_geom(c->g, c->n, 0, &m);
    for (int64_t i = 0; m.fills && i < cvyi_elements(ref_dst_shape(c)); i++) c->dst[i] = m.fill;
    for (int a = 0; a < c->n->n_args; a++)
        if (c->n->arg[a] != CVY_NONE) move_argument(c, a);
}
