/* choice.h - which kernel runs a pass, and how: decided once, when the pass is judged.
 *
 * A pass begins with its producer, if it has one. Every row of the table of kernels (choice.c) refuses that first
 * operator with a reason, or predicts its time. The row that wins decides how it runs: tiles, bands and what is
 * fused into it. decide.c decides the rest: how many samples are a unit, which operators share steps, which values
 * are in slices between steps. The predicted time follows from these decisions. All of it is kept with the pass as
 * its choice. Lowering, printing, measuring and the tests read the choice; nothing is decided twice.
 * Each operator after the first has exactly one row that does not refuse it. A new kernel is a file with its row,
 * and a line in the table. */
#ifndef CVYI_CPU_CHOICE_H
#define CVYI_CPU_CHOICE_H

#include "convt.h"
#include "exec.h"

typedef struct cpu_row cpu_row;

/* The node of a pass that a row judges. */
typedef struct question {
    const cvy_plan *plan;
    const pass *pass;
    int index;      /* node */
    op_kind kind;   /* its */
    conv_geom conv; /* of a convolution; else zeros */
} question;

static inline question cvyi_ask(const cvy_plan *p, const pass *s, int index)
{
    const node *n = &p->graph->nodes[index];
    question q = {.plan = p, .pass = s, .index = index, .kind = cvyi_info(n)->kind};

    if (q.kind == KIND_CONV || q.kind == KIND_CONVT) cvyi_conv_geom(p->graph, n, &q.conv);
    return q;
}

/* What is computed while a convolution's result is still in registers or in a band of rows. */
typedef struct conv_along {
    int pool;         /* node of the maximum fused into the convolution; -1: none */
    int stats;        /* node of the statistics taken of the result itself; -1 */
    int prog, n_prog; /* pointwise nodes run on each band */
    int prog_stats;   /* node of the statistics taken of the last of those; -1 */
    bool centred;     /* the result is stored minus its channel means (spot.shift) */
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
    conv_tiling tiling[2]; /* as chosen; direct, for samples with special values, if means come first */
    gemm_plan gemm;
} conv_choice;

/* How a linear layer or a product of matrices runs. */
typedef struct matmul_choice {
    matmul_geom geom;
    bool packs;        /* the other operand is a parameter, packed once */
    gemm_plan plan[2]; /* of a unit; of the last one, which may have fewer samples */
} matmul_choice;

/* One operator of a pass. */
typedef struct node_choice {
    const cpu_row *row;
    int lead;              /* the node whose steps compute it */
    bool read_on;          /* its value is read by other steps of the pass */
    bool sliced;           /* it lies in a slice: statistics always do, unless they are stored */
    bool awaited;          /* an operator that reads it needs all of it first, so no program computes it */
    bool centred;          /* its value is stored minus its channels' means */
    int64_t per_part;      /* planes of a pooling, slices of statistics: of one part; else 0 */
    const cpu_choice *own; /* of a producer among the prepared nodes; else NULL: its choice is the pass's */
} node_choice;

/* What pass.choice points to. */
struct cpu_choice { /* cpu_choice of exec.h */
    const cpu_row *row;
    double seconds;       /* of the first operator on one core, all samples */
    int64_t chunk, units; /* samples of a unit, units */
    bool twice;           /* the convolution runs for its statistics, and again, in place of a slice */
    double slices;        /* bytes of one sample's awaited values in slices: what has to stay in cache */
    double work, waits;   /* seconds: of all operators on one core; for memory and cache, however many work */
    node_choice *nodes;   /* one per node of the pass */
    union {               /* by the row */
        conv_choice conv;
        matmul_choice matmul;
        convt_plan convt;
    } how;
};

struct cpu_row {
    const char *name;
    unsigned kinds;     /* of operators that it computes: bit 1 << op_kind */
    const char *others; /* why it refuses those of other kinds */
    conv_algo_id algo;  /* of a convolution */
    bool product;       /* is a product of matrices: all at once, not by bands, and never twice */
    bool program;       /* runs in a program, with the operators around it */
    bool alias;         /* computes nothing: the result shares memory with what it reads */
    /* Of an operator of its kinds: NULL, or the reason in words. NULL: it takes them all. */
    const char *(*refuse)(const question *q, const cpu_row *row);
    /* Of the operator on one core, all samples: rows are ranked by it. */
    double (*seconds)(const question *q, const cpu_row *row);
    /* Fills in the row's own part of the choice (how), and the seconds of this way of running; chunk, units and
     * twice are set. NULL: it has none, or the seconds stay. */
    void (*decide)(const question *q, cpu_choice *c);
    /* May the first operand of the operator at `index` be read in place as 16-bit words, and does it store its
     * result itself, as words or with strides? NULL: no, it takes floats. */
    bool (*words)(const builder *b, int index);
    /* Planes or slices of one part. NULL: the parts of its steps are found another way. */
    int64_t (*per_part)(const question *q);
    /* Adds the steps of the operator at `index`, and of those that it leads. */
    cvy_status (*make)(builder *b, int index);
    /* The entry that computes it. NULL: it has more than one, or none. */
    const char *(*entry)(const cpu_state *s, const cpu_row *row);
};

/* One for each kernel, next to its make(). */
extern const cpu_row cvyi_row_conv_direct, cvyi_row_conv_depthwise, cvyi_row_conv_patches, cvyi_row_conv_channels;
extern const cpu_row cvyi_row_conv_winograd_4x4, cvyi_row_conv_winograd_2x4, cvyi_row_conv_winograd_2x2;
extern const cpu_row cvyi_row_conv_product, cvyi_row_conv_transposed, cvyi_row_matmul, cvyi_row_pool;
extern const cpu_row cvyi_row_stats, cvyi_row_program, cvyi_row_gather, cvyi_row_alias, cvyi_row_move;

/* struct engine's */
const char *cvyi_cpu_judge(const cvy_plan *p, pass *s);
cvy_status cvyi_cpu_judge_prepared(cvy_plan *p, pass *s);
bool cvyi_cpu_same(const void *a, const void *b);
/* A copy of the pass's choice, and of those of its nodes, in the plan's memory; NULL: there is none left. */
void *cvyi_cpu_keep(cvy_plan *p, const pass *s);
void cvyi_cpu_why(const cvy_plan *p, const pass *s, text *t);

static inline const cpu_choice *cvyi_cpu_choice(const pass *s)
{
    return (const cpu_choice *)s->choice;
}
/* The choice of node `index` of the pass. */
static inline node_choice *cvyi_node_choice(const pass *s, const cpu_choice *c, int index)
{
    return &c->nodes[index - s->first];
}

/* How the producer at node `index` runs: at the start of its pass, or among the prepared nodes. */
static inline const cpu_choice *cvyi_own_choice(const pass *s, const cpu_choice *c, int index)
{
    const cpu_choice *own = cvyi_node_choice(s, c, index)->own;
    return own ? own : c;
}

/* The row of an operator that has only one: any but convolutions. */
const cpu_row *cvyi_only_row(const question *q);

/* ---- decide.c ---- */

/* Decides a pass whose row and seconds are known: the rest of the choice, way, seconds and note. NULL, or why it
 * cannot be a pass. */
const char *cvyi_decide_pass(const cvy_plan *p, pass *s, cpu_choice *c);
/* The choice of a node whose row is known, as long as nothing leads it. */
node_choice cvyi_begin_node(const question *q, const cpu_row *row);
/* Decides which nodes the steps of node `index` compute. */
void cvyi_lead(const cvy_plan *p, const pass *s, cpu_choice *c, int index);
/* Finds the values that are read by steps other than their own, those that are awaited, and those in slices. */
void cvyi_mark_reads(const cvy_plan *p, const pass *s, cpu_choice *c);
/* A reshape that shares memory computes nothing. */
static inline bool cvyi_is_alias(const cvy_plan *p, int index)
{
    const node *n = &p->graph->nodes[index];
    return cvyi_info(n)->kind == KIND_SHAPE && p->root[n->out] != n->out;
}

/* ---- conv_along.c ---- */

/* Is a convolution computed sample by sample? Else (a whole batch of parameters at once) it takes nothing along. */
bool cvyi_conv_by_sample(const question *q);
/* What the convolution would take along. */
conv_along cvyi_conv_take(const question *q, const cpu_choice *c, bool product);
/* May the convolution at the start of the pass run twice, so its result need not be kept? */
bool cvyi_conv_twice_fits(const cvy_plan *p, const pass *s);

/* ---- cost.c ---- */

/* Why nodes cannot be one pass, whatever the kernel; NULL: they can. */
const char *cvyi_pass_refusal(const cvy_plan *p, const pass *s);
/* Bytes of one sample's awaited values in slices. */
double cvyi_slice_bytes(const cvy_plan *p, const pass *s, const cpu_choice *c);
/* Is it cheaper to run the convolution twice, which it may, than to keep its result in a slice? */
bool cvyi_recomputes(const cvy_plan *p, const pass *s, const cpu_choice *c);
/* Work, waits, way, seconds and note of a pass that is decided. */
void cvyi_pass_cost(const cvy_plan *p, pass *s, cpu_choice *c);
/* The seconds of a finished pass, on the threads of the plan. */
void cvyi_cpu_predict(const cvy_plan *p, pass *s);

/* For the predictions of rows: elements of the node's first argument, times how much longer this machine's vectors
 * take than AVX-512's; and a product's operations at a share of the peak. */
double cvyi_vector_elements(const question *q);
double cvyi_product_seconds(const question *q, double share);
/* seconds() of pointwise operators, copies, reductions and softmax. (step_program.c) */
double cvyi_program_seconds(const question *q, const cpu_row *row);
/* entry() of matrix products. (step_matmul.c) */
const char *cvyi_product_entry(const cpu_state *s, const cpu_row *row);

#endif
