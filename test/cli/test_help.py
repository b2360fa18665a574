"""Help, the manual page, completion, the environment, and what the pages copy."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import COMMAND, ROOT, refused

SMALL = "x[3,4,9,9] | conv2d(6,3) | group_norm(2) | relu"
COMMANDS = ("demo", "plan", "check", "bench", "run", "ops", "cache", "completion")


# ---- help --------------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_variable(convoy):
    status, out, err = convoy("--help")
    assert status == 0 and err == ""
    for name in COMMANDS:
        assert re.search(rf"^  {name}\b", out, re.M)
    for name in re.findall(r'"(CVY_\w+)"', (ROOT / "src/util/env.def").read_text()):
        assert name in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(convoy, command):
    status, out, err = convoy(command, "--help")
    assert status == 0 and err == ""
    assert out.startswith(f"usage: convoy {command}")
    assert "--help" in out and "CVY_DEBUG" in out


STANDINS = Path(COMMAND).parent / "test" / "standin"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_log_shows_what_its_levels_say(convoy, device, monkeypatch, tmp_path):
    """Every level of CVY_DEBUG shows what those below it do, and something of its own."""
    marks = {"cpu": ["convoy: cpu: ", "convoy: plan:\nchain ", "convoy: prepared part:\n", None, None],
             "cuda": ["convoy: cuda 0: ", "convoy: plan:\nchain ", "convoy: kernels:\npass 1 ", " bytes spilled, ", "--std=c++17"]}
    monkeypatch.setenv("CVY_CUDA_LIB", str(STANDINS / "libcuda.so.1"))
    monkeypatch.setenv("CVY_NVRTC_LIB", str(STANDINS / "libnvrtc.so.13"))
    monkeypatch.setenv("CVY_CACHE", str(tmp_path))
    for level in range(6):
        monkeypatch.setenv("CVY_DEBUG", str(level))
        status, _, err = convoy("plan", "x[64,8,64,64] | conv2d(64,3) | group_norm(16) | relu", "--device", device)
        assert status == 0 and (level > 0 or err == "")
        for needed, mark in enumerate(marks[device], 1):
            assert mark is None or (mark in err) == (level >= needed), (level, mark, err)


@pytest.mark.parametrize("name, value, words", [
    ("CVY_THREADS", "abc", "expected a whole number"),
    ("CVY_THREADS", "-2", "expected a whole number"),
    ("CVY_DEBUG", "loud", "expected 0|1|2|3|4|5"),
    ("CVY_FUSE", "no", "expected 0|1"),
    ("CVY_PLAN_SEED", "1x", "expected a whole number"),
    ("CVY_POOL", "mine", "expected own or openmp"),
    ("CVY_ISA", "sse", "expected portable, neon, avx2 or avx512"),
    ("CVY_SIMPLIFY", "-fold_nrm_affine", "did you mean '-fold_norm_affine'?"),
    ("CVY_SIMPLIFY", "fold_norm_affine", "expected 0, or -name"),
])
def test_values_of_variables_are_checked(convoy, name, value, words):
    refused(convoy("plan", SMALL, "--device", "cpu", env={name: value}), f"{name} is '{value}'", words)


def test_the_manual_lists_every_command_option_and_variable(convoy):
    manual = (ROOT / "doc/convoy.1").read_text().replace("\\-", "-")
    options = {name for c in COMMANDS for name in re.findall(r"^  (--\w+)", convoy(c, "--help")[1], re.M)}
    variables = re.findall(r'"(CVY_\w+)"', (ROOT / "src/util/env.def").read_text())
    assert options and variables
    for name in [*COMMANDS, *options - {"--help"}, *variables, "~/.cache/convoy"]:
        assert name in manual, name


def complete(*words):
    """What bash offers after these words."""
    script = (f'eval "$({COMMAND} completion bash)"; COMP_WORDS=({" ".join(map(shlex.quote, words))}); '
              f'COMP_CWORD={len(words) - 1}; _convoy; echo "${{COMPREPLY[@]}}"')
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()


def test_completion_in_bash(convoy):
    assert set(complete("convoy", "")) >= {*COMMANDS, "eject", "report", "--help"}
    assert complete("convoy", "be") == ["bench"]
    assert complete("convoy", "bench", "--pre") == ["--precision"]
    assert complete("convoy", "bench", "--precision", "") == ["fp32", "tf32"]
    assert "--repeat" in complete("convoy", "bench", "--") and "--repeat" not in complete("convoy", "plan", "--")
    assert complete("convoy", "bench", "--no-c") == ["--no-compile"] and complete("convoy", "eject", "--o") == ["--output"]
    assert complete("convoy", "report", "--scr") == ["--screenshots"] and complete("convoy", "report", "") == []  # files
    assert complete("convoy", "cache", "ver") == ["verify"] and complete("convoy", "completion", "b") == ["bash"]


def test_completion_in_zsh(convoy):
    """Every option of every command is in it; where there is a zsh, it reads the script."""
    script = convoy("completion", "zsh")[1]
    assert script.startswith("#compdef convoy\n")
    for c in COMMANDS:
        for name in re.findall(r"^  (--\w+)", convoy(c, "--help")[1], re.M):
            assert re.search(rf"^ *{c}\) .*{name}\b", script, re.M), (c, name)
    if shutil.which("zsh"):
        assert subprocess.run(["zsh", "-n"], input=script, text=True).returncode == 0


def test_cache_is_listed_verified_and_cleared(convoy, monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    monkeypatch.setenv("CVY_CUDA_LIB", str(STANDINS / "libcuda.so.1"))
    monkeypatch.setenv("CVY_NVRTC_LIB", str(STANDINS / "libnvrtc.so.13"))
    monkeypatch.setenv("CVY_CACHE", str(folder))
    assert convoy("cache") == (0, f"0 entries, 0.0 of 1024 MB in {folder}\n", "")
    assert convoy("plan", SMALL, "--device", "cuda")[0] == 0
    entries = sorted(folder.glob("*.code"))
    assert len(entries) > 1
    (folder / "notes.txt").write_text("not an entry")
    status, out, _ = convoy("cache", "list")
    assert status == 0 and all(f" {e.stat().st_size} {e.name}\n" in out for e in entries)
    assert convoy("cache", "verify") == (0, f"{len(entries)} entries, 0 damaged\n", "")
    damaged = bytearray(entries[0].read_bytes())
    damaged[-1] ^= 1
    entries[0].write_bytes(damaged)
    status, out, _ = convoy("cache", "verify")
    assert status == 1 and f"{entries[0].name} is damaged" in out and not entries[0].exists()
    assert convoy("cache", "clear")[0] == 0 and not list(folder.glob("*.code"))
    assert (folder / "notes.txt").exists()
    refused(convoy("cache", "burn"), "list, verify, clear or size", "burn")
    refused(convoy("cache", "size", env={"CVY_CACHE": "off"}), "no cache")
    for value in ("abc", "-1"):
        refused(convoy("cache", "size", env={"CVY_CACHE_MB": value}), "CVY_CACHE_MB", value)


def test_version_is_the_headers(convoy):
    version = re.search(r'CVY_VERSION +"(.*)"', (ROOT / "include/convoy.h").read_text())[1]
    assert convoy("--version") == (0, f"convoy {version}\n", "")


def test_no_command_prints_help_and_fails(convoy):
    status, out, err = convoy()
    assert status == 2 and out == "" and "usage: convoy" in err


# ---- the pages ----------------------------------------------------------------------------------------------------


def test_the_grammar_lists_every_operator(convoy):
    names = {line.split("(")[0] for line in convoy("ops")[1].splitlines()}
    table = re.search(r"<!-- operators -->\n(.*?)<!-- end -->", (ROOT / "doc/CHAIN.md").read_text(), re.S)[1]
    assert set(re.findall(r"`(\w+)`", table)) == names


@pytest.mark.parametrize("page", ["test/fuzz/chain.dict", "test/support/random_chain.c", "test/python/test_special.py",
                                  "test/python/test_random.py"])
def test_lists_of_tests_have_every_plain_operator(convoy, page):
    """Operators of one tensor without attributes are in the lists that random graphs and special values are made of."""
    plain = re.findall(r"^(\w+)\(\)$", convoy("ops")[1], re.M)
    assert len(plain) > 10 and not set(plain) - set(re.findall(r"\w+", (ROOT / page).read_text()))


def test_the_c_example_compiles_and_runs(tmp_path):
    """The C page's program is the header's, and works unchanged."""
    program = re.search(r"```c\n(.*?)```", (ROOT / "doc/C.md").read_text(), re.S)[1]
    header = (ROOT / "include/convoy.h").read_text()
    comment = "".join(f" *     {line}".rstrip() + "\n" for line in program.splitlines())
    assert comment.replace(" *\n", "") in header.replace(" *\n", "")
    library = os.path.dirname(COMMAND)
    (tmp_path / "demo.c").write_text(program)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-Wall", "-Werror", f"-I{ROOT}/include", f"-L{library}", "-lconvoy", f"-Wl,-rpath,{library}"]
    subprocess.run([*compiler, "demo.c", *flags, "-o", "demo"], cwd=tmp_path, check=True)
    assert subprocess.run(["./demo"], cwd=tmp_path, capture_output=True, text=True).stdout == "y[0] = 0\n"
