/* test_cuda_fault.c - each call of the driver, of NVRTC and of the allocator fails in turn: the message names the
 * call, nothing stays alive, the context stack is as it was, and afterwards everything still works. */
#include <pthread.h>
#include <sys/wait.h>
#include "../support/fixture.h"

static standin *gpu, *rtc;

static cvy_status use_memory(cuda_device *d, CUstream stream)
{
    unsigned char before[100], after[100];
    CUdeviceptr memory = 0;
    cvy_status st;

    for (int i = 0; i < 100; i++) before[i] = (unsigned char)i;
    TRY(cvyi_cuda_alloc(d, sizeof before, &memory));
    TRY(cvyi_cuda_upload(d, memory, before, sizeof before, stream));
    TRY(cvyi_cuda_download(d, after, memory, sizeof after, stream));
    if (memcmp(before, after, sizeof before) != 0) st = cvyi_fail(CVY_FAILED, "memory came back changed");
fail:
    cvyi_cuda_free(d, memory);
    return st;
}

static cvy_status use_timer(cuda_device *d, CUstream stream)
{
    cuda_timer timer = {0};
    double seconds = 0;
    cvy_status st;

    TRY(cvyi_cuda_timer_create(d, &timer));
    TRY(cvyi_cuda_timer_start(d, &timer, stream));
    TRY(cvyi_cuda_timer_stop(d, &timer, stream, &seconds));
    CHECK(seconds == 1e-3, "%g s", seconds);
fail:
    cvyi_cuda_timer_free(d, &timer);
    return st;
}

static cvy_status use_kernel(cuda_device *d, const jit_code *code, CUstream stream)
{
    const cuda_launch shape = {.grid = {1, 1, 1},
                               .block = {128, 1, 1},
                               .cluster = {1, 1, 1},
                               .dynamic_shared = 65536,
                               .cooperative = true};
    cuda_kernel kernel = {0};
    void *arguments[1] = {NULL};
    int n = 0;
    cvy_status st;

    TRY(cvyi_cuda_load(d, code, "demo", 65536, &kernel));
    TRY(cvyi_cuda_blocks_per_sm(d, &kernel, &shape, &n));
    TRY(cvyi_cuda_launch(d, &kernel, &shape, stream, arguments));
fail:
    cvyi_cuda_unload(d, &kernel);
    return st;
}

/* Everything once: device, compilation, module, launch, memory, stream, timer. */
static cvy_status scenario(void)
{
    static const char *const options[] = {"-DX=1"};
    const jit_request request = {
        .entry = "demo", .source = "pointwise.cu", .options = options, .n_options = 1, .major = 9};
    cuda_device *d = NULL;
    jit_code code = {0};
    CUstream stream = NULL;
    bool entered = false;
    cvy_status st;

    TRY(cvyi_cuda_open(0, &d));
    TRY(cvyi_jit_compile(&request, &code));
    TRY(cvyi_cuda_enter(d, NULL));
    entered = true;
    TRY(cvyi_cuda_stream_create(d, &stream));
    cvyi_cuda_leave(d);
    entered = false;
    TRY(cvyi_cuda_enter(d, stream));
    entered = true;
    TRY(use_kernel(d, &code, stream));
    TRY(use_memory(d, stream));
    TRY(use_timer(d, stream));
fail:
    if (d) cvyi_cuda_stream_free(d, stream);
    if (entered) cvyi_cuda_leave(d);
    cvyi_jit_free(&code);
    cvyi_cuda_close(d);
    return st;
}

static void check_nothing_left(const char *when, int n, int64_t live)
{
    CHECK(gpu->live == 0, "%s %d: %d driver objects", when, n, gpu->live);
    CHECK(rtc->live == 0, "%s %d: %d programs", when, n, rtc->live);
    CHECK(gpu->depth == 0, "%s %d: %d contexts pushed", when, n, gpu->depth);
    CHECK(cvyi_alloc_live() == live, "%s %d: %lld allocations", when, n, (long long)(cvyi_alloc_live() - live));
}

/* Makes call number 0, 1, ... of one library fail, until a run gets through without reaching it. */
static int fail_each(standin *library)
{
    const int64_t live = cvyi_alloc_live();
    int n;

    for (n = 0;; n++) {
        cvy_status st;
        clear_cache(); /* or only the first run would compile */
        library->calls = 0;
        library->fail_at = n;
        library->failed = NULL;
        st = scenario();
        library->fail_at = -1;
        check_nothing_left(library->failed ? library->failed : "run", n, live);
        if (!library->failed) {
            CHECK(st == CVY_OK, "%s", cvy_last_error());
            return n;
        }
        if (library->freed) continue;
        CHECK(st != CVY_OK, "call %d (%s) failed, and nobody said so", n, library->failed);
        CHECK(strstr(cvy_last_error(), library->failed), "call %d (%s): \"%s\"", n, library->failed,
              cvy_last_error());
    }
}

static void fail_each_allocation(void)
{
    const int64_t live = cvyi_alloc_live();

    for (int n = 0; n < 100; n++) {
        const int compiles = rtc->compiles;
        clear_cache();
        cvyi_alloc_fail_after(n);
        const cvy_status st = scenario();
        cvyi_alloc_fail_after(-1);
        check_nothing_left("allocation", n, live);
        CHECK(st == CVY_OK || st == CVY_NO_MEMORY, "allocation %d: status %d", n, st);
        if (st == CVY_OK && rtc->compiles > compiles && n > 20) return;
    }
}

static void refuses(void)
{
    const jit_request bad = {.entry = "demo", .source = "pointwise.cu", .epilogue = "BAD_SOURCE", .major = 9};
    const jit_request unknown = {.entry = "demo", .source = "pointwise.cu", .major = 13};
    const jit_request none = {.entry = "demo", .source = "nothing.cu", .major = 9};
    cuda_device *d = NULL;
    jit_code code;

    CHECK(cvyi_jit_compile(&bad, &code) == CVY_FAILED, "bad source");
    CHECK(strstr(cvy_last_error(), "\nepilogue.cuh(4): error: BAD_SOURCE"), "%s", cvy_last_error());
    CHECK(cvyi_jit_compile(&unknown, &code) == CVY_NO_DEVICE && strstr(cvy_last_error(), "sm_130"), "%s",
          cvy_last_error());
    CHECK(cvyi_jit_compile(&none, &code) == CVY_FAILED && strstr(cvy_last_error(), "nothing.cu"), "%s",
          cvy_last_error());
    CHECK(cvyi_cuda_open(1, &d) == CVY_NO_DEVICE && !d, "device 1");
    CHECK(strstr(cvy_last_error(), "there is no device 1"), "%s", cvy_last_error());
    CHECK(cvyi_cuda_open(0, &d) == CVY_OK, "%s", cvy_last_error());
    CHECK(cvyi_cuda_enter(d, (CUstream)gpu) == CVY_INVALID, "a stream of another context");
    CHECK(gpu->depth == 0, "depth %d", gpu->depth);
    cvyi_cuda_close(d);
}

static void refuses_forked_child(void)
{
    int status = -1;
    const pid_t child = fork();

    if (child == 0) {
        cuda_device *d = NULL;
        const bool refused = cvyi_cuda_open(0, &d) == CVY_FAILED && strstr(cvy_last_error(), "forked");
        _exit(refused ? 0 : 1);
    }
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}

static void *thread_run(void *result)
{
    *(cvy_status *)result = scenario();
    return NULL;
}

/* The counters of the stand-in are not atomic, so one thread at a time: what is shown is that none needs a context.
 */
static void works_in_another_thread(void)
{
    pthread_t thread;
    cvy_status st = CVY_FAILED;

    pthread_create(&thread, NULL, thread_run, &st);
    pthread_join(thread, NULL);
    CHECK(st == CVY_OK, "status %d", st);
}

static void says_what_was_looked_for(void)
{
    static const char *const names[] = {"libnothing.so.1", NULL};
    void *library = NULL;

    setenv("CUDA_PATH", "/no/toolkit", 1);
    CHECK(cvyi_cuda_add_dir("/no/wheel") == CVY_OK && cvyi_cuda_add_dir("/no/wheel") == CVY_OK, "add");
    CHECK(cvyi_cuda_add_dir("") == CVY_INVALID, "empty directory");
    CHECK(cvyi_library_open("cuda", "CVY_X", NULL, names, &library) == CVY_NO_DEVICE, "found");
    CHECK(strstr(cvy_last_error(), "libnothing.so.1 not found; looked in: libraries already loaded, /no/wheel, the "
                                   "loader's search, /no/toolkit/lib64"),
          "%s", cvy_last_error());
    CHECK(cvyi_library_open("cuda", "CVY_X", "/no/libcuda.so.1", names, &library) == CVY_NO_DEVICE, "found");
    CHECK(strstr(cvy_last_error(), "CVY_X=/no/libcuda.so.1 cannot be opened"), "%s", cvy_last_error());
}

int main(int argc, char **argv)
{
    (void)argc;
    use_cache();
    gpu = use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    rtc = use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    fail_each(gpu); /* with the loading of the driver, which happens once */
    fail_each(rtc);
    CHECK(fail_each(gpu) > 40, "few calls of the driver");
    CHECK(fail_each(rtc) >= 8, "few calls of NVRTC");
    fail_each_allocation();
    refuses();
    refuses_forked_child();
    works_in_another_thread();
    says_what_was_looked_for();
    return finish("cuda_fault");
}
