"""Block C: convolution, a bias and a scale per channel, sigmoid, GroupNorm. A problem file: `convoy bench` takes it."""

import torch
from torch import nn

import convoy


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, num_groups, bias_shape, scale_shape):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.scale = nn.Parameter(torch.randn(scale_shape))
        self.group_norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x):
        x = torch.sigmoid((self.conv(x) + self.bias) * self.scale)
        return self.group_norm(x)


class ModelNew(nn.Module):
    """The same arguments, parameters and results."""

    def __new__(cls, *args, **kwargs):
        return convoy.compile(Model(*args, **kwargs))


def get_inputs():
    return [torch.rand(128, 8, 256, 256)]


def get_init_inputs():
    return [8, 32, 3, 8, (32, 1, 1), (32, 1, 1)]
