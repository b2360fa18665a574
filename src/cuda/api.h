/* api.h - the calls of the CUDA driver and of NVRTC that the engine makes, as tables of function pointers.
 *
 * Nothing here is compiled against a toolkit: the libraries are opened at run time (library.c) and the few types
 * and constants below are the published binary interface. cuGetProcAddress returns the interface of the
 * version in the row, so a newer driver returns the one whose arguments are declared here. */
#ifndef CVYI_CUDA_API_H
#define CVYI_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult; /* 0: success */
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;

enum { CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_NO_DEVICE = 100, CUDA_ERROR_NOT_FOUND = 500 };

/* CUdevice_attribute */
enum {
    CU_SHARED_MEMORY_PER_BLOCK = 8,
    CU_CLOCK_RATE = 13, /* kHz */
    CU_MULTIPROCESSORS = 16,
    CU_MEMORY_CLOCK_RATE = 36, /* kHz */
    CU_MEMORY_BUS_WIDTH = 37,  /* bits */
    CU_L2_BYTES = 38,
    CU_THREADS_PER_SM = 39,
    CU_CAPABILITY_MAJOR = 75,
    CU_CAPABILITY_MINOR = 76,
    CU_SHARED_MEMORY_PER_SM = 81,
    CU_REGISTERS_PER_SM = 82,
    CU_COOPERATIVE_LAUNCH = 95,
    CU_SHARED_MEMORY_OPTIN = 97
};

/* CUfunction_attribute */
enum {
    CU_FUNC_MAX_THREADS = 0,
    CU_FUNC_SHARED_BYTES = 1,
    CU_FUNC_LOCAL_BYTES = 3, /* per thread: spills show here */
    CU_FUNC_REGISTERS = 4,
    CU_FUNC_MAX_DYNAMIC_SHARED = 8,
    CU_FUNC_NON_PORTABLE_CLUSTER = 14
};

/* CUlaunchAttributeID */
enum { CU_LAUNCH_COOPERATIVE = 2, CU_LAUNCH_CLUSTER = 4, CU_LAUNCH_FOLLOWS = 6 };

typedef struct CUlaunchAttribute {
    int id;
    char pad[4];
    union {
        char fill[64];
        int cooperative, follows;
        unsigned cluster[3];
    } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attrs;
    unsigned n_attrs;
} CUlaunchConfig;

/* A tensor map is opaque except to cuTensorMapEncodeTiled and the copy engine. */
typedef struct CUtensorMap {
    _Alignas(64) uint64_t opaque[16];
} CUtensorMap;

/* CALL(name, requested version of the interface, arguments); the result is a CUresult */
#define CUDA_CALLS(CALL)                                                                                           \
    CALL(cuInit, 2000, (unsigned flags))                                                                           \
    CALL(cuDriverGetVersion, 2020, (int *version))                                                                 \
    CALL(cuGetErrorName, 6000, (CUresult error, const char **name))                                                \
    CALL(cuGetErrorString, 6000, (CUresult error, const char **text))                                              \
    CALL(cuDeviceGetCount, 2000, (int *count))                                                                     \
    CALL(cuDeviceGet, 2000, (CUdevice * device, int ordinal))                                                      \
    CALL(cuDeviceGetName, 2000, (char *name, int bytes, CUdevice device))                                          \
    CALL(cuDeviceGetAttribute, 2000, (int *value, int attribute, CUdevice device))                                 \
    CALL(cuDeviceTotalMem, 3020, (size_t * bytes, CUdevice device))                                                \
    CALL(cuDevicePrimaryCtxRetain, 7000, (CUcontext * ctx, CUdevice device))                                       \
    CALL(cuDevicePrimaryCtxRelease, 11000, (CUdevice device))                                                      \
    CALL(cuCtxPushCurrent, 4000, (CUcontext ctx))                                                                  \
    CALL(cuCtxPopCurrent, 4000, (CUcontext * ctx))                                                                 \
    CALL(cuStreamCreate, 2000, (CUstream * stream, unsigned flags))                                                \
    CALL(cuStreamDestroy, 4000, (CUstream stream))                                                                 \
    CALL(cuStreamSynchronize, 2000, (CUstream stream))                                                             \
    CALL(cuStreamGetCtx, 9020, (CUstream stream, CUcontext * ctx))                                                 \
    CALL(cuEventCreate, 2000, (CUevent * event, unsigned flags))                                                   \
    CALL(cuEventDestroy, 4000, (CUevent event))                                                                    \
    CALL(cuEventRecord, 2000, (CUevent event, CUstream stream))                                                    \
    CALL(cuEventSynchronize, 2000, (CUevent event))                                                                \
    CALL(cuEventElapsedTime, 2000, (float *ms, CUevent start, CUevent end))                                        \
    CALL(cuMemAlloc, 3020, (CUdeviceptr * memory, size_t bytes))                                                   \
    CALL(cuMemFree, 3020, (CUdeviceptr memory))                                                                    \
    CALL(cuMemcpyHtoDAsync, 3020, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream))               \
    CALL(cuMemcpyDtoHAsync, 3020, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream))                     \
    CALL(cuMemsetD8Async, 3020, (CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream))             \
    CALL(cuModuleLoadData, 2000, (CUmodule * module, const void *image))                                           \
    CALL(cuModuleUnload, 2000, (CUmodule module))                                                                  \
    CALL(cuModuleGetFunction, 2000, (CUfunction * function, CUmodule module, const char *name))                    \
    CALL(cuFuncGetAttribute, 2020, (int *value, int attribute, CUfunction function))                               \
    CALL(cuFuncSetAttribute, 9000, (CUfunction function, int attribute, int value))                                \
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050,                                                        \
         (int *blocks, CUfunction function, int threads, size_t shared_bytes))                                     \
    CALL(cuLaunchKernelEx, 11060,                                                                                  \
         (const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra))                      \
    CALL(cuTensorMapEncodeTiled, 12000,                                                                            \
         (CUtensorMap * map, int type, unsigned rank, void *base, const uint64_t *dims, const uint64_t *strides,   \
          const unsigned *box, const unsigned *element_strides, int interleave, int swizzle, int l2_promotion,     \
          int out_of_bounds))                                                                                      \
    CALL(cuTensorMapEncodeIm2col, 12000,                                                                           \
         (CUtensorMap * map, int type, unsigned rank, void *base, const uint64_t *dims, const uint64_t *strides,   \
          const int *lower, const int *upper, unsigned channels, unsigned pixels, const unsigned *element_strides, \
          int interleave, int swizzle, int l2_promotion, int out_of_bounds))

typedef struct cuda_api {
#define CALL(name, version, arguments) CUresult(*name) arguments;
    CUDA_CALLS(CALL)
#undef CALL
    int version; /* of the driver: 13000 is CUDA 13.0 */
} cuda_api;

typedef int nvrtcResult; /* 0: success */
typedef struct nvrtcProgram_st *nvrtcProgram;
enum { NVRTC_ERROR_OUT_OF_MEMORY = 1, NVRTC_ERROR_COMPILATION = 6 };

#define NVRTC_CALLS(CALL)                                                                                          \
    CALL(nvrtcVersion, (int *major, int *minor))                                                                   \
    CALL(nvrtcGetNumSupportedArchs, (int *count))                                                                  \
    CALL(nvrtcGetSupportedArchs, (int *archs))                                                                     \
    CALL(nvrtcCreateProgram, (nvrtcProgram * program, const char *source, const char *name, int n_headers,         \
                              const char *const *headers, const char *const *header_names))                        \
    CALL(nvrtcDestroyProgram, (nvrtcProgram * program))                                                            \
    CALL(nvrtcCompileProgram, (nvrtcProgram program, int n_options, const char *const *options))                   \
    CALL(nvrtcGetProgramLogSize, (nvrtcProgram program, size_t * bytes))                                           \
    CALL(nvrtcGetProgramLog, (nvrtcProgram program, char *log))                                                    \
    CALL(nvrtcGetCUBINSize, (nvrtcProgram program, size_t * bytes))                                                \
    CALL(nvrtcGetCUBIN, (nvrtcProgram program, char *cubin))

typedef struct nvrtc_api {
#define CALL(name, arguments) nvrtcResult(*name) arguments;
    NVRTC_CALLS(CALL)
#undef CALL
    const char *(*nvrtcGetErrorString)(nvrtcResult result);
    int major, minor; /* version */
} nvrtc_api;

#endif
