// conv_tc_layout.cuh - shared by conv_tc.cu and its tuner (tc_tune.c): the macros, and the numbers derived from
// them: extents, roles, bytes. Both sides include it (host_device.cuh).
#ifndef CVY_CONV_TC_LAYOUT_CUH
#define CVY_CONV_TC_LAYOUT_CUH

#include "host_device.cuh"

enum sink_kind { SINK_STORE, SINK_POOL, SINK_REDUCE };
enum reduce_kind { REDUCE_LSE, REDUCE_MAX, REDUCE_MIN, REDUCE_SUM, REDUCE_MEAN };
// PLAIN: no norm. KEEP: statistics and (pooled) results in one go, results wait in shared memory for the
// statistics. BOTH: every strip twice in one launch, statistics and, some strips later, finishing. STATS, FINISH:
// the same as two launches.
enum pass_kind { PASS_PLAIN, PASS_KEEP, PASS_BOTH, PASS_STATS, PASS_FINISH };
// Most rows of a strip; parcels of x on their way; most blocks of M that a stage of x is multiplied with.
enum { TC_STRIP_MOST = 64, TC_RAWS = 4, TC_SHARE_MOST = 4 };

// The macros: TC_NAME, the field that holds its value on the host, its meaning. Options of the compiler, but for
// TC_TEXT; of TC_TENSORS only those that are not 0, of TC_TYPES none if all elements are float32.
// What is computed: NCHW, one group, dilation 1.
#define TC_PROBLEM(X)                                                                                              \
    X(C, c, "input channels")                                                                                      \
    X(K, k, "output channels")                                                                                     \
    X(H, h, "input rows")                                                                                          \
    X(W, w, "input columns")                                                                                       \
    X(R, r, "filter rows")                                                                                         \
    X(S, s, "filter columns")                                                                                      \
    X(STRIDE, stride, "of both dimensions, 1 or 2")                                                                \
    X(PADH, pad_h, "rows of zeros above and below")                                                                \
    X(PADW, pad_w, "columns of zeros left and right")                                                              \
    X(PRODUCTS, products, "1: tf32's accuracy, 3: float32's")                                                      \
    X(G, groups, "of the norm; 0: no norm")                                                                        \
    X(SINK, sink, "what becomes of results: sink_kind")                                                            \
    X(POOLH, pool_h, "rows of a pooling window")                                                                   \
    X(POOLW, pool_w, "and its columns")                                                                            \
    X(REDUCE, reduce, "over the channels: reduce_kind")
// How: the tuner chooses.
#define TC_TUNING(X)                                                                                               \
    X(PASS, pass, "which pass the launch is: pass_kind; FINISH on the host: after a launch of STATS")              \
    X(TILE, tile, "pixels of one wgmma tile, 64 or 128")                                                           \
    X(ROWSM, rowsm, "output rows in M")                                                                            \
    X(FLAT, flat, "tiles run on across the rows of a strip: for narrow images")                                    \
    X(STRIP, strip, "output rows of a strip")                                                                      \
    X(SPAN, span, "output columns of a strip: as wide as the output, or a multiple of the tile")                   \
    X(STAGES, stages, "strips in shared memory")                                                                   \
    X(SLICES, slices, "slices of 8 channels in a stage")                                                           \
    X(SHARE, share, "streamed weights: blocks of M that share a stage of x")                                       \
    X(OUTS, outs, "chunks of results in shared memory")                                                            \
    X(BANDS, bands, "bands of a chunk")                                                                            \
    X(COLTILES, coltiles, "tiles of a band in a chunk; 0: all")                                                    \
    X(TMA, tma, "x comes by tensor copies; else by ordinary loads, or")                                            \
    X(ROWS, rows, "by copies of whole rows: strips are as wide as the image")                                      \
    X(FINISHERS, finishers, "warps that store finished results")
// Where tensors lie, and as what x is multiplied; 0 or 1.
#define TC_TENSORS(X)                                                                                              \
    X(XLAST, x_last, "x lies channels last: [n][row][column][channel]")                                            \
    X(YLAST, y_last, "the result lies so")                                                                         \
    X(DIRECT, direct, "x's words of 16 bits are the operand, unchanged")
// Names of types: the elements of tensors that the kernels read and write by themselves.
#define TC_TYPES(X)                                                                                                \
    X(X_TYPE, x, "of x")                                                                                           \
    X(W_TYPE, w, "of the weights that the kernel reads")                                                           \
    X(BIAS_TYPE, bias, "of the bias")                                                                              \
    X(GAMMA_TYPE, gamma, "of the norm's weight")                                                                   \
    X(BETA_TYPE, beta, "of the norm's bias")                                                                       \
    X(Y_TYPE, y, "of the result")                                                                                  \
    X(FACTOR_TYPE, factor, "conv_tc_pack: of what multiplies an output channel's weights")
// What the generated epilogue.cuh says about its three functions.
#define TC_TEXT(X)                                                                                                 \
    X(PRE, pre, "cvy_pre does something")                                                                          \
    X(HALVED, halved, "and what it is given is half of the convolution's result")                                  \
    X(EXTERN, external, "cvy_post reads tensors at (n, pixel)")                                                    \
    X(BEFORE, before,                                                                                              \
      "cvy_post's y is the convolution's own result, not cvy_pre's: only those of cvy_pre may wait")               \
    X(EXPONENT, exponent, "in powers of two (PARTIAL), 1: cvy_post's result is times log2(e); +2: and y; +4: and z")

// A launch's arguments (struct tc_args of conv_tc.cuh, tc_arguments of tc.c): these pointers, then two numbers.
#define TC_POINTERS(X)                                                                                             \
    X(const X_TYPE, x, "[n][C][H][W]")                                                                             \
    X(const W_TYPE, w, "[K][C][R][S], read only where x or they hold an inf or a NaN")                             \
    X(const unsigned, packed, "conv_tc_pack's weights")                                                            \
    X(const float, unscale,                                                                                        \
      "[PADDED_CHANNELS] 1 / scale of an output channel, NaN: not finite; [PADDED_CHANNELS] sums of weights")      \
    X(const BIAS_TYPE, bias, "[K], NULL: 0")                                                                       \
    X(const GAMMA_TYPE, gamma, "[K], NULL: 1")                                                                     \
    X(const BETA_TYPE, beta, "[K], NULL: 0")                                                                       \
    X(Y_TYPE, y, "[n][K][OH][OW], reduced: [n][OH][OW]")                                                           \
    X(unsigned long long, part, "[n][STRIPS][G] tagged partial statistics, zero before the first launch")          \
    X(int, state, "{epoch, blocks done}, zero before the first launch")
enum { TC_PART_BYTES = 8, TC_STATE_BYTES = 8 }; // of a word of `part`; of `state`
#define TC_NUMBERS(X)                                                                                              \
    X(int, n, "samples")                                                                                           \
    X(float, eps, "the norm's")

#define TC_FIELD(NAME, field, meaning) int field;
typedef struct tc_problem {
    TC_PROBLEM(TC_FIELD)
    TC_TENSORS(TC_FIELD)
    int external, before; // as in TC_TEXT
    int few;              // tuned for few samples: many small strips
    int alone;            // blocks may not wait for each other: statistics and finishing are separate launches
    int x_half, y_half;   // elements of x, of the result have 16 bits
} tc_problem;
typedef struct tc_tuning {
    TC_TUNING(TC_FIELD)
    int threads;                       // of a block
    int channels;                      // output channels as packed, whole blocks of M
    int strips;                        // of a sample
    int box_rows, box_cols;            // of a tensor copy
    long long packed_bytes;            // of the weights
    long long shared_bytes;            // an upper bound of the kernel's
    double strip_cycles, start_cycles; // of a block for one strip; before the first and after the last
} tc_tuning;
typedef struct tc_text {
    TC_TEXT(TC_FIELD)
} tc_text;
#undef TC_FIELD

// Extents that follow from a problem and a tuning, whatever its numbers of stages, chunks and blocks in a stage.
typedef struct tc_layout {
    int p, q, parts; // output rows, columns; fp16 parts of an operand
    // M and taps. Tap row t of rowsm output rows is input row t of the first one's window.
    int km, blocks, channels;          // channels of a block of M; blocks; channels of all
    int tap_rows, taps, stages, steps; // of a filter; stages of a strip; k16 steps of a stage
    int w_part, w_stage;               // bytes of weights
    bool stream;                       // weights travel with the stages; else they stay in shared memory
    // Strips and what of x they stage.
    int span, row_strips, col_strips; // columns; strips of a sample
    int rows_in, cols_in, vec, packs; // of x; columns taken at once, and of a row
    int pitch;                        // pixels of 16 bytes of a row
    long long phase, slice;           // and of a stride phase, of a slice of 8 channels
    long long x_part, x_stage;        // pixels; bytes
    // x arrives in parcels of parcel_rows rows of 8 channels, [channel][row][column]. TMA: one tensor copy. ROWS:
    // the image's own rows, a copy for each channel, from a multiple of 16 bytes before them on. Channels
    // last, a tensor copy puts a slice of the strip where it is staged (placed).
    bool copied, placed;
    int parcel_cols, parcel_rows, parcel; // parcel: elements of a channel
    // A band is what one row of tiles covers: rowsm rows, a pooling row, or (FLAT) the strip.
    int band_rows, bands, col_tiles, tiles_chunk, bands_chunk, chunks; // chunks: of a strip and a block of channels
    int chunk_blocks, chunk_w, chunk_rows;                             // blocks of M of a chunk; columns, rows
    int out_w, out_h;                                                  // stored columns and rows
    // What follows the norm runs in the multiplying role where that knows the norm and reads no other tensors
    // (early); else in the finishing one. Whole aligned rows that need nothing more leave as bulk copies. A
    // reduction over the channels leaves partial results of 2 channels.
    bool early, bulk, partial;
    int out_rows, peaks; // of a chunk: rows, rows of maxima
    long long out_pitch; // floats of a row; + 8: no bank conflicts
    // Results of 16 bits that leave as bulk copies wait as such, each row where it lies in 16 bytes of the output:
    // the parts before its first and after its last whole ones are stored separately. Channels last (out_last) a
    // chunk is one piece, [pixel][channel], and 16 bytes more for pixels that do not exist.
    bool out_half, out_last;
    // Threads, whole warpgroups: some multiply; 8 or 12 warps more, of which the first finish, the last merges
    // statistics and those between stage. PASS_BOTH: the first multiplying warpgroup takes the statistics and the
    // other two finish. Where all that follows the norm is left to the finishing role, two teams of it take turns.
    int multiply, stat_groups, fin_groups; // warpgroups: in all, on a strip's statistics, on its results
    int teams, side, finish, load;         // warps: other than the multiplying ones; of a team; that stage
    int norms;                             // of strips, merged ahead of their finishing
    int threads;
} tc_layout;

CVY_CONST int tc_extent(int in, int pad, int taps, int stride)
{
    return (in + 2 * pad - taps) / stride + 1;
}

CVY_CONST void tc_find_taps(const tc_problem *b, const tc_tuning *t, tc_layout *l)
{
    l->p = tc_extent(b->h, b->pad_h, b->r, b->stride);
    l->q = tc_extent(b->w, b->pad_w, b->s, b->stride);
    l->parts = b->products == 3 ? 2 : 1;
    l->km = 64 / t->rowsm;
    l->blocks = cdiv(b->k, l->km);
    l->channels = l->blocks * l->km;
    l->tap_rows = b->r + (t->rowsm - 1) * b->stride;
    l->taps = l->tap_rows * b->s;
    l->stages = cdiv(cdiv(b->c, 8), t->slices);
    l->steps = cdiv(t->slices * l->taps, 2);
    l->w_part = l->steps * 2048;
    l->w_stage = l->w_part * l->parts;
    l->stream = l->stages > 1;
}

CVY_CONST void tc_find_strips(const tc_problem *b, const tc_tuning *t, tc_layout *l)
{
    const int st = b->stride, align = 16 / (b->x_half ? HALF_BYTES : FLOAT_BYTES);

    l->span = least(t->span, l->q);
    l->row_strips = cdiv(l->p, t->strip);
    l->col_strips = cdiv(l->q, l->span);
    l->rows_in = (t->strip - 1) * st + b->r;
    l->cols_in = (l->span - 1) * st + b->s;
    l->vec = !b->x_last && (t->tma || (!t->rows && b->w % 2 == 0 && b->pad_w % 2 == 0)) ? 2 : 1;
    l->packs = cdiv(l->cols_in, l->vec);
    l->pitch = cdiv(l->packs * l->vec, st);
    l->phase = (long long)cdiv(l->rows_in, st) * l->pitch;
    l->slice = st * st * l->phase;
    if (b->x_last) l->slice = (l->slice + 7) / 8 * 8; // tensor copies begin at multiples of 128 bytes
    l->x_part = t->slices * l->slice;
    l->x_stage = l->x_part * l->parts * 16;
    l->placed = b->x_last && t->tma;
    l->copied = !b->x_last && (t->tma || t->rows);
    l->parcel_cols = l->placed ? l->cols_in : t->rows ? b->w : cdiv(l->cols_in, align) * align;
    l->parcel_rows = l->placed ? l->rows_in : least(most(256 / l->parcel_cols, 1), l->rows_in);
    l->parcel = cdiv(l->parcel_cols * l->parcel_rows + (align - 1) * t->rows, align) * align;
}

CVY_CONST void tc_find_chunks(const tc_problem *b, const tc_tuning *t, tc_layout *l)
{
    const bool pool = b->sink == SINK_POOL;

    l->band_rows = t->flat ? t->strip : pool ? b->pool_h : t->rowsm;
    l->bands = cdiv(t->strip, l->band_rows);
    l->col_tiles = cdiv(t->flat ? t->strip * l->pitch : l->span, t->tile);
    l->tiles_chunk = t->coltiles && t->coltiles < l->col_tiles ? t->coltiles : l->col_tiles;
    l->bands_chunk = l->tiles_chunk < l->col_tiles ? 1 : least(t->bands, l->bands);
    l->chunks = cdiv(l->bands, l->bands_chunk) * cdiv(l->col_tiles, l->tiles_chunk);
    l->chunk_blocks = b->sink == SINK_REDUCE ? l->blocks : 1;
    l->out_w = pool ? l->q / b->pool_w : l->q;
    l->out_h = pool ? l->p / b->pool_h : l->p;
    l->chunk_w = t->flat                          ? l->q
                 : pool                           ? l->span / b->pool_w
                 : l->tiles_chunk == l->col_tiles ? l->span
                                                  : l->tiles_chunk * t->tile;
    l->chunk_rows = pool ? l->bands_chunk : l->bands_chunk * l->band_rows;
}

CVY_CONST void tc_find_results(const tc_problem *b, const tc_tuning *t, tc_layout *l)
{
    const int run = l->band_rows * l->out_w; // elements of a band's rows
    const bool aligned = b->y_half ? l->out_w % 2 == 0 && run >= 16 : run % 4 == 0 && l->out_h * l->out_w % 4 == 0;

    l->early = b->sink != SINK_POOL && t->pass != PASS_KEEP && !b->external;
    l->bulk = l->early && b->sink == SINK_STORE && l->chunk_w == l->out_w && l->p % l->band_rows == 0 &&
              (b->y_last ? l->blocks == 1 && !t->flat : aligned);
    l->out_half = l->bulk && b->y_half;
    l->out_last = l->bulk && b->y_last;
    l->partial = l->early && b->sink == SINK_REDUCE;
    l->out_rows = l->partial ? l->blocks * 32 : l->chunk_blocks * l->km;
    l->out_pitch = ((l->partial ? t->tile : (long long)l->chunk_rows * l->chunk_w) + 31) / 32 * 32 + 8;
    if (l->out_half) l->out_pitch = ((long long)l->chunk_rows * l->chunk_w + 8 + 63) / 64 * 32 + 4;
    if (l->out_last)
        l->out_rows = 1, l->out_pitch = ((long long)l->chunk_rows * l->chunk_w * b->k + 8 + 63) / 64 * 32;
    l->peaks = l->partial && b->reduce == REDUCE_LSE ? l->blocks * 4 : 1;
}

CVY_CONST void tc_find_roles(const tc_problem *b, const tc_tuning *t, tc_layout *l)
{
    const bool both = t->pass == PASS_BOTH;
    int left = 0; // of the other warps

    l->multiply = both ? 3 : 2;
    l->stat_groups = both ? 1 : l->multiply;
    l->fin_groups = both ? 2 : l->multiply;
    l->teams = t->pass == PASS_KEEP && b->sink != SINK_POOL ? 2 : 1;
    l->side = l->teams == 2 ? 12 : 8;
    l->norms = l->teams == 2 ? 4 : 2;
    l->finish = l->bulk ? 1 : l->partial ? 2 : l->early && b->sink == SINK_STORE ? t->finishers : 4;
    left = l->side - l->teams * l->finish - 1;
    l->load = l->copied || l->placed ? least(4, left - 1) : left;
    l->threads = (l->multiply * 4 + l->side) * 32;
}

CVY_CONST tc_layout tc_find_layout(const tc_problem *b, const tc_tuning *t)
{
    tc_layout l = {0};

    tc_find_taps(b, t, &l);
    tc_find_strips(b, t, &l);
    tc_find_chunks(b, t, &l);
    tc_find_results(b, t, &l);
    tc_find_roles(b, t, &l);
    return l;
}

// struct shared_memory of conv_tc.cuh, its parts rounded up; the kernel asserts that it is no larger.
CVY_CONST long long tc_shared_bytes(const tc_problem *b, const tc_tuning *t, const tc_layout *l)
{
    const int blocks = l->stream ? t->stages * t->share : l->blocks;
    const long long peaks = l->peaks > 1 ? (long long)l->peaks * t->tile : 1;
    long long bytes = (t->stages * l->x_stage + 127) / 128 * 128;

    bytes += l->copied ? (long long)TC_RAWS * 8 * (b->x_half ? HALF_BYTES : FLOAT_BYTES) * l->parcel : 128;
    bytes += (long long)blocks * l->w_stage;
    bytes += t->outs * (l->out_rows * l->out_pitch + peaks + l->blocks * 4 * (t->tile / 64)) * FLOAT_BYTES;
    if (b->groups) bytes += 32ll * l->stat_groups * t->rowsm * l->channels;
    bytes += (l->teams == 2 ? 32ll : 16ll) * l->channels + 8ll * most(b->groups, 1);
    return bytes + 1024; // barriers and single words
}

CVY_CONST long long tc_packed_bytes(const tc_layout *l)
{
    return (long long)l->blocks * l->stages * l->w_stage;
}

#endif
