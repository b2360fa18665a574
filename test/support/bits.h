/* bits.h - the same bits: run after run, on two streams at once, replayed from a captured graph, and wherever in
 * the batch a sample is. */
#ifndef TEST_BITS_H
#define TEST_BITS_H

#include "check.h"

/* ---- one plan, many runs: outputs are compared as they lie in memory ---- */

/* Empty where all runs have the bits of the first, else what is wrong. */
void same_bits(const gpu *u, rig *r, const cvy_plan *plan, char what[300]);

/* ---- a sample's bits do not depend on where in the batch it is ---- */

float *run_rig(const gpu *u, rig *r, const cvy_plan *plan, int64_t *count);

typedef enum places { PLACES_SAME, PLACES_DIFFER, PLACES_MEANINGLESS } places;

/* Runs a rig, and again with its samples rotated. Meaningless where samples have to do with each other. */
places same_places(const gpu *u, rig *r, const cvy_plan *plan);

#endif
