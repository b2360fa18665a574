// matmul_wide.cuh - matrix products of words: macros, and the layout of operands. Shared by matmul_wide*.cu.
//
// Operands are 16-bit numbers. fp16 and bf16 operands are read in place: x [rows][TERMS], other
// [COLS][TERMS] (OTHER_NK) or [TERMS][COLS]. float32 operands become fp16 words first; operands that tensor
// copies cannot read become words of their own type:
//
//   words [PARTS][matrices][lines][TERMS_PAD]    a line: a row of x, a column of other
//     part 0: fp16(v * scale), part 1: the remainder
//   unscale [matrices][lines] float32: the inverse of the line's scale
#ifndef CVY_MATMUL_WIDE_CUH
#define CVY_MATMUL_WIDE_CUH

#ifndef WORD
#define WORD cvy_f16 // what is multiplied
#endif
#ifndef SCALED
#define SCALED 1 // words have scales: operands are of float32
#endif
#ifndef PRODUCTS
#define PRODUCTS 3 // 1: tf32's accuracy, 3: float32's
#endif
#ifndef TERMS
#define TERMS 512
#endif

#include "common.cuh"
#include "product_layout.cuh"
#include "ptx.cuh"

constexpr int PARTS = PRODUCTS == 3 ? 2 : 1;
constexpr int TERMS_PAD = cdiv(TERMS, 8) * 8; // whole 16 bytes

#endif
