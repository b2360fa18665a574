"""What a forward does besides computing results happens in a captured graph as in PyTorch: in the same order, to the same
memory, with the same random numbers."""

import copy
from collections import Counter, OrderedDict

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from agree import regions


class Of(nn.Module):
    """A function of a convolution and x, as a module that is trained."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(4, 4, 3, padding=1), function
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x):
        return self.function(self, x)


def assert_same(function, times=2, taken=None):
    """Results, x afterwards, buffers and random numbers, call for call. taken: how many regions there must be."""
    module = Of(function)
    fast = convoy.compile(copy.deepcopy(module), training="recompute")
    for grad in (False, True):
        for i in range(times):
            found = []
            for m in (module, fast):
                torch.manual_seed(i)
                x = torch.randn(2, 4, 6, 6)
                with torch.set_grad_enabled(grad):
                    results = m(x)
                found.append([*results, x, *m.buffers(), torch.get_rng_state()])
            for got, want in zip(found[1], found[0]):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        if taken is not None:
            assert regions(fast) == taken


@pytest.mark.parametrize("drop", [F.dropout, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout])
def test_dropout_of_nothing_is_its_argument(drop):
    def function(m, x):
        y = drop(x, 0.0, True)
        y += 1
        return torch.tanh(m.conv(x)), y

    assert_same(function, taken=1)


@pytest.mark.parametrize("own", [True, False])
def test_running_statistics_are_read_after_their_update(own):
    def function(m, x):
        mean, variance = (m.mean, m.variance) if own else (m.mean.clone(), m.variance.clone())
        y = m.conv(x)
        z = F.batch_norm(y, mean, variance, None, None, True, 0.5)
        return torch.tanh(y * mean.view(1, -1, 1, 1)), z

    assert_same(function)


def fill(c):
    c.fill_(3)


def add(c):
    c += 1


def through_a_view(c):
    c.view(1)[0] = 2


def through_another_name(c):
    c.detach().mul_(4)


@pytest.mark.parametrize("change", [fill, add, through_a_view, through_another_name])
def test_a_number_that_is_changed(change):
    def function(m, x):
        c = torch.tensor(1.0)
        change(c)
        return (torch.tanh(m.conv(x) * c),)

    assert_same(function)


def test_random_numbers_are_drawn_in_order():
    """The region cannot have both convolution and product: what it would need is drawn after what reads it."""

    def function(m, x):
        y = m.conv(x)
        first = F.dropout(y, 0.5, True)
        return first, torch.tanh(y * F.dropout(x, 0.5, True))

    assert_same(function)


def test_random_numbers_that_nobody_waits_for():
    def function(m, x):
        y = m.conv(x)
        early = torch.cumsum(y, 1)
        first = F.dropout(x, 0.5, True)
        return early, first, torch.tanh(y * F.dropout(x, 0.5, True))

    assert_same(function, taken=1)


class Named(dict):
    pass


class Word(str):
    pass


RETURNED = {
    "a size": lambda y: (y, y.shape),
    "numbers": lambda y: (y, 1, True, -0.0, 2j, "a", None, y.dtype, y.device),
    "NumPy's number": lambda y: (y, numpy.float64(2)),
    "a dictionary of its own": lambda y: Named(y=y),
    "a word of its own": lambda y: (y, Word("a")),
    "a named tuple": lambda y: torch.return_types.max((y, y)),
    "an ordered dictionary": lambda y: OrderedDict(b=y, a=1),
    "a counter": lambda y: (y, Counter("aab")),
}


@pytest.mark.parametrize("name", list(RETURNED))
def test_what_is_returned_keeps_its_class(name):
    module = Of(lambda m, x: RETURNED[name](torch.tanh(m.conv(x)) * 2)).requires_grad_(False)
    fast = convoy.compile(copy.deepcopy(module))
    x = torch.randn(2, 4, 6, 6)
    got, want = fast(x), module(x)
    assert type(got) is type(want)
    for g, w in zip(*[list(r.values() if isinstance(r, dict) else r) for r in (got, want)]):
        assert type(g) is type(w)
        if isinstance(g, torch.Tensor):
            torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)
        else:
            assert repr(g) == repr(w)


@pytest.mark.parametrize("write", [lambda y, x: y.copy_(x), lambda y, x: y.uniform_(), lambda y, x: y.mul_(x)])
def test_gradients_of_what_is_written_in_place(write):
    module = Of(lambda m, x: torch.tanh(write(m.conv(x), x) + m.conv(x)))
    fast = convoy.compile(copy.deepcopy(module), training="recompute")
    found = []
    for m in (module, fast):
        torch.manual_seed(0)
        x = torch.randn(2, 4, 6, 6, requires_grad=True)
        found.append(torch.autograd.grad(m(x).sum(), [x, *m.parameters()]))
    for got, want in zip(found[1], found[0]):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


class Overwrites(torch.nn.Module):
    """Changes what a region has read, which PyTorch's own backward does not need."""

    def __init__(self):
        super().__init__()
        self.conv, self.scale = torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x, y):
        z = self.conv(x) + 0
        sums = (z + y).sum(1) + 1
        y.mul_(2)
        z[:, ::2].add_(1)
        return sums, torch.tanh(z * self.scale)


@pytest.mark.parametrize("training", ["auto", "recompute"])
@pytest.mark.parametrize("mode", [True, False])
def test_gradients_of_what_is_overwritten(training, mode):
    module = Overwrites().train(mode)
    fast = convoy.compile(copy.deepcopy(module), training=training)
    for _ in range(2):
        found = []
        for m in (module, fast):
            torch.manual_seed(0)
            x, y = torch.randn(2, 4, 6, 6), torch.randn(2, 4, 6, 6)
            results = m(x, y)
            found.append([*results, y, *torch.autograd.grad(sum(r.sum() for r in results), list(m.parameters()))])
        for got, want in zip(found[1], found[0]):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


# ---- operators in place --------------------------------------------------------------------------------------------------


def power(y):
    y **= 2
    return y


IN_PLACE = {
    "pow_": power,
    "float_power_": lambda y: y.double().float_power_(2),
    "ldexp_": lambda y: y.ldexp_(torch.tensor([3])),
    **{name: lambda y, name=name: getattr(y, name)(0) for name in ("gt_", "ge_", "lt_", "eq_", "not_equal_")},
    "logical_not_": lambda y: y.logical_not_(),
    "ge_ of a new one": lambda y: torch.rand_like(y).ge_(0.5),
    **{name: lambda y, name=name: getattr(y.contiguous(memory_format=torch.channels_last) + 0, name)(1)
       for name in ("cumsum_", "cumprod_", "tril_", "triu_")},
}  # fmt: skip


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=IN_PLACE)
@torch.no_grad()
def test_operators_in_place_keep_dtype_and_layout(change):
    def function(m, x):
        y = change(torch.tanh(m.conv(x)) * 2)
        return y, y * 2 + 1

    module = Of(function)
    fast = convoy.compile(copy.deepcopy(module))
    x = torch.randn(2, 4, 6, 6)
    for _ in range(2):
        found = []
        for m in (module, fast):
            torch.manual_seed(0)
            found.append(m(x))
        for got, want in zip(found[1], found[0]):
            assert (got.dtype, got.stride()) == (want.dtype, want.stride())
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert regions(fast)


def straight_through(y):
    with torch.no_grad():
        y.clamp_(-0.2, 0.2)
    return y


def made_without(y):
    with torch.no_grad():
        z = torch.tanh(y) * 2
    return y * z.add_(1)


def all_without(y):
    with torch.no_grad():
        return y * (torch.tanh(y) * 2).add_(1)


@pytest.mark.parametrize("change", [straight_through, made_without, all_without])
@pytest.mark.parametrize("training", ["auto", "recompute"])
def test_gradients_of_what_is_changed_without_them(change, training):
    module = Of(lambda m, x: torch.tanh(change(torch.tanh(m.conv(x)) * 2) * 2 + x))
    fast = convoy.compile(copy.deepcopy(module), training=training)
    for _ in range(2):
        found = []
        for m in (module, fast):
            x = torch.linspace(-1, 1, 288).view(2, 4, 6, 6).requires_grad_()
            result = m(x)
            found.append([result, *torch.autograd.grad(result.sum(), [x, *m.parameters()], allow_unused=True)])
        for got, want in zip(found[1], found[0]):
            assert (got is None) == (want is None)
            if want is not None:
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


# ---- results that nobody reads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.InstanceNorm2d(4), nn.InstanceNorm2d(4, track_running_stats=True)])
@torch.no_grad()
def test_an_unused_norm(norm):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv = norm, nn.Conv2d(4, 4, 3)

        def forward(self, x):
            self.norm(x * 2)
            return torch.tanh(self.conv(x)) * 2

    module = Unused()
    fast, x = convoy.compile(copy.deepcopy(module)), torch.randn(2, 4, 6, 6)
    for training in (False, True):
        for m in (module, fast):
            m.train(training)
        torch.testing.assert_close(fast(x), module(x), rtol=1e-5, atol=1e-5)
        assert regions(fast) == 1
        for got, want in zip(fast.buffers(), module.buffers()):
            torch.testing.assert_close(got, want)


@torch.no_grad()
def test_assertions_and_operators_of_others_run():
    noted = []

    @torch.library.custom_op("convoy_test::note", mutates_args=())
    def note(x: torch.Tensor) -> torch.Tensor:
        noted.append(x.shape)
        return x.clone()

    note.register_fake(torch.empty_like)
    for message in (["not finite"], []):

        def function(m, x, message=message):
            y = torch.tanh(x) * 2
            torch._assert_async(y.isfinite().all(), *message)
            torch.ops.convoy_test.note(y)
            return y

        fast, x = convoy.compile(Of(function)), torch.randn(2, 4, 6, 6)
        for _ in range(3):
            fast(x)
        assert regions(fast) == 1 and len(noted) == 3
        noted.clear()
        with pytest.raises(RuntimeError):
            fast(x * float("nan"))
        noted.clear()
