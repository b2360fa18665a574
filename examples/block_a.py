"""Block A: convolution, GroupNorm, a scale per channel, max pooling, clamp. A problem file: `convoy bench` takes it."""

import torch
from torch import nn

import convoy


class Model(nn.Module):
    def __init__(
        self, in_channels, out_channels, kernel_size, num_groups, scale_shape, maxpool_kernel_size, clamp_min, clamp_max
    ):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.group_norm = nn.GroupNorm(num_groups, out_channels)
        self.scale = nn.Parameter(torch.ones(scale_shape))
        self.maxpool = nn.MaxPool2d(maxpool_kernel_size)
        self.clamp_min = clamp_min
        self.clamp_max = clamp_max

    def forward(self, x):
        x = self.group_norm(self.conv(x)) * self.scale
        return torch.clamp(self.maxpool(x), self.clamp_min, self.clamp_max)


class ModelNew(nn.Module):
    """The same arguments, parameters and results."""

    def __new__(cls, *args, **kwargs):
        return convoy.compile(Model(*args, **kwargs))


def get_inputs():
    return [torch.rand(128, 8, 128, 128)]


def get_init_inputs():
    return [8, 64, 3, 16, (64, 1, 1), 4, 0, 1]
