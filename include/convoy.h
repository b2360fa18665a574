/* convoy.h - fuses convolutions with the operators that follow them, so data crosses memory as few times as
 * possible.
 *
 * A complete program (cc demo.c -lconvoy):
 *
 *     #include <convoy.h>
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *
 *     int main(void)
 *     {
 *         cvy_graph *graph = NULL;
 *         cvy_plan *plan = NULL;
 *         static float x[2 * 3 * 8 * 8], w[4 * 3 * 3 * 3], bias[4], y[2 * 4 * 6 * 6];
 *         const cvy_buffer buffers[] = {{x, NULL}, {w, NULL}, {bias, NULL}, {y, NULL}};
 *         const cvy_options options = {.size = sizeof options, .device = CVY_CPU};
 *         void *work = NULL;
 *         size_t size = 0;
 *         cvy_status st = cvy_graph_parse("x[2,3,8,8] | conv2d(4,3) | relu", &graph);
 *         if (!st) st = cvy_plan_create(graph, &options, &plan);
 *         if (!st) size = cvy_plan_workspace(plan);
 *         if (!st) work = aligned_alloc(CVY_ALIGN, size);
 *         if (!st) st = cvy_plan_run(plan, buffers, 4, work, size, 0, NULL);
 *         if (st) fprintf(stderr, "%s\n", cvy_last_error());
 *         else printf("y[0] = %g\n", y[0]);
 *         free(work);
 *         cvy_plan_free(plan);
 *         cvy_graph_free(graph);
 *         return st != CVY_OK;
 *     }
 *
 * The order of calls is always graph -> plan -> run -> free. Tensors are float32 unless declared otherwise, and
 * their dimensions are N C [D] [H] W, as in PyTorch. Operators, arguments and defaults are those of
 * torch.nn.functional. Every call that can fail returns a status. If it fails, its result is unchanged or NULL, and
 * cvy_last_error() returns a message. A graph is built by one thread. A plan never changes and may run on several
 * threads at once, each with its own workspace.
 */
#ifndef CONVOY_H
#define CONVOY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CVY_VERSION       "0.2.0"
#define CVY_MAX_RANK      6     /* dimensions of a tensor */
#define CVY_MAX_OPERATORS 65536 /* of a graph that is planned */
#define CVY_ALIGN         256   /* alignment of a workspace, in bytes; its size is a multiple of this */
#define CVY_NONE          (-1)  /* no value: an optional argument that is left out */

#if defined(CVY_BUILD) && defined(__GNUC__)
#define CVY_API __attribute__((visibility("default")))
#else
#define CVY_API
#endif

/* ---- status ---------------------------------------------------------------------------------------------- */

typedef enum cvy_status {
    CVY_OK = 0,
    CVY_INVALID = 1,     /* the caller's text, shape or argument is wrong */
    CVY_NO_MEMORY = 2,   /* an allocation failed; everything was released */
    CVY_UNSUPPORTED = 3, /* the graph is legal, but this device or precision does not support it */
    CVY_NO_DEVICE = 4,   /* the device, its driver or its compiler is missing */
    CVY_FAILED = 5,      /* a call of the device or of the system failed */
    CVY_STALE = 6        /* cvy_plan_repeat(): something that the run relies on has changed; nothing was done */
} cvy_status;

/* The version of the library that is running; compare with CVY_VERSION, the version of this header. */
CVY_API const char *cvy_version(void);

/* A short name of a status: "invalid argument". */
CVY_API const char *cvy_status_name(cvy_status status);

/* The message of the last call that failed in this thread: what, where, expected, got. Never NULL. */
CVY_API const char *cvy_last_error(void);

/* ---- graph: what to compute ------------------------------------------------------------------------------ */

typedef struct cvy_graph cvy_graph;
typedef int32_t cvy_value; /* a tensor of one graph: an input, a parameter, or an operator's result */

/* The element type of a tensor. An operator's result has the dtype of its first argument that depends on an input,
 * or of its first argument if none does. Arguments that depend on inputs have the same dtype; parameters may have
 * another. */
typedef enum cvy_dtype { CVY_FLOAT32 = 0, CVY_FLOAT16 = 1, CVY_BFLOAT16 = 2 } cvy_dtype;

/* An attribute of an operator, by its name in torch.nn.functional. Booleans are 0 or 1. */
typedef struct cvy_attr {
    const char *name;           /* "stride" */
    const char *text;           /* a word ("same"), or NULL for numbers */
    int32_t count;              /* how many numbers */
    double value[CVY_MAX_RANK]; /* the numbers; whole if the attribute is an integer */
} cvy_attr;

/* An operator applied to values. args[0] is the input. The operator's other tensors follow in the order of
 * torch.nn.functional (weight, bias; running_mean, running_var, weight, bias). A tensor that is CVY_NONE or missing
 * is created as a parameter with its natural shape, the dtype of args[0], and a name such as "<node>.weight". */
typedef struct cvy_call {
    size_t size;           /* sizeof(cvy_call) */
    const char *op;        /* "conv2d" */
    const char *name;      /* the node's name, or NULL: the operator's ("conv2d", then "conv2d_2") */
    const cvy_value *args; /* n_args values */
    const cvy_attr *attrs; /* n_attrs attributes, in any order */
    int32_t n_args;
    int32_t n_attrs;
} cvy_call;

CVY_API cvy_status cvy_graph_create(cvy_graph **out);

/* A graph from the chain text: "x[1,8,32,32] | conv2d(64,3) @c | relu | add(@c)". doc/CHAIN.md is the grammar. */
CVY_API cvy_status cvy_graph_parse(const char *text, cvy_graph **out);

CVY_API void cvy_graph_free(cvy_graph *graph);

CVY_API cvy_status cvy_graph_input(cvy_graph *graph, const char *name, cvy_dtype dtype, int32_t rank,
                                   const int64_t *dims, cvy_value *out);
CVY_API cvy_status cvy_graph_param(cvy_graph *graph, const char *name, cvy_dtype dtype, int32_t rank,
                                   const int64_t *dims, cvy_value *out);
CVY_API cvy_status cvy_graph_apply(cvy_graph *graph, const cvy_call *call, cvy_value *out);

/* Appends operators written as chain text after a value: cvy_graph_chain(g, x, "conv2d(64,3) | relu", &y). */
CVY_API cvy_status cvy_graph_chain(cvy_graph *graph, cvy_value from, const char *text, cvy_value *out);

/* Marks a value as an output. If no value is marked, the last value is the output. */
CVY_API cvy_status cvy_graph_output(cvy_graph *graph, cvy_value value);

/* The extents of any value. */
CVY_API cvy_status cvy_graph_shape(const cvy_graph *graph, cvy_value value, int32_t *rank,
                                   int64_t dims[CVY_MAX_RANK]);
CVY_API cvy_status cvy_graph_dtype(const cvy_graph *graph, cvy_value value, cvy_dtype *out);

typedef enum cvy_role { CVY_INPUT = 0, CVY_PARAM = 1, CVY_OUTPUT = 2 } cvy_role;

/* A tensor that cvy_plan_run() takes. */
typedef struct cvy_tensor {
    const char *name; /* owned by the graph */
    cvy_value value;
    int32_t role; /* a cvy_role */
    int32_t rank;
    int32_t dtype; /* a cvy_dtype */
    int64_t dims[CVY_MAX_RANK];
} cvy_tensor;

/* The tensors that cvy_plan_run() takes, in its order: inputs and parameters in the order of their creation, then
 * outputs. */
CVY_API int32_t cvy_graph_tensors(const cvy_graph *graph);
CVY_API cvy_status cvy_graph_tensor(const cvy_graph *graph, int32_t index, cvy_tensor *out);

/* The chain text of the graph, which parses into the same graph. Writes at most capacity bytes, always ends with
 * NUL if capacity > 0, and stores in *needed (may be NULL) the size of the whole text, including NUL. */
CVY_API cvy_status cvy_graph_print(const cvy_graph *graph, char *text, size_t capacity, size_t *needed);

/* The signature of an operator, by number (0, 1, ...): "name(argument, argument=default)". NULL after the last. */
CVY_API const char *cvy_op_signature(int32_t index);
/* 1 if the operator with this number needs an exponential, a logarithm or the like for every element, else 0. */
CVY_API int32_t cvy_op_slow(int32_t index);

/* ---- plan: how to compute it ------------------------------------------------------------------------------ */

typedef struct cvy_plan cvy_plan;

typedef enum cvy_device { CVY_AUTO = 0, CVY_REF = 1, CVY_CPU = 2, CVY_CUDA = 3 } cvy_device;
typedef enum cvy_precision { CVY_FP32 = 0, CVY_TF32 = 1 } cvy_precision;
typedef enum cvy_effort { CVY_ESTIMATE = 0, CVY_MEASURE = 1 } cvy_effort;
typedef enum cvy_switch { CVY_DEFAULT = 0, CVY_ON = 1, CVY_OFF = 2 } cvy_switch;

/* Zero in a member other than size selects its default. */
typedef struct cvy_options {
    size_t size;       /* sizeof(cvy_options) */
    int32_t device;    /* cvy_device; CVY_AUTO: the GPU if there is one, else the CPU */
    int32_t precision; /* cvy_precision */
    int32_t effort;    /* cvy_effort */
    int32_t threads;   /* CPU threads; 0: as many as this process may use */
    int32_t winograd;  /* cvy_switch; CVY_OFF forbids Winograd convolutions */
    int32_t fuse;      /* cvy_switch; CVY_OFF gives every operator a pass of its own */
    int32_t ordinal;   /* which GPU */
    uint32_t seed;     /* not 0: a random legal plan, for tests */
    int32_t strided;   /* cvy_switch; CVY_OFF: run() gets contiguous buffers, on the GPU at multiples of 16 bytes,
                          and the workspace has no room for copies of others */
    int32_t deferred;  /* cvy_switch; CVY_ON: kernels are compiled by cvy_plans_compile(), which must come before
                          the plan's first run; until then the sizes of its workspace and of its prepared part are
                          not known */
} cvy_options;

/* The predicted cost of a plan. */
typedef struct cvy_cost {
    double seconds;   /* predicted */
    double flops;     /* operations, convolutions counted as direct ones */
    double bytes;     /* through memory: inputs, outputs, parameters, and what the plan stores between passes */
    double floor;     /* seconds for inputs read once and outputs written once */
    double peak;      /* operations per second that the device is assumed to reach */
    double bandwidth; /* bytes per second through memory that the device is assumed to reach */
    int32_t passes;   /* trips through memory */
} cvy_cost;

/* options may be NULL. The plan copies what it needs of the graph. Time and memory grow with the number of
 * operators, at most CVY_MAX_OPERATORS. */
CVY_API cvy_status cvy_plan_create(const cvy_graph *graph, const cvy_options *options, cvy_plan **out);
CVY_API void cvy_plan_free(cvy_plan *plan);

/* Compiles the kernels of deferred plans on all cores, each kernel once. No other plan changes. If it fails, plans
 * that had no code still have none. Only one thread at a time may pass a plan. */
CVY_API cvy_status cvy_plans_compile(cvy_plan *const *plans, int32_t n_plans);

/* Bytes of memory that cvy_plan_run() needs on the plan's device, aligned to CVY_ALIGN. Never 0. */
CVY_API size_t cvy_plan_workspace(const cvy_plan *plan);

/* The values that a plan derives only from parameters: folded, packed and transformed weights. Plans with the same
 * digest use the same layout, so values that one plan has prepared can be used by the others, if the parameters and
 * their strides are the same. */
typedef struct cvy_prepared {
    size_t bytes;    /* a part of cvy_plan_workspace(); may be 0 */
    char digest[65]; /* 64 hexadecimal digits and NUL */
} cvy_prepared;
CVY_API cvy_status cvy_plan_prepared(const cvy_plan *plan, cvy_prepared *out);

CVY_API cvy_device cvy_plan_device(const cvy_plan *plan);
CVY_API cvy_status cvy_plan_cost(const cvy_plan *plan, cvy_cost *out);

/* The plan in readable form: rewrites, passes, what each reads and writes, predicted time, rejected alternatives.
 * Text as in cvy_graph_print(). */
CVY_API cvy_status cvy_plan_print(const cvy_plan *plan, char *text, size_t capacity, size_t *needed);

/* Runs every pass several times, on random data in memory that it allocates. Afterwards cvy_plan_print() shows the
 * measured (minimum) and the predicted time. Not for CVY_REF. */
CVY_API cvy_status cvy_plan_measure(cvy_plan *plan);

/* Explains how each pass was decided: for every kernel (or algorithm) of the device its predicted time, or its
 * reason to refuse the pass. Text as in cvy_graph_print(). Not for CVY_REF. */
CVY_API cvy_status cvy_plan_why(const cvy_plan *plan, char *text, size_t capacity, size_t *needed);

/* A tensor in memory, elements of its dtype: on the CPU for CVY_REF and CVY_CPU, on the GPU for CVY_CUDA. */
typedef struct cvy_buffer {
    void *data;             /* at a multiple of an element's bytes; may be NULL if the tensor is empty */
    const int64_t *strides; /* one per dimension, in elements, any sign or 0 (outputs: no two elements at the
                               same address); NULL: contiguous */
} cvy_buffer;

/* Flags of cvy_plan_run(). */
#define CVY_KEEP_PREPARED 1u /* this workspace was used last by this plan, and no parameter has changed since */

/* Runs the plan on the tensors of cvy_graph_tensors(), in that order. workspace_size is the size of workspace in
 * bytes; less than cvy_plan_workspace() is refused. Allocates nothing, unless a NaN or an infinity requires another
 * plan on the CPU. Outputs must not overlap anything else. On the CPU, stream is NULL and the call returns when the
 * outputs are complete; on the GPU, it enqueues its work on the CUstream and returns. Without CVY_KEEP_PREPARED,
 * everything derived from parameters (folded, packed and transformed weights) is computed again. */
CVY_API cvy_status cvy_plan_run(const cvy_plan *plan, const cvy_buffer *buffers, int32_t n_buffers, void *workspace,
                                size_t workspace_size, uint32_t flags, void *stream);

/* The memory of a run in two buffers, both aligned to CVY_ALIGN. */
typedef struct cvy_memory {
    size_t size;           /* sizeof(cvy_memory) */
    void *prepared;        /* cvy_prepared.bytes; only read under CVY_KEEP_PREPARED, so threads may share it then */
    size_t prepared_size;  /* of the buffer, in bytes */
    void *workspace;       /* the rest of cvy_plan_workspace(): for one run at a time, of any plan */
    size_t workspace_size; /* of the buffer, in bytes */
} cvy_memory;

/* A flag of cvy_plan_run_in() only, where CVY_KEEP_PREPARED refers to the prepared buffer. */
#define CVY_KEEP_WORKSPACE 2u /* unchanged since this plan's last run; the GPU then clears no words in it */

/* The same as cvy_plan_run(), for callers who run several plans on the same parameters. */
CVY_API cvy_status cvy_plan_run_in(const cvy_plan *plan, const cvy_buffer *buffers, int32_t n_buffers,
                                   const cvy_memory *memory, uint32_t flags, void *stream);

/* cvy_word: a word and its expected value. cvy_copy: bytes and their expected contents. */
typedef struct cvy_word {
    const uint64_t *at;
    uint64_t value;
} cvy_word;
typedef struct cvy_copy {
    const void *at;
    const void *copy;
    size_t size; /* in bytes */
} cvy_copy;

/* 1 if every word has its value, else 0; stops at the first one that differs. */
CVY_API int32_t cvy_words_hold(const cvy_word *words, size_t n_words);

/* A run that is repeated. Only the words at `call` change from call to call, so in a language in which passing
 * arguments is slow, the caller writes a few numbers and passes one pointer. */
typedef struct cvy_repeat {
    size_t size;          /* sizeof(cvy_repeat) */
    const cvy_plan *plan; /* runs with CVY_KEEP_PREPARED */
    cvy_buffer *buffers;  /* the caller sets strides, the call sets data */
    int32_t n_buffers;
    uint32_t flags;         /* of cvy_plan_run_in() */
    cvy_memory memory;      /* the call sets workspace */
    const uint64_t *call;   /* n_buffers addresses, the address of the workspace, the stream */
    const cvy_word *words;  /* n_words that must have their values, such as addresses and versions of parameters */
    const cvy_copy *copies; /* n_copies that must be equal to their memory */
    size_t n_words;
    size_t n_copies;
} cvy_repeat;

/* Calls cvy_plan_run_in() with the buffers, workspace and stream at `call`. Returns CVY_STALE if a word or a copy
 * differs, or if the plan was made for aligned buffers (option strided) and a buffer is not. Only one call at a
 * time for each cvy_repeat. */
CVY_API cvy_status cvy_plan_repeat(cvy_repeat *repeat);

/* The launches of cvy_plan_run() on buffers with these strides, as JSON: for each launch, in order, the kernel with
 * its text, grid, block and arguments; and the files that the texts include. Only the alignment of data matters.
 * Only for plans for CVY_CUDA. Text as in cvy_graph_print(). */
CVY_API cvy_status cvy_plan_launches(const cvy_plan *plan, const cvy_buffer *buffers, int32_t n_buffers, char *text,
                                     size_t capacity, size_t *needed);

#ifdef __cplusplus
}
#endif
#endif
