/* tc_tune.h - what the tensor-core convolution (kernels/conv_tc.cu) is to compute, and how. Of its own, since the
 * bench of the kernel alone (bench/gpu_tc.cu, C++) asks the same tuner as the engine. */
#ifndef CVYI_CUDA_TC_TUNE_H
#define CVYI_CUDA_TC_TUNE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum tc_sink { TC_STORE, TC_POOL, TC_REDUCE } tc_sink;                    /* TC_SINK of conv_tc.cuh */
typedef enum tc_pass { TC_PLAIN, TC_KEEP, TC_BOTH, TC_STATS, TC_FINISH } tc_pass; /* TC_PASS */
enum { TC_STRIP_MOST = 64, TC_RAWS = 4, TC_WIDEST = 4 };

/* What the kernel computes, in its own words (conv_tc.cuh). No batch size: it is an argument of the launch. */
typedef struct tc_problem {
    int c, k, h, w, r, s, stride, pad_h, pad_w;
    int products; /* 1: tf32's accuracy, 3: float32's */
    int groups;   /* of the norm; 0: none */
    int sink, pool_h, pool_w, reduce;
    int external; /* cvy_post reads tensors at a pixel */
    int before;   /* cvy_post reads what cvy_pre was given: results may not wait, for they are cvy_pre's alone */
    int folded;   /* weights and bias carry the sign of the norm's weight */
    int few;      /* tuned for few samples: many small strips */
    int apart;    /* blocks may not wait for each other: statistics and finishing are launches of their own */
} tc_problem;

/* How: the kernel's tuning macros, and what follows from them. */
typedef struct tc_tuning {
    int pass; /* TC_FINISH: after a launch of TC_STATS with the same macros */
    int tile, rowsm, flat, strip, span, stages, slices, wide, outs, lines, coltiles, slack, tma, statw, rows,
        finishers;
    int threads;                       /* of a block */
    int channels;                      /* output channels as packed, whole blocks of M */
    int strips;                        /* of a sample */
    int box_rows, box_cols;            /* of a tensor copy */
    int64_t packed_bytes;              /* of the weights */
    int64_t shared_bytes;              /* an upper bound of the kernel's; checked by the compiler */
    double strip_cycles, start_cycles; /* of a block for one strip; before the first and behind the last */
} tc_tuning;

/* Tunings for effort "measure": the cost model's choice, its next best tiles, and doing without. */
enum { TUNE_COST, TUNE_TILES = 4 /* 0 to 3: by rank */, TUNE_GENERIC = TUNE_TILES, TUNE_APART, CUDA_TUNINGS };

/* A tuning for blocks of at most `shared` bytes on `sms` multiprocessors: rank 0 is the best, others have another
 * pass, other tiles or strips (the last of them where there are fewer); false: none fits. */
bool cvyi_tc_tune(const tc_problem *b, int64_t shared, int sms, int rank, tc_tuning *out);
/* Are these the same pass, tile and strip? No two ranks of a problem are. */
bool cvyi_tc_same(const tc_tuning *a, const tc_tuning *b);

#endif
