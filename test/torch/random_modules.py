"""Random modules of the vocabulary, each in the forms people write. `make(pick)` draws one from any source of choices:
pick.whole(low, high) gives a whole number, pick.one(things) one of them."""

import copy
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from agree import EPS, assert_near


class Plain:
    """Choices of Python's own random numbers."""

    def __init__(self, seed):
        self.numbers = random.Random(seed)

    def whole(self, low, high):
        return self.numbers.randint(low, high)

    def one(self, things):
        return self.numbers.choice(things)


UNARY = [
    nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.LeakyReLU(0.2), nn.ELU(0.7), nn.SELU(), nn.GELU(), nn.GELU("tanh"),
    nn.SiLU(), nn.Mish(), nn.Sigmoid(), nn.Hardsigmoid(), nn.Tanh(), nn.Hardtanh(-0.3, 0.8), nn.Hardswish(),
    nn.Softplus(2.0), nn.Softsign(), nn.Identity(), nn.Dropout(0.3), nn.LogSigmoid(), nn.CELU(1.3),
    torch.abs, torch.square, torch.erf, F.relu, F.hardswish, F.silu, F.mish, torch.tanh,
    lambda x: x * torch.sigmoid(x), lambda x: torch.min(x, torch.tensor(0.5)), lambda x: x.clamp(-1, 1),
    lambda x: torch.clamp(x, min=0), lambda x: x.clamp_max(0.4), lambda x: 1 - x, lambda x: 2 * x + 0.5, lambda x: x / 3,
    lambda x: -x, lambda x: x**2, lambda x: (x.abs() + 1).sqrt(), lambda x: torch.exp(-x.abs()),
    lambda x: torch.log(x.abs() + 1), lambda x: torch.rsqrt(x.square() + 1), lambda x: x - x.mean(),
    lambda x: x.sub(1, alpha=2), lambda x: x.add_(1) if x.dim() else x + 1, lambda x: F.relu(x + 0, inplace=True),
]  # fmt: skip


class Chain(nn.Module):
    """Stages in a row; some add an earlier value of the same shape. `noise`: moves every value by up to this part of the
    largest one around it."""

    noise = 0.0

    def __init__(self, stages):
        super().__init__()
        self.stages = stages
        self.parts = nn.ModuleList(s for s in stages if isinstance(s, nn.Module))

    def forward(self, x):
        seen, results = {}, []
        for stage in self.stages:
            before = x
            if stage == "residual":
                x = x + seen.get(tuple(x.shape), x)
            elif stage == "output":
                results.append(x * 1)
            else:
                x = stage(x)
            if self.noise and x.numel() and before.numel():
                x = x + self.noise * torch.maximum(x.abs().max(), before.abs().max()) * (2 * torch.rand_like(x) - 1)
            seen[tuple(x.shape)] = x * 0.5
        return [x, *results] if results else x


def conv(pick, rank, channels, extents):
    kernel = [pick.whole(1, min(3, e)) for e in extents]
    groups = pick.one([1, 1, 1, channels])
    out = groups * pick.whole(1, 12 if groups == 1 else 2)
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank]
    padding = pick.one([0, 1, "same"])
    stride = 1 if padding == "same" else pick.whole(1, 2)
    return kind(channels, out, kernel, stride, padding, groups=groups, bias=pick.one([False, True])), out


def pool(pick, rank, extents):
    size = [pick.whole(1, min(3, e)) for e in extents]
    kind = pick.one(["Max", "Avg", "AdaptiveAvg"])
    if kind == "AdaptiveAvg":
        return getattr(nn, f"AdaptiveAvgPool{rank}d")(tuple(size) if rank > 1 else size[0])
    return getattr(nn, f"{kind}Pool{rank}d")(tuple(size) if rank > 1 else size[0])


def norm(pick, rank, x):
    """PyTorch refuses a group of one value."""
    channels = x.shape[1]
    divisors = [g for g in range(1, channels + 1) if channels % g == 0 and x.numel() > g]
    batch = getattr(nn, f"BatchNorm{rank}d")(channels)
    with torch.no_grad():
        batch.running_mean.normal_()
        batch.running_var.uniform_(0.5, 2)
    return pick.one([nn.GroupNorm(pick.one(divisors), channels), batch]) if divisors else batch


def scale(pick, rank, channels):
    """A parameter of its own, used by a module people write themselves."""

    class Scale(nn.Module):
        def __init__(self, multiply):
            super().__init__()
            self.value = nn.Parameter(torch.randn(channels, *[1] * rank))
            self.multiply = multiply

        def forward(self, x):
            return x * self.value if self.multiply else x + self.value

    return Scale(pick.one([False, True]))


def ending(pick, rank, channels, extents):
    ends = [
        lambda x: torch.logsumexp(x, 1, keepdim=True), lambda x: x.mean((-1,)), lambda x: x.sum(1), lambda x: x.amax(1),
        lambda x: x.flatten(1), lambda x: x.contiguous().view(x.size(0), -1), lambda x: x.softmax(1),
        lambda x: x.log_softmax(-1),
        lambda x: x.max(1)[0], lambda x: x.min(dim=-1, keepdim=True).values, lambda x: x.reshape(-1), lambda x: x.mean(),
        lambda x: F.layer_norm(x, x.shape[2:]), lambda x: x.unsqueeze(1).squeeze(1), lambda x: x.max(),
        nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), nn.LazyLinear(4),
        lambda x: F.instance_norm(x) if x[0, 0].numel() > 1 else x,
    ]  # fmt: skip
    return pick.one(ends)


def make(pick):
    """A module in evaluation mode, and the shape of its input."""
    torch.manual_seed(pick.whole(0, 2**20))
    rank = pick.one([1, 2, 2, 2, 3])
    batch, channels = pick.whole(1, 3), pick.whole(1, 9)
    shape = (batch, channels, *[pick.whole(1, 11 if rank < 3 else 5) for _ in range(rank)])
    stages, x = [], torch.randn(shape)
    for _ in range(pick.whole(1, 7)):
        extents, channels = x.shape[2:], x.shape[1]
        kind = pick.one(["conv", "conv", "norm", "unary", "unary", "pool", "scale", "residual", "output"])
        if kind == "conv":
            stages.append(conv(pick, rank, channels, extents)[0])
        elif kind == "pool":
            stages.append(pool(pick, rank, extents))
        elif kind == "norm":
            stages.append(norm(pick, rank, x))
        elif kind == "scale":
            stages.append(scale(pick, rank, channels))
        elif kind == "unary":
            stages.append(pick.one(UNARY))
        else:
            stages.append(kind)
        if isinstance(stages[-1], nn.Module):
            stages[-1].eval()
        if not isinstance(stages[-1], str):
            with torch.no_grad():
                x = stages[-1](x.clone())
    if pick.one([False, True]):
        stages.append(ending(pick, rank, channels, x.shape[2:]))
        if isinstance(stages[-1], nn.Module):
            stages[-1](x)  # lazy shapes
    return Chain(stages).eval(), shape


LAYOUTS = [
    lambda x: x,
    lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    lambda x: torch.stack([x, x], -1)[..., 0],
]


def assert_chain_agrees(fast, module, x):
    """As agree.assert_agrees(), and beyond that by what float32's rounding does to a result on its way: a norm of values
    that are all the same makes much of little."""
    exact = copy.deepcopy(module).double()
    truths = tree_leaves(exact(x.double()))
    singles, gots = tree_leaves(module(x)), tree_leaves(fast(x))
    exact.noise = 4 * EPS
    noisy = [tree_leaves(exact(x.double())) for _ in range(3)]
    assert len(singles) == len(gots)
    for i, (got, single, truth) in enumerate(zip(gots, singles, truths)):
        moved = [(n[i] - truth)[torch.isfinite(n[i] - truth)].abs() for n in noisy]
        slack = max((m.max().item() for m in moved if m.numel()), default=0.0)
        assert_near(got.detach(), single.detach(), truth.detach(), slack=8 * slack)
