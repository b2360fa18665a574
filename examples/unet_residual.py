"""A residual block of a diffusion UNet: GroupNorm and SiLU before each convolution, the time added between them. A problem
file: `convoy bench` takes it."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, time_channels, groups):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, in_channels), nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.time = nn.Linear(time_channels, out_channels)
        self.norm2, self.conv2 = nn.GroupNorm(groups, out_channels), nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.skip = nn.Identity() if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


def get_inputs():
    return [torch.rand(2, 320, 64, 64), torch.rand(2, 1280)]


def get_init_inputs():
    return [320, 320, 1280, 32]
