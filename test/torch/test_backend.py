"""torch.compile with Convoy as its backend: what Dynamo writes into a graph besides operators."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from convoy.backend import compile_graph

X = torch.randn(3, 4)
W = torch.randn(4, 4)


class Round(torch.autograd.Function):
    """Rounds, with the derivative of the identity."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def own_derivative(x):
    return torch.tanh(Round.apply(torch.tanh(x * 4) * 3) * 0.5 + 1) * 2


def hook(x):
    y = torch.tanh(x) * 2
    y.register_hook(lambda grad: grad * 3)
    return torch.relu(y) * 2


def inference(x):
    with torch.inference_mode():
        y = torch.tanh(x) * 2
    return y.clone() + torch.relu(x) * 2


def no_grad(x):
    with torch.no_grad():
        y = torch.tanh(x) * 2
    return y + torch.relu(x) * 2


def checkpointed(x):
    return checkpoint(lambda y: torch.tanh(y) * 2, torch.relu(x) + 1, use_reentrant=False)


def own_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = F.linear(x, W)
        with torch.autocast("cpu", enabled=False):
            z = F.linear(x, W)
    return torch.tanh(y.float() * 0.5 + 1) * torch.sigmoid(y.float()), torch.tanh(F.linear(z, W)) * 2


def the_same(found, wanted):
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted):
        assert (got.dtype, got.requires_grad) == (want.dtype, want.requires_grad)
        near = 1e-5 if got.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(got, want, rtol=near, atol=near)


def outcome(function, x):
    results = function(x)
    results = list(results) if isinstance(results, tuple) else [results]
    return [*results, *torch.autograd.grad(sum(r.float().sum() for r in results), x)]


@pytest.mark.parametrize("function", [own_derivative, hook, inference, no_grad, checkpointed, own_autocast])
@pytest.mark.parametrize("training", ["auto", "recompute"])
def test_gradients(function, training):
    torch._dynamo.reset()
    fast = torch.compile(function, backend=compile_graph, options={"training": training})
    for _ in range(3):
        x = X.clone().requires_grad_()
        the_same(outcome(fast, x), outcome(function, x))


TRANSFORMS = {"grad": lambda f: torch.func.grad(lambda x: f(x).sum()), "jacrev": torch.func.jacrev, "vmap": torch.func.vmap,
              "hessian": lambda f: torch.func.hessian(lambda x: f(x).sum())}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name):
    torch._dynamo.reset()

    def function(x):
        return TRANSFORMS[name](lambda r: torch.tanh(r) * 2)(x) * 2 + 1

    function(X)
    fast = torch.compile(function, backend=compile_graph)
    for _ in range(2):
        the_same([fast(X)], [function(X)])
    torch.func.jvp(torch.sin, (X,), (X,))  # PyTorch is not inside a transform afterwards


@torch.no_grad()
def test_autocast_inside_is_captured():
    torch._dynamo.reset()
    captured = []

    def backend(module, examples):
        captured.append(compile_graph(module, examples))
        return captured[-1]

    fast = torch.compile(own_autocast, backend=backend)
    the_same(fast(X), own_autocast(X))
    assert all(entry.runners for entry in captured[0].entries.values())
