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

typedef struct kernel {
    int allowed_shared;
} kernel;

void *device_load(const void *image)
{
    (void)image;
    return calloc(1, sizeof(kernel));
}
void device_unload(void *k)
{
    free(k);
}
/* As most kernels do, these have a little static shared memory. */
int device_attribute(const void *k, int attribute)
{
    (void)k;
    return attribute == CU_FUNC_MAX_THREADS ? 1024 : attribute == CU_FUNC_SHARED_BYTES ? 8 : 0;
}
void device_allow_shared(void *k, int bytes)
{
    ((kernel *)k)->allowed_shared = bytes;
}
int device_allowed_shared(const void *k)
{
    return ((const kernel *)k)->allowed_shared;
}
CUresult device_launch(void *k, const CUlaunchConfig *config, void **arguments)
{
    (void)k, (void)config, (void)arguments;
    return 0;
}
CUresult device_tensor_map(void *out, const device_tensor *t)
{
    (void)t;
    memset(out, 0, sizeof(CUtensorMap));
    return 0;
}
const char *device_error(void)
{
    return "";
}
