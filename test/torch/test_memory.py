"""Large results reuse memory and give it back; nothing grows over many compiles and runs."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from convoy import binding, memory, prepared, region


@pytest.fixture
def pool(monkeypatch):
    made = memory.Pool()
    monkeypatch.setattr(memory, "POOL", made)
    yield made
    if made.timer:
        made.timer.cancel()


def big(n=memory.SMALLEST // 4 + 5):
    return memory.allocator((n,), (1,), torch.float32, torch.device("cpu"))()


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


# ---- what is derived from parameters -----------------------------------------------------------------------------


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1),
                         nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 10)).eval()  # fmt: skip


@pytest.fixture
def store(monkeypatch):
    made = prepared.Store()
    monkeypatch.setattr(region, "STORE", made)
    return made


@pytest.fixture
def preparations(monkeypatch):
    """Grows with every run that derives something from parameters again."""
    found, run = [], region._run

    def watched(plan, buffers, n, memory, flags, stream):
        if not flags & binding.CVY_KEEP_PREPARED:
            found.append(plan)
        return run(plan, buffers, n, memory, flags, stream)

    monkeypatch.setattr(region, "_run", watched)
    return found


def near(fast, model, x):
    want = model(x)
    torch.testing.assert_close(fast(x), want, rtol=1e-5, atol=1e-5 * want.abs().max().item())


@torch.no_grad()
def test_shapes_share_what_is_prepared(store, preparations):
    model = network()
    fast = convoy.compile(model)
    near(fast, model, torch.randn(1, 4, 8, 8))
    held, once = store.bytes(), len(preparations)
    parameters = sum(4 * p.numel() for p in model.parameters())
    assert held > parameters / 2
    for n in range(2, 26):
        near(fast, model, torch.randn(n, 4, 8, 8))
    assert store.bytes() == held and len(preparations) == once
    model[0].weight.mul_(1.5)
    for n in (1, 7):
        near(fast, model, torch.randn(n, 4, 8, 8))
    assert store.bytes() == held and len(preparations) == once + len(list(fast._convoy.entries.values())[0].runners)
    again = convoy.compile(model)  # the same parameters: the same memory
    near(again, model, torch.randn(3, 4, 8, 8))
    assert store.bytes() == held
    del fast, again
    gc.collect()
    assert store.bytes() == 0


@torch.no_grad()
def test_layouts_of_the_same_parameters_are_bounded(store, monkeypatch, preparations):
    monkeypatch.setattr(prepared, "MOST_LAYOUTS", 1)
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
    kinds = [convoy.compile(model, winograd=w) for w in (True, False)]
    x = torch.randn(1, 16, 40, 40)
    near(kinds[0], model, x)
    held = store.bytes()
    for _ in range(3):
        for fast in kinds:
            near(fast, model, x)
            assert 0 < store.bytes() <= held
    assert len(preparations) == 6  # each in turn pushes the other out
    monkeypatch.setattr(prepared, "MOST_LAYOUTS", 2)
    for _ in range(3):
        for fast in kinds:
            near(fast, model, x)
    assert len(preparations) == 7


class Standardised(nn.Conv2d):
    """Weight standardisation, written out in forward."""

    def forward(self, x):
        w = self.weight
        w = w - w.mean((1, 2, 3), keepdim=True)
        w = w / (w.square().mean((1, 2, 3), keepdim=True) + 1e-5).sqrt()
        return F.conv2d(x, w, self.bias, padding=1)


@torch.no_grad()
def test_arithmetic_on_parameters_is_done_once_per_change(preparations):
    model = nn.Sequential(Standardised(3, 8, 3), nn.ReLU(), Standardised(8, 8, 3), nn.SiLU())
    fast = convoy.compile(model)
    x = torch.randn(2, 3, 9, 9)
    near(fast, model, x)
    regions = len(list(fast._convoy.entries.values())[0].runners)
    near(fast, model, x)
    near(fast, model, x)
    assert len(preparations) == regions
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    changes = [
        lambda: [setattr(p, "grad", torch.randn_like(p)) for p in model.parameters()] and optimiser.step(),
        lambda: model.load_state_dict({k: v * 0.5 + 0.1 for k, v in model.state_dict().items()}),
        lambda: [p.data.add_(0.25) for p in model.parameters()],
        lambda: [setattr(p, "data", torch.randn_like(p)) for p in model.parameters()],
    ]
    for i, change in enumerate(changes, 2):
        change()
        near(fast, model, x)
        near(fast, model, x)
        assert len(preparations) == i * regions


@torch.no_grad()
def test_threads_share_what_one_prepares(store, preparations):
    model = network()
    fast = convoy.compile(model)
    inputs = [torch.randn(n, 4, 8, 8) for n in (1, 2, 3, 4)]
    wanted = [model(x) for x in inputs]
    fast(inputs[0])
    held, once = store.bytes(), len(preparations)
    wrong = []

    def work(x, want):
        with torch.no_grad():
            for _ in range(20):
                if not torch.allclose(fast(x), want, rtol=1e-4, atol=1e-5):
                    wrong.append(x.shape)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, wanted)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and store.bytes() == held and len(preparations) == once


@torch.no_grad()
def test_runs_of_a_thread_share_a_workspace():
    memory.OWN.memory, memory.OWN.size = None, 0
    model = network()
    fast = convoy.compile(model)
    sizes = []
    for n in (1, 5, 2, 1):
        fast(torch.randn(n, 4, 8, 8))
        sizes.append(memory.OWN.size)
    most = max(r.plan.scratch for e in fast._convoy.entries.values() for r in e.runners)
    assert sizes == sorted(sizes) and sizes[-1] == most


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


SHAPES = """
import ctypes, gc, sys, torch, convoy
sys.path.insert(0, sys.argv[1])
import networks
from convoy.prepared import STORE

torch.set_num_threads(2)
model = networks.resnet18().eval()
call = convoy.compile(model, regions="faster") if sys.argv[2] == "compiled" else model

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * 4096

with torch.no_grad():
    for n in (24, 1):  # the largest first: what grows then is kept for the shape
        call(torch.randn(n, 3, 96, 96))
    before, prepared = resident(), STORE.bytes()
    for n in range(22, 1, -2):
        call(torch.randn(n, 3, 96, 96))
    print(resident() - before, STORE.bytes() - prepared)
"""


def test_a_shape_keeps_little():
    """Batch sizes of a ResNet-18. PyTorch itself keeps kernels for every shape, so what counts is what we keep beside: prepared
    weights, where sizes have different regions, and plans."""
    networks = Path(__file__).resolve().parents[2] / "bench" / "modules"

    def grown(kind):
        command = [sys.executable, "-W", "ignore", "-c", SHAPES, networks, kind]
        return list(map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()))

    (eager, _), (compiled, prepared) = grown("eager"), grown("compiled")
    assert prepared <= 8 << 20
    assert compiled - prepared - eager <= 14 << 20  # 11 shapes; twice that before they shared the module's state
