/* shape.h - what the files of shape inference share; the others read graph.h. */
#ifndef CVYI_SHAPE_H
#define CVYI_SHAPE_H

#include "graph.h"

#define L(x) ((long long)(x)) /* for messages */

/* shape.c: are all numbers of the attribute at least that large? */
cvy_status cvyi_check_positive(const op_info *op, const node *n, const char *name, int64_t least);

/* shape.c: a dimension counted from the end if negative. */
cvy_status cvyi_wrap_dim(const char *op, int64_t dim, int rank, int *out);

/* move.c: the rule of cvyi_infer() for operators that only move elements. */
cvy_status cvyi_infer_move(const cvy_graph *g, const node *n, shape *out);

/* shape_spatial.c: rules of cvyi_infer(), and tensor i of a convolution. */
cvy_status cvyi_infer_conv(const cvy_graph *g, const node *n, shape *out);
cvy_status cvyi_infer_pool(const cvy_graph *g, const node *n, shape *out);
cvy_status cvyi_infer_adaptive(const cvy_graph *g, const node *n, shape *out);
void cvyi_natural_conv(const cvy_graph *g, const node *n, int i, shape *out);

#endif
