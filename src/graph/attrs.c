/* attrs.c - attributes and tensor arguments of every operator family, and the operator table made of them.
 *
 * Names, order and defaults are those of torch.nn.functional. If an optional tensor of PyTorch (weight=None)
 * decides by its presence, a True/False attribute (bias, affine) decides here. */
#include <string.h>
#include "graph.h"

#define REQUIRED      true, NULL, NULL
#define DEFAULT(text) false, NULL, text
#define NONE          false, NULL, "None"

static const attr_def conv_attrs[] = {
    {"out_channels", ATTR_INT, REQUIRED},     {"kernel_size", ATTR_SPATIAL, REQUIRED},
    {"stride", ATTR_SPATIAL, DEFAULT("1")},   {"padding", ATTR_PADDING, DEFAULT("0")},
    {"dilation", ATTR_SPATIAL, DEFAULT("1")}, {"groups", ATTR_INT, DEFAULT("1")},
    {"bias", ATTR_BOOL, DEFAULT("True")},
};
static const attr_def convt_attrs[] = {
    {"out_channels", ATTR_INT, REQUIRED},           {"kernel_size", ATTR_SPATIAL, REQUIRED},
    {"stride", ATTR_SPATIAL, DEFAULT("1")},         {"padding", ATTR_SPATIAL, DEFAULT("0")},
    {"output_padding", ATTR_SPATIAL, DEFAULT("0")}, {"groups", ATTR_INT, DEFAULT("1")},
    {"dilation", ATTR_SPATIAL, DEFAULT("1")},       {"bias", ATTR_BOOL, DEFAULT("True")},
};
static const attr_def linear_attrs[] = {
    {"out_features", ATTR_INT, REQUIRED},
    {"bias", ATTR_BOOL, DEFAULT("True")},
};
static const attr_def group_norm_attrs[] = {
    {"num_groups", ATTR_INT, REQUIRED},
    {"eps", ATTR_NUMBER, DEFAULT("1e-05")},
    {"affine", ATTR_BOOL, DEFAULT("True")},
};
static const attr_def batch_norm_attrs[] = {
    {"training", ATTR_BOOL, DEFAULT("False")},
    {"momentum", ATTR_NUMBER, DEFAULT("0.1")},
    {"eps", ATTR_NUMBER, DEFAULT("1e-05")},
    {"affine", ATTR_BOOL, DEFAULT("True")},
};
static const attr_def instance_norm_attrs[] = {
    {"eps", ATTR_NUMBER, DEFAULT("1e-05")},
    {"affine", ATTR_BOOL, DEFAULT("False")},
};
static const attr_def layer_norm_attrs[] = {
    {"normalized_shape", ATTR_DIMS, REQUIRED},
    {"eps", ATTR_NUMBER, DEFAULT("1e-05")},
    {"affine", ATTR_BOOL, DEFAULT("True")},
    {"bias", ATTR_BOOL, DEFAULT("True")},
};
static const attr_def rms_norm_attrs[] = {
    {"normalized_shape", ATTR_DIMS, REQUIRED},
    {"eps", ATTR_NUMBER, NONE},
    {"affine", ATTR_BOOL, DEFAULT("True")},
};
static const attr_def leaky_relu_attrs[] = {{"negative_slope", ATTR_NUMBER, DEFAULT("0.01")}};
static const attr_def elu_attrs[] = {{"alpha", ATTR_NUMBER, DEFAULT("1.0")}};
static const attr_def gelu_attrs[] = {{"approximate", ATTR_WORD, false, "none|tanh", "none"}};
static const attr_def hardtanh_attrs[] = {
    {"min_val", ATTR_NUMBER, DEFAULT("-1.0")},
    {"max_val", ATTR_NUMBER, DEFAULT("1.0")},
};
static const attr_def softplus_attrs[] = {
    {"beta", ATTR_NUMBER, DEFAULT("1")},
    {"threshold", ATTR_NUMBER, DEFAULT("20")},
};
static const attr_def clamp_attrs[] = {{"min", ATTR_NUMBER, NONE}, {"max", ATTR_NUMBER, NONE}};
/* In the order of cvy_dtype. */
static const attr_def cast_attrs[] = {{"dtype", ATTR_WORD, true, "fp32|fp16|bf16", NULL}};
static const attr_def binary_attrs[] = {{"other", ATTR_NUMBER, NONE}};
static const attr_def binary_alpha_attrs[] = {{"other", ATTR_NUMBER, NONE}, {"alpha", ATTR_NUMBER, DEFAULT("1")}};
static const attr_def max_pool_attrs[] = {
    {"kernel_size", ATTR_SPATIAL, REQUIRED},    {"stride", ATTR_SPATIAL, NONE},
    {"padding", ATTR_SPATIAL, DEFAULT("0")},    {"dilation", ATTR_SPATIAL, DEFAULT("1")},
    {"ceil_mode", ATTR_BOOL, DEFAULT("False")},
};
static const attr_def avg_pool_attrs[] = {
    {"kernel_size", ATTR_SPATIAL, REQUIRED},           {"stride", ATTR_SPATIAL, NONE},
    {"padding", ATTR_SPATIAL, DEFAULT("0")},           {"ceil_mode", ATTR_BOOL, DEFAULT("False")},
    {"count_include_pad", ATTR_BOOL, DEFAULT("True")}, {"divisor_override", ATTR_INT, NONE},
};
static const attr_def adaptive_attrs[] = {{"output_size", ATTR_SPATIAL, REQUIRED}};
static const attr_def reduce_attrs[] = {{"dim", ATTR_DIMS, NONE}, {"keepdim", ATTR_BOOL, DEFAULT("False")}};
static const attr_def softmax_attrs[] = {{"dim", ATTR_INT, REQUIRED}};
static const attr_def reshape_attrs[] = {{"shape", ATTR_DIMS, REQUIRED}};
static const attr_def flatten_attrs[] = {{"start_dim", ATTR_INT, DEFAULT("0")},
                                         {"end_dim", ATTR_INT, DEFAULT("-1")}};
static const attr_def squeeze_attrs[] = {{"dim", ATTR_DIMS, NONE}};
static const attr_def unsqueeze_attrs[] = {{"dim", ATTR_INT, REQUIRED}};
static const attr_def dropout_attrs[] = {{"p", ATTR_NUMBER, DEFAULT("0.5")}};
static const attr_def cat_attrs[] = {{"dim", ATTR_INT, DEFAULT("0")}};
static const attr_def slice_attrs[] = {
    {"dim", ATTR_INT, DEFAULT("0")},
    {"start", ATTR_INT, DEFAULT("0")},
    {"end", ATTR_INT, NONE},
    {"step", ATTR_INT, DEFAULT("1")},
};
static const attr_def permute_attrs[] = {{"dims", ATTR_DIMS, REQUIRED}};
static const attr_def pad_attrs[] = {{"pad", ATTR_DIMS, REQUIRED}, {"value", ATTR_NUMBER, DEFAULT("0")}};
static const attr_def interpolate_attrs[] = {{"size", ATTR_DIMS, REQUIRED},
                                             {"mode", ATTR_WORD, false, "nearest", "nearest"}};
/* A norm that was split: its norm_geom, except for outer, which follows from x. */
static const attr_def norm_stats_attrs[] = {
    {"groups", ATTR_INT, REQUIRED},
    {"chan", ATTR_INT, REQUIRED},
    {"inner", ATTR_INT, REQUIRED},
    {"eps", ATTR_NUMBER, DEFAULT("1e-05")},
    {"over_outer", ATTR_BOOL, DEFAULT("False")},
    {"centred", ATTR_BOOL, DEFAULT("True")},
};
static const attr_def norm_apply_attrs[] = {
    {"groups", ATTR_INT, REQUIRED},
    {"chan", ATTR_INT, REQUIRED},
    {"inner", ATTR_INT, REQUIRED},
    {"over_outer", ATTR_BOOL, DEFAULT("False")},
};

static const char *const weight_bias_tensors[] = {"weight", "bias"};
static const char *const weight_only_tensors[] = {"weight"};
static const char *const running_tensors[] = {"running_mean", "running_var", "weight", "bias"};
static const char *const other_tensors[] = {"other"};
static const char *const joined_tensors[] = {"other", "third", "fourth", "fifth", "sixth", "seventh", "eighth"};
static const char *const sign_tensors[] = {"sign"};
static const char *const stats_weight_bias_tensors[] = {"stats", "weight", "bias"};

/* "none" in either column of ops.def. */
#define none_attrs NULL
#define MONO       FLAG_MONO
#define INTERNAL   FLAG_INTERNAL
#define SLOW       FLAG_SLOW

enum {
    SIZE_none = 0,
    SIZE_conv = COUNT_OF(conv_attrs),
    SIZE_convt = COUNT_OF(convt_attrs),
    SIZE_linear = COUNT_OF(linear_attrs),
    SIZE_group_norm = COUNT_OF(group_norm_attrs),
    SIZE_batch_norm = COUNT_OF(batch_norm_attrs),
    SIZE_instance_norm = COUNT_OF(instance_norm_attrs),
    SIZE_layer_norm = COUNT_OF(layer_norm_attrs),
    SIZE_rms_norm = COUNT_OF(rms_norm_attrs),
    SIZE_leaky_relu = COUNT_OF(leaky_relu_attrs),
    SIZE_elu = COUNT_OF(elu_attrs),
    SIZE_gelu = COUNT_OF(gelu_attrs),
    SIZE_hardtanh = COUNT_OF(hardtanh_attrs),
    SIZE_softplus = COUNT_OF(softplus_attrs),
    SIZE_clamp = COUNT_OF(clamp_attrs),
    SIZE_cast = COUNT_OF(cast_attrs),
    SIZE_binary = COUNT_OF(binary_attrs),
    SIZE_binary_alpha = COUNT_OF(binary_alpha_attrs),
    SIZE_max_pool = COUNT_OF(max_pool_attrs),
    SIZE_avg_pool = COUNT_OF(avg_pool_attrs),
    SIZE_adaptive = COUNT_OF(adaptive_attrs),
    SIZE_reduce = COUNT_OF(reduce_attrs),
    SIZE_softmax = COUNT_OF(softmax_attrs),
    SIZE_reshape = COUNT_OF(reshape_attrs),
    SIZE_flatten = COUNT_OF(flatten_attrs),
    SIZE_squeeze = COUNT_OF(squeeze_attrs),
    SIZE_unsqueeze = COUNT_OF(unsqueeze_attrs),
    SIZE_dropout = COUNT_OF(dropout_attrs),
    SIZE_cat = COUNT_OF(cat_attrs),
    SIZE_slice = COUNT_OF(slice_attrs),
    SIZE_permute = COUNT_OF(permute_attrs),
    SIZE_pad = COUNT_OF(pad_attrs),
    SIZE_interpolate = COUNT_OF(interpolate_attrs),
    SIZE_norm_stats = COUNT_OF(norm_stats_attrs),
    SIZE_norm_apply = COUNT_OF(norm_apply_attrs),
    TENSORS_none = 0,
    TENSORS_weight_bias = 2,
    TENSORS_weight_only = 1,
    TENSORS_running = 4,
    TENSORS_other = 1,
    TENSORS_joined = COUNT_OF(joined_tensors),
    TENSORS_sign = 1,
    TENSORS_stats_weight_bias = 3,
};
#define none_tensors NULL

const op_info cvyi_ops[OP_COUNT] = {
#define OP(name, kind, spatial, attributes, tensors, reference, flags)                                             \
    {#name,                                                                                                        \
     KIND_##kind,                                                                                                  \
     spatial,                                                                                                      \
     flags,                                                                                                        \
     SIZE_##attributes,                                                                                            \
     TENSORS_##tensors,                                                                                            \
     attributes##_attrs,                                                                                           \
     tensors##_tensors},
#include "ops.def"
#undef OP
};

op_id cvyi_op_find(const char *name, size_t len)
{
    int i;
    for (i = 0; i < OP_COUNT; i++) {
        const op_info *op = &cvyi_ops[i];
        if (!(op->flags & FLAG_INTERNAL) && strlen(op->name) == len && !memcmp(op->name, name, len)) break;
    }
    return (op_id)i;
}

cvy_status cvyi_op_unknown(const char *name, size_t len)
{
    nearest near = {.word = name, .length = len};
    const bool cut = len > 30;
    for (int i = 0; i < OP_COUNT; i++)
        if (!(cvyi_ops[i].flags & FLAG_INTERNAL)) cvyi_near_try(&near, cvyi_ops[i].name);
    cvyi_fail(CVY_INVALID, "there is no operator '%.*s%s'", cut ? 30 : (int)len, name, cut ? "..." : "");
    return near.best ? cvyi_fail_more(CVY_INVALID, "; did you mean '%s'?", near.best) : CVY_INVALID;
}

const attr_value *cvyi_attr(const node *n, const char *name)
{
    const op_info *op = cvyi_info(n);
    const attr_value *found = NULL;
    for (int i = 0; i < op->n_attrs && !found; i++)
        if (!strcmp(op->attrs[i].name, name)) found = &n->attr[i];
    return found;
}

bool cvyi_attr_true(const node *n, const char *name)
{
    const attr_value *a = cvyi_attr(n, name);
    return a && a->count && a->i[0];
}
