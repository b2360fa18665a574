"""What forwards do besides calling operators: attributes of tensors, hooks, derivatives of their own, errors that they catch.
Each module is compared with an uncompiled twin: results, gradients, and the state after the call."""

import itertools
import math
import random
from collections import ChainMap, UserDict, UserList
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import convoy

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 4), []


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * 2).relu()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0] * 7


def hooked(self, x):
    h = torch.tanh(self.layer(x))
    h.register_hook(lambda grad: grad * 3)
    h.register_hook(self.seen.append)
    return torch.relu(h * 2)


def retained(self, x):
    h = torch.tanh(self.layer(x))
    h.retain_grad()
    return torch.relu(h * 2)


def inner_gradient(self, x):
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(torch.tanh(self.layer(z)).sum(), z, create_graph=True)
    return torch.relu(found * 2) + self.layer(x)


def assigned_data(self, x):
    self.layer.weight.data = self.layer.weight.data * 0.5
    return torch.tanh(self.layer(x)) + 1


def catching(self, x):
    try:
        factor = float(x.numpy().sum())
    except RuntimeError:
        factor = 0.0
    return torch.relu(self.layer(x) * factor) + self.layer(x)


def catching_everything(self, x):
    try:
        factor = 2.0 if (x > 0).any() else 1.0
    except Exception:
        factor = 0.0
    return torch.relu(self.layer(x) * factor) + self.layer(x)


def seeded_aside(self, x):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.randn(4)
    return torch.relu(self.layer(x)) + noise


def kept_in_inference_mode(self, x):
    with torch.inference_mode():
        h = torch.tanh(self.layer(x)) + 1
    return h.clone() * 2


def after_backward(self, x):
    return torch.tanh(self.layer(x)) * (1 if self.layer.weight.grad is None else 2) + 1


def hooked_saving(self, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach() * 2, lambda t: t):
        return torch.relu(torch.tanh(self.layer(x)) * 2) + 1


def with_duals(self, x):
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(torch.tanh(forward_ad.make_dual(x, torch.ones_like(x)) * 2)).tangent
        return torch.relu(self.layer(tangent)) + 1


def own_generator(self, x):
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(3))
    return torch.relu(self.layer(x)) + noise


def drawn_twice(self, x):
    state = torch.get_rng_state()
    first = F.dropout(x, 0.5, True)
    torch.set_rng_state(state)
    return torch.relu(self.layer(first)) + F.dropout(x, 0.5, True)


def drawn_aside(self, x):
    with torch.random.fork_rng(devices=[]):
        noise = torch.rand(4)
    return torch.relu(self.layer(x)) + noise


def fixed_reason(reason):
    return f"its forward {reason}"


IN_PYTORCH = {
    "a derivative of its own": (lambda self, x: torch.relu(Rounded.apply(self.layer(x)) * 2),
                                fixed_reason("has a derivative of its own")),
    "another one": (lambda self, x: torch.relu(Scaled.apply(self.layer(x)) * 2) + 1,
                    fixed_reason("has a derivative of its own")),
    "a reentrant checkpoint": (
        lambda self, x: torch.relu(checkpoint(lambda y: torch.tanh(self.layer(y)), x * self.layer.weight[0], use_reentrant=True)) + 1,
        fixed_reason("has a derivative of its own")),
    "hooks": (hooked, fixed_reason("registers a hook of a tensor")),
    "a gradient that is kept": (retained, fixed_reason("keeps a gradient")),
    "a gradient inside": (inner_gradient, fixed_reason("sets requires_grad of a tensor")),
    "a gradient that is read": (after_backward, fixed_reason("reads a gradient")),
    "data that is assigned": (assigned_data, fixed_reason("assigns to the data of a tensor")),
    "an argument that will want gradients": (lambda self, x: torch.tanh(self.layer(x.requires_grad_())) + 1,
                                             fixed_reason("sets requires_grad of a tensor")),
    "inference mode": (kept_in_inference_mode, fixed_reason("enters inference mode")),
    "vmap": (lambda self, x: torch.relu(torch.func.vmap(lambda row: torch.tanh(self.layer(row)))(x) * 2) + 1,
             fixed_reason("uses a transform of torch.func")),
    "an error that is caught": (catching, "not captured: RuntimeError"),
    "any error": (catching_everything, "not captured: GuardOnDataDependentSymNode"),
    "a seed that is set aside": (seeded_aside, fixed_reason("sets a seed or a state of PyTorch's random numbers")),
    "a state that is set again": (drawn_twice, fixed_reason("sets a seed or a state of PyTorch's random numbers")),
    "numbers that are drawn aside": (drawn_aside, fixed_reason("sets a seed or a state of PyTorch's random numbers")),
    "a generator made anew": (own_generator, fixed_reason("makes a generator of random numbers")),
    "hooks on what is saved": (hooked_saving, fixed_reason("changes what autograd saves")),
    "forward-mode AD": (with_duals, fixed_reason("uses forward-mode AD")),
}  # fmt: skip

CAPTURED = {
    "data": lambda self, x: torch.tanh(F.linear(x, self.layer.weight.data)) + x.data,
    "data in the middle": lambda self, x: torch.relu(torch.tanh(self.layer(x)).data * 2) + self.layer(x),
    "straight through": lambda self, x: torch.relu(self.layer(x) + (self.layer(x).sign() - self.layer(x)).data) * 2,
    "requires_grad": lambda self, x: torch.tanh(self.layer(x)) * (2 if x.requires_grad else 3) + 1,
    "requires_grad of a parameter": lambda self, x: torch.tanh(self.layer(x)) * (2 if self.layer.weight.requires_grad else 3) + 1,
    "what a parameter is": lambda self, x: torch.tanh(self.layer(x)) * (2 if isinstance(self.layer.weight, nn.Parameter) else 3) + 1,
}


def twins(forward):
    cls = type("Made", (Base,), {"forward": forward})
    torch.manual_seed(2)
    plain = cls()
    compiled = cls()
    compiled.load_state_dict(plain.state_dict())
    return convoy.compile(compiled), plain


def outcome(module, x, backward=True):
    torch.manual_seed(5)
    module.zero_grad()
    y = module(x)
    if backward and y.requires_grad:
        y.sum().backward()
    left = [x.requires_grad, x.grad, len(module.seen), *module.state_dict().values(), *(p.grad for p in module.parameters())]
    return [y.detach(), y.requires_grad, torch.is_grad_enabled(), *left]


def the_same(got, want):
    assert len(got) == len(want)
    for g, w in zip(got, want):
        if isinstance(w, torch.Tensor):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
        else:
            assert g == w


def reason(fast):
    return list(fast._convoy.entries.values())[-1].reason


def compared(fast, plain, seen=lambda: None):
    for turn in range(4):
        if turn == 2:
            for module in (fast, plain):
                module.layer.weight.requires_grad_(False)
        x = X * (turn + 1)
        copies = [x.clone().requires_grad_(turn % 2 == 1) for _ in range(2)]
        the_same(outcome(fast, copies[0]), outcome(plain, copies[1]))
        seen()


@pytest.mark.parametrize("forward, why", IN_PYTORCH.values(), ids=IN_PYTORCH)
def test_what_cannot_be_captured_stays_in_pytorch(forward, why):
    fast, plain = twins(forward)
    first = []
    compared(fast, plain, lambda: first or first.append(reason(fast)))
    assert first[0].startswith(why)


@pytest.mark.parametrize("forward", CAPTURED.values(), ids=CAPTURED)
@pytest.mark.parametrize("training", ["auto", "recompute"])
def test_what_can_be_captured_is_right(forward, training):
    fast, plain = twins(forward)
    fast = convoy.compile(fast, training=training)
    compared(fast, plain)
    with torch.no_grad():
        for module in (fast, plain):
            module.layer.weight.requires_grad_(True)
        for x in (X, X.clone().requires_grad_(), X):
            the_same(outcome(fast, x, False), outcome(plain, x, False))
    assert not any(e.reason for e in fast._convoy.entries.values())


def test_requires_grad_is_read_for_two_entries_at_most():
    fast, plain = twins(CAPTURED["requires_grad"])
    for turn in range(6):
        the_same([fast(X.clone().requires_grad_(turn % 2 == 1))], [plain(X.clone().requires_grad_(turn % 2 == 1))])
    assert len(fast._convoy.entries) == 2


# ---- gradients of several results ----------------------------------------------------------------------------------------


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = torch.tanh(x * 2) + 1
        return h, torch.relu(self.first(h)), torch.relu(self.second(h))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("training", ["auto", "recompute"])
def test_results_have_their_own_gradients(training, frozen):
    """A result that nobody reads gives no gradient, not one of zeros, which an optimiser would take for one."""
    plain, mine = Heads(), Heads()
    mine.load_state_dict(plain.state_dict())
    fast = convoy.compile(mine, training=training)
    for module in (plain, fast):
        module.second.requires_grad_(not frozen)
    for _ in range(3):
        got, want = fast(X), plain(X)
        assert [t.requires_grad for t in got] == [t.requires_grad for t in want]
        assert [t.is_leaf for t in got] == [t.is_leaf for t in want]
        for module, results in ((fast, got), (plain, want)):
            module.zero_grad()
            results[1].sum().backward()
        for g, w in zip(fast.parameters(), plain.parameters(), strict=True):
            assert (g.grad is None) == (w.grad is None)
            if w.grad is not None:
                torch.testing.assert_close(g.grad, w.grad, rtol=1e-4, atol=1e-5)


# ---- arguments and modes -------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_numbers_are_told_apart():
    fast, plain = twins(lambda self, x, k: torch.tanh(self.layer(x)) * math.copysign(1, k) + (5 if type(k) is float else 0))
    for k in (0.0, -0.0, 0, True, 1.0, 1, complex(0.0, -0.0).imag, float("nan"), float("nan")):
        the_same([fast(X, k)], [plain(X, k)])
    assert len(fast._convoy.entries) == 7  # one of NaN


class Doubled(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.tanh else result


@torch.no_grad()
def test_function_modes_see_every_call():
    fast, plain = twins(lambda self, x: torch.tanh(self.layer(x)).relu() + torch.ones(4))
    for _ in range(3):
        the_same([fast(X)], [plain(X)])
        with Doubled():
            the_same([fast(X)], [plain(X)])
        with torch.device("cpu"):
            the_same([fast(X)], [plain(X)])
        with torch.device("meta"), pytest.raises(RuntimeError):
            fast(X)


# ---- what a module holds -------------------------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("factor", "unset", "rows")

    def __init__(self):
        self.factor, self.rows = 1.5, [1.0]


class Extended(Slotted):
    def __init__(self):
        super().__init__()
        self.more = 2.0


def held(make, read, change):
    return make, read, change


HELD = {
    "UserDict": held(lambda: UserDict(k=1.5), lambda h: h["k"], lambda h: h.update(k=-2.0)),
    "UserList": held(lambda: UserList([1.5]), lambda h: h[0], lambda h: h.__setitem__(0, -2.0)),
    "ChainMap": held(lambda: ChainMap({}, {"k": 1.5}), lambda h: h["k"], lambda h: h.update(k=-2.0)),
    "partial": held(lambda: partial(F.leaky_relu, torch.tensor(-1.0), negative_slope=1.5), lambda h: h(),
                    lambda h: h.keywords.update(negative_slope=-2.0)),
    "slots": held(Slotted, lambda h: h.factor, lambda h: setattr(h, "factor", -2.0)),
    "a slot that was empty": held(Slotted, lambda h: getattr(h, "unset", 1.5), lambda h: setattr(h, "unset", -2.0)),
    "a list in a slot": held(Slotted, lambda h: h.rows[0], lambda h: h.rows.__setitem__(0, -2.0)),
    "slots beside attributes": held(Extended, lambda h: h.factor, lambda h: setattr(h, "factor", -2.0)),
    "attributes beside slots": held(Extended, lambda h: h.more, lambda h: setattr(h, "more", -2.0)),
}  # fmt: skip


@pytest.mark.parametrize("make, read, change", HELD.values(), ids=HELD)
@torch.no_grad()
def test_changes_of_what_it_holds_are_seen(make, read, change):
    fast, plain = twins(lambda self, x: torch.tanh(self.layer(x) * read(self.held)).exp())
    fast.held = make()
    plain.held = fast.held
    for _ in range(3):
        the_same([fast(X)], [plain(X)])
    before = fast(X)
    assert not reason(fast)
    change(plain.held)
    for _ in range(3):
        the_same([fast(X)], [plain(X)])
    assert not torch.allclose(before, fast(X))


@torch.no_grad()
def test_a_forward_that_writes_a_slot_stays_in_pytorch():
    def forward(self, x):
        self.held.factor += 1
        return torch.tanh(self.layer(x) * self.held.factor).exp()

    fast, plain = twins(forward)
    fast.held, plain.held = Slotted(), Slotted()
    for _ in range(3):
        the_same([fast(X)], [plain(X)])
    assert fast.held.factor == plain.held.factor and reason(fast) == "its forward changes held.factor"


DRAWN = {
    "Python's": (lambda: random.Random(0), lambda h: h.random()),
    "NumPy's": (lambda: np.random.default_rng(0), lambda h: float(h.random())),
    "NumPy's older ones": (lambda: np.random.RandomState(0), lambda h: float(h.rand())),
    "a count": (itertools.count, next),
    "a generator": (lambda: (i / 2 for i in range(9)), next),
}


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("make, draw", DRAWN.values(), ids=DRAWN)
@torch.no_grad()
def test_numbers_of_its_own_are_drawn_anew(make, draw, given):
    fast, plain = twins(lambda self, x, *more: torch.tanh(self.layer(x) * draw(more[0] if more else self.held)).exp())
    things = make(), make()
    fast.held, plain.held = (None, None) if given else things
    for _ in range(4):
        arguments = [(thing,) if given else () for thing in things]
        the_same([fast(X, *arguments[0])], [plain(X, *arguments[1])])


def encoder(grown=False):
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return (nn.TransformerEncoder(layer, 2) if grown else layer).eval()


@pytest.mark.parametrize("grown", [False, True])
@torch.no_grad()
def test_masked_attention_takes_the_fast_path_that_pytorch_takes(grown):
    """It leaves out padded positions; without a mask both ways give the same, and Convoy records the slow one."""
    plain, fast = encoder(grown), convoy.compile(encoder(grown))
    x, pad = torch.randn(3, 5, 8), torch.tensor([[False] * 5, [False, False, True, True, True], [True] * 5])
    torch.testing.assert_close(fast(x), plain(x), rtol=1e-4, atol=1e-5)
    assert reason(fast) is None
    given = [{"src_key_padding_mask": mask} for mask in (pad, pad[:2])]
    for x, masks in zip((x, x[:2]), given):
        torch.testing.assert_close(fast(x, **masks), plain(x, **masks), rtol=1e-4, atol=1e-5, equal_nan=True)
        assert "fast path" in reason(fast)


LEFT = {"list": [], "last": None}


def append(h):
    LEFT["list"].append(h)


def append_named(h):
    LEFT["list"].append(("h", h))


def keep_last(h):
    LEFT["last"] = h


@pytest.mark.parametrize("leave", [append, append_named, keep_last])
def test_tensors_left_in_the_surroundings_are_real(leave):
    def forward(self, x):
        leave(h := torch.tanh(self.layer(x)) + 1)
        return torch.relu(h * 2)

    LEFT["list"].clear()
    fast, plain = twins(forward)
    for calls in (1, 2):
        the_same(outcome(fast, X), outcome(plain, X))
        left = [t[-1] if isinstance(t, tuple) else t for t in LEFT["list"]] or [LEFT["last"]]
        assert [type(t) for t in left] == [torch.Tensor] * (1 if leave is keep_last else 2 * calls)
    assert reason(fast) == "its forward keeps a tensor outside of the module"
