"""What plans derive from parameters alone (folded, packed, transformed weights), once for all shapes.

A plan tells a digest of what it prepares. Runners whose plans have one digest, on the same parameters, share it: a
network called with many batch sizes keeps its weights once. Where sizes lead to other algorithms they lead to other
digests; of those at most MOST_LAYOUTS keep memory on the CPU for one set of parameters, and one that comes back later
prepares again. On the GPU every stream has its own, since nothing orders two, and memory stays as long as a runner
needs it, since a captured graph may know its address.
"""

import ctypes as C
import itertools
import operator
import threading
import weakref

import torch

from .binding import CVY_ALIGN

COMPARED = 1 << 16  # bytes of a parameter that are compared with what they were
MOST_LAYOUTS = 4

_libc = C.CDLL(None)
_libc.memcmp.restype, _libc.memcmp.argtypes = C.c_int, [C.c_void_p, C.c_void_p, C.c_size_t]
TICKS = itertools.count()
POINTER, VERSION = torch.Tensor.data_ptr, operator.attrgetter("_version")


class Stale(Exception):
    """A parameter has another dtype, device or layout than the plan was made for."""


def seen(tensors):
    """Addresses and versions, which show most changes; an inference tensor does not count its own, and is new each time.
    Lists that functions of C make: every call does this."""
    try:
        return list(map(POINTER, tensors)), list(map(VERSION, tensors))
    except RuntimeError:
        return object()


class Param:
    """The bytes of a parameter on the CPU as they were when it was prepared: `parameter.data` changes without a new
    version. Of large ones that is the beginning."""

    __slots__ = ("kind", "bytes", "copy")

    def __init__(self, tensor, kind):
        self.kind, self.copy = kind, None
        # Of a tensor with gaps or repetitions only the first element is surely there.
        dense = tensor.numel() if tensor.is_contiguous() else min(tensor.numel(), 1)
        self.bytes = min(4 * dense, COMPARED) if tensor.device.type == "cpu" else 0

    def changed(self, pointer):
        return _libc.memcmp(self.copy, pointer, self.bytes)

    def take(self, tensor):
        if (tensor.shape, tensor.stride(), tensor.dtype, tensor.device) != self.kind:
            raise Stale
        self.copy = C.string_at(tensor.data_ptr(), self.bytes) if self.bytes else None


class Prepared:
    """One layout of one set of parameters. What it holds is only read while it is current, by any number of threads."""

    def __init__(self, size, tensors, kinds, family, device):
        self.size, self.family, self.device = size, family, device
        self.params = [Param(t, kind) for t, kind in zip(tensors, kinds)]
        self.compared = [(i, p) for i, p in enumerate(self.params) if p.bytes]
        self.seen = None  # of the parameters, when they were taken
        self.tensors = [weakref.ref(t) for t in tensors]
        self.lock = threading.Lock()  # held by who prepares
        self.memory, self.valid, self.used = None, False, next(TICKS)
        self.generation = 0  # counts what was taken: addresses may be others

    def ready(self, tensors):
        """The memory that holds what these parameters give now; None where there is none. Other threads may drop it or
        prepare anew at any time: what was looked at must be of one generation."""
        memory, generation = self.memory, self.generation
        if memory is None or not self.valid:
            return None
        now = seen(tensors)
        if now != self.seen:
            return None
        for i, param in self.compared:
            if param.changed(now[0][i]):
                return None
        return memory if self.valid and self.generation == generation else None

    def take(self, tensors):
        """Makes room, which is returned; the caller prepares, and says whether it is valid then."""
        self.valid = False
        for param, tensor in zip(self.params, tensors):
            param.take(tensor)
        self.seen = seen(tensors)
        self.generation += 1
        memory = self.memory
        if memory is None:
            room = self.size and self.size + CVY_ALIGN
            memory = self.memory = torch.empty(room, dtype=torch.uint8, device=self.device)
            self.family.bound(self)
        return memory

    def drop(self):
        self.valid, self.memory = False, None


class Family:
    """The layouts of one set of parameters."""

    def __init__(self):
        self.layouts = weakref.WeakValueDictionary()  # by digest

    def bound(self, newest):
        newest.used = next(TICKS)
        held = sorted((p for p in list(self.layouts.values()) if p.memory is not None), key=lambda p: p.used)
        for old in held[:-MOST_LAYOUTS] if newest.device.type == "cpu" else ():
            old.drop()


class Store:
    """All there is: families by parameters and stream."""

    def __init__(self):
        self.lock = threading.Lock()
        self.families = weakref.WeakValueDictionary()

    def find(self, plan, tensors, kinds, stream, device):
        """The layout of a plan for these parameters."""
        key = (device, stream, *map(id, tensors))
        with self.lock:
            family = self.families.get(key)
            if family is None:
                family = self.families[key] = Family()
            found = family.layouts.get((plan.digest, *kinds))
            if found is None or any(ref() is not t for ref, t in zip(found.tensors, tensors)):
                found = Prepared(plan.prepared, tensors, kinds, family, device)
                family.layouts[(plan.digest, *kinds)] = found
            return found

    def bytes(self):
        """Memory that is held, each buffer counted once."""
        with self.lock:
            layouts = [p for family in self.families.values() for p in family.layouts.values()]
        return sum(p.memory.numel() for p in layouts if p.memory is not None)


STORE = Store()
