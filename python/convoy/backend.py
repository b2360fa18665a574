"""torch.compile(model, backend="convoy"): regions of what Dynamo captured run through Convoy, the rest as it is.

Dynamo finds it by the name that the installed package tells (an entry point) and registers it then; in a source tree
`backend=convoy.backend.compile_graph` is the same.
"""

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .module import Entry, MOST_ENTRIES, fill_entry, ordinary_world
from .region import Stale
from .settings import Settings


class CompiledGraph:
    """A graph of Dynamo as a function of the same arguments: parameters, other tensors, sizes."""

    def __init__(self, module, examples, settings):
        self.module, self.settings, self.entries = module, settings, {}
        self.is_param = [is_parameter(e) for e in examples]

    def __call__(self, *args):
        if not ordinary_world():
            return self.module(*args)
        key = self.settings.ambient(), torch.is_grad_enabled(), *map(kind_of, args)
        entry = self.entries.get(key)
        if entry is None:
            while len(self.entries) >= MOST_ENTRIES:
                del self.entries[next(iter(self.entries))]
            entry = self.entries[key] = self.make(args)
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if entry.invoke is None or entry.left_to_autograd([tensors[p] for p in entry.positions]):
            return self.module(*args)
        try:
            return entry.invoke(tensors)
        except Stale:
            del self.entries[key]
            return self(*args)

    def make(self, args):
        tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        order = [i for i in tensors if self.is_param[i]] + [i for i in tensors if not self.is_param[i]]

        def run(params, given):
            full = list(args)
            for i, tensor in zip(order, [*params, *given]):
                full[i] = tensor
            return self.module(*full)

        entry = Entry()
        entry.params = [args[i] for i in order if self.is_param[i]]
        entry = fill_entry(entry, run, [args[i] for i in order if not self.is_param[i]], self.settings)
        if entry.invoke is not None:
            entry.positions = [tensors.index(i) for i in order]
            entry.invoke = by_position(entry.capture, entry.positions)
            entry.params = []  # they come with every call: nothing is kept alive
        return entry


def by_position(found, positions):
    """The captured graph on tensors in the order of the arguments."""
    forward, spec = found.graph.forward, found.out_spec
    return lambda tensors: pytree.tree_unflatten(forward(*[tensors[p] for p in positions]), spec)


def is_parameter(example):
    return isinstance(example, nn.Parameter) or getattr(example, "_dynamo_static_input_type", None) is not None


def kind_of(argument):
    if isinstance(argument, torch.Tensor):
        return tuple(argument.shape), argument.stride(), argument.dtype, argument.device
    return argument


def compile_graph(module, examples, **options):
    """options: those of convoy.compile()."""
    return CompiledGraph(module, examples, Settings(**(options.get("options") or {})))
