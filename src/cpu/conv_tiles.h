/* conv_tiles.h - register tiles of the convolution kernels, by instruction set: what fits its registers unspilled.
 */
#ifndef CVYI_CONV_TILES_H
#define CVYI_CONV_TILES_H

#include "simd.h"

/* DIRECT: output channels x vectors of outputs. WINO: output channels x vectors of tiles; V and M of 8 input
 * channels must stay in 32 KiB of L1, which is why WINO tiles are small. */
#if defined(CVY_ISA_AVX512)
#define CONV_ISA "avx512"
enum { DIRECT_KT = 8, DIRECT_VT = 3, WINO_KT = 8, WINO_NT = 1 };
#elif defined(CVY_ISA_AVX2)
#define CONV_ISA "avx2"
enum { DIRECT_KT = 6, DIRECT_VT = 2, WINO_KT = 4, WINO_NT = 2 };
#else
#define CONV_ISA "portable"
enum { DIRECT_KT = 4, DIRECT_VT = 2, WINO_KT = 4, WINO_NT = 2 };
#endif

#endif
