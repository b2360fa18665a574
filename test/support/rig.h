/* rig.h - a graph with its tensors in memory, run on the CPU engine and on the reference.
 *
 * Tensors lie as a rig is told: contiguous, or with random strides (dimensions in any order, gaps, backwards,
 * inputs also with strides of 0). Everything in an output's memory that is not the output's is a guard that must
 * survive a run. What a run leaves is read back in row-major order. */
#ifndef TEST_RIG_H
#define TEST_RIG_H

#include <math.h>
#include "../../src/plan/plan.h"
#include "../../src/ref/ref.h"
#include "../unit/unit.h"

enum { RIG_TENSORS = 64, RIG_EDGE = 64 /* cells of guard at both ends of a tensor, some vectors wide */ };
#define RIG_GUARD (-54321.625f)

typedef enum rig_data {
    RIG_WHOLE, /* whole numbers, parameters smaller */
    RIG_REAL   /* between -1 and 1, variances positive */
} rig_data;

typedef struct rig_tensor {
    cvy_tensor info;
    int64_t count;
    float *memory; /* cells of them */
    int64_t cells;
    uint16_t *words; /* fp16 and bf16: the cells as run() sees them; NULL: it sees memory. What a test puts into
                        memory after rig_open() must be a number of the dtype, and rig_pass_on() called */
    float guard;
    float *origin; /* where element 0 lies */
    int64_t strides[CVY_MAX_RANK];
    double *want; /* outputs: row-major */
} rig_tensor;

typedef struct rig {
    cvy_graph *g; /* not owned */
    int n, n_sources;
    rig_tensor t[RIG_TENSORS];
    cvy_buffer buffers[RIG_TENSORS];
} rig;

float *rig_at(const rig_tensor *t, int64_t i);

/* strided: how many of 8 tensors have strides of their own. */
void rig_open(rig *r, cvy_graph *g, uint64_t *seed, rig_data kind, int strided);

/* Lays a tensor out with dimension `inner` innermost; every image, 1: channels last. */
void rig_lay_last(rig *r, int i, int inner);
void rig_images_last(rig *r);
void rig_close(rig *r);

/* Sources of other dtypes, as memory has them now, to their words. */
void rig_pass_on(rig *r);

/* The reference's outputs, into t->want. */
void rig_reference(rig *r);

/* Outputs are overwritten with guards before a run ... */
void rig_wipe(rig *r);

/* ... and afterwards nothing but the outputs' own cells has changed: the outputs, all of them in row-major order
 * one after the other; NULL if a guard was hit. */
float *rig_outputs(rig *r, int64_t *count);

/* A workspace of exactly the size asked for, with rubbish in it. */
void *rig_workspace(const cvy_plan *p);

/* Runs a plan once on the rig's tensors. */
float *rig_run(rig *r, const cvy_plan *p, int64_t *count);

bool rig_same_bits(const float *a, const float *b, int64_t n);

/* The text of a plan; freed by the caller. */
char *rig_plan_text(const cvy_plan *p);

#endif
