/* conv.c - the convolution algorithms: when they are legal, what they cost, and how their work is cut into parts.
 * All that depends on the instruction set are the numbers in cpu_conv_kernels. */
#include <string.h>
#include "conv.h"

enum {
    PART_FLOPS = 4000000,   /* a part should not be smaller: about 40 us on one core */
    PARTS_WANTED = 16,      /* of one sample: enough for 16 threads */
    BATCH_PARTS = 64,       /* of all samples: where there are so many, channels are not split */
    COPY_CHANNELS = 64,     /* a copy of the input serves at least so many output channels */
    PATCH_CHANNELS = 128,   /* patches serve at least so many output channels */
    L2_BYTES = 1 << 20,     /* a usual L2 */
    VIEW_BYTES = 256 << 10, /* input of a part: a quarter of a usual L2 */
    FLAT_FLOATS = 4096,     /* of one channel of a flat band, kept until its rows are separated */
    CHUNK_MOST = 96,        /* Winograd: input channels transformed at once (AVX-512: 2.3 KiB each in L2) */
    SUMS_BYTES = 384 << 10, /* Winograd: products kept while chunks of input channels add up */
    GROUP_BYTES = 704 << 10 /* Winograd: transformed input and products of strips that go together, in L2 */
};

static const char *legal_direct(const conv_geom *g)
{
    (void)g;
    return NULL;
}

static const char *legal_depthwise(const conv_geom *g)
{
    if (g->C != g->groups) return "a group has more than 1 input channel, depthwise needs 1";
    return cvyi_conv_taps(g) <= CONV_CHAIN ? NULL : "the kernel has more than 256 taps, one chain for depthwise";
}

static const char *legal_patches(const conv_geom *g)
{
    return cvyi_conv_taps(g) <= PATCH_TERMS ? NULL : "the kernel has more than 256 taps, one chain for patches";
}

static const char *legal_winograd(const conv_geom *g)
{
    if (g->kernel[1] != 3 || g->kernel[2] != 3)
        return "the kernel is not 3x3 in its last two axes, Winograd needs that";
    if (g->groups != 1) return "there are groups, Winograd needs 1";
    if (g->stride[1] != 1 || g->stride[2] != 1) return "the stride is not 1, Winograd needs that";
    return NULL;
}

static double direct_flops(const conv_geom *g)
{
    return 2.0 * (double)(g->K * g->out[0] * g->out[1] * g->out[2]) *
           (double)(g->C / g->groups * cvyi_conv_taps(g));
}

/* Is x copied before a direct form reads it (conv_view.h)? */
static bool needs_copy(const conv_geom *g)
{
    return g->stride[1] > 1 || g->stride[2] > 1 || g->pad[0] || g->pad[1] || g->pad[2];
}

/* Does every part copy the input that it reads first? Parts that differ only in channels make the same copy. */
static bool copies_view(const conv_tiling *t)
{
    if (t->algo == CONV_PATCHES) return true;
    return t->algo == CONV_DIRECT && t->geom.groups == 1 && needs_copy(&t->geom);
}

/* Lanes computed of one output plane by bands of rows, each `pitch` lanes from the next, or on its own; those that
 * are dropped are included. */
static double plane_lanes(const conv_tiling *t, int64_t pitch, bool flat)
{
    const int64_t vl = t->kernels->vl, P = t->geom.out[1], Q = t->geom.out[2];
    const int64_t whole = t->bands_per_plane - 1, last = P - whole * t->rows;
    if (!flat) return (double)(P * cvyi_round_up(Q, vl));
    return (double)(whole * cvyi_round_up((t->rows - 1) * pitch + Q, vl) +
                    cvyi_round_up((last - 1) * pitch + Q, vl));
}

/* Floats that all parts copy of x, each as often as it is copied. */
static double copied_floats(const conv_tiling *t)
{
    const conv_geom *g = &t->geom;
    const int64_t times = t->algo == CONV_DIRECT && g->groups == 1 ? t->parts : t->bands * g->groups;
    return needs_copy(g) ? (double)(times * cvyi_ceil_div(g->out[2], t->cols) * t->view_floats) : 0;
}

/* Register tiles run at 0.96 of the peak and take 40 FMAs to begin and end, blocks of channels of a band 400; a
 * float of the view's copy takes the time of 8 lanes of an FMA, of 32 where it is gathered one by one; weights come
 * from the outer cache once. 8 -> 64, 3x3, 126x126 on AVX-512 at 116 GFLOP/s: rows are 128 lanes, 8 x 3 tiles of 72
 * terms, 149 MFLOP and 3 % / 0.96 / 116e9 = 1.38 ms. 256 -> 512, 4x4, stride 2, 16x16 outputs: bands of 2 rows, 33
 * of 48 lanes used: 1.6 GFLOP instead of 1.07, 14.4 ms; measured 15.3. */
static double cost_direct(const conv_geom *g, const conv_algo *a, const conv_machine *m)
{
    const double terms = (double)(g->C / g->groups * cvyi_conv_taps(g));
    double blocks, lanes;
    conv_tiling t;
    (void)a;
    cvyi_conv_tile(CONV_DIRECT, g, m->kernels, 1, 1, &t);
    blocks = (double)(t.blocks * g->groups);
    lanes = (double)g->out[0] * plane_lanes(&t, t.view[1], t.flat) *
            ((double)g->K * terms + 40 * blocks / m->kernels->direct_vt);
    lanes += 400 * blocks * (double)(t.bands * m->kernels->vl) + (g->stride[2] > 2 ? 32 : 8) * copied_floats(&t);
    return 2.0 * lanes / (0.96 * m->fma_flops) + 4.0 * (double)g->K * terms / m->cache_bytes;
}

/* Outputs of an axis for which tap r reads x and not padding. */
static int64_t live_outputs(const conv_geom *g, int axis, int64_t r)
{
    const int64_t at = r * g->dil[axis] - g->pad[axis], stride = g->stride[axis];
    const int64_t first = at < 0 ? cvyi_ceil_div(-at, stride) : 0;
    const int64_t end = at < g->in[axis] ? cvyi_ceil_div(g->in[axis] - at, stride) : 0;
    return cvyi_max64(cvyi_min64(end, g->out[axis]) - first, 0);
}

/* Share of the taps that patches are made of: planes and rows are skipped output by output, columns for all. */
static double live_share(const conv_geom *g)
{
    double share = 1;
    for (int a = 0; a < 3; a++) {
        int64_t live = 0;
        for (int64_t r = 0; r < g->kernel[a]; r++) {
            const int64_t n = live_outputs(g, a, r);
            live += a == 2 && n ? g->out[a] : n;
        }
        share *= (double)live / (double)cvyi_max64(g->kernel[a] * g->out[a], 1);
    }
    return share;
}

/* As the direct form, but for the terms that are skipped; chunks are added up in L2, which leaves 0.84 of the peak.
 * A patch takes the time of 4 FMAs, of 8 with stride 2, of 16 beyond, and serves the output channels of a part;
 * every chunk of a panel 30 FMAs for a tap and 60 for a block. 256 -> 256, 3x3, dilation and padding 12, 33x33, at
 * 116 GFLOP/s: 0.76 of 1.28 GFLOP, 3 % for the patches and 1 % for their beginnings, 10.4 ms; measured 10.7. */
static double cost_patches(const conv_geom *g, const conv_algo *a, const conv_machine *m)
{
    const double terms = live_share(g) * (double)(g->C / g->groups * cvyi_conv_taps(g));
    const double patch = g->stride[2] > 2 ? 16 : g->stride[2] > 1 ? 8 : 4;
    conv_tiling t;
    double served, lanes, begin;
    (void)a;
    cvyi_conv_tile(CONV_PATCHES, g, m->kernels, 1, 1, &t);
    served = (double)g->K + patch * (double)cvyi_max64(t.kparts, g->groups);
    begin = (double)(t.chunks * g->groups * (60 * t.blocks + 30 * cvyi_conv_taps(g))) / m->kernels->direct_vt;
    lanes = (double)g->out[0] * plane_lanes(&t, g->out[2], true);
    return 2.0 * lanes * (terms * served + begin) / (0.84 * m->fma_flops) +
           4.0 * (double)g->K * terms / m->cache_bytes;
}

/* FMAs of whole vectors at the peak, copies as in the direct form, and 130 FMAs of a vector for every channel. 384
 * channels, 3x3, 14x14, on AVX-512 at 112 GFLOP/s: 126 + 128 + 130 FMAs a channel, 0.042 ms; measured 0.040. 240
 * channels, 5x5, 28x28: 1400 + 512 + 130, 0.14 ms; measured 0.17. */
static double cost_depthwise(const conv_geom *g, const conv_algo *a, const conv_machine *m)
{
    conv_tiling t;
    double lanes;
    (void)a;
    cvyi_conv_tile(CONV_DEPTHWISE, g, m->kernels, 1, 1, &t);
    lanes = (double)(g->K * g->out[0]) * plane_lanes(&t, 0, false) * (double)cvyi_conv_taps(g) +
            (g->stride[2] > 2 ? 32 : 8) * copied_floats(&t) + 130.0 * (double)(m->kernels->vl * g->K * t.bands);
    return 2.0 * lanes / m->fma_flops;
}

/* Winograd: rows of tiles. Such a row covers mh rows of every phase, the phases of columns side by side. A line of
 * a split plane has a tile more, which the last ones reach into; after the plane there is a vector to read. */
static void cut_tiles(conv_tiling *t, const conv_algo *a)
{
    const conv_geom *g = &t->geom;
    t->tiles[0] = cvyi_ceil_div(g->out[1], a->mh * g->dil[1]);
    t->across = cvyi_ceil_div(g->out[2], a->mw * g->dil[2]) * g->dil[2];
    t->tiles[1] = cvyi_min64(g->dil[1], g->out[1]) * t->across;
    if (g->dil[2] == 1) return;
    t->split_line = t->across + g->dil[2];
    t->split_floats = (t->tiles[0] * a->mh + 2) * g->dil[1] * a->mw * t->split_line + 16;
}

/* Per tile and point one FMA for each pair of channels; transforming takes the time of about 3 (input) and 3.5
 * (output, storing included) FMAs per point and channel. The transformed weights, points / 9 of the weights, stream
 * from the outer cache once per strip of 16 tiles. 8 -> 64, 126x126, F(4x4) at 116 GFLOP/s: 32 * 32 tiles, 36
 * points: products 18.9 MFMA, transforms 0.9 + 8.3 MFMA, 28.1e6 * 2 / 116e9 = 0.48 ms; measured 0.55. Weights that
 * do not stay in L2 from sample to sample come from afar once more, at half that speed and with nothing beside it:
 * 512 -> 512, 7x7, F(2x2), 15 GB/s: 16.8 MB, 1.2 ms for the products and 2.3; measured 4.2, the direct form 3.0.
 * Dilated columns are stored in short pieces. */
static double cost_winograd(const conv_geom *g, const conv_algo *a, const conv_machine *m)
{
    const double points = (a->mh + 2) * (a->mw + 2), C = (double)(g->C * g->kernel[0]), K = (double)g->K;
    const double out = g->dil[2] > 1 ? 8 : 3.5;
    conv_tiling t = {.geom = *g};
    cut_tiles(&t, a);
    const double strips = (double)cvyi_ceil_div(g->out[0] * t.tiles[0] * t.tiles[1], 16);
    const double fma = 16 * strips * points * (C * K + 3 * C + out * K);
    const double weights = points * C * K * (double)sizeof(float), stream = strips * weights / m->cache_bytes;
    const double compute = 2 * fma / m->fma_flops, afar = weights > L2_BYTES ? 2 * weights / m->cache_bytes : 0;
    return (stream > compute ? stream : compute) + afar;
}

/* Least channels: the transforms round off a fixed part of every input and output, the direct form the more the
 * more terms it has. Root mean squares of the error over the direct form's, C channels of normal data, in one
 * chain: F(4x4) sqrt(3.0 + 24 / C), without FMA sqrt(3.5 + 37 / C); F(2x4) sqrt(1.2 + 8 / C), F(2x2) at most 1.7.
 * From the numbers below on each is at most 2.9 (3 is promised). */
const conv_algo cvyi_conv_algos[CONV_ALGO_COUNT] = {
    [CONV_DIRECT] = {"direct", 1, 1, 0, legal_direct, cost_direct},
    [CONV_DEPTHWISE] = {"depthwise", 1, 1, 0, legal_depthwise, cost_depthwise},
    [CONV_PATCHES] = {"patches", 1, 1, 0, legal_patches, cost_patches},
    [CONV_WINOGRAD_4X4] = {"winograd 4x4", 4, 4, 8, legal_winograd, cost_winograd},
    [CONV_WINOGRAD_2X4] = {"winograd 2x4", 2, 4, 2, legal_winograd, cost_winograd},
    [CONV_WINOGRAD_2X2] = {"winograd 2x2", 2, 2, 0, legal_winograd, cost_winograd},
};

const char *cvyi_conv_refuses(conv_algo_id algo, const conv_geom *g)
{
    const conv_algo *a = &cvyi_conv_algos[algo];
    const char *why = a->legal(g);
    if (!why && g->C * g->kernel[0] < a->least)
        why = "too few input channels to hide what its transforms round off";
    /* Direct sums without their zeros round off less: 3.2 times their rms with 24 % of the rows in the padding. */
    if (!why && a->mw == 4 && g->dil[1] > 1 && live_share(g) < 0.8)
        why = "too many taps in the padding to hide what its transforms round off";
    return why;
}

static bool is_winograd(conv_algo_id algo)
{
    return cvyi_conv_algos[algo].mh > 1;
}

const char *cvyi_conv_pool_legal(conv_algo_id algo, const conv_geom *g, int64_t ph, int64_t pw)
{
    const conv_algo *a = &cvyi_conv_algos[algo];
    if (ph == 1 && pw == 1) return "the pooling window is a single value";
    if (ph < 1 || pw < 1 || ph > g->out[1] || pw > g->out[2]) return "the pooling window is larger than the plane";
    if (algo == CONV_DEPTHWISE || algo == CONV_PATCHES) return "this form takes no maxima, the direct form does";
    if (is_winograd(algo) && (g->dil[1] > 1 || g->dil[2] > 1)) return "a tile of a dilated filter is not a window";
    if (is_winograd(algo) && (a->mh % ph || a->mw % pw))
        return "the pooling window does not divide Winograd's tile";
    if (!is_winograd(algo) && (ph > 16 || pw > 64)) return "the pooling window is larger than 16x64";
    return NULL;
}

/* ---- cutting ---- */

/* Channels of a group into register blocks: whole ones and what is left, padded to 1, 2, 4 or a whole one. With
 * blocks of 6 a rest of 1 or 2 is better shared with a whole one: 8 = 4 + 4, not 6 + 2. */
static void cut_channels(conv_tiling *t, int kt)
{
    const int64_t kg = t->geom.K / t->geom.groups;
    int64_t rest = kg % kt;
    t->kt = kt;
    t->full = kg / kt;
    if (kt == 6 && rest && rest <= 2 && t->full) {
        t->full--;
        rest += kt;
    }
    t->tail_kt = rest <= 1 ? 1 : rest <= 2 ? 2 : rest <= 4 || rest > kt ? 4 : kt;
    t->tails = cvyi_ceil_div(rest, t->tail_kt);
    t->blocks = t->full + t->tails;
}

/* How many parts a sample is worth. Depthwise operations take longer, and parts of 10 us are worth their claiming:
 * a whole layer is often no longer than 50. */
static int64_t parts_wanted(const conv_tiling *t)
{
    const double n = direct_flops(&t->geom) / PART_FLOPS * (t->algo == CONV_DEPTHWISE ? 16 : 1);
    return n < 1 ? 1 : n > PARTS_WANTED ? PARTS_WANTED : (int64_t)n;
}

/* Rows of bands are set: bands, and channels split until there are parts enough. Bands decide in which order
 * statistics are summed and depend only on the sample; into how many parts channels are split changes no bit. */
static void cut_parts(conv_tiling *t, int64_t rows, int64_t least_blocks)
{
    const int64_t total = t->blocks * t->geom.groups;
    const int64_t enough = cvyi_ceil_div(BATCH_PARTS, cvyi_max64(t->geom.N, 1));
    const int64_t want = copies_view(t) ? cvyi_min64(parts_wanted(t), enough) : parts_wanted(t);
    int64_t parts;
    t->rows = rows;
    t->bands_per_plane = cvyi_ceil_div(t->geom.out[1], rows);
    t->bands = t->bands_per_plane * t->geom.out[0];
    parts = t->bands ? cvyi_ceil_div(want, t->bands) : 1;
    t->blocks_per_part = cvyi_max64(cvyi_ceil_div(total, parts), cvyi_min64(least_blocks, total));
    t->kparts = cvyi_ceil_div(total, t->blocks_per_part);
    t->parts = t->bands * t->kparts;
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* Vectors that a row of `cols` outputs costs: tiles of fewer than vt vectors do not fill the registers. */
static double row_vectors(int64_t cols, int vl, int vt)
{
    const int64_t n = cvyi_ceil_div(cols, vl), rest = n % vt;
    return (double)n + (rest == 1 && n == 1 ? 0.25 : 0);
}

/* Floats of the view's copy for bands of `rows` x `cols`. */
static void cut_view(conv_tiling *t, int64_t rows, int64_t cols)
{
    const conv_geom *g = &t->geom;
    t->cols = cols;
    t->view[0] = rows + (g->kernel[1] - 1) * g->dil[1] / g->stride[1];
    t->view[1] = cols + (g->kernel[2] - 1) * g->dil[2] / g->stride[2];
    t->view_floats = g->C / g->groups * g->kernel[0] * t->phases[0] * t->phases[1] * t->view[0] * t->view[1];
}

/* Rows and columns of a direct band: enough bands, a working set that fits, whole pooling windows. */
static void cut_direct(conv_tiling *t)
{
    const cpu_conv_kernels *k = t->kernels;
    const conv_geom *g = &t->geom;
    const int64_t P = g->out[1], Q = g->out[2], most = VIEW_BYTES / (int64_t)sizeof(float),
                  step = t->pw * k->vl * k->direct_vt;
    const int64_t planes = cvyi_max64(g->out[0], 1), want = cvyi_ceil_div(parts_wanted(t), planes);
    int64_t rows = cvyi_round_up(cvyi_max64(cvyi_ceil_div(P, want), 1), t->ph), cols = cvyi_max64(Q, 1);

    for (int i = 0; i < 2; i++)
        t->phases[i] = cvyi_min64(g->kernel[i + 1], g->stride[i + 1] / gcd(g->stride[i + 1], g->dil[i + 1]));
    cut_view(t, rows, cols);
    t->flat = (double)t->view[1] / k->vl * 1.03 < row_vectors(cols, k->vl, k->direct_vt) && t->algo == CONV_DIRECT;
    if (t->flat || t->algo == CONV_DEPTHWISE) /* long bands; channels are split instead */
        cut_view(t, rows = cvyi_round_up(cvyi_max64(P, 1), t->ph), cols);
    for (int64_t parts = P / rows + 1;
         rows > t->ph && (t->view_floats > most || (t->flat && rows * t->view[1] > FLAT_FLOATS)); parts++)
        cut_view(t, rows = cvyi_round_up(cvyi_ceil_div(P, parts), t->ph), cols);
    for (int64_t parts = 2; !t->flat && cols > step && t->view_floats > most; parts++)
        cut_view(t, rows, cols = cvyi_round_up(cvyi_ceil_div(Q, parts), step));
    cut_parts(t, rows, copies_view(t) ? cvyi_ceil_div(COPY_CHANNELS, t->kt) : 1);

    const int64_t slack = (k->direct_vt + 1) * k->vl, pitch = cvyi_max64(t->view[1], g->in[2]);
    t->view_floats = cvyi_round_up(t->view_floats + slack, 16);
    t->tmp_floats = 0;
    if (t->flat)
        t->tmp_floats = k->direct_kt * cvyi_round_up(rows * pitch + slack, 16);
    else if (t->ph * t->pw > 1)
        t->tmp_floats = k->direct_kt * cvyi_round_up(t->ph * (cols + k->vl) + slack, 16);
    t->packed = g->groups * (t->full * t->kt + t->tails * t->tail_kt) * (g->C / g->groups) * cvyi_conv_taps(g);
    t->scratch = (size_t)(cvyi_round_up(cvyi_conv_taps(g), 8) * (int64_t)sizeof(int64_t) +
                          cvyi_floats(t->view_floats + t->tmp_floats + cols + 4 * k->vl));
    if (t->algo == CONV_DEPTHWISE) t->scratch += (size_t)cvyi_round_up(cvyi_conv_taps(g), 4) * sizeof(conv_column);
}

/* Patches: bands of about a strip at least, so that every weight read from afar meets all of its pixels. */
static void cut_patches(conv_tiling *t)
{
    const cpu_conv_kernels *k = t->kernels;
    const conv_geom *g = &t->geom;
    const int64_t P = cvyi_max64(g->out[1], 1), Q = cvyi_max64(g->out[2], 1), taps = cvyi_conv_taps(g);
    const int64_t channels = g->C / g->groups, planes = cvyi_max64(g->out[0], 1);
    const int64_t most = cvyi_max64(P * Q / PATCH_PIXELS, 1), want = cvyi_ceil_div(parts_wanted(t), planes);
    const int64_t rows = cvyi_ceil_div(P, cvyi_min64(most, want));

    t->chunks = cvyi_max64(cvyi_ceil_div(channels * taps, PATCH_TERMS), 1);
    t->chunk = cvyi_max64(cvyi_min64(cvyi_ceil_div(channels, t->chunks), PATCH_TERMS / taps), 1);
    t->chunks = cvyi_max64(cvyi_ceil_div(channels, t->chunk), 1);
    cut_parts(t, rows, cvyi_ceil_div(PATCH_CHANNELS, t->kt));
    t->cols = cvyi_min64(PATCH_PIXELS, cvyi_round_up(rows * Q, k->vl));
    t->view_floats = cvyi_round_up(t->chunk * taps * k->direct_vt * k->vl, 16);
    t->tmp_floats = t->blocks_per_part * t->kt * t->cols;
    t->packed = g->groups * (t->full * t->kt + t->tails * t->tail_kt) * channels * taps + 1;
    t->scratch = (size_t)cvyi_floats(t->view_floats + t->tmp_floats);
}

/* Winograd: tile rows of a band, such that strips of tiles (which run on over the ends of tile rows) are well
 * filled. */
static int64_t cut_tile_rows(const conv_tiling *t, int64_t strip)
{
    const int64_t planes = cvyi_max64(t->geom.out[0], 1), want = cvyi_ceil_div(parts_wanted(t), planes);
    const int64_t least = cvyi_max64(cvyi_ceil_div(t->tiles[0], want), 1);
    int64_t best = least;
    double best_fill = 0;
    for (int64_t r = least; r <= cvyi_min64(2 * least + 3, t->tiles[0]); r++) {
        const int64_t bands = cvyi_ceil_div(t->tiles[0], r), last = t->tiles[0] - (bands - 1) * r;
        const int64_t strips =
            (bands - 1) * cvyi_ceil_div(r * t->tiles[1], strip) + cvyi_ceil_div(last * t->tiles[1], strip);
        const double fill = (double)(t->tiles[0] * t->tiles[1]) / (double)(strips * strip);
        if (fill > best_fill * 1.02) best = r, best_fill = fill;
    }
    return best;
}

static void cut_winograd(conv_tiling *t)
{
    const cpu_conv_kernels *k = t->kernels;
    const conv_algo *a = &cvyi_conv_algos[t->algo];
    const conv_geom *g = &t->geom;
    const int64_t strip = k->vl * k->wino_nt, points = (a->mh + 2) * (a->mw + 2), channels = g->C * g->kernel[0];
    int64_t sums;

    cut_tiles(t, a);
    t->chunks = cvyi_max64(cvyi_ceil_div(channels, CHUNK_MOST), 1);
    t->chunk = cvyi_max64(cvyi_ceil_div(channels, t->chunks), 1);
    t->chunks = cvyi_max64(cvyi_ceil_div(channels, t->chunk), 1);
    t->tile_rows = cut_tile_rows(t, strip);
    cut_parts(t, t->tile_rows * a->mh * g->dil[1], cvyi_ceil_div(t->split_line ? 128 : 64, t->kt));
    if (t->chunks > 1) { /* the products of all channels of a part wait for the last chunk */
        const int64_t most = cvyi_max64(SUMS_BYTES / cvyi_floats(points * strip * t->kt), 1);
        t->blocks_per_part = cvyi_min64(t->blocks_per_part, most);
        t->kparts = cvyi_ceil_div(t->blocks, t->blocks_per_part);
        t->parts = t->bands * t->kparts;
    }
    sums = (t->chunks > 1 ? t->blocks_per_part : 1) * t->kt * points * strip;
    t->packed = t->blocks * t->kt * points * channels;
    t->view_floats = points * (t->chunk * strip + k->vl);
    t->tmp_floats = sums;
    const int64_t runs = t->blocks_per_part * t->kt; /* sums of squares in the making: in double, and a vector */
    const int64_t strips = cvyi_ceil_div(t->tile_rows * t->tiles[1], strip);
    t->group = 1;
    while (t->chunks > 1 && t->group < CONV_GROUP && t->group < strips &&
           cvyi_floats(2 * t->group * (t->view_floats + sums)) <= GROUP_BYTES)
        t->group *= 2;
    const int64_t floats = t->group * (t->view_floats + sums) + runs * (2 + k->vl) +
                           6 * (strip * 4 + 2 * k->vl) /* rows */ + t->group * k->wino_nt * 16 * k->vl /* masks */;
    t->scratch = (size_t)cvyi_round_up(cvyi_floats(floats), 64);
}

void cvyi_conv_tile(conv_algo_id algo, const conv_geom *g, const cpu_conv_kernels *kernels, int64_t ph, int64_t pw,
                    conv_tiling *out)
{
    *out = (conv_tiling){.geom = *g, .algo = algo, .kernels = kernels, .ph = ph, .pw = pw};
    if (is_winograd(algo)) {
        cut_channels(out, kernels->wino_kt);
        out->full += out->tails, out->tails = 0, out->blocks = out->full; /* the last block is padded */
        cut_winograd(out);
    } else if (algo == CONV_PATCHES) {
        cut_channels(out, kernels->direct_kt);
        cut_patches(out);
    } else {
        cut_channels(out, kernels->direct_kt);
        cut_direct(out);
    }
    out->scratch = (out->scratch + 63) / 64 * 64;
}

/* ---- running ---- */

void cvyi_conv_run(const conv_job *job, int64_t part, void *scratch)
{
    job->tiling->kernels->run[job->tiling->algo](job, part, scratch);
}

void cvyi_conv_split(const conv_tiling *t, const float *plane, float *split)
{
    const conv_geom *g = &t->geom;
    const int64_t W = g->in[2], dil = g->dil[2], mw = cvyi_conv_algos[t->algo].mw;
    const int64_t rows = t->split_floats / (mw * t->split_line);
    memset(split, 0, sizeof(float) * (size_t)t->split_floats);
    for (int64_t r = cvyi_max64(0, g->pad[1]); r < cvyi_min64(rows, g->in[1] + g->pad[1]); r++)
        for (int64_t i = 0; i < mw; i++)
            for (int64_t at = 0; at <= t->across; at += dil) {
                const int64_t x = (at / dil * mw + i) * dil - g->pad[2], from = cvyi_max64(x, 0);
                const int64_t n = cvyi_min64(x + dil, W) - from;
                if (n > 0)
                    memcpy(split + (r * mw + i) * t->split_line + at + from - x, plane + (r - g->pad[1]) * W + from,
                           sizeof(float) * (size_t)n);
            }
}

/* ---- means first ---- */

bool cvyi_conv_window_sums(const cpu_conv_kernels *k, const conv_geom *g, const conv_input *x, int64_t c,
                           const conv_window *out)
{
    return k->window_sums(g, x, c, out);
}

void cvyi_conv_means(const cpu_conv_kernels *k, const conv_geom *g, const float *weight, const float *bias,
                     const conv_window *w, int64_t k0, int64_t k1, double *mean, double *shift)
{
    for (int64_t i = k0; i < k1; i++) k->window_means(g, weight, bias, w, i, mean, shift);
}
