/* driver.h - the CUDA driver, devices and contexts.
 *
 * Convoy never creates a context. It uses the device's primary one, as frameworks do: every call pushes it and pops
 * it again, so the thread's state is unchanged. The caller's stream must belong to that context. */
#ifndef CVYI_CUDA_DRIVER_H
#define CVYI_CUDA_DRIVER_H

#include "../util/util.h"
#include "api.h"
#include "library.h"

/* The compiler's calls; as the driver's, opened on first use, and again after a failure. */
cvy_status cvyi_cuda_nvrtc(const nvrtc_api **out);

/* CVY_OK for 0; else a status, and a message that names the call: "cuMemAlloc: out of memory (2)". */
cvy_status cvyi_cuda_check(const cuda_api *cu, CUresult result, const char *call);
cvy_status cvyi_nvrtc_check(const nvrtc_api *rtc, nvrtcResult result, const char *call);
#define CU(api, name, ...)  cvyi_cuda_check((api), (api)->name(__VA_ARGS__), #name)
#define RTC(api, name, ...) cvyi_nvrtc_check((api), (api)->name(__VA_ARGS__), #name)

typedef struct cuda_device {
    const cuda_api *cu;
    CUdevice id;
    CUcontext ctx; /* the primary one, retained */
    int ordinal;
    int major, minor; /* compute capability */
    int sms;          /* multiprocessors */
    int l2_bytes;
    int shared_block; /* bytes of shared memory that a block may have */
    int shared_sm;    /* bytes of shared memory of a multiprocessor */
    int registers_sm; /* 32-bit registers of a multiprocessor */
    int threads_sm;
    bool cooperative;        /* a launch may wait for all of its blocks */
    double clock;            /* Hz */
    double fp32_flops;       /* per second, a multiply-add counted as two */
    double bytes_per_second; /* of device memory */
    size_t memory;           /* bytes */
    char name[96];
} cuda_device;

/* CVY_NO_DEVICE, with a message of what was looked for, if there is no driver, no GPU or no such ordinal. */
cvy_status cvyi_cuda_open(int ordinal, cuda_device **out);
void cvyi_cuda_close(cuda_device *device); /* accepts NULL */

/* Makes the device's context current until cvyi_cuda_leave(). stream: NULL or one of the device's primary context.
 * Refused in a forked child: the driver does not survive fork(). */
cvy_status cvyi_cuda_enter(const cuda_device *device, CUstream stream);
void cvyi_cuda_leave(const cuda_device *device);

#endif
