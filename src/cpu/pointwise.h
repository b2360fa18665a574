/* pointwise.h - the CPU's vector loops: pointwise operators, copies and reductions over contiguous runs.
 *
 * One cpu_vector_kernels per instruction set; the engine picks one at run time and calls through it, on tiles that
 * fit the first-level cache (n of 256 ... 4096). The loops are src/cpu/kernels/pointwise.c and reduce.c.
 *
 * Every loop takes any n >= 0, any alignment, touches no byte outside of its n elements, and allows dst to be one
 * of its sources (the same address, not an overlap). Results depend only on the data and n. */
#ifndef CVYI_CPU_POINTWISE_H
#define CVYI_CPU_POINTWISE_H

#include "../graph/graph.h"

/* dst[i] = f(src[i]); p: the attributes' numbers in order (cvyi_pointwise_params). */
typedef void cpu_unary_fn(float *dst, const float *src, int64_t n, const float p[2]);

/* dst[i] = f(a[i], b[i]); alpha scales b in add and sub and is not read by the others. */
typedef void cpu_binary_fn(float *dst, const float *a, const float *b, int64_t n, float alpha);

/* Which operand of a binary loop is a run of n, and which is one number for all. */
typedef enum cpu_binary_form {
    BINARY_VV, /* a[i], b[i] */
    BINARY_VS, /* a[i], b[0] */
    BINARY_SV, /* a[0], b[i] */
    BINARY_FORMS
} cpu_binary_form;

/* Count, mean and sum of squared deviations of a set of values. n = 0: the empty set (mean and m2 are 0). */
typedef struct cpu_moments {
    double n, mean, m2;
} cpu_moments;

/* The moments of the union, by Chan's formula. Merge in a fixed order: the result is rounded like any sum. */
static inline cpu_moments cvyi_moments_merge(cpu_moments a, cpu_moments b)
{
    const double n = a.n + b.n, delta = b.mean - a.mean;
    if (a.n == 0 || b.n == 0) return a.n == 0 ? b : a;
    return (cpu_moments){n, a.mean + delta * (b.n / n), a.m2 + b.m2 + delta * delta * (a.n * b.n / n)};
}

/* Largest value of a row, and the sum of exp(src[i] - max). */
typedef struct cpu_max_sum_exp {
    float max;
    double sum;
} cpu_max_sum_exp;

typedef struct cpu_reduce_kernels {
    /* ---- horizontal: one run to one number. Runs of 16 values per lane are summed in float and merged in double.
     * The empty run gives 0, and -inf or inf for max and min; a NaN gives NaN. ---- */
    double (*sum)(const float *src, int64_t n);
    double (*sum_squares)(const float *src, int64_t n, float shift); /* sum of (src[i] - shift)^2 */
    cpu_moments (*moments)(const float *src, int64_t n);
    float (*max)(const float *src, int64_t n);
    float (*min)(const float *src, int64_t n);
    double (*sum_exp)(const float *src, int64_t n, float m); /* sum of exp(src[i] - m), none above m */
    /* The two numbers of softmax and logsumexp. With an infinite maximum the sum is NaN, as PyTorch's softmax. */
    cpu_max_sum_exp (*max_sum_exp)(const float *src, int64_t n);
    double (*exp_sum)(float *dst, const float *src, int64_t n, float m); /* dst[i] = exp(src[i] - m); their sum */

    /* ---- vertical: one accumulator per element ---- */
    void (*add_to)(float *dst, const float *src, int64_t n);                     /* dst[i] += src[i] */
    void (*max_to)(float *dst, const float *src, int64_t n);                     /* NaN if either is */
    void (*min_to)(float *dst, const float *src, int64_t n);                     /* NaN if either is */
    void (*add_exp_to)(float *dst, const float *src, const float *m, int64_t n); /* dst[i] += exp(src[i] - m[i]) */
    /* logsumexp over several vectors: m by max_to, s by add_exp_to, then m[i] + log(s[i]), m[i] if it is
     * infinite */
    void (*finish_logsumexp)(float *dst, const float *m, const float *s, int64_t n);
    /* s[i], a sum with maximum m[i], for the maximum n[i] >= m[i]: s[i] * exp(m[i] - n[i]); 0 if m[i] is -inf */
    void (*rescale)(float *s, const float *m, const float *n, int64_t count);
    /* dst[i] = exp(src[i] - m[i]), s[i] += dst[i] */
    void (*exp_sum_to)(float *dst, const float *src, const float *m, float *s, int64_t n);
} cpu_reduce_kernels;

typedef struct cpu_vector_kernels {
    const char *isa;                               /* "avx512", "avx2", "neon", "portable" */
    cpu_unary_fn *unary[OP_COUNT];                 /* by op_id; NULL if the operator is not UNARY */
    cpu_binary_fn *binary[BINARY_FORMS][OP_COUNT]; /* by op_id; NULL if the operator is not BINARY */
    const cpu_reduce_kernels *reduce;
    /* dst[i] = src[i] * scale + shift, one rounding if there is an FMA */
    void (*affine)(float *dst, const float *src, int64_t n, float scale, float shift);
    /* (src[i] - from) * scale + shift: values near `from` lose nothing to rounding */
    void (*pivot)(float *dst, const float *src, int64_t n, float from, float scale, float shift);
    /* ((src[i] - p[0]) * p[1] + p[2]) * scale[i] + shift[i] */
    void (*pivot_vec)(float *dst, const float *src, int64_t n, const float p[3], const float *scale,
                      const float *shift);
    void (*affine_vec)(float *dst, const float *src, int64_t n, const float *scale, const float *shift);
    void (*copy)(float *dst, const float *src, int64_t n);
    void (*fill)(float *dst, int64_t n, float value);
    /* The same with stores past the caches, for outputs that are not read soon. dst may be a source,
     * element by element, though little is gained then; others see the results after stream_end(). */
    cpu_unary_fn *unary_stream[OP_COUNT];
    cpu_binary_fn *binary_stream[BINARY_FORMS][OP_COUNT];
    void (*affine_stream)(float *dst, const float *src, int64_t n, float scale, float shift);
    void (*pivot_stream)(float *dst, const float *src, int64_t n, float from, float scale, float shift);
    void (*pivot_vec_stream)(float *dst, const float *src, int64_t n, const float p[3], const float *scale,
                             const float *shift);
    void (*copy_stream)(float *dst, const float *src, int64_t n);
    void (*stream_end)(void);
} cpu_vector_kernels;

extern const cpu_vector_kernels cvyi_vector_portable, cvyi_vector_avx2, cvyi_vector_avx512, cvyi_vector_neon;

#endif
