/* chains.c - every kind of kernel on a real GPU, against the reference in double.
 *
 *   chains [-t] [CHAIN...]     checks the chains given, or the list below; -t times them instead (CUDA events, L2
 * thrown out before each run, median of 21)
 *
 * Each chain is planned as the cost model likes it, with every operator in a pass of its own, and twice at random;
 * run twice (the same bits), with NaN in the outputs before and guard bands around them, and once with strided
 * tensors. The bound is that of float32 sums: a few roundings per level of depth. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../src/cuda/exec.h"
#include "../../src/ref/ref.h"

static const char *const chains[] = {
    /* the three blocks, small, and their odd relatives */
    "x[3,8,20,22] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[3,8,20,22] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[3,8,20,22] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
    /* convolutions: every rank, stride, padding, dilation, groups, few and many channels */
    "x[2,3,50] | conv1d(5,7,stride=2,padding=3) | relu",
    "x[1,5,9,11] | conv2d(7,(3,2),stride=(2,1),padding=(1,2),dilation=(1,2)) | silu",
    "x[2,16,9,10] | conv2d(40,3,padding=1,groups=4) | gelu",
    "x[2,12,14,13] | conv2d(12,3,padding=1,groups=12) | hardswish",
    "x[2,20,8,8] | conv2d(130,1) | relu",
    "x[2,4,6,7,8] | conv3d(18,3,padding=1,stride=(1,2,1)) | elu(0.7)",
    "x[1,3,30,30] | conv2d(20,11,stride=4,padding=2) | relu",
    "x[1,2,40,40] | conv2d(9,7,padding=3) | mish",
    "x[8,20,22] | conv2d(24,3) | tanh",
    "x[2,33,7,7] | conv2d(65,3,padding=1) | leaky_relu(0.2)",
    /* transposed */
    "x[2,6,9] | conv_transpose1d(8,4,stride=2,padding=1) | relu",
    "x[2,8,7,9] | conv_transpose2d(20,3,stride=2,padding=1,output_padding=1) | softplus",
    "x[1,8,5,6] | conv_transpose2d(6,(3,2),groups=2,dilation=2) | selu",
    "x[1,4,3,4,5] | conv_transpose3d(5,2,stride=2) | erf",
    /* matrix products */
    "x[5,70] | linear(33) | relu",
    "x[3,4,37] | linear(65) | gelu('tanh') | add(r[3,4,65])",
    "x[200,130] | linear(150) | square",
    "x[2,3,17,19] | matmul(w[3,19,23]) | abs",
    "x[7] | matmul(w[7,5])",
    "x[4,6,7] | matmul(w[7])",
    /* norms */
    "x[4,12,5,6] | batch_norm(training=True) | relu",
    "x[4,12,5,6] | batch_norm() | relu",
    "x[4,12,5,6] | instance_norm()",
    "x[4,5,24] | layer_norm(24) | tanh",
    "x[4,5,6,4] | layer_norm((6,4))",
    "x[4,5,24] | rms_norm(24)",
    "x[2,8,300,301] | group_norm(2) | neg",
    /* pooling */
    "x[2,3,17,19] | relu | max_pool2d(3,2,1) | exp",
    "x[2,3,17,19] | max_pool2d(3,stride=2,ceil_mode=True,dilation=2)",
    "x[2,3,17,19] | avg_pool2d(3,2,1,ceil_mode=True) | sqrt",
    "x[2,3,17,19] | avg_pool2d(3,2,1,count_include_pad=False)",
    "x[2,3,8,9,10] | avg_pool3d(2)",
    "x[2,3,31] | max_pool1d(4)",
    "x[2,3,17,19] | sigmoid | adaptive_avg_pool2d(1) | relu6",
    /* reductions and softmax */
    "x[2,3,17,19] | sum((2,3)) | neg",
    "x[5,33,19] | mean(1) | hardsigmoid",
    "x[5,33,2050] | max(2,keepdim=True)",
    "x[5,33,19] | min(0)",
    "x[5,1030,19] | logsumexp(1)",
    "x[4,5,6] | logsumexp((0,2))",
    "x[3,7,40] | sum()",
    "x[5,1030] | softmax(1)",
    "x[5,33,19] | tanh | softmax(1) | mul(2)",
    "x[50,7] | log_softmax(-1)",
    "x[9,5] | softmax(0)",
    /* pointwise, broadcasting, reshapes, several outputs */
    "x[2,3,4,5] | add(y[4,1]) | maximum(z[2,1,1,5]) | div(3) | hardtanh(-0.5,0.5)",
    "x[2,3,4,5] | sub(y[3,1,5],alpha=2) | minimum(0.3) | softsign | abs | add(0.1) | rsqrt",
    "x[2,3,4] | flatten(1) | linear(9) | reshape(2,3,3) | relu",
    "x[2,1,4] | squeeze(1) | log",
    "x[1000,1001] | mul(x2[1001]) | clamp(-1,None)",
};

typedef struct tensor_data {
    cvy_tensor info;
    float *host;
    int64_t elements, room; /* room: floats of the device buffer, guard bands and stride gaps included */
    CUdeviceptr device;
    int64_t strides[CVY_MAX_RANK];
} tensor_data;

enum { MAX_TENSORS = 24, GUARD = 64, SPREAD = 2 };

typedef struct bench_case {
    const char *text;
    cvy_graph *graph;
    tensor_data t[MAX_TENSORS];
    int n;
    double *expected[MAX_TENSORS];
    cuda_device *device;
    CUstream stream;
    double bound; /* of the error, over the output's scale */
} bench_case;

static uint32_t seed = 12345;
static float random_value(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 16777216.0f;
}

static int fail_here(const bench_case *c, const char *what)
{
    printf("FAILED  %s\n        %s: %s\n", c->text, what, cvy_last_error());
    return 1;
}

/* Where the reference of a value in [-1, 1] would be NaN the data is positive. */
static bool wants_positive(const char *text_)
{
    return strstr(text_, "sqrt") || strstr(text_, "log");
}

static cvy_status make_tensors(bench_case *c)
{
    cvy_status st = CVY_OK;

    c->n = cvy_graph_tensors(c->graph);
    for (int i = 0; i < c->n; i++) {
        tensor_data *t = &c->t[i];
        TRY(cvy_graph_tensor(c->graph, i, &t->info));
        shape s = {.rank = t->info.rank};
        memcpy(s.dim, t->info.dims, sizeof s.dim);
        t->elements = cvyi_elements(&s);
        t->host = malloc(4 * (size_t)t->elements + 4);
        t->room = SPREAD * t->elements + 2 * GUARD;
        const bool positive = wants_positive(c->text) || strstr(t->info.name, "var");
        const double scale = t->info.rank > 1 && t->info.role == CVY_PARAM
                                 ? 1 / sqrt((double)t->elements / (double)t->info.dims[0] + 1)
                                 : 1;
        for (int64_t k = 0; k < t->elements; k++)
            t->host[k] = (float)scale * (positive ? random_value() + 0.1f : 2 * random_value() - 1);
        TRY(cvyi_cuda_alloc(c->device, 4 * (size_t)t->room, &t->device));
    }
fail:
    return st;
}

static cvy_status make_reference(bench_case *c)
{
    cvy_buffer buffers[MAX_TENSORS];
    double *outputs[MAX_TENSORS];
    size_t bytes;
    void *work = NULL;
    int k = 0;
    cvy_status st;

    TRY(cvyi_ref_workspace(c->graph, &bytes));
    work = cvyi_alloc_aligned(bytes);
    if (!work) return CVY_NO_MEMORY;
    for (int i = 0; i < c->n; i++) {
        buffers[i] = (cvy_buffer){c->t[i].host, NULL};
        if (c->t[i].info.role != CVY_OUTPUT) continue;
        c->expected[i] = malloc(8 * (size_t)c->t[i].elements + 8);
        outputs[k++] = c->expected[i];
    }
    TRY(cvyi_ref_run_double(c->graph, buffers, c->n, work, outputs));
fail:
    cvyi_free(work);
    return st;
}

/* Device buffers: guard, then the tensor, contiguous or with every SPREAD-th element in use; NaN elsewhere. */
static cvy_status upload(bench_case *c, bool strided, cvy_buffer *buffers)
{
    cvy_status st = CVY_OK;
    for (int i = 0; i < c->n; i++) {
        tensor_data *t = &c->t[i];
        float *all = malloc(4 * (size_t)t->room);
        const int64_t step = strided ? SPREAD : 1;
        shape s = {.rank = t->info.rank};
        memcpy(s.dim, t->info.dims, sizeof s.dim);
        cvyi_contiguous_strides(&s, t->strides);
        for (int d = 0; d < s.rank; d++) t->strides[d] *= step;
        for (int64_t k = 0; k < t->room; k++) all[k] = NAN;
        if (t->info.role != CVY_OUTPUT)
            for (int64_t k = 0; k < t->elements; k++) all[GUARD + k * step] = t->host[k];
        st = cvyi_cuda_upload(c->device, t->device, all, 4 * (size_t)t->room, c->stream);
        free(all);
        if (st) return st;
        buffers[i] = (cvy_buffer){(void *)(uintptr_t)(t->device + 4 * GUARD), strided ? t->strides : NULL};
    }
    return st;
}

typedef struct outcome {
    double worst; /* error over the output's scale */
    uint64_t bits;
    int bad_guard;
} outcome;

static cvy_status compare(bench_case *c, bool strided, outcome *out)
{
    *out = (outcome){.bits = CVYI_HASH_START};
    for (int i = 0; i < c->n; i++) {
        const tensor_data *t = &c->t[i];
        const int64_t step = strided ? SPREAD : 1;
        double scale = 1e-30, worst = 0;
        if (t->info.role != CVY_OUTPUT) continue;
        float *all = malloc(4 * (size_t)t->room);
        const cvy_status st = cvyi_cuda_download(c->device, all, t->device, 4 * (size_t)t->room, c->stream);
        if (st) return free(all), st;
        for (int64_t k = 0; k < t->elements; k++) {
            const double e = c->expected[i][k], y = all[GUARD + k * step];
            if (isfinite(e) && fabs(e) > scale) scale = fabs(e);
            const double error = isnan(e) && isnan(y) ? 0 : e == y ? 0 : fabs(e - y);
            if (!(error <= worst)) worst = error; /* a NaN counts as worst */
            out->bits = cvyi_hash(out->bits, &all[GUARD + k * step], 4);
        }
        for (int64_t k = 0; k < t->room; k++) {
            const bool inside = k >= GUARD && k < GUARD + t->elements * step && (k - GUARD) % step == 0;
            if (!inside && !isnan(all[k])) out->bad_guard++;
        }
        free(all);
        if (!(worst / scale <= out->worst)) out->worst = worst / scale;
    }
    return CVY_OK;
}

static cvy_status run_once(bench_case *c, const cvy_plan *plan, CUdeviceptr work, bool strided, outcome *out)
{
    cvy_buffer buffers[MAX_TENSORS];
    cvy_status st;

    TRY(upload(c, strided, buffers));
    TRY(cvy_plan_run(plan, buffers, c->n, (void *)(uintptr_t)work, 0, c->stream));
    TRY(compare(c, strided, out));
fail:
    return st;
}

/* ---- CUDA graphs: the few calls that the engine itself never makes ---- */

typedef struct graph_calls {
    CUresult (*begin)(CUstream, int);
    CUresult (*end)(CUstream, void **);
    CUresult (*instantiate)(void **, void *, unsigned long long);
    CUresult (*launch)(void *, CUstream);
    CUresult (*destroy)(void *);
    CUresult (*destroy_exec)(void *);
} graph_calls;

static bool find_graph_calls(graph_calls *c)
{
    static const char *const names[] = {
        "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",           "cuGraphDestroy",     "cuGraphExecDestroy"};
    void *slots[] = {&c->begin, &c->end, &c->instantiate, &c->launch, &c->destroy, &c->destroy_exec};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    for (int i = 0; i < COUNT_OF(names); i++) {
        void *address = library ? dlsym(library, names[i]) : NULL;
        if (!address) return false;
        memcpy(slots[i], &address, sizeof address);
    }
    return true;
}

/* The same as run_once, through a captured graph that is launched twice. */
static cvy_status run_captured(bench_case *c, const cvy_plan *plan, CUdeviceptr work, outcome *out)
{
    graph_calls calls;
    cvy_buffer buffers[MAX_TENSORS];
    void *graph = NULL, *exec = NULL;
    cvy_status st;

    if (!find_graph_calls(&calls)) return cvyi_fail(CVY_FAILED, "no calls for CUDA graphs");
    TRY(upload(c, false, buffers));
    if (calls.begin(c->stream, 1)) return cvyi_fail(CVY_FAILED, "capture does not begin");
    st = cvy_plan_run(plan, buffers, c->n, (void *)(uintptr_t)work, 0, c->stream);
    if (calls.end(c->stream, &graph) || st) return st ? st : cvyi_fail(CVY_FAILED, "capture does not end");
    if (calls.instantiate(&exec, graph, 0) || calls.launch(exec, c->stream) || calls.launch(exec, c->stream))
        return cvyi_fail(CVY_FAILED, "the captured graph does not run");
    TRY(compare(c, false, out));
fail:
    if (exec) calls.destroy_exec(exec);
    if (graph) calls.destroy(graph);
    return st;
}

static int check_plan(bench_case *c, const cvy_options *options, const char *how, double *worst)
{
    const double bound = c->bound;
    cvy_plan *plan = NULL;
    CUdeviceptr work = 0;
    outcome first = {0}, again = {0}, captured = {0}, strided = {0};
    int bad = 0;

    if (cvy_plan_create(c->graph, options, &plan) != CVY_OK) return fail_here(c, how);
    if (cvyi_cuda_alloc(c->device, cvy_plan_workspace(plan), &work) != CVY_OK) bad = fail_here(c, how);
    if (!bad && (run_once(c, plan, work, false, &first) || run_once(c, plan, work, false, &again)))
        bad = fail_here(c, how);
    if (!bad && run_captured(c, plan, work, &captured) != CVY_OK) bad = fail_here(c, how);
    if (!bad && run_once(c, plan, work, true, &strided) != CVY_OK) bad = fail_here(c, how);
    if (!bad && (!(first.worst <= bound) || !(strided.worst <= bound) || first.bits != again.bits ||
                 first.bits != captured.bits || first.bad_guard || strided.bad_guard)) {
        printf("FAILED  %s\n        %s: error %.2e, strided %.2e, repeat %s, guards %d %d\n", c->text, how,
               first.worst, strided.worst,
               first.bits == again.bits && first.bits == captured.bits ? "same" : "differs", first.bad_guard,
               strided.bad_guard);
        bad = 1;
    }
    if (first.worst > *worst) *worst = first.worst;
    cvyi_cuda_free(c->device, work);
    cvy_plan_free(plan);
    return bad;
}

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

static int time_plan(bench_case *c)
{
    enum { RUNS = 21 };
    const cvy_options options = {.size = sizeof options, .device = CVY_CUDA};
    cvy_plan *plan = NULL;
    CUdeviceptr work = 0;
    cuda_timer timer = {0};
    cvy_buffer buffers[MAX_TENSORS];
    double ms[RUNS];
    cvy_cost cost;
    cvy_status st;

    TRY(cvy_plan_create(c->graph, &options, &plan));
    TRY(cvyi_cuda_alloc(c->device, cvy_plan_workspace(plan), &work));
    TRY(cvyi_cuda_timer_create(c->device, &timer));
    TRY(upload(c, false, buffers));
    TRY(cvy_plan_run(plan, buffers, c->n, (void *)(uintptr_t)work, 0, c->stream));
    for (int i = 0; i < RUNS; i++) {
        TRY(cvyi_cuda_timer_start(c->device, &timer, c->stream));
        TRY(cvy_plan_run(plan, buffers, c->n, (void *)(uintptr_t)work, CVY_KEEP_PREPARED, c->stream));
        TRY(cvyi_cuda_timer_stop(c->device, &timer, c->stream, &ms[i]));
    }
    qsort(ms, RUNS, sizeof *ms, by_value);
    TRY(cvy_plan_cost(plan, &cost));
    printf("%8.3f ms (min %.3f)  predicted %.3f  floor %.3f  %.1f TFLOP/s  %s\n", ms[RUNS / 2] * 1e3, ms[0] * 1e3,
           cost.seconds * 1e3, cost.floor * 1e3, cost.flops / ms[RUNS / 2] * 1e-12, c->text);
fail:
    if (st) fail_here(c, "timing");
    cvyi_cuda_timer_free(c->device, &timer);
    cvyi_cuda_free(c->device, work);
    cvy_plan_free(plan);
    return st != CVY_OK;
}

static int take(bench_case *c, bool timing)
{
    static const struct {
        const char *how;
        cvy_options options;
    } ways[] = {
        {"planned", {.size = sizeof(cvy_options), .device = CVY_CUDA}},
        {"one by one", {.size = sizeof(cvy_options), .device = CVY_CUDA, .fuse = CVY_OFF}},
        {"random 1", {.size = sizeof(cvy_options), .device = CVY_CUDA, .seed = 1}},
        {"random 2", {.size = sizeof(cvy_options), .device = CVY_CUDA, .seed = 2}},
    };
    double worst = 0;
    int bad = 0;

    if (cvy_graph_parse(c->text, &c->graph) || make_tensors(c)) return fail_here(c, "set-up");
    if (timing) return time_plan(c);
    if (make_reference(c)) return fail_here(c, "reference");
    for (int i = 0; i < COUNT_OF(ways); i++) bad |= check_plan(c, &ways[i].options, ways[i].how, &worst);
    if (!bad) printf("ok %.1e  %s\n", worst, c->text);
    return bad;
}

static void clean(bench_case *c)
{
    for (int i = 0; i < c->n; i++) {
        free(c->t[i].host);
        free(c->expected[i]);
        cvyi_cuda_free(c->device, c->t[i].device);
    }
    cvy_graph_free(c->graph);
}

/* ---- random chains ---- */

static const char *const fragments[] = {
    "relu",
    "tanh",
    "sigmoid",
    "gelu",
    "silu",
    "hardswish",
    "mul(0.7)",
    "add(0.3)",
    "abs",
    "clamp(-0.9,0.8)",
    "square",
    "mish",
    "softplus",
    "group_norm(1)",
    "instance_norm()",
    "batch_norm(training=True)",
    "batch_norm()",
    "max_pool2d(2)",
    "avg_pool2d(2,1)",
    "max_pool2d(3,2,1)",
    "mean(1,keepdim=True)",
    "sum((2,3),keepdim=True)",
    "max(3,keepdim=True)",
    "logsumexp(1,keepdim=True)",
    "softmax(1)",
    "log_softmax(3)",
    "softmax(2)",
    "conv2d(6,3,padding=1)",
    "conv2d(33,1)",
    "conv2d(17,2,stride=2)",
    "conv2d(70,3,padding=2,dilation=2)",
    "conv_transpose2d(9,3,stride=2)",
    "linear(7)",
    "linear(40)",
    "mean((0,2),keepdim=True)",
    "reshape(-1,4,2,3)",
    "conv2d(8,3,groups=2,padding=1)",
    "group_norm(2)",
    "adaptive_avg_pool2d(1)",
    "add(@a)",
    "mul(@a)",
    "sub(@b)",
    "maximum(@b)",
};

/* Grows by fragments that fit; one that does not is left out again. */
static void random_chain(char text_[2000])
{
    const int length = 2 + (int)(random_value() * 9);

    sprintf(text_, "x[%d,%d,%d,%d]", 1 + (int)(random_value() * 3), 2 * (1 + (int)(random_value() * 5)),
            3 + (int)(random_value() * 12), 3 + (int)(random_value() * 12));
    for (int i = 0; i < length; i++) {
        const size_t before = strlen(text_);
        cvy_graph *g = NULL;
        sprintf(text_ + before, " | %s%s", fragments[(int)(random_value() * COUNT_OF(fragments))],
                i == 0   ? " @a"
                : i == 2 ? " @b"
                         : "");
        if (cvy_graph_parse(text_, &g)) text_[before] = 0;
        cvy_graph_free(g);
    }
}

static int check_random(int count, cuda_device *device, CUstream stream)
{
    char text_[2000];
    int bad = 0;

    for (int i = 0; i < count; i++) {
        bench_case c = {.text = text_, .device = device, .stream = stream, .bound = 2e-4};
        random_chain(text_);
        if (!strchr(text_, '|')) continue;
        bad += take(&c, false) != 0;
        clean(&c);
        fflush(stdout);
    }
    return bad;
}

int main(int argc, char **argv)
{
    const bool timing = argc > 1 && strcmp(argv[1], "-t") == 0, random = argc > 3 && strcmp(argv[1], "-r") == 0;
    const char *const *list = argc > 1 + timing ? (const char *const *)argv + 1 + timing : chains;
    const int n = random ? atoi(argv[2]) : argc > 1 + timing ? argc - 1 - timing : COUNT_OF(chains);
    cuda_device *device = NULL;
    CUstream stream = NULL;
    int bad = 0;

    if (cvyi_cuda_open(0, &device) || cvyi_cuda_enter(device, NULL) || cvyi_cuda_stream_create(device, &stream)) {
        printf("%s\n", cvy_last_error());
        return 2;
    }
    if (random) {
        seed = (uint32_t)atoi(argv[3]);
        bad = check_random(n, device, stream);
    }
    for (int i = 0; i < n && !random; i++) {
        bench_case c = {.text = list[i], .device = device, .stream = stream, .bound = 4e-6};
        bad += take(&c, timing) != 0;
        clean(&c);
        fflush(stdout);
    }
    printf("%d chains, %d failed\n", n, bad);
    cvyi_cuda_stream_free(device, stream);
    cvyi_cuda_leave(device);
    cvyi_cuda_close(device);
    return bad != 0;
}
