/* test_cuda_launches.c - cvy_plan_launches(): as many launches as a run makes, with and without copies of strided
 * tensors; refusals; nothing lost where memory runs out. What the text says is compared with launches argument by
 * argument in test/torch/test_eject.py. */
#include "../support/fixture.h"

static standin *gpu;
static const cvy_options on_gpu = {.size = sizeof on_gpu, .device = CVY_CUDA};
static const cvy_options on_cpu = {.size = sizeof on_cpu, .device = CVY_CPU};

enum { MAX_TENSORS = 8, ANYWHERE = 4096 };

static int count(const char *haystack, const char *needle)
{
    int n = 0;
    for (const char *at = haystack; (at = strstr(at, needle)); at++) n++;
    return n;
}

static char *launches_of(const cvy_plan *p, const cvy_buffer *buffers, int n)
{
    size_t needed = 0;
    char *words;

    CHECK(cvy_plan_launches(p, buffers, n, NULL, 0, &needed) == CVY_OK, "%s", cvy_last_error());
    words = calloc(1, needed + 1);
    if (!words) exit(1);
    CHECK(cvy_plan_launches(p, buffers, n, words, needed, NULL) == CVY_OK, "%s", cvy_last_error());
    CHECK(strlen(words) + 1 == needed, "%zu characters, %zu told", strlen(words), needed);
    return words;
}

/* The stand-in looks at no address: any will do. */
static void compare(const char *chain, const int64_t *strides)
{
    static _Alignas(CVY_ALIGN) char anywhere[ANYWHERE];
    cvy_buffer buffers[MAX_TENSORS] = {{anywhere, strides}};
    cvy_graph *g = NULL;
    cvy_plan *p = NULL;
    char *words;
    int n, before;

    CHECK(!cvy_graph_parse(chain, &g) && !cvy_plan_create(g, &on_gpu, &p), "%s: %s", chain, cvy_last_error());
    n = cvy_graph_tensors(g);
    for (int i = 1; i < n; i++) buffers[i].data = anywhere;
    words = launches_of(p, buffers, n);
    before = gpu->launches;
    CHECK(cvy_plan_run(p, buffers, n, anywhere, cvy_plan_workspace(p), 0, NULL) == CVY_OK, "%s", cvy_last_error());
    CHECK(count(words, "\"entry\"") == gpu->launches - before, "%s: %d launches, %d described", chain,
          gpu->launches - before, count(words, "\"entry\""));
    CHECK(count(words, "_strided\"") > 0 || !strides || strstr(words, "\"tc\""), "%s: dense code", chain);
    before = gpu->launches;
    CHECK(cvy_plan_run(p, buffers, n, anywhere, cvy_plan_workspace(p), CVY_KEEP_PREPARED, NULL) == CVY_OK, "%s",
          cvy_last_error());
    CHECK(count(words, "\"prepared\": false") == gpu->launches - before, "%s: prepared", chain);
    CHECK(strstr(words, "\"common.cuh\": \"// common.cuh"), "the texts are not there");
    free(words);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

static void refuses_strides(void)
{
    const cvy_options dense = {.size = sizeof dense, .device = CVY_CUDA, .strided = CVY_OFF};
    const cvy_buffer buffers[2] = {{NULL, (const int64_t[]){1, 2}}, {NULL, NULL}};
    cvy_graph *g = NULL;
    cvy_plan *p = NULL;

    CHECK(!cvy_graph_parse("x[2,3] | relu", &g) && !cvy_plan_create(g, &dense, &p), "%s", cvy_last_error());
    CHECK(cvy_plan_launches(p, buffers, 2, NULL, 0, NULL) == CVY_INVALID, "strides that run() refuses");
    CHECK(strstr(cvy_last_error(), "launches: buffer 0 ('x') is strided"), "%s", cvy_last_error());
    cvy_plan_free(p);
    cvy_graph_free(g);
}

static void refuses(void)
{
    const cvy_buffer buffers[MAX_TENSORS] = {{NULL, NULL}};
    cvy_graph *g = NULL;
    cvy_plan *cpu = NULL, *p = NULL;

    CHECK(!cvy_graph_parse("x[2,3] | relu", &g), "%s", cvy_last_error());
    CHECK(!cvy_plan_create(g, &on_cpu, &cpu) && !cvy_plan_create(g, &on_gpu, &p), "%s", cvy_last_error());
    CHECK(cvy_plan_launches(NULL, buffers, 2, NULL, 0, NULL) == CVY_INVALID, "no plan");
    CHECK(cvy_plan_launches(p, buffers, 3, NULL, 0, NULL) == CVY_INVALID, "three buffers");
    CHECK(cvy_plan_launches(p, NULL, 2, NULL, 0, NULL) == CVY_INVALID, "no buffers");
    CHECK(cvy_plan_launches(cpu, buffers, 2, NULL, 0, NULL) == CVY_UNSUPPORTED, "a plan of the CPU");
    CHECK(strstr(cvy_last_error(), "cpu"), "%s", cvy_last_error());
    for (int n = 0; n < 3; n++) {
        const int64_t live = cvyi_alloc_live();
        cvyi_alloc_fail_after(n);
        CHECK(cvy_plan_launches(p, buffers, 2, NULL, 0, NULL) == CVY_NO_MEMORY, "allocation %d", n);
        cvyi_alloc_fail_after(-1);
        CHECK(cvyi_alloc_live() == live, "allocation %d: something is left", n);
    }
    cvy_plan_free(cpu);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

int main(int argc, char **argv)
{
    (void)argc;
    use_cache();
    gpu = use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    compare("x[4,8,12,16] | conv2d(64,3) | group_norm(16) | mul(s[64,1,1]) | max_pool2d(4) | clamp(0,1)", NULL);
    compare("x[4,8,12,16] | conv2d(64,3) | relu", (const int64_t[]){1536, 1, 128, 8});
    compare("x[4,6,5,7] | conv_transpose2d(9,3) | mean((2,3))", NULL);
    compare("x[4,6] | flatten(0) | relu", (const int64_t[]){1, 4});
    compare("x[4,6] | relu | softmax(1)", (const int64_t[]){1, 4});
    refuses();
    refuses_strides();
    return finish("cuda_launches");
}
