/* kernel_list.h - the launches of a plan: found by source file, and as lines. */
#ifndef TEST_KERNEL_LIST_H
#define TEST_KERNEL_LIST_H

#include "../../src/cuda/exec.h"

/* The first step from that file; NULL: there is none. */
const cuda_step *step_of(const cvy_plan *plan, const char *source);
/* Is the step compiled with this option, for contiguous tensors? */
bool has_option(const cuda_step *s, const char *option);
/* A line for each launch: source file, and of a pass on tensor cores its problem and its tuning. */
void print_kernels(const cvy_plan *plan);

#endif
