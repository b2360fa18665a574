/* half.h - fp16 and bf16 as words of 16 bits, and elements of any dtype.
 *
 *          sign  exponent  fraction   largest   least normal   least of all
 *   fp16   1     5         10         65504     2^-14          2^-24
 *   bf16   1     8         7          3.4e38    2^-126         2^-133
 *
 * Widening is exact. Narrowing rounds once, to nearest, ties to even; what is beyond the largest becomes infinite,
 * subnormal results are not flushed. A NaN stays one: its sign and the first bits of its payload are kept, quiet.
 */
#ifndef CVYI_HALF_H
#define CVYI_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include "convoy.h"

float cvyi_widen(cvy_dtype dtype, uint16_t word);    /* dtype: not CVY_FLOAT32 */
uint16_t cvyi_narrow(cvy_dtype dtype, double value); /* a float is a double, too */

/* No NaN, no infinity among n words. */
bool cvyi_all_finite_words(cvy_dtype dtype, const uint16_t *words, int64_t n);

/* Element i of an array. Setting it rounds once. */
double cvyi_element(cvy_dtype dtype, const void *data, int64_t i);
void cvyi_element_set(cvy_dtype dtype, void *data, int64_t i, double value);

#endif
