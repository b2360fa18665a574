/* modules.h - kernels as plans hold them: each is loaded once on a device, for any number of plans and steps.
 *
 * A kernel is known by its key, the digest of everything it was compiled from (jit.h). It stays loaded while
 * a plan holds it, so a network planned for another batch size finds most of its kernels already loaded. */
#ifndef CVYI_CUDA_MODULES_H
#define CVYI_CUDA_MODULES_H

#include "launch.h"

/* Holds the kernel if it is loaded on the device, with so much shared memory allowed; else out->function is NULL.
 */
cvy_status cvyi_modules_find(const cuda_device *d, const cache_key *key, int dynamic_shared, cuda_kernel *out);
/* The same, and loads it from its code if it is not. */
cvy_status cvyi_modules_load(const cuda_device *d, const cache_key *key, const jit_code *code, const char *entry,
                             int dynamic_shared, cuda_kernel *out);
/* Releases a kernel; the last release unloads it. Accepts a zeroed kernel, and leaves one. */
void cvyi_modules_give(const cuda_device *d, cuda_kernel *k);

#endif
