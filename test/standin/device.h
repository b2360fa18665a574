/* device.h - what a libcuda without a GPU leaves to its device: memory, modules, launches.
 *
 * Two devices stand behind cuda.c: nothing.c, whose kernels do nothing, and ../emulate, which runs them. */
#ifndef STANDIN_DEVICE_H
#define STANDIN_DEVICE_H

#include "../../src/cuda/api.h"

enum { DEVICE_FAULT = 718 }; /* a launch that went wrong; device_error() says how */

extern const char *const device_name;
extern const int device_capability[2];
extern const int device_shared_bytes; /* that a block may ask for */

void *device_alloc(size_t bytes); /* NULL: no memory */
void device_free(void *memory);
void *device_load(const void *image); /* the module's only kernel; NULL: the image is none */
void device_unload(void *kernel);
int device_attribute(const void *kernel, int attribute);
CUresult device_launch(void *kernel, const CUlaunchConfig *config, void **arguments);
const char *device_error(void);

#endif
