"""A trace of a batch norm is what PyTorch's own is, whether it takes the short way (short_norms.py) or not."""

import contextlib

import pytest
import torch
from torch import nn

from convoy import attended, capture, short_norms
from convoy.building import stateless
from convoy.state import State


def traced(module, x, short):
    """(target, other arguments, shape, strides, dtype) of every operator, or the error that ends the trace."""
    params = [*module.parameters(), *module.buffers()]
    run = stateless(module, type(module).forward, State(module), params, None)
    with pytest.MonkeyPatch.context() as patch:
        if not short:
            patch.setattr(attended, "short_norm", lambda *args, **kwargs: None)
        try:
            graph = capture.trace(run, params, [x], "fake")[0].graph
        except Exception as error:
            return type(error), str(error).splitlines()[0]
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    return [(n.name, n.target, [str(a) for a in n.args], v.shape, v.stride(), v.dtype) for n in nodes for v in [n.meta["val"]]]


def image(*shape):
    return torch.rand(shape)


NORMS = {
    "plain": (nn.BatchNorm2d(6), image(2, 6, 5, 5)),
    "one sample": (nn.BatchNorm2d(6), image(1, 6, 1, 5)),
    "sequence": (nn.BatchNorm1d(6), image(2, 6, 5)),
    "rows": (nn.BatchNorm1d(6), image(4, 6)),
    "volume": (nn.BatchNorm3d(6), image(2, 6, 3, 4, 5)),
    "no weight": (nn.BatchNorm2d(6, affine=False), image(2, 6, 5, 5)),
    "statistics of the batch": (nn.BatchNorm2d(6, track_running_stats=False), image(2, 6, 5, 5)),
    "cumulative": (nn.BatchNorm2d(6, momentum=None), image(2, 6, 5, 5)),
    "channels last": (nn.BatchNorm2d(6), image(2, 6, 5, 5).to(memory_format=torch.channels_last)),
    "transposed": (nn.BatchNorm2d(6), image(2, 6, 5, 4).transpose(2, 3)),
    "expanded": (nn.BatchNorm2d(6), image(1, 6, 5, 5).expand(3, 6, 5, 5)),
    "strides of one sample": (nn.BatchNorm2d(6), image(1, 6, 5, 5).as_strided((1, 6, 5, 5), (7, 25, 5, 1))),
    "half": (nn.BatchNorm2d(6).half(), image(2, 6, 5, 5).half()),
    "half with float32": (nn.BatchNorm2d(6), image(2, 6, 5, 5).half()),
    "double with float32": (nn.BatchNorm2d(6), image(2, 6, 5, 5).double()),
    "integers": (nn.BatchNorm2d(6), torch.ones(2, 6, 5, 5, dtype=torch.int64)),
    "other channels": (nn.BatchNorm2d(6), image(2, 5, 5, 5)),
    "nothing": (nn.BatchNorm2d(6), image(0, 6, 5, 5)),
    "negative eps": (nn.BatchNorm2d(6, eps=-1.0), image(2, 6, 5, 5)),
    "double": (nn.BatchNorm2d(6).double(), image(2, 6, 5, 5).double()),
}
MODES = {"no gradients": torch.no_grad, "gradients": contextlib.nullcontext,
         "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16)}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", NORMS)
def test_the_trace_is_the_same(name, training, mode):
    module, x = NORMS[name]
    module.train(training)
    with torch.no_grad() if mode == "autocast" else contextlib.nullcontext(), MODES[mode]():
        assert traced(module, x, short=True) == traced(module, x, short=False)


def test_the_short_way_is_taken(monkeypatch):
    module, x = NORMS["plain"]
    taken = []
    monkeypatch.setattr(attended, "short_norm", lambda *args, **kwargs: taken.append(short_norms.short_norm(*args, **kwargs)))
    with torch.no_grad():
        traced(module.eval(), x, short=True)
    assert len(taken) == 1 and taken[0].shape == x.shape
