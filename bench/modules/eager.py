"""The times of PyTorch's operators on this machine, and of Convoy for the same work, to which worth.py is fitted.

    python bench/modules/eager.py --device cpu --threads 2 [--only conv] [--out bench/results/eager/cpu-DATE.json]
    python bench/modules/eager.py --device cuda --dtype bf16 --alone [--out bench/results/eager/cuda-half-DATE.json]

Every case is one operator, or two pointwise ones, at one size. Both sides run interleaved; a time is the median of their
rounds. On the CPU a module with parameters takes turns with copies of itself, so that its weights come from where they would in a
network: from memory, or from the last cache. On the GPU a kernel that does nothing for a while goes in front, so that the host has issued every call of a round
before the device begins: events then tell the device's time alone, and the clock of the host its own.
"""

import argparse
import copy
import datetime
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("CONVOY_REGIONS", "all")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import torch
import torch.nn.functional as F
from torch import nn

import convoy
from blocks import Function
from convoy.capture import trace
from convoy.problem import machine_name
from convoy.program import DTYPE_OF
from convoy.purify import purify
from convoy.work import work_of


COLD, COPIES, LEAST = 64 << 20, 7, 64 << 10  # bytes of parameters in all; copies at most; bytes of a module's worth it


# ---- cases: (name, module, shapes of the inputs) -----------------------------------------------------------------


def pointwise_cases(cuda):
    sizes = [(4, 16), (64, 100), (256, 1024), (4096, 1024)] + ([(32768, 1024)] if cuda else [(1024, 1024)])
    for s in sizes:
        yield "relu", nn.ReLU(), [s]
        yield "gelu", nn.GELU(), [s]
        yield "sigmoid", nn.Sigmoid(), [s]
        yield "add", Function(lambda a, b: a + b), [s, s]
        yield "mul row", Function(lambda a, b: a * b), [s, s[1:]]
        yield "mul column", Function(lambda a, b: a * b), [s, (s[0], 1)]
        yield "relu, add", Function(lambda a, b: F.relu(a) + b), [s, s]
        yield "sigmoid, mul", Function(lambda a: torch.sigmoid(a) * a), [s]
        yield "gelu, mul", Function(lambda a: F.gelu(a) * 2.0), [s]


def row_cases(cuda):
    sizes = [(4, 16), (128, 256), (2048, 1024), (64, 40000)] + ([(32768, 1024), (16, 2000000)] if cuda else [(8192, 512)])
    for s in sizes:
        yield "softmax", nn.Softmax(-1), [s]
        yield "log_softmax", nn.LogSoftmax(-1), [s]
        yield "layer_norm", nn.LayerNorm(s[1]), [s]
        yield "sum rows", Function(lambda a: a.sum(-1)), [s]
        yield "mean rows", Function(lambda a: a.mean(-1)), [s]
        yield "max rows", Function(lambda a: a.amax(-1)), [s]
        yield "logsumexp rows", Function(lambda a: a.logsumexp(-1)), [s]
        yield "sum columns", Function(lambda a: a.sum(0)), [s]
        yield "max columns", Function(lambda a: a.amax(0)), [s]
        yield "mean all", Function(lambda a: a.mean()), [s]
        yield "max all", Function(lambda a: a.max()), [s]
        yield "mse", Function(lambda a, b: F.mse_loss(a, b)), [s, s]
        yield "difference, square, mean", Function(lambda a, b: ((a - b) ** 2).mean()), [s, s]


def image_cases(cuda):
    sizes = [(1, 8, 7, 7), (1, 32, 28, 28), (8, 64, 56, 56)] + ([(32, 64, 112, 112), (64, 256, 56, 56)] if cuda else [(8, 32, 112, 112)])
    for s in sizes:
        c = s[1]
        yield "group_norm", nn.GroupNorm(8, c), [s]
        yield "instance_norm", nn.InstanceNorm2d(c), [s]
        yield "batch_norm", nn.BatchNorm2d(c), [s]
        yield "batch_norm, relu", nn.Sequential(nn.BatchNorm2d(c), nn.ReLU()), [s]
        yield "max_pool 2", nn.MaxPool2d(2), [s]
        yield "max_pool 3 stride 2", nn.MaxPool2d(3, 2, 1), [s]
        yield "avg_pool 2", nn.AvgPool2d(2), [s]
        yield "global average", nn.AdaptiveAvgPool2d(1), [s]
        yield "mean of space", Function(lambda a: a.mean((2, 3))), [s]
        yield "sum of channels", Function(lambda a: a.sum(1)), [s]
        yield "softmax of channels", nn.Softmax(1), [s]
        yield "logsumexp of channels", Function(lambda a: a.logsumexp(1)), [s]


def product_cases(cuda):
    sizes = [(1, 16, 16), (4, 64, 64), (1, 512, 512), (8, 1024, 1024), (32, 100, 64), (64, 1000, 2048), (256, 256, 256), (1024, 512, 512), (512, 4096, 1024)]
    sizes += [(2048, 1, 1024), (4096, 4096, 1024), (4096, 4096, 4096), (16384, 768, 768), (197 * 32, 3072, 768)] if cuda else [(2048, 1, 512), (197, 768, 192)]
    for m, n, k in sizes:
        yield f"linear {n}", nn.Linear(k, n), [(m, k)]
        yield f"linear {n}, relu", nn.Sequential(nn.Linear(k, n), nn.ReLU()), [(m, k)]
        yield "x @ w", Function(lambda a, b: a @ b), [(m, k), (k, n)]
        yield "x @ w.T", Function(lambda a, b: a @ b.T), [(m, k), (n, k)]
    for b, m, n, k in [(2, 8, 8, 8), (8, 64, 64, 32), (32, 64, 64, 64), (96, 197, 197, 64), (16, 512, 512, 64)] + ([(256, 512, 512, 64)] if cuda else []):
        yield "bmm", Function(torch.bmm), [(b, m, k), (b, k, n)]
        yield "bmm transposed", Function(lambda a, c: a @ c.transpose(1, 2)), [(b, m, k), (b, n, k)]
    for m, k in [(256, 1024), (2048, 4096)] + ([(4096, 131072)] if cuda else []):
        yield "matvec", Function(lambda a, b: a @ b), [(m, k), (k, 1)]
        yield "matvec 1-d", Function(torch.mv), [(m, k), (k,)]


def conv_cases(cuda):
    batch = 16 if cuda else 1
    for n in (1, batch) if cuda else (1, 4):
        small = [(128, 128, 12), (256, 256, 6), (512, 512, 3), (512, 512, 2)]  # the last stages of a network on small images
        for c, k, size in [(32, 64, 56), (64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7), *small]:
            yield "conv 3x3", nn.Conv2d(c, k, 3, padding=1), [(n, c, size, size)]
            yield "conv 1x1", nn.Conv2d(c, k, 1), [(n, c, size, size)]
            yield "depthwise 3x3", nn.Conv2d(c, c, 3, padding=1, groups=c), [(n, c, size, size)]
        yield "conv 1x1 wide", nn.Conv2d(64, 256, 1), [(n, 64, 56, 56)]
        yield "conv 3x3 stride 2", nn.Conv2d(64, 128, 3, 2, 1), [(n, 64, 56, 56)]
        yield "conv 3x3 stride 2", nn.Conv2d(256, 512, 3, 2, 1), [(n, 256, 6, 6)]
        yield "depthwise 3x3 stride 2", nn.Conv2d(96, 96, 3, 2, 1, groups=96), [(n, 96, 112, 112)]
        yield "depthwise 7x7", nn.Conv2d(96, 96, 7, padding=3, groups=96), [(n, 96, 56, 56)]
        yield "depthwise 5x5", nn.Conv2d(240, 240, 5, padding=2, groups=240), [(n, 240, 28, 28)]
        yield "stem 7x7", nn.Conv2d(3, 64, 7, 2, 3), [(n, 3, 224, 224)]
        yield "stem 3x3", nn.Conv2d(3, 32, 3, padding=1), [(n, 3, 64, 64)]
        yield "grouped 3x3", nn.Conv2d(128, 128, 3, padding=1, groups=8), [(n, 128, 28, 28)]
        yield "dilated 3x3", nn.Conv2d(64, 64, 3, padding=6, dilation=6), [(n, 64, 32, 32)]
        yield "patches 16", nn.Conv2d(3, 192, 16, 16), [(n, 3, 224, 224)]
        yield "patches 4", nn.Conv2d(3, 96, 4, 4), [(n, 3, 224, 224)]
        yield "transposed 4x4 stride 2", nn.ConvTranspose2d(64, 32, 4, 2, 1), [(n, 64, 16, 16)]
        yield "transposed 4x4 stride 2", nn.ConvTranspose2d(512, 256, 4, 2, 1), [(n, 512, 4, 4)]
        yield "transposed 2x2 stride 2", nn.ConvTranspose2d(128, 64, 2, 2), [(n, 128, 28, 28)]
        yield "conv1d 9", nn.Conv1d(64, 64, 9, padding=4), [(n, 64, 1000)]
        yield "conv1d 1", nn.Conv1d(64, 128, 1), [(n, 64, 2048)]
        yield "conv3d 3", nn.Conv3d(16, 32, 3, padding=1), [(n, 16, 8, 28, 28)]
        yield "conv3d 3 wide", nn.Conv3d(64, 64, 3, padding=1), [(n, 64, 4, 14, 14)]
        yield "conv, batch_norm, relu", nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()), [(n, 64, 56, 56)]


GROUPS = {"pointwise": pointwise_cases, "rows": row_cases, "images": image_cases, "products": product_cases, "convolutions": conv_cases}


# ---- time --------------------------------------------------------------------------------------------------------


def time_cpu(sides, inputs, budget):
    """Medians in µs, interleaved, each round about 2 ms of one side, whose calls take turns."""
    once = []
    for calls in sides:
        for call in calls * 2:
            start = time.perf_counter()
            call(*inputs)
            once.append(time.perf_counter() - start)
    count = max(1, min(50, int(2e-3 / max(min(once), 1e-7))))
    times, turns, end = [[] for _ in sides], [itertools.cycle(calls) for calls in sides], time.perf_counter() + budget
    while len(times[0]) < 5 or (time.perf_counter() < end and len(times[0]) < 60):
        for turn, found in zip(turns, times):
            start = time.perf_counter()
            for call in itertools.islice(turn, count):
                call(*inputs)
            found.append(1e6 * (time.perf_counter() - start) / count)
    return [(statistics.median(t), 0.0) for t in times]


def time_cuda(sides, inputs, budget):
    """Medians in µs of the device and of the host, interleaved."""
    calls = [side[0] for side in sides]
    for call in calls:
        for _ in range(3):
            call(*inputs)
    torch.cuda.synchronize()
    count, times, end = 10, [[] for _ in calls], time.perf_counter() + budget
    while len(times[0]) < 3 or (time.perf_counter() < end and len(times[0]) < 15):
        for call, found in zip(calls, times):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(2_000_000)  # cycles: about a millisecond
            first.record()
            start = time.perf_counter()
            for _ in range(count):
                call(*inputs)
            host = time.perf_counter() - start
            last.record()
            torch.cuda.synchronize()
            found.append((1e3 * first.elapsed_time(last) / count, 1e6 * host / count))
    return [tuple(statistics.median(column) for column in zip(*t)) for t in times]


def works_of(module, inputs):
    names = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    params = list(names.values())

    def run(given, tensors):
        return torch.func.functional_call(module, dict(zip(names, given)), tuple(tensors))

    graph, _ = trace(run, params, inputs, "fake")
    purify(graph)
    found = [work_of(n) for n in graph.graph.nodes if n.op == "call_function"]
    return [w for w in found if w is not None]


def copies_of(module, device):
    """The module, and on the CPU as many copies as fill its caches, if it has parameters worth the name."""
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    more = min(COPIES, COLD // size) if device.type == "cpu" and size >= LEAST else 0
    return [module, *(copy.deepcopy(module) for _ in range(more))]


def measure(name, module, shapes, options):
    device, dtype = torch.device(options.device), DTYPE_OF[options.dtype]
    module = module.eval().to(device, dtype)
    inputs = [torch.rand(s, device=device).to(dtype) for s in shapes]
    works = works_of(module, inputs)
    modules = copies_of(module, device)
    fast, runners = [convoy.compile(m) for m in modules], []
    if not options.alone:
        fast[0](*inputs)
        runners = list(fast[0]._convoy.entries.values())[-1].runners
    if options.warm:
        return None
    sides = [modules, fast] if runners else [modules]
    times = (time_cuda if options.device == "cuda" else time_cpu)(sides, inputs, options.budget)
    row = {"case": name, "shapes": shapes, "works": [[w.kind, w.bytes, w.flops, w.lanes] for w in works], "eager_us": times[0][0], "eager_host_us": times[0][1]}
    if runners:
        cost = [r.plan.cost() for r in runners]
        notes = [line.strip() for line in str(runners[0].plan).splitlines() if line.startswith("pass")]
        row |= {"convoy_us": times[1][0], "convoy_host_us": times[1][1], "predicted_us": 1e6 * sum(c.seconds for c in cost),
                "plan_bytes": sum(c.bytes for c in cost), "peak": cost[0].peak, "bandwidth": cost[0].bandwidth, "passes": sum(c.passes for c in cost), "regions": len(runners), "notes": notes[:3]}
    return {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="groups of cases: " + " ".join(GROUPS))
    parser.add_argument("--tf32", action="store_true", help="with PyTorch's default for convolutions on the GPU")
    parser.add_argument("--dtype", choices=DTYPE_OF, default="fp32")
    parser.add_argument("--alone", action="store_true", help="PyTorch alone, without Convoy beside it")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of rounds for a case")
    parser.add_argument("--warm", help="I/N: only compile, every Nth case from the Ith on")
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = options.tf32
    rows, start, number = [], time.monotonic(), 0
    share, shares = map(int, (options.warm or "0/1").split("/"))
    with torch.no_grad():
        for group, cases in GROUPS.items():
            if options.only and group not in options.only.split():
                continue
            for name, module, shapes in cases(options.device == "cuda"):
                number += 1
                if number % shares != share:
                    continue
                try:
                    row = measure(name, module, shapes, options)
                except Exception as error:
                    print("failed", name, shapes, type(error).__name__, str(error)[:200], file=sys.stderr)
                    continue
                if row:
                    rows.append(row)
                    print(json.dumps(row), flush=True)
            print(f"{group}: {len(rows)} rows, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if options.out:
        head = {"date": str(datetime.date.today()), "device": machine_name(torch.device(options.device)), "torch": torch.__version__,
                "threads": options.threads, "tf32": options.tf32, "dtype": options.dtype, "command": "python " + " ".join(sys.argv)}
        Path(options.out).write_text(json.dumps({**head, "rows": rows}, indent=0) + "\n")


if __name__ == "__main__":
    main()
