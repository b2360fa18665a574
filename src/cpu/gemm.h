/* gemm.h - C[M][N] = A[M][K] * B + bias: linear, matmul, 1x1 convolution.
 *
 * A is read in place, row by row; vectors run along N. B is read in panels: up to `nv` vectors of columns, k
 * after k, the last column's vector filled up with zeros:
 *
 *     columns   0 ... w0-1 | w0 ... w0+w1-1 | ...      w: whole vectors, panels as even as possible
 *     memory    panel 0: [K][w0], panel 1: [K][w1], ...
 *
 * A parameter is packed like that once (GEMM_PACKED); other B are packed block by block into scratch as they are
 * used. One or two rows of A against an [N][K] (a linear layer of batch 1) are bound by reading B: GEMM_DOTS reads
 * it in place, in dot products along K, without packing. The caller chooses it explicitly, because it sums in
 * another order.
 *
 *     linear            A = x [M][K],           B = weight [N][K], packed       bias per column
 *     matmul            A = x [M][K],           B = other [K][N], packed if it is a parameter
 *     1x1 convolution   A = weight [K'][C],     B = x [C][pixels] of a sample   bias per row; batch: groups
 *
 * Sums: K is cut into blocks of GEMM_KC; a block is summed in order by FMA, blocks are added in order (dot
 * products: all of K in order per lane, then the lanes). Parts are cut only by sizes, so the result is bitwise the
 * same for any number of threads. */
#ifndef CVYI_GEMM_H
#define CVYI_GEMM_H

#include "cpuinfo.h"

enum { GEMM_KC = 256 };

typedef enum gemm_b {
    GEMM_PACKED, /* by cvyi_gemm_pack */
    GEMM_KN,     /* [K][N], row stride ldb */
    GEMM_NK,     /* [N][K], row stride ldb */
    GEMM_DOTS    /* as GEMM_NK, but never packed: for one or two rows of A */
} gemm_b;

/* How a product is cut. */
typedef struct gemm_plan {
    cpu_isa isa;
    gemm_b b;
    int64_t batch, M, N, K;
    int64_t panels;   /* of B */
    int64_t m_chunks; /* of rows, as even as possible */
    int64_t n_chunks; /* of panels, as even as possible */
    int64_t b_chunks; /* of products, as even as possible: a part is of several if they are small */
    int64_t parts;    /* b_chunks * m_chunks * n_chunks */
} gemm_plan;

/* What is multiplied, at run time. Strides in floats; *_batch: from one product to the next, 0: shared. */
typedef struct gemm_job {
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc; /* ldb: not for GEMM_PACKED */
    int64_t a_batch, b_batch, c_batch, bias_batch;
    const float *bias_m, *bias_n; /* per row, per column; NULL: none */
} gemm_job;

void cvyi_gemm_plan(cpu_isa isa, gemm_b b, int64_t batch, int64_t M, int64_t N, int64_t K, gemm_plan *out);

/* Bytes of one packed B; b_batch of several is that over sizeof(float). */
size_t cvyi_gemm_packed_bytes(const gemm_plan *p);
/* Packs one B, [N][K] or [K][N] with row stride ld. The work has p->panels independent parts. */
void cvyi_gemm_pack(const gemm_plan *p, gemm_b from, const float *b, int64_t ld, float *packed, int64_t panel);

size_t cvyi_gemm_scratch_bytes(const gemm_plan *p); /* per worker, aligned to 64 */
void cvyi_gemm_run(const gemm_plan *p, const gemm_job *job, int64_t part, float *scratch);

/* ---- kernels (kernels/gemm.c), also what transposed convolution is made of ---- */

/* Rows of C against one block of one panel. */
typedef struct gemm_block {
    const float *a, *b; /* b: [kc][nvec * VL]; for dots [n][kc] */
    float *c;
    int64_t lda, ldb, ldc; /* ldb: for dots */
    int64_t rows, kc;
    int nvec;                     /* vectors of the panel */
    int64_t n;                    /* columns to be stored: (nvec - 1) * VL < n <= nvec * VL */
    bool first;                   /* C = bias + product; else C += product */
    const float *bias_m, *bias_n; /* of these rows and columns */
} gemm_block;

/* A run of floats to copy: the same for many rows. */
typedef struct gemm_run {
    int64_t src, dst, n;
} gemm_run;

typedef struct cpu_gemm_kernels {
    const char *name; /* of the entry `block` */
    int vl, mr, nv;   /* lanes; rows and vectors of the register tile */
    void (*block)(const gemm_block *t);
    void (*dots)(const gemm_block *t); /* any n; nvec is not read */
    /* dst[k][width] = src[k][n], zero past n. */
    void (*pack_kn)(const float *src, int64_t ld, int64_t kc, int64_t n, int64_t width, float *dst);
    /* dst[k][width] = src[n][k], zero past n. */
    void (*pack_nk)(const float *src, int64_t ld, int64_t kc, int64_t n, int64_t width, float *dst);
    /* dst[k][width]: the runs of src[k], zero elsewhere. */
    void (*pack_runs)(const float *src, int64_t ld, int64_t kc, const gemm_run *runs, int n_runs, int64_t width,
                      float *dst);
    /* dst[i], i < n, alternately from a and b: a[0], b[0], a[1], ... */
    void (*zip)(const float *a, const float *b, int64_t n, float *dst);
} cpu_gemm_kernels;
extern const cpu_gemm_kernels cvyi_gemm_portable, cvyi_gemm_avx2, cvyi_gemm_avx512, cvyi_gemm_neon;

const cpu_gemm_kernels *cvyi_gemm_kernels(cpu_isa isa);

#endif
