"""Fits python/convoy/rates.py to what bench/modules/eager.py measured.

    python bench/modules/fit.py bench/results/eager/cpu-DATE.json bench/results/eager/cpu-half-DATE.json bench/results/eager/cuda-DATE.json \
        bench/results/eager/cuda-tf32-DATE.json bench/results/eager/cuda-half-DATE.json

Every kind of operator gets the numbers for which the formulas of worth.py come nearest to its rows, by the mean of the
logarithms of the errors, which a disturbed row does not spoil: a search along one number at a time, in steps that shrink. Prints what is left of the errors.
"""

import argparse
import json
import math
import statistics
import sys
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from convoy.rates import Rate
from convoy.work import Work
from convoy.worth import Model

TARGET = Path(__file__).resolve().parents[2] / "python/convoy/rates.py"
CACHES = {"cpu": 8 << 20, "cuda": 32 << 20}
BY_PASS = {"cpu": 1, "cuda": 0}  # is the cache each pass's anew? On the GPU that was not measured
FIRST = {
    "cpu": Rate(0.0, 4e-6, 6e10, 2e10, 1.5e11, 1e3, 1.0),
    "cuda": Rate(8e-6, 3e-6, 4e12, 3e12, 3e13, 1e5, 1.0),
}
WORSE = 2
PARAMETERS = {"eager": ("start", "small", "large", "flops", "full"), "convoy": ("start", "small", "large", "factor")}


def search(first, names, error):
    """The Rate with the smallest error that steps from one of a few places lead to."""
    starts = [Rate(**{**vars(first), "start": first.start * a, "full": first.full * b}) for a in (0.3, 1, 10) for b in (1e-2, 1, 1e2)]
    return min((descend(s, names, error) for s in starts), key=error)


def descend(first, names, error):
    best, step = first, 2.0
    least = error(best)
    while step > 1.01:
        moved = False
        for name in names:
            for factor in (step, 1 / step):
                tried = Rate(**{**vars(best), name: getattr(best, name) * factor})
                found = error(tried)
                if found < least - 1e-9:
                    best, least, moved = tried, found, True
        if not moved:
            step = math.sqrt(step)
    return best


def distance(pairs, worse):
    """The mean error. Errors to one side (1: too long, -1: too short) would take regions that are slower: they count WORSE
    times."""
    errors = [math.log(predicted / measured) for predicted, measured in pairs]
    return sum(abs(e) * (WORSE if e * worse > 0 else 1) for e in errors) / len(errors)


class Fit:
    """One file of rows."""

    def __init__(self, path, others=()):
        """others: rows of the same device, for kinds that this file has none of."""
        self.data = json.loads(Path(path).read_text())
        self.half = self.data.get("dtype", "fp32") != "fp32"
        own = {w[0] for r in self.data["rows"] for w in r["works"]}
        if not self.half:
            self.data["rows"] += [r for r in others if not own & {w[0] for w in r["works"] if w[0].startswith("conv")}]
        self.rows = [dict(r, works=[Work(*w) for w in r["works"]]) for r in self.data["rows"]]
        self.device = "cuda" if "cuda" in self.data["command"] else "cpu"
        known = next(r for r in [*self.rows, *others] if "bandwidth" in r)
        self.rates = {"cache": CACHES[self.device], "by_pass": BY_PASS[self.device], "peak": known["peak"], "bandwidth": known["bandwidth"], "eager": {}, "convoy": {}}
        self.model = Model(self.rates, known["peak"], known["bandwidth"])

    def eager(self, kind):
        rows = [r for r in self.rows if [w.kind for w in r["works"]] == [kind]]
        first = FIRST[self.device]

        def error(rate):
            self.rates["eager"][kind] = rate
            return distance([(self.model.eager(r["works"][0]), 1e-6 * r["eager_us"]) for r in rows], 1)

        names = [n for n in PARAMETERS["eager"] if n not in ("flops", "full") or rows[0]["works"][0].flops]
        found = search(first, names, error)
        host = min(r["eager_host_us"] for r in rows if "eager_host_us" in r)
        self.rates["eager"][kind] = Rate(**{**vars(found), "host": 1e-6 * host})
        return rows, error(self.rates["eager"][kind])

    def convoy(self, kind):
        rows = [r for r in self.rows if "convoy_us" in r and max(r["works"], key=self.model.eager).kind == kind]
        if not rows:
            return rows, 0.0

        def error(rate):
            self.rates["convoy"][kind] = rate
            return distance([(self.model.ours(r["works"], cost_of(r))[0], 1e-6 * r["convoy_us"]) for r in rows], -1)

        found = search(FIRST[self.device], PARAMETERS["convoy"], error)
        host = statistics.median(r["convoy_host_us"] for r in rows if "convoy_host_us" in r)
        self.rates["convoy"][kind] = Rate(**{**vars(found), "host": 1e-6 * host})
        return rows, error(self.rates["convoy"][kind])

    def run(self):
        kinds = sorted({r["works"][0].kind for r in self.rows if len(r["works"]) == 1})
        measured = {w.kind for r in self.rows if "convoy_us" in r for w in r["works"]}
        self.rates["convoy"] = {kind: FIRST[self.device] for kind in kinds if kind in measured}
        for side in ("eager", "convoy", "convoy"):  # regions mix kinds: the second time with what the first one found
            for kind in kinds if side == "eager" else list(self.rates["convoy"]):
                rows, left = getattr(self, side)(kind)
                if rows:
                    print(f"{self.device:5} {side:7} {kind:20} {len(rows):3} rows, typical error {math.exp(left) - 1:.0%}")
        return self.rates


def cost_of(row):
    return SimpleNamespace(seconds=1e-6 * row["predicted_us"], bytes=row["plan_bytes"], bandwidth=row["bandwidth"],
                           passes=row["passes"])


def text_of(name, fit, path):
    data, rates = fit.data, fit.rates
    lines = [f"    # {data['device']}, {data['threads']} threads, PyTorch {data['torch']}, {data['date']}: {data['command']}",
             f"    # then: python bench/modules/fit.py {path}", f'    "{name}": {{']
    lines += [f'        "{key}": {rates[key]:.4g},' for key in ("cache", "by_pass", "peak", "bandwidth")]
    for side in ("eager", "convoy"):
        lines.append(f'        "{side}": {{')
        for kind, rate in rates[side].items():
            lines.append(f'            "{kind}": Rate({", ".join(f"{v:.3g}" for v in astuple(rate))}),')
        lines.append("        },")
    return lines + ["    },"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("measured", nargs="+", help="what bench/modules/eager.py wrote, for every device: others lose their rates")
    head = TARGET.read_text().split("RATES = {")[0]
    lines, of_device, convoy = [], {}, {}
    for path in parser.parse_args().measured:
        device = "cuda" if "cuda" in path else "cpu"
        fit = Fit(path, of_device.get(device, ()))
        of_device[device] = fit.data["rows"]
        fit.run()
        if not fit.rates["convoy"]:  # PyTorch alone was measured: our own rates are those of the file before, for the kinds that were
            fit.rates["convoy"] = {kind: rate for kind, rate in convoy.items() if kind in fit.rates["eager"]}
        convoy = fit.rates["convoy"]
        name = fit.device + (" half" if fit.half else " tf32" if fit.data["tf32"] and fit.device == "cuda" else "")
        lines += text_of(name, fit, path)
    TARGET.write_text(head + "RATES = {\n" + "\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
