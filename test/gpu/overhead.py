"""overhead.py [--seconds S]: what a compiled PyTorch block costs beyond its kernels. On this machine's GPU.

For blocks A, B and C in both precisions, two things. `file`, the time `convoy bench FILE.py` gives (convoy.problem's
median on the device), beside `chain`, that of `convoy bench CHAIN`; they may be LATER apart. And one of many calls of the
compiled block at a size so small that the device waits for the host: until it returns (`library` of that inside
cvy_plan_run), until its kernels are done, and the kernels by themselves, one after the other with all of them issued
before the first begins; what is beyond them may be CALL.
Everything is measured in turns, ROUNDS times; the least of the medians counts, since other work on the machine only adds.
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
ROUNDS = 3
CALLS = 200  # of one measurement
REPEATS = 21  # measurements of a median
WARM_SECONDS = 0.3
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
        return 1e3 * problem.times_of(new, inputs, torch.device("cuda"), seconds).median


def issue_us(call):
    """One of many calls: until it returns, and until its kernels are done."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return 1e6 * (returned - begin) / CALLS, 1e6 * (time.perf_counter() - begin) / CALLS


def kernels_us(call, flush, writes=8):
    """The kernels of one of many calls, issued while the device is busy with something else. A captured graph would not
    do: it also prepares the parameters, in every call."""
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(writes):
        flush.zero_()
    start.record()
    for _ in range(CALLS):
        call()
    stop.record()
    in_time = not start.query()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(stop) / CALLS if in_time else kernels_us(call, flush, 2 * writes)


def library_call(new):
    """What a call of the block calls in the library, by itself."""
    from convoy import region
    from convoy.module import dispatcher_of

    runner = list(dispatcher_of(new).entries.values())[-1].runners[0]
    slot = runner.slots[runner.stream()][0]
    return lambda: region._repeat(slot.ticket)


def call_us(new, x, flush):
    """One round: medians of what a call costs."""
    import torch

    def median(measure):
        return [statistics.median(column) for column in zip(*(measure() for _ in range(REPEATS)))]

    with torch.no_grad():
        until = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < until:
            last = new(x)  # its memory is what library_call() writes to
        torch.cuda.synchronize()
        library = library_call(new)
        (inside, _), (returned, done) = median(lambda: issue_us(library)), median(lambda: issue_us(lambda: new(x)))
        (kernels,) = median(lambda: (kernels_us(library, flush),))
        del last
    return {"library": inside, "returned": returned, "done": done, "kernels": kernels}


def row(block, precision, seconds):
    import torch
    from convoy import problem

    path = ROOT / "examples" / f"block_{block.lower()}.py"
    _, new, inputs = problem.build(problem.load(path), path, precision, torch.device("cuda"))
    x, flush = torch.rand(SMALL, device="cuda"), torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    rounds = [{"file": file_us(new, inputs, seconds), "chain": chain_us(block, precision), **call_us(new, x, flush)}
              for _ in range(ROUNDS)]
    return {name: min(r[name] for r in rounds) for name in rounds[0]}


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
    words = ("file", "chain", "later", "library", "returned", "done", "kernels", "beyond")
    print(f"{'µs':<8}" + "".join(f"{word:>10}" for word in words))
    for block in "ABC":
        for precision in ("fp32", "tf32"):
            r = row(block, precision, options.seconds)
            r["later"] = later = r["file"] - r["chain"]
            r["beyond"] = beyond = r["done"] - r["kernels"]
            wrong = later > LATER or beyond > CALL
            bad += wrong
            rows.append((later, beyond))
            numbers = "".join(f"{r[word]:10.1f}" for word in words)
            print(f"{block} {precision:<6}" + numbers + ("  TOO MUCH" if wrong else ""), flush=True)
    print(f"files at most {max(r[0] for r in rows):.1f} µs later (allowed {LATER:g}), calls at most "
          f"{max(r[1] for r in rows):.1f} µs beyond their kernels (allowed {CALL:g})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
