/* launch.c - modules, launches, device memory and timing; see launch.h. */
#include <string.h>
#include "launch.h"

/* ---- kernels ---- */

static cvy_status read_attributes(const cuda_api *cu, cuda_kernel *k)
{
    const struct {
        int attribute;
        int *value;
    } wanted[] = {{CU_FUNC_REGISTERS, &k->registers},
                  {CU_FUNC_LOCAL_BYTES, &k->local_bytes},
                  {CU_FUNC_SHARED_BYTES, &k->shared_bytes},
                  {CU_FUNC_MAX_THREADS, &k->max_threads}};
    cvy_status st = CVY_OK;

    for (int i = 0; i < COUNT_OF(wanted); i++)
        TRY(CU(cu, cuFuncGetAttribute, wanted[i].value, wanted[i].attribute, k->function));
fail:
    return st;
}

cvy_status cvyi_cuda_allow_shared(const cuda_device *d, const cuda_kernel *k, int dynamic_shared)
{
    enum { ALLOWED_ANYWAY = 48 * 1024 }; /* of static and dynamic shared memory together */
    const int bytes = k->shared_bytes + dynamic_shared;

    if (bytes > d->shared_block)
        return cvyi_fail(CVY_UNSUPPORTED, "%d + %d bytes of shared memory, a block has %d", k->shared_bytes,
                         dynamic_shared, d->shared_block);
    if (bytes <= ALLOWED_ANYWAY) return CVY_OK;
    return CU(d->cu, cuFuncSetAttribute, k->function, CU_FUNC_MAX_DYNAMIC_SHARED, dynamic_shared);
}

cvy_status cvyi_cuda_load(const cuda_device *d, const jit_code *code, const char *entry, int dynamic_shared,
                          cuda_kernel *out)
{
    const cuda_api *cu = d->cu;
    cvy_status st;

    memset(out, 0, sizeof *out);
    TRY(CU(cu, cuModuleLoadData, &out->module, code->cubin));
    TRY(CU(cu, cuModuleGetFunction, &out->function, out->module, entry));
    /* Reading attributes also makes a driver that loads lazily load now, and not inside a capture. */
    TRY(read_attributes(cu, out));
    TRY(cvyi_cuda_allow_shared(d, out, dynamic_shared));
    cvyi_log(4, "%s: %d registers, %d bytes spilled, %d + %d bytes shared", entry, out->registers, out->local_bytes,
             out->shared_bytes, dynamic_shared);
    return CVY_OK;
fail:
    cvyi_cuda_unload(d, out);
    return cvyi_fail_within(st, "%s: ", entry);
}

void cvyi_cuda_unload(const cuda_device *d, cuda_kernel *k)
{
    if (k->module) d->cu->cuModuleUnload(k->module);
    memset(k, 0, sizeof *k);
}

const char *cvyi_cuda_launch_refusal(const cuda_device *d, const cuda_launch *l)
{
    if (l->grid[0] > GRID_X_MOST) return "a grid of more than 2^31 - 1 blocks in x";
    if (l->grid[1] > GRID_YZ_MOST || l->grid[2] > GRID_YZ_MOST) return "a grid of more than 65535 blocks in y or z";
    if ((uint64_t)l->block[0] * l->block[1] * l->block[2] > BLOCK_THREADS_MOST)
        return "more than 1024 threads in a block";
    if (l->dynamic_shared > (unsigned)d->shared_block) return "more shared memory than a block may have";
    return NULL;
}

enum { MOST_ATTRS = 3 };

static CUlaunchConfig make_config(const cuda_launch *l, CUstream stream, CUlaunchAttribute attrs[MOST_ATTRS])
{
    CUlaunchConfig c = {.shared_bytes = l->dynamic_shared, .stream = stream, .attrs = attrs};

    memcpy(c.grid, l->grid, sizeof c.grid);
    memcpy(c.block, l->block, sizeof c.block);
    if (l->cooperative) {
        attrs[c.n_attrs].id = CU_LAUNCH_COOPERATIVE;
        attrs[c.n_attrs++].value.cooperative = 1;
    }
    if (l->cluster[0]) {
        attrs[c.n_attrs].id = CU_LAUNCH_CLUSTER;
        memcpy(attrs[c.n_attrs++].value.cluster, l->cluster, sizeof l->cluster);
    }
    if (l->follows) {
        attrs[c.n_attrs].id = CU_LAUNCH_FOLLOWS;
        attrs[c.n_attrs++].value.follows = 1;
    }
    return c;
}

cvy_status cvyi_cuda_launch(const cuda_device *d, const cuda_kernel *k, const cuda_launch *l, CUstream stream,
                            void **arguments)
{
    CUlaunchAttribute attrs[MOST_ATTRS];
    const CUlaunchConfig config = make_config(l, stream, attrs);
    return CU(d->cu, cuLaunchKernelEx, &config, k->function, arguments, NULL);
}

cvy_status cvyi_cuda_blocks_per_sm(const cuda_device *d, const cuda_kernel *k, const cuda_launch *l, int *out)
{
    const int threads = (int)(l->block[0] * l->block[1] * l->block[2]);
    return CU(d->cu, cuOccupancyMaxActiveBlocksPerMultiprocessor, out, k->function, threads, l->dynamic_shared);
}

/* ---- memory and streams ---- */

cvy_status cvyi_cuda_alloc(const cuda_device *d, size_t bytes, CUdeviceptr *out)
{
    *out = 0;
    return CU(d->cu, cuMemAlloc, out, bytes ? bytes : 1);
}

void cvyi_cuda_free(const cuda_device *d, CUdeviceptr memory)
{
    if (memory) d->cu->cuMemFree(memory);
}

cvy_status cvyi_cuda_wait(const cuda_device *d, CUstream stream)
{
    return CU(d->cu, cuStreamSynchronize, stream);
}

cvy_status cvyi_cuda_upload(const cuda_device *d, CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    const cvy_status st = bytes ? CU(d->cu, cuMemcpyHtoDAsync, dst, src, bytes, stream) : CVY_OK;
    return st ? st : cvyi_cuda_wait(d, stream);
}

cvy_status cvyi_cuda_download(const cuda_device *d, void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    const cvy_status st = bytes ? CU(d->cu, cuMemcpyDtoHAsync, dst, src, bytes, stream) : CVY_OK;
    return st ? st : cvyi_cuda_wait(d, stream);
}

cvy_status cvyi_cuda_fill(const cuda_device *d, CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    return bytes ? CU(d->cu, cuMemsetD8Async, dst, value, bytes, stream) : CVY_OK;
}

cvy_status cvyi_cuda_stream_create(const cuda_device *d, CUstream *out)
{
    enum { NON_BLOCKING = 1 }; /* does not wait for the default stream */
    *out = NULL;
    return CU(d->cu, cuStreamCreate, out, NON_BLOCKING);
}

void cvyi_cuda_stream_free(const cuda_device *d, CUstream stream)
{
    if (stream) d->cu->cuStreamDestroy(stream);
}

/* ---- time ---- */

cvy_status cvyi_cuda_timer_create(const cuda_device *d, cuda_timer *out)
{
    cvy_status st;

    memset(out, 0, sizeof *out);
    out->flush_bytes = 2 * (size_t)d->l2_bytes;
    TRY(cvyi_cuda_alloc(d, out->flush_bytes, &out->flush));
    TRY(CU(d->cu, cuEventCreate, &out->start, 0));
    TRY(CU(d->cu, cuEventCreate, &out->stop, 0));
    return CVY_OK;
fail:
    cvyi_cuda_timer_free(d, out);
    return st;
}

void cvyi_cuda_timer_free(const cuda_device *d, cuda_timer *t)
{
    if (t->start) d->cu->cuEventDestroy(t->start);
    if (t->stop) d->cu->cuEventDestroy(t->stop);
    cvyi_cuda_free(d, t->flush);
    memset(t, 0, sizeof *t);
}

cvy_status cvyi_cuda_timer_start(const cuda_device *d, cuda_timer *t, CUstream stream)
{
    const cvy_status st = cvyi_cuda_fill(d, t->flush, 0, t->flush_bytes, stream);
    return st ? st : CU(d->cu, cuEventRecord, t->start, stream);
}

cvy_status cvyi_cuda_timer_stop(const cuda_device *d, cuda_timer *t, CUstream stream, double *seconds)
{
    float ms = 0;
    cvy_status st;

    TRY(CU(d->cu, cuEventRecord, t->stop, stream));
    TRY(CU(d->cu, cuEventSynchronize, t->stop));
    TRY(CU(d->cu, cuEventElapsedTime, &ms, t->start, t->stop));
    *seconds = ms * 1e-3;
fail:
    return st;
}
