/* emit.h - epilogue.cuh as text: what a kernel reads (prologue), and what happens to its result (epilogue).
 *
 * One SSA statement per node, in the order given, calling the functions of ops.cuh. The same program gives the same
 * text, byte for byte: the text is part of the compile cache's key. */
#ifndef CVYI_CUDA_EMIT_H
#define CVYI_CUDA_EMIT_H

#include "../graph/graph.h"

enum { EMIT_DIMS = 6 };

/* A tensor of the launch, as seen from the space that a program runs over. */
typedef struct emit_view {
    const char *name;          /* for the comment */
    int64_t stride[EMIT_DIMS]; /* if contiguous: along each dimension of the space; 0: it does not vary there */
    bool varies[EMIT_DIMS];    /* it has a stride along that dimension, which may come with the arguments */
    bool whole;                /* element number i of the space is element number i of it, if contiguous */
    cvy_dtype dtype;           /* of its elements in memory; values are float32 */
} emit_view;

typedef enum emit_kind {
    EMIT_LOAD,  /* t = view */
    EMIT_OP,    /* t = op(ta, tb or p[0]) */
    EMIT_APPLY, /* t = (ta - mean) / deviation * weight + bias; view: statistics */
    EMIT_NORM,  /* the same, view: running mean, var: running variance */
    EMIT_SCALE, /* t = ta * weight + bias: what is left of a norm if the kernel has done the rest */
    EMIT_STORE  /* view = ta */
} emit_kind;

typedef struct emit_statement {
    emit_kind kind;
    op_id op;
    int a, b;              /* statements whose values are the operands; EMIT_ARGUMENT: the kernel's result */
    int view;              /* number of the view in the launch; CVY_NONE: none */
    int var, weight, bias; /* views of EMIT_APPLY, EMIT_NORM and EMIT_SCALE; CVY_NONE: none */
    double gain;           /* EMIT_OP: a factor of the result, for fast versions that take one; 0: none */
    double p[2];           /* EMIT_OP: cvyi_pointwise_params; b == CVY_NONE: p[0] is the operand. EMIT_NORM: eps */
    bool rough;            /* EMIT_OP: the graph has the result in 16 bits */
    norm_geom norm;        /* EMIT_APPLY: which statistics an element has */
    const char *note;      /* what the statement makes, as a comment: an operator, never a value's own name */
} emit_statement;
enum { EMIT_ARGUMENT = -2, EMIT_BEFORE = -4 }; /* t0; y, a second argument */

/* A function of the generated text. A prologue returns statement `result`; an epilogue stores. */
typedef struct emit_program {
    emit_statement *statements;
    int n_statements;
    int result;
    int64_t extent[EMIT_DIMS]; /* of the space; extent[0] may be anything: it is not written down */
} emit_program;

typedef struct emit_spec {
    const char *title; /* first line of the text: what it is for */
    const emit_view *views;
    int n_views;
    bool strided;  /* strides come with the arguments; else all views are contiguous */
    bool fast;     /* fast.cuh's versions of the operators that it has */
    int many;      /* functions of so many neighbours: cvy_read and cvy_write, see below; 0: of one */
    bool of_pixel; /* neighbours are channels (dimension 1) of a pixel; else they follow each other in the space */
    bool lone;     /* the prologue is of one element whatever the epilogue is of */
    const emit_program *prologue; /* may be NULL: the kernel has none */
    const emit_program *epilogue; /* may be NULL */
} emit_spec;

/* With `many` set the functions are templates of N, and take N elements that are neighbours in the space, N being 1
 * or `many`, at most 8; the first one's number (`of_pixel`: its channel) is a multiple of N. A view in which such
 * elements are neighbours too is moved by one access, whose address must be a multiple of N elements; of one in
 * which all are the same, one element is read. */
void cvyi_emit(const emit_spec *spec, text *out);

/* What elements of a dtype are in kernels: float, cvy_f16, cvy_bf16. */
const char *cvyi_emit_type(cvy_dtype dtype);

/* Parts of it, for functions with other heads: the first comment; a function's statements, and its return. */
void cvyi_emit_head(const char *title, const emit_view *views, int n_views, text *out);
void cvyi_emit_body(const emit_spec *spec, const emit_program *p, text *out);

#endif
