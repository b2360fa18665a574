/* emulated.h - what the tests of kernels on the emulator (test/emulate) share: work shared out among processes, the
 * checks of a chain, kernels that break the rules. */
#ifndef TEST_EMULATED_H
#define TEST_EMULATED_H

#include "bits.h"
#include "needs.h"
#include "fixture.h"

/* ---- kernels that do what no kernel may ---- */

typedef struct offence {
    const char *what, *body; /* of an epilogue: t0 is the element of 2000 that is read, at.lin its number */
    const char *message;     /* the launch fails with it; NULL: results depend on the order; "": they are NaN */
} offence;

void check_offence(const gpu *u, const offence *f);

/* ---- chains ---- */

void check_listed(const gpu *u, const char *words, cvy_precision precision, int plans);

/* ---- what the plans of a test had (needs.h) ---- */

extern uint64_t met;

void note_needs(const char *words, cvy_precision precision, int plans, const need *needs, int n);
/* Were all of them met? Then a new test begins. */
void check_needs(const need *needs, int n);

/* ---- one plan of one chain, on real numbers ---- */

typedef struct planned {
    cvy_graph *words, *graph; /* as written, with float32 alone; in the dtype that was asked for */
    cvy_plan *plan;
    rig r; /* of the first */
} planned;

void planned_open(planned *t, const char *words, cvy_dtype dtype, const plan_kind *kind, cvy_precision precision);
void planned_close(planned *t);

/* ---- values of every size ---- */

/* A sample's values lie within `spread` of `mean`. `off`: what the kernel may take off them, a power of two near
 * the mean; 0: nothing. */
typedef struct value_range {
    double mean, spread, off;
} value_range;

/* How much of a sample's largest value, and of its largest distance from `off`, a product's rounding is. */
typedef struct rounding {
    double of_value, of_distance;
} rounding;

/* A convolution of x with weights, without a bias, as many samples in every range: neither their bits nor the scale
 * of one depend on the others, and results are off by their rounding times the sum of the weights' sizes. */
void check_ranges(const gpu *u, planned *t, const value_range *ranges, int n, const rounding *by);

/* ---- a sample's bits do not depend on where in the batch it is ---- */

extern int rotated; /* chains that were checked so */

void check_positions(const gpu *u, const char *words, cvy_precision precision);

/* Runs a plan of x and y, of so many bytes each, with both `off` bytes past the start of their memory. */
void run_shifted(const gpu *u, const cvy_plan *plan, const void *x, size_t bytes, size_t off, void *y);

/* ---- how much of it ---- */

/* CONVOY_TEST_LONG: all combinations, not each of them once. */
bool test_long(void);

/* ---- work, shared out ---- */

void use_emulator(const char *program);

/* Takes all items, on as many processes as there are cores. */
void share_out(int items, void (*take)(const gpu *u, int item));
/* The same for items without a device. */
void share_host_work(int items, void (*take)(const gpu *u, int item));

#endif
