/* exec.h - how the CPU runs a pass: units of samples, steps in order, slices in cache.
 *
 * A unit is `chunk` samples of a pass. It goes through the pass's steps one after the other; intermediate values
 * are in the unit's slices, sized to stay in cache. How a step cuts its work into parts depends only on sizes, so
 * it does not matter which thread runs a part:
 *
 *   many units   every thread takes whole units, its own slices          (no waiting at all)
 *   few units    all threads take the parts of one step, then the next   (a barrier between steps)
 *
 * Both give the same bits. A pass that cannot be taken sample by sample is one unit. */
#ifndef CVYI_EXEC_H
#define CVYI_EXEC_H

#include "../plan/plan.h"
#include "conv.h"
#include "convert.h"
#include "cpuinfo.h"
#include "gemm.h"
#include "pointwise.h"
#include "pool.h"

/* Where a pass finds a value. */
typedef enum spot_kind {
    SPOT_NONE,      /* nowhere: it lives in a program's tiles */
    SPOT_TENSOR,    /* buffer number `at` of run() */
    SPOT_WORKSPACE, /* byte `at` of the run's memory (cvyi_at) */
    SPOT_SLICE      /* byte `at` of the unit's slices */
} spot_kind;

typedef struct spot {
    int v; /* the value, a root */
    spot_kind kind;
    int64_t at;
    int64_t per;    /* elements per sample; whole tensors and shared ones: all elements */
    bool sliced;    /* has one part per sample: a unit sees its own samples only */
    int64_t shadow; /* byte of the slices: contiguous floats that stand in if the caller's tensor is strided (of one
                       that `scatters`, turned: strided.h), or the value is `staged`; -1: none */
    bool scatters;  /* the step that makes it writes strided tensors, an element at a time */
    int64_t shift;  /* byte of the slices where double[channels] lies: the value is element + shift; -1: none */
    bool staged;    /* fp16 or bf16 in memory, read or made by a step that takes only floats: the shadow is used */
} spot;

/* Bytes [from, to) of a unit's slices between two of them, in builds with the address sanitizer (fence.c). */
typedef struct fence {
    int64_t from, to;
} fence;

typedef struct cpu_pass cpu_pass;
typedef struct cpu_state cpu_state;

/* One run() of a plan. */
typedef struct cpu_run {
    const cvy_plan *plan;
    const cpu_state *state;
    const cvy_buffer *buffers;
    const run_memory *memory;
} cpu_run;

/* Samples n0 ... n0 + m - 1 of a pass at work. */
typedef struct cpu_unit {
    const cpu_run *run;
    const cpu_pass *pass;
    char *slices;
    int64_t n0, m;
} cpu_unit;

typedef struct step {
    const char *name;
    int64_t (*parts)(const struct step *s, const cpu_unit *u);
    void (*run)(const struct step *s, const cpu_unit *u, int64_t part, char *scratch);
    const void *data;                             /* the step's own record, in the plan's arena */
    int64_t scratch;                              /* bytes per worker, contents meaningless between parts */
    void (*print)(const struct step *s, text *t); /* packing: all that the packed bytes depend on */
} step;

enum { MAX_STEPS = 5 }; /* a node becomes at most so many steps */

struct cpu_pass {
    const pass *pass;
    int64_t samples, chunk, units;
    spot *spots; /* of the values that the pass touches, in the order of their numbers */
    int n_spots;
    step *steps;
    int n_steps, cap_steps;
    int64_t slice_bytes;   /* of one unit */
    int64_t scratch_bytes; /* of one worker */
    fence *fences;         /* fence.c */
    int n_fences, cap_fences;
    double work; /* seconds of one thread, roughly: little work is not worth waking others */
};

struct cpu_state {
    cpu_isa isa;
    int threads;
    machine host;
    const cpu_vector_kernels *vec;
    const cpu_reduce_kernels *red;
    const cpu_conv_kernels *conv;
    const cpu_pool_kernels *pool;
    const cpu_convert_kernels *convert;
    const cpu_turn_kernels *turn;
    cpu_pass *passes;    /* one per pass of the plan */
    cpu_pass pack;       /* steps that pack weights, run after the plan's prepare pass */
    cpu_pass *late;      /* per pass: steps that pack weights which are inputs or computed, run before it */
    int64_t packed_end;  /* of the workspace: after values and weights that are packed in every run */
    int64_t *param_copy; /* per tensor: byte for contiguous floats of a parameter that has strides or another dtype,
                            prepared; -1 */
};

/* ---- exec.c ---- */

/* Where a pass has a root that it touches. */
spot *cvyi_find_spot(const cpu_pass *s, int root);
static inline spot *cvyi_unit_spot(const cpu_unit *u, int v)
{
    return cvyi_find_spot(u->pass, u->run->plan->root[v]);
}
/* The unit's part of a value as floats: contiguous, [m][per]. NULL: only programs touch it, and it is strided but
 * not turned (then it is written by cvyi_unit_scatter) or not float32 (then cvyi_unit_words has it, unless it is
 * strided, too). */
float *cvyi_unit_data(const cpu_unit *u, int v);
/* The same for an fp16 or bf16 value in place. NULL: it is strided, or cvyi_unit_data has it. */
uint16_t *cvyi_unit_words(const cpu_unit *u, int v);
/* The unit's part of a value that steps read in place: floats, or words of *dtype. */
const void *cvyi_unit_elements(const cpu_unit *u, int v, cvy_dtype *dtype);
static inline cvy_dtype cvyi_unit_dtype(const cpu_unit *u, int v)
{
    return u->run->plan->graph->values[u->run->plan->root[v]].dtype;
}
/* n floats of a value from `first` on: in place, or widened into `room`. */
const float *cvyi_unit_floats(const cpu_unit *u, int v, int64_t first, int64_t n, float *room);
/* Writes n elements from `first` on (counted in the unit's contiguous order) of an output with strides. */
void cvyi_unit_scatter(const cpu_unit *u, int v, int64_t first, int64_t n, const float *src);
cvy_status cvyi_cpu_run(const cvy_plan *p, const cvy_buffer *buffers, const run_memory *memory, uint32_t flags,
                        void *stream);
/* The same; NULL for CVY_NONE. */
static inline const float *cvyi_unit_optional(const cpu_unit *u, int v)
{
    return v == CVY_NONE ? NULL : cvyi_unit_data(u, v);
}
static inline float *cvyi_packed(const cpu_unit *u, int64_t at)
{
    return (float *)(void *)cvyi_at(u->run->memory, at);
}

/* How many samples of a batch of N the unit holds: its own, or all if the pass is taken as a whole. */
static inline int64_t cvyi_unit_batch(const cpu_unit *u, int64_t N)
{
    return u->pass->pass->samples > 1 ? u->m : N;
}

/* Do threads take whole units of the pass, or the parts of its steps together? */
bool cvyi_pass_many(const cpu_pass *s, int threads);

/* ---- lower.c ---- */

typedef struct cpu_choice cpu_choice; /* choice.h */

typedef struct builder {
    cvy_plan *plan;
    cpu_state *state;
    cpu_pass *out;
    cvy_graph *g;
    const cpu_choice *choice; /* of the pass */
} builder;
cvy_status cvyi_lower_passes(cvy_plan *p);
/* Appends a step with a zeroed record; NULL: out of memory. */
step *cvyi_add_step(builder *b, const char *name, size_t data_bytes, void **data);
/* The same for a node's step, with its functions. */
step *cvyi_add_node_step(builder *b, const char *name, size_t bytes,
                         int64_t (*parts)(const step *, const cpu_unit *),
                         void (*run)(const step *, const cpu_unit *, int64_t, char *), void **data);
/* parts() of a step that is not cut. */
int64_t cvyi_one_part(const step *s, const cpu_unit *u);
/* The same among the steps that pack weights: run when parameters have changed, or before the pass if the
 * weight does not depend only on parameters. */
step *cvyi_add_pack(builder *b, int weight, size_t data_bytes, void **data);
int64_t cvyi_slice(builder *b, int64_t bytes);                   /* reserves, aligned to 64 */
int64_t cvyi_packed_room(builder *b, int weight, int64_t bytes); /* of the run's memory, aligned to 64 */
/* ---- fence.c: empty in builds without the address sanitizer ---- */

/* Puts a fence after the slice at `at`, which is the last one so far. */
void cvyi_fence_slice(builder *b, int64_t at, int64_t bytes);
/* A pass is complete: removes the fences of abandoned slices, and puts one after the scratch. */
void cvyi_fence_pass(cpu_pass *s);
/* Poisons or unpoisons the fences of a pass with so many sets of slices and so many workers. */
void cvyi_fence_run(const cpu_pass *s, char *slices, int sets, int workers, bool up);

static inline spot *cvyi_spot(const builder *b, int v)
{
    return cvyi_find_spot(b->out, b->plan->root[v]);
}
/* ---- steps ---- */

/* The statistics of a slice as float fields. */
void cvyi_store_stats(const norm_geom *e, cpu_moments m, float *out);

/* Tunings that effort "measure" tries; those between force a convolution algorithm if it is legal. */
enum {
    TUNE_COST,
    TUNE_DIRECT,
    TUNE_PATCHES,
    TUNE_CHANNELS,
    TUNE_WINOGRAD_4X4,
    TUNE_WINOGRAD_2X4,
    TUNE_WINOGRAD_2X2,
    TUNE_RECOMPUTE,
    TUNE_APART,
    TUNE_COUNT
};
/* measure.c */
cvy_status cvyi_cpu_measure(const cvy_plan *p, double *seconds);
cvy_status cvyi_cpu_measure_passes(const cvy_plan *p, double *seconds);
/* exec.c: one pass of a run, after what it reads */
void cvyi_cpu_run_pass(const cvy_plan *p, int index, const cvy_buffer *buffers, const run_memory *memory);

static inline int64_t cvyi_align64(int64_t bytes)
{
    return cvyi_round_up(bytes, 64);
}

#endif
