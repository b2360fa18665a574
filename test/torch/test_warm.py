"""convoy.warm(): calls that come later find everything made, and the module is as it was."""

import pytest
import torch
from torch import nn

import convoy
from convoy import module as front


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x, y=None):
        x = torch.relu(self.norm(self.conv(x)))
        return x if y is None else x * y


@pytest.fixture
def captures(monkeypatch):
    """Counts captures from now on."""
    made, build = [], front.build_entry

    def counted(*arguments):
        made.append(1)
        return build(*arguments)

    monkeypatch.setattr(front, "build_entry", counted)
    return made


def test_later_calls_find_it_made(captures):
    fast = convoy.compile(Two().eval())
    convoy.warm(fast, [(1, 3, 8, 8), torch.zeros(2, 3, 9, 9), [(1, 3, 8, 8), (4, 1, 1)]])
    assert len(captures) == 3
    with torch.no_grad():
        for x in (torch.randn(1, 3, 8, 8), torch.randn(2, 3, 9, 9)):
            torch.testing.assert_close(fast(x), Two.forward(fast, x), rtol=1e-5, atol=1e-5)
        fast(torch.randn(1, 3, 8, 8), torch.randn(4, 1, 1))
        assert len(captures) == 3
        fast(torch.randn(3, 3, 8, 8))
    assert len(captures) == 4


def test_nothing_of_the_module_changes():
    torch.manual_seed(1)
    fast = convoy.compile(Two().train())
    before, dice = {k: v.clone() for k, v in fast.state_dict().items()}, torch.get_rng_state()
    convoy.warm(fast, [(2, 3, 8, 8)])
    assert all(torch.equal(v, before[k]) for k, v in fast.state_dict().items())
    assert torch.equal(dice, torch.get_rng_state())


def test_other_arguments_are_refused():
    with pytest.raises(TypeError, match="convoy.compile"):
        convoy.warm(Two(), [(1, 3, 8, 8)])
    fast = convoy.compile(Two())
    with pytest.raises(TypeError, match="a list of calls, not 3"):
        convoy.warm(fast, 3)
    for wrong in ("1x3", [], [3.5]):
        with pytest.raises(TypeError, match="a shape, a tensor, or a list"):
            convoy.warm(fast, [wrong])
