/* chain_list.h - chains that between them run every kind of kernel, with the sizes that are odd for it. */
#ifndef TEST_GPU_CHAIN_LIST_H
#define TEST_GPU_CHAIN_LIST_H

#include "../support/check.h"

/* Kinds of plans for these chains, for those of files, and for compute-sanitizer. */
enum {
    EVERY_PLAN = PLAN_LIKED | PLAN_ONE_BY_ONE | PLAN_TILES | PLAN_GENERIC | PLAN_RANDOM | PLAN_RANDOM_TOO,
    FEW_PLANS = PLAN_LIKED | PLAN_GENERIC | PLAN_RANDOM,
    SANITIZED_PLANS = PLAN_LIKED | PLAN_SECOND_TILE | PLAN_GENERIC | PLAN_RANDOM
};

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
    "x[500,1300] | matmul(w[1300,5]) | relu",
    "x[3,2050] | linear(777) | gelu",
    "x[1,5000] | linear(130) | add(r[130])",
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
    /* norms whose slices stay on chip: parts of a warp, a warp, a block, shared memory; groups of four and single
       elements, whole and ragged; slices of one element; after and before other operators; a large mean */
    "x[300,8] | layer_norm(8) | relu",
    "x[70,1] | layer_norm(1)",
    "x[5,7,30] | sigmoid | layer_norm(30) | gelu",
    "x[33,1024] | layer_norm(1024) | add(r[33,1024])",
    "x[3,1028] | add(y[1028]) @a | layer_norm(1028) | mul(@a)",
    "x[3,1501] | mul(0.5) | add(1000) | layer_norm(1501) | tanh",
    "x[2,6,60,61] | group_norm(3) | mul(s[6,1,1])",
    "x[2,4,70,70] | relu | group_norm(2,affine=False)",
    "x[2,40000] | add(1000) | layer_norm(40000)",
    "x[1,2,181,183] | square | instance_norm(affine=False) | silu",
    "x[2,33333] | rms_norm(33333)",
    "x[5000] | layer_norm(5000) | neg",
    "x[2,16,13,29,29] | hardswish | group_norm(4) | mean((2,3,4))", /* 48 KB of shared memory, and a little more */
    ("x[1,10,13,4] | softmax(2) @a | logsumexp(1,keepdim=True) | clamp(-0.9,0.8) @b | batch_norm(training=True) | "
     "mean(1,keepdim=True) | instance_norm()"), /* norms of constants */
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
    /* results that several blocks share: everything, long rows of every length, leading dimensions, both */
    "x[70001] | sum()",
    "x[2,65543] | relu | logsumexp(1) | neg",
    "x[2,65600] | add(1000) | mean(1)",
    "x[2101,40] | max(0) | tanh",
    "x[300,1000] | max(0)",
    "x[3,70,36] | mul(s[36]) | mean(1)",
    "x[33,5,12] | logsumexp(0) | add(r[5,12])",
    "x[2,2100,40] | min(1,keepdim=True) | add(b[40])",
    "x[2,3,150,221] | sum((0,2,3)) | mul(s[3])",
    "x[5,1030] | softmax(1)",
    "x[5,33,19] | tanh | softmax(1) | mul(2)",
    "x[50,7] | log_softmax(-1)",
    "x[9,5] | softmax(0)",
    /* along rows that stay on chip, and one that does not */
    "x[33,1024] | softmax(1)",
    "x[7,5,24] | relu | softmax(-1) | mul(s[24])",
    "x[70,1] | softmax(1)",
    "x[3,1501] | mul(40) | log_softmax(1) | neg",
    "x[2,40000] | log_softmax(1)",
    "x[2,33333] | add(y[33333]) | softmax(1) | sqrt",
    "x[300,4] | log_softmax(1) | add(r[300,4])",
    "x[1,100001] | softmax(1)",
    /* rows without elements, and none at all */
    "x[3,0] | softmax(1)",
    "x[3,0,2] | log_softmax(1) | relu",
    "x[2,4,0] | tanh | group_norm(2)",
    "x[2,4,0] | layer_norm(0)",
    "x[0,5] | softmax(1)",
    /* elements at other places: whole groups of neighbours and single ones; before and after other operators;
       no element at all, cut off, in between */
    "x[2,3,4,8], y[2,2,4,8] | relu | cat(@y, third=@x, dim=1) | tanh",
    "x[2,3,4,5], y[2,3,4,2] | cat(@y, dim=3)",
    "x[3,2,8] | cat(p[1,2,8], third=@x)",
    "x[2,3,4,8] | permute(0,2,3,1) | slice(dim=1,start=1,end=-1,step=2) | relu",
    "x[2,4,3,5] | sigmoid | reshape(2,1,2,2,3,5) | permute(0,1,4,2,5,3) | reshape(2,1,6,10)",
    "x[2,3,16] | slice(2,4,12) | neg",
    "x[2,3,5,8] | exp | flip((1,3)) | neg",
    "x[2,3,4,5] | pad((1,2,-1,3),value=2.5) | relu",
    "x[2,3,4,8] | exp | pad((0,0,1,1,0,2)) | add(1)",
    "x[2,3,4,5] | interpolate((8,11)) | add(r[2,3,8,11])",
    "x[2,3,4,2,3] | interpolate(5)",
    "x[3,0,3] | pad((0,0,1,1),value=-inf)",
    "x[5,4] | slice(0,3,2) | cat(@x)",
    "x[7] | pad((1,2)) | slice(0,1,8,3)",
    /* pointwise, broadcasting, reshapes, several outputs */
    "x[2,3,4,5] | add(y[4,1]) | maximum(z[2,1,1,5]) | div(3) | hardtanh(-0.5,0.5)",
    "x[2,3,4,5] | sub(y[3,1,5],alpha=2) | minimum(0.3) | softsign | abs | add(0.1) | rsqrt",
    "x[2,3,4] | flatten(1) | linear(9) | reshape(2,3,3) | relu",
    "x[2,1,4] | squeeze(1) | log",
    "x[1000,1001] | mul(x2[1001]) | clamp(-1,None)",
};

/* Passes on Hopper's tensor cores; elsewhere there is nothing new to be seen of them. */
static const char *const hopper_chains[] = {
    /* tensor copies, flat tiles, streamed weights, stride 2, residuals, every sink */
    "x[2,8,20,24] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[2,8,20,24] | conv2d(32,3) | sigmoid | group_norm(8)",
    "x[2,8,20,24] | conv2d(32,3) | group_norm(8) | add(r[32,18,22]) | relu",
    "x[3,8,19,23] | conv2d(48,3) | group_norm(3) | max_pool2d(2) | relu",
    "x[2,16,24,24] | conv2d(64,3) | relu | max_pool2d(2)",
    "x[2,256,12,12] | conv2d(64,3) | relu",
    "x[2,128,9,9] | conv2d(128,3) | group_norm(8) | silu",
    "x[4,16,33,31] | conv2d(40,3,stride=2,padding=1) | hardswish | min(1)",
    "x[4,24,32,32] | conv2d(100,3,stride=2) | gelu | max(1)",
    "x[4,3,32,32] | conv2d(64,7,stride=2,padding=3) | batch_norm | relu | max_pool2d(2)",
    "x[2,8,40] | conv1d(64,5) | instance_norm | silu",
    "x[2,12,28,28] | conv2d(16,5,padding=2) | mish | group_norm(4) | relu",
    "x[3,8,21,23] | conv2d(16,3) | relu | mean(1)",
    /* tiles in halves; the convolution's own result after a norm of something else; cheaper forms of operators */
    "x[10,8,42,160] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[31,8,70,40] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[10,8,42,130] | conv2d(40,3) | relu | add(0.5) | logsumexp(1)",
    "x[3,8,20,24] | conv2d(96,3) @c | mul(s[96,1,1]) | group_norm(8) | add(@c) | relu",
    "x[10,8,42,129] | conv2d(64,3) @c | sigmoid | group_norm(16) | add(@c) | logsumexp(1)",
    "x[10,8,42,130] | conv2d(32,3) | sub(200) | logsumexp(1)", /* half of the warps without a channel */
    "x[10,8,42,130] | conv2d(40,3) @c | mul(s[40,1,1]) | group_norm(8) | add(@c) | sub(200) | logsumexp(1)",
    "x[6,64,30,30] | conv2d(64,3) | instance_norm | max_pool2d(4)", /* a strip of one tile */
    "x[2,8,17,19] | conv2d(48,3) | gelu | group_norm(8) | elu | mish | selu | softplus | gelu('tanh')",
    /* whole rows by copies: padded, ragged channels, an end inside 16 bytes, rows of one element; streamed, stride
       2, results stored by two warps */
    "x[9,64,21,57] | conv2d(64,3,padding=1) | relu",
    "x[7,3,29,37] | conv2d(48,5,padding=2) | group_norm(3) | silu",
    "x[5,5,33,1] | conv2d(24,(3,1)) | tanh",
    "x[3,64,23,61] | conv2d(40,5,stride=2,padding=1) | group_norm(8)",
    "x[3,72,16,245] | conv2d(200,3,stride=2) | leaky_relu(0.1)",
    "x[2,13,7,9] | conv2d(80,3,padding=1) | max(1)",
    /* the same: a stage with a slice too many; rows below the image and past x's end; then strips of one tile */
    "x[9,24,29,37] | conv2d(48,3,padding=1) | relu",
    "x[5,9,29,37] | conv2d(48,5,stride=2) | group_norm(16)",
    "x[16,8,20,24] | conv2d(48,3) | group_norm(16) | max_pool2d(2)",
    "x[2,8,20,24] | add(3) | conv2d(32,3) | sigmoid | group_norm(8)", /* values far from zero */
    /* sigmoid as a tanh, with another eps; not where something else reads it; beside the convolution itself */
    "x[5,8,20,64] | conv2d(32,3) | sigmoid | group_norm(8,eps=0.1)",
    "x[5,8,20,24] | conv2d(40,3) | sigmoid @s | group_norm(8) | mul(@s)",
    "x[5,8,20,24] | conv2d(64,3) @c | sigmoid | group_norm(8) | mul(@c)",
    "x[5,8,22,24] | conv2d(64,3) | sigmoid | group_norm(8) | max_pool2d(2)",
    /* streamed weights of several blocks of channels at once, all of them or half */
    "x[3,72,19,30] | conv2d(250,3) | relu",
    "x[2,256,20,20] | conv2d(256,3) | add(b[256,1,1]) | sigmoid | group_norm(64)",
    "x[2,72,13,64] | conv2d(130,3) | logsumexp(1)",
    "x[3,128,14,14] | conv2d(128,3) | group_norm(8) | relu",
    "x[2,64,33,97] | conv2d(216,3,stride=2) | elu | add(r[216,16,48])",
    /* pooled strips of columns, the last of them narrower than a window; long sums */
    "x[2,8,14,512] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[2,64,14,132] | conv2d(64,3) | group_norm(8) | max_pool2d(4) | relu",
    "x[2,64,12,12] | conv2d(48,7) | relu",
    /* matrix products with a parameter: one row, odd rows and columns, terms that leave a step half full, several
       tiles and clusters, more steps than stages, [k][n], whole tiles that are no whole cluster */
    "x[1,64] | linear(8) | relu",
    "x[300,132] | linear(200) | gelu",
    /* words of 16 bits: two inputs, batches, sums in parts, ragged on every side */
    "x[700,1024], y[1024,500] | matmul(@y) | relu",
    "x[20,9000] | linear(72) | silu",
    "x[6,300,1024], y[6,1024,131] | matmul(@y) | add(r[131])",
    "x[1000,1030] | linear(401) | gelu",
    "x[5,4,1024] | linear(1001) | add(r[5,4,1001])",
    "x[77,36] | linear(52,bias=False) @l | sigmoid | mul(@l)",
    "x[600,352] | matmul(w[352,300]) | silu",
    "x[2050,512] | linear(520) | hardswish",
    "x[260,128] | linear(192) | relu",
    /* few rows or columns: terms that are neighbours, or lines; one line in many parts, and in parts of odd length;
       warps that share a line; lines that begin anywhere */
    "x[7,1500], y[1500,200] | matmul(@y) | silu",
    "x[3,2,700], y[3,700,130] | matmul(@y)",
    "x[8,1304] | linear(77) | gelu",
    "x[130,1024] | matmul(w[1024,5]) | relu",
    "x[600,1201], y[1201,1] | matmul(@y)",
    "x[1,60001], y[60001,1] | matmul(@y) | relu",
    "x[3,1,9000], y[3,9000,1] | matmul(@y)",
    "x[6,5,520] | matmul(w[520,2]) | add(r[6,5,2])",
    /* many channels: fp16 words, sums that several blocks share, dilation */
    "x[2,128,24,24] | conv2d(128,3,padding=1) | gelu",
    "x[2,520,7,7] | conv2d(250,3,padding=1) | add(r[250,7,7]) | relu",
    "x[1,200,30,30] | conv2d(130,3,padding=2,dilation=2) | silu",
    "x[4,256,14,14] | conv2d(256,3,stride=2,padding=1) | add(r[256,7,7])",
    "x[4,128,9,10] | conv_transpose2d(128,3,stride=2,padding=1,output_padding=1) | relu",
};

/* For compute-sanitizer, which takes its time: small, and between them every kernel file and every form of a pass
 * on tensor cores (test/unit/test_cuda_cover.c). */
static const char *const sanitized[] = {
    "x[3,2050] | linear(777) | gelu",
    "x[700,1024], y[1024,500] | matmul(@y) | relu",
    "x[20,9000] | linear(72) | silu",
    "x[7,520], y[520,133] | matmul(@y) | silu",
    "x[1,20001], y[20001,1] | matmul(@y) | relu",
    "x[40,1201] | matmul(w[1201,3])",
    /* tensor cores: several strips for each block, so that every ring goes round */
    "x[40,8,20,24] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[24,8,20,24] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[24,8,20,24] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
    "x[10,8,40,130] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[4,8,20,24] | conv2d(96,3) @c | mul(s[96,1,1]) | group_norm(8) | add(@c) | relu",
    /* pointwise after tensors of one's own; groups that are no power of two; odd extents; many channels; strides
     */
    "x[2,8,20,24] | conv2d(32,3) | group_norm(8) | add(r[32,18,22]) | relu",
    "x[3,8,19,23] | conv2d(48,3) | group_norm(3) | max_pool2d(2) | relu",
    "x[2,16,24,24] | conv2d(64,3) | relu | max_pool2d(2)",
    "x[2,256,12,12] | conv2d(64,3) | relu",
    "x[2,128,9,9] | conv2d(128,3) | group_norm(8) | silu",
    "x[4,16,17,15] | conv2d(40,3,stride=2,padding=1) | hardswish | min(1)",
    "x[4,24,16,16] | conv2d(100,3,stride=2) | group_norm(10) | gelu | max(1)",
    "x[4,3,32,32] | conv2d(64,7,stride=2,padding=3) | batch_norm | relu | max_pool2d(2)",
    "x[2,8,40] | conv1d(64,5) | instance_norm | silu",
    "x[9,20,21,57] | conv2d(64,3,padding=1) | relu",
    "x[7,3,29,37] | conv2d(48,5,padding=2) | group_norm(3) | silu",
    "x[1,72,7,245] | conv2d(200,3,stride=2) | leaky_relu(0.1)",
    "x[2,9,29,37] | conv2d(48,5,stride=2) | group_norm(16)",
    "x[130,324] | linear(136) | gelu",
    "x[1,128,20,20] | conv2d(128,3,padding=1) | gelu",
    "x[1,520,5,5] | conv2d(72,3,padding=1) | relu",
    /* everything else */
    "x[2,16,9,10] | conv2d(40,3,padding=1,groups=4) | gelu",
    "x[2,12,14,13] | conv2d(12,3,padding=1,groups=12) | hardswish",
    "x[1,5,9,11] | conv2d(7,(3,2),stride=(2,1),padding=(1,2),dilation=(1,2)) | silu",
    "x[2,4,6,7,8] | conv3d(18,3,padding=1,stride=(1,2,1)) | elu(0.7)",
    "x[2,8,7,9] | conv_transpose2d(20,3,stride=2,padding=1,output_padding=1) | softplus",
    "x[30,37] | linear(65) | gelu('tanh') | add(r[30,65])",
    "x[4,6,7] | matmul(w[7])",
    "x[2,3,17,19] | matmul(w[3,19,23]) | abs",
    "x[4,12,5,6] | batch_norm(training=True) | relu",
    "x[4,5,24] | layer_norm(24) | tanh",
    "x[2,8,70,71] | group_norm(2) | neg",
    "x[2,3,300,301] | group_norm(1) | neg",
    "x[2,40001] | layer_norm(40001)",
    "x[2,3,17,19] | relu | max_pool2d(3,2,1) | exp",
    "x[2,3,17,19] | avg_pool2d(3,2,1,ceil_mode=True) | sqrt",
    "x[2,3,17,19] | sigmoid | adaptive_avg_pool2d(1) | relu6",
    "x[2,3,4,8], y[2,2,4,8] | relu | cat(@y, third=@x, dim=1) | tanh",
    "x[2,3,4,5] | pad((1,2,-1,3),value=2.5) | permute(0,2,3,1) | slice(dim=1,start=1,end=-1,step=2)",
    "x[2,3,4,5] | interpolate((8,11)) | add(r[2,3,8,11])",
    "x[5,33,19] | mean(1) | hardsigmoid",
    "x[5,1030,19] | logsumexp(1)",
    "x[3,7,40] | sum()",
    "x[2,65543] | logsumexp(1) | neg",
    "x[2101,40] | max(0) | tanh",
    "x[3,70,36] | mul(s[36]) | mean(1)",
    "x[5,33,19] | tanh | softmax(1) | mul(2)",
    "x[2,33333] | softmax(1)",
    "x[30,24] | log_softmax(1)",
    "x[2,3,4] | flatten(1) | linear(9) | reshape(2,3,3) | relu",
};

/* Blocks A, B and C as they are measured (C with a quarter of its samples: a GiB takes long to compare). */
static const char *const large[] = {
    "x[128,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[128,8,128,128] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[32,8,256,256] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
};

/* More batches, groups and samples than a grid has blocks in y or z, and sums that fill the device: too much for
 * the emulator. */
static const char *const full[] = {
    "x[66000,2,3] | matmul(w[66000,3,5]) | relu",
    "x[1,500000], y[500000,1] | matmul(@y)",
    "x[4096,4096] | matmul(w[4096]) | relu",
    "x[7,4096] | linear(4100)",
    "x[1,66000,4] | conv1d(66000,3,groups=66000) | relu",
    "x[66000,2,4] | conv1d(2,3,groups=2)",
    "x[5,3000001] | square | sum()",
    "x[300007,40] | logsumexp(0)",
    "x[4000,100000] | max(0)",
    "x[500000] | mean(0)",
};

#endif
