"""A chain text as PyTorch runs it, stage by stage, on whatever tensors it is given: float64, float32, meta.

A stage is very nearly a Python call, so Python evaluates it: `conv2d(4, (3,2), groups=2) @v1` becomes `conv2d(here, x,
4, (3,2), groups=2)`, with `@v0` and `p[3,1]` replaced by look-ups. The functions below are torch.nn.functional's with the
two things the text adds: tensors that are made for you, and `bias=False`, `affine=False` where PyTorch takes None.
"""

import math
import re

import torch
import torch.nn.functional as F

EPS32 = torch.finfo(torch.float32).eps  # rms_norm's default is that of its type: float32 in the library
DECLARED = re.compile(r"\b([A-Za-z_][\w.]*)\[([\d,]*)\]")
READ = re.compile(r"@([\w.]+)")
STAGE = re.compile(r"(\w+)(?:\((.*)\))?(?: @(\w+))?")


def extents(text):
    return tuple(int(n) for n in text.split(",") if n)


def split(text):
    """Declarations of the inputs, and the stages after them."""
    first, *stages = text.split(" | ")
    return [(name, extents(dims)) for name, dims in DECLARED.findall(first)], stages


class Eager:
    """Values of one run. `source(name, shape)` gives inputs and parameters; `after(value, terms)` sees each result, and
    the tensor whose elements, or the two whose products, were summed up for it."""

    def __init__(self, source, after=lambda value, terms: value):
        self.source, self.after = source, after
        self.values, self.node, self.terms = {}, None, ()

    def declare(self, name, shape):
        if name not in self.values:
            self.values[name] = self.source(name, shape)
        return self.values[name]

    def natural(self, which, shape):
        return self.declare(f"{self.node}.{which}", tuple(shape))

    def stage(self, stage, x):
        """What a stage makes of the value that flows."""
        if stage.startswith("@"):
            return self.values[stage[1:]]
        op, arguments, name = STAGE.fullmatch(stage).groups()
        arguments = DECLARED.sub(lambda m: f"declare('{m[1]}', {extents(m[2])})", arguments or "")
        arguments = READ.sub(lambda m: f"values['{m[1]}']", arguments)
        self.node, self.terms = name or op, ()
        known = OPS | {"here": self, "x": x, "declare": self.declare, "values": self.values}
        value = eval(f"{op}(here, x, {arguments})", known)  # noqa: S307 - our own text
        value = self.after(value, self.terms)
        self.values[self.node] = value
        return value


def run(text, source, after=lambda value, terms: value):
    """The outputs of a chain."""
    eager = Eager(source, after)
    inputs, stages = split(text)
    flowing = [eager.declare(*spec) for spec in inputs][0]
    outputs = []
    for stage in stages:
        if stage.startswith("output("):
            outputs = [eager.values[name] for name in READ.findall(stage)]
        else:
            flowing = eager.stage(stage, flowing)
    return outputs or [flowing]


# ---- operators -----------------------------------------------------------------------------------------------------


def tensor_or(given, made):
    return given if isinstance(given, torch.Tensor) else made()


def convolution(rank, transposed=False):
    apply = getattr(F, f"conv{'_transpose' if transposed else ''}{rank}d")

    def call(here, x, out_channels, kernel_size, stride=1, padding=0, *rest, bias=True, weight=None, **named):
        order = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
        named |= dict(zip(order, rest))
        kernel = (kernel_size,) * rank if isinstance(kernel_size, int) else kernel_size
        groups, channels = named.get("groups", 1), x.shape[-rank - 1]
        ends = (channels, out_channels // groups) if transposed else (out_channels, channels // groups)
        weight = tensor_or(weight, lambda: here.natural("weight", (*ends, *kernel)))
        bias = tensor_or(bias, lambda: here.natural("bias", (out_channels,)) if bias else None)
        here.terms = (x, weight)
        return apply(x, weight, bias, stride, padding, **named)

    return call


def linear(here, x, out_features, bias=True, weight=None):
    weight = tensor_or(weight, lambda: here.natural("weight", (out_features, x.shape[-1])))
    bias = tensor_or(bias, lambda: here.natural("bias", (out_features,)) if bias else None)
    here.terms = (x, weight)
    return F.linear(x, weight, bias)


def matmul(here, x, other):
    here.terms = (x, other)
    return torch.matmul(x, other)


def affine_of(here, shape, affine=True, bias=True):
    return (here.natural("weight", shape) if affine else None, here.natural("bias", shape) if affine and bias else None)


def group_norm(here, x, num_groups, eps=1e-5, affine=True):
    here.terms = (x,)
    weight, bias = affine_of(here, (x.shape[1],), affine)
    normal = F.group_norm(x, num_groups, weight, bias, eps)
    if normal.numel() == normal.shape[0] * num_groups:
        # Groups of one element are x - x, and PyTorch's x * a - mean * a is noise as large as x: layer_norm has none.
        normal = F.layer_norm(x.reshape(*x.shape, 1), (1,), eps=eps).reshape(x.shape)
        for apply, tensor in ((torch.mul, weight), (torch.add, bias)):
            normal = normal if tensor is None else apply(normal, tensor.reshape(-1, *[1] * (x.dim() - 2)))
    return normal


def batch_norm(here, x, training=False, momentum=0.1, eps=1e-5, affine=True):
    here.terms = (x,)
    shape = (x.shape[1],)
    running = (None, None) if training else tuple(here.natural(f"running_{s}", shape) for s in ("mean", "var"))
    return F.batch_norm(x, *running, *affine_of(here, shape, affine), training, momentum, eps)


def instance_norm(here, x, eps=1e-5, affine=False):
    here.terms = (x,)
    weight, bias = affine_of(here, (x.shape[1],), affine)
    return F.instance_norm(x, weight=weight, bias=bias, eps=eps)


def layer_norm(here, x, normalized_shape, eps=1e-5, affine=True, bias=True):
    here.terms = (x,)
    return F.layer_norm(x, normalized_shape, *affine_of(here, normalized_shape, affine, bias), eps)


def rms_norm(here, x, normalized_shape, eps=None, affine=True):
    here.terms = (x,)
    weight, _ = affine_of(here, normalized_shape, affine, bias=False)
    return F.rms_norm(x, normalized_shape, weight, EPS32 if eps is None else eps)


def plain(function):
    return lambda here, x, *given, **named: function(x, *given, **named)


def of_two(function):
    """maximum and minimum take tensors alone; a number becomes one."""
    return lambda here, x, other: function(x, torch.as_tensor(other, dtype=x.dtype, device=x.device))


def reduction(function):
    def call(here, x, dim=None, keepdim=False):
        here.terms = (x,)
        return function(x, tuple(range(x.dim())) if dim is None else dim, keepdim=keepdim)

    return call


def cut(here, x, dim=0, start=0, end=None, step=1):
    return torch.ops.aten.slice.Tensor(x, dim, start, end, step)


def squeeze(here, x, dim=None):
    return x.squeeze() if dim is None else x.squeeze(dim)


OPS = {
    "inf": math.inf,
    "nan": math.nan,
    **{f"conv{r}d": convolution(r) for r in (1, 2, 3)},
    **{f"conv_transpose{r}d": convolution(r, True) for r in (1, 2, 3)},
    **{f: globals()[f] for f in ("linear", "group_norm", "batch_norm", "instance_norm", "layer_norm", "rms_norm", "squeeze", "matmul")},
    **{f"{p}{r}d": plain(getattr(F, f"{p}{r}d")) for p in ("max_pool", "avg_pool", "adaptive_avg_pool") for r in (1, 2, 3)},
    **{f: plain(getattr(F, f)) for f in """relu relu6 leaky_relu elu selu gelu silu mish hardsigmoid hardtanh hardswish
       softplus softsign""".split()},
    **{f: plain(getattr(torch, f)) for f in """sigmoid tanh exp log sqrt rsqrt neg abs square erf clamp add sub mul div
       softmax log_softmax reshape flatten unsqueeze
       permute flip""".split()},
    **{f: of_two(getattr(torch, f)) for f in ("maximum", "minimum")},
    **{f: reduction(getattr(torch, f)) for f in ("sum", "mean", "logsumexp")},
    **{f: reduction(getattr(torch, f"a{f}")) for f in ("max", "min")},
    "slice": cut,
    "expand": lambda here, x, shape: x.expand(shape),
    "cat": lambda here, x, other, dim=0: torch.cat([x, other], dim),
    "pad": lambda here, x, pad, value=0: F.pad(x, pad, value=value),
    "interpolate": lambda here, x, size: F.interpolate(x, size=size),
    "dropout": lambda here, x, p=0.5: F.dropout(x, p, training=False),
    "cast": lambda here, x, dtype: x,  # to float32 alone: everything is evaluated in one dtype
}  # fmt: skip
