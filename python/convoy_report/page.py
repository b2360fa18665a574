"""The page: one self-contained HTML file. First what matters, then a tab for each device, dtype and layout."""

import subprocess
from pathlib import Path

from .cases import BLOCKS, OURS, UNFUSED, devices, fmt, fmt_error, run_lines, select
from .figures import BUSY, FIGURES, bars, time_rows
from .style import STYLE, tab_style
from .svg import esc

NAMES = {"cpu": "CPU", "cuda": "GPU", "ref": "reference"}


def tab_name(device, precision):
    return f"{NAMES[device]}, {precision.replace('-nhwc', ' channels_last')}"


def error_told(row):
    """The largest error against float64; of rows that have only its share of the largest result, that share."""
    if row.get("max_abs_error") is None and row.get("rel_error") is not None:
        return f"{fmt_error(row['rel_error'])} of the largest"
    return fmt_error(row.get("max_abs_error"))


def all_rows_table(cases, device, precision):
    """Every row, also those where a peer is faster or failed."""
    lines = ["<table><tr><th>case<th>peer<th>ms<th>× Convoy<th>max abs error<th>GFLOP/s<th>runs</tr>"]
    for c in select(cases, device=device, precision=precision):
        title = esc(c.title)
        for r in c.rows.values():
            if not r.get("ms"):
                lines.append(f'<tr><td>{title}<td class=l>{esc(r["peer"])}<td class=l colspan=5>'
                             f'{esc(r.get("error", "no time"))}</tr>')
                continue
            rate = fmt(1e-6 * r["flops"] / r["ms"]) if r.get("flops") else "–"
            lines.append(f'<tr{" class=ours" if r["peer"] == OURS else ""} title="{esc(r.get("command", ""))}">'
                         f'<td>{title}<td class=l>{esc(r["peer"])}<td>{fmt(r["ms"])}<td>{"–" if c.busy else fmt(c.speedup(r))}'
                         f'<td>{error_told(r)}<td>{rate}<td>{r.get("runs", "–")}</tr>')
    return "".join(lines) + "</table>"


# ---- the first screen ----


def recorded(run):
    """The commit that was measured; of older files, the one that added them to bench/results, in those words."""
    if run.get("commit"):
        return f"commit {run['commit'][:12]}"
    path = Path(run.get("path", run["file"])).absolute()
    try:
        words = ["git", "-C", str(path.parent), "log", "-1", "--diff-filter=A", "--format=%h", "--", path.name]
        found = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    except OSError:
        found = ""
    return f"recorded in commit {found}" if found else "commit not recorded"


def sentence(full):
    """How much faster than the fastest of the others, or else than Convoy without fusion, and with which error."""
    others = [c.speedup(c.peers()[0]) for c in full if c.peers()]
    ratios = others or [c.speedup(c.rows[UNFUSED]) for c in full if UNFUSED in c.rows]
    errors = [c.ours["max_abs_error"] for c in full if c.ours.get("max_abs_error") is not None]
    if any(c.busy for c in full):
        return BUSY
    if not ratios:
        return "No other library was measured."
    most = f"{fmt(min(ratios))} to {fmt(max(ratios))}" if len(ratios) > 1 else fmt(ratios[0])
    return (f"Convoy is <b>{most} times as fast</b> as {'the fastest other library' if others else 'it is without fusion'}"
            + (f"; largest error against float64: <b>{fmt_error(max(errors))}</b>." if errors else "."))


def shown_rows(case):
    """Convoy, the fastest of the others and eager PyTorch; without others Convoy without fusion."""
    shown = [case.ours, *case.peers()[:1], case.rows.get("torch eager" if case.peers() else UNFUSED)]
    return {r["peer"]: r for r in shown if r and r.get("ms")}.values()


def summary(cases, device):
    """Machine, date, commit, one sentence and one picture: of the blocks, or of single chains."""
    found = [select(cases, device=device, precision=p, series=s) for s in ("full", "chain") for d, p in devices(cases) if d == device]
    full = sorted(next((f for f in found if f), []), key=lambda c: c.block or "")
    if not full:
        return ""
    run, pictures = full[0].run, []
    machine = run["machine"]
    drawn = [time_rows(c, shown_rows(c)) for c in full]
    letters = max(len(row[0]) for rows in drawn for row in rows)
    for c, rows in zip(full, drawn):
        words = f"<b>{c.block}</b>: {BLOCKS.get(c.block, '')}" if c.block else f"<b>{esc(c.chain)}</b>"
        pictures.append(f"<p>{words}</p>{bars(rows, f'times of {c.block or c.chain}', letters=letters)}")
    cores = f", {machine['cores']} cores" if machine.get("cores") else ""
    where = f"{machine['name']}{cores}; {run['date'][:10]}; {recorded(run)}"
    return (f'<section class="first" id="first-{device}"><h2>{NAMES[device]}, {esc(full[0].precision)}</h2>'
            f'<p>{sentence(full)}</p><p class="dim">{esc(where)}</p><div class="picture">{"".join(pictures)}</div></section>')


# ---- the tabs ----


def section(cases, device, precision):
    chosen = select(cases, device=device, precision=precision)
    threads = {c.ours.get("threads") for c in chosen if c.series != "threads"} - {None, 0}
    told = f", {max(threads)} threads" if device == "cpu" and threads else ""
    out = [f'<section class="tab" id="{device}-{precision}"><h2>{tab_name(device, precision)}{told}</h2>']
    for row in FIGURES:
        figures = [f for make in row for f in make(cases, device, precision)]
        out.append(f'<div class="grid">{"".join(figures)}</div>' if figures else "")
    out.append(f'<details><summary>every row</summary><div class="scroll">'
               f"{all_rows_table(cases, device, precision)}</div></details></section>")
    return "".join(out)


def page(cases):
    tabs = devices(cases)
    out = ['<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Convoy benchmarks</title>'
           '<meta name="viewport" content="width=device-width,initial-scale=1">'
           f"<style>{STYLE}{tab_style(tabs)}</style></head><body><h1>Convoy benchmarks</h1>"
           '<p class="dim">Time per call of each block. Shorter is faster; × is the time relative to Convoy.</p><div class="both">',
           summary(cases, "cuda"), summary(cases, "cpu"), "</div>"]
    first = next((t for t in tabs if t[0] == "cuda"), tabs[0])
    for device, precision in tabs:
        checked = " checked" if (device, precision) == first else ""
        out.append(f'<input type="radio" name="tab" id="tab-{device}-{precision}"{checked}>'
                   f'<label for="tab-{device}-{precision}">{tab_name(device, precision)}</label>')
    out += [section(cases, *tab) for tab in tabs]
    out.append("<h2>Runs</h2>")
    for name, date, where, versions, command in run_lines(cases):
        told = "<br>".join(esc(words) for words in (where, versions) if words)
        when = date[:16].replace("T", " ") + " UTC" * ("T" in date)
        out.append(f'<p class="dim"><b>{esc(name)}</b>, {esc(when)}<br>{told}<br><code>{esc(command)}</code></p>')
    return "".join(out) + "</body></html>\n"
