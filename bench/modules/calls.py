"""calls.py [--gpu]: host time of a call of a compiled block up to the library and after it, the library left out.

A block of five parameters on tiny tensors; the library's run is replaced by a function that returns at once. In
microseconds, medians, everything in turns:

  warm  calls one after the other
  cold  6 MiB are written between calls: first- and second-level caches are empty, as after a wait for a large kernel
  far   64 MiB are written between calls: all caches are empty

`module` is the compiled module, `forward` its forward() (the long way), `zero_` a PyTorch operator on one value, for scale.
`eager` is a module of one small operator, `passing` the same compiled: nothing of it is Convoy's.
--gpu: parameters' bytes are not compared, as on a GPU.
"""

import argparse
import ctypes as C
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
os.environ["CONVOY_REGIONS"] = "all"
TURNS, SWEEPS = 60, {"warm": 0, "cold": 6 << 20, "far": 64 << 20}


def nothing(folder):
    """A C function that returns 0, whatever it is handed."""
    library = Path(folder) / "nothing.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"], check=True, text=True,
                   input="int nothing(void) { return 0; }\n")  # fmt: skip
    return C.CDLL(str(library)).nothing


def block():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.pool = nn.Conv2d(8, 64, 3), nn.GroupNorm(16, 64), nn.MaxPool2d(4)
            self.scale = nn.Parameter(torch.ones(64, 1, 1))

        def forward(self, x):
            return torch.clamp(self.pool(self.norm(self.conv(x)) * self.scale), 0, 1)

    return Block().eval()


def largest():
    """A module of which nothing is worth a region."""
    import torch
    from torch import nn

    class Largest(nn.Module):
        def forward(self, x):
            return torch.max(x)

    return Largest()


def measure(calls):
    """{name: {kind: µs}}"""
    import torch

    memory = {kind: torch.zeros(size, dtype=torch.uint8) for kind, size in SWEEPS.items()}
    found = {name: {kind: [] for kind in SWEEPS} for name in calls}
    for _ in range(TURNS):
        for kind, sweep in memory.items():
            for name, call in calls.items():
                call()
                sweep.add_(1)
                begin = time.perf_counter_ns()
                call()
                found[name][kind].append(1e-3 * (time.perf_counter_ns() - begin))
    return {name: {kind: statistics.median(us) for kind, us in kinds.items()} for name, kinds in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpu", action="store_true", help="leave out what only the CPU looks at")
    options = parser.parse_args()
    import torch

    import convoy
    from convoy import prepared, region

    torch.set_num_threads(1)
    if options.gpu:
        prepared.COMPARED = 0
    x, one, fast, eager = torch.rand(1, 8, 16, 16), torch.zeros(1), convoy.compile(block()), largest()
    passing = convoy.compile(eager, regions="faster")
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for _ in range(20):
            fast(x), passing(one)
        for name in ("_run", "_repeat"):
            stub = nothing(folder)
            stub.argtypes, stub.restype = getattr(region, name).argtypes, C.c_int
            setattr(region, name, stub)
        rows = measure({"zero_": one.zero_, "module": lambda: fast(x), "forward": lambda: fast.forward(x),
                        "eager": lambda: eager(one), "passing": lambda: passing(one)})  # fmt: skip
    print(f"{'µs':<10}" + "".join(f"{kind:>9}" for kind in SWEEPS))
    for name, kinds in rows.items():
        print(f"{name:<10}" + "".join(f"{us:9.2f}" for us in kinds.values()))


if __name__ == "__main__":
    main()
