"""Memory for results, and for values between the passes of a run.

A fresh gigabyte costs the CPU 200 ms in page faults, longer than many blocks take to fill it. So large CPU results
come from a pool of blocks on huge pages. A block returns to the pool when its tensor dies; the pool keeps at most `LIMIT` idle
bytes, and none longer than `IDLE_SECONDS`. PyTorch allocates everything else.
"""

import ctypes
import functools
import mmap
import os
import threading
import time
import weakref

import torch

ALIGNED = 256  # of a workspace: CVY_ALIGN
HUGE_PAGE = 2 << 20
SMALLEST = 8 << 20  # bytes of a result that the pool serves; malloc reuses smaller blocks itself
IDLE_SECONDS = 5.0
try:
    from torch._C._dynamo import guards

    SHORT_WAYS = {kind: getattr(guards, f"_empty_strided_{kind}") for kind in ("cpu", "cuda")}
except (ImportError, AttributeError):
    SHORT_WAYS = {}
LIMIT = min(4 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)


class Block:
    """Memory on huge pages."""

    def __init__(self, size):
        self.map = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self.map.madvise(mmap.MADV_HUGEPAGE)
            except OSError:  # a kernel without huge pages
                pass
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.size, self.address, self.since = size, -(-start // HUGE_PAGE) * HUGE_PAGE, 0.0


class Pool:
    def __init__(self):
        self.lock = threading.RLock()  # a tensor may die, and come back here, at any allocation
        self.idle, self.idle_bytes, self.timer = [], 0, None

    def take(self, size):
        size = -(-size // HUGE_PAGE) * HUGE_PAGE
        with self.lock:
            for i in range(len(self.idle) - 1, -1, -1):  # the latest first: its pages are warm
                if size <= self.idle[i].size <= size + size // 4:
                    block = self.idle.pop(i)
                    self.idle_bytes -= block.size
                    return block
        return Block(size)

    def give_back(self, block, key=None):
        with self.lock:
            LIVE.pop(key, None)
            block.since = time.monotonic()
            self.idle.append(block)
            self.idle_bytes += block.size
            while self.idle_bytes > LIMIT:
                self.idle_bytes -= self.idle.pop(0).size
            self.watch()

    def watch(self):
        if self.timer is None and self.idle:
            self.timer = threading.Timer(IDLE_SECONDS, self.sweep)
            self.timer.daemon = True
            self.timer.start()

    def sweep(self):
        """Returns memory that has not been used for a while to the system."""
        with self.lock:
            oldest = time.monotonic() - IDLE_SECONDS
            self.idle = [b for b in self.idle if b.since > oldest]
            self.idle_bytes = sum(b.size for b in self.idle)
            self.timer = None
            self.watch()


POOL = Pool()
LIVE = {}  # weak references with their callbacks, by number
os.register_at_fork(after_in_child=lambda: POOL.__init__())


def pooled(shape, stride, dtype, size):
    """A tensor on a block that returns to the pool when the last tensor on it is freed. It is not a view:
    autograd would not let those be changed in place. Its storage cannot grow (`resize_`)."""
    block = POOL.take(size)
    view = (ctypes.c_char * size).from_address(block.address)
    key = id(view)
    LIVE[key] = weakref.ref(view, lambda _: POOL.give_back(block, key))
    return torch.frombuffer(view, dtype=dtype).as_strided(shape, stride).data


class Own(threading.local):
    """A thread's workspace: its contents are not needed after a run, so all runs of the thread share it."""

    memory, address, size = None, 0, 0


OWN = Own()


def scratch(size):
    """A function that returns (address, owner) of CPU memory for one run, and one that takes it back."""
    if size >= SMALLEST:

        def take():
            block = POOL.take(size)
            return block.address, block

        return take, lambda block: POOL.give_back(block)

    def own():
        if OWN.size < size:
            OWN.memory = torch.empty(size + ALIGNED, dtype=torch.uint8)
            OWN.address, OWN.size = -(-OWN.memory.data_ptr() // ALIGNED) * ALIGNED, size
        return OWN.address, OWN.memory

    return own, None


def allocator(shape, stride, dtype, device):
    """A function that makes one result after another."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    if device.type == "cpu" and size >= SMALLEST:
        return lambda: pooled(shape, stride, dtype, size)
    return empty(shape, stride, dtype, device)


def empty(shape, stride, dtype, device):
    """A function that makes one tensor after another. PyTorch's compiled code has its own function, which takes no names
    of arguments and bypasses the dispatcher: half the time, less if caches are cold. It serves the current device."""
    usual = functools.partial(torch.empty_strided, shape, stride, dtype=dtype, device=device)
    short = SHORT_WAYS.get(device.type)
    if short is None:
        return usual
    direct = functools.partial(short, shape, stride, dtype)
    if device.type == "cpu" or torch.cuda.device_count() == 1:
        return direct
    return lambda: direct() if torch.cuda.current_device() == device.index else usual()


def contiguous(shape):
    stride, step = [], 1
    for extent in reversed(shape):
        stride.append(step)
        step *= max(extent, 1)
    return tuple(reversed(stride))
