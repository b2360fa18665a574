/* hint.c - a note about a chain that is legal but probably not what was meant.
 *
 * nn.Conv2d(3, 64, 3) begins with the input's channels, chain text does not: conv2d(3,64,3) on an image of 3
 * channels has 3 output channels, a kernel of 64 and stride 3. If the kernel does not fit, the parser refuses it;
 * if it does, only this note shows the mistake. */
#include <stdio.h>
#include "../src/graph/graph.h"
#include "cli.h"

enum { LARGE_KERNEL = 8 };

/* As many output channels as input channels, and a large kernel with a smaller stride beyond 1. */
static bool looks_like_torch(const cvy_graph *g, const node *n)
{
    const op_info *op = cvyi_info(n);
    const shape *x = cvyi_shape_of(g, n->arg[0]);
    const attr_value *a = n->attr;

    if (op->kind != KIND_CONV && op->kind != KIND_CONVT) return false;
    return a[0].i[0] == x->dim[x->rank - op->spatial - 1] && a[1].i[0] >= LARGE_KERNEL && a[2].i[0] > 1 &&
           a[1].i[0] > a[2].i[0];
}

void hint(const cvy_graph *g)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const node *n = &g->nodes[i];
        const long long kernel = n->attr[1].i[0], stride = n->attr[2].i[0];
        if (!looks_like_torch(g, n)) continue;
        fprintf(stderr,
                "convoy: note: %s has kernel %lld and stride %lld; torch.nn's (%lld,%lld,%lld) is %s(%lld,%lld)\n",
                g->values[n->out].name, kernel, stride, (long long)n->attr[0].i[0], kernel, stride,
                cvyi_info(n)->name, kernel, stride);
    }
}
