/* test_cuda_compile.c - every kernel of representative plans, compiled by the real NVRTC for every architecture
 * that is supported (CONVOY_TEST_LONG: each for every one); no GPU is needed. With an argument: what has elements
 * of 16 bits. Fails on spilled registers. Skipped, and says so, where there is no NVRTC (CVY_NVRTC_LIB, a toolkit,
 * or the wheel nvidia-cuda-nvrtc in the virtual environment of the tests). */
#include <glob.h>
#include "../support/emulated.h"
#include "../support/fixture.h"
#include "../../src/cuda/exec.h"

static standin *steered;

static const char *const chains[] = {
    "x[4,8,20,22] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[4,8,20,22] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[4,8,400,400] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
    "x[2,8,7,9] | conv_transpose2d(20,3,stride=2,padding=1) | gelu | avg_pool2d(2)",
    "x[2,12,14,13] | conv2d(12,3,padding=1,groups=12) | mish | mean((2,3)) | softmax(1)",
    "x[900,300] | linear(1500) | gelu | layer_norm(1500) | log_softmax(1)",
    "x[900,1024] | add(r[900,1024]) | layer_norm(1024) | gelu",
    "x[9,1021] | sigmoid | rms_norm(1021) | mish",
    "x[4,64,126,126] | relu | group_norm(16) | gelu | mul(s[64,1,1])",
    "x[4,40001] | layer_norm(40001) | elu | softplus",
    "x[900,1024] | gelu | softmax(1) | mul(s[1024])",
    "x[4,63504] | softmax(1) | gelu",
    "x[4,1,33333] | mish | log_softmax(2) | elu",
    "x[40,33,19] | softmax(1) | tanh",
};

#define BLOCK_A "x[128,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)"
#define BLOCK_B                                                                                                    \
    "x[128,8,128,128] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)"
#define BLOCK_C "x[128,8,256,256] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)"

#define HALF_A(T)                                                                                                  \
    "x[128,8,128,128]" T " | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)"
#define HALF_B(T)                                                                                                  \
    "x[128,8,128,128]" T                                                                                           \
    " | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)"
#define HALF_C(T)                                                                                                  \
    "x[128,8,256,256]" T " | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)"

/* Both kinds of producers: through mma.sync and wgmma, with all tiles, and by multiply-adds. */
#define CONV   "x[4,8,20,22] | conv2d(64,3) | add(bias[64,1,1]) | relu"
#define WIDE   "x[400,64,20,22] | conv2d(256,3,dilation=2) | add(bias[256,1,1]) | gelu"
#define TAPS   "x[24,3,31,31] | conv2d(72,7,stride=2) | sigmoid | mul(scale[72,1,1])"
#define FEW    "x[400,3,80,80] | conv2d(16,7,stride=2) | relu"
#define MANY   "x[2,320,64,64] | conv2d(320,3,padding=1) | add(r[320,64,64]) | gelu"
#define DEEP   "x[2,1280,16,16] | conv2d(1280,3,padding=1) | silu"
#define FED    "x[2,320,64,64]:bf16 | group_norm(32) | silu | conv2d(320,3,padding=1) | add(@x)"
#define NARROW "x[2,640,32,32]:bf16 | conv2d(640,3,padding=1)"
#define PHASES "x[8,256,56,56] | conv2d(256,3,stride=2,padding=1) | relu"
#define UP     "x[64,64,28,28] | conv_transpose2d(64,4,stride=2,padding=1) | relu"
#define LARGE  "x[1,128,512,512] | conv2d(128,3,padding=1) | relu"
#define LINEAR "x[900,300] | linear(1500) | gelu"
#define WORDS  "x[2048,1024] | linear(4096) | gelu"
#define INPUTS "x[16,500,1024], y[16,1024,2045] | matmul(@y) | add(r[2045])"
#define LONG   "x[100,70000] | linear(64) | silu"
#define MATMUL "x[900,300] | matmul(w[300,1500]) | relu"
static const struct {
    const char *chain, *source;
    int capability;
    cvy_precision precision;
    int tiles;
} producers[] = {
    {CONV, "conv_mma.cu", 80, CVY_FP32, 1},
    {CONV, "conv_mma.cu", 80, CVY_TF32, 1},
    {WIDE, "conv_mma.cu", 80, CVY_FP32, 4},
    {WIDE, "conv_mma.cu", 80, CVY_TF32, 4},
    {TAPS, "conv_mma.cu", 80, CVY_FP32, 4},
    {TAPS, "conv_mma.cu", 80, CVY_TF32, 4},
    {FEW, "conv_mma.cu", 80, CVY_FP32, 1},
    {FEW, "conv_mma.cu", 80, CVY_TF32, 1},
    {LINEAR, "matmul_mma.cu", 80, CVY_FP32, 4},
    {LINEAR, "matmul_mma.cu", 80, CVY_TF32, 4},
    {MATMUL, "matmul_mma.cu", 80, CVY_FP32, 4},
    {MATMUL, "matmul_mma.cu", 80, CVY_TF32, 4},
    {LINEAR, "matmul_tc.cu", 90, CVY_FP32, 4},
    {LINEAR, "matmul_tc.cu", 90, CVY_TF32, 4},
    {MANY, "conv_wide.cu", 90, CVY_FP32, 4},
    {MANY, "conv_wide.cu", 90, CVY_TF32, 4},
    {DEEP, "conv_wide.cu", 90, CVY_FP32, 2},
    {DEEP, "conv_wide.cu", 90, CVY_TF32, 2},
    {LARGE, "conv_wide.cu", 90, CVY_FP32, 4},
    {LARGE, "conv_wide.cu", 90, CVY_TF32, 4},
    {PHASES, "conv_wide.cu", 90, CVY_FP32, 1},
    {UP, "conv_wide.cu", 90, CVY_FP32, 2},
    {UP, "conv_wide.cu", 90, CVY_TF32, 2},
    {FED, "conv_wide_words.cu", 90, CVY_TF32, 1},
    {FED, "conv_wide.cu", 90, CVY_TF32, 4},
    {FED, "norm_stats.cu", 90, CVY_TF32, 1},
    {NARROW, "conv_wide.cu", 90, CVY_TF32, 4},
    {DEEP, "conv_wide_add.cu", 90, CVY_TF32, 1},
    {DEEP, "conv_wide_pack.cu", 90, CVY_TF32, 1},
    {MANY, "conv_wide_words.cu", 90, CVY_FP32, 1},
    {MANY, "conv_wide_rescale.cu", 90, CVY_FP32, 1},
    {CONV, "conv_direct.cu", 89, CVY_FP32, 1},
    {LINEAR, "matmul.cu", 89, CVY_FP32, 1},
    {WORDS, "matmul_wide.cu", 90, CVY_FP32, 4},
    {WORDS, "matmul_wide.cu", 90, CVY_TF32, 4},
    {INPUTS, "matmul_wide.cu", 90, CVY_FP32, 2},
    {INPUTS, "matmul_wide.cu", 90, CVY_TF32, 2},
    {LONG, "matmul_wide.cu", 90, CVY_TF32, 2},
    {INPUTS, "matmul_wide_words.cu", 90, CVY_FP32, 1},
    {INPUTS, "matmul_wide_rescale.cu", 90, CVY_FP32, 1},
    {LONG, "conv_wide_add.cu", 90, CVY_TF32, 1},
    {"x[4000,4096] | linear(8) | gelu", "matmul_thin.cu", 80, CVY_FP32, 1},
    {"x[8,4096] | linear(4096) | gelu", "matmul_thin.cu", 80, CVY_FP32, 1},
    {"x[7,8192], y[8192,8192] | matmul(@y)", "matmul_thin.cu", 90, CVY_FP32, 1},
    {"x[4096,4096] | matmul(w[4096])", "matmul_thin.cu", 90, CVY_FP32, 1},
    {"x[4000,100000] | gelu | sum(0)", "reduce.cu", 90, CVY_FP32, 1},
};

/* The virtual environment's wheel, where nothing else is named. */
static void find_wheel(void)
{
    static const char *const patterns[] = {".venv/lib/python*/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
                                           ".venv/lib/python*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.1*"};
    for (int i = 0; i < COUNT_OF(patterns) && !getenv("CVY_NVRTC_LIB"); i++) {
        glob_t found = {0};
        if (glob(patterns[i], 0, NULL, &found) == 0) setenv("CVY_NVRTC_LIB", found.gl_pathv[0], 1);
        globfree(&found);
    }
}

/* The compiler's report on the kernel, left by CVY_DUMP. */
static void check_report(const char *dump, const char *entry, int arch, bool specific, bool hot)
{
    static char report[1 << 20];
    char path[512];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s.sm_%d%s/log.txt", dump, entry, arch, specific ? "a" : "");
    f = fopen(path, "r");
    report[0] = '\0';
    if (f) {
        report[fread(report, 1, sizeof report - 1, f)] = '\0';
        fclose(f);
    }
    CHECK(strstr(report, "registers"), "%s says nothing", path);
    CHECK(!hot || strstr(report, " 0 bytes spill stores"), "%s, sm_%d:\n%s", entry, arch, report);
    CHECK(!strstr(report, "C7510") && !strstr(report, "C7511"), "%s: wgmma is serialised:\n%s", entry, report);
}

static int turn; /* of the other architectures; an item starts from its own number, whoever takes it */

/* Hopper's, and of the other architectures one in turn; under CONVOY_TEST_LONG all of them. which: the step's first
 * code, or that for any strides. */
static void compile_code(const cuda_step *s, int which, const char *dump)
{
    static const int archs[] = {80, 89, 90, 100, 120};
    const int other = archs[(int[]){0, 1, 3, 4}[turn++ % 4]];
    const int n = s->n_options[which];
    const char *options[64];

    memcpy(options, s->options[which], (size_t)n * sizeof *options);
    options[n] = "--ptxas-options=--verbose";
    for (int i = 0; i < COUNT_OF(archs); i++) {
        if (s->tc && archs[i] != 90) continue; /* wgmma is Hopper's alone */
        if (!steered->capability && !test_long() && archs[i] != 90 && archs[i] != other) continue;
        if (steered->capability && (archs[i] == 89 || archs[i] == 100)) continue; /* as 80, as 120 */
        const jit_request request = {.entry = s->entry,
                                     .source = s->source,
                                     .epilogue = s->epilogue[which],
                                     .options = options,
                                     .n_options = n + 1,
                                     .major = archs[i] / 10,
                                     .minor = archs[i] % 10,
                                     .arch_specific = s->tc != NULL};
        jit_code code = {0};
        CHECK(cvyi_jit_compile(&request, &code) == CVY_OK, "%s", cvy_last_error());
        CHECK(code.size > 1000 && memcmp(code.cubin, "\177ELF", 4) == 0, "%s: no machine code", s->entry);
        check_report(dump, s->entry, archs[i], s->tc != NULL, true);
        cvyi_jit_free(&code);
    }
}

/* Tensor cores read tensors of any strides as fast. Steps for channels last differ from the others in how a tile
 * begins and ends: with every second tile, and of any strides only under CONVOY_TEST_LONG. */
static void compile_step(const cuda_step *s, int tuning, const char *dump)
{
    const bool last = s->layout == LAYOUT_LAST && !test_long();

    if (last && tuning % 2) return;
    compile_code(s, 0, dump);
    if (s->tc && s->epilogue[1] && !last) compile_code(s, 1, dump);
}

/* Compiles one source's kernels; NULL: all that run more than once, and weights' packing. */
static void compile_chain(const char *chain, cvy_precision precision, int tuning, const char *source,
                          const char *dump)
{
    const cvy_options options = {.size = sizeof options, .device = CVY_CUDA, .precision = (int32_t)precision};
    cvy_graph *graph = NULL;
    cvy_plan *plan = NULL;
    const cvy_status st = cvy_graph_parse(chain, &graph) || cvyi_plan_tuned(graph, &options, tuning, &plan);

    CHECK(st == CVY_OK, "%s: %s", chain, cvy_last_error());
    for (int i = 0; !st && i < ((cuda_state *)plan->state)->n_steps; i++) {
        const cuda_step *s = &((cuda_state *)plan->state)->steps[i];
        const bool hot = source ? strcmp(s->source, source) == 0 : !s->prepared || strstr(s->source, "pack.cu");
        if (s->only_strided == CVY_NONE && hot) compile_step(s, tuning, dump);
    }
    cvy_plan_free(plan);
    cvy_graph_free(graph);
}

/* The blocks at full size: their passes depend on the extents. Then what they have not: pooled strips of columns;
 * streamed weights of several blocks of channels, stored, reduced and kept. */
static const char *const blocks[] = {
    BLOCK_A,
    BLOCK_B,
    BLOCK_C,
    "x[8,8,512,512] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[8,256,64,64] | conv2d(256,3) | sigmoid | group_norm(64)",
    "x[12,128,64,64] | conv2d(192,3) | logsumexp(1)",
    "x[12,128,28,28] | conv2d(128,3) | group_norm(8) | relu",
};
enum { WHOLE = 3 }; /* of them: once more where blocks of a launch cannot wait for each other */

static void compile_block(int i, const char *dump)
{
    compile_chain(blocks[i], CVY_FP32, 0, "conv_tc.cu", dump);
    compile_chain(blocks[i], CVY_TF32, 0, "conv_tc.cu", dump);
    steered->crowded = 1;
    if (i < WHOLE) compile_chain(blocks[i], CVY_TF32, 0, "conv_tc.cu", dump);
    steered->crowded = 0;
}

/* Elements of 16 bits: the blocks, weights that are not exact, every kernel that reads elements by itself. */
static const struct {
    const char *chain, *source;
    int capability;
} halves[] = {
    {HALF_A(":bf16"), "conv_tc.cu", 90},
    {HALF_B(":bf16"), "conv_tc.cu", 90},
    {HALF_C(":bf16"), "conv_tc.cu", 90},
    {HALF_A(":fp16"), "conv_tc.cu", 90},
    {HALF_B(":fp16"), "conv_tc.cu", 90},
    {HALF_C(":fp16"), "conv_tc.cu", 90},
    {"x[64,64,56,56]:bf16 | conv2d(64,3,padding=1) | batch_norm | mul(s[64,1,1]) | relu", "conv_tc.cu", 90},
    {"x[12,128,28,28]:bf16 | conv2d(128,3) | group_norm(8) | relu", "conv_tc.cu", 90},
    {"x[16,64,57,57]:fp16 | conv2d(64,3,padding=1) | relu", "conv_tc.cu", 90},
    {"x[1,128,9,32,32]:fp16 | conv3d(128,3,padding=1) | relu", "conv_wide.cu", 90},
    {"x[2,320,64,64]:bf16 | group_norm(32) | silu | conv2d(320,3,padding=1)", "norm_stats_last.cu", 90},
    {"x[300,304]:bf16 | linear(500) | gelu", "matmul_tc.cu", 90},
    {"x[300,304]:fp16 | linear(500) | gelu", "matmul_tc.cu", 90},
    {"x[4096,1024]:bf16 | linear(4096) | gelu", "matmul_wide.cu", 90},
    {"x[4096,1024]:fp16, y[1024,4096]:fp16 | matmul(@y) | add(r[4096])", "matmul_wide.cu", 90},
    {"x[16,512,1020]:bf16, y[16,1020,512]:bf16 | matmul(@y) | gelu", "matmul_wide.cu", 90},
    {"x[16,512,1020]:bf16, y[16,1020,512]:bf16 | matmul(@y) | gelu", "matmul_wide_words.cu", 90},
    {"x[4000,4096]:bf16 | linear(8) | gelu", "matmul_thin.cu", 80},
    {"x[7,8192]:bf16, y[8192,8192]:bf16 | matmul(@y)", "matmul_thin.cu", 90},
    {"x[4000,100000]:bf16 | max(0)", "reduce.cu", 90},
    {"x[4000,100000]:fp16 | gelu | sum(0)", "reduce.cu", 90},
    {"x[1,500000]:bf16, y[500000,1]:bf16 | matmul(@y)", "matmul_thin.cu", 90},
    {"x[900,300]:bf16 | linear(1500) | gelu", "matmul_mma.cu", 80},
    {"x[900,300]:fp16 | matmul(w[300,1500]) | relu", "matmul_mma.cu", 80},
    {"x[400,64,20,22]:bf16 | conv2d(256,3,dilation=2) | gelu", "conv_mma.cu", 80},
    {"x[4,8,20,22]:fp16 | conv2d(64,3) | relu", "conv_direct.cu", 89},
    {"x[2,12,14,13]:bf16 | conv2d(12,3,padding=1,groups=12) | mish", "conv_simple.cu", 80},
    {"x[900,1024]:bf16 | add(r[900,1024]) | layer_norm(1024) | gelu", "norm.cu", 80},
    {"x[4,63504]:fp16 | softmax(1) | gelu", "softmax_row.cu", 80},
    {"x[16,64,126,126]:bf16 | add(y[64,1,1]) | mul(z[126,126]) | relu", "pointwise.cu", 80},
};

static void remove_tree(const char *path, const char *name)
{
    (void)name;
    if (unlink(path) == 0) return;
    each_entry(path, remove_tree);
    rmdir(path);
}

static void make_own(char path[SCRATCH_BYTES + 32], const char *what, const char *variable)
{
    snprintf(path, SCRATCH_BYTES + 32, "%s/%s.%ld", cache_dir, what, (long)getpid());
    mkdir(path, 0700);
    setenv(variable, path, 1);
}

/* Every process has a cache and a dump of its own: what another one has compiled would leave no report. */
static const char *own_folders(void)
{
    static char dump[SCRATCH_BYTES + 32], cache[SCRATCH_BYTES + 32];

    if (!dump[0]) {
        make_own(dump, "dump", "CVY_DUMP");
        make_own(cache, "cache", "CVY_CACHE");
    }
    return dump;
}

static void take_half(const gpu *u, int item)
{
    (void)u;
    steered->capability = halves[item].capability;
    compile_chain(halves[item].chain, CVY_FP32, 0, halves[item].source, own_folders());
    steered->capability = 0;
}

static void take_single(const gpu *u, int item)
{
    const int producer = item - COUNT_OF(chains), block = producer - COUNT_OF(producers);

    (void)u;
    turn = item;
    if (producer < 0) {
        compile_chain(chains[item], CVY_FP32, 0, NULL, own_folders());
    } else if (block < 0) {
        steered->capability = producers[producer].capability;
        for (int k = 0; k < producers[producer].tiles; k++)
            compile_chain(producers[producer].chain, producers[producer].precision, k, producers[producer].source,
                          own_folders());
        steered->capability = 0;
    } else {
        compile_block(block, own_folders());
    }
}

int main(int argc, char **argv)
{
    const nvrtc_api *rtc = NULL;

    if (getenv("CONVOY_TEST_QUICK")) {
        printf("cuda_compile: skipped: what NVRTC compiles does not depend on how this program was built\n");
        return 0;
    }
    find_wheel();
    if (cvyi_cuda_nvrtc(&rtc) != CVY_OK) {
        printf("cuda_compile: skipped: %s\n", cvy_last_error());
        return 0;
    }
    use_cache();
    steered = use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    if (argc == 1) share_host_work(COUNT_OF(chains) + COUNT_OF(producers) + COUNT_OF(blocks), take_single);
    share_host_work(COUNT_OF(halves), take_half);
    each_entry(cache_dir, remove_tree);
    return finish("cuda_compile");
}
