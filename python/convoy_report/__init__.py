"""`convoy report`: the files of bench/results as one self-contained HTML page, and the tables of the documentation.

    python -m convoy_report [--results DIR] [-o report.html]    draw the page
    python -m convoy_report --screenshots DIR                   the first screen, 1280 and 375 wide, light and dark
    python -m convoy_report --update FILE...                    write the figures into Markdown files
    python -m convoy_report --check FILE...                     exit 1 if a figure there is not the results'

Needs only the standard library, and nothing of Convoy. Figures are inline SVG, coloured by the page's style for light and
dark. In a Markdown file everything between `<!-- figures: NAME -->` and `<!-- end -->` is written by this program.
A ratio always compares rows of one run: if several files measured a case, all its rows come from the newest one.
"""

import argparse
import difflib
import re
import sys
from pathlib import Path

from . import browser
from .cases import cases_of, fmt, select  # noqa: F401 (for the benchmarks)
from .page import page
from .reading import load, read
from .tables import TABLES, md_blocks, md_threads  # noqa: F401

MARK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)


def render(cases, name, absent="Not measured yet.\n"):
    """`blocks-cpu-fp32`: the table, the device, the precision; `all`, or nothing, for tables of every one."""
    kind, device, precision = (name.split("-", 2) + ["all", "all"])[:3]
    wanted = {k: v for k, v in (("device", device), ("precision", precision)) if v != "all"}
    lines = TABLES[kind](cases, device, precision) if select(cases, **wanted) else []
    return "\n".join(lines) + "\n" if lines else absent


def filled(document, cases):
    return MARK.sub(lambda m: m[1] + render(cases, m[2]) + m[3], document)


def documents(paths, cases, write):
    """0, or 1 if a file's figures are not those of the results."""
    status = 0
    for path in map(Path, paths):
        old = path.read_text()
        new = filled(old, cases)
        if write and new != old:
            path.write_text(new)
        elif new != old:
            print(f"{path}: its figures are not those of the results; python -m convoy_report --update {path}",
                  file=sys.stderr)
            status = 1
    return status


def main(argv=None):
    parser = argparse.ArgumentParser(prog="convoy report", description="draw results of benchmarks as one page")
    parser.add_argument("--results", default="bench/results", metavar="DIR", help="a folder of results (default bench/results)")
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE.html", help="where the page goes (default report.html)")
    parser.add_argument("--update", nargs="+", metavar="FILE", help="write the figures into these Markdown files")
    parser.add_argument("--check", nargs="+", metavar="FILE", help="exit with status 1 if the figures in these files are out of date")
    parser.add_argument("--screenshots", metavar="DIR", help="pictures of the first screen, drawn by Chromium")
    parser.add_argument("files", nargs="*", metavar="FILE.json", help="what convoy bench --json wrote; then DIR is not read")
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        near = difflib.get_close_matches(unknown[0].split("=")[0], parser._option_string_actions, 1)
        parser.error(f"unknown option {unknown[0]!r}; " + (f"did you mean {near[0]!r}?" if near else "--help lists them"))
    try:
        return report(args)
    except (OSError, ValueError) as problem:
        told = f"{problem.filename}: {problem.strerror}" if isinstance(problem, OSError) else problem
        print(f"convoy report: {told}", file=sys.stderr)
        return 2


def report(args):
    """Does what the options request; the exit status."""
    cases = cases_of([read(Path(f)) for f in args.files]) if args.files else load(args.results)
    if args.update or args.check:
        return documents(args.update or args.check, cases, bool(args.update))
    if not cases:
        print(f"convoy report: no results in {args.results}; give a folder with --results DIR, or files that convoy bench --json wrote", file=sys.stderr)
        return 2
    if args.screenshots:
        if not browser.find():
            print("convoy report: no Chromium here (apt-get install chromium)", file=sys.stderr)
            return 2
        print(*browser.screenshots(page(cases), args.screenshots), sep="\n")
        return 0
    Path(args.output).write_text(page(cases))
    print(f"{args.output}: {len(cases)} cases")
    return 0
