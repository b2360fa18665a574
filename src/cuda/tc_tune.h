/* tc_tune.h - the tuner of the tensor-core convolution (kernels/conv_tc.cu). Problem, tuning and the numbers
 * that follow from them are defined with the kernel (conv_tc_layout.cuh). It is a separate file because the bench
 * of the kernel (bench/labs/gpu_tc.cu, C++) uses the same tuner as the engine. */
#ifndef CVYI_CUDA_TC_TUNE_H
#define CVYI_CUDA_TC_TUNE_H

#include <stdint.h>
#include "kernels/conv_tc_layout.cuh"

/* Tunings for effort "measure": the cost model's choice, its next best tiles, and no tensor cores. */
enum { TUNE_COST, TUNE_TILES = 4 /* 0 to 3: by rank */, TUNE_GENERIC = TUNE_TILES, TUNE_APART, CUDA_TUNINGS };

/* A tuning for blocks of at most `shared` bytes on `sms` multiprocessors: rank 0 is the best, others have another
 * pass, other tiles or strips (the last of them if there are fewer); false: none fits. */
bool cvyi_tc_tune(const tc_problem *b, int64_t shared, int sms, int rank, tc_tuning *out);
/* Are these the same pass, tile and strip? No two ranks of a problem are. */
bool cvyi_tc_same(const tc_tuning *a, const tc_tuning *b);

#endif
