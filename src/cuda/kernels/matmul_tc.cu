// matmul_tc.cu - linear layers on Hopper's tensor cores: dst[row, n] = sum over k of x[row, k] * weight[n, k], by
// wgmma in tf32, or in fp16 or bf16 if both operands are. sm_90a.
//
// A block computes BM x BN results; DEPTH terms at a time are loaded into STAGES stages of shared memory, by copies
// that one thread issues:
//
//   x [BM][DEPTH]              tensor copies; piece c (16 bytes) of row r lies at r * 128 + (c ^ r % 8) * 16
//   w [PARTS][8][BN][PIECE]    packed so (matmul_tc.cuh): one bulk copy
//
//   role      warps                waits for                   signals
//   multiply  0 .. 4 * GROUPS - 1  full: all bytes are there   empty: 64 rows have read the stage
//   copy      one of the last 4    empty                       full (the copies do)
//
// A warpgroup multiplies 64 rows. Fragments of x go through registers: loaded (rows of 8 pieces fall on 32
// different banks), of float32 rounded to tf32, for three products split; those of the next stage while the
// tensor cores work on this one. Weights are read by wgmma itself.
//
// Clusters of CLUSTER_M x CLUSTER_N blocks fetch what they share once: a block begins the copies of its share of
// the rows of x, into all blocks with the same rows, and of its share of the weights, into all with the same
// columns. Its stage is empty when all blocks that it writes into have read theirs.
//
// Three products: small * big + big * small + big * big, the small ones first. Tensor cores truncate when they
// add, so the sums of a stage start from zero and ordinary additions add them up: at most 12 truncations of 2^-23
// of a partial sum, 1.5e-6 of it if all terms have one sign; a third of that was measured. The error of the three
// products is below 3 * 2^-22 of a product.
//
// Results are in shared memory in place of the stages, 16 rows of each warp as [16][BN + 8], and go through the
// epilogue in the order of memory; those that are not finite are first summed again by multiply-adds. Expected
// bound: tensor cores with three products; with one, the L2: without clusters 4 * DEPTH * (BM + BN)
// bytes for BM * BN * DEPTH multiply-adds.
//
//   t[1]  x: contiguous, at a multiple of 16 bytes, rows of whole 16 bytes; map: the same as {TERMS, rows},
//         boxes of {DEPTH, BM / CLUSTER_N}, swizzled by 128 bytes
//   t[2]  original weights: slots COLUMN and ROW hold the strides along columns and terms; t[PACKED] packed
//   views, epilogue space and grid: rows.cuh; the grid has whole clusters
#include "descriptor.cuh"
#include "matmul_tc.cuh"
#include "mma.cuh"
#include "ptx_product.cuh"

#ifndef PACKED
#define PACKED 3
#endif
constexpr int GROUPS = BM / 64, WARPS = 4 * GROUPS, THREADS = LAYOUT.threads;
constexpr int PEERS = CLUSTER_M + CLUSTER_N - 1; // blocks that this one writes into, or gets something from
constexpr bool ALONE = CLUSTER_M * CLUSTER_N == 1;
constexpr int BLOCKS = LAYOUT.resident, STAGES = LAYOUT.stages; // blocks: of a multiprocessor
constexpr int STAGE_BYTES = FLOAT_BYTES * (X_STAGE + W_STAGE);
constexpr int PITCH = BN + 8;             // of results: halves of a warp store to 32 banks
constexpr int WIDTH = access_width(COLS); // neighbours that the epilogue takes at a time
constexpr int REGS_COPY = BLOCKS == 2 ? 24 : 40, REGS_MULTIPLY = BLOCKS == 2 ? 104 : 232;

struct stage {
    float x[X_STAGE], w[W_STAGE];
};
struct shared_memory {
    union {
        stage stages[STAGES];
        float results[WARPS][16][PITCH];
    };
    u64 full[STAGES], empty[STAGES];
};
static_assert(BM % 64 == 0 && BM <= 128 && BN % 32 == 0 && BM / CLUSTER_N % 8 == 0, "whole warpgroups and copies");
static_assert(STAGES >= 2 && TERMS % PIECE == 0 && W_STAGE % (4 * CLUSTER_M) == 0, "copies of whole 16 bytes");
constexpr int ROW_WORDS = WGMMA_DEPTH, SUBSTEPS = 4; // of a stage: a row of x; of two pieces each
static_assert(sizeof(shared_memory) <= LAYOUT.shared_bytes, "the host launches less");

// DEPTH terms of a warp's 16 rows as wgmma's first operand.
struct fragments {
    float big[SUBSTEPS][4], small[SUBSTEPS][4]; // small: of three products. Pairs of 16-bit words are not floats

    // at: the lane's first piece. Pieces 2s and 2s + 1 differ from it in bits 5 and 6.
    CVY_INLINE_MEMBER void load(const float *x, int at)
    {
#pragma unroll
        for (int s = 0; s < SUBSTEPS; s++) {
            float v[4];
            cvy_load_blocks(v, x + (at ^ 8 * s));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                big[s][e] = HALF ? v[e] : cvy_to_tf32(v[e]);
                if (PARTS == 2) small[s][e] = cvy_to_tf32(v[e] - big[s][e]);
            }
        }
    }
};

// Lane l says where row l % 16 begins, piece l / 16 of two (mma.cuh); in floats.
CVY_INLINE int lane_place(int warp, int lane)
{
    return (16 * warp + lane % 16) * ROW_WORDS + (lane / 16 ^ lane % 8) * 4;
}

// ---- copy

CVY_INLINE void copy_role(shared_memory &s, const tensor_map &map, const float *packed, int row)
{
    constexpr int X_ROWS = BM / CLUSTER_N, W_PART = W_STAGE / CLUSTER_M;
    const int n = blockIdx.x % CLUSTER_N,
              m = blockIdx.y % CLUSTER_M; // place in the cluster; rank m * CLUSTER_N + n
    unsigned same_row = 0, same_column = 0;
#pragma unroll
    for (int i = 0; i < CLUSTER_N; i++) same_row |= 1u << (m * CLUSTER_N + i);
#pragma unroll
    for (int i = 0; i < CLUSTER_M; i++) same_column |= 1u << (i * CLUSTER_N + n);
    packed += (long long)blockIdx.x * STEPS * W_STAGE + m * W_PART;
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        const int slot = step % STAGES;
        u64 *full = &s.full[slot];
        float *x = s.stages[slot].x + n * X_ROWS * ROW_WORDS, *w = s.stages[slot].w + m * W_PART;
        mbar_wait_cluster(&s.empty[slot], (step / STAGES & 1) ^ 1);
        mbar_arrive_expect(full, STAGE_BYTES);
        if (CLUSTER_N == 1)
            tensor_load(x, map, step * DEPTH, row, full);
        else
            tensor_load_many(x, map, step * DEPTH, row + n * X_ROWS, full, (unsigned short)same_row);
        if (CLUSTER_M == 1)
            bulk_load(w, packed + (long long)step * W_STAGE, FLOAT_BYTES * W_PART, full);
        else
            bulk_load_many(w, packed + (long long)step * W_STAGE, FLOAT_BYTES * W_PART, full,
                           (unsigned short)same_column);
    }
}

// ---- multiply

struct multiplier {
    shared_memory &s;
    float acc[BN / 2];
    int at;   // the lane's first piece of its warp's rows
    u32 peer; // block that the lane signals when a stage is free; lanes from PEERS on signal none

    CVY_INLINE_MEMBER multiplier(shared_memory &memory) : s(memory)
    {
        const u32 lane = threadIdx.x % 32, n = blockIdx.x % CLUSTER_N, m = blockIdx.y % CLUSTER_M;
        at = lane_place(threadIdx.x / 32, lane);
        // First the blocks with the same rows, then the others with the same columns.
        peer = lane < CLUSTER_N ? m * CLUSTER_N + lane
                                : ((lane - CLUSTER_N) + (lane - CLUSTER_N >= m)) * CLUSTER_N + n;
#pragma unroll
        for (int i = 0; i < BN / 2; i++) acc[i] = 0.0f;
    }

    // The fragments of a step, as soon as its stage is full.
    CVY_INLINE_MEMBER void load(fragments &f, int step)
    {
        mbar_wait(&s.full[step % STAGES], step / STAGES & 1);
        f.load(s.stages[step % STAGES].x, at);
    }
    CVY_INLINE_MEMBER void release(int step)
    {
        __syncwarp();
        if (threadIdx.x % 32 < PEERS) {
            if (ALONE)
                mbar_arrive(&s.empty[step % STAGES]);
            else
                mbar_arrive_at(&s.empty[step % STAGES], peer);
        }
    }

    // One product of a stage: part `part` of the weights.
    static CVY_INLINE_MEMBER void product(float (&d)[BN / 2], const float (&a)[SUBSTEPS][4], u32 w16, int part,
                                          bool accumulate)
    {
#pragma unroll
        for (int s = 0; s < SUBSTEPS; s++)
            wgmma_rows(d, a[s], wgmma_desc(w16 + (part * 8 + 2 * s) * BN, BN), accumulate || s > 0, X_TYPE());
    }

    // Sums go on from stage to stage: one batch works while the fragments of the next are loaded.
    template <bool MORE> CVY_INLINE_MEMBER void step_once(const fragments &now, fragments &next, int step)
    {
        wgmma_fence();
        product(acc, now.big, desc_address(s.stages[step % STAGES].w), 0, true);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0) release(step - 1);
        if (MORE) load(next, step + 1);
    }
    // The sums of a stage start from zero.
    template <bool MORE> CVY_INLINE_MEMBER void step_thrice(const fragments &now, fragments &next, int step)
    {
        const u32 w16 = desc_address(s.stages[step % STAGES].w);
        float part[BN / 2];
        wgmma_fence();
        product(part, now.small, w16, 0, false);
        product(part, now.big, w16, 1, true);
        product(part, now.big, w16, 0, true);
        wgmma_commit();
        if (MORE) load(next, step + 1);
        wgmma_wait<0>();
        acc_fence(part);
        release(step);
#pragma unroll
        for (int i = 0; i < BN / 2; i++) acc[i] += part[i];
    }
    template <bool MORE> CVY_INLINE_MEMBER void step_one(const fragments &now, fragments &next, int step)
    {
        if constexpr (PRODUCTS == 1)
            step_once<MORE>(now, next, step);
        else
            step_thrice<MORE>(now, next, step);
    }

    CVY_INLINE_MEMBER void run()
    {
        constexpr int PAIRS = (STEPS - 1) / 2; // after which one step or two are left
        fragments even, odd;
        load(even, 0);
        if (PRODUCTS == 1) acc_fence(acc);
#pragma unroll 1
        for (int i = 0; i < PAIRS; i++) {
            step_one<true>(even, odd, 2 * i);
            step_one<true>(odd, even, 2 * i + 1);
        }
        step_one<STEPS % 2 == 0>(even, odd, 2 * PAIRS);
        if (STEPS % 2 == 0) step_one<false>(odd, even, 2 * PAIRS + 1);
        wgmma_wait<0>();
        if (PRODUCTS == 1) acc_fence(acc);
    }

    // The warp's results as [16][PITCH].
    CVY_INLINE_MEMBER void spread(float (&rows)[16][PITCH]) const
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *reinterpret_cast<float2 *>(&rows[g + 8 * h][8 * j + 2 * t]) =
                    make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
    }
    CVY_INLINE_MEMBER bool is_sound() const // all results can be taken as they are
    {
        bool sound = true;
#pragma unroll
        for (int i = 0; i < BN / 2; i++) sound = sound && fabsf(acc[i]) < CVY_INF;
        return sound;
    }
};

// One result by multiply-adds.
CVY_INLINE float sum_again(const cvy_args &a, long long row, int n)
{
    const X_TYPE *x = cvy_as<X_TYPE>(a.t[1]) + row * TERMS;
    const W_TYPE *w = cvy_as<W_TYPE>(a.t[2]) + n * a.t[2].s[COLUMN];
    float sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < TERMS; k++) sum = fmaf(cvy_widen(x[k]), cvy_widen(w[k * a.t[2].s[ROW]]), sum);
    return sum;
}

// Replaces results that are not finite: an operand is not, or rounds to inf, or the sum overflows. Rare.
CVY_INLINE void repair(const cvy_args &a, float (&results)[16][PITCH], long long first, int n_first, int rows)
{
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < rows * BN; i += 32) {
        const int n = n_first + i % BN; // columns past the last have weights of 0, and inf * 0 is NaN
        float *result = &results[i / BN][i % BN];
        if (!(fabsf(*result) < CVY_INF) && n < COLS) *result = sum_again(a, first + i / BN, n);
    }
    __syncwarp();
}

CVY_INLINE void multiply_role(shared_memory &s, const cvy_args &a, const tile_rows &all)
{
    const int warp = threadIdx.x / 32, n_first = blockIdx.x * BN;
    const long long first = all.first + 16 * warp, left = all.end - first;
    const int rows = left < 16 ? (left < 0 ? 0 : (int)left) : 16;
    float(&results)[16][PITCH] = s.results[warp];
    multiplier m(s);

    m.run();
    named_barrier(1, 128 * GROUPS); // all are through with the stages
    m.spread(results);
    __syncwarp();
    if (__any_sync(~0u, !m.is_sound())) repair(a, results, first, n_first, rows);
#pragma unroll 4
    for (int i = threadIdx.x % 32 * WIDTH; i < rows * BN; i += 32 * WIDTH) {
        const int n = n_first + i % BN;
        if (COLS % (BN * CLUSTER_N) && n >= COLS) continue; // the grid has whole clusters
        cvy_at at[WIDTH];
        float v[WIDTH];
        cvy_load(&results[i / BN][i % BN], v);
        cvy_neighbours<WIDTH, Y1, Y2, Y3, Y4, Y5>((cvy_index)((first + i / BN) * COLS + n), at);
        cvy_write(a, at, v);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) __cluster_dims__(CLUSTER_N, CLUSTER_M, 1)
    KERNEL_NAME(const __grid_constant__ tensor_map map, const __grid_constant__ cvy_args a)
{
    cvy_follow();
    extern __shared__ __align__(1024) char memory[];
    shared_memory &s = *reinterpret_cast<shared_memory *>(memory);
    const tile_rows rows = rows_of_block<BM>(a);

    if (threadIdx.x == 128 * GROUPS) prefetch_map(map);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) mbar_init(&s.full[i], 1), mbar_init(&s.empty[i], WARPS * PEERS);
        mbar_init_fence();
    }
    // Barriers are ready before a copy or an arrival of another block comes; and no block ends while arrivals for
    // it may be on their way.
    if (!ALONE) cluster_arrive(), cluster_wait();
    __syncthreads();
    if (threadIdx.x < 128 * GROUPS) {
        if (GROUPS == 2) registers_take<REGS_MULTIPLY>();
        multiply_role(s, a, rows);
    } else {
        if (GROUPS == 2) registers_give<REGS_COPY>();
        if (threadIdx.x == 128 * GROUPS) copy_role(s, map, a.t[PACKED].p, (int)rows.first);
    }
    if (!ALONE) cluster_arrive(), cluster_wait();
}
