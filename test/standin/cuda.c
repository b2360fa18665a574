/* cuda.c - a libcuda without a GPU; see standin.h. What a device does is left to one (device.h). */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "device.h"
#include "standin.h"

#define EXPORT __attribute__((visibility("default")))

static standin state = {.fail_at = -1};

EXPORT standin *standin_state(void)
{
    return &state;
}

enum { FAKE_ERROR = 719 };

static int fails(const char *call, int frees)
{
    if (atomic_fetch_add(&state.calls, 1) != state.fail_at) return 0;
    state.failed = call;
    state.freed = frees;
    return 1;
}

#define STEP(name)                                                                                                 \
    if (fails(#name, 0)) return FAKE_ERROR
#define MAKES(name, out)                                                                                           \
    STEP(name);                                                                                                    \
    state.live++;                                                                                                  \
    *(out) = malloc(16)
#define FREES(name, release, object)                                                                               \
    state.live--;                                                                                                  \
    release(object);                                                                                               \
    return fails(#name, 1) ? FAKE_ERROR : 0

static int contexts[2]; /* their addresses stand for the devices' primary contexts */

/* The contexts that a thread has pushed. */
enum { MOST_PUSHED = 64 };
static _Thread_local CUcontext pushed[MOST_PUSHED];
static _Thread_local int n_pushed;

static int device_now(void)
{
    return n_pushed && pushed[n_pushed - 1] == (CUcontext)&contexts[1];
}

/* On which device modules are loaded; those of the first are not written down. */
enum { MOST_AWAY = 256 };
static CUmodule away[MOST_AWAY];
static pthread_mutex_t away_lock = PTHREAD_MUTEX_INITIALIZER;

static int replace_away(CUmodule from, CUmodule to)
{
    int found = 0;
    pthread_mutex_lock(&away_lock);
    for (int i = 0; i < MOST_AWAY && !found; i++)
        if (away[i] == from) found = 1, away[i] = to;
    pthread_mutex_unlock(&away_lock);
    return found;
}

static CUresult fake_cuInit(unsigned flags)
{
    (void)flags;
    STEP(cuInit);
    return 0;
}
static CUresult fake_cuDriverGetVersion(int *version)
{
    STEP(cuDriverGetVersion);
    *version = 13000;
    return 0;
}
static CUresult fake_cuGetErrorName(CUresult error, const char **name)
{
    (void)error;
    *name = "FAKE_ERROR";
    return 0;
}
static CUresult fake_cuGetErrorString(CUresult error, const char **words)
{
    *words = error == FAKE_ERROR ? "made to fail" : error == DEVICE_FAULT ? device_error() : "some error";
    return 0;
}
static CUresult fake_cuDeviceGetCount(int *count)
{
    STEP(cuDeviceGetCount);
    *count = state.devices ? state.devices : 1;
    return 0;
}
static CUresult fake_cuDeviceGet(CUdevice *device, int ordinal)
{
    STEP(cuDeviceGet);
    *device = ordinal;
    return 0;
}
static CUresult fake_cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    (void)device;
    STEP(cuDeviceGetName);
    strncpy(name, device_describe().name, (size_t)bytes);
    return 0;
}
static CUresult fake_cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    const device_model model = device_describe();
    const int capability = state.capability ? state.capability : model.capability;
    const int values[][2] = {{CU_CAPABILITY_MAJOR, capability / 10},
                             {CU_CAPABILITY_MINOR, capability % 10},
                             {CU_MULTIPROCESSORS, model.sms},
                             {CU_L2_BYTES, 1 << 16},
                             {CU_SHARED_MEMORY_OPTIN, model.shared_bytes},
                             {CU_SHARED_MEMORY_PER_SM, model.shared_bytes + 1024},
                             {CU_REGISTERS_PER_SM, 65536},
                             {CU_THREADS_PER_SM, 2048},
                             {CU_COOPERATIVE_LAUNCH, model.cooperative && state.crowded != 2},
                             {CU_CLOCK_RATE, 1980000},
                             {CU_MEMORY_CLOCK_RATE, 3201000},
                             {CU_MEMORY_BUS_WIDTH, 6144}};
    (void)device;
    STEP(cuDeviceGetAttribute);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i][0] == attribute) *value = values[i][1];
    return 0;
}
static CUresult fake_cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    (void)device;
    STEP(cuDeviceTotalMem);
    *bytes = (size_t)1 << 37;
    return 0;
}
static CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
    STEP(cuDevicePrimaryCtxRetain);
    state.live++;
    *ctx = (CUcontext)&contexts[device];
    return 0;
}
static CUresult fake_cuDevicePrimaryCtxRelease(CUdevice device)
{
    (void)device;
    FREES(cuDevicePrimaryCtxRelease, free, NULL);
}
static CUresult fake_cuCtxPushCurrent(CUcontext ctx)
{
    STEP(cuCtxPushCurrent);
    if (n_pushed == MOST_PUSHED) return FAKE_ERROR;
    pushed[n_pushed++] = ctx;
    state.depth++;
    return 0;
}
static CUresult fake_cuCtxPopCurrent(CUcontext *ctx)
{
    *ctx = n_pushed ? pushed[--n_pushed] : (CUcontext)&contexts[0];
    state.depth--;
    return fails("cuCtxPopCurrent", 1) ? FAKE_ERROR : 0;
}
static CUresult fake_cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    MAKES(cuStreamCreate, (void **)stream);
    return 0;
}
static CUresult fake_cuStreamDestroy(CUstream stream)
{
    FREES(cuStreamDestroy, free, stream);
}
static CUresult fake_cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    STEP(cuStreamSynchronize);
    return 0;
}
static CUresult fake_cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
    STEP(cuStreamGetCtx);
    /* A stream that nobody made belongs to some other context. */
    *ctx = stream == (CUstream)&state ? (CUcontext)&state : (CUcontext)&contexts[0];
    return 0;
}
static CUresult fake_cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    MAKES(cuEventCreate, (void **)event);
    return 0;
}
static CUresult fake_cuEventDestroy(CUevent event)
{
    FREES(cuEventDestroy, free, event);
}
static CUresult fake_cuEventRecord(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    STEP(cuEventRecord);
    return 0;
}
static CUresult fake_cuEventSynchronize(CUevent event)
{
    (void)event;
    STEP(cuEventSynchronize);
    return 0;
}
static CUresult fake_cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    (void)start, (void)end;
    STEP(cuEventElapsedTime);
    *ms = 1;
    return 0;
}
static CUresult fake_cuMemAlloc(CUdeviceptr *memory, size_t bytes)
{
    STEP(cuMemAlloc);
    void *p = device_alloc(bytes);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    state.live++;
    *memory = (CUdeviceptr)(uintptr_t)p;
    return 0;
}
static CUresult fake_cuMemFree(CUdeviceptr memory)
{
    FREES(cuMemFree, device_free, (void *)(uintptr_t)memory);
}
static CUresult fake_cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    (void)stream;
    STEP(cuMemcpyHtoDAsync);
    memcpy((void *)(uintptr_t)dst, src, bytes);
    return 0;
}
static CUresult fake_cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    (void)stream;
    STEP(cuMemcpyDtoHAsync);
    memcpy(dst, (void *)(uintptr_t)src, bytes);
    return 0;
}
static CUresult fake_cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    (void)stream;
    STEP(cuMemsetD8Async);
    memset((void *)(uintptr_t)dst, value, bytes);
    return 0;
}
static CUresult fake_cuModuleLoadData(CUmodule *module, const void *image)
{
    STEP(cuModuleLoadData);
    *module = device_load(image);
    if (!*module) return CUDA_ERROR_NOT_FOUND;
    state.live++;
    state.loaded[device_now()]++;
    if (device_now()) replace_away(NULL, *module);
    return 0;
}
static CUresult fake_cuModuleUnload(CUmodule module)
{
    replace_away(module, NULL);
    FREES(cuModuleUnload, device_unload, module);
}
static CUresult fake_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    (void)name;
    STEP(cuModuleGetFunction);
    *function = (CUfunction)module;
    return 0;
}
static CUresult fake_cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    STEP(cuFuncGetAttribute);
    *value = device_attribute(function, attribute);
    return 0;
}
static CUresult fake_cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    STEP(cuFuncSetAttribute);
    if (attribute == CU_FUNC_MAX_DYNAMIC_SHARED) device_allow_shared(function, value);
    return 0;
}
static CUresult fake_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                                 size_t shared_bytes)
{
    (void)function, (void)shared_bytes;
    STEP(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    *blocks = state.crowded ? 0 : 2048 / threads;
    return 0;
}
static CUresult fake_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                      void **extra)
{
    (void)extra;
    STEP(cuLaunchKernelEx);
    if (!config->grid[0] || !config->grid[1] || !config->grid[2] || !config->block[0]) return 1;
    if (config->grid[0] > INT32_MAX || config->grid[1] > 65535 || config->grid[2] > 65535) return 1;
    if (config->block[0] > 1024) return 1;
    /* A kernel's static memory counts towards what it may have unasked, not towards what was allowed it. */
    if ((int)config->shared_bytes + device_attribute(function, CU_FUNC_SHARED_BYTES) > DEVICE_SHARED_ANYWAY &&
        (int)config->shared_bytes > device_allowed_shared(function))
        return 1;
    state.launches++;
    state.launched[device_now()]++;
    if (device_now() != replace_away((CUmodule)function, (CUmodule)function)) state.astray++;
    return device_launch(function, config, arguments);
}
static CUresult tensor_map(CUtensorMap *map, device_tensor t, int type, int swizzle)
{
    enum { NO_SWIZZLE = 0, SWIZZLE_128 = 3, FLOAT16 = 6, FLOAT32 = 7, BFLOAT16 = 9 };

    if (swizzle != NO_SWIZZLE && swizzle != SWIZZLE_128) return DEVICE_INVALID;
    if (type != FLOAT32 && type != FLOAT16 && type != BFLOAT16) return DEVICE_INVALID;
    t.element = type == FLOAT32 ? 4 : 2;
    t.swizzle = swizzle == SWIZZLE_128;
    return device_tensor_map(map, &t);
}
static CUresult fake_cuTensorMapEncodeTiled(CUtensorMap *map, int type, unsigned rank, void *base,
                                            const uint64_t *dims, const uint64_t *strides, const unsigned *box,
                                            const unsigned *element_strides, int interleave, int swizzle,
                                            int l2_promotion, int out_of_bounds)
{
    const device_tensor t = {.rank = rank, .base = base, .dims = dims, .strides = strides, .box = box};
    (void)element_strides, (void)interleave, (void)l2_promotion, (void)out_of_bounds;
    STEP(cuTensorMapEncodeTiled);
    return tensor_map(map, t, type, swizzle);
}
static CUresult fake_cuTensorMapEncodeIm2col(CUtensorMap *map, int type, unsigned rank, void *base,
                                             const uint64_t *dims, const uint64_t *strides, const int *lower,
                                             const int *upper, unsigned channels, unsigned pixels,
                                             const unsigned *element_strides, int interleave, int swizzle,
                                             int l2_promotion, int out_of_bounds)
{
    const unsigned box[2] = {channels, pixels};
    const device_tensor t = {.rank = rank,
                             .base = base,
                             .dims = dims,
                             .strides = strides,
                             .box = box,
                             .lower = lower,
                             .upper = upper,
                             .step = element_strides};
    (void)interleave, (void)l2_promotion, (void)out_of_bounds;
    STEP(cuTensorMapEncodeIm2col);
    return tensor_map(map, t, type, swizzle);
}

/* Exported under the real name, as the one symbol the driver is entered through. */
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags, int *status)
{
    static const struct {
        const char *name;
        void (*call)(void);
    } table[] = {
#define CALL(n, v, a) {#n, (void (*)(void))fake_##n},
        CUDA_CALLS(CALL)
#undef CALL
    };
    (void)version, (void)flags, (void)status;
    STEP(cuGetProcAddress);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, name) == 0) {
            memcpy(call, &table[i].call, sizeof *call);
            return 0;
        }
    return CUDA_ERROR_NOT_FOUND;
}
