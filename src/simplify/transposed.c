/* transposed.c - transposed convolutions that are something simpler.
 *
 * With stride 1 every output is a sum over a window of x, as in a convolution: of the flipped filter, with inputs
 * and outputs exchanged, and padding dilation * (kernel - 1) - padding. It has the same products, and the faster
 * forms of a convolution. Weights that are not finite would meet the zeros of the padding, where the transposed
 * convolution has no product: they are watched. Small images would mostly see that padding.
 *
 * Of an image of one pixel it is a matrix product: [N,C] with [C, outputs and taps]. A convolution would mostly see
 * padding. */
#include "simplify.h"

/* ---- stride 1 ---- */

/* The most results for each pixel of x: a convolution has so many times the products. */
#define MOST_WASTE 1.5

/* [C][K/groups][kernel] as [K][C/groups][kernel], the kernel backwards. */
static int flipped_weight(editor *e, int w, const conv_geom *c)
{
    static const int64_t axes[] = {2, 3, 4}, order[] = {0, 2, 1, 3, 4, 5};
    const int64_t *kernel = c->kernel + 3 - c->spatial;
    int64_t split[CVY_MAX_RANK] = {c->groups, c->C / c->groups, c->K / c->groups};
    int64_t joined[CVY_MAX_RANK] = {c->K, c->C / c->groups};

    memcpy(split + 3, kernel, (size_t)c->spatial * sizeof *kernel);
    memcpy(joined + 2, kernel, (size_t)c->spatial * sizeof *kernel);
    w = cvyi_edit_list(e, OP_flip, w, c->spatial, axes);
    w = cvyi_edit_list(e, OP_permute, cvyi_edit_reshape(e, w, c->spatial + 3, split), c->spatial + 3, order);
    return cvyi_edit_reshape(e, w, c->spatial + 2, joined);
}

static bool is_convolution(const editor *e, const node *t, const conv_geom *c)
{
    const double in = (double)(c->in[0] * c->in[1] * c->in[2]), out = (double)(c->out[0] * c->out[1] * c->out[2]);
    if (!e->g->values[t->arg[1]].fixed || out > MOST_WASTE * in) return false;
    for (int a = 0; a < 3; a++) {
        const int64_t reach = c->dil[a] * (c->kernel[a] - 1);
        if (c->stride[a] != 1 || c->pad[a] > reach || c->out[a] != c->in[a] + reach - 2 * c->pad[a]) return false;
    }
    return true;
}

bool cvyi_flip_transposed(editor *e, int index)
{
    const node t = e->g->nodes[index];
    int64_t padding[3];
    conv_geom c;
    node_spec s;
    int y;

    if (cvyi_info(&t)->kind != KIND_CONVT || e->mode == REWRITE_CAREFUL) return false;
    cvyi_conv_geom(e->g, &t, &c);
    if (!is_convolution(e, &t, &c)) return false;
    for (int a = 0; a < 3; a++) padding[a] = c.dil[a] * (c.kernel[a] - 1) - c.pad[a];
    cvyi_spec_init(&s, (op_id)(OP_conv1d + c.spatial - 1));
    s.n_args = 3;
    s.arg[0] = t.arg[0];
    s.arg[1] = flipped_weight(e, t.arg[1], &c);
    s.arg[2] = t.arg[2];
    cvyi_spec_numbers(&s, 0, 1, &c.K);
    cvyi_spec_numbers(&s, 1, c.spatial, c.kernel + 3 - c.spatial);
    cvyi_spec_numbers(&s, 3, c.spatial, padding + 3 - c.spatial);
    cvyi_spec_numbers(&s, 4, c.spatial, c.dil + 3 - c.spatial);
    cvyi_spec_numbers(&s, 5, 1, &c.groups);
    cvyi_spec_numbers(&s, 6, 1, &(int64_t){t.arg[2] != CVY_NONE});
    if (s.arg[1] == CVY_NONE) return false; /* e->st says why */
    cvyi_edit_watch(e, t.arg[1]);
    y = cvyi_edit_add(e, &s);
    cvyi_edit_replace(e, t.out, y);
    return true;
}

/* ---- one pixel ---- */

static bool is_product(const editor *e, const node *t, const conv_geom *c)
{
    if (c->groups != 1 || cvyi_shape_of(e->g, t->arg[0])->rank != c->spatial + 2) return false;
    for (int a = 0; a < 3; a++)
        if (c->in[a] != 1 || c->pad[a] || c->out[a] != c->kernel[a]) return false;
    return true;
}

bool cvyi_transposed_pixel(editor *e, int index)
{
    const node t = e->g->nodes[index];
    conv_geom c;
    int64_t taps, image[CVY_MAX_RANK];
    int y;

    if (cvyi_info(&t)->kind != KIND_CONVT) return false;
    cvyi_conv_geom(e->g, &t, &c);
    if (!is_product(e, &t, &c)) return false;
    taps = c.kernel[0] * c.kernel[1] * c.kernel[2];
    image[0] = c.N, image[1] = c.K;
    memcpy(image + 2, c.kernel + 3 - c.spatial, (size_t)c.spatial * sizeof *image);
    y = cvyi_edit_binary(e, OP_matmul, cvyi_edit_reshape(e, t.arg[0], 2, (const int64_t[]){c.N, c.C}),
                         cvyi_edit_reshape(e, t.arg[1], 2, (const int64_t[]){c.C, c.K * taps}));
    if (y != CVY_NONE && t.arg[2] != CVY_NONE) cvyi_edit_dtype(e, y, CVY_FLOAT32); /* rounded after the bias */
    y = cvyi_edit_reshape(e, y, c.spatial + 2, image);
    if (t.arg[2] != CVY_NONE) y = cvyi_edit_binary(e, OP_add, y, cvyi_edit_per_channel(e, t.arg[2], 0, c.spatial));
    if (y == CVY_NONE) return false; /* e->st says why */
    cvyi_edit_replace(e, t.out, y);
    return true;
}
