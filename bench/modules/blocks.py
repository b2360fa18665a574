"""Blocks that networks are made of, as plain modules: what cases.py measures one by one and networks.py
stacks. Shapes are NCHW; every block keeps to the form in which its paper is usually written in PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class Function(nn.Module):
    """A function of its inputs as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def conv_norm(c_in, c_out, kernel=3, stride=1, groups=1, activation=nn.ReLU, **more):
    """Convolution, batch norm, activation."""
    padding = more.pop("padding", (kernel - 1) // 2 * more.get("dilation", 1))
    layers = [nn.Conv2d(c_in, c_out, kernel, stride, padding, groups=groups, bias=False, **more), nn.BatchNorm2d(c_out)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class Residual(nn.Module):
    """x + body(x), through a projection where the shapes differ, and an activation."""

    def __init__(self, body, projection=None, activation=None):
        super().__init__()
        self.body, self.projection, self.activation = body, projection, activation

    def forward(self, x):
        y = self.body(x) + (x if self.projection is None else self.projection(x))
        return y if self.activation is None else self.activation(y)


def basic_block(c_in, c_out, stride=1):
    project = None if c_in == c_out and stride == 1 else conv_norm(c_in, c_out, 1, stride, activation=None)
    return Residual(nn.Sequential(conv_norm(c_in, c_out, 3, stride), conv_norm(c_out, c_out, activation=None)), project, nn.ReLU())


def bottleneck(c_in, width, stride=1, groups=1):
    c_out = 4 * width
    project = None if c_in == c_out and stride == 1 else conv_norm(c_in, c_out, 1, stride, activation=None)
    body = [conv_norm(c_in, width, 1), conv_norm(width, width, 3, stride, groups), conv_norm(width, c_out, 1, activation=None)]
    return Residual(nn.Sequential(*body), project, nn.ReLU())


class SqueezeExcite(nn.Module):
    def __init__(self, channels, squeezed, activation=nn.ReLU):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation = activation()

    def forward(self, x):
        return x * torch.sigmoid(self.expand(self.activation(self.reduce(self.pool(x)))))


def inverted_residual(c_in, c_out, expand, stride=1, kernel=3, activation=nn.ReLU6, squeeze=0):
    wide = c_in * expand
    body = [conv_norm(c_in, wide, 1, activation=activation)] if expand != 1 else []
    body.append(conv_norm(wide, wide, kernel, stride, groups=wide, activation=activation))
    if squeeze:
        body.append(SqueezeExcite(wide, squeeze, nn.SiLU))
    body.append(conv_norm(wide, c_out, 1, activation=None))
    return Residual(nn.Sequential(*body)) if stride == 1 and c_in == c_out else nn.Sequential(*body)


class Fire(nn.Module):
    def __init__(self, c_in, squeezed, expanded):
        super().__init__()
        self.squeeze = nn.Conv2d(c_in, squeezed, 1)
        self.narrow, self.wide = nn.Conv2d(squeezed, expanded, 1), nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.narrow(x)), F.relu(self.wide(x))], 1)


class DenseLayer(nn.Module):
    """A layer of DenseNet: its results are concatenated with everything before them."""

    def __init__(self, c_in, growth=32, width=4):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(c_in), nn.Conv2d(c_in, width * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(width * growth), nn.Conv2d(width * growth, growth, 3, padding=1, bias=False)

    def forward(self, x):
        y = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(y)))], 1)


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.expand, self.project = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-2))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.project(F.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


def double_conv(c_in, c_out):
    return nn.Sequential(conv_norm(c_in, c_out), conv_norm(c_out, c_out))


def diffusion_head(channels, groups):
    """The end of a diffusion UNet or of a VAE's decoder."""
    return nn.Sequential(nn.GroupNorm(groups, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))


class ASPP(nn.Module):
    """Dilated convolutions side by side and the average of the image, as in DeepLab v3."""

    def __init__(self, c_in, c_out, rates=(6, 12, 18)):
        super().__init__()
        self.branches = nn.ModuleList([conv_norm(c_in, c_out, 1)] + [conv_norm(c_in, c_out, 3, dilation=r) for r in rates])
        self.image = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c_in, c_out, 1), nn.ReLU())
        self.project = conv_norm((2 + len(rates)) * c_out, c_out, 1)

    def forward(self, x):
        image = F.interpolate(self.image(x), size=x.shape[2:], mode="bilinear", align_corners=False)
        return self.project(torch.cat([b(x) for b in self.branches] + [image], 1))


class Inception(nn.Module):
    def __init__(self, c_in, one, three, five, pooled):
        super().__init__()
        self.one = conv_norm(c_in, one, 1)
        self.three = nn.Sequential(conv_norm(c_in, three[0], 1), conv_norm(three[0], three[1], 3))
        self.five = nn.Sequential(conv_norm(c_in, five[0], 1), conv_norm(five[0], five[1], 3))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(c_in, pooled, 1))

    def forward(self, x):
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class ShuffleUnit(nn.Module):
    """ShuffleNet v2: half of the channels pass, the other half are convolved, then both are shuffled."""

    def __init__(self, c_in, c_out, stride):
        super().__init__()
        half = c_out // 2
        entering = c_in if stride > 1 else c_in // 2
        self.stride = stride
        self.right = nn.Sequential(conv_norm(entering, half, 1), conv_norm(half, half, 3, stride, half, None), conv_norm(half, half, 1))
        self.left = nn.Sequential(conv_norm(c_in, c_in, 3, stride, c_in, None), conv_norm(c_in, half, 1)) if stride > 1 else None

    def forward(self, x):
        if self.left is None:
            passed, rest = x.chunk(2, 1)
            y = torch.cat([passed, self.right(rest)], 1)
        else:
            y = torch.cat([self.left(x), self.right(x)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


# ---- sequences ---------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Self-attention written out, or through PyTorch's fused function."""

    def __init__(self, width, heads, fused=True, causal=False):
        super().__init__()
        self.heads, self.fused, self.causal = heads, fused, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
            if self.causal:
                mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
                scores = scores.masked_fill(~mask, float("-inf"))
            y = torch.softmax(scores, -1) @ v
        return self.out(y.transpose(1, 2).reshape(n, length, width))


def mlp(width, hidden, activation=nn.GELU):
    return nn.Sequential(nn.Linear(width, hidden), activation(), nn.Linear(hidden, width))


class TransformerBlock(nn.Module):
    """Norm first, as in GPT-2 and ViT."""

    def __init__(self, width, heads, causal=False, fused=True):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads, fused, causal), mlp(width, 4 * width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class GatedMLP(nn.Module):
    """The feed-forward layer of LLaMA."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((width, hidden), (width, hidden), (hidden, width)))

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MixerBlock(nn.Module):
    def __init__(self, tokens, width, token_hidden, channel_hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.channels = mlp(tokens, token_hidden), mlp(width, channel_hidden)

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class WrittenCell(nn.Module):
    """A recurrent step written out with linear layers: `kind` is rnn, gru or lstm."""

    def __init__(self, kind, width, hidden):
        super().__init__()
        gates = {"rnn": 1, "gru": 3, "lstm": 4}[kind]
        self.kind, self.x, self.h = kind, nn.Linear(width, gates * hidden), nn.Linear(hidden, gates * hidden)

    def forward(self, x, h, c=None):
        if self.kind == "rnn":
            return torch.tanh(self.x(x) + self.h(h))
        if self.kind == "gru":
            (xr, xz, xn), (hr, hz, hn) = self.x(x).chunk(3, -1), self.h(h).chunk(3, -1)
            z = torch.sigmoid(xz + hz)
            return (1 - z) * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + z * h
        i, f, g, o = (self.x(x) + self.h(h)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class ConcatCell(nn.Module):
    """A recurrent step with output, as in tutorials: one linear layer of the input concatenated with the state."""

    def __init__(self, width, hidden, out):
        super().__init__()
        self.step, self.head = nn.Linear(width + hidden, hidden), nn.Linear(hidden, out)

    def forward(self, x, h):
        h = torch.tanh(self.step(torch.cat([x, h], 1)))
        return self.head(h), h
