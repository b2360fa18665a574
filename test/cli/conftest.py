"""The command under test: CONVOY names another one than build/convoy, CONVOY_TEST_DEVICES the devices."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEVICES = os.environ.get("CONVOY_TEST_DEVICES", "ref,cpu").split(",")
COMMAND = os.environ.get("CONVOY", str(ROOT / "build" / "convoy"))


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def convoy(tmp_path):
    """Runs the command in an empty folder; returns exit status, standard output, standard error."""

    def run(*arguments, stdin=None, env=None):
        done = subprocess.run(
            [COMMAND, *map(str, arguments)],
            input=stdin,
            env={**os.environ, **(env or {})},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def refused(result, *words):
    """Exit status 2, nothing on standard output, one line on standard error with these words in it."""
    status, out, err = result
    assert status == 2, (out, err)
    assert out == ""
    assert err.startswith("convoy: ") and err.count("\n") == 1, err
    for word in words:
        assert word in err, err
