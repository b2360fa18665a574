/* doubt.h - how far a float32 evaluation of a rig's graph may be from the reference.
 *
 * The graph is evaluated in double, node by node, with every element moved by up to 2 x 2^-24 of the magnitude that
 * the operator's arithmetic meets there, several times at random, each time also the other way; what this does to
 * an output, times SAFETY, is what float32 may do to it. Magnitudes are carried beside the values: of a sum of
 * products the sum of their magnitudes, since rewrites may move factors and terms within it; a convolution's is
 * that of the largest x under all taps, since Winograd forms mix the pixels of a tile and the taps, padding or not.
 * Elements that the small moves turn from finite into inf or NaN or back are not judged. A graph in which all
 * magnitudes are whole and below 2^24 must be computed exactly. */
#ifndef TEST_DOUBT_H
#define TEST_DOUBT_H

#include "rig.h"

/* What arithmetic and storage do to a value: a share of the magnitude, twice what is rounded away at most, and of
 * tiny ones a number; up to where there are numbers at all, and up to where whole ones are exact. */
typedef struct doubt_rounding {
    double move, tiny, range, whole;
} doubt_rounding;
#define DOUBT_FLOAT32                                                                                              \
    {                                                                                                              \
        0x1p-23, 0x1p-126, 1e36, 0x1p24                                                                            \
    }

typedef struct doubt {
    bool exact;    /* whole numbers that are exact throughout */
    bool beyond;   /* some value leaves the range: nothing can be told */
    double unit;   /* share of an output's magnitude that rounding it takes at most */
    double *slack; /* per element of all outputs, as rig_outputs() orders them; NAN: not judged */
    int64_t count;
} doubt;

/* After rig_reference(). */
void doubt_open_by(doubt *out, const rig *r, uint64_t seed, const doubt_rounding *by);

void doubt_open(doubt *out, const rig *r, uint64_t seed);

/* The same of a graph whose data is fp16 or bf16: a value may be rounded to it at every operator. */
void doubt_open_half(doubt *out, const rig *r, uint64_t seed, cvy_dtype dtype);

/* The coarsest dtype that a value of the graph has. */
cvy_dtype doubt_dtype(const cvy_graph *g);

void doubt_close(doubt *d);

/* The first element of got (rig_outputs()' order) that cannot be right; -1: none. strict: exact graphs exactly. */
int64_t doubt_find(const doubt *d, const rig *r, const float *got, bool strict, double *want);

#endif
