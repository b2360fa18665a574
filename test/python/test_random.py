"""Random chains against PyTorch, and random attributes: both sides must accept or both refuse."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, note
from hypothesis import strategies as st

from compare import check_chain
from conftest import DEVICES
from library import ConvoyError, Graph

# No operator here jumps or amplifies noise without bound, so float64 noise stays noise to the end of a chain.
SMOOTH = """relu relu6 leaky_relu elu selu gelu gelu('tanh') silu mish sigmoid hardsigmoid tanh hardtanh hardswish
softplus softsign neg abs erf square|tanh clamp(-2,2)|exp abs|add(0.5)|log abs|add(0.5)|sqrt abs|add(0.5)|rsqrt
clamp(-0.5,1.5) add(0.25) sub(-1) mul(-0.7) div(3) maximum(0.1) minimum(0.2) dropout""".split()


def listed(numbers):
    return "(" + ",".join(map(str, numbers)) + ")"


@st.composite
def spatial(draw, rank, low, high):
    """One number for all axes, or one for each."""
    one = st.integers(low, high)
    return draw(one) if draw(st.booleans()) else listed(draw(st.lists(one, min_size=rank, max_size=rank)))


@st.composite
def producer(draw, rank, channels):
    groups = draw(st.sampled_from([g for g in (1, 2, 3, channels) if channels % g == 0]))
    out = groups * draw(st.integers(1, 4))
    if draw(st.booleans()):
        padding = draw(st.one_of(spatial(rank, 0, 3), st.sampled_from(["'same'", "'valid'"])))
        stride = 1 if padding == "'same'" else draw(spatial(rank, 1, 3))
        dilation = draw(spatial(rank, 1, 2))
        kernel = draw(spatial(rank, 1, 4))
        return f"conv{rank}d({out},{kernel},{stride},{padding},{dilation},{groups},{draw(st.booleans())})"
    kernel, stride, padding = draw(spatial(rank, 1, 3)), draw(spatial(rank, 1, 2)), draw(spatial(rank, 0, 1))
    return f"conv_transpose{rank}d({out},{kernel},{stride},{padding},groups={groups},bias={draw(st.booleans())})"


@st.composite
def pool(draw, shape):
    rank = len(shape) - 2
    kernel, stride = draw(spatial(rank, 1, 3)), draw(spatial(rank, 1, 3))
    padding, ceil = draw(st.integers(0, 1)), draw(st.booleans())
    kind = draw(st.sampled_from(["max", "avg", "adaptive"]))
    if kind == "adaptive":
        return f"adaptive_avg_pool{rank}d(1)"
    if kind == "max":
        return f"max_pool{rank}d({kernel},{stride},{padding},{draw(spatial(rank, 1, 2))},{ceil})"
    if rank == 3 and min(shape[2:]) < 3:
        kernel, padding = 1, 0  # avg_pool3d alone refuses an input that is smaller than the kernel before padding
    return f"avg_pool{rank}d({kernel},{stride},{padding},{ceil},{draw(st.booleans())})"


@st.composite
def norm(draw, shape):
    affine = draw(st.booleans())
    groups = draw(st.sampled_from([g for g in range(1, 7) if shape[1] % g == 0]))
    tail = draw(st.integers(1, len(shape) - 1))
    return draw(
        st.sampled_from(
            [
                f"group_norm({groups},affine={affine})",
                f"batch_norm({draw(st.booleans())},affine={affine})",
                f"instance_norm(affine={affine})",
                f"layer_norm({listed(shape[-tail:])},affine={affine})",
                f"rms_norm({listed(shape[-tail:])},affine={affine})",
            ]
        )
    )


@st.composite
def reduction(draw, shape):
    rank = len(shape)
    dims = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))
    dims = [d - rank if draw(st.booleans()) else d for d in dims]
    op = draw(st.sampled_from(["sum", "mean", "max", "min", "logsumexp", "softmax", "log_softmax"]))
    return f"{op}({dims[0]})" if "softmax" in op else f"{op}({listed(dims)},{draw(st.booleans())})"


@st.composite
def binary(draw, shape, names, number):
    """With an earlier value of the same shape, or with a parameter that broadcasts."""
    op = draw(st.sampled_from(["add", "sub", "mul", "maximum", "minimum"]))
    if names and draw(st.booleans()):
        return f"{op}(@{draw(st.sampled_from(names))})"
    extents = [draw(st.sampled_from([1, n])) for n in shape[draw(st.integers(0, len(shape) - 1)) :]]
    return f"{op}(p{number}[{','.join(map(str, extents))}])"


@st.composite
def chain(draw):
    rank = draw(st.integers(1, 3))
    batch, channels = draw(st.integers(0, 3)), draw(st.integers(1, 6))
    extents = draw(st.lists(st.integers(1, 9 if rank < 3 else 5), min_size=rank, max_size=rank))
    text = f"x[{','.join(map(str, [batch, channels, *extents]))}]"
    shape, named = (batch, channels, *extents), {}
    for number in range(draw(st.integers(1, 6))):
        kinds = [st.sampled_from(SMOOTH)]
        if shape:
            kinds += [reduction(shape), binary(shape, [n for n, s in named.items() if s == shape], number)]
            kinds += [st.just(f"linear({draw(st.integers(1, 5))})")]
        if len(shape) >= 2 and shape[1]:
            kinds += [norm(shape)]
        if 3 <= len(shape) <= 5:
            kinds += [producer(len(shape) - 2, shape[1]), pool(shape)] * 2
        longer = f"{text} | {draw(st.one_of(kinds))} @v{number}"
        try:
            graph = Graph(longer)
        except ConvoyError:
            continue  # a kernel larger than what is left, a norm of one element, ...
        text, shape = longer, graph.outputs[0].shape
        named[f"v{number}"] = shape
    assume("|" in text)
    return text


@pytest.mark.parametrize("device", DEVICES)
@given(text=chain(), seed=st.integers(0, 3))
def test_chain(device, text, seed):
    note(text)
    check_chain(text, device, seed=seed, floor=1.0)


def accepted(call):
    try:
        return tuple(call().shape)
    except (RuntimeError, ValueError):
        return None


def accepted_here(text):
    try:
        return Graph(text).outputs[0].shape
    except ConvoyError:
        return None


@given(
    op=st.sampled_from(["max_pool1d", "avg_pool1d"]),
    extent=st.integers(1, 12),
    kernel=st.integers(0, 6),
    stride=st.integers(0, 5),
    padding=st.integers(-1, 4),
    dilation=st.integers(0, 3),
    ceil=st.booleans(),
)
def test_pooling_accepts_what_pytorch_does(op, extent, kernel, stride, padding, dilation, ceil):
    x = torch.zeros(2, 3, extent, dtype=torch.float64)
    rest = {"ceil_mode": ceil} if op == "avg_pool1d" else {"ceil_mode": ceil, "dilation": dilation}
    words = ",".join(f"{k}={v}" for k, v in rest.items())
    wanted = accepted(lambda: getattr(F, op)(x, kernel, stride, padding, **rest))
    assert accepted_here(f"x[2,3,{extent}] | {op}({kernel},{stride},{padding},{words})") == wanted


@given(
    transposed=st.booleans(),
    extent=st.integers(1, 9),
    channels=st.integers(1, 6),
    out=st.integers(1, 6),
    kernel=st.integers(1, 5),
    stride=st.integers(0, 3),
    padding=st.one_of(st.integers(-1, 3), st.just("same")),
    dilation=st.integers(0, 3),
    groups=st.integers(1, 3),
    extra=st.integers(-1, 3),
)
def test_convolution_accepts_what_pytorch_does(
    transposed, extent, channels, out, kernel, stride, padding, dilation, groups, extra
):
    assume(not (transposed and padding == "same"))
    if transposed:
        # PyTorch has no out_channels of its own to be wrong: it follows from the weight.
        assume(out % groups == 0)
    x = torch.zeros(2, channels, extent, dtype=torch.float64)
    shape = (channels, out // groups, kernel) if transposed else (out, channels // groups, kernel)
    assume(0 not in shape)
    weight = torch.zeros(shape, dtype=torch.float64)
    head = f"x[2,{channels},{extent}] | "
    if transposed:
        wanted = accepted(lambda: F.conv_transpose1d(x, weight, None, stride, padding, extra, groups, dilation))
        text = f"conv_transpose1d({out},{kernel},{stride},{padding},{extra},{groups},{dilation})"
    else:
        wanted = accepted(lambda: F.conv1d(x, weight, None, stride, padding, dilation, groups))
        text = f"conv1d({out},{kernel},{stride},{padding!r},{dilation},{groups})"
    assert accepted_here(head + text) == wanted
