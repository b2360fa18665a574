// matmul.cu - matrix products, and linear layers: dst[row, n] = sum over k of x[row, k] * other[k, n].
//
// A block computes BM x BN results, DEPTH terms at a time through shared memory; while it multiplies, the next
// terms are on their way into registers:
//
//   xs [DEPTH][BM + 4], os [DEPTH][BN + 4]     the 4 keep transposing stores off each other's banks
//
// Rows of all batches stand in one list; coordinates of the result (and with them the strides of x and other) come
// from its logical shape. Results then lie in shared memory as [BM][BN] and go through the epilogue in the order of
// memory. Expected bound: FMA for large products, memory for few rows.
//
//   t[1]  x: strides along the result's dimensions; slot COLUMN holds the one along k
//   t[2]  other: strides along the result's dimensions; slot ROW holds the one along k
//   epilogue space: the result's shape, inner extents Y1...Y5
//   grid: x tiles of columns, y and z tiles of rows
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
#ifndef BM
#define BM    64
#define BN    64
#define TM    4
#define TN    4
#define DEPTH 16
#endif
// At least so many blocks of a multiprocessor, which bounds the registers: 8 x 8 results take 165, from sm_100 on
// 199.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1000
#define BLOCKS 3
#else
#define BLOCKS 2
#endif

#include "epilogue.cuh"
#include "tile.cuh"

typedef cvy_tile<BM, BN, TM, TN> tile;
constexpr int THREADS = tile::THREADS, PITCH_X = BM + 4, PITCH_O = BN + 4;
static_assert(THREADS % DEPTH == 0 && BM * DEPTH % THREADS == 0 && BN * DEPTH % THREADS == 0,
              "every thread copies the same");

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

CVY_INLINE tile_rows rows_of_block(const cvy_args &a)
{
    tile_rows r;
    if (ROWS_OF_BATCH) {
        r.end = (blockIdx.z + 1LL) * ROWS_OF_BATCH;
        r.first = (long long)blockIdx.z * ROWS_OF_BATCH + (long long)blockIdx.y * BM;
    } else {
        constexpr long long PER_SAMPLE = (long long)Y1 * Y2 * Y3 * Y4 * Y5 / COLS;
        r.end = COLUMN ? a.extent * PER_SAMPLE : 1;
        r.first = ((long long)blockIdx.z * gridDim.y + blockIdx.y) * BM;
    }
    return r;
}

constexpr int X_EACH = BM * DEPTH / THREADS, O_EACH = BN * DEPTH / THREADS; // elements a thread copies

// What a thread copies of one step: the rows of x stay the same for all terms.
struct copier {
    const float *other;
    cvy_index x_row[X_EACH]; // offset of each
    unsigned exists;         // bit per row
    float x[X_EACH], o[O_EACH];

    CVY_INLINE_MEMBER void load(const cvy_args &a, int k_first, int n_first)
    {
        const cvy_index x_k = cvy_stride(a.t[1], COLUMN), o_k = cvy_stride(a.t[2], ROW),
                        o_n = cvy_stride(a.t[2], COLUMN);
#pragma unroll
        for (int i = 0; i < X_EACH; i++) {
            const int k = k_first + threadIdx.x % DEPTH;
            x[i] = exists >> i & 1 && k < TERMS ? a.t[1].p[x_row[i] + k * x_k] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < O_EACH; i++) {
            const int j = threadIdx.x + i * THREADS;
            const int k = k_first + (OTHER_NK ? j % DEPTH : j / BN), n = n_first + (OTHER_NK ? j / DEPTH : j % BN);
            o[i] = k < TERMS && n < COLS ? other[k * o_k + n * o_n] : 0.0f;
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
    extern __shared__ __align__(16) float shared[]; // max(DEPTH * (PITCH_X + PITCH_O), BM * BN) floats
    float *xs = shared, *os = shared + DEPTH * PITCH_X;
    const tile_rows rows = rows_of_block(a);
    const int n_first = blockIdx.x * BN;
    copier c;
    tile results;

    if (rows.first >= rows.end) return;
    c.other = a.t[2].p + (ROWS_OF_BATCH ? row_offset(a.t[2], row_at(rows.first), false) : 0);
#pragma unroll
    for (int i = 0; i < X_EACH; i++) {
        const long long row = rows.first + (threadIdx.x + i * THREADS) / DEPTH;
        const bool exists = row < rows.end;
        c.exists = (i ? c.exists : 0) | (unsigned)exists << i;
        c.x_row[i] = exists ? (cvy_index)row_offset(a.t[1], row_at(row), true) : 0;
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
