"""`make gpu-bench` without a GPU: its processes, its rows and its file, on stand-ins (gpu_stand_in.py)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
START = f"import sys; sys.path.insert(0, {str(ROOT / 'bench' / 'suites')!r}); import gpu; " \
        f"sys.exit(gpu.main((sys.executable, {str(HERE / 'gpu_stand_in.py')!r})))"
KEYS = {"block", "chain", "series", "size", "peer", "device", "precision", "threads", "ms", "ms_min", "runs", "bytes",
        "max_abs_error", "rms_error", "rel_error", "samples_checked", "flops", "prepare_s", "command"}


def bench(out, *arguments, faults=""):
    """With all the time in the world, unless told otherwise."""
    command = [sys.executable, "-c", START, "--suite", "smoke", "--repeats", "6", "--out", str(out), "--budget", "1e6",
               "--row-seconds", "1e6", "--jobs", "0", *arguments]
    env = {**os.environ, "STAND_IN_FAULTS": faults}
    return subprocess.run(command, capture_output=True, text=True, env=env)


def modules():
    """Those of bench/suites, as its programs see them."""
    sys.path.insert(0, str(ROOT / "bench" / "suites"))
    try:
        import sample
        import warm
    finally:
        sys.path.pop(0)
    return SimpleNamespace(sample=sample, warm=warm)


def peers(*names):
    return [word for name in names for word in ("--peer", name)]


def test_rows_of_every_kind(tmp_path):
    out = tmp_path / "gpu.json"
    done = bench(out, *peers("convoy", "convoy.compile", "torch eager", "torch eager channels_last"))
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    assert told["left_out"] == [] and told["missing"] == {} and told["machine"]["name"] == "stand-in"
    assert {"date", "versions", "command", "suite", "minutes"} <= set(told)
    for row in told["rows"]:
        assert KEYS <= set(row), row
        assert row["ms"] == 1.25 and row["runs"] == 6 and row["flops"] > 0
        assert row["rms_error"] <= row["max_abs_error"] < 1e-4
    found = {(r["block"] or r["size"], r["precision"], r["peer"]) for r in told["rows"]}
    every = [("convoy", "convoy.compile", "torch eager", "torch eager channels_last"), ("fp32", "tf32")]
    assert {(block, precision, peer) for block in "ABC" for peer in every[0] for precision in every[1]} < found
    assert ("gelu", "fp32", "convoy") in found and ("gelu", "tf32", "convoy") not in found
    assert ("linear", "tf32", "torch eager") in found
    of_series = {(r["series"], r["peer"]) for r in told["rows"]}
    assert {(s, p) for s in ("batch", "image", "channels") for p in ("convoy", "torch eager")} <= of_series
    assert not out.with_suffix(".partial").exists()
    sys.path.append(str(ROOT / "python"))
    import convoy_report as report

    assert report.main(["--results", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0
    assert 'id="speedup-cuda-tf32-A"' in (tmp_path / "page.html").read_text()


def test_a_peer_that_fails_costs_its_own_rows(tmp_path):
    out = tmp_path / "gpu.json"
    chosen = peers("convoy", "torch eager", "torch eager channels_last")
    done = bench(out, *chosen, "--only", "full", faults="torch eager=dies,torch eager channels_last=refuses")
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    rows = {(r["block"], r["precision"], r["peer"]): r for r in told["rows"]}
    assert all(rows[b, p, "convoy"]["ms"] == 1.25 for b in "ABC" for p in ("fp32", "tf32"))
    eager = [r for r in told["rows"] if r["peer"] == "torch eager"]
    assert [r["ms"] for r in eager] == [1.25, None, 1.25, None]
    assert eager[1]["error"] == "its process ended: these are the last words"
    assert told["missing"] == {"torch eager channels_last": "there is no such thing here"}
    assert len(told["left_out"]) == 2 + 6 and "C, tf32, torch eager" in told["left_out"]
    # Started again, it measures what is missing and nothing else.
    done = bench(out, *chosen, "--only", "full")
    assert done.returncode == 0, done.stderr
    again = json.loads(out.read_text())
    assert again["left_out"] == [] and len(again["rows"]) == 18
    assert [r for r in again["rows"] if r["peer"] == "torch eager"][:4] == eager


def test_a_process_without_its_device_is_replaced(tmp_path):
    out = tmp_path / "gpu.json"
    done = bench(out, *peers("convoy"), "--only", "A", faults="convoy=lost")
    assert done.returncode == 0, done.stderr
    assert [r["ms"] for r in json.loads(out.read_text())["rows"]] == [1.25, 1.25]


def test_everything_is_compiled_before_it_is_measured(tmp_path):
    """By other processes: one that is not there costs nothing else."""
    out = tmp_path / "gpu.json"
    done = bench(out, *peers("convoy", "torch eager"), "--only", "full", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["warmed"] | {"seconds": 0} == {"wanted": 6, "compiled": 6, "jobs": 2, "seconds": 0}
    assert "6 of 6 compiled" in done.stderr
    done = bench(out, *peers("convoy"), "--only", "B", "--jobs", "1", "--fresh", faults="warm=refuses")
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    assert told["warmed"]["compiled"] == 0 and len(told["rows"]) == 2


def test_a_process_that_hangs_compiling_is_ended():
    rows = [{"peer": "convoy", "chain": "x[1,3,8,8] | conv2d(4,3)", "precision": p} for p in ("fp32", "tf32")]
    env = {**os.environ, "STAND_IN_FAULTS": "warm=hangs"}
    told = modules().warm.all((sys.executable, str(HERE / "gpu_stand_in.py")), env, rows, 1, 1e6, 0.5)
    assert told["wanted"] == 2 and told["compiled"] == 0


def test_what_takes_longest_is_compiled_first():
    names = ("convoy", "torch eager", "torch.compile", "torch.compile max-autotune channels_last")
    rows = [{"peer": peer, "chain": "x", "precision": p} for peer in names for p in ("fp32", "tf32")]
    assert modules().warm.tasks(rows) == [(names[3], "x", ["fp32"]), (names[3], "x", ["tf32"]),
                                          (names[2], "x", ["fp32", "tf32"]), (names[0], "x", ["fp32", "tf32"])]


def test_a_sample(tmp_path):
    out = tmp_path / "gpu.json"
    fits = [f"sample {i}" for i, c in enumerate(modules().sample.draw(1, 50), 1) if "x[7,3,22,22]" in c]
    done = bench(out, "--suite", "sample", "--only", fits[0], *peers("convoy", "torch eager"))
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    assert [(r["series"], r["size"], r["precision"], r["peer"]) for r in told["rows"]] == [
        ("sample", fits[0], precision, peer) for peer in ("convoy", "torch eager") for precision in ("fp32", "tf32")]
    assert told["command"] == f"python bench/suites/gpu.py --suite sample --seed 1 --count 50 --only '{fits[0]}' " \
                              "--peer convoy --peer 'torch eager' --repeats 6"
    # The table: no torch.compile here, so nothing was faster than it, and the errors are fine.
    assert "Faster than torch.compile in 0 of 2 (fp32 0 of 1, tf32 0 of 1)" in done.stdout
    assert "2 of 2 are within the error bound" in done.stdout and told["rows"][0]["chain"].replace("|", "\\|") in done.stdout


def test_a_peer_that_hangs_is_ended(tmp_path):
    out = tmp_path / "gpu.json"
    done = bench(out, *peers("torch.compile"), "--only", "A", "--row-seconds", "0.5", faults="torch.compile=hangs")
    assert done.returncode == 0, done.stderr
    assert [r["error"] for r in json.loads(out.read_text())["rows"]] == ["no answer within 0 s"] * 2


def test_the_budget_is_kept(tmp_path):
    out = tmp_path / "gpu.json"
    assert bench(out, *peers("convoy"), "--budget", "0").returncode == 2
    assert not out.exists() and not out.with_suffix(".partial").exists()


def test_without_a_gpu_it_says_so(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    command = [sys.executable, str(ROOT / "bench" / "suites" / "gpu.py"), "--peer", "convoy", "--out", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "PyTorch sees no GPU here" in done.stderr and not list(tmp_path.iterdir())
