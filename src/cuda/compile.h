/* compile.h - code for the steps of plans. */
#ifndef CVYI_CUDA_COMPILE_H
#define CVYI_CUDA_COMPILE_H

#include "exec.h"

/* Compiles and loads what the plans' steps launch; after a failure some steps have their code. */
cvy_status cvyi_cuda_compile_steps(cvy_plan *const *plans, int n);
void cvyi_cuda_unload_steps(cuda_state *state);

#endif
