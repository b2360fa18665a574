"""`convoy report`: the files of bench/results as one self-contained HTML page, and the tables of the documentation.

    python -m convoy.report [--results DIR] [-o report.html]    draw the page
    python -m convoy.report --update FILE...                    write the figures into Markdown files
    python -m convoy.report --check FILE...                     exit 1 where a figure there is not the results'

Nothing but the standard library; figures are inline SVG, coloured by the page's style for light and dark. In a
Markdown file everything between `<!-- figures: NAME -->` and `<!-- end -->` is written by this program. A ratio is
always made of rows of one run: of several files that measured a case the newest is taken, whole.
"""

import argparse
import html
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

OURS, RIVAL = "convoy", "torch.compile"
WIDTH, HEIGHT = 440, 300
BLOCKS = {
    "A": "convolution, GroupNorm, scale, max pooling, clamp",
    "B": "convolution, GroupNorm, tanh, hardswish, residual, logsumexp",
    "C": "convolution, bias, scale, sigmoid, GroupNorm",
}
# Peers keep their colour in every figure; CSS defines --p0 ... --p7 for light and dark.
FAMILIES = (OURS, "torch eager", "torch.compile", "onnxruntime", "openvino")


# ---- reading ----


class Case:
    """One chain on one device in one precision: its rows by peer, and the run they come from."""

    def __init__(self, run, key):
        self.run, self.rows = run, {}
        self.device, self.precision, self.series, self.block, self.size, self.chain = key

    @property
    def ours(self):
        return self.rows.get(OURS)

    def peers(self):
        """Rows of others that have a time, the fastest first."""
        rows = [r for p, r in self.rows.items() if not p.startswith(OURS) and r.get("ms")]
        return sorted(rows, key=lambda r: r["ms"])

    def speedup(self, row):
        return row["ms"] / self.ours["ms"]

    @property
    def title(self):
        return f"{self.block}, {self.series} {self.size}" if self.block else str(self.size)


def read(path):
    run = json.loads(path.read_text())
    missing = [k for k in ("date", "machine", "versions", "command", "rows") if k not in run]
    if missing:
        raise ValueError(f"{path}: no {', '.join(missing)}")
    return run | {"file": path.name}


def load(folder):
    return cases_of([read(path) for path in sorted(Path(folder).glob("*.json"))])


def cases_of(runs):
    """Cases, those of the newest run first."""
    cases = {}
    for run in sorted(runs, key=lambda r: r["date"], reverse=True):
        here = {}
        for row in run["rows"]:
            series = row.get("series") or ("full" if row.get("block") else "chain")
            key = (row["device"], row["precision"], series, row.get("block"), row.get("size"), row.get("chain"))
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
    """(device, precision) pairs, the CPU first."""
    return sorted({(c.device, c.precision) for c in cases}, key=lambda d: (d[0] != "cpu", d))


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


# ---- SVG ----


def esc(text):
    return html.escape(str(text), quote=True)


def text(x, y, content, anchor="start", kind=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{esc(content)}</text>'


def line(x1, y1, x2, y2, kind="axis"):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def svg(height, parts, label):
    return (f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{esc(label)}">'
            + "".join(parts) + "</svg>")


def family(peer):
    found = [i for i, name in enumerate(FAMILIES) if peer.startswith(name)]
    return f"p{found[0]}" if found else "p5"


def tick(value):
    return f"{value:g}" if 0.01 <= value < 1e5 else f"1e{round(math.log10(value))}"


class LogAxes:
    """Log-log axes with decades as grid lines."""

    left, right, top, bottom = 58, 12, 10, 42

    def __init__(self, xs, ys, x_title, y_title, height=HEIGHT):
        self.height = height
        self.x0, self.x1 = self._range(xs)
        self.y0, self.y1 = self._range(ys)
        self.parts = []
        for v in self._ticks(self.x0, self.x1):
            self.parts += [line(self.x(v), self.top, self.x(v), height - self.bottom, "grid"),
                           text(self.x(v), height - self.bottom + 15, tick(v), "middle", "small")]
        for v in self._ticks(self.y0, self.y1):
            self.parts += [line(self.left, self.y(v), WIDTH - self.right, self.y(v), "grid"),
                           text(self.left - 5, self.y(v) + 4, tick(v), "end", "small")]
        self.parts += [text((self.left + WIDTH - self.right) / 2, height - 8, x_title, "middle", "small"),
                       f'<text transform="translate(12 {height / 2:.0f}) rotate(-90)" text-anchor="middle" '
                       f'class="small">{esc(y_title)}</text>']

    @staticmethod
    def _range(values):
        low, high = min(values), max(values)
        return low / 1.25, high * 1.25

    @staticmethod
    def _ticks(low, high):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        wide = math.log10(high / low) > 1.6
        ticks = [m * 10.0**d for d in decades for m in ((1,) if wide else (1, 2, 5))]
        return [t for t in ticks if low <= t <= high]

    def x(self, v):
        part = math.log(v / self.x0) / math.log(self.x1 / self.x0)
        return self.left + part * (WIDTH - self.left - self.right)

    def y(self, v):
        part = math.log(v / self.y0) / math.log(self.y1 / self.y0)
        return self.height - self.bottom - part * (self.height - self.top - self.bottom)

    def dot(self, x, y, kind, title, radius=3.5):
        self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}" class="dot {kind}">'
                          f"<title>{esc(title)}</title></circle>")

    def path(self, points, kind):
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{places}" class="curve {kind}"/>')

    def svg(self, label):
        return svg(self.height, self.parts, label)


def legend(names):
    return '<p class="legend">' + " ".join(f'<span class="{family(n)}">{esc(n)}</span>' for n in names) + "</p>"


def figure(name, title, body, commands, note=""):
    """A figure with the commands that repeat it."""
    repeat = "\n".join(dict.fromkeys(commands))
    return (f'<figure id="{esc(name)}"><h3>{esc(title)}</h3>{body}<figcaption>{note}<details><summary>repeat it'
            f"</summary><pre>{esc(repeat)}</pre></details></figcaption></figure>")


def commands_of(cases):
    return [c.run["command"].strip() for c in cases]


# ---- figures ----


def bars(rows, label):
    """Horizontal bars on a log scale around 1: [(name, ratio, told, kind)]. Under 1 Convoy loses."""
    low = min([0.8] + [r[1] for r in rows]) / 1.1
    high = max([2.0] + [r[1] for r in rows]) * 1.1
    # Beside the bars: the longest name, the longest figure; 7.2 of our units are as wide as a letter.
    start = 12 + 7.2 * max(len(r[0]) for r in rows)
    room = max(WIDTH - start - 12 - 7.2 * max(len(r[2]) for r in rows), 60)

    def place(v):
        return start + room * math.log(v / low) / math.log(high / low)

    parts = []
    for i, (name, ratio, told, kind) in enumerate(rows):
        y = 8 + 24 * i
        a, b = sorted((place(1), place(ratio)))
        parts += [text(start - 8, y + 14, name, "end"),
                  f'<rect x="{a:.1f}" y="{y}" width="{max(b - a, 1):.1f}" height="18" rx="2" class="{kind}"/>',
                  text(b + 5, y + 14, told, kind="value")]
    height = 16 + 24 * len(rows)
    parts.append(line(place(1), 2, place(1), height - 4))
    return svg(height, parts, label)


def speedup_figures(cases, device, precision):
    for case in sorted(select(cases, device=device, precision=precision, series="full"), key=lambda c: c.block or ""):
        rows = [r for r in case.rows.values() if r["peer"] != OURS and r.get("ms")]
        rows.sort(key=lambda r: r["ms"])
        drawn = [(r["peer"].replace(" channels_last", " NHWC").replace("max-autotune", "autotune"), case.speedup(r),
                  f"{fmt(case.speedup(r))}× {fmt(r['ms'])} ms",
                  family(r["peer"]) if case.speedup(r) >= 1 else "loss") for r in rows]
        note = (f"<p>Convoy: {fmt(case.ours['ms'])} ms. Bars: how many times as long the others take (log scale).</p>"
                f"<p><code>{esc(case.chain)}</code></p>")
        yield figure(f"speedup-{device}-{precision}-{case.block}", f"{case.block}: {BLOCKS.get(case.block, '')}",
                     bars(drawn, f"speed-up on block {case.block}"), [r["command"] for r in case.rows.values()
                     if r.get("command")] or commands_of([case]), note)


def ratio_figure(name, title, found, rival, note):
    """A bar for each case: Convoy against the peer that `rival` picks."""
    rows = []
    for c in found:
        row = rival(c)
        ratio = c.speedup(row)
        rows.append((str(c.size), ratio, f"{fmt(ratio)}× {row['peer'].split()[0]}",
                     family(row["peer"]) if ratio >= 1 else "loss"))
    return figure(name, title, bars(rows, title), commands_of(found), f"<p>{note}</p>")


def operator_figure(cases, device, precision):
    found = [c for c in select(cases, device=device, precision=precision, series="operator") if c.peers()]
    if found:
        yield ratio_figure(f"operators-{device}-{precision}", "single operators", found, lambda c: c.peers()[0],
                           "Convoy against the fastest peer of each; bars to the left of the line: that peer is faster.")


def sample_figure(cases, device, precision):
    found = select(newest_sample(cases, device), precision=precision)
    found = [c for c in found if c.rows.get(RIVAL, {}).get("ms")]
    if found:
        yield ratio_figure(f"sample-{device}-{precision}", "chains drawn at random", found, lambda c: c.rows[RIVAL],
                           f"Convoy against {RIVAL}; bars to the left of the line: that one is faster.")


def roofline_figure(cases, device, precision):
    found = select(cases, device=device, precision=precision)
    found = [c for c in found if c.ours.get("flops") and c.ours.get("bytes")]
    if not found:
        return
    machine = found[0].run["machine"]
    gflops, gbps = machine.get("peak_gflops"), machine.get("peak_gbps")
    points = [(c.ours["flops"] / c.ours["bytes"], 1e-6 * c.ours["flops"] / r["ms"], r, c)
              for c in found for r in c.rows.values() if r.get("ms") and (r["peer"] == OURS or c.series == "full")]
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    if gflops and gbps:
        ys.append(gflops)
        xs.append(gflops / gbps)
    axes = LogAxes(xs, ys, "operations per byte that must move", "GFLOP/s")
    if gflops and gbps:
        ridge = gflops / gbps
        roof = [(x, min(gflops, gbps * x)) for x in (axes.x0, ridge, axes.x1)]
        low = axes.y0 / gbps
        if roof[0][1] < axes.y0:
            roof[0] = (low, axes.y0)
        axes.path(roof, "roof")
    for x, y, r, c in sorted(points, key=lambda p: p[2]["peer"] == OURS):
        axes.dot(x, y, family(r["peer"]) + (" unfused" if r["peer"] != OURS else ""),
                 f"{c.title}, {r['peer']}: {fmt(y)} GFLOP/s, {fmt(r['ms'])} ms")
    limits = f"{fmt(gflops)} GFLOP/s and {fmt(gbps)} GB/s, measured in the same run" if gflops and gbps else "not measured"
    note = (f"<p>Every chain measured; filled: Convoy, hollow: peers on A, B and C. The roof: {limits}. Convolutions "
            "count as direct ones, so Winograd forms may lie above it.</p>")
    yield figure(f"roofline-{device}-{precision}", "roofline", axes.svg("roofline") + legend(
        dict.fromkeys(r["peer"] for *_, r, c in points if r["peer"] in FAMILIES)), commands_of(found), note)


def size_figures(cases, device, precision):
    groups = defaultdict(list)
    for c in select(cases, device=device, precision=precision):
        if c.series in ("batch", "image", "channels") and c.block:
            groups[c.block, c.series].append(c)
    for (block, series), found in sorted(groups.items()):
        curves = defaultdict(list)
        for c in sorted(found, key=lambda c: c.size):
            for r in c.rows.values():
                if r.get("ms"):
                    curves[r["peer"]].append((c.size, r["ms"]))
        spots = [p for points in curves.values() for p in points]
        axes = LogAxes([x for x, _ in spots], [y for _, y in spots], series, "ms")
        for peer, points in curves.items():
            axes.path(points, family(peer))
            for x, y in points:
                axes.dot(x, y, family(peer), f"{peer}, {series} {x}: {fmt(y)} ms", 2.5)
        yield figure(f"size-{device}-{precision}-{block}-{series}", f"{block}: cost against {series}",
                     axes.svg(f"cost of {block} against {series}") + legend(curves), commands_of(found))


def error_figure(cases, device, precision):
    found = select(cases, device=device, precision=precision, series="full")
    spots = [(r["ms"], r["max_abs_error"], r, c) for c in found for r in c.rows.values()
             if r.get("ms") and r.get("max_abs_error")]
    if not spots:
        return
    axes = LogAxes([s[0] for s in spots], [s[1] for s in spots], "ms", "max abs error against float64")
    for x, y, r, c in spots:
        axes.dot(x, y, family(r["peer"]), f"{c.block}, {r['peer']}: {fmt(x)} ms, error {fmt_error(y)}")
        if r["peer"] == OURS:
            axes.parts.append(text(axes.x(x) - 7, axes.y(y) + 4, c.block, "end", "small"))
    yield figure(f"error-{device}-{precision}", "error beside speed",
                 axes.svg("error beside speed") + legend(dict.fromkeys(
                     r["peer"] for *_, r, c in spots if r["peer"] in FAMILIES)), commands_of(found),
                 "<p>Down is more accurate, left is faster.</p>")


FIGURES = (speedup_figures, error_figure, roofline_figure, operator_figure, size_figures, sample_figure)


# ---- the page ----

STYLE = """
:root{--bg:#fcfcfa;--fg:#1c1e21;--dim:#5d646e;--line:#d9dce0;--p0:#0a7d5a;--p1:#c2571a;--p2:#8e5bb5;--p3:#2f6fb3;
--p4:#a8851a;--p5:#777;--loss:#c22f3d}
@media(prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e6e7e9;--dim:#9aa2ad;--line:#33383f;--p0:#3ecf9c;--p1:#f08c4f;
--p2:#bb8fe0;--p3:#6aaaf0;--p4:#dcb94a;--p5:#999;--loss:#ff6b78}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:1400px;background:var(--bg);color:var(--fg);font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.6rem;margin:.3em 0}h2{font-size:1.25rem;margin:1.6em 0 .4em}h3{font-size:1rem;margin:.2em 0}
.grid{display:grid;gap:1.2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr))}
figure{margin:0;padding:.8rem;border:1px solid var(--line);border-radius:8px;min-width:0}
figcaption,.dim{color:var(--dim);font-size:.85rem}figcaption p{margin:.3em 0}
svg{display:block;width:100%;height:auto;max-width:560px}svg text{fill:var(--fg);font:12px system-ui,sans-serif}
svg text.small{font-size:11px;fill:var(--dim)}svg text.value{font-size:11.5px}
.axis{stroke:var(--fg);stroke-width:1}.grid-line,.grid line{stroke-width:1}line.grid{stroke:var(--line)}
.curve{fill:none;stroke-width:1.8}.roof{stroke:var(--fg);stroke-dasharray:5 4}
rect.p0{fill:var(--p0)}rect.p1{fill:var(--p1)}rect.p2{fill:var(--p2)}rect.p3{fill:var(--p3)}rect.p4{fill:var(--p4)}
rect.p5{fill:var(--p5)}rect.loss{fill:var(--loss)}
.dot{stroke-width:1.4}.p0{color:var(--p0)}.p1{color:var(--p1)}.p2{color:var(--p2)}.p3{color:var(--p3)}.p4{color:var(--p4)}
.p5{color:var(--p5)}.dot{fill:currentColor;stroke:currentColor}.dot.unfused{fill:var(--bg)}.curve{stroke:currentColor}
.curve.roof{stroke:var(--dim)}
.legend{margin:.3em 0;font-size:.82rem;display:flex;flex-wrap:wrap;gap:.2em 1em}
.legend span::before{content:"";display:inline-block;width:.7em;height:.7em;border-radius:50%;background:currentColor;
margin-right:.35em}
pre,code{font:12px/1.4 ui-monospace,monospace}pre{overflow-x:auto;margin:.4em 0}code{overflow-wrap:anywhere}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
td,th{padding:.2em .7em;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
td:first-child,th:first-child,td.l{text-align:left}tr.ours td{font-weight:600}
"""


def all_rows_table(cases, device, precision):
    """Every row, also those where a peer is faster or failed."""
    lines = ["<table><tr><th>case<th>peer<th>ms<th>× Convoy<th>max abs error<th>GFLOP/s<th>runs</tr>"]
    for c in select(cases, device=device, precision=precision):
        for r in c.rows.values():
            if not r.get("ms"):
                lines.append(f'<tr><td>{esc(c.title)}<td class=l>{esc(r["peer"])}<td class=l colspan=5>'
                             f'{esc(r.get("error", "no time"))}</tr>')
                continue
            rate = fmt(1e-6 * r["flops"] / r["ms"]) if r.get("flops") else "–"
            lines.append(f'<tr{" class=ours" if r["peer"] == OURS else ""} title="{esc(r.get("command", ""))}">'
                         f'<td>{esc(c.title)}<td class=l>{esc(r["peer"])}<td>{fmt(r["ms"])}<td>{fmt(c.speedup(r))}'
                         f'<td>{fmt_error(r.get("max_abs_error"))}<td>{rate}<td>{r.get("runs", "–")}</tr>')
    return "".join(lines) + "</table>"


def run_lines(cases):
    runs = {c.run["file"]: c.run for c in cases}
    for name, run in sorted(runs.items()):
        machine = run["machine"]
        where = machine if isinstance(machine, str) else ", ".join(f"{v}" if isinstance(v, str) else f"{k} {fmt(v, 4)}"
                                                                   for k, v in machine.items() if v is not None)
        versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items())
        yield name, run["date"], where, versions, run["command"].strip()


def page(cases):
    out = ['<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Convoy: measured</title>'
           '<meta name="viewport" content="width=device-width,initial-scale=1">'
           f"<style>{STYLE}</style></head><body><h1>Convoy, measured</h1>"]
    for device, precision in devices(cases):
        chosen = select(cases, device=device, precision=precision)
        threads = {c.ours.get("threads") for c in chosen if c.series != "threads"} - {None, 0}
        told = f", {max(threads)} threads" if device == "cpu" and threads else ""
        out.append(f'<h2 id="{device}-{precision}">{device}, {precision}{told}</h2><div class="grid">')
        for make in FIGURES:
            out += make(cases, device, precision)
        out.append(f'</div><details><summary>every row</summary><div class="scroll">'
                   f"{all_rows_table(cases, device, precision)}</div></details>")
    out.append("<h2>Runs</h2>")
    for name, date, where, versions, command in run_lines(cases):
        out.append(f'<p class="dim"><b>{esc(name)}</b>, {esc(date)}<br>{esc(where)}<br>{esc(versions)}<br>'
                   f"<code>{esc(command)}</code></p>")
    return "".join(out) + "</body></html>\n"


# ---- Markdown ----


ERRORS = (("max_abs_error", "max abs error"), ("rms_error", "rms error"))  # the second: not in older files


def md_blocks(cases, device, precision):
    """Full-size times of everyone, and how many times as fast Convoy is."""
    found = {c.block: c for c in select(cases, device=device, precision=precision, series="full")}
    if not found:
        return []
    names = sorted(found)
    peers = list(dict.fromkeys(p for b in names for p in found[b].rows))
    known = {key for b in names for r in found[b].rows.values() for key in r}
    kinds = [(key, words) for key, words in ERRORS if key in known]
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
    lines.append("| **Convoy is faster than the fastest peer by** | " + " | ".join(
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
    """Convoy's cost per size, and what the fastest peer takes where peers were measured."""
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


def md_losses(cases, device, precision):
    """Every case in which a peer is faster."""
    lost = [(c, c.peers()[0]) for c in select(cases, device=device, precision=precision) if c.peers() and
            c.peers()[0]["ms"] < c.ours["ms"]]
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


# Errors that a chain of the sample may have, as part of the output's largest value: ENOUGH, or so many times PyTorch's.
ENOUGH = 5e-6
ALLOWED = {"fp32": (2.0, ("torch eager",)), "tf32": (1.5, ("torch eager", RIVAL))}


class Drawn:
    """One chain of a sample in one precision. `rows`: by peer; where Convoy failed or was left out there is no ratio."""

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
    lines = [f"Faster than {RIVAL} in {told_of(drawn.values())} ({parts}), {fmt(middle)} times as fast in the middle; "
             f"errors as small as they must be in {sum(d.exact for d in drawn.values())}."
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
          "sample": md_sample, "threads": md_threads}
MARK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)


def render(cases, name, absent="Not measured yet.\n"):
    """`blocks-cpu-fp32`: the table, the device, the precision; `all` for tables of every precision."""
    kind, device, precision = name.split("-")
    wanted = {"device": device} if precision == "all" else {"device": device, "precision": precision}
    lines = TABLES[kind](cases, device, precision) if select(cases, **wanted) else []
    return "\n".join(lines) + "\n" if lines else absent


def filled(document, cases):
    return MARK.sub(lambda m: m[1] + render(cases, m[2]) + m[3], document)


def documents(paths, cases, write):
    """0, or 1 where a file's figures are not those of the results."""
    status = 0
    for path in map(Path, paths):
        old = path.read_text()
        new = filled(old, cases)
        if write and new != old:
            path.write_text(new)
        elif new != old:
            print(f"{path}: its figures are not those of the results; python -m convoy.report --update {path}",
                  file=sys.stderr)
            status = 1
    return status


def main(argv=None):
    parser = argparse.ArgumentParser(prog="convoy report", description="the files of bench/results as one page")
    parser.add_argument("--results", default="bench/results", metavar="DIR")
    parser.add_argument("-o", "--output", default="report.html")
    parser.add_argument("--update", nargs="+", metavar="FILE", help="write the figures into these Markdown files")
    parser.add_argument("--check", nargs="+", metavar="FILE", help="exit 1 unless these files have the results' figures")
    args = parser.parse_args(argv)
    try:
        cases = load(args.results)
    except (OSError, ValueError) as problem:
        print(f"convoy report: {problem}", file=sys.stderr)
        return 2
    if args.update or args.check:
        return documents(args.update or args.check, cases, bool(args.update))
    if not cases:
        print(f"convoy report: no results in {args.results}", file=sys.stderr)
        return 2
    Path(args.output).write_text(page(cases))
    print(f"{args.output}: {len(cases)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
