/* plan.h - how to compute a graph: passes, how each carries values across a barrier, where values are stored.
 *
 * The lowered graph (after src/simplify) is a list of nodes in running order; a pass is an interval of that list,
 * one trip through memory. Values that only their own pass reads never leave the chip. Choosing a plan means
 * choosing where to cut the list (choose.c): enumerate intervals, ask the engine whether each is legal and what it
 * costs, pick the cheapest partition. Engines are called through `struct engine`; nothing here depends on a device.
 */
#ifndef CVYI_PLAN_H
#define CVYI_PLAN_H

#include "../graph/graph.h"
#include "../util/sha256.h"

/* How the values before a barrier (statistics, a reduction) survive until after it. */
typedef enum way {
    WAY_STREAM,    /* the pass has no barrier: values flow through */
    WAY_FOLD,      /* algebra moved the reduction before the barrier: only reduced values wait */
    WAY_RESIDENT,  /* they stay on chip: a slice in cache, registers or shared memory */
    WAY_RECOMPUTE, /* the producer runs twice: for the statistics, and to finish */
    WAY_STORE      /* they are written to memory in one pass and read back in another */
} way;
const char *cvyi_way_name(way w);

enum { PASS_NODES = 48 }; /* of one interval at most; the prepared pass may have more */

typedef struct pass {
    int first, count; /* nodes first ... first + count - 1 of the lowered graph */
    way way;
    bool by_sample;  /* the samples along dimension 0 are independent of each other */
    int64_t samples; /* how many; 1 if they are not */
    double flops;    /* convolutions counted as direct ones */
    double bytes;    /* through memory */
    double seconds;  /* predicted */
    double measured; /* seconds, by cvy_plan_measure(); 0: not yet */
    char note[120];  /* the engine's note, for the printed plan */
    void *choice;    /* how the engine runs it, of choice_bytes: made by judge(), read by everything after it */
} pass;

/* An alternative that was not taken. */
typedef struct rejected {
    int first, count;
    double seconds; /* predicted; 0 if it was not legal */
    char why[160];
} rejected;

/* Where a value is stored while the plan runs. */
typedef enum place_kind {
    PLACE_NONE,     /* nowhere: computed and read inside one pass, or not needed at all */
    PLACE_TENSOR,   /* buffer number `at` of run() */
    PLACE_WORKSPACE /* byte `at` of the run's memory, contiguous; see WORKSPACE_BASE */
} place_kind;
typedef struct place {
    place_kind kind;
    int64_t at;
} place;

/* The memory of a run is two buffers, or both in one: the prepared part (values that depend only on parameters,
 * packed weights) and the workspace (everything else). Offsets in the first start at 0, in the second at
 * WORKSPACE_BASE. */
#define WORKSPACE_BASE (INT64_C(1) << 48)
typedef struct run_memory {
    char *prepared, *workspace;
    bool kept; /* the workspace has not changed since the plan's last run */
} run_memory;
static inline char *cvyi_at(const run_memory *m, int64_t at)
{
    return at < WORKSPACE_BASE ? m->prepared + at : m->workspace + (at - WORKSPACE_BASE);
}

/* What the cost formulas know of a device. */
typedef struct device_model {
    char name[64];
    double flops;           /* peak, multiplications and additions per second, all units together */
    double bandwidth;       /* bytes per second to and from memory */
    double cache_bandwidth; /* bytes per second to and from the level where slices live */
    int64_t cache;          /* bytes one worker may keep resident */
    int workers;            /* threads or multiprocessors */
    double launch;          /* seconds of overhead for each pass */
} device_model;

typedef struct engine {
    cvy_device device;
    const char *name;
    unsigned dtypes; /* that values may have: bit 1 << cvy_dtype */
    bool lowers;     /* runs passes of the lowered graph; false: runs the original graph (the reference) */
    bool watches;    /* its buffers are in host memory and run() is synchronous, so values can be watched */
    cvy_status (*open)(cvy_plan *p); /* is the device there? fills p->machine, may set p->state */
    /* Can it run the pass? NULL, and the decision how is made: way, seconds, note and what s->choice points to are
     * filled in. Else the reason in words. */
    const char *(*judge)(const cvy_plan *p, pass *s);
    /* The same of the pass of all nodes that are prepared, which may have any number of them: s->choice is in
     * p->memory. */
    cvy_status (*judge_prepared)(cvy_plan *p, pass *s);
    size_t choice_bytes; /* of the engine's own part of a decision */
    /* Copies s->choice to p->memory, with its pointers into itself adjusted. NULL: copying its bytes is enough. */
    void *(*keep)(cvy_plan *p, const pass *s);
    bool (*same_choice)(const void *a, const void *b); /* do passes with these run alike? */
    void (*why)(const cvy_plan *p, const pass *s,
                text *t); /* what every kernel answered, a line each; may be NULL */
    /* Passes and places are settled: adds what it packs to p->prepared_bytes, sets p->workspace. */
    cvy_status (*prepare)(cvy_plan *p);
    /* Compiles prepared plans together; may change both sizes. After a failure no plan has code. May be NULL. */
    cvy_status (*compile)(cvy_plan *const *plans, int n);
    /* Describes what it added to the prepared part: plans with the same text write the same bytes. May be NULL. */
    void (*packing)(const cvy_plan *p, text *t);
    cvy_status (*run)(const cvy_plan *p, const cvy_buffer *buffers, const run_memory *memory, uint32_t flags,
                      void *stream);
    void (*close)(cvy_plan *p);                   /* frees p->state; accepts half-built */
    void (*describe)(const cvy_plan *p, text *t); /* engine's lines of the printed plan; may be NULL */
    /* cvy_plan_launches(); may be NULL */
    cvy_status (*launches)(const cvy_plan *p, const cvy_buffer *buffers, text *t);
    /* For effort "measure": names of tunings, ended by NULL; number 0 lets the cost model decide. A tuning reaches
     * judge() as p->tuning. Both may be NULL: nothing is measured. */
    const char *const *tunings;
    cvy_status (*measure)(const cvy_plan *p, double *seconds);
    /* The same for each pass, in order. May be NULL. */
    cvy_status (*measure_passes)(const cvy_plan *p, double *seconds);
} engine;

extern const engine cvyi_engine_ref, cvyi_engine_cpu, cvyi_engine_cuda;

struct cvy_plan {
    const engine *engine;
    cvy_options options; /* defaults filled in */
    int tuning;          /* of the engine's tunings */
    rewrite_mode mode;
    bool waits;        /* for cvy_plans_compile() */
    bool watches;      /* some value of the lowered graph is watched */
    double measured;   /* seconds, if the choice was measured; else 0 */
    cvy_graph *source; /* the original graph */
    cvy_graph *graph;  /* lowered; the same inputs, parameters and outputs in the same order */
    device_model machine;
    text rewrites; /* the rewrites that were applied, a line each */
    arena memory;  /* everything below, and the engine's plan-lifetime data */

    int n_tensors;     /* of run() */
    int *tensor_value; /* value of the lowered graph for each of them */
    int *root;         /* per value: whose memory it shares (itself, unless a reshape of another) */
    int *last_reader;  /* per value: last node that reads it; n_nodes for outputs, -1: nobody */
    int *last_sharer;  /* per root: the same of all values that share its memory */
    bool *prepared;    /* per value: depends only on parameters */
    place *places;     /* per value; aliases have their root's place */
    int *last_use;     /* per value: last pass that reads it; n_passes for outputs, -1: none */
    int *read_by;      /* per value: stamp of the last interval that read it from outside (interval.c) */
    int last_stamp;

    pass *passes; /* pass 0 holds the prepared nodes if there are any: see n_prepare */
    int n_passes;
    int n_prepare; /* passes at the front that depend only on parameters: 0 or 1 */
    rejected *rejections;
    int n_rejections;

    int64_t prepared_bytes;            /* what CVY_KEEP_PREPARED keeps */
    int64_t value_bytes;               /* bytes of values in the workspace, which come first */
    size_t workspace;                  /* all of it, set by the engine; the prepared part is not in it */
    char digest[2 * SHA256_BYTES + 1]; /* of the prepared part: see cvy_plan_prepared() */
    void *state;                       /* the engine's */
};

/* choose.c: cuts the lowered graph into passes. */
cvy_status cvyi_choose(cvy_plan *p);
/* place.c: roots, prepared values, and after the choice the place of every value. */
cvy_status cvyi_find_roots(cvy_plan *p);
cvy_status cvyi_place(cvy_plan *p);
/* plan.c: a plan with one of the engine's tunings. */
cvy_status cvyi_plan_tuned(const cvy_graph *graph, const cvy_options *options, int tuning, cvy_plan **out);
/* plan.c: the same plan without rewrites that hold only for finite values. */
cvy_status cvyi_plan_careful(const cvy_plan *p, cvy_plan **out);
/* compile.c: code for prepared plans of one engine, and everything that is known only then. */
cvy_status cvyi_compile(cvy_plan *const *plans, int n);
/* prepared.c: a digest of what is in the prepared part. */
cvy_status cvyi_digest_prepared(cvy_plan *p);
/* measure.c: the fastest tuning and its seconds, measured now or remembered. */
cvy_status cvyi_measure(cvy_plan *p, int *tuning, double *seconds);
/* print.c */
/* What the text of a plan calls a value. (title.c) */
void cvyi_print_title(const cvy_graph *g, int v, text *t);
void cvyi_print_plan(const cvy_plan *p, text *t);
void cvyi_print_why(const cvy_plan *p, text *t);

/* ---- what engines need to know about an interval (interval.c) ---- */

/* An interval that grows node by node towards the front, and what the search asks of it; each node costs as many
 * steps as it has arguments, whatever is in the interval already. */
typedef struct interval {
    int first, end;
    double flops, bytes; /* bytes: of everything it reads from outside (each value once) and leaves to others */
    int64_t samples;     /* extent of dimension 0, if every node works on each sample independently; else 0 */
    int64_t N;           /* the extent that was asked of the nodes from `first` on ... */
    bool by_sample;      /* ... and do all of them work on each sample independently? */
    bool aliases;        /* some node reads a value that shares another's memory */
    int stamp;           /* read_by[v] of the plan where the interval reads v from outside */
} interval;
void cvyi_interval_begin(cvy_plan *p, int end, interval *in);
void cvyi_interval_grow(cvy_plan *p, interval *in);
/* Does the value, in its own shape, have one part for each of N samples? Statistics may have several rows per
 * sample. */
bool cvyi_has_samples(const cvy_plan *p, int v, int64_t N);
/* Is value v computed inside the interval / read after it (or an output)? */
bool cvyi_made_inside(const cvy_plan *p, const pass *s, int v);
bool cvyi_needed_after(const cvy_plan *p, const pass *s, int v);
/* The same of a root, or of any value that shares its memory. */
bool cvyi_memory_needed_after(const cvy_plan *p, const pass *s, int root);
bool cvyi_is_output(const cvy_graph *g, int v);
static inline bool cvyi_is_producer(op_kind k)
{
    return k == KIND_CONV || k == KIND_CONVT || k == KIND_LINEAR || k == KIND_MATMUL;
}
static inline bool cvyi_is_pointwise(op_kind k)
{
    return k == KIND_UNARY || k == KIND_BINARY || k == KIND_APPLY;
}

/* ---- watch.c ---- */

/* Is this value of a lowered graph, not only of parameters, to be checked after the run? */
static inline bool cvyi_is_watched(const cvy_graph *g, int v)
{
    return g->values[v].watched && g->values[v].node >= 0;
}
/* Are values watched? Then room for a mark is added to the prepared part. Called when the plan is complete. */
void cvyi_watch(cvy_plan *p);
cvy_status cvyi_watched_run(const cvy_plan *p, const cvy_buffer *buffers, const run_memory *memory, uint32_t flags,
                            void *stream);

#endif
