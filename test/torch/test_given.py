"""Arguments that are no tensors: two calls share a capture if theirs are the same, whatever == says."""

import copy
import dataclasses
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

import convoy
from convoy import prepared


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x, by):
        while not isinstance(by, (int, float, numpy.floating)):
            by = getattr(by, "by", None) or list(by)[0]
        return torch.tanh(self.norm(self.conv(x)) * by) * (2 if isinstance(by, float) else 1)


@dataclasses.dataclass(frozen=True)
class Partly:
    name: str
    by: float = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Whole:
    by: object


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by):
        self.by = by

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


GIVEN = {
    "numbers": (1, 1.0, True, 2),
    "NumPy's numbers": (numpy.float32(1), numpy.float32(2), numpy.float64(1)),
    "a field that is not compared": (Partly("a", 1.0), Partly("a", 2.0), Partly("a", 1.0)),
    "numbers in a field": (Whole(1), Whole(1.0), Whole(2.0)),
    "objects in a field": (Whole(Slotted(1.0)), Whole(Slotted(2.0)), Whole((1.0,)), Whole((1,))),
    "slots": (Slotted(1.0), Slotted(2.0)),
    "sets": (frozenset([1]), frozenset([1.0]), frozenset([2])),
    "others": (SimpleNamespace(by=1.0), SimpleNamespace(by=2.0)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", list(GIVEN))
def test_arguments_that_are_equal_but_not_the_same(name):
    module = Scaled().eval()
    fast = convoy.compile(copy.deepcopy(module))
    x = torch.randn(2, 4, 6, 6)
    for _ in range(2):
        for by in GIVEN[name]:
            torch.testing.assert_close(fast(x, by), module(x, by), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_new_objects_with_the_same_contents_share_a_capture():
    fast = convoy.compile(Scaled().eval())
    for _ in range(4):
        fast(torch.randn(2, 4, 6, 6), by=Whole((2.0, frozenset([1, 2]))))
    assert len(fast._convoy.entries) == 1


@torch.no_grad()
def test_numbers_that_never_come_again_are_captured_seldom(monkeypatch):
    made = []
    original = convoy.module.build_entry
    monkeypatch.setattr(convoy.module, "build_entry", lambda *a: made.append(0) or original(*a))
    monkeypatch.setattr(convoy.module, "MOST_ENTRIES", 4)
    fast = convoy.compile(Scaled().eval())
    x = torch.randn(2, 4, 6, 6)
    for i in range(300):
        fast(x, i / 10)
        fast(x, 7.0)  # has its place among them
    assert len(made) <= 16
    assert any(entry.served > 200 for entry in fast._convoy.entries.values())


@torch.no_grad()
def test_statistics_of_a_batch_norm_count_no_changes(monkeypatch):
    """As on a GPU, where the bytes of parameters are not compared."""
    monkeypatch.setattr(prepared, "COMPARED", 0)
    module = Scaled().eval()
    fast = convoy.compile(copy.deepcopy(module))
    x = torch.randn(2, 4, 6, 6)
    for _ in range(2):
        for m in (module, fast):
            m.eval()(x, 1.0)
            m.train()(x + 3, 1.0)
        torch.testing.assert_close(fast.eval()(x, 1.0), module.eval()(x, 1.0), rtol=1e-5, atol=1e-5)
