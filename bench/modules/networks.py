"""Well-known networks as plain modules, without dependencies: their layers and widths, random weights."""

import torch
import torch.nn.functional as F
from torch import nn

from blocks import (
    ConvNeXtBlock,
    DenseLayer,
    Fire,
    Inception,
    MixerBlock,
    Residual,
    ShuffleUnit,
    TransformerBlock,
    basic_block,
    bottleneck,
    conv_norm,
    double_conv,
    inverted_residual,
)


def head(channels, classes=1000):
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def lenet():
    features = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def alexnet():
    pool = nn.MaxPool2d(3, 2)
    sizes = [(64, 192, 5, 2), (192, 384, 3, 1), (384, 256, 3, 1), (256, 256, 3, 1)]
    layers = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), pool]
    for i, (c_in, c_out, kernel, padding) in enumerate(sizes):
        layers += [nn.Conv2d(c_in, c_out, kernel, padding=padding), nn.ReLU()] + ([pool] if i in (0, 3) else [])
    layers += [nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))


def vgg(widths, norm=False):
    """widths: of convolutions, 0 for a pooling. The classifier is one linear layer."""
    layers, c = [], 3
    for width in widths:
        if not width:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(c, width, 3, padding=1)] + ([nn.BatchNorm2d(width)] if norm else []) + [nn.ReLU()]
        c = width
    return nn.Sequential(*layers, *head(c))


def vgg11():
    return vgg([64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0])


def vgg16(norm=False):
    return vgg([64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0], norm)


def resnet(block, depths, expansion, groups=1):
    layers, c = [conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for i in range(depth):
            layers.append(block(c, width, 2 if stage and not i else 1))
            c = width * expansion
    return nn.Sequential(*layers, *head(c))


def resnet18():
    return resnet(basic_block, (2, 2, 2, 2), 1)


def resnet34():
    return resnet(basic_block, (3, 4, 6, 3), 1)


def resnet50():
    return resnet(bottleneck, (3, 4, 6, 3), 4)


def mobilenet_v1():
    layers, c = [conv_norm(3, 32, 3, 2)], 32
    for width, stride in [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)] + 5 * [(512, 1)] + [(1024, 2), (1024, 1)]:
        layers += [conv_norm(c, c, 3, stride, c), conv_norm(c, width, 1)]
        c = width
    return nn.Sequential(*layers, *head(c))


def mobilenet_v2():
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    layers, c = [conv_norm(3, 32, 3, 2, activation=nn.ReLU6)], 32
    for expand, width, depth, stride in stages:
        for i in range(depth):
            layers.append(inverted_residual(c, width, expand, stride if i == 0 else 1))
            c = width
    return nn.Sequential(*layers, conv_norm(c, 1280, 1, activation=nn.ReLU6), *head(1280))


def efficientnet_b0():
    stages = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]
    layers, c = [conv_norm(3, 32, 3, 2, activation=nn.SiLU)], 32
    for expand, width, depth, stride, kernel in stages:
        for i in range(depth):
            squeezed = max(1, c // 4)
            layers.append(inverted_residual(c, width, expand, stride if i == 0 else 1, kernel, nn.SiLU, squeezed))
            c = width
    return nn.Sequential(*layers, conv_norm(c, 1280, 1, activation=nn.SiLU), *head(1280))


def densenet121():
    layers, c = [conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for stage, depth in enumerate((6, 12, 24, 16)):
        for _ in range(depth):
            layers.append(DenseLayer(c))
            c += 32
        if stage < 3:
            layers += [nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c // 2, 1, bias=False), nn.AvgPool2d(2)]
            c //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(c), nn.ReLU(), *head(c))


def squeezenet():
    layers = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(64, 16, 64), Fire(128, 16, 64)]
    layers += [nn.MaxPool2d(3, 2, ceil_mode=True), Fire(128, 32, 128), Fire(256, 32, 128), nn.MaxPool2d(3, 2, ceil_mode=True)]
    layers += [Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)]
    return nn.Sequential(*layers, nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def shufflenet_v2():
    layers, c = [conv_norm(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)], 24
    for width, depth in ((116, 4), (232, 8), (464, 4)):
        for i in range(depth):
            layers.append(ShuffleUnit(c, width, 1 if i else 2))
            c = width
    return nn.Sequential(*layers, conv_norm(c, 1024, 1), *head(1024))


def googlenet():
    pool = nn.MaxPool2d(3, 2, 1)
    layers = [conv_norm(3, 64, 7, 2), pool, conv_norm(64, 64, 1), conv_norm(64, 192), pool]
    layers += [Inception(192, 64, (96, 128), (16, 32), 32), Inception(256, 128, (128, 192), (32, 96), 64), pool]
    layers += [Inception(480, 192, (96, 208), (16, 48), 64), Inception(512, 160, (112, 224), (24, 64), 64)]
    layers += [Inception(512, 128, (128, 256), (24, 64), 64), Inception(512, 112, (144, 288), (32, 64), 64)]
    layers += [Inception(528, 256, (160, 320), (32, 128), 128), pool, Inception(832, 256, (160, 320), (32, 128), 128)]
    return nn.Sequential(*layers, Inception(832, 384, (192, 384), (48, 128), 128), *head(1024))


class UNet(nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip([3] + widths, widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(double_conv(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        passed = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            passed.append(x)
        passed.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([passed.pop(), up(x)], 1))
        return self.head(x)


def dcgan_generator():
    layers, c = [], 100
    for i, width in enumerate((512, 256, 128, 64)):
        layers += [nn.ConvTranspose2d(c, width, 4, 2 if i else 1, 1 if i else 0, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        c = width
    return nn.Sequential(*layers, nn.ConvTranspose2d(c, 3, 4, 2, 1, bias=False), nn.Tanh())


def dcgan_discriminator():
    layers, c = [nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)], 64
    for width in (128, 256, 512):
        layers += [nn.Conv2d(c, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)]
        c = width
    return nn.Sequential(*layers, nn.Conv2d(c, 1, 4, bias=False), nn.Sigmoid())


def autoencoder():
    down = [conv_norm(3, 32, 3, 2), conv_norm(32, 64, 3, 2), conv_norm(64, 128, 3, 2)]
    up = [nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU()]
    return nn.Sequential(*down, *up, nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Sigmoid())


class VisionTransformer(nn.Module):
    def __init__(self, size=224, patch=16, width=192, heads=3, depth=6, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class Mixer(nn.Module):
    def __init__(self, size=224, patch=16, width=256, depth=6, classes=1000):
        super().__init__()
        tokens = (size // patch) ** 2
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*(MixerBlock(tokens, width, width // 2, 4 * width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


def convmixer(width=256, depth=6, kernel=9, patch=7):
    layers = [nn.Conv2d(3, width, patch, patch), nn.GELU(), nn.BatchNorm2d(width)]
    for _ in range(depth):
        layers += [Residual(nn.Sequential(nn.Conv2d(width, width, kernel, padding="same", groups=width), nn.GELU(), nn.BatchNorm2d(width)))]
        layers += [nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width)]
    return nn.Sequential(*layers, *head(width))


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of an image."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext(depths=(2, 2, 4, 2), widths=(48, 96, 192, 384)):
    layers, c = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])], widths[0]
    for stage, (depth, width) in enumerate(zip(depths, widths)):
        if stage:
            layers += [ChannelNorm(c), nn.Conv2d(c, width, 2, 2)]
        layers += [ConvNeXtBlock(width) for _ in range(depth)]
        c = width
    return nn.Sequential(*layers, *head(c))


class GPT(nn.Module):
    def __init__(self, words=1000, length=128, width=256, heads=4, depth=4):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


class PointNet(nn.Module):
    def __init__(self, classes=40):
        super().__init__()
        widths = (3, 64, 128, 512)
        pairs = zip(widths, widths[1:])
        self.points = nn.Sequential(*(layer for a, b in pairs for layer in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())))
        self.head = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, classes))

    def forward(self, x):
        return F.log_softmax(self.head(self.points(x).amax(2)), -1)
