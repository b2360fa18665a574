"""Calls of a compiled module that PyTorch runs: recognised as fast as possible."""

from torch import _C as native

from .kinds import PLAIN
from .state import ATOMS

IN_A_ROW, FREE = 16, 64  # calls that pass: first each is checked, then none


def told(argument):
    """The properties by which an argument is recognised; TypeError if it cannot be."""
    if type(argument) in PLAIN:
        return argument.numel(), argument.dtype
    if type(argument) in ATOMS:
        return argument
    if type(argument) in (list, tuple):
        return tuple(map(told, argument))
    raise TypeError


class Passing:
    """Calls without a region: the original is the shortest way, whatever the guards would say. They are told
    apart roughly and fast, and after IN_A_ROW of them the next FREE go without a look: what that touches is not in the
    caches after a large operator. PyTorch's answer is always right, so a wrong guess costs no more than time."""

    __slots__ = ("keys", "row", "free")

    def __init__(self):
        self.keys, self.row, self.free = set(), 0, 0

    def key(self, module, args, kwargs):
        try:
            return module.training, native._is_any_autocast_enabled(), *map(told, args), *kwargs, *map(told, kwargs.values())
        except TypeError:
            return None

    def holds(self, module, args, kwargs):
        if self.free > 0:  # two threads may both take the last one
            self.free -= 1
            return True
        key = self.key(module, args, kwargs)
        if key is None or key not in self.keys:
            self.row = 0
            return False
        self.row += 1
        if self.row >= IN_A_ROW:
            self.free = FREE
        return True

    def add(self, module, args, kwargs):
        self.keys.add(self.key(module, args, kwargs))

    def clear(self):
        self.keys.clear()
        self.row = self.free = 0
