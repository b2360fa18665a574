"""Every name that the Python files use is defined: what a merge or a rename left out is otherwise found only by the call that needs it."""

import subprocess
import sys

from conftest import ROOT

FOLDERS = ("python", "bench", "examples", "test")


def undefined(*paths):
    done = subprocess.run([sys.executable, "-m", "pyflakes", *map(str, paths)], cwd=ROOT, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if "undefined name" in line]


def test_names_are_defined():
    assert undefined(*FOLDERS) == []


def test_an_undefined_name_is_found(tmp_path):
    (tmp_path / "module.py").write_text("def f(x):\n    return g(x)\n")
    (found,) = undefined(tmp_path)
    assert "undefined name 'g'" in found
