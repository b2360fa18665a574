"""training.py [--seconds S] [--only WORD]: small modules in training, forward and backward together, eager against convoy.compile.

Each runs both ways in turn on one thread of the CPU, a few steps of one, then of the other. In microseconds; ratios of the
least and of the median times. Exit status 1: one is slower than eager by more than 5 %, by both.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import torch
import torch.nn.functional as F
from torch import nn

import convoy

LIMIT, ROUND, COLD = 1.05, 2e-3, 60  # of eager's time; seconds of steps of one side; steps before


class Frozen(nn.Module):
    """A backbone that is not trained, and a head that is."""

    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone.requires_grad_(False), head

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, x):
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width))


def convolutions(n):
    layers = [nn.Conv2d(3, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def cases():
    """(name, module, shape of its input)"""
    row = nn.Sequential
    return [
        ("tiny linear", nn.Linear(8, 8), (4, 8)),
        ("linear", nn.Linear(256, 256), (64, 256)),
        ("MLP", row(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), (32, 64)),
        ("deep MLP", row(*(m for _ in range(8) for m in (nn.Linear(32, 32), nn.GELU()))), (16, 32)),
        ("MLP, softmax", row(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16), nn.Softmax(-1)), (8, 16)),
        ("layer norm", row(nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU()), (32, 128)),
        ("conv, ReLU", row(nn.Conv2d(3, 16, 3), nn.ReLU()), (2, 3, 16, 16)),
        ("conv, batch norm", row(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)), (4, 3, 32, 32)),
        ("conv, group norm", row(nn.Conv2d(8, 32, 3), nn.GroupNorm(4, 32), nn.MaxPool2d(4)), (4, 8, 32, 32)),
        ("residual", Residual(16), (2, 16, 16, 16)),
        ("autoencoder", row(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid()), (2, 1, 16, 16)),
        ("attention", Attention(64, 4), (2, 32, 64)),
        ("encoder layer", nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), (2, 16, 32)),
        ("LSTM", nn.LSTM(16, 32), (10, 4, 16)),
        ("frozen backbone", Frozen(convolutions(32), nn.Linear(32, 10)), (2, 3, 32, 32)),
        ("frozen backbone, tiny", Frozen(convolutions(4), nn.Linear(4, 10)), (1, 3, 8, 8)),
        ("frozen MLP", Frozen(row(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 10)), (4, 64)),
    ]


def step(module, x):
    y = module(x)
    (y[0] if isinstance(y, tuple) else y).sum().backward()


def seconds_of(module, x, count):
    start = time.perf_counter()
    for _ in range(count):
        step(module, x)
    return (time.perf_counter() - start) / count


def measure(modules, x, seconds):
    """Seconds of a step, lists for both sides."""
    for module in modules:
        seconds_of(module, x, COLD)
    count, times = max(1, int(ROUND / seconds_of(modules[0], x, 1))), ([], [])
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times[0]) < 5:
        for side in (0, 1) if len(times[0]) % 2 else (1, 0):
            times[side].append(seconds_of(modules[side], x, count))
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each module")
    parser.add_argument("--only", default="", metavar="WORD", help="modules whose name has this word")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    slower = 0
    print(f"{'module':<24}{'eager, µs':>12}{'least':>8}{'median':>8}")
    for name, module, shape in cases():
        if options.only not in name:
            continue
        eager, ours = measure((module.train(), convoy.compile(module)), torch.rand(shape), options.seconds)
        least, median = min(ours) / min(eager), statistics.median(ours) / statistics.median(eager)
        slower += least > LIMIT and median > LIMIT
        print(f"{name:<24}{1e6 * min(eager):12.1f}{least:8.3f}{median:8.3f}", flush=True)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
