"""A program: operators of the vocabulary on numbered tensors. The form of a region of a model.

Values 0 ... n-1 are its sources (parameters and inputs), every step adds one. It knows no shapes: those come with the
tensors. It becomes a graph of the library (`build`), PyTorch calls (`evaluate`, for gradients and shapes), or text
(`dumps`, for operators inside exported models).
"""

import contextlib
import functools
import json
import operator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from .engine import Graph


@dataclass
class Step:
    op: str
    args: list  # values, None if a tensor is left out
    attrs: dict  # numbers, lists of numbers, words; None: the default
    as_in: str = None  # the function of PyTorch with its derivative, if that is not what the name says (see CALLS)


@dataclass
class Program:
    params: list = field(default_factory=list)  # per source: is it a parameter?
    steps: list = field(default_factory=list)
    outputs: list = field(default_factory=list)  # values

    def source(self, is_param):
        assert not self.steps
        self.params.append(is_param)
        return len(self.params) - 1

    def emit(self, op, *args, as_in=None, **attrs):
        self.steps.append(Step(op, list(args), attrs, as_in))
        return len(self.params) + len(self.steps) - 1

    def build(self, shapes, dtypes):
        """The library's graph for such sources; its tensors come inputs first, then parameters. dtypes: PyTorch's."""
        graph = Graph()
        values = [None] * len(self.params)
        for wanted in (False, True):
            for i, is_param in enumerate(self.params):
                if is_param == wanted:
                    name = f"p{i}" if is_param else f"x{i}"
                    values[i] = graph.source(name, shapes[i], is_param, name_of(dtypes[i]))
        for step in self.steps:
            args = [None if a is None else values[a] for a in step.args]
            values.append(graph.apply(step.op, args, step.attrs))
        graph.outputs = [values[v] for v in self.outputs]
        for value in graph.outputs:
            graph.output(value)
        return graph

    def order(self):
        """Numbers of the sources in the order of the library's tensors."""
        return [i for wanted in (False, True) for i, p in enumerate(self.params) if p == wanted]

    def depends(self):
        """Per output: the sources that it depends on, as bits."""
        bits = [1 << i for i in range(len(self.params))]
        for step in self.steps:
            bits.append(functools.reduce(operator.or_, (bits[a] for a in step.args if a is not None), 0))
        return [bits[v] for v in self.outputs]

    def evaluate(self, tensors):
        """The same by PyTorch, differentiable, in any dtype and on any device. Each result has its own memory, as the
        library's results do. Autocast's conversions are outside of programs."""
        values = list(tensors)
        with no_autocast():
            for step in self.steps:
                args = [None if a is None else values[a] for a in step.args]
                attrs = {k: v for k, v in step.attrs.items() if v is not None}
                name = step.as_in or step.op
                values.append(CALLS.get(name, call_by_name)(name, args, attrs))
        taken, results = set(range(len(self.params))), []
        for v in self.outputs:
            results.append(values[v].clone() if self.origin(v) in taken else values[v])
            taken.add(self.origin(v))
        return results

    def origin(self, value):
        """The value whose memory PyTorch may return as this one's."""
        n = len(self.params)
        while value >= n and self.steps[value - n].op in SHOWN:
            value = self.steps[value - n].args[0]
        return value

    def dumps(self):
        steps = [[s.op, s.args, {k: v for k, v in s.attrs.items() if v is not None}, s.as_in] for s in self.steps]
        return json.dumps([self.params, steps, self.outputs], separators=(",", ":"))

    @staticmethod
    def loads(text):
        params, steps, outputs = json.loads(text)
        return Program(params, [Step(*s) for s in steps], outputs)


# Steps whose result PyTorch may return in their argument's memory.
SHOWN = {"reshape", "flatten", "squeeze", "unsqueeze", "slice", "permute", "expand", "dropout", "cast"}
LAYOUTS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
DTYPE_OF = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}  # by the words of `cast`


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def word_of(dtype):
    """The library's name of one of PyTorch's dtypes, None if it has none."""
    return next((word for word, known in DTYPE_OF.items() if known == dtype), None)


@contextlib.contextmanager
def no_autocast():
    with contextlib.ExitStack() as stack:
        if torch._C._is_any_autocast_enabled():
            for device in ("cpu", "cuda"):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


# ---- the vocabulary in PyTorch, where names or arguments differ --------------------------------------------------


def call_by_name(op, args, attrs):
    function = getattr(F, op, None) or getattr(torch, op)
    return function(*args, **attrs)


def conv(op, args, attrs):
    kept = {k: v for k, v in attrs.items() if k not in ("out_channels", "kernel_size", "bias")}
    return getattr(F, op)(*args, **kept)


def binary(op, args, attrs):
    kept = dict(attrs)
    other = args[1] if len(args) > 1 else kept.pop("other")
    if op in ("maximum", "minimum") and not isinstance(other, torch.Tensor):
        other = torch.full((), other, dtype=args[0].dtype, device=args[0].device)
    return getattr(torch, op)(args[0], other, **kept)


def with_tensors(*names):
    """An operator whose tensors PyTorch takes by keyword."""

    def call(op, args, attrs):
        kept = {k: v for k, v in attrs.items() if k not in ("affine", "bias")}
        tensors = {name: tensor for name, tensor in zip(names, args[1:]) if tensor is not None}
        return getattr(F, op)(args[0], **tensors, **kept)

    return call


def batch_norm(op, args, attrs):
    x, mean, variance, weight, bias = args + [None] * (5 - len(args))
    kept = {k: v for k, v in attrs.items() if k != "affine"}
    return F.batch_norm(x, mean, variance, weight, bias, **kept)


def linear(op, args, attrs):
    return F.linear(*args)


def extremum(op, args, attrs):
    dims = attrs.get("dim", ())
    return getattr(torch, "a" + op)(args[0], dim=dims, keepdim=attrs.get("keepdim", False))


def first_extremum(op, args, attrs):
    """The gradient goes to one of several equal elements."""
    return getattr(torch, op[:3])(args[0], attrs["dim"][0], keepdim=attrs["keepdim"]).values


def reduce(op, args, attrs):
    dims = attrs.get("dim")
    dims = tuple(range(args[0].dim())) if dims is None else dims
    return getattr(torch, op)(args[0], dims, keepdim=attrs.get("keepdim", False))


def reshape(op, args, attrs):
    return args[0].reshape(attrs["shape"])


def laid_out(op, args, attrs):
    """contiguous or clone, with the name of a memory format."""
    name, _, layout = op.partition(".")
    return getattr(args[0], name)(memory_format=getattr(torch, layout))


def squeeze(op, args, attrs):
    dims = attrs.get("dim")
    return args[0].squeeze() if dims is None else args[0].squeeze(tuple(dims))


def dropout(op, args, attrs):
    return args[0]


def cast(op, args, attrs):
    return args[0].to(DTYPE_OF[attrs["dtype"]])


def cat(op, args, attrs):
    return torch.cat(args, **attrs)


def cut(op, args, attrs):
    return torch.ops.aten.slice.Tensor(args[0], attrs.get("dim", 0), attrs.get("start"), attrs.get("end"), attrs.get("step", 1))


def expand(op, args, attrs):
    return args[0].expand(attrs["shape"])


def interpolate(op, args, attrs):
    return F.interpolate(args[0], size=tuple(attrs["size"]), mode="nearest")


CALLS = {
    **dict.fromkeys([f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)], conv),
    **dict.fromkeys(["add", "sub", "mul", "div", "maximum", "minimum"], binary),
    **dict.fromkeys(["max", "min"], extremum),
    **dict.fromkeys(["max.dim", "min.dim"], first_extremum),
    **dict.fromkeys(["sum", "mean", "logsumexp"], reduce),
    **{f"{name}.{layout}": laid_out for name in ("contiguous", "clone") for layout in LAYOUTS},
    "linear": linear,
    "group_norm": with_tensors("weight", "bias"),
    "layer_norm": with_tensors("weight", "bias"),
    "instance_norm": with_tensors("weight", "bias"),
    "rms_norm": with_tensors("weight"),
    "batch_norm": batch_norm,
    "cat": cat,
    "slice": cut,
    "expand": expand,
    "interpolate": interpolate,
    "reshape": reshape,
    "squeeze": squeeze,
    "dropout": dropout,
    "cast": cast,
}
