/* conv.h - convolution on the CPU: the algorithms, how their work is cut into parts, and one sample's job.
 *
 * The engine asks the table cvyi_conv_algos what is legal and what it costs, lets cvyi_conv_tile() cut the work,
 * packs the weights once, and then, sample by sample, runs the parts of a job in any order on any threads. How the
 * work is cut depends on the geometry and the instruction set, never on the number of threads, and no two parts
 * write the same number: results have the same bits whichever thread runs them.
 *
 * A part is a band of output rows of one output plane times a range of output channels.
 *   part = band * kparts + kpart,  band = plane * bands_per_plane + band in the plane */
#ifndef CVYI_CONV_H
#define CVYI_CONV_H

#include "../graph/graph.h"

typedef enum conv_algo_id {
    CONV_DIRECT,
    CONV_DEPTHWISE,
    CONV_PATCHES,
    CONV_CHANNELS,
    CONV_WINOGRAD_4X4,
    CONV_WINOGRAD_2X4,
    CONV_WINOGRAD_2X2,
    CONV_ALGO_COUNT
} conv_algo_id;

/* Terms of a chain of additions, at most. Patches: output pixels whose patches are made at once (a multiple of
 * every panel's width), and terms of a chunk. By channels: outputs of a strip. */
enum { CONV_CHAIN = 256, PATCH_PIXELS = 240, PATCH_TERMS = 256, CHANNELS_STRIP = 112 };

/* Winograd: strips of tiles that share a read of the weights, at most. */
enum { CONV_GROUP = 4 };

/* Depthwise: 1 to CONV_COLUMN taps that lie below each other in the view. */
enum { CONV_COLUMN = 5 };
typedef struct conv_column {
    int64_t off;    /* of the first, in the view */
    int32_t tap, n; /* number of the first in the filter; how many */
} conv_column;

static inline bool cvyi_is_winograd(conv_algo_id algo)
{
    return algo >= CONV_WINOGRAD_4X4 && algo <= CONV_WINOGRAD_2X2;
}

struct cpu_conv_kernels;

/* How one convolution is divided; made by cvyi_conv_tile(). Lengths are in floats unless stated otherwise. */
typedef struct conv_tiling {
    conv_geom geom;
    conv_algo_id algo;
    const struct cpu_conv_kernels *kernels;
    int64_t ph, pw; /* pooling window = its stride; 1, 1: none */
    int64_t parts, bands, kparts;
    int64_t bands_per_plane;
    int64_t rows;   /* output rows of a band; a multiple of ph (the last band has the rest) */
    int64_t packed; /* packed weights */
    size_t scratch; /* bytes per thread, multiple of 64 */
    /* blocks of output channels that share registers: `full` of kt, then `tails` of tail_kt, per group */
    int64_t blocks, full, tails; /* blocks = full + tails */
    int64_t blocks_per_part;     /* counted through all groups */
    int kt, tail_kt;
    /* direct, depthwise: the view (conv_view.h) */
    bool flat;         /* vectors run over row ends; else every row starts a new one */
    int64_t cols;      /* output columns handled at once, of a row; patches: pixels of a strip */
    int64_t phases[2]; /* of rows and columns: a stride is split into them, those that some tap reads */
    int64_t view[2];   /* rows and columns of one phase plane of the copy */
    int64_t view_floats, tmp_floats;
    /* Winograd */
    int64_t tiles[2];      /* rows of tiles of a plane, for all phases of rows; tiles of such a row */
    int64_t across;        /* tiles of one phase of rows that are next to each other */
    int64_t split_line;    /* dilated columns: floats of a line of cvyi_conv_split(); else 0 */
    int64_t split_floats;  /* of a plane of it */
    int64_t tile_rows;     /* of a band */
    int64_t group;         /* strips of tiles that weights are read for at once: divides CONV_GROUP */
    int64_t chunk, chunks; /* input channels (times kernel depth) transformed at once; patches: input channels */
} conv_tiling;

/* One sample. All arrays are row-major, and float32 except for src. */
typedef struct conv_job {
    const conv_tiling *tiling;
    const float *packed; /* from cvyi_conv_pack() */
    const void *src;     /* [C][D][H][W] of `dtype`; floats [C][D][split_floats] if the tiling has some */
    const float *bias;   /* [K], where the sums start; or NULL */
    const float *xmean;  /* [C], Winograd only, or NULL: dst becomes conv(x - xmean), with zero padding read as
                            -xmean, so that it differs from conv(x) by a constant per channel: `shift` of
                            cvyi_conv_means() */
    /* One of dst and pool, or neither. */
    float *dst;                           /* [K][O][P][Q] with the strides below */
    int64_t dst_chan, dst_plane, dst_row; /* strides; dst_row >= Q */
    float *pool;                          /* [K][O][P / ph][Q / pw] contiguous: maxima of whole windows */
    double *sumsq;                        /* [bands][K]: squares of the values produced, band by band; or NULL */
    cvy_dtype dtype;                      /* of src */
} conv_job;

/* One core, as costs see it. */
typedef struct conv_machine {
    double fma_flops;   /* FMA peak, flop/s */
    double cache_bytes; /* bytes per second that it reads from its outer cache */
} conv_machine;

typedef struct conv_algo {
    const char *name;
    int mh, mw; /* Winograd's output tile; else 1, 1 */
    int least;  /* input channels times kernel depth from which it is accurate enough */
    const char *(*legal)(const conv_geom *g);                    /* NULL: yes; else why not */
    double (*cost)(const conv_tiling *t, const conv_machine *m); /* s of a sample that is cut like this */
} conv_algo;

extern const conv_algo cvyi_conv_algos[CONV_ALGO_COUNT];

/* NULL if the algorithm is legal and as accurate as doc/DESIGN.md, Numerics, promises; else why not. */
const char *cvyi_conv_refuses(conv_algo_id algo, const conv_geom *g);
/* Can x be copied with its padding, and does some tap read x at all? If not, the result is not centred: where only
 * zeros are read it is exactly the bias. */
bool cvyi_conv_can_centre(const conv_geom *g);

/* NULL if maxima over windows of (ph, pw) can be taken while convolving; else why not. */
const char *cvyi_conv_pool_legal(conv_algo_id algo, const conv_geom *g, int64_t ph, int64_t pw);

/* Does it read padding, before x or after it? */
static inline bool cvyi_conv_padded(const conv_geom *g)
{
    bool padded = false;
    for (int a = 0; a < 3; a++)
        padded |= g->pad[a] || (g->out[a] - 1) * g->stride[a] + (g->kernel[a] - 1) * g->dil[a] >= g->in[a];
    return padded;
}

/* Is x copied before a direct form reads it (conv_view.h)? */
static inline bool cvyi_conv_needs_copy(const conv_geom *g)
{
    return g->stride[1] > 1 || g->stride[2] > 1 || cvyi_conv_padded(g);
}

/* Does the form take x of 16 bits and widen it as it loads it? By channels, x without padding is read in place, as
 * floats. */
static inline bool cvyi_conv_widens(conv_algo_id algo, const conv_geom *g)
{
    return algo != CONV_CHANNELS || cvyi_conv_padded(g);
}

/* Cuts the work of a legal algorithm. ph = pw = 1 without pooling. Cannot fail for geometries the verifier passed.
 */
void cvyi_conv_tile(conv_algo_id algo, const conv_geom *g, const struct cpu_conv_kernels *kernels, int64_t ph,
                    int64_t pw, conv_tiling *out);

/* weight [K][C/groups][kernel] -> packed, tiling.packed floats, aligned to 64 bytes. */
void cvyi_conv_pack(const conv_tiling *t, const float *weight, float *packed);

/* Winograd with dilated columns: a plane [H][W] of x in the order in which tiles read it, with its padding.
 *
 *   split[row of the padded plane][i][tile][phase]     column (tile * mw + i) * dil + phase of that row, i < mw
 *
 * Tiles of neighbouring phases are neighbours, and what tap s of all of them reads is one stretch: line s % mw,
 * moved by dil for s >= mw. */
void cvyi_conv_split(const conv_tiling *t, const float *plane, float *split);

/* scratch: tiling.scratch bytes, aligned to 64, contents meaningless before and after. */
void cvyi_conv_run(const conv_job *job, int64_t part, void *scratch);

/* ---- means of the output before it is computed ("means first") ----
 * mean(conv(x)) is linear in the sums of x over the window that each tap sees. Per sample: sums of every channel
 * (in parts by channels), then the means of any range of output channels. All in double. */
typedef struct conv_window {
    double *sums;  /* [C][taps] */
    double *xmean; /* [C] */
} conv_window;
typedef struct conv_input {
    const void *data; /* [C][D][H][W] */
    cvy_dtype dtype;
    float *row; /* room for W floats; NULL: data are floats */
} conv_input;
static inline int64_t cvyi_conv_taps(const conv_geom *g)
{
    return g->kernel[0] * g->kernel[1] * g->kernel[2];
}
/* Of channel c of a sample. False if the channel holds a NaN, an inf or a value beyond 1e15: the sample must
 * then take CONV_DIRECT, since a Winograd tile would spread it. (In 3-D, too: the bound leaves room for 36
 * products.) */
bool cvyi_conv_window_sums(const struct cpu_conv_kernels *k, const conv_geom *g, const conv_input *x, int64_t c,
                           const conv_window *out);
typedef struct conv_means {
    const float *weight, *bias; /* bias: or NULL */
    conv_window window;
    double *mean;  /* [K]: bias + mean of conv(x) */
    double *shift; /* [K]: the constant that conv(x - xmean) lacks, for xmean rounded to float as in conv_job; or
                      NULL */
} conv_means;
/* The means of output channels k0 <= k < k1. */
void cvyi_conv_means(const struct cpu_conv_kernels *k, const conv_geom *g, const conv_means *m, int64_t k0,
                     int64_t k1);

/* ---- the kernels of one instruction set ---- */

typedef struct cpu_conv_kernels {
    const char *isa;
    int vl;        /* floats per vector */
    int direct_kt; /* register tile of the direct form: channels x vectors */
    int direct_vt;
    int wino_kt; /* register tile of Winograd's products: channels x vectors of tiles */
    int wino_nt;
    int channels_px; /* register tile of the form by channels: outputs x vectors of channels */
    int channels_kv;
    void (*run[CONV_ALGO_COUNT])(const conv_job *job, int64_t part, void *scratch);
    const char *name[CONV_ALGO_COUNT]; /* of these entries */
    bool (*window_sums)(const conv_geom *g, const conv_input *x, int64_t c, const conv_window *out);
    void (*window_means)(const conv_geom *g, const conv_means *m, int64_t k);
} cpu_conv_kernels;

extern const cpu_conv_kernels cvyi_conv_portable, cvyi_conv_avx2, cvyi_conv_avx512, cvyi_conv_neon;

/* ---- shared by the kernels ---- */

typedef struct conv_span {
    int64_t plane, band, row0, rows; /* output plane, band, rows of it */
    int64_t block0, blocks;          /* blocks of output channels, counted through all groups */
} conv_span;
static inline conv_span cvyi_conv_part(const conv_tiling *t, int64_t part)
{
    conv_span s;
    const int64_t total = t->blocks * t->geom.groups;
    s.band = part / t->kparts;
    s.plane = s.band / t->bands_per_plane;
    s.row0 = s.band % t->bands_per_plane * t->rows;
    s.rows = cvyi_min64(t->rows, t->geom.out[1] - s.row0);
    s.block0 = part % t->kparts * t->blocks_per_part;
    s.blocks = cvyi_min64(t->blocks_per_part, total - s.block0);
    return s;
}

/* One block of output channels. */
typedef struct conv_block {
    int64_t group, k0; /* first channel */
    int kn, kt;        /* channels that exist; channels of the register tile (zero weights past kn) */
    int64_t slot;      /* channels of packed weights before it */
} conv_block;
static inline conv_block cvyi_conv_block(const conv_tiling *t, int64_t b)
{
    conv_block r;
    const int64_t i = b % t->blocks, per = t->full * t->kt + t->tails * t->tail_kt;
    const int64_t at = i < t->full ? i * t->kt : t->full * t->kt + (i - t->full) * t->tail_kt;
    const int64_t kg = t->geom.K / t->geom.groups;
    r.group = b / t->blocks;
    r.kt = i < t->full ? t->kt : t->tail_kt;
    r.kn = (int)cvyi_min64(r.kt, kg - at);
    r.k0 = r.group * kg + at;
    r.slot = r.group * per + at;
    return r;
}

#endif
