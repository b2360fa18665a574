"""Which of PyTorch's operators Convoy supports, and how each is written in its vocabulary.

Models are captured as ATen operators before the dispatcher, where functional, method, module and in-place forms
look the same. A rule takes the operator's arguments by name and emits steps; it refuses by raising Refused with the
reason, which `convoy.explain` prints. The library checks everything else (shapes, ranges, ranks).
"""

import operator

import torch
from torch.fx import Node

from .engine import DTYPES, ConvoyError, operators
from .program import Program, name_of, word_of

RULES = {}


class Refused(Exception):
    """Why an operator stays in PyTorch."""


def rule(*names):
    def register(function):
        for name in names:
            packet, _, overload = name.partition(".")
            # a name that this PyTorch does not have never occurs
            found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if found is not None:
                RULES[found] = function
        return function

    return register


class Bound:
    """Arguments of one call by name. Tensors are nodes of the captured graph."""

    def __init__(self, node):
        schema = node.target._schema
        given = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        given.update(zip((a.name for a in schema.arguments), node.args))
        given.update(node.kwargs)
        self.__dict__.update(given)
        self.name = schema.name.partition("::")[2]


class Emitter:
    """Turns nodes into values of a program. `number(node)` is a node's value."""

    def __init__(self, program, number):
        self.program, self.number = program, number

    def __call__(self, op, *tensors, **attrs):
        values = [self.number(t) if isinstance(t, Node) else t for t in tensors]
        while values and values[-1] is None:
            values.pop()
        return self.program.emit(op, *values, **attrs)


def shape_of(node):
    return tuple(node.meta["val"].shape)


def even(numbers):
    """One number if it is the same along all axes."""
    same = isinstance(numbers, (list, tuple)) and numbers and all(n == numbers[0] for n in numbers)
    return numbers[0] if same else numbers


def refuse_if(condition, reason):
    if condition:
        raise Refused(reason)


def agree(first, *others, mixed=False):
    """PyTorch's products take one dtype; mixed: its norms also take float32 parameters with data of another dtype."""
    data, given = first.meta["val"].dtype, {n.meta["val"].dtype for n in others if n is not None}
    refuse_if(given - {data} and not (mixed and given == {torch.float32}), "arguments of several dtypes")


# ---- producers ---------------------------------------------------------------------------------------------------


@rule("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def convolution(emit, a):
    agree(a.input, a.weight, a.bias)
    out, _, *kernel = shape_of(a.weight)
    return emit(a.name, a.input, a.weight, a.bias, out_channels=out, kernel_size=even(kernel), stride=even(a.stride),
                padding=even(a.padding), dilation=even(a.dilation), groups=a.groups, bias=a.bias is not None)


@rule("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def transposed(emit, a):
    agree(a.input, a.weight, a.bias)
    _, out, *kernel = shape_of(a.weight)
    return emit(a.name, a.input, a.weight, a.bias, out_channels=out * a.groups, kernel_size=even(kernel),
                stride=even(a.stride), padding=even(a.padding), output_padding=even(a.output_padding),
                groups=a.groups, dilation=even(a.dilation), bias=a.bias is not None)


@rule("linear")
def linear(emit, a):
    agree(a.input, a.weight, a.bias)
    refuse_if(len(shape_of(a.weight)) != 2, "a weight without two dimensions")
    return emit("linear", a.input, a.weight, a.bias, out_features=shape_of(a.weight)[0], bias=a.bias is not None)


@rule("matmul")
def matmul(emit, a):
    agree(a.self, a.other)
    return emit("matmul", a.self, a.other)


@rule("mm", "bmm")
def plain_matmul(emit, a):
    agree(a.self, a.mat2)
    return emit("matmul", a.self, a.mat2)


@rule("addmm")
def addmm(emit, a):
    agree(a.self, a.mat1, a.mat2)
    refuse_if(a.beta != 1 or a.alpha != 1, "beta or alpha is not 1")
    return emit("add", emit("matmul", a.mat1, a.mat2), a.self)


# ---- norms -------------------------------------------------------------------------------------------------------


def affine(emit, op, a, tensors, **attrs):
    refuse_if(a.weight is None and a.bias is not None, "a bias without a weight")
    refuse_if(a.weight is not None and a.bias is None, "a weight without a bias")
    agree(*tensors, a.weight, a.bias, mixed=True)
    return emit(op, *tensors, a.weight, a.bias, affine=a.weight is not None, **attrs)


@rule("group_norm")
def group_norm(emit, a):
    return affine(emit, "group_norm", a, [a.input], num_groups=a.num_groups, eps=a.eps)


@rule("batch_norm")
def batch_norm(emit, a):
    refuse_if(a.training, "statistics of the batch: training, or no running statistics")
    return affine(emit, "batch_norm", a, [a.input, a.running_mean, a.running_var], training=False, eps=a.eps)


@rule("instance_norm")
def instance_norm(emit, a):
    refuse_if(not a.use_input_stats or a.running_mean is not None, "running statistics")
    return affine(emit, "instance_norm", a, [a.input], eps=a.eps)


@rule("layer_norm")
def layer_norm(emit, a):
    agree(a.input, a.weight, a.bias, mixed=True)
    refuse_if(a.weight is None and a.bias is not None, "a bias without a weight")
    return emit("layer_norm", a.input, a.weight, a.bias, normalized_shape=a.normalized_shape, eps=a.eps,
                affine=a.weight is not None, bias=a.bias is not None)


@rule("rms_norm")
def rms_norm(emit, a):
    return emit("rms_norm", a.input, a.weight, normalized_shape=a.normalized_shape, eps=a.eps,
                affine=a.weight is not None)


# ---- pointwise ---------------------------------------------------------------------------------------------------


# Operators of one tensor and nothing else go by the same name on both sides: the library's table is the list of them.
PLAIN = [name for name, signature in operators().items() if signature == f"{name}()"]


@rule(*PLAIN)
def unary(emit, a):
    return emit(a.name, a.self)


@rule("special_expit", "special_erf", "negative", "absolute")
def alias(emit, a):
    names = {"special_expit": "sigmoid", "special_erf": "erf", "negative": "neg", "absolute": "abs"}
    return emit(names[a.name], a.self)


@rule("leaky_relu")
def leaky_relu(emit, a):
    return emit("leaky_relu", a.self, negative_slope=a.negative_slope)


@rule("elu")
def elu(emit, a):
    refuse_if(a.scale != 1 or a.input_scale != 1, "scale or input_scale is not 1")
    return emit("elu", a.self, alpha=a.alpha)


@rule("celu")
def celu(emit, a):
    """Only negative values are divided: positive ones could overflow if alpha is small."""
    refuse_if(a.alpha <= 0, f"alpha {a.alpha}")
    below = emit("elu", emit("div", emit("clamp", a.self, max=0.0), other=a.alpha))
    return emit("add", emit("relu", a.self), emit("mul", below, other=a.alpha))


@rule("gelu")
def gelu(emit, a):
    return emit("gelu", a.self, approximate=a.approximate)


@rule("hardtanh")
def hardtanh(emit, a):
    return emit("hardtanh", a.self, min_val=a.min_val, max_val=a.max_val)


@rule("softplus")
def softplus(emit, a):
    return emit("softplus", a.self, beta=a.beta, threshold=a.threshold)


@rule("log_sigmoid")
def log_sigmoid(emit, a):
    return emit("neg", emit("softplus", emit("neg", a.self)))


@rule("clamp", "clip")
def clamp(emit, a):
    return emit("clamp", a.self, min=a.min, max=a.max)


@rule("clamp_min")
def clamp_min(emit, a):
    return emit("clamp", a.self, min=a.min)


@rule("clamp_max")
def clamp_max(emit, a):
    return emit("clamp", a.self, max=a.max)


@rule("clamp.Tensor", "clip.Tensor")
def clamp_tensor(emit, a):
    value = emit.number(a.self)
    if a.min is not None:
        value = emit("maximum", value, a.min, as_in="clamp_min")
    return value if a.max is None else emit("minimum", value, a.max, as_in="clamp_max")


@rule("clamp_min.Tensor")
def clamp_min_tensor(emit, a):
    return emit("maximum", a.self, a.min, as_in="clamp_min")


@rule("clamp_max.Tensor")
def clamp_max_tensor(emit, a):
    return emit("minimum", a.self, a.max, as_in="clamp_max")


@rule("pow.Tensor_Scalar")
def power(emit, a):
    names = {2: "square", 0.5: "sqrt", -0.5: "rsqrt"}
    refuse_if(a.exponent not in (*names, 3, 4), f"exponent {a.exponent}; 2, 3, 4, 0.5 and -0.5 are supported")
    if a.exponent in names:
        return emit(names[a.exponent], a.self)
    squared = emit("square", a.self)
    return emit("mul", squared, a.self) if a.exponent == 3 else emit("square", squared)


@rule("prelu")
def prelu(emit, a):
    """relu(x) + weight * min(x, 0): each sum has one term that is not zero, so nothing is rounded twice."""
    agree(a.self, a.weight)
    rank, count = len(shape_of(a.self)), shape_of(a.weight)
    weight = emit("reshape", a.weight, shape=[*count, *[1] * (rank - 2)] if rank > 1 else list(count) * rank)
    return emit("add", emit("relu", a.self), emit("mul", emit("clamp", a.self, max=0.0), weight))


@rule("tanhshrink")
def tanhshrink(emit, a):
    return emit("sub", a.self, emit("tanh", a.self))


COMMUTES = {"add", "mul", "maximum", "minimum"}


def binary(emit, op, x, y, **attrs):
    """x and y: nodes or numbers; the library takes a number only second."""
    x, y = number_of(x), number_of(y)
    if not isinstance(x, Node):
        refuse_if(op not in COMMUTES or attrs.get("alpha", 1) != 1 or not isinstance(y, Node), "the first operand is a number")
        x, y = y, x
    if isinstance(y, Node):
        return emit(op, *promoted(emit, x, y), **attrs)
    return emit(op, x, other=plain(y), **attrs)


def promoted(emit, *tensors):
    """Of several dtypes PyTorch takes the widest, in the library only parameters may have another one than the data."""
    dtype = torch.result_type(*(t.meta["val"] for t in tensors))
    return [t if t.meta["val"].dtype == dtype else convert(emit, t, dtype) for t in tensors]


def convert(emit, x, dtype):
    refuse_if(word_of(dtype) is None, f"a conversion to {name_of(dtype)}")
    return emit("cast", x, dtype=word_of(dtype))


def plain(number):
    refuse_if(isinstance(number, complex), "a complex number")
    return float(number) if isinstance(number, (bool, float)) else number


def number_of(argument):
    """The value of a constant tensor without dimensions, else the argument itself."""
    return argument.meta.get("number", argument) if isinstance(argument, Node) else argument


@rule("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def additive(emit, a):
    return binary(emit, a.name[:3], a.self, a.other, **({} if a.alpha == 1 else {"alpha": plain(a.alpha)}))


@rule("rsub.Tensor", "rsub.Scalar")
def reversed_sub(emit, a):
    refuse_if(a.alpha != 1, "alpha is not 1")
    if isinstance(number_of(a.other), Node):
        return emit("sub", a.other, a.self)
    return emit("add", emit("neg", a.self), other=plain(number_of(a.other)))


@rule("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar")
def multiply(emit, a):
    return binary(emit, "mul", a.self, a.other)


@rule("div.Tensor", "div.Scalar", "divide.Tensor", "divide.Scalar", "true_divide.Tensor", "true_divide.Scalar")
def divide(emit, a):
    return binary(emit, "div", a.self, a.other)


@rule("maximum", "max.other")
def maximum(emit, a):
    return binary(emit, "maximum", a.self, a.other)


@rule("minimum", "min.other")
def minimum(emit, a):
    return binary(emit, "minimum", a.self, a.other)


# ---- pooling, reductions -----------------------------------------------------------------------------------------


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(emit, a):
    return emit(a.name, a.self, kernel_size=even(a.kernel_size), stride=even(a.stride) or None,
                padding=even(a.padding), dilation=even(a.dilation), ceil_mode=a.ceil_mode)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(emit, a):
    return emit(a.name, a.self, kernel_size=even(a.kernel_size), stride=even(a.stride) or None,
                padding=even(a.padding), ceil_mode=a.ceil_mode, count_include_pad=a.count_include_pad,
                divisor_override=getattr(a, "divisor_override", None))


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive(emit, a):
    return emit(a.name, a.self, output_size=even(a.output_size))


@rule("sum.dim_IntList", "mean.dim", "logsumexp", "amax", "amin", "special_logsumexp")
def reduction(emit, a):
    names = {"amax": "max", "amin": "min", "special_logsumexp": "logsumexp"}
    dims = a.dim if isinstance(a.dim, (list, tuple)) or a.dim is None else [a.dim]
    return emit(names.get(a.name, a.name), a.self, dim=dims or None, keepdim=a.keepdim)


@rule("sum", "mean", "max", "min")
def full_reduction(emit, a):
    return emit(a.name, a.self)


@rule("max.dim", "min.dim")
def extremum(emit, a):
    """Returns values and indices; only the values are used (see `getitem`)."""
    return emit(a.name, a.self, dim=[a.dim], keepdim=a.keepdim, as_in=f"{a.name}.dim")


@rule("softmax.int", "log_softmax.int", "special_softmax", "special_log_softmax")
def softmax(emit, a):
    return emit(a.name.replace("special_", ""), a.self, dim=a.dim)


# ---- shapes ------------------------------------------------------------------------------------------------------


@rule("view", "reshape", "_unsafe_view")
def reshape(emit, a):
    sizes = getattr(a, "size", None)
    return emit("reshape", a.self, shape=list(sizes if sizes is not None else a.shape))


@rule("flatten.using_ints")
def flatten(emit, a):
    return emit("flatten", a.self, start_dim=a.start_dim, end_dim=a.end_dim)


@rule("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(emit, a):
    dims = getattr(a, "dim", None)
    return emit("squeeze", a.self, dim=[dims] if isinstance(dims, int) else dims)


@rule("unsqueeze")
def unsqueeze(emit, a):
    return emit("unsqueeze", a.self, dim=a.dim)


# ---- dtypes ------------------------------------------------------------------------------------------------------


@rule("to.dtype", "_to_copy")
def cast(emit, a):
    refuse_if(a.dtype is None or a.memory_format not in (None, torch.preserve_format), "a copy, not a conversion")
    refuse_if(getattr(a, "device", None) is not None or getattr(a, "layout", None) is not None, "a conversion to another device or layout")
    return convert(emit, a.self, a.dtype)


CONVERSIONS = {torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default}
SHAPES = {"reshape", "flatten", "squeeze", "unsqueeze", "dropout"}



# ---- what a node is ----------------------------------------------------------------------------------------------


def takes_first(node):
    """max.dim gives a pair: its node is taken if only the values are read."""
    return node.target is operator.getitem and node.args[1] == 0 and getattr(node.args[0], "target", None) in RULES


def emit_node(emit, node):
    """The value of a node in a program."""
    if takes_first(node):
        return emit.number(node.args[0])
    return RULES[node.target](emit, Bound(node))


def why_not(node, device, fixed):
    """None if Convoy takes this node on a device, else the reason. fixed: nodes that depend only on parameters."""
    if node.target in CONVERSIONS and node in fixed:
        return "a parameter in another dtype"
    if node.op != "call_function" or (node.target not in RULES and not takes_first(node)):
        return "Convoy does not support this operator"
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        if any(u.target is not operator.getitem or (u.args[1] and u.users) for u in node.users):
            return "the indices that it returns are used"
        value = value[0]
    for tensor in [value] + [n.meta.get("val") for n in node.all_input_nodes if "number" not in n.meta]:
        tensor = tensor[0] if isinstance(tensor, (tuple, list)) else tensor
        if not isinstance(tensor, torch.Tensor):
            return "not a tensor"
        if tensor.layout is not torch.strided:
            return f"{name_of(tensor.layout)}, not strided"
        if name_of(tensor.dtype) not in DTYPES:
            return f"{name_of(tensor.dtype)}, not {', '.join(DTYPES)}"
        if tensor.device != device:
            return f"on {tensor.device}"
    return None if takes_first(node) else check_alone(node, value, fixed)


def check_alone(node, expected, fixed):
    """Asks the library about one node, as a separate graph. expected: PyTorch's result."""
    program, numbers = Program(), {}
    for n in node.all_input_nodes:
        if "number" not in n.meta:
            numbers[n] = program.source(n in fixed and node not in fixed)
    try:
        program.outputs = [emit_node(Emitter(program, numbers.__getitem__), node)]
        graph = program.build([shape_of(n) for n in numbers], [n.meta["val"].dtype for n in numbers])
        shape, dtype = graph.shape(graph.outputs[0]), graph.dtype(graph.outputs[0])
    except (Refused, ConvoyError, ValueError, KeyError) as error:
        return str(error)
    if shape != expected.shape:
        return f"gives {list(shape)}, PyTorch {list(expected.shape)}"
    return None if dtype == name_of(expected.dtype) else f"gives {dtype}, PyTorch {name_of(expected.dtype)}"

