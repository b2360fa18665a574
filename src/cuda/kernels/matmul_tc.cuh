// matmul_tc.cuh - the tile of matmul_tc.cu, and the layout of the weights that matmul_tc_pack.cu writes.
//
//   packed [column tiles][STEPS][PARTS][8][BN][PIECE]: what a block needs of DEPTH terms is one piece, in wgmma's
//   order without swizzle: 8 columns x 16 bytes are contiguous, BN * 16 bytes from PIECE terms to the next ones
//
// Part 0 is the weights rounded to tf32; part 1, with three products, is the remainder, rounded again. Operands of
// 16 bits are unchanged, one part, with twice as many terms in as many bytes. Columns past COLS and terms past
// TERMS are zeros; there are whole clusters of column tiles.
#ifndef CVY_MATMUL_TC_CUH
#define CVY_MATMUL_TC_CUH

#ifndef BM // MATMUL_TC_TILE of product_layout.cuh
#define BM        128
#define BN        128
#define CLUSTER_M 1
#define CLUSTER_N 1
#define PRODUCTS  3
#endif

#include "product_layout.cuh"
#include "rows.cuh"

constexpr wgmma_layout LAYOUT = wgmma_find_layout(BM, BN, PRODUCTS);
constexpr bool HALF = sizeof(X_TYPE) == 2;
constexpr int PIECE = 16 / (int)sizeof(X_TYPE), DEPTH = 8 * PIECE; // terms in 16 bytes; in a row of a stage
constexpr int STEPS = (TERMS + DEPTH - 1) / DEPTH, PARTS = LAYOUT.parts;
static_assert(sizeof(X_TYPE) == sizeof(W_TYPE) && (!HALF || PARTS == 1), "both operands alike");
static_assert(WGMMA_DEPTH * FLOAT_BYTES == DEPTH * sizeof(X_TYPE), "rows of 128 bytes");
constexpr int X_STAGE = LAYOUT.x_stage, W_STAGE = LAYOUT.w_stage; // floats

#endif
