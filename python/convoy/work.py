"""What an operator of a captured graph has to do: its kind, the bytes it moves and its operations.

A kind is a set of PyTorch kernels that one formula fits: see worth.py, where each has its numbers.
"""

import operator
from dataclasses import dataclass, replace

import torch

from .engine import slow_operators

# The library's table says which are slow; ATen has further names for some, and operators that are made of them.
SLOW = slow_operators() | {"celu", "log_sigmoid", "special_expit", "special_erf"}
VIEWS = {"view", "reshape", "_unsafe_view", "flatten", "squeeze", "unsqueeze", "expand", "permute", "transpose", "t",
         "numpy_T", "mT", "movedim", "select", "slice", "split", "chunk", "unbind", "contiguous", "alias", "detach", "dropout", "lift_fresh_copy"}
FEW = 4096  # results that are too few for a kernel whose sums are not shared
LONG = 1 << 17  # elements of a row that no block keeps on chip
REDUCTIONS = {"sum", "mean", "max", "min", "amax", "amin"}
NORMS = {"layer_norm": "norm_rows", "rms_norm": "norm_rows", "group_norm": "norm_groups", "instance_norm": "norm_instances",
         "batch_norm": "norm_batch"}


@dataclass(frozen=True)
class Work:
    kind: str
    bytes: float  # read and written
    flops: float  # of products; elsewhere operations are counted by the bytes
    lanes: float = 1.0  # results that can be computed side by side
    half: bool = False  # products of fp16 or bf16


def tensors_of(node):
    """Tensors read and made, as fake ones."""
    found = [n.meta.get("val") for n in node.all_input_nodes] + [node.meta.get("val")]
    return [t for v in found for t in (v if isinstance(v, (tuple, list)) else [v]) if isinstance(t, torch.Tensor)]


def bytes_of(node):
    return float(sum(t.numel() * t.element_size() for t in tensors_of(node)))


def shape(node):
    value = node.meta["val"]
    return tuple((value[0] if isinstance(value, (tuple, list)) else value).shape)


def shapes_read(node):
    """Of the tensors among the arguments, in order; a repeated tensor is repeated."""
    return [shape(a) for a in node.args if isinstance(a, torch.fx.Node)]


def product(numbers):
    result = 1
    for n in numbers:
        result *= n
    return result


def name_of(node):
    schema = getattr(node.target, "_schema", None)
    return schema.name.partition("::")[2].rstrip("_") if schema is not None else ""


# ---- kinds -------------------------------------------------------------------------------------------------------


def gemm(node):
    """(rows, columns, terms, how many) of a product of matrices."""
    given = shapes_read(node)
    out = shape(node)
    name = name_of(node)
    if name == "linear":
        x, w = given[0], given[1]
        return product(x[:-1]), w[0], w[1], 1
    a, b = given[1:3] if name in ("addmm", "baddbmm") else given[:2]
    if len(a) == 1 or len(b) == 1:
        return product(out), 1, a[-1], 1
    batch = product(out[:-2]) if len(b) > 2 else 1
    return product(out[:-1]) // max(batch, 1), out[-1], a[-1], batch


def gemm_work(node):
    m, n, k, batch = gemm(node)
    kind = "matvec" if min(m, n) == 1 else "linear" if name_of(node) == "linear" else "gemm" if batch == 1 else "bmm"
    if kind in ("gemm", "bmm", "linear") and not all(s.meta["val"].is_contiguous() for s in node.all_input_nodes):
        kind += "_strided"
    return Work(kind, bytes_of(node), 2.0 * m * n * k * batch, float(min(m, n) * batch))


def strides(node):
    return list(node.args[3]) if len(node.args) > 3 else [1]


def strided(node):
    return max(strides(node)) > 1


def patches(node, weight):
    """Do the windows lie side by side?"""
    return strided(node) and strides(node) == list(weight[2:])


def conv_work(node):
    x, w = shapes_read(node)[:2]
    out = shape(node)
    transposed = name_of(node).startswith("conv_transpose")
    taps = product(w[2:])
    groups = node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1)  # at one place in all of them
    if transposed:
        flops, kind = 2.0 * product(x) * w[1] * taps, "conv_transpose" if w[0] * taps <= 1024 else "conv_transpose_deep"
    else:
        flops = 2.0 * product(out) * w[1] * taps
        kind = "conv" if groups == 1 else "conv_depthwise" if w[1] == 1 else "conv_grouped"
        if kind == "conv_depthwise" and taps > 9:
            kind = "conv_depthwise_wide" if taps <= 49 else "conv_depthwise_huge"
        if kind == "conv" and taps == 1:
            kind = "conv_pointwise"
        if kind == "conv" and w[1] <= 4:
            kind = "conv_patches" if patches(node, w) else "conv_stem"
        if kind == "conv" and strided(node):
            kind = "conv_strided"
        if kind == "conv" and product(out) < FEW:
            kind = "conv_few"
        if len(w) != 4:
            kind = f"conv{len(w) - 2}d"
    return Work(kind, bytes_of(node), flops, float(product(out)))


def pool_work(node, name):
    """A window's terms are its operations; adaptive ones read everything once."""
    if "adaptive" in name:
        return Work("pool_adaptive", bytes_of(node), 0.0)
    window, out = node.args[1], product(shape(node))
    terms = product(window) if len(window) > 1 else window[0] ** (len(shape(node)) - 2)
    return Work("pool_max" if "max" in name else "pool_avg", bytes_of(node), float(out * terms), float(out))


def reduce_work(node):
    x, out = shape(node.all_input_nodes[0]), product(shape(node))
    total = product(x)
    if out == 1 and total > 1:
        kind = "reduce_all"
    else:
        dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", None)
        dims = [dims] if isinstance(dims, int) else dims or range(len(x))
        kind = "reduce_rows" if any(d % max(len(x), 1) == len(x) - 1 for d in dims) else "reduce_columns"
    return Work(kind, bytes_of(node), 0.0, float(out))


def softmax_work(node):
    x, dim = shape(node.all_input_nodes[0]), node.args[1]
    dim = (*dim, -1)[0] if isinstance(dim, (list, tuple)) else dim
    last = dim % max(len(x), 1) == len(x) - 1
    kind = "logsumexp" if name_of(node).endswith("logsumexp") else "softmax"
    where = "_columns" if not last else "_long" if product(x[-1:]) > LONG else "_rows"
    return Work(kind + where, bytes_of(node), 0.0)


def work_of(node):
    """The work of one node, None if PyTorch only creates a view."""
    found = counted(node)
    halves = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors_of(node))
    return replace(found, half=True) if found is not None and halves else found


def counted(node):
    name = name_of(node)
    if node.target is operator.getitem or name in VIEWS:
        return None
    if name in ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "mv", "dot"):
        return gemm_work(node)
    if name.startswith("conv"):
        return conv_work(node)
    if name in NORMS:
        return Work(NORMS[name], bytes_of(node), 0.0)
    if "pool" in name:
        return pool_work(node, name)
    if name in REDUCTIONS and node.target not in (torch.ops.aten.max.other, torch.ops.aten.min.other):
        return reduce_work(node)
    if "softmax" in name or name.endswith("logsumexp"):
        return softmax_work(node)
    return Work("gelu" if name == "gelu" else "pointwise_slow" if name in SLOW else "pointwise", bytes_of(node), 0.0)
