"""NaN, infinities, signed zeros, denormals and values near overflow through every operator."""

import re

import numpy as np
import pytest

from cases import BLOCKS, CASES, GRAPHS
from compare import EPS, TINY, assert_agrees, check_arrays, check_chain, is_reference, random_tensors, truth
from library import Graph, run

SPECIAL = np.array(
    [
        *(np.nan, np.inf, -np.inf, 0.0, -0.0),
        *(1e-45, -1e-45, 1e-40, -1e-40, 1.1754944e-38, -1.1754944e-38),  # denormals, the smallest normal
        *(3.4028235e38, -3.4028235e38, 1e30, -1e30, 1e19, -2e19),  # squares of the last two overflow
        *(1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, -6.0, 0.70710677, 2.9999998, -3.0000002, 5.9999995),
        *(10.0, -10.0, 20.0, -20.0, 20.000002, 88.0, -88.0, 89.0, -104.0, 150.0, -150.0, 1e-8, -1e-8, 1e4, -1e4),
    ],
    np.float32,
)

POINTWISE = """relu relu6 selu silu mish sigmoid hardsigmoid tanh hardswish softsign exp neg abs square erf log sqrt
rsqrt leaky_relu leaky_relu(-0.5) leaky_relu(0) elu elu(0.3) gelu gelu('tanh') hardtanh hardtanh(-0.2,0.7) softplus
softplus(2,0.5) clamp(0,1) clamp(min=-0.5) clamp(max=0.25) clamp(1,-1) clamp(0,inf) clamp(-inf,0) dropout""".split()
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum"]
# Of -0 and 0 PyTorch's vector loop takes the second as maximum and minimum, its scalar loop the first.
ZEROS_COUNT = {"add", "sub", "mul", "div"}

# PyTorch's own float64 result cancels here: 1 + erf(x) and 1 + tanh(x) for x far below 0 times |x|.
CANCELLING = {"gelu": 1e-14, "gelu('tanh')": 1e-14}


def single_pass_error(device, op, want):
    """One operator on one element: relative, except where PyTorch itself cancels."""
    relative = EPS + 1e-12 if is_reference(device) else 2.0**-18
    return relative * np.abs(np.nan_to_num(want, posinf=0, neginf=0)) + CANCELLING.get(op, 0) + TINY


@pytest.mark.parametrize("op", POINTWISE)
def test_pointwise(op, device):
    text = f"x[{SPECIAL.size}] | {op}"
    arrays = {"x": SPECIAL}
    (got,), (want,) = run(Graph(text), arrays, device), truth(text, arrays)
    assert_agrees(got, want, single_pass_error(device, op, want), signed_zeros=is_reference(device))


@pytest.mark.parametrize("op", POINTWISE)
def test_pointwise_keeps_nan(op, device):
    nan = np.full(37, np.nan, np.float32)
    (got,) = run(Graph(f"x[37] | {op}"), {"x": nan}, device)
    assert np.isnan(got).all()


@pytest.mark.parametrize("op", BINARY)
def test_binary_of_all_pairs(op, device):
    n = SPECIAL.size
    text = f"x[{n},1] | {op}(w[{n}])"
    arrays = {"x": SPECIAL[:, None], "w": SPECIAL}
    (got,), (want,) = run(Graph(text), arrays, device), truth(text, arrays)
    signed_zeros = is_reference(device) and op in ZEROS_COUNT
    assert_agrees(got, want, single_pass_error(device, op, want), signed_zeros)


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "0", repr(2.0**-140)])  # a denormal float32 can hold
def test_binary_with_a_number(op, number, device):
    text = f"x[{SPECIAL.size}] | {op}({number})"
    arrays = {"x": SPECIAL}
    (got,), (want,) = run(Graph(text), arrays, device), truth(text, arrays)
    signed_zeros = is_reference(device) and op in ZEROS_COUNT
    assert_agrees(got, want, single_pass_error(device, op, want), signed_zeros)


# One value planted into random data, so that it meets every kind of neighbour.
PLANTED = [np.nan, np.inf, -np.inf, -0.0, 1e-42, 3e38]
ELEMENTWISE = {op.split("(")[0] for op in POINTWISE} | set(BINARY)
REST = [
    pytest.param(text, planted, id=f"{op}-{i}-{planted}")
    for op in CASES
    for i, text in enumerate(CASES[op])
    for planted in PLANTED
    if op not in ELEMENTWISE and not re.match(r"x\[(\d+,)*0[,\]]", text)
    # Groups of one element are x - x; PyTorch's x * a - mean * a is noise as large as x times 1e-16.
    and not (planted == 3e38 and "[3,4,1,1] | group_norm(4)" in text)
]


@pytest.mark.parametrize("text,planted", REST)
def test_planted(text, planted, device):
    graph = Graph(text)
    arrays = random_tensors(graph)
    arrays["x"].flat[arrays["x"].size // 2] = planted
    check_arrays(text, graph, arrays, device)


# What engines fold, move and reorder while numbers are finite.
REWRITTEN = [
    "x[2,16,12,20] | conv2d(16,3,padding=1) | relu",
    "x[2,3,12,14] | conv2d(4,3,padding=1) | group_norm(2) | relu",
    "x[2,3,12,14] | conv2d(4,3,padding=1,stride=2) | group_norm(2) | relu",
    "x[2,3,12,14] | conv2d(4,3,stride=3) | group_norm(4) | max_pool2d(2)",
    "x[2,3,12,14] | conv2d(4,3) | group_norm(4) | max_pool2d(2)",
    "x[2,3,12,14] | conv2d(4,3) | group_norm(4) | mul(s[4,1,1]) | add(t[4,1,1]) | max_pool2d(2)",
    "x[2,3,12,14] | conv2d(4,3) | group_norm(4) | sub(t[4,1,1]) | mul(s[4,1,1]) | relu",
    "x[2,3,12,14] | conv2d(4,3) | group_norm(4) | mul(inf) | add(1)",
    "x[2,3,12,14] | conv2d(4,3) | mul(-inf) | sigmoid",
    "x[2,3,12,14] | conv2d(4,3) | mul(s[4,1,1]) | add(t[4,1,1]) | relu",
    "x[2,3,12,14] | conv2d(4,3) | add(t[4,1,1]) | mul(s[4,1,1]) | relu",
    "x[2,3,12,14] | conv2d(4,3) | batch_norm | max_pool2d(2)",
    "x[2,3,12,14] | conv2d(4,1) | group_norm(2) | max_pool2d(2)",
    "x[2,3,12,14] | conv2d(4,3) | instance_norm(affine=True) | mul(s[4,1,1]) | max_pool2d(2) | clamp(0,1)",
    "x[2,3,12,14] | conv2d(4,3) | group_norm(2) @g | sigmoid | mul(@g)",
    "x[2,3,12,14] | conv2d(4,3,padding=1) | mean((2,3))",
    "x[2,3,12,14] | conv2d(4,3) | mean(1) | sigmoid",
    "x[2,3,12,14] | conv2d(4,3) | sum(1,keepdim=True) | mul(0.5) | add(1) | tanh",
    "x[2,3,12,14] | conv2d(4,3) | sum(1,keepdim=True) | mean((2,3))",
    "x[2,5] | linear(4) | sum(1,keepdim=True) | sigmoid",
    "x[2,5] | linear(4) | mul(s[4]) | add(t[4])",
    "x[2,3,12,14] | group_norm(3) | mul(s[3,1,1]) | add(0.5) | relu",
    "x[2,3,14] | conv1d(4,3,padding=1) | group_norm(2)",
    "x[2,3,5,6,7] | conv3d(4,3,padding=1) | group_norm(2) | max_pool3d(2)",
    "x[2,3,7,7] | conv_transpose2d(4,3,stride=2,padding=1) | add(t[4,1,1]) | mul(s[4,1,1])",
    "x[2,3,12,14] | softsign | max_pool2d(2)",
    "x[2,3,12,14] | exp | max_pool2d(2)",
]


@pytest.mark.parametrize("text", [t for op in CASES for t in CASES[op]] + [*BLOCKS.values(), *GRAPHS, *REWRITTEN])
def test_planted_in_every_tensor(text, device):
    """NaN, inf and -inf in one place of one tensor: the results' lie where PyTorch has them in float64."""
    graph = Graph(text)
    for spec in graph.sources:
        clean = random_tensors(graph)
        size = clean[spec.name].size
        for i, planted in enumerate([np.nan, np.inf, -np.inf] if size else []):
            for place in {0, (2 * i + 1) * size // 6, size - 1}:
                arrays = clean | {spec.name: clean[spec.name].copy()}
                arrays[spec.name].flat[place] = planted
                for got, want in zip(run(graph, arrays, device), truth(text, arrays)):
                    note = f"{planted} at {place} of {spec.name}"
                    got, want = (np.where(np.isfinite(y), 0, y) for y in (got, want))
                    np.testing.assert_array_equal(got, want, note)


INF_LINES = np.array(
    [
        [np.inf, 1, 2],
        [-np.inf, 1, 2],
        [-np.inf, -np.inf, -np.inf],
        [np.inf, -np.inf, 0],
        [np.inf, np.inf, 0],
        [np.nan, np.inf, 1],
        [-0.0, 0.0, -0.0],
        [1e-45, -1e-45, 0],
        [3e38, 3e38, 3e38],
        [-3e38, -3e38, 3e38],
    ],
    np.float32,
)


@pytest.mark.parametrize(
    "op", ["sum(1)", "mean(1)", "max(1)", "min(1)", "logsumexp(1)", "softmax(1)", "log_softmax(1)", "max_pool1d(3)",
           "max_pool1d(3,1,1)", "avg_pool1d(3)"]
)  # fmt: skip
def test_lines_of_infinities(op, device):
    for line in INF_LINES:  # one by one: the largest value of a line is what errors are measured by
        text = f"x[1,3] | {op}"
        check_arrays(text, Graph(text), {"x": line[None]}, device)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "logsumexp"])
def test_negative_zero_of_one_element(op, device):
    """What begins with 0 gives 0 of one -0, extremes give -0: the sign shows in an infinity."""
    text = f"x[1,3] | {op}(0) | rsqrt"
    arrays = {"x": np.full((1, 3), -0.0, np.float32)}
    check_arrays(text, Graph(text), arrays, device)


@pytest.mark.parametrize("where", ["x", "conv1d.weight"])
def test_infinite_channel_costs_the_others_nothing(where, device):
    """Channels with a mean stay centred before statistics, whatever is in the channel beside them."""
    text = "x[1,2,400] | conv1d(2,1,groups=2) | instance_norm"
    arrays = random_tensors(Graph(text))
    arrays["x"] += np.float32(1000)
    arrays[where].flat[0] = np.inf
    (got,), (want,) = run(Graph(text), arrays, device), truth(text, arrays)
    assert np.isnan(got[:, 0]).all()
    np.testing.assert_allclose(got[:, 1], want[:, 1], rtol=0, atol=1e-6 if is_reference(device) else 5e-4)


def test_infinite_weight_over_padding_is_nan():
    """PyTorch's padding is zeros that are multiplied, in float64 everywhere; the reference does the same."""
    text = "x[1,1,3,3] | conv2d(1,3,padding=1,bias=False)"
    graph = Graph(text)
    arrays = {"x": np.ones((1, 1, 3, 3), np.float32), "conv2d.weight": np.ones((1, 1, 3, 3), np.float32)}
    arrays["conv2d.weight"][0, 0, 0, 0] = np.inf
    (got,), (want,) = run(graph, arrays, "ref"), truth(text, arrays)
    np.testing.assert_array_equal(got, want.astype(np.float32))


@pytest.mark.parametrize("seed", [0, *range(1, 7)])
def test_skipped_taps(seed):
    """Taps that see nothing but padding are left out only where all weights are finite. The seeds: every form."""
    text = "x[1,4,9,9] | conv2d(8,3,padding=7,dilation=7)"
    arrays = random_tensors(Graph(text))
    for value in (1, np.inf, np.nan):
        arrays["conv2d.weight"][3, 1, 0, 2] = value
        check_arrays(text, Graph(text), arrays, f"cpu:seed={seed}")


@pytest.mark.parametrize("seed", range(1, 9))
def test_an_empty_value_after_a_norm(seed):
    """Whatever passes the dice make of it: values without elements are not beside others in one pass."""
    text = "x[1,1,7,2] | layer_norm((7,2)) | slice(-2,start=-1,end=1) @s | minimum(p[1,3,1,1]) | group_norm(1) | add(@s)"
    check_chain(text, f"cpu:seed={seed}")
