/* check.h - one graph under many plans on whatever device the driver shows (a GPU, or test/emulate), against the
 * reference in double.
 *
 * Every tensor of a rig, with its strides, gaps and guards, is copied to the device as it lies (device.h). A plan
 * runs in a workspace of NaNs on contiguous tensors and on strided ones, and again with what it had prepared,
 * through a captured graph where the driver has those, and in other orders of blocks and threads where it is the
 * emulator: results are within what doubt.h derives, guards and inputs survive, and the bits are the same each
 * time. */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include "device.h"
#include "doubt.h"

/* ---- ways to run one plan ---- */

typedef enum run_way { RUN_FRESH, RUN_KEPT, RUN_CAPTURED, RUN_REVERSED, RUN_SHUFFLED, RUN_WAYS } run_way;

/* The outputs, NULL if it went wrong: cvy_last_error() says how. */
float *run_one_way(gpu_rig *t, const cvy_plan *plan, CUdeviceptr at, run_way how, int64_t *count);

/* ---- a graph: two rigs, contiguous and strided, under some plans ---- */

enum { CHECK_RIGS = 2, CHECK_PRECISIONS = 2 };
extern const doubt_rounding checked_rounding[DTYPE_COUNT][CHECK_PRECISIONS];
extern const char *const precision_names[CHECK_PRECISIONS];

typedef struct checked_graph {
    const gpu *u;
    cvy_graph *g;
    cvy_graph *twin;   /* the same graph in float32, which the reference computes */
    const char *title; /* how to name it in a report */
    rig rigs[CHECK_RIGS];
    gpu_rig on_device[CHECK_RIGS];
    doubt doubts[CHECK_PRECISIONS][CHECK_RIGS];
    double worst[CHECK_PRECISIONS];
    int first; /* of the rigs that are checked */
} checked_graph;

/* The same graph with every value in one dtype; parameters too, where asked for. Freed by the caller. */
cvy_graph *graph_as(const cvy_graph *g, cvy_dtype dtype, bool parameters);
/* Rounds a rig's sources to the dtypes that the tensors of g have. */
void round_rig(rig *r, const cvy_graph *g);

void check_open(checked_graph *c, const gpu *u, cvy_graph *g, rig_data kind, uint64_t seed);
/* Only the second rig is checked, and its images lie channels last, instead of anyhow. */
void check_open_last(checked_graph *c, const gpu *u, cvy_graph *g, rig_data kind, uint64_t seed);
void check_close(checked_graph *c);

/* Kinds of plans, as bits. */
enum {
    PLAN_LIKED = 1,      /* what the engine chooses */
    PLAN_ONE_BY_ONE = 2, /* every operator by itself */
    PLAN_SECOND_TILE = 4,
    PLAN_TILES = 4 | 8 | 16,
    PLAN_GENERIC = 32,
    PLAN_RANDOM = 64,
    PLAN_RANDOM_TOO = 128,
    PLAN_KINDS = 8
};

/* tuning: as of effort "measure" (cvyi_cuda_tunings); random: the seed's share of its own, 0: none. */
typedef struct plan_kind {
    const char *name;
    cvy_switch fuse;
    int tuning;
    uint32_t random;
} plan_kind;
extern const plan_kind plan_kinds[PLAN_KINDS];

cvy_status check_plan_create(cvy_graph *g, const plan_kind *k, cvy_precision precision, uint32_t seed,
                             cvy_plan **out);

bool check_plan(checked_graph *c, const plan_kind *k, cvy_precision precision, uint32_t seed);
/* Plans of the kinds asked for, in one precision. */
bool check_plans(checked_graph *c, cvy_precision precision, int kinds, uint32_t seed);

#endif
