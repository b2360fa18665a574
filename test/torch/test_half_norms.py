"""Batch norms in evaluation on half data: x * scale may be too large for fp16 where the result is not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from agree import regions


class Given(nn.Module):
    """Statistics are arguments."""

    def forward(self, x, mean, var, weight, bias):
        return torch.relu(F.batch_norm(x, mean, var, weight, bias))


class Long(nn.Module):
    """More operators than a pass takes, so that it is cut somewhere: after every operator, over the depths."""

    def __init__(self, depth):
        super().__init__()
        self.norm, self.depth = nn.BatchNorm2d(4), depth

    def forward(self, x):
        for _ in range(self.depth):
            x = torch.clamp(x, -200, 200)
            x = torch.abs(x)
        return torch.relu(self.norm(x))


def near(got, want):
    assert torch.isfinite(want).all()
    eps = 4 * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got, want, rtol=eps, atol=eps * want.abs().max().item())


def steep(norm):
    """Scales by 1000 what lies around 100."""
    norm.running_mean.fill_(100)
    norm.running_var.fill_(1e-6 - norm.eps if norm.eps < 1e-6 else 0)
    return norm


def data(dtype):
    return (100 + torch.rand(2, 4, 5, 6)).to(dtype)


DTYPES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("fuse", ("1", "0"))
@pytest.mark.parametrize("stats", (None, torch.float32), ids=("half statistics", "float32 statistics"))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_statistics_as_arguments(dtype, stats, fuse, monkeypatch):
    monkeypatch.setenv("CVY_FUSE", fuse)
    model = Given()
    fast, x = convoy.compile(model), data(dtype)
    rest = [t.to(stats or dtype) for t in (torch.full((4,), 100.0), torch.full((4,), 1e-5), torch.rand(4), torch.rand(4))]
    near(fast(x, *rest), model(x, *rest))
    if stats is None:
        assert regions(fast) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_passes_that_are_cut(dtype, monkeypatch):
    for depth, fuse in ((0, "0"), *((d, "1") for d in range(20, 28))):
        monkeypatch.setenv("CVY_FUSE", fuse)
        model = Long(depth)
        steep(model.norm)
        model = model.eval().to(dtype)
        fast, x = convoy.compile(model), data(dtype)
        near(fast(x), model(x))
        assert regions(fast) == 1


@pytest.mark.parametrize("fuse", ("1", "0"))
@torch.no_grad()
def test_after_a_convolution(fuse, monkeypatch):
    monkeypatch.setenv("CVY_FUSE", fuse)
    model = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), steep(nn.BatchNorm2d(4)), nn.ReLU()).eval()
    model[0].weight.copy_(torch.eye(4)[..., None, None])
    model = model.half()
    fast, x = convoy.compile(model), data(torch.float16)
    near(fast(x), model(x))
