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
    # Room for the longest name, and for every bar with its figure, which is never left of the mark; 7.3 of our units are as wide
    # as a letter.
    start = 10 + 7.3 * max(letters, *(len(r[0]) for r in rows))
    room = max(min((WIDTH - start - 10 - 7.3 * len(told)) * high / max(length, bool(mark)) for _, length, told, _ in rows), 60)
    height, parts = 16 + 24 * len(rows), []
    if mark:  # below the bars and their figures
        parts += [line(start + room / high, 2, start + room / high, height - 4),
                  text(start + room / high, height + 9, mark, "middle", "small")]
    for i, (name, length, told, kind) in enumerate(rows):
        y, width = 8 + 24 * i, max(room * length / high, 1)
        parts += [text(start - 6, y + 14, name, "end"),
                  f'<rect x="{start:.1f}" y="{y}" width="{width:.1f}" height="18" rx="2" class="{kind}"/>',
                  text(start + (max(width, room / high) if mark else width) + 5, y + 14, told, kind="value")]
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
        told = "Shorter is faster; × is the time relative to Convoy." if case.peers() else "No other library was measured."
        note = f"<p>{told}</p><p><code>{esc(case.chain)}</code></p>"
        yield figure(f"speedup-{device}-{precision}-{case.block}", f"{case.block}: {BLOCKS.get(case.block, '')}",
                     bars(drawn, f"times of block {case.block}"), [r["command"] for r in case.rows.values()
                     if r.get("command")] or commands_of([case]), note)


BUSY = "Other processes used the processors during this measurement; these times are not reliable."


def chain_figures(cases, device, precision):
    """Single chains, from `convoy bench --json`."""
    for i, case in enumerate(select(cases, device=device, precision=precision, series="chain"), 1):
        drawn = time_rows(case, [r for r in case.rows.values() if r.get("ms")])
        yield figure(f"chain-{device}-{precision}-{i}", case.chain, bars(drawn, f"times of {case.chain}"),
                     commands_of([case]), f"<p>Shorter is faster.{' ' + BUSY if case.busy else ''}</p>")


FASTEST = "Time of the fastest other library as a multiple of Convoy's. Red: it is faster than Convoy."


def ratio_figure(name, title, found, note, ours=OURS):
    """Convoy's bar, and one for each case: the fastest peer against Convoy, or against another row of ours; its colour is the peer's."""
    rows = [(ours, 1, "1×", family(OURS))]
    for c in found:
        row = c.peers()[0]
        ratio = row["ms"] / c.rows[ours]["ms"]
        lost = ratio < 1  # the colour then says so, and the peer needs a name
        rows.append((str(c.size), ratio, f"{fmt(ratio)}×" + f" {short(row['peer'])}" * lost, "loss" if lost else family(row["peer"])))
    names = legend(dict.fromkeys(p for p in FAMILIES if p == OURS or any(c.peers()[0]["peer"].startswith(p) for c in found)))
    return figure(name, title, bars(rows, title, mark=f"{OURS} = 1") + names, commands_of(found), f"<p>{note}</p>")


def operator_figure(cases, device, precision):
    found = [c for c in select(cases, device=device, precision=precision, series="operator") if c.peers()]
    if found:
        yield ratio_figure(f"operators-{device}-{precision}", "Single operators", found, FASTEST)


def diffusion_figures(cases, device, precision):
    """Blocks of diffusion models, in both layouts of memory, against the fastest PyTorch in either."""
    found = [c for c in select(cases, device=device, precision=precision, series="diffusion") if c.peers()]
    for layout, ours in (("contiguous", OURS), ("channels_last", f"{OURS} channels_last")):
        if drawn := [c for c in found if ours in c.rows]:
            yield ratio_figure(f"diffusion-{device}-{precision}-{layout}", f"Diffusion models, {layout}", drawn,
                               "Time of the fastest PyTorch, in either layout, as a multiple of Convoy's. Red: PyTorch is faster.", ours)


def network_figures(cases, device, precision):
    """Whole networks and blocks against the fastest library that ran them."""
    for mode in ("eval", "train"):
        if found := [c for c in select(cases, device=device, precision=precision, series=f"network {mode}") if c.peers()]:
            yield ratio_figure(f"networks-{device}-{precision}-{mode}", f"Networks, .{mode}()", found, FASTEST)


def histogram(ratios, label, edges, even=(1, 1)):
    """How many cases are how many times as fast: a column for each bin, numbered by count and by edge. Below `even` they are
    slower, between its two edges as fast."""
    used = [e for e in edges if e >= even[0] or e > min(ratios)]
    used = [e for e in used if e <= even[1] or e < max(ratios)]
    ends = list(zip((0, *used), (*used, math.inf)))
    bins = [sum(low <= r < high for r in ratios) for low, high in ends]
    step, base = (WIDTH - 24) / len(bins), 150
    parts = []
    for i, (count, (low, high)) in enumerate(zip(bins, ends)):
        x, height = 12 + step * i, 120 * count / max(bins)
        kind = "loss" if high <= even[0] else "p0" if low >= even[1] else "p5"
        if count:
            parts += [f'<rect x="{x + 1.5:.1f}" y="{base - height:.1f}" width="{step - 3:.1f}" height="{height:.1f}" class="{kind}"/>',
                      text(x + step / 2, base - height - 4, count, "middle", "small")]
        if high < math.inf:
            parts.append(text(x + step, base + 14, f"{high:g}", "middle", "small"))
    parts += [line(12, base, WIDTH - 12, base), text(WIDTH / 2, base + 31, label, "middle", "small")]
    return svg(base + 38, parts, label)


CHAIN_EDGES = (0.5, 0.8, 1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8)
MODULE_EDGES = (0.8, 0.95, 1.05, 1.25, 1.6, 2, 2.5, 3.2, 4, 8)


def ratio_table(found, rival, first):
    """Every case by its ratio, the slowest first: a table to unfold."""
    lines = "".join(f"<tr><td>{esc(c.chain or c.size)}<td>{fmt(c.ours['ms'])}<td>{fmt(c.rows[rival]['ms'])}"
                    f"<td>{fmt(c.speedup(c.rows[rival]))}</tr>" for c in found)
    return (f'<details><summary>every {first}</summary><div class="scroll"><table><tr><th>{first}<th>Convoy, ms<th>{rival}, ms'
            f"<th>×</tr>{lines}</table></div></details>")


def by_ratio(cases, rival):
    return sorted((c for c in cases if c.rows.get(rival, {}).get("ms")), key=lambda c: c.speedup(c.rows[rival]))


def sample_figure(cases, device, precision):
    found = by_ratio(select(newest_sample(cases, device), precision=precision), RIVAL)
    if found:
        ratios = [c.speedup(c.rows[RIVAL]) for c in found]
        note = f"<p>{len(found)} chains; red: {RIVAL} is faster.</p>" + ratio_table(found, RIVAL, "chain")
        yield figure(f"sample-{device}-{precision}", "Random chains", histogram(ratios, f"times as fast as {RIVAL}", CHAIN_EDGES),
                     commands_of(found), note)


def module_figure(cases, device, precision):
    found = by_ratio(select(cases, device=device, precision=precision, series="module"), "torch eager")
    if found:
        ratios = [c.speedup(c.rows["torch eager"]) for c in found]
        note = (f"<p>{len(found)} modules through <code>convoy.compile</code>. Grey: within 5 % of eager PyTorch, most of them "
                "modules that stay in PyTorch; red: slower.</p>" + ratio_table(found, "torch eager", "module"))
        yield figure(f"modules-{device}-{precision}", "Modules against eager PyTorch",
                     histogram(ratios, "times as fast as torch eager", MODULE_EDGES, (0.95, 1.05)), commands_of(found), note)


def thread_figure(cases, device, precision):
    found = select(cases, device=device, precision=precision, series="threads")
    if not found:
        return
    counts = sorted({c.size for c in found})
    speed = {b: {c.size: c.ours["ms"] for c in found if c.block == b} for b in sorted({c.block for c in found})}
    ratios = {b: [(n, ms[min(ms)] / ms[n]) for n in counts if n in ms] for b, ms in speed.items()}
    axes = LogAxes(counts, [r for points in ratios.values() for _, r in points] + counts, "threads", "times as fast", x_ticks=counts, y_ticks=counts)
    axes.path([(counts[0], 1), (counts[-1], counts[-1] / counts[0])], "roof")
    for block, points in ratios.items():
        axes.path(points, family(OURS))
        for n, r in points:
            axes.dot(n, r, family(OURS), f"{block}, {n} threads: {fmt(r)} times as fast", 2.5)
    axes.names_after([(*points[-1], block) for block, points in ratios.items()])
    note = f"<p>{esc(found[0].run['machine']['name'])}. The dashed line is linear scaling.</p>"
    yield figure(f"threads-{device}-{precision}", "Thread scaling", axes.svg("thread scaling"), commands_of(found), note)


# Peaks from data sheets, for runs that have not measured them: GFLOP/s of fp16 on tensor cores. A product as accurate as
# float32 takes three of fp16, tf32 one.
SHEETS = {"NVIDIA H200": 989_500}
PRODUCTS = {"fp32": 3}
SHARE = {"fp32": "a third of fp16 on tensor cores (three products for one)"}


def roof_of(machine, precision):
    """GFLOP/s, GB/s, and where they come from; (None, None, "not measured")."""
    gflops, gbps = machine.get("peak_gflops"), machine.get("peak_gbps")
    if gflops and gbps:
        return gflops, gbps, f"{fmt(gflops)} GFLOP/s and {fmt(gbps)} GB/s, measured in the same run"
    if gbps and machine.get("name") in SHEETS:
        gflops = SHEETS[machine["name"]] / PRODUCTS.get(precision, 1)
        return gflops, gbps, (f"{fmt(gbps)} GB/s, measured in the same run; {fmt(gflops / 1000)} TFLOP/s from the data sheet, "
                              f"{SHARE.get(precision, 'fp16 on tensor cores')}")
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
    for x, y, r, c in sorted(points, key=lambda p: (p[2]["peer"] == OURS, p[3].series == "full")):  # blocks on top
        kind = " hollow" if r["peer"] != OURS else " named" if c.series == "full" else ""
        axes.dot(x, y, family(r["peer"]) + kind, f"{c.title}, {r['peer']}: {fmt(y)} GFLOP/s, {fmt(r['ms'])} ms")
        if kind == " named":
            axes.name(x, y, c.block)
    note = (f"<p>Every chain measured. Filled: Convoy; hollow: other libraries on A, B and C. Roof: {limits}. Convolutions "
            "are counted as direct ones, so an algorithm that needs fewer operations, such as Winograd's, may exceed it.</p>")
    yield figure(f"roofline-{device}-{precision}", "Roofline", axes.svg("roofline") + legend(
        dict.fromkeys(r["peer"] for *_, r, c in points if r["peer"] in FAMILIES)), commands_of(found), note)


AXES = {"batch": "samples", "image": "rows and columns", "channels": "channels"}


def size_figures(cases, device, precision):
    groups = defaultdict(list)
    for c in select(cases, device=device, precision=precision):
        if c.series in AXES and c.block:
            groups[c.block, c.series].append(c)
    for (block, series), found in sorted(groups.items(), key=lambda g: (g[0][0], list(AXES).index(g[0][1]))):
        curves = defaultdict(list)
        for c in sorted(found, key=lambda c: c.size):
            for r in c.rows.values():
                if r.get("ms"):
                    curves[r["peer"]].append((c.size, r["ms"]))
        spots = [p for points in curves.values() for p in points]
        axes = LogAxes([x for x, _ in spots], [y for _, y in spots], AXES[series], "ms", x_ticks=sorted({x for x, _ in spots}))
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
    for x, y, r, c in sorted(spots, key=lambda s: s[2]["peer"] != OURS):
        axes.dot(x, y, family(r["peer"]) + " named" * (r["peer"] == OURS), f"{c.block}, {r['peer']}: {fmt(x)} ms, error {fmt_error(y)}")
        axes.name(x, y, c.block, r["peer"] == OURS)
    yield figure(f"error-{device}-{precision}", "Error against time",
                 axes.svg("error against time") + legend(dict.fromkeys(
                     r["peer"] for *_, r, c in spots if r["peer"] in FAMILIES)), commands_of(found),
                 "<p>Lower is more accurate; further left is faster.</p>")


# Rows of the page: what was measured at full size, how it compares, how times grow.
FIGURES = ((speedup_figures, chain_figures), (diffusion_figures, network_figures),
           (error_figure, roofline_figure, sample_figure, module_figure, thread_figure, operator_figure), (size_figures,))
