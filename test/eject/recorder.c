/* recorder.c - writes down what is launched, whoever launches it: Convoy through the driver's calls, or an ejected
 * file through the runtime's (cuda_runtime.h beside this file). Nothing runs; no address is looked at.
 *
 * As a libcuda it is found before test/standin's, which RECORDER_STANDIN names, and answers RECORDER_CAPABILITY
 * ("8.0") for the device's. RECORDER_SIZES names a file with a line per kernel, its name and the bytes of each of
 * its arguments; RECORDER_LOG receives a line per launch: name, grid, block, shared memory, attributes, stream, and
 * the arguments' bytes. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../src/cuda/api.h"

#define EXPORT __attribute__((visibility("default")))
enum { MAX_FUNCTIONS = 1024, MAX_ARGUMENTS = 8, NAME_BYTES = 128 };

static struct {
    const void *function;
    char name[NAME_BYTES];
} functions[MAX_FUNCTIONS];
static int n_functions;

static FILE *open_log(void)
{
    FILE *log = fopen(getenv("RECORDER_LOG"), "a");
    if (!log) abort();
    return log;
}

/* How many arguments a kernel has, and their bytes. */
static int sizes_of(const char *name, int sizes[MAX_ARGUMENTS])
{
    FILE *file = fopen(getenv("RECORDER_SIZES"), "r");
    char line[512];
    int n = 0;

    while (file && !n && fgets(line, sizeof line, file)) {
        char *word = strtok(line, " \n");
        if (!word || strcmp(word, name)) continue;
        while (n < MAX_ARGUMENTS && (word = strtok(NULL, " \n"))) sizes[n++] = atoi(word);
    }
    if (!n) abort();
    fclose(file);
    return n;
}

static void record(const char *name, const CUlaunchConfig *c, void **arguments)
{
    FILE *log = open_log();
    int sizes[MAX_ARGUMENTS];
    const int n = sizes_of(name, sizes);

    fprintf(log, "launch %s %u,%u,%u %u,%u,%u %u", name, c->grid[0], c->grid[1], c->grid[2], c->block[0],
            c->block[1], c->block[2], c->shared_bytes);
    for (unsigned i = 0; i < c->n_attrs; i++) fprintf(log, " %d=%d", c->attrs[i].id, c->attrs[i].value.cooperative);
    fprintf(log, " stream %p", (void *)c->stream);
    for (int i = 0; i < n; i++) {
        fputc(' ', log);
        for (int k = 0; k < sizes[i]; k++) fprintf(log, "%02x", ((unsigned char *)arguments[i])[k]);
    }
    fputc('\n', log);
    fclose(log);
}

static void record_zeros(uint64_t at, int value, size_t bytes, const void *stream)
{
    FILE *log = open_log();
    fprintf(log, "set %llx %d %zu stream %p\n", (unsigned long long)at, value, bytes, stream);
    fclose(log);
}

/* ---- the driver's calls ---- */

static CUresult (*real_get_function)(CUfunction *, CUmodule, const char *);
static CUresult (*real_get_attribute)(int *, int, CUdevice);

static CUresult get_function(CUfunction *function, CUmodule module, const char *name)
{
    const CUresult result = real_get_function(function, module, name);
    if (n_functions == MAX_FUNCTIONS) abort();
    functions[n_functions].function = *function;
    snprintf(functions[n_functions++].name, NAME_BYTES, "%s", name);
    return result;
}

static CUresult get_attribute(int *value, int attribute, CUdevice device)
{
    const char *capability = getenv("RECORDER_CAPABILITY");
    const CUresult result = real_get_attribute(value, attribute, device);
    if (capability && attribute == CU_CAPABILITY_MAJOR) *value = capability[0] - '0';
    if (capability && attribute == CU_CAPABILITY_MINOR) *value = capability[2] - '0';
    return result;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
{
    (void)extra;
    for (int i = n_functions; i--;)
        if (functions[i].function == function) {
            record(functions[i].name, config, arguments);
            return 0;
        }
    abort();
}

static CUresult fill(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    record_zeros(dst, value, bytes, stream);
    return 0;
}

/* The map is everything that it was made from. */
static CUresult encode(CUtensorMap *map, int type, unsigned rank, void *base, const uint64_t *dims,
                       const uint64_t *strides, const unsigned *box, const unsigned *element_strides,
                       int interleave, int swizzle, int l2_promotion, int out_of_bounds)
{
    uint64_t all[16] = {(uint64_t)type << 32 | rank, (uintptr_t)base};

    memcpy(all + 2, dims, rank * sizeof *dims);
    memcpy(all + 6, strides, (rank - 1) * sizeof *strides);
    memcpy(all + 9, box, rank * sizeof *box);
    memcpy(all + 11, element_strides, rank * sizeof *element_strides);
    all[13] = (uint64_t)interleave << 32 | (unsigned)swizzle;
    all[14] = (uint64_t)l2_promotion << 32 | (unsigned)out_of_bounds;
    memcpy(map, all, sizeof all);
    return 0;
}

static CUresult encode_pixels(CUtensorMap *map, int type, unsigned rank, void *base, const uint64_t *dims,
                              const uint64_t *strides, const int *lower, const int *upper, unsigned channels,
                              unsigned pixels, const unsigned *element_strides, int interleave, int swizzle,
                              int l2_promotion, int out_of_bounds)
{
    uint64_t all[16] = {(uint64_t)type << 32 | rank, (uintptr_t)base};

    memcpy(all + 2, dims, rank * sizeof *dims);
    for (unsigned i = 0; i < rank - 1; i++) all[7 + i] = strides[i] << 8 | element_strides[i];
    for (unsigned i = 0; i < rank - 2; i++) all[11 + i] = (uint64_t)(unsigned)lower[i] << 32 | (unsigned)upper[i];
    all[14] = (uint64_t)channels << 48 | (uint64_t)pixels << 32 | element_strides[rank - 1];
    all[15] = (uint64_t)(interleave << 8 | swizzle) << 32 | (unsigned)(l2_promotion << 8 | out_of_bounds);
    memcpy(map, all, sizeof all);
    return 0;
}

static void put(void **out, void (*function)(void))
{
    memcpy(out, &function, sizeof function);
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags, int *status)
{
    static CUresult (*real)(const char *, void **, int, uint64_t, int *);
    CUresult result;

    if (!real) {
        void *library = dlopen(getenv("RECORDER_STANDIN"), RTLD_NOW | RTLD_LOCAL);
        void *address = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
        if (!address) abort();
        memcpy(&real, &address, sizeof real);
    }
    result = real(name, call, version, flags, status);
    if (!strcmp(name, "cuModuleGetFunction")) {
        memcpy(&real_get_function, call, sizeof *call);
        put(call, (void (*)(void))get_function);
    } else if (!strcmp(name, "cuDeviceGetAttribute")) {
        memcpy(&real_get_attribute, call, sizeof *call);
        put(call, (void (*)(void))get_attribute);
    } else if (!strcmp(name, "cuLaunchKernelEx")) {
        put(call, (void (*)(void))launch);
    } else if (!strcmp(name, "cuMemsetD8Async")) {
        put(call, (void (*)(void))fill);
    } else if (!strcmp(name, "cuTensorMapEncodeTiled")) {
        put(call, (void (*)(void))encode);
    } else if (!strcmp(name, "cuTensorMapEncodeIm2col")) {
        put(call, (void (*)(void))encode_pixels);
    }
    return result;
}

/* ---- the runtime's: structs have the driver's layout, kernels are symbols of the calling library ---- */

EXPORT int cudaLaunchKernelExC(const void *config, const void *kernel, void **arguments)
{
    Dl_info info;
    if (!dladdr(kernel, &info) || !info.dli_sname) abort();
    record(info.dli_sname, config, arguments);
    return 0;
}
EXPORT int cudaMemsetAsync(void *memory, int value, size_t bytes, void *stream)
{
    record_zeros((uintptr_t)memory, value, bytes, stream);
    return 0;
}
EXPORT int cudaFuncSetAttribute(const void *kernel, int attribute, int value)
{
    return !kernel || attribute != CU_FUNC_MAX_DYNAMIC_SHARED || value > 227 * 1024;
}
EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **call, unsigned version, uint64_t flags,
                                            int *found)
{
    (void)flags;
    const bool tiled = !strcmp(name, "cuTensorMapEncodeTiled"), walked = !strcmp(name, "cuTensorMapEncodeIm2col");
    *call = NULL;
    *found = (!tiled && !walked) || version != 12000;
    if (!*found) put(call, tiled ? (void (*)(void))encode : (void (*)(void))encode_pixels);
    return *found;
}
EXPORT int cudaGetLastError(void)
{
    return 0;
}
EXPORT const char *cudaGetErrorString(int error)
{
    return error ? "an error" : "none";
}
