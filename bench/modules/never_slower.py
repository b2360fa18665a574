"""Every module of bench/modules/cases.py, eager against convoy.compile: none may be slower by more than 5 %.

    python bench/modules/never_slower.py --device cpu --threads 2 [--budget 90] [--only conv] [--fresh] [--out FILE]
    python bench/modules/never_slower.py --update doc/PERFORMANCE.md

Each module runs both ways in turn, a few calls of one, then of the other, and each time is the median of its rounds. On the
GPU a round ends with a synchronisation. A module near the limit gets more rounds. Results must agree, within what single
precision (or tf32, where PyTorch uses it) leaves.

Goes on where an earlier run with the same --out (default: bench/results/never) stopped; --update writes the tables of what is
there into a page, between `<!-- never-slower: DEVICE -->` and `<!-- end -->`. Exit status 0: all are done and none is slower, 1: one is, or does
not agree, 75: the budget is spent and some are left.
"""

import argparse
import datetime
import json
import re
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench" / "suites")]

import torch
from torch.utils._pytree import tree_leaves

import convoy
from convoy.problem import machine_name
from cases import CASES
from process import busy

RESULTS = ROOT / "bench" / "results" / "never"
LIMIT = 1.05
ROUND = 2e-3  # seconds of calls of one side
SECONDS = 0.2  # of rounds for a module, of both sides
PATIENCE = 5  # times as long for a module near the limit
NEAR = 1.02  # of eager's time
DISTURBED = 0.1  # cores that others kept busy: such a row is measured again by the next run
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-2}  # of the largest value; PyTorch's convolutions use tf32 on the GPU


def results_of(value):
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def error_of(ours, theirs):
    """Largest difference as a share of the largest value."""
    worst = 0.0
    for a, b in zip(results_of(ours), results_of(theirs), strict=True):
        finite = torch.isfinite(b)
        if a.shape != b.shape or not torch.equal(torch.isfinite(a), finite):
            return float("inf")
        if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):  # infinities of the same sign
            return float("inf")
        a, b = a[finite], b[finite]
        size = b.abs().max().item() if b.numel() else 0.0
        worst = max(worst, (a - b).abs().max().item() / size if size else 0.0)
    return worst


def round_of(call, inputs, count, cuda):
    start = time.perf_counter()
    for _ in range(count):
        call(*inputs)
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def time_both(calls, inputs, cuda):
    """Lists of seconds per call, interleaved, and the cores that others kept busy meanwhile."""
    for call in calls:
        round_of(call, inputs, 2, cuda)
    once = min(round_of(call, inputs, 1, cuda) for call in calls for _ in range(2))
    count = max(1, min(200, int(ROUND / max(once, 1e-6))))
    times, start, (everyone, mine) = [[], []], time.perf_counter(), busy()
    while True:
        for side in (0, 1) if len(times[0]) % 2 else (1, 0):
            times[side].append(round_of(calls[side], inputs, count, cuda))
        spent, rounds = time.perf_counter() - start, len(times[0])
        near = statistics.median(times[1]) > NEAR * statistics.median(times[0])
        if rounds >= 5 and spent > SECONDS * (PATIENCE if near else 1):
            after, mine_after = busy()
            return times, max(0.0, (after - everyone - (mine_after - mine)) / spent)


def measure(case, device):
    module, inputs = case.build(device)
    fast = convoy.compile(module)
    start = time.perf_counter()
    error = error_of(fast(*inputs), module(*inputs))
    first = time.perf_counter() - start
    entry = list(fast._convoy.entries.values())[-1]
    times, others = time_both((module, fast), inputs, device.type == "cuda")
    eager, ours = map(statistics.median, times)
    return {"case": case.name, "eager_ms": 1e3 * eager, "convoy_ms": 1e3 * ours, "ratio": ours / eager, "rounds": len(times[0]),
            "regions": len(entry.runners), "error": error, "agree": error <= TOLERANCE[device.type], "first_s": first, "others": others}


def line_of(number, row):
    verdict = "DISAGREES" if not row["agree"] else "SLOWER" if row["ratio"] > LIMIT else ""
    return (f"{number:4} {row['case']:34} eager {row['eager_ms']:9.4f} ms, convoy {row['convoy_ms']:9.4f} ms, ratio {row['ratio']:6.3f}, "
            f"{row['regions']:3} regions, error {row['error']:.1e}, first call {row['first_s']:.1f} s, others {row['others']:.2f} {verdict}")


def summary(rows):
    ratios = sorted(r["ratio"] for r in rows)
    gain = statistics.geometric_mean(1 / r for r in ratios)
    slower = [r for r in rows if r["ratio"] > LIMIT or not r["agree"]]
    lines = [f"{len(rows)} of {len(CASES)} modules; {sum(r < 0.95 for r in ratios)} faster by more than 5 %, slowest ratio {ratios[-1]:.3f}, "
             f"geometric mean {gain:.2f} times as fast"]
    return "\n".join(lines + [line_of(0, r) for r in slower]), slower


def table(device):
    """The newest results of a device for a page: a line in words, then a row for every module, slowest ratio first."""
    path = RESULTS / f"{device}.json"
    if not path.exists():
        return "Not measured yet.\n"
    data = json.loads(path.read_text())
    rows = sorted(data["rows"], key=lambda r: -r["ratio"])
    lines = [f"{data['device']}, PyTorch {data['torch']}, {data['threads']} threads, {data['date']}: `{data['command']}`.",
             summary(rows)[0].splitlines()[0] + f"; {sum(r['others'] >= DISTURBED for r in rows)} rows were disturbed by other processes.", "", "| module | eager, ms | Convoy / eager | regions | error |", "|---|---|---|---|---|"]
    lines += [f"| {r['case']} | {r['eager_ms']:.3g} | {r['ratio']:.3f} | {r['regions']} | {r['error']:.0e} |" for r in rows]
    return "\n".join(lines) + "\n"


def update(path):
    mark = re.compile(r"(<!-- never-slower: (\w+) -->\n).*?(<!-- end -->)", re.S)
    path.write_text(mark.sub(lambda m: m[1] + table(m[2]) + m[3], path.read_text()))
    return 0


def load(path, fresh):
    """Rows of an earlier run, without those that something else on the machine disturbed."""
    if fresh or not Path(path).exists():
        return []
    return [r for r in json.loads(Path(path).read_text())["rows"] if r["others"] < DISTURBED]


def save(path, rows, options, device):
    head = {"date": str(datetime.date.today()), "device": machine_name(device), "torch": torch.__version__, "threads": options.threads,
            "tf32": device.type == "cuda" and torch.backends.cudnn.allow_tf32, "limit": LIMIT,
            "command": f"python bench/modules/never_slower.py --device {options.device} --threads {options.threads}"}
    rounded = [{k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in r.items()} for r in rows]
    Path(path).write_text(json.dumps({**head, "rows": rounded}, indent=0) + "\n")


def warm(share, device):
    """Compiles every Nth case from the Ith on: several of these processes fill the cache of kernels."""
    first, step = map(int, share.split("/"))
    for case in CASES[first::step]:
        module, inputs = case.build(device)
        convoy.compile(module)(*inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="modules with this in their name")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no module is begun")
    parser.add_argument("--warm", help="I/N: only compile, every Nth module from the Ith on")
    parser.add_argument("--fresh", action="store_true", help="measures again what is in --out")
    parser.add_argument("--out")
    parser.add_argument("--update", metavar="FILE", help="writes the tables into a Markdown file")
    options = parser.parse_args()
    if options.update:
        return update(Path(options.update))
    options.out = options.out or str(RESULTS / f"{options.device}.json")
    torch.set_num_threads(options.threads)
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    rows, start = load(options.out, options.fresh), time.monotonic()
    done, left = {r["case"] for r in rows}, 0
    with torch.no_grad():
        if options.warm:
            return warm(options.warm, device)
        for number, case in enumerate(CASES, 1):
            if case.name in done or options.only not in case.name:
                continue
            if time.monotonic() - start > options.budget:
                left += 1
                continue
            rows.append(measure(case, device))
            print(line_of(number, rows[-1]), flush=True)
            save(options.out, rows, options, device)
    text, slower = summary(rows)
    print(text)
    return 1 if slower else 75 if left else 0


if __name__ == "__main__":
    sys.exit(main())
