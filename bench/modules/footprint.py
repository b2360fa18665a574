"""First calls and memory of networks, eager and compiled, each in a process of its own.

    python bench/modules/footprint.py [--device cpu] [--threads 2] [--only NAME ...] [--out FILE]
    python bench/modules/footprint.py --update doc/PERFORMANCE.md

For each network, in .eval() and without gradients: seconds of convoy.compile(), which imports PyTorch's tracer; until the first
result with an empty cache on disk and with a full one, for a second batch size, and for a second image size; and megabytes beyond
what the process held when the original module had been built: `resident` after ten calls, `peak` while they ran, `sizes` what 24
batch sizes add to resident memory.

The first call of the process loads PyTorch's own libraries, so every process calls one convolution of PyTorch's before.
--update writes the table of what is in bench/results/footprint into a page, between `<!-- footprint: DEVICE -->` and `<!-- end -->`.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench" / "modules"), str(ROOT / "bench" / "suites")]

RESULTS = ROOT / "bench" / "results" / "footprint"
NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121", "UNet")
SIDE, BATCH, SIZES = 96, 2, 24
COLUMNS = ("compile", "first, empty cache", "first, full cache", "second batch size", "second image size", "resident", "peak", "24 sizes")


# ---- in the measured process -------------------------------------------------------------------------------------


def status(field):
    """Megabytes that Linux gives for this process."""
    return int(re.search(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text()).group(1)) / 1024


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5")


def compiled(module):
    """The compiled module, and the seconds that it took."""
    start = time.perf_counter()
    import convoy

    return convoy.compile(module), time.perf_counter() - start


def measure(network, side, device, threads):
    import torch

    import networks

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    on_gpu = device == "cuda"
    module = getattr(networks, network)().eval().to(device)
    image = torch.rand(1, 3, 32, 32, device=device)

    def held():
        return torch.cuda.memory_allocated() / 2**20 if on_gpu else status("VmRSS")

    def call(batch, size):
        start = time.perf_counter()
        module(torch.rand(batch, 3, size, size, device=device))
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    with torch.no_grad():
        torch.nn.functional.conv2d(image, torch.rand(8, 3, 3, 3, device=device))
        start = held()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        else:
            forget_peak()
        row = {}
        if side == "convoy":
            module, row["compile"] = compiled(module)
        row["first"] = call(BATCH, SIDE)
        for _ in range(10):
            call(BATCH, SIDE)
        row["resident"] = held() - start
        row["peak"] = (torch.cuda.max_memory_allocated() / 2**20 if on_gpu else status("VmHWM")) - start
        row["batch"] = call(BATCH + 1, SIDE)
        row["image"] = call(BATCH, SIDE + 32)
        before = held()
        for batch in range(1, SIZES + 1):
            call(batch, SIDE)
        row["sizes"] = held() - before
    print(json.dumps(row))


# ---- all of them -------------------------------------------------------------------------------------------------


def run(network, side, args, cache):
    command = [sys.executable, __file__, "--measure", network, side, "--device", args.device, "--threads", str(args.threads)]
    done = subprocess.run(command, env={**os.environ, "CVY_CACHE": cache}, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{network}, {side}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(args):
    for network in args.only or NETWORKS:
        with tempfile.TemporaryDirectory() as cache:
            empty = run(network, "convoy", args, cache)
            full = run(network, "convoy", args, cache)
            eager = run(network, "eager", args, cache)
        row = {"network": network, "convoy": {**full, "first_empty": empty["first"]}, "eager": eager}
        print(line_of(row), flush=True)
        yield row


def line_of(row):
    """A row of the table: seconds and megabytes of Convoy, eager's in brackets."""
    ours, eager = row["convoy"], row["eager"]
    seconds = [f"{ours['compile']:.2f}", f"{ours['first_empty']:.2f} ({eager['first']:.2f})", f"{ours['first']:.2f}",
               f"{ours['batch']:.2f} ({eager['batch']:.2f})", f"{ours['image']:.2f} ({eager['image']:.2f})"]  # fmt: skip
    megabytes = [f"{ours[name]:.0f} ({eager[name]:.0f})" for name in ("resident", "peak", "sizes")]
    return "| " + " | ".join([row["network"], *seconds, *megabytes]) + " |"


def table(results):
    head = ["| " + " | ".join(["", *COLUMNS]) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    return "\n".join(head + [line_of(row) for row in results["rows"]])


def update(page):
    """Writes the tables into a page; those without results stay."""
    text = page.read_text()
    for device in ("cpu", "cuda"):
        path = RESULTS / f"{device}.json"
        if path.exists():
            mark = rf"(<!-- footprint: {device} -->\n).*?(<!-- end -->)"
            text = re.sub(mark, lambda m: m[1] + table(json.loads(path.read_text())) + "\n" + m[2], text, flags=re.S)
    page.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--update", type=Path, metavar="PAGE")
    parser.add_argument("--measure", nargs=2, metavar=("NETWORK", "SIDE"), help="one process's part; prints JSON")
    args = parser.parse_args()
    if args.update:
        return update(args.update)
    if args.measure:
        return measure(*args.measure, args.device, args.threads)

    import torch
    from convoy.problem import machine_name

    results = {"date": str(datetime.date.today()), "device": machine_name(torch.device(args.device)), "torch": torch.__version__,
               "threads": args.threads, "command": "python bench/modules/footprint.py --device " + args.device,
               "rows": list(rows_of(args))}  # fmt: skip
    out = args.out or RESULTS / f"{args.device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
