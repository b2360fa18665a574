"""A call like one before goes the short way, and only then."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.modules import module as nn_module
from torch.utils._python_dispatch import TorchDispatchMode

import convoy
from convoy import kinds, lane

pytestmark = pytest.mark.skipif(not kinds.USABLE, reason="this PyTorch has no check of tensors")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)
        self.scale, self.slopes = nn.Parameter(torch.rand(8, 1, 1)), [0.1, 0.2]

    def forward(self, x):
        return F.leaky_relu(self.norm(self.conv(x)) * self.scale, self.slopes[0])


class Two(nn.Module):
    """Inputs in another order than the region's, and one that is read twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, a, b):
        return torch.tanh(self.layer(b) * a) + a


@pytest.fixture
def short(monkeypatch):
    """For every call that tried a lane: did it go that way?"""
    found, run = [], lane.Lane.run

    def watched(self, args):
        result = run(self, args)
        found.append(result is not lane.MISS)
        return result

    monkeypatch.setattr(lane.Lane, "run", watched)
    return found


def near(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def compiled(kind=Block, *inputs):
    model = kind().eval()
    fast = convoy.compile(model)
    with torch.no_grad():
        near(fast(*inputs), model(*inputs))
    return model, fast


X = torch.randn(2, 3, 9, 7)


@torch.no_grad()
def test_the_second_call_takes_it(short):
    model, fast = compiled(Block, X)
    for x in (X, torch.randn_like(X), X.clone()):
        near(fast(x), model(x))
    assert short == [True] * 3
    model, fast = compiled(Two, torch.randn(3, 4), torch.randn(3, 5))
    for _ in range(2):
        given = torch.randn(3, 4), torch.randn(3, 5)
        near(fast(*given), model(*given))
    assert short == [True] * 5


@torch.no_grad()
def test_shapes_in_turn(short):
    model, fast = compiled(Block, X)
    inputs = [X, torch.randn(1, 3, 9, 7), torch.randn(2, 3, 7, 9).transpose(2, 3), torch.randn(4, 3, 5, 5)]
    for x in inputs * 3:
        near(fast(x), model(x))
    assert short[-8:] == [True] * 8 and len(fast._convoy.lanes) == len(inputs)
    for x in (torch.randn(n, 3, 6, 6) for n in range(1, 8)):
        near(fast(x), model(x))
    assert len(fast._convoy.lanes) == lane.MOST


CHANGES = {
    "an attribute": lambda m: setattr(m.conv, "stride", (2, 2)),
    "an element of a list": lambda m: m.slopes.__setitem__(0, 0.7),
    "a list that is another": lambda m: setattr(m, "slopes", [0.9]),
    "a parameter in place": lambda m: m.scale.mul_(-2),
    "a parameter's data": lambda m: m.conv.weight.data.add_(0.5),
    "other data": lambda m: setattr(m.scale, "data", torch.randn(8, 1, 1)),
    "another parameter": lambda m: setattr(m, "scale", nn.Parameter(torch.randn(8, 1, 1))),
    "a submodule": lambda m: setattr(m, "norm", nn.GroupNorm(4, 8)),
    "its class": lambda m: setattr(m.norm, "__class__", nn.Identity),
    "a forward of its own": lambda m: setattr(m, "forward", lambda x: Block.forward(m, x) + 3),
    "a submodule's forward": lambda m: setattr(m.norm, "forward", lambda x: x * 2),
    "a hook": lambda m: m.register_forward_hook(lambda m, args, y: y * 5),
    "a hook in front": lambda m: m.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
    "a submodule's hook": lambda m: m.conv.register_forward_hook(lambda m, args, y: y * 5),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("first", [False, True])
@torch.no_grad()
def test_changes_are_seen(short, name, first):
    """first: before the first call; the lane must not forget it either."""
    model = Block().eval()
    fast = convoy.compile(model)
    for _ in range(0 if first else 2):
        fast(X)
    before = model(X)
    CHANGES[name](fast)
    want = nn.Module.__call__(model, X)
    assert before.shape != want.shape or not torch.allclose(before, want)
    for _ in range(3):
        near(fast(X), want)


@torch.no_grad()
def test_a_module_with_a_hook_has_no_lane(short, monkeypatch):
    """None is made in vain at every call, and the first call without the hook makes one."""
    model, fast = compiled(Block, X)
    fast._convoy.lanes, made = (), []
    monkeypatch.setattr(lane.Lane, "watch", lambda self, watch=lane.Lane.watch: made.append(self) or watch(self))
    hook = fast.register_forward_hook(lambda m, args, y: y * 5)
    for _ in range(3):
        near(fast(X), model(X))
    assert not made and not short
    hook.remove()
    near(fast(X), model(X))
    near(fast(X), model(X))
    assert len(made) == 1 and short == [True]


@torch.no_grad()
def test_the_same_written_again_keeps_the_lane(short):
    model, fast = compiled(Block, X)
    for _ in range(3):
        fast.train(), fast.eval()
        near(fast(X), model(X))
    assert short == [True] * 3


@torch.no_grad()
def test_hooks_of_all_modules(short):
    model, fast = compiled(Block, X)
    want = fast(X)
    hook = nn_module.register_module_forward_hook(lambda m, args, y: y * 2 if isinstance(m, nn.GroupNorm) else y)
    near(fast(X), model(X))
    assert not torch.allclose(fast(X), want)
    hook.remove()
    near(fast(X), want)
    assert short[-1]


class Counting(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_modes_are_seen(short):
    model, fast = compiled(Block, X)

    def goes_the_long_way(call):
        with torch.no_grad():
            fast(X)
            assert short[-1]
            short.clear()
            result = call()
        assert not any(short)
        return result

    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert fast(X).dtype == model(X).dtype
    mode = Counting()

    def counted():
        with mode:
            fast(X)

    goes_the_long_way(counted)
    assert mode.count > 2  # operators, not regions
    y = goes_the_long_way(lambda: torch.func.vmap(lambda i: model(X) + i)(torch.zeros(3)))
    near(goes_the_long_way(lambda: torch.func.vmap(lambda i: fast(X) + i)(torch.zeros(3))), y)

    def traced():
        return torch.jit.trace(fast, (X,), check_trace=False)

    near(goes_the_long_way(traced)(2 * X), model(2 * X))

    def dual():
        with forward_ad.dual_level():
            return fast(X)

    near(goes_the_long_way(dual), model(X))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, torch.no_grad():
        assert type(fast(fake.from_tensor(X))).__name__ == "FakeTensor"
    fast(X).sum().backward()
    assert model.scale.grad is not None


def test_inference_mode(short):
    model, fast = compiled(Block, X)
    with torch.inference_mode():
        x = X.clone()
        for _ in range(3):
            y = fast(x)
        near(y, model(x))
        assert y.is_inference() and short[-2:] == [True, True]


@torch.no_grad()
def test_arguments_that_are_others(short):
    model, fast = compiled(Block, X)
    near(fast(x=X), model(X))
    near(fast(nn.Parameter(X)), model(X))
    with pytest.raises(TypeError):
        fast(X, X)
    with pytest.raises(Exception):
        fast(3)
    assert not short
    near(fast(X), model(X))
    assert short == [True]


@torch.no_grad()
def test_training_and_threads(short):
    model, fast = compiled(Block, X)
    fast.train()
    near(fast(X), model(X))
    fast.eval()
    near(fast(X), model(X))
    before = torch.get_num_threads()
    short.clear()
    torch.set_num_threads(before + 1)
    try:
        near(fast(X), model(X))
        assert not any(short)
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def test_subclasses_keep_their_forward(short):
    model, fast = compiled(Block, X)

    class Twice(type(fast)):
        def forward(self, x):
            return 2 * super().forward(x)

    fast.__class__ = Twice
    for _ in range(3):
        near(fast(X), 2 * model(X))


def test_threads_of_callers(short):
    model, fast = compiled(Block, X)
    inputs, wrong = [torch.randn_like(X) for _ in range(4)], []
    with torch.no_grad():
        wanted = [model(x) for x in inputs]

    def work(x, want):
        with torch.no_grad():
            for _ in range(50):
                if not torch.allclose(fast(x), want, rtol=1e-4, atol=1e-5):
                    wrong.append(x)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, wanted)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and sum(short) > 100


def test_ways_round_the_check(monkeypatch):
    """Without PyTorch's check there are no lanes, and all goes the long way."""
    monkeypatch.setattr(kinds, "USABLE", False)
    model, fast = compiled(Block, X)
    with torch.no_grad():
        near(fast(X), model(X))
    assert fast._convoy.lanes == ()


@torch.no_grad()
def test_the_default_dtype_is_part_of_the_surroundings():
    class Asks(Block):
        def forward(self, x):
            return super().forward(x) * (2 if torch.get_default_dtype() == torch.float32 else 3)

    model = Asks()
    fast, x = convoy.compile(model), torch.randn(2, 3, 8, 8)
    for _ in range(3):
        fast(x)
    assert fast._convoy.lanes
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    finally:
        torch.set_default_dtype(torch.float32)
