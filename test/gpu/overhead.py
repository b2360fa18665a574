"""overhead.py [--seconds S]: what a compiled PyTorch block costs beyond its kernels. On this machine's GPU.

For blocks A, B and C in both precisions, two things. `file`, the time `convoy bench FILE.py` gives (convoy.problem's
median on the device), beside `chain`, that of `convoy bench CHAIN`; they may be LATER apart. And one of many calls of the
compiled block at a size so small that the device waits for the host: until it returns, until its kernels are done, and
the kernels by themselves, replayed from a CUDA graph; what is beyond them may be CALL.
CONVOY names the command (default build/convoy). Exit status 1: a limit is passed.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples")]

LATER, CALL = 5.0, 20.0  # microseconds allowed
ROUNDS = 3  # of file and chain in turns: the least of the medians counts
CALLS = 200  # of one measurement on the host
SMALL = (1, 8, 16, 16)


def chain_us(block, precision):
    """`convoy bench BLOCK`."""
    command = [os.environ.get("CONVOY", str(ROOT / "build" / "convoy")), "bench", block, "--device", "cuda",
               "--precision", precision, "--samples", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"overhead: {' '.join(command)}: {done.stdout}{done.stderr}")
    return 1e3 * json.loads(done.stdout)["ms"]


def file_us(new, inputs, seconds):
    """What `convoy bench FILE.py` prints for Convoy."""
    import torch
    from convoy import problem

    with torch.no_grad():
        return 1e3 * problem.median_ms(new, inputs, torch.device("cuda"), seconds)


def call_us(new, x):
    """One of many calls: until it returns, until its kernels are done, and the kernels by themselves."""
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    returned, done, kernels = [], [], []
    with torch.no_grad():
        for _ in range(21):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                new(x)
            returned.append(1e6 * (time.perf_counter() - begin) / CALLS)
            torch.cuda.synchronize()
            done.append(1e6 * (time.perf_counter() - begin) / CALLS)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # launches one behind the other, without the host
            for _ in range(CALLS):
                new(x)
        for _ in range(21):
            start.record()
            graph.replay()
            stop.record()
            torch.cuda.synchronize()
            kernels.append(1e3 * start.elapsed_time(stop) / CALLS)
    return map(statistics.median, (returned, done, kernels))


def row(block, precision, seconds):
    import torch
    from convoy import problem

    path = ROOT / "examples" / f"block_{block.lower()}.py"
    _, new, inputs = problem.build(problem.load(path), path, precision, torch.device("cuda"))
    pairs = [(file_us(new, inputs, seconds), chain_us(block, precision)) for _ in range(ROUNDS)]
    returned, done, kernels = call_us(new, torch.rand(SMALL, device="cuda"))
    return {"block": block, "precision": precision, "file": min(p[0] for p in pairs), "chain": min(p[1] for p in pairs),
            "returned": returned, "done": done, "kernels": kernels}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="of timed runs for each figure")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        raise SystemExit("overhead: this interpreter has no PyTorch (GPU_PYTHON names one)")
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("overhead: PyTorch sees no GPU")
    rows, bad = [], 0
    words = ("file", "chain", "later", "returned", "done", "kernels", "beyond")
    print(f"{'µs':<8}" + "".join(f"{word:>10}" for word in words))
    for block in "ABC":
        for precision in ("fp32", "tf32"):
            r = row(block, precision, options.seconds)
            later, beyond = r["file"] - r["chain"], r["done"] - r["kernels"]
            wrong = later > LATER or beyond > CALL
            bad += wrong
            rows.append((later, beyond))
            numbers = (r["file"], r["chain"], later, r["returned"], r["done"], r["kernels"], beyond)
            print(f"{block} {precision:<6}" + "".join(f"{n:10.1f}" for n in numbers) + ("  TOO MUCH" if wrong else ""),
                  flush=True)
    print(f"files at most {max(r[0] for r in rows):.1f} µs later (allowed {LATER:g}), calls at most "
          f"{max(r[1] for r in rows):.1f} µs beyond their kernels (allowed {CALL:g})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
