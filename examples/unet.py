"""A small U-shaped network with GroupNorm, before and after: `python examples/unet.py`.

The whole network, concatenation and nearest upsampling included, becomes one region of Convoy.
"""

import time

import torch
import torch.nn.functional as F
from torch import nn

import convoy


class Block(nn.Module):
    """Two convolutions with GroupNorm and SiLU, and the input added at the end."""

    def __init__(self, in_channels, out_channels, groups=8):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm1 = nn.GroupNorm(groups, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, out_channels)
        self.skip = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def forward(self, x):
        y = F.silu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.silu(y + self.skip(x))


class UNet(nn.Module):
    def __init__(self, in_channels=3, out_channels=2, widths=(16, 32, 64)):
        super().__init__()
        channels = [in_channels, *widths]
        self.down = nn.ModuleList(Block(a, b) for a, b in zip(channels, widths))
        self.up = nn.ModuleList(Block(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1]))
        self.head = nn.Conv2d(widths[0], out_channels, 1)

    def forward(self, x):
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        kept.pop()
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1))
        return self.head(x)


def seconds(module, x):
    module(x)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        module(x)
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    torch.manual_seed(0)
    before = UNet().eval()
    after = convoy.compile(before)
    x = torch.randn(4, 3, 128, 128)
    with torch.no_grad():
        error = (after(x) - before(x)).abs().max().item()
        a, b = seconds(before, x), seconds(after, x)
    print(f"before {1e3 * a:.1f} ms, after {1e3 * b:.1f} ms: {a / b:.2f} times as fast; they differ by {error:.1e}")
    for region in convoy.explain(after, x).regions:
        print(f"  {region['measured_ms']:8.2f} ms  {region['chain'][:100]}")


if __name__ == "__main__":
    main()
