/* convert.h - fp16 and bf16 in memory, float32 in the arithmetic: words are widened where a value is read and
 * narrowed where it is stored. Runs of elements with a stride between them, and matrices with rows and columns
 * exchanged, floats among them.
 *
 * The rounding is that of util/half.h, the same bits under every instruction set. Every loop takes any n >= 0, any
 * alignment, and touches no byte outside of its n elements. */
#ifndef CVYI_CPU_CONVERT_H
#define CVYI_CPU_CONVERT_H

#include "../graph/graph.h"

enum { CPU_LINE_WORDS = 32 }; /* words of 16 bits in a line of the caches */

typedef void cpu_widen_fn(float *dst, const uint16_t *src, int64_t n);
typedef void cpu_narrow_fn(uint16_t *dst, const float *src, int64_t n);

/* dst[i] = (src[i] - p[0]) * p[1] + p[2], narrowed: the bits of pointwise.h's pivot. */
typedef void cpu_pivot_words_fn(uint16_t *dst, const float *src, int64_t n, const float p[3]);

/* dst[i] = element i * stride of src, as a float; and back. */
typedef void cpu_take_fn(float *dst, const void *src, int64_t stride, int64_t n);
typedef void cpu_put_fn(void *dst, int64_t stride, const float *src, int64_t n);

/* By cvy_dtype; those of runs without a stride are NULL for CVY_FLOAT32. */
typedef struct cpu_convert_kernels {
    cpu_take_fn *take[DTYPE_COUNT];
    cpu_put_fn *put[DTYPE_COUNT];
    cpu_widen_fn *widen[DTYPE_COUNT];
    cpu_narrow_fn *narrow[DTYPE_COUNT];
    cpu_narrow_fn *narrow_stream[DTYPE_COUNT]; /* past the caches, as is pivot_stream: stream_end() (pointwise.h) */
    cpu_pivot_words_fn *pivot[DTYPE_COUNT];
    cpu_pivot_words_fn *pivot_stream[DTYPE_COUNT];
} cpu_convert_kernels;

/* dst[i * to + j] = src[j * from + i] for i < rows and j < columns: a matrix whose rows are the other's columns,
 * such as an image channels last. `to` and `from` are in elements. */
typedef void cpu_turn_fn(void *dst, int64_t to, const void *src, int64_t from, int64_t rows, int64_t columns);

/* By cvy_dtype, from elements to floats, and from floats to elements. */
typedef struct cpu_turn_kernels {
    cpu_turn_fn *in[DTYPE_COUNT], *out[DTYPE_COUNT];
} cpu_turn_kernels;

extern const cpu_turn_kernels cvyi_turn_portable, cvyi_turn_avx2, cvyi_turn_avx512, cvyi_turn_neon;
extern const cpu_convert_kernels cvyi_convert_portable, cvyi_convert_avx2, cvyi_convert_avx512, cvyi_convert_neon;

#endif
