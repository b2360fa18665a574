"""A residual block of a video VAE: three-dimensional convolutions that see no later frame, so padding in time is before the
first alone. A problem file: `convoy bench` takes it."""

import torch
import torch.nn.functional as F
from torch import nn


class CausalConv(nn.Conv3d):
    """kernel_size frames, the last of them the one that is computed."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__(in_channels, out_channels, kernel_size, padding=(0, kernel_size // 2, kernel_size // 2))

    def forward(self, x):
        return super().forward(F.pad(x, (0, 0, 0, 0, self.kernel_size[0] - 1, 0)))


class Model(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, channels), CausalConv(channels, channels, 3)
        self.norm2, self.conv2 = nn.GroupNorm(groups, channels), CausalConv(channels, channels, 3)

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(y)))


def get_inputs():
    return [torch.rand(1, 128, 9, 128, 128)]


def get_init_inputs():
    return [128, 32]
