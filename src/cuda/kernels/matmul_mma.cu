// matmul_mma.cu - matrix products and linear layers on tensor cores through mma.sync, for devices of compute
// capability 8.0 and later: dst[row, n] = sum over k of x[row, k] * other[k, n].
//
// A block computes BM x BN results, DEPTH terms at a time through STAGES stages of shared memory, in the operands'
// own order (fetch.cuh):
//
//   xs [BM][DEPTH + 4]        os [BN][DEPTH + 4] where other lies as [n][k], else [DEPTH][BN + 8]
//
// four elements at a time if an operand is contiguous, its rows are whole groups of four and it begins at a
// multiple of them, which is known only at run time; else one.
//
// The 4 and the 8 avoid bank conflicts of fragments (mma_tile.cuh, which also says which lane has which result:
// rows of x as M, columns as N). One barrier per DEPTH terms: a stage is filled again two steps later. Results then
// lie in shared memory as [BM][BN + 8] and go through the epilogue in the order of memory; those that are not
// finite are first summed again by multiply-adds. Expected bound: tensor cores with three products, copies with
// one, memory for few rows.
//
//   views, epilogue space and grid: rows.cuh
#ifndef BM // MATMUL_MMA_TILE of product_layout.cuh
#define BM       64
#define BN       128
#define WM       32
#define WN       32
#define PRODUCTS 3
#define BLOCKS   1
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // operands are contiguous: their inner strides are known
#endif

#include "fetch.cuh"
#include "mma_tile.cuh"
#include "product_layout.cuh"
#include "rows.cuh"

typedef cvy_mma_tile<BM, BN, WM, WN, PRODUCTS> tile;
constexpr int THREADS = tile::THREADS, DEPTH = tile::K, STEPS = (TERMS + DEPTH - 1) / DEPTH;
constexpr int PITCH = DEPTH + 4;                                       // of operands that lie along k
constexpr int O_K = OTHER_NK ? 1 : BN + 8, O_N = OTHER_NK ? PITCH : 1; // strides of os
constexpr int STAGE = matmul_mma_stage(BM, BN, OTHER_NK), STAGES = MATMUL_MMA_STAGES; // floats
constexpr bool X_FOURS = SRC_DENSE && TERMS % 4 == 0, O_FOURS = SRC_DENSE && (OTHER_NK ? TERMS : COLS) % 4 == 0;
static_assert(BM * DEPTH / 4 % THREADS == 0 && BN * DEPTH / 4 % THREADS == 0, "every thread copies the same");
static_assert(DEPTH == MMA_DEPTH && tile::PITCH == BN + 8, "the layout that the host counts on");

// A stride of an operand; `dense` where that is contiguous.
CVY_INLINE cvy_index stride_of(const cvy_view &v, int slot, int dense)
{
    return SRC_DENSE ? dense : cvy_stride(v, slot);
}

// Where the rows of x lie. In shared memory: as registers they would be spilled.
struct row_table {
    int count; // of rows; the others are zeros
    cvy_index at[BM];

    CVY_INLINE_MEMBER void fill(const cvy_args &a, const tile_rows &rows)
    {
        if (threadIdx.x == 0) count = rows.end - rows.first < BM ? (int)(rows.end - rows.first) : BM;
        for (int i = threadIdx.x; i < BM; i += THREADS)
            at[i] = rows.first + i < rows.end ? (cvy_index)row_offset(a.t[1], row_at(rows.first + i), true) : 0;
    }
};

template <int WIDTH, class T> CVY_INLINE void copy(float *dst, const T *src, bool valid)
{
    if (WIDTH == 4)
        cvy_fetch4(dst, src, valid);
    else
        cvy_fetch(dst, src, valid);
}

// Begin the copy of DEPTH terms from k_first on, WIDTH elements at a time.
template <int WIDTH> CVY_INLINE void copy_x(const cvy_args &a, const row_table &rows, int k_first, float *xs)
{
    const cvy_index x_k = stride_of(a.t[1], COLUMN, 1);
#pragma unroll
    for (int i = 0; i < BM * DEPTH / WIDTH / THREADS; i++) {
        const int j = (threadIdx.x + i * THREADS) * WIDTH, row = j / DEPTH, k = k_first + j % DEPTH;
        copy<WIDTH>(xs + row * PITCH + j % DEPTH, cvy_as<X_TYPE>(a.t[1]) + rows.at[row] + k * x_k,
                    row < rows.count && (TERMS % DEPTH == 0 || k < TERMS));
    }
}
template <int WIDTH>
CVY_INLINE void copy_other(const cvy_args &a, const W_TYPE *other, int k_first, int n_first, float *os)
{
    const cvy_index o_k = stride_of(a.t[2], ROW, OTHER_NK ? 1 : COLS),
                    o_n = stride_of(a.t[2], COLUMN, OTHER_NK ? TERMS : 1);
#pragma unroll
    for (int i = 0; i < BN * DEPTH / WIDTH / THREADS; i++) {
        const int j = (threadIdx.x + i * THREADS) * WIDTH;
        const int k = OTHER_NK ? j % DEPTH : j / BN, n = OTHER_NK ? j / DEPTH : j % BN;
        copy<WIDTH>(os + k * O_K + n * O_N, other + (k_first + k) * o_k + (n_first + n) * o_n,
                    (TERMS % DEPTH == 0 || k_first + k < TERMS) && (COLS % BN == 0 || n_first + n < COLS));
    }
}

// Do copies of four elements begin where they must?
template <class T> CVY_INLINE bool is_aligned(const T *p)
{
    return (unsigned long long)p % (4 * sizeof(T)) == 0;
}

// Begins the copy of one step into a stage.
CVY_INLINE void fill(const cvy_args &a, const row_table &rows, const W_TYPE *other, int step, int n_first,
                     float *stage)
{
    if (X_FOURS && is_aligned(cvy_as<X_TYPE>(a.t[1])))
        copy_x<4>(a, rows, step * DEPTH, stage);
    else
        copy_x<1>(a, rows, step * DEPTH, stage);
    if (O_FOURS && is_aligned(other))
        copy_other<4>(a, other, step * DEPTH, n_first, stage + BM * PITCH);
    else
        copy_other<1>(a, other, step * DEPTH, n_first, stage + BM * PITCH);
}

// One result by multiply-adds: rare, so out of the way.
static __device__ __noinline__ float sum_again(const cvy_args &a, const W_TYPE *other, long long row, int n)
{
    const X_TYPE *x = cvy_as<X_TYPE>(a.t[1]) + row_offset(a.t[1], row_at(row), true);
    float sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < TERMS; k++)
        sum = fmaf(cvy_widen(x[k * a.t[1].s[COLUMN]]), cvy_widen(other[k * a.t[2].s[ROW] + n * a.t[2].s[COLUMN]]),
                   sum);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    extern __shared__ __align__(16) float shared[]; // max(STAGES * STAGE, BM * tile::PITCH) floats
    const tile_rows rows = rows_of_block<BM>(a);
    const int n_first = blockIdx.x * BN;
    const W_TYPE *other =
        cvy_as<W_TYPE>(a.t[2]) + (ROWS_OF_BATCH ? row_offset(a.t[2], row_at(rows.first), false) : 0);
    __shared__ row_table table;
    tile results;

    if (rows.first >= rows.end) return;
    table.fill(a, rows);
    __syncthreads();
    results.start(threadIdx.x);
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < STEPS) fill(a, table, other, step, n_first, shared + step * STAGE);
        cvy_copies_commit();
    }
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        const float *xs = shared + step % STAGES * STAGE;
        const int next = step + STAGES - 1; // goes where the step before this one was
        cvy_copies_wait<STAGES - 2>();
        __syncthreads();
        if (next < STEPS) fill(a, table, other, next, n_first, shared + next % STAGES * STAGE);
        cvy_copies_commit();
        results.template multiply<1, PITCH, O_K, O_N>(xs, xs + BM * PITCH);
    }
    __syncthreads();
    results.spread(shared);
    __syncthreads();
    for (int i = threadIdx.x; i < BM * BN; i += THREADS) {
        const long long row = rows.first + i / BN;
        const int n = n_first + i % BN;
        if (row >= rows.end || n >= COLS) continue;
        const float result = shared[i / BN * tile::PITCH + i % BN];
        cvy_epilogue(a, cvy_unravel<Y1, Y2, Y3, Y4, Y5>((cvy_index)(row * COLS + n)),
                     tile::is_sound(result) ? result : sum_again(a, other, row, n));
    }
}
