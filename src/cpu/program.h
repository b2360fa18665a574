/* program.h - pointwise operators run together, tile by tile, with an optional reduction or softmax at the end.
 *
 * All results of a program have one shape, seen as [outer dimensions][inner]: inner is the longest run along which
 * every operand is either contiguous or one number. A tile is a piece of one run that fits the first-level cache
 * with all the registers (tile-sized buffers) of the program. Instructions are vector loops over a tile.
 *
 * Affine operators per channel in a row (normalisation, scales, biases, and the shift of values that a convolution
 * produced centred) become one instruction (x - P[channel]) * A[channel] + B[channel]; A, B and the pivot P, at
 * which the normalised value is zero, are composed in double once per unit, so a mean of 1000 with a deviation of
 * 1 loses no accuracy. */
#ifndef CVYI_PROGRAM_H
#define CVYI_PROGRAM_H

#include "exec.h"

enum {
    TILE = 1024,   /* floats */
    PROG_DIMS = 8, /* a sample dimension before CVY_MAX_RANK, and one that a group may split off */
    PROG_INSTRS = 40,
    PROG_OPERANDS = 40,
    PROG_COEFS = 8,
    PROG_CHAIN = 12,
    PROG_NODES = 24 /* nodes taken into one program at most; keeps the tables above sufficient */
};

typedef enum arg_kind { ARG_NONE, ARG_REG, ARG_MEM, ARG_NUM } arg_kind;
typedef struct prog_arg {
    arg_kind kind;
    int index; /* register, operand */
    float number;
} prog_arg;

/* A value in memory, read or written. */
typedef struct operand {
    int v;
    bool scalar;               /* one number along a run */
    int64_t stride[PROG_DIMS]; /* per outer dimension, in elements */
    bool written;
    bool stream; /* stores go past the caches */
    int reg;     /* register that stands in: written, if the tensor is strided, streamed or of another dtype than
                    float32; read, if it is of another dtype; -1: none */
} operand;

typedef enum instr_kind {
    INSTR_UNARY,
    INSTR_BINARY,
    INSTR_AFFINE,
    INSTR_ROW,
    INSTR_ROW_WEIGHTED,
    INSTR_COPY
} instr_kind;
typedef struct instr {
    instr_kind kind;
    op_id op;
    prog_arg a, b, dst; /* dst: a register, or a written operand */
    prog_arg c;         /* INSTR_ROW: b, c: weight and bias in memory that no instruction writes; or neither */
    float p[2];
    int coef;  /* INSTR_AFFINE */
    int stats; /* INSTR_ROW...: value of the statistics, one row of them per run */
    bool last; /* dst is a written operand that no later instruction reads */
} instr;

/* What an affine instruction does to a run. */
typedef struct affine32 {
    float from, scale, shift; /* (x - from) * scale + shift */
} affine32;

/* An affine32 per channel as a chain of affine operators on x itself. */
typedef enum coef_kind { COEF_SHIFT, COEF_MUL, COEF_ADD, COEF_SUB, COEF_APPLY } coef_kind;
typedef struct coef_op {
    coef_kind kind;
    int v;          /* COEF_SHIFT: whose shift; COEF_MUL ...: per-channel value, CVY_NONE: number */
    double number;  /* the number, or alpha of ADD and SUB of a value */
    int index;      /* COEF_APPLY: node ... */
    norm_geom norm; /* ... and its numbers */
} coef_op;
typedef struct coef {
    int n;
    coef_op ops[PROG_CHAIN];
    int64_t at; /* bytes of the slices: struct affine32 [count] */
} coef;

typedef enum sink_kind { SINK_NONE, SINK_REDUCE, SINK_SOFTMAX } sink_kind;

typedef struct program {
    int n_outer;
    int64_t outer[PROG_DIMS]; /* outer[0]: samples of a full unit */
    int64_t inner;
    int channel; /* outer dimension of the channels; coefficients are numbered by it and those before it; -1 */
    int64_t channels;
    int n_instrs, n_operands, n_coefs, n_regs;
    instr *instrs;
    operand *operands;
    coef *coefs;
    int band; /* operand that a convolution's band stands in for; -1: none */
    /* sink */
    sink_kind sink;
    op_id sink_op;
    prog_arg sink_arg;
    int sink_v;       /* value it writes */
    int reduce_first; /* outer dimensions [reduce_first, n_outer) are reduced ... */
    int reduce_end;   /* ... up to here; vertical: inner is not reduced; horizontal: reduce_end == n_outer, inner is
                       */
    bool horizontal;
    int64_t reduced; /* elements of one reduction */
    int64_t width;   /* vertical: columns at a time */
    int64_t
        segment; /* horizontal: elements of a long row that are reduced by themselves, then merged; 0: whole rows */
    int64_t partials; /* bytes of the slices: cpu_max_sum_exp [reductions][segments] */
} program;

/* Where a program's tables lie while it is built. */
typedef struct program_room {
    instr instrs[PROG_INSTRS];
    operand operands[PROG_OPERANDS];
    coef coefs[PROG_COEFS];
} program_room;
static inline program cvyi_program_in(program_room *r)
{
    return (program){.instrs = r->instrs, .operands = r->operands, .coefs = r->coefs};
}

/* Do stores of a result this large go past the caches? Together with a source of its size it does not fit the last.
 */
static inline bool cvyi_past_caches(const cpu_state *s, int64_t bytes)
{
    return 2 * bytes >= s->host.l3;
}

/* ---- build (program_build.c) ---- */

/* The pass that a program is built for. */
typedef struct site {
    const cvy_plan *plan;
    const pass *pass;
    int64_t chunk, units;     /* samples of a unit, units */
    const cpu_choice *choice; /* which values lie centred; NULL: none do */
    builder *room;            /* where values lie, what takes slices; NULL: the program is only tried */
} site;

/* Of the pass that is lowered, when places are known. */
static inline site cvyi_site(builder *b)
{
    return (site){b->plan, b->out->pass, b->out->chunk, b->out->units, b->choice, b};
}

/* Makes a program, whose tables have been given room, of nodes index ... index + n - 1; sink: a REDUCE or SOFTMAX
 * node right after them, -1: none. band: the value whose band the convolution hands over, CVY_NONE. False: the
 * nodes do not fit one program. */
bool cvyi_program_build(const site *at, int index, int n, int sink, int band, program *out);
/* Moves the tables of a finished program into the plan's memory. */
cvy_status cvyi_program_keep(cvy_plan *p, program *made);
/* The pointwise nodes from index on that can share a program, and how many there are. */
int cvyi_program_span(const cvy_plan *p, int index, int end);
/* Can this node be the sink after a program of shape `s`, or a whole program? */
bool cvyi_sink_fits(const cvy_plan *p, const pass *s, int index);

/* Nodes first ... first + n - 1 as a program over bands of v, a convolution's result. (conv_along.c) */
bool cvyi_band_program(const site *at, int v, int first, int n, const conv_geom *g, program *out);

/* ---- run (program_run.c, program_sink.c) ---- */

/* One of the REDUCE operators over a row; the empty row too. */
float cvyi_reduce_row(const cpu_reduce_kernels *red, op_id op, const float *row, int64_t n);
int64_t cvyi_program_scratch(const program *p);
void cvyi_program_coefs(const program *p, const cpu_unit *u); /* once per unit, before its tiles */
int64_t cvyi_program_parts(const program *p, const cpu_unit *u);
void cvyi_program_run(const program *p, const cpu_unit *u, int64_t part, char *scratch);
/* Long rows: bytes of the partial results, and the step after the program that merges them. */
int64_t cvyi_program_partials(const program *p);
void cvyi_program_merge(const program *p, const cpu_unit *u, char *scratch);

/* A convolution's band: channels [k0, k1), columns [i0, i1) of the runs, in memory as [k1 - k0][i1 - i0]. */
typedef struct prog_band {
    float *data;
    int64_t k0, k1, i0, i1;
} prog_band;
/* Moments of every channel's columns of the band, taken while they are in the first-level cache. */
typedef struct prog_moments {
    const float *y;  /* the last result, [channels][inner]; NULL: none are taken */
    cpu_moments *of; /* by channel */
} prog_moments;
void cvyi_program_run_band(const program *p, const cpu_unit *u, const prog_band *band, const prog_moments *m,
                           char *scratch);

#endif
