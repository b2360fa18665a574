/* test_simplify.c - every rewrite: graphs on which it works, and graphs on which its condition must refuse.
 *
 * What a rewrite makes of a graph is judged three ways: the reference runs both graphs, which must agree as closely
 * as double arithmetic allows; the CPU engine runs it with the rewrite on and off, within what float32 may lose;
 * and the printed plan lists the rewrite if it was done, and does not if it is switched off. */
#include "../../src/simplify/simplify.h"
#include "../support/doubt.h"

typedef struct trial {
    const char *rewrite;
    bool applies;
    const char *chain;
} trial;

static const trial trials[] = {
    {"split_norm", true, "x[3,4,5,5] | group_norm(2)"},
    {"split_norm", true, "x[3,4,5,5] | group_norm(4, affine=False) | relu"},
    {"split_norm", true, "x[3,4,5,5] | batch_norm"},
    {"split_norm", true, "x[3,4] | batch_norm(affine=False)"},
    {"split_norm", true, "x[3,4,7] | batch_norm(training=True)"},
    {"split_norm", true, "x[3,4,5,6] | instance_norm(affine=True)"},
    {"split_norm", true, "x[3,4,5,6] | layer_norm((5,6))"},
    {"split_norm", true, "x[3,4,6] | rms_norm(6)"},
    {"split_norm", false, "x[3,4,5,5] | relu | softmax(1)"},

    {"drop_identity", true, "x[3,4] | relu | dropout(0.25) | neg"},
    {"drop_identity", true, "x[3,4] | relu | mul(1)"},
    {"drop_identity", true, "x[3,4] | relu | div(1) | exp"},
    {"drop_identity", true, "x[3,4] | relu @r | cast('fp32') | add(@r)"},
    {"drop_identity", false, "x[3,4] | relu @r | cast('bf16') @h | output(@r, @h)"},
    {"drop_identity", false, "x[3,4] | dropout(0.5)"},                               /* an output is no input */
    {"drop_identity", false, "x[3,4] | relu @a | dropout(0.5) @b | output(@a, @b)"}, /* nor one output twice */
    {"drop_identity", false, "x[3,4] | relu | add(0)"},                              /* -0 + 0 is 0 */
    {"drop_identity", false, "x[3,4] | relu | mul(1.0000001)"},

    {"reduce_one", true, "x[3,1,5] | exp | sum(1)"},
    {"reduce_one", true, "x[3,4,1] | exp | logsumexp(2, keepdim=True) | neg"},
    {"reduce_one", true, "x[3,1,1,5] | mean((1,2))"},
    {"reduce_one", true, "x[1,1] | max"},
    {"reduce_one", false, "x[3,1,5] | min((1,2))"},
    {"reduce_one", false, "x[3,2,5] | sum(1)"},

    {"merge_cast", true, "x[3,40] | cast('bf16') | cast('fp32')"},
    {"merge_cast", true, "x[3,40] | relu @r | cast('bf16') | cast('fp32') | add(@r)"},
    {"merge_cast", false, "x[3,40] | cast('fp32') | neg | cast('fp32')"},

    {"cast_result", true, "x[3,40] | neg | cast('fp32')"},
    {"cast_result", true,
     "x[2,8,7,7] | cast('bf16') | conv2d(8,3) @c | cast('fp32') @a | exp @e | @c | "
     "cast('fp32') | add(@e)"},
    {"cast_result", false, "x[3,40] | neg @n | cast('bf16') @h | output(@n, @h)"}, /* an output has its own */
    {"cast_result", false, "x[3,40] | neg @n | cast('bf16') @h | @n | cast('fp16') @k | output(@h, @k)"},
    {"cast_result", false, "x[3,40] | reshape(40,3) | cast('bf16')"}, /* another name of the same memory */

    {"cast_operand", true, "x[2,8,7,7] | cast('bf16') | conv2d(8,3) | cast('fp32')"},
    {"cast_operand", true,
     "x[2,8,7,7] | cast('fp16') @h | conv2d(8,3) @a | @h | conv_transpose2d(8,3) @b | "
     "output(@a, @b)"},
    {"cast_operand", false,
     "x[2,8,7,7] | cast('bf16') @h | conv2d(8,3,padding=1) | add(@h)"}, /* it is stored anyway */
    {"cast_operand", false, "x[2,8,7,7]:bf16 | cast('fp16') | conv2d(8,3)"},
    {"cast_operand", false, "x[2,40] | cast('bf16') | linear(8)"},

    {"merge_tanh_hardswish", true, "x[3,40] | tanh | hardswish"},
    {"merge_tanh_hardswish", false, "x[3,40] | tanh @t | hardswish | add(@t)"}, /* somebody else reads tanh */
    {"merge_tanh_hardswish", false, "x[3,40] | tanh @t | hardswish @h | output(@t, @h)"},
    {"merge_tanh_hardswish", false, "x[3,40] | erf | hardswish"},
    {"merge_tanh_hardswish", false, "x[3,40] | hardswish | tanh"},

    {"merge_clamp", true, "x[3,40] | clamp(-0.5, 0.5) | clamp(0, 1)"},
    {"merge_clamp", true, "x[3,40] | relu | relu6 | hardtanh(-0.25, 0.25)"},
    {"merge_clamp", true, "x[3,40] | clamp(0, 0.5) | clamp(2, 3)"}, /* apart: the constant 2 */
    {"merge_clamp", true, "x[3,40] | clamp(2, 3) | clamp(max=0.5)"},
    {"merge_clamp", false, "x[3,40] | clamp(0.5, -0.5) | clamp(0, 1)"}, /* bounds cross */
    {"merge_clamp", false, "x[3,40] | clamp(0, 1) | clamp(0.5, -0.5)"},
    {"merge_clamp", false, "x[3,40] | clamp(min=nan) | clamp(0, 1)"},
    {"merge_clamp", false, "x[3,40] | clamp(0, 1) @c | relu6 | add(@c)"},
    {"merge_clamp", false, "x[3,40] | clamp(0, 1) | neg | clamp(0, 1)"},

    {"merge_number", true, "x[3,40] | mul(3) | mul(-0.5)"},
    {"merge_number", true, "x[3,40] | add(3) | sub(0.5, alpha=4)"},
    {"merge_number", true, "x[3,40] | sub(1) | sub(2)"},
    {"merge_number", false, "x[3,40] | mul(3) | add(2)"},
    {"merge_number", false, "x[3,40] | mul(1e-20) | mul(1e-20)"}, /* the product would not be a normal number */
    {"merge_number", false, "x[3,40] | mul(1e20) | mul(1e20)"},
    {"merge_number", false, "x[3,40] | add(inf) | add(1)"},
    {"merge_number", false, "x[3,40] | mul(3) @m | mul(2) | add(@m)"},
    {"merge_number", false, "x[3,40] | mul(p[40]) | mul(2)"},

    {"fold_conv_affine", true, "x[2,3,6,6] | conv2d(5,3) | add(b[5,1,1])"},
    {"fold_conv_affine", true, "x[2,3,6,6] | conv2d(5,3) | mul(s[5,1,1]) | relu"},
    {"fold_conv_affine", true, "x[2,3,6,6] | conv2d(5,3,bias=False) | sub(b[1,5,1,1], alpha=3)"},
    {"fold_conv_affine", true, "x[2,3,6,6] | conv2d(5,3,bias=False) | mul(-2)"},
    {"fold_conv_affine", true, "x[2,3,6,6] | conv2d(5,3) | sub(2, alpha=0.5)"},
    {"fold_conv_affine", true, "x[2,3,6] | conv1d(5,3) | mul(s[1])"},
    {"fold_conv_affine", true, "x[2,2,4,4,3] | conv3d(4,2,groups=2) | add(b[4,1,1,1]) | mul(s[4,1,1,1])"},
    {"fold_conv_affine", true, "x[2,6] | linear(5) | mul(s[5]) | add(b[5])"},
    {"fold_conv_affine", true, "x[2,3,6,6] | conv2d(5,3) | batch_norm"},
    {"fold_conv_affine", true, "x[2,3,6,6] | conv2d(1,3,bias=False) | add(b[1])"},
    {"fold_conv_affine", false, "x[2,3,6,6] | conv2d(5,3) @c | mul(s[5,1,1]) | add(@c)"},
    {"fold_conv_affine", false, "x[2,3,6,6] | conv2d(5,3) @c | mul(s[5,1,1]) @d | output(@c, @d)"},
    {"fold_conv_affine", false, "x[2,3,6,6], s[5,1,1] | conv2d(5,3) | mul(@s)"}, /* not a parameter */
    {"fold_conv_affine", false, "x[2,3,6,6] | conv2d(4,3) | mul(s[4])"},         /* along the last dimension */
    {"fold_conv_affine", false, "x[2,3,6,6] | conv2d(5,3) | mul(s[5,4,4])"},     /* per element */
    {"fold_conv_affine", false, "x[2,3,6,6] | conv2d(5,3,bias=False) | add(2)"}, /* no bias to add it to */
    {"fold_conv_affine", false, "x[2,3,6,6] | conv2d(5,3,bias=False) | add(b[1])"},
    {"fold_conv_affine", false, "x[3,6,6] | conv2d(5,3) | mul(s[5,1,1])"}, /* unbatched */
    {"fold_conv_affine", false, "x[2,6] | linear(5) | add(b[3,1,5])"},     /* grows */
    {"fold_conv_affine", false, "x[2,7,6] | linear(5) | mul(s[5])"},
    {"fold_conv_affine", false, "x[2,3,6,6] | conv2d(5,3) | div(s[5,1,1])"},

    {"fold_norm_affine", true, "x[2,4,5,5] | group_norm(2) | mul(s[4,1,1])"},
    {"fold_norm_affine", true, "x[2,4,5,5] | group_norm(2) | add(b[4,1,1], alpha=2) | mul(s[1,4,1,1])"},
    {"fold_norm_affine", true, "x[2,4,5,5] | group_norm(2,affine=False) | sub(b[4,1,1])"},
    {"fold_norm_affine", true, "x[2,4,5] | instance_norm | mul(s[4,1])"},
    {"fold_norm_affine", true, "x[2,4,5] | batch_norm(training=True) | mul(3) | add(2)"},
    {"fold_norm_affine", false, "x[5,11,1] | layer_norm((11,1)) | mul(s[11,1])"},
    {"fold_norm_affine", false, "x[2,4,5,5] | group_norm(2,affine=False) | mul(3)"}, /* nothing to multiply */
    {"fold_norm_affine", false, "x[2,4,5,5] | group_norm(2,affine=False) | add(3)"},
    {"fold_norm_affine", false, "x[2,4,5,5] | group_norm(2) @n | mul(s[4,1,1]) | add(@n)"},
    {"fold_norm_affine", false, "x[2,4,5,5], s[4,1,1] | group_norm(2) | mul(@s)"},
    {"fold_norm_affine", false, "x[2,4,5,5] | layer_norm((4,5,5)) | mul(s[4,1,1])"}, /* its affine is per element */
    {"fold_norm_affine", false, "x[2,5,5] | layer_norm(5) | mul(s[5,1])"},
    {"fold_norm_affine", false, "x[2,4,5,5] | group_norm(2) | mul(s[5])"},
    {"fold_norm_affine", false, "x[2,4,1,5] | group_norm(2) | mul(s[4,3,1])"}, /* grows */

    {"reduce_producer", true, "x[3,6] | linear(5) | sum(1)"},
    {"reduce_producer", true, "x[3,2,6] | linear(5,bias=False) | mean(-1,keepdim=True)"},
    {"reduce_producer", true, "x[3,4,6,6] | conv2d(5,3,stride=2,padding=1) | mean(1)"},
    {"reduce_producer", true, "x[3,4,6,6] | conv2d(5,3) | sum(1,keepdim=True)"},
    {"reduce_producer", true, "x[3,4,8,9] | conv2d(5,3,padding=1) | adaptive_avg_pool2d(1)"},
    {"reduce_producer", false, "x[1,7,20] | conv1d(9,3) | adaptive_avg_pool2d((1,1))"}, /* of channels, too */
    {"reduce_producer", false, "x[5,7,20] | linear(9) | adaptive_avg_pool2d(1)"},
    {"reduce_producer", true, "x[3,4,8,9] | conv2d(5,(3,2)) | mean((2,3))"},
    {"reduce_producer", true, "x[3,4,9] | conv1d(5,3,bias=False) | mean(2,keepdim=True)"},
    {"reduce_producer", false, "x[3,4,8,9] | conv2d(5,3,stride=2) | mean((2,3))"},
    {"reduce_producer", false, "x[3,4,8,9] | conv2d(5,3,dilation=2) | mean((2,3))"},
    {"reduce_producer", false, "x[3,4,8,9] | conv2d(6,3,groups=2) | mean(1)"},
    {"reduce_producer", false, "x[3,4,8,9] | conv2d(5,3) | sum((2,3))"},
    {"reduce_producer", false, "x[3,4,8,9] | conv2d(5,3) | mean((1,2))"},
    {"reduce_producer", false, "x[3,4,8,9] | conv2d(5,3) | max(1)"},
    {"reduce_producer", false, "x[3,6] | linear(5) @l | sum(1,keepdim=True) | add(@l)"},
    {"reduce_producer", false, "x[3,6] | linear(5) | sum(0)"},
    {"reduce_producer", false, "x[3,6] | linear(5) | logsumexp(1)"},

    {"pool_before_monotone", true, "x[2,3,8,8] | relu | max_pool2d(2)"},
    {"pool_before_monotone", true, "x[2,3,8,8] | sigmoid | max_pool2d(3,stride=2,padding=1,ceil_mode=True)"},
    {"pool_before_monotone", true, "x[2,3,9] | tanh | max_pool1d(2,dilation=2)"},
    {"pool_before_monotone", true, "x[2,2,4,4,4] | clamp(-0.5,0.5) | max_pool3d(2)"},
    {"pool_before_monotone", false, "x[2,3,8,8] | neg | max_pool2d(2)"},
    {"pool_before_monotone", false, "x[2,3,8,8] | leaky_relu(-0.5) | max_pool2d(2)"}, /* falls and rises */
    {"pool_before_monotone", false, "x[2,3,8,8] | abs | max_pool2d(2)"},
    {"pool_before_monotone", false, "x[2,3,8,8] | silu | max_pool2d(2)"},
    {"pool_before_monotone", false, "x[2,3,8,8] | relu | avg_pool2d(2)"},
    {"pool_before_monotone", false, "x[2,3,8,8] | relu @r | max_pool2d(2) @p | output(@r, @p)"},
    {"pool_before_monotone", false, "x[2,3,2,8] | sigmoid | max_pool2d(2,padding=1,dilation=3)"}, /* -inf windows */

    {"pool_before_norm", true, "x[2,3,10,10] | conv2d(4,3) | group_norm(2) | max_pool2d(2)"},
    {"pool_before_norm", true,
     "x[2,3,10,10] | conv2d(4,3,bias=False) | group_norm(4,affine=False) | max_pool2d(3,1,1)"},
    {"pool_before_norm", true, "x[2,3,10] | conv1d(4,3,groups=1) | instance_norm(affine=True) | max_pool1d(2)"},
    {"pool_before_norm", true, "x[2,3,10,10] | conv2d(4,3) | batch_norm(training=True) | max_pool2d(2)"},
    {"pool_before_norm", true, "x[2,2,6,6,6] | conv3d(4,3,groups=2) | group_norm(1) | max_pool3d(2)"},
    {"pool_before_norm", true,
     "x[2,3,10,10] | conv2d(4,3) | group_norm(2) | mul(s[4,1,1]) | max_pool2d(4) | clamp(0,1)"},
    {"pool_before_norm", false,
     "x[3,2,5,6] | conv3d(4,1) | instance_norm(affine=True) | max_pool2d(2)"}, /* no batch */
    {"pool_before_norm", false,
     "x[2,3,6,6] | conv2d(4,3) | instance_norm(affine=True) | max_pool3d(2)"}, /* over channels */
    {"pool_before_norm", false,
     "x[2,3,10,10] | conv2d(4,3) @c | group_norm(2) | max_pool2d(2) @p | @c | relu @r | output(@p, @r)"},
    {"pool_before_norm", false,
     "x[2,3,10,10] | conv2d(4,3) | group_norm(2) @n | max_pool2d(2) @p | output(@n, @p)"},
    {"pool_before_norm", false,
     "x[2,3,10,10] | conv2d(4,3) | layer_norm((4,8,8)) | max_pool2d(2)"},        /* per element */
    {"pool_before_norm", false, "x[2,3,10,10] | group_norm(3) | max_pool2d(2)"}, /* no producer */
    {"pool_before_norm", false, "x[2,3,10,10] | conv2d(4,3) | relu | group_norm(2) | max_pool2d(2)"},
    {"pool_before_norm", false, "x[2,3,4,10] | conv2d(4,3) | group_norm(2) | max_pool2d(2,padding=1,dilation=3)"},
    {"pool_before_norm", false, "x[2,3,10,10] | conv2d(4,3) | group_norm(2) | avg_pool2d(2)"},
    {"pool_before_norm", false, "x[2,3,10,10], w[4,3,3,3] | conv2d(4,3,weight=@w) | group_norm(2) | max_pool2d(2)"},

    {"transposed_pixel", true, "x[3,5,1,1] | conv_transpose2d(4,3) | relu"},
    {"transposed_pixel", true, "x[2,5,1] | conv_transpose1d(4,3,stride=2,bias=False) | batch_norm"},
    {"transposed_pixel", true, "x[2,5,1,1,1] | conv_transpose3d(4,(1,2,3))"},
    {"transposed_pixel", true, "x[2,5,1,1], w[5,4,2,2] | conv_transpose2d(4,2,weight=@w)"},
    {"transposed_pixel", false, "x[3,5,1,2] | conv_transpose2d(4,3)"},
    {"transposed_pixel", false, "x[3,6,1,1] | conv_transpose2d(4,3,groups=2)"},
    {"transposed_pixel", false, "x[3,5,1,1] | conv_transpose2d(4,3,padding=1)"},
    {"transposed_pixel", false, "x[3,5,1,1] | conv_transpose2d(4,3,dilation=2)"}, /* holes between the taps */
    {"transposed_pixel", false, "x[3,5,1,1] | conv_transpose2d(4,3,stride=2,output_padding=1)"},
    {"transposed_pixel", false, "x[5,1,1] | conv_transpose2d(4,3)"}, /* no batch */

    {"flip_transposed", true, "x[2,6,9,11] | conv_transpose2d(4,3,padding=1) | relu"},
    {"flip_transposed", true, "x[2,6,19] | conv_transpose1d(4,(4),bias=False) | batch_norm"},
    {"flip_transposed", true, "x[2,6,9,8,7] | conv_transpose3d(4,(1,2,3),padding=(0,1,2),groups=2)"},
    {"flip_transposed", true, "x[6,12,13] | conv_transpose2d(4,(3,2),padding=(0,1),dilation=(1,2),groups=2)"},
    {"flip_transposed", true, "x[2,8,9,9] | conv_transpose2d(8,3,padding=1,groups=8) | group_norm(2)"},
    {"flip_transposed", false, "x[2,6,9,9] | conv_transpose2d(4,3,stride=(1,2))"},
    {"flip_transposed", false, "x[2,6,9,9] | conv_transpose2d(4,3,dilation=2,padding=2,output_padding=1)"},
    {"flip_transposed", false, "x[2,6,9,9] | conv_transpose2d(4,1,padding=1)"}, /* drops pixels of x */
    {"flip_transposed", false, "x[2,6,3,3] | conv_transpose2d(4,3)"},           /* mostly padding */
    {"flip_transposed", false, "x[2,6,9,9], w[6,4,3,3] | conv_transpose2d(4,3,padding=1,weight=@w)"},

    {"upsample_conv", true, "x[1,256,2,3] | interpolate((4,6)) | conv2d(256,3,padding=1) | relu"},
    {"upsample_conv", true, "x[2,260,3] | silu | interpolate(6) | conv1d(256,3,padding=1,bias=False)"},
    {"upsample_conv", true, "x[1,256,1,2,1] | interpolate((2,4,2)) | conv3d(256,3,padding=1)"},
    {"upsample_conv", false, "x[1,256,2,3] | interpolate((4,5)) | conv2d(256,3,padding=1)"}, /* not by 2 */
    {"upsample_conv", false, "x[1,256,2,3] | interpolate((4,6)) | conv2d(256,3)"},           /* other borders */
    {"upsample_conv", false, "x[1,256,2,3] | interpolate((4,6)) | conv2d(256,3,padding=1,stride=2)"},
    {"upsample_conv", false, "x[1,256,2,3] | interpolate((4,6)) | conv2d(256,(3,1),padding=(1,0))"},
    {"upsample_conv", false, "x[1,256,2,3] | interpolate((4,6)) | conv2d(256,3,padding=1,groups=2)"},
    {"upsample_conv", false, "x[1,256,2,3] | interpolate((4,6)) @u | conv2d(256,3,padding=1) | add(@u)"},
    {"upsample_conv", false, "x[1,8,2,3] | interpolate((4,6)) | conv2d(8,3,padding=1)"}, /* short sums */
    {"upsample_conv", false,
     "x[1,128,2,3], w[128,128,3,3] | interpolate((4,6)) | conv2d(128,3,padding=1,weight=@w)"},
};

/* ---- both graphs through the reference ---- */

static cvy_graph *simplified(const cvy_graph *g, char *log, size_t size)
{
    cvy_graph *copy = NULL;
    const int *outputs;
    text t = {0};
    const int n = cvyi_graph_outputs(g, &outputs);

    assert_ok(cvyi_graph_copy(g, &copy));
    for (int i = 0; i < n && !copy->n_outputs; i++) assert_ok(cvy_graph_output(copy, outputs[i]));
    assert_ok(cvyi_simplify(copy, REWRITE_TRUST, &t));
    assert_ok(cvyi_graph_verify(copy));
    snprintf(log, size, "%s", t.data ? t.data : "");
    cvyi_text_free(&t);
    return copy;
}

static bool lists(const char *log, const char *name)
{
    char mark[64];
    snprintf(mark, sizeof mark, "(%s)", name);
    return strstr(log, mark) != NULL;
}

static void assert_near(const char *chain, const rig *a, const rig *b)
{
    for (int i = a->n_sources; i < a->n; i++) {
        double scale = 1;
        assert_int_equal(a->t[i].count, b->t[i].count);
        for (int64_t k = 0; k < a->t[i].count; k++)
            if (isfinite(a->t[i].want[k])) scale = fmax(scale, fabs(a->t[i].want[k]));
        for (int64_t k = 0; k < a->t[i].count; k++) {
            const double x = a->t[i].want[k], y = b->t[i].want[k];
            if (x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= 1e-12 * scale) continue;
            fail_msg("%s: output %d, element %lld: %.17g before, %.17g after", chain, i - a->n_sources,
                     (long long)k, x, y);
        }
    }
}

/* The rewritten graph on the same tensors. */
static void compare_algebra(const char *chain, rig *r, cvy_graph *rewritten)
{
    rig other = *r;
    other.g = rewritten;
    for (int i = r->n_sources; i < r->n; i++) other.t[i].want = NULL;
    rig_reference(&other);
    assert_near(chain, r, &other);
    for (int i = r->n_sources; i < r->n; i++) free(other.t[i].want);
}

/* ---- on the engine ---- */

static void compare_engine(const trial *t, rig *r, const doubt *d, bool on)
{
    const cvy_options o = {.size = sizeof o, .device = CVY_CPU, .threads = 2};
    char off[64];
    cvy_plan *p = NULL;
    int64_t count, bad;
    double want = 0;
    float *got;
    char *printed;

    snprintf(off, sizeof off, "-%s", t->rewrite);
    if (!on) setenv("CVY_SIMPLIFY", off, 1);
    assert_ok(cvy_plan_create(r->g, &o, &p));
    unsetenv("CVY_SIMPLIFY");
    printed = rig_plan_text(p);
    if (strcmp(t->rewrite, "upsample_conv")) /* not where values are watched */
        assert_int_equal(lists(printed, t->rewrite), t->applies && (on || !strcmp(t->rewrite, "split_norm")));
    got = rig_run(r, p, &count);
    assert_non_null(got);
    bad = doubt_find(d, r, got, false, &want);
    if (bad >= 0)
        fail_msg("%s (%s %s): element %lld is %.9g, expected %.9g", t->chain, t->rewrite, on ? "on" : "off",
                 (long long)bad, (double)got[bad], want);
    free(printed);
    free(got);
    cvy_plan_free(p);
}

static void run_trial(const trial *t, uint64_t seed, void (*plant)(rig *r))
{
    cvy_graph *g = NULL, *rewritten;
    rig r;
    doubt d;
    char log[4096];

    if (cvy_graph_parse(t->chain, &g)) fail_msg("%s: %s", t->chain, cvy_last_error());
    rewritten = simplified(g, log, sizeof log);
    if (lists(log, t->rewrite) != t->applies)
        fail_msg("%s: %s %s:\n%s", t->chain, t->rewrite, t->applies ? "did not apply" : "applied", log);
    rig_open(&r, g, &seed, RIG_REAL, 0);
    if (plant) plant(&r);
    rig_reference(&r);
    compare_algebra(t->chain, &r, rewritten);
    if (doubt_dtype(g) == CVY_FLOAT32)
        doubt_open(&d, &r, seed);
    else
        doubt_open_half(&d, &r, seed, doubt_dtype(g));
    compare_engine(t, &r, &d, true);
    compare_engine(t, &r, &d, false);
    doubt_close(&d);
    rig_close(&r);
    cvy_graph_free(rewritten);
    cvy_graph_free(g);
}

static void every_rewrite(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(trials); i++) run_trial(&trials[i], (uint64_t)i + 1, NULL);
}

/* The table above has a graph for and a graph against every rewrite there is. */
static void none_left_out(void **state)
{
    (void)state;
    for (int i = 0; i < cvyi_rewrite_count; i++) {
        int taken = 0, refused = 0;
        for (int k = 0; k < COUNT_OF(trials); k++)
            if (!strcmp(trials[k].rewrite, cvyi_rewrites[i].name)) {
                taken += trials[k].applies;
                refused += !trials[k].applies;
            }
        if (!taken || !refused) fail_msg("%s: %d graphs for, %d against", cvyi_rewrites[i].name, taken, refused);
    }
}

/* ---- the sign of a norm's weight ---- */

static void plant_weights(rig *r)
{
    static const float odd[] = {-1.5f, 0, -0.0f, 2, NAN, 1e30f, -3, -1e-30f};
    int planted = 0;
    for (int i = 0; i < r->n_sources; i++) {
        if (!strstr(r->t[i].info.name, "norm.weight")) continue;
        for (int64_t k = 0; k < r->t[i].count; k++) *rig_at(&r->t[i], k) = odd[planted++ % 8];
    }
    assert_true(planted >= 8);
}

/* Maxima move before a norm whatever its weight: falling, flat, not a number. (Infinite: test_watch.c.) */
static void odd_norm_weights(void **state)
{
    static const trial some[] = {
        {"pool_before_norm", true, "x[2,3,10,10] | conv2d(8,3) | group_norm(2) | max_pool2d(2)"},
        {"pool_before_norm", true, "x[2,3,9,9] | conv2d(8,3) | group_norm(8) | max_pool2d(3,2,1)"},
        {"pool_before_norm", true, "x[2,3,10,10] | conv2d(8,3) | group_norm(2) | mul(s[8,1,1]) | max_pool2d(2)"},
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(some); i++) run_trial(&some[i], 7, plant_weights);
}

/* NaN and inf in x, before rewrites that move maxima and clamps. */
static void plant_special(rig *r)
{
    static const float special[] = {NAN, INFINITY, -INFINITY};
    for (int64_t k = 0; k < r->t[0].count; k += 7) *rig_at(&r->t[0], k) = special[k / 7 % 3];
}

static void special_inputs(void **state)
{
    static const trial some[] = {
        {"pool_before_monotone", true, "x[2,3,8,8] | relu | max_pool2d(2)"},
        {"pool_before_monotone", true, "x[2,3,8,8] | clamp(-0.5,0.5) | max_pool2d(3,2,1)"},
        {"merge_clamp", true, "x[3,40] | clamp(-0.5, 0.5) | clamp(0, 1)"},
        {"merge_clamp", true, "x[3,40] | clamp(0, 0.5) | clamp(2, 3)"},
        {"merge_number", true, "x[3,40] | mul(3) | mul(-0.5)"},
        {"merge_tanh_hardswish", true, "x[3,40] | tanh | hardswish"},
        {"reduce_one", true, "x[7,1,6] | logsumexp(1)"},
        {"reduce_one", true, "x[7,1,6] | mean(1)"},
        {"drop_identity", true, "x[7,6] | abs | mul(1)"},
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(some); i++) run_trial(&some[i], 11, plant_special);
}

/* CVY_SIMPLIFY=0 leaves what engines need and nothing else. */
static void all_off(void **state)
{
    cvy_graph *g = NULL, *rewritten;
    char log[4096];
    (void)state;
    assert_ok(cvy_graph_parse(
        "x[2,3,10,10] | conv2d(4,3) | mul(s[4,1,1]) | group_norm(2) | max_pool2d(2) | relu | relu6", &g));
    setenv("CVY_SIMPLIFY", "0", 1);
    rewritten = simplified(g, log, sizeof log);
    unsetenv("CVY_SIMPLIFY");
    for (int i = 0; i < cvyi_rewrite_count; i++)
        assert_int_equal(lists(log, cvyi_rewrites[i].name), cvyi_rewrites[i].always);
    cvy_graph_free(rewritten);
    setenv("CVY_SIMPLIFY", "-merge_clamp,-fold_conv_affine", 1);
    rewritten = simplified(g, log, sizeof log);
    unsetenv("CVY_SIMPLIFY");
    assert_false(lists(log, "merge_clamp") || lists(log, "fold_conv_affine"));
    assert_true(lists(log, "split_norm"));
    cvy_graph_free(rewritten);
    cvy_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rewrite),  cmocka_unit_test(none_left_out), cmocka_unit_test(odd_norm_weights),
        cmocka_unit_test(special_inputs), cmocka_unit_test(all_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
