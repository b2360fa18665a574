// gpu_tc_reference.cuh - what gpu_tc.cu computes: its cases, epilogues as text, and the same in double on the GPU,
// with a comparison that also counts results of another kind (NaN, inf).
#pragma once
#include <cmath>
#include <string>
extern "C" {
#include "../../src/cuda/tc_tune.h"
}

enum { STORE = SINK_STORE, POOL = SINK_POOL, REDUCE = SINK_REDUCE };
enum { KEEP = PASS_KEEP, BOTH = PASS_BOTH, STATS = PASS_STATS, FINISH = PASS_FINISH };
enum { ID, RELU, CLAMP, TANH_HSWISH_ADD, SIGMOID_PRE, RESIDUAL_RELU, TAILS };
enum { UNIFORM, INTEGERS, BIG, TINY, MEAN1000, OUTLIER, WITH_INF, WITH_NAN, DATAS };
const char *const DATA[] = {"0..1", "integers", "x 1e9", "x 1e-20", "mean 1000", "outlier 1e6", "an inf", "a NaN"};

struct problem {
    const char *name;
    int n, c, k, h, w, r, s, stride, padh, padw, products, g, sink, ph, pw, reduce, tail, data, two_launches;
    int p() const
    {
        return (h + 2 * padh - r) / stride + 1;
    }
    int q() const
    {
        return (w + 2 * padw - s) / stride + 1;
    }
    int oh() const
    {
        return sink == POOL ? p() / ph : p();
    }
    int ow() const
    {
        return sink == POOL ? q() / pw : q();
    }
};

// ---- epilogues: the text for the kernel, and the same in double ----

static void replace_all(std::string &text, const std::string &from, const std::string &to)
{
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
}
// powers: y and what cvy_post returns are times log2(e) (TC_EXPONENT). $U is that factor.
static std::string post_text(int tail, bool exact)
{
    switch (tail) {
    case RELU:
        return "return z < 0.f ? 0.f : z;";
    case CLAMP:
        return "z = z < 0.f ? 0.f : z; return z > 1.f ? 1.f : z;";
    case RESIDUAL_RELU:
        return R"(z += __ldg(e.residual + ((size_t)n * K + k) * (OH * OW) + pixel);
    return z < 0.f ? 0.f : z;)";
    case TANH_HSWISH_ADD:
        return exact ? R"(float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.f + exp2_approx(z * 2.8853900817779268f)));
    return y + fmaf(r, fmaf(r, $U * 2 / 3, $U * -5 / 3), $U * 2 / 3);)"
                     : R"(float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(z));
    return fmaf(t, fmaf(t, $U / 6, $U / 2), y);)";
    default:
        return "return z;";
    }
}
static std::string pre_text(int tail, bool exact)
{
    if (tail != SIGMOID_PRE) return "return y;";
    return exact ? R"(float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.f + exp2_approx(y * -1.4426950408889634f)));
    return r;)"
                 : R"(float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(.5f * y));
    return fmaf(t, .5f, .5f);)";
}
static std::string epilogue(int tail, int products, bool powers)
{
    const bool exact = products == 3, units = powers && tail == TANH_HSWISH_ADD;
    std::string text = R"(#define TC_PRE $PRE
#define TC_HALVED 0
#define TC_EXTERN $EXTERN
#define TC_BEFORE 0
#define TC_EXPONENT $EXPONENT
struct epi {
    const float *residual;
};
__device__ __forceinline__ float cvy_pre(float y, int k, const epi &e)
{
    $BEFORE
}
__device__ __forceinline__ float cvy_post(float z, float y, int n, int k, int pixel, const epi &e)
{
    $AFTER
}
__device__ __forceinline__ float cvy_last(float v, int n, int pixel, const epi &e)
{
    return v;
}
)";
    std::string post = post_text(tail, exact);
    replace_all(post, "$U", units ? "1.4426950408889634f" : "1.f");
    replace_all(text, "$PRE", tail == SIGMOID_PRE ? "1" : "0");
    replace_all(text, "$EXTERN", tail == RESIDUAL_RELU ? "1" : "0");
    replace_all(text, "$EXPONENT", units ? "3" : "0");
    replace_all(text, "$BEFORE", pre_text(tail, exact));
    replace_all(text, "$AFTER", post);
    return text;
}
__device__ double tail_pre(int tail, double y)
{
    return tail == SIGMOID_PRE ? 1 / (1 + exp(-y)) : y;
}
__device__ double tail_post(int tail, double z, double y, double residual)
{
    if (tail == RELU) return z < 0 ? 0 : z;
    if (tail == CLAMP) return z < 0 ? 0 : z > 1 ? 1 : z;
    if (tail == TANH_HSWISH_ADD) return tanh(z) * (tanh(z) + 3) / 6 + y;
    if (tail == RESIDUAL_RELU) return z + residual < 0 ? 0 : z + residual;
    return z;
}

// ---- convolution, statistics, comparison ----

__global__ void ref_conv(problem b, const float *x, const float *w, const float *bias, double *y)
{
    const int p = (b.h + 2 * b.padh - b.r) / b.stride + 1, q = (b.w + 2 * b.padw - b.s) / b.stride + 1;
    const size_t total = (size_t)b.n * b.k * p * q;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        const int oq = i % q, op = i / q % p, k = i / ((size_t)p * q) % b.k, n = i / ((size_t)p * q * b.k);
        double a = bias[k];
        for (int c = 0; c < b.c; c++)
            for (int r = 0; r < b.r; r++)
                for (int s = 0; s < b.s; s++) {
                    const int ih = op * b.stride - b.padh + r, iw = oq * b.stride - b.padw + s;
                    if (ih >= 0 && ih < b.h && iw >= 0 && iw < b.w)
                        a += (double)x[(((size_t)n * b.c + c) * b.h + ih) * b.w + iw] *
                             w[((k * b.c + c) * b.r + r) * b.s + s];
                }
        y[i] = tail_pre(b.tail, a);
    }
}
__global__ void ref_stats(const double *y, size_t count, double eps, double *stats) // one block per (sample, group)
{
    __shared__ double part[256];
    const double *v = y + blockIdx.x * count;
    double mean = 0, var = 0;
    for (int pass = 0; pass < 2; pass++) {
        double a = 0;
        for (size_t i = threadIdx.x; i < count; i += 256) a += pass ? (v[i] - mean) * (v[i] - mean) : v[i];
        part[threadIdx.x] = a;
        __syncthreads();
        for (int o = 128; o; o /= 2) {
            if (threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];
            __syncthreads();
        }
        (pass ? var : mean) = part[0] / count;
        __syncthreads();
    }
    if (threadIdx.x == 0) stats[2 * blockIdx.x] = mean, stats[2 * blockIdx.x + 1] = 1 / sqrt(var + eps);
}
struct verdict {
    unsigned long long error, scale, wrong; // bits of doubles; results whose kind (NaN, inf) differs
};
// Norm, tail, pooling or reduction of one output, and its comparison.
__global__ void ref_compare(problem b, const double *y, const double *stats, const float *gamma, const float *beta,
                            const float *residual, const float *got, verdict *out)
{
    const int p = (b.h + 2 * b.padh - b.r) / b.stride + 1, q = (b.w + 2 * b.padw - b.s) / b.stride + 1;
    const int oh = b.sink == POOL ? p / b.ph : p, ow = b.sink == POOL ? q / b.pw : q,
              channels = b.sink == REDUCE ? 1 : b.k;
    const size_t total = (size_t)b.n * channels * oh * ow;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        const int oq = i % ow, op = i / ow % oh, k0 = i / ((size_t)oh * ow) % channels,
                  n = i / ((size_t)oh * ow * channels);
        auto value = [&](int k, int row, int col) {
            const double v = y[(((size_t)n * b.k + k) * p + row) * q + col];
            if (!b.g) return v;
            const double *st = stats + 2 * ((size_t)n * b.g + k / (b.k / b.g));
            return (v - st[0]) * st[1] * gamma[k] + beta[k];
        };
        double v;
        if (b.sink == POOL) {
            v = -INFINITY;
            for (int r = 0; r < b.ph; r++)
                for (int s = 0; s < b.pw; s++) {
                    const double u = value(k0, op * b.ph + r, oq * b.pw + s);
                    v = u > v || u != u ? u : v;
                }
            v = tail_post(b.tail, v, v, 0);
        } else if (b.sink == STORE)
            v = tail_post(b.tail, value(k0, op, oq), y[(((size_t)n * b.k + k0) * p + op) * q + oq], residual[i]);
        else {
            double m = -INFINITY, lo = INFINITY, sum = 0, es = 0;
            bool nan = false;
            for (int pass = 0; pass < 2; pass++)
                for (int k = 0; k < b.k; k++) {
                    const double u =
                        tail_post(b.tail, value(k, op, oq), y[(((size_t)n * b.k + k) * p + op) * q + oq], 0);
                    nan |= u != u;
                    if (pass)
                        es += exp(u - (isinf(m) ? 0 : m));
                    else
                        m = fmax(m, u), lo = fmin(lo, u), sum += u;
                }
            const double all[] = {(isinf(m) ? 0 : m) + log(es), m, lo, sum, sum / b.k};
            v = nan ? NAN : all[b.reduce];
        }
        const double g = got[i], e = fabs(g - v);
        if ((v != v) != (g != g) || (isinf(v) ? g != v : isinf(g)))
            atomicAdd(&out->wrong, 1);
        else if (v == v && !isinf(v)) {
            if (e > __longlong_as_double(out->error))
                atomicMax(&out->error, (unsigned long long)__double_as_longlong(e));
            if (fabs(v) > __longlong_as_double(out->scale))
                atomicMax(&out->scale, (unsigned long long)__double_as_longlong(fabs(v)));
        }
    }
}
