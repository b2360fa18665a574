// product_layout.cuh - what the kernels of matrix products and of convolutions as such agree on with the host that
// chooses their tiles (tc_product.c, mma.c, core_window.c, core_product.c): stages, threads, bytes of shared
// memory.
#ifndef CVY_PRODUCT_LAYOUT_CUH
#define CVY_PRODUCT_LAYOUT_CUH

#include "host_device.cuh"

// The lists below are the macros by which the host chooses how a kernel runs: -DNAME, the field of the choice that
// holds its value, its meaning. What a kernel's operands are like is said by other macros, at its head.

// Results lie in shared memory as [rows][columns + 8], over the stages: halves of a warp store to 32 banks.
CVY_CONST int results_bytes(int m, int n)
{
    return FLOAT_BYTES * m * (n + 8);
}

// ---- matmul_tc.cu: a tile of m rows x n columns ----

#define MATMUL_TC_TILE(X)                                                                                          \
    X(BM, m, "rows of a block")                                                                                    \
    X(BN, n, "and columns")                                                                                        \
    X(CLUSTER_M, cluster_m, "blocks of a cluster with the same columns")                                           \
    X(CLUSTER_N, cluster_n, "and with the same rows")                                                              \
    X(PRODUCTS, products, "1: tf32's accuracy, 3: float32's")

enum { WGMMA_DEPTH = 32, WGMMA_MOST_STAGES = 8 }; // terms of a step in float32, words of it in any type

typedef struct wgmma_layout {
    int parts;            // of the weights: 2 where three products are to have float32's accuracy
    int x_stage, w_stage; // floats: x [m][DEPTH], weights [parts][n][DEPTH]
    int resident;         // blocks of a multiprocessor
    int stages;           // as many as fit
    int threads;          // a warpgroup for 64 rows, and one that copies
    int shared_bytes;     // stages or results, and two barriers for each stage
} wgmma_layout;

CVY_CONST wgmma_layout wgmma_find_layout(int m, int n, int products)
{
    const int parts = products == 3 ? 2 : 1, x_stage = m * WGMMA_DEPTH, w_stage = parts * n * WGMMA_DEPTH;
    const int resident = m * n <= 64 * (products == 3 ? 32 : 128) ? 2 : 1;
    const int bytes = FLOAT_BYTES * (x_stage + w_stage), fit = (resident == 2 ? 112 : 225) * 1024 / bytes;
    const int stages = least(fit, WGMMA_MOST_STAGES);
    const wgmma_layout l = {parts,
                            x_stage,
                            w_stage,
                            resident,
                            stages,
                            128 * (m / 64 + 1),
                            most(stages * bytes, results_bytes(m, n)) + 16 * stages};
    return l;
}

// ---- matmul_wide.cu: a tile of rows x columns, both operands words of 16 bits ----

#define MATMUL_WIDE_TILE(X)                                                                                        \
    X(BM, m, "rows of a tile")                                                                                     \
    X(BN, n, "and columns")                                                                                        \
    X(TURNS, turns, "1: warpgroups take turns, else they share a tile")                                            \
    X(SPLIT, split, "tiles that share a sum")

enum {
    WORD_DEPTH = 64, // terms of a step: rows of 128 bytes, swizzled
    WORD_CHUNK = 32, // columns of 8 rows that a warp finishes at a time
    WORD_LINES = 64, // lines and terms of a matrix that a block turns into words
    WORD_STRETCH = 256,
    WORD_MOST_STAGES = 6,
    WORD_THREADS = 384 // two warpgroups, and one that copies
};

typedef struct word_layout {
    int parts;            // of both operands: 2 where three products are to have float32's accuracy
    int x_stage, w_stage; // bytes: [parts][rows or columns][64]
    int stages;           // as many as fit; fewer than 2: it does not fit
    int shared_bytes;     // stages, a chunk of results for each warp, two barriers for each stage and two more
} word_layout;

CVY_CONST word_layout word_find_layout(int m, int n, int products)
{
    const int parts = products == 3 ? 2 : 1, row = HALF_BYTES * WORD_DEPTH;
    const int x_stage = parts * m * row, w_stage = parts * n * row;
    const int chunks = 8 * 8 * (WORD_CHUNK + 8) * FLOAT_BYTES, room = 226 * 1024 - chunks;
    const int stages = least(room / (x_stage + w_stage), WORD_MOST_STAGES);
    const word_layout l = {parts, x_stage, w_stage, stages,
                           stages * (x_stage + w_stage) + chunks + 16 * (stages + 1)};
    return l;
}

// ---- through mma.sync ----

#define CONV_MMA_TILE(X)                                                                                           \
    X(BK, m, "output channels of a block")                                                                         \
    X(BP, n, "and pixels")                                                                                         \
    X(WK, warp_m, "output channels of a warp")                                                                     \
    X(WP, warp_n, "and pixels")                                                                                    \
    X(PRODUCTS, products, "1: tf32's accuracy, 3: float32's")                                                      \
    X(LEAST_STAGES, stages, "of shared memory; results may have room for more")                                    \
    X(BLOCKS, bound, "of a multiprocessor at least, which bounds the registers")
#define MATMUL_MMA_TILE(X)                                                                                         \
    X(BM, m, "rows of a block")                                                                                    \
    X(BN, n, "and columns")                                                                                        \
    X(WM, warp_m, "rows of a warp")                                                                                \
    X(WN, warp_n, "and columns")                                                                                   \
    X(PRODUCTS, products, "1: tf32's accuracy, 3: float32's")                                                      \
    X(BLOCKS, bound, "of a multiprocessor at least, which bounds the registers")

enum { MMA_DEPTH = 16, MATMUL_MMA_STAGES = 3, CONV_MMA_MOST_STAGES = 5 }; // terms of a step

// Threads of a block of m x n results, a warp for each warp_m x warp_n of them.
CVY_CONST int mma_threads(int m, int n, int warp_m, int warp_n)
{
    return 32 * (m / warp_m) * (n / warp_n);
}
// matmul_mma.cu: blocks that a multiprocessor has registers for; from compute capability 10.0 on the compiler wants
// more of them for three products.
CVY_CONST int matmul_mma_blocks(int m, int n, int products, int major)
{
    if (products == 3 && major >= 10) return n == 64 ? 2 : 1;
    return n == 64 ? 3 : m == 64 ? 2 : 1;
}
// Floats of a stage. conv_mma.cu: pixels [DEPTH][p + 8], weights [DEPTH][k + 8].
CVY_CONST int conv_mma_stage(int k, int p)
{
    return MMA_DEPTH * (p + 8 + k + 8);
}
// matmul_mma.cu: x [m][DEPTH + 4], other [n][DEPTH + 4] or [DEPTH][n + 8].
CVY_CONST int matmul_mma_stage(int m, int n, bool other_is_nk)
{
    return m * (MMA_DEPTH + 4) + (other_is_nk ? n * (MMA_DEPTH + 4) : MMA_DEPTH * (n + 8));
}
// Room for `stages` of them, and for the results.
CVY_CONST int mma_shared_bytes(int stage, int stages, int m, int n)
{
    return most(FLOAT_BYTES * stages * stage, results_bytes(m, n));
}

// ---- by multiply-adds: `depth` terms at a time; results lie in shared memory without gaps ----

#define CONV_DIRECT_TILE(X)                                                                                        \
    X(BK, channels, "of a block")                                                                                  \
    X(BP, pixels, "of a block")                                                                                    \
    X(TK, k_each, "channels of a thread")                                                                          \
    X(TP, p_each, "and pixels")                                                                                    \
    X(ROWS, terms, "at a time")                                                                                    \
    X(BLOCKS, blocks, "of a multiprocessor at least, which bounds the registers")
#define MATMUL_TILE(X)                                                                                             \
    X(BM, rows, "of a block")                                                                                      \
    X(BN, columns, "of a block")                                                                                   \
    X(TM, each, "rows of a thread")                                                                                \
    X(TN, each, "and columns")                                                                                     \
    X(DEPTH, depth, "terms at a time")

enum { DIRECT_STAGES = 2, MATMUL_GAP = 4 }; // the gap keeps transposing stores off each other's banks

// Threads of a block of m x n results, m_each x n_each for each of them.
CVY_CONST int tile_threads(int m, int n, int m_each, int n_each)
{
    return (m / m_each) * (n / n_each);
}
// Floats of a stage of conv_direct.cu: pixels [depth][p], weights [depth][k].
CVY_CONST int direct_stage(int k, int p, int depth)
{
    return depth * (p + k);
}
CVY_CONST int direct_shared_bytes(int k, int p, int depth)
{
    return FLOAT_BYTES * most(DIRECT_STAGES * direct_stage(k, p, depth), k * p);
}
// Floats of the only stage of matmul.cu: x [depth][m + 4], other [depth][n + 4].
CVY_CONST int matmul_stage(int m, int n, int depth)
{
    return depth * (m + MATMUL_GAP + n + MATMUL_GAP);
}
CVY_CONST int matmul_shared_bytes(int m, int n, int depth)
{
    return FLOAT_BYTES * most(matmul_stage(m, n, depth), m * n);
}

#endif
