"""Modules of which nothing is Convoy's: calls cost next to nothing, and whoever watches them is still served."""

import sys

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module

import convoy
from convoy.passing import FREE, IN_A_ROW

X = torch.rand(3, 4)


class Plain(nn.Module):
    """Nothing in it is worth a region."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x, scale=1.0):
        return torch.cumsum(x, -1) * self.weight * scale


def passing(model, *args, calls=IN_A_ROW + 3, **kwargs):
    """Compiled, and called until calls go without a look."""
    fast = convoy.compile(model, regions="faster")
    for _ in range(calls):
        fast(*args, **kwargs)
    assert fast._convoy.passing.free > 0 and not next(iter(fast._convoy.entries.values())).runners
    return fast


def functions_called(call, *args, **kwargs):
    """Names of Python's functions, in order."""
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return names


@torch.no_grad()
def test_few_functions_are_called():
    model = Plain()
    fast = passing(model, X)
    assert len(functions_called(fast, X)) <= len(functions_called(model, X)) + 3


@pytest.mark.parametrize("args, kwargs", [((X, 2.0), {}), ((X,), {"scale": 2.0}), ((), {"x": X, "scale": X[0]})])
@torch.no_grad()
def test_numbers_and_names_may_be_among_the_arguments(args, kwargs):
    model = Plain()
    fast = passing(model, *args, **kwargs)
    assert len(functions_called(fast, *args, **kwargs)) <= len(functions_called(model, *args, **kwargs)) + 3
    assert torch.equal(fast(*args, **kwargs), model(*args, **kwargs))


@torch.no_grad()
def test_other_numbers_are_looked_at():
    fast = passing(Plain(), X, 2.0, calls=IN_A_ROW + FREE)
    before = len(fast._convoy.entries)
    while fast._convoy.passing.free:
        fast(X, 2.0)
    fast(X, 3.0)
    assert len(fast._convoy.entries) == before + 1


def install(kind, fast, seen):
    """A hook of the kind, and how to take it away."""
    notes = lambda module, *_: seen.append(module)  # noqa: E731
    register = {
        "pre": fast.register_forward_pre_hook,
        "after": fast.register_forward_hook,
        "backward": fast.register_full_backward_hook,
        "before backward": fast.register_full_backward_pre_hook,
        "global": nn_module.register_module_forward_hook,
        "global pre": nn_module.register_module_forward_pre_hook,
    }
    return register[kind](notes).remove


@pytest.mark.parametrize("kind", ["pre", "after", "backward", "before backward", "global", "global pre"])
@pytest.mark.parametrize("training", [False, True])
def test_hooks_are_called_at_once(kind, training):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()) if training else Plain()
    fast = convoy.compile(model, regions="all" if training else "faster")
    for _ in range(IN_A_ROW + 3):
        fast(X).sum().backward()
    assert (fast._convoy.trained is not None) == training
    seen = []
    remove = install(kind, fast, seen)
    try:
        fast(X).sum().backward()
    finally:
        remove()
    assert any(module is fast for module in seen)
    seen.clear()
    fast(X).sum().backward()
    assert not seen


@torch.no_grad()
def test_another_forward_is_called_at_once(monkeypatch):
    fast = passing(Plain(), X)
    fast.forward = lambda x: x + 1
    assert torch.equal(fast(X), X + 1)
    del fast.forward
    monkeypatch.setattr(Plain, "forward", lambda self, x: x + 2)
    assert torch.equal(fast(X), X + 2)


@torch.no_grad()
def test_whoever_replaces_the_call_of_all_modules_sees_it(monkeypatch):
    fast, seen, usual = passing(Plain(), X), [], nn.Module.__call__
    monkeypatch.setattr(nn.Module, "__call__", lambda self, *args: seen.append(self) or usual(self, *args))
    fast(X)
    assert seen == [fast]


@torch.no_grad()
def test_a_class_of_the_compiled_class_keeps_its_forward():
    fast = passing(Plain(), X)

    class Further(type(fast)):
        def forward(self, x):
            return super().forward(x) + 1

    want = fast(X) + 1
    fast.__class__ = Further
    assert torch.equal(fast(X), want)


@torch.no_grad()
def test_torch_jit_sees_the_names_of_modules():
    fast = passing(nn.Sequential(nn.Identity(), Plain()), X)
    traced = torch.jit.trace(fast, X, check_trace=False)
    assert torch.equal(traced(X), fast(X)) and 'CallMethod[name="forward"]' in str(traced.graph)


@pytest.mark.parametrize("calls", [0, 3, IN_A_ROW + 3])
@torch.no_grad()
def test_export_has_every_region_whatever_was_called_before(calls):
    fast = convoy.compile(nn.Sequential(nn.ReLU(), nn.Sigmoid()), regions="faster")
    for _ in range(calls):
        fast(X)
    graph = torch.export.export(fast, (X,), strict=False).graph
    assert "convoy.program.default" in [str(n.target) for n in graph.nodes]
