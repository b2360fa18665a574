// conv_tc.cuh - geometry, shared memory and schedule of the Hopper convolution (conv_tc.cu, conv_tc_pack.cu).
//
// y = conv(x, w) + bias on wgmma with fp16 operands. x and w are scaled, by powers of two (per staged strip,
// per output channel); PRODUCTS 1 has tf32's accuracy, PRODUCTS 3 (hi*lo + lo*hi + hi*hi) that of float32.
//
// Layout. 8 input channels of a pixel are 16 bytes of fp16. A staged strip is, per part (hi, lo), slice of 8
// channels and stride phase, a plane [row][column][8]: eight neighbouring pixels are one wgmma core matrix from any
// pixel on, so filter tap (r, s) is the same plane read from a shifted start address. A k16 step takes two taps;
// the descriptor's leading offset is their distance. M = 64 rows are ROWS_M output rows x 64/ROWS_M output channels
// (weights of rows outside a tap's reach are zero), N = TILE pixels.
#pragma once
#include "common.cuh"
#include "ptx.cuh"
#include "conv_tc_layout.cuh"

#ifndef X_TYPE // elements of the tensors
#define X_TYPE     float
#define W_TYPE     float
#define Y_TYPE     float
#define BIAS_TYPE  float
#define GAMMA_TYPE float
#define BETA_TYPE  float
#endif
// The macros of conv_tc_layout.cuh, so the file compiles alone.
#ifndef TC_XLAST
#define TC_XLAST 0
#endif
#ifndef TC_YLAST
#define TC_YLAST 0
#endif
#ifndef TC_DIRECT
#define TC_DIRECT 0
#endif
#ifndef TC_C
#define TC_C         8
#define TC_K         64
#define TC_H         128
#define TC_W         128
#define TC_R         3
#define TC_S         3
#define TC_STRIDE    1
#define TC_PADH      0
#define TC_PADW      0
#define TC_PRODUCTS  1
#define TC_G         0
#define TC_SINK      0
#define TC_POOLH     1
#define TC_POOLW     2
#define TC_REDUCE    0
#define TC_PASS      0
#define TC_TILE      128
#define TC_ROWSM     1
#define TC_FLAT      0
#define TC_STRIP     8
#define TC_SPAN      126
#define TC_STAGES    2
#define TC_SLICES    1
#define TC_SHARE     1
#define TC_OUTS      2
#define TC_BANDS     1
#define TC_COLTILES  0
#define TC_TMA       0
#define TC_ROWS      0
#define TC_FINISHERS 4
#endif

// Words of the operands: x's own (DIRECT), else fp16. That has a short range: weights come with a scale.
template <bool AS_X, class T> struct operand_of {
    typedef cvy_f16 type;
};
template <class T> struct operand_of<true, T> {
    typedef T type;
};
typedef operand_of<TC_DIRECT, X_TYPE>::type operand_word;
CVY_CONST bool is_short(cvy_f16)
{
    return true;
}
CVY_CONST bool is_short(cvy_bf16)
{
    return false;
}
constexpr bool SCALED = is_short(operand_word());

// What an epilogue's text may name.
constexpr int C = TC_C, K = TC_K, H = TC_H, W = TC_W, R = TC_R, S = TC_S, ST = TC_STRIDE, G = TC_G;
constexpr int P = tc_extent(H, TC_PADH, R, ST), Q = tc_extent(W, TC_PADW, S, ST); // output rows, columns
constexpr bool NORM = G > 0, POOL = TC_SINK == SINK_POOL, FLAT = TC_FLAT;
constexpr int OW = POOL ? Q / TC_POOLW : Q, OH = POOL ? P / TC_POOLH : P; // stored columns and rows

#ifdef TC_EPILOGUE // '"epilogue.cuh"', generated: the macros of TC_TEXT, struct epi and the three functions
#include TC_EPILOGUE
#else // the identity, so the file compiles alone
#define TC_PRE      0
#define TC_HALVED   0
#define TC_EXTERN   0
#define TC_BEFORE   0
#define TC_EXPONENT 0
struct epi {
    int unused;
};
// What comes between convolution and norm (TC_PRE 0: nothing); k: output channel.
__device__ __forceinline__ float cvy_pre(float y, int k, const epi &e)
{
    return y;
}
// What follows the norm (or pooling). z: normalised, y: before the norm; pixel: index in the output plane.
__device__ __forceinline__ float cvy_post(float z, float y, int n, int k, int pixel, const epi &e)
{
    return z;
}
// What follows a reduction over the channels.
__device__ __forceinline__ float cvy_last(float v, int n, int pixel, const epi &e)
{
    return v;
}
#endif

CVY_CONST int floor_pow2(int v)
{
    int p = 1;
    while (p * 2 <= v) p *= 2;
    return p;
}

constexpr bool X_HALF = sizeof(X_TYPE) == 2, Y_HALF = sizeof(Y_TYPE) == 2, DIRECT = TC_DIRECT;
// The macros as the layout takes them; what only the tuner reads stays 0.
#define TC_SET(NAME, field, meaning) of.field = TC_##NAME;
CVY_CONST tc_problem problem_of_macros()
{
    tc_problem of = {};
    TC_PROBLEM(TC_SET)
    TC_TENSORS(TC_SET)
    of.external = TC_EXTERN;
    of.before = TC_BEFORE;
    of.x_half = X_HALF;
    of.y_half = Y_HALF;
    return of;
}
CVY_CONST tc_tuning tuning_of_macros()
{
    tc_tuning of = {};
    TC_TUNING(TC_SET)
    return of;
}
constexpr tc_problem PROBLEM = problem_of_macros();
constexpr tc_tuning TUNING = tuning_of_macros();
constexpr tc_layout L = tc_find_layout(&PROBLEM, &TUNING);

// The layout's fields under short names, in its order; see there.
constexpr int PARTS = L.parts, TILE = TC_TILE, EIGHTS = TILE / 8,
              ACC = TILE / 2; // accumulators: EIGHTS times (2 channels x 2 pixels)
constexpr int ROWSM = TC_ROWSM, BLOCK_CHANNELS = L.km, MBLOCKS = L.blocks, PADDED_CHANNELS = L.channels;
constexpr int TAPROWS = L.tap_rows, TAPS = L.taps, SLICES = TC_SLICES, NSTAGE = L.stages, STEPS = L.steps;
constexpr int WPART = L.w_part, WSTAGE = L.w_stage;
constexpr bool STREAM = L.stream;
constexpr int MSHARE = TC_SHARE, BLOCKS = STREAM ? MBLOCKS / MSHARE : 1,
              PER_STRIP = BLOCKS * NSTAGE; // times x is staged; stages of a strip
constexpr int STRIP_ROWS = TC_STRIP, STRIP_COLS = L.span, CSTRIPS = L.col_strips,
              STRIPS = L.row_strips * L.col_strips;
constexpr int ROWSIN = L.rows_in, COLSIN = L.cols_in, XVEC = L.vec, COLPACKS = L.packs;
constexpr int PITCH = L.pitch, PHASE = (int)L.phase, SLICE = (int)L.slice, XPART = (int)L.x_part,
              XSTAGE = (int)L.x_stage;
constexpr bool COPIED = L.copied, PLACED = L.placed;
constexpr int UCOLS = L.parcel_cols, UROWS = L.parcel_rows, PARCEL = L.parcel, PARCELS = cdiv(ROWSIN, UROWS);
constexpr int BAND_ROWS = L.band_rows, BANDS = L.bands, BAND_TILES = L.col_tiles, CHUNK_TILES = L.tiles_chunk,
              CHUNK_BANDS = L.bands_chunk, CHUNKS = L.chunks;
constexpr int CHUNK_BLOCKS = L.chunk_blocks, CHUNK_CHANNELS = CHUNK_BLOCKS * BLOCK_CHANNELS,
              CHUNK_COLS = L.chunk_w; // CHUNK_CHANNELS: channels of a chunk
constexpr bool BOTH = TC_PASS == PASS_BOTH, KEEP = TC_PASS == PASS_KEEP, EARLY = L.early, BULK = L.bulk,
               PARTIAL = L.partial;
constexpr bool OUT_HALF = L.out_half, OUT_LAST = L.out_last;
constexpr bool EXPONENTS = PARTIAL && TC_REDUCE == REDUCE_LSE; // results are powers of two
constexpr int OUTS = TC_PASS == PASS_STATS ? 0 : TC_OUTS, OUTROWS = L.out_rows, OPITCH = (int)L.out_pitch,
              PEAKS = L.peaks;
constexpr int MULTIPLIERS = L.multiply, STAT_GROUPS = L.stat_groups, FINISH_GROUPS = L.fin_groups, TEAMS = L.teams,
              NORMS = L.norms;
constexpr int SINKWARPS = L.finish, LOADWARPS = L.load, LOADERS = LOADWARPS * 32;
constexpr int WARP_SINK = MULTIPLIERS * 4, WARP_LOAD = WARP_SINK + TEAMS * SINKWARPS,
              WARP_COPY = WARP_LOAD + LOADWARPS; // COPIED: this one issues
constexpr int THREADS = L.threads, WARP_MERGE = THREADS / 32 - 1;

constexpr int TAIL = STRIP_COLS % TILE, LAST = CSTRIPS > 1 ? Q % STRIP_COLS % TILE : 0; // columns of a last tile
constexpr int SAFE =
    least(TAIL ? TAIL / 8 : EIGHTS, LAST ? LAST / 8 : EIGHTS); // groups of 8 pixels that every tile has
// One product: a power of two near the mean of a stage's values is subtracted, and comes back times the sum of the
// weights: fp16's rounding errors are then proportional to the distance from the mean, not from zero.
// Numbers of 16 bits need no such thing.
constexpr bool SHIFTED = PARTS == 1 && TC_TMA && !STREAM && !X_HALF;
constexpr int HALF = 64;                       // pixels whose partial results are made and judged together
typedef float half_tile[HALF / 2];             // their accumulators
constexpr int SLOTS = STAT_GROUPS * ROWSM;     // partial statistics of a channel inside the block
constexpr int CPG = NORM ? K / most(G, 1) : 1; // channels of a group
enum { BAR_LOAD = 1, BAR_STATS = 2 };          // named barriers

// KEEP with a tile of the strip for each warpgroup: values stay in the accumulators until their statistics are on
// the way.
constexpr bool HOLD = KEEP && !POOL && !STREAM && MBLOCKS == 1 && BANDS * BAND_TILES <= MULTIPLIERS;
// A chunk of one tile is one warpgroup's: the others neither wait for its buffer nor hand it over. A buffer's last
// use but one is then known to be over: its owner waited for a later chunk since.
constexpr bool SOLE = !HOLD && !STREAM && CHUNK_BLOCKS * CHUNK_BANDS * CHUNK_TILES == 1 && OUTS >= FINISH_GROUPS;
static_assert(FINISH_GROUPS <= 2, "chunks go round the warpgroups by (warpgroup + chunk) % FINISH_GROUPS");
// The products of one half of a tile run concurrently with the results of the other. Not with three products:
// registers spill, and narrow tiles read more of shared memory.
constexpr bool HALVES = PARTIAL && SOLE && PARTS == 1 && TILE == 2 * HALF;

static_assert(TC_PRODUCTS == 1 || TC_PRODUCTS == 3, "one product or three");
static_assert(ST == 1 || ST == 2, "stride phases are made for strides 1 and 2");
static_assert(P > 0 && Q > 0, "the filter is larger than the padded input");
static_assert(TILE == 64 || TILE == 128, "wgmma wrappers exist for 64 and 128 pixels");
static_assert(ROWSM == 1 || ((ROWSM == 2 || ROWSM == 4) && K <= BLOCK_CHANNELS && !POOL && !FLAT),
              "several rows in M: few channels only");
static_assert(STRIP_ROWS % BAND_ROWS == 0, "a strip is whole bands");
static_assert(STRIP_COLS == Q || STRIP_COLS % TILE == 0, "strips of columns are whole tiles");
static_assert(!FLAT || (STRIP_COLS == Q && !POOL && !(TC_SINK == SINK_REDUCE)), "flat tiles need whole rows");
static_assert(!POOL || TC_POOLW == 2 || TC_POOLW == 4 || TC_POOLW == 8, "pooling stays inside 8 pixels");
static_assert(!NORM || K % most(G, 1) == 0, "groups divide the channels");
static_assert((TC_PASS == PASS_PLAIN) == !NORM, "a norm needs a pass with statistics");
static_assert(!TC_BEFORE || EARLY, "the convolution's own result is known only to the multiplying role");
static_assert(!KEEP || CHUNK_BLOCKS == 1, "statistics of a chunk are those of one block of channels");
static_assert(!KEEP || (OUTS >= CHUNKS * MBLOCKS && OUTS % TEAMS == 0),
              "a strip waits whole; each team has buffers of its own and sees all their phases");
static_assert(!TC_XLAST || (DIRECT && C % 8 == 0 && !COPIED), "eight channels of a pixel are one load");
static_assert(!TC_YLAST || (Y_HALF && K % 8 == 0), "and one store");
static_assert(!DIRECT || (X_HALF && PARTS == 1), "words as they are: one part, of 16 bits");
static_assert(!TC_TMA || PLACED ||
                  (W * sizeof(X_TYPE) % 16 == 0 && TC_PADW * sizeof(X_TYPE) % 16 == 0 && UCOLS <= 256),
              "tensor copies start and step by whole 16 bytes");
static_assert(!PLACED || (ST == 1 && COLSIN <= 256 && ROWSIN <= 256 && XSTAGE % 128 == 0 && TC_RAWS >= TC_STAGES),
              "a box is one plane of a stage, and has a barrier of its own");
static_assert(!TC_ROWS || (!TC_TMA && CSTRIPS == 1 && H * W * sizeof(X_TYPE) >= 16),
              "rows are copied whole; what is left of x after the last 16 bytes is one channel's");
static_assert(!STREAM || (!POOL && BAND_TILES * BANDS <= least(STAT_GROUPS, FINISH_GROUPS) && CHUNKS == 1),
              "a strip of several stages is one tile per warpgroup, one chunk");
static_assert(MBLOCKS % MSHARE == 0 && (STREAM || MSHARE == 1), "a stage has the weights of whole blocks");
static_assert(TC_SINK != SINK_REDUCE || (CHUNK_BANDS == 1 && CHUNK_TILES == 1 && ROWSM == 1),
              "a reduced chunk is one tile");

struct shared_memory {
    alignas(128) char x[TC_STAGES * XSTAGE];                                            // staged strips, fp16
    alignas(128) X_TYPE raw[COPIED ? TC_RAWS : 1][COPIED ? 8 : 1][COPIED ? PARCEL : 1]; // parcels as they arrive
    alignas(128) char w[STREAM ? TC_STAGES * MSHARE * WSTAGE
                               : MBLOCKS * WSTAGE]; // [stage][block][part][step][k half][64][8] fp16
    alignas(128) float out[OUTS ? OUTS : 1][OUTS ? OUTROWS : 1]
                          [OPITCH]; // results [channel][dense pixel]; also room to read past x
    float4 part[NORM ? 2 : 1][NORM ? SLOTS : 1]
               [NORM ? PADDED_CHANNELS : 1]; // per channel and warpgroup: mean, squared deviations, count
    float2 ab[NORMS]
             [PADDED_CHANNELS]; // norms as factor and summand per channel, of strips that wait to be finished
    float2 group[most(G, 1)];   // mean and 1 / deviation, for the merging warp
    float peaks[OUTS ? OUTS : 1][PEAKS][PEAKS > 1 ? TILE : 1]; // PARTIAL: maxima that were taken out, and whether
    int flags[OUTS ? OUTS : 1][PEAKS][TILE / HALF];
    float unscale[TC_STAGES]; // 1 / the power of two of a stage
    float offset[TC_STAGES];  // SHIFTED: what was taken off its values
    int odd[TC_STAGES];       // the stage is not for tensor cores: it, or some weight, is not finite
    int odd_weights;          // some weight is not finite
    // Per staging warp: bits of the largest |x|. Rows of whole 16 bytes: a wider load than needed would reach into
    // the other row, which racecheck reports.
    alignas(16) u32 largest[2][cdiv(LOADWARPS, 4) * 4];
    u64 full[2][TC_STAGES]; // for the warpgroups that take statistics (or all), that finish: a waiter must see
                            // every phase
    u64 rawfull[TC_RAWS], rawempty[TC_RAWS]; // PLACED: a stage is there
    u64 empty[TC_STAGES], ofull[OUTS ? OUTS : 1], oempty[OUTS ? OUTS : 1], sfull[NORMS], sempty[NORMS];
};

static_assert(sizeof(shared_memory) <= tc_shared_bytes(&PROBLEM, &TUNING, &L), "the host launches less");

// TMA: the map of x that cuTensorMapEncodeTiled makes: 4 dimensions {W, H, C, n}, strides {W, HW, CHW} elements,
// box {UCOLS, UROWS, 8, 1}; PLACED: {C, W, H, n}, box {8, COLSIN, ROWSIN, 1}; element strides 1, no interleave, no
// swizzle, out of bounds zero. Else its content does not matter.
struct alignas(64) tensor_map {
    char opaque[128];
};

#define TC_POINTER(type, name, meaning) type *name;
#define TC_NUMBER(type, name, meaning)  type name;
struct tc_args {
    TC_POINTERS(TC_POINTER)
    TC_NUMBERS(TC_NUMBER)
};
static_assert(sizeof(*tc_args::part) == TC_PART_BYTES && 2 * sizeof(*tc_args::state) == TC_STATE_BYTES,
              "what the host takes memory for");

// Position of tap t (0 <= t < TAPS): taps are ordered by stride phase, so that offsets in the staged planes only
// grow.
struct tap_at {
    int row, col, offset; // input row and column of the window; pixels from the tile's first one
};
CVY_CONST tap_at tap_position(int t)
{
    const int rows0 = cdiv(TAPROWS, ST), cols0 = cdiv(S, ST);
    const int pr = t >= rows0 * S, u = t - pr * rows0 * S, rows = pr ? TAPROWS - rows0 : rows0;
    const int pc = u >= rows * cols0, v = u - pc * rows * cols0, cols = pc ? S - cols0 : cols0;
    const int r = v / cols, s = v % cols;
    return {r * ST + pr, s * ST + pc, (pr * ST + pc) * PHASE + r * PITCH + s};
}
// The same for step operand t of a stage: slices one after the other; past the end (zero weights) the last one
// again.
CVY_CONST int operand_offset(int t)
{
    const int u = t < SLICES * TAPS ? t : SLICES * TAPS - 1;
    return u / TAPS * SLICE + tap_position(u % TAPS).offset;
}

// Where an element lies in x; in y, pixel: row * OW + column.
__device__ __forceinline__ size_t x_index(int n, int c, int h, int w)
{
    return (size_t)n * (C * H * W) + (TC_XLAST ? (h * W + w) * C + c : (c * H + h) * W + w);
}
__device__ __forceinline__ size_t y_index(int n, int k, int pixel)
{
    return TC_YLAST ? ((size_t)n * (OH * OW) + pixel) * K + k : ((size_t)n * K + k) * (OH * OW) + pixel;
}

// OUT_HALF: which of the 8 elements in 16 bytes of y the rows of channel k begin with, from output row `row` on.
__device__ __forceinline__ int shift_of(int n, int k, int row)
{
    return (int)((((u32)n * K + k) * OH + row) * OW) & 7;
}

// A warp hands over what its lanes wrote or read: after __syncwarp the first one arrives for all.
// compute-sanitizer's racecheck follows threads, not warps; for it (TC_ARRIVALS 32) every lane arrives for itself.
#ifndef TC_ARRIVALS
#define TC_ARRIVALS 1
#endif
__device__ __forceinline__ void warp_arrive(u64 *b, u32 count = 1)
{
    __syncwarp();
    if (TC_ARRIVALS == 32 || threadIdx.x % 32 == 0) mbar_arrive(b, count);
}

// A strip: sample, first output row and column, valid rows and columns.
struct strip_at {
    int n, index, p0, q0, rows, cols;
};
__device__ __forceinline__ strip_at strip_position(int item)
{
    const int n = item / STRIPS, i = item % STRIPS, p0 = i / CSTRIPS * STRIP_ROWS, q0 = i % CSTRIPS * STRIP_COLS;
    return {n, i, p0, q0, min(STRIP_ROWS, P - p0), min(STRIP_COLS, Q - q0)};
}

// The strips of a block in the order in which all roles take them: b, b + grid, ... In PASS_BOTH each comes twice;
// a strip is finished when `lead` statistics strips were handed out after it: then all strips of its sample are in
// somebody's hands (no deadlock).
struct schedule {
    int count, lead;
    __device__ schedule(int items)
    {
        count = (items - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
        lead = min(cdiv(STRIPS - 1, (int)gridDim.x) + 1, count);
    }
    __device__ int turns() const
    {
        return TC_PASS == PASS_BOTH ? 2 * count : count;
    }
    // Which of its strips turn j is, by number; finishing or not.
    __device__ __forceinline__ int number(int j, bool &finish) const
    {
        finish = TC_PASS != PASS_STATS;
        int k = j;
        if (TC_PASS == PASS_BOTH) {
            const int after = j - lead, pairs = count - lead;
            finish = after >= 0 && (after >= 2 * pairs || !(after & 1));
            if (after >= 0) k = after >= 2 * pairs ? after - pairs : finish ? after >> 1 : lead + (after >> 1);
        }
        return k;
    }
    __device__ __forceinline__ int get(int j, bool &finish) const
    {
        return blockIdx.x + number(j, finish) * gridDim.x;
    }
};
