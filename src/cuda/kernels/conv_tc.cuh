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
#include "ptx.cuh"

// ---- what is computed (-D): NCHW, one group, dilation 1 ----
#ifndef TC_C
#define TC_C 8 // input channels
#endif
#ifndef TC_K
#define TC_K 64 // output channels
#endif
#ifndef TC_H
#define TC_H 128
#endif
#ifndef TC_W
#define TC_W 128
#endif
#ifndef TC_R
#define TC_R 3 // filter rows
#endif
#ifndef TC_S
#define TC_S 3 // filter columns
#endif
#ifndef TC_STRIDE
#define TC_STRIDE 1
#endif
#ifndef TC_PADH
#define TC_PADH 0
#endif
#ifndef TC_PADW
#define TC_PADW 0
#endif
#ifndef TC_PRODUCTS
#define TC_PRODUCTS 1
#endif
#ifndef TC_G
#define TC_G 0 // groups of the norm; 0: no norm
#endif
#ifndef TC_SINK
#define TC_SINK 0 // 0 store, 1 max-pool and store, 2 reduce over the channels
#endif
#ifndef TC_POOLH
#define TC_POOLH 1
#endif
#ifndef TC_POOLW
#define TC_POOLW 2
#endif
#ifndef TC_REDUCE
#define TC_REDUCE 0 // 0 logsumexp, 1 max, 2 min, 3 sum, 4 mean
#endif
#ifndef TC_FOLDED
#define TC_FOLDED                                                                                                  \
    0 // pooling in front of a norm: w and bias carry the sign of gamma already (gamma of the packing is NULL)
#endif
#ifndef TC_PASS
#define TC_PASS 0 // which pass this launch is, see below
#endif
// ---- how (-D): tc_tune.c chooses ----
#ifndef TC_TILE
#define TC_TILE 128 // pixels of one wgmma tile
#endif
#ifndef TC_ROWSM
#define TC_ROWSM 1 // output rows in M
#endif
#ifndef TC_FLAT
#define TC_FLAT 0 // tiles run on across the rows of a strip: for narrow images
#endif
#ifndef TC_STRIP
#define TC_STRIP 8 // output rows of a strip
#endif
#ifndef TC_SPAN
#define TC_SPAN TC_W // output columns of a strip; as wide as the output, or a multiple of the tile
#endif
#ifndef TC_STAGES
#define TC_STAGES 2 // strips in shared memory
#endif
#ifndef TC_SLICES
#define TC_SLICES ((TC_C + 7) / 8) // slices of 8 channels in a stage
#endif
#ifndef TC_WIDE
#define TC_WIDE 1 // streamed weights: blocks of M that a stage of x is multiplied with
#endif
#ifndef TC_OUTS
#define TC_OUTS 2 // chunks of results in shared memory
#endif
#ifndef TC_LINES
#define TC_LINES 1 // lines of a chunk
#endif
#ifndef TC_COLTILES
#define TC_COLTILES 0 // tiles of a line in a chunk; 0: all
#endif
#ifndef TC_TMA
#define TC_TMA 0 // x comes by tensor copies (see struct tensor_map); else by ordinary loads
#endif
#ifndef TC_ROWS
#define TC_ROWS                                                                                                    \
    0 // x comes by copies of whole rows, where tensor copies cannot be made; strips as wide as the image
#endif
#ifndef TC_RAWS
#define TC_RAWS 4 // units of x on their way (see UNIT)
#endif
#ifndef TC_STATW
#define TC_STATW 1 // PASS_BOTH: of the three multiplying warpgroups, how many take statistics
#endif
#ifndef TC_SLACK
#define TC_SLACK 0 // PASS_BOTH: strips by which finishing comes later than it must
#endif
#ifndef TC_FINISHERS
#define TC_FINISHERS 4 // warps that store finished results
#endif
#ifndef TC_ALIGNED
#define TC_ALIGNED 1 // x and y start at multiples of 16 bytes
#endif

enum sink_kind { SINK_STORE, SINK_POOL, SINK_REDUCE };
enum reduce_kind { REDUCE_LSE, REDUCE_MAX, REDUCE_MIN, REDUCE_SUM, REDUCE_MEAN };
// PLAIN: no norm. KEEP: statistics and (pooled) results in one go, results wait in shared memory for the
// statistics. BOTH: every strip twice in one launch, statistics and, some strips later, finishing. STATS, FINISH:
// the same as two launches.
enum pass_kind { PASS_PLAIN, PASS_KEEP, PASS_BOTH, PASS_STATS, PASS_FINISH };

#define TC_CONST __host__ __device__ constexpr
TC_CONST int cdiv(int a, int b)
{
    return (a + b - 1) / b;
}
TC_CONST int least(int a, int b)
{
    return a < b ? a : b;
}
TC_CONST int most(int a, int b)
{
    return a > b ? a : b;
}
TC_CONST int floor_pow2(int v)
{
    int p = 1;
    while (p * 2 <= v) p *= 2;
    return p;
}

constexpr int C = TC_C, K = TC_K, H = TC_H, W = TC_W, R = TC_R, S = TC_S, ST = TC_STRIDE, G = TC_G;
constexpr int P = (H + 2 * TC_PADH - R) / ST + 1, Q = (W + 2 * TC_PADW - S) / ST + 1; // output rows, columns
constexpr int PARTS = TC_PRODUCTS == 3 ? 2 : 1;
constexpr bool NORM = G > 0, POOL = TC_SINK == SINK_POOL, FLAT = TC_FLAT;
constexpr int TILE = TC_TILE, NJ = TILE / 8, ACC = TILE / 2; // accumulators: NJ times (2 channels x 2 pixels)

// M and taps. Tap row t of ROWS_M output rows is input row t of the first one's window.
constexpr int ROWSM = TC_ROWSM, KM = 64 / ROWSM, MBLOCKS = cdiv(K, KM), KP = MBLOCKS * KM;
constexpr int TAPROWS = R + (ROWSM - 1) * ST, TAPS = TAPROWS * S;
constexpr int SLICES = cdiv(C, 8), SPS = TC_SLICES,
              NSTAGE = cdiv(SLICES, SPS); // slices; per stage; stages per strip
constexpr int STEPS = cdiv(SPS * TAPS, 2), WPART = STEPS * 2048,
              WSTAGE = WPART * PARTS; // k16 steps; bytes of weights
constexpr bool STREAM = NSTAGE > 1;   // weights travel with the stages; else they stay in shared memory
constexpr int MWIDE = TC_WIDE, BLOCKS = STREAM ? MBLOCKS / MWIDE : 1,
              PER_STRIP = BLOCKS * NSTAGE; // times x is staged; stages of a strip

// Strips and what of x they stage.
constexpr int SR = TC_STRIP, QS = least(TC_SPAN, Q), RSTRIPS = cdiv(P, SR), CSTRIPS = cdiv(Q, QS),
              STRIPS = RSTRIPS * CSTRIPS;
constexpr int ROWSIN = (SR - 1) * ST + R, COLSIN = (QS - 1) * ST + S;
constexpr int XVEC =
    TC_TMA || (!TC_ROWS && TC_ALIGNED && W % 2 == 0 && TC_PADW % 2 == 0) ? 2 : 1; // columns taken at once
constexpr int COLPACKS = cdiv(COLSIN, XVEC);
constexpr int PITCH = cdiv(COLPACKS * XVEC, ST), PHASE = cdiv(ROWSIN, ST) * PITCH,
              SLICE = ST * ST * PHASE;                          // in pixels of 16 bytes
constexpr int XPART = SPS * SLICE, XSTAGE = XPART * PARTS * 16; // pixels; bytes

constexpr int TAIL = QS % TILE, LAST = CSTRIPS > 1 ? Q % QS % TILE : 0; // columns of a last tile
constexpr int SAFE = least(TAIL ? TAIL / 8 : NJ, LAST ? LAST / 8 : NJ); // groups of 8 pixels that every tile has

// COPIED: x arrives in units of UROWS rows of 8 channels, [channel][row][column] float32. TMA: UCOLS columns, one
// tensor copy. ROWS: the image's own rows, a copy for each channel, from a multiple of 16 bytes in front of them
// on.
constexpr bool COPIED = TC_TMA || TC_ROWS;
constexpr int UCOLS = TC_ROWS ? W : cdiv(COLSIN, 4) * 4, UROWS = least(most(256 / UCOLS, 1), ROWSIN),
              UNITS = cdiv(ROWSIN, UROWS), UNIT = cdiv(UCOLS * UROWS + 3 * TC_ROWS, 4) * 4; // floats of a channel

// One product: a power of two near the mean of a stage's values is taken off them, and comes back as so many times
// the sum of the weights: what fp16 rounds off goes with the distance from the mean, not from zero.
constexpr bool SHIFTED = PARTS == 1 && TC_TMA && !STREAM;

// Lines, tiles, chunks. A line is what one row of tiles covers: ROWSM rows, a pooling row, or (FLAT) the strip.
constexpr int LINEROWS = FLAT ? SR : POOL ? TC_POOLH : ROWSM, LINES = cdiv(SR, LINEROWS);
constexpr int LINEPX = FLAT ? SR * PITCH : QS, CT = cdiv(LINEPX, TILE);
constexpr int CPC = TC_COLTILES && TC_COLTILES < CT ? TC_COLTILES : CT, LPC = CPC < CT ? 1 : least(TC_LINES, LINES);
constexpr int CHUNKS = cdiv(LINES, LPC) * cdiv(CT, CPC); // of a strip and a block of channels
constexpr int CHUNKM = TC_SINK == SINK_REDUCE ? MBLOCKS : 1,
              CHUNKK = CHUNKM * KM;                                       // M blocks and channels of a chunk
constexpr int OW = POOL ? Q / TC_POOLW : Q, OH = POOL ? P / TC_POOLH : P; // stored columns and rows
constexpr int CHUNKW = FLAT ? Q : POOL ? QS / TC_POOLW : CPC == CT ? QS : CPC * TILE; // columns of a chunk's row
constexpr int CHUNKROWS = POOL ? LPC : LPC * LINEROWS;
constexpr int OUTS = TC_PASS == PASS_STATS ? 0 : TC_OUTS;

#ifdef TC_EPILOGUE // '"epilogue.cuh"', generated: TC_PRE, TC_HALVED, TC_EXTERN, TC_BEFORE, TC_EXPONENT, struct epi
                   // and the three functions
#include TC_EPILOGUE
#else                 // the identity, so that the file compiles by itself
#define TC_PRE      0 // cvy_pre does something
#define TC_HALVED   0 // and what it is given is half of the convolution's result
#define TC_EXTERN   0 // cvy_post reads tensors at (n, pixel)
#define TC_BEFORE   0 // cvy_post's y is the convolution's own result, not cvy_pre's
// For logsumexp in powers of two (PARTIAL). 1: cvy_post's result is times log2(e); +2: and its y; +4: and its z.
#define TC_EXPONENT 0
struct epi {
    int unused;
};
// What stands between convolution and norm (TC_PRE 0: nothing); k: output channel.
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

// What follows the norm runs in the multiplying role where that knows the norm and reads no other tensors; else in
// the finishing one.
constexpr bool BOTH = TC_PASS == PASS_BOTH, KEEP = TC_PASS == PASS_KEEP, EARLY = !POOL && !KEEP && !TC_EXTERN;
// Whole aligned rows that need nothing more leave as bulk copies. A reduction over the channels leaves partial
// results of 2 channels.
constexpr bool BULK = EARLY && TC_SINK == SINK_STORE && TC_ALIGNED && CHUNKW == OW && LINEROWS * OW % 4 == 0 &&
                      OH * OW % 4 == 0 && P % LINEROWS == 0;
constexpr bool PARTIAL = EARLY && TC_SINK == SINK_REDUCE;
constexpr bool EXPONENTS = PARTIAL && TC_REDUCE == REDUCE_LSE; // results are powers of two
constexpr int HALF = 64;           // pixels whose partial results are made and judged together
typedef float half_tile[HALF / 2]; // their accumulators
constexpr int OUTROWS = PARTIAL ? MBLOCKS * 32 : CHUNKK, PEAKS = EXPONENTS ? MBLOCKS * 4 : 1;
constexpr int OPITCH =
    cdiv(PARTIAL ? TILE : CHUNKROWS * CHUNKW, 32) * 32 + 8; // floats per row; + 8: no bank conflicts

// Threads, whole warpgroups: MMAS that multiply; 8 or 12 warps more, of which the first finish, the last merges
// statistics and those between stage. In PASS_BOTH STATW multiplying warpgroups take the statistics and the rest of
// three finish. Where all that follows the norm is left to the finishing role, two TEAMS of it take turns at the
// chunks.
constexpr int MMAS = BOTH ? 3 : 2, STATW = BOTH ? TC_STATW : MMAS,
              FINW = BOTH ? MMAS - STATW : MMAS; // warpgroups on one strip
constexpr int TEAMS = KEEP && !POOL ? 2 : 1, SIDEWARPS = TEAMS == 2 ? 12 : 8;
constexpr int NORMS = TEAMS == 2 ? 4 : 2;                      // norms of strips, merged ahead of their finishing
constexpr int SINKWARPS = BULK                             ? 1 // of a team
                          : PARTIAL                        ? 2
                          : EARLY && TC_SINK == SINK_STORE ? TC_FINISHERS
                                                           : 4,
              FREEWARPS = SIDEWARPS - TEAMS * SINKWARPS - 1,
              LOADWARPS = COPIED ? least(4, FREEWARPS - 1) : FREEWARPS, LOADERS = LOADWARPS * 32;
constexpr int WARP_SINK = MMAS * 4, WARP_LOAD = WARP_SINK + TEAMS * SINKWARPS,
              WARP_COPY = WARP_LOAD + LOADWARPS; // COPIED: this one issues
constexpr int WARP_MERGE = WARP_SINK + SIDEWARPS - 1;
constexpr int THREADS = (WARP_MERGE + 1) * 32;
constexpr int SLOTS = STATW * ROWSM;           // partial statistics of a channel inside the block
constexpr int CPG = NORM ? K / most(G, 1) : 1; // channels of a group
enum { BAR_LOAD = 1, BAR_STATS = 2 };          // named barriers

// KEEP with a tile of the strip for each warpgroup: values stay in the accumulators until their statistics are on
// the way.
constexpr bool HOLD = KEEP && !POOL && !STREAM && MBLOCKS == 1 && LINES * CT <= MMAS;
// A chunk of one tile is one warpgroup's: the others neither wait for its buffer nor hand it over. A buffer's last
// use but one is then known to be over: its owner waited for a later chunk since.
constexpr bool SOLE = !HOLD && !STREAM && CHUNKM * LPC * CPC == 1 && OUTS >= FINW;
static_assert(FINW <= 2, "chunks go round the warpgroups by (warpgroup + chunk) % FINW");
// The products of one half of a tile run beside the results of the other. Not with three products: registers spill,
// and narrow tiles read more of shared memory.
constexpr bool HALVES = PARTIAL && SOLE && PARTS == 1 && TILE == 2 * HALF;

static_assert(TC_PRODUCTS == 1 || TC_PRODUCTS == 3, "one product or three");
static_assert(ST == 1 || ST == 2, "stride phases are made for strides 1 and 2");
static_assert(P > 0 && Q > 0, "the filter is larger than the padded input");
static_assert(TILE == 64 || TILE == 128, "wgmma wrappers exist for 64 and 128 pixels");
static_assert(ROWSM == 1 || ((ROWSM == 2 || ROWSM == 4) && K <= KM && !POOL && !FLAT),
              "several rows in M: few channels only");
static_assert(SR % LINEROWS == 0, "a strip is whole lines");
static_assert(QS == Q || QS % TILE == 0, "strips of columns are whole tiles");
static_assert(!FLAT || (QS == Q && !POOL && !(TC_SINK == SINK_REDUCE)), "flat tiles need whole rows");
static_assert(!POOL || TC_POOLW == 2 || TC_POOLW == 4 || TC_POOLW == 8, "pooling stays inside 8 pixels");
static_assert(!NORM || K % most(G, 1) == 0, "groups divide the channels");
static_assert((TC_PASS == PASS_PLAIN) == !NORM, "a norm needs a pass with statistics");
static_assert(STATW > 0 && FINW > 0, "both kinds of strips need a warpgroup");
static_assert(!TC_BEFORE || EARLY, "the convolution's own result is known to the multiplying role alone");
static_assert(!KEEP || CHUNKM == 1, "statistics of a chunk are those of one block of channels");
static_assert(!KEEP || (OUTS >= CHUNKS * MBLOCKS && OUTS % TEAMS == 0),
              "a strip waits whole; each team has buffers of its own and sees all their phases");
static_assert(!TC_TMA || (W % 4 == 0 && TC_PADW % 4 == 0 && TC_ALIGNED && UCOLS <= 256),
              "tensor copies start and step by whole 16 bytes");
static_assert(!TC_ROWS || (!TC_TMA && TC_ALIGNED && CSTRIPS == 1 && H * W >= 4),
              "rows are copied whole; what is left of x behind the last 16 bytes is one channel's");
static_assert(!STREAM || (!POOL && CT * LINES <= least(STATW, FINW) && CHUNKS == 1),
              "a strip of several stages is one tile per warpgroup, one chunk");
static_assert(MBLOCKS % MWIDE == 0 && (STREAM || MWIDE == 1), "a stage has the weights of whole blocks");
static_assert(TC_SINK != SINK_REDUCE || (LPC == 1 && CPC == 1 && ROWSM == 1), "a reduced chunk is one tile");

struct shared_memory {
    alignas(128) char x[TC_STAGES * XSTAGE];                                         // staged strips, fp16
    alignas(128) float raw[COPIED ? TC_RAWS : 1][COPIED ? 8 : 1][COPIED ? UNIT : 1]; // units as they arrive
    alignas(128) char w[STREAM ? TC_STAGES * MWIDE * WSTAGE
                               : MBLOCKS * WSTAGE]; // [stage][block][part][step][k half][64][8] fp16
    alignas(128) float out[OUTS ? OUTS : 1][OUTS ? OUTROWS : 1]
                          [OPITCH]; // results [channel][dense pixel]; also room to read past x
    float4 part[NORM ? 2 : 1][NORM ? SLOTS : 1]
               [NORM ? KP : 1]; // per channel and warpgroup: mean, squared deviations, count
    float2 ab[NORMS][KP];       // norms as factor and summand per channel, of strips that wait to be finished
    float2 group[most(G, 1)];   // mean and 1 / deviation, for the merging warp
    float peaks[OUTS ? OUTS : 1][PEAKS][PEAKS > 1 ? TILE : 1]; // PARTIAL: maxima that were taken out, and whether
    int flags[OUTS ? OUTS : 1][PEAKS][TILE / HALF];
    float unscale[TC_STAGES];  // 1 / the power of two of a stage
    float offset[TC_STAGES];   // SHIFTED: what was taken off its values
    int odd[TC_STAGES];        // the stage is not for tensor cores: it, or some weight, is not finite
    int odd_weights;           // some weight is not finite
    // Per staging warp: bits of the largest |x|. Rows of whole 16 bytes: a wider load than needed would reach into the
    // other row, which racecheck reports.
    alignas(16) u32 largest[2][cdiv(LOADWARPS, 4) * 4];
    u64 full[2][TC_STAGES];    // for the warpgroups that take statistics (or all), that finish: a waiter must see
                               // every phase
    u64 rawfull[TC_RAWS], rawempty[TC_RAWS];
    u64 empty[TC_STAGES], ofull[OUTS ? OUTS : 1], oempty[OUTS ? OUTS : 1], sfull[NORMS], sempty[NORMS];
};

// TMA: the map of x that cuTensorMapEncodeTiled makes: float32, 4 dimensions {W, H, C, n}, strides {4W, 4HW, 4CHW}
// bytes, box {UCOLS, UROWS, 8, 1}, element strides 1, no interleave, no swizzle, out of bounds zero. Else its
// content does not matter.
struct alignas(64) tensor_map {
    char opaque[128];
};

struct tc_args {
    const float *x, *w;               // [n][C][H][W]; [K][C][R][S], read only where x or they hold an inf or a NaN
    const u32 *packed;                // conv_tc_pack's weights
    const float *unscale;             // [KP] 1 / scale of an output channel, NaN: not finite; [KP] sums of weights
    const float *bias, *gamma, *beta; // [K], NULL: 0, 1, 0
    float *y;                         // [n][K][OH][OW], reduced: [n][OH][OW]
    u64 *part;                        // [n][STRIPS][G] tagged partial statistics, zero before the first launch
    int *state;                       // {epoch, blocks done}, zero before the first launch
    int n;
    float eps;
};

// Position of tap t (0 <= t < TAPS): taps are ordered by stride phase, so that offsets in the staged planes only
// grow.
struct tap_at {
    int row, col, offset; // input row and column of the window; pixels from the tile's first one
};
TC_CONST tap_at tap_position(int t)
{
    const int rows0 = cdiv(TAPROWS, ST), cols0 = cdiv(S, ST);
    const int pr = t >= rows0 * S, u = t - pr * rows0 * S, rows = pr ? TAPROWS - rows0 : rows0;
    const int pc = u >= rows * cols0, v = u - pc * rows * cols0, cols = pc ? S - cols0 : cols0;
    const int r = v / cols, s = v % cols;
    return {r * ST + pr, s * ST + pc, (pr * ST + pc) * PHASE + r * PITCH + s};
}
// The same for step operand t of a stage: slices one after the other; past the end (zero weights) the last one
// again.
TC_CONST int operand_offset(int t)
{
    const int u = t < SPS * TAPS ? t : SPS * TAPS - 1;
    return u / TAPS * SLICE + tap_position(u % TAPS).offset;
}

// A warp hands over what its lanes wrote or read: behind __syncwarp the first one arrives for all.
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
    const int n = item / STRIPS, i = item % STRIPS, p0 = i / CSTRIPS * SR, q0 = i % CSTRIPS * QS;
    return {n, i, p0, q0, min(SR, P - p0), min(QS, Q - q0)};
}

// The strips of a block in the order in which all roles take them: b, b + grid, ... In PASS_BOTH each comes twice;
// a strip is finished when `lead` statistics strips were handed out after it: then all strips of its sample are in
// somebody's hands (no deadlock).
struct schedule {
    int count, lead;
    __device__ schedule(int items)
    {
        count = (items - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
        lead = min(cdiv(STRIPS - 1, (int)gridDim.x) + 1 + TC_SLACK, count);
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
