/* exec.h - how the GPU runs a plan: every pass is one kernel launch, or a few.
 *
 * A pass is [pointwise nodes] core [pointwise nodes]: the first become the kernel's prologue, the last its
 * epilogue; the core is a producer, a pooling, a reduction, a softmax, statistics, a norm (statistics and
 * their application, if a slice stays on chip), or nothing. cvyi_cuda_pattern() says whether an interval has that
 * form, and why not; lower.c turns passes into steps; engine.c launches them. */
#ifndef CVYI_CUDA_EXEC_H
#define CVYI_CUDA_EXEC_H

#include "../plan/plan.h"
#include "emit.h"
#include "launch.h"

enum { MAX_VIEWS = 48, ENTRY_BYTES = 96 };

typedef enum view_kind {
    VIEW_VALUE,  /* where the plan has placed the value; a strided tensor of run() with a shadow: there */
    VIEW_SHADOW, /* the shadow of the value's tensor */
    VIEW_TENSOR, /* the tensor itself, though it has a shadow */
    VIEW_OWN,    /* the engine's own memory */
    VIEW_SIZES   /* no memory: its strides are extents of a space, for code that takes any */
} view_kind;

/* A tensor of a launch: the value, and which of its dimensions gives the stride along each one of the space. */
typedef struct step_view {
    view_kind kind;
    int value;                /* of the lowered graph; VIEW_OWN: CVY_NONE */
    int64_t at;               /* VIEW_OWN: byte of the run's memory (cvyi_at) */
    int dim[EMIT_DIMS];       /* -1: it does not vary there */
    int64_t times[EMIT_DIMS]; /* the stride is this many of the value's own; VIEW_SIZES: the extents */
    bool last;                /* it lies channels last, which the contiguous code knows */
    bool any;                 /* no code assumes anything of its strides */
} step_view;

typedef struct tc_step tc_step;
typedef struct tc_last tc_last;         /* tc.h */
typedef struct cuda_choice cuda_choice; /* choice.h */
typedef struct kernel_row kernel_row;   /* choice.h */

/* Passes on tensor cores may have steps for several layouts of the tensors that only they read or write densely:
 * channels last; of matmul_wide.cu's `other` alone, transposed.
 * PyTorch's norms give contiguous results of tensors that lie channels last: hence the last one. */
typedef enum step_layout {
    LAYOUT_ANY,
    LAYOUT_PLAIN, /* runs unless those tensors lie channels last (tensors_last: all of them) */
    LAYOUT_LAST,  /* runs if they do */
    LAYOUT_X_LAST /* runs if what is read does, and what is written does not */
} step_layout;

typedef struct cuda_step {
    const char *source;    /* file of kernels/ */
    const kernel_row *row; /* whose step it is; NULL: a copy of a strided tensor */
    char entry[ENTRY_BYTES];
    cuda_launch launch;
    int64_t extent;   /* first argument of the kernel */
    step_view *views; /* in the plan's arena */
    int n_views;
    bool prepared;    /* depends only on parameters */
    int pass;         /* of the plan */
    int only_strided; /* runs only if this tensor of run() is not contiguous; CVY_NONE: always */
    step_layout layout;
    bool aligned; /* the contiguous code needs views that begin at multiples of 16 bytes */
    bool any;     /* the first code takes any strides and extents, and is the only one */
    /* Code for contiguous tensors, and for any strides; the second only if a tensor of run() is among the views.
     */
    const char *epilogue[2];
    const char *const *options[2];
    int n_options[2];
    cuda_kernel kernel[2];
    const tc_step *tc; /* tensor-core kernels have other arguments; NULL: any other kernel */
} cuda_step;

/* The kernels' struct cvy_args (common.cuh). */
typedef struct view_argument {
    CUdeviceptr p;
    int64_t stride[EMIT_DIMS];
} view_argument;
typedef struct step_arguments {
    int64_t extent;
    view_argument view[MAX_VIEWS];
} step_arguments;

typedef struct cuda_state {
    cuda_device *device;
    cuda_step *steps;
    int n_steps, cap_steps;
    text_set texts; /* of the steps: most have those of others */
    /* Per tensor of run(): byte of the run's memory where a contiguous copy stands in for it if it is strided or
     * begins at no multiple of 16 bytes; -1: none. A tensor that the graph reshapes has one: in another shape its
     * strides mean nothing; and one that a tensor-core pass reads or writes. */
    int64_t *shadow;
    /* Per tensor of run(): the pass that takes it channels last (matmul_wide: transposed), as it lies, if the other
     * such tensor of the pass goes with that (step_layout); CVY_NONE: none. */
    int *last;
    tc_last **layouts;        /* per pass: how it takes them; NULL: it does not */
    const bool *values_last;  /* per value: it lies channels last in the workspace (last.c) */
    const int **tensors_last; /* per pass: tensors of run() that its steps of LAYOUT_LAST need so, the end is
                               * CVY_NONE; NULL: it has no such steps, or those of conv_tc and matmul_wide */
    int64_t values;           /* prepared bytes before what the steps pack */
    int64_t kept_end;         /* of the workspace: what is in use so far */
    int64_t scratch;          /* byte of the workspace from which passes have their scratch (choice.h) */
    bool alone;               /* blocks of a launch were found not to fit on the device at once */
} cuda_state;

/* Rows that stay on chip (held.cuh): who shares one, and how much of it each thread has. */
typedef struct held_rows {
    int64_t row; /* elements */
    int width;   /* neighbours in a group */
    int lanes;   /* threads that share it */
    int threads; /* of a block */
    int held;    /* groups of elements in a thread's registers */
    int parked;  /* and in shared memory */
    unsigned shared_bytes;
    bool fits;
} held_rows;
held_rows cvyi_held_rows(const cuda_device *d, int64_t row);
/* Rows of a softmax; they do not fit if they do not lie in one piece. */
held_rows cvyi_held_softmax(const cuda_device *d, const cvy_graph *g, const node *n);

/* The form of a pass. */
typedef struct pattern {
    int core;        /* node; CVY_NONE: only pointwise */
    int result;      /* the node that the epilogue follows: the core, or the norm that its statistics are for */
    bool fed;        /* operators come before the core */
    bool resident;   /* the core's rows stay on chip between readings */
    held_rows held;  /* resident: how */
    const char *why; /* NULL: it has the form; else what is in the way */
} pattern;
pattern cvyi_cuda_pattern(const cvy_plan *p, const pass *s);

/* Products that a convolution or a matrix product is made of on tensor cores: 3 if float32's accuracy is asked
 * for. One product has 11 bits of every operand, as many as fp16 has and more than bf16: such data is exact in it,
 * and a float32 weight with it loses less than the data has lost. */
static inline int cvyi_cuda_products(const cvy_plan *p, const node *n)
{
    const bool half = n->halved || p->graph->values[n->arg[0]].dtype != CVY_FLOAT32;

    return p->options.precision == CVY_TF32 || half ? 1 : 3;
}

/* Steps of all passes, without code: cvyi_cuda_compile_steps() (compile.h) adds that. Sets p->workspace. */
cvy_status cvyi_cuda_lower(cvy_plan *p);

/* ---- one run: engine.c launches it, describe.c writes it down ---- */

typedef struct cuda_run {
    const cvy_plan *plan;
    const cvy_buffer *buffers;
    const run_memory *memory;
    CUstream stream;
} cuda_run;

/* Tensor number `tensor` of run(); if that is -1, byte `at` of the run's memory. */
typedef struct view_place {
    int tensor;
    int64_t at;
} view_place;

/* Does this run need the step? */
bool cvyi_cuda_wanted(const cuda_run *r, const cuda_step *s, uint32_t flags);
/* Which code takes the views. */
static inline int cvyi_cuda_code(const cuda_step *s, bool strided)
{
    return strided && !s->any && (!s->tc || s->epilogue[1]);
}
view_place cvyi_cuda_place(const cuda_run *r, const step_view *view);
/* The strides of a view that lies in `tensor` (or, -1, in the run's memory); true if it is not contiguous. */
bool cvyi_cuda_strides(const cuda_run *r, const step_view *view, int tensor, int64_t out[EMIT_DIMS]);
/* Does a step that needs aligned views have one in `tensor` that is not aligned? */
bool cvyi_cuda_misaligned(const cuda_run *r, const cuda_step *s, int tensor);
/* The two codes of a step, 0 and 1, have different names. */
const char *cvyi_cuda_entry(const cuda_step *s, int which, char entry[ENTRY_BYTES + 8]);

/* What prepared launches compute, and where to. (describe.c) */
void cvyi_cuda_packing(const cvy_plan *p, text *t);
/* The steps of one pass, without what is prepared; between cvyi_cuda_enter() and cvyi_cuda_leave(). */
cvy_status cvyi_cuda_run_pass(const cuda_run *r, int index);

/* cvy_plan_launches() */
cvy_status cvyi_cuda_launches(const cvy_plan *p, const cvy_buffer *buffers, text *t);

#endif
