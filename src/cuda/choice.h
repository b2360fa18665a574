/* choice.h - which kernel runs a pass, and how: decided once, when the pass is costed.
 *
 * Every row of the table of kernels (choice.c) refuses the pass with a reason, or tunes itself to it and predicts
 * its time. The fastest is kept with the pass as its choice. Lowering, printing, measuring and the tests read the
 * choice; nothing is decided twice. A new kernel is a file with its row, and a line in the table. */
#ifndef CVYI_CUDA_CHOICE_H
#define CVYI_CUDA_CHOICE_H

#include "conv_wide.h"
#include "matmul_thin.h"
#include "matmul_wide.h"
#include "mma.h"
#include "tc.h"
#include "tc_product.h"
#include "tiles.h"

/* What pass.choice points to; of the prepared nodes, an array of
 * pointers: each of them is made by itself. */
struct cuda_choice { /* cuda_choice of exec.h */
    const kernel_row *kernel;
    pattern form;
    union { /* the kernel's own */
        conv_tile conv;
        matmul_tile matmul;
        reduce_choice reduce; /* of a pooling, too, that is one */
        int64_t lanes;        /* threads that share a row of a softmax */
        stats_choice stats;
        mma_choice mma;
        wide_choice wide;
        word_choice word;
        thin_choice thin;
        product_choice product;
        tc_form tc;
    };
};

struct kernel_row { /* kernel_row of exec.h */
    const char *name;
    /* NULL, or the reason in words. Finds the kernel's own part of the choice; the form of the pass is there. */
    const char *(*refuse)(const cvy_plan *p, const pass *s, cuda_choice *c);
    /* Fills in way, seconds and note of a pass that was not refused. */
    void (*tune)(const cvy_plan *p, pass *s, const cuda_choice *c);
    /* Adds the steps of a pass, which m->choice is for. */
    cvy_status (*make)(maker *m);
    /* Launches a step with other arguments than views (cuda_step.tc). NULL: it has none. */
    cvy_status (*launch)(const cuda_device *d, const cuda_step *s, int code, step_arguments *a, bool fresh,
                         CUstream stream);
    /* Do two passes of this kernel run alike? NULL: always. */
    bool (*same)(const cuda_choice *a, const cuda_choice *b);
    /* Bytes of the workspace that only its steps use, one pass after the other. NULL: none. */
    int64_t (*scratch)(const cuda_choice *c);
    bool ties;                /* taken instead of the best of the rows before it, too, if both take the same time */
    const char *instead;      /* why it is taken instead of them whatever their times are; NULL: it is not */
    const kernel_row *faster; /* what would be faster: the note says why it refused */
    unsigned dice;            /* random plans take it if this bit of their seed is set; 0: by its time */
    bool tensor_cores;        /* not for what is prepared, which is small */
    bool dense;               /* needs whole tensors, contiguous and aligned */
    bool images;              /* reads contiguous images so much faster that others are copied first */
    /* For a dense row: is this argument of the core taken in any layout? NULL: none is. */
    bool (*any_strides)(const cuda_choice *c, int argument);
    /* Of a dense row: two values that it packs though no node of the pass reads them. CVY_NONE: not this one; NULL:
     * there are none. */
    void (*packs)(const cuda_choice *c, int values[2]);
    /* Tensors of run(), one read and one written, that it could take channels last, as they lie, where no other
     * pass wants them whole. CVY_NONE: not this one; NULL: none. */
    void (*lying)(const cvy_plan *p, const cuda_choice *c, int *x, int *y);
    /* Has the kernel code of its own for images that lie channels last? NULL: no. (last.c) */
    bool (*channels_last)(const cvy_plan *p, const cuda_choice *c);
    bool transposed; /* such a tensor is an operand that lies transposed; else channels last */
    /* How it takes those that are left of them; false: it does not. NULL: as it takes others. */
    bool (*lay_last)(const cvy_plan *p, const cuda_choice *c, int x, int y, tc_last *out);
};

/* One for each kernel, next to its make(). */
extern const kernel_row cvyi_kernel_conv_mma, cvyi_kernel_conv_direct, cvyi_kernel_conv_simple, cvyi_kernel_pool;
extern const kernel_row cvyi_kernel_matmul_mma, cvyi_kernel_matmul_tc, cvyi_kernel_matmul, cvyi_kernel_matmul_thin;
extern const kernel_row cvyi_kernel_norm, cvyi_kernel_norm_stats, cvyi_kernel_reduce;
extern const kernel_row cvyi_kernel_softmax_row, cvyi_kernel_softmax;
extern const kernel_row cvyi_kernel_pointwise, cvyi_kernel_copy, cvyi_kernel_norm_whole, cvyi_kernel_move;
extern const kernel_row cvyi_kernel_conv_tc, cvyi_kernel_conv_wide, cvyi_kernel_matmul_wide;

/* struct engine's */
const char *cvyi_cuda_judge(const cvy_plan *p, pass *s);
cvy_status cvyi_cuda_judge_prepared(cvy_plan *p, pass *s);
bool cvyi_cuda_same(const void *a, const void *b);
void cvyi_cuda_why(const cvy_plan *p, const pass *s, text *t);

/* Tunes the same kernel again, because the device cannot hold all its blocks at once. */
cvy_status cvyi_cuda_tune_again(const cvy_plan *p, pass *s);

static inline const cuda_choice *cvyi_cuda_choice(const pass *s)
{
    return (const cuda_choice *)s->choice;
}

/* Does the pass take value v channels last, as it lies? (last.c) */
bool cvyi_takes_last(const cvy_plan *p, const pass *s, int v);

/* ---- cost.c: what rows share ---- */

/* The reason why a pass is not for a kernel of these kinds of cores, a bit each; NULL: it is. */
const char *cvyi_core_refusal(const cvy_plan *p, const cuda_choice *c, unsigned kinds, const char *otherwise);
/* The same of a kernel whose producer takes operators before it, too. */
const char *cvyi_fed_refusal(const cvy_plan *p, const cuda_choice *c, unsigned kinds, const char *otherwise);
/* tune() of kernels that are bound by memory or multiply-adds. */
void cvyi_core_tune(const cvy_plan *p, pass *s, const cuda_choice *c);
/* A launch, then the longer of arithmetic and memory. */
double cvyi_pass_seconds(const cvy_plan *p, const pass *s, double launches, double arithmetic);

#endif
