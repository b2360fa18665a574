"""Arguments that are one tensor, tensors whose memory has another sign, and classes that call themselves their own way."""

import torch
import torch.nn.functional as F
from torch import nn

import convoy
import pytest


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.own = nn.Conv2d(3, 8, 3, padding=1), nn.Parameter(torch.randn(1, 3, 9, 9))

    def forward(self, a, b):
        return (self.conv(a).relu() - self.conv(b).tanh()).abs()


def check(fast, net, *args, **kwargs):
    torch.testing.assert_close(fast(*args, **kwargs), net(*args, **kwargs))


@pytest.mark.parametrize("grad", [False, True])
def test_one_tensor_twice_and_then_two(grad):
    net = Distance().eval()
    fast, (x, y) = convoy.compile(net, regions="all", training="recompute"), torch.randn(2, 1, 3, 9, 9)
    with torch.set_grad_enabled(grad):
        for a, b in [(x, x), (x, y), (y, x), (y, y), (net.own, y), (y, net.own), (x, y)]:
            check(fast, net, a, b)
            check(fast, net, a, b=b)


@torch.no_grad()
def test_a_parameter_as_argument_and_then_another_tensor():
    net = Distance().eval()
    fast, x = convoy.compile(net, regions="all"), torch.randn(1, 3, 9, 9)
    check(fast, net, net.own, net.own)
    check(fast, net, x, net.own)


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return F.relu(self.conv(torch.fft.fft2(x).conj().imag))


@torch.no_grad()
def test_the_negative_bit():
    net, x = Spectrum().eval(), torch.randn(2, 3, 8, 8)
    check(convoy.compile(net, regions="all"), net, x)
    layer = nn.Sequential(nn.Linear(16, 8), nn.ReLU()).eval()
    fast, z = convoy.compile(layer, regions="all"), torch.randn(4, 16, dtype=torch.cfloat)
    for _ in range(3):
        check(fast, layer, z.imag)
        check(fast, layer, z.conj().imag)


class Louder(nn.Sequential):
    def _call_impl(self, *args, **kwargs):
        return 100 * super()._call_impl(*args, **kwargs)


@torch.no_grad()
def test_a_call_of_the_classs_own():
    net = Louder(nn.Linear(16, 8), nn.ReLU()).eval()
    fast, x = convoy.compile(net, regions="all"), torch.randn(4, 16)
    for _ in range(4):
        check(fast, net, x)
