/* cuda_runtime.h - in the place of the toolkit's, for the launches of ejected files: see recorder.c. Structs have
 * the published layout. */
#ifndef RECORDER_CUDA_RUNTIME_H
#define RECORDER_CUDA_RUNTIME_H

#include <stddef.h>

#define CUDART_VERSION 13000
typedef int cudaError_t;
typedef struct CUstream_st *cudaStream_t;
enum {
    cudaSuccess = 0,
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
enum { cudaEnableDefault = 0 };
typedef int cudaDriverEntryPointQueryResult;

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct cudaLaunchAttribute {
    int id;
    char pad[4];
    union {
        char fill[64];
        int cooperative, programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

extern "C" {
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments);
cudaError_t cudaFuncSetAttribute(const void *kernel, int attribute, int value);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **call, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult *found);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);
}

#endif
