"""Things that users do to modules and tensors, after the module was compiled and called. Each is compared with the same done to
a plain copy of the module, results and gradients."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import convoy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 4)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        y = torch.tanh(self.second(y) + 1).mean((2, 3))
        return torch.cumsum(F.silu(self.head(y)), 1)


def near(got, want):
    assert type(got) is type(want) and got.dtype == want.dtype and got.shape == want.shape
    assert got.is_inference() == want.is_inference() and got.device == want.device
    eps = max(torch.finfo(got.dtype).eps, 1e-5) * 4
    torch.testing.assert_close(got, want, rtol=eps, atol=eps, equal_nan=True)


class Scaled(nn.Module):
    def forward(self, w):
        return w * 2


def replace_state(m, **options):
    torch.manual_seed(5)
    m.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in m.state_dict().items()}, **options)


def tie(m):
    m.second.weight = m.first.weight


def hook(m):
    m.second.register_forward_hook(lambda module, args, out: out * 3)


def unhook(m):
    handle = m.second.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    handle.remove()


def freeze(m):
    for p in m.parameters():
        p.requires_grad_(False)


def swap(m):
    m.first.weight.data, m.second.weight.data = m.second.weight.data, m.first.weight.data


def set_storage(m):
    with torch.no_grad():
        m.first.weight.set_(torch.ones(4, 4, 3, 3) * 0.1)


def flat(m):
    """All parameters as views of one tensor, as optimisers lay them out."""
    memory = torch.cat([p.detach().flatten() for p in m.parameters()])
    at = 0
    for p in m.parameters():
        p.data = memory[at : at + p.numel()].view_as(p)
        at += p.numel()
    memory.mul_(0.5)


CHANGES = {
    "load_state_dict": replace_state,
    "load_state_dict, assigned": lambda m: replace_state(m, assign=True),
    "parametrization": lambda m: parametrize.register_parametrization(m.first, "weight", Scaled()),
    "spectral norm": lambda m: parametrizations.spectral_norm(m.second),
    "weight norm": lambda m: parametrizations.weight_norm(m.first),
    "tied weights": tie,
    "a hook": hook,
    "a hook that went": unhook,
    "shared memory": lambda m: m.share_memory(),
    "double": lambda m: m.double(),
    "half": lambda m: m.to(torch.bfloat16),
    "there and back": lambda m: m.double().float(),
    "one layer in double": lambda m: m.head.double(),
    "channels last": lambda m: m.to(memory_format=torch.channels_last),
    "frozen": freeze,
    "swapped": swap,
    "set_": set_storage,
    "views of one tensor": flat,
    "a parameter less": lambda m: setattr(m.first, "bias", None),
    "no statistics": lambda m: (setattr(m.norm, "running_mean", None), setattr(m.norm, "running_var", None)),
    "expanded weight": lambda m: setattr(m.first.weight, "data", m.first.weight.data[:1].expand(4, 4, 3, 3)),
    "training": lambda m: m.train(),
    "train and back": lambda m: (m.train(), m(torch.randn(3, 4, 6, 6)), m.eval()),
    "another forward": lambda m: setattr(m, "forward", lambda x: x * 2),
    "deleted": lambda m: delattr(m, "head"),
    "nested": lambda m: setattr(m, "second", convoy.compile(m.second)),
    "to meta": lambda m: m.to_empty(device="meta"),
    "eps": lambda m: setattr(m.norm, "eps", 0.5),
}


def outcome(module, x):
    """The result and gradients, or the type of the error."""
    try:
        y = module(x)
        if y.requires_grad and y.device.type != "meta":
            module.zero_grad()
            y.sum().backward(retain_graph=True)
            return y.detach(), {n: None if p.grad is None else p.grad.clone() for n, p in module.named_parameters()}
        return y, {}
    except Exception as error:
        return type(error), {}


@pytest.mark.parametrize("way", (torch.no_grad, torch.inference_mode, torch.enable_grad), ids=lambda w: w.__name__)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_after_it_was_compiled(change, way):
    plain = Net().eval()
    mine = copy.deepcopy(plain)
    fast, x = convoy.compile(mine), torch.randn(3, 4, 6, 6)
    with way():
        for _ in range(2):
            near(outcome(fast, x)[0], outcome(plain, x)[0])
    for module in (plain, fast):
        torch.manual_seed(3)
        change(module)
    with way():
        for _ in range(3):
            torch.manual_seed(4)
            (got, grads) = outcome(fast, x)
            torch.manual_seed(4)
            (want, wanted) = outcome(plain, x)
            if isinstance(want, type) or want.device.type == "meta":
                assert got is want or got.device == want.device
                continue
            near(got, want)
            assert grads.keys() == wanted.keys()
            for name, grad in wanted.items():
                assert (grad is None) == (grads[name] is None), name
                if grad is not None:
                    torch.testing.assert_close(grads[name], grad, rtol=1e-3, atol=1e-3)


INPUTS = {
    "expanded": lambda x: x[:1].expand(3, 4, 6, 6),
    "overlapping": lambda x: x.flatten().as_strided((3, 4, 6, 6), (8, 7, 6, 1)),
    "transposed": lambda x: x.transpose(2, 3),
    "in steps": lambda x: torch.cat([x, x], 3)[..., ::2],
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "from the middle": lambda x: torch.cat([torch.zeros(1), x.flatten()])[1:].view(3, 4, 6, 6),
    "no samples": lambda x: x[:0],
    "one sample": lambda x: x[:1],
    "other size": lambda x: x[..., :5],
    "a parameter": lambda x: nn.Parameter(x),
    "requires gradients": lambda x: x.clone().requires_grad_(),
    "of an operator": lambda x: x.clone().requires_grad_() * 2,
    "double": lambda x: x.double(),
    "whole numbers": lambda x: x.int(),
    "NaN": lambda x: x * float("nan"),
    "inf": lambda x: torch.where(x > 1, float("inf"), x),
    "negative bit": lambda x: torch._neg_view(x),
    "too few channels": lambda x: x[:, :3],
    "no tensor": lambda x: 3,
    "none": lambda x: None,
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "numpy's memory": lambda x: torch.from_numpy(x.numpy()),
    "read only": lambda x: torch.from_numpy(__import__("numpy").broadcast_to(x[:1].numpy(), (3, 4, 6, 6))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", (torch.no_grad, torch.inference_mode, torch.enable_grad), ids=lambda w: w.__name__)
@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
def test_inputs_of_all_kinds(make, way):
    model = Net().eval()
    fast, x = convoy.compile(model), torch.randn(3, 4, 6, 6)
    with way():
        fast(x)
        given = make(x)
        for _ in range(2):
            got, want = outcome(fast, given)[0], outcome(model, given)[0]
            if isinstance(want, type):
                assert got is want
            elif want.device.type == "meta":
                assert got.device == want.device and got.shape == want.shape
            else:
                near(got, want)


def test_inference_tensors_outside_of_it():
    """Parameters and arguments made in inference mode, used with and without it."""
    with torch.inference_mode():
        model, x = Net().eval(), torch.randn(3, 4, 6, 6)
    fast = convoy.compile(model)
    for way in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with way():
            for _ in range(3):
                near(fast(x), model(x))
            near(fast(x.clone()), model(x.clone()))


@torch.no_grad()
def test_functional_call():
    model = Net().eval()
    fast, x = convoy.compile(model), torch.randn(3, 4, 6, 6)
    near(fast(x), model(x))
    other = {k: v * 0.5 for k, v in model.state_dict().items()}
    for _ in range(3):
        near(torch.func.functional_call(fast, other, (x,)), torch.func.functional_call(model, other, (x,)))
        near(fast(x), model(x))
    stacked = {k: torch.stack([v, v * 0.5]) for k, v in model.named_parameters()}
    got = torch.func.vmap(lambda p: torch.func.functional_call(fast, p, (x,)))(stacked)
    want = torch.func.vmap(lambda p: torch.func.functional_call(model, p, (x,)))(stacked)
    near(got, want)
    near(fast(x), model(x))


@torch.no_grad()
def test_copies_are_apart():
    """What is done to a copy is not done to the module, and the other way round."""
    model = Net().eval()
    fast, x = convoy.compile(model), torch.randn(3, 4, 6, 6)
    before = fast(x)
    copied = copy.deepcopy(fast)
    copied.first.weight.mul_(2)
    copied.norm.eps = 0.5
    near(fast(x), before)
    near(copied(x), copy.deepcopy(copied)(x))
    assert not torch.allclose(copied(x), before)
    shallow = copy.copy(fast)
    near(shallow(x), before)
    shallow.head = nn.Linear(4, 2).eval()
    assert shallow(x).shape[1] == 2 or shallow.head is fast.head
    near(fast(x), model(x))


@torch.no_grad()
def test_compiled_many_times_over():
    model = Net().eval()
    x = torch.randn(3, 4, 6, 6)
    want = model(x)
    fast = model
    for _ in range(4):
        fast = convoy.compile(fast)
        near(fast(x), want)
    outer = convoy.compile(nn.Sequential(convoy.compile(model), nn.ReLU(), convoy.compile(nn.Linear(4, 4))))
    near(outer(x), outer[2](torch.relu(model(x))))
    near(torch.compile(fast, backend="eager")(x), want)


def test_replicas_in_threads():
    """nn.DataParallel makes replicas for one call, and threads that run them."""
    model = Net().eval()
    fast, x = convoy.compile(model), torch.randn(3, 4, 6, 6)
    with torch.no_grad():
        want = fast(x)
    found = []

    def work():
        replica = fast._replicate_for_data_parallel()
        assert type(replica) is Net  # to trace it for one call would not pay
        replica._parameters, replica._buffers = dict(replica._parameters), dict(replica._buffers)
        with torch.no_grad():
            found.append(replica(x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4
    for got in found:
        near(got, want)


@torch.no_grad()
def test_results_are_nobody_elses():
    """No call gives memory that a later one writes, or that the caller's arguments lie in."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5)).eval()
    fast, x = convoy.compile(model), torch.randn(3, 4)
    results = [fast(x + i) for i in range(8)]
    for i, y in enumerate(results):
        near(y, model(x + i))
    assert len({y.data_ptr() for y in results}) == 8
    y = fast(x)
    y.zero_()
    near(fast(x), model(x))
    view = convoy.compile(nn.Flatten())
    assert view(x[:, None]).data_ptr() == x.data_ptr()
