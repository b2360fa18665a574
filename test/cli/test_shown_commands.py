"""Every command that a page shows is run: here in a cheap form, or by a named part of the suite. All others need a GPU and say so.

Shell is written in blocks marked `sh`, one command a line; each page's blocks run in order as one shell session, in a folder that
looks like a clone: the build folder is the suite's, HOME is empty, and SHIMS make commands cheap. Commands inside a sentence go by
the same rules.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import COMMAND, ROOT

BUILD = Path(COMMAND).resolve().parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bench/README.md", *(ROOT / "doc").rglob("*.md")])
LANGUAGES = {"sh", "text", "python", "c", "cmake"}
PROGRAMS = r"(?:make|pip|cc|cmake|nvcc|sudo|export|convoy|python3?|(?:\.ci|\./|test/|bench/|build/)[\w./-]*)"

# Commands that need a GPU: the page says so in the command's comment, in the line before its block or in its paragraph, or the
# command by its name.
GPU = re.compile(r"make gpu-\w+.*|convoy (?:eject|\w+ .*--device cuda).*|nvcc .* bench/labs/.*|\./gpu_\w+.*|python bench/suites/(?:gpu|diffusion)\.py.*"
                 r"|python bench/modules/never_slower\.py --device cuda.*|test/gpu/prove\.sh.*|build/test/gpu/cores")
# Commands that another part of the suite runs: which file, and the text in it that does so.
ELSEWHERE = (
    (r"make test", ".ci/run", "make test"),
    (r"\.ci/run", ".ci/run", "step "),
    (r"make format", ".ci/run", "check-format"),  # the same clang-format, which then changes nothing
    (r"make golden", "test/unit/test_golden.c", "--write"),  # the same program, which compares
    (r"make build/test/gpu/cores", "Makefile", "test/gpu/*.c"),  # the rule of build/test/gpu/chains, which is run here
    (r"make wheel", "test/install/wheel.sh", "make -s wheel"),
    (r"make wheel CROSS=aarch64-linux-gnu-", ".ci/run", "test/install/wheel.sh aarch64-linux-gnu-"),
    (r"make CROSS=aarch64-linux-gnu-", ".ci/run", "CROSS=aarch64-linux-gnu- all"),
    (r"test/arm\.sh( build-aarch64)?", ".ci/run", "test/arm.sh build-aarch64"),
    (r"test/install/wheel\.sh( aarch64-linux-gnu-)?", ".ci/run", "test/install/wheel.sh"),
    (r"make install PREFIX=\.\.\.", "test/install/use.sh", "make -s install PREFIX="),
    (r"make bench-smoke", ".ci/run", "bench-smoke"),
    (r"(BENCH_SECONDS=600 )?make bench.*", "Makefile", "--suite smoke"),  # the same program, by make bench-smoke
    (r"python -m convoy_report", "test/bench/test_report.py", "report.main("),
    (r"convoy report.*", "test/bench/test_report.py", "report.main("),
    (r"python -m pytest test/torch", "test/run.sh", "pytest test/torch"),
    (r"python bench/suites/scaling\.py.*", "test/bench/test_scaling.py", '"scaling.py"'),
    (r"nvcc -cubin .*", "test/cli/test_shown_commands.py", "def test_a_dumped_kernel_compiles"),
    (r"build/test/gpu/chains -r COUNT SEED", "test/halves.sh", "test/gpu/chains"),
    (r"convoy (plan|check|bench|run|ops|cache)( [\w|]+)?( CHAIN| A)?( --why| --compare| --dtype bf16)?", "test/cli/test_command.py", '"plan"'),
)
# Cheap forms: no other prefix or site-packages is touched, batches are small, runs are few.
SHIMS = {
    "make": 'exec "$make" -s -C "$root" BUILD="$build" NEVER="--device cpu --warm 0/500 --out $HOME/never.json" "$@"',
    "sudo": 'exec "$@" PREFIX="$HOME/usr"',
    "pip": 'exec "$python" -m pip "$@" -q --disable-pip-version-check --no-build-isolation --no-deps --target "$HOME/site"',
    "python": 'case $1 in bench/*) set -- "$@" --help;; esac; exec "$python" "$@"',  # loads, and knows the options before --help
    "pkg-config": 'f="${PKG_CONFIG_PATH%%:*}/convoy.pc"; p=$(sed -n s/^prefix=//p "$f"); echo "-I$p/include -L$p/lib -lconvoy"',
    "convoy": 'case "$*" in\n*.py*) exec "$python" -m convoy "$@" --seconds 0.01 --no-compile --device cpu;;\n'  # torch.compile: half a minute
              'bench*) exec "$command" "$@" --repeat 1 --samples 1;;\n*) exec "$command" "$@";;\nesac',
}


def named(page):
    return str(page.relative_to(ROOT))


def blocks(page):
    """(language, lines, the line of text before it) of every block that is fenced or indented."""
    fenced = re.compile(r"([^\n]*)\n\n?```(\w*)\n(.*?)```", re.S)
    text = page.read_text()
    for before, language, body in fenced.findall(text):
        yield language, body.replace("\\\n", " ").splitlines(), before
    for before, body in re.findall(r"([^\n]*)\n\n((?: {4}[^\n]*\n)+)", re.sub(r"```.*?```", "", text, flags=re.S)):
        yield "indented", body.splitlines(), before


def spoken(page):
    """(command, its paragraph) of the commands inside sentences: at least two words, the first a program."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-|] ?)", text):
        for command in re.findall(rf"`((?:[A-Z_]+=\S+ )*{PROGRAMS} [^`]+)`", paragraph):
            if not re.fullmatch(r"convoy \w+", command):  # the name of a command
                yield " ".join(command.split()), paragraph


def told_elsewhere(command):
    return next((row for row in ELSEWHERE if re.fullmatch(row[0], command)), None)


def shell(page):
    """(command, what the page says of it) of every line of the page's shell blocks."""
    for language, lines, before in blocks(page):
        for line in lines if language == "sh" else []:
            command, _, comment = line.partition(" #")
            if command.strip():
                yield command.strip(), before + comment


def run_here(found, done=()):
    """The commands of found that this file runs, less those that are done."""
    here = dict.fromkeys(command for command, _ in found if not GPU.fullmatch(command) and not told_elsewhere(command))
    return [command for command in here if not any(d.startswith(command) for d in done)]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_for_a_gpu_say_so(page):
    for command, words in [*shell(page), *spoken(page)]:
        assert not GPU.fullmatch(command) or re.search(r"GPU|H200", words) or "gpu" in command, f"does not say that it needs a GPU: {command}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_shell_is_marked(page):
    """A block says what it is; an indented one is a picture, never a command."""
    for language, lines, _ in blocks(page):
        assert language in LANGUAGES | {"indented"}, lines[0]
        if language == "indented":
            assert not re.match(rf" {{4}}(\$ )?{PROGRAMS} ", lines[0]), f"not in a block marked sh: {lines[0]}"


@pytest.mark.parametrize("pattern, file, text", ELSEWHERE, ids=[row[0] for row in ELSEWHERE])
def test_what_is_run_elsewhere_is_run_there(pattern, file, text):
    assert text in (ROOT / file).read_text()
    assert any(re.fullmatch(pattern, c) for p in PAGES for c in all_commands(p)), "no page shows it"


def all_commands(page):
    yield from (command for command, _ in [*shell(page), *spoken(page)])
    yield from re.findall(rf"`({PROGRAMS})`", page.read_text())


@pytest.fixture
def clone(tmp_path):
    """A folder like a clone, and the environment of a shell in it."""
    top, home, shims = tmp_path / "clone", tmp_path / "home", tmp_path / "shims"
    for folder in (top, home, shims):
        folder.mkdir()
    for name in ("src", "include", "cli", "doc", "test", "bench"):
        (top / name).symlink_to(ROOT / name)
    for name in ("Makefile", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, top)
    shutil.copytree(ROOT / "python", top / "python", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    shutil.copytree(ROOT / "examples", top / "examples")
    for problem in (top / "examples").glob("*.py"):
        problem.write_text(problem.read_text().replace("torch.rand(128,", "torch.rand(2,"))  # a small batch
    (top / "build").symlink_to(BUILD)
    for name, text in SHIMS.items():
        (shims / name).write_text(f"#!/bin/sh\n{text}\n")
        (shims / name).chmod(0o755)
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "BUILD")}
    env |= {"HOME": str(home), "PATH": f"{shims}:{env['PATH']}", "PYTHONPATH": f"{home}/site:{ROOT}/python", "python": sys.executable,
            "make": shutil.which("make"), "command": COMMAND, "root": str(ROOT), "build": os.path.relpath(BUILD, ROOT),
            "CONVOY_LIBRARY": str(BUILD / "libconvoy.so"), "CONVOY_BUILD": "build", "PKG_CONFIG_PATH": f"{home}/usr/lib/pkgconfig"}
    return top, env


def run(clone, commands):
    top, env = clone
    if any("gpu/chains" in c for c in commands) and not (BUILD / "test/emulate/libcuda.so.1").exists():
        pytest.skip("needs the test programs: make tests")
    script = "".join(f"echo '+ {i}' >&2\n{c}\n" for i, c in enumerate(commands))
    done = subprocess.run(["/bin/sh", "-e", "-c", script], cwd=top, env=env, capture_output=True, text=True, timeout=300)
    last = [c for i, c in enumerate(commands) if f"+ {i}\n" in done.stderr][-1]
    assert done.returncode == 0, f"{last}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


README = run_here(shell(ROOT / "README.md"))
SESSIONS = {named(page): run_here(shell(page), README) for page in PAGES}
SPOKEN = run_here((found for page in PAGES for found in spoken(page)), sum(SESSIONS.values(), README))


def test_pages_show_commands():
    assert len(sum(SESSIONS.values(), README)) >= 15 and len(SPOKEN) >= 2


@pytest.mark.parametrize("page", [page for page, commands in SESSIONS.items() if commands])
def test_the_pages_session_works(clone, page):
    if any(".py" in c for c in SESSIONS[page]):
        pytest.importorskip("torch")
    run(clone, SESSIONS[page])


@pytest.mark.parametrize("command", SPOKEN)
def test_a_sentences_command_works(clone, command):
    if ".py" in command:
        pytest.importorskip("torch")
    run(clone, [command])


def test_the_readme_leads_to_a_compiled_module(clone):
    """Its two commands, then the block of PyTorch as it is shown: what was installed is what runs, and the results agree."""
    pytest.importorskip("torch")
    top, env = clone
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    (top / "use.py").write_text(f"{block}\nprint(convoy.__file__)\ntorch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-4)\n")
    env["PYTHONPATH"] = env["HOME"] + "/site"
    del env["CONVOY_LIBRARY"]
    assert f"{env['HOME']}/site/convoy" in run((top, env), [*README, "python use.py"])


def test_a_dumped_kernel_compiles(tmp_path):
    """CUDA.md: what CVY_DUMP leaves compiles unchanged. NVRTC is PyTorch's wheel, libcuda a stand-in; no GPU is needed."""
    nvrtc = next((Path(p) / "nvidia" for p in sys.path if (Path(p) / "nvidia").is_dir()), Path()).glob("*/lib/libnvrtc.so.13")
    nvrtc, driver = next(nvrtc, None), BUILD / "test/standin/libcuda.so.1"
    if not nvrtc or not driver.exists() or not shutil.which("nvcc"):
        pytest.skip("needs nvcc, NVRTC 13 and the test programs")
    command = " ".join(re.search(r"`(nvcc -cubin [^`]*)`", (ROOT / "doc/CUDA.md").read_text())[1].split())
    env = os.environ | {"CVY_DUMP": str(tmp_path), "CVY_CUDA_LIB": str(driver), "CVY_NVRTC_LIB": str(nvrtc), "CVY_CACHE": "off"}
    subprocess.run([COMMAND, "plan", "x[2,3,9,9] | conv2d(5,3)", "--device", "cuda", "--fuse", "off"], env=env, check=True, capture_output=True)
    folder = next(f for f in tmp_path.iterdir() if list(f.glob("conv_*.cu")))
    source = next(f.name for f in folder.glob("conv_*.cu"))
    subprocess.run(["/bin/sh", "-c", re.sub(r"conv_\w+\.cu", source, command)], cwd=folder, check=True)
    assert (folder / source).with_suffix(".cubin").stat().st_size > 0
