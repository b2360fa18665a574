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
