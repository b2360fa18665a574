/* simplify.h - exact algebra on the graph: small rewrites, each with its condition.
 *
 * A rewrite examines one node and changes the graph or leaves it alone. Rewrites run over all nodes, including
 * those that they add, until none applies. Arithmetic that a rewrite adds on parameters (a scale times a weight)
 * consists of ordinary nodes: the planner runs them only when parameters change. CVY_SIMPLIFY=-name,-name leaves
 * rewrites out.
 *
 * NaN and infinities are preserved. If a rewrite needs a finite value for that, the value is watched
 * (plan/watch.c). For example, with a scale folded into weights: if the scale is infinite, or its product with a
 * weight overflows, every product would be infinite instead of only their sum. */
#ifndef CVYI_SIMPLIFY_H
#define CVYI_SIMPLIFY_H

#include "../graph/graph.h"

/* Rewrites g in place; one line of text per rewrite done, if `log` is not NULL. */
cvy_status cvyi_simplify(cvy_graph *g, rewrite_mode mode, text *log);

/* A use is an argument of a node: number node * MAX_ARGS + argument. The uses of a value are a list, so that moving
 * its readers costs as many steps as it has. */
typedef struct editor {
    cvy_graph *g;
    text *log;
    rewrite_mode mode;
    int n_given;   /* values of the original graph; edits made the others */
    cvy_status st; /* of the first edit that failed; edits after it do nothing */
    /* per value */
    int *first_use; /* -1: none */
    int *readers;   /* uses by living nodes, and outputs that are it */
    int cap_values;
    /* per node */
    int *next_use; /* MAX_ARGS of them: the next use of the same value; -1: the last */
    bool *dead;    /* not needed any more; clean() removes it */
    int *dying;    /* room for the nodes that are removed because another one was */
    int cap_nodes;
} editor;

typedef struct rewrite {
    const char *name;
    const char *what;                    /* for the printed plan */
    bool (*apply)(editor *e, int index); /* true: the graph was changed */
    bool always;                         /* engines need it: cannot be switched off */
} rewrite;

extern const rewrite cvyi_rewrites[];
extern const int cvyi_rewrite_count;

/* Finds the readers of every value; must be called again when nodes have moved. */
cvy_status cvyi_editor_open(editor *e);
void cvyi_editor_close(editor *e);

/* ---- edits (editor.c). Values are numbers of g->values; CVY_NONE once an edit has failed ---- */

int cvyi_edit_unary(editor *e, op_id op, int x);
int cvyi_edit_binary(editor *e, op_id op, int a, int b);
int cvyi_edit_number(editor *e, op_id op, int a, double number);
/* An operator of one argument and one list of numbers. */
int cvyi_edit_list(editor *e, op_id op, int x, int count, const int64_t *numbers);
int cvyi_edit_reshape(editor *e, int x, int rank, const int64_t *dims);
/* [C] as [C,1,...] after `front` dimensions of extent 1, with `after` of them after C. */
int cvyi_edit_per_channel(editor *e, int x, int front, int after);
/* A copy of a node with other arguments; attributes from `like`. */
int cvyi_edit_like(editor *e, const node *like, const int *args);
int cvyi_edit_add(editor *e, const node_spec *spec);
void cvyi_spec_numbers(node_spec *s, int attr, int count, const int64_t *numbers);
/* Its results are stored in this dtype. */
void cvyi_edit_dtype(editor *e, int v, cvy_dtype dtype);
/* The current rewrite holds only while v is finite. Check e->mode first: with REWRITE_CAREFUL nothing may be
 * watched. */
void cvyi_edit_watch(editor *e, int v);
/* All readers of `old` now read `now`, outputs too. */
void cvyi_edit_replace(editor *e, int old, int now);

/* ---- questions ---- */

const node *cvyi_maker(const cvy_graph *g, int v); /* NULL: an input or a parameter */
int cvyi_readers(const editor *e, int v);          /* nodes that read it, and outputs that are it */
/* May the factor of a mul be folded into another one: is the product watched, or trusted to be finite? */
bool cvyi_foldable_factor(const editor *e, const node *mul);
/* Is v one number per channel of a tensor of this shape (channels: dimension 1), or one number for all? */
bool cvyi_per_channel(const cvy_graph *g, int v, const shape *of);

/* ---- rewrites, by file ---- */
bool cvyi_split_norm(editor *e, int index);           /* norm.c */
bool cvyi_fold_norm_affine(editor *e, int index);     /* norm.c */
bool cvyi_pool_before_norm(editor *e, int index);     /* pool.c */
bool cvyi_pool_before_monotone(editor *e, int index); /* pool.c */
bool cvyi_fold_conv_affine(editor *e, int index);     /* producer.c */
bool cvyi_reduce_producer(editor *e, int index);      /* producer.c */
bool cvyi_merge_cast(editor *e, int index);           /* cast.c */
bool cvyi_cast_result(editor *e, int index);          /* cast.c */
bool cvyi_cast_operand(editor *e, int index);         /* cast.c */
bool cvyi_upsample_conv(editor *e, int index);        /* upsample.c */
bool cvyi_transposed_pixel(editor *e, int index);     /* transposed.c */
bool cvyi_flip_transposed(editor *e, int index);      /* transposed.c */
bool cvyi_merge_tanh_hardswish(editor *e, int index); /* pointwise.c */
bool cvyi_merge_clamp(editor *e, int index);          /* pointwise.c */
bool cvyi_merge_number(editor *e, int index);         /* pointwise.c */
bool cvyi_drop_identity(editor *e, int index);        /* pointwise.c */
bool cvyi_reduce_one(editor *e, int index);           /* pointwise.c */

#endif
