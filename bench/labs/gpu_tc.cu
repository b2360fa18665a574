// gpu_tc.cu - checks and times src/cuda/kernels/conv_tc.cu by itself, without the engine.
//
//     nvcc -O2 -std=c++17 -o gpu_tc bench/labs/gpu_tc.cu src/cuda/tc_tune.c && ./gpu_tc abc|plan|tune|trial|sweep|build [cases [first]]
//
// abc: the three blocks at full size, against float64 and the clock (L2 flushed, median of 30). sweep: many shapes against float64.
// tune: abc with other tunings beside the chosen ones. build: compiles all of it and reports spills and serialised wgmma; needs no GPU. Every case is compiled by nvcc, in parallel.
// Exit status 1 where a check failed.
#include <cuda.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>
#include <sys/stat.h>
#include <unistd.h>
#include "gpu_build.h"
extern "C" {
#include "../../src/cuda/tc_tune.h"
}
#define CK(x)                                                                                                          \
    do {                                                                                                               \
        cudaError_t err_ = (x);                                                                                        \
        if (err_) printf("%s: %s, line %d\n", #x, cudaGetErrorString(err_), __LINE__), fflush(stdout), exit(2);        \
    } while (0)

enum { STORE = SINK_STORE, POOL = SINK_POOL, REDUCE = SINK_REDUCE };
enum { KEEP = PASS_KEEP, BOTH = PASS_BOTH, STATS = PASS_STATS, FINISH = PASS_FINISH };
enum { ID, RELU, CLAMP, TANH_HSWISH_ADD, SIGMOID_PRE, RESIDUAL_RELU, TAILS };
enum { UNIFORM, INTEGERS, BIG, TINY, MEAN1000, OUTLIER, WITH_INF, WITH_NAN, DATAS };
const char *const DATA[] = {"0..1", "integers", "x 1e9", "x 1e-20", "mean 1000", "outlier 1e6", "an inf", "a NaN"};

struct problem {
    const char *name;
    int n, c, k, h, w, r, s, stride, padh, padw, products, g, sink, ph, pw, reduce, tail, data, two_launches;
    int p() const { return (h + 2 * padh - r) / stride + 1; }
    int q() const { return (w + 2 * padw - s) / stride + 1; }
    int oh() const { return sink == POOL ? p() / ph : p(); }
    int ow() const { return sink == POOL ? q() / pw : q(); }
};

// ---- the tuning macros: the engine's own tuner ------------------------------------------------------------------------
static tc_problem problem_of(const problem &b)
{
    tc_problem p = {};
    p.c = b.c, p.k = b.k, p.h = b.h, p.w = b.w, p.r = b.r, p.s = b.s, p.stride = b.stride, p.pad_h = b.padh, p.pad_w = b.padw;
    p.products = b.products, p.groups = b.g, p.sink = b.sink, p.pool_h = b.ph, p.pool_w = b.pw, p.reduce = b.reduce;
    p.external = b.tail == RESIDUAL_RELU, p.apart = b.two_launches;
    return p;
}
static bool choose(const problem &b, int sms, int rank, tc_tuning &t)
{
    tc_problem p = problem_of(b);
    if (!cvyi_tc_tune(&p, 227 * 1024, sms, rank, &t)) return false;
    p.few = b.n * t.strips < 2 * sms;
    return cvyi_tc_tune(&p, 227 * 1024, sms, rank, &t);
}

static std::string flags(const problem &b, const tc_tuning &tuning, int pass)
{
    const tc_problem p = problem_of(b);
    tc_tuning t = tuning;
    std::ostringstream o;
    t.pass = pass;
#define FLAG(NAME, field, meaning) o << "-DTC_" #NAME "=" << p.field << " ";
    TC_PROBLEM(FLAG)
#undef FLAG
#define FLAG(NAME, field, meaning) o << "-DTC_" #NAME "=" << t.field << " ";
    TC_TUNING(FLAG)
#undef FLAG
    return o.str();
}

// ---- epilogues: the text for the kernel, and the same in double ------------------------------------------------------
// powers: y and what cvy_post returns are times log2(e) (TC_EXPONENT)
static std::string epilogue(int tail, int products, bool powers)
{
    std::string pre = "return y;", post = "return z;";
    const bool exact = products == 3, units = powers && tail == TANH_HSWISH_ADD;
    const std::string u = units ? "1.4426950408889634f" : "1.f";
    if (tail == RELU) post = "return z < 0.f ? 0.f : z;";
    if (tail == CLAMP) post = "z = z < 0.f ? 0.f : z;\n    return z > 1.f ? 1.f : z;";
    if (tail == TANH_HSWISH_ADD)
        post = exact ? std::string() + "float r;\n    asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(1.f + exp2_approx(z * 2.8853900817779268f)));\n"
                       "    return y + fmaf(r, fmaf(r, " + u + " * 2 / 3, " + u + " * -5 / 3), " + u + " * 2 / 3);"
                     : "float t;\n    asm(\"tanh.approx.f32 %0, %1;\" : \"=f\"(t) : \"f\"(z));\n    return fmaf(t, fmaf(t, " + u + " / 6, " + u + " / 2), y);";
    if (tail == SIGMOID_PRE)
        pre = exact ? "float r;\n    asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(1.f + exp2_approx(y * -1.4426950408889634f)));\n    return r;"
                    : "float t;\n    asm(\"tanh.approx.f32 %0, %1;\" : \"=f\"(t) : \"f\"(.5f * y));\n    return fmaf(t, .5f, .5f);";
    if (tail == RESIDUAL_RELU) post = "z += __ldg(e.residual + ((size_t)n * K + k) * (OH * OW) + pixel);\n    return z < 0.f ? 0.f : z;";
    std::ostringstream o;
    o << "#define TC_PRE " << (tail == SIGMOID_PRE) << "\n#define TC_HALVED 0\n#define TC_EXTERN " << (tail == RESIDUAL_RELU) << "\n#define TC_BEFORE 0\n#define TC_EXPONENT " << (units ? 3 : 0) << "\nstruct epi {\n    const float *residual;\n};\n"
      << "__device__ __forceinline__ float cvy_pre(float y, int k, const epi &e)\n{\n    " << pre << "\n}\n"
      << "__device__ __forceinline__ float cvy_post(float z, float y, int n, int k, int pixel, const epi &e)\n{\n    " << post << "\n}\n"
      << "__device__ __forceinline__ float cvy_last(float v, int n, int pixel, const epi &e)\n{\n    return v;\n}\n";
    return o.str();
}
__device__ double tail_pre(int tail, double y) { return tail == SIGMOID_PRE ? 1 / (1 + exp(-y)) : y; }
__device__ double tail_post(int tail, double z, double y, double residual)
{
    if (tail == RELU) return z < 0 ? 0 : z;
    if (tail == CLAMP) return z < 0 ? 0 : z > 1 ? 1 : z;
    if (tail == TANH_HSWISH_ADD) return tanh(z) * (tanh(z) + 3) / 6 + y;
    if (tail == RESIDUAL_RELU) return z + residual < 0 ? 0 : z + residual;
    return z;
}

// ---- the reference, in double ------------------------------------------------------------------------------------------
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
                        a += (double)x[(((size_t)n * b.c + c) * b.h + ih) * b.w + iw] * w[((k * b.c + c) * b.r + r) * b.s + s];
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
__global__ void ref_compare(problem b, const double *y, const double *stats, const float *gamma, const float *beta, const float *residual,
                            const float *got, verdict *out)
{
    const int p = (b.h + 2 * b.padh - b.r) / b.stride + 1, q = (b.w + 2 * b.padw - b.s) / b.stride + 1;
    const int oh = b.sink == POOL ? p / b.ph : p, ow = b.sink == POOL ? q / b.pw : q, channels = b.sink == REDUCE ? 1 : b.k;
    const size_t total = (size_t)b.n * channels * oh * ow;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        const int oq = i % ow, op = i / ow % oh, k0 = i / ((size_t)oh * ow) % channels, n = i / ((size_t)oh * ow * channels);
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
                    const double u = tail_post(b.tail, value(k, op, oq), y[(((size_t)n * b.k + k) * p + op) * q + oq], 0);
                    nan |= u != u;
                    if (pass) es += exp(u - (isinf(m) ? 0 : m));
                    else m = fmax(m, u), lo = fmin(lo, u), sum += u;
                }
            const double all[] = {(isinf(m) ? 0 : m) + log(es), m, lo, sum, sum / b.k};
            v = nan ? NAN : all[b.reduce];
        }
        const double g = got[i], e = fabs(g - v);
        if ((v != v) != (g != g) || (isinf(v) ? g != v : isinf(g))) atomicAdd(&out->wrong, 1);
        else if (v == v && !isinf(v)) {
            if (e > __longlong_as_double(out->error)) atomicMax(&out->error, (unsigned long long)__double_as_longlong(e));
            if (fabs(v) > __longlong_as_double(out->scale)) atomicMax(&out->scale, (unsigned long long)__double_as_longlong(fabs(v)));
        }
    }
}

// ---- building ----------------------------------------------------------------------------------------------------------
struct build {
    problem b;
    tc_tuning t;
    std::string cubin[2], pack, log; // the passes (one or two), the packing kernel
    int passes;
    bool ok;
};
static std::string work = "/tmp/gpu_tc.d", kernels = getenv("GPU_TC_KERNELS") ? getenv("GPU_TC_KERNELS") : "src/cuda/kernels";

static bool compile(const std::string &source, const std::string &options, const std::string &out, std::string &log)
{
    return compile_kernel(kernels, "GPU_TC_FLAGS", source, options, out, log);
}
static void make_one(build &u, int number)
{
    const std::string dir = work + "/" + std::to_string(number);
    mkdir(dir.c_str(), 0777);
    std::ofstream(dir + "/epilogue.cuh") << epilogue(u.b.tail, u.b.products, u.b.sink == REDUCE && u.b.reduce == 0 && u.t.pass != KEEP);
    const std::string epilogue_flag = "-DTC_EPILOGUE='\"" + dir + "/epilogue.cuh\"' ";
    const int pass = u.t.pass, first = pass == FINISH ? STATS : pass;
    u.passes = pass == FINISH ? 2 : 1;
    u.pack = dir + "/pack.cubin";
    u.ok = compile("conv_tc_pack.cu", epilogue_flag + flags(u.b, u.t, first), u.pack, u.log);
    for (int i = 0; i < u.passes; i++) {
        u.cubin[i] = dir + "/" + std::to_string(i) + ".cubin";
        u.ok = compile("conv_tc.cu", epilogue_flag + flags(u.b, u.t, i ? FINISH : first), u.cubin[i], u.log) && u.ok;
    }
}
static void make_all(std::vector<build> &all)
{
    mkdir(work.c_str(), 0777);
    make_each(all, make_one);
}

// ---- running -----------------------------------------------------------------------------------------------------------
struct arguments { // struct tc_args of conv_tc.cuh
    const float *x, *w;
    const unsigned *packed;
    const float *unscale, *bias, *gamma, *beta;
    float *y;
    unsigned long long *part;
    int *state;
    int n;
    float eps;
};
struct epi {
    const float *residual;
};
static cudaKernel_t kernel_of(const std::string &file, const char *name)
{
    cudaLibrary_t lib;
    cudaKernel_t k;
    CK(cudaLibraryLoadFromFile(&lib, file.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    CK(cudaLibraryGetKernel(&k, lib, name));
    return k;
}
template <typename T> static T *device(size_t count)
{
    T *p;
    CK(cudaMalloc(&p, std::max<size_t>(count, 1) * sizeof(T)));
    return p;
}
static float *upload(const std::vector<float> &v)
{
    float *p = device<float>(v.size());
    CK(cudaMemcpy(p, v.data(), v.size() * 4, cudaMemcpyHostToDevice));
    return p;
}
static unsigned seed = 12345;
static float uniform()
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) * (1.f / 16777216.f);
}
static void fill(std::vector<float> &x, int data, bool weight)
{
    for (auto &v : x)
        v = data == INTEGERS ? (float)((int)(uniform() * 9) - 4) : weight ? uniform() * 2 - 1 : data == BIG ? uniform() * 1e9f : data == TINY ? uniform() * 1e-20f
            : data == MEAN1000 ? 1000 + uniform() * 3.46f : uniform();
    if (!weight && data >= OUTLIER) x[x.size() / 3] = data == OUTLIER ? 1e6f : data == WITH_INF ? INFINITY : NAN;
}

// x as the kernel's tensor copies see it: {W, H, C, n}, boxes of whole rows of a strip.
static CUtensorMap tensor_map(const problem &b, const tc_tuning &t, const float *x)
{
    CUtensorMap map = {};
    if (!t.tma) return map;
    void *encode;
    cudaDriverEntryPointQueryResult found;
    CK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found));
    const tc_problem p = problem_of(b);
    const tc_layout l = tc_find_layout(&p, &t);
    const cuuint64_t dims[4] = {(cuuint64_t)b.w, (cuuint64_t)b.h, (cuuint64_t)b.c, (cuuint64_t)b.n};
    const cuuint64_t strides[3] = {b.w * 4ull, b.w * 4ull * b.h, b.w * 4ull * b.h * b.c};
    const cuuint32_t box[4] = {(cuuint32_t)l.unit_cols, (cuuint32_t)l.unit_rows, 8, 1}, steps[4] = {1, 1, 1, 1};
    if (((decltype(&cuTensorMapEncodeTiled))encode)(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, (void *)x, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                                    CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
        printf("no tensor map\n"), exit(2);
    return map;
}

static bool run(const build &u, int reps, char *flush, size_t flush_bytes)
{
    const problem &b = u.b;
    const tc_problem p = problem_of(b);
    const tc_layout l = tc_find_layout(&p, &u.t);
    const int bytes = (int)tc_shared_bytes(&p, &u.t, &l), strips = l.row_strips * l.col_strips;
    int sms;
    CK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    std::vector<float> x((size_t)b.n * b.c * b.h * b.w), w((size_t)b.k * b.c * b.r * b.s), bias(b.k), gamma(b.k), beta(b.k);
    const size_t outputs = (size_t)b.n * (b.sink == REDUCE ? 1 : b.k) * b.oh() * b.ow(), convs = (size_t)b.n * b.k * b.p() * b.q();
    std::vector<float> residual(b.sink == STORE ? outputs : 1);
    fill(x, b.data, false), fill(w, b.data, true);
    if (b.data != INTEGERS) for (auto &v : w) v /= sqrtf((float)b.c * b.r * b.s);
    for (int k = 0; k < b.k; k++) bias[k] = b.data == INTEGERS ? k % 5 : uniform() - .5f, gamma[k] = (1 + .3f * (uniform() - .5f)) * (k % 3 ? 1 : -1), beta[k] = uniform() - .5f;
    for (auto &v : residual) v = uniform() - .5f;

    // Pooling in front of a norm: weights and bias come with the sign of the norm's weight, as the engine's rewrite makes them.
    std::vector<float> signed_w = w, signed_bias = bias;
    for (int k = 0; k < b.k && b.sink == POOL && b.g; k++)
        if (gamma[k] < 0) {
            for (int i = 0; i < b.c * b.r * b.s; i++) signed_w[(size_t)k * b.c * b.r * b.s + i] *= -1;
            signed_bias[k] *= -1;
        }

    cudaKernel_t pack = kernel_of(u.pack, "conv_tc_pack"), pass[2];
    if (bytes > 227 * 1024) return printf("BAD %s: %d bytes of shared memory\n", b.name, bytes), false;
    for (int i = 0; i < u.passes; i++) {
        pass[i] = kernel_of(u.cubin[i], "conv_tc");
        CK(cudaFuncSetAttribute((const void *)pass[i], cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    }
    arguments a = {};
    epi e = {upload(residual)};
    a.x = upload(x), a.w = upload(signed_w), a.bias = upload(signed_bias), a.gamma = upload(gamma), a.beta = upload(beta), a.n = b.n, a.eps = 1e-5f;
    const float *ref_w = upload(w), *ref_bias = upload(bias);
    unsigned *packed = device<unsigned>(tc_packed_bytes(&l) / 4);
    float *unscale = device<float>(2 * l.channels); // and sums of weights
    a.packed = packed, a.unscale = unscale, a.y = device<float>(outputs), a.state = device<int>(2);
    const size_t words = (size_t)b.n * std::max(b.g, 1) * strips;
    a.part = device<unsigned long long>(words);
    CK(cudaMemset(a.part, 0, words * 8));
    CK(cudaMemset(a.state, 0, 8));
    CK(cudaMemset(a.y, 0xff, outputs * 4));
    CUtensorMap map = tensor_map(b, u.t, a.x);
    void *pack_args[] = {(void *)&a.w, &packed, &unscale}, *args[] = {&map, &a, &e};
    CK(cudaLaunchKernel((const void *)pack, dim3(l.channels), dim3(128), pack_args, 0, 0));
    const int grid = std::min(sms, b.n * strips);
    auto go = [&] { for (int i = 0; i < u.passes; i++) CK(cudaLaunchKernel((const void *)pass[i], dim3(grid), dim3(l.threads), args, bytes, 0)); };
    for (int i = 0; i < 4; i++) go(); // more launches than tags
    CK(cudaMemset(a.y, 0xff, outputs * 4));
    go();
    for (int i = 0; cudaStreamQuery(0) == cudaErrorNotReady; i++) {
        usleep(1000);
        if (i > 4000) printf("HANG %s\n", flags(b, u.t, u.t.pass).c_str()), fflush(stdout), _exit(3); // a lost barrier never comes back
    }
    if (cudaError_t err = cudaDeviceSynchronize())
        printf("FAILED %s: %s\n", cudaGetErrorString(err), flags(b, u.t, u.t.pass).c_str()), fflush(stdout), _exit(3);

    verdict *v = device<verdict>(1), got;
    double *ref = device<double>(convs), *stats = device<double>((size_t)2 * b.n * std::max(b.g, 1));
    CK(cudaMemset(v, 0, sizeof *v));
    ref_conv<<<4096, 256>>>(b, a.x, ref_w, ref_bias, ref);
    if (b.g) ref_stats<<<b.n * b.g, 256>>>(ref, convs / b.n / b.g, 1e-5, stats);
    ref_compare<<<4096, 256>>>(b, ref, stats, a.gamma, a.beta, e.residual, a.y, v);
    CK(cudaGetLastError());
    CK(cudaMemcpy(&got, v, sizeof got, cudaMemcpyDeviceToHost));
    double error, scale;
    memcpy(&error, &got.error, 8), memcpy(&scale, &got.scale, 8);

    float median = 0, fastest = 0;
    if (reps) {
        cudaEvent_t e0, e1;
        std::vector<float> ms(reps);
        CK(cudaEventCreate(&e0));
    CK(cudaEventCreate(&e1));
        for (auto &m : ms) {
            CK(cudaMemsetAsync(flush, 1, flush_bytes));
            CK(cudaEventRecord(e0));
            go();
            CK(cudaEventRecord(e1));
            CK(cudaEventSynchronize(e1));
            CK(cudaEventElapsedTime(&m, e0, e1));
        }
        std::sort(ms.begin(), ms.end());
        median = ms[reps / 2], fastest = ms[0];
    }
    // Bounds: a product of depth d; the norm of a small or flat slice enlarges what came before it.
    const double bound = (b.products == 3 ? 5e-6 : 3e-3) * (b.data == MEAN1000 || b.data == OUTLIER ? 400 : 1) * (b.g ? 4 : 1);
    const bool good = got.wrong == 0 && error <= bound * scale && u.log.empty();
    printf("%-4s %-6s n%d c%d k%d %dx%d f%dx%d s%d p%d%d g%d sink%d %s x%d pass%d | tile %d rowsm %d flat %d strip %d span %d stages %d slices %d outs %d ct %d, %d B | "
           "error %.2e of %.3g (%.1e) wrong %llu", good ? "ok" : "BAD", b.name, b.n, b.c, b.k, b.h, b.w, b.r, b.s, b.stride, b.padh, b.padw, b.g, b.sink, DATA[b.data],
           b.products, u.t.pass, u.t.tile, u.t.rowsm, u.t.flat, u.t.strip, u.t.span, u.t.stages, u.t.slices, u.t.outs, u.t.coltiles, bytes, error, scale, scale > 0 ? error / scale : 0., got.wrong);
    if (reps) printf(" | %.4f ms (min %.4f)", median, fastest);
    printf("\n%s", u.log.c_str());
    fflush(stdout);
    for (const void *p : {(const void *)a.x, (const void *)a.w, (const void *)a.bias, (const void *)ref_w, (const void *)ref_bias, (const void *)a.gamma, (const void *)a.beta, (const void *)packed, (const void *)unscale,
                          (const void *)a.y, (const void *)a.state, (const void *)a.part, (const void *)v, (const void *)ref, (const void *)stats, (const void *)e.residual})
        CK(cudaFree((void *)p));
    return good;
}

// ---- cases -------------------------------------------------------------------------------------------------------------
static std::vector<problem> blocks()
{
    std::vector<problem> v;
    for (int products = 1; products <= 3; products += 2) {
        v.push_back({"A", 128, 8, 64, 128, 128, 3, 3, 1, 0, 0, products, 16, POOL, 4, 4, 0, CLAMP, UNIFORM, 0});
        v.push_back({"B", 128, 8, 64, 128, 128, 3, 3, 1, 0, 0, products, 16, REDUCE, 1, 2, 0, TANH_HSWISH_ADD, UNIFORM, 0});
        v.push_back({"C", 128, 8, 32, 256, 256, 3, 3, 1, 0, 0, products, 8, STORE, 1, 2, 0, SIGMOID_PRE, UNIFORM, 0});
    }
    return v;
}
static std::vector<problem> sweep(int count)
{
    std::vector<problem> v;
    const int cs[] = {3, 8, 16, 24, 64}, ks[] = {16, 24, 32, 64, 100, 128, 256}, rs[] = {1, 3, 5, 7}, hs[] = {7, 13, 14, 28, 33, 56, 64, 100, 130, 224};
    unsigned z = 7;
    auto pick = [&](int n) { z = z * 1664525u + 1013904223u; return (int)((z >> 10) % n); };
    while ((int)v.size() < count) {
        problem b = {"s", 1 + pick(5), cs[pick(5)], ks[pick(7)], hs[pick(10)], hs[pick(10)], 0, 0, 1 + pick(2), 0, 0, 1 + 2 * pick(2), 0, pick(3), 1, 2, pick(5), 0, 0, 0};
        b.r = b.s = rs[pick(4)];
        if (pick(8) == 0) b.h = 1, b.r = 1; // one-dimensional
        b.padh = b.r > 1 ? pick(2) * (b.r / 2) : 0, b.padw = b.s > 1 ? pick(2) * (b.s / 2) : 0;
        if (b.sink == POOL) b.ph = b.h == 1 ? 1 : 1 + pick(3), b.pw = 2 << pick(2);
        if (pick(3)) do b.g = 1 + pick(b.k); while (b.k % b.g);
        const int tails[] = {ID, RELU, CLAMP, TANH_HSWISH_ADD, SIGMOID_PRE, RESIDUAL_RELU};
        b.tail = tails[pick(b.sink == STORE ? 6 : 4)];
        if (b.sink == POOL && b.tail == TANH_HSWISH_ADD) b.tail = RELU;
        b.data = pick(3) ? UNIFORM : pick(DATAS);
        b.two_launches = b.g && pick(4) == 0;
        if (b.h + 2 * b.padh < b.r || b.w + 2 * b.padw < b.s || b.oh() < 1 || b.ow() < 1 || (b.g && (b.k / b.g) * b.p() * b.q() < 32)) continue;
        v.push_back(b);
    }
    return v;
}

// Tunings of the three blocks tried beside the chosen one: block, products, macros.
struct trial {
    char block;
    int products;
    tc_tuning t;
};
static const trial TRIALS[] = {
    // pass tile rowsm flat strip span stages slices wide outs lines coltiles tma rows finishers: TC_TUNING's order
    {'B', 1, {KEEP, 128, 1, 0, 2, 126, 2, 1, 1, 4, 1, 1, 1, 0, 4}}, {'B', 1, {KEEP, 128, 1, 0, 2, 126, 1, 1, 1, 4, 1, 1, 1, 0, 4}},
    {'B', 1, {KEEP, 128, 1, 0, 2, 126, 3, 1, 1, 4, 1, 1, 1, 0, 4}}, {'B', 1, {BOTH, 128, 1, 0, 9, 126, 4, 1, 1, 3, 1, 1, 1, 0, 4}},
    {'B', 3, {KEEP, 128, 1, 0, 2, 126, 2, 1, 1, 4, 1, 1, 1, 0, 4}}, {'B', 3, {KEEP, 128, 1, 0, 2, 126, 1, 1, 1, 4, 1, 1, 1, 0, 4}},
    {'B', 3, {BOTH, 128, 1, 0, 6, 126, 4, 1, 1, 2, 1, 1, 1, 0, 4}}, {'C', 1, {KEEP, 128, 2, 0, 2, 254, 2, 1, 1, 2, 1, 0, 1, 0, 4}},
    {'C', 1, {KEEP, 128, 2, 0, 2, 254, 1, 1, 1, 2, 1, 0, 1, 0, 4}}, {'C', 1, {BOTH, 128, 2, 0, 4, 254, 4, 1, 1, 1, 1, 0, 1, 0, 4}},
    {'C', 3, {KEEP, 128, 2, 0, 2, 254, 1, 1, 1, 2, 1, 0, 1, 0, 4}}, {'C', 3, {BOTH, 128, 2, 0, 4, 254, 2, 1, 1, 1, 1, 0, 1, 0, 4}},
};

int main(int argc, char **argv)
{
    const std::string what = argc > 1 ? argv[1] : "abc";
    const int count = argc > 2 ? atoi(argv[2]) : 60, from = argc > 3 ? atoi(argv[3]) : 0; // sweep: cases, first one
    std::vector<build> all;
    std::vector<problem> list = what == "sweep" ? sweep(count) : blocks();
    list.erase(list.begin(), list.begin() + std::min<size_t>(from, list.size()));
    if (what == "build") for (auto &b : sweep(count)) list.push_back(b);
    int refused = 0, bad = 0;
    for (const problem &b : list) {
        build u = {};
        u.b = b;
        if (what == "tune" || what == "trial") continue;
        if (choose(b, 132, 0, u.t)) all.push_back(u);
        else refused++, printf("refused: c%d k%d %dx%d f%d s%d sink%d x%d: no tuning fits\n", b.c, b.k, b.h, b.w, b.r, b.stride, b.sink, b.products);
    }
    for (const trial &t : TRIALS)
        if (what == "tune" || (what == "trial" && &t == &TRIALS[count]))
            for (const problem &b : blocks())
                if (b.name[0] == t.block && b.products == t.products) {
                    build u = {};
                    u.b = b, u.t = t.t;
                    all.push_back(u);
                }
    if (what == "plan") { // the tunings alone
        for (auto &u : all) printf("%s x%d: %s\n", u.b.name, u.b.products, flags(u.b, u.t, u.t.pass).c_str());
        return 0;
    }
    make_all(all);
    if (what == "build") {
        for (auto &u : all)
            if (!u.ok || !u.log.empty()) bad++, printf("%s\n%s", flags(u.b, u.t, u.t.pass).c_str(), u.log.c_str());
        printf("%d of %d with remarks, %d refused\n", bad, (int)all.size(), refused);
        return bad != 0;
    }
    char *flush = device<char>(256 << 20);
    for (auto &u : all) {
        if (!u.ok) bad++, printf("BAD does not compile: %s\n%s", flags(u.b, u.t, u.t.pass).c_str(), u.log.c_str());
        else bad += !run(u, what == "sweep" || what == "trial" ? 0 : 30, flush, 256 << 20);
    }
    printf("%d of %d bad, %d refused\n", bad, (int)all.size(), refused);
    return bad != 0;
}
