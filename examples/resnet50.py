"""ResNet-50, for evaluation. A problem file: `convoy bench` takes it."""

import torch
from torch import nn


def conv(in_channels, out_channels, kernel_size, stride=1):
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False), nn.BatchNorm2d(out_channels)
    )


class Bottleneck(nn.Module):
    def __init__(self, in_channels, width, stride):
        super().__init__()
        self.body = nn.Sequential(conv(in_channels, width, 1), nn.ReLU(), conv(width, width, 3, stride), nn.ReLU(), conv(width, 4 * width, 1))
        same = stride == 1 and in_channels == 4 * width
        self.skip = nn.Identity() if same else conv(in_channels, 4 * width, 1, stride)

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


class Model(nn.Module):
    def __init__(self, depths, width, classes):
        super().__init__()
        layers, channels = [conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                layers.append(Bottleneck(channels, width << stage, 2 if stage and not i else 1))
                channels = 4 * (width << stage)
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        self.eval()

    def forward(self, x):
        return self.layers(x)


def get_inputs():
    return [torch.rand(32, 3, 224, 224)]


def get_init_inputs():
    return [(3, 4, 6, 3), 64, 1000]
