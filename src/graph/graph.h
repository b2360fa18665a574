/* graph.h - what to compute: values, nodes, the operator table, and the geometry every engine reads.
 *
 * A graph is a list of nodes in an order in which they can run. A value is an input, a parameter or a node's one
 * result; args and results are indices into graph.values. Nothing here knows a device. */
#ifndef CVYI_GRAPH_H
#define CVYI_GRAPH_H

#include "../util/util.h"

/* ---- operators (ops.c, attrs.c) ---- */

typedef enum op_id {
#define OP(name, kind, spatial, attributes, tensors, reference, flags) OP_##name,
#include "ops.def"
#undef OP
    OP_COUNT
} op_id;

typedef enum op_kind {
    KIND_CONV,     /* x, weight, bias?            conv_geom */
    KIND_CONVT,    /* x, weight, bias?            conv_geom (see there) */
    KIND_LINEAR,   /* x, weight, bias?            matmul_geom */
    KIND_MATMUL,   /* x, other                    matmul_geom */
    KIND_NORM,     /* x, tensors by name          norm_geom */
    KIND_UNARY,    /* x                           p[0], p[1]: cvyi_unary_params */
    KIND_BINARY,   /* x, other?                   broadcast; other missing: attribute "other" */
    KIND_MAXPOOL,  /* x                           pool_geom */
    KIND_AVGPOOL,  /* x                           pool_geom */
    KIND_ADAPTIVE, /* x                           pool_geom (only in and out), cvyi_adaptive_window */
    KIND_REDUCE,   /* x                           reduced dims: cvyi_reduced_dims */
    KIND_SOFTMAX,  /* x                           dim: cvyi_softmax_dim */
    KIND_SHAPE,    /* x                           same elements in the same order */
    KIND_MOVE,     /* x, more?                    the same elements at other positions: move_geom */
    KIND_STATS,    /* x, sign?  -> [outer, groups, STATS_FIELDS]                   norm_geom */
    KIND_APPLY     /* x, stats, weight?, bias?                                    norm_geom */
} op_kind;

/* What norm_stats stores for a slice: the mean, 1/deviation, and the rounding error of the mean in float32. */
enum { STATS_MEAN, STATS_RSTD, STATS_MEAN_LOW, STATS_FIELDS };

enum { FLAG_MONO = 1, FLAG_INTERNAL = 2, FLAG_SLOW = 4 };
enum { MAX_ATTRS = 8, MAX_ARGS = 8, MAX_SPATIAL = 3 };

typedef enum attr_kind {
    ATTR_INT,     /* one whole number */
    ATTR_SPATIAL, /* one whole number, or one per spatial dimension */
    ATTR_PADDING, /* as ATTR_SPATIAL, or 'same' or 'valid' */
    ATTR_DIMS,    /* whole numbers, up to CVY_MAX_RANK, negative ones count from the end */
    ATTR_NUMBER,  /* a real number */
    ATTR_BOOL,    /* True or False */
    ATTR_WORD     /* one of the words of the row */
} attr_kind;

typedef struct attr_def {
    const char *name;
    attr_kind kind;
    bool required;
    const char *words;     /* ATTR_WORD: "none|tanh", the first is the default; the value is its index */
    const char *otherwise; /* the default as PyTorch writes it; NULL if the attribute is required */
} attr_def;

typedef struct op_info {
    const char *name;
    op_kind kind;
    int spatial;
    int flags;
    int n_attrs, n_tensors;
    const attr_def *attrs;
    const char *const *tensors; /* names of args[1], args[2], ... */
} op_info;

extern const op_info cvyi_ops[OP_COUNT];

/* OP_COUNT if there is none of that name. Internal operators are not found. */
op_id cvyi_op_find(const char *name, size_t len);
/* Fails with the message that there is no such operator, and proposes the nearest one. */
cvy_status cvyi_op_unknown(const char *name, size_t len);

/* The value of an attribute. Unset: the default holds, `set` is false and the fields carry it (count 0 for None).
 */
typedef struct attr_value {
    bool set;
    int count;               /* numbers; 0: None */
    int64_t i[CVY_MAX_RANK]; /* ATTR_INT, _SPATIAL, _PADDING (PAD_SAME, PAD_VALID), _DIMS, _BOOL, _WORD */
    double f;                /* ATTR_NUMBER */
} attr_value;
enum { PAD_SAME = -1, PAD_VALID = -2 };

/* ---- values, nodes, graphs (graph.c) ---- */

typedef struct shape {
    int rank;
    int64_t dim[CVY_MAX_RANK];
} shape;

typedef enum value_kind { VALUE_INPUT, VALUE_PARAM, VALUE_NODE } value_kind;

/* What rewrites that hold only for finite values do (plan/watch.c). */
typedef enum rewrite_mode {
    REWRITE_TRUST,  /* they are applied: infinities may appear in other places */
    REWRITE_WATCH,  /* they are applied, and the values are watched */
    REWRITE_CAREFUL /* they are not applied */
} rewrite_mode;

typedef struct value {
    value_kind kind;
    int node;     /* VALUE_NODE: the node that computes it; else -1 */
    char *name;   /* unique in the graph */
    bool fixed;   /* depends only on parameters */
    bool output;  /* one of graph.outputs */
    bool watched; /* lowered graphs: a rewrite holds only while it is finite (plan/watch.c) */
    bool recast;  /* lowered graphs: its dtype is not what its operator would give (simplify/cast.c) */
    /* Lowered graphs: the name of the value that this one replaced in a rewrite; NULL: there is none. */
    const char *title;
    cvy_dtype dtype;
    shape shape;
} value;

typedef struct node {
    op_id op;
    int out;                    /* value */
    int n_args;                 /* args in use; 1 + n_tensors of the operator at most */
    int arg[MAX_ARGS];          /* values; CVY_NONE if an optional tensor is absent */
    bool named;                 /* the name was given, not generated: the printer writes it */
    bool halved;                /* lowered graphs: its float32 data may be rounded to 16 bits (simplify/cast.c) */
    attr_value attr[MAX_ATTRS]; /* in the order of cvyi_ops[op].attrs */
} node;

/* Values, in order. */
typedef struct value_list {
    int *at;
    int n, cap;
} value_list;

struct cvy_graph {
    value *values;
    node *nodes;
    value_list given[VALUE_NODE]; /* by value_kind, which are those of cvy_role: inputs, parameters */
    int *outputs;                 /* values, in order */
    int n_values, cap_values;
    int n_nodes, cap_nodes;
    int n_outputs, cap_outputs;
    int *index;           /* names.c: cap_index slots, each a value or CVY_NONE */
    int cap_index;        /* a power of 2, or 0 */
    int suffix[OP_COUNT]; /* per operator, the number at which its next automatic name is looked for */
    int doubtful; /* 1 + the first node whose numbers in chain text look like torch.nn's; 0: there is none */
};

static inline const op_info *cvyi_info(const node *n)
{
    return &cvyi_ops[n->op];
}
static inline const shape *cvyi_shape_of(const cvy_graph *g, int v)
{
    return &g->values[v].shape;
}
/* Attribute by name; the name must be one of the operator's. */
const attr_value *cvyi_attr(const node *n, const char *name);
bool cvyi_attr_true(const node *n, const char *name);

/* Elements of a shape. The verifier has checked that the product and its bytes fit. */
int64_t cvyi_elements(const shape *s);
bool cvyi_same_shape(const shape *a, const shape *b);
void cvyi_text_add_shape(text *t, const shape *s); /* [1,2,3] */

/* Appends a node whose attributes are already values. The shape is inferred; natural parameters are created for
 * missing tensors if `natural`. The graph is unchanged on failure. `made` (attribute values in the operator's
 * order) may be NULL: all defaults. */
typedef struct node_spec {
    op_id op;
    const char *name; /* may be NULL */
    int n_args;
    int arg[MAX_ARGS];
    attr_value attr[MAX_ATTRS];
    bool natural;
} node_spec;
cvy_status cvyi_graph_add(cvy_graph *g, const node_spec *spec, int *out);
void cvyi_spec_init(node_spec *spec, op_id op); /* defaults in place */
/* Sets one attribute from a cvy_attr, checked against the table. */
cvy_status cvyi_spec_set(node_spec *spec, const cvy_attr *attr);

cvy_status cvyi_graph_copy(const cvy_graph *g, cvy_graph **out);
/* Node order[i] becomes node i, and the first `kept` remain. order: all nodes, overwritten. */
void cvyi_graph_reorder(cvy_graph *g, int *order, int kept);
/* Gives back the room that growing took beyond what there is. */
cvy_status cvyi_graph_trim(cvy_graph *g);
/* The outputs that hold: those marked, else the last value. Returns their number. */
int cvyi_graph_outputs(const cvy_graph *g, const int **values);
/* Checks every invariant of the structure: order, indices, shapes. For tests and after rewrites. */
cvy_status cvyi_graph_verify(const cvy_graph *g);

/* Records what a graph holds now, and returns to that state: everything added since is removed. */
typedef struct graph_mark {
    int n_values, n_nodes, n_outputs;
} graph_mark;
graph_mark cvyi_graph_mark(const cvy_graph *g);
void cvyi_graph_rollback(cvy_graph *g, const graph_mark *mark);

/* ---- element types (dtype.c) ---- */

enum { DTYPE_COUNT = CVY_BFLOAT16 + 1 };
const char *cvyi_dtype_name(cvy_dtype dtype); /* fp32, fp16, bf16 */
bool cvyi_dtype_find(const char *name, size_t len, cvy_dtype *out);
void cvyi_text_add_dtype(text *t, cvy_dtype dtype); /* :bf16; nothing for float32 */
int64_t cvyi_dtype_bytes(cvy_dtype dtype);          /* of one element */
int64_t cvyi_value_bytes(const cvy_graph *g, int v);
/* The result's dtype of a node whose args are set: see cvy_dtype. Refuses data of two dtypes. */
cvy_status cvyi_infer_dtype(const cvy_graph *g, const node *n, cvy_dtype *out);

/* ---- names (names.c) ---- */

enum { NAME_BYTES = 256 };                                             /* longest name, with its NUL */
int cvyi_value_find(const cvy_graph *g, const char *name, size_t len); /* CVY_NONE if there is none */
cvy_status cvyi_name_add(cvy_graph *g, int v);                         /* value v, the newest, can be found */
void cvyi_name_remove(cvy_graph *g, int v);                            /* v, the newest, no longer can */
/* The name of a node that was given none: the first of relu, relu_2, relu_3, ... that is free. */
void cvyi_automatic_name(cvy_graph *g, op_id op, char out[NAME_BYTES]);
void cvyi_suffixed_name(op_id op, int suffix, char out[NAME_BYTES]); /* relu for 1, relu_2 for 2 */

/* ---- shape inference (shape.c) ---- */

/* The result's shape of a node whose args and attributes are set; messages begin with the operator. */
cvy_status cvyi_infer(const cvy_graph *g, const node *n, shape *out);
/* The natural shape of tensor argument number i (1...); rank SHAPE_ABSENT if the operator is set up without it,
 * SHAPE_FREE if it has no natural shape: the caller gives it or leaves it out, and cvyi_infer judges. */
enum { SHAPE_ABSENT = -1, SHAPE_FREE = -2 };
cvy_status cvyi_natural_shape(const cvy_graph *g, const node *n, int i, shape *out);

/* ---- geometry (geom.c): a node's numbers in the one form all engines use. For legal nodes; cannot fail.
 * Spatial axes are always three, padded at the front with extent 1 (kernel 1, stride 1, padding 0). An unbatched
 * input (rank = spatial + 1) has N = 1. ---- */

typedef struct conv_geom {
    int64_t N, C, K, groups; /* samples, input channels, output channels */
    int64_t in[3], out[3];   /* D H W of src; O P Q of dst */
    int64_t kernel[3], stride[3], dil[3];
    int64_t pad[3]; /* before; the padding after follows from `out` */
    int spatial;    /* 1, 2 or 3: axes that exist; the last `spatial` ones */
    bool bias;
} conv_geom;
/* CONV:  dst[n,k,o] = bias[k] + sum over c, r of src[n,c, o*stride - pad + r*dil] * weight[k,c,r]
 * CONVT: dst[n,k,i*stride - pad + r*dil] += src[n,c,i] * weight[c,k,r]   (weight is [C][K/groups][kernel]) */
void cvyi_conv_geom(const cvy_graph *g, const node *n, conv_geom *out);

typedef struct matmul_geom {
    int64_t batch;    /* products; 1 if other is a single matrix (x's leading dimensions are then all in M) */
    int64_t M, N, K;  /* dst[b][M,N] = x[b][M,K] * other[b] */
    bool other_is_nk; /* other is [N][K] (linear's weight), else [K][N] */
    bool bias;
    int batch_rank; /* broadcast batch dimensions: extents, and strides in matrices (0: repeated) */
    int64_t batch_dim[CVY_MAX_RANK], x_stride[CVY_MAX_RANK], other_stride[CVY_MAX_RANK];
} matmul_geom;
void cvyi_matmul_geom(const cvy_graph *g, const node *n, matmul_geom *out);
/* Which matrix of x and which of other make product b. */
void cvyi_matmul_operands(const matmul_geom *m, int64_t b, int64_t *x, int64_t *other);

/* x seen as [outer][groups][chan][inner]; a slice is one (outer, group), or one group over all outer if over_outer.
 * The affine of an element is number group * chan + c. layer_norm: groups 1, inner 1, chan the normalised elements.
 */
typedef struct norm_geom {
    int64_t outer, groups, chan, inner;
    bool over_outer; /* batch statistics */
    bool running;    /* statistics are given, none are taken (batch_norm in evaluation) */
    bool centred;    /* false: rms_norm, the mean is not taken */
    double eps;
} norm_geom;
void cvyi_norm_geom(const cvy_graph *g, const node *n, norm_geom *out);
/* Layer and RMS norms: a weight per element of a row, applied to what is already normalised. */
static inline bool cvyi_norm_rows(const norm_geom *e)
{
    return e->groups == 1 && e->inner == 1 && !e->over_outer;
}
/* The roles of a NORM node's args; CVY_NONE if absent. */
typedef struct norm_args {
    int x, weight, bias, mean, var; /* values */
} norm_args;
void cvyi_norm_args(const node *n, norm_args *out);

typedef struct pool_geom {
    int64_t planes; /* samples x channels */
    int64_t in[3], out[3], kernel[3], stride[3], dil[3], pad[3];
    bool count_include_pad; /* AVGPOOL */
    int64_t divisor;        /* AVGPOOL: divisor_override, 0: the window's */
    int spatial;
} pool_geom;
void cvyi_pool_geom(const cvy_graph *g, const node *n, pool_geom *out);
/* ADAPTIVE: the window of output i along an axis begins at first and ends before end. Windows may overlap. */
static inline void cvyi_adaptive_window(int64_t in, int64_t out, int64_t i, int64_t *first, int64_t *end)
{
    *first = i * in / out;
    *end = ((i + 1) * in + out - 1) / out;
}
/* AVGPOOL: the divisor of the window that begins at start[] (padding included, may be negative). */
int64_t cvyi_pool_divisor(const pool_geom *p, const int64_t start[3]);

/* MOVE: where the elements of one argument go. They fill a window of the result, which begins at at[] and has
 * extents count[]; the element at index i of it is x's at start + i * times / over along x's dimension from[d].
 * Windows of several arguments cover the result; if one alone does not (fills), the rest is `fill`. */
typedef struct move_geom {
    int rank; /* of the result */
    int from[CVY_MAX_RANK];
    int64_t at[CVY_MAX_RANK], count[CVY_MAX_RANK];
    int64_t start[CVY_MAX_RANK], times[CVY_MAX_RANK], over[CVY_MAX_RANK];
    bool fills;
    double fill;
} move_geom;
void cvyi_move_geom(const cvy_graph *g, const node *n, int arg, move_geom *out);
/* Does every index along dimension 0 of the result come from the same one of each argument? */
bool cvyi_move_by_sample(const cvy_graph *g, const node *n);

/* Bit d set: dimension d of x is reduced. */
unsigned cvyi_reduced_dims(const cvy_graph *g, const node *n);
int cvyi_softmax_dim(const cvy_graph *g, const node *n);

/* UNARY: the numbers of the operator's attributes, in order (clamp: bounds, -inf and inf for None; gelu: 1 for
 * 'tanh'). BINARY: p[0] the number that stands for `other` if there is no arg, p[1] alpha. */
void cvyi_pointwise_params(const node *n, double p[2]);

/* Strides of an operand of shape `from` read as shape `to` (0 along broadcast dims), from its own strides. */
void cvyi_broadcast_strides(const shape *from, const int64_t *strides, const shape *to, int64_t out[CVY_MAX_RANK]);
void cvyi_contiguous_strides(const shape *s, int64_t out[CVY_MAX_RANK]);
/* strides: NULL, or one per dimension; of dimensions of one element any. */
bool cvyi_is_contiguous(const shape *s, const int64_t *strides);

/* Multiplications and additions of a node, a convolution counted as direct. */
double cvyi_node_flops(const cvy_graph *g, const node *n);

/* ---- chain text (parse.c, print.c) ---- */
/* cvy_graph_parse(), where declarations that name no dtype have this one. */
cvy_status cvyi_graph_parse_as(const char *source, cvy_dtype plain, cvy_graph **out);
cvy_status cvyi_print_graph(const cvy_graph *g, text *t);
void cvyi_print_node(const cvy_graph *g, const node *n, text *t); /* "conv2d(64, 3)" */
enum { SIGNATURE_BYTES = 256 };
/* "conv2d(out_channels, kernel_size, stride=1...)" */
void cvyi_signature(op_id op, char out[SIGNATURE_BYTES]);

#endif
