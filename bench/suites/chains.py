"""Chain text for the peers: the same text that Convoy parses, as a PyTorch module and as an ONNX model.

Only the operators of the suites are known here, and for ONNX only those of the CPU's. The data of a chain depend on its
text alone, so that every process that measures it makes the same tensors: inputs uniform in [0, 1), weights as PyTorch
initialises them, norms and scales away from their trivial values. Tensors of a chain in half precision (`x[2,3]:bf16`,
every declaration alike) are float32 arrays of values that its dtype has.
"""

import ast
import math
import re
import zlib
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Step:
    """One operator. `other`: its second operand, ("param", name), ("value", name) or None."""

    op: str
    node: str
    numbers: list
    keywords: dict
    other: tuple = None
    params: list = field(default_factory=list)


@dataclass
class Chain:
    text: str
    source: str  # the input's name
    shape: tuple
    steps: list
    params: dict  # name -> shape
    dtype: str = "fp32"


DECLARED = re.compile(r"(?<=\]):(fp16|bf16)")
REDUCTIONS = ("logsumexp", "max", "mean", "min", "sum")


def _shape_of(text):
    return tuple(int(n) for n in text.split(","))


def parse(text):
    dtype = (DECLARED.findall(text) or ["fp32"])[0]
    head, *stages = [s.strip() for s in DECLARED.sub("", text).split("|")]
    name, extents = re.fullmatch(r"(\w+)\[([\d,\s]+)\]", head).groups()
    chain = Chain(text, name, _shape_of(extents), [], {}, dtype)
    extents = chain.shape
    taken = set()
    for stage in stages:
        step = _read_step(stage, taken, chain.params)
        taken.add(step.node)
        extents = _natural(step, extents, chain.params)
        chain.steps.append(step)
    return chain


def _read_step(stage, taken, params):
    op, arguments, name = re.fullmatch(r"(\w+)\s*(?:\((.*)\))?\s*(?:@(\w+))?", stage, re.S).groups()
    node = name or next(n for n in [op] + [f"{op}_{i}" for i in range(2, 99)] if n not in taken)
    step = Step(op, node, [], {})
    call = ast.parse("f(%s)" % re.sub(r"@(\w+)", r'at("\1")', arguments or ""), mode="eval").body
    for a in call.args:
        if isinstance(a, ast.Subscript):
            step.other = ("param", a.value.id)
            params[a.value.id] = tuple(np.atleast_1d(ast.literal_eval(a.slice)).tolist())
        elif isinstance(a, ast.Call):
            step.other = ("value", a.args[0].value)
        else:
            step.numbers.append(ast.literal_eval(a))
    step.keywords = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    return step


def _natural(step, shape, params):
    """Adds the step's natural parameters, and gives its output's extents."""
    k = step.keywords
    if step.op in ("conv2d", "conv_transpose2d"):
        out, size = step.numbers[:2]
        groups, stride = k.get("groups", 1), k.get("stride", 1)
        pad, reach = k.get("padding", 0), (size - 1) * k.get("dilation", 1) + 1
        if step.op == "conv2d":
            weight = (out, shape[1] // groups, size, size)
            space = [(e + 2 * pad - reach) // stride + 1 for e in shape[2:]]
        else:
            weight = (shape[1], out // groups, size, size)
            space = [(e - 1) * stride - 2 * pad + reach for e in shape[2:]]
        natural = {"weight": weight, "bias": (out,)}
        shape = (shape[0], out, *space)
    elif step.op == "linear":
        natural = {"weight": (step.numbers[0], shape[-1]), "bias": (step.numbers[0],)}
        shape = (*shape[:-1], step.numbers[0])
    elif step.op == "group_norm":
        natural = {"weight": (shape[1],), "bias": (shape[1],)}
    elif step.op == "batch_norm":
        natural = {n: (shape[1],) for n in ("running_mean", "running_var", "weight", "bias")}
    elif step.op == "layer_norm":
        natural = {n: tuple(np.atleast_1d(step.numbers[0]).tolist()) for n in ("weight", "bias")}
    else:
        natural = {}
        if step.op in ("max_pool2d", "avg_pool2d"):
            shape = (*shape[:2], *[e // step.numbers[0] for e in shape[2:]])
        elif step.op in REDUCTIONS:
            gone = np.atleast_1d(step.numbers[0]).tolist()
            kept = [1 if i in gone else e for i, e in enumerate(shape)]
            shape = tuple(e for i, e in enumerate(kept) if k.get("keepdim", False) or i not in gone)
    step.params = [f"{step.node}.{n}" for n in natural]
    params.update({f"{step.node}.{n}": s for n, s in natural.items()})
    return shape


# ---- data ----


def _param(rng, name, shape, shapes):
    kind = name.rsplit(".", 1)[-1]
    if kind == "running_var":
        return rng.uniform(0.5, 1.5, shape)
    if len(shape) >= 2 and kind == "weight" or kind == "bias" and len(shapes.get(name[:-4] + "weight", ())) >= 2:
        weight = shapes[name.rsplit(".", 1)[0] + ".weight"]
        bound = 1 / math.sqrt(max(1, math.prod(weight[1:])))
        return rng.uniform(-bound, bound, shape)
    if kind == "weight":
        return rng.normal(1, 0.25, shape)
    return rng.normal(0, 1 if "." not in name else 0.1, shape)


def words(array, dtype):
    """Float32 as the 16 bits of fp16 or bf16, rounded to nearest, ties to even; no NaN."""
    if dtype == "fp16":
        return array.astype(np.float16).view(np.uint16)
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def floats(words, dtype):
    """The inverse."""
    if dtype == "fp16":
        return words.view(np.float16).astype(np.float32)
    return (words.astype(np.uint32) << 16).view(np.float32)


def rounded(array, dtype):
    return array if dtype == "fp32" else floats(words(array, dtype), dtype)


def data_of(chain, n_inputs=2):
    """The inputs (several, so that no run repeats the one before) and the parameters, by name, float32."""
    rng = np.random.default_rng(zlib.crc32(chain.text.encode()))
    params = {n: _param(rng, n, s, chain.params).astype(np.float32) for n, s in chain.params.items()}
    params = {n: rounded(p, chain.dtype) for n, p in params.items()}
    return [rounded(rng.random(chain.shape, np.float32), chain.dtype) for _ in range(n_inputs)], params


# ---- PyTorch: the module as a person would write it ----

TORCH = {
    "conv2d": "F.conv2d({x}, {p}{k})", "conv_transpose2d": "F.conv_transpose2d({x}, {p}{k})",
    "linear": "F.linear({x}, {p})", "group_norm": "F.group_norm({x}, {n}, {p})",
    "batch_norm": "F.batch_norm({x}, {p})", "layer_norm": "F.layer_norm({x}, ({n},), {p})",
    "add": "{x} + {o}", "mul": "{x} * {o}", "max_pool2d": "F.max_pool2d({x}, {n})",
    "clamp": "torch.clamp({x}, {n})", "hardswish": "F.hardswish({x})", "gelu": "F.gelu({x})", "relu": "F.relu({x})",
    "tanh": "torch.tanh({x})", "sigmoid": "torch.sigmoid({x})", "softmax": "F.softmax({x}, {n})",
    "silu": "F.silu({x})", "mish": "F.mish({x})", "elu": "F.elu({x})", "leaky_relu": "F.leaky_relu({x}, {n})",
    "softplus": "F.softplus({x})", "avg_pool2d": "F.avg_pool2d({x}, {n})",
    "logsumexp": "torch.logsumexp({x}, {n}{k})", "mean": "torch.mean({x}, {n}{k})", "sum": "torch.sum({x}, {n}{k})",
    "max": "torch.amax({x}, {n}{k})", "min": "torch.amin({x}, {n}{k})",
}


def torch_source(chain):
    """The text of forward(self, x)."""
    attribute = {name: "self." + name.replace(".", "_") for name in chain.params}
    lines = ["def forward(self, x):"]
    names = {}
    x = "x"
    for i, s in enumerate(chain.steps):
        other = ""
        if s.other:
            other = attribute[s.other[1]] if s.other[0] == "param" else names[s.other[1]]
        numbers = s.numbers[2:] if s.op.startswith("conv") else s.numbers
        text = TORCH[s.op].format(
            x=x, o=other, p=", ".join(attribute[p] for p in s.params), n=", ".join(map(str, numbers)),
            k="".join(f", {k}={v}" for k, v in s.keywords.items()),
        )
        x = names[s.node] = f"v{i}"
        lines.append(f"    {x} = {text}")
    return "\n".join(lines + [f"    return {x}"])


def torch_dtype(chain):
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[chain.dtype]


def torch_module(chain, params, dtype=None):
    import torch
    import torch.nn.functional as F

    space = {"torch": torch, "F": F}
    exec(compile(torch_source(chain), "<chain>", "exec"), space)
    module = type("Model", (torch.nn.Module,), {"forward": space["forward"]})()
    for name, value in params.items():
        tensor = torch.from_numpy(value).to(dtype or torch_dtype(chain))
        module.register_parameter(name.replace(".", "_"), torch.nn.Parameter(tensor, requires_grad=False))
    return module.eval()


# ---- ONNX ----


class OnnxWriter:
    """Group norms are written as `norm` says: "instance" (reshaped around InstanceNormalization, as PyTorch's exporter
    does) or "group" (the operator of opset 21)."""

    def __init__(self, chain, params, norm):
        self.chain, self.norm, self.nodes, self.count = chain, norm, [], 0
        self.constants = dict(params)

    def constant(self, array):
        name = f"const_{len(self.constants)}"
        self.constants[name] = array
        return name

    def emit(self, op, inputs, **attributes):
        from onnx import helper

        self.count += 1
        self.nodes.append(helper.make_node(op, inputs, [f"t{self.count}"], **attributes))
        return f"t{self.count}"

    def step(self, s, x, names):
        k, p = s.keywords, s.params
        other = s.other and (s.other[1] if s.other[0] == "param" else names[s.other[1]])
        if s.op in ("conv2d", "conv_transpose2d"):
            return self.emit(
                "Conv" if s.op == "conv2d" else "ConvTranspose", [x, *p], kernel_shape=[s.numbers[1]] * 2,
                strides=[k.get("stride", 1)] * 2, pads=[k.get("padding", 0)] * 4, group=k.get("groups", 1),
                dilations=[k.get("dilation", 1)] * 2,
            )
        if s.op == "linear":
            self.constants[p[0]] = np.ascontiguousarray(self.constants[p[0]].T)
            return self.emit("Add", [self.emit("MatMul", [x, p[0]]), p[1]])
        if s.op == "group_norm":
            return self.group_norm(s, x)
        if s.op == "batch_norm":
            mean, var, weight, bias = p
            return self.emit("BatchNormalization", [x, weight, bias, mean, var], epsilon=1e-5)
        if s.op == "layer_norm":
            return self.emit("LayerNormalization", [x, *p], axis=-1, epsilon=1e-5)
        if s.op == "max_pool2d":
            return self.emit("MaxPool", [x], kernel_shape=[s.numbers[0]] * 2, strides=[s.numbers[0]] * 2)
        if s.op == "clamp":
            return self.emit("Clip", [x, *(self.constant(np.float32(n)) for n in s.numbers)])
        if s.op in ("logsumexp", "mean"):
            axes = self.constant(np.atleast_1d(np.array(s.numbers[0], np.int64)))
            op = "ReduceLogSumExp" if s.op == "logsumexp" else "ReduceMean"
            return self.emit(op, [x, axes], keepdims=int(k.get("keepdim", False)))
        if s.op == "softmax":
            return self.emit("Softmax", [x], axis=s.numbers[0])
        plain = {"add": "Add", "mul": "Mul", "tanh": "Tanh", "sigmoid": "Sigmoid", "hardswish": "HardSwish",
                 "gelu": "Gelu", "relu": "Relu"}
        return self.emit(plain[s.op], [x, other] if other else [x])

    def group_norm(self, s, x):
        groups = s.numbers[0]
        weight, bias = s.params
        channels = self.constants[weight].shape[0]
        if self.norm == "group":
            return self.emit("GroupNormalization", [x, weight, bias], num_groups=groups, epsilon=1e-5)
        shape = self.emit("Shape", [x])
        flat = self.emit("Reshape", [x, self.constant(np.array([0, groups, -1], np.int64))])
        ones, zeros = self.constant(np.ones(groups, np.float32)), self.constant(np.zeros(groups, np.float32))
        normed = self.emit("InstanceNormalization", [flat, ones, zeros], epsilon=1e-5)
        wide = self.emit("Reshape", [normed, shape])
        for name, op in ((weight, "Mul"), (bias, "Add")):
            self.constants[name] = self.constants[name].reshape(channels, 1, 1)
            wide = self.emit(op, [wide, name])
        return wide


def onnx_model(chain, params, norm):
    """The bytes of an ONNX model whose input is `x` and whose output is `y`."""
    from onnx import TensorProto, helper, numpy_helper

    writer, names, x = OnnxWriter(chain, params, norm), {}, "x"
    for s in chain.steps:
        x = names[s.node] = writer.step(s, x, names)
    writer.nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        writer.nodes, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, chain.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in writer.constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    return model.SerializeToString()
