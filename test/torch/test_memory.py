"""Large results reuse memory and give it back; nothing grows over many compiles and runs."""

import gc
import subprocess
import sys
import threading
import time

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
    monkeypatch.setattr(memory, "LIMIT", 3 * memory.SMALLEST)
    monkeypatch.setattr(memory, "IDLE_SECONDS", 0.2)
    tensors = [big() for _ in range(6)]
    del tensors
    assert 0 < pool.idle_bytes <= memory.LIMIT
    deadline = time.monotonic() + 5
    while pool.idle and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not pool.idle and pool.idle_bytes == 0 and not memory.LIVE


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


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@torch.no_grad()
def test_runs_leak_nothing():
    fast = convoy.compile(nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU()))
    x = torch.randn(1, 2, 9)
    for _ in range(2000):
        fast(x)
    objects = len(gc.get_objects())  # a list of its own, which must not count below
    before = resident()
    for _ in range(20000):
        fast(x)
    assert resident() - before < 2 << 20
    assert len(gc.get_objects()) - objects < 100


COMPILES = """
import gc, torch, convoy
from convoy.engine import Graph, Plan

def cycle(n):
    for _ in range(n):
        convoy.compile(model)(torch.randn(1, 2, 9))
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096, len(gc.get_objects())

model = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.ReLU()).requires_grad_(False)
cycle(50)
bytes_before, objects_before = cycle(50)
bytes_after, objects_after = cycle(200)
assert bytes_after - bytes_before < 2 << 20, bytes_after - bytes_before
assert objects_after - objects_before < 100, objects_after - objects_before
assert not [o for o in gc.get_objects() if isinstance(o, (Graph, Plan))]
"""


def test_compiles_leak_nothing():
    """In a process of its own: PyTorch's caches have grown there before anything is counted."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILES], check=True)
