/* choice.h - which kernel runs a pass, and how: decided once, when the pass is judged.
 *
 * A pass begins with its producer, if it has one. Every row of the table of kernels (choice.c) is asked about that
 * first operator. It refuses, in words, or predicts its time. The row that wins decides how it would run: tiles,
 * bands and what is taken along. That is kept with the pass as its choice. Lowering, printing, measuring and the
 * tests read it, and nobody decides again. The operators after the first that are not taken along have one row each
 * that does not refuse them. A new kernel is a file with its row, and a line in the table. */
#ifndef CVYI_CPU_CHOICE_H
#define CVYI_CPU_CHOICE_H

#include "exec.h"

typedef struct cpu_row cpu_row;

/* What a row is asked about: a node of a pass. */
typedef struct question {
    const cvy_plan *plan;
    const pass *pass;
    int index;      /* node */
    conv_geom conv; /* of a convolution; else zeros */
} question;

/* What a convolution does while its result is still in registers or in a band of rows. */
typedef struct conv_along {
    int pool;         /* node of the maximum taken along; -1: none */
    int stats;        /* node of the statistics taken of the result itself; -1 */
    int prog, n_prog; /* pointwise nodes run on each band */
    int prog_stats;   /* node of the statistics taken of the last of those; -1 */
    bool centred;     /* the result lies in memory less its channel means (spot.shift) */
    bool twice;       /* it runs for the statistics, and again through the program */
} conv_along;

/* How a convolution runs. */
typedef struct conv_choice {
    conv_geom geom; /* of a product: one long row */
    conv_along along;
    bool product;          /* its row is the product of matrices: `gemm` in place of the first tiling */
    bool means;            /* means come first: statistics follow, or Winograd's form was chosen */
    bool centres;          /* means, and not Winograd's: it works on a centred copy of x */
    conv_geom copy;        /* its geometry: the padding is part of the copy */
    conv_tiling tiling[2]; /* as chosen; direct, for samples with special values, where means come first */
    gemm_plan gemm;
} conv_choice;

/* What pass.choice points to. */
struct cpu_choice { /* cpu_choice of exec.h */
    const cpu_row *row;
    double seconds;   /* of the first operator on one core, all samples */
    conv_choice conv; /* of a convolution */
};

struct cpu_row {
    const char *name;
    conv_algo_id algo; /* of a convolution */
    /* NULL, or the reason in words. */
    const char *(*refuse)(const question *q, const cpu_row *row);
    /* Of the operator on one core, all samples. */
    double (*seconds)(const question *q, const cpu_row *row);
    /* Fills in the row's own part of the choice, when the pass has its way. NULL: it has none. */
    void (*decide)(const question *q, cpu_choice *c);
    /* Adds the steps of the operator at `index`, and of those that it leads. */
    cvy_status (*make)(builder *b, int index);
};

/* One for each kernel, beside its make(). */
extern const cpu_row cvyi_row_conv_direct, cvyi_row_conv_depthwise, cvyi_row_conv_patches;
extern const cpu_row cvyi_row_conv_winograd_4x4, cvyi_row_conv_winograd_2x4, cvyi_row_conv_winograd_2x2;
extern const cpu_row cvyi_row_conv_product, cvyi_row_conv_transposed, cvyi_row_matmul, cvyi_row_pool;
extern const cpu_row cvyi_row_stats, cvyi_row_program, cvyi_row_gather, cvyi_row_alias;

/* struct engine's */
const char *cvyi_cpu_judge(const cvy_plan *p, pass *s);
bool cvyi_cpu_same(const void *a, const void *b);
void cvyi_cpu_why(const cvy_plan *p, const pass *s, text *t);

/* The choice for a node by itself: one that is prepared, or not the first of its pass. */
void cvyi_cpu_choose_node(const cvy_plan *p, const pass *s, int index, cpu_choice *out);

static inline const cpu_choice *cvyi_cpu_choice(const pass *s)
{
    return (const cpu_choice *)s->choice;
}

/* ---- conv_along.c ---- */

/* Is a convolution taken sample by sample? Else (a whole batch of parameters at once) it takes nothing along. */
bool cvyi_conv_by_sample(const question *q);
/* What the convolution would take along. */
conv_along cvyi_conv_take(const question *q, conv_algo_id algo, bool product);
/* May the convolution that the pass begins with run twice, instead of its result being kept? */
bool cvyi_conv_twice_fits(const cvy_plan *p, const pass *s);

/* ---- cost.c: what rows share ---- */

/* Why nodes cannot be one pass, whatever the kernel; NULL: they can. */
const char *cvyi_pass_refusal(const cvy_plan *p, const pass *s);
/* seconds() of operators with one kernel. */
double cvyi_row_seconds(const question *q, const cpu_row *row);
/* Way, seconds and note of a pass whose first operator has such a choice. */
void cvyi_pass_cost(const cvy_plan *p, pass *s, const cpu_choice *c);
/* The seconds of a finished pass, on the threads of the plan. */
void cvyi_cpu_predict(const cvy_plan *p, pass *s);

#endif
