"""Large results reuse memory and give it back; nothing grows over many compiles and runs."""

import gc
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import convoy
from convoy import memory


@pytest.fixture
def pool(monkeypatch):
    made = memory.Pool()
    monkeypatch.setattr(memory, "POOL", made)
    yield made
    if made.timer:
        made.timer.cancel()


def big(n=memory.SMALLEST // 4 + 5):
    return memory.allocator((n,), (1,), torch.device("cpu"))()


def test_memory_is_reused(pool):
    a = big()
    address = a.data_ptr()
    a.fill_(3)
    view = a[10:20]
    del a
    assert not pool.idle  # the view still needs it
    assert view.sum() == 30
    del view
    assert len(pool.idle) == 1
    b = big()
    assert b.data_ptr() == address and not pool.idle
    c = big()
    assert c.data_ptr() != address


def test_other_sizes_do_not_share(pool):
    del_me = big(memory.SMALLEST)
    del del_me
    small = big()
    assert len(pool.idle) == 1 and small.numel() == memory.SMALLEST // 4 + 5


def test_idle_memory_is_bounded_and_goes_back(pool, monkeypatch):
    now, timers = 100.0, []

    class Timer:
        def __init__(self, seconds, function):
            self.seconds, self.function = seconds, function

        def start(self):
            timers.append(self)

        def cancel(self):
            timers.remove(self)

    monkeypatch.setattr(memory, "LIMIT", 3 * memory.SMALLEST)
    monkeypatch.setattr(memory.time, "monotonic", lambda: now)
    monkeypatch.setattr(memory.threading, "Timer", Timer)
    tensors = [big() for _ in range(6)]
    del tensors
    assert 0 < pool.idle_bytes <= memory.LIMIT
    assert [t.seconds for t in timers] == [memory.IDLE_SECONDS]
    now += memory.IDLE_SECONDS / 2
    late = big()  # the newest of the idle blocks, which goes back half a wait after the others
    del late
    now += memory.IDLE_SECONDS / 2
    timers.pop().function()
    assert len(pool.idle) == 1 and pool.idle_bytes == pool.idle[0].size
    now += memory.IDLE_SECONDS / 2
    timers.pop().function()
    assert not pool.idle and pool.idle_bytes == 0 and not memory.LIVE and not timers


def test_pool_from_many_threads(pool):
    def work(value):
        for _ in range(30):
            t = big()
            t[0] = value
            t[-1] = value
            assert t[0] == value and t[-1] == value

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    gc.collect()
    assert not memory.LIVE


@torch.no_grad()
def test_large_results_behave(pool):
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
    fast = convoy.compile(model)
    x = torch.randn(2, 1, 300, 300)
    y = fast(x)
    assert memory.LIVE
    torch.testing.assert_close(y, model(x), rtol=1e-5, atol=1e-5)
    y.mul_(2)
    y.share_memory_()
    z = y.clone()
    del y
    assert not memory.LIVE
    assert torch.isfinite(z).all()


# A leak grows in every round, whatever caches do meanwhile: of many rounds the least growth is what counts. Bytes are
# those that malloc has given out (where the C library tells), not pages, which depend on luck.
COUNTING = """
import ctypes, gc, sys, torch, convoy

names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Info = type("Info", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", Info)
mallinfo.restype = Info

def count():
    gc.collect()
    objects, info = len(gc.get_objects()), mallinfo()
    return info.uordblks + info.hblkhd, sys.getallocatedblocks(), objects

def check(step, n, rounds=40):
    \"\"\"One leaked thing per step is n things in every round, and no chunk of malloc is smaller than 24 bytes.\"\"\"
    least = [1 << 60] * 3
    for _ in range(rounds):
        before = count()
        for _ in range(n):
            step()
        least = [min(l, b - a) for l, a, b in zip(least, before, count())]
        if least[0] < 24 * n and least[1] < n and least[2] < n:
            return
    raise AssertionError(f"{n} steps leave at least {least[0]} bytes, {least[1]} blocks, {least[2]} objects")

x = torch.randn(1, 2, 9)
model = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.ReLU()).requires_grad_(False)
"""

RUNS = """
fast = convoy.compile(model)
check(lambda: fast(x), 1000)
"""

COMPILES = """
from convoy.engine import Graph, Plan

check(lambda: convoy.compile(model)(x), 40)
assert not [o for o in gc.get_objects() if isinstance(o, (Graph, Plan))]
"""


@pytest.mark.parametrize("what", [RUNS, COMPILES], ids=["runs", "compiles"])
def test_nothing_leaks(what):
    """In a process of its own, where nothing but this is going on."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", COUNTING + what], check=True)
