/* math_reference.c - see math_reference.h. */
#include "math_reference.h"

#define REF(name)                                                                                                  \
    static double ref_##name(double x, double p0 __attribute__((unused)), double p1 __attribute__((unused)))
#define ROOT_HALF 0.70710678118654752440

REF(relu)
{
    return x < 0 ? 0 : x;
}
REF(clamp)
{
    return x < p0 ? p0 : x > p1 ? p1 : x;
}
REF(leaky_relu)
{
    return x > 0 ? x : x * p0;
}
REF(elu)
{
    return x > 0 ? x : p0 * expm1(x);
}
REF(selu)
{
    const double scale = 1.0507009873554804934193349852946;
    return x > 0 ? scale * x : scale * 1.6732632423543772848170429916717 * expm1(x);
}
REF(gelu_erf)
{
    return x * 0.5 * erfc(-x * ROOT_HALF);
}
REF(gelu_tanh)
{
    return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}
REF(silu)
{
    return x / (1 + exp(-x));
}
REF(mish)
{
    return x * tanh(log1p(exp(x)));
}
REF(sigmoid)
{
    return 1 / (1 + exp(-x));
}
REF(hardsigmoid)
{
    return ref_clamp(x + 3, 0, 6) / 6;
}
REF(tanh)
{
    return tanh(x);
}
REF(hardswish)
{
    return x * ref_clamp(x + 3, 0, 6) / 6;
}
REF(softplus)
{
    const double z = x * p0;
    return z > p1 ? x : (fmax(z, 0) + log1p(exp(-fabs(z)))) / p0;
}
REF(softsign)
{
    return x / (1 + fabs(x));
}
REF(exp)
{
    return exp(x);
}
REF(log)
{
    return log(x);
}
REF(sqrt)
{
    return sqrt(x);
}
REF(rsqrt)
{
    return 1 / sqrt(x);
}
REF(neg)
{
    return -x;
}
REF(abs)
{
    return fabs(x);
}
REF(square)
{
    return x * x;
}
REF(cast)
{
    return x;
}
REF(erf)
{
    return erf(x);
}
REF(tanh_hardswish)
{
    const double t = tanh(x);
    return t * (t + 3) / 6;
}
REF(sign_or_one)
{
    return x < 0 ? -1 : 1;
}
#undef REF

const math_case math_cases[] = {
    {"exp", OP_exp, {0, 0}, ref_exp, 2},
    {"tanh", OP_tanh, {0, 0}, ref_tanh, 2},
    {"sigmoid", OP_sigmoid, {0, 0}, ref_sigmoid, 2},
    {"erf", OP_erf, {0, 0}, ref_erf, 2},
    {"log", OP_log, {0, 0}, ref_log, 2},
    {"silu", OP_silu, {0, 0}, ref_silu, 2},
    {"mish", OP_mish, {0, 0}, ref_mish, 2},
    {"gelu", OP_gelu, {0, 0}, ref_gelu_erf, 2},
    {"gelu(tanh)", OP_gelu, {1, 0}, ref_gelu_tanh, 2},
    {"tanh_hardswish", OP_tanh_hardswish, {0, 0}, ref_tanh_hardswish, 2},
    {"elu(1)", OP_elu, {1, 0}, ref_elu, 2},
    {"elu(1.7)", OP_elu, {1.7f, 0}, ref_elu, 2},
    {"selu", OP_selu, {0, 0}, ref_selu, 2},
    {"softplus(1,20)", OP_softplus, {1, 20}, ref_softplus, 2},
    {"softplus(0.5,1e9)", OP_softplus, {0.5f, 1e9f}, ref_softplus, 2},
    {"hardswish", OP_hardswish, {0, 0}, ref_hardswish, 2},
    {"hardsigmoid", OP_hardsigmoid, {0, 0}, ref_hardsigmoid, 2},
    {"softsign", OP_softsign, {0, 0}, ref_softsign, 2},
    {"rsqrt", OP_rsqrt, {0, 0}, ref_rsqrt, 2},
    {"sqrt", OP_sqrt, {0, 0}, ref_sqrt, 0.5},
    {"square", OP_square, {0, 0}, ref_square, 0.5},
    {"leaky_relu(0.01)", OP_leaky_relu, {0.01f, 0}, ref_leaky_relu, 0.5},
    {"relu", OP_relu, {0, 0}, ref_relu, 0},
    {"relu6", OP_relu6, {0, 6}, ref_clamp, 0},
    {"hardtanh(-1,1)", OP_hardtanh, {-1, 1}, ref_clamp, 0},
    {"clamp(0.25,4)", OP_clamp, {0.25f, 4}, ref_clamp, 0},
    {"neg", OP_neg, {0, 0}, ref_neg, 0},
    {"cast(fp32)", OP_cast, {0, 0}, ref_cast, 0},
    {"abs", OP_abs, {0, 0}, ref_abs, 0},
    {"sign_or_one", OP_sign_or_one, {0, 0}, ref_sign_or_one, 0},
};
const int n_math_cases = COUNT_OF(math_cases);

double ulp_error(float got, double want, float x)
{
    int e;
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (x == 0 && want == 0 && !signbit(got) != !signbit(want)) return INFINITY;
    if (isinf(want)) return got == want ? 0 : INFINITY;
    if (isinf(got)) { /* 2^128 is what overflows */
        if ((got > 0) != (want > 0)) return INFINITY;
        return fabs(want) >= 0x1p128 ? 0 : (0x1p128 - fabs(want)) / 0x1p104;
    }
    frexp(want, &e);
    return fabs(got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

int runnable_kernels(const cpu_vector_kernels *out[3])
{
    int n = 0;
    out[n++] = &cvyi_vector_portable;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[n++] = &cvyi_vector_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
        out[n++] = &cvyi_vector_avx512;
    }
#elif defined(__aarch64__)
    out[n++] = &cvyi_vector_neon;
#endif
    return n;
}
