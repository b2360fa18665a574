/* device.h - what a checker needs of whatever device the driver shows (a GPU, or test/emulate): buffers with guard
 * bands, the tensors of a rig in them, CUDA graphs.
 *
 * Before and after every buffer, tensors and workspaces alike, lie BAND bytes that nobody may write. A bare
 * device has none, and no gaps either: buffers end where tensors do, so that compute-sanitizer, or the emulator,
 * sees every access outside of them, reads as well. */
#ifndef TEST_DEVICE_H
#define TEST_DEVICE_H

#define TEST_WITHOUT_CMOCKA
#include "../../src/cuda/exec.h"
#include "rig.h"

typedef struct gpu {
    cuda_device *device;
    CUstream stream;
    bool emulated;  /* the order of blocks can be chosen */
    bool bare;      /* no guard bands */
    bool sanitized; /* plans run once, in workspaces as they were allocated: initcheck takes a fill for a value */
} gpu;

bool test_gpu_open(gpu *u);
void test_gpu_close(gpu *u);

/* ---- buffers between guard bands ---- */

typedef struct guarded {
    CUdeviceptr base, at; /* what was allocated; where the buffer begins */
    size_t bytes, band;
} guarded;

cvy_status guarded_alloc(const gpu *u, size_t bytes, guarded *out);

void guarded_free(const gpu *u, guarded *g);

/* Are both bands as they were? */
bool guarded_intact(const gpu *u, const guarded *g);

/* ---- elements of 16 bits ---- */

uint16_t half_bits(cvy_dtype dtype, float x);
float half_value(cvy_dtype dtype, uint16_t bits);

/* ---- tensors on the device ---- */

typedef struct gpu_rig {
    const gpu *u;
    rig *r;
    cvy_dtype dtype[RIG_TENSORS]; /* in the device's memory; the rig's own is float32 */
    guarded memory[RIG_TENSORS];
    cvy_buffer buffers[RIG_TENSORS];
} gpu_rig;

void gpu_rig_open(gpu_rig *t, const gpu *u, rig *r);
/* The device's tensors have the dtypes that `g` has, whose twin in float32 the rig's graph is. */
void gpu_rig_open_as(gpu_rig *t, const gpu *u, rig *r, const cvy_graph *g);
void gpu_rig_close(gpu_rig *t);

/* Guards in the place of the outputs. */
void gpu_rig_wipe(gpu_rig *t);

/* As rig_outputs(). */
float *gpu_rig_outputs(gpu_rig *t, int64_t *count);

/* Is what no run may write as it was: all bands, and the inputs? */
bool gpu_rig_intact(const gpu_rig *t);

/* ---- CUDA graphs: the few calls that the engine itself never makes ---- */

/* Captures a run and launches it twice. */
cvy_status run_captured(gpu_rig *t, const cvy_plan *plan, void *work);

#endif
