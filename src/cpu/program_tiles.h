/* program_tiles.h - a program at work: what its tiles (program_run.c) and its sink (program_sink.c) share. */
#ifndef CVYI_PROGRAM_TILES_H
#define CVYI_PROGRAM_TILES_H

#include "program.h"

/* A program that runs on one unit, on one worker. */
typedef struct tiles {
    const program *p;
    const cpu_unit *u;
    const cpu_vector_kernels *vec;
    float *reg[PROG_INSTRS + PROG_OPERANDS];
    float *base[PROG_OPERANDS];
    uint16_t *words[PROG_OPERANDS]; /* fp16 and bf16 where they lie: go through the operand's register; else NULL */
    bool halves;                    /* some operand has words that go through its register */
    bool aside[PROG_OPERANDS];      /* written to its register first, copied out after the last instruction */
    bool direct[PROG_OPERANDS];     /* streamed by the instruction itself */
    bool streams;                   /* some operand or the sink's result is streamed */
    float *sink;                    /* the sink's result; NULL: strided, to be scattered */
    bool sink_streams;
    int64_t offset[PROG_OPERANDS]; /* of the current run */
    int64_t coef;                  /* index of the current run's coefficients */
    int64_t run;                   /* number of the current run */
    int64_t at;                    /* first column of the tile */
    int64_t n;
    const prog_band *band;
} tiles;

/* Moves to run number `run`: its offsets in every operand and its coefficients. */
void cvyi_tiles_seek(tiles *t, int64_t run);
/* All instructions for columns at ... at + n - 1 of the run. */
void cvyi_tiles_run(tiles *t, int64_t at, int64_t n);
/* The address of the tile of an argument that is read, or of the one number that it repeats. */
const float *cvyi_tiles_address(const tiles *t, const prog_arg *a);
bool cvyi_tiles_scalar(const tiles *t, const prog_arg *a);

/* Room after the registers, in floats; and one reduction: a row, a segment of one, or columns of rows. */
int64_t cvyi_sink_floats(const program *p);
void cvyi_sink_run(tiles *t, int64_t item, char *scratch);
/* Segments of a row, 1 if it is reduced as a whole; and the results of `rows` of them from their partial ones. */
static inline int64_t cvyi_segments(const program *p)
{
    return p->segment ? cvyi_ceil_div(p->reduced, p->segment) : 1;
}
void cvyi_sink_merge(tiles *t, int64_t rows);

#endif
