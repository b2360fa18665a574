// filter.cuh - the macros of a filter or a pooling window: extents, stride, padding before, dilation, transposed.
#ifndef CVY_FILTER_CUH
#define CVY_FILTER_CUH

#ifndef TAPS_T
#define TAPS_T 1
#define TAPS_R 3
#define TAPS_S 3
#endif
#ifndef STRIDE_D
#define STRIDE_D 1
#define STRIDE_H 1
#define STRIDE_W 1
#endif
#ifndef PAD_D
#define PAD_D 0
#define PAD_H 0
#define PAD_W 0
#endif
#ifndef DIL_D
#define DIL_D 1
#define DIL_H 1
#define DIL_W 1
#endif
#ifndef TRANSPOSED
#define TRANSPOSED 0
#endif

#endif
