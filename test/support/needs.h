/* needs.h - what the kernels of some plans must have between them, so that a list of chains cannot lose what it is
 * for. */
#ifndef TEST_NEEDS_H
#define TEST_NEEDS_H

#include "../../src/plan/plan.h"

/* Some launch has a source file (value -1) or a macro, or some pass on tensor cores a value of its choice, and
 * perhaps another value, too: TC_NAME of a convolution's problem or tuning (conv_tc_layout.cuh), "streamed" (do its
 * weights travel with x?), CLUSTER_M or CLUSTER_N of a matrix product's tile. */
typedef struct need {
    const char *name;
    int value;
    const char *also;
    int also_value;
} need;

/* Bit i: the plan meets need i, of at most 64. */
uint64_t needs_met(const cvy_plan *plan, const need *needs, int n);

#endif
