"""bench/suites/scaling.py [--threads 1,2,4,8,16] [--blocks A,B,C] [--out FILE]: how blocks scale with CPU threads.

Each block runs by `convoy bench BLOCK --threads N`, one process after the other, the fewest threads last: a machine that
throttles would flatter them otherwise. Rows go into one file of bench/results' form, series "threads"; the table of
`convoy report` is printed. Needs no packages.
"""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import convoy_report as report  # noqa: E402
from process import write_results  # noqa: E402
from suite import FULL, block_chain  # noqa: E402


def measure(convoy, block, chain, threads, repeat):
    """The row; {"error"} in it where the command failed."""
    words = ["bench", chain, "--device", "cpu", "--threads", str(threads), "--samples", "1", "--json"]
    words += ["--repeat", str(repeat)] if repeat else []
    done = subprocess.run([convoy, *words], capture_output=True, text=True)
    row = {"block": block, "chain": chain, "series": "threads", "size": threads, "peer": "convoy", "device": "cpu",
           "precision": "fp32", "threads": threads, "ms": None, "max_abs_error": None,
           "command": shlex.join(["convoy", *words])}
    if done.returncode:
        return row | {"error": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]}
    told = json.loads(done.stdout)
    kept = ("ms", "ms_min", "max_abs_error", "rel_error", "gflops", "gbps", "peak_gflops", "peak_gbps", "runs", "passes")
    return row | {key: told[key] for key in kept if key in told} | {"machine": told.get("machine")}


def steps(most):
    """1, 2, 4, ... and all of them."""
    return sorted({n for n in (1, 2, 4, 8, 16, 32, 64) if n <= most} | {most})


def main():
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--convoy", default=str(ROOT / "build" / "convoy"), help="the command")
    parser.add_argument("--threads", type=lambda t: [int(n) for n in t.split(",")], default=steps(cores))
    parser.add_argument("--blocks", type=lambda t: t.split(","), default=sorted(FULL))
    parser.add_argument("--repeat", type=int, default=0, help="timed runs (default: about two seconds of them)")
    today = datetime.date.today()
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / f"cpu-threads-{today}.json")
    args = parser.parse_args()
    rows = []
    for block in args.blocks:
        for threads in sorted(args.threads, reverse=True):
            rows.append(measure(args.convoy, block, block_chain(block, *FULL[block]), threads, args.repeat))
            row = rows[-1]
            print(f"{block}, {threads} threads: " + (row.get("error") or f"{row['ms']:.2f} ms"), flush=True)
    rows.sort(key=lambda r: (r["block"], r["size"]))
    machine = next((r.pop("machine") for r in rows if r.get("machine")), "unknown")
    for row in rows:
        row.pop("machine", None)
    version = subprocess.run([args.convoy, "--version"], capture_output=True, text=True).stdout.strip()
    write_results(args.out, {"machine": {"name": machine, "cores": cores}, "versions": {"convoy": version},
                             "command": shlex.join(["python", "bench/suites/scaling.py", *sys.argv[1:]]), "rows": rows})
    print("\n".join(report.md_threads(report.cases_of([report.read(args.out)]), "cpu", "fp32")))
    return 1 if any("error" in r for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
