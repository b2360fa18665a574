/* math_reference.h - what the unary operators compute, in double and by libm, and the distance of a float from it.
 *
 * The formulas are PyTorch's definitions, rearranged where the textbook form would lose digits even in double.
 * Shared by test/unit/test_math.c (sampled) and test/exhaustive_math.c (every float). */
#ifndef TEST_MATH_REFERENCE_H
#define TEST_MATH_REFERENCE_H

#include <math.h>
#include <string.h>

#include "../../src/cpu/pointwise.h"

typedef double reference_fn(double x, double p0, double p1);

typedef struct math_case {
    const char *name;
    op_id op;
    float p[2];
    reference_fn *reference;
    double ulp; /* the bound */
} math_case;

extern const math_case math_cases[];
extern const int n_math_cases;

/* Distance in units of the last place of a float at `want`; infinite where one is NaN and the other is not, or
 * where an infinity or the sign of a zero that came from a zero is wrong. */
double ulp_error(float got, double want, float x);

/* The instruction sets this processor can run; returns their number. */
int runnable_kernels(const cpu_vector_kernels *out[3]);

#endif
