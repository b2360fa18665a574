/* cuda.h - in the place of the toolkit's, for the launches of ejected files: see recorder.c. */
#ifndef RECORDER_CUDA_H
#define RECORDER_CUDA_H

#include <stdint.h>

typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;
typedef struct CUtensorMap {
    uint64_t opaque[16];
} CUtensorMap;
enum { CUDA_SUCCESS = 0, CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum CUtensorMapDataType {
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
};
enum { CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };
enum { CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B = 3 };
extern "C" int cuTensorMapEncodeTiled(CUtensorMap *map, int type, cuuint32_t rank, void *base,
                                      const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                      const cuuint32_t *element_strides, int interleave, int swizzle,
                                      int l2_promotion, int out_of_bounds);
extern "C" int cuTensorMapEncodeIm2col(CUtensorMap *map, int type, cuuint32_t rank, void *base,
                                       const cuuint64_t *dims, const cuuint64_t *strides, const int *lower,
                                       const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                       const cuuint32_t *element_strides, int interleave, int swizzle,
                                       int l2_promotion, int out_of_bounds);

#endif
