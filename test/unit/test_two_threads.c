/* test_two_threads.c - two threads plan and run different chains at once, and read plans that they share.
 *
 *   test_two_threads [TIMES]    of both threads together: 10,000 under the thread sanitizer, 600 without
 *
 * Every result has the bits of a run that had the process to itself. The thread sanitizer sees what bits do not
 * show: writes to anything that the two share. */
#include <pthread.h>
#include "../support/fixture.h"

#if defined(__SANITIZE_THREAD__)
enum { TIMES = 10000 };
#else
enum { TIMES = 600 };
#endif

enum { THREADS = 2, CHAINS = 12, MOST_TENSORS = 12, ASK_EVERY = 100 };

/* Thread t begins at chain t * CHAINS / THREADS: the two are never at the same one. */
static const char *const chains[CHAINS] = {
    "x[2,4,9,9] | conv2d(8,3) | group_norm(2) | mul(scale[8,1,1]) | max_pool2d(2) | clamp(0,1)",
    "x[2,4,9,9] | conv2d(8,3) @c | group_norm(2) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[2,4,9,9] | conv2d(8,3) | add(bias[8,1,1]) | mul(scale[8,1,1]) | sigmoid | group_norm(4)",
    "x[2,16,8,8] | conv2d(16,3,padding=1) | batch_norm | relu | conv2d(16,1) | silu",
    "x[2,8,10,10] | conv2d(8,3,padding=1,groups=8) | relu | softmax(1)",
    "x[2,6,5,5] | conv_transpose2d(4,2,stride=2) | instance_norm | gelu",
    "x[3,24] | linear(16) | layer_norm(16) | gelu | linear(8) | softmax(1)",
    "x[2,3,8] | matmul(w[8,5]) | tanh | sum(1)",
    "x[4,8,6,6] | max_pool2d(2) | adaptive_avg_pool2d(1) | flatten(1) | linear(3)",
    "x[2,4,40] | conv1d(6,5,padding=2) | leaky_relu | mean(2)",
    "x[2,2,4,6,6] | conv3d(4,3,padding=1) | elu | mean((2,3,4))",
    "x[5,7] | add(y[7]) | exp | mul(0.5) | reshape(7,5) | log_softmax(1)",
};

/* ---- one chain ---- */

typedef struct trial {
    cvy_graph *graph;
    cvy_plan *plan;
    cvy_buffer buffers[MOST_TENSORS];
    int n_buffers, out;
    size_t bytes; /* of the output */
    void *workspace;
} trial;

static cvy_status open_trial(const char *chain, int threads, trial *t)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CPU, .threads = threads};
    cvy_status st;
    uint32_t seed = 1;

    *t = (trial){0};
    TRY(cvy_graph_parse(chain, &t->graph));
    TRY(cvy_plan_create(t->graph, &options, &t->plan));
    t->n_buffers = cvy_graph_tensors(t->graph);
    t->workspace = aligned_alloc(CVY_ALIGN, cvy_plan_workspace(t->plan) + CVY_ALIGN);
    for (int i = 0; i < t->n_buffers && i < MOST_TENSORS; i++) {
        cvy_tensor tensor;
        size_t n = 1;
        TRY(cvy_graph_tensor(t->graph, i, &tensor));
        for (int d = 0; d < tensor.rank; d++) n *= (size_t)tensor.dims[d];
        t->buffers[i].data = calloc(n, sizeof(float));
        if (tensor.role == CVY_OUTPUT) t->out = i, t->bytes = n * sizeof(float);
        for (size_t k = 0; k < n && tensor.role != CVY_OUTPUT; k++)
            ((float *)t->buffers[i].data)[k] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) * 0x1p-24f;
    }
    TRY(cvy_plan_run(t->plan, t->buffers, t->n_buffers, t->workspace, cvy_plan_workspace(t->plan), 0, NULL));
fail:
    return st;
}

static void close_trial(trial *t)
{
    for (int i = 0; i < t->n_buffers; i++) free(t->buffers[i].data);
    free(t->workspace);
    cvy_plan_free(t->plan);
    cvy_graph_free(t->graph);
}

/* ---- the threads ---- */

typedef struct shared {
    trial alone[CHAINS];  /* run before there were threads */
    cvy_plan *gpu;        /* for the stand-in; both threads ask it */
    size_t printed, told; /* bytes that it prints */
    int times;            /* of each thread */
} shared;

typedef struct worker {
    const shared *all;
    int number, failed;
    const char *where; /* the chain that failed last */
    pthread_t thread;
} worker;

static bool same_as_alone(const char *chain, const trial *alone, int threads)
{
    trial t;
    const bool same = !open_trial(chain, threads, &t) && t.bytes == alone->bytes &&
                      !memcmp(t.buffers[t.out].data, alone->buffers[alone->out].data, t.bytes);

    close_trial(&t);
    return same;
}

/* Both threads read plans that they share, and run one of them, each in a workspace of its own. */
static bool shares(const shared *all, const trial *alone)
{
    trial own;
    size_t printed = 0, told = 0;
    bool same = !cvy_plan_print(all->gpu, NULL, 0, &printed) && !cvy_plan_why(all->gpu, NULL, 0, &told) &&
                printed == all->printed && told == all->told && !cvy_plan_why(alone->plan, NULL, 0, NULL);

    same = same && !open_trial(chains[0], 1, &own);
    if (same) {
        memset(own.buffers[own.out].data, 0, own.bytes);
        same = !cvy_plan_run(all->alone[0].plan, own.buffers, own.n_buffers, own.workspace,
                             cvy_plan_workspace(all->alone[0].plan), 0, NULL) &&
               !memcmp(own.buffers[own.out].data, all->alone[0].buffers[own.out].data, own.bytes);
        close_trial(&own);
    }
    return same;
}

static void *work(void *data)
{
    worker *w = data;

    for (int i = 0; i < w->all->times; i++) {
        const int c = (i + w->number * CHAINS / THREADS) % CHAINS;
        const bool good = same_as_alone(chains[c], &w->all->alone[c], 1 + i / CHAINS % 2) &&
                          (i % ASK_EVERY || shares(w->all, &w->all->alone[c]));
        if (!good) w->failed++, w->where = chains[c];
    }
    return NULL;
}

/* A GPU's plan of more convolutions, no two alike, than an engine would keep in mind. */
static cvy_plan *many_convolutions(void)
{
    char chain[2048];
    int at = snprintf(chain, sizeof chain, "x[8,16,40,40]");

    for (int i = 1; i <= 30; i++)
        at += snprintf(chain + at, sizeof chain - (size_t)at, " | conv2d(%d,3,padding=1) | relu",
                       16 + 8 * (i % 15) + i);
    return chain_plan(chain, CVY_TF32, 0);
}

int main(int argc, char **argv)
{
    static shared all;
    worker workers[THREADS];

    use_cache();
    use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB")->fail_at = -1;
    use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB")->fail_at = -1;
    all.times = (argc > 1 ? atoi(argv[1]) : TIMES) / THREADS;
    all.gpu = many_convolutions();
    CHECK(!cvy_plan_print(all.gpu, NULL, 0, &all.printed) && !cvy_plan_why(all.gpu, NULL, 0, &all.told), "%s",
          cvy_last_error());
    for (int i = 0; i < CHAINS; i++)
        CHECK(!open_trial(chains[i], 1, &all.alone[i]), "%s: %s", chains[i], cvy_last_error());
    if (failures) return finish("two_threads");
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.all = &all, .number = i};
        CHECK(!pthread_create(&workers[i].thread, NULL, work, &workers[i]), "no thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        CHECK(!workers[i].failed, "thread %d: %d of %d failed, the last was %s", i, workers[i].failed, all.times,
              workers[i].where);
    }
    for (int i = 0; i < CHAINS; i++) close_trial(&all.alone[i]);
    cvy_plan_free(all.gpu);
    return finish("two_threads");
}
