"""Exclusive access to a module while it is traced.

During a trace stand-ins replace a module's tensors for every thread: another thread that runs the module's own forward would
compute with them. So a trace needs exclusive access. Calls of compiled modules that PyTorch runs announce themselves (`in_pytorch`);
a trace waits until no other thread is in such a call, and new ones wait until the trace has ended.

A thread inside such a call never waits for another thread, and a trace waits no longer than PATIENCE: then PyTorch runs the
call, and a later one is traced. So there is no deadlock, even if a forward starts threads and waits for them.
"""

import contextlib
import threading
import time
from threading import get_ident

PATIENCE = 2.0  # seconds

TRACING = threading.RLock()  # one trace or inspection of a module's state at a time, because modules may share parts
INSIDE = {}  # threads that run a forward in PyTorch; each operation on it is atomic


class Busy(Exception):
    """Other threads are in PyTorch: no trace now."""


class Tracer:
    """The thread whose placeholders are, or are about to be, in the modules."""

    thread = 0


def in_pytorch(forward, module, args, kwargs):
    """forward(module, *args, **kwargs), while no other thread traces."""
    me = get_ident()
    if me in INSIDE:
        return forward(module, *args, **kwargs)
    INSIDE[me] = True  # first: a thread that wants to trace announces it and then looks here
    try:
        if Tracer.thread and Tracer.thread != me:
            wait_outside(me)
        return forward(module, *args, **kwargs)
    finally:
        del INSIDE[me]


def wait_outside(me):
    end = time.monotonic() + PATIENCE
    while Tracer.thread and time.monotonic() < end:
        INSIDE.pop(me, None)
        time.sleep(1e-3)
        INSIDE[me] = True


@contextlib.contextmanager
def taken(lock):
    """A lock. A thread that is inside a module does not wait for it, but raises Busy."""
    if not lock.acquire(blocking=get_ident() not in INSIDE):
        raise Busy
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def alone():
    """Waits until no other thread traces or runs a compiled module in PyTorch; raises Busy if that takes too long."""
    me = get_ident()
    with taken(TRACING):
        before, Tracer.thread = Tracer.thread, me
        try:
            end = time.monotonic() + PATIENCE
            while any(thread != me for thread in list(INSIDE)):
                if time.monotonic() >= end:
                    raise Busy
                time.sleep(1e-3)
            yield
        finally:
            Tracer.thread = before
