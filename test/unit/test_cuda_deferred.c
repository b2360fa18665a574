/* test_cuda_deferred.c - plans whose kernels are compiled together: what several need once, what is loaded not at
 * all, and a failure leaves them as they were. */
#include "../support/fixture.h"
#include "../../src/cuda/exec.h"

static standin *gpu, *rtc;

enum { MANY = 4 };
static const cvy_options at_once = {.size = sizeof at_once, .device = CVY_CUDA, .strided = CVY_OFF};
static const cvy_options later = {.size = sizeof later, .device = CVY_CUDA, .strided = CVY_OFF, .deferred = CVY_ON};
static const char block[] = "x[2,8,12,13] | conv2d(64,3) | batch_norm | relu";

static cvy_plan *plan_of(const char *words, const cvy_options *options)
{
    cvy_graph *g = NULL;
    cvy_plan *p = NULL;

    CHECK(!cvy_graph_parse(words, &g) && !cvy_plan_create(g, options, &p), "%s", cvy_last_error());
    cvy_graph_free(g);
    return p;
}

static void free_all(cvy_plan **plans, int n)
{
    for (int i = 0; i < n; i++) cvy_plan_free(plans[i]);
}

/* Kernels compiled for one plan of the chain, with nothing in the cache. */
static int compiles_of(const cvy_options *options)
{
    const int before = rtc->compiles;

    clear_cache();
    cvy_plan_free(plan_of(block, options));
    return rtc->compiles - before;
}

static void compiles_once(void)
{
    const int one = compiles_of(&at_once);
    cvy_plan *plans[MANY], *again[MANY + 1];
    const int before = (clear_cache(), rtc->compiles);
    int objects;

    for (int i = 0; i < MANY; i++) again[i] = plans[i] = plan_of(block, &later);
    again[MANY] = plans[0]; /* a plan that is there twice */
    CHECK(rtc->compiles == before, "planning compiled %d kernels", rtc->compiles - before);
    CHECK(cvy_plans_compile(again, MANY + 1) == CVY_OK, "%s", cvy_last_error());
    CHECK(rtc->compiles == before + one, "%d plans compiled %d kernels, one needs %d", MANY, rtc->compiles - before,
          one);
    objects = gpu->live;
    clear_cache();
    cvy_plan *more = plan_of(block, &at_once);
    CHECK(rtc->compiles == before + one, "a loaded kernel was compiled again");
    CHECK(gpu->live - objects <= 1, "a loaded kernel was loaded again: %d objects", gpu->live - objects);
    free_all(plans, MANY);
    CHECK(gpu->live > 0, "kernels of a plan that lives were unloaded");
    cvy_plan_free(more);
    CHECK(gpu->live == 0, "%d objects are left", gpu->live);
}

static void refuses_before(void)
{
    cvy_plan *p = plan_of(block, &later), *none = NULL;
    cvy_prepared prepared;
    cvy_buffer buffers[8] = {{NULL, NULL}};

    CHECK(cvy_plan_workspace(p) == 0, "a workspace that is not known");
    CHECK(cvy_plan_prepared(p, &prepared) == CVY_INVALID && strstr(cvy_last_error(), "cvy_plans_compile"), "%s",
          cvy_last_error());
    CHECK(cvy_plan_measure(p) == CVY_INVALID && strstr(cvy_last_error(), "cvy_plans_compile"), "%s",
          cvy_last_error());
    cvy_memory memory = {.size = sizeof memory, .prepared = buffers, .workspace = buffers};
    CHECK(cvy_plan_run_in(p, buffers, 8, &memory, 0, NULL) == CVY_INVALID, "a plan without code ran");
    CHECK(cvy_plans_compile(&none, 1) == CVY_INVALID && strstr(cvy_last_error(), "plan 0 is NULL"), "%s",
          cvy_last_error());
    CHECK(cvy_plans_compile(NULL, 1) == CVY_INVALID && cvy_plans_compile(NULL, -1) == CVY_INVALID, "no list");
    CHECK(cvy_plans_compile(NULL, 0) == CVY_OK, "nothing to do: %s", cvy_last_error());
    CHECK(cvy_plans_compile(&p, 1) == CVY_OK && cvy_plan_prepared(p, &prepared) == CVY_OK, "%s", cvy_last_error());
    CHECK(cvy_plan_workspace(p) > 0 && prepared.bytes > 0, "the workspace");
    cvy_plan_free(p);
}

/* Each call in turn fails; then the same plans are compiled after all. */
static void fails_each(standin *library)
{
    for (int n = 0; n < 10000; n++) {
        cvy_plan *plans[2] = {plan_of(block, &later), plan_of("x[2,8,12,13] | conv2d(64,3) | tanh", &later)};
        cvy_status st;
        clear_cache();
        library->failed = NULL;
        library->calls = 0;
        library->fail_at = n;
        st = cvy_plans_compile(plans, 2);
        library->fail_at = -1;
        CHECK(st == CVY_OK || (library->failed && strstr(cvy_last_error(), library->failed)), "%s",
              cvy_last_error());
        CHECK((st == CVY_OK) == (cvy_plan_workspace(plans[0]) > 0), "call %d: %d", n, st);
        CHECK(cvy_plans_compile(plans, 2) == CVY_OK && cvy_plan_workspace(plans[1]) > 0, "call %d: %s", n,
              cvy_last_error());
        free_all(plans, 2);
        CHECK(gpu->live == 0 && rtc->live == 0 && gpu->depth == 0, "call %d: %d and %d objects", n, gpu->live,
              rtc->live);
        if (!library->failed) return;
    }
    CHECK(false, "no end");
}

/* Nobody needs code for strides that cannot come; and plans that wait are made again like others where blocks do
 * not fit on the device at once. */
static void strides_and_crowds(void)
{
    const cvy_options any = {.size = sizeof any, .device = CVY_CUDA};
    const int fewer = compiles_of(&at_once), more = compiles_of(&any);
    cvy_plan *p, *q;

    CHECK(fewer < more, "%d kernels, %d for any strides", fewer, more);
    gpu->crowded = 1;
    p = plan_of("x[2,8,12,13] | conv2d(64,3) | group_norm(16) | mul(s[64,1,1]) | max_pool2d(4)", &later);
    q = plan_of("x[2,8,12,13] | conv2d(64,3) | group_norm(16) | mul(s[64,1,1]) | max_pool2d(4)", &at_once);
    CHECK(cvy_plans_compile(&p, 1) == CVY_OK, "%s", cvy_last_error());
    CHECK(cvy_plan_workspace(p) == cvy_plan_workspace(q), "%zu and %zu bytes", cvy_plan_workspace(p),
          cvy_plan_workspace(q));
    gpu->crowded = 0;
    cvy_plan_free(p);
    cvy_plan_free(q);
}

/* Runs a plan on memory of the host, which is what the stand-in's is. */
static void run(const cvy_plan *p, void *stream, cvy_status expected)
{
    static _Alignas(CVY_ALIGN) char workspace[1 << 22];
    static _Alignas(CVY_ALIGN) float tensors[8][1 << 16];
    cvy_buffer buffers[8];

    for (int i = 0; i < p->n_tensors; i++) buffers[i] = (cvy_buffer){tensors[i], NULL};
    CHECK(cvy_plan_workspace(p) <= sizeof workspace && p->n_tensors <= 8, "%zu bytes", cvy_plan_workspace(p));
    CHECK(cvy_plan_run(p, buffers, p->n_tensors, workspace, sizeof workspace, 0, stream) == expected, "%s",
          cvy_last_error());
}

/* The same kernels on two devices are compiled once and loaded twice; each plan runs on its own device. */
static void two_devices(void)
{
    cvy_options on[2] = {later, later};
    cvy_plan *plans[2];
    int compiles, launches;

    gpu->devices = 2;
    gpu->loaded[0] = gpu->loaded[1] = gpu->launched[0] = gpu->launched[1] = 0;
    on[1].ordinal = 1;
    clear_cache();
    compiles = compiles_of(&at_once);
    gpu->loaded[0] = 0;
    clear_cache();
    const int before = rtc->compiles;
    for (int i = 0; i < 2; i++) plans[i] = plan_of(block, &on[i]);
    CHECK(cvy_plans_compile(plans, 2) == CVY_OK, "%s", cvy_last_error());
    CHECK(rtc->compiles - before == compiles, "%d compiled, one device needs %d", rtc->compiles - before, compiles);
    CHECK(gpu->loaded[0] == compiles && gpu->loaded[1] == compiles, "%d and %d loaded", gpu->loaded[0],
          gpu->loaded[1]);
    run(plans[0], NULL, CVY_OK);
    launches = gpu->launched[0];
    CHECK(launches > 0 && gpu->launched[1] == 0, "%d and %d launches", launches, gpu->launched[1]);
    cvy_plan_free(plans[0]);
    run(plans[1], NULL, CVY_OK);
    CHECK(gpu->launched[0] == launches && gpu->launched[1] == launches, "%d and %d launches", gpu->launched[0],
          gpu->launched[1]);
    CHECK(gpu->astray == 0, "%d launches of another device's module", gpu->astray);
    run(plans[1], plans, CVY_INVALID); /* a stream of the first device */
    cvy_plan_free(plans[1]);
    CHECK(gpu->live == 0 && gpu->depth == 0, "%d objects are left", gpu->live);
    gpu->devices = 0;
}

int main(int argc, char **argv)
{
    (void)argc;
    use_cache();
    gpu = use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    rtc = use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    compiles_once();
    refuses_before();
    fails_each(gpu);
    fails_each(rtc);
    strides_and_crowds();
    two_devices();
    return finish("cuda_deferred");
}
