/* device.h - what a libcuda without a GPU leaves to its device: memory, modules, launches, tensor maps.
 *
 * cuda.c has two devices under it: nothing.c, whose kernels do nothing, and ../emulate, which runs them. */
#ifndef STANDIN_DEVICE_H
#define STANDIN_DEVICE_H

#include <stdbool.h>
#include "../../src/cuda/api.h"

enum {
    DEVICE_INVALID = 1,              /* CUDA_ERROR_INVALID_VALUE */
    DEVICE_SHARED_ANYWAY = 48 << 10, /* shared memory that nobody need ask for */
    DEVICE_FAULT = 718               /* a launch that went wrong; device_error() says how */
};

typedef struct device_model {
    const char *name;
    int capability;        /* 90 for 9.0 */
    int sms, shared_bytes; /* shared memory that a block may ask for */
    bool cooperative;      /* blocks may wait for each other */
} device_model;

device_model device_describe(void);
void *device_alloc(size_t bytes); /* NULL: no memory */
void device_free(void *memory);
void *device_load(const void *image); /* the module's only kernel; NULL: the image is none */
void device_unload(void *kernel);
int device_attribute(const void *kernel, int attribute);
/* Bytes of dynamic shared memory that launches of the kernel may have. */
void device_allow_shared(void *kernel, int bytes);
int device_allowed_shared(const void *kernel);
CUresult device_launch(void *kernel, const CUlaunchConfig *config, void **arguments);
/* What tensor copies read; zeros outside. */
typedef struct device_tensor {
    unsigned element, rank; /* bytes; dimensions */
    const void *base;
    const uint64_t *dims, *strides; /* strides in bytes */
    const unsigned *box;
    const int *lower, *upper; /* of copies that walk through pixels; NULL: they bring boxes */
    const unsigned *step;
    bool swizzle;
} device_tensor;
CUresult device_tensor_map(void *out, const device_tensor *t);
const char *device_error(void);

#endif
