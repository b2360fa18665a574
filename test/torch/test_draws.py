"""Random numbers: a trace draws none that count, and a module that draws or seeds runs as it would in PyTorch."""

import os
import random

import numpy
import pytest
import torch

import convoy
from agree import regions
from state_net import X, Net, last, last_reason, near


class Seeds(Net):
    def forward(self, x):
        torch.manual_seed(7)
        return super().forward(x) + torch.rand(1)


class DrawsPython(Net):
    def forward(self, x):
        return super().forward(x) * random.random()


class SeedsPython(Net):
    def forward(self, x):
        random.seed(3)
        return super().forward(x) * random.random()


class DrawsNumpy(Net):
    def forward(self, x):
        return super().forward(x) * float(numpy.random.rand())


class DrawsUnseeded(Net):
    def forward(self, x):
        return super().forward(x) * self.make()


UNSEEDED = {
    "Random": lambda: random.Random().random(),
    "SystemRandom": lambda: random.SystemRandom().random(),
    "urandom": lambda: os.urandom(1)[0] / 256,
    "default_rng": lambda: float(numpy.random.default_rng().random()),
    "RandomState": lambda: float(numpy.random.RandomState().rand()),
}


@pytest.mark.parametrize("make", UNSEEDED.values(), ids=UNSEEDED)
@torch.no_grad()
def test_generators_without_a_seed(make):
    model = DrawsUnseeded()
    model.make = make
    fast = convoy.compile(model)
    assert len({fast(X).sum().item() for _ in range(4)}) > 1
    assert last(fast).reason == "its forward draws random numbers without a seed"


@torch.no_grad()
def test_generators_with_a_seed_are_captured():
    model = DrawsUnseeded()
    model.make = lambda: random.Random(3).random() + float(numpy.random.default_rng(5).random())
    fast = convoy.compile(model)
    for _ in range(3):
        near(fast(X), model(X))
    assert regions(fast) == 1


class OwnGenerator(Net):
    def __init__(self):
        super().__init__()
        self.source = torch.Generator().manual_seed(5)

    def forward(self, x):
        self.source.manual_seed(11)
        return super().forward(x)


class Draws(Net):
    def forward(self, x):
        return super().forward(x) + torch.rand(4, 1, 1)


def all_states(model):
    own = model.source.get_state() if hasattr(model, "source") else 0
    return random.getstate(), repr(numpy.random.get_state()), torch.get_rng_state(), own


@pytest.mark.parametrize("kind", [Seeds, DrawsPython, SeedsPython, DrawsNumpy, OwnGenerator, Draws])
@torch.no_grad()
def test_random_numbers(kind):
    """The generators begin in the states that the modules set: a seed set again must be noticed all the same."""
    torch.manual_seed(0)
    model = kind()

    def start():
        torch.manual_seed(7)
        random.seed(3)
        numpy.random.seed(2)
        if hasattr(model, "source"):
            model.source.manual_seed(11)

    start()
    before = all_states(model)
    reason = last_reason(model)
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(all_states(model), before))
    assert (reason is None) == (kind is Draws)
    assert reason is None or "random numbers" in reason
    fast, results = convoy.compile(model), []
    for call in (fast, model):
        start()
        results.append([call(X) for _ in range(3)] + [torch.rand(3), torch.tensor(random.random())])
    near(*results)
