/* parse_hint.c - hints at the three numbers of torch.nn's convolutions. nn.Conv2d(8,64,3) begins with the input's
 * channels, chain text does not. */
#include "parse.h"

/* Do the three or more positional numbers of a convolution begin with the input's channels? */
static bool begins_with_channels(const cvy_graph *g, const node_spec *s, int positional)
{
    const shape *x = cvyi_shape_of(g, s->arg[0]);
    const op_info *op = &cvyi_ops[s->op];
    const bool conv = op->kind == KIND_CONV || op->kind == KIND_CONVT;

    return conv && positional >= 3 && x->rank > op->spatial && s->attr[0].i[0] == x->dim[x->rank - op->spatial - 1];
}

/* Are the second and third number more likely output channels and a kernel size than a kernel size and a stride? */
static bool kernel_is_doubtful(const attr_value *a)
{
    const int64_t kernel = a[1].i[0], stride = a[2].i[0];
    return kernel > stride && (kernel >= 8 || (kernel == 6 && stride % 2 == 1));
}

static cvy_status add_hint(cvy_status st, const op_info *op, const attr_value *a)
{
    return cvyi_fail_more(st, "; output channels come first here: torch.nn's (%lld,%lld,%lld) is %s(%lld,%lld)",
                          (long long)a[0].i[0], (long long)a[1].i[0], (long long)a[2].i[0], op->name,
                          (long long)a[1].i[0], (long long)a[2].i[0]);
}

cvy_status cvyi_hinted(cvy_graph *g, const node_spec *s, int positional, cvy_status st)
{
    const shape *x = cvyi_shape_of(g, s->arg[0]);
    const bool channels = begins_with_channels(g, s, positional);
    const node *earlier = g->doubtful ? &g->nodes[g->doubtful - 1] : NULL;

    if (st && channels && s->attr[2].i[0] <= x->dim[x->rank - 1])
        st = add_hint(st, &cvyi_ops[s->op], s->attr);
    else if (st && earlier)
        st = add_hint(st, cvyi_info(earlier), earlier->attr);
    else if (!st && channels && !earlier && kernel_is_doubtful(s->attr))
        g->doubtful = g->n_nodes;
    return st;
}
