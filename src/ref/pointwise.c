/* pointwise.c - operators of one element, and of two broadcast ones.
 *
 * NaN, infinities and signed zeros come out as PyTorch's formulas give them, which decides the form of several: the
 * comparisons are written so that NaN falls through to the branch that keeps it, and functions of the kind x * s(x)
 * are products, whose value at -inf is therefore NaN. */
#include <math.h>
#include "ref.h"

/* ---- one operand; p holds the attributes in the operator's order ---- */

typedef double (*unary_fn)(double x, const double p[2]);
#define UNARY(name) static double name##_of(double x, const double p[2] __attribute__((unused)))

/* A NaN x fails both comparisons and stays; lo > hi gives hi; a bound that is NaN makes everything NaN. */
static double clamp_to(double x, double lo, double hi)
{
    const double y = isnan(lo) || isnan(hi) ? NAN : x < lo ? lo : x;
    return y > hi ? hi : y;
}

static double elu_scaled(double x, double alpha, double scale)
{
    return x > 0 ? scale * x : scale * alpha * expm1(x);
}

UNARY(relu)
{
    return x < 0 ? 0 : x; /* -0 stays -0 */
}
UNARY(relu6)
{
    return clamp_to(x, 0, 6);
}
UNARY(leaky_relu)
{
    return x > 0 ? x : x * p[0];
}
UNARY(elu)
{
    return elu_scaled(x, p[0], 1);
}
UNARY(selu)
{
    return elu_scaled(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946);
}
/* 0.5 * (1 + erf(x / sqrt(2))) is written with erfc: no cancellation for negative x. */
UNARY(gelu)
{
    const double cubic = 0.79788456080286535588 * (x + 0.044715 * x * x * x); /* sqrt(2 / pi) */
    return p[0] != 0 ? 0.5 * x * (1 + tanh(cubic)) : 0.5 * x * erfc(-x * 0.70710678118654752440);
}
UNARY(silu)
{
    return x / (1 + exp(-x));
}
UNARY(mish)
{
    return x * tanh(log1p(exp(x)));
}
UNARY(sigmoid)
{
    return 1 / (1 + exp(-x));
}
UNARY(hardsigmoid)
{
    return clamp_to(x + 3, 0, 6) / 6;
}
UNARY(tanh)
{
    return tanh(x);
}
UNARY(hardtanh)
{
    return clamp_to(x, p[0], p[1]);
}
UNARY(hardswish)
{
    return x * clamp_to(x + 3, 0, 6) / 6;
}
/* p: beta, and the beta * x above which it is the identity. */
UNARY(softplus)
{
    return x * p[0] > p[1] ? x : log1p(exp(x * p[0])) / p[0];
}
UNARY(softsign)
{
    return x / (1 + fabs(x));
}
UNARY(exp)
{
    return exp(x);
}
UNARY(log)
{
    return log(x);
}
UNARY(sqrt)
{
    return sqrt(x);
}
UNARY(rsqrt)
{
    return 1 / sqrt(x);
}
UNARY(neg)
{
    return -x;
}
UNARY(abs)
{
    return fabs(x);
}
UNARY(square)
{
    return x * x;
}
UNARY(erf)
{
    return erf(x);
}
UNARY(clamp)
{
    return clamp_to(x, p[0], p[1]);
}
/* Rounded where it is stored, as every value is. */
UNARY(cast)
{
    return x;
}
/* hardswish after tanh: -1 <= t <= 1 never reaches the clips at -3 and 3. */
UNARY(tanh_hardswish)
{
    const double t = tanh(x);
    return t * (t + 3) / 6;
}
/* A factor of 1 or -1 that makes a multiplication by x monotone; zeros and NaN count as positive. */
UNARY(sign_or_one)
{
    return x < 0 ? -1 : 1;
}

/* ---- two operands; a is the value that flows through ---- */

typedef double (*binary_fn)(double a, double b, double alpha);
#define BINARY(name) static double name##_of(double a, double b, double alpha __attribute__((unused)))

BINARY(add)
{
    return a + alpha * b;
}
BINARY(sub)
{
    return a - alpha * b;
}
BINARY(mul)
{
    return a * b;
}
BINARY(div)
{
    return a / b;
}
BINARY(maximum)
{
    return isnan(a) || a >= b ? a : b; /* a NaN b compares with nothing: it is returned; of two zeros the first */
}
BINARY(minimum)
{
    return isnan(a) || a <= b ? a : b;
}

/* ---- tables: a row of ops.def without its function fails the build ---- */

#define ROW_UNARY(name) [OP_##name] = name##_of,
#define ROW_BINARY(name)
#define ROW_CONV(name)
#define ROW_CONVT(name)
#define ROW_LINEAR(name)
#define ROW_MATMUL(name)
#define ROW_NORM(name)
#define ROW_MAXPOOL(name)
#define ROW_AVGPOOL(name)
#define ROW_ADAPTIVE(name)
#define ROW_REDUCE(name)
#define ROW_SOFTMAX(name)
#define ROW_SHAPE(name)
#define ROW_MOVE(name)
#define ROW_STATS(name)
#define ROW_APPLY(name)
#define OP(name, kind, spatial, attributes, tensors, reference, flags) ROW_##kind(name)

static const unary_fn unary_table[OP_COUNT] = {
#include "../graph/ops.def"
};

#undef ROW_UNARY
#undef ROW_BINARY
#define ROW_UNARY(name)
#define ROW_BINARY(name) [OP_##name] = name##_of,

static const binary_fn binary_table[OP_COUNT] = {
#include "../graph/ops.def"
};
#undef OP

void cvyi_ref_unary(const ref_call *c)
{
    const unary_fn f = unary_table[c->n->op];
    const int64_t elements = cvyi_elements(ref_dst_shape(c));
    double p[2];

    cvyi_pointwise_params(c->n, p);
    for (int64_t i = 0; i < elements; i++) c->dst[i] = f(c->arg[0][i], p);
}

/* Strides that read argument i in the result's shape. */
static void strides_of(const ref_call *c, int i, int64_t strides[CVY_MAX_RANK])
{
    int64_t own[CVY_MAX_RANK];
    cvyi_contiguous_strides(ref_shape(c, i), own);
    cvyi_broadcast_strides(ref_shape(c, i), own, ref_dst_shape(c), strides);
}

void cvyi_ref_binary(const ref_call *c)
{
    const binary_fn f = binary_table[c->n->op];
    const shape *dst = ref_dst_shape(c);
    const int64_t elements = cvyi_elements(dst);
    int64_t a_strides[CVY_MAX_RANK], b_strides[CVY_MAX_RANK];
    double p[2];

    cvyi_pointwise_params(c->n, p);
    strides_of(c, 0, a_strides);
    if (c->arg[1]) strides_of(c, 1, b_strides);
    for (int64_t i = 0; i < elements; i++) {
        const double b = c->arg[1] ? c->arg[1][cvyi_ref_offset(dst, b_strides, i)] : p[0];
        c->dst[i] = f(c->arg[0][cvyi_ref_offset(dst, a_strides, i)], b, p[1]);
    }
}
