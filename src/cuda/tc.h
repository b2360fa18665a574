/* tc.h - passes on Hopper's tensor cores: kernels/conv_tc.cu, a convolution and what follows it in one persistent
 * launch.
 *
 * The form of such a pass is
 *     conv, pointwise..., [statistics, [max pool, sign,] norm], pointwise..., [reduction over channels,
 * pointwise...] or, without a norm, with a max pool in its place. The pointwise nodes in front of the statistics
 * (or of a max pool) become cvy_pre, those behind cvy_post, those behind a reduction cvy_last. What stands between
 * is the kernel's own. tc_form.c recognises the form, tc_tune.c chooses tile, strip and buffers, tc_emit.c writes
 * the three functions, tc.c makes the steps and launches them. */
#ifndef CVYI_CUDA_TC_H
#define CVYI_CUDA_TC_H

#include "maker.h"

typedef enum tc_sink { TC_STORE, TC_POOL, TC_REDUCE } tc_sink; /* TC_SINK of conv_tc.cuh */
typedef enum tc_pass { TC_PLAIN, TC_FOLD, TC_BOTH } tc_pass;   /* TC_PASS */
enum { VARIANT_PLAIN, VARIANT_TC, VARIANT_MMA };               /* pass.variant */
enum { TC_STRIP_MOST = 64, TC_RAWS = 4 };

/* What the kernel computes, in its own words (conv_tc.cuh). No batch size: it is an argument of the launch. */
typedef struct tc_problem {
    int c, k, h, w, r, s, stride, pad_h, pad_w;
    int products; /* 1: tf32's accuracy, 3: float32's */
    int groups;   /* of the norm; 0: none */
    int sink, pool_h, pool_w, reduce, pass;
    int external; /* cvy_post reads tensors at a pixel */
    int folded;   /* weights and bias carry the sign of the norm's weight */
    int few;      /* tuned for few samples: many small strips */
} tc_problem;

/* How: the kernel's tuning macros, and what follows from them. */
typedef struct tc_tuning {
    int tile, rowsm, flat, strip, span, stages, slices, outs, lines, coltiles, slack, tma, statw;
    int threads;                       /* of a block */
    int channels;                      /* output channels as packed, whole blocks of M */
    int strips;                        /* of a sample */
    int box_rows, box_cols;            /* of a tensor copy */
    int64_t packed_bytes;              /* of the weights */
    int64_t shared_bytes;              /* an upper bound of the kernel's; checked by the compiler */
    double strip_cycles, start_cycles; /* of a block for one strip; before the first and behind the last */
} tc_tuning;

/* Nodes [first, end) that become one function. */
typedef struct tc_range {
    int first, end;
} tc_range;

typedef struct tc_form {
    const char *why;                      /* NULL: it has the form; else what is in the way, in words */
    int conv, stats, pool, apply, reduce; /* nodes; CVY_NONE: there is none */
    tc_range pre, post, last;
    int y;   /* value in front of the norm (or cvy_post's argument where there is none) */
    int z;   /* value that cvy_post receives */
    int out; /* value that is stored */
    int64_t samples;
    tc_problem problem;
    tc_tuning tuning;
} tc_form;

/* Is the pass one for these kernels on this plan's device, and how? */
tc_form cvyi_tc_form(const cvy_plan *p, const pass *s);
/* Predicted seconds of the kernel, without its launch. */
double cvyi_tc_seconds(const cvy_plan *p, const tc_form *f);
way cvyi_tc_way(const tc_form *f);

/* Tunings for effort "measure": the cost model's choice, its next best tiles, and doing without. */
enum { TUNE_COST, TUNE_TILES = 4 /* 0 to 3: by rank */, TUNE_GENERIC = TUNE_TILES, TUNE_APART, CUDA_TUNINGS };
extern const char *const cvyi_cuda_tunings[CUDA_TUNINGS + 1];
cvy_status cvyi_cuda_measure(const cvy_plan *p, double *seconds);

/* A tuning for blocks of at most `shared` bytes on `sms` multiprocessors: rank 0 is the best, others have other
 * tiles or strips (the last of them where there are fewer); false: none fits. */
bool cvyi_tc_tune(const tc_problem *b, int64_t shared, int sms, int rank, tc_tuning *out);

/* The generated epilogue.cuh. */
cvy_status cvyi_tc_emit(maker *m, const tc_form *f, text *out);

/* The steps of a pass: weights packed, then the convolution. */
cvy_status cvyi_make_tc(maker *m, const pass *s);

/* What a step of these kernels has beyond views; numbers of views, CVY_NONE: NULL. */
struct tc_step { /* tc_step of exec.h */
    bool packs;  /* conv_tc_pack.cu: w, gamma, packed, unscale. Else conv_tc.cu */
    int x, w, packed, unscale, bias, gamma, beta, y, part, state;
    float eps;
    int64_t zero_bytes;           /* from part on: zero before the first launch on a workspace */
    bool tma;                     /* x comes by tensor copies */
    uint64_t dims[4], strides[3]; /* of the tensor map */
    unsigned box[4];
};

/* Launches it. fresh: the workspace's statistics words are not from this plan. */
cvy_status cvyi_tc_launch(const cuda_device *d, const cuda_step *s, const step_arguments *a, bool fresh,
                          CUstream stream);

#endif
