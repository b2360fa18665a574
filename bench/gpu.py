"""`make gpu-bench`: A, B, C and single operators on an NVIDIA GPU, Convoy against PyTorch, precision against precision.

    python bench/gpu.py [--suite full|smoke] [--only TEXT] [--peer NAME] [--budget SECONDS] [--out FILE]

The interpreter is one with PyTorch for CUDA. Each peer runs in a process of its own (gpu_worker.py): one that fails,
dies or hangs costs its rows alone. `fp32` rows are measured with tf32 forbidden in PyTorch, `tf32` rows with it allowed and
Convoy asked for it. The most telling rows come first; those for which the budget is too short are named in the file and
measured when the same command is started again.
"""

import argparse
import datetime
import hashlib
import os
import re
import shlex
import sys
import tempfile
import time
from pathlib import Path

import peers
import suite
from process import Partial, Progress, Worker, write_results

RESULTS = peers.ROOT / "bench" / "results"
PRECISIONS = ("fp32", "tf32")
# Who measures what, in this order: blocks, single operators, or both. Autotuning takes a minute for each chain.
STAGES = (
    ("convoy", ("full", "operator", "chain")), ("torch eager", ("full", "operator", "chain")),
    ("torch eager channels_last", ("full", "chain")), ("convoy.compile", ("full", "chain")),
    ("torch.compile", ("full", "chain")), ("torch.compile channels_last", ("full", "chain")),
    ("torch.compile max-autotune", ("full", "chain")), ("torch.compile max-autotune channels_last", ("full", "chain")),
    ("torch.compile", ("operator",)),
)
SHORTEST = 20  # seconds that a row is given at the end of the budget
MOST_DEATHS = 2  # of a peer's process, before the rest of its rows is given up


def cases_of(args):
    made = suite.smoke() if args.suite == "smoke" else suite.blocks() + suite.operators()
    made = [c for c in made if c.series in ("full", "operator")]
    if args.only:
        made = [c for c in made if args.only in (c.chain, c.block, c.series)] or [
            suite.Case(args.only, None, "chain", args.only, ())]
    return made


def precisions_of(case, args):
    """Only products have a precision: without any, tf32 is fp32."""
    chosen = args.precision or PRECISIONS
    return chosen if re.search(r"conv|linear", case.chain) else [p for p in chosen if p == "fp32"]


def empty_row(case, peer, precision):
    command = shlex.join(["python", "bench/gpu.py", "--only", case.chain, "--peer", peer, "--precision", precision])
    return {"block": case.block, "chain": case.chain, "series": case.series, "size": case.size, "peer": peer,
            "device": "cuda", "precision": precision, "threads": 0, "ms": None, "max_abs_error": None,
            "command": command}


def stamp(args):
    library = hashlib.sha256(Path(peers.library_path()).read_bytes()).hexdigest()
    return hashlib.sha256(f"{library} {args.suite} {args.repeats}".encode()).hexdigest()[:16]


class Run:
    """`program`: what is started, with a peer's name behind it."""

    def __init__(self, args, program):
        self.args, self.program, self.start = args, program, time.monotonic()
        self.partial = Partial(args.out.with_suffix(".partial"), stamp(args), args.fresh)
        self.versions, self.machine, self.missing, self.left_out = {}, None, {}, []

    def stages(self):
        """(peer, rows to be measured)."""
        cases = cases_of(self.args)
        for peer, series in STAGES:
            if not self.args.peer or peer in self.args.peer:
                rows = [empty_row(c, peer, p) for c in cases if c.series in series for p in precisions_of(c, self.args)]
                yield peer, rows

    def seconds_left(self):
        return self.args.budget - (time.monotonic() - self.start)

    def worker(self, peer, folder):
        env = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=os.path.join(folder, "inductor"))
        worker = Worker([*self.program, peer], env)
        if "versions" in worker.hello:
            self.versions |= worker.hello["versions"]
            self.machine = self.machine or worker.hello["machine"]
            return worker
        self.missing[peer] = worker.hello.get("missing") or worker.hello.get("error")
        print(f"\ngpu-bench: {peer} is skipped: {self.missing[peer]}", file=sys.stderr)
        worker.close()
        return None

    def measure(self, worker, row):
        """The row, or None where the time of the whole run was up in the middle of it; and is the process still there?"""
        limit = min(self.args.row_seconds, max(self.seconds_left(), SHORTEST))
        task = {"chain": row["chain"], "precision": row["precision"], "repeats": self.args.repeats}
        row = row | worker.ask(task, limit)
        alive = not row.pop("dead", False)
        if not alive and self.seconds_left() <= 0 and limit < self.args.row_seconds:
            return None, False
        self.partial.keep(row)
        return row, alive

    def stage(self, peer, rows, progress, folder):
        worker, deaths = None, 0
        for row in rows:
            what = f"{row['block'] or row['size']}, {row['precision']}, {peer}"
            known = self.partial.rows.get(Partial.key(row))
            if known is None:
                possible = peer not in self.missing and deaths < MOST_DEATHS and self.seconds_left() > 0
                worker = worker or (self.worker(peer, folder) if possible else None)
                row, alive = self.measure(worker, row) if worker and possible else (None, True)
                if not alive:
                    worker.close()
                    worker, deaths = None, deaths + 1
            row = known or row
            if row is None:
                self.left_out.append(what)
                progress.step(f"{what}: left out", False)
                continue
            told = row.get("error") or f"{row['ms']:.4f} ms, error {row['max_abs_error']:.1e}"
            progress.step(f"{what}: {told}", known is None)
        if worker:
            worker.close()

    def all(self):
        stages = list(self.stages())
        progress = Progress(sum(len(rows) for _, rows in stages))
        with tempfile.TemporaryDirectory() as folder:
            for peer, rows in stages:
                self.stage(peer, rows, progress, folder)

    def save(self):
        keys = [Partial.key(row) for _, rows in self.stages() for row in rows]
        rows = [self.partial.rows[k] for k in keys if k in self.partial.rows]
        flops = {r["chain"]: r["flops"] for r in rows if "flops" in r}
        for row in rows:  # operations are the chain's, whoever computes it
            row["flops"] = flops.get(row["chain"])
        words = [w for w in sys.argv[1:] if w != "--fresh"]
        told = {"machine": self.machine, "versions": self.versions, "suite": self.args.suite, "missing": self.missing,
                "command": shlex.join(["python", "bench/gpu.py", *words]) if words else "make gpu-bench",
                "left_out": self.left_out, "minutes": round((time.monotonic() - self.start) / 60, 1), "rows": rows}
        write_results(self.args.out, told)
        if not self.left_out:
            self.partial.finish()
        return rows


def main(program=(sys.executable, str(peers.ROOT / "bench" / "gpu_worker.py"))):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--suite", choices=("full", "smoke"), default="full")
    parser.add_argument("--only", metavar="TEXT", help="a block, a series, a chain of the suite, or any chain")
    parser.add_argument("--peer", action="append", choices=sorted({peer for peer, _ in STAGES}), help="only these")
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--budget", type=float, default=360, metavar="SECONDS", help="start no row after this time")
    parser.add_argument("--row-seconds", type=float, default=120, help="a row that takes longer is a failure")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--out", type=Path, default=RESULTS / f"gpu-{datetime.date.today()}.json")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    run = Run(args, program)
    run.all()
    if not run.partial.rows:
        print("gpu-bench: nothing could be measured", file=sys.stderr)
        run.partial.finish()
        return 2
    rows = run.save()
    print(f"written: {os.path.relpath(args.out)}, {len(rows)} rows, {len(run.left_out)} left out")
    return 1 if any(r["peer"] == "convoy" and r.get("error") for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
