"""Modules of unusual classes are compiled as others are."""

import copy

import pytest
import torch
from torch import nn

import convoy
from agree import regions
from state_net import X, Net, last, near


class Slotted(Net):
    __slots__ = ("scale",)

    def __init__(self):
        super().__init__()
        self.scale = 2.0

    def forward(self, x):
        return super().forward(x) * self.scale


@torch.no_grad()
def test_slots():
    model = Slotted()
    fast = convoy.compile(model)
    near(fast(X), model(X))
    assert regions(fast) == 1
    fast.scale = model.scale = 5.0
    near(fast(X), model(X))


@torch.no_grad()
def test_lazy_modules():
    fast = convoy.compile(nn.LazyConv2d(4, 3))
    for _ in range(2):
        y = fast(X)
        near(y, nn.functional.conv2d(X, fast.weight, fast.bias))


def graph_module():
    return torch.fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Tanh()))


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
@torch.no_grad()
def test_copies_of_graph_modules(copier):
    fast = convoy.compile(graph_module(), winograd=False)
    made = copier(fast)
    near(made(X), fast(X))
    assert regions(made) == 1 and not made._convoy.settings.winograd


@torch.no_grad()
def test_graph_modules_that_are_edited():
    fast = convoy.compile(graph_module())
    fast(X)
    node = next(n for n in fast.graph.nodes if n.target == "2")
    node.replace_all_uses_with(node.args[0])
    fast.graph.erase_node(node)
    fast.recompile()
    near(fast(X), torch.relu(getattr(fast, "0")(X)))
    assert regions(fast) == 1


class Drop(Net):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, True))


def test_symbolic_traces_have_the_module_once():
    assert torch.fx.symbolic_trace(convoy.compile(Drop())).code.count("dropout(") == 1


class Static(nn.Module):
    @staticmethod
    def forward(x):
        return torch.tanh(x * 2) + 1


class OfClass(nn.Module):
    factor = 3

    @classmethod
    def forward(cls, x):
        return torch.tanh(x * cls.factor) + 1


@pytest.mark.parametrize("kind", [Static, OfClass])
@torch.no_grad()
def test_forwards_without_a_module(kind):
    fast = convoy.compile(kind())
    for _ in range(2):
        near(fast(X), kind()(X))
    assert last(fast).reason is None and regions(fast) == 1


class Registered(type):
    names = set()

    def __new__(meta, name, bases, contents):
        if name in meta.names:
            raise TypeError(f"{name} is registered already")
        meta.names.add(name)
        return super().__new__(meta, name, bases, contents)


class Unique(Net, metaclass=Registered):
    pass


@torch.no_grad()
def test_metaclasses_that_refuse_a_second_class():
    model = Unique()
    near(convoy.compile(model)(X), model(X))


def test_conversions_that_swap_tensors():
    fast = convoy.compile(Net())
    fast(X)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        fast.to(torch.float64)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert fast(X.double()).dtype == torch.float64
