// matmul.cu - matrix products, and linear layers: dst[row, n] = sum over k of x[row, k] * other[k, n].
//
// A block computes BM x BN results, DEPTH terms at a time through shared memory; while it multiplies, the next
// terms are being loaded into registers:
//
//   xs [DEPTH][BM + 4], os [DEPTH][BN + 4]     the 4 avoids bank conflicts of transposing stores
//
// Rows of all batches are in one list; coordinates of the result (and with them the strides of x and other) come
// from its logical shape. Results then lie in shared memory as [BM][BN] and go through the epilogue in the order of
// memory. Expected bound: FMA for large products, memory for few rows.
//
//   t[1]  x: strides along the result's dimensions; slot COLUMN holds the one along k
//   t[2]  other: strides along the result's dimensions; slot ROW holds the one along k
//   epilogue space: the result's shape, inner extents Y1...Y5
//   grid: x tiles of columns, y and z tiles of rows
#ifndef BM // MATMUL_TILE of product_layout.cuh
#define BM    64
#define BN    64
#define TM    4
#define TN    4
#define DEPTH 16
#endif
// At least this many blocks per multiprocessor, which bounds the registers: 8 x 8 results take 165, from sm_100 on
// 199.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1000
#define BLOCKS 3
#else
#define BLOCKS 2
#endif

#include "product_layout.cuh"
#include "rows.cuh"
#include "tile.cuh"

typedef cvy_tile<BM, BN, TM, TN> tile;
constexpr int THREADS = tile::THREADS, PITCH_X = BM + MATMUL_GAP, PITCH_O = BN + MATMUL_GAP;
static_assert(THREADS % DEPTH == 0 && BM * DEPTH % THREADS == 0 && BN * DEPTH % THREADS == 0,
              "every thread copies the same");
static_assert(DEPTH * (PITCH_X + PITCH_O) == matmul_stage(BM, BN, DEPTH), "the layout that the host counts on");

constexpr int X_EACH = BM * DEPTH / THREADS, O_EACH = BN * DEPTH / THREADS; // elements a thread copies

// What a thread copies of one step: the rows of x stay the same for all terms. Past the end the last row
// is read again; its results are discarded.
struct copier {
    const W_TYPE *other;
    cvy_index x_row[X_EACH]; // offset of each
    float x[X_EACH], o[O_EACH];

    CVY_INLINE_MEMBER void load(const cvy_args &a, int k_first, int n_first)
    {
        const cvy_index x_k = cvy_stride(a.t[1], COLUMN), o_k = cvy_stride(a.t[2], ROW),
                        o_n = cvy_stride(a.t[2], COLUMN);
#pragma unroll
        for (int i = 0; i < X_EACH; i++) {
            const int k = k_first + threadIdx.x % DEPTH;
            x[i] = k < TERMS ? cvy_widen(cvy_as<X_TYPE>(a.t[1])[x_row[i] + k * x_k]) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < O_EACH; i++) {
            const int j = threadIdx.x + i * THREADS;
            const int k = k_first + (OTHER_NK ? j % DEPTH : j / BN), n = n_first + (OTHER_NK ? j / DEPTH : j % BN);
            o[i] = k < TERMS && n < COLS ? cvy_widen(other[k * o_k + n * o_n]) : 0.0f;
        }
    }
    CVY_INLINE_MEMBER void store(float *xs, float *os) const
    {
#pragma unroll
        for (int i = 0; i < X_EACH; i++) {
            const int j = threadIdx.x + i * THREADS;
            xs[j % DEPTH * PITCH_X + j / DEPTH] = x[i];
        }
#pragma unroll
        for (int i = 0; i < O_EACH; i++) {
            const int j = threadIdx.x + i * THREADS;
            os[(OTHER_NK ? j % DEPTH : j / BN) * PITCH_O + (OTHER_NK ? j / DEPTH : j % BN)] = o[i];
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    extern __shared__ __align__(16) float shared[]; // matmul_shared_bytes()
    float *xs = shared, *os = shared + DEPTH * PITCH_X;
    const tile_rows rows = rows_of_block<BM>(a);
    const int n_first = blockIdx.x * BN;
    copier c;
    tile results;

    if (rows.first >= rows.end) return;
    c.other = cvy_as<W_TYPE>(a.t[2]) + (ROWS_OF_BATCH ? row_offset(a.t[2], row_at(rows.first), false) : 0);
#pragma unroll
    for (int i = 0; i < X_EACH; i++) {
        const long long row = rows.first + (threadIdx.x + i * THREADS) / DEPTH;
        c.x_row[i] = (cvy_index)row_offset(a.t[1], row_at(row < rows.end ? row : rows.end - 1), true);
    }
    results.start(threadIdx.x);
    c.load(a, 0, n_first);
#pragma unroll 1
    for (int k_first = 0; k_first < TERMS; k_first += DEPTH) {
        c.store(xs, os);
        __syncthreads();
        if (k_first + DEPTH < TERMS) c.load(a, k_first + DEPTH, n_first);
        results.template multiply<DEPTH, PITCH_X, PITCH_O>(xs, os);
        __syncthreads();
    }
    results.spread(shared);
    __syncthreads();
    for (int i = threadIdx.x; i < BM * BN; i += THREADS) {
        const long long row = rows.first + i / BN;
        const int n = n_first + i % BN;
        if (row < rows.end && n < COLS)
            cvy_epilogue(a, cvy_unravel<Y1, Y2, Y3, Y4, Y5>((cvy_index)(row * COLS + n)), shared[i]);
    }
}
