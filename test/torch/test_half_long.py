"""Half precision where the CPU takes words of 16 bits as they lie: statistics of long rows, and pooling."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from agree import kept, regions
from test_half import HALVES, Call, check, dtype, engine  # noqa: F401

LONG = {  # statistics of words where they lie: several pieces of 4096, by group, channel, row
    "group_norm": ((2, 4, 70, 67), lambda x, w, b: F.group_norm(x, 2, w, b), (4,), (4,)),
    "instance_norm": ((2, 3, 65, 64), lambda x, w, b: F.instance_norm(x, None, None, w, b), (3,), (3,)),
    "layer_norm": ((3, 9001), lambda x, w, b: F.layer_norm(x, (9001,), w, b), (9001,), (9001,)),
    "rms_norm": ((3, 4099), lambda x, w: F.rms_norm(x, (4099,), w), (4099,)),
}


@pytest.mark.parametrize("name", LONG)
def test_long_norms(engine, dtype, name):
    shape, function, *shapes = LONG[name]
    fast = check(Call(function, *shapes).to(dtype), (torch.rand(shape) + 0.1).to(dtype))
    assert regions(fast) == 1 and not kept(fast)


@pytest.mark.parametrize("half", [*HALVES, "float32"])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)], ids=["max", "avg"])
def test_pooling_of_channels_last(engine, half, pool):
    """Planes are pooled as words, or from a copy; the result is scattered."""
    x = torch.randn(3, 5, 14, 11).to(getattr(torch, half)).to(memory_format=torch.channels_last)
    fast = check(nn.Sequential(pool, nn.ReLU(), nn.MaxPool2d(2)), x)
    assert regions(fast) == 1 and not kept(fast)
