/* test_growth.c - planning time and memory grow with the number of operators, not with its square.
 *
 * Graphs of several kinds, planned for every device (the GPU is a stand-in): four times the operators may ask for
 * at most five times the bytes of memory, temporary ones included; that shows tables of operators times passes, and
 * rounds over the whole graph for every rewrite. A large graph must be planned before an alarm ends the program: no
 * figure of speed, but a scan of all operators for each of them would not make it. 10,000 operators fit in 200 MB.
 * Beyond CVY_MAX_OPERATORS a graph is refused. */
#include <sys/resource.h>
#include <sys/wait.h>
#include "../support/fixture.h"

enum { SMALL = 250, LARGE = 4 * SMALL, SECONDS = 120, STAGES_MOST = 5 };
enum { OPERATORS = 10000, MEGABYTES = 200 }; /* what is promised */

typedef struct kind {
    const char *name;
    int64_t dims[4];
    int rank;
    const char *stages[STAGES_MOST]; /* applied in turn; %d: the number of the round */
} kind;

enum { FOLDED }; /* the first: its rewrites make the most nodes */
static const kind kinds[] = {
    {"folded", {2, 8, 8, 8}, 4, {"conv2d(8,3,padding=1)", "batch_norm"}},
    {"pointwise", {2, 8, 8, 8}, 4, {"relu", "mul(0.5)", "tanh", "sub(0.25)", "dropout(0.5)"}},
    {"convolutions", {2, 8, 8, 8}, 4, {"conv2d(8,3,padding=1)", "batch_norm", "relu", "mul(s%d[8,1,1])", "abs"}},
    {"norms", {2, 8, 8, 8}, 4, {"conv2d(8,3,padding=1)", "group_norm(2)", "relu", "max_pool2d(1)", "neg"}},
    {"products", {4, 16}, 2, {"linear(16)", "layer_norm(16)", "gelu", "add(p%d[16])", "matmul(w%d[16,16])"}},
    {"shapes", {2, 8, 8, 8}, 4, {"relu @v%d", "add(@v%d)", "softmax(1)", "flatten(2)", "reshape((2,8,8,8))"}},
    {"merged", {2, 8, 8, 8}, 4, {"mul(2)", "mul(0.5)", "add(1)", "clamp(0,4)", "clamp(0,3)"}},
};

static cvy_graph *build(const kind *k, int operators, int every)
{
    cvy_graph *g = NULL;
    cvy_value at = CVY_NONE;
    int stages = 0;

    CHECK(!cvy_graph_create(&g) && !cvy_graph_input(g, "x", CVY_FLOAT32, k->rank, k->dims, &at), "%s",
          cvy_last_error());
    while (stages < STAGES_MOST && k->stages[stages]) stages++;
    for (int i = 0; i < operators; i++) {
        char words[64];
        snprintf(words, sizeof words, k->stages[i % stages], i / stages);
        CHECK(!cvy_graph_chain(g, at, words, &at), "%s: %s", words, cvy_last_error());
        if (every && i % every == 0) CHECK(!cvy_graph_output(g, at), "%s", cvy_last_error());
    }
    return g;
}

/* Bytes that planning and printing ask for. */
static double bytes_of(const kind *k, cvy_device device, int operators, int every)
{
    const cvy_options options = {.size = sizeof options, .device = (int32_t)device, .threads = 2};
    cvy_graph *g = build(k, operators, every);
    const int64_t before = cvyi_alloc_bytes();
    cvy_plan *p = NULL;
    int64_t bytes;

    CHECK(!cvy_plan_create(g, &options, &p) && !cvy_plan_print(p, NULL, 0, NULL), "%s: %s", k->name,
          cvy_last_error());
    bytes = cvyi_alloc_bytes() - before;
    cvy_plan_free(p);
    cvy_graph_free(g);
    return (double)bytes;
}

static void grows_with_operators(void)
{
    for (int i = 0; i < (int)(sizeof kinds / sizeof *kinds); i++)
        for (int device = CVY_REF; device <= CVY_CUDA; device++)
            for (int every = 0; every <= 7; every += 7) {
                const double small = bytes_of(&kinds[i], (cvy_device)device, SMALL, every);
                const double large = bytes_of(&kinds[i], (cvy_device)device, LARGE, every);
                CHECK(large < 5 * small && large / LARGE < 100e3, "%s, device %d: %.3g MB, then %.3g MB",
                      kinds[i].name, device, small * 1e-6, large * 1e-6);
            }
}

static void large_graphs_are_planned(int operators)
{
    for (int i = 0; i < (int)(sizeof kinds / sizeof *kinds); i++)
        for (int device = CVY_REF; device <= CVY_CUDA; device++)
            bytes_of(&kinds[i], (cvy_device)device, operators, 0);
}

/* Resident at most, of a process that plans one graph; sanitizers need memory of their own. */
static void fits_in_memory(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    for (int device = CVY_REF; device <= CVY_CUDA; device++) {
        struct rusage used = {0};
        int status = -1;
        const pid_t child = fork();
        if (child == 0) {
            bytes_of(&kinds[FOLDED], (cvy_device)device, OPERATORS, 0);
            _exit(failures);
        }
        CHECK(wait4(child, &status, 0, &used) == child && status == 0, "device %d: status %d", device, status);
        CHECK(used.ru_maxrss < MEGABYTES * 1024, "device %d: %ld MB", device, used.ru_maxrss / 1024);
    }
#endif
}

static void too_large_is_refused(void)
{
    static const kind relu = {"relu", {1}, 1, {"relu", "relu", "relu", "relu", "relu"}};
    cvy_graph *g = build(&relu, CVY_MAX_OPERATORS + 1, 0);
    cvy_plan *p = NULL;

    CHECK(cvy_plan_create(g, NULL, &p) == CVY_UNSUPPORTED && !p, "it was planned");
    CHECK(!strcmp(cvy_last_error(), "the graph has 65537 operators; the limit is 65536"), "%s", cvy_last_error());
    cvy_graph_free(g);
}

/* test_growth [OPERATORS]: of the large graphs. */
int main(int argc, char **argv)
{
    use_cache();
    use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB")->fail_at = -1;
    use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB")->fail_at = -1;
    alarm(SECONDS);
    fits_in_memory();
    too_large_is_refused();
    grows_with_operators();
    large_graphs_are_planned(argc > 1 ? atoi(argv[1]) : 2500);
    CHECK(cvyi_alloc_live() == 0, "%lld allocations", (long long)cvyi_alloc_live());
    return finish("growth");
}
