"""What documents name exists: files, options, variables, targets, pages. Their commands are run by test_shown_commands.py."""

import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from conftest import COMMAND, ROOT

PAGES = sorted([*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md", "doc/convoy.1")),
                *(ROOT / "doc").rglob("*.md")])
CODE = ("src", "cli", "include", "python", "test", "bench", "examples", "Makefile", "setup.py", ".ci")
IGNORED = re.compile(r"(^|/)(build(-[\w-]+)?|\.venv[^/]*|\.git|__pycache__|results|corpus_\w+)(/|$)")
# What a page names without saying that it is there: files that a command makes or a reader has.
MADE = {"x.npy", "w.npy", "b.npy", "y.npy", "FILE.npy", "FILE.py", "FILE.json", "problem.py", "model_new.py", "block_a_new.py", "options.txt",
        "epilogue.cuh", "name.cu", "report.html", "libcuda.so.1", "core_*.c", "kernels/name.cu"}


def named(page):
    return str(page.relative_to(ROOT))


def files(*tops):
    for top in tops:
        path = ROOT / top
        found = path.rglob("*") if path.is_dir() else [path]
        yield from (str(f.relative_to(ROOT)) for f in found if f.is_file() and not IGNORED.search(str(f.relative_to(ROOT))))


TREE = [*files(*CODE, "doc", "README.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml", "convoy.pc.in"),
        *(str(f.relative_to(ROOT)) for f in (ROOT / "bench/results").rglob("*"))]
TEXT = "\n".join((ROOT / f).read_text(errors="replace") for f in files(*CODE) if not f.endswith((".png", ".npy", ".md")))


def exists(name):
    """In the tree, from its root or from some folder on; a folder too, and a pattern."""
    name = name.rstrip("/")
    return any(fnmatch(f, name) or fnmatch(f, f"*/{name}") or f.startswith(f"{name}/") or f"/{name}/" in f for f in TREE)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_path_is_there(page):
    text = page.read_text()
    paths = re.findall(r"`([\w./*-]+\.(?:c|h|cu|cuh|py|md|sh|def|json|txt|svg|png|1|in))`", text)
    paths += re.findall(r"`((?:src|cli|doc|test|bench|python|examples|include)/[\w./*-]*)`", text)
    missing = [p for p in paths if p not in MADE and not exists(p)]
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith("http") and not (page.parent / target).exists():
            missing.append(target)
    assert not missing


def anchors(page):
    """Of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M)}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_section_that_is_linked_is_there(page):
    for target, section in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert section in anchors(page.parent / target if target else page), (target, section)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_option_and_variable_is_known(page):
    text = re.sub(r"https?://\S+", "", page.read_text().replace("\\-", "-"))  # \- is troff's
    names = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)) | set(re.findall(r"\b(?:CVY|CONVOY)_[A-Z][A-Z_0-9]+\b", text))
    unknown = [n for n in names if not re.search(rf"(?<![\w-]){re.escape(n)}(?![\w-])", TEXT)]
    assert not unknown


# Of identifiers that pages name: a pattern, and a variable that is read by OpenMP runtimes.
FOREIGN = {"attn_mask", "swap_tensors", "cvyi_kernel_name", "OMP_WAIT_POLICY"}


COMMANDS = set(re.findall(r'^    \{"(\w+)",', (ROOT / "cli/commands.c").read_text(), re.M)) | {"unfused"}  # the last is a row of tables


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_is_one(page):
    """`convoy WORD` at the start of backquotes or of a block's line; an option or nothing may come instead of a word."""
    text = page.read_text()
    shown = [line for block in re.findall(r"```(?:sh|text)\n(.*?)```", text, re.S) for line in block.splitlines()]
    shown += re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    assert {w for s in shown for w in re.findall(r"^(?:[A-Z_]+=\S+ )*(?:\S*/)?convoy ([a-z]+)", s)} <= COMMANDS


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_identifier_is_in_the_code(page):
    """Functions, macros and members in backquotes; words without an underscore may be anything."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    names = {part for word in re.findall(r"`(\w+(?:(?:::|\.)\w+)*)(?:\(\))?`", text) for part in re.split(r"::|\.", word) if "_" in part}
    stems = {Path(f).stem for f in TREE}
    assert not [n for n in names - FOREIGN - stems if not re.search(rf"\b{n}\b", TEXT)]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_target_of_make_is_there(page):
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M)
    for line in re.findall(r"(?m)(?:^|`)make ((?:-\w+ )?[a-z][\w-]*)\b(?![/=])", page.read_text()):
        assert line.split()[-1] in targets, line


def test_the_wheel_has_every_package():
    packages = re.search(r"packages=\[([^\]]*)\]", (ROOT / "setup.py").read_text())[1]
    assert set(re.findall(r'"(\w+)"', packages)) == {p.parent.name for p in (ROOT / "python").glob("*/__init__.py")}


ORDER = ("util", "graph", "simplify", "plan", "engines")


def test_folders_include_what_comes_before_them():
    """DESIGN.md and CONTRIBUTING.md say so; ref, cpu and cuda are engines, which never include each other."""
    place = {name: i for i, name in enumerate(ORDER)} | {name: len(ORDER) - 1 for name in ("ref", "cpu", "cuda")}
    for file in files("src"):
        here = file.split("/")[1]
        for other in re.findall(r'#include "(?:\.\./)+(\w+)/\w+\.h"', (ROOT / file).read_text()):
            assert other == here or other not in place or place[other] < place[here], (file, other)


# Of *How we write* in CONTRIBUTING.md; behind is a place in space, later is after.
CALQUES = re.compile(r"\b(behind|for want of|among it|takes? apart|taken apart|it does without)\b", re.I)


def test_words_that_are_not_used():
    for file in [*files(*CODE, "doc"), "README.md", "CHANGELOG.md"]:
        if file.endswith((".png", ".npy")) or file == named(Path(__file__)):
            continue
        for line in (ROOT / file).read_text(errors="replace").splitlines():
            assert not CALQUES.search(line), (file, line)


def test_the_readme_is_one_page_and_leads_to_all_others():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 120
    linked = {str((ROOT / t).resolve()) for t in re.findall(r"\]\(([^)#\s]+)\)", text) if not t.startswith("http")}
    for page in [*(ROOT / "doc").rglob("*.md"), ROOT / "doc/convoy.1"]:
        assert str(page.resolve()) in linked, page
    for word in ("KernelBench", "`Model`", "`get_inputs`", "`get_init_inputs`", "Linux", "PyTorch", "float64"):
        assert word in text


def test_the_tutorials_python_works():
    """The block of PyTorch, as it is shown: the results agree, and Convoy runs all of it."""
    pytest.importorskip("torch")
    program = re.search(r"```python\n(.*?)```", (ROOT / "doc/TUTORIAL.md").read_text(), re.S)[1]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "CONVOY_LIBRARY": str(Path(COMMAND).parent / "libconvoy.so")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    error = float(re.match(r"tensor\(([\d.e+-]+)", done.stdout)[1])
    assert error < 1e-4 and "1 region by Convoy on cpu" in done.stdout and "stays in PyTorch" not in done.stdout


def test_the_tutorials_plan_is_todays(convoy):
    """The plan that is shown is what the command prints for that machine: every line that is not cut."""
    text = (ROOT / "doc/TUTORIAL.md").read_text()
    chain = re.search(r"convoy plan '([^']+)'", text)[1]
    status, out, _ = convoy("plan", chain, "--device", "cpu", env={"CVY_MACHINE": "avx512,2"})
    shown = re.search(r"```text\n(.*?)```", text, re.S)[1].splitlines()
    assert status == 0 and len(shown) == len(out.splitlines())
    for line, real in zip(shown, out.splitlines()):
        assert real.startswith(line.removesuffix(" ...")), (line, real)
