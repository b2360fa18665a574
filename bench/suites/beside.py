"""The layers of the suite `filters`, Convoy beside eager PyTorch in one process, on one thread and on two.

    python bench/suites/beside.py [--threads 1 2] [--only TEXT] [--suite filters] [--before LIBRARY] [--out FILE]
    python bench/suites/beside.py --update doc/PERFORMANCE.md

Both sides take turns, a few calls of one, then of the other; a time is the median of its rounds, and the ratio that of the
medians: above 1 Convoy is slower. Both run on PyTorch's OpenMP team. Convoy is called through ctypes, its result lies in
a buffer that is reused; PyTorch allocates its own. --before takes a third turn with another build of the library.

--update writes the table of bench/results/beside/cpu.json into a page, between `<!-- beside: cpu -->` and `<!-- end -->`.
"""

import argparse
import datetime
import json
import re
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

import chains
import peers
import suite
from process import busy
from run import cpu_name

RESULTS = peers.ROOT / "bench" / "results" / "beside" / "cpu.json"
ROUND = 1e-3  # seconds of calls of one side
SLOWER = 1.05


def sides(case, threads, before):
    """Functions that run the chain on input number i, by name, and the float64 result of input 0."""
    chain = chains.parse(case.chain)
    inputs, params = chains.data_of(chain)
    made = {"convoy": peers.ConvoyPeer(), "eager": peers.TorchPeer()}
    if before:
        made["before"] = peers.ConvoyPeer(library=before)
    calls = {name: peer.prepare(chain, inputs, params, threads) for name, peer in made.items()}
    with torch.inference_mode():
        want = chains.torch_module(chain, params, torch.float64)(torch.from_numpy(inputs[0]).double()).numpy()
    return calls, want


def error_of(call, want):
    return float(np.abs(np.asarray(call(0), np.float64) - want).max() / np.abs(want).max())


def round_of(call, count):
    start = time.perf_counter()
    for i in range(count):
        call(i % 2)
    return (time.perf_counter() - start) / count


def measure(case, threads, options):
    calls, want = sides(case, threads, options.before)
    row = {"case": str(case.size), "chain": case.chain, "threads": threads}
    row |= {f"{name}_error": error_of(call, want) for name, call in calls.items()}
    for call in calls.values():
        round_of(call, 3)
    count = {name: max(1, min(100, int(ROUND / round_of(call, 2)))) for name, call in calls.items()}
    times, start, (everyone, mine) = {name: [] for name in calls}, time.perf_counter(), busy()
    while (spent := time.perf_counter() - start) < options.seconds or len(times["eager"]) < 5:
        for name, call in calls.items():
            times[name].append(round_of(call, count[name]))
    after, mine_after = busy()
    row["others"] = max(0.0, (after - everyone - (mine_after - mine)) / spent)
    row |= {f"{name}_ms": 1e3 * statistics.median(found) for name, found in times.items()}
    row["ratio"] = row["convoy_ms"] / row["eager_ms"]
    for call in calls.values():
        getattr(call, "close", lambda: None)()
    return row


def line_of(row):
    before = f", before {row['before_ms']:8.4f}" if "before_ms" in row else ""
    return (f"{row['case']:36} {row['threads']} thr., eager {row['eager_ms']:8.4f} ms{before}, convoy {row['convoy_ms']:8.4f}, ratio {row['ratio']:5.2f}, "
            f"error {row['convoy_error']:.0e} ({row['eager_error']:.0e}), others {row['others']:.2f}{' SLOWER' if row['ratio'] > SLOWER else ''}")


def table(data):
    """A row for every layer: eager's time and the ratio for each number of threads."""
    counts = sorted({r["threads"] for r in data["rows"]})
    lines = [f"{data['device']}, PyTorch {data['torch']}, {data['date']}: `{data['command']}`. "
             f"{sum(r['others'] >= 0.1 for r in data['rows'])} of {len(data['rows'])} rows were disturbed by other processes.", "",
             "| layer | " + " | ".join(f"eager, ms, {n} thread{'s' * (n > 1)} | Convoy / eager" for n in counts) + " | error (eager's) |",
             "|---" * (2 + 2 * len(counts)) + "|"]
    for case in dict.fromkeys(r["case"] for r in data["rows"]):
        rows = {r["threads"]: r for r in data["rows"] if r["case"] == case}
        cells = " | ".join(f"{rows[n]['eager_ms']:.3g} | {rows[n]['ratio']:.2f}" if n in rows else "| " for n in counts)
        row = next(iter(rows.values()))
        lines.append(f"| {case} | {cells} | {row['convoy_error']:.0e} ({row['eager_error']:.0e}) |")
    return "\n".join(lines) + "\n"


def update(path):
    mark = re.compile(r"(<!-- beside: cpu -->\n).*?(<!-- end -->)", re.S)
    path.write_text(mark.sub(lambda m: m[1] + table(json.loads(RESULTS.read_text())) + m[2], path.read_text()))


def save(path, rows, options):
    rounded = [{k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in r.items()} for r in rows]
    head = {"date": str(datetime.date.today()), "device": cpu_name(), "torch": torch.__version__,
            "command": f"python bench/suites/beside.py --threads {' '.join(map(str, options.threads))}"}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**head, "rows": rounded}, indent=0) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--suite", choices=suite.SUITES, default="filters")
    parser.add_argument("--only", default="", help="layers with this in their name")
    parser.add_argument("--seconds", type=float, default=0.25, help="of rounds for a row, of all sides")
    parser.add_argument("--before", metavar="LIBRARY", help="another libconvoy.so, measured beside")
    parser.add_argument("--out", type=Path, help=f"the rows as JSON, such as bench/results/beside/{RESULTS.name}")
    parser.add_argument("--update", type=Path, metavar="FILE", help="writes the table into a Markdown file")
    options = parser.parse_args()
    if options.update:
        return update(options.update)
    options.before = options.before and peers.binding.load(options.before)
    rows = []
    for threads in options.threads:
        for case in suite.SUITES[options.suite]():
            if options.only in str(case.size):
                rows.append(measure(case, threads, options))
                print(line_of(rows[-1]), flush=True)
    slower = sum(r["ratio"] > SLOWER for r in rows)
    print(f"{len(rows)} rows, {slower} slower than eager by more than 5 %, geometric mean {statistics.geometric_mean(r['ratio'] for r in rows):.3f}")
    if options.out:
        save(options.out, rows, options)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
