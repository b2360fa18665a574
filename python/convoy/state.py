"""A module's state: everything that its forward can read or change besides its arguments.

State finds it once: every dictionary, list, set and deque that can be reached from the module through one another,
through submodules and plain objects, and their classes; every tensor in them. Then it answers two questions.

- Is the state unchanged? A capture is valid while it is. Every call asks, so it must cost nanoseconds per module (versions.py).
- What has the forward changed? While a module is traced, stand-ins replace its tensors. Afterwards everything is restored,
  object by object, and a module that changed itself is detected: a captured graph would not repeat the change.
"""

import argparse
import contextlib
import functools
import numbers
import operator
import sys
import types
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator
from itertools import chain

import torch
from torch import nn
from torch.nn.utils import parametrize

from . import versions
from .gate import alone
from .kinds import PLAIN, Kinds
from .random_numbers import no_chance, same_random_numbers, ways_of
from .reasons import Changed, Unseen

MOST_CONTAINERS = 20_000  # of a module, else it is not captured
MOST_ELEMENTS = 5_000  # in lists, sets, deques: these are compared one by one, 20 ns each
KINDS = ("_parameters", "_buffers", "_modules")
ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size,
                   torch.memory_format, torch.layout, types.FunctionType, types.BuiltinFunctionType, type})  # fmt: skip
VALUES = ATOMS | {tuple}  # equal ones are interchangeable
ATTRIBUTED = (dict, list, set, deque, tuple, frozenset, functools.partial, types.FunctionType, torch.Tensor)
NAMESPACES = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap)
OF_MODELS = ("torch.distributions.", "torch.nn.")  # PyTorch's classes whose objects hold a model's values
OWN = frozenset(nn.Module().__dict__) - {"training", *KINDS}  # hooks and the like: nothing that a forward reads
LAZY = frozenset({"__annotations__", "__doc__", "__slotnames__", "__abstractmethods__", "__weakref__", "__dict__"})


# ---- containers --------------------------------------------------------------------------------------------------


def read_dict(d):
    return [*d, *d.values()]


def write_dict(d, items):
    n = len(items) // 2
    if list(map(id, d)) != list(map(id, items[:n])):
        d.clear()
    for key, value in zip(items[:n], items[n:]):
        if key not in d or d[key] is not value:
            d[key] = value


def write_list(x, items):
    x[:] = items


def write_set(x, items):
    x.clear()
    x.update(items)


def write_deque(x, items):
    x.clear()
    x.extend(items)


def read_class(cls):
    found = {k: v for k, v in cls.__dict__.items() if k not in LAZY}
    return read_dict(found)


class Slots:
    """An object's `__slots__`, as keys and values."""

    def __init__(self, thing):
        self.thing = thing
        self.names = [n for c in type(thing).__mro__ for n in member_names(c)]

    def keys(self):
        return self.names

    def values(self):
        return self

    def __len__(self):
        return len(self.names)

    def __iter__(self):
        return (getattr(self.thing, name, EMPTY) for name in self.names)


EMPTY = object()  # what is in a slot that was never written


def member_names(cls):
    """The attributes that a Python class adds; C classes have no `__slots__`."""
    own = cls.__dict__
    slots = [n for n, v in own.items() if type(v) is types.MemberDescriptorType] if "__slots__" in own else []
    return [n for n in slots if n != "_convoy"]  # of a compiled module


def read_slots(slots):
    return [*slots.names, *slots]


def write_slots(slots, items):
    for name, now, value in zip(slots.names, slots, items[len(slots) :]):
        if value is EMPTY and now is not EMPTY:
            object.__delattr__(slots.thing, name)
        elif value is not now:
            object.__setattr__(slots.thing, name, value)


def write_class(cls, items):
    n = len(items) // 2
    before = dict(zip(items[:n], items[n:]))
    for key in [k for k in cls.__dict__ if k not in before and k not in LAZY]:
        delattr(cls, key)
    for key, value in before.items():
        if cls.__dict__.get(key) is not value:
            setattr(cls, key, value)


WAYS = ((dict, read_dict, write_dict), (list, list, write_list), (set, list, write_set), (deque, list, write_deque),
        (type, read_class, write_class), (Slots, read_slots, write_slots))  # fmt: skip
KEYED = (dict, type, Slots)


class Held:
    """A container, with what was in it: for a dictionary or a class all keys, then all values.

    guarded: a capture holds while it is the same. restored: it is put back after a trace."""

    __slots__ = ("container", "name", "read", "write", "before", "guarded", "restored")

    def __init__(self, container, name, guarded=True, restored=True):
        self.container, self.name, self.guarded, self.restored = container, name, guarded, restored
        self.read, self.write = next((r, w) for kind, r, w in WAYS if isinstance(container, kind))
        self.before = self.read(container)

    def named(self, i):
        """The name of the element with this number."""
        if not isinstance(self.container, KEYED):
            return self.name("") + f"[{i}]"
        return self.name(self.before[i % (len(self.before) // 2)])

    def difference(self, before):
        """The name of something that is not as it was, else None."""
        now = self.read(self.container)
        if len(now) == len(before):
            if all(map(operator.is_, now, before)):
                return None
            return next((self.named(i) for i, (a, b) in enumerate(zip(now, before)) if not same(a, b)), None)
        if not isinstance(self.container, KEYED):
            return self.name("")
        keys, old = now[: len(now) // 2], set(before[: len(before) // 2])
        return self.name(next((k for k in [*keys, *old] if (k in old) != (k in keys)), ""))

    def restore(self):
        now = self.read(self.container)
        if len(now) != len(self.before) or not all(map(operator.is_, now, self.before)):
            self.write(self.container, self.before)


def same(a, b):
    """The same object, or an equal plain value."""
    if a is b:
        return True
    if type(a) is not type(b) or type(a) not in VALUES:
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a.hex() == b.hex() if type(a) is float else a == b  # 0.0 is not -0.0


class Given:
    """An argument of a call that is neither a tensor nor a plain value, as a key: its own equality may leave something out."""

    __slots__ = ("thing",)

    def __init__(self, thing):
        self.thing = thing

    def __hash__(self):
        return hash(self.thing)

    def __eq__(self, other):
        return isinstance(other, Given) and interchangeable(self.thing, other.thing)


def interchangeable(a, b, depth=8):
    """The same object, or one with the same contents."""
    if a is b or same(a, b):
        return True
    if type(a) is not type(b) or not depth or isinstance(a, torch.Tensor):
        return False
    if has_contents(a) or has_slots(a):
        pairs = [vars(x) if has_contents(x) else {} for x in (a, b)], [dict(zip(s.keys(), s)) for s in (Slots(a), Slots(b))]
        return all(x.keys() == y.keys() and all(interchangeable(x[k], y[k], depth - 1) for k in x) for x, y in pairs)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(interchangeable(x, y, depth - 1) for x, y in zip(a, b))
    if isinstance(a, frozenset):
        return set(map(spelled, a)) == set(map(spelled, b))
    return isinstance(a, (numbers.Number, range)) and repr(a) == repr(b)


def spelled(value):
    """The key that identifies an argument of a call."""
    if type(value) in (float, complex):
        return type(value), repr(value)  # 0.0 is not -0.0
    return type(value), value if type(value) in ATOMS else Given(value)


# ---- everything that hangs on a module ---------------------------------------------------------------------------


def member(path, key):
    return f"{path}.{key}" if path and key != "" else f"{path}{key}"


def entry_of(path, key):
    return f"{path}[{key!r}]" if key != "" else path


def foreign(cls):
    """Python's own and PyTorch's classes hold nothing of the model's, modules excepted."""
    top = cls.__module__.partition(".")[0]
    return top == "torch" or top in sys.stdlib_module_names


def atom(value):
    """Has it nothing that could change? A function may have attributes."""
    return type(value) in ATOMS and not (type(value) is types.FunctionType and value.__dict__)


def closure_of(function):
    cells = getattr(getattr(function, "__func__", function), "__closure__", None) or ()
    return [c.cell_contents for c in cells if c != types.CellType()]  # an empty cell has no contents


def has_contents(value):
    if isinstance(value, (type, types.ModuleType)) or type(getattr(value, "__dict__", None)) is not dict:
        return False
    return isinstance(value, (nn.Module, *NAMESPACES)) or not foreign(type(value)) or type(value).__module__.startswith(OF_MODELS)


def has_slots(value):
    return not isinstance(value, type) and not foreign(type(value)) and any(map(member_names, type(value).__mro__))


def attributes(tensor):
    """What a model has set on it; names with an underscore are PyTorch's."""
    return {k: v for k, v in vars(tensor).items() if not k.startswith("_")}


def same_attributes(a, b):
    return a.keys() == b.keys() and all(map(same, a.values(), b.values()))


@contextlib.contextmanager
def no_cached_parametrizations():
    """parametrize.cached() keeps tensors in a global variable: a trace must not find any there, nor leave its own."""
    kept, parametrize._cache = parametrize._cache, {}
    try:
        yield
    finally:
        parametrize._cache = kept


class State:
    def __init__(self, root, *more):
        """root: a module. more: what else its forward is given, call for call the same."""
        self.held, self.objects, self.tensors, self.buffers, self.generators = [], [], {}, set(), {}
        self.classes, self.references, self.names, self.seen, self.elements_left = [], [], {}, set(), MOST_ELEMENTS
        self.alone = None if more else weakref.ref(root) if isinstance(root, nn.Module) else None
        self.waiting = [*((m, "an argument") for m in more), (root, "")]
        while self.waiting:
            self.visit(*self.waiting.pop())
        del self.seen, self.waiting
        self.objects = [o for o in self.objects if o is not root]
        self.types = list(map(type, self.objects))
        self.kinds = Kinds([t for t in self.tensors.values() if type(t) in PLAIN])
        self.same, self.views, self.elements, self.lengths = self.watch()

    # -- finding --

    def visit(self, value, path):
        if atom(value) or id(value) in self.seen:
            return
        self.seen.add(id(value))
        if isinstance(value, ATTRIBUTED):
            self.visit_attributes(value, path)
        if isinstance(value, torch.Tensor):
            self.tensors[id(value)], self.names[id(value)] = value, path
        elif (ways := ways_of(value)) is not None:
            self.generators[path] = ways
        elif isinstance(value, (dict, list, set, deque)):
            self.hold(value, path, functools.partial(entry_of, path))
        elif isinstance(value, (tuple, frozenset)):
            self.expect(list(value), lambda i: f"{path}[{i}]")
        elif isinstance(value, weakref.ref):
            self.references.append(value)
        elif isinstance(value, types.MethodType):
            self.expect([value.__self__, value.__func__], lambda i: path)
        elif isinstance(value, functools.partial):
            self.expect([value.func, *value.args, value.keywords], lambda i: path)
        elif has_contents(value):
            self.visit_object(value, path)
        elif has_slots(value):
            self.objects.append(value)
            self.visit_slots(value, path)
        elif isinstance(value, Iterator):
            raise Unseen(f"{path or 'it'} is an iterator, whose position cannot be read")

    def visit_attributes(self, value, path):
        """Those of a container, a function or a tensor, which are not among its elements."""
        own = getattr(value, "__dict__", None)
        if type(own) is dict and (own or not isinstance(value, torch.Tensor)):  # nearly all parameters have none
            self.seen.add(id(own))
            self.hold(own, path, functools.partial(member, path))
        if not isinstance(value, torch.Tensor):
            self.visit_classes(value)

    def visit_object(self, value, path):
        if isinstance(value, torch.jit.ScriptModule):
            raise Unseen(f"{path or 'it'} is a scripted module, whose state cannot be inspected")
        self.objects.append(value)
        name = functools.partial(member, path)
        here = value.__dict__
        self.seen.add(id(here))
        if not isinstance(value, nn.Module):
            self.hold(here, path, name)
            self.visit_slots(value, path)
        else:
            for container in [here[k] for k in OWN if k in here]:
                if isinstance(container, (dict, set)) and id(container) not in self.seen:
                    self.visit_hooks(container, path)
            for kind in KINDS:
                self.seen.add(id(here[kind]))
                self.hold(here[kind], path, name)
            self.buffers.update(map(id, here["_buffers"].values()))
            self.hold(here, path, name)
            self.visit_slots(value, path)

    def visit_slots(self, value, path):
        if has_slots(value):
            self.hold(Slots(value), path, functools.partial(member, path))
        self.visit_classes(value)

    def visit_classes(self, value):
        for cls in type(value).__mro__[:-1]:
            if id(cls) not in self.seen and not (foreign(cls) and not issubclass(cls, nn.Module)):
                self.seen.add(id(cls))
                name = functools.partial(member, cls.__name__)
                self.hold(cls, cls.__name__, name, ours=not foreign(cls))
                self.classes += [] if foreign(cls) else [cls]

    def visit_hooks(self, container, path):
        """Empty ones are not watched here, because every call checks whether there are any."""
        self.seen.add(id(container))
        self.held.append(Held(container, lambda _: member(path, "a hook"), guarded=bool(container)))
        for hook in container.values() if isinstance(container, dict) else ():
            self.expect([hook, *closure_of(hook)], lambda i: member(path, "a hook"))

    def owns(self, function):
        """Does this code belong to the module's classes? Then it is part of its forward, regardless of its caller."""
        function = getattr(function, "__func__", function)
        name, where = getattr(function, "__qualname__", ""), getattr(function, "__module__", None)
        return any(where == c.__module__ and name.startswith(c.__qualname__ + ".") for c in self.classes)

    def generators_held(self):
        """PyTorch's generators that can be reached from the module or are arguments."""
        return [read.__self__ for read, _, _ in self.generators.values() if isinstance(getattr(read, "__self__", None), torch.Generator)]

    def hold(self, container, path, name, ours=True):
        """ours: not PyTorch's own classes, which its tracer changes while it runs."""
        held = Held(container, name, restored=ours)
        self.held.append(held)
        keyed = isinstance(container, KEYED)
        if not keyed:
            self.elements_left -= len(held.before)
        if len(self.held) > MOST_CONTAINERS or self.elements_left < 0:
            raise Unseen(f"{path or 'the module'} holds too much to check in every call")
        if ours:
            first = len(held.before) // 2 if keyed else 0
            self.expect(held.before[first:], lambda i: held.named(first + i))

    def expect(self, values, named):
        # the last is visited first: turned round, things come in the order in which they are listed
        self.waiting += [(v, named(i)) for i, v in enumerate(values) if not atom(v)][::-1]

    # -- has it changed? --

    def counted(self):
        """Containers whose writes a watcher sees, and views of all others."""
        seen, views = [], []
        for x in (held.container for held in self.held if held.guarded):
            x = versions.class_dictionary(x) if isinstance(x, type) else x
            if type(x) in versions.watcher.kinds:  # an OrderedDict can be put into another order without a write
                seen.append(x)
            else:
                views += [x.keys(), x.values()] if isinstance(x, KEYED) else [x]
        return seen, views

    def watch(self):
        """(same, views, elements, lengths) for unchanged(): what a watcher sees, and all else element by element."""
        seen, views = self.counted()
        return versions.watcher(seen, self.objects), views, list(chain.from_iterable(views)), list(map(len, views))

    def unchanged(self):
        if not self.kinds.hold():
            return False
        if self.same() and (not self.views or self.elements_unchanged()):
            return True
        now = self.watch()
        if self.difference() is not None:
            return False
        self.same, self.views, self.elements, self.lengths = now  # the same again was written
        return True

    def is_of(self, module):
        """Is it this module's state, and nothing else's?"""
        return self.alone is not None and self.alone() is module

    def untouched(self):
        """Is everything unchanged, including hooks and other things that no capture relies on?"""
        return self.kinds.hold() and all(held.difference(held.before) is None for held in self.held) and \
            list(map(type, self.objects)) == self.types  # fmt: skip

    def elements_unchanged(self):
        lengths, elements = map(len, self.views), chain.from_iterable(self.views)
        return list(lengths) == self.lengths and all(map(operator.is_, elements, self.elements))

    def difference(self):
        """The name of something that is not as it was, else None."""
        for held in self.held:
            if held.guarded and (name := held.difference(held.before)) is not None:
                return name
        for thing, cls in zip(self.objects, self.types):
            if type(thing) is not cls:
                return f"the class of a {cls.__name__}"
        return None

    # -- a trace --

    @contextlib.contextmanager
    def replaced(self, tensors, stand_ins):
        """Replaces tensors with stand_ins everywhere. Afterwards everything is restored; Changed says what had changed."""
        by = {id(t): s for t, s in zip(tensors, stand_ins)}
        for stand_in in (s for t, s in zip(tensors, stand_ins) if isinstance(t, nn.Parameter)):
            stand_in._is_param = True  # for isinstance()
        by.update((id(r), weakref.ref(by[id(r())])) for r in self.references if id(r()) in by)
        for tensor, stand_in in zip(tensors, stand_ins):
            vars(stand_in).update((k, by.get(id(v), v)) for k, v in vars(tensor).items())
        tags = [(s, attributes(s)) for s in stand_ins]
        during = [(held, [by.get(id(x), x) for x in held.before]) for held in self.held if held.restored]
        try:
            for held, items in during:
                if not all(map(operator.is_, items, held.before)):
                    held.write(held.container, items)
            with no_cached_parametrizations():
                yield
            found = (held.difference(items) for held, items in during)
            name = next((n for n in found if n is not None), None)
            if not all(same_attributes(attributes(s), then) for s, then in tags):
                name = "an attribute of a tensor"
        finally:
            self.restore()
        if name is not None:
            raise Changed(f"its forward changes {name or 'itself'}")

    @contextlib.contextmanager
    def traced(self):
        """Around a trace: no other thread uses the module, and random number generators keep their state."""
        with alone(), same_random_numbers(self.generators), no_chance():
            yield

    def restore(self):
        """Restores everything, even if some of it raises an error: no placeholder may stay."""
        failed = None
        for held in self.held:
            try:
                if held.restored:
                    held.restore()
            except BaseException as error:
                failed = error
        if failed is not None:
            raise failed
