"""Half precision where the CPU takes words of 16 bits as they lie: statistics of long rows, and pooling."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from agree import kept, regions
from test_half import HALVES, Call, assert_as_good, check, double, dtype, engine  # noqa: F401

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


# One for each way in which a convolution reads words: as tiles, split by columns, through a view, as patches, and through a
# centred copy; and each of them last (its result is stored by bands), before a norm, and before a maximum.
CONVOLUTIONS = {
    "winograd": (lambda: nn.Conv2d(16, 12, 3, padding=1), (2, 16, 21, 22)),
    "dilated": (lambda: nn.Conv2d(16, 12, 3, padding=2, dilation=2), (2, 16, 40, 37)),
    "direct": (lambda: nn.Conv2d(3, 8, 5, padding=1), (2, 3, 19, 18)),
    "stride 2": (lambda: nn.Conv2d(5, 8, 3, stride=2, padding=1), (2, 5, 19, 23)),
    "stride 4": (lambda: nn.Conv2d(3, 8, 4, stride=4), (2, 3, 32, 36)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 5, padding=2, groups=8), (2, 8, 15, 14)),
    "patches": (lambda: nn.Conv2d(64, 32, 3, padding=12, dilation=12), (1, 64, 33, 33)),
    "1x1": (lambda: nn.Conv2d(24, 16, 1), (2, 24, 12, 11)),
    "3-D": (lambda: nn.Conv3d(8, 6, 3, padding=1), (2, 8, 6, 9, 10)),
}
AFTER = {
    "last": lambda conv: [nn.ReLU(), conv],
    "norm": lambda conv: [conv, nn.GroupNorm(2, conv.out_channels), nn.Sigmoid()],
    "maximum": lambda conv: [conv, (nn.MaxPool3d if conv.weight.dim() == 5 else nn.MaxPool2d)(2), nn.ReLU()],
}


@torch.no_grad()
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_words(dtype, name, after, layout):
    make, shape = CONVOLUTIONS[name]
    last = torch.channels_last_3d if len(shape) == 5 else torch.channels_last
    x = torch.randn(shape).to(dtype).to(memory_format=last if layout == "channels_last" else torch.contiguous_format)
    module = nn.Sequential(*AFTER[after](make())).to(dtype)
    fast = check(module, x)
    assert regions(fast) == 1 and not kept(fast)
    x[(0, 1, *(3,) * (x.dim() - 2))] = float("nan")  # this sample takes the direct form
    assert_as_good(fast(x), module(x), double(module)(x.double()))
