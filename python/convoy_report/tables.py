"""The tables of the documentation. A ratio is always made of rows of one run."""

import math
import statistics
from collections import defaultdict

from .cases import BLOCKS, OURS, RIVAL, fmt, fmt_error, newest_sample, run_lines, select

NETWORKS = ("network eval", "network train")
ERRORS = (("max_abs_error", "max abs error"), ("rms_error", "rms error"))  # the second: not in older files


def md_blocks(cases, device, precision):
    """Full-size times of everyone, and how many times as fast Convoy is."""
    found = {c.block: c for c in select(cases, device=device, precision=precision, series="full")}
    if not found:
        return []
    names = sorted(found)
    peers = list(dict.fromkeys(p for b in names for p in found[b].rows))
    known = {key for b in names for r in found[b].rows.values() for key in r}
    kinds = [(key, words) for key, words in ERRORS if key in known] or [("rel_error", "error / largest result")]
    lines = ["| ms, median (× Convoy) | " + " | ".join(names) + " | " +
             " | ".join(f"{words}: " + ", ".join(names) for _, words in kinds) + " |",
             "|---" * (len(names) + 1 + len(kinds)) + "|"]
    for peer in peers:
        rows = [found[b].rows.get(peer) for b in names]
        cells = [(fmt(r["ms"]) + ("" if peer == OURS else f" ({fmt(found[b].speedup(r))}×)")) if r and r.get("ms") else "–"
                 for b, r in zip(names, rows)]
        errors = " | ".join(", ".join(fmt_error(r.get(key)) if r else "–" for r in rows) for key, _ in kinds)
        bold = "**" if peer == OURS else ""
        lines.append(f"| {bold}{peer}{bold} | " + " | ".join(f"{bold}{c}{bold}" for c in cells) + f" | {errors} |")
    best = [found[b].peers()[0] if found[b].peers() else None for b in names]
    if not any(best):
        return lines
    lines.append("| **Speedup over the fastest peer** | " + " | ".join(
        f"**{fmt(found[b].speedup(r))}×** ({r['peer']})" if r else "–" for b, r in zip(names, best)) + " |" * (len(kinds) + 1))
    return lines


def md_operators(cases, device, precision):
    found = select(cases, device=device, precision=precision, series="operator")
    if not found:
        return []
    peers = list(dict.fromkeys(p for c in found for p in c.rows))
    lines = ["| ms | " + " | ".join(peers) + " | fastest peer / Convoy |", "|---" * (len(peers) + 2) + "|"]
    for c in found:
        cells = [fmt(c.rows[p]["ms"]) if p in c.rows and c.rows[p].get("ms") else "–" for p in peers]
        ratio = f"{fmt(c.speedup(c.peers()[0]))}" if c.peers() else "–"
        lines.append(f"| {c.size} | " + " | ".join(cells) + f" | {ratio} |")
    return lines


def md_series(cases, device, precision):
    """Convoy's cost per size, and what the fastest peer takes if peers were measured."""
    lines = []
    for series in ("batch", "image", "channels"):
        found = select(cases, device=device, precision=precision, series=series)
        sizes = sorted({c.size for c in found})
        if not sizes:
            continue
        lines += [""] if lines else []
        lines += [f"| {series}, ms | " + " | ".join(map(str, sizes)) + " |", "|---" * (len(sizes) + 1) + "|"]
        for block in sorted({c.block for c in found}):
            by_size = {c.size: c for c in found if c.block == block}
            cells = []
            for s in sizes:
                c = by_size.get(s)
                ratio = f" ({fmt(c.speedup(c.peers()[0]))}×)" if c and c.peers() else ""
                cells.append(fmt(c.ours["ms"]) + ratio if c else "–")
            lines.append(f"| {block} | " + " | ".join(cells) + " |")
    return lines


def md_threads(cases, device, precision):
    """Convoy on more and more threads: ms, and how many times as fast as on the fewest."""
    found = select(cases, device=device, precision=precision, series="threads")
    counts = sorted({c.size for c in found})
    if not counts:
        return []
    lines = ["| threads, ms | " + " | ".join(map(str, counts)) + " |", "|---" * (len(counts) + 1) + "|"]
    for block in sorted({c.block for c in found}):
        ms = {c.size: c.ours["ms"] for c in found if c.block == block}
        first = ms[min(ms)]
        cells = [fmt(ms[n]) + (f" ({fmt(first / ms[n])}×)" if n > min(ms) else "") if n in ms else "–" for n in counts]
        lines.append(f"| {block} | " + " | ".join(cells) + " |")
    return lines


LAYOUTS = (OURS, f"{OURS} channels_last")


def gains(case):
    """The time of the fastest peer, in either layout, over Convoy's in each."""
    return [case.peers()[0]["ms"] / case.rows[layout]["ms"] for layout in LAYOUTS]


def md_diffusion(cases, device, precision):
    """Blocks of diffusion models and single convolutions: Convoy in both layouts, and the fastest PyTorch in either."""
    found = [c for c in select(cases, device=device, precision=precision, series="diffusion")
             if c.peers() and all(layout in c.rows for layout in LAYOUTS)]
    told = []
    for name, part in (("blocks", [c for c in found if not c.size.startswith("conv")]),
                       ("convolutions", [c for c in found if c.size.startswith("conv")])):
        if part:
            here, last = (fmt(statistics.geometric_mean(column)) for column in zip(*map(gains, part)))
            told.append(f"{len(part)} {name}: {here} contiguous, {last} channels_last")
    if not told:
        return []
    lines = [f"Geometric means, {'; '.join(told)}.", "",
             "| ms | fastest PyTorch | Convoy, contiguous | × | channels_last | × | error / largest result (PyTorch's) |", "|---" * 7 + "|"]
    for c in found:
        best = c.peers()[0]
        ours = " | ".join(f"{fmt(c.rows[layout]['ms'])} | {fmt(gain) if gain >= 1 else f'**{fmt(gain)}**'}"
                          for layout, gain in zip(LAYOUTS, gains(c)))
        lines.append(f"| {c.size} | {fmt(best['ms'])} {best['peer']} | {ours} | "
                     f"{fmt_error(c.ours['rel_error'])} ({fmt_error(best['rel_error'])}) |")
    return lines


def ratio_cell(case, peer):
    """A peer's time, and how many times as long as Convoy it takes: bold if it is faster."""
    row = case.rows.get(peer)
    if not row or not row.get("ms"):
        return "–"
    ratio = case.speedup(row)
    return f"{fmt(row['ms'])} ({fmt(ratio)}×)" if ratio >= 1 else f"{fmt(row['ms'])} (**{fmt(ratio)}×**)"


def md_networks(cases, device, precision):
    """Whole networks and blocks, in evaluation and in training, beside every library that ran them."""
    found = [c for mode in NETWORKS for c in select(cases, device=device, precision=precision, series=mode) if c.peers()]
    if not found:
        return []
    peers = list(dict.fromkeys(p for c in found for p in c.rows if p != OURS))
    told = []
    for peer in peers:
        ratios = [c.speedup(c.rows[peer]) for c in found if c.rows.get(peer, {}).get("ms")]
        told.append(f"{peer} in {sum(r > 1 for r in ratios)} of {len(ratios)} (geometric mean {fmt(statistics.geometric_mean(ratios))}×)")
    lines = [f"Faster than {'; '.join(told)}.", "",
             "| ms (× Convoy) | convoy | " + " | ".join(peers) + " | error / largest result (eager's) |", "|---" * (len(peers) + 3) + "|"]
    for c in found:
        eager = c.rows.get("torch eager", {}).get("rel_error")
        lines.append(f"| {c.size}, {c.series.split()[-1]} | {fmt(c.ours['ms'])} | " + " | ".join(ratio_cell(c, p) for p in peers) +
                     f" | {fmt_error(c.ours.get('rel_error'))} ({fmt_error(eager)}) |")
    return lines


def md_losses(cases, device, precision):
    """Every case in which a peer is faster; modules and networks have tables of their own."""
    lost = [(c, c.peers()[0]) for c in select(cases, device=device, precision=precision) if c.series not in ("module", *NETWORKS)
            and c.peers() and c.peers()[0]["ms"] < c.ours["ms"]]
    if not lost:
        return ["In no case of the suite was a peer faster."]
    lines = ["| case | Convoy, ms | fastest peer, ms | |", "|---|---|---|---|"]
    for c, r in sorted(lost, key=lambda p: p[1]["ms"] / p[0].ours["ms"]):
        lines.append(f"| {c.title} | {fmt(c.ours['ms'])} | {fmt(r['ms'])} | {r['peer']} |")
    return lines


def md_runs(cases, device, precision):
    lines = []
    for name, date, where, versions, command in run_lines(select(cases, device=device, precision=precision)):
        lines += [f"- `bench/results/{name}`, {date[:10]}: {where}; {versions}; `{command}`"]
    return lines


def cell_of(case):
    """Convoy's time and error, and what the fastest of the others has."""
    best = case.peers()[0]
    return (f"**{fmt(case.speedup(best))}×** {best['peer']} | {fmt(case.ours['ms'])} ms, {fmt_error(case.ours.get('max_abs_error'))}")


def md_headline(cases, device, precision):
    """Block A on the GPU: the ratio and the errors."""
    case = next(iter(select(cases, device="cuda", precision="fp32", series="full", block="A")), None)
    if not case or not case.peers():
        return []
    best, eager = case.peers()[0], case.rows.get("torch eager", {})
    first, *middle, last = BLOCKS["A"].split(", ")
    return [f"**On an {case.run['machine']['name']} a {first} with {', '.join(middle)} and {last} of `{case.chain.split(' |')[0]}`",
            f"takes {fmt(case.ours['ms'])} ms: {fmt(case.speedup(best))} times as fast as the fastest of {len(case.peers())} ways to run it in "
            f"PyTorch {case.run['versions'].get('torch', '').split('+')[0]}.",
            f"Largest error against float64: {fmt_error(case.ours.get('max_abs_error'))}; eager PyTorch's: "
            f"{fmt_error(eager.get('max_abs_error'))}.**"]


def md_summary(cases, device, precision):
    """Four rows for the README: the blocks, and the middle of the chains that were drawn at random; CPU and GPU."""
    columns = [("cpu", "fp32"), ("cuda", "fp32")]
    machines, lines = [], []
    blocks = {column: {c.block: c for c in select(cases, device=column[0], precision=column[1], series="full") if c.peers()}
              for column in columns}
    for column in columns:
        run = next((c.run for c in blocks[column].values()), None)
        name = run["machine"]["name"] if run else "not measured"
        cores = f", {run['machine']['cores']} cores" if run and run["machine"].get("cores") else ""
        machines.append(f"{name}{cores}")
    head = " | ".join(f"{m}: speedup over | Convoy: time, error" for m in machines)
    lines += [f"| float32 | {head} |", "|---" * 5 + "|"]
    for block in sorted({b for found in blocks.values() for b in found}):
        cells = [cell_of(blocks[c][block]) if block in blocks[c] else "– | –" for c in columns]
        lines.append(f"| {block} | " + " | ".join(cells) + " |")
    ratios = [[c.speedup(c.rows[RIVAL]) for c in select(newest_sample(cases, d), precision=p) if c.rows.get(RIVAL, {}).get("ms")]
              for d, p in columns]
    lines.append("| random chains | " + " | ".join(
        f"**{fmt(statistics.median(r))}×** {RIVAL}, median of {len(r)} | faster in {sum(x > 1 for x in r)}" if r else "– | –"
        for r in ratios) + " |")
    return lines


# Errors that a chain of the sample may have, as part of the output's largest value: ENOUGH, or so many times PyTorch's.
ENOUGH = 5e-6
ALLOWED = {"fp32": (2.0, ("torch eager",)), "tf32": (1.5, ("torch eager", RIVAL))}


class Drawn:
    """One chain of a sample in one precision. `rows`: by peer; if Convoy failed or was left out there is no ratio."""

    def __init__(self, rows, precision):
        self.ours, self.rival, self.eager = (rows.get(p, {}) for p in (OURS, RIVAL, "torch eager"))
        times, most = [r.get("ms") for r in (self.rival, self.ours)], ALLOWED[precision]
        self.ratio = times[0] / times[1] if all(times) else None
        self.faster = self.ratio is not None and self.ratio > 1
        error = self.ours.get("rel_error")
        known = [rows[p]["rel_error"] for p in most[1] if rows.get(p, {}).get("rel_error") is not None]
        self.exact = error is not None and error <= max([ENOUGH] + [most[0] * e for e in known])

    def cells(self):
        """Convoy's time, the rival's, how many times as long that takes, Convoy's error and eager's."""
        ratio = fmt(self.ratio) if self.faster else f"**{fmt(self.ratio)}**"
        error = fmt_error(self.ours.get("rel_error"))
        error = error if self.exact else f"**{error}**"
        return [fmt(self.ours.get("ms")), fmt(self.rival.get("ms")), ratio,
                f"{error} ({fmt_error(self.eager.get('rel_error'))})"]


def md_sample(cases, device, precision):
    """Every chain of the newest sample, also those that Convoy loses or fails; both precisions in one table."""
    found = newest_sample(cases, device)
    if not found:
        return []
    run, rows, numbers = found[0].run, defaultdict(dict), {}
    for r in run["rows"]:
        rows[r["chain"], r["precision"]][r["peer"]] = r
        numbers[r["chain"]] = r["size"].split()[-1]
    precisions = [p for p in ALLOWED if any(key[1] == p for key in rows)]
    drawn = {key: Drawn(row, key[1]) for key, row in rows.items()}
    parts = ", ".join(f"{p} {told_of(d for (_, q), d in drawn.items() if p == q)}" for p in precisions)
    ratios = [d.ratio for d in drawn.values() if d.ratio]
    middle, missing = statistics.median(ratios or [math.nan]), run.get("left_out")
    lines = [f"Faster than {RIVAL} in {told_of(drawn.values())} ({parts}), a median of {fmt(middle)} times as fast; "
             f"{sum(d.exact for d in drawn.values())} of {len(drawn)} are within the error bound."
             + (f" {len(missing)} rows were not measured." if missing else ""), ""]
    columns = [f"{p}: Convoy, ms | {RIVAL}, ms | × | error (eager's)" for p in precisions]
    lines += ["| | chain | " + " | ".join(columns) + " |", "|---" * (2 + 4 * len(precisions)) + "|"]
    for chain, number in numbers.items():
        cells = [cell for p in precisions for cell in (drawn[chain, p].cells() if (chain, p) in drawn else ["–"] * 4)]
        code = chain.replace("|", "\\|")
        lines.append(f"| {number} | `{code}` | " + " | ".join(cells) + " |")
    return lines


def told_of(drawn):
    faster = [d.faster for d in drawn]
    return f"{sum(faster)} of {len(faster)}"


TABLES = {"blocks": md_blocks, "operators": md_operators, "series": md_series, "losses": md_losses, "runs": md_runs,
          "sample": md_sample, "threads": md_threads, "diffusion": md_diffusion, "networks": md_networks,
          "summary": md_summary, "headline": md_headline}
