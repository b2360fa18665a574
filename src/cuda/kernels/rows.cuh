// rows.cuh - matrix products over the rows of all batches in one list: which rows a block has, and where they lie
// in the operands. Shared by matmul.cu and matmul_mma.cu.
//
//   t[1]  x: strides along the result's dimensions; slot COLUMN holds the one along k
//   t[2]  other: strides along the result's dimensions; slot ROW holds the one along k
//   epilogue space: the result's shape, inner extents Y1...Y5
//   grid: x tiles of columns, y and z tiles of rows
#ifndef CVY_ROWS_CUH
#define CVY_ROWS_CUH

#ifndef COLS
#define COLS 512 // n
#endif
#ifndef TERMS
#define TERMS 512 // k
#endif
#ifndef Y1
#define Y1 COLS
#define Y2 1
#define Y3 1
#define Y4 1
#define Y5 1
#endif
#ifndef COLUMN
#define COLUMN 1 // which coordinate is the column
#define ROW    0 // which one is the row
#endif
#ifndef ROWS_OF_BATCH
#define ROWS_OF_BATCH 0 // rows that share one `other`; 0: all rows do
#endif
#ifndef OTHER_NK
#define OTHER_NK 1 // other lies as [n][k] (a linear layer's weight): neighbouring threads read along k
#endif
#ifndef X_TYPE
#define X_TYPE float // elements of x and other
#define W_TYPE float
#endif

#include "epilogue.cuh"

CVY_INLINE int coordinate(const cvy_at &at, int d)
{
    return d == 0 ? at.i0 : d == 1 ? at.i1 : d == 2 ? at.i2 : d == 3 ? at.i3 : d == 4 ? at.i4 : at.i5;
}

// The offset of an operand for a row of the result; its slots of row and column are skipped where told so.
CVY_INLINE long long row_offset(const cvy_view &v, const cvy_at &at, bool with_row)
{
    long long offset = 0;
#pragma unroll
    for (int d = 0; d < 6; d++)
        if (d != COLUMN && (with_row || d != ROW)) offset += coordinate(at, d) * v.s[d];
    return offset;
}

CVY_INLINE cvy_at row_at(long long row)
{
    return cvy_unravel<Y1, Y2, Y3, Y4, Y5>((cvy_index)(row * COLS));
}

struct tile_rows {
    long long first, end; // end: of this batch
};

template <int BM_> CVY_INLINE tile_rows rows_of_block(const cvy_args &a)
{
    tile_rows r;
    constexpr long long PER_SAMPLE = (long long)Y1 * Y2 * Y3 * Y4 * Y5 / COLS;
    const long long tile = (long long)blockIdx.z * gridDim.y + blockIdx.y, all = COLUMN ? a.extent * PER_SAMPLE : 1;
    r.end = all;
    r.first = tile * BM_;
    if (ROWS_OF_BATCH) { // every batch begins with a tile of its own
        constexpr long long TILES = ((ROWS_OF_BATCH ? ROWS_OF_BATCH : 1) + BM_ - 1) / BM_;
        r.first = tile / TILES * ROWS_OF_BATCH + tile % TILES * BM_;
        r.end = (tile / TILES + 1) * ROWS_OF_BATCH;
        if (r.end > all) r.end = 0; // past the last batch
    }
    return r;
}

#endif
