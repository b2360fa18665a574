"""Blocks of diffusion models on a GPU, in half precision and tf32: Convoy and PyTorch, both layouts, in one process.

    python bench/suites/diffusion.py [--only TEXT] [--dtype bf16 fp16 tf32] [--peers eager compile autotune] [--rounds 20]
                                 [--profile] [--out FILE]

`res`: group_norm, silu, convolution, twice, and x at the end (through a 1x1 convolution where channels differ), with a projected
time between them in those of a UNet; `up`: nearest upsampling by 2, convolution, group_norm, silu; `head`: group_norm, silu,
convolution to 3 channels. `conv`: a 3x3 convolution alone. A time is the median of single calls between events, the L2
overwritten before each, all rows of a block in turn. An error is the largest against float64, over the largest result.
"""

import argparse
import datetime
import importlib
import json
import multiprocessing
import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]
os.environ.setdefault("CONVOY_REGIONS", "all")

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}
MODES = {"eager": None, "compile": "default", "autotune": "max-autotune"}


class Residual(nn.Module):
    """Of images or of video."""

    def __init__(self, channels, conv=nn.Conv2d):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, channels), conv(channels, channels, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, channels), conv(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))


class Up(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(32, channels)

    def forward(self, x):
        return F.silu(self.norm(self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))))


class Head(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(32, channels), nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x):
        return self.conv(F.silu(self.norm(x)))


def unet(c_in, c_out):
    return importlib.import_module("examples.unet_residual").Model(c_in, c_out, 1280, 32)


BLOCKS = {
    "res 320 64x64 b2": (lambda: unet(320, 320), (2, 320, 64, 64), (2, 1280)),
    "res 640 32x32 b2": (lambda: unet(640, 640), (2, 640, 32, 32), (2, 1280)),
    "res 1280 16x16 b2": (lambda: unet(1280, 1280), (2, 1280, 16, 16), (2, 1280)),
    "res 960-320 64x64 b2": (lambda: unet(960, 320), (2, 960, 64, 64), (2, 1280)),
    "vae res 512 128x128": (lambda: Residual(512), (1, 512, 128, 128)),
    "vae res 256 256x256": (lambda: Residual(256), (1, 256, 256, 256)),
    "vae res 128 512x512": (lambda: Residual(128), (1, 128, 512, 512)),
    "vae up 256 256->512": (lambda: Up(256), (1, 256, 256, 256)),
    "vae head 128 512x512": (lambda: Head(128), (1, 128, 512, 512)),
    "video res3d 128 9x128x128": (lambda: Residual(128, nn.Conv3d), (1, 128, 9, 128, 128)),
    "video res3d 256 9x64x64": (lambda: Residual(256, nn.Conv3d), (1, 256, 9, 64, 64)),
    "conv 320 64x64 b2": (lambda: nn.Conv2d(320, 320, 3, padding=1), (2, 320, 64, 64)),
    "conv 640 32x32 b2": (lambda: nn.Conv2d(640, 640, 3, padding=1), (2, 640, 32, 32)),
    "conv 1280 16x16 b2": (lambda: nn.Conv2d(1280, 1280, 3, padding=1), (2, 1280, 16, 16)),
    "conv 512 128x128": (lambda: nn.Conv2d(512, 512, 3, padding=1), (1, 512, 128, 128)),
    "conv 256 256x256": (lambda: nn.Conv2d(256, 256, 3, padding=1), (1, 256, 256, 256)),
    "conv 128 512x512": (lambda: nn.Conv2d(128, 128, 3, padding=1), (1, 128, 512, 512)),
    "conv3d 256 9x64x64": (lambda: nn.Conv3d(256, 256, 3, padding=1), (1, 256, 9, 64, 64)),
    "conv 256 32x32 b32": (lambda: nn.Conv2d(256, 256, 3, padding=1), (32, 256, 32, 32)),
}


def build(name, dtype):
    make, *shapes = BLOCKS[name]
    torch.manual_seed(0)
    module = make().eval().cuda()
    return module.to(dtype), [torch.randn(s, device="cuda").to(dtype) for s in shapes]


def laid(module, inputs, last):
    """The same tensors, contiguous or channels last."""
    if not last:
        return module, inputs
    kind = torch.channels_last_3d if inputs[0].dim() == 5 else torch.channels_last
    return module.to(memory_format=kind), [inputs[0].contiguous(memory_format=kind), *inputs[1:]]


def rows_of(name, dtype, peers):
    """(row, call, inputs): all share one set of numbers."""
    import convoy

    for last in (False, True):
        layout = "channels_last" if last else "contiguous"
        for peer in peers:
            module, inputs = laid(*build(name, dtype), last)
            torch._dynamo.reset()
            yield f"torch {peer} {layout}", torch.compile(module, mode=MODES[peer]) if MODES[peer] else module, inputs
        module, inputs = laid(*build(name, dtype), last)
        yield f"convoy {layout}", convoy.compile(module, precision="torch"), inputs


def warm(task):
    """Fills the caches of compiled kernels; what is chosen by the clock is chosen again by who measures."""
    name, word, peers = task
    try:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
        with torch.no_grad():
            for _, call, inputs in rows_of(name, DTYPES[word], [p for p in peers if p == "compile"]):
                call(*inputs)
    except Exception as error:  # the measurement will meet it again
        return f"{name} {word}: {type(error).__name__}: {error}"
    return None


def profile(call, inputs):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        call(*inputs)
        torch.cuda.synchronize()
    for event in sorted(found.events(), key=lambda e: e.time_range.start):
        print(f"        {event.device_time_total:8.1f} us  {event.name[:90]}", flush=True)


def measure(name, word, options, scratch):
    dtype, rows, results = DTYPES[word], [], []
    module, inputs = build(name, dtype)
    want = module.double()(*[x.double() for x in inputs])
    del module
    for row, call, given in rows_of(name, dtype, options.peers):
        for _ in range(3):
            got = call(*given)
        rows.append((row, call, given, ((got.double() - want).abs().max() / want.abs().max()).item(), []))
    for _ in range(options.rounds):
        for _, call, given, _, times in rows:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            scratch.zero_()
            torch.cuda._sleep(500_000)  # cycles, while the host issues the call
            first.record()
            call(*given)
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last))
    best = min((statistics.median(t) for row, *_, t in rows if row.startswith("torch")), default=float("nan"))
    for row, call, given, error, times in rows:
        ms = statistics.median(times)
        results.append({"block": name, "dtype": word, "row": row, "ms": round(ms, 4), "error": float(f"{error:.2g}"), "ratio": round(best / ms, 3)})
        print(f"| {name} {word} | {row} | {ms:.4f} | {best / ms:.2f} | {error:.1e} |", flush=True)
        if options.profile and row.startswith("convoy"):
            profile(call, given)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="blocks with this in their name")
    parser.add_argument("--dtype", nargs="*", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--peers", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=8, help="processes that compile beforehand")
    parser.add_argument("--profile", action="store_true", help="every kernel of Convoy's rows with its time")
    parser.add_argument("--out", help="writes the rows as JSON")
    options = parser.parse_args()
    names = [n for n in BLOCKS if options.only in n]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        tasks = [(n, word, options.peers) for word in options.dtype for n in names]
        for failure in filter(None, pool.imap_unordered(warm, tasks)):
            print(failure, flush=True)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    machine = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
    print(f"{machine}\n\n| block | row | ms | best of PyTorch / row | error |\n|---|---|---|---|---|", flush=True)
    scratch, results = torch.empty(1 << 28, dtype=torch.uint8, device="cuda"), []
    with torch.no_grad():
        for word in options.dtype:
            for name in names:
                try:
                    results += measure(name, word, options, scratch)
                except Exception as error:
                    print(f"{name} {word}: {type(error).__name__}: {error}", flush=True)
    if options.out:
        head = {"date": str(datetime.date.today()), "machine": machine, "command": " ".join(["python", *sys.argv])}
        Path(options.out).write_text(json.dumps({**head, "rows": results}, indent=0) + "\n")


if __name__ == "__main__":
    main()
