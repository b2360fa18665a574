/* gemm.c - how a product is cut into parts, and the loops around the kernels. */
#include "gemm.h"

static const cpu_gemm_kernels *const kernels[CPU_ISA_COUNT] = CPU_KERNELS(cvyi_gemm);

const cpu_gemm_kernels *cvyi_gemm_kernels(cpu_isa isa)
{
    return kernels[isa];
}

/* ---- cutting ---- */

/* Operations of a part: at least 1 M (10 us, so that claiming it costs nothing), at most 32 M (no thread waits long
 * for the last one), and no more than 128 parts if that allows. */
static double part_flops(const gemm_plan *p)
{
    const double all = 2.0 * (double)p->batch * (double)p->M * (double)p->N * (double)p->K / 128;
    return all < 1e6 ? 1e6 : all > 32e6 ? 32e6 : all;
}

/* Rows of a part: 256 rows of a block of A stay in L2 (256 KiB). Fewer if there would be few parts; not so few that
 * a B packed for them is used only once or twice. */
static int64_t choose_m_chunks(const gemm_plan *p, double row_flops, double target)
{
    const int64_t fewest = p->b == GEMM_PACKED ? 32 : 64;
    int64_t rows = 256;
    while (rows > fewest && (double)rows * row_flops > target &&
           p->batch * p->panels * cvyi_ceil_div(p->M, rows) < 64)
        rows /= 2;
    return cvyi_max64(1, cvyi_ceil_div(p->M, rows));
}

/* Pieces of so many operations that are at least `target` together. */
static int64_t pieces(double target, double flops)
{
    return cvyi_max64(1, (int64_t)(target / flops));
}

void cvyi_gemm_plan(cpu_isa isa, gemm_b b, int64_t batch, int64_t M, int64_t N, int64_t K, gemm_plan *out)
{
    const cpu_gemm_kernels *k = kernels[isa];
    const int64_t vectors = cvyi_ceil_div(N, k->vl);
    double target, flops; /* in double: products of extents may overflow */
    *out = (gemm_plan){.isa = isa, .b = b, .batch = batch, .M = M, .N = N, .K = K};
    if (batch <= 0 || M <= 0 || N <= 0) return; /* nothing to compute: no parts */
    out->panels = cvyi_ceil_div(vectors, k->nv);
    target = part_flops(out);
    flops = 2.0 * (double)cvyi_ceil_div(N, out->panels) * (double)cvyi_max64(K, 1); /* of one row and panel */
    out->m_chunks = choose_m_chunks(out, flops, target);
    flops *= (double)cvyi_ceil_div(M, out->m_chunks);
    out->n_chunks = cvyi_ceil_div(out->panels, pieces(target, flops));
    flops *= (double)out->panels; /* of a product, if it is one part */
    out->b_chunks = out->m_chunks * out->n_chunks > 1 ? batch : cvyi_ceil_div(batch, pieces(target, flops));
    out->parts = out->b_chunks * out->m_chunks * out->n_chunks;
}

/* A panel: its first column, its vectors, its columns that exist. */
typedef struct panel {
    int64_t start, width, n;
} panel;

static panel panel_at(const gemm_plan *p, int64_t i)
{
    const int64_t vl = kernels[p->isa]->vl, vectors = cvyi_ceil_div(p->N, vl);
    const int64_t start = cvyi_part_start(vectors, p->panels, i) * vl;
    const int64_t end = cvyi_part_start(vectors, p->panels, i + 1) * vl;
    return (panel){start, end - start, cvyi_min64(end, p->N) - start};
}

/* ---- packing ---- */

size_t cvyi_gemm_packed_bytes(const gemm_plan *p)
{
    return (size_t)cvyi_floats(cvyi_round_up(p->N, kernels[p->isa]->vl) * p->K);
}

/* B where it lies. */
typedef struct matrix {
    gemm_b layout;
    const float *at;
    int64_t ld;
} matrix;

/* Rows k0 ... k0 + kc - 1 of a panel. */
static void pack_block(const gemm_plan *p, matrix b, panel of, int64_t k0, int64_t kc, float *dst)
{
    const cpu_gemm_kernels *k = kernels[p->isa];
    if (b.layout == GEMM_KN)
        k->pack_kn(b.at + k0 * b.ld + of.start, b.ld, kc, of.n, of.width, dst);
    else
        k->pack_nk(b.at + of.start * b.ld + k0, b.ld, kc, of.n, of.width, dst);
}

void cvyi_gemm_pack(const gemm_plan *p, gemm_b from, const float *b, int64_t ld, float *packed, int64_t panel_index)
{
    const panel at = panel_at(p, panel_index);
    pack_block(p, (matrix){from, b, ld}, at, 0, p->K, packed + at.start * p->K);
}

/* ---- running ---- */

size_t cvyi_gemm_scratch_bytes(const gemm_plan *p)
{
    const cpu_gemm_kernels *k = kernels[p->isa];
    return p->b == GEMM_PACKED || p->b == GEMM_DOTS ? 0 : (size_t)cvyi_floats(GEMM_KC * k->nv * k->vl);
}

/* Where a panel of B has its rows from k0 on, packed; for dot products, where it lies. */
static const float *block_of_b(const gemm_plan *p, matrix b, panel of, int64_t k0, int64_t kc, float *scratch)
{
    if (b.layout == GEMM_PACKED) return b.at + of.start * p->K + k0 * of.width;
    if (b.layout == GEMM_DOTS) return b.at + of.start * b.ld + k0;
    pack_block(p, b, of, k0, kc, scratch);
    return scratch;
}

/* Rows m[0] ... m[1] - 1 and panels panels[0] ... panels[1] - 1 of product number z of the batch. */
static void run_part(const gemm_plan *p, const gemm_job *j, int64_t z, const int64_t m[2], const int64_t panels[2],
                     float *scratch)
{
    const cpu_gemm_kernels *k = kernels[p->isa];
    void (*const run)(const gemm_block *t) = p->b == GEMM_DOTS ? k->dots : k->block;
    const float *a = j->a + z * j->a_batch + m[0] * j->lda;
    const matrix b = {p->b, j->b + z * j->b_batch, j->ldb};
    float *c = j->c + z * j->c_batch + m[0] * j->ldc;
    const int64_t depth = p->b == GEMM_DOTS ? cvyi_max64(p->K, 1) : GEMM_KC; /* dots: rows of B as whole streams */
    int64_t k0 = 0;
    do { /* once even if K is 0: C is then the bias */
        const int64_t kc = cvyi_min64(depth, p->K - k0);
        for (int64_t i = panels[0]; i < panels[1]; i++) {
            const panel at = panel_at(p, i);
            const gemm_block block = {.a = a + k0,
                                      .b = block_of_b(p, b, at, k0, kc, scratch),
                                      .c = c + at.start,
                                      .lda = j->lda,
                                      .ldb = j->ldb,
                                      .ldc = j->ldc,
                                      .rows = m[1] - m[0],
                                      .kc = kc,
                                      .nvec = (int)(at.width / k->vl),
                                      .n = at.n,
                                      .first = k0 == 0,
                                      .bias_m = j->bias_m ? j->bias_m + z * j->bias_batch + m[0] : NULL,
                                      .bias_n = j->bias_n ? j->bias_n + z * j->bias_batch + at.start : NULL};
            run(&block);
        }
        k0 += depth;
    } while (k0 < p->K);
}

void cvyi_gemm_run(const gemm_plan *p, const gemm_job *j, int64_t part, float *scratch)
{
    const int64_t n_chunk = part % p->n_chunks, m_chunk = part / p->n_chunks % p->m_chunks;
    const int64_t b_chunk = part / (p->n_chunks * p->m_chunks);
    const int64_t m[2] = {cvyi_part_start(p->M, p->m_chunks, m_chunk),
                          cvyi_part_start(p->M, p->m_chunks, m_chunk + 1)};
    const int64_t panels[2] = {cvyi_part_start(p->panels, p->n_chunks, n_chunk),
                               cvyi_part_start(p->panels, p->n_chunks, n_chunk + 1)};
    const int64_t end = cvyi_part_start(p->batch, p->b_chunks, b_chunk + 1);
    for (int64_t z = cvyi_part_start(p->batch, p->b_chunks, b_chunk); z < end; z++) {
        run_part(p, j, z, m, panels, scratch);
    }
}
