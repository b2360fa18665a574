"""A module's state includes the attributes of its containers, functions, distributions and parameters."""

from functools import partial

import pytest
import torch

import convoy
from agree import regions
from state_net import X, Net, last, near


class Settings(dict):
    pass


class Sizes(list):
    pass


def valued(thing):
    thing.value = 2.0
    return thing


@pytest.mark.parametrize("thing", [Settings(), Sizes(), partial(max), lambda x: x], ids=["dict", "list", "partial", "function"])
@torch.no_grad()
def test_attributes_of_containers_and_functions(thing):
    class Scaled(Net):
        def forward(self, x):
            return super().forward(x) * self.thing.value

    model = Scaled()
    model.thing = valued(thing)
    fast = convoy.compile(model)
    for value in (2.0, 2.0, 5.0):
        thing.value = value
        near(fast(X), model(X))
        assert regions(fast) == 1


@torch.no_grad()
def test_distributions_hold_values_of_a_model():
    class Prior(Net):
        def __init__(self):
            super().__init__()
            self.prior = torch.distributions.Normal(2.0, 1.0)

        def forward(self, x):
            return super().forward(x) * self.prior.loc

    model = Prior()
    fast = convoy.compile(model)
    for loc in (2.0, 2.0, 5.0):
        model.prior.loc = torch.tensor(loc)
        near(fast(X), model(X))
        assert regions(fast) == 1


@torch.no_grad()
def test_attributes_of_parameters():
    class Scaled(Net):
        def forward(self, x):
            return super().forward(x) * getattr(self.conv.weight, "scale", 1.0)

    model = Scaled()
    fast = convoy.compile(model)
    for scale in (2.0, 2.0, 5.0):
        model.conv.weight.scale = scale
        near(fast(X), model(X))
        assert regions(fast) == 1


@torch.no_grad()
def test_attributes_of_arguments():
    class Scaled(Net):
        def forward(self, x):
            return super().forward(x) * getattr(x, "scale", 1.0) * getattr(self.conv.weight, "factor", 1.0)

    model = Scaled()
    fast, given, tagged = convoy.compile(model), X.clone(), X.clone()
    tagged.scale = 3.0
    for x in (given, given, given, tagged, given, tagged):
        near(fast(x), model(x))
    assert last(fast).reason == "its forward reads scale, an attribute of an argument"
    assert any(entry.runners for entry in fast._convoy.entries.values())
    given.scale = 5.0
    near(fast(given), model(given))
    del given.scale
    model.conv.weight.factor = 7.0  # the first attribute of a parameter
    for _ in range(3):
        near(fast(given), model(given))


@torch.no_grad()
def test_attributes_that_a_forward_sets():
    class Tags(Net):
        def forward(self, x):
            y = super().forward(x)
            (self.conv.weight if self.inside else y).tag = 1
            return y

    for inside in (False, True):
        model = Tags()
        model.inside = inside
        fast = convoy.compile(model)
        for _ in range(2):
            y = fast(X)
            assert (model.conv.weight if inside else y).tag == 1
            assert inside or "sets an attribute of a tensor" in last(fast).reason
