/* pointwise.c - loops over contiguous floats: unary and binary operators, affine maps, copies.
 *
 * The functions of one vector are in math.h, the one loop they all run in is in map.h; see ../pointwise.h for what
 * the loops promise. */
#include "../pointwise.h"
#include "map.h"
#include "activations.h"

/* ---- unary: f(x, p0, p1) ---- */

#define UNARY(name)                                                                                                \
    static void ENTRY(name, VL)(float *dst, const float *src, int64_t n, const float p[2])                         \
    {                                                                                                              \
        map(dst, run_of(src), all_of(p[0]), all_of(p[1]), n, act_##name);                                          \
    }                                                                                                              \
    static void ENTRY(name##_stream, VL)(float *dst, const float *src, int64_t n, const float p[2])                \
    {                                                                                                              \
        map_stream(dst, run_of(src), all_of(p[0]), all_of(p[1]), n, act_##name);                                   \
    }

UNARY(relu)
UNARY(relu6)
UNARY(leaky_relu)
UNARY(elu)
UNARY(selu)
UNARY(gelu_erf)
UNARY(gelu_tanh)
UNARY(silu)
UNARY(mish)
UNARY(sigmoid)
UNARY(hardsigmoid)
UNARY(tanh)
UNARY(hardtanh)
UNARY(hardswish)
UNARY(softplus)
UNARY(softsign)
UNARY(exp)
UNARY(log)
UNARY(sqrt)
UNARY(rsqrt)
UNARY(neg)
UNARY(abs)
UNARY(square)
UNARY(erf)
UNARY(clamp)
UNARY(cast)
UNARY(tanh_hardswish)
UNARY(sign_or_one)

static void ENTRY(gelu, VL)(float *dst, const float *src, int64_t n, const float p[2])
{
    (p[0] != 0 ? ENTRY(gelu_tanh, VL) : ENTRY(gelu_erf, VL))(dst, src, n, p);
}

static void ENTRY(gelu_stream, VL)(float *dst, const float *src, int64_t n, const float p[2])
{
    (p[0] != 0 ? ENTRY(gelu_tanh_stream, VL) : ENTRY(gelu_erf_stream, VL))(dst, src, n, p);
}

/* ---- binary: f(a, b, alpha) ---- */

INLINE vf op_add(vf a, vf b, vf alpha)
{
    return v_fma(alpha, b, a);
}
INLINE vf op_sub(vf a, vf b, vf alpha)
{
    return v_fnma(alpha, b, a);
}
INLINE vf op_mul(vf a, vf b, vf alpha)
{
    (void)alpha;
    return v_mul(a, b);
}
INLINE vf op_div(vf a, vf b, vf alpha)
{
    (void)alpha;
    return v_div(a, b);
}
INLINE vf op_maximum(vf a, vf b, vf alpha)
{
    (void)alpha;
    return v_max_nan(a, b);
}
INLINE vf op_minimum(vf a, vf b, vf alpha)
{
    (void)alpha;
    return v_min_nan(a, b);
}

#define BINARY_FORM(form, name, a_operand, b_operand)                                                              \
    static void ENTRY(name##_##form, VL)(float *dst, const float *a, const float *b, int64_t n, float alpha)       \
    {                                                                                                              \
        if (n > 0) map(dst, a_operand, b_operand, all_of(alpha), n, op_##name);                                    \
    }                                                                                                              \
    static void ENTRY(name##_##form##_stream, VL)(float *dst, const float *a, const float *b, int64_t n,           \
                                                  float alpha)                                                     \
    {                                                                                                              \
        if (n > 0) map_stream(dst, a_operand, b_operand, all_of(alpha), n, op_##name);                             \
    }
#define BINARY(name)                                                                                               \
    BINARY_FORM(vv, name, run_of(a), run_of(b))                                                                    \
    BINARY_FORM(vs, name, run_of(a), all_of(b[0]))                                                                 \
    BINARY_FORM(sv, name, all_of(a[0]), run_of(b))

BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
BINARY(maximum)
BINARY(minimum)

/* ---- affine maps and copies ---- */

INLINE vf affine_one(vf x, vf scale, vf shift)
{
    return v_fma(x, scale, shift);
}
INLINE vf same(vf x, vf y, vf z)
{
    (void)y, (void)z;
    return x;
}

static void ENTRY(affine, VL)(float *dst, const float *src, int64_t n, float scale, float shift)
{
    map(dst, run_of(src), all_of(scale), all_of(shift), n, affine_one);
}
static void ENTRY(affine_vec, VL)(float *dst, const float *src, int64_t n, const float *scale, const float *shift)
{
    map(dst, run_of(src), run_of(scale), run_of(shift), n, affine_one);
}
static void ENTRY(affine_stream, VL)(float *dst, const float *src, int64_t n, float scale, float shift)
{
    map_stream(dst, run_of(src), all_of(scale), all_of(shift), n, affine_one);
}
static void ENTRY(pivot, VL)(float *dst, const float *src, int64_t n, float from, float scale, float shift)
{
    map(dst, run_less(src, from), all_of(scale), all_of(shift), n, affine_one);
}
static void ENTRY(pivot_stream, VL)(float *dst, const float *src, int64_t n, float from, float scale, float shift)
{
    map_stream(dst, run_less(src, from), all_of(scale), all_of(shift), n, affine_one);
}
/* A row of a norm: five operands, one more loop. */
typedef struct pivot_row {
    const float *src, *scale, *shift;
    vf p[3]; /* (src - p[0]) p[1] + p[2] */
} pivot_row;

INLINE vf pivot_vec_at(const pivot_row *r, int64_t i, int64_t n)
{
    const vf x = v_fma(v_sub(v_load_n(r->src + i, n), r->p[0]), r->p[1], r->p[2]);
    return v_fma(x, v_load_n(r->scale + i, n), v_load_n(r->shift + i, n));
}
INLINE void pivot_vec_some(float *dst, const pivot_row *r, int64_t from, int64_t to, const bool stream, bool fours)
{
    int64_t i = from;
    for (; i + VL <= to; i += VL) {
        const vf x = v_fma(v_sub(v_load(r->src + i), r->p[0]), r->p[1], r->p[2]);
        const vf y = v_fma(x, v_load(r->scale + i), v_load(r->shift + i));
        (stream ? v_stream : v_store)(dst + i, y);
    }
    if (i < to) (fours ? v_stream_n : v_store_n)(dst + i, to - i, pivot_vec_at(r, i, to - i));
}
static void ENTRY(pivot_vec, VL)(float *dst, const float *src, int64_t n, const float p[3], const float *scale,
                                 const float *shift)
{
    const pivot_row row = {src, scale, shift, {v_set1(p[0]), v_set1(p[1]), v_set1(p[2])}};
    pivot_vec_some(dst, &row, 0, n, false, false);
}
static void ENTRY(pivot_vec_stream, VL)(float *dst, const float *src, int64_t n, const float p[3],
                                        const float *scale, const float *shift)
{
    const pivot_row row = {src, scale, shift, {v_set1(p[0]), v_set1(p[1]), v_set1(p[2])}};
    const int64_t first = cvyi_min64(to_boundary(dst), n);
    fetch_end(dst, n);
    pivot_vec_some(dst, &row, 0, first, true, in_fours(dst, n));
    pivot_vec_some(dst, &row, first, n, true, in_fours(dst, n));
}
static void ENTRY(copy, VL)(float *dst, const float *src, int64_t n)
{
    map(dst, run_of(src), all_of(0), all_of(0), n, same);
}
static void ENTRY(copy_stream, VL)(float *dst, const float *src, int64_t n)
{
    map_stream(dst, run_of(src), all_of(0), all_of(0), n, same);
}
static void ENTRY(fill, VL)(float *dst, int64_t n, float number)
{
    map(dst, all_of(number), all_of(0), all_of(0), n, same);
}

/* ---- the table. An operator of kind UNARY or BINARY in ops.def that has no loop here does not compile. ---- */

extern const cpu_reduce_kernels ISA(cvyi_reduce);

/* A row is the function that ONLY_<kind> names, NULL where that macro is not defined: ONLY_UNARY(tanh) puts a
 * second argument before NULL, ONLY_CONV(conv2d) stays the first. */
#define SECOND(a, b, ...) b
#define SECOND_OF(...)    SECOND(__VA_ARGS__)

static void stream_end(void)
{
    v_stream_end();
}

const cpu_vector_kernels ISA(cvyi_vector) = {
    .isa = &TEXT_OF(ISA())[1], /* without its underscore */
    .reduce = &ISA(cvyi_reduce),
#define OP(name, kind, spatial, attributes, tensors, reference, flags)                                             \
    [OP_##name] = SECOND_OF(ONLY_##kind(name), NULL, ~),
    .unary =
        {
#define ONLY_UNARY(name) ~, ENTRY(name, VL)
#include "../../graph/ops.def"
#undef ONLY_UNARY
        },
    .unary_stream =
        {
#define ONLY_UNARY(name) ~, ENTRY(name##_stream, VL)
#include "../../graph/ops.def"
#undef ONLY_UNARY
        },
    .binary =
        {
            [BINARY_VV] =
                {
#define ONLY_BINARY(name) ~, ENTRY(name##_vv, VL)
#include "../../graph/ops.def"
#undef ONLY_BINARY
                },
            [BINARY_VS] =
                {
#define ONLY_BINARY(name) ~, ENTRY(name##_vs, VL)
#include "../../graph/ops.def"
#undef ONLY_BINARY
                },
            [BINARY_SV] =
                {
#define ONLY_BINARY(name) ~, ENTRY(name##_sv, VL)
#include "../../graph/ops.def"
#undef ONLY_BINARY
                },
        },
    .binary_stream =
        {
            [BINARY_VV] =
                {
#define ONLY_BINARY(name) ~, ENTRY(name##_vv_stream, VL)
#include "../../graph/ops.def"
#undef ONLY_BINARY
                },
            [BINARY_VS] =
                {
#define ONLY_BINARY(name) ~, ENTRY(name##_vs_stream, VL)
#include "../../graph/ops.def"
#undef ONLY_BINARY
                },
            [BINARY_SV] =
                {
#define ONLY_BINARY(name) ~, ENTRY(name##_sv_stream, VL)
#include "../../graph/ops.def"
#undef ONLY_BINARY
#undef OP
                },
        },
    .affine = ENTRY(affine, VL),
    .affine_vec = ENTRY(affine_vec, VL),
    .copy = ENTRY(copy, VL),
    .fill = ENTRY(fill, VL),
    .pivot = ENTRY(pivot, VL),
    .pivot_vec = ENTRY(pivot_vec, VL),
    .affine_stream = ENTRY(affine_stream, VL),
    .pivot_stream = ENTRY(pivot_stream, VL),
    .pivot_vec_stream = ENTRY(pivot_vec_stream, VL),
    .copy_stream = ENTRY(copy_stream, VL),
    .stream_end = stream_end,
};
