/* maker.h - a step while it is made: its views, its two programs, its options. Shared by lower.c and the cores. */
#ifndef CVYI_CUDA_MAKER_H
#define CVYI_CUDA_MAKER_H

#include "exec.h"
#include "kernels/host_device.cuh"

enum { MAX_STATEMENTS = 160, MAX_DEFINES = 48, DEFINE_BYTES = 96, NAME_LENGTH = 96 };

/* The space a kernel runs over: up to six extents, and where the dimensions of the values in it are. */
typedef struct space {
    int64_t extent[EMIT_DIMS]; /* 1 if there is nothing */
    shape logical;             /* of the values */
    int place[CVY_MAX_RANK];   /* dimension d of the values is dimension place[d] of the space */
} space;

space cvyi_space_plain(const shape *s);               /* dimensions as they are */
space cvyi_space_planes(const shape *s, int spatial); /* n, c, d, h, w */

typedef struct program {
    emit_statement statements[MAX_STATEMENTS];
    int n;
    space over;
    int *statement_of; /* per value: the statement that holds it; NO_STATEMENT */
} program;
enum { NO_STATEMENT = -3 };

typedef struct maker {
    cvy_plan *plan;
    cuda_state *state;
    const cvy_graph *g;
    const pass *pass;          /* NULL: a copy of a strided tensor */
    const cuda_choice *choice; /* of the pass */
    int pass_index;
    bool prepared; /* the step depends only on parameters */
    step_layout layout;
    cuda_step step;
    step_view views[MAX_VIEWS];
    emit_view seen[MAX_VIEWS];
    char names[MAX_VIEWS][NAME_LENGTH];
    program pre, post;
    char defines[MAX_DEFINES][DEFINE_BYTES];
    int n_defines;
    const char *text; /* the epilogue, if it is not made of the two programs; there is no strided code then */
    int many;         /* neighbours that the kernel takes at a time (emit.h); 0: elements one by one */
    bool far;         /* some contiguous tensor has more than 2^31 elements */
    bool fast;        /* the kernel includes fast.cuh; its loads may go ahead of its stores */
    bool sized;       /* strides and extents are arguments: one code for all sizes */
    bool of_pixel;    /* neighbours are channels of a pixel (emit.h) */
    bool lone;        /* the prologue takes elements one by one */
} maker;

/* Begins a step of a kernel. */
void cvyi_make_start(maker *m, const char *source);
/* Begins one of its programs again. */
void cvyi_make_forget(const maker *m, program *p);
/* -DNAME=value */
void cvyi_make_define(maker *m, const char *name, int64_t value);
void cvyi_make_define_text(maker *m, const char *option); /* unchanged */
void cvyi_make_define3(maker *m, const char *const names[3], const int64_t values[3]);
void cvyi_make_define_extents(maker *m, char letter, const space *s); /* X1...X5 */
/* X_TYPE and W_TYPE: the element types of operands that a kernel reads itself. Nothing if both are float32. */
void cvyi_make_define_types(maker *m, int x, int w);
/* Elements of 16 bytes; of those of the step's views so far, the most. */
int cvyi_make_access(cvy_dtype dtype);
int cvyi_make_widest(const maker *m);
/* What a value is called in generated text: the operator that makes it, "input" or "parameter". Never its own name:
 * the text is part of the compile cache's key, and a renamed value must find the same code. */
const char *cvyi_make_label(const maker *m, int v);
/* A view of a value that broadcasts to the space; its number. */
int cvyi_make_view(maker *m, int v, const space *over);
/* A view of a value whose only dimension runs along one dimension of the space. */
int cvyi_make_channel_view(maker *m, int v, int slot);
/* The extents of a space, for a step that is sized. */
void cvyi_make_sizes_view(maker *m, const space *s);
/* A view without strides, whose elements the kernel addresses itself. */
int cvyi_make_raw_view(maker *m, int v);
/* A view of a convolution's weights: k, c, t, r, s of a group, and the group. */
int cvyi_make_weight_view(maker *m, int v, const conv_geom *e, bool transposed);
/* A view of a norm's weight or bias; CVY_NONE for CVY_NONE. */
int cvyi_make_affine_view(maker *m, const program *p, const norm_geom *e, int v);
/* A view of the engine's memory. */
int cvyi_make_own_view(maker *m, int64_t at, const char *name);
/* Adds the statements of a pass's nodes [first, end), which compute a value. */
cvy_status cvyi_make_chain(maker *m, program *p, int first, int end, bool stores);
/* The statement that holds a value; loads the value if no statement has. */
int cvyi_make_operand(maker *m, program *p, int v);
int cvyi_make_statement(maker *m, program *p, const emit_statement *statement);
void cvyi_make_store(maker *m, program *p, int v);
/* Ends the step: text, options and name are made for it and it is added to the plan. `threads` of a block, `blocks`
 * in all: 0 blocks add nothing. */
cvy_status cvyi_make_end(maker *m, const char *variant);

/* Statistics of what node `core` reads, into a value or the engine's own memory. */
cvy_status cvyi_make_stats(maker *m, int core, const norm_geom *e, int sign, int stats_value, int64_t stats_at);

/* Which values and tensors lie channels last; shadows are known. (last.c) */
enum { LAST_CHANNELS = 8 }; /* of a pixel that kernels move at a time: 16 bytes of 16 bits each, 32 of float32 */
cvy_status cvyi_find_last(maker *m);
/* Does this value lie so for the step that is being made? */
bool cvyi_lies_last(const maker *m, int v);
void cvyi_last_strides(const shape *s, int64_t out[CVY_MAX_RANK]);
/* The steps of a pass, and once more for tensors of run() that lie channels last, if it takes such. */
cvy_status cvyi_make_both(maker *m, cvy_status (*make)(maker *m, const void *more), const void *more);

/* Decides which tensors of run() have shadows, and takes memory for them. (shadows.c) */
cvy_status cvyi_make_shadows(maker *m);
/* Copies between tensors and their shadows: inputs and parameters before everything, outputs after it. */
cvy_status cvyi_copy_shadows(maker *m, bool outputs);

/* The engine's memory after the values, in the workspace. */
int64_t cvyi_make_memory(maker *m, int64_t bytes);
/* For what a weight is packed into: prepared, if the weight is. */
int64_t cvyi_make_packed_memory(maker *m, int weight, int64_t bytes);

#endif
