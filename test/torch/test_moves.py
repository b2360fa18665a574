"""Operators that put elements at other places, inside networks: one region, PyTorch's numbers, PyTorch's gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from agree import assert_agrees, assert_near, kept, regions


def conv(a, b, kernel=3):
    return nn.Sequential(nn.Conv2d(a, b, kernel, padding=kernel // 2), nn.ReLU())


class Dense(nn.Module):
    """Every layer reads all that were made before it."""

    def __init__(self, layers=9, grown=3):
        super().__init__()
        self.layers = nn.ModuleList(conv(4 + i * grown, grown) for i in range(layers))

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = conv(4, 3), conv(4, 5, 1), conv(8, 4)

    def forward(self, x):
        return self.c(torch.cat([self.a(x), self.b(x)], 1))


class Shuffle(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.body = conv(4, 8), conv(4, 4)

    def forward(self, x):
        left, right = self.front(x).chunk(2, 1)
        x = torch.cat([left, self.body(right)], 1)
        return F.relu(F.channel_shuffle(x, 2) - 1)


class LikeConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.norm = nn.Conv2d(4, 4, 7, padding=3, groups=4), nn.LayerNorm(4)
        self.up, self.down = nn.Linear(4, 16), nn.Linear(16, 4)

    def forward(self, x):
        y = self.norm(self.front(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


class Decoder(nn.Module):
    def __init__(self, scale=2):
        super().__init__()
        self.norm, self.conv, self.scale = nn.GroupNorm(2, 4), nn.Conv2d(4, 8, 3, padding=1), scale

    def forward(self, x):
        return F.pixel_shuffle(self.conv(F.interpolate(F.silu(self.norm(x)), scale_factor=self.scale)), 2).tanh()


class Causal(nn.Module):
    """Padding in front alone, in time."""

    def __init__(self):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, 4), nn.Conv3d(4, 4, 3, padding=(0, 1, 1))

    def forward(self, x):
        return x + self.conv(F.pad(F.silu(self.norm(x)), (0, 0, 0, 0, 2, 0)))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.token = nn.Conv2d(4, 6, 2, 2), nn.Parameter(torch.randn(1, 1, 6))
        self.mix, self.head = nn.Linear(6, 18), nn.Linear(6, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        q, k, v = self.mix(x).reshape(*x.shape[:2], 3, 6).unbind(2)
        return self.head((q * k.sigmoid() + v)[:, 0])


class Wrapped(nn.Module):
    def __init__(self, function, module=None):
        super().__init__()
        self.conv, self.module, self.function = nn.Conv2d(4, 4, 3, padding=1), module, function

    def forward(self, x):
        y = self.conv(x)
        return self.function(y, x) if self.module is None else self.function(self.module(y), x)


IMAGE, CLIP = (2, 4, 6, 8), (1, 4, 3, 5, 6)
NETWORKS = {
    "dense": (Dense(), IMAGE), "branches": (Branches(), IMAGE), "shuffle": (Shuffle(), IMAGE), "convnext": (LikeConvNeXt(), IMAGE),
    "decoder": (Decoder(), IMAGE), "causal": (Causal(), CLIP), "tokens": (Tokens(), IMAGE),
    "prelu": (Wrapped(lambda y, x: y * 2, nn.PReLU(4)), IMAGE), "prelu one": (Wrapped(lambda y, x: y * 2, nn.PReLU()), IMAGE),
    "adaptive": (Wrapped(lambda y, x: F.adaptive_avg_pool2d(y, (4, 3)).relu()), IMAGE),
    "pad": (Wrapped(lambda y, x: F.pad(y, (1, -1, 2, 0), value=0.5).tanh()), IMAGE),
    "unshuffle": (Wrapped(lambda y, x: F.pixel_unshuffle(y, 2).tanh()), IMAGE),
    "glu": (Wrapped(lambda y, x: F.glu(y, 1) + 1), IMAGE),
    "split": (Wrapped(lambda y, x: torch.cat([part.exp() for part in y.split([1, 1, 2], 1)[1:]], 1).tanh()), IMAGE),
    "stride": (Wrapped(lambda y, x: F.relu(y[:, ::2, 1:, -3:])), IMAGE),
    "clone": (Wrapped(lambda y, x: y.clone().tanh() + y.contiguous()), IMAGE),
    "movedim": (Wrapped(lambda y, x: y.movedim(1, -1).softmax(-1).mT.tanh()), IMAGE),
    "mse": (Wrapped(F.mse_loss), IMAGE), "l1": (Wrapped(lambda y, x: F.l1_loss(y, x, reduction="sum")), IMAGE),
    "norm": (Wrapped(lambda y, x: y / torch.linalg.vector_norm(y, dim=1, keepdim=True)), IMAGE),
    "norm 1": (Wrapped(lambda y, x: torch.linalg.vector_norm(y, 1, dim=(2, 3))), IMAGE),
    "pow": (Wrapped(lambda y, x: y**3 + y**4), IMAGE),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_is_one_region(name):
    module, shape = NETWORKS[name]
    fast = convoy.compile(copy.deepcopy(module).eval(), regions="all")
    torch.manual_seed(1)
    with torch.no_grad():
        assert_agrees(fast, module.eval(), torch.randn(shape))
    assert regions(fast) == 1 and not kept(fast)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half(name, dtype):
    """No further from float64 than PyTorch, and half a unit of the last place."""
    module, shape = NETWORKS[name]
    module = copy.deepcopy(module).eval().to(dtype)
    torch.manual_seed(1)
    x = torch.randn(shape, dtype=dtype)
    with torch.no_grad():
        want, got = module(x), convoy.compile(copy.deepcopy(module), regions="all")(x)
        truth = copy.deepcopy(module).double()(x.double())
    assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
    size = max(truth.abs().max().item(), 1e-3)
    assert (got.double() - truth).abs().max() <= (want.double() - truth).abs().max() + size * torch.finfo(dtype).eps / 2


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients(name):
    module, shape = NETWORKS[name]
    torch.manual_seed(2)
    x, found = torch.randn(shape), []
    for training, dtype in (("recompute", torch.float32), (None, torch.float32), (None, torch.float64)):
        used = copy.deepcopy(module).to(dtype)
        given = x.to(dtype, copy=True).requires_grad_()
        called = convoy.compile(used, regions="all", training=training) if training else used
        called(given).square().sum().backward()
        found.append([given.grad, *(p.grad for p in used.parameters())])
    for got, single, truth in zip(*found):
        assert_near(got, single, truth, scale=1.0)


def test_a_view_that_is_returned_is_pytorchs():
    """x[:, :2] shares x's memory, with or without Convoy."""

    class Views(nn.Module):
        def forward(self, x):
            y = F.relu(x * 2)
            return y, y[:, :2], y.permute(0, 2, 3, 1)

    fast = convoy.compile(Views(), regions="all")
    with torch.no_grad():
        y, part, turned = fast(torch.randn(IMAGE))
    assert part.data_ptr() == y.data_ptr() == turned.data_ptr() and part.stride() == y.stride()


def test_nearest_places_of_pytorch():
    """PyTorch finds places in float32. Where rounding shifts one, it is PyTorch's."""
    taken = 0
    for size, out in [(3, 6), (5, 7), (7, 3), (13, 29), (4, 4), (41, 82), (10, 1000), (49, 2401)]:
        module = Wrapped(lambda y, x, out=out: F.interpolate(y, size=(6, out)).exp())
        fast = convoy.compile(module, regions="all")
        with torch.no_grad():
            assert_agrees(fast, module, torch.randn(1, 4, 6, size))
        taken += not kept(fast)
    assert taken >= 5
