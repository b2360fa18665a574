"""PyTorch's Python functions in place of overloads (direct.py): the same results, and only in the code."""

import re

import torch
from torch import nn

import convoy
import pytest
from convoy.direct import DIRECT

torch.manual_seed(0)
X, Y, V = torch.randn(4, 6), torch.randn(4, 6), torch.randn(6)
A, B = torch.randn(2, 4, 6), torch.randn(2, 6, 4)
LINE, IMAGE, CUBE = torch.randn(2, 3, 9), torch.randn(2, 3, 8, 9), torch.randn(2, 3, 5, 6, 7)
HEADS = torch.randn(2, 2, 5, 8)
C = torch.randn(3)
CONV = ([2], [1], [1], 1)
EXAMPLES = {
    "linear": (X, Y, torch.randn(4)), "gelu": (X,), "silu": (X,), "hardtanh": (X, -0.5, 0.5), "hardswish": (X,), "hardsigmoid": (X,),
    "leaky_relu": (X, 0.2), "softplus": (X, 2, 10), "avg_pool2d": (IMAGE, [2, 3], [2, 2], [1, 1], True, False),
    "avg_pool3d": (CUBE, [2, 2, 2]), "adaptive_avg_pool2d": (IMAGE, [3, 2]), "adaptive_avg_pool3d": (CUBE, [2, 2, 1]),
    "scaled_dot_product_attention": (HEADS, HEADS, HEADS, None, 0.0, True),
    "conv1d": (LINE, torch.randn(4, 3, 3), torch.randn(4), *CONV), "conv2d": (IMAGE, torch.randn(4, 3, 3, 3), None, *CONV),
    "conv3d": (CUBE, torch.randn(4, 3, 2, 2, 2), None, *CONV),
    "conv_transpose1d": (LINE, torch.randn(3, 4, 3), None, [2], [1], [1], 1, [1]),
    "conv_transpose2d": (IMAGE, torch.randn(3, 4, 3, 3), torch.randn(4), [2], [1], [1], 1, [1]),
    "conv_transpose3d": (CUBE, torch.randn(3, 4, 2, 2, 2), None, [2], [0], [0], 1, [1]),
    "batch_norm": (IMAGE, C, C, C, C.exp(), False, 0.1, 1e-3, True), "layer_norm": (X, [6], V, V, 1e-3, True),
    "group_norm": (IMAGE, 3, C, C, 1e-3, True), "instance_norm": (IMAGE, C, C, None, None, True, 0.1, 1e-3, True),
    "max_pool2d": (IMAGE, [3, 2], [2, 2], [1, 1], [1, 1], True), "max_pool3d": (CUBE, [2, 2, 2]), "softmax": (X, -1), "log_softmax": (X, 0),
    "add": (X, Y), "sub": (X, V), "mul": (X, 2.5), "div": (X, Y), "matmul": (A, B), "bmm": (A, B), "mm": (X, Y.t()), "addmm": (torch.randn(4), X, Y.t()),
    "baddbmm": (torch.randn(2, 4, 4), A, B), "cat": ([X, Y], 1), "stack": ([X, Y], 1), "sum": (IMAGE, [2, 3], True), "mean": (IMAGE, [1], False),
    "embedding": (X, torch.tensor([[1, 3], [0, 1]])), "dropout": (X, 0.3, False), "clamp": (X, -0.5, 0.5), "where": (X > 0, X, Y),
    "pow": (X, 3), "view": (X, [3, -1]), "reshape": (B.transpose(1, 2), [8, 6]), "transpose": (A, 0, 2), "permute": (A, [2, 0, 1]),
    "expand": (V, [4, 6]), "unsqueeze": (X, 1), "squeeze": (X[:1], 0), "select": (X, 1, 2), "flatten": (IMAGE, 1, -1), "contiguous": (A.mT,),
    "chunk": (X, 3, 1), "unbind": (X, 1), "t": (X,), "to": (X, torch.float64), "type_as": (X, X.double()),
    "masked_fill": (X, X > 0, float("-inf")), "tril": (X, -1), "triu": (X, 1), "bitwise_not": (X > 0,), "logical_not": (X > 0,),
    "ones": ([2, 3],), "zeros": ([2, 3],), "full": ([2, 3], 0.5),
}  # fmt: skip


def example(overload):
    name, _, which = str(overload).removeprefix("aten.").partition(".")
    if (name, which) == ("masked_fill", "Tensor"):
        return X, X > 0, torch.tensor(2.0)
    return EXAMPLES.get(name, (X.abs(),))


def shares(result, argument):
    return isinstance(argument, torch.Tensor) and result.data_ptr() == argument.data_ptr()


@torch.no_grad()
@pytest.mark.parametrize("overload", DIRECT, ids=str)
def test_gives_what_the_overload_gives(overload):
    args = example(overload)
    found, expected = DIRECT[overload](*args), overload(*args)
    pairs = zip(found, expected, strict=True) if isinstance(expected, (list, tuple)) else [(found, expected)]
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride() and torch.equal(ours.nan_to_num(), theirs.nan_to_num())
        assert shares(ours, args[0]) == shares(theirs, args[0])


class Mixed(nn.Module):
    """One region, with operators around it that stay in PyTorch."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)

    def forward(self, x):
        y = torch.cat([self.conv(x).relu(), self.conv(x).tanh()], 1)
        return y.view(y.shape[0], 2, -1).unbind(1)[0].masked_fill(torch.ones((), dtype=torch.bool), 1.0)


@torch.no_grad()
def test_the_code_calls_functions_and_the_graph_names_overloads():
    net = Mixed().eval()
    fast = convoy.compile(net, regions="all")
    torch.testing.assert_close(fast(IMAGE), net(IMAGE))
    graph = list(fast._convoy.entries.values())[-1].capture.graph
    kept = [n.target for n in graph.graph.nodes if n.target in DIRECT]
    assert {str(t) for t in kept} >= {"aten.view.default", "aten.select.int", "aten.masked_fill.Scalar"}
    for name in (r"torch.Tensor.view\(", r"torch.Tensor.select\(", r"torch.Tensor.masked_fill\("):  # fx writes dots or underscores
        assert re.search(name, graph.code), graph.code
