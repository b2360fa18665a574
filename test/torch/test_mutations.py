"""A module that is compiled, called, changed and called again gives what PyTorch gives, whatever the change was.

MUTATIONS is a table: a name and what it does to a module. Results of the compiled module are compared with PyTorch's before
and after each, and must differ between, or the row would prove nothing.
"""

import copy
import types
from collections import OrderedDict, deque

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune

import convoy
from agree import regions
from convoy.state import State


class Options:
    """A plain object that a module holds."""

    def __init__(self):
        self.shift, self.deeper = 0.25, {"slope": [0.5]}


class Block(nn.Module):
    """What a forward can read: attributes of every kind, containers, objects, methods, its class."""

    order = 1.0

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.LeakyReLU(0.1)
        self.drop = nn.Dropout(0.3)
        self.group = nn.GroupNorm(2, 8)
        self.tail = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Tanh(), nn.Conv2d(8, 4, 1))
        self.gain, self.bounds, self.temporary = 1.5, (-3.0, 3.0), 0.5
        self.scales, self.queue, self.nested = [1.0, 0.5], deque([0.1, 0.2]), [{"a": [1.0]}, (0.2,)]
        self.named, self.flags, self.options = OrderedDict(a=0.5, b=0.2), {"square"}, Options()
        self.number, self.tensor = torch.tensor(0.75), torch.linspace(-1, 1, 8).view(8, 1, 1)
        self.tensors = [torch.tensor([2.0]), torch.tensor([[-0.5]])]
        self.loose = [nn.Conv2d(8, 8, 1)]  # no submodule, as far as PyTorch knows
        self.register_buffer("mask", torch.linspace(0.5, 1.5, 8).view(8, 1, 1))

    def squash(self, x):
        return torch.tanh(x)

    def forward(self, x):
        y = self.act(self.norm(self.conv(x))) * self.gain
        y = (y + self.group(self.drop(y))).clamp(*self.bounds) * self.mask + self.tensor * self.number
        for scale in self.scales:
            y = y * scale
        y = y + sum(self.queue) + self.nested[0]["a"][0] * self.nested[1][0]
        for key, value in self.named.items():
            y = y * value if key == "a" else y + value
        y = F.leaky_relu(y - self.options.shift, self.options.deeper["slope"][0]) * self.tensors[0] - self.tensors[1]
        y = y.square() if "square" in self.flags else y
        y = self.squash(self.loose[0](y)) * self.order + getattr(self, "extra", 0.0) + getattr(self, "temporary", 0.0)
        return self.tail(y).softmax(getattr(self, "dim", 1))


class Doubling(nn.LeakyReLU):
    def forward(self, x):
        return super().forward(x) * 2


class Symmetric(nn.Module):
    def forward(self, weight):
        return (weight + weight.flip(-1)) / 2


def edit(container, key, value):
    container[key] = value


@torch.no_grad()
def fill(tensor, value):
    tensor.fill_(value)


MUTATIONS = {
    "slope of an activation": lambda m: setattr(m.act, "negative_slope", 0.9),
    "eps of a norm": lambda m: setattr(m.norm, "eps", 0.5),
    "eps of another norm": lambda m: setattr(m.group, "eps", 2.0),
    "groups of a norm": lambda m: setattr(m.group, "num_groups", 4),
    "padding of a convolution": lambda m: setattr(m.conv, "padding", (0, 0)),
    "stride of a convolution": lambda m: setattr(m.conv, "stride", (2, 1)),
    "dilation of a convolution": lambda m: setattr(m.conv, "dilation", (2, 2)),
    "padding mode": lambda m: setattr(m.conv, "padding_mode", "circular"),
    "padding mode and what is derived from it": lambda m: (
        setattr(m.conv, "padding_mode", "circular"), setattr(m.conv, "_reversed_padding_repeated_twice", [2, 1, 1, 1])),
    "statistics not used": lambda m: (
        setattr(m.norm, "running_mean", None), setattr(m.norm, "running_var", None)),
    "layer appended": lambda m: m.tail.append(nn.Conv2d(4, 3, 1)),
    "layer inserted": lambda m: m.tail.insert(1, nn.Hardtanh(-0.1, 0.1)),
    "layer deleted": lambda m: m.tail.__delitem__(1),
    "layer replaced": lambda m: setattr(m, "act", nn.Hardswish()),
    "layer replaced in a Sequential": lambda m: edit(m.tail, 1, nn.ELU()),
    "layer replaced in the dictionary": lambda m: edit(m.tail._modules, "1", nn.Softplus()),
    "layers swapped": lambda m: edit(m.tail._modules, "1", nn.Identity()) or m._modules.update(act=nn.Tanh()),
    "number": lambda m: setattr(m, "gain", -0.5),
    "tuple": lambda m: setattr(m, "bounds", (-0.2, 0.3)),
    "attribute added": lambda m: setattr(m, "extra", 1.25),
    "attribute added that is a tensor": lambda m: setattr(m, "extra", torch.randn(8, 1, 1)),
    "attribute deleted": lambda m: delattr(m, "temporary"),
    "attribute added by hand": lambda m: edit(m.__dict__, "dim", 2),
    "element of a list": lambda m: edit(m.scales, 1, 3.0),
    "list grown": lambda m: m.scales.append(-1.0),
    "list replaced": lambda m: setattr(m, "scales", [0.25]),
    "element of a deque": lambda m: edit(m.queue, 0, 0.9),
    "deque grown": lambda m: m.queue.append(0.7),
    "entry of a dictionary": lambda m: edit(m.named, "a", 4.0),
    "dictionary reordered": lambda m: m.named.move_to_end("a"),
    "dictionary shrunk": lambda m: m.named.pop("b"),
    "set": lambda m: m.flags.discard("square"),
    "list in a dictionary in a list": lambda m: edit(m.nested[0]["a"], 0, -2.0),
    "dictionary in a list": lambda m: edit(m.nested, 0, {"a": [5.0]}),
    "tuple in a list": lambda m: edit(m.nested, 1, (-1.0,)),
    "object": lambda m: setattr(m.options, "shift", -1.0),
    "list in a dictionary of an object": lambda m: edit(m.options.deeper["slope"], 0, -0.5),
    "object replaced": lambda m: setattr(m, "options", types.SimpleNamespace(shift=0.0, deeper={"slope": [2.0]})),
    "method": lambda m: setattr(m, "squash", torch.sigmoid),
    "forward of a submodule": lambda m: setattr(m.act, "forward", lambda x: x.abs()),
    "class of a submodule": lambda m: setattr(m.act, "__class__", Doubling),
    "tensor without dimensions": lambda m: m.number.mul_(-2),
    "tensor in an attribute, in place": lambda m: m.tensor.add_(0.5),
    "tensor in an attribute, through data": lambda m: m.tensor.data.mul_(-1),
    "tensor in an attribute, replaced": lambda m: setattr(m, "tensor", torch.randn(8, 1, 1)),
    "tensor in a list, in place": lambda m: m.tensors[0].mul_(-1),
    "tensor in a list, replaced": lambda m: edit(m.tensors, 1, torch.tensor([[0.5]])),
    "parameter in place": lambda m: fill(m.tail[2].weight[0], 0.5),
    "parameter through data": lambda m: m.conv.weight.data.mul_(-1),
    "parameter's data": lambda m: setattr(m.conv.weight, "data", torch.randn(8, 4, 3, 3)),
    "parameter's data, of another shape": lambda m: (
        setattr(m.conv.weight, "data", torch.randn(8, 4, 1, 1)), setattr(m.conv, "padding", (0, 0))),
    "parameter replaced": lambda m: setattr(m.conv, "bias", nn.Parameter(torch.randn(8))),
    "parameter dropped": lambda m: setattr(m.conv, "bias", None),
    "parameters loaded": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "parameters loaded by assignment": lambda m: m.load_state_dict(
        {k: v * 2 for k, v in m.state_dict().items()}, assign=True),
    "parameter under a parametrization": lambda m: parametrize.register_parametrization(m.conv, "weight", Symmetric()),
    "parameter pruned": lambda m: prune.l1_unstructured(m.conv, "weight", amount=0.5),
    "buffer in place": lambda m: m.norm.running_mean.add_(1.0),
    "buffer replaced": lambda m: setattr(m, "mask", torch.randn(8, 1, 1)),
    "buffer added": lambda m: m.register_buffer("extra", torch.randn(8, 1, 1)),
    "parameter of a module in a list": lambda m: fill(m.loose[0].weight, 0.1),
    "parameter replaced of a module in a list": lambda m: setattr(
        m.loose[0], "weight", nn.Parameter(torch.randn(8, 8, 1, 1))),
    "module in a list": lambda m: edit(m.loose, 0, nn.Conv2d(8, 8, 3)),
    "hook": lambda m: m.act.register_forward_hook(lambda module, given, result: result * 3),
    "hook in front": lambda m: m.norm.register_forward_pre_hook(lambda module, given: (given[0] + 1,)),
    "batch statistics": lambda m: m.norm.train(),
}  # fmt: skip

X = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(3))


def agrees(fast, model):
    """The result of a compiled module, which is PyTorch's. Batch statistics that a call moves are put back between."""
    state = {k: v.clone() for k, v in model.state_dict().items()}
    got = fast(X)
    for key, value in model.state_dict().items():
        value.copy_(state[key])
    torch.testing.assert_close(got, model(X), rtol=1e-4, atol=1e-5)
    return got


@pytest.mark.parametrize("name", MUTATIONS)
@torch.no_grad()
def test_next_call_sees_it(name):
    torch.manual_seed(1)
    model = Block().eval()
    fast = convoy.compile(model)
    fast(X)
    before = agrees(fast, model)
    assert regions(fast) >= 1
    MUTATIONS[name](model)
    after = agrees(fast, model)
    assert before.shape != after.shape or not torch.allclose(before, after, rtol=1e-4, atol=1e-5)
    agrees(fast, model)


@pytest.mark.parametrize("change", ["forward", "order", "squash"])
@torch.no_grad()
def test_next_call_sees_a_change_of_the_class(change, monkeypatch):
    model = Block().eval()
    fast = convoy.compile(model)
    before = fast(X)
    replaced = {"forward": lambda self, x: x * self.negative_slope, "order": -2.0, "squash": lambda self, x: x.exp()}
    monkeypatch.setattr(nn.LeakyReLU if change == "forward" else Block, change, replaced[change])
    after = agrees(fast, model)
    assert not torch.allclose(before, after, rtol=1e-4, atol=1e-5)
    monkeypatch.undo()
    assert torch.equal(fast(X), before)


@torch.no_grad()
def test_all_of_them_on_one_module():
    """One after the other, without a compile between; what several changes break together, PyTorch refuses too."""
    model = Block().eval()
    fast = convoy.compile(model)
    called = 0
    for mutate in MUTATIONS.values():
        fast(X)
        state = State(model)
        try:
            mutate(model)
            model(X)
        except (RuntimeError, AttributeError, KeyError, TypeError, ValueError):
            state.restore()
            continue
        agrees(fast, model)
        called += 1
    assert called >= 30


@pytest.mark.parametrize("mutate", [
    lambda m: setattr(m.norm, "momentum", 0.9),
    lambda m: setattr(m.norm, "momentum", None),
    lambda m: setattr(m.drop, "p", 0.8),
    lambda m: setattr(m.drop, "p", 0.0),
    lambda m: setattr(m.norm, "track_running_stats", False),
    lambda m: m.norm.eval(),
    lambda m: m.norm.reset_running_stats(),
], ids=["momentum", "cumulative", "p", "no dropout", "untracked", "frozen", "reset"])  # fmt: skip
def test_next_step_of_training_sees_it(mutate):
    torch.manual_seed(1)
    models = [Block().train()]
    models.append(copy.deepcopy(models[0]))
    fast, plain = convoy.compile(models[0]), models[1]
    for mutation in (lambda m: None, mutate, lambda m: None):
        results = []
        for model, call in ((models[0], fast), (plain, plain)):
            mutation(model)
            torch.manual_seed(5)
            y = call(X)
            y.square().sum().backward()
            results.append([y, *(p.grad for p in model.parameters()), *model.buffers()])
            model.zero_grad()
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_update_bn():
    torch.manual_seed(1)
    models = [nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4))
              for _ in range(2)]  # fmt: skip
    models[1].load_state_dict(models[0].state_dict())
    calls = [convoy.compile(models[0]), models[1]]
    data = [torch.randn(3, 4, 7, 7) + i for i in range(4)]
    for call in calls:
        call.train()
        call(data[0])
        torch.optim.swa_utils.update_bn(data, call)
        call(data[1])
    for got, want in zip(models[0].buffers(), models[1].buffers()):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_setting_the_same_again_captures_nothing_anew():
    model = Block().eval()
    fast = convoy.compile(model)
    fast(X)
    (entry,) = fast._convoy.entries.values()
    for _ in range(5):
        fast.eval()
        model.gain = model.gain
        model.bounds = (-3.0, 3.0)  # another object, the same numbers
        model.requires_grad_(True)
        fast(X)
        assert list(fast._convoy.entries.values()) == [entry]
