/* conv_algos.c - what the convolution algorithms are, when they are legal, and what they cost. */
#include "conv.h"

enum { L2_BYTES = 1 << 20 /* a typical L2 */ };
static const double MOST_REACH = 0x1p32; /* floats of a copy that is made for one output */

/* ---- legal ---- */

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
    if (g->groups != 1) return "more than one group, Winograd needs 1";
    if (g->stride[1] != 1 || g->stride[2] != 1) return "the stride is not 1, Winograd needs that";
    return NULL;
}

/* ---- cost ---- */

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

/* Weights of so many terms for each output channel come from the outer cache. */
static double weight_seconds(const conv_geom *g, double terms, const conv_machine *m)
{
    return (double)cvyi_floats(g->K) * terms / m->cache_bytes;
}

/* The number of floats of x that all parts copy, each counted as often as it is copied. */
static double copied_floats(const conv_tiling *t)
{
    const conv_geom *g = &t->geom;
    const int64_t times = t->algo == CONV_DIRECT && g->groups == 1 ? t->parts : t->bands * g->groups;
    return cvyi_conv_needs_copy(g)
               ? (double)times * (double)cvyi_ceil_div(g->out[2], t->cols) * (double)t->view_floats
               : 0;
}

/* Register tiles run at 0.96 of the peak and take 40 FMAs to begin and end, blocks of channels of a band 400; an
 * output that is separated from flat rows takes the time of 14; a
 * float of the view's copy takes the time of 8 lanes of an FMA, of 32 if it is gathered one by one; weights come
 * from the outer cache once. 8 -> 64, 3x3, 126x126 on AVX-512 at 116 GFLOP/s: rows are 128 lanes, 8 x 3 tiles of 72
 * terms, 149 MFLOP and 3 % / 0.96 / 116e9 = 1.38 ms. 256 -> 512, 4x4, stride 2, 16x16 outputs: bands of 2 rows, 33
 * of 48 lanes used: 1.6 GFLOP instead of 1.07, 14.4 ms; measured 15.3. */
static double cost_direct(const conv_tiling *t, const conv_machine *m)
{
    const conv_geom *g = &t->geom;
    const double terms = (double)(g->C / g->groups * cvyi_conv_taps(g));
    const double blocks = (double)(t->blocks * g->groups);
    double lanes = (double)g->out[0] * plane_lanes(t, t->view[1], t->flat) *
                   ((double)g->K * terms + 40 * blocks / t->kernels->direct_vt);

    if (t->flat) lanes += 14 * (double)(g->K * g->out[0] * g->out[1] * g->out[2]);
    lanes += 400 * blocks * (double)(t->bands * t->kernels->vl) + (g->stride[2] > 2 ? 32 : 8) * copied_floats(t);
    return 2.0 * lanes / (0.96 * m->fma_flops) + weight_seconds(g, terms, m);
}

/* Outputs of an axis for which tap r reads x and not padding. */
static int64_t live_outputs(const conv_geom *g, int axis, int64_t r)
{
    const int64_t at = r * g->dil[axis] - g->pad[axis], stride = g->stride[axis];
    const int64_t first = at < 0 ? cvyi_ceil_div(-at, stride) : 0;
    const int64_t end = at < g->in[axis] ? cvyi_ceil_div(g->in[axis] - at, stride) : 0;
    return cvyi_max64(cvyi_min64(end, g->out[axis]) - first, 0);
}

/* The share of the taps that patches contain: planes and rows are skipped output by output, columns for all
 * outputs. */
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

/* As the direct form, less the terms that are skipped; chunks are added up in L2, which leaves 0.84 of the peak.
 * A patch takes the time of 4 FMAs, of 8 with stride 2, of 16 beyond, and serves the output channels of a part;
 * every chunk of a panel 30 FMAs for a tap and 60 for a block. 256 -> 256, 3x3, dilation and padding 12, 33x33, at
 * 116 GFLOP/s: 0.76 of 1.28 GFLOP, 3 % for the patches and 1 % for their beginnings, 10.4 ms; measured 10.7. */
static double cost_patches(const conv_tiling *t, const conv_machine *m)
{
    const conv_geom *g = &t->geom;
    const double terms = live_share(g) * (double)(g->C / g->groups * cvyi_conv_taps(g));
    const double patch = g->stride[2] > 2 ? 16 : g->stride[2] > 1 ? 8 : 4;
    const double served = (double)g->K + patch * (double)cvyi_max64(t->kparts, g->groups);
    const double begin =
        (double)(t->chunks * g->groups * (60 * t->blocks + 30 * cvyi_conv_taps(g))) / t->kernels->direct_vt;
    const double lanes = (double)g->out[0] * plane_lanes(t, g->out[2], true);
    return 2.0 * lanes * (terms * served + begin) / (0.84 * m->fma_flops) + weight_seconds(g, terms, m);
}

/* Register tiles run at 0.93 of the peak if they have 4 outputs or more, beginning a tile and turning its
 * results take the time of 8 terms, a float of the copy that of 8 lanes of an FMA. 64 -> 64, 7x7, 28x28 on AVX-512
 * at 263 GFLOP/s: 315 MFLOP and 3 % / 0.93 = 1.33 ms; measured 1.25. 256 -> 512, 1x1, stride 2: 0.87 ms; measured
 * 0.87. */
static double cost_channels(const conv_tiling *t, const conv_machine *m)
{
    const conv_geom *g = &t->geom;
    const double terms = (double)(g->C / g->groups * cvyi_conv_taps(g));
    const int64_t row = cvyi_max64(g->out[2], 4 * cvyi_ceil_div(g->out[2], t->kernels->channels_px));
    double lanes =
        (double)(g->out[0] * g->out[1] * row * g->groups * (t->full * t->kt + t->tails * t->tail_kt)) * (terms + 8);

    if (cvyi_conv_padded(g))
        lanes += 8.0 * (double)t->parts * (double)cvyi_ceil_div(g->out[2], t->cols) * (double)t->view_floats;
    return 2.0 * lanes / (0.93 * m->fma_flops) + weight_seconds(g, terms, m);
}

/* FMAs of whole vectors at the peak, at half of it if no two taps lie below each other, copies as in the direct
 * form, and 130 FMAs of a vector for every channel. 384
 * channels, 3x3, 14x14, on AVX-512 at 112 GFLOP/s: 126 + 128 + 130 FMAs a channel, 0.042 ms; measured 0.040. 240
 * channels, 5x5, 28x28: 1400 + 512 + 130, 0.14 ms; measured 0.17. */
static double cost_depthwise(const conv_tiling *t, const conv_machine *m)
{
    const conv_geom *g = &t->geom;
    const double lanes = (double)(g->K * g->out[0]) * plane_lanes(t, 0, false) *
                             (double)(cvyi_conv_taps(g) * (g->kernel[1] > 1 ? 1 : 2)) +
                         (g->stride[2] > 2 ? 32 : 8) * copied_floats(t) +
                         130.0 * (double)(t->kernels->vl * g->K * t->bands);
    return 2.0 * lanes / m->fma_flops;
}

/* Per tile and point one FMA for each pair of channels, or a load if they are more; transforming takes the time of
 * about 3 (input) and 3.5 (output, storing included) FMAs per point and channel for every piece of a row of tiles
 * in a strip. The transformed weights, points / 9 of the weights, stream from the outer cache once per strip of 16
 * tiles. 8 -> 64, 126x126, F(4x4) on AVX-512 at 263 GFLOP/s: 32 * 32 tiles, 36 points: products 21.2 MFMA,
 * transforms 1.3 + 12.4 MFMA, 0.27 ms; measured 0.36. Weights that do not stay in L2 from sample to sample come
 * from an outer cache once more, at a third of that speed and not overlapped: 512 -> 512, 7x7, F(2x2), 40
 * GB/s: 16.8 MB, 0.6 ms for the products and 1.3; measured 1.8, by channels 1.05. Dilated columns are stored in
 * short pieces.
 */
static double cost_winograd(const conv_tiling *t, const conv_machine *m)
{
    const conv_geom *g = &t->geom;
    const conv_algo *a = &cvyi_conv_algos[t->algo];
    const int kt = t->kernels->wino_kt, nt = t->kernels->wino_nt;
    const double points = (a->mh + 2) * (a->mw + 2), C = (double)(g->C * g->kernel[0]);
    const double K = (double)cvyi_round_up(g->K, kt), loads = kt + nt > kt * nt ? (double)(kt + nt) / (kt * nt) : 1;
    const double strips = (double)cvyi_ceil_div(g->out[0] * t->tiles[0] * t->tiles[1], 16);
    const double pieces = 1 + 16 / (double)cvyi_max64(t->across, 1), out = g->dil[2] > 1 ? 8 : 3.5 * pieces;
    const double fma = 16 * strips * points * (C * K * loads + 3 * pieces * C + out * K);
    const double weights = points * C * K * (double)sizeof(float), stream = strips * weights / m->cache_bytes;
    const double compute = 2 * fma / m->fma_flops;
    const double afar = weights > L2_BYTES / 2 ? 3 * weights / m->cache_bytes : 0;
    return (stream > compute ? stream : compute) + afar;
}

/* The fewest channels: the transforms round off a fixed part of every input and output, the direct form the more
 * the more terms it has. Root mean squares of the error over the direct form's, C channels of normal data, in one
 * chain: F(4x4) sqrt(3.0 + 24 / C), without FMA sqrt(3.5 + 37 / C); F(2x4) sqrt(1.2 + 8 / C), F(2x2) at most 1.7.
 * From the numbers below on each is at most 2.9 (3 is promised). */
const conv_algo cvyi_conv_algos[CONV_ALGO_COUNT] = {
    [CONV_DIRECT] = {"direct", 1, 1, 0, legal_direct, cost_direct},
    [CONV_DEPTHWISE] = {"depthwise", 1, 1, 0, legal_depthwise, cost_depthwise},
    [CONV_PATCHES] = {"patches", 1, 1, 0, legal_patches, cost_patches},
    [CONV_CHANNELS] = {"channels", 1, 1, 0, legal_direct, cost_channels},
    [CONV_WINOGRAD_4X4] = {"winograd 4x4", 4, 4, 8, legal_winograd, cost_winograd},
    [CONV_WINOGRAD_2X4] = {"winograd 2x4", 2, 4, 2, legal_winograd, cost_winograd},
    [CONV_WINOGRAD_2X2] = {"winograd 2x2", 2, 2, 0, legal_winograd, cost_winograd},
};

/* Floats that the taps of one output are within, padding included. */
static double reach_floats(const conv_geom *g)
{
    double n = (double)(g->C / g->groups) * (double)g->kernel[0];
    for (int i = 1; i < 3; i++) n *= 1 + (double)(g->kernel[i] - 1) * (double)g->dil[i];
    return n;
}

bool cvyi_conv_can_centre(const conv_geom *g)
{
    bool reads = true;
    for (int i = 0; i < 3; i++) {
        int64_t live = 0;
        for (int64_t r = 0; r < g->kernel[i] && !live; r++) live = live_outputs(g, i, r);
        reads = reads && live;
    }
    return reads && reach_floats(g) <= MOST_REACH;
}

const char *cvyi_conv_refuses(conv_algo_id algo, const conv_geom *g)
{
    const conv_algo *a = &cvyi_conv_algos[algo];
    const char *why = a->legal(g);
    if (!why && algo != CONV_PATCHES && reach_floats(g) > MOST_REACH)
        why = "a copy of the input with the padding that its taps reach would be too large";
    if (!why && g->C * g->kernel[0] < a->least)
        why = "too few input channels for the rounding errors of its transforms";
    /* Direct sums without their zeros round off less: 3.2 times their rms with 24 % of the rows in the padding. */
    if (!why && a->mw == 4 && g->dil[1] > 1 && live_share(g) < 0.8)
        why = "too many taps in the padding for the rounding errors of its transforms";
    return why;
}

const char *cvyi_conv_pool_legal(conv_algo_id algo, const conv_geom *g, int64_t ph, int64_t pw)
{
    const conv_algo *a = &cvyi_conv_algos[algo];
    if (ph == 1 && pw == 1) return "the pooling window is a single value";
    if (ph < 1 || pw < 1 || ph > g->out[1] || pw > g->out[2]) return "the pooling window is larger than the plane";
    if (algo == CONV_DEPTHWISE || algo == CONV_PATCHES || algo == CONV_CHANNELS)
        return "this form cannot take maxima, the direct form can";
    if (cvyi_is_winograd(algo) && (g->dil[1] > 1 || g->dil[2] > 1))
        return "a tile of a dilated filter is not a window";
    if (cvyi_is_winograd(algo) && (a->mh % ph || a->mw % pw))
        return "the pooling window does not divide Winograd's tile";
    if (!cvyi_is_winograd(algo) && (ph > 16 || pw > 64)) return "the pooling window is larger than 16x64";
    return NULL;
}
