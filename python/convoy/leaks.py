"""Placeholders that a forward has left somewhere: in a global list, a cache, a closure, an object of its surroundings.

A captured graph would not put anything there, and what the trace put there is no tensor that anybody can compute with. So
such a module stays in PyTorch, and the placeholders are taken out again.
"""

import contextlib
import gc
import weakref
from collections import deque
from types import CellType

from torch._subclasses import FakeTensor
from torch.utils import _pytree as pytree


@contextlib.contextmanager
def collected_at_once():
    """The collector rests meanwhile, and then looks only at what was made meanwhile: a trace leaves cycles. One look at
    everything takes as long as tracing a hundred operators, and every trace would cause several."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
            gc.collect(0)


class Made:
    """The placeholders of a trace, and every value that was computed from them."""

    def __init__(self):
        self.seen = []

    def note(self, values):
        leaves = (values,) if isinstance(values, FakeTensor) else pytree.tree_leaves(values)
        self.seen += [weakref.ref(t) for t in leaves if isinstance(t, FakeTensor)]

    def alive(self):
        return [t for t in (ref() for ref in self.seen) if t is not None]

    def clean(self):
        """After the trace, when nothing of it is needed: takes out what is left of it, and says whether there was anything."""
        for generation in (0, 2):  # they may only hold one another
            if any(ref() is not None for ref in self.seen):
                gc.collect(generation)
        left = self.alive()
        for tensor in left:
            take_out(tensor, {id(left)})
        self.seen = []
        return bool(left)


def take_out(thing, ours, depth=3):
    """Removes an element from the containers that hold it; variables and attributes become None. ours: containers that stay.
    There is no inner function here, whose cell would be one of the holders."""
    for holder in gc.get_referrers(thing):
        if id(holder) in ours:
            continue
        if isinstance(holder, (list, deque)):
            take_out_of_list(holder, thing)
        elif isinstance(holder, set):
            holder.discard(thing)
        elif isinstance(holder, dict):
            take_out_of_dict(holder, thing)
        elif isinstance(holder, CellType):
            holder.cell_contents = None
        elif isinstance(holder, tuple) and depth:
            take_out(holder, ours, depth - 1)
        elif type(getattr(holder, "__dict__", None)) is dict:
            take_out_of_dict(holder.__dict__, thing, attributes=True)


def take_out_of_list(held, thing):
    kept = [x for x in held if x is not thing]
    held.clear()
    held.extend(kept)


def take_out_of_dict(held, thing, attributes=False):
    for key in [k for k, v in held.items() if v is thing]:
        if attributes or "__builtins__" in held:  # of a module
            held[key] = None
        else:
            del held[key]
