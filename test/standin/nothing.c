/* nothing.c - a device of compute capability 9.0 whose memory is the host's and whose kernels do nothing. */
#include <stdlib.h>
#include <string.h>
#include "device.h"

const char *const device_name = "stand-in";
const int device_capability[2] = {9, 0};
const int device_shared_bytes = 227 * 1024;

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
const char *device_error(void)
{
    return "";
}
