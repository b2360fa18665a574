"""A block of a VAE's decoder: two residual blocks, then the image twice as large by nearest elements and a convolution. A problem
file: `convoy bench` takes it."""

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, in_channels, out_channels, groups):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, in_channels), nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(groups, out_channels), nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.skip = nn.Identity() if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, groups):
        super().__init__()
        self.blocks = nn.Sequential(Residual(in_channels, out_channels, groups), Residual(out_channels, out_channels, groups))
        self.up = nn.Conv2d(out_channels, out_channels, 3, padding=1)

    def forward(self, x):
        return self.up(F.interpolate(self.blocks(x), scale_factor=2.0, mode="nearest"))


def get_inputs():
    return [torch.rand(1, 512, 128, 128)]


def get_init_inputs():
    return [512, 256, 32]
