"""The foreign oracle: thousands of chains that nobody here chose, judged by PyTorch in float64.

Chains are numbered, and the same every time. CONVOY_FOREIGN is how many are run (default 5000), CONVOY_FOREIGN_FIRST the
number of the first; CVY_ISA keeps to one instruction set, without it every chain runs under all that the machine has.
The work is done by one process per core (campaign.py), so that a crash costs a message and not the tests.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import emulated  # noqa: E402
from campaign import Case, settings  # noqa: E402
from convoy.engine import operators  # noqa: E402
from draw import ROWS, draw  # noqa: E402
from guarded import Guarded  # noqa: E402
from shrink import shrink  # noqa: E402

FIRST, CHAINS = int(os.environ.get("CONVOY_FOREIGN_FIRST", 0)), int(os.environ.get("CONVOY_FOREIGN", 5000))
EMULATED = CHAINS // 100  # each takes a second of compiling
WORKERS = len(os.sched_getaffinity(0))
LIMIT = 1200 + CHAINS / 5  # seconds: many times what they take, so that a chain that hangs is named and not waited for
CAMPAIGN = Path(__file__).with_name("campaign.py")
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """All processes, started together: [(process, file of its output, file that names its chain)]. The last has the emulator."""
    folder, started = tmp_path_factory.mktemp("foreign"), []
    bounds = [FIRST + CHAINS * i // WORKERS for i in range(WORKERS + 1)]
    works = [[f"{first}:{end}"] for first, end in zip(bounds, bounds[1:])]
    for i, work in enumerate([*works, [f"{FIRST}:{FIRST + EMULATED}", "--emulated"]]):
        output, progress = folder / f"output{i}", folder / f"progress{i}"
        command = [sys.executable, CAMPAIGN, *work, "--progress", progress]
        with open(output, "w") as file:
            started.append((subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT), output, progress))
    yield started
    for process, *_ in started:
        process.kill()
        process.wait(60)


def finish(process, output, progress):
    try:
        status = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        pytest.fail(f"no end after {LIMIT:.0f} s, in chain {progress.read_text().strip()}\n{output.read_text()}")
    assert status >= 0, f"signal {-status} in chain {progress.read_text().strip()}\n{output.read_text()}"
    assert status == 0, output.read_text()


@pytest.mark.parametrize("i", range(WORKERS))
def test_chains(workers, i):
    finish(*workers[i])


@pytest.mark.skipif(not emulated.FOLDER.exists(), reason="make tests builds the emulator")
def test_chains_on_the_emulator(workers):
    finish(*workers[WORKERS])


# ---- the oracle itself ---------------------------------------------------------------------------------------------------


def test_every_operator_can_be_drawn():
    assert {name for name, *_ in ROWS} == set(operators())


def test_a_number_is_one_chain():
    assert draw(17) == draw(17) != draw(18)


CHAIN = "x[2,4,9,9] | conv2d(8,3,padding=1) @v0 | group_norm(2) @v1 | relu @v2 | output(@v1, @v2)"


@pytest.mark.parametrize("kind", ["normal", "integer", "offset", "tiny", "special"])
@pytest.mark.parametrize("wrong", [1e-3, np.nan, np.inf, "swapped"])
def test_an_error_is_noticed(kind, wrong):
    case = Case(CHAIN, kind, 3)
    for setting in settings(3, ["portable"]):
        gots, faults = case.run(setting)
        assert not faults and not case.judge.verdict(gots, setting.device == "ref")
        at = np.argmax(np.nan_to_num(gots[1]))  # a number that is not 0
        if wrong == "swapped":
            gots[1].flat[[at, np.argmin(np.nan_to_num(gots[1]))]] = gots[1].flat[[np.argmin(np.nan_to_num(gots[1])), at]]
        else:
            gots[1].flat[at] += wrong
        assert case.judge.verdict(gots, setting.device == "ref")


@pytest.mark.parametrize("spread", [1, 2])
def test_a_write_past_the_end_is_noticed(spread):
    output, source = Guarded((3, 4), spread, 1), Guarded((3, 4), spread, 1).freeze()
    output.array[...] = 1
    assert output.fault() is None and source.fault() is None
    output.all[12 * spread + 132] = 0
    source.array[0, 0] = 2
    assert output.fault() and source.fault()


def test_a_chain_shrinks():
    text = "x[3,8,9] | relu @v0 | conv1d(8,3,padding=1) @v1 | exp @v2 | add(@v0) @v3"
    assert shrink(text, lambda t: "exp" in t and "x[" in t) == "x[1,1,1] | exp @v2"
