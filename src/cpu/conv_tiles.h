/* conv_tiles.h - register tiles of the convolution kernels, by instruction set: what fits its registers unspilled.
 */
#ifndef CVYI_CONV_TILES_H
#define CVYI_CONV_TILES_H

#include "conv.h"
#include "simd.h"

/* DIRECT: output channels x vectors of outputs. WINO: output channels x vectors of tiles; V and M of 8 input
 * channels must stay in 32 KiB of L1, which is why WINO tiles are small. */
#if defined(CVY_ISA_AVX512)
#define CONV_ISA          "avx512"
#define DIRECT_TILE       8x3
#define WINO_TILE         8x1
#define CHANNELS_TILE     14x2
#define CHANNELS_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
enum { DIRECT_KT = 8, DIRECT_VT = 3, WINO_KT = 8, WINO_NT = 1, CHANNELS_PX = 14 };
#elif defined(CVY_ISA_AVX2)
#define CONV_ISA          "avx2"
#define DIRECT_TILE       6x2
#define WINO_TILE         4x2
#define CHANNELS_TILE     6x2
#define CHANNELS_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)
enum { DIRECT_KT = 6, DIRECT_VT = 2, WINO_KT = 4, WINO_NT = 2, CHANNELS_PX = 6 };
#elif defined(CVY_ISA_NEON) /* 24 sums, 3 vectors of x and a weight of 32 registers */
#define CONV_ISA          "neon"
#define DIRECT_TILE       8x3
#define WINO_TILE         8x2
#define CHANNELS_TILE     14x2
#define CHANNELS_TILES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
enum { DIRECT_KT = 8, DIRECT_VT = 3, WINO_KT = 8, WINO_NT = 2, CHANNELS_PX = 14 };
#else
#define CONV_ISA          "portable"
#define DIRECT_TILE       4x2
#define WINO_TILE         4x2
#define CHANNELS_TILE     4x2
#define CHANNELS_TILES(X) X(1) X(2) X(3) X(4)
enum { DIRECT_KT = 4, DIRECT_VT = 2, WINO_KT = 4, WINO_NT = 2, CHANNELS_PX = 4 };
#endif
enum { CHANNELS_KV = 2 };

/* Entries are named <kernel>_<types>_<tile>_<isa>: conv_direct_f32_8x3_avx512. In the order of conv_algo_id. */
#define DEPTHWISE_TILE 4x2 /* rows x vectors */
#define CONV_ENTRIES(X)                                                                                            \
    X(direct, DIRECT_TILE)                                                                                         \
    X(depthwise, DEPTHWISE_TILE)                                                                                   \
    X(patches, DIRECT_TILE)                                                                                        \
    X(channels, CHANNELS_TILE)                                                                                     \
    X(winograd_4x4, WINO_TILE)                                                                                     \
    X(winograd_2x4, WINO_TILE)                                                                                     \
    X(winograd_2x2, WINO_TILE)
#define CONV_ENTRY(kernel, tile)    ISA(CVYI_PASTE(cvyi_conv_##kernel##_f32_, tile))
#define DECLARE_ENTRY(kernel, tile) void CONV_ENTRY(kernel, tile)(const conv_job *job, int64_t part, void *scratch);
CONV_ENTRIES(DECLARE_ENTRY)

/* A function per shape of the direct forms' tile, 1, 2, 4 and DIRECT_KT channels times 1, 2 and DIRECT_VT vectors,
 * and their table `tiles`; which are written as one always-inlined function
 *
 *     tile(ARGUMENTS..., const int kt, const int vt)
 *
 * CONV_TILES((PARAMETERS...), ARGUMENTS...). */
#define CONV_TILE_OF(kt, vt, params, ...)                                                                          \
    static void tile_##kt##_##vt params                                                                            \
    {                                                                                                              \
        tile(__VA_ARGS__, kt, vt);                                                                                 \
    }
#define CONV_TILES_OF(kt, params, ...)                                                                             \
    CONV_TILE_OF(kt, 1, params, __VA_ARGS__)                                                                       \
    CONV_TILE_OF(kt, 2, params, __VA_ARGS__)                                                                       \
    CONV_TILE_OF(kt, DIRECT_VT, params, __VA_ARGS__)
#define CONV_TILE_ROW(kt)                                                                                          \
    {                                                                                                              \
        tile_##kt##_1, tile_##kt##_2, tile_##kt##_DIRECT_VT                                                        \
    }
#define CONV_TILES(params, ...)                                                                                    \
    CONV_TILES_OF(1, params, __VA_ARGS__)                                                                          \
    CONV_TILES_OF(2, params, __VA_ARGS__)                                                                          \
    CONV_TILES_OF(4, params, __VA_ARGS__)                                                                          \
    CONV_TILES_OF(DIRECT_KT, params, __VA_ARGS__)                                                                  \
    static void(*const tiles[4][3])                                                                                \
        params = {CONV_TILE_ROW(1), CONV_TILE_ROW(2), CONV_TILE_ROW(4), CONV_TILE_ROW(DIRECT_KT)};
/* The index of a shape in the table. */
#define CONV_TILE_KT(kt) ((kt) == DIRECT_KT ? 3 : (kt) / 2)
#define CONV_TILE_VT(vt) ((vt) == DIRECT_VT ? 2 : (vt)-1)

#endif
