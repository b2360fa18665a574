/* convt.c - transposed convolution as a product per phase, without scattered additions.
 *
 * Along one axis the output position o = j * stride + phase receives src[i] * weight[r] for all r, i with
 * i * stride + r * dil = o + pad. For a given phase the taps r with r * dil = phase + pad (mod stride) are fixed,
 * and i = j + (phase + pad - r * dil) / stride: an ordinary correlation of stride 1. So each phase (of three axes)
 * is
 *
 *     dst[k][j] = bias[k] + sum over taps r of the phase and c of weight[c][k][r] * src[c][j + shift(r)]
 *
 * a product of A = [K/groups][taps][C/groups], packed per phase, with a B that is gathered panel by panel from src:
 * runs of contiguous floats where a row of the grid lies in src, zeros where it does not. The phases along W go
 * into scratch, MAX_STRIP at most, before they are interleaved into dst, so rows are written whole. A phase whose
 * first position is past the end of dst does not exist, so there are never more phases than results.
 *
 * Those zeros are harmless while weights are finite. Packing finds out, and weights that are not take a plain loop
 * over the positions that exist.
 *
 * packed: [groups][phase 0][phase 1][phase 2] of [K/groups][taps][C/groups]; each tap is in one phase, and the
 * place of a phase that does not exist is not written. After it one float: 0, or NaN if a weight is not finite. */
#include <math.h>
#include <string.h>
#include "convt.h"

enum {
    MAX_PANEL = 64, /* positions: no kernel's panel is wider */
    MAX_STRIP = 256 /* phases along W that are in scratch together */
};

/* ---- taps ---- */

/* The phase along an axis whose outputs tap r reaches. */
static int64_t phase_of(const conv_geom *g, int axis, int64_t r)
{
    const int64_t s = g->stride[axis], p = (r * g->dil[axis] - g->pad[axis]) % s;
    return p < 0 ? p + s : p;
}

/* Taps of a phase along an axis, and taps of the phases before it. */
static int64_t count_taps(const conv_geom *g, int axis, int64_t phase, int64_t *before)
{
    int64_t own = 0;
    *before = 0;
    for (int64_t r = 0; r < g->kernel[axis]; r++) {
        const int64_t p = phase_of(g, axis, r);
        own += p == phase;
        *before += p < phase;
    }
    return own;
}

/* Taps of a phase of three axes; in *before those of all phases before it. */
static int64_t phase_taps(const conv_geom *g, const int64_t phase[3], int64_t *before)
{
    int64_t front = 0, taps = 1, rest = g->kernel[0] * g->kernel[1] * g->kernel[2];
    for (int a = 0; a < 3; a++) {
        int64_t earlier, own = count_taps(g, a, phase[a], &earlier);
        rest /= g->kernel[a];
        front += taps * earlier * rest;
        taps *= own;
    }
    *before = front;
    return taps;
}

/* The next tap of a phase in order, from r[] on (inclusive); false after the last. */
static bool next_tap(const conv_geom *g, const int64_t phase[3], int64_t r[3])
{
    for (; r[0] < g->kernel[0]; r[0]++, r[1] = 0) {
        if (phase_of(g, 0, r[0]) != phase[0]) continue;
        for (; r[1] < g->kernel[1]; r[1]++, r[2] = 0) {
            if (phase_of(g, 1, r[1]) != phase[1]) continue;
            for (; r[2] < g->kernel[2]; r[2]++) {
                if (phase_of(g, 2, r[2]) == phase[2]) return true;
            }
        }
    }
    return false;
}

/* ---- plan ---- */

static int64_t group_rows(const convt_plan *p)
{
    return p->g.K / p->g.groups;
}

/* Rows of a part: the phases along W stay in L2; fewer if there would be few parts, but not so few that gathering B
 * for them costs as much as the product. `row_flops`: of one row of one panel. */
static int64_t choose_rows(const convt_plan *p, int64_t width, double row_flops)
{
    const int64_t others = p->g.groups * p->phases[0] * p->phases[1] * p->panels;
    const int64_t floats = (512 << 10) / (int64_t)sizeof(float);
    int64_t rows = cvyi_max64(8, cvyi_min64(256, floats / (width * p->strip)));
    while (rows > 64 && (double)rows * row_flops > 4e6 && others * cvyi_ceil_div(group_rows(p), rows) < 64)
        rows /= 2;
    return rows;
}

void cvyi_convt_plan(cpu_isa isa, const conv_geom *g, convt_plan *out)
{
    const cpu_gemm_kernels *k = cvyi_gemm_kernels(isa);
    const int64_t width = (int64_t)k->vl * k->nv;
    int64_t positions = 1;
    double row_flops = 2.0 * (double)(g->C / g->groups) * (double)width * (double)g->kernel[2], part_flops;
    *out = (convt_plan){.g = *g, .isa = isa};
    for (int a = 0; a < 3; a++) {
        out->phases[a] = cvyi_min64(g->stride[a], g->out[a]);
        out->grid[a] = cvyi_ceil_div(g->out[a], g->stride[a]);
        positions *= out->grid[a];
        if (a < 2) row_flops *= (double)g->kernel[a] / (double)g->stride[a];
    }
    if (positions <= 0 || g->K <= 0) return; /* no parts */
    out->strip = cvyi_min64(out->phases[2], MAX_STRIP);
    out->panels = cvyi_ceil_div(cvyi_ceil_div(positions, k->vl), k->nv);
    out->m_chunks = cvyi_ceil_div(group_rows(out), choose_rows(out, width, row_flops));
    /* 2 M operations, 20 us, or as many panels as there are. */
    part_flops = row_flops * (double)cvyi_ceil_div(group_rows(out), out->m_chunks);
    out->n_chunks = cvyi_ceil_div(out->panels, part_flops > 2e6 ? 1 : 1 + (int64_t)(2e6 / (part_flops + 1)));
    out->parts = g->groups * out->phases[0] * out->phases[1] * out->m_chunks * out->n_chunks;
}

static int64_t weights_of(const convt_plan *p)
{
    const conv_geom *g = &p->g;
    return g->C * group_rows(p) * g->kernel[0] * g->kernel[1] * g->kernel[2];
}

size_t cvyi_convt_packed_bytes(const convt_plan *p)
{
    return (size_t)cvyi_floats(weights_of(p) + 1);
}

/* Scratch: a block of B, then the results of a strip of phases along W: [phase][rows][width]. */
size_t cvyi_convt_scratch_bytes(const convt_plan *p)
{
    const cpu_gemm_kernels *k = cvyi_gemm_kernels(p->isa);
    const int64_t width = (int64_t)k->vl * k->nv;
    const int64_t rows = p->m_chunks ? cvyi_ceil_div(group_rows(p), p->m_chunks) : 0;
    return (size_t)cvyi_floats(width * (GEMM_KC + rows * p->strip));
}

/* ---- packing ---- */

enum { PACK_TAPS = 64, PACK_CHANS = 16 };

/* Taps first ... first + n - 1 of those of a phase. */
typedef struct tap_run {
    int64_t first, n, of;
    int64_t at[PACK_TAPS]; /* their places in a kernel */
} tap_run;

/* 16 channels (a cache line of dst) at a time, each read as one stream along m. dst: [rows][taps][chans]. */
static void pack_taps(const conv_geom *g, const float *weight, const tap_run *taps, float *dst)
{
    const int64_t rows = g->K / g->groups, chans = g->C / g->groups;
    const int64_t kernel = g->kernel[0] * g->kernel[1] * g->kernel[2];
    for (int64_t c0 = 0; c0 < chans; c0 += PACK_CHANS) {
        const int64_t c1 = cvyi_min64(c0 + PACK_CHANS, chans);
        for (int64_t m = 0; m < rows; m++) {
            for (int64_t t = 0; t < taps->n; t++) {
                const float *src = weight + m * kernel + taps->at[t];
                float *row = dst + (m * taps->of + taps->first + t) * chans;
                for (int64_t c = c0; c < c1; c++) row[c] = src[c * rows * kernel];
            }
        }
    }
}

static void pack_phase(const conv_geom *g, int64_t group, const int64_t phase[3], const float *weight,
                       float *packed)
{
    const int64_t rows = g->K / g->groups, chans = g->C / g->groups;
    const int64_t kernel = g->kernel[0] * g->kernel[1] * g->kernel[2];
    int64_t before, r[3] = {0, 0, 0};
    tap_run taps = {.of = phase_taps(g, phase, &before)};
    weight += group * chans * rows * kernel;
    packed += (group * kernel + before) * rows * chans;
    for (; taps.first < taps.of; taps.first += taps.n) {
        for (taps.n = 0; taps.n < PACK_TAPS && next_tap(g, phase, r); taps.n++, r[2]++) {
            taps.at[taps.n] = (r[0] * g->kernel[1] + r[1]) * g->kernel[2] + r[2];
        }
        pack_taps(g, weight, &taps, packed);
    }
}

void cvyi_convt_pack(const convt_plan *p, const float *weight, float *packed)
{
    const conv_geom *g = &p->g;
    packed[weights_of(p)] = cvyi_all_finite(weight, weights_of(p)) ? 0 : NAN;
    for (int64_t group = 0; group < g->groups; group++) {
        for (int64_t phase[3] = {0, 0, 0}; phase[0] < p->phases[0]; phase[0]++) {
            for (phase[1] = 0; phase[1] < p->phases[1]; phase[1]++) {
                for (phase[2] = 0; phase[2] < p->phases[2]; phase[2]++) pack_phase(g, group, phase, weight, packed);
            }
        }
    }
}

/* ---- running ---- */

/* A stretch of one row of the grid in a panel. */
typedef struct stretch {
    int64_t j[3]; /* of its first position */
    int64_t at;   /* its place in the panel */
    int64_t n;
} stretch;

/* One panel of one part. */
typedef struct panel_work {
    const convt_plan *p;
    const cpu_gemm_kernels *k;
    const float *src; /* of the group */
    const float *packed, *bias;
    float *dst; /* of the first row */
    float *block, *result;
    int64_t group, phase[3], m0, rows;
    int64_t start, n, width;      /* positions of the panel; n of width exist */
    stretch stretches[MAX_PANEL]; /* the panel by rows of the grid */
    int n_stretches;
    bool plain; /* weights that are not finite */
} panel_work;

static void find_stretches(panel_work *w)
{
    const int64_t *grid = w->p->grid;
    w->n_stretches = 0;
    for (int64_t at = 0; at < w->n;) {
        const int64_t i = w->start + at, x = i % grid[2], row = i / grid[2];
        const int64_t n = cvyi_min64(grid[2] - x, w->n - at);
        w->stretches[w->n_stretches++] = (stretch){{row / grid[1], row % grid[1], x}, at, n};
        at += n;
    }
}

/* The runs of the panel that tap r reads from a channel of src. */
static int find_runs(const panel_work *w, const int64_t r[3], gemm_run runs[MAX_PANEL])
{
    const conv_geom *g = &w->p->g;
    int64_t shift[3];
    int count = 0;
    for (int a = 0; a < 3; a++) shift[a] = (w->phase[a] + g->pad[a] - r[a] * g->dil[a]) / g->stride[a]; /* exact */
    for (int i = 0; i < w->n_stretches; i++) {
        const stretch *s = &w->stretches[i];
        const int64_t d = s->j[0] + shift[0], h = s->j[1] + shift[1], x = s->j[2] + shift[2];
        const int64_t from = cvyi_max64(0, -x), to = cvyi_min64(s->n, g->in[2] - x);
        if (d < 0 || d >= g->in[0] || h < 0 || h >= g->in[1] || from >= to) continue;
        runs[count++] = (gemm_run){(d * g->in[1] + h) * g->in[2] + x + from, s->at + from, to - from};
    }
    return count;
}

/* Rows k0 ... k0 + kc - 1 of B, of [taps][chans]; r[] is the tap of row k0 and is moved on. */
static void gather(const panel_work *w, int64_t k0, int64_t kc, int64_t r[3])
{
    const conv_geom *g = &w->p->g;
    const int64_t chans = g->C / g->groups, plane = g->in[0] * g->in[1] * g->in[2];
    for (int64_t done = 0; done < kc;) {
        const int64_t c = (k0 + done) % chans, n = cvyi_min64(chans - c, kc - done);
        gemm_run runs[MAX_PANEL];
        next_tap(g, w->phase, r);
        w->k->pack_runs(w->src + c * plane, plane, n, runs, find_runs(w, r, runs), w->width,
                        w->block + done * w->width);
        done += n;
        r[2] += c + n == chans;
    }
}

/* result[m][position] of the phase. */
static void run_phase(const panel_work *w, float *result)
{
    const conv_geom *g = &w->p->g;
    const int64_t chans = g->C / g->groups, all_rows = g->K / g->groups;
    int64_t before, depth = phase_taps(g, w->phase, &before) * chans, k0 = 0, r[3] = {0, 0, 0};
    const int64_t kernel = g->kernel[0] * g->kernel[1] * g->kernel[2];
    const float *a = w->packed + (w->group * kernel + before) * all_rows * chans + w->m0 * depth;
    do { /* once even if the phase has no taps: the result is then the bias */
        const gemm_block block = {.a = a + k0,
                                  .b = w->block,
                                  .c = result,
                                  .lda = depth,
                                  .ldc = w->width,
                                  .rows = w->rows,
                                  .kc = cvyi_min64(GEMM_KC, depth - k0),
                                  .nvec = (int)(w->width / w->k->vl),
                                  .n = w->n,
                                  .first = k0 == 0,
                                  .bias_m = w->bias};
        gather(w, k0, block.kc, r);
        w->k->block(&block);
        k0 += GEMM_KC;
    } while (k0 < depth);
}

/* The same for weights that are not finite: it multiplies no zeros. */
static void run_phase_plain(const panel_work *w, float *result)
{
    const conv_geom *g = &w->p->g;
    const int64_t chans = g->C / g->groups, plane = g->in[0] * g->in[1] * g->in[2];
    const int64_t kernel = g->kernel[0] * g->kernel[1] * g->kernel[2];
    int64_t before, depth = phase_taps(g, w->phase, &before) * chans;
    const float *a = w->packed + (w->group * kernel + before) * group_rows(w->p) * chans + w->m0 * depth;

    for (int64_t i = 0; i < w->rows * w->width; i++) result[i] = w->bias ? w->bias[i / w->width] : 0;
    for (int64_t r[3] = {0, 0, 0}; next_tap(g, w->phase, r); r[2]++, a += chans) {
        gemm_run runs[MAX_PANEL];
        const int n = find_runs(w, r, runs);
        for (int64_t mc = 0; mc < w->rows * chans; mc++) {
            const float f = a[mc / chans * depth + mc % chans], *src = w->src + mc % chans * plane;
            float *dst = result + mc / chans * w->width;
            for (int i = 0; i < n; i++)
                for (int64_t j = 0; j < runs[i].n; j++) dst[runs[i].dst + j] += f * src[runs[i].src + j];
        }
    }
}

/* dst[j * s + phase] = result[phase][j] for one stretch and `phases` phases; only n floats of dst exist. */
static void interleave(const cpu_gemm_kernels *k, const float *result, int64_t pitch, int64_t s, int64_t phases,
                       int64_t n, float *dst)
{
    if (s == 1) {
        memcpy(dst, result, (size_t)n * sizeof *dst);
    } else if (s == 2 && phases == 2) {
        k->zip(result, result + pitch, n, dst);
    } else {
        for (int64_t phase = 0; phase < phases; phase++) {
            for (int64_t j = 0; j * s + phase < n; j++) dst[j * s + phase] = result[phase * pitch + j];
        }
    }
}

/* The rows of the grid, at phases first ... first + phases - 1 along W. */
static void write_rows(const panel_work *w, int64_t first, int64_t phases)
{
    const conv_geom *g = &w->p->g;
    const int64_t plane = g->out[0] * g->out[1] * g->out[2], s = g->stride[2];
    for (int i = 0; i < w->n_stretches; i++) {
        const stretch *t = &w->stretches[i];
        const int64_t o = t->j[0] * g->stride[0] + w->phase[0], y = t->j[1] * g->stride[1] + w->phase[1];
        const int64_t x = t->j[2] * s + first, n = cvyi_min64(t->n * s, g->out[2] - x);
        if (o >= g->out[0] || y >= g->out[1]) continue; /* the phase ends before the grid */
        for (int64_t m = 0; m < w->rows; m++) {
            interleave(w->k, w->result + m * w->width + t->at, w->rows * w->width, s, phases, n,
                       w->dst + m * plane + (o * g->out[1] + y) * g->out[2] + x);
        }
    }
}

static void run_panel(panel_work *w)
{
    find_stretches(w);
    for (int64_t first = 0; first < w->p->phases[2]; first += w->p->strip) {
        const int64_t phases = cvyi_min64(w->p->strip, w->p->phases[2] - first);
        for (int64_t i = 0; i < phases; i++) {
            w->phase[2] = first + i;
            (w->plain ? run_phase_plain : run_phase)(w, w->result + i * w->rows * w->width);
        }
        write_rows(w, first, phases);
    }
}

void cvyi_convt_run(const convt_plan *p, const convt_job *job, int64_t part, float *scratch)
{
    const conv_geom *g = &p->g;
    const cpu_gemm_kernels *k = cvyi_gemm_kernels(p->isa);
    const int64_t n_chunk = part % p->n_chunks, m_chunk = part / p->n_chunks % p->m_chunks;
    const int64_t phase = part / (p->n_chunks * p->m_chunks) % (p->phases[0] * p->phases[1]);
    const int64_t group = part / (p->n_chunks * p->m_chunks) / (p->phases[0] * p->phases[1]);
    const int64_t positions = p->grid[0] * p->grid[1] * p->grid[2], vectors = cvyi_ceil_div(positions, k->vl);
    panel_work w = {.p = p, .k = k, .packed = job->packed, .block = scratch, .group = group};
    w.result = scratch + GEMM_KC * k->nv * k->vl;
    w.plain = w.packed[weights_of(p)] != 0;
    w.phase[0] = phase / p->phases[1];
    w.phase[1] = phase % p->phases[1];
    w.m0 = cvyi_part_start(group_rows(p), p->m_chunks, m_chunk);
    w.rows = cvyi_part_start(group_rows(p), p->m_chunks, m_chunk + 1) - w.m0;
    w.src = job->src + group * (g->C / g->groups) * g->in[0] * g->in[1] * g->in[2];
    w.dst = job->dst + (group * group_rows(p) + w.m0) * g->out[0] * g->out[1] * g->out[2];
    w.bias = job->bias ? job->bias + group * group_rows(p) + w.m0 : NULL;
    for (int64_t i = cvyi_part_start(p->panels, p->n_chunks, n_chunk);
         i < cvyi_part_start(p->panels, p->n_chunks, n_chunk + 1); i++) {
        w.start = cvyi_part_start(vectors, p->panels, i) * k->vl;
        w.width = cvyi_part_start(vectors, p->panels, i + 1) * k->vl - w.start;
        w.n = cvyi_min64(w.width, positions - w.start);
        run_panel(&w);
    }
}
