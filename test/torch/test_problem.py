"""`convoy bench FILE.py`: the JSON, the verdict, the messages; the rest of the command goes to the C program."""

import argparse
import datetime
import json
import re
import subprocess
import sys

import pytest
import torch

GOOD = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv = nn.Conv2d(a, b, 3)
    def forward(self, x):
        return torch.relu(self.conv(x))
def get_inputs(): return [torch.rand(2, 3, 8, 8)]
def get_init_inputs(): return [3, 4]
"""
WRONG = GOOD + """
class ModelNew(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv = nn.Conv2d(a, b, 3)
    def forward(self, x):
        return self.conv(x)
"""


def convoy(*arguments):
    return subprocess.run([sys.executable, "-m", "convoy", *map(str, arguments)], capture_output=True, text=True)


def test_good_file(tmp_path):
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    done = convoy("bench", path, "--json", "--no-compile", "--device", "cpu", "--seconds", "0.01")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) >= {"file", "device", "machine", "precision", "agree", "errors", "roofline_ms", "ms"}
    assert set(result["ms"]) == {"eager", "compile", "convoy"} and result["ms"]["convoy"] > 0
    assert [e["factor"] for e in result["errors"]] == [1, 3, 0.01, -1]
    assert result["agree"] is True and result["roofline_ms"] > 0 and result["file"] == str(path)
    done = convoy("bench", path, "--no-compile", "--device", "cpu", "--seconds", "0.01")
    assert ("times Convoy's" in done.stdout) != ("BUSY" in done.stdout) and "DISAGREES" not in done.stdout
    assert done.stdout.count(" agrees") == 4
    assert all(word in done.stdout for word in ("median", "minimum", "spread"))
    assert all(line in done.stderr for line in ("comparing with float64", "timing eager PyTorch", "timing Convoy"))
    assert result["busy"] in (False, True) and 0 < result["ms_least"]["convoy"] <= result["ms"]["convoy"]


@pytest.mark.parametrize("length", ["return 0", "raise TypeError('no len()')"])
def test_modules_with_a_length_are_timed(tmp_path, monkeypatch, length):
    """torch.compile's modules have a length that may raise; a Model may have one that is 0."""
    from convoy import problem

    path = tmp_path / "long.py"
    path.write_text(GOOD.replace("    def forward", f"    def __len__(self):\n        {length}\n\n    def forward", 1))
    monkeypatch.setattr(problem.torch, "compile", lambda model: model)
    options = argparse.Namespace(device="cpu", precision="fp32", seconds=0.01, compile=True)
    result = problem.measure(path, options)
    assert result["agree"] and all(ms > 0 for ms in result["ms"].values()) and result["torch"] == torch.__version__
    assert result["version"] and datetime.datetime.fromisoformat(result["date"]).tzinfo


@pytest.mark.parametrize("option", ["--threads=0", "--threads=-3", "--seconds=-1", "--seconds=nan"])
def test_numbers_of_options_are_positive(tmp_path, option):
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    done = convoy("bench", path, option)
    assert done.returncode == 2 and "invalid positive number value" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["bench FILE.py", "eject", "report"])
def test_completion_knows_the_options(command):
    name, *file = command.split()
    told = convoy("completion", "bash").stdout
    known = re.search(rf"^ +{name}\) (.*) ;;$", told, re.M)[1].replace("words=", " ").replace('"', "").split()
    told = convoy(name, "x.py", "--help").stdout if file else convoy(name, "--help").stdout
    options = set(re.findall(r"^  (?:-o \S+, )?(--[\w-]+)", told, re.M))
    assert "--help" in told and len(options) > 1 and options <= {*known, "--help"}


def test_a_busy_machine(capsys):
    """Other processes' time is what the processors did and this one did not; then no ratio is printed."""
    from convoy import problem

    class Load(problem.Load):
        pass

    clock = iter([(10.0, 1.0), (12.0, 1.5)])  # 2 s of the processors' time, half a second of it ours
    problem.taken, real = lambda processors: next(clock), problem.taken
    try:
        with Load() as load:
            load.start -= 1.0
    finally:
        problem.taken = real
    assert 1.4 < load.others <= 1.5
    busy, own = real({0, 1})
    assert busy >= 0 and own > 0
    ms = {"eager": 2.0, "compile": None, "convoy": 1.0}
    common = {"file": "f", "device": "cpu", "machine": "m", "precision": "fp32", "threads": 1, "errors": [],
              "compile_error": None, "roofline_ms": None, "ms": ms, "ms_least": ms, "ms_spread": ms, "others": 1.5}
    problem.print_text({**common, "busy": True})
    told = capsys.readouterr().out
    assert "BUSY: other processes used 1.5 of " in told and "times Convoy's" not in told
    problem.print_text({**common, "busy": False})
    assert "2.00 times Convoy's" in capsys.readouterr().out


def test_wrong_results_fail(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    done = convoy("bench", path, "--no-compile", "--device", "cpu", "--seconds", "0.01")
    assert done.returncode == 1 and "DISAGREES" in done.stdout and "do not agree" in done.stderr


@pytest.mark.parametrize(
    "text, message",
    [
        ("x = 1", "Model and get_inputs and get_init_inputs are missing"),
        (GOOD.replace("def get_inputs", "def other"), "get_inputs is missing"),
        (GOOD + "Model = 3", "Model is missing"),
        (GOOD + "Model = int", "Model is not an nn.Module"),
        ("def f(:", "line 1: invalid syntax"),
        ("\nimport nowhere_to_be_found", "line 2: ModuleNotFoundError"),
        (GOOD.replace("return [3, 4]", "return 3"), "get_init_inputs() gives int, not a list"),
        (GOOD.replace("return [3, 4]", "return [3]"), "Model cannot be built: TypeError"),
        (GOOD.replace("return [torch.rand(2, 3, 8, 8)]", "return 1 / 0"), "get_inputs() fails: line"),
        (GOOD.replace("rand(2, 3, 8, 8)", "rand(2, 5, 8, 8)"), "Model fails: line"),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "bad.py"
    path.write_text(text)
    from convoy.problem import Bad, load, measure

    class Options:
        device, precision, compile, seconds = "cpu", "fp32", False, 0.01

    with pytest.raises(Bad) as caught:
        load(path)
        measure(path, Options)
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_exit_status_and_forwarding(tmp_path):
    done = convoy("bench", tmp_path / "missing.py")
    assert done.returncode == 2 and "no such file" in done.stderr and not done.stdout
    assert convoy("bench", tmp_path / "missing.py", "--precision", "fp8").returncode == 2
    done = convoy("plan", "x[1,3,8,8] | conv2d(4,3) | relu", "--device", "cpu")
    assert done.returncode == 0 and "conv2d" in done.stdout
    assert convoy("plan", "x[1").returncode == 2
    assert convoy("--version").stdout.startswith("convoy ")
    told = convoy("--help").stdout
    assert "usage: convoy COMMAND" in told
    assert all(f"  {name} " in told for name in ("bench FILE.py", "eject FILE.py", "report"))


def test_help_for_a_reader_that_leaves():
    """convoy --help | head: no traceback."""
    command = f"{sys.executable} -m convoy --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    for _ in range(3):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert done.stdout.startswith("convoy:") and done.stderr == ""


def test_help_of_bench_tells_of_problem_files():
    told = convoy("bench", "--help").stdout
    assert all(word in told for word in ("CHAIN", "FILE.py", "get_init_inputs()", "KernelBench", "--no-compile", "--repeat"))
