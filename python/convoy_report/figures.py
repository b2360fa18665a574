"""The figures of the page, each with the commands that repeat it."""

import math
from collections import defaultdict

from .cases import BLOCKS, OURS, RIVAL, fmt, fmt_error, newest_sample, select
from .svg import FAMILIES, WIDTH, LogAxes, esc, family, legend, line, svg, text


def figure(name, title, body, commands, note=""):
    """A figure with the commands that repeat it."""
    repeat = "\n".join(dict.fromkeys(commands))
    return (f'<figure id="{esc(name)}"><h3>{esc(title)}</h3>{body}<figcaption>{note}<details><summary>how to repeat it'
            f"</summary><pre>{esc(repeat)}</pre></details></figcaption></figure>")


def commands_of(cases):
    return [c.run["command"].strip() for c in cases]


def bars(rows, label, mark=None, letters=0):
    """Horizontal bars from 0 on, on a linear scale: [(name, length, told, kind)]. mark: a line at 1, of that name.
    letters: of the longest name, if bars of several pictures begin at one place."""
    high = max(r[1] for r in rows)
    # Room for the longest name and the longest figure; 7.3 of our units are as wide as a letter.
    start = 10 + 7.3 * max(letters, *(len(r[0]) for r in rows))
    room = max(WIDTH - start - 10 - 7.3 * max(len(r[2]) for r in rows), 60)
    parts = []
    for i, (name, length, told, kind) in enumerate(rows):
        y, width = 8 + 24 * i, max(room * length / high, 1)
        parts += [text(start - 6, y + 14, name, "end"),
                  f'<rect x="{start:.1f}" y="{y}" width="{width:.1f}" height="18" rx="2" class="{kind}"/>',
                  text(start + width + 5, y + 14, told, kind="value")]
    height = 16 + 24 * len(rows)
    if mark:
        parts += [line(start + room / high, 2, start + room / high, height - 4),
                  text(start + room / high, height + 9, mark, "middle", "small")]
    return svg(height + 16 * bool(mark), parts, label)


def short(peer):
    return peer.replace(" channels_last", " NHWC").replace("max-autotune", "autotune")


def time_rows(case, rows):
    """Bars of times, the fastest first, including Convoy; a peer that is faster is red. No ratios of times from a busy machine."""
    def told(r):
        return f"{fmt(r['ms'])} ms" + ("" if r["peer"] == OURS or case.busy else f", {fmt(case.speedup(r))}×")

    def kind(r):
        return "loss" if r["ms"] < case.ours["ms"] and not r["peer"].startswith(OURS) else family(r["peer"])

    return [(short(r["peer"]), r["ms"], told(r), kind(r)) for r in sorted(rows, key=lambda r: r["ms"])]


def speedup_figures(cases, device, precision):
    for case in sorted(select(cases, device=device, precision=precision, series="full"), key=lambda c: c.block or ""):
        drawn = time_rows(case, [r for r in case.rows.values() if r.get("ms")])
        note = f"<p>Shorter is faster; ×: times as long as Convoy takes.</p><p><code>{esc(case.chain)}</code></p>"
        yield figure(f"speedup-{device}-{precision}-{case.block}", f"{case.block}: {BLOCKS.get(case.block, '')}",
                     bars(drawn, f"times of block {case.block}"), [r["command"] for r in case.rows.values()
                     if r.get("command")] or commands_of([case]), note)


BUSY = "Other processes used the processors during this measurement: these times mean little."


def chain_figures(cases, device, precision):
    """Chains that were timed by themselves: what `convoy bench --json` wrote."""
    for i, case in enumerate(select(cases, device=device, precision=precision, series="chain"), 1):
        drawn = time_rows(case, [r for r in case.rows.values() if r.get("ms")])
        yield figure(f"chain-{device}-{precision}-{i}", case.chain, bars(drawn, f"times of {case.chain}"),
                     commands_of([case]), f"<p>Shorter is faster.{' ' + BUSY if case.busy else ''}</p>")


def ratio_figure(name, title, found, rival, note):
    """A bar for each case: Convoy against the peer that `rival` picks."""
    rows = []
    for c in found:
        row = rival(c)
        ratio = c.speedup(row)
        rows.append((str(c.size), ratio, f"{fmt(ratio)}× {row['peer'].split()[0]}",
                     family(row["peer"]) if ratio >= 1 else "loss"))
    return figure(name, title, bars(rows, title, mark=f"{OURS} = 1"), commands_of(found), f"<p>{note}</p>")


def operator_figure(cases, device, precision):
    found = [c for c in select(cases, device=device, precision=precision, series="operator") if c.peers()]
    if found:
        yield ratio_figure(f"operators-{device}-{precision}", "single operators", found, lambda c: c.peers()[0],
                           "Time of the fastest other library as a multiple of Convoy's. Red: it is faster than Convoy.")


EDGES = (0.5, 0.8, 1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8)  # of the histogram's bins


def histogram(ratios, label):
    """How many chains are how many times as fast: a column for each bin, numbered by count and by edge."""
    bins = [[r for r in ratios if low <= r < high] for low, high in zip((0, *EDGES), (*EDGES, math.inf))]
    high, step, base = max(map(len, bins)), (WIDTH - 24) / len(bins), 150
    parts = []
    for i, inside in enumerate(bins):
        x, height = 12 + step * i, 120 * len(inside) / high
        kind = "loss" if i <= EDGES.index(1) else "p0"
        parts.append(f'<rect x="{x + 1.5:.1f}" y="{base - height:.1f}" width="{step - 3:.1f}" height="{height:.1f}" '
                     f'class="{kind}"/>')
        if inside:
            parts.append(text(x + step / 2, base - height - 4, len(inside), "middle", "small"))
        if i < len(EDGES):
            parts.append(text(x + step, base + 14, f"{EDGES[i]:g}", "middle", "small"))
    parts += [line(12, base, WIDTH - 12, base), text(WIDTH / 2, base + 31, f"times as fast as {RIVAL}", "middle", "small")]
    return svg(base + 38, parts, label)


def sample_figure(cases, device, precision):
    found = select(newest_sample(cases, device), precision=precision)
    found = sorted((c for c in found if c.rows.get(RIVAL, {}).get("ms")), key=lambda c: c.speedup(c.rows[RIVAL]))
    if not found:
        return
    lines = "".join(f"<tr><td><code>{esc(c.chain)}</code><td>{fmt(c.ours['ms'])}<td>{fmt(c.rows[RIVAL]['ms'])}"
                    f"<td>{fmt(c.speedup(c.rows[RIVAL]))}</tr>" for c in found)
    note = (f"<p>{len(found)} chains; red: {RIVAL} is faster.</p><details><summary>every chain</summary>"
            f'<div class="scroll"><table><tr><th>chain<th>Convoy, ms<th>{RIVAL}, ms<th>×</tr>{lines}</table></div></details>')
    yield figure(f"sample-{device}-{precision}", "random chains",
                 histogram([c.speedup(c.rows[RIVAL]) for c in found], "how many times as fast"), commands_of(found), note)


def thread_figure(cases, device, precision):
    found = select(cases, device=device, precision=precision, series="threads")
    if not found:
        return
    counts, axes = sorted({c.size for c in found}), None
    speed = {b: {c.size: c.ours["ms"] for c in found if c.block == b} for b in sorted({c.block for c in found})}
    ratios = {b: [(n, ms[min(ms)] / ms[n]) for n in counts if n in ms] for b, ms in speed.items()}
    axes = LogAxes(counts, [r for points in ratios.values() for _, r in points] + counts, "threads", "times as fast")
    axes.path([(counts[0], 1), (counts[-1], counts[-1] / counts[0])], "roof")
    for i, (block, points) in enumerate(ratios.items()):
        axes.path(points, f"p{i}")
        for n, r in points:
            axes.dot(n, r, f"p{i}", f"{block}, {n} threads: {fmt(r)} times as fast", 2.5)
    note = f"<p>{esc(found[0].run['machine']['name'])}. The dashed line is linear scaling.</p>"
    blocks = [f"block {block}" for block in ratios]
    names = legend(blocks, lambda block: f"p{blocks.index(block)}")
    yield figure(f"threads-{device}-{precision}", "thread scaling", axes.svg("thread scaling") + names, commands_of(found), note)


# Peaks from data sheets, for runs that have not measured them: GFLOP/s of fp16 on tensor cores. A product as accurate as
# float32 takes three of fp16, tf32 one.
SHEETS = {"NVIDIA H200": 989_500}
PRODUCTS = {"fp32": 3}


def roof_of(machine, precision):
    """GFLOP/s, GB/s, and where they come from; (None, None, "not measured")."""
    gflops, gbps = machine.get("peak_gflops"), machine.get("peak_gbps")
    if gflops and gbps:
        return gflops, gbps, f"{fmt(gflops)} GFLOP/s and {fmt(gbps)} GB/s, measured in the same run"
    if gbps and machine.get("name") in SHEETS:
        gflops = SHEETS[machine["name"]] / PRODUCTS.get(precision, 1)
        return gflops, gbps, (f"{fmt(gbps)} GB/s, measured in the same run; {fmt(gflops)} GFLOP/s by the data sheet (fp16 "
                              f"tensor cores, {PRODUCTS.get(precision, 1)} products for each)")
    return None, None, "not measured"


def roofline_figure(cases, device, precision):
    found = select(cases, device=device, precision=precision)
    found = [c for c in found if c.ours.get("flops") and c.ours.get("bytes")]
    if not found:
        return
    machine = found[0].run["machine"]
    gflops, gbps, limits = roof_of(machine, precision)
    points = [(c.ours["flops"] / c.ours["bytes"], 1e-6 * c.ours["flops"] / r["ms"], r, c)
              for c in found for r in c.rows.values() if r.get("ms") and (r["peer"] == OURS or c.series == "full")]
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    if gflops and gbps:
        ys.append(gflops)
        xs.append(gflops / gbps)
    axes = LogAxes(xs, ys, "operations per byte of inputs and outputs", "GFLOP/s")
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
    axes.parts += [text(axes.x(x) - 7, axes.y(y) + 4, c.block, "end", "name")  # on top of the dots
                   for x, y, r, c in points if r["peer"] == OURS and c.series == "full"]
    note = (f"<p>Every chain measured. Filled: Convoy; hollow: other libraries on A, B and C. Roof: {limits}. Convolutions "
            "are counted as direct ones, so Winograd's algorithm may exceed it.</p>")
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
        yield figure(f"size-{device}-{precision}-{block}-{series}", f"{block}: time against {series}",
                     axes.svg(f"time of {block} against {series}") + legend(curves), commands_of(found))


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
            axes.parts.append(text(axes.x(x) - 7, axes.y(y) + 4, c.block, "end", "name"))
    yield figure(f"error-{device}-{precision}", "error against time",
                 axes.svg("error against time") + legend(dict.fromkeys(
                     r["peer"] for *_, r, c in spots if r["peer"] in FAMILIES)), commands_of(found),
                 "<p>Lower is more accurate; further left is faster.</p>")


FIGURES = (speedup_figures, chain_figures, error_figure, roofline_figure, sample_figure, thread_figure, operator_figure,
           size_figures)
