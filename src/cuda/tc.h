/* tc.h - passes on Hopper's tensor cores: kernels/conv_tc.cu, a convolution and what follows it in one persistent
 * launch.
 *
 * The form of such a pass is
 *     conv, pointwise..., [statistics, [max pool, sign,] norm], pointwise..., [reduction, pointwise...]
 * or, without a norm, with a max pool in its place; the reduction is over channels. The pointwise nodes before the
 * statistics (or before a max pool) become cvy_pre, those after them cvy_post, those after a reduction cvy_last.
 * The kernel itself computes what is between. tc_form.c recognises the form, tc_tune.c chooses tile, strip and
 * buffers, tc_emit.c writes the three functions, tc.c makes the steps and launches them. */
#ifndef CVYI_CUDA_TC_H
#define CVYI_CUDA_TC_H

#include "maker.h"
#include "tc_tune.h"

/* Nodes [first, end) that become one function. */
typedef struct tc_range {
    int first, end;
} tc_range;

typedef struct tc_form {
    const char *why;                      /* NULL: it has the form; else what is in the way, in words */
    int conv, stats, pool, apply, reduce; /* nodes; CVY_NONE: there is none */
    tc_range pre, post, last;
    int y;     /* value before the norm (or cvy_post's argument if there is none) */
    int z;     /* value that cvy_post receives */
    int other; /* and the other one: y, or the convolution's own result; CVY_NONE after pooling */
    int out;   /* value that is stored */
    /* cvy_pre is only a sigmoid, and only the norm reads it, in tf32: tanh(x / 2) takes its place, twice as
     * large and moved by 1, which the norm does not see if its eps is four times as large. */
    bool halved;
    int weight;       /* what is packed: the convolution's weights, or what they are made of */
    int factor;       /* by multiplying it with one number for each output channel; CVY_NONE: nothing */
    bool signed_pool; /* weights and bias carry the sign of the norm's weight: pooling went before it */
    int64_t samples;
    tc_problem problem;
    tc_tuning tuning;
} tc_form;

/* Is the pass one for these kernels on this plan's device, and how? */
tc_form cvyi_tc_form(const cvy_plan *p, const pass *s);
/* The same if x or the result lie channels last: values, CVY_NONE: not this one. Decided when places are. */
struct tc_last { /* tc_last of exec.h */
    int x, y;
    tc_form both, x_alone; /* all that lie so; x, if the result lies as usual */
};
/* false: the kernel does not take them so. */
bool cvyi_tc_last(const cvy_plan *p, const tc_form *f, int x, int y, tc_last *out);
/* Which of the two could: values that lie in tensors of run(), CVY_NONE: not this one. */
void cvyi_tc_tensors(const cvy_plan *p, const tc_form *f, int *x, int *y);
/* Names of the tunings that effort "measure" tries. */
extern const char *const cvyi_cuda_tunings[CUDA_TUNINGS + 1];
cvy_status cvyi_cuda_measure(const cvy_plan *p, double *seconds);
cvy_status cvyi_cuda_measure_passes(const cvy_plan *p, double *seconds);

/* The generated epilogue.cuh. */
cvy_status cvyi_tc_emit(maker *m, const tc_form *f, text *out);

/* What a step of these kernels has beyond views; numbers of views, CVY_NONE: NULL. */
struct tc_step {  /* tc_step of exec.h */
    bool packs;   /* conv_tc_pack.cu: w, packed, unscale, factor. Else conv_tc.cu */
    bool product; /* matmul_tc.cu, conv_wide.cu, matmul_wide.cu: maps swizzled by 128 bytes, and the views */
    bool words;   /* the last two: maps have three dimensions; matmul_tc.cu's two */
    int x, w, packed, unscale, bias, gamma, beta, y, part, state, factor;
    float eps;
    int64_t zero_bytes;           /* from part on: zero before the first launch on a workspace */
    bool tma;                     /* x comes by tensor copies */
    bool any_strides;             /* the views may be strided: the step has code for that, too */
    cvy_dtype dtype;              /* of x */
    uint64_t dims[5], strides[4]; /* of the tensor map */
    unsigned box[4];
    bool pixels; /* conv_wide.cu: the map is of x itself, channels last, whose pixels copies walk through */
    int rank;    /* its dimensions, 4 or 5; of W, H and D: */
    int lower[3], upper[3], step[3]; /* where a walk begins, how far beyond the end it goes, its steps */
    bool pair;                       /* matmul_wide.cu: w has a map, too */
    uint64_t w_dims[3], w_strides[2];
    unsigned w_box[3];
};

/* Makes the words of a step ready that a run on a new workspace does not launch. */
cvy_status cvyi_tc_zero(const cuda_device *d, const cuda_step *s, const step_arguments *a, CUstream stream);

/* One without views, for the step that is being made; NULL: no memory. */
tc_step *cvyi_tc_new_step(maker *m);

/* x as tensor copies see it; zeros if there are none. w, of a step that has a map of it. */
cvy_status cvyi_tc_map(const cuda_device *d, const tc_step *t, CUdeviceptr x, CUtensorMap *out);
cvy_status cvyi_tc_map_w(const cuda_device *d, const tc_step *t, CUdeviceptr w, CUtensorMap *out);

#endif
