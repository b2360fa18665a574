"""The generator of a DCGAN, for evaluation: transposed convolutions, batch norms, ReLU, a tanh. A problem file: `convoy bench`
takes it."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, noise, width, channels):
        super().__init__()
        layers, before = [], noise
        for i, factor in enumerate((8, 4, 2, 1)):
            layers += [nn.ConvTranspose2d(before, factor * width, 4, 2 if i else 1, 1 if i else 0, bias=False)]
            layers += [nn.BatchNorm2d(factor * width), nn.ReLU()]
            before = factor * width
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(before, channels, 4, 2, 1, bias=False), nn.Tanh())
        self.eval()

    def forward(self, x):
        return self.layers(x)


def get_inputs():
    return [torch.rand(64, 100, 1, 1)]


def get_init_inputs():
    return [100, 64, 3]
