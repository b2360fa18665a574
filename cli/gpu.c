/* gpu.c - an NVIDIA GPU as a device of the command. Opened once, and kept until the process ends. */
#include "cli.h"
#include "../src/cuda/launch.h"

static cuda_device *gpu;
static CUstream stream;
static cuda_timer timer;

/* Every call of the library's CUDA part works between enter and leave. */
#define INSIDE(call)                                                                                               \
    do {                                                                                                           \
        cvy_status st = cvyi_cuda_enter(gpu, stream);                                                              \
        if (st) return st;                                                                                         \
        st = (call);                                                                                               \
        cvyi_cuda_leave(gpu);                                                                                      \
        return st;                                                                                                 \
    } while (0)

static CUdeviceptr address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

static cvy_status try_alloc(size_t bytes, CUdeviceptr *out)
{
    INSIDE(cvyi_cuda_alloc(gpu, bytes, out));
}

static void *gpu_alloc(size_t bytes)
{
    CUdeviceptr memory = 0;
    return try_alloc(bytes, &memory) ? NULL : (void *)(uintptr_t)memory;
}

static void gpu_free(void *memory)
{
    if (cvyi_cuda_enter(gpu, stream)) return;
    cvyi_cuda_free(gpu, address(memory));
    cvyi_cuda_leave(gpu);
}

static cvy_status gpu_upload(void *dst, const void *src, size_t bytes)
{
    INSIDE(cvyi_cuda_upload(gpu, address(dst), src, bytes, stream));
}

static cvy_status gpu_download(void *dst, const void *src, size_t bytes)
{
    INSIDE(cvyi_cuda_download(gpu, dst, address(src), bytes, stream));
}

static cvy_status gpu_start(void)
{
    INSIDE(cvyi_cuda_timer_start(gpu, &timer, stream));
}

static cvy_status gpu_stop(double *seconds)
{
    INSIDE(cvyi_cuda_timer_stop(gpu, &timer, stream, seconds));
}

static void gpu_describe(platform *p, bool measure)
{
    snprintf(p->name, sizeof p->name, "%s", gpu->name);
    p->source = "the device's own figures";
    if (!measure) return;
    p->fma_gflops = 1e-9 * gpu->fp32_flops;
    p->gbps = 1e-9 * gpu->bytes_per_second;
}

static cvy_status create_stream(void)
{
    INSIDE(cvyi_cuda_stream_create(gpu, &stream));
}

static cvy_status create_timer(void)
{
    INSIDE(cvyi_cuda_timer_create(gpu, &timer));
}

cvy_status gpu_open(int ordinal, const device **out)
{
    static device cuda = {.alloc = gpu_alloc,
                          .free = gpu_free,
                          .upload = gpu_upload,
                          .download = gpu_download,
                          .time_start = gpu_start,
                          .time_stop = gpu_stop,
                          .describe = gpu_describe};
    cvy_status st = CVY_OK;
    if (!gpu) {
        st = cvyi_cuda_open(ordinal, &gpu);
        if (!st) st = create_stream();
        if (!st) st = create_timer();
    }
    cuda.stream = stream;
    *out = &cuda;
    return st;
}
