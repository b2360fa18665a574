"""What convoy.compile() computes is what the model computes, whatever the model is made of and given."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from agree import assert_agrees, kept, regions
from small_net import Net, X

BLOCKS = {  # small versions: constructor arguments, input
    "block_a": ((8, 64, 3, 16, (64, 1, 1), 4, 0, 1), (2, 8, 30, 37)),
    "block_b": ((8, 64, 3, 16, 1e-5), (2, 8, 21, 18)),
    "block_c": ((8, 32, 3, 8, (32, 1, 1), (32, 1, 1)), (3, 8, 25, 20)),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("factor", [1, 3, 0.01, -1])
def test_blocks(name, factor):
    arguments, shape = BLOCKS[name]
    problem = importlib.import_module(name)
    assert len(problem.get_init_inputs()) == len(arguments)
    torch.manual_seed(5)
    model = problem.Model(*arguments)
    torch.manual_seed(5)
    fast = problem.ModelNew(*arguments)
    assert isinstance(fast, problem.Model)
    for a, b in zip(model.parameters(), fast.parameters()):
        assert torch.equal(a, b)
    with torch.no_grad():
        assert_agrees(fast, model, torch.rand(shape) * factor)
    assert regions(fast) == 1 and kept(fast) == []


def test_what_is_no_choice():
    with pytest.raises(ValueError, match="precision takes fp32, tf32, torch"):
        convoy.compile(Net(), precision="fp16")
    with pytest.raises(TypeError, match="nn.Module, not function"):
        convoy.compile(F.gumbel_softmax)


def test_double_runs_in_pytorch(net):
    fast = convoy.compile(net).double()
    assert torch.equal(fast(X.double()), net(X.double()))


@torch.no_grad()
def test_layouts_of_inputs(net):
    fast = convoy.compile(net)
    odd = [
        X.to(memory_format=torch.channels_last),
        X.transpose(2, 3),
        torch.randn(2, 3, 18, 14)[:, :, ::2, ::2],
        torch.randn(1, 3, 9, 7).expand(4, 3, 9, 7),
        torch.randn(5, 3, 9, 7)[1:3],
        torch.randn(0, 3, 9, 7),
        X.flip(0),
    ]
    for x in odd:
        assert_agrees(fast, net, x)


@torch.no_grad()
def test_channels_last_stays(net):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()).to(memory_format=torch.channels_last)
    x = X.to(memory_format=torch.channels_last)
    got = assert_agrees(convoy.compile(model), model, x)
    assert got.is_contiguous(memory_format=torch.channels_last) == model(x).is_contiguous(
        memory_format=torch.channels_last
    )


@torch.no_grad()
def test_calls_of_all_kinds():
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(3, 4, 3)

        def forward(self, x, y=None, *, scale=1.0, names=()):
            z = torch.tanh(self.conv(x)) * scale
            if y is not None:
                z = z + self.conv(y["y"][0])
            return {"z": z, "more": [z.sum(), len(names)], "same": x}

    model = Calls()
    fast = convoy.compile(model)
    x, y = torch.randn(2, 3, 8), {"y": [torch.randn(2, 3, 8)]}
    assert_agrees(fast, model, x)
    assert_agrees(fast, model, x, y)
    assert_agrees(fast, model, x, y, scale=2.0, names=("a", "b"))
    assert_agrees(fast, model, x=x, scale=-1)
    assert fast(x)["same"] is x
    assert len(fast._convoy.entries) == 4


@torch.no_grad()
def test_what_cannot_be_captured_runs_anyway():
    class Data(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            y = self.conv(x)
            return y if y.sum() > 0 else -y

    model = Data()
    fast = convoy.compile(model)
    assert torch.equal(fast(X), model(X)) and torch.equal(fast(-X), model(-X))
    assert "not captured" in list(fast._convoy.entries.values())[-1].reason


@torch.no_grad()
def test_parts_around_other_operators():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(7, 4, 3)

        def forward(self, x):
            y = F.silu(self.a(x))
            z = torch.cat([x, y.sort(1)[0]], 1)
            return F.gelu(self.b(z)) + F.interpolate(y, size=(7, 5), mode="bilinear").mean(), y

    model = Mixed()
    fast = convoy.compile(model)
    assert_agrees(fast, model, X)
    assert regions(fast) == 2
    assert {"aten.sort.default", "aten.upsample_bilinear2d.vec"} <= set(kept(fast))


@torch.no_grad()
def test_regions_do_not_swallow_their_own_inputs():
    """conv -> sort -> add: a region of conv and add would have to wait for itself."""

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            y = self.conv(x).relu()
            z = y.sort(1)[0]
            return (y * 2 + z).tanh(), y

    model = Around()
    fast = convoy.compile(model)
    assert_agrees(fast, model, X)
    assert regions(fast) == 2


@torch.no_grad()
def test_in_place_operators():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)

        def forward(self, x, mutate):
            y = self.conv(x)
            z = y * 2
            y.add_(1)
            y = self.relu(y)
            y += z
            v = y.view(y.shape[0], -1)
            v.mul_(2)  # through a view: y changes too
            if mutate:
                x.sub_(1)
            return y.tanh(), v.exp(), self.conv(x)

    model = InPlace()
    fast = convoy.compile(model)
    assert_agrees(fast, model, X.clone(), False)
    x, y = X.clone(), X.clone()
    for got, want in zip(fast(x, True), model(y, True)):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(x, y)


@torch.no_grad()
def test_written_out_forms():
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.limit = 0.7

        def forward(self, x):
            y = self.conv(x)
            y = y * torch.sigmoid(y)
            y = torch.min(y, torch.tensor(self.limit)).max(torch.tensor([0.1]))
            y = y.clamp(min=-1).clamp_max(2) / 3 - 1
            y = (1 - y) * 2.0 + y**2
            y = F.softsign(y) + y.abs().sqrt() + torch.logsumexp(y, 1, keepdim=True)
            y = y.max(dim=1, keepdim=True)[0] + y.amin(1, keepdim=True)
            return y.view(y.size(0), -1).unsqueeze(1).softmax(-1).squeeze(1)

    model = Written()
    fast = convoy.compile(model)
    assert_agrees(fast, model, X)
    assert regions(fast) == 1


class Strided(nn.Module):
    def __init__(self, producer, then):
        super().__init__()
        self.producer, self.then = producer, then

    def forward(self, x):
        return self.then(self.producer(x))


THEN = {
    "relu": F.relu,
    "pool": lambda y: F.max_pool2d(F.relu(y), 1),
    "group_norm": lambda y: F.group_norm(y, 1) if y.numel() > 1 else y,
    "layer_norm": lambda y: F.layer_norm(y, y.shape[-1:]).exp(),
    "log_softmax": lambda y: F.log_softmax(y, 1),
    "instance_norm": lambda y: F.instance_norm(y) if y.shape[-1] > 1 else y,
    "means": lambda y: y.relu() * y.mean(1, keepdim=True),
    "numbers, convolution": lambda y: F.conv2d(1 - y[:, :1] / 2, torch.ones(3, 1, 1, 1)).tanh(),
    "max": lambda y: y.relu().max(1, keepdim=True)[0].tanh(),
    "convolution": lambda y: F.conv2d(F.relu(y[:, :1]), torch.ones(3, 1, 1, 1)).tanh(),
    "transposed": lambda y: y.transpose(1, 2).tanh() * 2,
}


@pytest.mark.parametrize("then", THEN)
@torch.no_grad()
def test_strides_where_dimensions_have_one_element(then):
    """A dimension of one element may have any stride; PyTorch's own decides how the next result is laid out."""
    producers = [nn.Conv2d(3, 1, 1), nn.Conv2d(3, 4, 1).to(memory_format=torch.channels_last), nn.Identity()]
    for producer in producers:
        model = Strided(producer, THEN[then])
        fast = convoy.compile(model)
        for shape in [(1, 3, 1, 1), (2, 3, 1, 1), (1, 3, 5, 1), (2, 3, 5, 4)]:
            n, c, h, w = shape
            for x in (torch.randn(shape), torch.randn(n, h, w, c).permute(0, 3, 1, 2), torch.randn(c, n, h, w).transpose(0, 1)):
                got, want = fast(x), model(x)
                assert got.stride() == want.stride(), (then, shape, x.stride())
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_batch_norm_makes_its_result_contiguous():
    """PyTorch's is contiguous unless the argument's channels come last, a placeholder's is laid out as the argument."""
    images = [torch.randn(2, 4, 7, 5).mT, torch.randn(5, 7, 4).permute(2, 0, 1)[None], torch.randn(2, 5, 7, 8).permute(0, 3, 1, 2)[:, ::2],
              torch.randn(2, 5, 7, 4).permute(0, 3, 1, 2)[:, :, 1:], torch.randn(5, 4, 7, 2).permute(3, 1, 0, 2)]  # fmt: skip
    rows = [torch.randn(2, 5, 4).mT, torch.randn(4, 2, 5).transpose(0, 1)]
    for norm, given in ((nn.BatchNorm2d(4), images), (nn.BatchNorm1d(4), rows)):
        model = Strided(norm, lambda y: (y, y.tanh())).eval()
        fast = convoy.compile(model)
        for x in given:
            got, want = fast(x), model(x)
            assert [t.stride() for t in got] == [t.stride() for t in want], x.stride()
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            assert regions(fast) == 1


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout])
@torch.no_grad()
def test_dropout_in_place_divides_nothing(kind):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), kind(0.5, inplace=True), nn.Conv2d(4, 4, 1), nn.Tanh())
    fast = convoy.compile(model.eval())
    assert_agrees(fast, model, X)
    assert regions(fast) == 1 and kept(fast) == []
