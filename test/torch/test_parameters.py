"""Parameters that are put in the place of others: `parameter.data = ...` leaves no version, and perhaps no address."""

import pytest
import torch
from torch import nn

import convoy


class InPlace(nn.Module):
    """Adds to its argument, in PyTorch, before what Convoy computes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        x.add_(1)
        y = torch.relu(self.first(x))
        x.mul_(2)
        return torch.tanh(self.second(torch.cumsum(y, 0).to(self.second.weight.dtype)))


def near(got, want):
    assert got.dtype == want.dtype
    eps = max(torch.finfo(got.dtype).eps, 1e-4)
    torch.testing.assert_close(got, want, rtol=2 * eps, atol=2 * eps)


CHANGES = {
    "another dtype": lambda p: p.half(),
    "another layout": lambda p: p.clone().t(),
    "the same memory, transposed": lambda p: p.t(),
    "bfloat16": lambda p: p.bfloat16(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@torch.no_grad()
def test_in_place_operators_run_once(change):
    """The change is seen before anything has run: nothing is done twice."""
    model = InPlace().eval()
    fast = convoy.compile(model)
    fast(torch.zeros(3, 6))
    layer = model.second
    for parameter in (layer.weight, layer.bias):
        parameter.data = change(parameter.data)
    given, same = torch.ones(3, 6), torch.ones(3, 6)
    near(fast(given), model(same))
    assert torch.equal(given, same)


@torch.no_grad()
def test_surprises_in_mid_graph():
    """What nothing before the call could tell: an operator of PyTorch gives another dtype than when it was traced. The
    region is PyTorch's then, once, and the next call is traced again."""

    class Default(nn.Module):
        def forward(self, x):
            x.add_(1)
            return torch.tanh(torch.relu(torch.arange(6.0).cumsum(0)) * 0.1) + 1

    model = Default()
    fast = convoy.compile(model)
    fast(torch.zeros(6))
    torch.set_default_dtype(torch.float16)
    try:
        for _ in range(3):
            given, same = torch.ones(6), torch.ones(6)
            near(fast(given), model(same))
            assert torch.equal(given, same)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("whole", (True, False), ids=("one region", "several"))
@torch.no_grad()
def test_another_view_of_the_same_memory(whole):
    layer = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(layer, nn.ReLU()) if whole else nn.Sequential(layer, nn.ReLU(), nn.Softmax2d(), nn.Unfold(2))
    fast, x = convoy.compile(model.eval()), torch.randn(2, 4, 8, 8)
    for _ in range(3):
        near(fast(x), model(x))
    weight = layer.weight.data
    for view in (weight.transpose(0, 1), weight.transpose(2, 3), weight):
        layer.weight.data = view
        assert layer.weight.data_ptr() == weight.data_ptr()
        for _ in range(2):
            near(fast(x), model(x))
    memory = torch.randn(4 * 4 * 5 * 5)  # another shape
    for side in (3, 5, 3):
        layer.weight.data = memory[: 16 * side * side].view(4, 4, side, side)
        near(fast(x), model(x))


@pytest.mark.parametrize("cast", (False, True), ids=("float32", "autocast"))
@torch.no_grad()
def test_structured_pruning(cast):
    """Fewer channels of the same memory: no address and no version tells."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    fast, x = convoy.compile(model), torch.randn(3, 6)
    first, last = model[0], model[2]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast, cache_enabled=False):
        for kept in (8, 6, 5, 8):
            whole = [(p, p.data) for p in (first.weight, first.bias, last.weight)]
            first.weight.data, first.bias.data = first.weight.data[:kept], first.bias.data[:kept]
            last.weight.data = last.weight.data[:, :kept]
            for _ in range(3):
                near(fast(x), model(x))
            for parameter, data in whole:
                parameter.data = data


LAYOUTS = {
    "channels last": lambda w: w.contiguous(memory_format=torch.channels_last),
    "transposed": lambda w: w.transpose(0, 1).contiguous().transpose(0, 1),
    "with gaps": lambda w: torch.cat([w, w], 1)[:, : w.shape[1]],
    "in steps": lambda w: w.repeat_interleave(2, 3)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@torch.no_grad()
def test_data_changed_in_any_layout(layout):
    """Every element of a small parameter is looked at, however it lies."""
    layer = nn.Conv2d(4, 4, 3)
    layer.weight = nn.Parameter(layout(layer.weight.detach()))
    model = nn.Sequential(layer, nn.ReLU()).eval()
    fast, x = convoy.compile(model), torch.randn(2, 4, 8, 8)
    near(fast(x), model(x))
    for at in ((0, 0, 0, 1), (3, 3, 2, 2), (1, 2, 0, 0)):
        layer.weight.data[at] += 4
        near(fast(x), model(x))
