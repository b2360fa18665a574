"""Gradients where elements are equal, or exactly at a bound: PyTorch gives them to one, to all, or in equal shares."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy

BOUNDS = torch.tensor([-1.0, 0.0, 0.0, 1.0, 1.0, 2.0])
FUNCTIONS = {
    "max(1)": lambda x: x.max(1).values,
    "min(0, keepdim)": lambda x: x.min(0, keepdim=True).values,
    "amax": lambda x: x.amax(1),
    "max": lambda x: x.max(),
    "maximum": lambda x: torch.maximum(x, x * x),
    "maximum of a number": lambda x: torch.maximum(x, torch.tensor(0.0)),
    "minimum of a number": lambda x: torch.minimum(x, torch.tensor(1.0)),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp by tensors": lambda x: x.clamp(BOUNDS, BOUNDS + 1),
    "clamp_min by a tensor": lambda x: torch.clamp_min(x, BOUNDS),
    "clamp_max by a tensor": lambda x: torch.clamp_max(x, BOUNDS),
    "norm of largest": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.3])),
    "max_pool": lambda x: F.max_pool1d(x[None], 3, 1, 1),
}  # fmt: skip


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return torch.tanh(self.function(x * self.scale) * 0.5)


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_gradients(name):
    module = Of(FUNCTIONS[name])
    fast = convoy.compile(copy.deepcopy(module), training="recompute")
    x = torch.randint(-2, 3, (5, 6)).float()
    found = []
    for m in (module, fast):
        given = x.clone().requires_grad_()
        y = m(given)
        found.append(torch.autograd.grad(y, [given, *m.parameters()], torch.arange(1.0, y.numel() + 1).view_as(y)))
    for got, want in zip(found[1], found[0]):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
