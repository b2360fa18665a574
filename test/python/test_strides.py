"""Buffers of any strides: transposed, sliced, reversed, repeated and channels-last tensors, in and out."""

import numpy as np
import pytest

from compare import check_arrays, random_tensors
from library import Graph, run

CHAINS = [
    "x[2,4,5,6] | relu",
    "x[2,4,5,6] | conv2d(4,3,padding=1) | add(@x)",
    "x[2,4,5,6] | group_norm(2) | mul(scale[4,1,1]) | max_pool2d(2)",
    "x[2,4,5,6] | logsumexp(1,keepdim=True)",
    "x[2,4,5,6] | flatten(1) | linear(3)",
    "x[2,4,5,6] | conv_transpose2d(3,3,stride=2)",
    "x[2,4,5,6] | softmax(1)",
    "x[2,4,5,6] | reshape(8,30) | sum(0)",
]


def channels_last(a):
    """The same values, the channels next to each other."""
    return np.moveaxis(np.moveaxis(a, 1, -1).copy(), -1, 1) if a.ndim > 2 else a


def transposed(a):
    return a.T.copy().T


def gapped(a):
    """Every second element of a larger array along each dimension; what lies between must not matter."""
    wide = np.full([2 * n + 1 for n in a.shape], np.float32(np.nan))
    view = wide[tuple(slice(0, 2 * n, 2) for n in a.shape)]
    view[...] = a
    return view


def backwards(a):
    return a[tuple(slice(None, None, -1) for _ in a.shape)].copy()[tuple(slice(None, None, -1) for _ in a.shape)]


LAYOUTS = [channels_last, transposed, gapped, backwards]


@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs(text, layout, device):
    graph = Graph(text)
    arrays = random_tensors(graph)
    strided = {name: layout(a) for name, a in arrays.items()}
    for name, a in strided.items():
        np.testing.assert_array_equal(a, arrays[name])
    check_arrays(text, graph, strided, device)


@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.parametrize("dims", [(0,), (1,), (2, 3), (0, 1, 2, 3)])
def test_repeated_inputs(text, dims, device):
    """Stride 0, as torch.expand makes it."""
    graph = Graph(text)
    arrays = random_tensors(graph)
    x = arrays["x"]
    arrays["x"] = np.broadcast_to(x[tuple(slice(0, 1) if d in dims else slice(None) for d in range(4))], x.shape)
    check_arrays(text, graph, arrays, device)


@pytest.mark.parametrize("text", CHAINS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs(text, layout, device):
    """The same bits as into a contiguous output, and nothing written beside them."""
    graph = Graph(text)
    arrays = random_tensors(graph)
    (plain,) = run(graph, arrays, device)
    target = layout(np.full(plain.shape, np.float32(5)))
    base = target if target.base is None else target.base
    marked = base.copy()
    run(graph, arrays, device, outputs=[target])
    np.testing.assert_array_equal(target, plain)
    target[...] = 5
    np.testing.assert_array_equal(base, marked)


def test_output_between_guards(device):
    graph = Graph(CHAINS[0])
    arrays = random_tensors(graph)
    memory = np.full(2 * 4 * 5 * 6 + 64, np.float32(5))
    (plain,) = run(graph, arrays, device)
    run(graph, arrays, device, outputs=[memory[32:-32].reshape(2, 4, 5, 6)])
    np.testing.assert_array_equal(memory[32:-32], plain.ravel())
    assert (memory[:32] == 5).all() and (memory[-32:] == 5).all()


def test_inputs_stay_as_they_are(device):
    graph = Graph(CHAINS[1])
    arrays = random_tensors(graph)
    copies = {name: a.copy() for name, a in arrays.items()}
    run(graph, arrays, device)
    for name, a in arrays.items():
        np.testing.assert_array_equal(a, copies[name])
