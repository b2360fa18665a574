"""The rows of bench/results by case: one chain on one device in one precision, of the newest run that measured it."""

import datetime
import json
import math
from pathlib import Path

OURS, RIVAL = "convoy", "torch.compile"
BLOCKS = {
    "A": "convolution, GroupNorm, scale, max pooling, clamp",
    "B": "convolution, GroupNorm, tanh, hardswish, residual, logsumexp",
    "C": "convolution, bias, scale, sigmoid, GroupNorm",
}


class Case:
    """One chain on one device in one precision: its rows by peer, and the run they come from."""

    def __init__(self, run, key):
        self.run, self.rows = run, {}
        self.device, self.precision, self.series, self.block, self.size, self.chain = key

    @property
    def ours(self):
        return self.rows.get(OURS)

    @property
    def busy(self):
        """Other processes used the processors meanwhile; `convoy bench` says so of its own times."""
        return bool(self.ours.get("busy"))

    def peers(self):
        """Rows of others that have a time, the fastest first."""
        rows = [r for p, r in self.rows.items() if not p.startswith(OURS) and r.get("ms")]
        return sorted(rows, key=lambda r: r["ms"])

    def speedup(self, row):
        return row["ms"] / self.ours["ms"]

    @property
    def title(self):
        return f"{self.block}, {self.series} {self.size}" if self.block else str(self.size)


def alone(told, path):
    """What `convoy bench --json` wrote, of a chain or of a problem file, as a run of a few rows."""
    date = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc).isoformat(timespec="seconds")
    common = {"device": told["device"], "precision": told["precision"], "threads": told["threads"]}
    if "file" in told:
        names = {"convoy": OURS, "eager": "torch eager", "compile": RIVAL}
        rows = [common | {"chain": told["file"], "peer": names[p], "ms": ms} for p, ms in told["ms"].items()]
        rows[-1] |= {"max_abs_error": told["errors"][0]["max_abs"], "busy": told.get("busy", False)}
        command = f"convoy bench {told['file']} --json"
    else:
        kept = ("ms", "ms_min", "max_abs_error", "rel_error", "runs", "passes", "busy")
        rows = [common | {"chain": told["chain"], "peer": OURS} | {k: told.get(k) for k in kept}]
        if "unfused_ms" in told:
            rows.append(common | {"chain": told["chain"], "peer": f"{OURS} unfused", "ms": told["unfused_ms"]})
        command = f"convoy bench '{told['chain']}' --json"
    machine = {"name": told["machine"]} | {k: told[k] for k in ("peak_gflops", "peak_gbps") if told.get(k)}
    return {"date": date, "machine": machine, "versions": {}, "command": command, "rows": rows}


def read(path):
    run = json.loads(path.read_text())
    if isinstance(run, dict) and "rows" not in run and "ms" in run:
        run = alone(run, path)
    missing = [k for k in ("date", "machine", "versions", "command", "rows") if k not in run]
    if missing:
        raise ValueError(f"{path}: no {', '.join(missing)}")
    return run | {"file": path.name, "path": str(path)}


def load(folder):
    return cases_of([read(path) for path in sorted(Path(folder).glob("*.json"))])


def kind_of(row):
    """The section a row belongs to: its precision, or the dtype of 16 bits, and the layout where it is not NCHW."""
    dtype = row.get("dtype") or "fp32"
    return (row["precision"] if dtype == "fp32" else dtype) + ("-nhwc" if row.get("layout") == "channels_last" else "")


def cases_of(runs):
    """Cases, those of the newest run first."""
    cases = {}
    for run in sorted(runs, key=lambda r: r["date"], reverse=True):
        here = {}
        for row in run["rows"]:
            series = row.get("series") or ("full" if row.get("block") else "chain")
            key = (row["device"], kind_of(row), series, row.get("block"), row.get("size"), row.get("chain"))
            here.setdefault(key, Case(run, key)).rows[row["peer"]] = row
        for key, case in here.items():
            if case.ours and case.ours.get("ms"):
                cases.setdefault(key, case)
    return list(cases.values())


def select(cases, **wanted):
    return [c for c in cases if all(getattr(c, k) == v for k, v in wanted.items())]


def newest_sample(cases, device):
    """Those of the newest run alone: a sample is judged as a whole."""
    found = select(cases, device=device, series="sample")
    return [c for c in found if c.run is found[0].run]


def devices(cases):
    """(device, precision) pairs, the CPU first; of a device float32, tf32, then 16 bits."""
    return sorted({(c.device, c.precision) for c in cases}, key=lambda d: (d[0] != "cpu", d[0], d[1] != "fp32", d[1] != "tf32", d[1]))


def fmt(value, digits=3):
    """Three significant digits, never an exponent: 1044, 42.7, 0.231."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def fmt_error(value):
    return "–" if value is None else f"{value:.1e}"


def run_lines(cases):
    runs = {c.run["file"]: c.run for c in cases}
    for name, run in sorted(runs.items()):
        machine = run["machine"]
        where = machine if isinstance(machine, str) else ", ".join(
            str(v) if isinstance(v, str) else f"{v} {k}" if isinstance(v, int) else f"{k} {fmt(v, 4)}"
            for k, v in machine.items() if v is not None)
        versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items())
        yield name, run["date"], where, versions, run["command"].strip()
