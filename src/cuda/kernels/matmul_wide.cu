// matmul_wide.cu - matrix products on Hopper's tensor cores, both operands words of 16 bits by tensor copies:
// dst[b, row, n] = sum over k of x[b, row, k] * other[b, k, n]. sm_90a.
//
// Persistent blocks take tile after tile: BM rows x BN columns. WORD_DEPTH terms at a time are loaded into STAGES
// stages of shared memory:
//
//   x [PARTS][BM][64]            rows of 128 bytes, swizzled
//   w [PARTS][BN][64]            the same; other [TERMS][COLS] in place: [BN / 64][64 terms][64 columns]
//
//   role      warps    waits for                   signals
//   multiply  0 .. 7   full: all bytes are there   empty: the warp has read the stage
//   copy      8        empty                       full (the copies do)
//
// Two warpgroups share a tile, half of its rows each; or they take turns (TURNS), and one finishes its tile while
// the other multiplies: stages come in the order of tiles, so the next tile's are loaded when this one is
// multiplied. A warpgroup begins when the other has multiplied its tile (done): it has not seen the stages between,
// and would mistake one phase of their barriers for another. In both cases the copies of the next tile are in
// flight.
//
// One product: sums continue from step to step. Three: lo * hi + hi * lo + hi * hi, the small ones first; the sums
// of a step start from zero and ordinary additions add them up, as in conv_wide.cu.
//
// Results go through the epilogue a chunk of 8 rows x WORD_CHUNK columns at a time, each warp's own, in the order
// of memory. Those of scaled words that are not finite are first summed again by multiply-adds. SPLIT tiles share
// the terms of a sum if there are few, and store their parts for conv_wide_add.cu.
//
// Expected bound: tensor cores. A step of 128 x 256 with one product is 1,024 cycles and fetches 48 KB from the L2.
//
//   t[0]  result (SPLIT > 1: parts [SPLIT][result])
//   t[1]  x, t[2]  other, as rows.cuh has them      SCALED: t[3]  x's unscale, t[4]  other's
//   maps: {TERMS_PAD, rows, matrices * PARTS} of x, boxes of {64, BM, 1}; of other {TERMS_PAD, COLS, ...}, boxes of
//   {64, BN, 1}, or {COLS, TERMS, matrices}, boxes of {64, 64, 1}; swizzled by 128 bytes
//   epilogue space: rows.cuh      grid: x persistent blocks
#ifndef BM // MATMUL_WIDE_TILE of product_layout.cuh
#define BM    128
#define BN    128
#define TURNS 0
#define SPLIT 1
#endif
#ifndef NEIGHBOURS
#define NEIGHBOURS 1 // that the epilogue takes at a time: 1, 4 or 8
#endif
#ifndef X_BATCHED
#define X_BATCHED 0 // 1: a matrix of x for each batch
#define W_BATCHED 0
#endif
#ifndef OTHER_ACROSS
#define OTHER_ACROSS 0 // 1: other is read as [TERMS][COLS]
#endif

#include "matmul_wide.cuh"
#include "descriptor.cuh"
#include "ptx_wide.cuh"
#include "rows.cuh"

constexpr word_layout LAYOUT = word_find_layout(BM, BN, PRODUCTS);
constexpr int WARPS = 8, STAGES = LAYOUT.stages, CHUNK = WORD_CHUNK, PITCH = CHUNK + 8;
constexpr int HIGH = BM / (TURNS ? 64 : 128);                                   // times 64 rows of a warpgroup
constexpr int X_PART = LAYOUT.x_stage / PARTS, W_PART = LAYOUT.w_stage / PARTS; // bytes
constexpr int STEPS = cdiv(TERMS, WORD_DEPTH), COLUMN_TILES = cdiv(COLS, BN);
constexpr int BAND = 16; // tiles of rows that are taken column by column: what they read stays in the L2
constexpr int REGS_COPY = 40, REGS_MULTIPLY = 232;
constexpr int CHUNKS = HIGH * (BN / CHUNK) * 2; // that a warp finishes of a tile
constexpr int ACROSS_BYTES = 64 * 128;          // 64 columns of 64 terms
static_assert(BN % 64 == 0 && BN <= 256 && BM <= 128 && BM == HIGH * (TURNS ? 64 : 128), "whole copies and rows");
static_assert(STAGES >= 2 && STEPS >= SPLIT, "a stage is filled while another one is read");
static_assert(!OTHER_ACROSS || PARTS == 1, "words lie along the terms");

struct shared_memory {
    struct {
        char x[PARTS][X_PART], w[PARTS][W_PART];
    } in[STAGES];
    float chunks[WARPS][8][PITCH];
    u64 full[STAGES], empty[STAGES], done[2];
};
static_assert(sizeof(shared_memory) <= LAYOUT.shared_bytes, "the host launches less");

// ---- work

struct matrices {
    int rows, count, row_tiles; // rows and tiles of each
};

CVY_INLINE matrices find_matrices(const cvy_args &a)
{
    constexpr long long PER_SAMPLE = (long long)Y1 * Y2 * Y3 * Y4 * Y5 / COLS;
    const int all = (int)(a.extent * PER_SAMPLE);
    matrices m;
    m.rows = ROWS_OF_BATCH ? ROWS_OF_BATCH : all;
    m.count = ROWS_OF_BATCH ? all / m.rows : 1;
    m.row_tiles = cdiv(m.rows, BM);
    return m;
}

struct tile_at {
    int matrix, row, column; // its first row in the matrix, its first column
    int split, step, step_end;
};

// Tiles are taken by bands of rows, column by column.
CVY_INLINE tile_at find_tile(const matrices &m, int number)
{
    const int rows = m.row_tiles * m.count, each = rows * COLUMN_TILES, in = SPLIT > 1 ? number % each : number;
    const int band = in / (BAND * COLUMN_TILES) * BAND, size = min(BAND, rows - band);
    const int of_band = in - band * COLUMN_TILES, row_tile = band + of_band % size;
    tile_at at;
    at.matrix = ROWS_OF_BATCH ? row_tile / m.row_tiles : 0;
    at.row = (ROWS_OF_BATCH ? row_tile % m.row_tiles : row_tile) * BM;
    at.column = of_band / size * BN;
    at.split = SPLIT > 1 ? number / each : 0;
    at.step = (int)((long long)at.split * STEPS / SPLIT);
    at.step_end = (int)((long long)(at.split + 1) * STEPS / SPLIT);
    return at;
}

CVY_INLINE int count_tiles(const matrices &m)
{
    return m.row_tiles * m.count * COLUMN_TILES * SPLIT;
}

// ---- copy

struct copier {
    shared_memory &s;
    const tensor_map &x, &w;
    int x_matrices, w_matrices;

    CVY_INLINE_MEMBER void copy_columns(char *dst, int k, int column, int z, u64 *full) const
    {
        if (!OTHER_ACROSS) tensor_load(dst, w, k, column, z, full);
#pragma unroll
        for (int i = 0; OTHER_ACROSS && i < BN / 64; i++)
            tensor_load(dst + i * ACROSS_BYTES, w, column + 64 * i, k, z, full);
    }
    CVY_INLINE_MEMBER void copy_step(int step, int k, const tile_at &at) const
    {
        const int slot = step % STAGES;
        u64 *full = &s.full[slot];
        mbar_wait(&s.empty[slot], (step / STAGES & 1) ^ 1);
        mbar_arrive_expect(full, LAYOUT.x_stage + LAYOUT.w_stage);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            tensor_load(s.in[slot].x[part], x, k, at.row, part * x_matrices + (X_BATCHED ? at.matrix : 0), full);
            copy_columns(s.in[slot].w[part], k, at.column, part * w_matrices + (W_BATCHED ? at.matrix : 0), full);
        }
    }
};

CVY_INLINE void copy_role(shared_memory &s, const tensor_map &x, const tensor_map &w, const matrices &m)
{
    const copier to = {s, x, w, X_BATCHED ? m.count : 1, W_BATCHED ? m.count : 1};
    int step = 0;
#pragma unroll 1
    for (int number = blockIdx.x; number < count_tiles(m); number += gridDim.x) {
        const tile_at at = find_tile(m, number);
#pragma unroll 1
        for (int k = at.step; k < at.step_end; k++, step++) to.copy_step(step, k * WORD_DEPTH, at);
    }
}

// ---- multiply

struct multiplier {
    shared_memory &s;
    float acc[HIGH][BN / 2];
    int step; // of all tiles

    CVY_INLINE_MEMBER multiplier(shared_memory &memory) : s(memory), step(0)
    {
    }

    // Each warp arrives separately: its quarter is done, the others' may not be.
    CVY_INLINE_MEMBER void release(int of) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbar_arrive(&s.empty[of % STAGES]);
    }
    // The terms of a step: part `x` of the rows, part `w` of the columns.
    CVY_INLINE_MEMBER void product(float (&d)[HIGH][BN / 2], int x, int w, bool accumulate) const
    {
        const u32 x16 =
            desc_address(s.in[step % STAGES].x[x]) + (TURNS ? 0 : threadIdx.x / 128 * (HIGH * 64 * 128 / 16));
        const u32 w16 = desc_address(s.in[step % STAGES].w[w]);
#pragma unroll
        for (int k = 0; k < WORD_DEPTH / 16; k++)
#pragma unroll
            for (int r = 0; r < HIGH; r++) {
                const u64 x_at = wgmma_desc_swizzled(x16 + r * (64 * 128 / 16) + 2 * k);
#if OTHER_ACROSS
                wgmma_across(d[r], x_at, wgmma_desc_across(w16 + 128 * k, ACROSS_BYTES / 16), accumulate || k > 0,
                             WORD());
#else
                wgmma_half(d[r], x_at, wgmma_desc_swizzled(w16 + 2 * k), accumulate || k > 0, WORD());
#endif
            }
    }
    // Sums go on from step to step; a stage is given back when the next one is in flight.
    CVY_INLINE_MEMBER void step_once(bool first)
    {
        wgmma_fence();
        product(acc, 0, 0, !first);
        wgmma_commit();
        wgmma_wait<1>();
        if (!first) release(step - 1);
    }
    // The sums of a step start from zero.
    CVY_INLINE_MEMBER void step_thrice()
    {
        float part[HIGH][BN / 2];
        wgmma_fence();
        product(part, PARTS - 1, 0, false);
        product(part, 0, PARTS - 1, true);
        product(part, 0, 0, true);
        wgmma_commit();
        wgmma_wait<0>();
        fence(part);
        release(step);
#pragma unroll
        for (int i = 0; i < HIGH * BN / 2; i++) acc[i / (BN / 2)][i % (BN / 2)] += part[i / (BN / 2)][i % (BN / 2)];
    }
    static CVY_INLINE_MEMBER void fence(float (&d)[HIGH][BN / 2])
    {
#pragma unroll
        for (int r = 0; r < HIGH; r++) acc_fence(d[r]);
    }
    CVY_INLINE_MEMBER void run(int steps)
    {
#pragma unroll
        for (int i = 0; i < HIGH * BN / 2; i++) acc[i / (BN / 2)][i % (BN / 2)] = 0.0f;
        if (PRODUCTS == 1) fence(acc);
#pragma unroll 1
        for (int i = 0; i < steps; i++, step++) {
            mbar_wait(&s.full[step % STAGES], step / STAGES & 1);
            if constexpr (PRODUCTS == 1)
                step_once(i == 0);
            else
                step_thrice();
        }
        wgmma_wait<0>();
        if (PRODUCTS == 1) fence(acc), release(step - 1);
    }

    // Chunk number N of the warp: 8 rows, the first or the last of 16 of each 64; columns CHUNK at a time.
    // lane 4g + t: acc[r][4j + 2h + e] is row 64r + 16 * warp + g + 8h, column 8j + 2t + e.
    template <int N> CVY_INLINE_MEMBER void spread(float (&chunk)[8][PITCH]) const
    {
        constexpr int EACH = BN / CHUNK * 2, FIRST = N % EACH / 2 * (CHUNK / 8) * 4 + N % 2 * 2;
        float *at = &chunk[threadIdx.x % 32 / 4][threadIdx.x % 4 * 2];
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++)
            *reinterpret_cast<float2 *>(at + 8 * j) =
                make_float2(acc[N / EACH][FIRST + 4 * j], acc[N / EACH][FIRST + 4 * j + 1]);
    }
    // The same of a chunk that is known when it runs: registers have no numbers then.
    template <int N = 0> CVY_INLINE_MEMBER void spread_chunk(int number, float (&chunk)[8][PITCH]) const
    {
        if (number == N)
            spread<N>(chunk);
        else if constexpr (N + 1 < CHUNKS)
            spread_chunk<N + 1>(number, chunk);
    }
};

// ---- results

#if SCALED
// One result by multiply-adds, of the steps that the block has: rare.
CVY_INLINE float sum_again(const cvy_args &a, long long row, int n, int step, int step_end)
{
    const cvy_at at = row_at(row);
    const X_TYPE *x = cvy_as<X_TYPE>(a.t[1]) + row_offset(a.t[1], at, true);
    const W_TYPE *w = cvy_as<W_TYPE>(a.t[2]) + row_offset(a.t[2], at, false) + n * a.t[2].s[COLUMN];
    const long long x_step = a.t[1].s[COLUMN], w_step = a.t[2].s[ROW];
    float sum = 0.0f;
#pragma unroll 1
    for (long long k = step * WORD_DEPTH; k < least(step_end * WORD_DEPTH, TERMS); k++)
        sum = fmaf(cvy_get(x + k * x_step), cvy_get(w + k * w_step), sum);
    return sum;
}

// Results of a row in the epilogue's units. The smaller factor first: neither step leaves float32's range where the
// result does not.
CVY_INLINE void unscale(const cvy_args &a, const tile_at &at, const matrices &m, int row, int n,
                        float (&v)[NEIGHBOURS])
{
    const float x_unscale = a.t[3].p[(X_BATCHED ? at.matrix * m.rows : 0) + row];
    float each[NEIGHBOURS];
    bool sound = true;
    cvy_load(a.t[4].p + (W_BATCHED ? at.matrix * COLS : 0) + n, each);
#pragma unroll
    for (int i = 0; i < NEIGHBOURS; i++) {
        v[i] = v[i] * fminf(x_unscale, each[i]) * fmaxf(x_unscale, each[i]);
        sound = sound && fabsf(v[i]) < CVY_INF;
    }
    if (sound) return;
#pragma unroll
    for (int i = 0; i < NEIGHBOURS; i++)
        if (!(fabsf(v[i]) < CVY_INF))
            v[i] = sum_again(a, (long long)at.matrix * m.rows + row, n + i, at.step, at.step_end);
}
#else
// Numbers as they were given: an inf is one.
CVY_INLINE void unscale(const cvy_args &, const tile_at &, const matrices &, int, int, float (&)[NEIGHBOURS])
{
}
#endif

#if SPLIT > 1
CVY_INLINE void finish_results(const cvy_args &a, int split, cvy_index lin, const float (&v)[NEIGHBOURS])
{
    constexpr long long INNER = (long long)Y1 * Y2 * Y3 * Y4 * Y5;
    cvy_store(a.t[0].p + split * (a.extent * INNER) + lin, v);
}
#else
CVY_INLINE void finish_results(const cvy_args &a, int, cvy_index lin, const float (&v)[NEIGHBOURS])
{
    cvy_at at[NEIGHBOURS];
    cvy_neighbours<NEIGHBOURS, Y1, Y2, Y3, Y4, Y5>(lin, at);
    cvy_write(a, at, v);
}
#endif

// A chunk of 8 rows from `first` on, columns from `column` on.
CVY_INLINE void finish_chunk(const cvy_args &a, const tile_at &at, const matrices &m, int first, int column,
                             const float (&chunk)[8][PITCH])
{
    constexpr int ACROSS = CHUNK / NEIGHBOURS, ROWS = 32 / ACROSS; // lanes of a row, rows at a time
    const int lane = threadIdx.x % 32, n = lane % ACROSS * NEIGHBOURS, row = first + lane / ACROSS;
    const cvy_index lin = ((cvy_index)at.matrix * m.rows + row) * COLS + column + n;
    if (COLS % BN && column + n >= COLS) return;
#pragma unroll
    for (int r = 0; r < 8; r += ROWS) {
        float v[NEIGHBOURS];
        if (row + r >= m.rows) return;
        cvy_load(&chunk[lane / ACROSS + r][n], v);
        unscale(a, at, m, row + r, column + n, v);
        finish_results(a, at.split, lin + r * COLS, v);
    }
}

CVY_INLINE void multiply_role(shared_memory &s, const cvy_args &a, const matrices &all)
{
    const int warp = threadIdx.x / 32, group = threadIdx.x / 128;
    float(&chunk)[8][PITCH] = s.chunks[warp];
    multiplier m(s);
    int turn = 0;
#pragma unroll 1
    for (int number = blockIdx.x; number < count_tiles(all); number += gridDim.x) {
        const tile_at at = find_tile(all, number);
        if (TURNS && (turn++ & 1) != group) {
            m.step += at.step_end - at.step;
            continue;
        }
        if (TURNS && turn > 1) mbar_wait(&s.done[1 - group], (turn / 2 - 1) & 1);
        m.run(at.step_end - at.step);
        if (TURNS && threadIdx.x % 32 == 0) mbar_arrive(&s.done[group]);
        const int row = at.row + (TURNS ? 0 : group * (HIGH * 64)) + warp % 4 * 16;
#pragma unroll 1
        for (int i = 0; i < CHUNKS; i++) {
            const int high = i / (BN / CHUNK * 2), column = i % (BN / CHUNK * 2) / 2 * CHUNK;
            m.spread_chunk(i, chunk);
            __syncwarp();
            finish_chunk(a, at, all, row + high * 64 + i % 2 * 8, at.column + column, chunk);
            __syncwarp();
        }
    }
}

extern "C" __global__ void __launch_bounds__(WORD_THREADS, 1)
    KERNEL_NAME(const __grid_constant__ tensor_map x, const __grid_constant__ tensor_map w,
                const __grid_constant__ cvy_args a)
{
    cvy_follow();
    extern __shared__ __align__(1024) char memory[];
    shared_memory &s = *reinterpret_cast<shared_memory *>(memory);
    const matrices m = find_matrices(a);

    if (threadIdx.x == 32 * WARPS) prefetch_map(x), prefetch_map(w);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) mbar_init(&s.full[i], 1), mbar_init(&s.empty[i], TURNS ? 4 : WARPS);
        for (int i = 0; i < 2; i++) mbar_init(&s.done[i], 4);
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 32 * WARPS) {
        registers_take<REGS_MULTIPLY>();
        multiply_role(s, a, m);
    } else {
        registers_give<REGS_COPY>();
        if (threadIdx.x == 32 * WARPS) copy_role(s, x, w, m);
    }
}
