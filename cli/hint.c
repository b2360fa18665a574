/* hint.c - a note about a chain that is legal but probably not what was meant.
 *
 * nn.Conv2d(3, 64, 3) begins with the input's channels, chain text does not: conv2d(3,64,3) on an image of 3
 * channels has 3 output channels, a kernel of 64 and stride 3. If the kernel does not fit, the parser refuses it;
 * if it does, only this note shows the mistake. */
#include <stdio.h>
#include "../src/graph/graph.h"
#include "cli.h"

void hint(const cvy_graph *g)
{
    const node *n = g->doubtful ? &g->nodes[g->doubtful - 1] : NULL;
    const attr_value *a = n ? n->attr : NULL;

    if (!n) return;
    fprintf(
        stderr, "convoy: note: %s has kernel %lld and stride %lld; torch.nn's (%lld,%lld,%lld) is %s(%lld,%lld)\n",
        g->values[n->out].name, (long long)a[1].i[0], (long long)a[2].i[0], (long long)a[0].i[0],
        (long long)a[1].i[0], (long long)a[2].i[0], cvyi_info(n)->name, (long long)a[1].i[0], (long long)a[2].i[0]);
}
