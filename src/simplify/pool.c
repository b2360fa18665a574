/* pool.c - maximum pooling moved towards the producer: fewer values to normalise and to activate.
 *
 *   max_pool(f(x)) = f(max_pool(x))                    f non-decreasing
 *   max_pool(norm(conv(x, W, b))):  the norm is an affine per channel, increasing or decreasing by the sign s of
 *     its weight. With s folded into the convolution, c = conv(x, s W, s b) = s y, the largest s y is always the
 *     right one: norm_apply(s * max_pool(c), norm_stats(c, sign = s)). Only the statistics and the pooling then
 *     read the convolution's own result, so it need not be stored.
 *
 * A NaN in a window wins on both sides; padding never does (max_pool pads with -inf and no window is all padding).
 */
#include "simplify.h"

/* No window lies entirely in the padding: with dilation one might, and f must not be applied to its -inf. */
static bool windows_see_x(const cvy_graph *g, const node *pool)
{
    pool_geom p;
    cvyi_pool_geom(g, pool, &p);
    for (int a = 0; a < 3; a++)
        if (p.pad[a] && p.dil[a] > 1) return false;
    return true;
}

static int pool_of(editor *e, const node *pool, int x)
{
    int args[MAX_ARGS] = {x, CVY_NONE, CVY_NONE, CVY_NONE, CVY_NONE};
    return cvyi_edit_like(e, pool, args);
}

bool cvyi_pool_before_monotone(editor *e, int index)
{
    const node n = e->g->nodes[index];
    const node *maker = cvyi_maker(e->g, n.arg[0]);
    node f;
    if (cvyi_info(&n)->kind != KIND_MAXPOOL || !maker || !(cvyi_info(maker)->flags & FLAG_MONO)) return false;
    if (cvyi_readers(e, n.arg[0]) != 1 || !windows_see_x(e->g, &n)) return false;
    f = *maker;
    f.arg[0] = pool_of(e, &n, f.arg[0]);
    cvyi_edit_replace(e, n.out, cvyi_edit_like(e, &f, f.arg));
    return true;
}

/* The statistics node of an apply, if conv's result is read only by the two of them. */
static const node *lone_stats(const editor *e, const node *apply)
{
    const node *stats = cvyi_maker(e->g, apply->arg[1]);
    if (!stats || stats->op != OP_norm_stats || stats->arg[0] != apply->arg[0] || stats->arg[1] != CVY_NONE)
        return NULL;
    return cvyi_readers(e, apply->arg[0]) == 2 && cvyi_readers(e, stats->out) == 1 ? stats : NULL;
}

static bool whole_channels(const cvy_graph *g, const node *apply)
{
    const shape *s = cvyi_shape_of(g, apply->out);
    norm_geom geom;
    int64_t inner = 1;
    cvyi_norm_geom(g, apply, &geom);
    for (int i = 2; i < s->rank; i++) inner *= s->dim[i];
    return s->rank > 2 && geom.groups * geom.chan == s->dim[1] && geom.inner == inner;
}

/* Do the three see channels in the same place? Without a batch a convolution or a pooling has them first. */
static bool same_channels(const cvy_graph *g, const node *conv, const node *pool)
{
    const int rank = cvyi_shape_of(g, conv->out)->rank;
    return cvyi_info(conv)->spatial + 2 == rank && cvyi_info(pool)->spatial + 2 == rank;
}

static int signed_conv(editor *e, const node *conv, int sign)
{
    node c = *conv;
    const int spatial = cvyi_info(conv)->spatial;
    const bool transposed = cvyi_info(conv)->kind == KIND_CONVT;
    const int as_weight = cvyi_edit_per_channel(e, sign, transposed, spatial + !transposed);
    c.arg[1] = cvyi_edit_binary(e, OP_mul, conv->arg[1], as_weight);
    if (conv->arg[2] != CVY_NONE) c.arg[2] = cvyi_edit_binary(e, OP_mul, conv->arg[2], sign);
    return cvyi_edit_like(e, &c, c.arg);
}

bool cvyi_pool_before_norm(editor *e, int index)
{
    const node n = e->g->nodes[index];
    const node *maker = cvyi_maker(e->g, n.arg[0]), *producer, *of;
    node apply, stats, conv;
    int sign, c, pooled;
    int64_t inner = 1;

    if (cvyi_info(&n)->kind != KIND_MAXPOOL || !maker || maker->op != OP_norm_apply) return false;
    if (cvyi_readers(e, n.arg[0]) != 1 || !whole_channels(e->g, maker) || !windows_see_x(e->g, &n)) return false;
    producer = cvyi_maker(e->g, maker->arg[0]);
    of = lone_stats(e, maker);
    if (!of || !producer || cvyi_info(producer)->kind != KIND_CONV) return false;
    if (!same_channels(e->g, producer, &n)) return false;
    /* An infinite weight gives NaN for every x with the mean's sign, so the affine is not monotone. */
    if (maker->arg[2] != CVY_NONE && e->mode == REWRITE_CAREFUL) return false;
    if (maker->arg[2] != CVY_NONE && (!e->g->values[maker->arg[2]].fixed || !e->g->values[producer->arg[1]].fixed))
        return false;
    apply = *maker, stats = *of, conv = *producer;
    c = conv.out;
    pooled = CVY_NONE;
    if (apply.arg[2] != CVY_NONE) {
        cvyi_edit_watch(e, apply.arg[2]);
        sign = cvyi_edit_unary(e, OP_sign_or_one, apply.arg[2]);
        c = signed_conv(e, &conv, sign);
        stats.arg[0] = c;
        stats.arg[1] = sign;
        apply.arg[1] = cvyi_edit_like(e, &stats, stats.arg);
        pooled = cvyi_edit_binary(e, OP_mul, pool_of(e, &n, c),
                                  cvyi_edit_per_channel(e, sign, 0, cvyi_info(&conv)->spatial));
    } else {
        pooled = pool_of(e, &n, c); /* no weight: the affine rises */
    }
    if (pooled == CVY_NONE) return false;
    for (int i = 2; i < cvyi_shape_of(e->g, pooled)->rank; i++) inner *= cvyi_shape_of(e->g, pooled)->dim[i];
    apply.arg[0] = pooled;
    apply.attr[2].i[0] = inner;
    cvyi_edit_replace(e, n.out, cvyi_edit_like(e, &apply, apply.arg));
    return true;
}
