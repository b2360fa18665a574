// matmul_thin.cu - matrix products with few columns, or few rows: at most 8. By multiply-adds, whatever the
// precision: they are bound by memory.
//
// One operand is long, [lines][TERMS]; the other thin, [THIN][TERMS]: columns of other where those are few, else
// (ACROSS) rows of x. A block has LINES lines and a share of the terms; DEPTH of the thin one at a time lie in
// shared memory as float32:
//
//   terms of a line are neighbours: a warp has 4 lines at a time, a lane VECTOR terms of each (16 bytes)
//   else: a lane has LINES / 32 lines that are neighbours, and warps take the terms in turn
//
// Sums of lanes, or of warps, are added in a fixed order. SPLIT blocks share the terms where lines are few or a
// share is longer than DEPTH, and leave their parts for conv_wide_add.cu. Expected bound: memory, the long operand
// read once.
//
//   t[0]  result (SPLIT > 1: parts [SPLIT][result])      t[1], t[2], epilogue space: rows.cuh
//   grid: x tiles of LINES lines, y shares of the terms, z batches
#ifndef THIN
#define THIN 1 // columns, or rows, of the thin operand
#endif
#ifndef ACROSS
#define ACROSS 0 // 1: few rows: lines are the columns of other
#endif
#ifndef SPLIT
#define SPLIT 1 // blocks that share a sum
#endif
#ifndef LINES
#define LINES 32 // of a block: 32 or 128
#endif

#include "host_device.cuh"
#include "rows.cuh"

#if ACROSS
#define LONG_TYPE W_TYPE
#define THIN_TYPE X_TYPE
#else
#define LONG_TYPE X_TYPE
#define THIN_TYPE W_TYPE
#endif

constexpr int THREADS = 256, WARPS = THREADS / 32, EACH = 4, ROUND = WARPS * EACH; // lines at a time
constexpr int DEPTH = THIN == 1 ? 4096 : THIN == 2 ? 2048 : 1024;
constexpr int VECTOR = 16 / (int)sizeof(LONG_TYPE), WIDE_LINES = LINES / 32;
static_assert(THIN <= 8 && DEPTH % (32 * VECTOR) == 0, "accumulators, and whole rounds of a warp");
static_assert(WIDE_LINES == 1 || WIDE_LINES == EACH, "a lane's accumulators");

struct shared_memory {
    float thin[THIN][DEPTH];
    float sums[WARPS][32][THIN]; // of 32 lines
};

// The block's part of the work: lines of a matrix, terms; the thin operand.
struct block_at {
    long long row;    // the first of the matrix among all rows of the result
    int first, lines; // the first line, lines of the matrix
    int start, end;   // terms
    const THIN_TYPE *thin;
    long long line, term, thin_line, thin_term; // strides
};

CVY_INLINE block_at find_block(const cvy_args &a)
{
    constexpr long long PER_SAMPLE = (long long)Y1 * Y2 * Y3 * Y4 * Y5 / COLS;
    const long long rows = COLUMN ? a.extent * PER_SAMPLE : 1, each = ROWS_OF_BATCH ? ROWS_OF_BATCH : rows;
    const cvy_view &lines = a.t[ACROSS ? 2 : 1], &thin = a.t[ACROSS ? 1 : 2];
    block_at b;
    b.row = blockIdx.z * each, b.first = (int)blockIdx.x * LINES, b.lines = ACROSS ? COLS : (int)each;
    b.start = (int)((long long)blockIdx.y * TERMS / SPLIT), b.end = (int)((blockIdx.y + 1LL) * TERMS / SPLIT);
    b.line = lines.s[ACROSS ? COLUMN : ROW], b.term = lines.s[ACROSS ? ROW : COLUMN];
    b.thin_line = thin.s[ACROSS ? ROW : COLUMN], b.thin_term = thin.s[ACROSS ? COLUMN : ROW];
    b.thin = cvy_as<THIN_TYPE>(thin) + row_offset(thin, row_at(b.row), false);
    return b;
}

// Where a line of the block begins; the first one's past the end.
CVY_INLINE const LONG_TYPE *find_line(const cvy_args &a, const block_at &b, int line)
{
    const int at = b.first + line < b.lines ? b.first + line : 0;
    const cvy_view &v = a.t[ACROSS ? 2 : 1];
    if (ACROSS) return cvy_as<LONG_TYPE>(v) + row_offset(v, row_at(b.row), false) + at * v.s[COLUMN];
    return cvy_as<LONG_TYPE>(v) + row_offset(v, row_at(b.row + at), true);
}

// Terms of the thin operand from `first` on, at most DEPTH; zeros up to the end of a warp's round. Neighbouring
// threads read neighbours.
CVY_INLINE void fetch_thin(shared_memory &s, const block_at &b, int first)
{
    const int terms = min(DEPTH, b.end - first), padded = cdiv(terms, 32 * VECTOR) * (32 * VECTOR);
    const bool by_terms = b.thin_term == 1 || THIN == 1;
#pragma unroll 4
    for (int i = threadIdx.x; i < THIN * padded; i += THREADS) {
        const int c = by_terms ? i / padded : i % THIN, k = by_terms ? i % padded : i / THIN;
        s.thin[c][k] = k < terms ? cvy_get(b.thin + c * b.thin_line + (first + k) * b.thin_term) : 0.0f;
    }
}

// VECTOR terms of a line; zeros past the end.
CVY_INLINE void load_terms(const LONG_TYPE *from, int left, float (&v)[VECTOR])
{
    if (left >= VECTOR && (size_t)from % 16 == 0) {
        cvy_load(from, v);
        return;
    }
#pragma unroll
    for (int e = 0; e < VECTOR; e++) v[e] = e < left ? cvy_get(from + e) : 0.0f;
}

// A lane's share of 4 lines, terms by terms.
CVY_INLINE void add_along(const shared_memory &s, const block_at &b, const LONG_TYPE *const (&from)[EACH],
                          int first, float (&acc)[EACH][THIN])
{
    constexpr int AHEAD = VECTOR == 4 ? 2 : 1;
    const int lane = threadIdx.x % 32, terms = min(DEPTH, b.end - first);
#pragma unroll AHEAD
    for (int k = lane * VECTOR; k < terms; k += 32 * VECTOR) {
        float v[EACH][VECTOR];
#pragma unroll
        for (int i = 0; i < EACH; i++) load_terms(from[i] + first + k, b.end - first - k, v[i]);
#pragma unroll
        for (int c = 0; c < THIN; c++)
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
#pragma unroll
                for (int i = 0; i < EACH; i++) acc[i][c] = fmaf(v[i][e], s.thin[c][k + e], acc[i][c]);
    }
}

// Neighbouring lines at one term.
template <int N> CVY_INLINE void load_lines(const LONG_TYPE *at, long long line, float (&v)[N])
{
    if constexpr (N == 4)
        if (line == 1 && (size_t)at % (4 * sizeof(LONG_TYPE)) == 0) {
            cvy_load(at, v);
            return;
        }
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = cvy_get(at + i * line);
}

// A warp's share of the terms of 32 * WIDE_LINES lines; `left` of the lane's are there.
CVY_INLINE void add_across(const shared_memory &s, const block_at &b, const LONG_TYPE *from, int first, int left,
                           float (&acc)[EACH][THIN])
{
    constexpr int AHEAD = 8 / WIDE_LINES + 2;
    const int warp = threadIdx.x / 32, terms = min(DEPTH, b.end - first);
    from += first * b.term;
#pragma unroll 1
    for (int k = warp; k < terms; k += WARPS * AHEAD) {
        float v[AHEAD][WIDE_LINES];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = min(k + i * WARPS, terms - 1); // read twice, and taken once
            if (left >= WIDE_LINES)
                load_lines(from + at * b.term, b.line, v[i]);
            else
#pragma unroll
                for (int e = 0; e < WIDE_LINES; e++)
                    v[i][e] = e < left ? cvy_get(from + at * b.term + e * b.line) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int c = 0; c < THIN; c++)
#pragma unroll
                for (int e = 0; e < WIDE_LINES; e++)
                    if (k + i * WARPS < terms) acc[e][c] = fmaf(v[i][e], s.thin[c][k + i * WARPS], acc[e][c]);
    }
}

CVY_INLINE void finish_result(const cvy_args &a, const block_at &b, int line, int c, float sum)
{
    const int row = ACROSS ? c : b.first + line, column = ACROSS ? b.first + line : c;
    const cvy_index lin = (cvy_index)((b.row + row) * COLS + column);
#if SPLIT > 1
    a.t[0].p[blockIdx.y * (a.extent * ((long long)Y1 * Y2 * Y3 * Y4 * Y5)) + lin] = sum;
#else
    cvy_epilogue(a, cvy_unravel<Y1, Y2, Y3, Y4, Y5>(lin), sum);
#endif
}

// 32 lines from `line` of the block on, whose sums lie in shared memory, of `parts` warps each.
CVY_INLINE void finish_lines(const cvy_args &a, const block_at &b, const shared_memory &s, int line, int every,
                             int parts)
{
    const int i = ACROSS ? threadIdx.x % 32 : threadIdx.x / THIN,
              c = ACROSS ? threadIdx.x / 32 : threadIdx.x % THIN;
    if (threadIdx.x >= 32 * THIN || b.first + line + i * every >= b.lines) return;
    float sum = s.sums[0][i][c];
    for (int w = 1; w < parts; w++) sum += s.sums[w][i][c];
    finish_result(a, b, line + i * every, c, sum);
}

// Lines whose terms are neighbours, ROUND at a time.
CVY_INLINE void take_along(const cvy_args &a, const block_at &b, shared_memory &s)
{
    const int warp = threadIdx.x / 32;
#pragma unroll 1
    for (int round = 0; round < LINES && b.first + round < b.lines; round += ROUND) {
        const LONG_TYPE *from[EACH];
        float acc[EACH][THIN] = {};
#pragma unroll
        for (int i = 0; i < EACH; i++) from[i] = find_line(a, b, round + warp * EACH + i);
#pragma unroll 1
        for (int first = b.start; first < b.end; first += DEPTH) {
            fetch_thin(s, b, first);
            __syncthreads();
            add_along(s, b, from, first, acc);
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int c = 0; c < THIN; c++) {
#pragma unroll
                for (int o = 16; o; o /= 2) acc[i][c] += __shfl_xor_sync(~0u, acc[i][c], o);
                if (threadIdx.x % 32 == 0) s.sums[0][warp * EACH + i][c] = acc[i][c];
            }
        __syncthreads();
        finish_lines(a, b, s, round, 1, 1);
    }
}

CVY_INLINE void take_across(const cvy_args &a, const block_at &b, shared_memory &s)
{
    const int line = threadIdx.x % 32 * WIDE_LINES, left = b.lines - b.first - line;
    const LONG_TYPE *from = find_line(a, b, line);
    float acc[EACH][THIN] = {};
#pragma unroll 1
    for (int first = b.start; first < b.end; first += DEPTH) {
        fetch_thin(s, b, first);
        __syncthreads();
        if (left > 0) add_across(s, b, from, first, left, acc);
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < WIDE_LINES; e++) {
#pragma unroll
        for (int c = 0; c < THIN; c++) s.sums[threadIdx.x / 32][threadIdx.x % 32][c] = acc[e][c];
        __syncthreads();
        finish_lines(a, b, s, e, WIDE_LINES, WARPS);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    __shared__ shared_memory s;
    const block_at b = find_block(a);

    if (b.term == 1)
        take_along(a, b, s);
    else
        take_across(a, b, s);
}
