// gpu_tc.cu - checks and times src/cuda/kernels/conv_tc.cu without the engine.
//
//     nvcc -O2 -std=c++17 -Iinclude -o gpu_tc bench/labs/gpu_tc.cu src/cuda/tc_tune.c
//     ./gpu_tc abc|plan|tune|trial|sweep|build [cases [first]]
//
// abc: the three blocks at full size, against float64 and the clock (L2 flushed, median of 30).
// plan: their tunings. tune: abc with other tunings beside the chosen ones; trial: one of these, untimed.
// sweep: many shapes against float64.
// build: compiles all of it and reports spills and serialised wgmma; needs no GPU.
//
// Every case is compiled by nvcc, in parallel. Exit status 1 if a check failed.
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
#include "gpu_tc_reference.cuh"
#define CK(x)                                                                                                      \
    do {                                                                                                           \
        cudaError_t err_ = (x);                                                                                    \
        if (err_) printf("%s: %s, line %d\n", #x, cudaGetErrorString(err_), __LINE__), fflush(stdout), exit(2);    \
    } while (0)

// ---- the tuning macros: the engine's own tuner ----
static tc_problem problem_of(const problem &b)
{
    tc_problem p = {};
    p.c = b.c, p.k = b.k, p.h = b.h, p.w = b.w, p.r = b.r, p.s = b.s, p.stride = b.stride, p.pad_h = b.padh,
    p.pad_w = b.padw;
    p.products = b.products, p.groups = b.g, p.sink = b.sink, p.pool_h = b.ph, p.pool_w = b.pw, p.reduce = b.reduce;
    p.external = b.tail == RESIDUAL_RELU, p.alone = b.two_launches;
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

// ---- building ----
struct build {
    problem b;
    tc_tuning t;
    std::string cubin[2], pack, log; // the passes (one or two), the packing kernel
    int passes;
    bool ok;
};
static std::string work = "/tmp/gpu_tc.d",
                   kernels = getenv("GPU_TC_KERNELS") ? getenv("GPU_TC_KERNELS") : "src/cuda/kernels";

static bool compile(const std::string &source, const std::string &options, const std::string &out, std::string &log)
{
    return compile_kernel(kernels, "GPU_TC_FLAGS", source, options, out, log);
}
static void make_one(build &u, int number)
{
    const std::string dir = work + "/" + std::to_string(number);
    mkdir(dir.c_str(), 0777);
    std::ofstream(dir + "/epilogue.cuh")
        << epilogue(u.b.tail, u.b.products, u.b.sink == REDUCE && u.b.reduce == 0 && u.t.pass != KEEP);
    const std::string epilogue_flag = "-DTC_EPILOGUE='\"" + dir + "/epilogue.cuh\"' ";
    const int pass = u.t.pass, first = pass == FINISH ? STATS : pass;
    u.passes = pass == FINISH ? 2 : 1;
    u.pack = dir + "/pack.cubin";
    u.ok = compile("conv_tc_pack.cu", epilogue_flag + flags(u.b, u.t, first), u.pack, u.log);
    for (int i = 0; i < u.passes; i++) {
        u.cubin[i] = dir + "/" + std::to_string(i) + ".cubin";
        u.ok =
            compile("conv_tc.cu", epilogue_flag + flags(u.b, u.t, i ? FINISH : first), u.cubin[i], u.log) && u.ok;
    }
}
static void make_all(std::vector<build> &all)
{
    mkdir(work.c_str(), 0777);
    make_each(all, make_one);
}

// ---- running ----
#define X_TYPE                       float
#define W_TYPE                       float
#define BIAS_TYPE                    float
#define GAMMA_TYPE                   float
#define BETA_TYPE                    float
#define Y_TYPE                       float
#define POINTER(type, name, meaning) type *name;
#define NUMBER(type, name, meaning)  type name;
struct arguments { // struct tc_args of conv_tc.cuh
    TC_POINTERS(POINTER)
    TC_NUMBERS(NUMBER)
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
        v = data == INTEGERS   ? (float)((int)(uniform() * 9) - 4)
            : weight           ? uniform() * 2 - 1
            : data == BIG      ? uniform() * 1e9f
            : data == TINY     ? uniform() * 1e-20f
            : data == MEAN1000 ? 1000 + uniform() * 3.46f
                               : uniform();
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
    const cuuint32_t box[4] = {(cuuint32_t)l.parcel_cols, (cuuint32_t)l.parcel_rows, 8, 1}, steps[4] = {1, 1, 1, 1};
    if (((decltype(&cuTensorMapEncodeTiled))encode)(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, (void *)x, dims,
                                                    strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                                    CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
        printf("no tensor map\n"), exit(2);
    return map;
}

// What one case has in the GPU's memory: the kernel's arguments, and the parameters as the reference takes them.
struct memory {
    arguments a;
    epi e;
    const float *weight, *bias;
    unsigned *packed;
    float *unscale; // and sums of weights
    size_t outputs, convs;
};
static memory upload_case(const problem &b, const tc_layout &l)
{
    std::vector<float> x((size_t)b.n * b.c * b.h * b.w), w((size_t)b.k * b.c * b.r * b.s), bias(b.k), gamma(b.k),
        beta(b.k);
    memory m = {};
    m.outputs = (size_t)b.n * (b.sink == REDUCE ? 1 : b.k) * b.oh() * b.ow(),
    m.convs = (size_t)b.n * b.k * b.p() * b.q();
    std::vector<float> residual(b.sink == STORE ? m.outputs : 1);
    fill(x, b.data, false), fill(w, b.data, true);
    if (b.data != INTEGERS)
        for (auto &v : w) v /= sqrtf((float)b.c * b.r * b.s);
    for (int k = 0; k < b.k; k++) {
        bias[k] = b.data == INTEGERS ? k % 5 : uniform() - .5f;
        gamma[k] = (1 + .3f * (uniform() - .5f)) * (k % 3 ? 1 : -1);
        beta[k] = uniform() - .5f;
    }
    for (auto &v : residual) v = uniform() - .5f;
    m.weight = upload(w), m.bias = upload(bias);

    // Pooling before a norm: weights and bias come with the sign of the norm's weight, as the engine's rewrite
    // makes them.
    for (int k = 0; k < b.k && b.sink == POOL && b.g; k++)
        if (gamma[k] < 0) {
            for (int i = 0; i < b.c * b.r * b.s; i++) w[(size_t)k * b.c * b.r * b.s + i] *= -1;
            bias[k] *= -1;
        }
    const size_t words = (size_t)b.n * std::max(b.g, 1) * l.row_strips * l.col_strips;
    m.e.residual = upload(residual);
    m.a.x = upload(x), m.a.w = upload(w), m.a.bias = upload(bias), m.a.gamma = upload(gamma),
    m.a.beta = upload(beta);
    m.a.packed = m.packed = device<unsigned>(tc_packed_bytes(&l) / 4),
    m.a.unscale = m.unscale = device<float>(2 * l.channels);
    m.a.y = device<float>(m.outputs), m.a.state = device<int>(2), m.a.part = device<unsigned long long>(words);
    m.a.n = b.n, m.a.eps = 1e-5f;
    CK(cudaMemset(m.a.part, 0, words * 8));
    CK(cudaMemset(m.a.state, 0, 8));
    return m;
}
static void release(const memory &m)
{
    const void *all[] = {m.a.x,    m.a.w,    m.a.bias, m.a.gamma, m.a.beta,  m.a.y,       m.a.state,
                         m.a.part, m.weight, m.bias,   m.packed,  m.unscale, m.e.residual};
    for (const void *p : all) CK(cudaFree((void *)p));
}

// The launches of one case.
struct launches {
    cudaKernel_t pass[2];
    int passes, grid, threads, bytes;
    CUtensorMap map;
    memory m;

    void go()
    {
        void *args[] = {&map, &m.a, &m.e};
        for (int i = 0; i < passes; i++)
            CK(cudaLaunchKernel((const void *)pass[i], dim3(grid), dim3(threads), args, bytes, 0));
    }
    // More launches than tags, the last into an output that says what was not written. A lost barrier never comes
    // back.
    void check(const std::string &name)
    {
        for (int i = 0; i < 4; i++) go();
        CK(cudaMemset(m.a.y, 0xff, m.outputs * 4));
        go();
        for (int i = 0; cudaStreamQuery(0) == cudaErrorNotReady; i++) {
            usleep(1000);
            if (i > 4000) printf("HANG %s\n", name.c_str()), fflush(stdout), _exit(3);
        }
        if (cudaError_t err = cudaDeviceSynchronize())
            printf("FAILED %s: %s\n", cudaGetErrorString(err), name.c_str()), fflush(stdout), _exit(3);
    }
};
static launches prepare(const build &u, const tc_layout &l, int bytes)
{
    launches r = {};
    int sms;
    CK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    r.m = upload_case(u.b, l);
    r.map = tensor_map(u.b, u.t, r.m.a.x);
    r.passes = u.passes, r.threads = l.threads, r.bytes = bytes;
    r.grid = std::min(sms, u.b.n * l.row_strips * l.col_strips);
    for (int i = 0; i < u.passes; i++) {
        r.pass[i] = kernel_of(u.cubin[i], "conv_tc");
        CK(cudaFuncSetAttribute((const void *)r.pass[i], cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    }
    const float *factor = nullptr;
    void *pack_args[] = {(void *)&r.m.a.w, &r.m.packed, &r.m.unscale, &factor};
    CK(cudaLaunchKernel((const void *)kernel_of(u.pack, "conv_tc_pack"), dim3(l.channels), dim3(PACK_THREADS),
                        pack_args, 0, 0));
    return r;
}
static verdict compare(const problem &b, const memory &m)
{
    verdict *v = device<verdict>(1), got;
    double *ref = device<double>(m.convs), *stats = device<double>((size_t)2 * b.n * std::max(b.g, 1));
    CK(cudaMemset(v, 0, sizeof *v));
    ref_conv<<<4096, 256>>>(b, m.a.x, m.weight, m.bias, ref);
    if (b.g) ref_stats<<<b.n * b.g, 256>>>(ref, m.convs / b.n / b.g, 1e-5, stats);
    ref_compare<<<4096, 256>>>(b, ref, stats, m.a.gamma, m.a.beta, m.e.residual, m.a.y, v);
    CK(cudaGetLastError());
    CK(cudaMemcpy(&got, v, sizeof got, cudaMemcpyDeviceToHost));
    for (void *p : {(void *)v, (void *)ref, (void *)stats}) CK(cudaFree(p));
    return got;
}
// Milliseconds of each launch, the shortest first; L2 is flushed before each.
static std::vector<float> times_of(launches &r, int reps, char *flush, size_t flush_bytes)
{
    std::vector<float> ms(reps);
    cudaEvent_t e0, e1;
    CK(cudaEventCreate(&e0));
    CK(cudaEventCreate(&e1));
    for (auto &m : ms) {
        CK(cudaMemsetAsync(flush, 1, flush_bytes));
        CK(cudaEventRecord(e0));
        r.go();
        CK(cudaEventRecord(e1));
        CK(cudaEventSynchronize(e1));
        CK(cudaEventElapsedTime(&m, e0, e1));
    }
    std::sort(ms.begin(), ms.end());
    return ms;
}
static bool run(const build &u, int reps, char *flush, size_t flush_bytes)
{
    const problem &b = u.b;
    const tc_problem p = problem_of(b);
    const tc_layout l = tc_find_layout(&p, &u.t);
    const int bytes = (int)tc_shared_bytes(&p, &u.t, &l);
    if (bytes > 227 * 1024) return printf("BAD %s: %d bytes of shared memory\n", b.name, bytes), false;
    launches r = prepare(u, l, bytes);
    r.check(flags(b, u.t, u.t.pass));
    const verdict got = compare(b, r.m);
    const std::vector<float> ms = times_of(r, reps, flush, flush_bytes);
    double error, scale;
    memcpy(&error, &got.error, 8), memcpy(&scale, &got.scale, 8);
    // Bounds: a product of depth d; the norm of a small or flat slice enlarges what came before it.
    const double bound =
        (b.products == 3 ? 5e-6 : 3e-3) * (b.data == MEAN1000 || b.data == OUTLIER ? 400 : 1) * (b.g ? 4 : 1);
    const bool good = got.wrong == 0 && error <= bound * scale && u.log.empty();
    printf("%-4s %-6s n%d c%d k%d %dx%d f%dx%d s%d p%d%d g%d sink%d %s x%d pass%d", good ? "ok" : "BAD", b.name,
           b.n, b.c, b.k, b.h, b.w, b.r, b.s, b.stride, b.padh, b.padw, b.g, b.sink, DATA[b.data], b.products,
           u.t.pass);
    printf(" | tile %d rowsm %d flat %d strip %d span %d stages %d slices %d outs %d ct %d, %d B", u.t.tile,
           u.t.rowsm, u.t.flat, u.t.strip, u.t.span, u.t.stages, u.t.slices, u.t.outs, u.t.coltiles, bytes);
    printf(" | error %.2e of %.3g (%.1e) wrong %llu", error, scale, scale > 0 ? error / scale : 0., got.wrong);
    if (reps) printf(" | %.4f ms (min %.4f)", ms[reps / 2], ms[0]);
    printf("\n%s", u.log.c_str());
    fflush(stdout);
    release(r.m);
    return good;
}

// ---- cases ----
static std::vector<problem> blocks()
{
    std::vector<problem> v;
    for (int products = 1; products <= 3; products += 2) {
        v.push_back({"A", 128, 8, 64, 128, 128, 3, 3, 1, 0, 0, products, 16, POOL, 4, 4, 0, CLAMP, UNIFORM, 0});
        v.push_back(
            {"B", 128, 8, 64, 128, 128, 3, 3, 1, 0, 0, products, 16, REDUCE, 1, 2, 0, TANH_HSWISH_ADD, UNIFORM, 0});
        v.push_back(
            {"C", 128, 8, 32, 256, 256, 3, 3, 1, 0, 0, products, 8, STORE, 1, 2, 0, SIGMOID_PRE, UNIFORM, 0});
    }
    return v;
}
static std::vector<problem> sweep(int count)
{
    std::vector<problem> v;
    const int cs[] = {3, 8, 16, 24, 64}, ks[] = {16, 24, 32, 64, 100, 128, 256}, rs[] = {1, 3, 5, 7},
              hs[] = {7, 13, 14, 28, 33, 56, 64, 100, 130, 224};
    unsigned z = 7;
    auto pick = [&](int n) {
        z = z * 1664525u + 1013904223u;
        return (int)((z >> 10) % n);
    };
    while ((int)v.size() < count) {
        problem b = {"s",
                     1 + pick(5),
                     cs[pick(5)],
                     ks[pick(7)],
                     hs[pick(10)],
                     hs[pick(10)],
                     0,
                     0,
                     1 + pick(2),
                     0,
                     0,
                     1 + 2 * pick(2),
                     0,
                     pick(3),
                     1,
                     2,
                     pick(5),
                     0,
                     0,
                     0};
        b.r = b.s = rs[pick(4)];
        if (pick(8) == 0) b.h = 1, b.r = 1; // one-dimensional
        b.padh = b.r > 1 ? pick(2) * (b.r / 2) : 0, b.padw = b.s > 1 ? pick(2) * (b.s / 2) : 0;
        if (b.sink == POOL) b.ph = b.h == 1 ? 1 : 1 + pick(3), b.pw = 2 << pick(2);
        if (pick(3)) do
                b.g = 1 + pick(b.k);
            while (b.k % b.g);
        const int tails[] = {ID, RELU, CLAMP, TANH_HSWISH_ADD, SIGMOID_PRE, RESIDUAL_RELU};
        b.tail = tails[pick(b.sink == STORE ? 6 : 4)];
        if (b.sink == POOL && b.tail == TANH_HSWISH_ADD) b.tail = RELU;
        b.data = pick(3) ? UNIFORM : pick(DATAS);
        b.two_launches = b.g && pick(4) == 0;
        if (b.h + 2 * b.padh < b.r || b.w + 2 * b.padw < b.s || b.oh() < 1 || b.ow() < 1 ||
            (b.g && (b.k / b.g) * b.p() * b.q() < 32))
            continue;
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
    // pass tile rowsm flat strip span stages slices share outs bands coltiles tma rows finishers: TC_TUNING's order
    {'B', 1, {KEEP, 128, 1, 0, 2, 126, 2, 1, 1, 4, 1, 1, 1, 0, 4}},
    {'B', 1, {KEEP, 128, 1, 0, 2, 126, 1, 1, 1, 4, 1, 1, 1, 0, 4}},
    {'B', 1, {KEEP, 128, 1, 0, 2, 126, 3, 1, 1, 4, 1, 1, 1, 0, 4}},
    {'B', 1, {BOTH, 128, 1, 0, 9, 126, 4, 1, 1, 3, 1, 1, 1, 0, 4}},
    {'B', 3, {KEEP, 128, 1, 0, 2, 126, 2, 1, 1, 4, 1, 1, 1, 0, 4}},
    {'B', 3, {KEEP, 128, 1, 0, 2, 126, 1, 1, 1, 4, 1, 1, 1, 0, 4}},
    {'B', 3, {BOTH, 128, 1, 0, 6, 126, 4, 1, 1, 2, 1, 1, 1, 0, 4}},
    {'C', 1, {KEEP, 128, 2, 0, 2, 254, 2, 1, 1, 2, 1, 0, 1, 0, 4}},
    {'C', 1, {KEEP, 128, 2, 0, 2, 254, 1, 1, 1, 2, 1, 0, 1, 0, 4}},
    {'C', 1, {BOTH, 128, 2, 0, 4, 254, 4, 1, 1, 1, 1, 0, 1, 0, 4}},
    {'C', 3, {KEEP, 128, 2, 0, 2, 254, 1, 1, 1, 2, 1, 0, 1, 0, 4}},
    {'C', 3, {BOTH, 128, 2, 0, 4, 254, 2, 1, 1, 1, 1, 0, 1, 0, 4}},
};

int main(int argc, char **argv)
{
    const std::string what = argc > 1 ? argv[1] : "abc";
    const int count = argc > 2 ? atoi(argv[2]) : 60, from = argc > 3 ? atoi(argv[3]) : 0; // sweep: cases, first one
    std::vector<build> all;
    std::vector<problem> list = what == "sweep" ? sweep(count) : blocks();
    list.erase(list.begin(), list.begin() + std::min<size_t>(from, list.size()));
    if (what == "build")
        for (auto &b : sweep(count)) list.push_back(b);
    int refused = 0, bad = 0;
    for (const problem &b : list) {
        build u = {};
        u.b = b;
        if (what == "tune" || what == "trial") continue;
        if (choose(b, 132, 0, u.t))
            all.push_back(u);
        else
            refused++, printf("refused: c%d k%d %dx%d f%d s%d sink%d x%d: no tuning fits\n", b.c, b.k, b.h, b.w,
                              b.r, b.stride, b.sink, b.products);
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
        if (!u.ok)
            bad++, printf("BAD does not compile: %s\n%s", flags(u.b, u.t, u.t.pass).c_str(), u.log.c_str());
        else
            bad += !run(u, what == "sweep" || what == "trial" ? 0 : 30, flush, 256 << 20);
    }
    printf("%d of %d bad, %d refused\n", bad, (int)all.size(), refused);
    return bad != 0;
}
