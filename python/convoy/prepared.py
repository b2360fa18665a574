"""Values that plans derive only from parameters (folded, packed, transformed weights), once for all shapes.

A plan has a digest of what it prepares. Runners whose plans have the same digest, on the same parameters, share it: a
network called with many batch sizes keeps its weights once. Sizes with different algorithms have different
digests; on the CPU at most MOST_LAYOUTS of them keep memory for one set of parameters, and one that is used again later
prepares again. On the GPU every stream has its own, because streams are not ordered, and memory stays as long as a runner
needs it, because a captured graph may hold its address.
"""

import ctypes as C
import itertools
import operator
import threading
import weakref

import torch

from .binding import CVY_ALIGN, cvy_copy

COMPARED = 1 << 16  # bytes of a parameter that are compared with a copy
MOST_LAYOUTS = 4

TICKS = itertools.count()
POINTER, VERSION = torch.Tensor.data_ptr, operator.attrgetter("_version")


def seen(tensors):
    """Addresses and versions, which show most changes; None for an inference tensor, which does not count changes."""
    try:
        return list(map(POINTER, tensors)), list(map(VERSION, tensors))
    except RuntimeError:
        return None


class Contents:
    """Values prepared from parameters. They never change; a run holds them while it uses them.

    On the CPU the parameters' bytes are kept as well, since `parameter.data` changes without a new version; of large ones
    that is the beginning."""

    __slots__ = ("token", "memory", "address", "seen", "bytes", "copies")

    def __init__(self, memory, tensors):
        self.token = object()  # slots recognise it by this: a reference to it would keep the memory alive
        self.memory, self.seen = memory, seen(tensors)
        self.address = -(-memory.data_ptr() // CVY_ALIGN) * CVY_ALIGN
        sizes = [compared(t) for t in tensors]
        self.bytes = [C.string_at(t.data_ptr(), n) for t, n in zip(tensors, sizes) if n]
        places = [(t.data_ptr(), n) for t, n in zip(tensors, sizes) if n]
        self.copies = (cvy_copy * len(places))(*((at, C.cast(b, C.c_void_p), n) for (at, n), b in zip(places, self.bytes)))

    def fits(self, tensors):
        """Would these parameters give the same values?"""
        if self.seen is None or seen(tensors) != self.seen:
            return False
        return all(C.string_at(c.at, c.size) == b for c, b in zip(self.copies, self.bytes))


def compared(tensor):
    """How many bytes of a parameter are compared, from its first element on: at most up to its last one, with any strides."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return 0
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return min(tensor.element_size() * reach, COMPARED)


class Prepared:
    """One layout of one set of parameters."""

    def __init__(self, size, tensors, kinds, family, device):
        self.size, self.kinds, self.family, self.device = size, kinds, family, device
        self.tensors = [weakref.ref(t) for t in tensors]
        self.lock = threading.Lock()  # held by the thread that prepares
        self.memory, self.used = None, next(TICKS)
        self.contents = None  # of the memory; None while it contains nothing useful

    def fits(self, tensors):
        """Are these the parameters that the plan was made for?"""
        return all((t.shape, t.stride(), t.dtype, t.device) == kind for t, kind in zip(tensors, self.kinds))

    def ready(self, tensors):
        """The contents if these parameters still give them, else None. Other threads may drop them at any time."""
        contents = self.contents
        return contents if contents is not None and contents.fits(tensors) else None

    def take(self, tensors):
        """New contents, which the caller prepares and then stores here."""
        self.contents = None
        memory = self.memory
        if memory is None:
            room = self.size and self.size + CVY_ALIGN
            memory = self.memory = torch.empty(room, dtype=torch.uint8, device=self.device)
            self.family.bound(self)
        return Contents(memory, tensors)

    def drop(self):
        self.contents = self.memory = None


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
    """All families, by parameters and stream."""

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
