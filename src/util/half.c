/* half.c - see half.h. Only whole numbers: rounding modes and instruction sets do not matter. */
#include <string.h>
#include "half.h"

typedef struct layout {
    int fraction; /* bits */
    int least;    /* exponent of the least normal number */
    uint16_t inf;
} layout;

static const layout layouts[] = {
    [CVY_FLOAT16] = {10, -14, 0x7c00},
    [CVY_BFLOAT16] = {7, -126, 0x7f80},
};

uint16_t cvyi_narrow(cvy_dtype dtype, double value)
{
    const layout *to = &layouts[dtype];
    uint64_t bits, whole, rest, kept;
    uint16_t sign;
    int exponent, shift;

    memcpy(&bits, &value, sizeof bits);
    sign = (uint16_t)(bits >> 63 << 15);
    exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    whole = bits & ((UINT64_C(1) << 52) - 1);
    if (exponent == 1024) { /* a NaN keeps the front of its payload */
        const uint64_t payload = whole >> (52 - to->fraction) | UINT64_C(1) << (to->fraction - 1);
        return (uint16_t)(sign | to->inf | (whole ? payload : 0));
    }
    whole |= UINT64_C(1) << 52;
    shift = 52 - to->fraction + (exponent < to->least ? to->least - exponent : 0);
    if (shift > 53) return sign; /* less than half of the least subnormal number; zero and subnormal doubles too */
    kept = whole >> shift;
    rest = whole - (kept << shift);
    kept += rest > UINT64_C(1) << (shift - 1) || (rest == UINT64_C(1) << (shift - 1) && (kept & 1));
    /* A carry out of the fraction goes into the exponent, where it belongs; from the subnormal numbers, too. */
    if (exponent > to->least) kept += (uint64_t)(exponent - to->least) << to->fraction;
    return (uint16_t)(sign | (kept < to->inf ? kept : to->inf));
}

float cvyi_widen(cvy_dtype dtype, uint16_t word)
{
    const layout *from = &layouts[dtype];
    const uint32_t sign = (uint32_t)(word >> 15) << 31, magnitude = word & 0x7fffu;
    const int shift = 23 - from->fraction;
    uint32_t bits;
    float value;

    if (magnitude >= from->inf) {
        bits = sign | 0x7f800000u | (magnitude & ~(uint32_t)from->inf) << shift;
        if (magnitude > from->inf && dtype == CVY_FLOAT16) bits |= 0x00400000u; /* quiet, as F16C has it */
    } else if (magnitude >> from->fraction || dtype == CVY_BFLOAT16) {
        bits = sign | ((magnitude << shift) + ((uint32_t)(from->least + 126) << 23));
    } else { /* subnormal in fp16, normal in float32 */
        value = (float)magnitude * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
        bits |= sign;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Looks at every word, without an early exit, so the loop can be vectorised. */
bool cvyi_all_finite_words(cvy_dtype dtype, const uint16_t *words, int64_t n)
{
    const uint16_t inf = layouts[dtype].inf;
    uint16_t found = 0;
    for (int64_t i = 0; i < n; i++) found |= (uint16_t)((words[i] & inf) == inf);
    return !found;
}

double cvyi_element(cvy_dtype dtype, const void *data, int64_t i)
{
    return dtype == CVY_FLOAT32 ? (double)((const float *)data)[i] : cvyi_widen(dtype, ((const uint16_t *)data)[i]);
}

void cvyi_element_set(cvy_dtype dtype, void *data, int64_t i, double value)
{
    if (dtype == CVY_FLOAT32)
        ((float *)data)[i] = (float)value;
    else
        ((uint16_t *)data)[i] = cvyi_narrow(dtype, value);
}
