"""Has any of many objects changed? One check for all of them, in about a nanosecond each.

CPython counts writes to dictionaries: up to 3.13 every dictionary carries the number of its latest write (PEP 509). It
has no public name, so one call of the library (cvy_words_hold) reads it from memory, like the class of an object and the elements
of a list, while the interpreter's lock is held. A probe first checks that every kind of write is counted.
Otherwise PyTorch's own count of writes (Dynamo's) is used; without that, the caller has to compare.

A watcher is made for the present state of objects. Called, it says whether they have that state: dictionaries by their writes,
lists by their elements, objects by their class, `empty` dictionaries by having no entry.
"""

import ctypes as C
import gc
import sys
from collections import OrderedDict

from .binding import lib

WORD = C.sizeof(C.c_void_p)
CLASS, LENGTH = WORD, 2 * WORD  # after the reference count; of dictionaries and lists
TAG, ELEMENTS = 3 * WORD, 3 * WORD  # of a dictionary: its latest write; of a list: where its elements are

_hold = C.PyDLL(str(lib.path)).cvy_words_hold  # keeps the GIL, so no other thread writes during the check
_hold.restype, _hold.argtypes = C.c_int32, [C.c_void_p, C.c_void_p]


def word(address):
    return C.c_uint64.from_address(address).value


class Words:
    """1 ns each, and 200 for the call."""

    kinds = (dict, list)
    __slots__ = ("kept", "words", "place", "count")

    def __init__(self, containers, objects=(), empty=()):
        # While elements and classes are alive no other object has their address.
        elements = [list(c) for c in containers if type(c) is list]
        self.kept = containers, objects, empty, elements, list(map(type, objects))
        at = [id(d) + TAG for d in containers if type(d) is dict] + [id(o) + CLASS for o in objects]
        for x in containers:
            if type(x) is list:  # the elements are there only if length and place are what they were: first
                place = word(id(x) + ELEMENTS)
                at += [id(x) + LENGTH, id(x) + ELEMENTS, *range(place, place + WORD * len(x), WORD)]
        pairs = [n for a in at for n in (a, word(a))] + [n for d in empty for n in (id(d) + LENGTH, 0)]
        self.words = (C.c_uint64 * len(pairs))(*pairs)  # as cvy_word lies: an address, a value
        self.place, self.count = C.c_void_p(C.addressof(self.words)), C.c_void_p(len(pairs) // 2)

    def __call__(self):
        return _hold(self.place, self.count)


class Counted:
    """40 ns a dictionary."""

    kinds = (dict,)
    __slots__ = ("dictionaries", "objects", "empty", "writes", "types")

    def __init__(self, dictionaries, objects=(), empty=()):
        self.dictionaries, self.objects, self.empty = dictionaries, objects, empty
        self.writes, self.types = self.count(), list(map(type, objects))

    def count(self):
        from torch._C._dynamo.guards import dict_version

        return list(map(dict_version, self.dictionaries))

    def __call__(self):
        return self.count() == self.writes and list(map(type, self.objects)) == self.types and not any(self.empty)


class Compared:
    """If nothing is counted, the caller compares the contents of its containers."""

    kinds = ()
    __slots__ = ("objects", "empty", "types")

    def __init__(self, containers, objects=(), empty=()):
        assert not containers
        self.objects, self.empty, self.types = objects, empty, list(map(type, objects))

    def __call__(self):
        return list(map(type, self.objects)) == self.types and not any(self.empty)


def class_dictionary(cls):
    """The dictionary itself: `cls.__dict__` only shows it."""
    (found,) = gc.get_referents(cls.__dict__)
    return found


# ---- the watcher for this interpreter -----------------------------------------------------------------------------


class Probe:
    value = 0


class Other(Probe):
    pass


def dictionary_writes(plain, probe, owned):
    """Stores attributes often, so the interpreter specialises the instruction."""

    def store(i):
        probe.value = i

    return [
        lambda i: plain.__setitem__("key", i),
        lambda i: plain.update(key=-i),
        lambda i: plain.__setitem__(i, i),
        lambda i: plain.pop(i),
        lambda i: plain.setdefault(i, i),
        lambda i: plain.__delitem__(i),
        lambda i: plain.clear(),
        store,
        lambda i: owned.__setitem__("value", -i),
        lambda i: delattr(probe, "value"),
        lambda i: setattr(probe, "value", i),
        lambda i: setattr(Probe, "value", i),
        lambda i: setattr(probe, "__class__", Other if type(probe) is Probe else Probe),
    ]


def list_writes(some):
    return [
        lambda i: some.append(i),
        lambda i: some.__setitem__(0, -i),
        lambda i: some.insert(0, object()),
        lambda i: some.reverse(),
        lambda i: some.clear(),
        lambda i: some.extend(object() for _ in range(i)),
    ]


def shows(watcher, rounds=24):
    """Is every kind of write detected, and nothing else?"""
    probe, plain, some, hooks = Probe(), {"key": 0}, [0], OrderedDict()
    probe.value = 0
    owned, shared = probe.__dict__, class_dictionary(Probe)
    writes = dictionary_writes(plain, probe, owned)
    containers = [plain, owned, shared]
    if list in watcher.kinds:
        containers.append(some)
        writes += list_writes(some)
    for i in range(1, rounds + 1):
        for write in writes:
            same = watcher(containers, [probe], [hooks])
            if not same():
                return False
            write(i)
            if same():
                return False
    same = watcher(containers, [probe], [hooks])
    hooks["a"] = 1
    return not same()


def counts(watcher):
    if watcher is Words and (sys.implementation.name != "cpython" or sys.version_info >= (3, 14) or WORD != 8
                             or not getattr(sys, "_is_gil_enabled", lambda: True)()):  # fmt: skip
        return False
    try:
        return shows(watcher)
    except ImportError:
        return False


WATCHERS = (Words, Counted, Compared)
watcher = next((w for w in WATCHERS[:-1] if counts(w)), Compared)
