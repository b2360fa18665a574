"""Chain text evaluated by PyTorch: an independent reading of the same text that libconvoy parses.

A stage is Python enough for `ast` to read it. Each operator is a function below whose keywords, order and defaults are
those of the chain text, so that the tests also compare them with the library's own signatures.
"""

import ast
import inspect
import re

import torch
import torch.nn.functional as F

OPERATORS = {}


def operator(*names):
    def register(function):
        for name in names:
            OPERATORS[name] = function
        return function

    return register


class Call:
    """What an operator's function is handed: its name, the running value, and its tensors by name."""

    def __init__(self, op, x, given, node, tensors):
        self.op, self.x, self.given, self.node, self.tensors = op, x, given, node, tensors
        self.used = set()

    def tensor(self, name, wanted=True):
        """The tensor handed over as an argument, else the node's natural parameter."""
        if not wanted:
            return None
        if name in self.given:
            return self.given[name]
        full = f"{self.node}.{name}"
        self.used.add(full)
        return self.tensors[full]


@operator("conv1d", "conv2d", "conv3d")
def conv(c, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True):
    weight = c.tensor("weight")
    assert weight.shape[0] == out_channels
    return getattr(F, c.op)(c.x, weight, c.tensor("bias", bias), stride, padding, dilation, groups)


@operator("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convt(c, out_channels, kernel_size, stride=1, padding=0, output_padding=0, groups=1, dilation=1, bias=True):
    weight = c.tensor("weight")
    assert weight.shape[1] * groups == out_channels
    return getattr(F, c.op)(
        c.x, weight, c.tensor("bias", bias), stride, padding, output_padding, groups, dilation
    )


@operator("linear")
def linear(c, out_features, bias=True):
    return F.linear(c.x, c.tensor("weight"), c.tensor("bias", bias))


@operator("matmul")
def matmul(c, other=None):
    return torch.matmul(c.x, c.tensor("other"))


@operator("group_norm")
def group_norm(c, num_groups, eps=1e-05, affine=True):
    return F.group_norm(c.x, num_groups, c.tensor("weight", affine), c.tensor("bias", affine), eps)


@operator("batch_norm")
def batch_norm(c, training=False, momentum=0.1, eps=1e-05, affine=True):
    mean, var = c.tensor("running_mean", not training), c.tensor("running_var", not training)
    return F.batch_norm(
        c.x, mean, var, c.tensor("weight", affine), c.tensor("bias", affine), training, momentum, eps
    )


@operator("instance_norm")
def instance_norm(c, eps=1e-05, affine=False):
    if c.x.shape[0] == 0:  # PyTorch 2.13 indexes past the end here when it has a weight
        c.tensor("weight", affine), c.tensor("bias", affine)
        return c.x
    return F.instance_norm(c.x, weight=c.tensor("weight", affine), bias=c.tensor("bias", affine), eps=eps)


@operator("layer_norm")
def layer_norm(c, normalized_shape, eps=1e-05, affine=True, bias=True):
    return F.layer_norm(
        c.x, listed(normalized_shape), c.tensor("weight", affine), c.tensor("bias", affine and bias), eps
    )


@operator("rms_norm")
def rms_norm(c, normalized_shape, eps=None, affine=True):
    # The library's tensors are float32, so its default is float32's epsilon also where this runs in float64.
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return F.rms_norm(c.x, listed(normalized_shape), c.tensor("weight", affine), eps)


@operator("relu", "relu6", "selu", "silu", "mish", "hardsigmoid", "hardswish", "softsign")
def activation(c):
    return getattr(F, c.op)(c.x)


@operator("sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "neg", "abs", "square", "erf")
def function(c):
    return getattr(torch, c.op)(c.x)


@operator("leaky_relu")
def leaky_relu(c, negative_slope=0.01):
    return F.leaky_relu(c.x, negative_slope)


@operator("elu")
def elu(c, alpha=1.0):
    return F.elu(c.x, alpha)


@operator("gelu")
def gelu(c, approximate="none"):
    return F.gelu(c.x, approximate=approximate)


@operator("cast")
def cast(c, dtype):
    return c.x  # chains are evaluated in the dtype of their tensors


@operator("hardtanh")
def hardtanh(c, min_val=-1.0, max_val=1.0):
    return F.hardtanh(c.x, min_val, max_val)


@operator("softplus")
def softplus(c, beta=1, threshold=20):
    return F.softplus(c.x, beta, threshold)


@operator("clamp")
def clamp(c, min=None, max=None):
    return torch.clamp(c.x, min, max)


@operator("add", "sub")
def additive(c, other=None, alpha=1):
    return getattr(torch, c.op)(c.x, c.tensor("other") if other is None else other, alpha=alpha)


@operator("mul", "div")
def multiplicative(c, other=None):
    return getattr(torch, c.op)(c.x, c.tensor("other") if other is None else other)


@operator("maximum", "minimum")
def extreme_of_two(c, other=None):
    # torch.maximum takes tensors alone; a number is a tensor without dimensions.
    other = c.tensor("other") if other is None else torch.tensor(other, dtype=c.x.dtype)
    return getattr(torch, c.op)(c.x, other)


@operator("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(c, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
    return getattr(F, c.op)(c.x, kernel_size, stride, padding, dilation, ceil_mode)


@operator("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    c, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
):
    extra = () if c.op == "avg_pool1d" else (divisor_override,)
    return getattr(F, c.op)(c.x, kernel_size, stride, padding, ceil_mode, count_include_pad, *extra)


@operator("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(c, output_size):
    return getattr(F, c.op)(c.x, output_size)


@operator("sum", "mean", "max", "min", "logsumexp")
def reduction(c, dim=None, keepdim=False):
    # max and min of PyTorch that take several dims are called amax and amin.
    reduce = getattr(torch, {"max": "amax", "min": "amin"}.get(c.op, c.op))
    return reduce(c.x, tuple(range(c.x.dim())) if dim is None else listed(dim), keepdim=keepdim)


@operator("softmax", "log_softmax")
def softmax(c, dim):
    return getattr(F, c.op)(c.x, dim)


@operator("reshape")
def reshape(c, *shape):
    return torch.reshape(c.x, listed(shape[0]) if len(shape) == 1 else shape)


@operator("flatten")
def flatten(c, start_dim=0, end_dim=-1):
    return torch.flatten(c.x, start_dim, end_dim)


@operator("squeeze")
def squeeze(c, dim=None):
    return torch.squeeze(c.x) if dim is None else torch.squeeze(c.x, listed(dim))


@operator("unsqueeze")
def unsqueeze(c, dim):
    return torch.unsqueeze(c.x, dim)


@operator("dropout")
def dropout(c, p=0.5):
    return F.dropout(c.x, p, training=False)


JOINED = ("other", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@operator("cat")
def cat(c, other=None, dim=0):
    return torch.cat([c.x, *(c.given[name] for name in JOINED if name in c.given)], dim)


@operator("slice")
def cut(c, dim=0, start=0, end=None, step=1):
    return torch.ops.aten.slice.Tensor(c.x, dim, start, end, step)


@operator("permute")
def permute(c, *dims):
    return torch.permute(c.x, listed(dims[0]) if len(dims) == 1 else dims)


@operator("flip")
def flip(c, *dims):
    return torch.flip(c.x, listed(dims[0]) if len(dims) == 1 else dims)


@operator("expand")
def expand(c, *shape):
    return c.x.expand(listed(shape[0]) if len(shape) == 1 else shape)


@operator("pad")
def pad(c, pad, value=0):
    return F.pad(c.x, listed(pad), value=value)


@operator("interpolate")
def interpolate(c, size, mode="nearest"):
    return F.interpolate(c.x, size=size, mode=mode)


def listed(numbers):
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)


# ---- reading ----

TENSORS = {
    "running": ("running_mean", "running_var", "weight", "bias"),
    "other": ("other",),
    "weight_bias": ("weight", "bias"),
    "joined": JOINED,
}


def tensor_names(op):
    if op == "batch_norm":
        return TENSORS["running"]
    if op == "cat":
        return TENSORS["joined"]
    if op in ("matmul", "add", "sub", "mul", "div", "maximum", "minimum"):
        return TENSORS["other"]
    return TENSORS["weight_bias"]


def literal(expression, tensors, values):
    """An argument: a number, a word, a list, a parameter `w[3,1]` or a value `@c` (already turned into at("c"))."""
    if isinstance(expression, ast.Subscript):
        return tensors[expression.value.id]
    if isinstance(expression, ast.Call):
        return values[expression.args[0].value]
    if isinstance(expression, ast.Name):
        return float(expression.id)  # inf, nan
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.operand, ast.Name):
        return -float(expression.operand.id)
    return ast.literal_eval(expression)


def read_call(text):
    """`op(1, k=2) @name` as operator, positional expressions, keyword expressions, name."""
    body, name = re.fullmatch(r"(\w+(?:\s*\(.*\))?)\s*(?:@([\w.]+))?", text.strip(), re.S).groups()
    tree = ast.parse(re.sub(r"@([\w.]+)", r'at("\1")', body), mode="eval").body
    if isinstance(tree, ast.Name):
        return tree.id, [], {}, name
    return tree.func.id, tree.args, {k.arg: k.value for k in tree.keywords}, name


def evaluate(text, tensors):
    """The outputs of a chain by PyTorch, in the dtype of `tensors` (by name), and the names that were used."""
    stages = [s.strip() for s in text.split("|")]
    inputs = re.findall(r"(\w+)\s*\[", stages[0])
    values = dict(tensors)
    used = set(inputs)
    x, outputs = values[inputs[0]], None
    for stage in stages[1:]:
        if stage.startswith("@"):
            x = values[stage[1:]]
            continue
        op, positional, keywords, name = read_call(stage)
        if op == "output":
            outputs = [values[e.args[0].value] for e in positional]
            break
        used |= set(re.findall(r"(\w+)\s*\[", stage))
        node = name or next(n for n in numbered(op) if n not in values)
        args = [literal(e, tensors, values) for e in positional]
        kwargs = {k: literal(e, tensors, values) for k, e in keywords.items()}
        given = dict(zip(tensor_names(op), (a for a in args if isinstance(a, torch.Tensor))))
        given |= {k: v for k, v in kwargs.items() if isinstance(v, torch.Tensor)}
        call = Call(op, x, given, node, tensors)
        x = OPERATORS[op](
            call,
            *(a for a in args if not isinstance(a, torch.Tensor)),
            **{k: v for k, v in kwargs.items() if not isinstance(v, torch.Tensor)},
        )
        values[node] = x
        used |= call.used
    return (outputs or [x]), used


def numbered(op):
    yield op
    for i in range(2, 1000):
        yield f"{op}_{i}"


def signature(op):
    """As the library prints it: name(attribute, attribute=default)."""
    parameters = list(inspect.signature(OPERATORS[op]).parameters.values())[1:]
    text = op + str(inspect.Signature(parameters))
    # `other` has a default here only because a tensor takes its place; reshape and permute take a list or its numbers.
    return text.replace("other=None", "other").replace("*shape", "shape").replace("*dims", "dims")
