"""What PyTorch refuses, the library refuses, with a message that names the operator and the numbers."""

import numpy as np
import pytest
import torch

from chains import evaluate
from library import INVALID, ConvoyError, Graph

# chain, shapes of the parameters PyTorch needs to be asked at all, words of the message
REFUSED = [
    ("x[2,3,2,2] | conv2d(4,3)", {"conv2d.weight": (4, 3, 3, 3), "conv2d.bias": (4,)}, ["conv2d", "3", "2"]),
    ("x[2,3,5] | conv1d(4,3,dilation=3)", {"conv1d.weight": (4, 3, 3), "conv1d.bias": (4,)}, ["conv1d", "7", "5"]),
    ("x[2,3,5] | conv1d(4,3,groups=2)", {"conv1d.weight": (4, 1, 3), "conv1d.bias": (4,)}, ["groups", "3", "2"]),
    ("x[2,4,5] | conv1d(3,3,groups=2)", {"conv1d.weight": (3, 2, 3), "conv1d.bias": (3,)}, ["groups", "3", "2"]),
    ("x[2,3,5] | conv1d(4,3,stride=0)", {"conv1d.weight": (4, 3, 3), "conv1d.bias": (4,)}, ["stride", "0"]),
    ("x[2,3,5] | conv1d(4,3,2,'same')", {"conv1d.weight": (4, 3, 3), "conv1d.bias": (4,)}, ["same", "stride"]),
    ("x[2,3,5,5] | conv1d(4,3)", {"conv1d.weight": (4, 3, 3), "conv1d.bias": (4,)}, ["conv1d", "rank", "4"]),
    ("x[2,3,0] | conv1d(4,1)", {"conv1d.weight": (4, 3, 1), "conv1d.bias": (4,)}, ["conv1d", "0"]),
    ("x[2,3,5] | conv1d(4,3,weight=w[4,2,3])", {"w": (4, 2, 3), "conv1d.bias": (4,)}, ["weight", "[4,2,3]", "[4,3,3]"]),
    (
        "x[2,3,5] | conv_transpose1d(4,3,output_padding=1)",
        {"conv_transpose1d.weight": (3, 4, 3), "conv_transpose1d.bias": (4,)},
        ["output_padding", "1"],
    ),
    (
        "x[2,3,5] | conv_transpose1d(4,1,padding=3)",
        {"conv_transpose1d.weight": (3, 4, 1), "conv_transpose1d.bias": (4,)},
        ["padding", "3"],
    ),
    ("x[2,3,2] | max_pool1d(3)", {}, ["max_pool1d", "3", "2"]),
    ("x[2,3,9] | max_pool1d(2,padding=2)", {}, ["padding", "2"]),
    ("x[2,3,9] | max_pool1d(3,padding=2,dilation=2)", {}, ["padding", "2", "3"]),
    ("x[2,3,2] | avg_pool1d(5,2,ceil_mode=True)", {}, ["avg_pool1d", "5", "2"]),
    ("x[2,3,2,2] | avg_pool2d(3)", {}, ["avg_pool2d", "3", "2"]),
    ("x[2,3,4,4] | avg_pool2d(2,divisor_override=0)", {}, ["divisor_override", "0"]),
    ("x[2,6,5] | group_norm(4,affine=False)", {}, ["group_norm", "6", "4"]),
    ("x[1,4,1] | batch_norm(True,affine=False)", {}, ["batch_norm", "one"]),
    ("x[2,4,1] | instance_norm", {}, ["instance_norm", "one"]),
    ("x[1,4] | group_norm(4,affine=False)", {}, ["group_norm", "one"]),
    ("x[2,3,5] | layer_norm(3,affine=False)", {}, ["layer_norm", "[2,3,5]", "[3]"]),
    ("x[2,3] | add(w[2])", {"w": (2,)}, ["add", "3", "2"]),
    ("x[2,3] | matmul(w[2,3])", {"w": (2, 3)}, ["matmul", "3", "2"]),
    ("x[2,2,3] | matmul(w[3,3,2])", {"w": (3, 3, 2)}, ["matmul", "2", "3"]),
    ("x[2,3] | linear(4,w[4,2])", {"w": (4, 2), "linear.bias": (4,)}, ["weight", "[4,2]", "[4,3]"]),
    ("x[2,3] | sum(2)", {}, ["sum", "2"]),
    ("x[2,3] | mean((0,0))", {}, ["mean", "0", "twice"]),
    ("x[2,0] | max(1)", {}, ["max", "1"]),
    ("x[0] | min", {}, ["min", "0"]),
    ("x[2,3] | softmax(-3)", {}, ["softmax", "-3"]),
    ("x[2,3] | reshape(4,2)", {}, ["reshape", "6", "8"]),
    ("x[2,3] | reshape(4,-1)", {}, ["reshape", "6", "4"]),
    ("x[2,3] | unsqueeze(3)", {}, ["unsqueeze", "3"]),
    ("x[2,3] | flatten(1,0)", {}, ["flatten", "1", "0"]),
    ("x[2,3] | clamp", {}, ["clamp"]),
]


@pytest.mark.parametrize("text,parameters,words", REFUSED)
def test_refused_by_both(text, parameters, words):
    shapes = {"x": tuple(int(n) for n in text[2 : text.index("]")].split(",")), **parameters}
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        evaluate(text, {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()})
    with pytest.raises(ConvoyError) as error:
        Graph(text)
    assert error.value.status == INVALID
    for word in words:
        assert word in str(error.value)


# Refused though PyTorch takes them, or would if there were the memory.
@pytest.mark.parametrize(
    "text,status,words",
    [
        ("x[2,3,4,5,6,7] | unsqueeze(0)", INVALID, ["unsqueeze", "6"]),
        ("x[4611686018427387904,4] | relu", INVALID, ["x", "elements"]),
        ("x[100000000,1] | add(w[100000000,1,1]) | add(v[100000000])", INVALID, ["elements"]),
        ("x[1,1,9] | conv1d(1,4503599627370496,dilation=4503599627370496)", INVALID, ["conv1d"]),
        ("x[1,1,9] | conv1d(4096,3,padding=4503599627370496)", INVALID, ["elements"]),
    ],
)
def test_refused_here(text, status, words):
    with pytest.raises(ConvoyError) as error:
        Graph(text)
    assert error.value.status == status
    for word in words:
        assert word in str(error.value)


def test_shapes_of_a_large_graph_need_no_memory():
    """Block A at full size is only described here, not run."""
    graph = Graph(
        "x[128,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)"
    )
    assert graph.outputs[0].shape == (128, 64, 31, 31)
    assert np.prod(graph.sources[0].shape) == 128 * 8 * 128 * 128
