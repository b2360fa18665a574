"""Block B: convolution, GroupNorm, tanh, hardswish, the convolution added again, logsumexp over the channels.
A problem file: `convoy bench` takes it."""

import torch
from torch import nn

import convoy


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, groups, eps=1e-5):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.group_norm = nn.GroupNorm(groups, out_channels, eps=eps)
        self.tanh = nn.Tanh()
        self.hard_swish = nn.Hardswish()

    def forward(self, x):
        c = self.conv(x)
        x = c + self.hard_swish(self.tanh(self.group_norm(c)))
        return torch.logsumexp(x, dim=1, keepdim=True)


class ModelNew(nn.Module):
    """The same arguments, parameters and results."""

    def __new__(cls, *args, **kwargs):
        return convoy.compile(Model(*args, **kwargs))


def get_inputs():
    return [torch.rand(128, 8, 128, 128)]


def get_init_inputs():
    return [8, 64, 3, 16, 1e-5]
