"""`make gpu-bench`: Convoy against PyTorch on an NVIDIA GPU, precision against precision.

    python bench/suites/gpu.py [--suite full|series|sample|smoke] [--only TEXT] [--peer NAME] [--budget SECONDS] [--out FILE]
    python bench/suites/gpu.py --suite sample --seed 1 --count 50

`full` is A, B, C and single operators; `series` A, B, C at every size (PyTorch at some); `sample` is chains drawn at
random (sample.py). The interpreter is one with PyTorch for CUDA. First several processes compile everything into
caches on disk (warm.py), then one at a time measures, and nothing else runs on the GPU. Each peer runs in a process
of its own (gpu_worker.py): one that fails, dies or hangs costs its rows alone. `fp32` rows are measured with tf32
forbidden in PyTorch, `tf32` rows with it allowed and Convoy asked for it. The most telling rows come first; those for
which the budget is too short are named in the file and measured when the same command is started again.
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
import sample
import suite
import warm
from process import STARTING, Partial, Progress, Worker, write_results

sys.path.append(str(peers.ROOT / "python"))
import convoy_report as report  # the same tables as in the documents, of this run alone

RESULTS = Path(__file__).resolve().parents[1] / "results"
PRECISIONS = ("fp32", "tf32")
SERIES = tuple(suite.SERIES)
# Who measures what, in this order: blocks, single operators, sizes, chains drawn at random, or a chain that was named.
STAGES = (
    ("convoy", ("full", "operator", "sample", "chain", *SERIES)), ("torch.compile", ("sample", *SERIES)),
    ("torch eager", ("full", "operator", "sample", "chain", *SERIES)),
    ("torch eager channels_last", ("full", "chain")), ("convoy.compile", ("full", "chain")),
    ("torch.compile", ("full", "chain")), ("torch.compile channels_last", ("full", "chain")),
    ("torch.compile max-autotune", ("full", "chain")), ("torch.compile max-autotune channels_last", ("full", "chain")),
    ("torch.compile", ("operator",)),
)
TABLES = ("blocks-cuda-fp32", "blocks-cuda-tf32", "operators-cuda-fp32", "operators-cuda-tf32", "series-cuda-fp32",
          "series-cuda-tf32", "sample-cuda-all")
REPEATS = 30
SHORTEST = 20  # seconds that a row is given at the end of the budget
MOST_DEATHS = 2  # of a peer's process, or one for ten of its rows, before the rest of them is given up
WARMING = 0.4  # of the budget, at most
MOST_JOBS = 14  # processes that compile at the same time
AUTOTUNING = 4  # candidates that one of them compiles at the same time


def cases_of(args):
    made = {"smoke": suite.smoke, "full": lambda: suite.blocks() + suite.operators(), "series": suite.series,
            "sample": lambda: suite.drawn(sample.draw(args.seed, args.count))}[args.suite]()
    if args.only:
        made = [c for c in made if args.only in (c.chain, c.block, c.series, c.size)] or [
            suite.Case(args.only, None, "chain", args.only, ())]
    return made


def precisions_of(case, args):
    """Only products have a precision: without any, tf32 is fp32."""
    chosen = args.precision or PRECISIONS
    return chosen if re.search(r"conv|linear", case.chain) else [p for p in chosen if p == "fp32"]


def empty_row(case, peer, precision):
    command = shlex.join(["python", "bench/suites/gpu.py", "--only", case.chain, "--peer", peer, "--precision", precision])
    return {"block": case.block, "chain": case.chain, "series": case.series, "size": case.size, "peer": peer,
            "device": "cuda", "precision": precision, "threads": 0, "ms": None, "max_abs_error": None,
            "command": command}


def stamp(args):
    library = hashlib.sha256(peers.lib.path.read_bytes()).hexdigest()
    return hashlib.sha256(f"{library} {args.suite} {args.seed} {args.repeats}".encode()).hexdigest()[:16]


def caches(folder, names):
    """The environment of a process for the peers of these names. Compiled code is kept with this run, since what others
    left may be broken, or another version's. Compilers start helpers only where each kernel has many candidates."""
    kept = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "CVY_CACHE": "convoy"}
    threads = AUTOTUNING if any("autotune" in peer for peer in names) else 1
    return {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(threads)} | {
        name: os.path.join(folder, v) for name, v in kept.items()}


class Run:
    """`program`: what is started, with a peer's name after it."""

    def __init__(self, args, program):
        self.args, self.program, self.start = args, program, time.monotonic()
        self.partial = Partial(args.out.with_suffix(".partial"), stamp(args), args.fresh)
        self.versions, self.machine, self.missing, self.left_out, self.warmed = {}, None, {}, [], None

    def stages(self):
        """(peer, rows to be measured)."""
        cases = cases_of(self.args)
        for peer, series in STAGES:
            if not self.args.peer or peer in self.args.peer:
                taken = [c for c in cases if c.series in series and (c.series not in SERIES or peer in c.peers)]
                rows = [empty_row(c, peer, p) for c in taken for p in precisions_of(c, self.args)]
                yield peer, rows

    def seconds_left(self):
        return self.args.budget - (time.monotonic() - self.start)

    def known(self, row):
        return self.partial.rows.get(Partial.key(row))

    def worker(self, peer):
        starting = min(STARTING, max(self.seconds_left(), SHORTEST))
        worker = Worker([*self.program, peer], caches(self.folder, [peer]), starting)
        if "versions" in worker.hello:
            self.versions |= worker.hello["versions"]
            self.machine = self.machine or worker.hello["machine"]
            return worker
        self.missing[peer] = worker.hello.get("missing") or worker.hello.get("error")
        print(f"\ngpu-bench: {peer} is skipped: {self.missing[peer]}", file=sys.stderr)
        worker.close()
        return None

    def measure(self, worker, row):
        """The row, or None if the time of the whole run was up in the middle of it; and is the process still there?"""
        limit = min(self.args.row_seconds, max(self.seconds_left(), SHORTEST))
        task = {"chain": row["chain"], "precision": row["precision"], "repeats": self.args.repeats}
        row = row | worker.ask(task, limit)
        alive = not row.pop("dead", False)
        if not alive and self.seconds_left() <= 0 and limit < self.args.row_seconds:
            return None, False
        self.partial.keep(row)
        return row, alive

    def stage(self, peer, rows, progress):
        worker, deaths, most = None, 0, max(MOST_DEATHS, len(rows) // 10)
        for row in rows:
            what = f"{row['block'] or row['size']}, {row['precision']}, {peer}"
            known = self.known(row)
            if known is None:
                possible = peer not in self.missing and deaths < most and self.seconds_left() > 0
                worker = worker or (self.worker(peer) if possible else None)
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

    def warm(self, stages):
        """Compiles what the rows need, several at a time, and no longer than a part of the budget."""
        rows = [row for _, rows in stages for row in rows if self.known(row) is None]
        limit, env = WARMING * self.args.budget, caches(self.folder, {row["peer"] for row in rows})
        if self.args.jobs and limit > 0:
            self.warmed = warm.all(self.program, env, rows, self.args.jobs, limit, self.args.row_seconds)
            print("gpu-bench: {compiled} of {wanted} compiled in {seconds:.0f} s".format(**self.warmed), file=sys.stderr)

    def all(self):
        stages = list(self.stages())
        progress = Progress(sum(len(rows) for _, rows in stages))
        with tempfile.TemporaryDirectory() as self.folder:
            self.warm(stages)
            for peer, rows in stages:
                self.stage(peer, rows, progress)
                self.save()

    def command(self):
        """What repeats this run; where it was written to and how often it was interrupted say nothing."""
        args, words = self.args, []
        words += ["--suite", args.suite] if args.suite != "full" else []
        words += ["--seed", str(args.seed), "--count", str(args.count)] if args.suite == "sample" else []
        words += ["--only", args.only] if args.only else []
        words += [word for name in ("peer", "precision") for v in getattr(args, name) or () for word in (f"--{name}", v)]
        words += ["--repeats", str(args.repeats)] if args.repeats != REPEATS else []
        return shlex.join(["python", "bench/suites/gpu.py", *words])

    def save(self):
        """What has been measured so far; None if that is nothing."""
        keys = [Partial.key(row) for _, rows in self.stages() for row in rows]
        rows = [self.partial.rows[k] for k in keys if k in self.partial.rows]
        if not rows:
            return None
        flops = {r["chain"]: r["flops"] for r in rows if r.get("flops")}
        for row in rows:  # operations are the chain's, whoever computes it
            row["flops"] = flops.get(row["chain"])
        told = {"machine": self.machine or {}, "versions": self.versions, "suite": self.args.suite,
                "command": self.command(), "missing": self.missing, "left_out": self.left_out, "warmed": self.warmed,
                "minutes": round((time.monotonic() - self.start) / 60, 1), "rows": rows}
        write_results(self.args.out, told)
        return report.read(self.args.out)


def options(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--suite", choices=("full", "series", "sample", "smoke"), default="full")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--count", type=int, default=50, help="chains of the sample")
    parser.add_argument("--only", metavar="TEXT", help="a block, a series, a chain of the suite, or any chain")
    parser.add_argument("--peer", action="append", choices=sorted({peer for peer, _ in STAGES}), help="only these")
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--jobs", type=int, default=min(MOST_JOBS, len(os.sched_getaffinity(0))),
                        help="processes that compile before anything is measured; 0: none")
    parser.add_argument("--budget", type=float, default=360, metavar="SECONDS", help="start no row after this time")
    parser.add_argument("--row-seconds", type=float, default=90, help="a row that takes longer is a failure")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--out", type=Path, help="default: bench/results/gpu-DATE.json")
    args = parser.parse_args(argv)
    if args.out is None:
        part = "-part" if args.only or args.peer or args.precision else ""
        name = f"gpu{'' if args.suite == 'full' else '-' + args.suite}{part}-{datetime.date.today()}.json"
        args.out = peers.ROOT / "build" / "bench" / name if args.suite == "smoke" else RESULTS / name
    return args


def main(program=(sys.executable, str(Path(__file__).with_name("gpu_worker.py")))):
    args = options()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    run = Run(args, program)
    run.all()
    told = run.save()
    if told is None or not run.left_out:
        run.partial.finish()
    if told is None:
        print("gpu-bench: nothing could be measured", file=sys.stderr)
        return 2
    cases = report.cases_of([told])
    for name in TABLES:
        table = report.render(cases, name, absent="")
        print(f"\n{name}\n{table}" if table else "", end="")
    print(f"written: {os.path.relpath(args.out)}, {len(told['rows'])} rows, {len(run.left_out)} left out")
    return 1 if any(r["peer"] == "convoy" and r.get("error") for r in told["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
