"""Calls share PyTorch's threads: no pool of Convoy's beside them, in the main thread, in others, after a fork."""

import os
import subprocess
import sys

import pytest

PREPARE = """
import hashlib, os, signal, threading, torch, convoy
from pathlib import Path
from torch import nn

torch.set_num_threads(2)
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(16, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.GroupNorm(8, 64)).eval()
x = torch.randn(2, 16, 64, 64)
fast = convoy.compile(model)

def workers():
    found = []
    for path in Path("/proc/self/task").glob("*/comm"):
        try:
            found.append(path.read_text().strip())
        except OSError:
            pass  # the team of a thread that has ended is just going
    return sorted(name for name in found if name.startswith("convoy-"))

def call():
    with torch.inference_mode():
        want = model(x)  # PyTorch's team has been at work
        got = fast(x)
    assert (got - want).abs().max() < 1e-4
    return got
"""


def run(body, **variables):
    environment = {**os.environ, "CVY_DEBUG": "1", **variables}
    command = [sys.executable, "-c", PREPARE + body]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_the_team_is_used():
    """By several threads of Python too; all get the same bits."""
    body = """
first = call()
wrong = []
def many():
    for _ in range(5):
        if not torch.equal(call(), first):
            wrong.append(1)
threads = [threading.Thread(target=many) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(workers(), len(wrong))
"""
    done = run(body)
    assert done.stderr.count("cpu: parts run on the OpenMP team of ") == 1
    assert done.stdout.strip() == "[] 0"


def test_same_bits():
    """One thread, the team, the pool: one digest."""
    body = "print(hashlib.sha256(call().numpy().tobytes()).hexdigest(), workers())"
    one, team, own = run("torch.set_num_threads(1)\n" + body), run(body), run(body, CVY_POOL="own")
    assert one.stdout.split()[1:] == team.stdout.split()[1:] == ["[]"]
    assert own.stdout.split()[1:] == ["['convoy-1']"] and "OpenMP team" not in own.stderr
    assert one.stdout.split()[0] == team.stdout.split()[0] == own.stdout.split()[0]


@pytest.mark.parametrize("warm", (True, False), ids=("warm", "cold"))
def test_forked_child(warm):
    """libgomp waits forever in the child of a parent that has used it. Convoy does not, run in the parent or not."""
    body = f"""
with torch.inference_mode():
    want = fast(x) if {warm} else model(x)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        got = fast(x)
        found = workers()
        torch.set_num_threads(1)  # PyTorch's own operators would wait
        print((got - want).abs().max().item() < 1e-4, found, flush=True)
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    assert run(body).stdout.strip() == "True ['convoy-1']"
