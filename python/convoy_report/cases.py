"""The rows of bench/results by case: one chain on one device in one precision, of the newest run that measured it."""

import math

OURS, RIVAL, UNFUSED = "convoy", "torch.compile", "convoy unfused"
PEAKS = {"peak_gflops": "GFLOP/s", "peak_gbps": "GB/s"}
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
        """Other processes used the processors during the measurement; `convoy bench` detects that."""
        return bool(self.ours.get("busy"))

    def peers(self):
        """Rows of others that have a time, the fastest first."""
        rows = [r for p, r in self.rows.items() if not p.startswith(OURS) and r.get("ms")]
        return sorted(rows, key=lambda r: r["ms"])

    def speedup(self, row):
        return row["ms"] / self.ours["ms"]

    @property
    def title(self):
        return f"{self.block}, {self.series} {self.size}" if self.block else str(self.size or self.chain)


def kind_of(row):
    """The section a row belongs to: its precision, or the dtype of 16 bits, and the layout if it is not NCHW."""
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
    """Only those of the newest run: a sample is judged as a whole."""
    found = select(cases, device=device, series="sample")
    return [c for c in found if c.run is found[0].run]


def devices(cases):
    """(device, precision) pairs, the GPU first; of a device float32, tf32, then 16 bits."""
    return sorted({(c.device, c.precision) for c in cases}, key=lambda d: (d[0] != "cuda", d[0], d[1] != "fp32", d[1] != "tf32", d[1]))


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


def machine_told(machine):
    """A machine in words, its name first."""
    words = []
    for key, value in machine.items():
        if isinstance(value, int):
            words.append(f"{value} {key}")
        elif isinstance(value, float):
            words.append(f"{fmt(value, 4)} {PEAKS.get(key, key)}")
        elif value not in (None, *words):
            words.append(value)
    return ", ".join(words)


def run_lines(cases):
    for name, run in sorted({c.run["file"]: c.run for c in cases}.items()):
        versions = ", ".join(v if v.startswith(k) else f"{k} {v}" for k, v in run["versions"].items())
        yield name, run["date"], machine_told(run["machine"]), versions, run["command"].strip()
