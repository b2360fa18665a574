// matmul_thin.cu - matrix products with few columns, or few rows: at most 8. By multiply-adds in every
// precision, because they are bound by memory.
//
// One operand is long, [lines][TERMS]; the other is thin, [THIN][TERMS]: columns of other if those are few, else
// (ACROSS) rows of x. A block has LINES lines and a share of the terms; DEPTH terms of the thin one at a time are
// in shared memory as float32. A thread has 4 or 8 accesses of the long one in flight:
//
//   terms of a line are neighbours: a warp has EACH lines, a lane VECTOR terms of each (16 bytes), AHEAD times;
//   if a block has fewer lines than its warps could take, SHARE warps share the terms
//   else: a thread has WIDE lines that are neighbours, at 8 terms in a row; ABREAST threads have the lines of a
//   block, and the others take the terms in turn
//
// Sums of lanes, of warps and of threads are added in a fixed order. SPLIT blocks share the terms if there are
// few lines, and store their parts: few of them as [SPLIT][result] in float32 for conv_wide_add.cu, many
// (MANY_PARTS) as [result][SPLIT] in double for reduce.cu. Expected bound: memory, the long operand read once.
//
//   t[0]  result, or parts of it      t[1], t[2], epilogue space: rows.cuh
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
#ifndef MANY_PARTS
#define MANY_PARTS 0
#endif
#ifndef LINES
#define LINES 32 // of a block: 1, 4, 8, 16, 32 or 128
#endif
#ifndef EACH
#define EACH 4 // of a warp: 4, or 1
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // all views are contiguous
#endif

#include "rows.cuh"

#if ACROSS
#define LONG_TYPE W_TYPE
#define THIN_TYPE X_TYPE
#else
#define LONG_TYPE X_TYPE
#define THIN_TYPE W_TYPE
#endif

constexpr int THREADS = BLOCK_THREADS, WARPS = THREADS / 32;
constexpr int DEPTH = THIN <= 2 ? 4096 : THIN <= 4 ? 2048 : 1024;
constexpr int VECTOR = 16 / (int)sizeof(LONG_TYPE), SPAN = 32 * VECTOR; // terms of a lane's access, of a warp's
constexpr int AHEAD = (THIN > 6 ? 4 : 8) / EACH, SHARE = LINES < WARPS * EACH ? WARPS * EACH / LINES : 1;
constexpr int ROUND = WARPS * EACH / SHARE; // lines that the warps have at a time
constexpr int WIDE = LINES < 128 ? 1 : 4, ABREAST = LINES / WIDE;
static_assert(THIN <= 8 && DEPTH % (SPAN * SHARE) == 0, "accumulators, and whole rounds of the warps");
static_assert(LINES % ROUND == 0 && ABREAST <= 32, "whole rounds, and threads to finish them");

struct shared_memory {
    alignas(16) float thin[THIN][DEPTH];
    float sums[THREADS * THIN]; // [parts][lines][THIN]
};

// What one access brings.
template <class T, int N> struct alignas(N * sizeof(T)) piece {
    T v[N];
};
typedef piece<LONG_TYPE, VECTOR> terms_piece;
typedef piece<LONG_TYPE, WIDE> lines_piece;

// N elements at a multiple of as many.
template <class T, int N> CVY_INLINE piece<T, N> load_piece(const T *from)
{
    piece<T, N> p;
    if constexpr (sizeof p == 16)
        *reinterpret_cast<uint4 *>(&p) = __ldg(reinterpret_cast<const uint4 *>(from));
    else if constexpr (sizeof p == 8)
        *reinterpret_cast<uint2 *>(&p) = __ldg(reinterpret_cast<const uint2 *>(from));
    else
        p.v[0] = from[0];
    return p;
}

// N elements, `stride` apart, of which `left` are there; zeros for the others.
template <bool WHOLE, class T, int N> CVY_INLINE piece<T, N> load_piece(const T *from, long long stride, int left)
{
    piece<T, N> p = {};
    if constexpr (WHOLE) {
        if (left > 0) p = load_piece<T, N>(from);
    } else {
#pragma unroll
        for (int e = 0; e < N; e++)
            if (e < left) p.v[e] = from[e * stride];
    }
    return p;
}

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
    constexpr int PART = cdiv(cdiv(TERMS, SPLIT), SPAN) * SPAN;
    const long long rows = COLUMN ? a.extent * PER_SAMPLE : 1, each = ROWS_OF_BATCH ? ROWS_OF_BATCH : rows;
    const cvy_view &lines = a.t[ACROSS ? 2 : 1], &thin = a.t[ACROSS ? 1 : 2];
    block_at b;
    b.row = blockIdx.z * each, b.first = (int)blockIdx.x * LINES, b.lines = ACROSS ? COLS : (int)each;
    b.start = (int)blockIdx.y * PART, b.end = min(TERMS, b.start + PART);
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

// ---- the thin operand ----

// Where term number k lies in shared memory: of a warp's SPAN terms, fours of all lanes are neighbours.
CVY_INLINE int place_of(int k, bool along)
{
    return along ? k / SPAN * SPAN + k / 4 % (VECTOR / 4) * 128 + k / VECTOR % 32 * 4 + k % 4 : k;
}

// Terms from `first` on; zeros up to the end of a warp's span.
CVY_INLINE void fetch_by_sixteen(shared_memory &s, const block_at &b, int first, int terms, bool along)
{
    constexpr int COUNT = 16 / (int)sizeof(THIN_TYPE);
#pragma unroll 1
    for (int k = threadIdx.x * COUNT; k < cdiv(terms, SPAN) * SPAN; k += THREADS * COUNT)
#pragma unroll 4
        for (int c = 0; c < THIN; c++) {
            const piece<THIN_TYPE, COUNT> p =
                load_piece<true, THIN_TYPE, COUNT>(b.thin + c * b.thin_line + first + k, 1, terms - k);
#pragma unroll
            for (int e = 0; e < COUNT; e += 4) {
                float v[4];
                cvy_load(p.v + e, v);
                cvy_store(&s.thin[c][place_of(k + e, along)], v);
            }
        }
}

CVY_INLINE void fetch_one_by_one(shared_memory &s, const block_at &b, int first, int terms, bool along)
{
    const int padded = cdiv(terms, SPAN) * SPAN;
#pragma unroll 8
    for (int i = threadIdx.x; i < THIN * padded; i += THREADS) {
        const int c = b.thin_term == 1 ? i / padded : i % THIN, k = b.thin_term == 1 ? i % padded : i / THIN;
        s.thin[c][place_of(k, along)] =
            k < terms ? cvy_get(b.thin + c * b.thin_line + (first + k) * b.thin_term) : 0.0f;
    }
}

CVY_INLINE void fetch_thin(shared_memory &s, const block_at &b, int first, int terms, bool along)
{
    constexpr int COUNT = 16 / (int)sizeof(THIN_TYPE);
    const bool whole = TERMS % COUNT == 0 && b.thin_term == 1 && (size_t)b.thin % 16 == 0 &&
                       (THIN == 1 || b.thin_line % COUNT == 0);
    if (whole)
        fetch_by_sixteen(s, b, first, terms, along);
    else
        fetch_one_by_one(s, b, first, terms, along);
}

// ---- lines whose terms are neighbours ----

// SPAN terms of the warp's lines.
CVY_INLINE void multiply_along(const shared_memory &s, int base, const terms_piece (&p)[EACH],
                               float (&acc)[EACH][THIN])
{
#pragma unroll
    for (int e = 0; e < VECTOR; e += 4) {
        float v[EACH][4];
#pragma unroll
        for (int i = 0; i < EACH; i++) cvy_load(p[i].v + e, v[i]);
#pragma unroll
        for (int c = 0; c < THIN; c++) {
            float t[4];
            cvy_load(&s.thin[c][base + e * 32 + threadIdx.x % 32 * 4], t);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int i = 0; i < EACH; i++) acc[i][c] = fmaf(v[i][j], t[j], acc[i][c]);
        }
    }
}

// The warp's share of the terms from `first` on.
template <bool WHOLE>
CVY_INLINE void add_along(const shared_memory &s, const LONG_TYPE *const (&from)[EACH], int first, int terms,
                          float (&acc)[EACH][THIN])
{
    constexpr int TIMES = WHOLE ? AHEAD : 1;
#pragma unroll 1
    for (int base = threadIdx.x / 32 % SHARE * SPAN; base < terms; base += TIMES * SHARE * SPAN) {
        terms_piece p[TIMES][EACH];
#pragma unroll
        for (int u = 0; u < TIMES; u++)
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int k = base + u * SHARE * SPAN + threadIdx.x % 32 * VECTOR;
                p[u][i] = load_piece<WHOLE, LONG_TYPE, VECTOR>(from[i] + first + k, 1, terms - k);
            }
#pragma unroll
        for (int u = 0; u < TIMES; u++)
            if (base + u * SHARE * SPAN < terms) multiply_along(s, base + u * SHARE * SPAN, p[u], acc);
    }
}

// ---- lines that are neighbours ----

// The thread's share of the terms from `first` on; `left` of its lines are there.
template <bool WHOLE>
CVY_INLINE void add_across(const shared_memory &s, const block_at &b, const LONG_TYPE *from, int first, int terms,
                           int left, float (&acc)[WIDE][THIN])
{
    constexpr int ROWS = WHOLE ? 8 : 4;
#pragma unroll 1
    for (int base = threadIdx.x / ABREAST * ROWS; base < terms; base += THREADS / ABREAST * ROWS) {
        lines_piece p[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            p[r] = load_piece<WHOLE, LONG_TYPE, WIDE>(from + (first + base + r) * b.term, b.line,
                                                      base + r < terms ? left : 0);
#pragma unroll
        for (int h = 0; h < ROWS; h += 4) {
            float v[4][WIDE];
#pragma unroll
            for (int r = 0; r < 4; r++) cvy_load(p[h + r].v, v[r]);
#pragma unroll
            for (int c = 0; c < THIN; c++) {
                float t[4];
                cvy_load(&s.thin[c][base + h], t);
#pragma unroll
                for (int r = 0; r < 4; r++)
#pragma unroll
                    for (int e = 0; e < WIDE; e++) acc[e][c] = fmaf(v[r][e], t[r], acc[e][c]);
            }
        }
    }
}

// ---- results ----

CVY_INLINE void finish_result(const cvy_args &a, const block_at &b, int line, int c, float sum)
{
    const int row = ACROSS ? c : b.first + line, column = ACROSS ? b.first + line : c;
    const cvy_index lin = (cvy_index)((b.row + row) * COLS + column);
#if SPLIT == 1
    cvy_epilogue(a, cvy_unravel<Y1, Y2, Y3, Y4, Y5>(lin), sum);
#elif MANY_PARTS
    reinterpret_cast<double *>(a.t[0].p)[(long long)lin * SPLIT + blockIdx.y] = (double)sum;
#else
    a.t[0].p[blockIdx.y * (a.extent * ((long long)Y1 * Y2 * Y3 * Y4 * Y5)) + lin] = sum;
#endif
}

// Lines from `line` of the block on, `every` apart, whose sums lie in shared memory in `parts`.
CVY_INLINE void finish_lines(const cvy_args &a, const block_at &b, const shared_memory &s, int line, int every,
                             int lines, int parts)
{
    const int i = ACROSS ? threadIdx.x % lines : threadIdx.x / THIN,
              c = ACROSS ? threadIdx.x / lines : threadIdx.x % THIN;
    float sum = 0.0f;
    if (threadIdx.x >= lines * THIN || b.first + line + i * every >= b.lines) return;
    for (int p = 0; p < parts; p++) sum += s.sums[(p * lines + i) * THIN + c];
    finish_result(a, b, line + i * every, c, sum);
}

CVY_INLINE void take_along(const cvy_args &a, const block_at &b, shared_memory &s)
{
    const int warp = threadIdx.x / 32, group = warp / SHARE * EACH;
#pragma unroll 1
    for (int round = 0; round < LINES && b.first + round < b.lines; round += ROUND) {
        const LONG_TYPE *from[EACH];
        float acc[EACH][THIN] = {};
        bool whole = TERMS % VECTOR == 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            from[i] = find_line(a, b, round + group + i);
            whole = whole && (size_t)from[i] % 16 == 0;
        }
#pragma unroll 1
        for (int first = b.start; first < b.end; first += DEPTH) {
            const int terms = min(DEPTH, b.end - first);
            fetch_thin(s, b, first, terms, true);
            __syncthreads();
            if (whole)
                add_along<true>(s, from, first, terms, acc);
            else
                add_along<false>(s, from, first, terms, acc);
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int c = 0; c < THIN; c++) {
#pragma unroll
                for (int o = 16; o; o /= 2) acc[i][c] += __shfl_xor_sync(~0u, acc[i][c], o);
                if (threadIdx.x % 32 == 0) s.sums[(warp % SHARE * ROUND + group + i) * THIN + c] = acc[i][c];
            }
        __syncthreads();
        finish_lines(a, b, s, round, 1, ROUND, SHARE);
    }
}

CVY_INLINE void take_across(const cvy_args &a, const block_at &b, shared_memory &s)
{
    const int line = threadIdx.x % ABREAST * WIDE, left = b.lines - b.first - line;
    const LONG_TYPE *from = find_line(a, b, line);
    const bool whole = WIDE == 1 || (b.line == 1 && b.lines % WIDE == 0 && b.term % WIDE == 0 &&
                                     (size_t)from % (WIDE * sizeof *from) == 0);
    float acc[WIDE][THIN] = {};
#pragma unroll 1
    for (int first = b.start; first < b.end; first += DEPTH) {
        const int terms = min(DEPTH, b.end - first);
        fetch_thin(s, b, first, terms, false);
        __syncthreads();
        if (whole)
            add_across<true>(s, b, from, first, terms, left, acc);
        else
            add_across<false>(s, b, from, first, terms, left, acc);
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < WIDE; e++) {
#pragma unroll
        for (int c = 0; c < THIN; c++) s.sums[threadIdx.x * THIN + c] = acc[e][c];
        __syncthreads();
        finish_lines(a, b, s, e, WIDE, ABREAST, THREADS / ABREAST);
        __syncthreads();
    }
}

// Strides and many accumulators together need more registers.
extern "C" __global__ void __launch_bounds__(THREADS, THIN == 1                ? 3
                                                      : THIN > 6 && !SRC_DENSE ? 1
                                                                               : 2)
    KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    __shared__ shared_memory s;
    const block_at b = find_block(a);

    if (SRC_DENSE ? !ACROSS || OTHER_NK : b.term == 1)
        take_along(a, b, s);
    else
        take_across(a, b, s);
}
