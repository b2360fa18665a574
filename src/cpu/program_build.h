/* program_build.h - what the files that build programs share; see program.h.
 *
 *   program_space.c       the space a program runs over: dimensions, strides, what a sink reduces, runs
 *   program_assemble.c    nodes into instructions
 *   program_registers.c   registers, shared by values whose lifetimes do not overlap
 *   program_build.c       which nodes, and building the program */
#ifndef CVYI_PROGRAM_BUILD_H
#define CVYI_PROGRAM_BUILD_H

#include "program.h"

/* The result's shape as dimensions with the sample dimension first: [m][rest] taken by sample, [1][all] whole.
 * split_last() cuts it finer; what names a dimension by its number is here, so that it moves along. */
typedef struct space {
    int n;
    int64_t dim[PROG_DIMS];
    int channel;      /* the dimension of the channels; -1: there is none, or it was split */
    unsigned reduced; /* the dimensions that the sink reduces, neighbours; a bit each */
    bool by_sample, flat;
    shape shape;
} space;

/* The form of a value while building: an argument, or an affine chain on one that is in no instruction yet. */
typedef struct holder {
    int v;
    prog_arg arg;
    int coef; /* -1: none pending */
} holder;

typedef struct assembler {
    const site *at;
    const cvy_graph *g;
    program *p;
    space sp;
    int64_t strides[PROG_OPERANDS][PROG_DIMS]; /* in the space, before it is collapsed */
    holder held[PROG_NODES + PROG_OPERANDS];
    int n_held;
    int first, count; /* nodes */
    int sink;
    int64_t run_limit; /* a run may not be longer: rows of a norm; 0: no limit */
    bool full;         /* a table overflowed; what it had no room for goes into these */
    instr lost_instr;
    holder lost_holder;
} assembler;

/* ---- program_space.c ---- */

space cvyi_flat_space(const site *at, int v);
/* chunk: samples of a unit */
space cvyi_space_of(const pass *p, int64_t chunk, const shape *s);
/* Strides of a value read in the space, 0 if it repeats. */
void cvyi_strides_in(const cvy_graph *g, const space *sp, int v, int64_t *out);
/* The reduced dimensions [first, end) of the space. */
void cvyi_sink_dims(const space *sp, int *first, int *end);
/* Marks what the sink reduces; false if the space does not tell those dimensions apart, if they are not
 * neighbours, or if the samples are among them. */
bool cvyi_mark_reduced(const cvy_graph *g, const node *n, space *sp);
/* Splits the last dimension in two if a run may not be that long: [C] -> [C / limit][limit]. */
void cvyi_split_last(assembler *s);
/* Joins dimensions from the last one down to `lowest` into the run; what is left before them are outer ones. */
void cvyi_collapse(assembler *s, int lowest);

/* ---- program_assemble.c ---- */

/* The instructions of one node. */
void cvyi_assemble_node(assembler *s, int index);
/* The argument an instruction can read: pending chains become an instruction first. */
prog_arg cvyi_settle(assembler *s, int v);
/* Normalisation with statistics per run of channels, not per row. */
bool cvyi_applies_by_channel(const assembler *s, const node *n);

/* ---- program_registers.c ---- */

void cvyi_mark_last(program *p);
void cvyi_share_registers(program *p);

#endif
