// conv_wide.cu - convolutions and transposed convolutions with many channels on Hopper's tensor cores: any rank,
// stride, padding and dilation. sm_90a.
//
// Operands are words of 16 bits in the layout of conv_wide.cuh, so nothing is converted or moved here: tensor
// copies and bulk copies load them, wgmma reads them in place. A block has BM output channels x BN places of the
// flat list; the sum runs over slices of 64 channels, phases, runs of taps (a row of them, or all rows: TOGETHER),
// and taps:
//
//   x [PARTS][PIXELS][64]     a stage for a run: the tile's places and those that the run's taps reach beyond them.
//                             A tap is the same stage from a start address moved by whole pixels; the hardware
//                             swizzles the final address, so any shift is exact if stages begin at multiples of
//                             1024 bytes
//   w [PARTS][BM][64]         a stage for a tap
//
//   role      warps                waits for                   signals
//   multiply  0 .. 4 * GROUPS - 1  full: all bytes are there   empty: the warp's rows have read the stage
//   copy      the next one         empty                       full (the copies do)
//
// M = 64 output channels of a warpgroup, N = TILE places; GROUPS_M warpgroups share the places, GROUPS_N the
// channels.
//
// One product: sums continue from tap to tap. Three: lo * hi + hi * lo + hi * hi, the small ones first; tensor
// cores truncate when they add, so the sums of a tap start from zero and ordinary additions add them up: at most 12
// truncations of 2^-23 of a partial sum. The error of the three products is below 2^-22 of a product.
//
// Results are in shared memory in place of the stages, [BM][PITCH], and go through the epilogue along the pixels of
// a channel. If the result is known to lie channels last (Y_LAST) they are there as [BN][PIXEL_PITCH], and leave
// eight channels of a pixel at a time; if it is only seen to (SRC_DENSE 0), one by one. Those that are not finite
// are first summed again by multiply-adds from x and the weights themselves: an operand is not finite, or the sum
// overflows. If there are few tiles, SPLIT blocks share the slices of a sum and store their parts for
// conv_wide_add.cu.
//
// Expected bound: tensor cores. With one product a block of 128 x 256 fetches 3 * 34 + 9 * 16 KB from the L2 for
// a slice of a 3x3 filter, 9,216 cycles of work: 27 bytes a cycle.
//
//   t[0]  result (SPLIT > 1: parts [SPLIT][result])
//   t[1]  original weights, strides of k, c, t, r, s: for results that are not finite
//   t[2]  packed weights      SCALED: t[3]  their unscale, t[4]  the samples' unscale
//   map: words as {C_PAD, pixels, PARTS * LISTS}, boxes of {64, COPY, 1}, swizzled by 128 bytes
//     PLACED: x itself, channels last, {C_IN, W, H, [D,] n}; a copy walks through its rows, a step of STRIDE_* at a
//     time, and through the gaps before them, which are outside of x and come as zeros: the same list of pixels
//   prologue space: n, c, d, h, w; epilogue space: n, k, o, p, q
//   grid: x tiles of channels, phases of a transposed convolution, then of pixels; y parts of the sum
#ifndef GROUPS_M // CONV_WIDE_TILE of wide_layout.cuh
#define GROUPS_M 2
#define GROUPS_N 1
#define TILE     128
#define TOGETHER 0
#define BLOCKS   1
#define SPLIT    1
#endif

#include "conv_wide.cuh"
#include "descriptor.cuh"
#include "ptx_wide.cuh"

constexpr int MOVE_D = wide_move(AXIS_D) * FLAT_PLANE, MOVE_H = wide_move(AXIS_H) * FLAT_ROW,
              MOVE_W = wide_move(AXIS_W);
constexpr int REACH = wide_reach(AXIS_H, AXIS_W, FLAT_ROW, TOGETHER);
constexpr wide_layout LAYOUT = wide_find_layout(GROUPS_M, GROUPS_N, TILE, PRODUCTS, REACH, BLOCKS);
constexpr int BM = LAYOUT.bm, BN = LAYOUT.bn, GROUPS = GROUPS_M * GROUPS_N, WARPS = 4 * GROUPS;
constexpr int X_STAGES = LAYOUT.x_stages, W_STAGES = LAYOUT.w_stages, COPY = LAYOUT.copy;
constexpr int X_PART = LAYOUT.x_stage / PARTS,
              W_PART = LAYOUT.w_stage / PARTS; // bytes
constexpr int K_TILES = cdiv(K_OUT, BM);
// Lanes with pairs of places: of one channel each in spread(), and in finish_along().
constexpr int PITCH = SRC_DENSE ? BN + 8 : BN + 2;
constexpr int REGS_COPY = 40,
              REGS_MULTIPLY = 232; // of one block; two have 112 each
constexpr int PIXEL_PITCH = wide_pixel_pitch(BM);
constexpr long long PLANE = (long long)OUT_O * OUT_P * OUT_Q;

struct stages {
    char x[X_STAGES][PARTS][X_PART], w[W_STAGES][PARTS][W_PART];
};
struct shared_memory {
    union {
        stages in;
        float results[BM][PITCH];
        float pixels[BN][PIXEL_PITCH]; // results, if they leave along their channels
    };
    u64 x_full[X_STAGES], x_empty[X_STAGES], w_full[W_STAGES], w_empty[W_STAGES];
};
static_assert(GROUPS == 2 && TILE % 16 == 0 && TILE <= 256, "the registers of two warpgroups");
static_assert(X_STAGES >= 2 && W_STAGES >= 2, "a stage is filled while another one is read");
static_assert(X_PART % 1024 == 0 && W_PART % 1024 == 0, "swizzled rows come by eights");
static_assert(sizeof(shared_memory) <= LAYOUT.shared_bytes, "the host launches less");

// A block's place in the work: parts of the sum that it has, and results.
struct block_at {
    int slice, slice_end, phase, phase_end;
    int k_first, split;
    int first; // place in the list
};

CVY_INLINE block_at find_block()
{
    constexpr int ACROSS = K_TILES * (TRANSPOSED ? PHASES : 1); // blocks that have the same places
    block_at b;
    b.k_first = (int)(blockIdx.x % K_TILES) * BM;
    b.phase = (int)(blockIdx.x % ACROSS) / K_TILES;
    b.phase_end = TRANSPOSED ? b.phase + 1 : PHASES;
    b.first = (int)(blockIdx.x / ACROSS) * BN;
    b.split = SPLIT > 1 ? (int)blockIdx.y : 0;
    b.slice = b.split * SLICES / SPLIT;
    b.slice_end = (b.split + 1) * SLICES / SPLIT;
    return b;
}

// The runs of a phase, each with a stage of x, and their taps.
struct phase_runs {
    int count, rows, taps; // taps: of each of a run's rows
};

CVY_INLINE phase_runs find_runs(const phase_taps &f)
{
    phase_runs r;
    r.count = f.r * f.s == 0 ? 0 : TOGETHER ? f.t : f.t * f.r;
    r.rows = TOGETHER ? f.r : 1;
    r.taps = f.s;
    return r;
}

// ---- copy

// From a tile's first place to the first one that a run reads.
CVY_INLINE int run_offset(const phase_taps &f, int run)
{
    const int t = TOGETHER ? run : run / f.r, r = TOGETHER ? 0 : run % f.r;
    return wide_shift(AXIS_D, f.d) * FLAT_PLANE + wide_shift(AXIS_H, f.h) * FLAT_ROW + wide_shift(AXIS_W, f.w) +
           t * MOVE_D + r * MOVE_H;
}

// COPY pixels of a list from number `pixel` on.
#if PLACED
CVY_INLINE void copy_pixels(void *to, const tensor_map &map, int c, int pixel, int, int list, u64 *full)
{
    constexpr int EVERY_D = TRANSPOSED ? 1 : STRIDE_D, EVERY_H = TRANSPOSED ? 1 : STRIDE_H,
                  EVERY_W = TRANSPOSED ? 1 : STRIDE_W;
    const phase_taps f = find_phase(list);
    const int at = pixel + GAP_D * FLAT_PLANE + GAP_H * FLAT_ROW + GAP_W, inside = at % FLAT_SAMPLE;
    const int d = (inside / FLAT_PLANE - GAP_D) * EVERY_D, h = (inside % FLAT_PLANE / FLAT_ROW - GAP_H) * EVERY_H,
              w = (inside % FLAT_ROW - GAP_W) * EVERY_W;
#if PLACED == 5
    pixels_load(to, map, c, w, h, d, at / FLAT_SAMPLE, f.w, f.h, f.d, full);
#else
    (void)d;
    pixels_load(to, map, c, w, h, at / FLAT_SAMPLE, f.w, f.h, full);
#endif
}
#else
CVY_INLINE void copy_pixels(void *to, const tensor_map &map, int c, int pixel, int part, int list, u64 *full)
{
    tensor_load(to, map, c, pixel, part * LISTS + list, full);
}
#endif

struct copier {
    shared_memory &s;
    const tensor_map &map;
    const char *packed; // the next tap's weights
    int x_step, w_step;

    CVY_INLINE_MEMBER void copy_x(int c, int pixel, int list)
    {
        const int slot = x_step % X_STAGES;
        mbar_wait(&s.x_empty[slot], (x_step / X_STAGES & 1) ^ 1);
        mbar_arrive_expect(&s.x_full[slot], PARTS * X_PART);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int i = 0; i < LAYOUT.copies; i++)
                copy_pixels(s.in.x[slot][part] + i * COPY * WIDE_ROW_BYTES, map, c, pixel + i * COPY, part, list,
                            &s.x_full[slot]);
        x_step++;
    }
    CVY_INLINE_MEMBER void copy_tap()
    {
        const int slot = w_step % W_STAGES;
        mbar_wait(&s.w_empty[slot], (w_step / W_STAGES & 1) ^ 1);
        mbar_arrive_expect(&s.w_full[slot], PARTS * W_PART);
#pragma unroll
        for (int part = 0; part < PARTS; part++, packed += K_PAD * WIDE_ROW_BYTES)
            bulk_load(s.in.w[slot][part], packed, W_PART, &s.w_full[slot]);
        w_step++;
    }
};

CVY_INLINE void copy_role(shared_memory &s, const tensor_map &map, const char *packed, const block_at &b)
{
    copier to = {s, map, packed, 0, 0};
    const int before = taps_before(b.phase);
#pragma unroll 1
    for (int slice = b.slice; slice < b.slice_end; slice++) {
        to.packed = packed + ((long long)(slice * TAPS + before) * PARTS * K_PAD + b.k_first) * WIDE_ROW_BYTES;
#pragma unroll 1
        for (int phase = b.phase; phase < b.phase_end; phase++) {
            const phase_taps f = find_phase(phase);
            const phase_runs runs = find_runs(f);
#pragma unroll 1
            for (int run = 0; run < runs.count; run++) {
                to.copy_x(slice * WIDE_CHANNELS, b.first + run_offset(f, run), TRANSPOSED ? 0 : phase);
#pragma unroll 1
                for (int tap = 0; tap < runs.rows * runs.taps; tap++) to.copy_tap();
            }
        }
    }
}

// ---- multiply

struct multiplier {
    shared_memory &s;
    float acc[TILE / 2];
    int m, n; // the warpgroup's first channel and place in the tile

    CVY_INLINE_MEMBER multiplier(shared_memory &memory) : s(memory)
    {
        const int group = threadIdx.x / 128;
        m = group % GROUPS_M * 64;
        n = group / GROUPS_M * TILE;
#pragma unroll
        for (int i = 0; i < TILE / 2; i++) acc[i] = 0.0f;
    }

    // 64 channels of a tap: part `w` of the weights, part `x` of the pixels from place `shift` on.
    CVY_INLINE_MEMBER void product(float (&d)[TILE / 2], u32 w16, u32 x16, bool accumulate) const
    {
#pragma unroll
        for (int k = 0; k < WIDE_CHANNELS / 16; k++)
            wgmma_half(d, wgmma_desc_swizzled(w16 + 2 * k), wgmma_desc_swizzled(x16 + 2 * k), accumulate || k > 0,
                       WORD());
    }
    CVY_INLINE_MEMBER u32 w_part(int slot, int part) const
    {
        return desc_address(s.in.w[slot][part]) + m * (WIDE_ROW_BYTES / 16);
    }
    CVY_INLINE_MEMBER u32 x_part(int slot, int part, int shift) const
    {
        return desc_address(s.in.x[slot][part]) + (n + shift) * (WIDE_ROW_BYTES / 16);
    }
    // Each warp arrives separately: its quarter is done, the others' may not be.
    CVY_INLINE_MEMBER void release(u64 *empty) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbar_arrive(empty);
    }

    // Sums go on from tap to tap; a tap's stages are given back when the next one is in flight.
    CVY_INLINE_MEMBER void tap_once(int x_step, int w_step, int shift, bool next_run)
    {
        wgmma_fence();
        product(acc, w_part(w_step % W_STAGES, 0), x_part(x_step % X_STAGES, 0, shift), true);
        wgmma_commit();
        wgmma_wait<1>();
        if (w_step > 0) release(&s.w_empty[(w_step - 1) % W_STAGES]);
        if (next_run && x_step > 0) release(&s.x_empty[(x_step - 1) % X_STAGES]);
    }
    // The sums of a tap start from zero.
    CVY_INLINE_MEMBER void tap_thrice(int x_step, int w_step, int shift, bool last_of_run)
    {
        const int ws = w_step % W_STAGES, xs = x_step % X_STAGES;
        float part[TILE / 2];
        wgmma_fence();
        product(part, w_part(ws, 0), x_part(xs, PARTS - 1, shift), false);
        product(part, w_part(ws, PARTS - 1), x_part(xs, 0, shift), true);
        product(part, w_part(ws, 0), x_part(xs, 0, shift), true);
        wgmma_commit();
        wgmma_wait<0>();
        acc_fence(part);
        release(&s.w_empty[ws]);
        if (last_of_run) release(&s.x_empty[xs]);
#pragma unroll
        for (int i = 0; i < TILE / 2; i++) acc[i] += part[i];
    }

    // One run: its stage of x, tap by tap.
    CVY_INLINE_MEMBER void take_run(int x_step, int &w_step, const phase_runs &run)
    {
        mbar_wait(&s.x_full[x_step % X_STAGES], x_step / X_STAGES & 1);
#pragma unroll 1
        for (int r = 0; r < run.rows; r++)
#pragma unroll 1
            for (int tap = 0; tap < run.taps; tap++, w_step++) {
                const int shift = r * MOVE_H + tap * MOVE_W;
                mbar_wait(&s.w_full[w_step % W_STAGES], w_step / W_STAGES & 1);
                if constexpr (PRODUCTS == 1)
                    tap_once(x_step, w_step, shift, r + tap == 0);
                else
                    tap_thrice(x_step, w_step, shift, r == run.rows - 1 && tap == run.taps - 1);
            }
    }

    CVY_INLINE_MEMBER void run(const block_at &b)
    {
        int x_step = 0, w_step = 0;
        if (PRODUCTS == 1) acc_fence(acc);
#pragma unroll 1
        for (int slice = b.slice; slice < b.slice_end; slice++)
#pragma unroll 1
            for (int phase = b.phase; phase < b.phase_end; phase++) {
                const phase_runs runs = find_runs(find_phase(phase));
#pragma unroll 1
                for (int i = 0; i < runs.count; i++, x_step++) take_run(x_step, w_step, runs);
            }
        wgmma_wait<0>();
        if (PRODUCTS == 1) acc_fence(acc);
    }

    // lane 4g + t of warp v: acc[4j + 2h + e] is channel 16v + g + 8h, place 8j + 2t + e.
    CVY_INLINE_MEMBER void spread(float (&results)[BM][PITCH]) const
    {
        const int k = m + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, at = n + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *reinterpret_cast<float2 *>(&results[k + 8 * h][at + 8 * j]) =
                    make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
    }
    // The same, channels of a place together: 4g + t lanes are in banks 8t + g.
    CVY_INLINE_MEMBER void spread(float (&pixels)[BN][PIXEL_PITCH]) const
    {
        const int k = m + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, at = n + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < TILE / 2; i++) pixels[at + i / 4 * 8 + i % 2][k + i / 2 % 2 * 8] = acc[i];
    }
};

#include "conv_wide_finish.cuh"

CVY_INLINE void multiply_role(shared_memory &s, const cvy_args &a, const block_at &b)
{
    multiplier m(s);

    m.run(b);
    named_barrier(1, 128 * GROUPS); // all are through with the stages
#if Y_LAST
    m.spread(s.pixels);
    named_barrier(1, 128 * GROUPS);
    finish_pixels(a, b, s.pixels);
#else
    m.spread(s.results);
    named_barrier(1, 128 * GROUPS);
    finish(a, b, s.results);
#endif
}

extern "C" __global__ void __launch_bounds__(LAYOUT.threads, BLOCKS)
    KERNEL_NAME(const __grid_constant__ tensor_map map, const __grid_constant__ cvy_args a)
{
    cvy_follow();
    extern __shared__ __align__(1024) char memory[];
    shared_memory &s = *reinterpret_cast<shared_memory *>(memory);
    const block_at block = find_block();

    if (threadIdx.x == 128 * GROUPS) prefetch_map(map);
    if (threadIdx.x == 0) {
        for (int i = 0; i < X_STAGES; i++) mbar_init(&s.x_full[i], 1), mbar_init(&s.x_empty[i], WARPS);
        for (int i = 0; i < W_STAGES; i++) mbar_init(&s.w_full[i], 1), mbar_init(&s.w_empty[i], WARPS);
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 128 * GROUPS) {
        if (BLOCKS == 1) registers_take<REGS_MULTIPLY>();
        multiply_role(s, a, block);
    } else {
        if (BLOCKS == 1) registers_give<REGS_COPY>();
        if (threadIdx.x == 128 * GROUPS) copy_role(s, map, reinterpret_cast<const char *>(a.t[2].p), block);
    }
}
