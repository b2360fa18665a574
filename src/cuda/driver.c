/* driver.c - opens the driver and NVRTC, describes devices, enters and leaves their contexts. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "driver.h"

/* ---- the two libraries ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_api cuda;
static nvrtc_api nvrtc;
static bool cuda_ready, nvrtc_ready;
static pid_t owner; /* the process that called cuInit */

typedef CUresult (*get_proc)(const char *name, void **call, int version, uint64_t flags, int *status);

/* Converts a data pointer into a function pointer, as dlsym() requires. */
static void set_call(void *slot, void *address)
{
    memcpy(slot, &address, sizeof address);
}

static cvy_status resolve(get_proc lookup, cuda_api *api, const char *name, int version, void *slot)
{
    void *address = NULL;
    const CUresult result = lookup(name, &address, version, 0, NULL);

    if (result == CUDA_ERROR_NOT_FOUND || (result == 0 && !address))
        return cvyi_fail(CVY_NO_DEVICE, "cuda: the driver has no %s (interface %d); a newer driver is needed", name,
                         version);
    if (result) return cvyi_cuda_check(api, result, "cuGetProcAddress");
    set_call(slot, address);
    return CVY_OK;
}

static cvy_status load_cuda(cuda_api *api)
{
    static const char *const names[] = {"libcuda.so.1", "libcuda.so", NULL};
    cvy_status st;
    void *library = NULL, *address;
    get_proc lookup;

    TRY(cvyi_library_open("cuda", "CVY_CUDA_LIB", cvyi_env(ENV_CUDA_LIB), names, &library));
    address = dlsym(library, "cuGetProcAddress_v2");
    if (!address)
        return cvyi_fail(CVY_NO_DEVICE, "cuda: the driver has no cuGetProcAddress_v2; CUDA 12 or newer is needed");
    set_call(&lookup, address);
#define CALL(name, version, arguments) TRY(resolve(lookup, api, #name, version, &api->name));
    CUDA_CALLS(CALL)
#undef CALL
    TRY(CU(api, cuInit, 0));
    TRY(CU(api, cuDriverGetVersion, &api->version));
    return CVY_OK;
fail:
    return st;
}

static cvy_status open_driver(const cuda_api **out)
{
    cvy_status st = CVY_OK;

    pthread_mutex_lock(&lock);
    if (cuda_ready && owner != getpid()) {
        st = cvyi_fail(CVY_FAILED,
                       "cuda: this process was forked after CUDA had been started (in process %ld), and "
                       "the driver does not survive that; start it by spawn or before the first use",
                       (long)owner);
    } else if (!cuda_ready) {
        cuda_api fresh = {0};
        st = load_cuda(&fresh);
        if (st == CVY_OK) {
            cuda = fresh;
            owner = getpid();
            cuda_ready = true;
        }
    }
    pthread_mutex_unlock(&lock);
    *out = st == CVY_OK ? &cuda : NULL;
    return st;
}

/* NVRTC opens its builtins by file name only, which the loader does not find next to a library that was opened by
 * path (the wheel's). They are in the same directory and carry its version: open them, and they are found as
 * loaded.
 */
static void load_builtins(void *inside_nvrtc, int major, int minor)
{
    char file[1200];
    Dl_info info;
    const char *slash;

    if (!dladdr(inside_nvrtc, &info) || !info.dli_fname || !(slash = strrchr(info.dli_fname, '/'))) return;
    snprintf(file, sizeof file, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - info.dli_fname), info.dli_fname,
             major, minor);
    if (!dlopen(file, RTLD_NOW | RTLD_LOCAL)) cvyi_log(1, "nvrtc: %s is left to the loader", file);
}

static cvy_status load_nvrtc(nvrtc_api *api)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", NULL};
    cvy_status st;
    void *library = NULL, *address;

    TRY(cvyi_library_open("nvrtc", "CVY_NVRTC_LIB", cvyi_env(ENV_NVRTC_LIB), names, &library));
#define CALL(name, arguments)                                                                                      \
    if (!(address = dlsym(library, #name))) return cvyi_fail(CVY_NO_DEVICE, "nvrtc: the library has no " #name);   \
    set_call(&api->name, address);
    NVRTC_CALLS(CALL)
    CALL(nvrtcGetErrorString, ())
#undef CALL
    TRY(RTC(api, nvrtcVersion, &api->major, &api->minor));
    load_builtins(dlsym(library, "nvrtcVersion"), api->major, api->minor);
    return CVY_OK;
fail:
    return st;
}

cvy_status cvyi_cuda_nvrtc(const nvrtc_api **out)
{
    cvy_status st = CVY_OK;

    pthread_mutex_lock(&lock);
    if (!nvrtc_ready) {
        nvrtc_api fresh = {0};
        st = load_nvrtc(&fresh);
        if (st == CVY_OK) nvrtc = fresh;
        nvrtc_ready = st == CVY_OK;
    }
    pthread_mutex_unlock(&lock);
    *out = st == CVY_OK ? &nvrtc : NULL;
    return st;
}

cvy_status cvyi_cuda_check(const cuda_api *cu, CUresult result, const char *call)
{
    const char *words = NULL;
    cvy_status st = CVY_FAILED;

    if (result == 0) return CVY_OK;
    if (result == CUDA_ERROR_OUT_OF_MEMORY) st = CVY_NO_MEMORY;
    if (result == CUDA_ERROR_NO_DEVICE) st = CVY_NO_DEVICE;
    if (cu->cuGetErrorString) cu->cuGetErrorString(result, &words);
    return cvyi_fail(st, "cuda: %s: %s (%d)", call, words ? words : "failed", result);
}

cvy_status cvyi_nvrtc_check(const nvrtc_api *rtc, nvrtcResult result, const char *call)
{
    const char *words = result && rtc->nvrtcGetErrorString ? rtc->nvrtcGetErrorString(result) : NULL;

    if (result == 0) return CVY_OK;
    return cvyi_fail(result == NVRTC_ERROR_OUT_OF_MEMORY ? CVY_NO_MEMORY : CVY_FAILED, "nvrtc: %s: %s (%d)", call,
                     words ? words : "failed", result);
}

/* ---- devices ---- */

/* fp32 multiply-adds per multiprocessor and cycle: 64 on 7.x and 8.0, 128 on everything newer. */
static int fma_lanes(int major, int minor)
{
    return major < 8 || (major == 8 && minor == 0) ? 64 : 128;
}

static cvy_status describe(cuda_device *d)
{
    const cuda_api *cu = d->cu;
    int clock_khz = 0, memory_khz = 0, bus_bits = 0, cooperative = 0;
    const struct {
        int attribute;
        int *value;
    } wanted[] = {
        {CU_CAPABILITY_MAJOR, &d->major},
        {CU_CAPABILITY_MINOR, &d->minor},
        {CU_MULTIPROCESSORS, &d->sms},
        {CU_L2_BYTES, &d->l2_bytes},
        {CU_SHARED_MEMORY_OPTIN, &d->shared_block},
        {CU_SHARED_MEMORY_PER_SM, &d->shared_sm},
        {CU_REGISTERS_PER_SM, &d->registers_sm},
        {CU_THREADS_PER_SM, &d->threads_sm},
        {CU_COOPERATIVE_LAUNCH, &cooperative},
        {CU_CLOCK_RATE, &clock_khz},
        {CU_MEMORY_CLOCK_RATE, &memory_khz},
        {CU_MEMORY_BUS_WIDTH, &bus_bits},
    };
    cvy_status st;

    TRY(CU(cu, cuDeviceGetName, d->name, (int)sizeof d->name - 1, d->id));
    TRY(CU(cu, cuDeviceTotalMem, &d->memory, d->id));
    for (int i = 0; i < COUNT_OF(wanted); i++)
        TRY(CU(cu, cuDeviceGetAttribute, wanted[i].value, wanted[i].attribute, d->id));
    d->cooperative = cooperative != 0;
    d->clock = clock_khz * 1e3;
    /* H200: 132 SMs x 128 lanes x 2 x 1.98 GHz = 66.9 TFLOP/s */
    d->fp32_flops = 2.0 * d->sms * fma_lanes(d->major, d->minor) * d->clock;
    /* H200: two transfers a clock x 3.201 GHz x 6144 bits = 4.92 TB/s */
    d->bytes_per_second = 2.0 * memory_khz * 1e3 * bus_bits / 8;
    return CVY_OK;
fail:
    return st;
}

cvy_status cvyi_cuda_open(int ordinal, cuda_device **out)
{
    cvy_status st;
    cuda_device *d = NULL;
    const cuda_api *cu = NULL;
    int count = 0;

    *out = NULL;
    TRY(open_driver(&cu));
    TRY(CU(cu, cuDeviceGetCount, &count));
    if (ordinal < 0 || ordinal >= count)
        return cvyi_fail(CVY_NO_DEVICE, "cuda: there is no device %d; the driver (CUDA %d.%d) reports %d", ordinal,
                         cu->version / 1000, cu->version % 1000 / 10, count);
    d = cvyi_alloc(1, sizeof *d);
    if (!d) return CVY_NO_MEMORY;
    d->cu = cu;
    d->ordinal = ordinal;
    TRY(CU(cu, cuDeviceGet, &d->id, ordinal));
    TRY(describe(d));
    TRY(CU(cu, cuDevicePrimaryCtxRetain, &d->ctx, d->id));
    cvyi_log(1, "cuda %d: %s, sm_%d%d, %d multiprocessors, %.1f TFLOP/s, %.2f TB/s", ordinal, d->name, d->major,
             d->minor, d->sms, d->fp32_flops * 1e-12, d->bytes_per_second * 1e-12);
    *out = d;
    return CVY_OK;
fail:
    cvyi_cuda_close(d);
    return st;
}

void cvyi_cuda_close(cuda_device *d)
{
    if (!d) return;
    if (d->ctx && owner == getpid()) d->cu->cuDevicePrimaryCtxRelease(d->id);
    cvyi_free(d);
}

cvy_status cvyi_cuda_enter(const cuda_device *d, CUstream stream)
{
    const cuda_api *cu = NULL;
    CUcontext ctx = d->ctx;
    cvy_status st;

    TRY(open_driver(&cu)); /* refuses a forked child */
    /* Streams 0, 1 and 2 are default streams, which belong to the current context: ours, once it is pushed. */
    if ((uintptr_t)stream > 2) TRY(CU(cu, cuStreamGetCtx, stream, &ctx));
    if (ctx != d->ctx)
        return cvyi_fail(CVY_INVALID, "cuda: the stream does not belong to the primary context of device %d",
                         d->ordinal);
    TRY(CU(cu, cuCtxPushCurrent, ctx));
    return CVY_OK;
fail:
    return st;
}

void cvyi_cuda_leave(const cuda_device *d)
{
    CUcontext popped;
    d->cu->cuCtxPopCurrent(&popped);
}
