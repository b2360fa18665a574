"""effort="measure" times a region once: later processes read what it found."""

import json
import os
import subprocess

import pytest
import torch
from torch import nn

import convoy
from convoy import verdicts, worth


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """A cache of the test's own, and the regions that were timed."""
    monkeypatch.setenv("CVY_CACHE", str(tmp_path / "cache"))
    found = []

    def compare(runner):
        found.append(runner)
        return worth.Verdict(1e-3, 2e-3, measured=True)

    monkeypatch.setattr(worth, "compare", compare)
    return found


def first_call(features=8, **options):
    """As in a process of its own."""
    worth.REMEMBERED.clear()
    model = nn.Sequential(nn.Linear(6, features), nn.ReLU(), nn.Linear(features, 3)).eval()
    fast = convoy.compile(model, effort="measure", regions="faster", **options)
    with torch.no_grad():
        x = torch.randn(5, 6)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    (entry,) = fast._convoy.entries.values()
    return entry.verdicts


def entries(tmp_path):
    """Those of this kind: the library keeps measured plans there."""
    return [p for p in sorted((tmp_path / "cache").glob("*.code")) if p.read_bytes()[80:].startswith(b'{"text"')]


def test_a_region_is_timed_once(timed, tmp_path):
    first = first_call()
    n = len(timed)
    assert n and len(entries(tmp_path)) == n
    assert first_call() == first and len(timed) == n
    assert all(v.measured for v in first)


def test_what_it_depends_on(timed, monkeypatch):
    first_call()
    n = len(timed)
    for change in (lambda: first_call(9), lambda: first_call(winograd=False), lambda: first_call(threads=2)):
        change()
        assert len(timed) > n
        n = len(timed)
        change()
        assert len(timed) == n
    for name in ("__version__",):
        monkeypatch.setattr(torch, name, "9.9.9")
    first_call()
    assert len(timed) > n
    n = len(timed)
    monkeypatch.setattr(verdicts, "machine", lambda device: "another")
    first_call()
    assert len(timed) > n


def damaged(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def signed(path, change):
    """Whole, but not what was measured."""
    key, said = bytes.fromhex(path.stem), json.loads(path.read_bytes()[80:])
    payload = json.dumps(change(said)).encode()
    path.write_bytes(verdicts.header(key, payload) + payload)


DAMAGES = {
    "a flipped bit": damaged,
    "cut": lambda p: p.write_bytes(p.read_bytes()[:-1]),
    "empty": lambda p: p.write_bytes(b""),
    "another's": lambda p: signed(p, lambda said: {**said, "text": "another region"}),
    "negative": lambda p: signed(p, lambda said: {**said, "ours": -1.0}),
    "no number": lambda p: signed(p, lambda said: {**said, "theirs": float("nan")}),
    "no times": lambda p: signed(p, lambda said: {"text": said["text"]}),
    "a list": lambda p: signed(p, lambda said: [1, 2]),
    "a link": lambda p: (p.rename(p.with_suffix(".moved")), p.symlink_to(p.with_suffix(".moved"))),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "a pipe": lambda p: (p.unlink(), os.mkfifo(p)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_not_whole_is_not_believed(damage, timed, tmp_path):
    first_call()
    n = len(timed)
    for path in entries(tmp_path):
        damage(path)
    first_call()
    assert len(timed) == 2 * n


def test_places_that_are_not_used(timed, tmp_path, monkeypatch):
    first_call()
    n = len(timed)
    (tmp_path / "cache").chmod(0o777)  # anybody could have written there
    first_call()
    assert len(timed) == 2 * n
    monkeypatch.setenv("CVY_CACHE", "off")
    first_call()
    monkeypatch.setenv("CVY_CACHE", "/proc/none")
    first_call()
    assert len(timed) == 4 * n


def test_the_command_knows_them(timed, tmp_path):
    """They are entries of the library's cache like others."""
    first_call()
    command = [os.environ.get("CONVOY_COMMAND", str(verdicts.lib.path.parent / "convoy")), "cache"]
    if not os.path.exists(command[0]):
        pytest.skip("no command beside the library")
    listed = subprocess.run([*command, "verify"], capture_output=True, text=True, check=True)
    assert len(entries(tmp_path)) == len(timed) and ", 0 damaged" in listed.stdout
    subprocess.run([*command, "clear"], capture_output=True, check=True)
    assert not entries(tmp_path)
