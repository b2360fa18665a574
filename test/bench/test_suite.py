"""The benchmark itself at a tiny size: its rows, going on after an interruption, peers that are not installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAIN = "x[2,4,9,9] | conv2d(8,3) @c | group_norm(2) | tanh | add(@c) | max_pool2d(2) | clamp(0,1)"
KEYS = {"block", "chain", "peer", "device", "precision", "threads", "ms", "max_abs_error"}


def bench(out, *arguments, **env):
    command = [sys.executable, str(ROOT / "bench" / "suites" / "run.py"), "--only", CHAIN, "--out", str(out), "--patience", "1",
               "--repeats", "3", "--row-seconds", "1e6", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})


def test_rows_have_times_and_errors(tmp_path):
    out = tmp_path / "rows.json"
    done = bench(out, "--peer", "convoy", "--peer", "convoy unfused", "--peer", "torch eager", "--peer",
                 "torch eager channels_last")
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    assert {"date", "machine", "versions", "command", "rows"} <= set(told)
    assert [r["peer"] for r in told["rows"]] == ["convoy", "convoy unfused", "torch eager", "torch eager channels_last"]
    for row in told["rows"]:
        assert KEYS <= set(row), row
        assert row["ms"] > 0 and 0 <= row["max_abs_error"] < 1e-5 and row["runs"] >= 3
    assert not out.with_suffix(".partial").exists()


def test_an_interrupted_run_goes_on(tmp_path):
    out = tmp_path / "rows.json"
    peers = ("--peer", "convoy", "--peer", "convoy unfused")
    assert bench(out, *peers, "--budget", "0.000001").returncode == 75
    told = json.loads(out.read_text())
    assert told["rows"] == [] and told["left_out"] == 2 and out.with_suffix(".partial").exists()
    made = {"series": "chain", "size": CHAIN, "chain": CHAIN, "block": None, "peer": "convoy", "ms": 123.0,
            "max_abs_error": 0.0, "device": "cpu", "precision": "fp32", "threads": 2}
    with out.with_suffix(".partial").open("a") as f:
        f.write(json.dumps(made) + '\n{"cut off')
    assert bench(out, *peers).returncode == 0
    rows = {r["peer"]: r for r in json.loads(out.read_text())["rows"]}
    assert rows["convoy"]["ms"] == 123.0, "measured again"
    assert rows["convoy unfused"]["ms"] != 123.0


def test_a_row_that_takes_too_long_is_a_failure(tmp_path):
    out = tmp_path / "rows.json"
    assert bench(out, "--peer", "convoy unfused", "--row-seconds", "0").returncode == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["ms"] is None and row["error"] == "no answer within 0 s"


def test_a_peer_that_is_not_installed_is_skipped_and_named(tmp_path):
    (tmp_path / "openvino.py").write_text("raise ImportError('not here')\n")
    out = tmp_path / "rows.json"
    done = bench(out, "--peer", "convoy", "--peer", "openvino", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "openvino is skipped: not here" in done.stderr
    told = json.loads(out.read_text())
    assert [r["peer"] for r in told["rows"]] == ["convoy"] and told["missing"] == {"openvino": "not here"}


@pytest.mark.parametrize("name", ["full", "smoke"])
def test_the_suite_is_read_alike_by_every_peer(name):
    """Every chain of the suite parses here, and the PyTorch text of it is Python."""
    sys.path.insert(0, str(ROOT / "bench" / "suites"))
    try:
        import chains
        import suite
    finally:
        sys.path.pop(0)
    cases = suite.SUITES[name]()
    assert {c.block for c in cases} == {"A", "B", "C", None}
    assert len({(c.series, c.size, c.chain) for c in cases}) == len(cases)
    for case in cases:
        chain = chains.parse(case.chain)
        compile(chains.torch_source(chain), case.chain, "exec")
        assert "convoy" in case.peers
