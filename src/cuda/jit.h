/* jit.h - CUDA C to machine code, through NVRTC and the cache on disk.
 *
 * Sources reach the compiler as in-memory files under their real names, so that its messages read "conv.cu(19)". */
#ifndef CVYI_CUDA_JIT_H
#define CVYI_CUDA_JIT_H

#include "../util/cache.h"

/* A text under a file name; NUL after the last character. */
typedef struct jit_file {
    const char *name;
    const char *data;
} jit_file;

/* The kernels' sources (kernels/ *.cu, *.cuh), embedded when the library was built; name NULL after the last. */
extern const jit_file cvyi_cuda_files[];

typedef struct jit_request {
    const char *entry;          /* symbol of the kernel, handed over as KERNEL_NAME; names the dump as well */
    const char *source;         /* which of cvyi_cuda_files is compiled: "conv_direct.cu" */
    const char *epilogue;       /* text of epilogue.cuh; NULL: the identity that is embedded */
    const char *const *options; /* n_options further ones, such as "-DSTRIDE_H=2" */
    int n_options;
    int major, minor;   /* compute capability of the device */
    bool arch_specific; /* sm_90a, not sm_90: for wgmma and the like */
} jit_request;

typedef struct jit_code {
    void *cubin;
    size_t size;
    bool cached; /* it came from the disk */
} jit_code;

/* The digest of everything the code depends on. */
cvy_status cvyi_jit_key(const jit_request *request, cache_key *out);
/* CVY_NO_DEVICE: no NVRTC, or one that does not know the device. CVY_FAILED: the text does not compile; the message
 * holds the first errors, the log (CVY_DEBUG=1) and CVY_DUMP all of them. */
cvy_status cvyi_jit_compile(const jit_request *request, jit_code *out);
void cvyi_jit_free(jit_code *code);

#endif
