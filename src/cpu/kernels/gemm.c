/* gemm.c - register tiles of the matrix product, and the packing of B. See ../gemm.h for layouts.
 *
 * A tile is up to MR rows by NV vectors of C in registers. Per k it loads NV vectors of the packed panel and
 * broadcasts one float per row of A, which lies as the caller has it: a row's next 16 values share a cache line,
 * and MR rows are few enough streams for the prefetcher. Bound by FMA: MR * NV of them against MR + NV loads. */
#include "../simd.h"
#include "../gemm.h"

#if defined(CVY_ISA_AVX512) || defined(CVY_ISA_NEON)
#define LARGE     1 /* 32 registers */
#define GEMM_TILE 8x3
enum { MR = 8, NV = 3 }; /* 24 accumulators, 3 of B, 1 of A of 32 registers */
#elif defined(CVY_ISA_AVX2)
#define GEMM_TILE 6x2
enum { MR = 6, NV = 2 }; /* 12 + 2 + 1 of 16 */
#else
#define GEMM_TILE 4x2
enum { MR = 4, NV = 2 }; /* 8 + 2 + 1, and 1 for the product where there is no FMA, of 16 */
#endif

/* ---- the tile ---- */

/* Adds what C starts from to the tile and stores it. `tail`: lanes of the last vector that exist. */
INLINE void store_tile(const int mr, const int nv, const gemm_block *t, int64_t row, int64_t tail, vf acc[MR][NV])
{
    for (int i = 0; i < mr; i++) {
        float *c = t->c + (row + i) * t->ldc;
        const vf start = t->first && t->bias_m ? v_set1(t->bias_m[row + i]) : v_zero();
        for (int j = 0; j < nv; j++) {
            const int64_t lanes = j == nv - 1 ? tail : VL;
            vf sum = v_add(acc[i][j], start);
            if (!t->first)
                sum = v_add(sum, v_load_n(c + j * VL, lanes));
            else if (t->bias_n)
                sum = v_add(sum, v_load_n(t->bias_n + j * VL, lanes));
            if (lanes == VL)
                v_store(c + j * VL, sum);
            else
                v_store_n(c + j * VL, lanes, sum);
        }
    }
}

INLINE void tile(const int mr, const int nv, const gemm_block *t, int64_t row)
{
    const float *a = t->a + row * t->lda, *b = t->b;
    const int64_t lda = t->lda;
    vf acc[MR][NV];
    for (int i = 0; i < mr; i++) {
        for (int j = 0; j < nv; j++) acc[i][j] = v_zero();
    }
    for (int64_t k = 0; k < t->kc; k++) {
        vf bv[NV];
        for (int j = 0; j < nv; j++) bv[j] = v_load(b + j * VL);
        for (int i = 0; i < mr; i++) {
            const vf av = v_set1(a[i * lda + k]);
            for (int j = 0; j < nv; j++) acc[i][j] = v_fma(av, bv[j], acc[i][j]);
        }
        b += nv * VL;
    }
    store_tile(mr, nv, t, row, t->n - (int64_t)(nv - 1) * VL, acc);
}

#define TILE(mr, nv)                                                                                               \
    static void tile_##mr##x##nv(const gemm_block *t, int64_t row)                                                 \
    {                                                                                                              \
        tile(mr, nv, t, row);                                                                                      \
    }
#define TILES(nv) TILE(1, nv) TILE(2, nv) TILE(3, nv) TILE(4, nv)
#define ROW(nv)   tile_1x##nv, tile_2x##nv, tile_3x##nv, tile_4x##nv
TILES(1)
TILES(2)
#if defined(LARGE)
#define MORE(nv)     TILE(5, nv) TILE(6, nv) TILE(7, nv) TILE(8, nv)
#define MORE_ROW(nv) , tile_5x##nv, tile_6x##nv, tile_7x##nv, tile_8x##nv
TILES(3)
MORE(1)
MORE(2)
MORE(3)
#elif defined(CVY_ISA_AVX2)
#define MORE(nv)     TILE(5, nv) TILE(6, nv)
#define MORE_ROW(nv) , tile_5x##nv, tile_6x##nv
MORE(1)
MORE(2)
#else
#define MORE_ROW(nv)
#endif

static void (*const tiles[NV][MR])(const gemm_block *t, int64_t row) = {
    {ROW(1) MORE_ROW(1)},
    {ROW(2) MORE_ROW(2)},
#if defined(LARGE)
    {ROW(3) MORE_ROW(3)},
#endif
};

/* Rows are cut evenly: 9 rows are 5 + 4, not 8 + 1. */
static void ENTRY(gemm, GEMM_TILE)(const gemm_block *t)
{
    const int64_t parts = cvyi_ceil_div(t->rows, MR);
    for (int64_t i = 0; i < parts; i++) {
        const int64_t row = cvyi_part_start(t->rows, parts, i), end = cvyi_part_start(t->rows, parts, i + 1);
        tiles[t->nvec - 1][end - row - 1](t, row);
    }
}

/* ---- dot products: bound by reading B, DOTS rows of it at a time ---- */

enum { DOTS = 4, DOT_ROWS = 2 };

INLINE void dot_tile(const int mr, const int nr, const gemm_block *t, int64_t row, int64_t col)
{
    const float *a = t->a + row * t->lda, *b = t->b + col * t->ldb;
    vf acc[DOT_ROWS][DOTS];
    int64_t k = 0;
    for (int i = 0; i < mr; i++) {
        for (int j = 0; j < nr; j++) acc[i][j] = v_zero();
    }
    for (; k + VL <= t->kc; k += VL) {
        for (int j = 0; j < nr; j++) {
            const vf bv = v_load(b + j * t->ldb + k);
            for (int i = 0; i < mr; i++) acc[i][j] = v_fma(v_load(a + i * t->lda + k), bv, acc[i][j]);
        }
    }
    for (int j = 0; j < nr && k < t->kc; j++) {
        const vf bv = v_load_n(b + j * t->ldb + k, t->kc - k);
        for (int i = 0; i < mr; i++) acc[i][j] = v_fma(v_load_n(a + i * t->lda + k, t->kc - k), bv, acc[i][j]);
    }
    for (int i = 0; i < mr; i++) {
        float *c = t->c + (row + i) * t->ldc + col;
        const float start = t->first && t->bias_m ? t->bias_m[row + i] : 0;
        for (int j = 0; j < nr; j++) {
            const float add = !t->first ? c[j] : t->bias_n ? t->bias_n[col + j] : 0;
            c[j] = v_hsum(acc[i][j]) + start + add;
        }
    }
}

INLINE void dot_rows(const int mr, const gemm_block *t, int64_t row)
{
    int64_t col = 0;
    for (; col + DOTS <= t->n; col += DOTS) dot_tile(mr, DOTS, t, row, col);
    for (; col < t->n; col++) dot_tile(mr, 1, t, row, col);
}

static void ENTRY(gemm_dots, VL)(const gemm_block *t)
{
    int64_t row = 0;
    for (; row + DOT_ROWS <= t->rows; row += DOT_ROWS) dot_rows(DOT_ROWS, t, row);
    if (row < t->rows) dot_rows(1, t, row);
}

/* ---- packing ---- */

static void ENTRY(gemm_pack_kn, VL)(const float *src, int64_t ld, int64_t kc, int64_t n, int64_t width, float *dst)
{
    for (int64_t k = 0; k < kc; k++, src += ld, dst += width) {
        for (int64_t i = 0; i < width; i += VL) v_store(dst + i, v_load_n(src + i, n - i));
    }
}

/* 4 x 4 floats turned: four columns of dst from four rows of src. */
INLINE void turn_4x4(const float *src, int64_t ld, float *dst, int64_t width)
{
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 4; i++) dst[k * width + i] = src[i * ld + k];
    }
}

/* 16 values of k at a time: whole cache lines of src, and rows of dst that stay in L1 however far apart those of
 * src. */
static void ENTRY(gemm_pack_nk, VL)(const float *src, int64_t ld, int64_t kc, int64_t n, int64_t width, float *dst)
{
    const int64_t whole_n = n / 4 * 4;
    for (int64_t k0 = 0; k0 < kc; k0 += 16) {
        const int64_t k1 = cvyi_min64(k0 + 16, kc), whole_k = k0 + (k1 - k0) / 4 * 4;
        for (int64_t i = 0; i < whole_n; i += 4) {
            for (int64_t k = k0; k < whole_k; k += 4) turn_4x4(src + i * ld + k, ld, dst + k * width + i, width);
        }
        for (int64_t k = k0; k < k1; k++) {
            for (int64_t i = k < whole_k ? whole_n : 0; i < n; i++) dst[k * width + i] = src[i * ld + k];
            for (int64_t i = n; i < width; i++) dst[k * width + i] = 0;
        }
    }
}

INLINE void copy_run(const float *src, float *dst, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL) v_store(dst + i, v_load(src + i));
    if (i < n) v_store_n(dst + i, n - i, v_load_n(src + i, n - i));
}

static void ENTRY(gemm_pack_runs, VL)(const float *src, int64_t ld, int64_t kc, const gemm_run *runs, int n_runs,
                                      int64_t width, float *dst)
{
    int64_t covered = 0;
    for (int r = 0; r < n_runs; r++) covered += runs[r].n;
    for (int64_t k = 0; k < kc; k++, src += ld, dst += width) {
        for (int64_t i = 0; i < width && covered < width; i += VL) v_store(dst + i, v_zero());
        for (int r = 0; r < n_runs; r++) copy_run(src + runs[r].src, dst + runs[r].dst, runs[r].n);
    }
}

static void ENTRY(gemm_zip, VL)(const float *a, const float *b, int64_t n, float *dst)
{
    vf low, high;
    for (; n >= 2 * VL; n -= 2 * VL, a += VL, b += VL, dst += 2 * VL) {
        v_zip2(v_load(a), v_load(b), &low, &high);
        v_store(dst, low);
        v_store(dst + VL, high);
    }
    v_zip2(v_load_n(a, (n + 1) / 2), v_load_n(b, n / 2), &low, &high);
    v_store_n(dst, cvyi_min64(n, VL), low);
    if (n > VL) v_store_n(dst + VL, n - VL, high);
}

const cpu_gemm_kernels ISA(cvyi_gemm) = {TEXT_OF(ENTRY(gemm, GEMM_TILE)),
                                         VL,
                                         MR,
                                         NV,
                                         ENTRY(gemm, GEMM_TILE),
                                         ENTRY(gemm_dots, VL),
                                         ENTRY(gemm_pack_kn, VL),
                                         ENTRY(gemm_pack_nk, VL),
                                         ENTRY(gemm_pack_runs, VL),
                                         ENTRY(gemm_zip, VL)};
