/* nothing.c - a device of compute capability 9.0 whose memory is the host's and whose kernels do nothing. */
#include <stdlib.h>
#include <string.h>
#include "device.h"

device_model device_describe(void)
{
    return (device_model){
        .name = "stand-in", .capability = 90, .sms = 132, .shared_bytes = 227 << 10, .cooperative = true};
}

void *device_alloc(size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (p) memset(p, 0, bytes);
    return p;
}
void device_free(void *memory)
{
    free(memory);
}
void *device_load(const void *image)
{
    (void)image;
    return malloc(16);
}
void device_unload(void *kernel)
{
    free(kernel);
}
int device_attribute(const void *kernel, int attribute)
{
    (void)kernel;
    return attribute == CU_FUNC_MAX_THREADS ? 1024 : 0;
}
CUresult device_launch(void *kernel, const CUlaunchConfig *config, void **arguments)
{
    (void)kernel, (void)config, (void)arguments;
    return 0;
}
CUresult device_tensor_map(void *out, unsigned rank, const void *base, const uint64_t *dims,
                           const uint64_t *strides, const unsigned *box, bool swizzle)
{
    (void)rank, (void)base, (void)dims, (void)strides, (void)box, (void)swizzle;
    memset(out, 0, sizeof(CUtensorMap));
    return 0;
}
const char *device_error(void)
{
    return "";
}
