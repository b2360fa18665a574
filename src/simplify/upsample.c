/* upsample.c - nearest upsampling by 2 before a 3x3 convolution (3, 3x3x3): a transposed convolution of the small
 * image.
 *
 * The upsampled image has every pixel twice along an axis, so under the three taps of an output lie two pixels of x
 * at most, one of them under two taps. Output o meets x[i] under tap t = o + 1 - 2i of a filter of four,
 *
 *     t      0        1             2             3
 *     w4[t]  w[2]     w[1] + w[2]   w[0] + w[1]   w[0]
 *
 * which is a transposed convolution of stride 2 and padding 1. Zero padding stays zero padding. It has 4/9 of the
 * products (1/2 for one axis, 8/27 for three), and the upsampled image is never computed.
 *
 * Rounding differs: the sums of weights are rounded once per axis, in float32. A pixel that is not finite gives one
 * product instead of two, so the result may be an infinity instead of a NaN. On the CPU, where such values are
 * checked, the rewrite does not apply (Winograd forms are as fast there), nor to short sums: kernels for few
 * channels take no transposed convolutions. */
#include "simplify.h"

enum { LEAST_CHANNELS = 256 };

/* Three taps along an axis become four: the flipped filter, plus itself shifted by one. */
static int four_taps(editor *e, int flipped, int spatial, int axis)
{
    int64_t after[2 * MAX_SPATIAL] = {0}, before[2 * MAX_SPATIAL] = {0};
    const int at = 2 * (spatial - 1 - axis); /* the last axis comes first */

    before[at] = after[at + 1] = 1;
    return cvyi_edit_binary(e, OP_add, cvyi_edit_list(e, OP_pad, flipped, 2 * spatial, after),
                            cvyi_edit_list(e, OP_pad, flipped, 2 * spatial, before));
}

/* [K][C][3]... as [C][K][4]... */
static int transposed_weight(editor *e, int w, int spatial)
{
    static const int64_t axes[] = {2, 3, 4}, order[] = {1, 0, 2, 3, 4};

    w = cvyi_edit_list(e, OP_permute, cvyi_edit_list(e, OP_flip, w, spatial, axes), spatial + 2, order);
    for (int a = 0; a < spatial; a++) w = four_taps(e, w, spatial, a);
    return w;
}

static bool fits(const editor *e, const node *conv, const node *up, const conv_geom *c)
{
    const shape *x = cvyi_shape_of(e->g, up->arg[0]), *y = cvyi_shape_of(e->g, up->out);

    if (x->rank != c->spatial + 2 || !e->g->values[conv->arg[1]].fixed || cvyi_readers(e, up->out) != 1)
        return false;
    if (c->groups != 1 || c->C < LEAST_CHANNELS || c->K < LEAST_CHANNELS) return false;
    for (int a = 3 - c->spatial; a < 3; a++)
        if (c->kernel[a] != 3 || c->stride[a] != 1 || c->dil[a] != 1 || c->pad[a] != 1) return false;
    for (int d = 2; d < x->rank; d++)
        if (y->dim[d] != 2 * x->dim[d]) return false;
    return true;
}

bool cvyi_upsample_conv(editor *e, int index)
{
    const node conv = e->g->nodes[index];
    const node *maker = cvyi_info(&conv)->kind == KIND_CONV ? cvyi_maker(e->g, conv.arg[0]) : NULL;
    conv_geom c;
    node_spec s;
    int x, y;

    if (!maker || maker->op != OP_interpolate || e->mode != REWRITE_TRUST) return false;
    cvyi_conv_geom(e->g, &conv, &c);
    if (!fits(e, &conv, maker, &c)) return false;
    x = maker->arg[0];
    cvyi_spec_init(&s, (op_id)(OP_conv_transpose1d + c.spatial - 1));
    s.n_args = 3;
    s.arg[0] = x;
    s.arg[1] = transposed_weight(e, conv.arg[1], c.spatial);
    s.arg[2] = conv.arg[2];
    cvyi_spec_numbers(&s, 0, 1, &(int64_t){c.K});
    cvyi_spec_numbers(&s, 1, 1, &(int64_t){4});
    cvyi_spec_numbers(&s, 2, 1, &(int64_t){2});
    cvyi_spec_numbers(&s, 3, 1, &(int64_t){1});
    cvyi_spec_numbers(&s, 7, 1, &(int64_t){conv.arg[2] != CVY_NONE});
    if (s.arg[1] == CVY_NONE) return false; /* e->st says why */
    y = cvyi_edit_add(e, &s);
    cvyi_edit_replace(e, conv.out, y);
    return true;
}
