"""Random modules (random_modules.py) against PyTorch in float64, drawn by hypothesis."""

import torch
from hypothesis import event, given
from hypothesis import strategies as st

import convoy
from agree import regions
from random_modules import LAYOUTS, assert_chain_agrees, make


class Drawn:
    """Choices of hypothesis."""

    def __init__(self, draw):
        self.draw = draw

    def whole(self, low, high):
        return self.draw(st.integers(low, high))

    def one(self, things):
        return self.draw(st.sampled_from(things))


@st.composite
def modules(draw):
    return make(Drawn(draw))


@given(modules(), st.sampled_from(LAYOUTS), st.integers(0, 2**20))
def test_random_modules(made, layout, seed):
    module, shape = made
    x = layout(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))
    fast = convoy.compile(module)
    with torch.no_grad():
        assert_chain_agrees(fast, module, x)
        assert_chain_agrees(fast, module, x)  # on what the first run prepared
    event(f"{regions(fast)} regions")
