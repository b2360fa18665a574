"""Threads that call compiled modules while one of them is traced: nobody sees the stand-ins of a trace."""

import threading
import time

import pytest
import torch
from torch import nn

import convoy
from convoy import gate


class Slow(nn.Module):
    """Takes its time between two looks at its parameters, in a trace as well."""

    def __init__(self, pause=0.02):
        super().__init__()
        self.first, self.second, self.pause = nn.Linear(4, 4), nn.Linear(4, 4), pause

    def forward(self, x):
        y = torch.relu(self.first(x)) + 1
        time.sleep(self.pause)
        return torch.cumsum(torch.tanh(self.second(y)), 0)


def at_once(*calls):
    """Results of functions called in threads of their own, all started together."""
    found, start = [None] * len(calls), threading.Barrier(len(calls))

    def run(i):
        start.wait()
        try:
            with torch.no_grad():
                found[i] = calls[i]()
        except Exception as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    return found


def check(found, want):
    for got in found:
        assert type(got) is torch.Tensor, repr(got)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_calls_that_stay_in_pytorch_wait():
    """One thread traces, others are in PyTorch already or about to be: an argument of a subclass is never Convoy's."""

    class Own(torch.Tensor):
        pass

    model, x = Slow(), torch.randn(3, 4)
    with torch.no_grad():
        want = model(x)
    fast = convoy.compile(model)
    for rows in range(1, 4):
        done = []

        def plain():
            while not done:
                got = fast(x.as_subclass(Own)).as_subclass(torch.Tensor)
                check([got], want)
            return got

        def traced():
            got = fast(x[:rows])
            done.append(1)
            return torch.cat([got, want[rows:]])

        check(at_once(traced, *[plain] * 3), want)
        assert not gate.INSIDE and not gate.Tracer.thread


def test_modules_that_share_parts():
    """Neither's trace takes the other's stand-ins for its tensors."""
    model, x = Slow(), torch.randn(3, 4)
    with torch.no_grad():
        want = model(x)
    for _ in range(3):
        check(at_once(*[lambda fast=convoy.compile(nn.Sequential(model)): fast(x) for _ in range(4)]), want)
        fast = convoy.compile(model)
        check(at_once(*[lambda: fast(x)] * 6), want)
        assert len(fast._convoy.entries) == 1


def test_captures_hold_while_others_trace():
    """A trace of another shape, or of another module on the same parts, is no change of the module."""
    model, x = Slow(), torch.randn(3, 4)
    fast, other = convoy.compile(model), convoy.compile(nn.Sequential(model))
    with torch.no_grad():
        want = fast(x)
    entry = next(iter(fast._convoy.entries.values()))

    def many():
        for _ in range(40):
            got = fast(x)
            time.sleep(0.005)
        return got

    at_once(many, lambda: fast(torch.randn(5, 4)), lambda: other(torch.randn(6, 4)))
    check([many()], want)
    assert next(iter(fast._convoy.entries.values())) is entry and not fast._convoy.vain


class Outer(nn.Module):
    """Stays in PyTorch, with a compiled module inside."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = convoy.compile(Slow()), 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


def test_compiled_inside_of_what_stays_in_pytorch():
    """Threads that are inside do not wait for one another."""
    model = Outer()
    fast, x = convoy.compile(model), torch.randn(3, 4)
    with torch.no_grad():
        fast(x)  # its forward changes itself
    model.inner = convoy.compile(Slow())
    with torch.no_grad():
        want = Slow.forward(model.inner, x)
    start = time.monotonic()
    check(at_once(*[lambda: fast(x)] * 4), want)
    assert time.monotonic() - start < gate.PATIENCE


class Spawns(nn.Module):
    """Its forward starts a thread and waits for it."""

    def __init__(self):
        super().__init__()
        self.inner = convoy.compile(Slow(0.0))

    def forward(self, x):
        return at_once(lambda: self.inner(x))[0]


def test_a_forward_that_waits_for_a_thread(monkeypatch):
    monkeypatch.setattr(gate, "PATIENCE", 0.2)
    model = Spawns()
    fast, x = convoy.compile(model), torch.randn(3, 4)
    with torch.no_grad():
        want = Slow.forward(model.inner, x)
        for _ in range(2):
            check([fast(x)], want)


def test_a_trace_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(gate, "PATIENCE", 0.05)
    slow, fast = convoy.compile(Outer()), convoy.compile(Slow(0.0))
    with torch.no_grad():
        slow(torch.randn(3, 4))
        slow.inner.pause = 0.5
        x = torch.randn(3, 4)
        want = Slow.forward(fast, x)
        check(at_once(lambda: slow(x) * 0 + want, lambda: time.sleep(0.1) or fast(x)), want)
        check([fast(x)], want)


@pytest.mark.parametrize("world", (torch.inference_mode, torch.no_grad, torch.enable_grad))
def test_every_mode(world):
    model, x = Slow(0.001), torch.randn(3, 4)
    fast = convoy.compile(model)
    with torch.no_grad():
        want = model(x)

    def call():
        with world():
            return fast(x).detach().clone()

    check(at_once(*[call] * 4), want)
