"""Moves at the borders of regions: who shares whose memory, and gradients where a norm is zero."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from agree import assert_agrees, kept, regions

IMAGE = (2, 4, 6, 8)


class Wrapped(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(4, 4, 3, padding=1), function

    def forward(self, x):
        return self.function(self.conv(x) * 2, x)


def memories(*tensors):
    """For each, the number of the first that lies in the same memory."""
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return [places.index(p) for p in places]


def changed(view):
    """The base changes after a region has read a view of it, which is read again."""

    def function(y, x):
        shown = view(y)
        before = shown.sigmoid() * 2
        y.add_(1)
        return before, shown.tanh() * 3

    return function


def written_through(y, x):
    left, right = y.chunk(2, 1)
    before = left.sigmoid() * right
    left.zero_()
    return before, y * 2 + 1


def two_views(y, x):
    part = y[:, 1:]
    turned = part.permute(0, 2, 3, 1)
    return part.exp() * 2, turned.tanh() * 2, part, turned


SHARING = {
    "slice": changed(lambda y: y[:, :2]),
    "permute": changed(lambda y: y.permute(0, 2, 3, 1)),
    "reshape": changed(lambda y: y.reshape(2, -1)),
    "contiguous": changed(lambda y: y.contiguous()),
    "view of a view": changed(lambda y: y[:, :2].transpose(1, 2)),
    "written through": written_through,
    "base and view": lambda y, x: (y, y[:, :2], y[:, :2].exp() * 2),
    "two views": two_views,
    "einsum": changed(lambda y: torch.einsum("abcd->abdc", y)),
    "broadcast": changed(lambda y: torch.broadcast_tensors(y, torch.zeros(1, *IMAGE))[0]),
    "clone": lambda y, x: (y, y.clone(), y.clone().exp() * 2),
}


@pytest.mark.parametrize("name", SHARING)
def test_memory_is_shared_as_in_pytorch(name):
    module = Wrapped(SHARING[name]).eval()
    fast, x = convoy.compile(copy.deepcopy(module), regions="all"), torch.randn(IMAGE)
    with torch.no_grad():
        got = assert_agrees(fast, module, x)
        want = module(x)
    assert memories(x, *got) == memories(x, *want) and regions(fast) > 0
    assert [t.stride() for t in got] == [t.stride() for t in want]


@pytest.mark.parametrize("training", ["eager", "recompute"])
def test_a_copy_is_one_where_pytorch_computes_the_region(training):
    """Another region without gradients keeps the call from being PyTorch's altogether."""

    class Copies(nn.Module):
        def forward(self, x, y):
            copied = y.clone()
            return copied, (copied * 2).exp(), (x * 2).exp()

    x, y = torch.randn(IMAGE), torch.randn(IMAGE)
    fast = convoy.compile(Copies(), regions="all", training=training)
    found = fast(x, y.requires_grad_())
    assert regions(fast) == 2 and memories(x, y, *found) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("function", [
    lambda y, x: F.normalize(x * 1, dim=1) * 2 + y,
    lambda y, x: torch.linalg.vector_norm(x * y, dim=(2, 3)) * 2,
])  # fmt: skip
def test_the_gradient_of_a_norm_at_zero(function):
    x, found = torch.randn(IMAGE), []
    x[:, :, 2:4] = 0
    x[1] = 0
    module = Wrapped(function)
    for call in (convoy.compile(module, regions="all", training="recompute"), module):
        given = x.clone().requires_grad_()
        call(given).sigmoid().sum().backward()
        found.append(given.grad)
    torch.testing.assert_close(*found)
    assert torch.isfinite(found[0]).all()


@pytest.mark.parametrize("alpha", [0.5, -0.5])
def test_celu_of_a_negative_alpha_is_pytorchs(alpha):
    module = Wrapped(lambda y, x: F.celu(y, alpha) * 2).eval()
    fast = convoy.compile(module, regions="all")
    with torch.no_grad():
        assert_agrees(fast, module, torch.randn(IMAGE))
    assert ("aten.celu.default" in kept(fast)) == (alpha < 0)


@pytest.mark.parametrize("alpha", [1e-30, 1e-3, 1e30])
def test_celu_divides_nothing_positive(alpha):
    module = Wrapped(lambda y, x: F.celu(y * 1e10 if alpha < 1 else y, alpha) * 2).eval()
    fast = convoy.compile(module, regions="all")
    with torch.no_grad():
        got, want = fast(x := torch.randn(IMAGE)), module(x)
    torch.testing.assert_close(got, want, rtol=0, atol=want.abs().max().item() * 1e-6)
    assert "aten.celu.default" not in kept(fast)


def test_a_cast_of_autocasts_at_the_end_of_a_region():
    """What autocast converts for an operator that is PyTorch's is the region's result before it."""
    module = Wrapped(lambda y, x: F.pad(y, (1, 1, 2, 2), mode="reflect").exp() * 2).eval()
    fast, x = convoy.compile(module, regions="all"), torch.randn(IMAGE)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = fast(x), module(x)
    assert got.dtype == want.dtype and "aten.pad.default" in kept(fast)
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


LAID_OUT = {
    "contiguous": lambda y: y.permute(0, 2, 3, 1).contiguous(),
    "contiguous, channels last": lambda y: y.contiguous(memory_format=torch.channels_last),
    "clone": lambda y: y.permute(0, 2, 3, 1).clone(),
    "clone, contiguous": lambda y: y.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format),
    "clone, channels last": lambda y: y.clone(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_layouts_where_pytorch_computes_a_region(name):
    """After the first backward it does, and during an export."""
    module = Wrapped(lambda y, x: torch.tanh(LAID_OUT[name](torch.relu(y) * 2)) * 2).eval()
    fast, x = convoy.compile(module, regions="all"), torch.randn(IMAGE, requires_grad=True)
    want = module(x).stride()
    for turn in range(3):
        with torch.set_grad_enabled(turn > 0):
            got = fast(x)
        assert got.stride() == want
        if turn:
            got.sum().backward()
    (runner,) = list(fast._convoy.entries.values())[-1].runners
    assert runner.trained
    assert runner.program.evaluate([t.detach() for t in (x, *module.parameters())][: len(runner.sources)])[0].stride() == want


def test_an_export_of_what_needs_a_layout():
    def function(y, x):
        y = torch.tanh(y).permute(0, 2, 3, 1).contiguous() * 2
        return torch.cumsum(y.view(y.shape[0], -1), 1)

    module, x = Wrapped(function).eval(), torch.randn(IMAGE)
    exported = torch.export.export(convoy.compile(module, regions="all"), (x,), strict=False).module()
    torch.testing.assert_close(exported(x), module(x), rtol=1e-4, atol=1e-4)
