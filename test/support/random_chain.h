/* random_chain.h - random graphs of four flavours: "exact" ones of operators that keep whole numbers whole, "real"
 * ones of the whole vocabulary, both chains with branches, residuals and several outputs, "thin" ones of a norm and
 * a reduction or softmax on shapes with many extents of 1, and "wild" ones of whatever the C calls accept. Small: a
 * reference in plain loops takes no time. */
#ifndef TEST_RANDOM_CHAIN_H
#define TEST_RANDOM_CHAIN_H

#include "random_graph.h"

typedef enum flavour { EXACT, REAL, THIN, WILD } flavour;

/* The graph of a seed. */
cvy_graph *make_graph(flavour f, uint64_t seed);

/* Inputs and casts of a dtype or of float32, other results as follows from them; all of the dtype where some
 * operator would be given both. Parameters keep theirs. */
void mix_dtypes(cvy_graph *g, cvy_dtype dtype, uint64_t seed);

#endif
