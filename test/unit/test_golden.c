/* test_golden.c - plans as text, compared with the files of test/golden: a change of cost or choice is seen in
 * review.
 *
 *   test_golden            compares
 *   test_golden --write    writes the files again (`make golden`)
 *
 * The GPU is the stand-in, which is always the same; the CPU is that of CVY_MACHINE, the same everywhere. A file
 * has the printed plan, then every kernel's answer for every pass. Names of kernels end in a digest of text and
 * options, which is left out: it changes with every comment.
 */
#include <ctype.h>
#include "../support/fixture.h"
#include "../../src/plan/plan.h"
#include "../../src/util/asan.h"

static const struct {
    const char *file, *chain;
    cvy_precision precision;
} cases[] = {
#define BLOCK_A "x[128,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)"
#define BLOCK_B                                                                                                    \
    "x[128,8,128,128] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)"
#define BLOCK_C "x[128,8,256,256] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)"
    {"block_a", BLOCK_A, CVY_FP32},
    {"block_a_tf32", BLOCK_A, CVY_TF32},
    {"block_b", BLOCK_B, CVY_FP32},
    {"block_b_tf32", BLOCK_B, CVY_TF32},
    {"block_c", BLOCK_C, CVY_FP32},
    {"block_c_tf32", BLOCK_C, CVY_TF32},
    {"conv_relu", "x[8,64,56,56] | conv2d(64,3) | relu", CVY_FP32},
    {"conv_wide", "x[32,256,14,14] | conv2d(512,3,padding=1) | relu", CVY_FP32},
    {"conv_wide_tf32", "x[2,320,64,64] | conv2d(320,3,padding=1) | group_norm(32) | silu", CVY_TF32},
    {"conv_wide_deep", "x[2,1280,16,16] | conv2d(1280,3,padding=1) | add(r[1280,16,16])", CVY_TF32},
    {"conv_dilated", "x[8,64,56,56] | conv2d(64,3,dilation=2) | relu", CVY_FP32},
    {"conv_depthwise", "x[64,128,56,56] | conv2d(128,3,padding=1,groups=128) | relu", CVY_FP32},
    {"conv3d", "x[8,32,16,56,56] | conv3d(64,3,padding=1) | group_norm(8) | mean((2,3,4))", CVY_FP32},
    {"conv_transpose", "x[64,64,28,28] | conv_transpose2d(64,4,stride=2,padding=1) | instance_norm | silu",
     CVY_FP32},
    {"bottleneck",
     "x[64,256,56,56] | conv2d(64,1) | batch_norm | relu | conv2d(64,3,padding=1) | batch_norm | relu | "
     "conv2d(256,1) | batch_norm | add(@x) | relu",
     CVY_FP32},
    {"stem", "x[16,3,224,224] | conv2d(64,7,stride=2,padding=3) | batch_norm | relu | max_pool2d(3,2,1)", CVY_FP32},
    {"mlp", "x[8,197,768] | layer_norm(768) | linear(3072) | gelu | linear(768) | add(@x)", CVY_FP32},
    {"mlp_tf32", "x[8,197,768] | layer_norm(768) | linear(3072) | gelu | linear(768) | add(@x)", CVY_TF32},
    {"head", "x[64,512,7,7] | adaptive_avg_pool2d(1) | flatten(1) | linear(1000) | softmax(1)", CVY_FP32},
    {"matmul_batched", "x[64,128,64] | matmul(w[64,64,128]) | softmax(2)", CVY_FP32},
    {"norm_large", "x[2,8,300,301] | group_norm(2) | relu", CVY_FP32},
    {"batch_norm_training", "x[32,64,56,56] | conv2d(64,3,padding=1) | batch_norm(training=True) | relu", CVY_FP32},
    {"softmax_long", "x[1,100001] | softmax(1)", CVY_FP32},
    {"conv_norm_1x1", "x[16,256,28,28] | conv2d(128,1) | group_norm(8) | silu", CVY_FP32},
    {"conv_unbatched", "x[64,56,56] | conv2d(64,3,padding=1) | relu", CVY_FP32},
    {"reduce_apart", "x[16,24,32,40] | mean((1,3)) | relu", CVY_FP32},
    {"pointwise", "x[64,1000] | add(y[1000]) | gelu | mul(0.5) | reshape(640,100) | tanh", CVY_FP32},
    {"pool_overlapping", "x[16,64,112,112] | relu | max_pool2d(3,2,1)", CVY_FP32},
    {"pool_average", "x[16,256,56,56] | avg_pool2d(2) | sigmoid", CVY_FP32},
    {"upsampled", "x[2,256,32,32] | interpolate((64,64)) | conv2d(256,3,padding=1) | silu", CVY_FP32},
    {"joined", "x[8,64,56,56], y[8,32,56,56] | cat(@y,dim=1) | conv2d(64,3,padding=1) | relu", CVY_FP32},
    {"moved", "x[16,197,768] | slice(dim=1,start=1) | permute(0,2,1) | reshape(16,768,14,14)", CVY_FP32},
    {"conv1d", "x[16,80,3000] | conv1d(384,3,padding=1) | gelu", CVY_FP32},
    {"conv_grouped", "x[32,256,28,28] | conv2d(256,3,padding=1,groups=32) | batch_norm | relu", CVY_FP32},
    {"conv_strided", "x[32,64,56,56] | conv2d(128,3,stride=2,padding=1) | batch_norm | relu", CVY_FP32},
    {"patches", "x[16,3,224,224] | conv2d(768,16,stride=16) | flatten(2) | permute(0,2,1)", CVY_FP32},
    {"squeeze_excite",
     "x[32,96,56,56] | mean((2,3),keepdim=True) | conv2d(24,1) | silu | conv2d(96,1) | sigmoid | mul(@x)",
     CVY_FP32},
    {"attention", "x[96,197,64] | matmul(k[96,64,197]) | mul(0.125) | softmax(2) | matmul(v[96,197,64])", CVY_FP32},
    {"matmul_thin", "x[4,4096] | linear(4096) | silu", CVY_FP32},
    {"matmul_tf32", "x[4096,4096] | linear(4096) | relu", CVY_TF32},
    {"rms_norm", "x[8,512,4096] | add(r[8,512,4096]) | rms_norm(4096)", CVY_FP32},
    {"losses", "x[4096,1000] | log_softmax(1) | mul(t[4096,1000]) | sum(1) | neg | mean()", CVY_FP32},
    {"reduce_all", "x[5,3000001] | square | sum()", CVY_FP32},
    {"block_a_bf16",
     "x[128,8,128,128]:bf16 | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
     CVY_FP32},
    {"conv_wide_fp16", "x[32,256,28,28]:fp16 | conv2d(256,3,padding=1) | relu", CVY_FP32},
    {"mlp_bf16", "x[8,197,768]:bf16 | layer_norm(768) | linear(3072) | gelu | linear(768) | add(@x)", CVY_FP32},
    {"autocast", "x[64,256] | cast('bf16') | linear(512) | gelu | linear(256) | cast('fp32') | add(@x)", CVY_FP32},
};

/* "_1a2b3c4d:" -> ":" */
static void drop_digests(char *plan)
{
    char *to = plan;

    for (const char *from = plan; *from;) {
        int n = 0;
        while (*from == '_' && n < 8 && isxdigit((unsigned char)from[1 + n])) n++;
        if (n == 8 && from[9] == ':')
            from += 9;
        else
            *to++ = *from++;
    }
    *to = '\0';
}

/* The CPU's kernels are built on one architecture alone; the address sanitizer's fences take room in its plans. */
static bool has_cpu(void)
{
#if defined(__x86_64__)
    return !CVYI_ASAN;
#else
    return false;
#endif
}

static cvy_plan *plan_case(cvy_device device, int i)
{
    const cvy_options options = {.size = sizeof options,
                                 .device = (int32_t)device,
                                 .threads = device == CVY_CPU ? 2 : 0,
                                 .precision = (int32_t)cases[i].precision};
    cvy_graph *g = NULL;
    cvy_plan *p = NULL;
    const bool made = !cvy_graph_parse(cases[i].chain, &g) && !cvy_plan_create(g, &options, &p);

    CHECK(made, "%s: %s", cases[i].chain, cvy_last_error());
    cvy_graph_free(g);
    return p;
}

/* What CVY_MACHINE must not say; and what is planned for another machine is not run on this one. */
static void check_machine(void)
{
    static const char *const wrong[] = {"avx512", "avx512,", "avx512,0", "avx512,2 cores",
                                        "sse,2",  ",2",      "avx2,-1"};
    const cvy_options options = {.size = sizeof options, .device = CVY_CPU};
    float x[4] = {0}, y[4] = {0};
    const cvy_buffer buffers[] = {{x, NULL}, {y, NULL}};
    void *workspace;
    cvy_graph *g = NULL;
    cvy_plan *p = NULL;

    CHECK(!cvy_graph_parse("x[4] | relu", &g), "%s", cvy_last_error());
    for (int i = 0; i < COUNT_OF(wrong); i++) {
        setenv("CVY_MACHINE", wrong[i], 1);
        CHECK(cvy_plan_create(g, &options, &p) == CVY_INVALID && !p, "%s", wrong[i]);
        CHECK(strstr(cvy_last_error(), "CVY_MACHINE is"), "%s: %s", wrong[i], cvy_last_error());
    }
    setenv("CVY_MACHINE", "portable,2", 1);
    CHECK(!cvy_plan_create(g, &options, &p), "%s", cvy_last_error());
    workspace = aligned_alloc(CVY_ALIGN, cvy_plan_workspace(p) + CVY_ALIGN);
    CHECK(cvy_plan_run(p, buffers, 2, workspace, cvy_plan_workspace(p), 0, NULL) == CVY_UNSUPPORTED, "it ran");
    CHECK(strstr(cvy_last_error(), "CVY_MACHINE"), "%s", cvy_last_error());
    free(workspace);
    cvy_plan_free(p);
    cvy_graph_free(g);
}

static void check_case(const char *folder, cvy_device device, int i, bool write)
{
    static char want[1 << 16];
    cvy_plan *p = plan_case(device, i);
    char path[600];
    text got = {0};
    FILE *f;

    if (!p) return;
    cvyi_print_plan(p, &got);
    cvyi_text_add(&got, "\n");
    cvyi_print_why(p, &got);
    drop_digests(got.data);
    snprintf(path, sizeof path, "%s/%s_%s.txt", folder, device == CVY_CPU ? "cpu" : "cuda", cases[i].file);
    f = fopen(path, write ? "w" : "r");
    CHECK(f, "%s: not there; `make golden` writes it", path);
    if (f && write) fputs(got.data, f);
    if (f && !write) {
        want[fread(want, 1, sizeof want - 1, f)] = '\0';
        CHECK(strcmp(want, got.data) == 0, "%s differs; `make golden` accepts what is new:\n%s", path, got.data);
    }
    if (f) fclose(f);
    cvyi_text_free(&got);
    cvy_plan_free(p);
}

int main(int argc, char **argv)
{
    const char *root = getenv("CONVOY_GOLDEN");

    use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    setenv("CVY_CACHE", "off", 1);
    setenv("CVY_MACHINE", "avx512,2", 1);
    for (int i = 0; i < COUNT_OF(cases); i++) {
        const bool write = argc > 1 && !strcmp(argv[1], "--write");
        check_case(root ? root : "test/golden", CVY_CUDA, i, write);
        /* The CPU has one precision. */
        if (cases[i].precision == CVY_FP32 && has_cpu()) check_case(root ? root : "test/golden", CVY_CPU, i, write);
    }
    check_machine();
    return finish("golden");
}
