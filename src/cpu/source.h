/* source.h - elements of any dtype as vectors of floats: words of 16 bits are widened when they are loaded.
 * Included by kernels.
 *
 * `type` is a constant wherever a loop calls these, so it is not tested at run time. */
#ifndef CVYI_SOURCE_H
#define CVYI_SOURCE_H

#include "../util/half.h"
#include "convert.h"
#include "simd.h"

/* Element i of x. */
INLINE const void *source_at(const void *x, int64_t i, const cvy_dtype type)
{
    return (const char *)x + i * (type == CVY_FLOAT32 ? (int64_t)sizeof(float) : (int64_t)sizeof(uint16_t));
}
INLINE float source_one(const void *x, int64_t i, const cvy_dtype type)
{
    return type == CVY_FLOAT32 ? ((const float *)x)[i] : cvyi_widen(type, ((const uint16_t *)x)[i]);
}

/* VL elements from element i on. */
INLINE vf source_load(const void *x, int64_t i, const cvy_dtype type)
{
    if (type == CVY_FLOAT16) return v_load_fp16((const uint16_t *)x + i);
    if (type == CVY_BFLOAT16) return v_load_bf16((const uint16_t *)x + i);
    return v_load((const float *)x + i);
}

/* Lanes lo <= lane < hi of them, zero elsewhere; touches no byte of the others. */
INLINE vf source_load_range(const void *x, int64_t i, int64_t lo, int64_t hi, const cvy_dtype type)
{
    uint16_t lanes[VL] = {0};
    if (type == CVY_FLOAT32) return v_load_range((const float *)x + i, lo, hi);
    for (int64_t k = cvyi_max64(lo, 0); k < cvyi_min64(hi, VL); k++) lanes[k] = ((const uint16_t *)x)[i + k];
    return source_load(lanes, 0, type);
}

/* n elements from element i on as floats: in place, or widened into `room`. */
INLINE const float *source_floats(const void *x, int64_t i, int64_t n, cvy_dtype type, float *room)
{
    if (type == CVY_FLOAT32) return (const float *)x + i;
    ISA(cvyi_convert).widen[type](room, (const uint16_t *)x + i, n);
    return room;
}

#endif
