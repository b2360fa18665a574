"""`make bench`: every chain of the suite by every peer, one after the other on the same cores, into one JSON file.

    python bench/suites/run.py [--suite full|smoke] [--only TEXT] [--threads 2] [--out FILE]

Chains come one at a time, peers in turn on each, so that a ratio compares moments close to each other. Started again
after an interruption it goes on where it stopped, unless the library or a peer's version has changed since.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import chains
import peers
import suite
from process import Partial, Progress, Worker, write_results

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE.parent / "results"
SAMPLES = 8  # of the batch whose outputs are compared with float64


# ---- where this runs ----


def cpu_name():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def limits():
    """What the machine can do, as `convoy bench` measures it: GFLOP/s and GB/s."""
    command = [str(peers.lib.path.with_name("convoy")), "bench", "x[1,8,32,32] | conv2d(16,3)", "--json",
               "--device", "cpu"]
    found = {"name": cpu_name(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform(terse=True)}
    try:
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
        found |= {"peak_gflops": told["peak_gflops"], "peak_gbps": told["peak_gbps"], "engine": told["machine"]}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as problem:
        print(f"bench: the limits of this machine are unknown: {problem}", file=sys.stderr)
    return found


def command_of(case, peer, threads):
    return shlex.join(["bench/suites/bench.sh", "--only", case.chain, "--peer", peer, "--threads", str(threads)])


# ---- the reference ----


def reference(case, folder):
    """Float64 outputs of some samples, spread over the batch, by PyTorch; chains of the suite never mix samples."""
    import torch

    chain = chains.parse(case.chain)
    inputs, params = chains.data_of(chain)
    n = chain.shape[0]
    samples = np.unique(np.linspace(0, n - 1, min(n, SAMPLES)).astype(int))
    module = chains.torch_module(chain, params, torch.float64)
    with torch.inference_mode():
        want = np.concatenate([module(torch.from_numpy(inputs[0][i : i + 1]).double()).numpy() for i in samples])
    path = Path(folder) / "reference.npz"
    np.savez(path, samples=samples, want=want)
    return str(path), len(samples), traffic(chain, want)


def traffic(chain, want):
    """Bytes that must move: inputs and parameters read once, outputs written once."""
    size = np.prod(chain.shape) + sum(np.prod(s) for s in chain.params.values())
    return int((4 if chain.dtype == "fp32" else 2) * (size + want[0].size * chain.shape[0]))


# ---- the suite ----


def library_digest():
    return hashlib.sha256(peers.lib.path.read_bytes()).hexdigest()[:16]


def stamp(args):
    wanted = (HERE / "requirements.txt").read_text()
    told = f"{library_digest()} {wanted} {args.suite} {args.threads} {args.patience}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


class Run:
    def __init__(self, args):
        self.args, self.start = args, time.monotonic()
        self.cases = [c for c in suite.SUITES[args.suite]()
                      if args.only is None or args.only in (c.chain, c.block, c.series)]
        if args.only and not self.cases:
            self.cases = [suite.Case(args.only, None, "chain", args.only, suite.ALL)]
        self.chosen = lambda peer: not args.peer or peer in args.peer
        self.workers, self.versions, self.missing = {}, {"python": platform.python_version()}, {}
        self.partial = Partial(args.out.with_suffix(".partial"), stamp(args), args.fresh)
        self.left_out = 0

    def worker(self, peer):
        if peer in self.missing:
            return None
        if peer not in self.workers:
            # compiled code of its own: what an interrupted run left in a shared cache may be broken
            env = dict(os.environ, OMP_NUM_THREADS=str(self.args.threads),
                       TORCHINDUCTOR_CACHE_DIR=os.path.join(self.folder, "inductor"))
            worker = Worker([sys.executable, str(HERE / "worker.py"), peer], env)
            if "versions" not in worker.hello:
                self.missing[peer] = worker.hello.get("missing") or worker.hello.get("error")
                print(f"\nbench: {peer} is skipped: {self.missing[peer]}", file=sys.stderr)
                return None
            self.versions |= worker.hello["versions"]
            self.workers[peer] = worker
        return self.workers[peer]

    def row(self, case, peer):
        return {"block": case.block, "chain": case.chain, "series": case.series, "size": case.size, "peer": peer,
                "device": "cpu", "precision": "fp32", "dtype": chains.parse(case.chain).dtype,
                "threads": self.args.threads, "ms": None, "max_abs_error": None}

    def measure(self, case, peer, ref):
        worker = self.worker(peer)
        if worker is None:
            return None
        path, samples, bytes_ = ref
        answer = worker.ask({"chain": case.chain, "threads": self.args.threads, "repeats": self.args.repeats,
                             "series": case.series != "full", "reference": path, "patience": self.args.patience},
                            self.args.row_seconds)
        if answer.pop("dead", False):
            del self.workers[peer]
        row = self.row(case, peer) | {"bytes": bytes_, "samples_checked": samples,
                                      "command": command_of(case, peer, self.args.threads)} | answer
        self.partial.keep(row)
        return row

    def all(self):
        todo = [(c, [p for p in c.peers if self.chosen(p)]) for c in self.cases]
        progress = Progress(sum(len(p) for _, p in todo))
        with tempfile.TemporaryDirectory() as folder:
            self.folder = folder
            for case, names in todo:
                ref = None
                for peer in names:
                    row = self.partial.rows.get(Partial.key(self.row(case, peer)))
                    known = row is not None
                    if not known and self.over():
                        self.left_out += 1
                    elif not known and peer not in self.missing:
                        ref = ref or reference(case, folder)
                        row = self.measure(case, peer, ref)
                    told = "left out" if row is None else row.get("error") or f"{row['ms']:.3f} ms"
                    progress.step(f"{case.title}, {peer}: {told}", not known and row is not None)
            for peer in {row["peer"] for row in self.partial.rows.values()} - set(self.workers):
                self.worker(peer)  # rows of an interrupted run: the versions are still told

    def over(self):
        return self.args.budget and time.monotonic() - self.start > self.args.budget

    def close(self):
        for worker in self.workers.values():
            worker.close()

    def save(self):
        """What has been measured; a run whose time was up says how much is missing."""
        keys = [Partial.key(self.row(c, p)) for c in self.cases for p in c.peers]
        rows = [self.partial.rows[k] for k in keys if k in self.partial.rows]
        flops = {r["chain"]: r["flops"] for r in rows if "flops" in r and r["peer"] == "convoy"}
        for row in rows:  # operations are the chain's, whoever computes it
            row["flops"] = flops.get(row["chain"])
        told = {"machine": limits(), "versions": self.versions, "command": self.args.command, "suite": self.args.suite,
                "threads": self.args.threads, "library": library_digest(), "missing": self.missing,
                "left_out": self.left_out, "minutes": round((time.monotonic() - self.start) / 60, 1), "rows": rows}
        write_results(self.args.out, told)
        if not self.left_out:
            self.partial.finish()
        return rows


def table(rows):
    """The full-size rows for people, dtype by dtype."""
    full = [r for r in rows if r["series"] == "full"]
    return "\n".join(table_of([r for r in full if r["dtype"] == d], d) for d in dict.fromkeys(r["dtype"] for r in full))


def table_of(rows, dtype):
    blocks = sorted({r["block"] for r in rows})
    lines = [f"{f'{dtype}, ms, median':<30}" + "".join(f"{b:>12}" for b in blocks) + "   max abs error"]
    for peer in dict.fromkeys(r["peer"] for r in rows):
        mine = {r["block"]: r for r in rows if r["peer"] == peer}
        times = "".join(f"{mine[b]['ms']:12.2f}" if b in mine and mine[b]["ms"] else f"{'-':>12}" for b in blocks)
        errors = " ".join(f"{r['max_abs_error']:.1e}" for r in mine.values() if r["max_abs_error"] is not None)
        busy = max(r.get("others") or 0 for r in mine.values())
        note = f"  ({busy:.2f} cores busy with other processes)" if busy > 0.15 else ""
        lines.append(f"{peer:<30}{times}   {errors}{note}")
    return "\n".join(lines)


def told_command(args):
    """What repeats this run; where it was written to and how often it was interrupted say nothing."""
    words = [] if args.suite == "full" else ["--suite", args.suite]
    words += ["--only", args.only] if args.only else []
    words += [word for peer in args.peer or () for word in ("--peer", peer)]
    words += ["--threads", str(args.threads)] if args.threads != 2 else []
    words += ["--repeats", str(args.repeats)] if args.repeats != 5 else []
    return shlex.join(["bench/suites/bench.sh", *words]) if words else "make bench"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--suite", choices=suite.SUITES, default="full")
    parser.add_argument("--only", metavar="TEXT", help="a block, a series, a chain of the suite, or any chain")
    parser.add_argument("--peer", action="append", choices=peers.PEERS, help="only these peers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patience", type=int, default=3,
                        help="how often a measurement is repeated while other processes are busy")
    parser.add_argument("--budget", type=float, metavar="SECONDS",
                        help="start no row after this time; what is missing is measured when it is started again")
    parser.add_argument("--row-seconds", type=float, default=90, help="a row that takes longer is a failure")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--out", type=Path, help="default: bench/results/cpu-DATE.json")
    args = parser.parse_args()
    args.command = told_command(args)
    RESULTS.mkdir(exist_ok=True)
    if args.out is None:
        part = "-part" if args.only or args.peer else ""
        name = f"cpu{'' if args.suite == 'full' else '-' + args.suite}{part}-{datetime.date.today()}.json"
        args.out = ROOT / "build" / "bench" / "smoke.json" if args.suite == "smoke" else RESULTS / name
    args.out.parent.mkdir(parents=True, exist_ok=True)
    run = Run(args)
    try:
        run.all()
    finally:
        run.close()
    rows = run.save()
    print(table(rows) if any(r["series"] == "full" for r in rows) else
          "\n".join(f"{r['peer']:<30}{r['ms'] or float('nan'):12.3f} ms  {r.get('error', '')}" for r in rows))
    print(f"written: {os.path.relpath(args.out)}")
    if run.left_out:
        print(f"bench: time was up, {run.left_out} rows are missing; the same command goes on from here",
              file=sys.stderr)
        return 75  # EX_TEMPFAIL
    return 1 if any(r["peer"] == "convoy" and r.get("error") for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
