/* conv.c - how the work of a convolution is divided into parts. Nothing here depends on the instruction set except
 * through numbers of cpu_conv_kernels. */
#include <string.h>
#include "conv.h"

enum {
    PART_FLOPS = 4000000,   /* a part should not be smaller: about 40 us on one core */
    PARTS_WANTED = 16,      /* of one sample: enough for 16 threads */
    BATCH_PARTS = 64,       /* of all samples: if there are so many, channels are not split */
    COPY_CHANNELS = 64,     /* a copy of the input serves at least this many output channels */
    PATCH_CHANNELS = 128,   /* patches serve at least this many output channels */
    VIEW_BYTES = 256 << 10, /* input of a part: a quarter of a typical L2 */
    FLAT_FLOATS = 4096,     /* of one channel of a flat band, kept until its rows are separated */
    CHUNK_MOST = 96,        /* Winograd: input channels transformed at once (AVX-512: 2.3 KiB each in L2) */
    SUMS_BYTES = 384 << 10, /* Winograd: products kept while chunks of input channels add up */
    GROUP_BYTES = 704 << 10 /* Winograd: transformed input and products of strips that go together, in L2 */
};

static double direct_flops(const conv_geom *g)
{
    return 2.0 * (double)(g->K * g->out[0] * g->out[1] * g->out[2]) *
           (double)(g->C / g->groups * cvyi_conv_taps(g));
}

/* Does every part copy the input that it reads first? Parts that differ only in channels make the same copy. */
static bool copies_view(const conv_tiling *t)
{
    if (t->algo == CONV_PATCHES) return true;
    if (t->algo == CONV_CHANNELS) return cvyi_conv_padded(&t->geom);
    return t->algo == CONV_DIRECT && t->geom.groups == 1 && cvyi_conv_needs_copy(&t->geom);
}

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

/* The number of parts for a sample. Depthwise operations take longer, and parts of 10 us are worth claiming:
 * a whole layer is often no longer than 50. */
static int64_t parts_wanted(const conv_tiling *t)
{
    const double n = direct_flops(&t->geom) / PART_FLOPS * (t->algo == CONV_DEPTHWISE ? 16 : 1);
    return n < 1 ? 1 : n > PARTS_WANTED ? PARTS_WANTED : (int64_t)n;
}

/* Given the rows of a band: the bands, and channels split until there are enough parts. Bands determine the order
 * in which statistics are summed, and depend only on the sample; how channels are split does not change any bit. */
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

/* A number of floats; one that no memory has, if that does not fit. */
static int64_t floats_of(double n)
{
    return n < 0x1p60 ? (int64_t)n : INT64_C(1) << 60;
}

/* The next number of parts to try: bands of huge images need not be found one by one. */
static int64_t more_parts(int64_t parts)
{
    return parts < 4096 ? parts + 1 : 2 * parts;
}

/* Floats of the view's copy for bands of `rows` x `cols`. */
static void cut_view(conv_tiling *t, int64_t rows, int64_t cols)
{
    const conv_geom *g = &t->geom;
    t->cols = cols;
    t->view[0] = rows + (g->kernel[1] - 1) * g->dil[1] / g->stride[1];
    t->view[1] = cols + (g->kernel[2] - 1) * g->dil[2] / g->stride[2];
    t->view_floats = floats_of((double)(g->C / g->groups * g->kernel[0]) * (double)(t->phases[0] * t->phases[1]) *
                               (double)t->view[0] * (double)t->view[1]);
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
         rows > t->ph && (t->view_floats > most || (t->flat && (double)rows * (double)t->view[1] > FLAT_FLOATS));
         parts = more_parts(parts))
        cut_view(t, rows = cvyi_round_up(cvyi_ceil_div(P, parts), t->ph), cols);
    for (int64_t parts = 2; !t->flat && cols > step && t->view_floats > most; parts = more_parts(parts))
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

/* Patches: bands of at least about a strip, so that every weight from an outer cache is used for all of its pixels.
 */
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

/* Blocks of whole vectors of channels. */
static void cut_vectors(conv_tiling *t)
{
    const int64_t vl = t->kernels->vl, kg = t->geom.K / t->geom.groups, rest = kg % (t->kernels->channels_kv * vl);
    t->kt = t->kernels->channels_kv * (int)vl;
    t->full = kg / t->kt;
    t->tails = rest > 0;
    t->tail_kt = rest <= vl ? (int)vl : t->kt;
    t->blocks = t->full + t->tails;
}

/* By channels: the view is of all rows and columns between the first and the last that are read. */
static void cut_dense_view(conv_tiling *t, int64_t rows, int64_t cols)
{
    const conv_geom *g = &t->geom;
    t->rows = rows;
    t->cols = cols;
    t->view[0] = (rows - 1) * g->stride[1] + (g->kernel[1] - 1) * g->dil[1] + 1;
    t->view[1] = (cols - 1) * g->stride[2] + (g->kernel[2] - 1) * g->dil[2] + 1;
    t->view_floats =
        !cvyi_conv_padded(g)
            ? 0
            : floats_of((double)(g->C / g->groups * g->kernel[0]) * (double)t->view[0] * (double)t->view[1]);
}

static void cut_channels_form(conv_tiling *t)
{
    const cpu_conv_kernels *k = t->kernels;
    const conv_geom *g = &t->geom;
    const int64_t P = cvyi_max64(g->out[1], 1), Q = cvyi_max64(g->out[2], 1), taps = cvyi_conv_taps(g);
    const int64_t most = VIEW_BYTES / (int64_t)sizeof(float),
                  want = cvyi_ceil_div(parts_wanted(t), cvyi_max64(g->out[0], 1));
    int64_t rows = cvyi_ceil_div(P, want), cols = Q;

    t->phases[0] = t->phases[1] = 1;
    cut_dense_view(t, rows, cols);
    for (int64_t parts = P / rows + 1; rows > 1 && t->view_floats > most; parts = more_parts(parts))
        cut_dense_view(t, rows = cvyi_ceil_div(P, parts), cols);
    for (int64_t parts = 2; cols > k->channels_px && t->view_floats > most; parts = more_parts(parts))
        cut_dense_view(t, rows, cols = cvyi_ceil_div(Q, parts));
    cut_parts(t, rows, copies_view(t) ? cvyi_ceil_div(COPY_CHANNELS, t->kt) : 1);
    t->view_floats = cvyi_round_up(t->view_floats + k->vl, 16);
    t->tmp_floats = (CHANNELS_STRIP + k->vl) * t->kt;
    t->packed = g->groups * (t->full * t->kt + t->tails * t->tail_kt) * (g->C / g->groups) * taps;
    t->scratch =
        (size_t)(cvyi_round_up(taps, 8) * (int64_t)sizeof(int64_t) + cvyi_floats(t->tmp_floats + t->view_floats));
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
    const int64_t runs = t->blocks_per_part * t->kt; /* partial sums of squares: in double, and a vector */
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
    if (cvyi_is_winograd(algo)) {
        cut_channels(out, kernels->wino_kt);
        out->full += out->tails, out->tails = 0, out->blocks = out->full; /* the last block is padded */
        cut_winograd(out);
    } else if (algo == CONV_PATCHES) {
        cut_channels(out, kernels->direct_kt);
        cut_patches(out);
    } else if (algo == CONV_CHANNELS) {
        cut_vectors(out);
        cut_channels_form(out);
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

void cvyi_conv_means(const cpu_conv_kernels *k, const conv_geom *g, const conv_means *m, int64_t k0, int64_t k1)
{
    for (int64_t i = k0; i < k1; i++) k->window_means(g, m, i);
}
