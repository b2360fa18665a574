/* kernel_list.h - the launches of a plan: found by source file, and as lines; what a kernel says of a pass. */
#ifndef TEST_KERNEL_LIST_H
#define TEST_KERNEL_LIST_H

#include "../../src/cuda/choice.h"

/* The first step from that file; NULL: there is none. */
const cuda_step *step_of(const cvy_plan *plan, const char *source);
/* Is the step compiled with this option, for contiguous tensors? */
bool has_option(const cuda_step *s, const char *option);
/* A line for each launch: source file, and of a pass on tensor cores its problem and its tuning. */
void print_kernels(const cvy_plan *plan);
/* Why a row of the table of kernels refuses the pass; NULL: it does not, and its part of the choice is in *c. */
const char *ask_row(const cvy_plan *plan, const pass *s, const kernel_row *row, cuda_choice *c);

#endif
