// gpu_product.cu - checks and times src/cuda/kernels/matmul_tc.cu without the engine.
//
//     nvcc -O2 -std=c++17 -gencode=arch=compute_90,code=sm_90 -o gpu_product bench/labs/gpu_product.cu
//     ./gpu_product [build]
//
// Every row of `variants` is a tile and a cluster; `cases` says which of them run which product, x [m][k] times
// weights [n][k]. Samples of the results are compared with sums in float64, then the kernel is timed (L2 flushed
// before each run, median of 20); what is only checked is printed where it fails.
// build: compiles all of it and reports spills and serialised wgmma; needs no GPU.
//
// Variants are compiled by nvcc, in parallel; each kind of cluster runs in a process of its own, so that one that
// hangs does not affect the others. Exit status 1 if a check failed.
#include <cuda.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gpu_build.h"
#define TENSORS 4
#include "../../src/cuda/kernels/common.cuh"
#include "../../src/cuda/kernels/product_layout.cuh"
#define CK(x)                                                                                                      \
    do {                                                                                                           \
        const int err_ = (int)(x);                                                                                 \
        if (err_) printf("%s: error %d, line %d\n", #x, err_, __LINE__), fflush(stdout), _exit(2);                 \
    } while (0)

struct variant {
    int bm, bn, cluster_m, cluster_n;
};
enum { ALL, FEW, CHECK }; // variants of a case: every one; large tiles or small ones; of these, untimed
struct problem {
    int m, k, n, which;
    bool odd; // an inf, a NaN and values that overflow among x
};
static const variant variants[] = {
    {128, 128, 1, 1}, {128, 128, 1, 2}, {128, 128, 2, 1}, {128, 128, 2, 2}, {128, 128, 1, 4}, {128, 128, 4, 1},
    {128, 128, 4, 2}, {128, 256, 1, 1}, {128, 256, 1, 2}, {128, 256, 2, 1}, {128, 256, 2, 2}, {128, 64, 1, 1},
    {128, 64, 1, 2},  {128, 64, 1, 4},  {64, 128, 1, 1},  {64, 128, 2, 1},  {64, 64, 1, 1},   {64, 64, 2, 1},
    {64, 64, 1, 2},   {64, 32, 1, 1},   {64, 32, 1, 2},   {64, 32, 1, 4},
};
static const problem cases[] = {
    {2048, 1024, 1024, ALL, false}, {4096, 4096, 4096, FEW, false}, {512, 1024, 1024, FEW, false},
    {16384, 256, 256, FEW, false},  {64, 4096, 4096, FEW, false},   {1, 1024, 1000, FEW, false},
    {77, 132, 52, CHECK, false},    {300, 1024, 36, CHECK, false},  {129, 36, 257, CHECK, false},
    {130, 160, 130, CHECK, true},
};

struct job {
    problem p;
    variant v;
    int products;
    std::string kernel, pack, log;
    bool built;

    wgmma_layout layout() const
    {
        return wgmma_find_layout(v.bm, v.bn, products);
    }
    int steps() const
    {
        return (p.k + WGMMA_DEPTH - 1) / WGMMA_DEPTH;
    }
    int column_tiles() const
    {
        return (p.n + v.bn - 1) / v.bn;
    }
    int grid_x() const
    {
        return (column_tiles() + v.cluster_n - 1) / v.cluster_n * v.cluster_n;
    }
    int grid_y() const
    {
        return ((p.m + v.bm - 1) / v.bm + v.cluster_m - 1) / v.cluster_m * v.cluster_m;
    }
    int threads() const
    {
        return layout().threads;
    }
    size_t packed_floats() const
    {
        return (size_t)grid_x() * steps() * layout().w_stage;
    }
    int shared_bytes() const
    {
        return layout().shared_bytes;
    }
};

static bool wanted(const problem &p, const variant &v, int products)
{
    const int cluster = v.cluster_m * v.cluster_n;
    if (products == 3 && v.bn == 256) return false;
    if (p.which == ALL) return true;
    if (p.which == CHECK) return v.bn != 64 && (cluster <= 2 || (cluster == 4 && v.bm == 128));
    if (p.m * (double)p.n >= 4e6) return v.bm == 128 && v.bn >= 128;
    return (cluster <= 2 || v.bn == 32) && (p.m > 64 || v.bm == 64) && v.bn <= 128;
}

// ---- building
static const std::string work = "/tmp/gpu_product.d", times = work + "/times",
                         kernels =
                             getenv("GPU_PRODUCT_KERNELS") ? getenv("GPU_PRODUCT_KERNELS") : "src/cuda/kernels";

static bool compile(const std::string &source, const std::string &options, const std::string &out, std::string &log)
{
    return compile_kernel(kernels, "GPU_PRODUCT_FLAGS", source, options, out, log);
}
static void build(job &j, int number)
{
    const auto define = [](const char *name, int value) {
        return std::string(" -D") + name + "=" + std::to_string(value);
    };
    const std::string options = define("TENSORS", TENSORS) + define("COLS", j.p.n) + define("TERMS", j.p.k) +
                                define("BM", j.v.bm) + define("BN", j.v.bn) + define("CLUSTER_M", j.v.cluster_m) +
                                define("CLUSTER_N", j.v.cluster_n) + define("PRODUCTS", j.products);
    j.kernel = work + "/" + std::to_string(number) + ".cubin",
    j.pack = work + "/" + std::to_string(number) + "p.cubin";
    j.built =
        compile("matmul_tc.cu", options, j.kernel, j.log) && compile("matmul_tc_pack.cu", options, j.pack, j.log);
}
static void build_all(std::vector<job> &jobs)
{
    mkdir(work.c_str(), 0777);
    make_each(jobs, build);
}

// ---- running
struct verdict {
    unsigned long long error, scale, wrong; // bits of doubles; results whose kind (NaN, inf) differs
};
__global__ void fill(float *p, size_t count, unsigned seed, float scale)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u + seed;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u, h ^= h >> 16;
        p[i] = scale * ((h >> 8) * (2.f / 16777216.f) - 1.f);
    }
}
__global__ void compare(const float *x, const float *w, const float *y, problem p, size_t step, verdict *out)
{
    const size_t total = (size_t)p.m * p.n;
    for (size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * step; i < total;
         i += (size_t)gridDim.x * blockDim.x * step) {
        double sum = 0;
        for (int k = 0; k < p.k; k++) sum += (double)x[i / p.n * p.k + k] * w[i % p.n * p.k + k];
        const double got = y[i], e = fabs(got - sum);
        const bool large = fabs(sum) > 3.4e38; // inf in float32, whichever way it comes about
        if ((sum != sum) != (got != got) || (large ? !isinf(got) : isinf(got)))
            atomicAdd(&out->wrong, 1);
        else if (sum == sum && !large) {
            if (fabs(sum) < 1e30) atomicMax(&out->error, (unsigned long long)__double_as_longlong(e));
            if (fabs(sum) < 1e30) atomicMax(&out->scale, (unsigned long long)__double_as_longlong(fabs(sum)));
        }
    }
}
template <typename T> static T *device(size_t count)
{
    T *p;
    CK(cudaMalloc(&p, std::max<size_t>(count, 1) * sizeof(T)));
    return p;
}
static cudaKernel_t kernel_of(const std::string &file)
{
    cudaLibrary_t library;
    cudaKernel_t k;
    CK(cudaLibraryLoadFromFile(&library, file.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    CK(cudaLibraryGetKernel(&k, library, "convoy_kernel"));
    return k;
}
// x as tensor copies see it: {k, m}, boxes of 32 terms and a block's share of the rows, swizzled.
static CUtensorMap tensor_map(const job &j, float *x)
{
    CUtensorMap map = {};
    void *encode;
    cudaDriverEntryPointQueryResult found;
    CK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found));
    const cuuint64_t dims[2] = {(cuuint64_t)j.p.k, (cuuint64_t)j.p.m}, strides[1] = {(cuuint64_t)j.p.k * 4};
    const cuuint32_t box[2] = {32, (cuuint32_t)(j.v.bm / j.v.cluster_n)}, steps[2] = {1, 1};
    CK(((decltype(&cuTensorMapEncodeTiled))encode)(
        &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, x, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}
static void finish(const char *what)
{
    for (int i = 0; cudaStreamQuery(0) == cudaErrorNotReady; i++) {
        usleep(1000);
        if (i > 3000) printf("HANG %s\n", what), fflush(stdout), _exit(3);
    }
    if (cudaError_t e = cudaDeviceSynchronize())
        printf("FAILED %s: %s\n", what, cudaGetErrorString(e)), fflush(stdout), _exit(3);
}
static int blocks_at_once(const job &j, cudaKernel_t kernel, dim3 grid)
{
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t config = {};
    int clusters = 0;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = j.v.cluster_n, cluster.val.clusterDim.y = j.v.cluster_m,
    cluster.val.clusterDim.z = 1;
    config.gridDim = grid, config.blockDim = dim3(j.threads()), config.dynamicSmemBytes = j.shared_bytes();
    config.attrs = &cluster, config.numAttrs = 1;
    CK(cudaOccupancyMaxActiveClusters(&clusters, (const void *)kernel, &config));
    return clusters * j.v.cluster_m * j.v.cluster_n;
}
static bool run(const job &j, char *flush, size_t flush_bytes)
{
    const problem &p = j.p;
    char name[128];
    snprintf(name, sizeof name, "%5d x %4d x %4d  x%d  %3d x %3d  %d x %d", p.m, p.k, p.n, j.products, j.v.bm,
             j.v.bn, j.v.cluster_m, j.v.cluster_n);
    if (!j.built) return printf("BAD  %s: does not compile\n%s", name, j.log.c_str()), false;
    const cudaKernel_t kernel = kernel_of(j.kernel), pack = kernel_of(j.pack);
    float *x = device<float>((size_t)p.m * p.k), *w = device<float>((size_t)p.n * p.k),
          *y = device<float>((size_t)p.m * p.n), *packed = device<float>(j.packed_floats());
    fill<<<1024, 256>>>(x, (size_t)p.m * p.k, 1, 1.f);
    fill<<<1024, 256>>>(w, (size_t)p.n * p.k, 2, 1.f / sqrtf((float)p.k));
    if (p.odd) {
        const float odd[] = {INFINITY, NAN, 3.402e38f, -INFINITY};
        for (int i = 0; i < 4; i++)
            CK(cudaMemcpy(x + (size_t)(3 + 7 * i) * p.k + 5 * i, odd + i, 4, cudaMemcpyHostToDevice));
    }
    CK(cudaMemset(y, 0xff, (size_t)p.m * p.n * 4));
    CK(cudaMemset(packed, 0xff, j.packed_floats() * 4));
    CK(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, j.shared_bytes()));
    cvy_args a = {p.m, {{y, {p.n, 1}}, {x, {p.k, 1}}, {w, {1, p.k}}, {packed, {}}}};
    cvy_args ap = {j.grid_x(), {{packed, {}}, {w, {1, p.k}}, {}, {}}};
    CUtensorMap map = tensor_map(j, x);
    void *pack_list[] = {&ap}, *list[] = {&map, &a};
    const dim3 grid(j.grid_x(), j.grid_y());
    CK(cudaLaunchKernel(
        (const void *)pack,
        dim3((unsigned)((j.packed_floats() / j.layout().parts / 4 + BLOCK_THREADS - 1) / BLOCK_THREADS)),
        dim3(BLOCK_THREADS), pack_list, 0, 0));
    auto go = [&] {
        CK(cudaLaunchKernel((const void *)kernel, grid, dim3(j.threads()), list, j.shared_bytes(), 0));
    };
    go();
    go();
    finish(name);

    verdict *v = device<verdict>(1), got;
    CK(cudaMemset(v, 0, sizeof *v));
    const size_t total = (size_t)p.m * p.n;
    compare<<<512, 128>>>(x, w, y, p, total > 65536 ? (total / 65536) | 1 : 1, v);
    finish(name);
    CK(cudaMemcpy(&got, v, sizeof got, cudaMemcpyDeviceToHost));
    double error, scale;
    memcpy(&error, &got.error, 8), memcpy(&scale, &got.scale, 8);
    std::vector<float> ms(20);
    cudaEvent_t e0, e1;
    CK(cudaEventCreate(&e0));
    CK(cudaEventCreate(&e1));
    for (auto &m : ms) {
        if (p.which == CHECK) break;
        CK(cudaMemsetAsync(flush, 1, flush_bytes));
        CK(cudaEventRecord(e0));
        go();
        CK(cudaEventRecord(e1));
        CK(cudaEventSynchronize(e1));
        CK(cudaEventElapsedTime(&m, e0, e1));
    }
    std::sort(ms.begin(), ms.end());
    const bool good = got.wrong == 0 && error <= (j.products == 3 ? 5e-6 : 3e-3) * scale && j.log.empty();
    if (!good || p.which != CHECK)
        printf("%-4s %s  error %.1e  wrong %llu  %u of %d blocks at once  %8.2f us  %.0f TFLOP/s\n%s",
               good ? "ok" : "BAD", name, scale > 0 ? error / scale : error, got.wrong, grid.x * grid.y,
               blocks_at_once(j, kernel, grid), 1e3 * ms[10],
               p.which == CHECK ? 0 : 2e-9 * p.m * p.n * p.k / ms[10], j.log.c_str());
    fflush(stdout);
    if (p.which != CHECK && good) std::ofstream(times, std::ios::app) << ms[10] << " " << name << "\n";
    for (void *q : {(void *)x, (void *)w, (void *)y, (void *)packed, (void *)v}) CK(cudaFree(q));
    return good;
}

// The fastest three of every product, from the lines that the processes wrote.
static void print_best()
{
    struct line {
        float ms;
        std::string name;
    };
    std::vector<line> all;
    std::ifstream in(times);
    for (line l; in >> l.ms && std::getline(in, l.name);) all.push_back(l);
    std::stable_sort(all.begin(), all.end(), [](const line &a, const line &b) { return a.ms < b.ms; });
    printf("\nthe fastest:\n");
    for (const auto &p : cases)
        for (int products = 1; products <= 3; products += 2) {
            char head[64];
            int n = 0;
            snprintf(head, sizeof head, " %5d x %4d x %4d  x%d ", p.m, p.k, p.n, products);
            for (const auto &l : all)
                if (!l.name.compare(0, strlen(head), head) && n++ < 3)
                    printf("%8.2f us %s\n", 1e3 * l.ms, l.name.c_str());
        }
}

// All jobs of one kind of cluster, in a process of their own.
static bool run_kind(const std::vector<job> &jobs, int cluster_m, int cluster_n)
{
    const pid_t child = fork();
    int status = 0;
    if (child == 0) {
        const size_t flush_bytes = 256u << 20;
        char *flush = device<char>(flush_bytes);
        bool good = true;
        for (const auto &j : jobs)
            if (j.v.cluster_m == cluster_m && j.v.cluster_n == cluster_n) good = run(j, flush, flush_bytes) && good;
        fflush(stdout);
        _exit(good ? 0 : 1);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
    std::vector<job> jobs;
    for (const auto &p : cases)
        for (int products = 1; products <= 3; products += 2)
            for (const auto &v : variants)
                if (wanted(p, v, products)) jobs.push_back({p, v, products, "", "", "", false});
    build_all(jobs);
    bool good = true;
    if (argc > 1 && !strcmp(argv[1], "build")) {
        for (const auto &j : jobs) {
            good = good && j.built && j.log.empty();
            if (!j.built || !j.log.empty())
                printf("%d x %d x %d, %d products, %d x %d, cluster %d x %d:\n%s", j.p.m, j.p.k, j.p.n, j.products,
                       j.v.bm, j.v.bn, j.v.cluster_m, j.v.cluster_n, j.log.c_str());
        }
        printf("%zu variants %s\n", jobs.size(), good ? "compile" : "do not all compile");
        return !good;
    }
    printf("     rows x terms x columns, products, tile, cluster (same columns x same rows)\n");
    fflush(stdout);
    unlink(times.c_str());
    for (const int kind : {11, 12, 21, 22, 14, 41, 42}) good = run_kind(jobs, kind / 10, kind % 10) && good;
    print_best();
    printf("%s\n", good ? "all good" : "NOT all good");
    return !good;
}
